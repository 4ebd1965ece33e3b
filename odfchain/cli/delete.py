"""`odfchain delete`: datasets are removed from the workspace."""

from __future__ import annotations

import click

from odfchain.cli.support.context import confirm, open_workspace, say
from odfchain.cli.support.parameters import DATASET


@click.command("delete")
@click.argument("datasets", nargs=-1, required=True, type=DATASET)
def delete_command(datasets: tuple[str, ...]) -> None:
    """Remove datasets from the workspace (names, ids or % patterns). Their private keys are kept."""
    workspace = open_workspace()
    doomed = {d.id: d for text in datasets for d in workspace.matching(text)}
    names = ", ".join(str(d.alias) for d in doomed.values())
    confirm(f"Delete {names} with all data?")
    for dataset in doomed.values():
        workspace.delete(str(dataset.id))
        say(f"deleted {dataset.alias}")
