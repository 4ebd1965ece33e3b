"""Garbage collection in a store that machines share, and its leases.

    datasets/fed01…/blocks|data|checkpoints     what no reference of the dataset leads to
    datasets/fed01…/                            of a dataset that has neither name nor head
    staging/<random>/                           inputs and results of runs that were killed

Times are those of the store. What is younger than the grace stays, for it may be about to be named. All of
another form stays, too: manifests, profiles, names. Source: RFC-048.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from odfchain.errors import InvalidIdError, ObjectNotFoundError, OdfchainError, StoreError, UsageError
from odfchain.limits import LIMITS, SHARING
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.storage.bucket_store import BucketTransport, Listed, WriteRefusedError
from odfchain.storage.local import HEAD, SIGNED_ENDINGS, parse_ref
from odfchain.storage.public_layout import HEAD_KEY, ObjectKey, ObjectKind
from odfchain.storage.store import Store
from odfchain.transfer.slice_files import objects_of
from odfchain.workspace.merge_record import merged_names

# Leases between gc and commits that rely on existing objects.
#
#     removing/fed01…             objects of this dataset are being removed; for an hour at most
#     relying/fed01…/<random>     objects of it that were there already are about to be named; likewise
#
# Stores have no conditional delete. So each side writes its mark first and then looks for the other's: of
# two at the same moment at least one sees the other, and steps back. New objects are young and need no
# mark. Source: RFC-048.

LIFE = 3_600.0
"""How long a mark holds [s], by the store's clock; gc stops at half of it, by its own."""

_MOST_MARKS = 100_000
_MARK_BYTES = 64
_LOOKS = 20
# Polling interval and time limit [s] of waiting for a running gc.
_WAIT = 0.5


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to remove objects of a dataset."""

    now: float
    """The store's clock when it began [s since the epoch]."""
    ends: float

    def check(self) -> None:
        """Check that the lease is still valid."""
        if time.monotonic() > self.ends:
            raise StoreError("gc timed out", hint="run it again to resume", exit_code=5)


