"""`odfchain assets`: locks that say where files are, and what they were."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from odfchain.api.branching import on_branch
from odfchain.assets.objects import DeriveOptions, Selection, StoreOptions
from odfchain.cli.context import open_workspace, opened, say
from odfchain.cli.parameters import DATASET_AT, MERGING, argument, command, formats, group, keywords, option
from odfchain.cli.progress_bar import TerminalProgress
from odfchain.cli.screen import aligned, echo, echo_lines, echo_page, print_records
from odfchain.errors import AssetError, NotAWorkspaceError, UsageError
from odfchain.query.row_formats import cell_text
from odfchain.text import counted
from odfchain.workspace.options import RecordOptions

if TYPE_CHECKING:
    from odfchain import CheckedAsset
    from odfchain.assets.locks import AssetLock


_OPERATIONS = ("+A", "-R", "-C", "+C")
_WITH_CHECKSUMS = "`assets derive SOURCE… --checksum calculate-always`"


@group("assets")
def assets_command() -> None:
    """Lock the files that STAC Items name.

    A lock is a table with one row for each asset: its place, its size and its entity tag. It is a file, or a
    dataset with a history. A lock holds no hrefs and no credentials. Credentials come from the environment.
    They go to the providers' own endpoints, and to endpoints that you name.
    """


_PART = keywords(Selection, "items", "assets")
_STORES = keywords(StoreOptions)
_FILE = click.Path(path_type=Path, dir_okay=False)
_OUTPUT = option("Write the lock to a file.", type=_FILE)
_INTO = option("Record the changes in a dataset.", "DATASET", type=DATASET_AT)
_KEEP_GOING = option("Write the lock without failed assets; the exit code stays an error.")


@command("derive", assets_command)
def derive_command(
    sources: tuple[str, ...] = argument(metavar="SOURCE…"),
    output: Path | None = option("Write the lock to a file.", type=_FILE, also="-o"),
    into: str | None = _INTO,
    keep_going: bool = _KEEP_GOING,
    slices: str | None = option("In place of SOURCE: the slices of a dataset; with --at.", "DATASET"),
    at: str | None = option("With --slices: the folder or prefix that they are below.", "URL"),
    chosen: dict[str, Any] = keywords(DeriveOptions, "probe", "checksum"),
    selected: dict[str, Any] = keywords(Selection),
    merging: dict[str, Any] = keywords(RecordOptions, *MERGING),
    stores: dict[str, Any] = _STORES,
) -> int:
    """Make a lock of STAC Items.

    SOURCE is an Item, an ItemCollection, a catalog, ndjson, or STAC GeoParquet. It is a file, a folder, a
    URL, or - for standard input. Signed URLs are refused, and so are hrefs with users or queries. A secret
    inside a path cannot be recognised. With --into only differences are recorded. Assets that left the
    catalog are retracted. With --keep-going, assets that could not be reached stay as they are.
    """
    target = _Target(output, into, merging, keep_going)
    target.check(selected.keys() & {"items", "assets"}, checksum="checksum" in chosen)
    if (slices is None) != (at is None) or bool(sources) == (slices is not None):
        raise UsageError("name SOURCE…, or --slices DATASET --at URL")
    if slices is not None and (selected or "checksum" in chosen):
        raise UsageError(
            "--slices records all slices of a dataset: what is chosen of SOURCE does not go with it"
        )
    from odfchain.assets.locks import AssetLock

    asked = chosen | selected | {"folder": target.folder, "keep_going": True, "stores": _stores(stores)}
    with TerminalProgress() as progress:
        if slices is not None:
            lock = opened(slices).slices_lock(at or "", progress=progress, **asked)
        else:
            lock = AssetLock.derive(sources, progress=progress, **asked)
    for warning in lock.warnings:
        say(f"warning: {warning}")
    left_out = f", {len(lock.faults):,} left out" if lock.faults else ""
    probed = chosen.get("probe", True)
    say(f"{'probed' if probed else 'named'} {lock.summary}{left_out}")
    files = lock.table.column("store_type").to_pylist().count("file")
    if files and probed and slices is None and "checksum" not in chosen:
        say(f"of {counted(files, 'file')} only the size is recorded; --checksum calculate-always adds hashes")
    return target.finish(lock, probed=probed)


@command("check", assets_command)
def check_command(
    lock: str = argument(),
    offline: bool = option("Check the whole table alone; make no request."),
    checksum: bool = option("Read objects whose checksum is locked, and compare theirs."),
    part: dict[str, Any] = _PART,
    stores: dict[str, Any] = _STORES,
    output: str = formats("table", "json", "ndjson", "html"),
) -> int:
    """Compare today's objects with the facts of a lock.

    Nothing is recorded. LOCK is a file or a dataset (NAME or NAME@POINT). The table shows the differences. An
    html page has missing and changed assets first, store by store. Exit code 6: an asset is changed or
    missing, or the table is damaged. Exit code 8: nothing is wrong, but some assets could not be reached.
    """
    if offline:
        if part or checksum:
            raise UsageError(
                "--offline judges the whole table and nothing else: leave out --item, --asset and --checksum"
            )
        return _check_table(lock, output)
    from odfchain.assets.checking import CheckSummary

    found, summary = _read(lock).only(**part), CheckSummary(checksums=checksum)
    if checksum and "file_checksum" not in found.table.schema.names:
        raise UsageError(f"{lock}: has no checksums", hint=f"{_WITH_CHECKSUMS} makes a lock with them")
    lines = output == "ndjson" and sys.stdout.isatty()  # they show the progress
    with TerminalProgress(quiet=lines) as progress:
        checked = found.check(checksums=checksum, stores=_stores(stores), progress=progress)
        _print_checked(summary.watched(checked), output, progress)
    if output == "html":
        from odfchain import Timestamp

        echo_page(summary.to_html(lock, str(Timestamp.now())))
    say(summary.line)
    if summary.sized:
        more = "file_checksum" in found.table.schema.names and not checksum
        sure = "`assets check --checksum`" if more else _WITH_CHECKSUMS
        say(f"only the size was compared: {counted(summary.sized, 'asset')}; {sure} finds other bytes, too")
    return summary.exit_code


def _print_checked(checked: Iterator[CheckedAsset], output: str, progress: TerminalProgress) -> None:
    if output == "html":
        # `summary.watched` keeps what the page needs
        deque(checked, maxlen=0)
    elif output == "table":
        problems = (
            {"item": c.row.item_id, "asset": c.row.asset_key, "status": c.status.value,
             "": ", ".join(c.errors) or c.note}
            for c in checked if c.status.value != "same" or c.note
        )  # fmt: skip
        _print_in_tables(problems, ["item", "asset", "status", ""], progress)
    else:
        print_records((each.to_document() for each in checked), [], output)


def _check_table(lock: str, output: str) -> int:
    from odfchain.assets.lock_table import LockFile, SortedLock

    if output == "html":
        raise UsageError("-o html shows what stores say: with --offline none is asked")
    # without requests: only the table's own values
    judged = LockFile(Path(lock)) if _is_file(lock) else SortedLock(_of_dataset(lock).table)
    number = 0

    def documents() -> Iterator[dict[str, Any]]:
        nonlocal number
        for fault in judged.faults():
            number += 1
            yield fault.to_document()

    if output == "table":
        rows = ({**each, "": ", ".join(each["errors"])} for each in documents())
        with TerminalProgress() as progress:
            _print_in_tables(rows, ["row", "item_id", "asset_key", ""], progress)
    else:
        print_records(documents(), [], output)
    say(f"{lock}: {judged.rows:,} rows, {f'{number:,} faulty' if number else 'none is faulty'}")
    return 6 if number else 0


def _print_in_tables(rows: Iterator[dict[str, Any]], columns: list[str], progress: TerminalProgress) -> None:
    # column widths need all rows of a table in memory
    while some := list(islice(rows, 10_000)):
        progress.stop()
        # the reason is not cut: it is what a line is for
        for line in aligned([columns, *([cell_text(row.get(c)) for c in columns] for row in some)]):
            echo(line)


# the name that the ADR's own tool has for it
assets_command.add_command(check_command, "validate")


@command("relocate", assets_command)
def relocate_command(
    lock: str = argument(),
    to: str = option("The place of the copies: a folder or a bucket's prefix.", "URL", required=True),
    output: Path | None = _OUTPUT,
    into: str | None = _INTO,
    keep_going: bool = _KEEP_GOING,
    layout: str | None = option(
        "The names of copies: of item and asset (the default), or of the source (the default for slices).",
        choices=["item-asset", "source-key"],
    ),
    prefix: str | None = option("With source-key: the beginning that keys lose.", "HREF"),
    dry_run: bool = option("Print the rows of the copies; make no request."),
    overwrite: bool = option("Replace objects with other bytes that are there."),
    checksum: bool = option("Record SHA-256 of the copies (a draft of the format)."),
    merging: dict[str, Any] = keywords(RecordOptions, *MERGING),
    stores: dict[str, Any] = _STORES,
    form: str = formats(),
) -> int:
    """Copy the objects of a lock, and describe the copies.

    An object that differs from the lock is not copied. After an interruption the old lock stays valid. The
    same command then copies the rest.
    """
    target = _Target(output, into, merging, keep_going)
    if not dry_run:
        target.check(checksum=checksum)
    arrivals = target.arrivals
    with TerminalProgress() as progress:
        moved = _read(lock).relocate(
            to, layout=layout, prefix=prefix, folder=target.folder, overwrite=overwrite,
            checksum=checksum, dry_run=dry_run, arrivals=arrivals, stores=_stores(stores),
            progress=progress,
        )  # fmt: skip
    if dry_run:
        print_records(moved.table.to_pylist(), moved.table.schema.names, form)
        return 0
    say(moved.summary)
    code = target.finish(moved)
    if arrivals is not None and (not moved.faults or keep_going):
        from odfchain.storage.fsio import remove_quietly

        remove_quietly(arrivals)
    return code


@command("href", assets_command)
def href_command(lock: str = argument(), part: dict[str, Any] = _PART) -> None:
    """Print the hrefs of a lock, one to a line. LOCK is a file or a dataset (NAME or NAME@POINT)."""
    echo_lines(_read(lock).only(**part).hrefs())


@command("project", assets_command)
def project_command(
    lock: str = argument(),
    sources: tuple[str, ...] = option(
        "A document of STAC or a folder of them; can be repeated.", "--items", "STAC", required=True
    ),
    out: Path = option(
        "A folder to write to.",
        "--output",
        required=True,
        also="--out",
        type=click.Path(path_type=Path, file_okay=False),
    ),
    name: str | None = option("The name of the alternate href (default: locked).", "--as", "NAME"),
    primary: bool = option("Replace the assets' own hrefs, which become alternates."),
    keep_version: bool = option("Leave documents of STAC 1.0 at 1.0 (default: 1.1)."),
) -> None:
    """Write STAC with the locations and facts of a lock.

    LOCK is a file or a dataset (NAME or NAME@POINT). Items and assets are matched by both ids. Checksums of
    the sources are removed unless the lock knows them. Documents keep their names and folders below the new
    folder.
    """
    if name is not None and primary:
        raise UsageError("--as names an alternate, --primary replaces the assets' own hrefs: choose one")
    found = _read(lock)
    for source in sources:
        done = found.project(source, out, name=name or "locked", primary=primary, keep_version=keep_version)
        assets = counted(done.assets, "asset has its location", "assets have their locations")
        say(f"wrote {counted(done.documents, 'document')} below {out}: {assets}")
        if not done.assets:
            say(f"warning: no asset of {source} is in the lock, by Item and key: see `assets href {lock}`")


@command("export", assets_command)
def export_command(
    dataset: str = argument(DATASET_AT, metavar="DATASET[@POINT]"),
    output: Path = option("The file to write.", required=True, type=_FILE, also="-o"),
) -> None:
    """Write the lock of a dataset to a file. It can be read without odfchain."""
    lock = _of_dataset(dataset)
    lock.write(output)
    say(f"wrote {output}: {lock.table.num_rows:,} rows")


@dataclass(frozen=True, slots=True)
class _Target:
    """Where a lock goes: to a file, or into a dataset by the options of merging."""

    output: Path | None
    into: str | None
    merging: dict[str, Any]
    keep_going: bool

    def check(self, filters: Collection[str] = (), *, checksum: bool) -> None:
        if (self.output is None) == (self.into is None):
            raise UsageError("say where the lock goes: --output FILE or --into DATASET")
        if self.into is None:
            for name in self.merging:
                raise UsageError(f"--{name.replace('_', '-')} is for --into: a file is written anew")
            return
        # rows that are not in the lock would be retracted
        if filters:
            raise UsageError(
                "--into records a whole lock: with --item or --asset all others would be retracted",
                hint="write a part to a file with --output",
            )
        from odfchain.api.view import lock_schema

        schema = lock_schema(on_branch(open_workspace(), self.into))
        if checksum and "file_checksum" not in schema.names:
            raise UsageError(
                f"{self.into}: has no column `file_checksum`",
                hint="the manifest of a new lock makes room for it: `odfchain new NAME --assets` says where",
            )

    @property
    def folder(self) -> Path:
        if self.output is not None:
            return self.output.resolve().parent
        return Path.cwd() if self.into is None else open_workspace().path.parent

    @property
    def arrivals(self) -> Path | None:
        if self.output is not None:
            # next to the output, so that a later run finds it
            return self.output.with_name(f"{self.output.name}.arrived")
        if self.into is None:
            return None
        return open_workspace()[self.into.partition("@")[0]].path / "info" / "assets.arrived"

    def finish(self, lock: AssetLock, *, probed: bool = True) -> int:
        for fault in lock.faults:
            echo(f"error: {fault}", err=True)
        # with --keep-going the lock is written without the rows that failed
        if not lock.faults or self.keep_going:
            self._put(lock, probed=probed)
        else:
            say("nothing is written; --keep-going leaves out what failed")
        return min((fault.error.exit_code for fault in lock.faults), default=0)

    def _put(self, lock: AssetLock, *, probed: bool) -> None:
        if self.output is not None:
            lock.write(self.output)
            say(f"wrote {self.output}: {lock.table.num_rows:,} rows")
            return
        with open_workspace() as workspace, TerminalProgress() as progress:
            dataset = on_branch(workspace, self.into or "")
            outcome = dataset.record_lock(lock, probed=probed, progress=progress, **self.merging)
            progress.stop()
            found = {op: sum(each.operations.get(op, 0) for each in outcome.inputs) for op in _OPERATIONS}
            changes = "  ".join(f"{op} {count:,}" for op, count in found.items() if count)
            number = dataset.summary.head_block.sequence_number
            echo(f"{self.into}  {changes or 'nothing new'}   block {number}")


def _read(text: str) -> AssetLock:
    from odfchain.assets.locks import AssetLock

    return AssetLock.read(text) if _is_file(text) else _of_dataset(text)


def _is_file(text: str) -> bool:
    # a missing `.parquet` is a missing file, and no dataset's name
    return Path(text).is_file() or text.endswith(".parquet")


def _of_dataset(text: str) -> AssetLock:
    try:
        return opened(text).lock()
    except NotAWorkspaceError as error:
        raise AssetError(
            f"{text}: no such file, and not inside a workspace that could have such a dataset",
            hint=error.hint,
            exit_code=4,
        ) from None


def _stores(given: dict[str, Any]) -> StoreOptions:
    from odfchain.api.settings import Configuration

    try:
        named = Configuration(open_workspace().path).get("assets.trustedEndpoints")
    except NotAWorkspaceError:  # a lock needs none
        named = []
    return StoreOptions(**{**given, "endpoints": [*given.get("endpoints", ()), *named]})
