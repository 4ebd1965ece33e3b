"""What a block of changes brought, as people and programs read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.cli.support.context import options
from odfchain.cli.support.output import print_records
from odfchain.cli.support.screen import echo

if TYPE_CHECKING:
    from odfchain import ChangeOutcome


def print_changes(dataset: str, outcome: ChangeOutcome, output: str) -> None:
    """Print what was committed, or that there was nothing to commit."""
    operations = {op: outcome.operations.get(op, 0) for op in ("+A", "-R", "-C", "+C")}
    if output != "table":
        row = {"dataset": dataset, **operations, "block": outcome.number, "head": str(outcome.head)}
        print_records([row], list(row), output)
    elif outcome.up_to_date:
        if not options().quiet:
            echo("nothing to commit: the values are there already", fg="yellow", err=True)
    else:
        echo(f"{dataset}: {outcome.summary}; it is block {outcome.number:,}")
