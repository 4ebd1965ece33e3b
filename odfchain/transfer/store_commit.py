"""What a head, or a branch, names is in the store before it is: slices, then blocks, oldest first.

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
    OutcomeUnknownError,
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

# Branches of a dataset in a store that machines share, as they come into the folder of this machine.
#
#     refs/NAME           as a push of a branch writes it; empty once the branch was deleted
#     refs/NAME.jws       the owner's signature of that
#
# They are asked for when somebody names one, or lists them, and not at each opening. Blocks come as a pull
# of a
# branch brings them; those of other machines are verified before they are merged, as those of any peer.
# What
# was merged comes too, without slices. Source: RFC-048, RFC-038.


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
    """The branch that a dataset is opened on is here as it is `there`, or is not.

    A branch may have been deleted and made anew, or put back; what is given up here stays under a reference.
    """
    here = branch.chain.head()
    if here == there:
        return
    if there is not None:
        known = fetched_branch(branch, branch.ref)
        where = peer.where if known is None else known.where
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
    """Whether the head or another branch has a block of a branch, or has merged it."""
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


# Who removes objects of a store, and who relies on objects that he did not write, see each other.
#
#     removing/fed01…             objects of this dataset are being removed; for an hour at most
#     relying/fed01…/<random>     objects of it that were there already are about to be named; likewise
#
# Stores do not delete on a condition. So each of the two puts his mark first and looks for the other's
# then: of
# two at the same moment at least one sees the other, and steps back. What a commit has put itself needs no
# mark, for it is young: a commit of new objects asks nothing of this. Source: RFC-048.

LIFE = 3_600.0
"""How long a mark holds [s], by the store's clock; who removes stops at half of it, by his own."""

_MOST = 100_000
_BYTES = 64
_LOOKS = 20
_WAIT = 0.5
"""How often, and how long [s], is waited for somebody who removes."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The right to remove objects of a dataset."""

    now: float
    """The store's clock when it began [s since the epoch]."""
    ends: float

    def check(self) -> None:
        """It holds still.

        Raises:
            BusyError: somebody else may think that it has ended.
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
        """Nobody else removes objects, and nobody relies on old ones.

        Raises:
            BusyError: somebody does.
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
        """Nobody removes objects of the dataset; what is there now stays until the end.

        Raises:
            BusyError: somebody removes some.
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
    """What time it is for the store [s since the epoch]."""
    probe = f"relying/{secrets.token_hex(16)}"
    space.write(probe, b"-")
    try:
        return space.modified(probe)
    finally:
        space.delete(probe)


def forget_probes(space: ObjectSpace, now: float) -> None:
    """Marks that whoever put them did not live to remove are gone."""
    for below in ("relying", "removing"):
        old = [
            f"{below}/{mark.key}"
            for mark in space.listed(below, SHARING.shared_names)
            if now - mark.modified >= LIFE
        ]
        space.delete_all(old)


_HINT_EVERY = 100
"""Blocks after which the hint for clones is written anew [count]; of long chains a hundredth to a tenth
of their length, for it has a line for each block. Nothing depends on its end."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What was there before a head was sent, and may be about to be removed."""

    reused: list[ObjectKey]
    replaces: bool = False
    """Whether the head does not continue the one before."""


def send_following(
    dataset: DatasetFiles,
    peer: ObjectPeer,
    expected: Multihash | None,
    new: Multihash,
    just_sent: Collection[ObjectKey] = (),
) -> Sent:
    """What the blocks up to `new` name that `expected` does not lead to is in the store, and then they are.

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
    """The blocks up to `new` that `base` does not lead to, oldest first."""
    chain = dataset.chain
    blocks = itertools.takewhile(
        lambda found: chain.hash_at(found.block.sequence_number, base) != found.hash, chain.walk(new)
    )
    return list(blocks)[::-1]


def came(
    dataset: DatasetFiles, peer: ObjectPeer, expected: Multihash | None, new: Multihash, head: Multihash
) -> bool:
    """Whether a head in the store is `new`, which followed `expected`, or goes on from it.

    It does if `new` is the newest of its blocks that either of them leads to: one that goes on from
    `expected`, or was put back further, has another.
    """
    if head == new:
        return True
    ours = {*dataset.chain.hashes(new), *(dataset.chain.hashes(expected) if expected is not None else ())}
    at: Multihash | None = head
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

    What executors have `just_sent` is not looked at. Returns what was there already, or has been for long: it
    may be about to be removed.
    """
    began = time.monotonic()
    named = dict.fromkeys(item.key for hashed in blocks for item in objects_of(hashed.block))
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
    """An object is in the store; whether it was there before."""
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
    """Nobody removes what was in the store before this commit, until its head is there."""
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


