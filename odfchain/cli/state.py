"""`odfchain state`: the rows in force, at any point of the history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.output import count_of, format_option, numeric_columns, print_records
from odfchain.cli.support.parameters import DATASET_AT
from odfchain.cli.support.result_output import TABLE_ROWS

if TYPE_CHECKING:
    import pyarrow as pa


@click.command("state")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@click.option("--event-time", metavar="TIME", help="What was true then, by all that is known at the point.")
@click.option(
    "-n", "--num-records", "newest", type=click.IntRange(min=0), metavar="N", help="Only the newest N."
)
@format_option()
def state_command(dataset: str, event_time: str | None, newest: int | None, output: str) -> None:
    """Show the rows in force: of each primary key the newest one, unless it was taken back.

    POINT is a branch, a block (its number or hash), or a system time: what was known then. Without a primary
    key the rows are those that were not taken back. They come in order of offset, as they were recorded; a
    table shows the newest 1,000 of them unless -n says another number.
    """
    from odfchain.api.kept_states import shown_state

    scan = shown_state(open_workspace(), dataset, event_time=event_time)
    found = scan.to_arrow()
    most = TABLE_ROWS if newest is None and output == "table" else newest
    rows = found if most is None else found.slice(max(0, found.num_rows - most))
    op = scan.summary.vocabulary.operation_type_column if output == "table" else None
    right = [name for name in numeric_columns(rows.schema) if name != op]
    print_records(_rows(rows, op), rows.schema.names, output, right=right)
    if newest is None and rows.num_rows < found.num_rows:
        say(f"the newest {rows.num_rows:,} of {count_of(found.num_rows, 'row')}")


def _rows(table: pa.Table, op: str | None) -> Iterator[dict[str, Any]]:
    """The rows; the operation `op` as people write it."""
    from odfchain import OperationType

    for batch in table.to_batches():
        for row in batch.to_pylist():
            if op in row:
                row[op] = OperationType.from_code(row[op]).value
            yield row
