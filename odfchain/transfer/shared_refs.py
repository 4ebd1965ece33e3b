"""The head of a dataset in a store that machines share: what it names first, then one conditional write.

    1. slices and checkpoints of the new blocks     data/…, checkpoints/…
    2. the new blocks, oldest first                 blocks/…
       (what was there before is marked, so that no gc removes it: `odfchain.transfer.shared_marks`)
    3. the head, if it is still in the version that was seen        refs/head
    4. the head in the folder

A crash before 3 leaves objects that nothing names. After it the commit is done for all machines, and the next
opening moves the head in the folder up. An answer that is lost is no conflict: whether the commit is in the
chain of the head that is there decides, so nothing is recorded twice. Chains only grow here: a head that is
not a continuation of the one before is refused on its way out, and on its way in. Branches move as the head
does, but they may be deleted, and made anew.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NoReturn

from odfchain.chain.chain import HashedBlock
from odfchain.chain.earlier_blocks import DATA_EVENTS
from odfchain.codec.blocks import decode_block
from odfchain.errors import (
    ChainError,
    CodecError,
    CorruptedPeerError,
    ObjectNotFoundError,
    OutcomeUnknownError,
    RefConflictError,
    TransferError,
    WorkspaceError,
)
from odfchain.ids.branch_names import is_branch_name
from odfchain.ids.multihash import Multihash
from odfchain.limits import SHARING
from odfchain.model.metadata_block import MetadataBlock
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store.interfaces import HEAD, check_object_name
from odfchain.store.local import LocalObjectStore, LocalRefStore, conflict
from odfchain.transfer.object_peer import ObjectPeer
from odfchain.transfer.object_space import ConditionsUnknownError, Version, WriteRefusedError
from odfchain.transfer.public_layout import ObjectKey, ObjectKind
from odfchain.transfer.shared_marks import LIFE, Marks
from odfchain.transfer.slice_files import objects_of, store_of
from odfchain.trust.parties import SignedFile

_HINT_EVERY = 100
"""Blocks after which the hint for clones is written anew [count]; of long chains a hundredth to a tenth
of their length, for it has a line for each block. Nothing depends on its end."""


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
    send: Callable[[ObjectPeer, Multihash | None, Multihash], list[ObjectKey]]
    """Sends what a head names that continues another one, or refuses it; returns what was there."""
    kept: Callable[[ObjectPeer, list[ObjectKey]], AbstractContextManager[None]]
    """Keeps what was there from being removed."""
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
            WorkspaceError: it does not continue the block before.
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
        self._commit(name, expected, new)
        with contextlib.suppress(RefConflictError):  # who opened the dataset has moved it at least as far
            self.local.compare_and_swap(name, expected, new)

    def remove(self, name: str, expected: Multihash) -> None:
        """A branch that points at `expected` now is none any more, in the store; here it stays.

        Raises:
            RefConflictError: it points elsewhere; it stays.
            AccessError, TransferError: from the store; whether it is gone is not known.
        """
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

    def _commit(self, name: str, expected: Multihash | None, new: Multihash) -> None:
        peer, known = self.peer(name), self.known(name)
        head, version = known.seen
        if head is None or head != expected:
            head, version = known.seen = peer.versioned_head()
        if head != expected:
            self._conflict(name, expected, head)
        reused = self.send(peer, expected, new)
        with self.kept(peer, reused):
            self._move(peer, expected, version, new)

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
        head, is_made = self._look(peer, new, problem)
        if is_made:
            return
        if head != expected or problem is None:
            self._conflict(peer.ref, expected, head)
        raise problem

    def _look(
        self, peer: ObjectPeer, new: Multihash, problem: TransferError | None
    ) -> tuple[Multihash | None, bool]:
        """The head in the store now, and whether the commit is in its chain."""
        try:
            head, _ = self.known(peer.ref).seen = peer.versioned_head()
            return head, head is not None and is_among(peer, new, head)
        except TransferError as error:
            self.known(peer.ref).seen = None, None
            raise OutcomeUnknownError(
                f"{(problem or error).message}: whether block {new} was committed is not known",
                hint="see with `odfchain log` whether it is there before the command is run again",
            ) from error

    def _conflict(self, name: str, expected: Multihash | None, actual: Multihash | None) -> NoReturn:
        self.follow(name)
        raise conflict(name, expected, actual)


def send_continuation(
    dataset: DatasetFiles,
    peer: ObjectPeer,
    expected: Multihash | None,
    new: Multihash,
    just_sent: Collection[ObjectKey] = (),
) -> list[ObjectKey]:
    """What the blocks after `expected` up to `new` name is in the store, and then they are; as `send`.

    With no `expected` a branch begins: the blocks are those that the head does not have.

    Raises:
        WorkspaceError: `new` does not continue `expected`.
        And all errors of `send`.
    """
    if not (blocks := _continuation(dataset, expected, new)):
        return []
    reused = send(dataset, peer, blocks, just_sent)
    before = dataset.chain.nearest(*DATA_EVENTS, head=blocks[0].block.prev_block_hash)
    named = {item.key for item in objects_of(before.block)} if before is not None else ()
    return [key for key in reused if key not in named]  # a checkpoint that did not change is named again


def _continuation(dataset: DatasetFiles, expected: Multihash | None, new: Multihash) -> list[HashedBlock]:
    """The blocks after `expected` up to `new`, oldest first; of a new branch those that the head lacks."""
    if expected is None:
        chain, head = dataset.chain, dataset.chain.head()
        assert head is not None  # noqa: S101 - the first head is not sent by this
        beside = itertools.takewhile(
            lambda found: chain.hash_at(found.block.sequence_number, head) != found.hash, chain.walk(new)
        )
        return list(beside)[::-1]
    try:
        blocks = list(dataset.chain.walk(new, tail=expected))[::-1]
    except ChainError:
        blocks = []
    if not blocks:
        raise WorkspaceError(
            f"{dataset.alias}: the history of a dataset in a store only grows, and this would replace some",
            hint="do it in a workspace without a store: pull the dataset there",
        )
    return blocks


def send(
    dataset: DatasetFiles,
    peer: ObjectPeer,
    blocks: list[HashedBlock],
    just_sent: Collection[ObjectKey] = (),
) -> list[ObjectKey]:
    """The blocks and all that they name are in the store; every file is hashed before it is sent.

    What executors have `just_sent` is not looked at. Returns what was there already, or has been for long: it
    may be about to be removed.

    Raises:
        ObjectNotFoundError: a slice or checkpoint is neither here nor there.
        ObjectCorruptedError: a file here does not hash to its name.
        AccessError, TransferError: from the store.
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
    """Nobody removes what was in the store before this commit, until its head is there.

    Raises:
        BusyError: somebody removes objects of the dataset, and goes on.
        And all errors of `send`.
    """
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


def is_among(peer: ObjectPeer, name: Multihash, head: Multihash) -> bool:
    """Whether a block of the store is in the chain of a head there, which others may have moved on.

    Raises:
        CorruptedPeerError, AccessError, TransferError: a block cannot be had.
    """
    if head == name:
        return True
    number = block_of(peer, name).sequence_number
    at: Multihash | None = head
    while at is not None and at != name:
        block = block_of(peer, at)
        at = block.prev_block_hash if block.sequence_number > number else None
    return at is not None


def block_of(peer: ObjectPeer, name: Multihash) -> MetadataBlock:
    """A block of a dataset in a store.

    Raises:
        CorruptedPeerError, AccessError, TransferError: it cannot be had.
    """
    try:
        return decode_block(peer.block(name))
    except CodecError as error:
        raise CorruptedPeerError(f"{peer.where}blocks/{name}: {error}") from None
