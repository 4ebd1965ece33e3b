"""`odfchain source`: where a dataset's rows come from is ended."""

from __future__ import annotations

import click

from odfchain import Timestamp
from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.parameters import DATASET, TIMESTAMP


@click.group("source")
def source_command() -> None:
    """End where a dataset's rows come from."""


@source_command.command("disable")
@click.argument("dataset", type=DATASET)
@click.option("--source", "name", metavar="NAME", help="Which source, when there are several.")
@click.option(
    "--system-time", type=TIMESTAMP, hidden=True, help="System time of the block, for reproducible chains."
)
def disable_command(dataset: str, name: str | None, system_time: Timestamp | None) -> None:
    """Record that the polling source, or a push source, is no longer used.

    What is recorded stays. The source can be defined again with `odfchain add --update`.
    """
    found = open_workspace()[dataset]
    event, head = found.disable_source(name, system_time=system_time)
    say(f"{found.alias}: recorded {event.KIND}, head is {head}")
