"""Uploads before a head or a branch in a store moves: slices, then blocks, oldest first.

What was there already may be about to be removed, so it is looked at again under a mark
(`odfchain.transfer.store_commit`). A head that does not continue the one before names blocks that were there
once, or that replace others; it is sent as any other, from the newest block that both have on.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import DATA_EVENTS, MERGE
from odfchain.chain.signing import SignedFile, warn
from odfchain.errors import (
    BusyError,
    ChainsDifferError,
    CodecError,
    CorruptedPeerError,
    InvalidIdError,
    ObjectNotFoundError,
    OdfchainError,
    RefConflictError,
    SetBackError,
    StoreError,
    TransferError,
)
from odfchain.limits import SHARING
from odfchain.odf.block_codec import decode_block
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias, is_branch_name
from odfchain.progress import SILENT
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, LocalObjectStore, LocalRefStore, check_object_name, conflict
from odfchain.transfer.branch_fetch import arriving, bring_merged, pull_branch, unknown_sources
from odfchain.transfer.object_peer import (
    ConditionsUnknownError,
    ObjectPeer,
    ObjectSpace,
    Version,
    WriteRefusedError,
)
from odfchain.transfer.public_layout import ObjectKey, ObjectKind
from odfchain.transfer.pulling import SyncOptions, SyncStatus
from odfchain.transfer.slice_files import objects_of, store_of
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import fetched_branch, merged_names, rename_fetched
from odfchain.workspace.points import (
    branch_names,
    is_referenced,
    keep_reachable,
    lock_path,
    overwritten_name,
    remove_branch,
)

# Branches in a store that machines share.
#
#     refs/NAME           as a push of a branch writes it; empty once the branch was deleted
#     refs/NAME.jws       the owner's signature of that
#
# They are fetched when named or listed, not at each opening. Branches of other machines are verified before
# a merge, as those of any peer. Merged blocks come without slices. Source: RFC-048, RFC-038.


def listed_branches(space: ObjectSpace, dataset: DatasetFiles) -> list[str]:
    """The names that branches have in the store, and those that they have here: a listing may lag."""
    listed = space.listed(f"datasets/{dataset.folder.name}/refs", SHARING.shared_names)
    return sorted({each.key for each in listed if is_branch_name(each.key)} | {*branch_names(dataset)})


def follow_branches(
    dataset: DatasetFiles,
    names: Sequence[str],
    ask: Callable[[str], Multihash | None],
    peer: Callable[[str], ObjectPeer],
) -> dict[str, OdfchainError]:
    """Branches are here as the store has them, which is asked for each; returns those that are damaged."""
    problems: dict[str, OdfchainError] = {}

    def head_of(name: str) -> tuple[str, Multihash | None]:
        try:
            return name, ask(name)
        except CorruptedPeerError as error:
            problems[name] = error
            return name, None

    with ThreadPoolExecutor(SHARING.parallel, thread_name_prefix="branches") as pool:
        heads = list(pool.map(head_of, names))
    # those that are gone come last: another one may have their blocks now
    for name, head in sorted(heads, key=lambda pair: pair[1] is None):
        if name not in problems:
            try:
                follow_branch(dataset.on(name), peer(name), head)
            except (CorruptedPeerError, ChainsDifferError, StoreError) as error:
                problems[name] = error
    return problems


def follow_branch(branch: DatasetFiles, peer: ObjectPeer, there: Multihash | None) -> None:
    """The branch that a dataset is opened on is here as it is `there`, or is not."""
    here = branch.chain.head()
    if here == there:
        return
    if there is not None:
        known = fetched_branch(branch, branch.ref)
        where = peer.where if known is None else known.where
        # `force`: a branch may have been deleted and made anew, or rewound; its old head keeps a reference
        outcome = pull_branch(branch, peer, where, SyncOptions(on_demand=True, force=True))
        for text in outcome.warnings:
            warn(text)
        if here is not None and outcome.status is SyncStatus.OVERWRITTEN and not _is_needed(branch, here):
            kept = f"does not continue what was seen here, which stays under refs/{overwritten_name(here)}"
            warn(f"{branch.label}: the branch in {peer.where} {kept}")
        return
    with fsio.locked(lock_path(branch)):
        if (here := branch.chain.head()) is not None:
            if not _is_needed(branch, here):
                keep_reachable(branch, here)
            remove_branch(branch, here)
            rename_fetched(branch, branch.ref, None)


def _is_needed(branch: DatasetFiles, block: Multihash) -> bool:
    for on in [branch.on(ref) for ref in (HEAD, *branch_names(branch)) if ref != branch.ref]:
        head = on.chain.head()
        if head is not None and (is_referenced(on, block, head=head) or _has_merged(on, block)):
            return True
    return False


def _has_merged(dataset: DatasetFiles, block: Multihash) -> bool:
    return any(block in merged_names(merge.block.event)[:1] for merge in dataset.chain.nearest_all(MERGE))


def follow_merged(dataset: DatasetFiles, peer: ObjectPeer) -> None:
    """The blocks that were merged into the chain of an open dataset are here, if the store has them."""
    head = dataset.chain.head()
    if head is not None and any(True for _ in unknown_sources(dataset, head)):
        bring_merged(dataset, peer, on_demand=True)


# Leases between gc and commits that rely on existing objects.
#
#     removing/fed01…             objects of this dataset are being removed; for an hour at most
#     relying/fed01…/<random>     objects of it that were there already are about to be named; likewise
#
# Stores have no conditional delete. So each side writes its mark first and then looks for the other's: of
# two at the same moment at least one sees the other, and steps back. New objects are young and need no
# mark. Source: RFC-048.

LIFE = 3_600.0
"""How long a mark holds [s], by the store's clock; who removes stops at half of it, by his own."""

