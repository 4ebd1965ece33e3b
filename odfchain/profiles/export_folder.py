"""A folder that a dataset is exported to: ours alone, outside every dataset, marked before it is filled.

`_odfchain.json` says which dataset the export is of, and in which form; names with an underscore are left
alone by what tidies tables up. A folder without it that is not empty is not ours.
Source: RFC-045.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from odfchain.errors import DatasetsDivergedError, DestinationAheadError, NameCollisionError, UsageError
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_file
from odfchain.storage import fsio
from odfchain.storage.locations import Location
from odfchain.text import counted, one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

_MARK = "_odfchain.json"
_MOST_BYTES = 65_536
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_ANEW = "--force starts anew"
_OURS = re.compile(r"(?:state-)?f1620[0-9a-f]{64}(?:\.parquet)?")


@dataclass(frozen=True, slots=True)
class Mark:
    """Identity of an export; two of one place have to be equal."""

    dataset: str
    name: str
    """The dataset's when it was first exported: tables keep theirs."""
    format: str
    rows: str
    catalog: str | None = None
    version: int = 1


def local_folder(text: str, *, table: bool) -> Path:
    """The folder that a path or a URL of `file` names, without links on the way.

    Raises:
        UsageError: another kind of URL, or for a `table` a path that its libraries take for parts of one.
    """
    scheme = _SCHEME.match(text)
    if scheme is not None and scheme[1].lower() != "file":
        raise UsageError(
            f"{one_line(text)}: exports are written to folders, as a path or as file:///…",
            hint="copy the folder to the store afterwards; Lode's and Delta's files name no absolute paths",
        )
    folder = Path(text if scheme is None else Location.parse(text, folder=True).key).resolve()
    if table and set("?#%") & set(str(folder)):
        said = f"{one_line(str(folder))}: no table in folders with ?, # or % in their names"
        raise UsageError(said, hint="name another one with --to")
    return folder


@dataclass(frozen=True, slots=True)
class ExportFolder:
    """A folder that may be exported to."""

    folder: Path
    mark: Mark

    @classmethod
    @contextlib.contextmanager
    def claimed(
        cls, folder: Path, mark: Mark, dataset: DatasetFiles
    ) -> Iterator[tuple[ExportFolder, Mark | None]]:
        """(the place, what was exported there before), for one export at a time.

        Raises:
            NameCollisionError: it has something that is no export.
        """
        check_beside(folder, dataset)
        fsio.make_folder(folder)
        with fsio.locked_folder(folder):
            data = fsio.read_start(folder / _MARK, _MOST_BYTES)
            known = None if data is None else _read_mark(data, folder)
            with fsio.storage_errors(folder):
                if known is None and any(folder.iterdir()):
                    raise NameCollisionError(
                        f"{folder}: not empty, and no export of odfchain", hint="name a new folder with --to"
                    )
            yield cls(folder, mark if known is None else replace(mark, name=known.name)), known

    def write_mark(self) -> None:
        """Say durably what the place is for, before anything else is in it."""
        data = json.dumps(asdict(self.mark), sort_keys=True).encode()
        if fsio.read_start(self.folder / _MARK, _MOST_BYTES) != data:
            fsio.replace_file(self.folder / _MARK, data)

    def check(self, known: Mark | None) -> None:
        """Check that the export in this folder is the one to be continued.

        Raises:
            NameCollisionError: it is another export.
        """
        if known is None or known == self.mark:
            return
        if known.dataset != self.mark.dataset:
            said = f"an export of another dataset ({one_line(known.dataset)})"
        else:
            catalog = f", in catalog {known.catalog}" if known.catalog else ""
            said = one_line(f"an export of another kind ({known.format}, {known.rows}{catalog})")
        raise NameCollisionError(f"{self.folder}: {said}", hint=f"name another folder with --to; {_ANEW}")

    def has(self, name: str, source: Path) -> bool:
        """`data/NAME` is this file's content, durably; returns whether it is the file itself."""
        path = self.folder / "data" / name
        fsio.make_folder(path.parent)
        with fsio.storage_errors(path):
            if path.exists():
                if path.samefile(source):
                    return True
                if hash_file(path)[0] == hash_file(source)[0]:
                    return False
                path.unlink()  # of an export that was interrupted, or damaged
        return fsio.link_or_copy(source, path)

    def forget_data(self, wanted: Collection[str]) -> None:
        """Remove data files of earlier exports that are not wanted."""
        folder = self.folder / "data"
        for path in folder.iterdir() if folder.is_dir() else ():
            if _OURS.fullmatch(path.name) and path.name not in wanted:
                fsio.remove_file(path)


