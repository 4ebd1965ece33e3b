"""`odfchain manifest`: which files a dataset consists of at a block."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.support.context import open_workspace, say
from odfchain.cli.support.output import count_of, format_option, human_size
from odfchain.cli.support.parameters import DATASET_AT
from odfchain.cli.support.screen import echo, echo_canonical, echo_table
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain import Manifest

_SHOWN = 10
_DAY = len("2026-01-01")


@click.command("manifest")
@click.argument("dataset", type=DATASET_AT, metavar="DATASET[@POINT]")
@click.option("--where", metavar="SQL", help="Say which files may hold a row that this condition keeps.")
@click.option("--write", is_flag=True, help="Store it, and sign it with the dataset's key.")
@click.option(
    "--key",
    "key_file",
    type=click.Path(path_type=Path),
    help="With --write: sign it with the key in this file (`odfchain key create`).",
)
@format_option("table", "json")
def manifest_command(
    dataset: str, where: str | None, key_file: Path | None, output: str, *, write: bool
) -> None:  # fmt: skip
    """Show which files a dataset consists of at a block, and what their footers report of the rows.

    The manifest follows from the chain and the footers alone: anybody makes the same bytes, for any block, at
    any time. JSON is its one text, in the form of Lode's manifest.

    With --where, a file that cannot hold such a row is marked: readers skip it. The condition is SQL of
    columns and literals (= <> < <= > >= IN BETWEEN IS NULL LIKE 'x%' AND OR NOT); what it says besides skips
    nothing.

    With --write it is kept beside the dataset and travels with it, and a signed line names it, so that a
    reader finds it without walking the chain. A push does that for the head.
    """
    from odfchain.api.branch_points import at_point

    if where is not None and output == "json":
        raise UsageError("the JSON text is the whole manifest: --where is for the table")
    if key_file is not None and not write:
        raise UsageError("--key is the key that --write signs with")
    with open_workspace() as workspace:
        opened = at_point(workspace, dataset)
        found = opened.manifest()
        written = opened.write_manifest(key_file) if write else None
    if output == "json":
        echo_canonical(found.content)
    else:
        _print(found, where)
    if found.signed:
        say("note: not all slices are here: this is the manifest that the owner signed")
    if where is not None and not found.understands(where):
        say("note: nothing is skipped: no part of the condition compares a column with a literal")
    if written is not None and written.line is not None:
        say(f"published: manifests/{written.object}, signed by {written.line.signer}")
    elif written is not None:
        say(f"note: written, not published: manifests/{written.object}; no key is here (--key FILE)")


def _print(found: Manifest, where: str | None) -> None:
    document = found.document
    name, block = document["snapshot_id"], document["odf"]["sequence_number"]
    kept = None if where is None else {file["path"] for file in found.prune(where)}
    echo(
        f"snapshot {name[:_SHOWN]}…{name[-4:]}  block {block}  {count_of(len(found.files), 'slice')}  "
        f"{count_of(found.row_count, 'record')}"
    )
    names = ["slice", "records", "size", document["odf"]["columns"]["event_time"]]
    rows = [[*_line(found, file), *_marked(file, kept)] for file in found.files]
    echo_table(names + ["may match"] * (kept is not None), rows, right={1, 2})


def _line(found: Manifest, file: Mapping[str, Any]) -> list[str]:
    folder, _, name = file["path"].partition("/")
    times = found.times_of(file)
    return [
        f"{folder}/{name[:_SHOWN]}…",
        f"{file['stats']['row_count']:,}",
        human_size(file["size_bytes"]),
        "" if times is None else f"{times[0][:_DAY]} … {times[1][:_DAY]}",
    ]


def _marked(file: Mapping[str, Any], kept: set[str] | None) -> list[str]:
    return [] if kept is None else ["yes" if file["path"] in kept else "no"]
