"""The slices and checkpoints of a dataset: which a copy is to have, and bringing them from a peer.

Objects arrive in a private folder and are moved into the dataset when all of them are complete, so a peer
that lies about the last one has not changed the dataset. What arrived stays there for the next attempt.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from odfchain.digest.physical import hash_file
from odfchain.errors import CorruptedPeerError, StorageFullError, TransferError, UsageError
from odfchain.model.events import AddData, ExecuteTransform, OffsetInterval
from odfchain.model.metadata_block import MetadataBlock
from odfchain.model.timestamp import Timestamp
from odfchain.progress import Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store import fsio
from odfchain.store.local import LocalObjectStore
from odfchain.transfer.peer import Peer
from odfchain.transfer.public_layout import ObjectKey, ObjectKind


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
    """What a block brings: at most one slice and one checkpoint."""
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
    """Which objects of a chain are wanted: always those of its newest blocks.

    None with `metadata_only`; else those of blocks not before `since` (system time), and not before the
    block with the `last`-newest slice. Both together: what fits both. All without either.
    """

    metadata_only: bool = False
    since: Timestamp | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: no slices at all without `metadata_only`, or a choice of slices with it.
        """
        if self.metadata_only and not (self.since is None and self.last is None):
            raise UsageError("a copy of the metadata alone has no slices to choose from")
        if self.last is not None and self.last < 1:
            raise UsageError(
                f"the number of newest slices is at least 1, not {self.last}",
                hint="for none: --metadata-only",
            )

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
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


EVERYTHING = Selection()


def store_of(dataset: DatasetFiles, kind: ObjectKind) -> LocalObjectStore:
    """Where a dataset keeps objects of a kind."""
    match kind:
        case ObjectKind.BLOCK:
            return LocalObjectStore(dataset.folder / "blocks")
        case ObjectKind.DATA:
            return dataset.data
        case ObjectKind.CHECKPOINT:
            return dataset.checkpoints
        case ObjectKind.MANIFEST:
            return dataset.manifests
        case ObjectKind.PROFILE:
            return dataset.profiles


def absent(
    dataset: DatasetFiles, objects: Iterable[DataObject], arrived: Path | None = None
) -> list[DataObject]:
    """Those that the dataset has no file of the right size for; each object once.

    What is in the folder where objects have `arrived` is one of them, and no store is asked for it.
    """
    found: dict[tuple[ObjectKey, int], DataObject] = {}
    for item in objects:
        store = store_of(dataset, item.key.kind)
        is_new = arrived is not None and arriving(arrived, item.key).is_file()
        if is_new or not store.contains(item.key.name) or store.size(item.key.name) != item.size:
            found.setdefault((item.key, item.size), item)
    return list(found.values())


def bring(
    dataset: DatasetFiles,
    peer: Peer,
    objects: Sequence[DataObject],
    folder: Path,
    *,
    parallel: int,
    progress: Progress,
) -> int:
    """Store all these objects in the dataset, none before all were received; returns their size [bytes].

    `folder` is private and on the dataset's file system; what arrived in an earlier attempt is used.

    Raises:
        CorruptedPeerError, AccessError, TransferError: from the peer.
        StorageFullError, StoreError: they cannot be stored.
    """
    _check_sizes(peer, objects)
    total = sum(item.size for item in objects)
    if not objects:
        return 0
    fsio.make_folder(folder)
    _check_space(peer, folder, objects)
    peer.announce([(item.key, item.size) for item in objects])
    progress.phase(f"Receiving {len(objects):,} objects", total)
    together = _Together(progress)

    def receive(item: DataObject) -> None:
        try:
            _receive(peer, item, arriving(folder, item.key), together)
        except BaseException as error:
            together.fail(error)
            raise

    with ThreadPoolExecutor(parallel, thread_name_prefix="objects") as pool:
        tasks = [pool.submit(receive, item) for item in objects]
        try:
            for task in as_completed(tasks):
                task.result()
        except BaseException as error:  # noqa: BLE001 - the first of all failures is raised below
            together.fail(error)
            pool.shutdown(wait=False, cancel_futures=True)
    if together.failure is not None:
        raise together.failure
    with ThreadPoolExecutor(parallel, thread_name_prefix="objects") as pool:  # each waits for the disk
        for _ in pool.map(lambda item: _store(dataset, folder, item), objects):
            pass
    return total


def _store(dataset: DatasetFiles, folder: Path, item: DataObject) -> None:
    store_of(dataset, item.key.kind).put_file(arriving(folder, item.key), item.key.name)


def arriving(folder: Path, key: ObjectKey) -> Path:
    """Where an object is until all are complete."""
    return folder / f"{key.kind.value}-{key.name}"


def _check_sizes(peer: Peer, objects: Sequence[DataObject]) -> None:
    sizes: dict[ObjectKey, DataObject] = {}
    for item in objects:
        other = sizes.setdefault(item.key, item)
        if other.size != item.size:
            raise CorruptedPeerError(
                f"{item.key} of {peer.where}: block {item.sequence_number} says that it has {item.size:,} "
                f"bytes, block {other.sequence_number} {other.size:,}"
            )


def _check_space(peer: Peer, folder: Path, objects: Sequence[DataObject]) -> None:
    """Sizes are what an untrusted publisher says: what cannot fit is refused before it fills the disk."""
    with fsio.storage_errors(folder):
        free = shutil.disk_usage(folder).free
        present = sum(path.stat().st_size for path in folder.iterdir())
    lacking = sum(item.size for item in objects) - present
    if lacking > free:
        largest = max(objects, key=lambda item: item.size)
        raise StorageFullError(
            f"{folder}: {lacking:,} bytes of objects of {peer.where} do not fit into the {free:,} that are "
            f"free; the largest is {largest.key} of block {largest.sequence_number} with {largest.size:,}",
            hint="if the dataset is that large: make room, or pull a part of it (--last, --metadata-only)",
        )


def _receive(peer: Peer, item: DataObject, target: Path, progress: Progress) -> None:
    progress.advance(0)
    with fsio.storage_errors(target):
        if target.exists() and (found := target.stat()).st_size >= item.size:
            if found.st_size == item.size and (
                peer.has_hashed(item.key, fsio.file_state(found)) or hash_file(target)[0] == item.key.name
            ):
                progress.advance(item.size)
                return
            target.unlink()
    peer.fetch(item.key, item.size, target, progress)


class _Together:
    """Progress of transfers that end together: after the first failure whoever reports is stopped."""

    def __init__(self, inner: Progress) -> None:
        self.failure: BaseException | None = None
        self._inner = inner
        self._lock = threading.Lock()

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.failure = self.failure or error

    def phase(self, name: str, total: int | None = None) -> None:
        self._inner.phase(name, total)

    def advance(self, steps: int = 1) -> None:
        if self.failure is not None:
            raise TransferError("stopped, because another object could not be received")
        self._inner.advance(steps)

    def note(self, text: str) -> None:
        self._inner.note(text)