def _read_mark(data: bytes, folder: Path) -> Mark:
    try:
        known = Mark(**json.loads(data))
    except (ValueError, TypeError, RecursionError):
        known = None
    texts = (
        () if known is None else (known.dataset, known.name, known.format, known.rows, known.catalog or "")
    )
    if known is None or known.version != 1 or not all(isinstance(text, str) for text in texts):
        raise NameCollisionError(
            f"{folder / _MARK}: not understood; a later version may have written it",
            hint="name a new folder with --to",
        )
    return known


def check_beside(folder: Path, dataset: DatasetFiles) -> None:
    """A folder is neither within a dataset, nor has one in it.

    Raises:
        UsageError: it is, or has.
    """
    own = dataset.folder.resolve()
    within = [p for p in (folder, *folder.parents) if (p / "blocks").is_dir() and (p / "refs").is_dir()]
    if within or own.parent in (folder, *folder.parents) or folder in own.parents:
        raise UsageError(
            f"{folder}: inside a dataset, or contains one: a vacuum of the table would delete blocks",
            hint="name a folder outside the workspace with --to",
        )


def continued(
    state: DatasetState, names: list[str], there: Collection[str], newest: Callable[[], str | None]
) -> int:
    """The number of the files `names`, oldest first, that a table has, if it has no others.

    Raises:
        DestinationAheadError: it has all of them, and more.
        DatasetsDivergedError: it has others.
    """
    common = next((i for i, name in enumerate(names) if name not in there), len(names))
    if common == len(there):
        return common
    more, less = len(there) - common, len(names) - common
    raise parted(state, newest(), f"the export has {counted(more, 'file')} that", counts=(less, more))


def check_line(state: DatasetState, block: Multihash) -> None:
    """A block that was exported before is the state's, or one before it.

    Raises:
        DestinationAheadError: it comes after it.
        DatasetsDivergedError: the two histories have parted.
    """
    chain, own = state.chain, state.head_block.sequence_number
    number = chain.get(block).sequence_number if chain.contains(block) else None
    if number is not None and chain.hash_at(min(number, own), block if number > own else state.head) == (
        state.head if number > own else block
    ):
        if number <= own:
            return
        raise parted(state, str(block), "the export has a block that", counts=(0, number - own))
    raise parted(state, str(block), "the export has a block that", counts=(1, 1))


def parted(
    state: DatasetState, newest: str | None, what: str, *, counts: tuple[int, int]
) -> DestinationAheadError | DatasetsDivergedError:
    """The error where an export has more than the blocks up to a state; `counts` are what each lacks."""
    number, ahead = state.head_block.sequence_number, counts[0] == 0
    kind = DestinationAheadError if ahead else DatasetsDivergedError
    why = "it is of a later one" if ahead else "the histories have parted, or others have changed it"
    return kind(
        f"{what} no block up to {number:,} has: {why}",
        source_head=str(state.head),
        destination_head=newest or "unknown",
        source_blocks=counts[0],
        destination_blocks=counts[1],
        common=str(state.head) if ahead else None,
        hint=f"name another folder with --to; {_ANEW}",
    )
