"""`odfchain delete`: datasets are removed from the workspace."""

from __future__ import annotations

import click

from odfchain.cli.support.context import confirm, open_workspace, say
from odfchain.cli.support.parameters import DATASET


@click.command("delete")
@click.argument("datasets", nargs=-1, required=True, type=DATASET)
@click.option("--force", is_flag=True, help="Remove also what others refer to, or are made of.")
def delete_command(datasets: tuple[str, ...], force: bool) -> None:
    """Remove datasets from the workspace (names, ids or % patterns). Their private keys are kept.

    What has foreign keys to one of them, or is made of one, is named, and nothing is removed without --force.
    """
    workspace = open_workspace()
    doomed = {d.id: d for text in datasets for d in workspace.matching(text)}
    names = [str(d.alias) for d in doomed.values()]
    workspace.delete(*names, force=force, dry_run=True)  # what is refused is not asked about
    confirm(f"Delete {', '.join(names)} with all data?")
    workspace.delete(*names, force=force)
    for name in names:
        say(f"deleted {name}")
