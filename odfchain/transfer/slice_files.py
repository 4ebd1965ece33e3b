"""The slices and checkpoints of a dataset: which a copy is to have, and which of them are here."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from odfchain import errors
from odfchain.chain.chain import HashedBlock
from odfchain.odf.events import AddData, ExecuteTransform, MetadataBlock, OffsetInterval
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import Form, read_json, to_tree
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, LocalObjectStore
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.private_notes import keep, kept
from odfchain.workspace.shared_store import ONLY_HERE


@dataclass(frozen=True, slots=True)
class DataObject:
    """A slice or a checkpoint and the block that brings it; checkpoints have no offsets."""

    key: ObjectKey
    size: int
    sequence_number: int
    system_time: Timestamp
    offsets: OffsetInterval | None = None


BRING_OBJECTS = frozenset({"AddData", "ExecuteTransform"})
"""The kinds of events that may bring objects, as headers of blocks name them."""


def objects_of(block: MetadataBlock) -> Iterator[DataObject]:
    """The objects of a block: at most one slice and one checkpoint."""
    event = block.event
    if not isinstance(event, AddData | ExecuteTransform):
        return
    number, time = block.sequence_number, block.system_time
    if event.new_data is not None:
        key = ObjectKey(ObjectKind.DATA, event.new_data.physical_hash)
        yield DataObject(key, event.new_data.size, number, time, event.new_data.offset_interval)
    if event.new_checkpoint is not None:
        key = ObjectKey(ObjectKind.CHECKPOINT, event.new_checkpoint.physical_hash)
        yield DataObject(key, event.new_checkpoint.size, number, time)


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of objects of a chain: always those of its newest blocks.

    None with `metadata_only`; else those of blocks not before `since` (system time), and not before the
    block with the `last`-newest slice. Both together: what fits both. All without either.
    """

    FORM: ClassVar = Form(nulls=True, whole=True)
    metadata_only: bool = False
    since: Timestamp | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        if self.metadata_only and not (self.since is None and self.last is None):
            raise errors.UsageError("a copy of the metadata alone has no slices to choose from")
        if self.last is not None and self.last < 1:
            raise errors.UsageError(
                f"the number of newest slices is at least 1, not {self.last}",
                hint="for none: --metadata-only",
            )

    @property
    def everything(self) -> bool:
        """True if nothing is left out."""
        return not self.metadata_only and self.since is None and self.last is None

    def of(self, objects: Sequence[DataObject]) -> list[DataObject]:
        """The wanted ones of a chain's objects (oldest first), in the same order."""
        if self.metadata_only:
            return []
        first = 0
        if self.last is not None:
            slices = [found.sequence_number for found in objects if found.offsets is not None]
            first = slices[-self.last] if len(slices) >= self.last else 0
        return [
            found
            for found in objects
            if found.sequence_number >= first and (self.since is None or found.system_time >= self.since)
        ]

    @classmethod
    def marked(cls, dataset: DatasetFiles) -> Selection:
        """The selection of later pulls of a dataset: everything, unless it is a partial copy."""
        path = mark_path(dataset)
        if (data := fsio.read_start(path, _READ_BYTES)) is None:
            return EVERYTHING
        try:
            return read_json(cls, data, _READ_BYTES)
        except errors.OdfchainError as error:
            raise errors.StoreError(
                f"{path}: the mark of a partial copy is damaged: {one_line(error.message)}",
                hint=f"remove {path}, then run `odfchain fetch {dataset.alias}` or pull with the options "
                "again",
            ) from None

    def mark(self, dataset: DatasetFiles) -> None:
        """Durably mark a dataset as a partial copy with this selection."""
        fsio.replace_file(mark_path(dataset), json.dumps(to_tree(self)).encode())


EVERYTHING = Selection()


def store_of(dataset: DatasetFiles, kind: ObjectKind) -> LocalObjectStore:
    """A dataset's store for objects of a kind, which is called as their folder is."""
    found: LocalObjectStore = getattr(dataset, kind.value)
    return found


def absent(
    dataset: DatasetFiles, objects: Iterable[DataObject], arrived: Path | None = None
) -> list[DataObject]:
    """Those that the dataset has no file of the right size for; each object once."""
    found: dict[tuple[ObjectKey, int], DataObject] = {}
    for item in objects:
        store = store_of(dataset, item.key.kind)
        # a received object is looked for in its folder first: the store need not be asked
        is_new = arrived is not None and arriving(arrived, item.key).is_file()
        if is_new or not store.contains(item.key.name) or store.size(item.key.name) != item.size:
            found.setdefault((item.key, item.size), item)
    return list(found.values())


