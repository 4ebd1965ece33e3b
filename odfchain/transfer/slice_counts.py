"""How many slices of a partial copy are here, without reading its chain each time.

    info/slice-counts       <CRC-32, 8 hex digits> <JSON: head, its slices, those here, state of data/>

The file is private and disposable. What it says holds while the head and the folder of slices are as they
were; where only blocks were added since, those alone are read. A file that changes in its place is not seen:
counts are for people, `verify` looks at every byte.
"""

from __future__ import annotations

import contextlib
import json
import time
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from odfchain.chain.chain import HashedBlock
from odfchain.errors import StoreError
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.shared_store import ONLY_HERE
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD
from odfchain.transfer.partial import is_partial
from odfchain.transfer.slice_files import absent, objects_of

_READ_BYTES = 4096
_SETTLED_NS = 2_000_000_000
"""A folder that changed later than this before it was looked at may change again without a newer time."""


@dataclass(frozen=True, slots=True)
class LocalSlices:
    """How many slices a chain names, and how many of them are here."""

    present: int
    total: int


@dataclass(frozen=True, slots=True)
class _Counted:
    head: str
    number: int
    present: int
    total: int
    inode: int
    modified_ns: int
    changed_ns: int

    @property
    def folder(self) -> tuple[int, int, int]:
        """The state of the folder of slices that was counted."""
        return self.inode, self.modified_ns, self.changed_ns


def local_slices(dataset: DatasetFiles) -> LocalSlices | None:
    """How many slices of a partial copy are here; None for a dataset that is meant to be whole."""
    if not is_partial(dataset):
        return None
    state = DatasetState.read(dataset.chain)
    if dataset.ref != HEAD or dataset.shared is not ONLY_HERE:  # others may bring slices to a store
        return _count(dataset, state.data_blocks())
    now, folder = time.time_ns(), _folder_state(dataset)
    kept = _read(dataset)
    if kept is not None and kept.folder == folder and kept.head == str(state.head):
        return LocalSlices(kept.present, kept.total)
    if kept is not None and kept.folder == folder and _continues(state, kept):
        new = _count(dataset, _after(state.data_blocks(), kept.number))
        found = LocalSlices(kept.present + new.present, kept.total + new.total)
    else:
        found = _count(dataset, state.data_blocks())
    if now - folder[1] > _SETTLED_NS:
        number = state.head_block.sequence_number
        _write(dataset, _Counted(str(state.head), number, found.present, found.total, *folder))
    return found


def missing_slices(dataset: DatasetFiles) -> int:
    """How many slices of a partial copy are not here; 0 for a dataset that is meant to be whole."""
    found = local_slices(dataset)
    return 0 if found is None else found.total - found.present


def _continues(state: DatasetState, kept: _Counted) -> bool:
    return str(state.chain.hash_at(kept.number, state.head)) == kept.head


def _after(newest_first: Iterable[HashedBlock], number: int) -> Iterable[HashedBlock]:
    for found in newest_first:
        if found.block.sequence_number <= number:
            return
        yield found


def _count(dataset: DatasetFiles, blocks: Iterable[HashedBlock]) -> LocalSlices:
    slices = [found for block in blocks for found in objects_of(block.block) if found.offsets is not None]
    total = len({(found.key, found.size) for found in slices})
    return LocalSlices(total - len(absent(dataset, slices)), total)


def _folder_state(dataset: DatasetFiles) -> tuple[int, int, int]:
    path = dataset.folder / "data"
    with fsio.storage_errors(path):
        found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns


def _path(dataset: DatasetFiles) -> Path:
    return dataset.folder / "info" / "slice-counts"


def _read(dataset: DatasetFiles) -> _Counted | None:
    with contextlib.suppress(StoreError, ValueError, TypeError):
        data = fsio.read_start(_path(dataset), _READ_BYTES) or b""
        if int(data[:8], 16) == zlib.crc32(data[9:]):
            return _Counted(**json.loads(data[9:]))
    return None


def _write(dataset: DatasetFiles, counted: _Counted) -> None:
    body = json.dumps(asdict(counted)).encode()
    with contextlib.suppress(StoreError):  # on media that cannot be written it is counted again
        fsio.replace_file(_path(dataset), b"%08x %b" % (zlib.crc32(body), body), mode=0o600)
