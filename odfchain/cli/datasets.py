"""Commands that make, list and remove datasets."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.cli.common import DATASET, confirm, open_workspace, options
from odfchain.cli.output import format_option, human_age, human_size, print_records
from odfchain.errors import OdfchainError, UsageError

if TYPE_CHECKING:
    from odfchain.api import Dataset, Workspace
    from odfchain.metadata.block import DatasetSnapshot


@click.command("init")
@click.option("--exists-ok", is_flag=True, help="Do not complain if there is one already.")
def init_command(exists_ok: bool) -> None:
    """Make a workspace in the current folder."""
    from odfchain.api import Workspace

    workspace = Workspace.init(Path(options().workspace or "."), exists_ok=exists_ok)
    if not options().quiet:
        click.echo(f"workspace ready in {workspace.path}", err=True)


@click.command("add")
@click.argument("manifests", nargs=-1, type=click.Path(path_type=Path))
@click.option("-r", "--recursive", is_flag=True, help="Take every *.yaml below the given folders.")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read manifests from standard input.")
@click.option("--name", metavar="NAME", help="Name of the dataset, instead of the one in the manifest.")
def add_command(
    manifests: tuple[Path, ...],
    recursive: bool,
    from_stdin: bool,
    name: str | None,
) -> int:
    """Make datasets from DatasetSnapshot manifests (YAML or JSON).

    All manifests are checked before the first dataset is made; a dataset appears complete or not at all.
    """
    snapshots = _read_manifests(manifests, recursive=recursive, from_stdin=from_stdin)
    if name is not None and len(snapshots) != 1:
        raise UsageError(f"--name names one dataset, the manifests define {len(snapshots)}")
    workspace = open_workspace()
    return _create_all(workspace, snapshots, name)


def _read_manifests(paths: tuple[Path, ...], *, recursive: bool, from_stdin: bool) -> list[DatasetSnapshot]:
    from odfchain.metadata.manifest import read_snapshots

    if bool(paths) == from_stdin:
        raise UsageError("name manifest files or use --stdin")
    if from_stdin:
        return list(read_snapshots(sys.stdin.buffer.read(), source="<stdin>"))
    snapshots: list[DatasetSnapshot] = []
    for path in _manifest_files(paths, recursive=recursive):
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        snapshots += read_snapshots(data, source=str(path))
    return snapshots


def _manifest_files(paths: tuple[Path, ...], *, recursive: bool) -> list[Path]:
    files = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
        elif recursive:
            files += sorted(p for p in path.rglob("*") if p.suffix in (".yaml", ".yml") and p.is_file())
        else:
            raise UsageError(f"{path} is a folder", hint="use -r to take the manifests in it")
    return files


def _create_all(workspace: Workspace, snapshots: list[DatasetSnapshot], name: str | None) -> int:
    from odfchain.cli.main import report_error
    from odfchain.dataset.creation import in_creation_order
    from odfchain.ids.names import DatasetAlias

    alias = DatasetAlias.parse(name) if name is not None else None
    code = 0
    for snapshot in in_creation_order(snapshots):
        try:
            dataset = workspace.create(snapshot, alias=alias)
        except OdfchainError as error:
            report_error(error)
            code = error.exit_code
            continue
        if not options().quiet:
            click.echo(f"added {dataset.alias} ({dataset.kind.value.lower()})", err=True)
    return code


@click.command("list")
@format_option()
@click.option("--wide", is_flag=True, help="Show ids, heads and watermarks too.")
def list_command(output: str, wide: bool) -> int:
    """List the datasets of the workspace."""
    from odfchain.cli.main import report_error

    rows, people, code = [], output == "table", 0
    now = time.time_ns()
    for dataset in open_workspace().datasets():
        try:
            rows.append(_list_row(dataset, now, people=people))
        except OdfchainError as error:  # one damaged dataset must not hide the others
            report_error(error, about=str(dataset.alias))
            code = error.exit_code
    columns = ["name", "kind", "records", "size", "blocks", "updated"]
    if wide or not people:
        columns += ["watermark", "id", "head"]
    if not rows and people:
        if not options().quiet:
            click.echo("no datasets yet; make one with `odfchain add MANIFEST`", err=True)
        return code
    titles = {c: c.capitalize() if c != "id" else "Id" for c in columns}
    print_records(rows, columns, output, titles=titles, right=("records", "size", "blocks"))
    return code


def _list_row(dataset: Dataset, now: int, *, people: bool) -> dict[str, Any]:
    state = dataset.state
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
        if not options().quiet:
            click.echo(f"deleted {dataset.alias}", err=True)


@click.command("rename")
@click.argument("dataset", type=DATASET)
@click.argument("name")
def rename_command(dataset: str, name: str) -> None:
    """Give a dataset another local name; its id and history stay."""
    open_workspace().rename(dataset, name)
    if not options().quiet:
        click.echo(f"{dataset} is now {name}", err=True)