_MOST = 100_000
_BYTES = 64
_LOOKS = 20
# Polling interval and time limit [s] of waiting for a running gc.
_WAIT = 0.5


@dataclass(frozen=True, slots=True)
class Turn:
    """The right to remove objects of a dataset."""

    now: float
    """The store's clock when it began [s since the epoch]."""
    ends: float

    def check(self) -> None:
        """Check that the lease is still valid.

        Raises:
            BusyError: others may take it for expired.
        """
        if time.monotonic() > self.ends:
            raise BusyError("gc timed out", hint="run it again to resume")


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks on one dataset, by the name of its folder in a workspace's store."""

    space: ObjectSpace
    folder: str

    @property
    def _removing(self) -> str:
        return f"removing/{self.folder}"

    @contextlib.contextmanager
    def removing(self) -> Iterator[Turn]:
        """Exclusive right to remove objects: no other gc, and no commit that relies on old ones.

        Raises:
            BusyError: there is one.
        """
        token = secrets.token_hex(_BYTES // 4).encode()
        if not self._taken(token):
            raise BusyError(f"{self.space.where}{self._removing}: another gc is at work", hint="run gc later")
        ends = time.monotonic() + LIFE / 2
        try:
            now = self.space.modified(self._removing)
            below = f"relying/{self.folder}"
            for mark in self.space.listed(below, _MOST):
                if now - mark.modified < LIFE:
                    raise BusyError(
                        f"{self.space.where}{below}/{mark.key}: something is being committed",
                        hint="run gc again when that is done",
                    )
                self.space.delete(f"{below}/{mark.key}")
            yield Turn(now, ends)
        finally:
            if time.monotonic() < ends:
                with contextlib.suppress(OdfchainError):
                    self.space.delete(self._removing)

    def _taken(self, token: bytes) -> bool:
        try:
            self.space.write(self._removing, token, "create")
        except WriteRefusedError:
            with contextlib.suppress(ObjectNotFoundError, WriteRefusedError):
                held, version = self.space.read(self._removing, _BYTES)
                if held == token:  # our answer was lost
                    return True
                if not self._is_held(store_time(self.space)):
                    self.space.write(self._removing, token, version)
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
        """Keep gc from removing objects of the dataset until the end of the block.

        Raises:
            BusyError: a gc is running.
        """
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
                raise BusyError(
                    f"{self.space.where}{self._removing}: a gc is at work; nothing was committed",
                    hint="run the command again when it has ended, or in an hour, if it was killed",
                )
            yield
        finally:
            with contextlib.suppress(OdfchainError):
                self.space.delete(mark)


def store_time(space: ObjectSpace) -> float:
    """The store's clock [s since the epoch]."""
    probe = f"relying/{secrets.token_hex(16)}"
    space.write(probe, b"-")
    try:
        return space.modified(probe)
    finally:
        space.delete(probe)


def forget_probes(space: ObjectSpace, now: float) -> None:
    """Remove marks of processes that were killed."""
    for below in ("relying", "removing"):
        old = [
            f"{below}/{mark.key}"
            for mark in space.listed(below, SHARING.shared_names)
            if now - mark.modified >= LIFE
        ]
        space.delete_all(old)


# Blocks after which the hint for clones is written anew [count]; of long chains a hundredth to a tenth of
# their length, for it has a line for each block. Nothing depends on its end.
_HINT_EVERY = 100


@dataclass(frozen=True, slots=True)
class Sent:
    """Objects that were there before a head was sent, and may be about to be removed."""

    reused: list[ObjectKey]
    replaces: bool = False
    """True if the head does not continue the one before."""


def send_following(
    dataset: DatasetFiles,
    peer: ObjectPeer,
    expected: Multihash | None,
    new: Multihash,
    just_sent: Collection[ObjectKey] = (),
) -> Sent:
    """Upload the blocks up to `new` that `expected` does not lead to, after the objects that they name.

    With no `expected` a branch begins: the blocks are those that the head does not have.
    """
    base = dataset.chain.head() if expected is None else expected
    assert base is not None  # noqa: S101 - the first head is not sent by this
    blocks = _beside(dataset, base, new)
    common = blocks[0].block.prev_block_hash if blocks else new
    replaces = expected is not None and common != expected
    reused = send(dataset, peer, blocks, just_sent) if blocks else []
    if replaces and peer.ref == HEAD and dataset.chain.get(new).sequence_number < SHARING.hinted_blocks:
        peer.put_hint(dataset.chain.hashes(new))
    before = dataset.chain.nearest(*DATA_EVENTS, head=common) if common is not None else None
    named = {item.key for item in objects_of(before.block)} if before is not None else ()
    return Sent([key for key in reused if key not in named], replaces)  # an old checkpoint is named again


def _beside(dataset: DatasetFiles, base: Multihash, new: Multihash) -> list[HashedBlock]:
    chain = dataset.chain
    blocks = itertools.takewhile(
        lambda found: chain.hash_at(found.block.sequence_number, base) != found.hash, chain.walk(new)
    )
    return list(blocks)[::-1]


def came(
    dataset: DatasetFiles, peer: ObjectPeer, expected: Multihash | None, new: Multihash, head: Multihash
) -> bool:
    """True if a head in the store is `new`, which followed `expected`, or goes on from it."""
    if head == new:
        return True
    ours = {*dataset.chain.hashes(new), *(dataset.chain.hashes(expected) if expected is not None else ())}
    at: Multihash | None = head
    # a head that goes on from `expected`, or was rewound further, reaches another of these blocks first
    while at is not None and at not in ours:
        at = block_of(peer, at).prev_block_hash
    return at == new


def send(
    dataset: DatasetFiles,
    peer: ObjectPeer,
    blocks: list[HashedBlock],
    just_sent: Collection[ObjectKey] = (),
) -> list[ObjectKey]:
    """The blocks and all that they name are in the store; every file is hashed before it is sent.

    Returns what was there already, or has been for long: it may be about to be removed.
    """
    began = time.monotonic()
    named = dict.fromkeys(item.key for hashed in blocks for item in objects_of(hashed.block))
    # executors have just put the others, and hashed them
    keys = [key for key in named if key not in just_sent]
    with ThreadPoolExecutor(SHARING.parallel, thread_name_prefix="commit") as pool:
        there = list(pool.map(lambda key: _put(dataset, peer, key), keys))
    # in turn, so that a block that is there has all before it
    keys += (own := [ObjectKey(ObjectKind.BLOCK, hashed.hash) for hashed in blocks])
    there += [_put(dataset, peer, key) for key in own]
    newest, oldest = blocks[-1].block.sequence_number, blocks[0].block.sequence_number
    every = max(_HINT_EVERY, 10 ** (len(str(newest)) - 2))
    turn = newest // every != (oldest - 1) // every
    if peer.ref == HEAD and turn and newest < SHARING.hinted_blocks:
        peer.put_hint(dataset.chain.hashes(blocks[-1].hash))
    if time.monotonic() - began > LIFE / 2:
        return keys
    return [key for key, was_there in zip(keys, there, strict=True) if was_there]


def _put(dataset: DatasetFiles, peer: ObjectPeer, key: ObjectKey) -> bool:
    store = (
        LocalObjectStore(dataset.folder / "blocks")
        if key.kind is ObjectKind.BLOCK
        else store_of(dataset, key.kind)
    )
    here = store.contains(key.name)
    if (key.kind is ObjectKind.CHECKPOINT or not here) and peer.contains(key):
        return True
    if not here:
        raise ObjectNotFoundError(
            f"{store.locate(key.name)}: missing, and not in {peer.where} either; nothing was committed",
            hint="a dataset in a store is whole: bring its slices first",
        )
    return peer.put_unless_there(key, store.verified_path(key.name))


@contextlib.contextmanager
def kept(dataset: DatasetFiles, peer: ObjectPeer, marks: Marks, reused: list[ObjectKey]) -> Iterator[None]:
    """Protect objects that were in the store before this commit from gc until its head is there."""
    if not reused:
        yield
        return
    with marks.relying():
        with ThreadPoolExecutor(SHARING.parallel, thread_name_prefix="kept") as pool:
            gone = [
                key for key, there in zip(reused, pool.map(peer.contains, reused), strict=True) if not there
            ]
        for key in gone:
            _put(dataset, peer, key)
        yield


def block_of(peer: ObjectPeer, name: Multihash) -> MetadataBlock:
    """A block of a dataset in a store.

    Raises:
        CorruptedPeerError, AccessError, TransferError: it cannot be had.
    """
    try:
        return decode_block(peer.block(name))
    except CodecError as error:
        raise CorruptedPeerError(f"{peer.where}blocks/{name}: {error}") from None


# The head of a dataset in a store: its objects first, then one conditional write.
#
#     1. slices and checkpoints of the new blocks     data/…, checkpoints/…
#     2. the new blocks, oldest first                 blocks/…
#        (objects that were there before get a mark against gc)
#     3. the head, if it is still in the version that was seen        refs/head
#     4. the head in the folder
#
# A crash before 3 leaves unreferenced objects; after it the commit is done, and the next opening moves the
# head in the folder. After a lost answer the head in the store decides: the commit is done if that is this
# head or continues it. A head that does not continue the one before (a reset, a compaction) moves in the
# same way; its intention is noted in the folder before 3, or this machine would take it for a rewound store
# after a crash.


@dataclass(slots=True)
class KnownHead:
    """The head in the store as it was seen last, and its version; one value, for threads replace it."""

    seen: tuple[Multihash | None, Version | None] = (None, None)


@dataclass(frozen=True, slots=True)
class SharedRefStore:
    """The references of a dataset; fulfils `RefStore`. Reading them makes no request (opening does)."""

    local: LocalRefStore
    peer: Callable[[str], ObjectPeer]
    known: Callable[[str], KnownHead]
    send: Callable[[ObjectPeer, Multihash | None, Multihash], Sent]
    """Sends what a head names that follows another one."""
    kept: Callable[[ObjectPeer, list[ObjectKey]], AbstractContextManager[None]]
    """Keeps what was there from being removed."""
    came: Callable[[ObjectPeer, Multihash | None, Multihash, Multihash], bool]
    """True if the head that is there is the one that followed another, or goes on from it."""
    intended: Callable[[Multihash, Multihash], AbstractContextManager[None]]
    """Notes that a head is about to be replaced by one that does not continue it."""
    follow: Callable[[str], None]
    """Called at a conflict, to fetch the other writer's blocks."""

    def get(self, name: str) -> Multihash | None:
        """The content of the reference file."""
        return self.local.get(name)

    def names(self) -> Iterator[str]:
        """Every reference in the folder."""
        return self.local.names()

    def compare_and_swap(self, name: str, expected: Multihash | None, new: Multihash) -> None:
        """Move the head or a branch in the store, then here; other references stay in the folder.

        Raises:
            RefConflictError: another writer was faster.
            ObjectNotFoundError: a slice that the new blocks name is neither here nor there.
            AccessError, TransferError: from the store; what it has is as it was, or the message says more.
        """
        check_object_name(new)
        actual = self.local.get(name)
        if name != HEAD and not is_branch_name(name):
            self.local.compare_and_swap(name, expected, new)
            return
        if actual != expected:
            raise conflict(name, expected, actual)
        if expected is None and name != HEAD:
            self._check_head()
        peer, version = self.peer(name), self._version(name, expected)
        sent = self.send(peer, expected, new)
        if not sent.replaces or expected is None:
            self._commit(peer, expected, version, new, sent)
            return
        with self.intended(expected, new) if name == HEAD else contextlib.nullcontext():
            self._commit(peer, expected, version, new, sent)
        with contextlib.suppress(TransferError):  # it is of a block that the chain does not have any more
            peer.put_signed(SignedFile.HEAD, None)

    def remove(self, name: str, expected: Multihash) -> None:
        """A branch that points at `expected` now is none any more, in the store; here it stays."""
        peer, known = self.peer(name), self.known(name)
        head, version = known.seen = peer.versioned_head()
        if head is None:
            return
        if head != expected:
            self._conflict(name, expected, head)
        try:
            known.seen = None, peer.empty_ref(version)
        except WriteRefusedError:  # by another writer, or by our own request that was repeated
            head, _ = known.seen = peer.versioned_head()
            if head is not None:
                self._conflict(name, expected, head)
        with contextlib.suppress(TransferError):
            peer.put_signed(SignedFile.HEAD, None)

    def _check_head(self) -> None:
        """The head in the store has all blocks of the head here, from which a branch is to begin."""
        here, peer = self.local.get(HEAD), self.peer(HEAD)
        # if another machine has rewound the head, the branch's blocks may be garbage in the store
        there = peer.head()
        if here is not None and there != here and (there is None or not self.came(peer, None, here, there)):
            self._conflict(HEAD, here, there)

    def _version(self, name: str, expected: Multihash | None) -> Version | None:
        known = self.known(name)
        head, version = known.seen
        if head is None or head != expected:
            head, version = known.seen = self.peer(name).versioned_head()
        if head != expected:
            self._conflict(name, expected, head)
        return version

    def _commit(
        self,
        peer: ObjectPeer,
        expected: Multihash | None,
        version: Version | None,
        new: Multihash,
        sent: Sent,
    ) -> None:
        with self.kept(peer, sent.reused):
            self._move(peer, expected, version, new)
        with contextlib.suppress(RefConflictError):  # who opened the dataset has moved it at least as far
            self.local.compare_and_swap(peer.ref, expected, new)

    def _move(
        self, peer: ObjectPeer, expected: Multihash | None, version: Version | None, new: Multihash
    ) -> None:
        problem: TransferError | None = None
        known = self.known(peer.ref)
        try:
            known.seen = new, peer.replace_head(version, new)
        except ConditionsUnknownError:
            raise TransferError(f"{peer.where}: the store has no conditional writes any more") from None
        except WriteRefusedError:
            pass
        except TransferError as error:  # nobody knows what became of the request
            problem = error
        else:
            return
        head, is_made = self._look(peer, expected, new, problem)
        if is_made:
            return
        if head != expected or problem is None:
            self._conflict(peer.ref, expected, head)
        raise problem

    def _look(
        self, peer: ObjectPeer, expected: Multihash | None, new: Multihash, problem: TransferError | None
    ) -> tuple[Multihash | None, bool]:
        try:
            head, _ = self.known(peer.ref).seen = peer.versioned_head()
            return head, head is not None and self.came(peer, expected, new, head)
        except TransferError as error:
            self.known(peer.ref).seen = None, None
            raise TransferError(
                f"{(problem or error).message}: whether block {new} was committed is not known",
                hint="see with `odfchain log` whether it is there before the command is run again",
            ) from error

    def _conflict(self, name: str, expected: Multihash | None, actual: Multihash | None) -> NoReturn:
        self.follow(name)
        raise conflict(name, expected, actual)


# A store whose head was rewound is an error until the user names the head to follow.
#
#     info/replacing      `<a head> <another>`, while this machine replaces the one by the other
#
# A reset by another writer and an attack look the same. Only a replacement that this machine has begun is
# completed without the user: that is what the note is for. It is void once the head here is another one.
# Source: RFC-048.

_NOTE_BYTES = 256


@contextlib.contextmanager
def intended(folder: Path, expected: Multihash, new: Multihash) -> Iterator[None]:
    """It is noted durably that this machine replaces a head, unless it is known to have failed."""
    note = _note(folder)
    fsio.replace_file(note, f"{expected} {new}".encode())
    try:
        yield
    except RefConflictError:
        fsio.remove_quietly(note)
        raise
    fsio.remove_quietly(note)


def was_intended(dataset: DatasetFiles, peer: ObjectPeer, there: Multihash) -> bool:
    """True if this machine itself has replaced its head by the one in the store, or by an ancestor of it."""
    text = (fsio.read_start(_note(dataset.folder), _NOTE_BYTES) or b"").decode("ascii", "replace")
    try:
        expected, new = map(Multihash.parse, text.split(" "))
    except (InvalidIdError, ValueError):
        return False
    return dataset.chain.head() == expected and came(dataset, peer, expected, new, there)


def set_back(alias: DatasetAlias, folder: Path, peer: ObjectPeer, error: ChainsDifferError) -> SetBackError:
    """The error for a store that does not continue the known head."""
    if folder.is_dir():
        hint = (
            "it was rewound or compacted on another machine: if that is known to be right, "
            f"`odfchain reset {alias} {error.source_head}` follows; what is here is in {folder}, from where "
            "`odfchain pull` brings it into another workspace"
        )
    else:
        memory = folder.parent.parent / "seen" / folder.name
        hint = f"it was rewound: if that is known to be right, remove {memory} and run the command again"
    return SetBackError(
        f"{peer.where}: the history there does not continue what was seen here: {error.message}",
        head=error.source_head,
        hint=hint,
    )


def bring_blocks(dataset: DatasetFiles, peer: ObjectPeer, head: Multihash) -> None:
    """The blocks up to a head in the store are here, checked; no reference leads to them."""
    with fsio.locked(lock_path(dataset)), arriving(dataset, peer, SHARING.parallel, SILENT) as beside:
        beside.read(head)
        beside.store()


def _note(folder: Path) -> Path:
    return folder / "info" / "replacing"
