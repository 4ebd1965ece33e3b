"""`odfchain list`: the datasets of the workspace."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.faults import report_error
from odfchain.cli.support.output import format_option, human_age, human_size, print_records
from odfchain.errors import OdfchainError

if TYPE_CHECKING:
    from odfchain import Dataset


@click.command("list")
@format_option()
@click.option("--wide", is_flag=True, help="Show ids, heads and watermarks too.")
def list_command(output: str, wide: bool) -> int:
    """List the datasets of the workspace."""

    rows, people, code = [], output == "table", 0
    now = time.time_ns()
    for dataset in open_workspace():
        try:
            row = _list_row(dataset, now, people=people)
            rows.append(row | _local_slices(dataset, people=people))
        except OdfchainError as error:  # one damaged dataset must not hide the others
            report_error(error, about=str(dataset.alias))
            code = error.exit_code
    columns = ["name", "kind", "records", "size", "blocks", "updated"]
    if any("slices" in row for row in rows):
        columns[4:4] = ["slices"] if people else ["slicesLocal", "slices"]
    if wide or not people:
        columns += ["watermark", "id", "head"]
    if not rows and people:
        say("no datasets yet; make one with `odfchain add MANIFEST`")
        return code
    titles = {c: c.capitalize() if c != "id" else "Id" for c in columns}
    print_records(
        rows,
        columns,
        output,
        titles=titles,
        right=[c for c in ("records", "size", "slices", "blocks") if c in columns],
    )
    return code


def _local_slices(dataset: Dataset, *, people: bool) -> dict[str, Any]:
    """How many slices of a partial copy are here; nothing for the datasets that have all of theirs."""
    found = dataset.local_slices()
    if found is None:
        return {}
    if people:
        return {"slices": f"{found.present:,} of {found.total:,}"}
    return {"slicesLocal": found.present, "slices": found.total}


def _list_row(dataset: Dataset, now: int, *, people: bool) -> dict[str, Any]:
    state = dataset.summary
    watermark, updated = state.watermark, state.head_block.system_time
    return {
        "name": str(dataset.alias),
        "kind": state.seed.dataset_kind.value,
        "records": f"{state.record_count:,}" if people else state.record_count,
        "size": human_size(dataset.data_size) if people else dataset.data_size,
        "blocks": state.head_block.sequence_number + 1,
        "updated": human_age(updated.epoch_ns, now) if people else str(updated),
        "watermark": str(watermark) if watermark else None,
        "id": str(state.seed.dataset_id),
        "head": str(state.head),
    }