def arriving(folder: Path, key: ObjectKey) -> Path:
    """The path of an object until all are complete."""
    return folder / f"{key.kind.value}-{key.name}"


# Partial copies: datasets of which slices may be missing on purpose.
#
#     info/partial        JSON: the objects that later pulls bring; the dataset is partial while this exists
#
# The chain is always complete, so missing objects are known by hash and size, and any peer may supply them
# (RFC-021).

_READ_BYTES = 4096


def mark_path(dataset: DatasetFiles) -> Path:
    """The file that marks a partial copy."""
    return dataset.folder / "info" / "partial"


def is_partial(dataset: DatasetFiles) -> bool:
    """True if slices of the dataset may be missing on purpose."""
    return mark_path(dataset).is_file()


def data_objects(dataset: DatasetFiles) -> list[DataObject]:
    """Every slice and checkpoint that the chain names, oldest first."""
    blocks = DatasetState.read(dataset.chain).data_blocks()
    return [found for hashed in blocks for found in reversed(list(objects_of(hashed.block)))][::-1]


def missing_objects(dataset: DatasetFiles) -> list[DataObject]:
    """Slices and checkpoints that the chain names and no file of their size is there for, oldest first."""
    return absent(dataset, data_objects(dataset))


def unmark(dataset: DatasetFiles) -> None:
    """The dataset is not a partial copy any more."""
    path = mark_path(dataset)
    with fsio.storage_errors(path):
        path.unlink(missing_ok=True)


def incoming_folder(dataset: DatasetFiles) -> Path:
    """The incoming folder of a local dataset; it outlives an interruption."""
    return dataset.folder / "info" / "incoming"


# Slice counts of a partial copy, cached so that its chain is not read each time.
#
#     info/slice-counts       head, its slices, those here, state of data/
#
# Valid while the head and the folder of slices are unchanged; after new blocks only those are read. A file
# that is changed in place is missed: `verify` looks at every byte.

# A folder that changed later than this before it was looked at may change again without a newer time.
_SETTLED_NS = 2_000_000_000
_COUNTS = "slice-counts"


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
        return self.inode, self.modified_ns, self.changed_ns


def local_slices(dataset: DatasetFiles, *, whole: bool = False) -> LocalSlices | None:
    """How many slices of a partial copy are here; of a dataset that is meant to be whole with `whole`."""
    if not whole and not is_partial(dataset):
        return None
    state = DatasetState.read(dataset.chain)
    if dataset.ref != HEAD or dataset.shared is not ONLY_HERE:  # others may bring slices to a store
        return _count(dataset, state.data_blocks())
    now, folder = time.time_ns(), _folder_state(dataset)
    known = kept(dataset, _COUNTS, _Counted)
    if known is not None and known.folder == folder and known.head == str(state.head):
        return LocalSlices(known.present, known.total)
    # only blocks after those that were counted are read
    if (
        known is not None
        and known.folder == folder
        and str(state.chain.hash_at(known.number, state.head)) == known.head
    ):
        newer = itertools.takewhile(lambda b: b.block.sequence_number > known.number, state.data_blocks())
        new = _count(dataset, newer)
        found = LocalSlices(known.present + new.present, known.total + new.total)
    else:
        found = _count(dataset, state.data_blocks())
    if now - folder[1] > _SETTLED_NS:
        number = state.head_block.sequence_number
        keep(dataset, _COUNTS, _Counted(str(state.head), number, found.present, found.total, *folder))
    return found


def missing_slices(dataset: DatasetFiles) -> int:
    """How many slices of a partial copy are not here; 0 for a dataset that is meant to be whole."""
    found = local_slices(dataset)
    return 0 if found is None else found.total - found.present


def _count(dataset: DatasetFiles, blocks: Iterable[HashedBlock]) -> LocalSlices:
    slices = [found for block in blocks for found in objects_of(block.block) if found.offsets is not None]
    total = len({(found.key, found.size) for found in slices})
    return LocalSlices(total - len(absent(dataset, slices)), total)


def _folder_state(dataset: DatasetFiles) -> tuple[int, int, int]:
    path = dataset.folder / "data"
    with fsio.storage_errors(path):
        found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns
