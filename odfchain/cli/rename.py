"""`odfchain rename`: another local name for a dataset."""

from __future__ import annotations

import click

from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.parameters import DATASET


@click.command("rename")
@click.argument("dataset", type=DATASET)
@click.argument("name")
def rename_command(dataset: str, name: str) -> None:
    """Give a dataset another local name; its id and history stay."""
    open_workspace().rename(dataset, name)
    say(f"{dataset} is now {name}")
