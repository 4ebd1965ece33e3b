"""`odfchain blame`: where a record comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace
from odfchain.cli.support.output import format_option, print_json, print_records
from odfchain.cli.support.parameters import DATASET_AT, key_values
from odfchain.cli.support.trees import print_trees
from odfchain.errors import ObjectCorruptedError, UsageError

if TYPE_CHECKING:
    from odfchain import TextTree


@click.command("blame")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@click.argument("key", nargs=-1, metavar="[COL=VALUE…]")
@click.option("--offset", type=click.IntRange(min=0), metavar="N", help="The record, by its offset.")
@click.option("--to", "last", type=click.IntRange(min=0), metavar="M", help="The last record, of several.")
@click.option("-r", "--recursive", is_flag=True, help="Go on through all inputs down to the roots.")
@format_option("table", "json", "tree", default="tree")
def blame_command(
    dataset: str, key: tuple[str, ...], offset: int | None, last: int | None, recursive: bool, output: str
) -> None:
    """Show where a record comes from: slice, block, source or transform, and the input records it is made of.

    The record is named by its offset, or by its primary key, column by column (iata=ZRH): then it is the
    newest one with that key. What is missing or cannot be known is said. Reading a damaged slice ends with
    exit code 6.
    """
    from odfchain.api.branch_points import at_point
    from odfchain.api.lineage_views import blame_document, blame_tree

    if bool(key) == (offset is not None) or (key and last is not None):
        raise UsageError("name the record: --offset N [--to M], or its primary key like iata=ZRH")
    found = at_point(open_workspace(), dataset)
    if offset is None:
        newest = found.history(key_values(key), limit=1)
        if not newest:
            raise UsageError("no row with this key was ever recorded there")
        offset = newest[0].offset
    blame = found.blame(offset, last, recursive=recursive)
    match output:
        case "json":
            print_json(blame_document(blame))
        case "table":
            print_records(_flat([blame_tree(blame)]), ["level", "what"], "table", right=["level"])
        case _:
            print_trees([blame_tree(blame)])
    if blame.damage is not None:
        raise ObjectCorruptedError(
            str(blame.damage), hint=f"`odfchain verify {dataset}` says what else is damaged"
        )


def _flat(trees: Iterable[TextTree], level: int = 0) -> Iterator[dict[str, Any]]:
    for branch in trees:
        yield {"level": level, "what": branch.text}
        yield from _flat(branch.below, level + 1)
