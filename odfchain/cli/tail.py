"""`odfchain tail`: the newest records of a dataset."""

from __future__ import annotations

import click

from odfchain.api.branch_points import at_point
from odfchain.cli.support.context import open_workspace
from odfchain.cli.support.output import format_option, numeric_columns, print_records
from odfchain.cli.support.parameters import DATASET_AT


@click.command("tail")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@click.option("-n", "--num-records", default=10, show_default=True, type=click.IntRange(min=0))
@click.option("-s", "--skip-records", default=0, show_default=True, type=click.IntRange(min=0))
@format_option()
def tail_command(dataset: str, num_records: int, skip_records: int, output: str) -> None:
    """Show the newest records of a dataset. Operations are shown as +A, -R, -C and +C in tables.

    DATASET@POINT is the dataset on a branch, as of a block (its number or hash), or as of a time.
    """
    found = at_point(open_workspace(), dataset)
    table = found.tail(num_records, skip=skip_records)
    rows = table.to_pylist()
    names = list(table.schema.names)
    op = found.summary.vocabulary.operation_type_column
    if output == "table" and op in names:
        from odfchain import OperationType

        for row in rows:
            try:
                row[op] = OperationType.from_code(row[op]).value
            except ValueError:
                continue
    print_records(rows, names, output, right=numeric_columns(table.schema))