# The head of a dataset in a store that machines share: what it names first, then one conditional write.
#
#     1. slices and checkpoints of the new blocks     data/…, checkpoints/…
#     2. the new blocks, oldest first                 blocks/…
#        (what was there before is marked, so that no gc removes it: `odfchain.transfer.store_commit`)
#     3. the head, if it is still in the version that was seen        refs/head
#     4. the head in the folder
#
# A crash before 3 leaves objects that nothing names. After it the commit is done for all machines, and the
# next
# opening moves the head in the folder, too. An answer that is lost is no conflict: whether the head that is
# there is this one, or goes on from it, decides, so nothing is recorded twice. A head that does not
# continue
# the one before (a reset, a compaction) moves in the same way; its intention is noted in the folder before
# 3,
# since another machine, or this one after a crash, would take it for a store that somebody set back.
# Branches
# move as the head does, and may be deleted, and made anew.


@dataclass(slots=True)
class KnownHead:
    """The head in the store as it was seen last, and its version; one value, for threads replace it."""

    seen: tuple[Multihash | None, Version | None] = (None, None)


@dataclass(frozen=True, slots=True)
class SharedRefStore:
    """The references of a dataset; fulfils `RefStore`. Reading them asks nobody: opening has done that."""

    local: LocalRefStore
    peer: Callable[[str], ObjectPeer]
    known: Callable[[str], KnownHead]
    send: Callable[[ObjectPeer, Multihash | None, Multihash], Sent]
    """Sends what a head names that follows another one."""
    kept: Callable[[ObjectPeer, list[ObjectKey]], AbstractContextManager[None]]
    """Keeps what was there from being removed."""
    came: Callable[[ObjectPeer, Multihash | None, Multihash, Multihash], bool]
    """Whether the head that is there is the one that followed another, or goes on from it."""
    intended: Callable[[Multihash, Multihash], AbstractContextManager[None]]
    """Notes that a head is about to be replaced by one that does not continue it."""
    follow: Callable[[str], None]
    """Is told of a conflict, to bring what the other writer has done."""

    def get(self, name: str) -> Multihash | None:
        """What the reference file holds."""
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
        """The head in the store has all blocks of the head here, from which a branch is to begin.

        Else they may be garbage there: another machine has put the head back.
        """
        here, peer = self.local.get(HEAD), self.peer(HEAD)
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
        """The head in the store now, and whether it is this one, or goes on from it."""
        try:
            head, _ = self.known(peer.ref).seen = peer.versioned_head()
            return head, head is not None and self.came(peer, expected, new, head)
        except TransferError as error:
            self.known(peer.ref).seen = None, None
            raise OutcomeUnknownError(
                f"{(problem or error).message}: whether block {new} was committed is not known",
                hint="see with `odfchain log` whether it is there before the command is run again",
            ) from error

    def _conflict(self, name: str, expected: Multihash | None, actual: Multihash | None) -> NoReturn:
        self.follow(name)
        raise conflict(name, expected, actual)


# A store whose head does not continue what a machine has seen: noticed, and followed by who says so.
#
#     info/replacing      `<a head> <another>`, while this machine replaces the one by the other
#
# Somebody who has the right to write has put the dataset back, or compacted it; or it was an attacker, and
# no
# machine can tell. So it is an error, until the user names the head that he wants to follow. Only what this
# machine has begun itself, and was killed at, it goes on with: that is what the note is for. It says
# nothing
# any more once the head here is another one. Source: RFC-048.

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
    """Whether this machine itself has replaced its head by the one in the store, or one a later one."""
    text = (fsio.read_start(_note(dataset.folder), _NOTE_BYTES) or b"").decode("ascii", "replace")
    try:
        expected, new = map(Multihash.parse, text.split(" "))
    except (InvalidIdError, ValueError):
        return False
    return dataset.chain.head() == expected and came(dataset, peer, expected, new, there)


def set_back(alias: DatasetAlias, folder: Path, peer: ObjectPeer, error: ChainsDifferError) -> SetBackError:
    """What is said where the store does not continue what was seen here."""
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
