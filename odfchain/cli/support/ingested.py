"""What ingestion brought, as people and programs read it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.cli.support.context import options
from odfchain.cli.support.output import print_records
from odfchain.cli.support.screen import echo

if TYPE_CHECKING:
    from odfchain import IngestOutcome


def print_outcome(outcome: IngestOutcome, output: str) -> None:
    """Print what each file brought, and what was committed."""
    columns = ["file", "rows", "+A", "-R", "-C", "+C", "offsets"]
    rows = [
        {
            "file": Path(item.file).name if output == "table" else item.file,
            "rows": item.input_rows,
            **{op: item.operations.get(op, 0) for op in ("+A", "-R", "-C", "+C")},
            "offsets": f"{item.offsets[0]}-{item.offsets[1]}" if item.offsets else None,
        }
        for item in outcome.inputs
    ]
    print_records(rows, columns, output, right=columns[1:])
    if options().quiet:
        return
    if outcome.up_to_date:
        echo("up to date: nothing new to commit", fg="yellow", err=True)
    else:
        plural = "s" if outcome.blocks > 1 else ""
        echo(f"committed {outcome.blocks} block{plural}, head is {outcome.head}", fg="green", err=True)