@dataclass(frozen=True, slots=True)
class Leases:
    """The marks on one dataset, by the name of its folder in a workspace's store."""

    space: BucketTransport
    folder: str

    @property
    def _removing(self) -> str:
        return f"removing/{self.folder}"

    @contextlib.contextmanager
    def removing(self) -> Iterator[Lease]:
        """Exclusive right to remove objects: no other gc, and no commit that relies on old ones."""
        if not self._taken(secrets.token_hex(_MARK_BYTES // 4).encode()):
            raise StoreError(
                f"{self.space.where}{self._removing}: another gc is at work", hint="run gc later", exit_code=5
            )
        ends = time.monotonic() + LIFE / 2
        try:
            now = self.space.modified(self._removing)
            below = f"relying/{self.folder}"
            for mark in self.space.listed(below, _MOST_MARKS):
                if now - mark.modified < LIFE:
                    raise StoreError(
                        f"{self.space.where}{below}/{mark.key}: something is being committed",
                        hint="run gc again when that is done",
                        exit_code=5,
                    )
                self.space.delete(f"{below}/{mark.key}")
            yield Lease(now, ends)
        finally:
            if time.monotonic() < ends:
                with contextlib.suppress(OdfchainError):
                    self.space.delete(self._removing)

    def _taken(self, token: bytes) -> bool:
        try:
            self.space.write_if(self._removing, token, None)
        except WriteRefusedError:
            with contextlib.suppress(ObjectNotFoundError, WriteRefusedError):
                held, version = self.space.read(self._removing, _MARK_BYTES)
                if held == token:  # our answer was lost
                    return True
                if not self._is_held(store_time(self.space)):
                    self.space.write_if(self._removing, token, version)
                    return True
            return False
        return True

    def _is_held(self, now: float) -> bool:
        try:
            return now - self.space.modified(self._removing) < LIFE
        except ObjectNotFoundError:
            return False

    @contextlib.contextmanager
    def relying(self) -> Iterator[None]:
        """Keep gc from removing objects of the dataset until the end of the block."""
        mark = f"relying/{self.folder}/{secrets.token_hex(16)}"
        try:
            for look in range(_LOOKS):
                if look:
                    time.sleep(_WAIT)
                self.space.write(mark, b"-")
                if not self._is_held(self.space.modified(mark)):
                    break
                self.space.delete(mark)  # else the two would wait for each other
            else:
                raise StoreError(
                    f"{self.space.where}{self._removing}: a gc is at work; nothing was committed",
                    hint="run the command again when it has ended, or in an hour, if it was killed",
                    exit_code=5,
                )
            yield
        finally:
            with contextlib.suppress(OdfchainError):
                self.space.delete(mark)


def store_time(space: BucketTransport) -> float:
    """The store's clock [s since the epoch]."""
    probe = f"relying/{secrets.token_hex(16)}"
    space.write(probe, b"-")
    try:
        return space.modified(probe)
    finally:
        space.delete(probe)


_MOST = 10_000_000
_AT_ONCE = 1_000
_KINDS = {
    ObjectKind.BLOCK: "blocks in the store",
    ObjectKind.DATA: "slices in the store",
    ObjectKind.CHECKPOINT: "checkpoints in the store",
}


@dataclass(frozen=True, slots=True)
class Garbage:
    """Files or objects of one kind: how many, and their size [bytes]."""

    kind: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Removal:
    """How objects are removed: those that were written longer than `grace` [s] ago; or only counted."""

    space: BucketTransport
    grace: float
    dry_run: bool

    def __post_init__(self) -> None:
        """Refuse what is too short for what other machines are writing."""
        if self.grace < LIFE:
            raise UsageError(
                f"a grace period of {self.grace:g} seconds is too short for what other machines are writing",
                hint=f"the shortest one of datasets in a store is {LIFE:g} seconds",
            )

    def of_dataset(self, folder: str, needed: Callable[[], frozenset[str] | None]) -> list[Garbage]:
        """Garbage of a dataset by kind of object, the last too young to be removed."""
        with Leases(self.space, folder).removing() as lease:
            # not before the lease is held: no commit can rely on old objects now
            if (keys := needed()) is None:
                return []
            found, young = list[Garbage](), list[Listed]()
            for kind, title in _KINDS.items():
                below, old = f"datasets/{folder}/{kind.value}", list[Listed]()
                for each in self.space.listed(below, _MOST):
                    if f"{kind.value}/{each.key}" not in keys and _is_object(kind, each.key):
                        (old if lease.now - each.modified >= self.grace else young).append(each)
                self._remove([f"{below}/{each.key}" for each in old], lease)
                found.append(_garbage(title, old))
        return [*found, _garbage("young", young)]

    def of_workspace(self, named: Container[str]) -> list[Garbage]:
        """Remains of runs, and datasets that have neither a name nor a head."""
        now = store_time(self.space)
        runs: dict[str, list[Listed]] = {}
        for each in self.space.listed("staging", _MOST):
            runs.setdefault(each.key.partition("/")[0], []).append(each)
        dead = [
            each for run in runs.values() if all(now - e.modified >= self.grace for e in run) for each in run
        ]
        if not self.dry_run:
            self.space.delete_all([f"staging/{each.key}" for each in dead])
            for below in ("relying", "removing"):  # marks of processes that were killed
                marks = self.space.listed(below, SHARING.shared_names)
                self.space.delete_all([f"{below}/{m.key}" for m in marks if now - m.modified >= LIFE])
        left = [
            garbage
            for folder in self.space.folders("datasets/")
            if folder not in named and _is_dataset(folder)
            if self.space.size(f"datasets/{folder}/{HEAD_KEY}") is None
            for garbage in self.of_dataset(folder, partial(self._nothing, folder))[:-1]
        ]
        return [_garbage("runs in the store", dead), *left]

    def _nothing(self, folder: str) -> frozenset[str] | None:
        # it may have a head by now
        return frozenset() if self.space.size(f"datasets/{folder}/{HEAD_KEY}") is None else None

    def _remove(self, keys: list[str], lease: Lease) -> None:
        for start in range(0, 0 if self.dry_run else len(keys), _AT_ONCE):
            lease.check()
            self.space.delete_all(keys[start : start + _AT_ONCE])

    def with_other_references(self, peer: Store, folder: str, needed: frozenset[str]) -> frozenset[str]:
        """The needed keys, with those that refs of other tools lead to."""
        found: set[str] = set()
        waiting: list[Multihash | None] = []
        for each in self.space.listed(f"datasets/{folder}/refs", _MOST):
            if each.key != HEAD and not each.key.endswith((*SIGNED_ENDINGS, ".lock")):
                data, _ = self.space.read(f"datasets/{folder}/refs/{each.key}", LIMITS.ref_bytes)
                if data:  # else it is a branch that was deleted
                    waiting.append(parse_ref(data, f"{peer.where}refs/{each.key}"))
        while waiting:
            at = waiting.pop()
            while (
                at is not None
                and (key := str(ObjectKey(ObjectKind.BLOCK, at))) not in found
                and key not in needed
            ):
                block = peer.decoded(at)
                found |= {key, *(str(item.key) for item in objects_of(block))}
                waiting += [
                    name
                    for name in merged_names(block.event)
                    if peer.contains(ObjectKey(ObjectKind.BLOCK, name))
                ]
                at = block.prev_block_hash
        return needed | found


def _garbage(title: str, found: Iterable[Listed]) -> Garbage:
    sizes = [each.size for each in found]
    return Garbage(title, len(sizes), sum(sizes))


def _is_object(kind: ObjectKind, name: str) -> bool:
    try:
        return str(ObjectKey(kind, Multihash.parse(name))) == f"{kind.value}/{name}"
    except InvalidIdError:
        return False


def _is_dataset(folder: str) -> bool:
    try:
        DatasetId.from_multibase(folder)
    except InvalidIdError:
        return False
    return True
