"""`odfchain search`: the datasets of repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace
from odfchain.cli.support.faults import report_error
from odfchain.cli.support.output import format_option, human_size, print_records
from odfchain.cli.support.parameters import REPOSITORY
from odfchain.cli.support.peers import token_for
from odfchain.errors import OdfchainError, UsageError

if TYPE_CHECKING:
    from odfchain import RepositoryEntry

_FOUND = ["dataset", "kind", "records", "size", "blocks"]


@click.command("search")
@click.argument("text", default="")
@click.option(
    "--repo",
    "repository",
    type=REPOSITORY,
    metavar="NAME|URL",
    help="Look there; else in all that are known.",
)
@format_option()
def search_command(text: str, repository: str | None, output: str) -> int:
    """List the datasets of repositories whose name or id contains a text.

    The first column is what `odfchain pull` takes.
    """
    workspace = open_workspace()
    places = [repository] if repository else [str(known.name) for known in workspace.repositories.list()]
    if not places:
        raise UsageError(
            "no repository is known", hint="name one: --repo URL, or `odfchain repo add NAME URL`"
        )
    token = token_for([workspace.repository_url(repository)] if repository else [])
    rows, code = [], 0
    for place in places:
        try:
            found = workspace.datasets_of(place, text, token=token)
        except OdfchainError as error:
            report_error(error)
            code = code or error.exit_code
            continue
        prefix = str(workspace.repository_url(place)) if "/" in place else f"{place}/"
        rows += [_row(f"{prefix}{entry.alias}", entry, people=output == "table") for entry in found]
    if rows or not code:
        columns = _FOUND if output == "table" else [*_FOUND, "id", "head"]
        print_records(rows, columns, output, right=_FOUND[2:])
    return code


def _row(name: str, entry: RepositoryEntry, *, people: bool) -> dict[str, Any]:
    size = entry.size
    return {
        "dataset": name,
        "kind": entry.kind.value if entry.kind else None,
        "records": entry.records,
        "size": human_size(size) if people and size is not None else size,
        "blocks": entry.blocks,
        "id": str(entry.id) if entry.id else None,
        "head": str(entry.head),
    }
