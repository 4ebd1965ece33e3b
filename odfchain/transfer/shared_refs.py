"""The head of a dataset in a store that machines share: what it names goes first, then one conditional write.

    1. slices and checkpoints of the new blocks     data/…, checkpoints/…
    2. the new blocks, oldest first                 blocks/…
    3. the head, if it is still in the version that was seen        refs/head
    4. the head in the folder

A crash before 3 leaves objects that nothing names. After it the commit is done for all machines, and the next
opening moves the head in the folder up. An answer that is lost is no conflict: whether the commit is in the
chain of the head that is there decides, so nothing is recorded twice. Chains only grow here: a head that is
not a continuation of the one before is refused on its way out, and on its way in.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NoReturn

from odfchain.chain.chain import HashedBlock
from odfchain.codec.blocks import decode_block
from odfchain.errors import (
    ChainError,
    CodecError,
    CorruptedPeerError,
    ObjectNotFoundError,
    RefConflictError,
    TransferError,
    WorkspaceError,
)
from odfchain.ids.branch_names import is_branch_name
from odfchain.ids.multihash import Multihash
from odfchain.limits import SHARING
from odfchain.model.metadata_block import MetadataBlock
from odfchain.progress import SILENT
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store.interfaces import HEAD, check_object_name
from odfchain.store.local import LocalObjectStore, LocalRefStore, conflict
from odfchain.transfer.object_peer import ObjectPeer
from odfchain.transfer.object_space import ConditionsUnknownError, Version, WriteRefusedError
from odfchain.transfer.public_layout import ObjectKey, Part
from odfchain.transfer.slice_files import objects_of, store_of

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
    peer: Callable[[], ObjectPeer]
    known: KnownHead
    send: Callable[[ObjectPeer, Multihash | None, Multihash], None]
    """Sends what a head names that continues another one, or refuses it."""
    follow: Callable[[], None]
    """Is told of a conflict, to bring what the other writer has done."""

    def get(self, name: str) -> Multihash | None:
        """What the reference file holds."""
        return self.local.get(name)

    def names(self) -> Iterator[str]:
        """Every reference in the folder."""
        return self.local.names()

    def compare_and_swap(self, name: str, expected: Multihash | None, new: Multihash) -> None:
        """Move the head in the store, then here; a branch is refused, others stay in the folder.

        Raises:
            WorkspaceError: a branch, or a head that does not continue the one before.
            ObjectNotFoundError: a slice that the new blocks name is neither here nor there.
            AccessError, TransferError: from the store; what it has is as it was, or the message says more.
        """
        check_object_name(new)
        actual = self.local.get(name)
        if is_branch_name(name):
            raise WorkspaceError(
                f"{name!r} cannot be made: a dataset in a store has no branches yet",
                hint="`odfchain pull` brings it into a workspace without a store, which can have some",
            )
        if name != HEAD:
            self.local.compare_and_swap(name, expected, new)
            return
        if actual != expected:
            raise conflict(name, expected, actual)
        self._commit(expected, new)
        with contextlib.suppress(RefConflictError):  # who opened the dataset has moved it at least as far
            self.local.compare_and_swap(HEAD, expected, new)

    def _commit(self, expected: Multihash | None, new: Multihash) -> None:
        peer, (head, version) = self.peer(), self.known.seen
        if head is None or head != expected:
            head, version = self.known.seen = peer.versioned_head()
        if head != expected:
            self._conflict(expected, head)
        self.send(peer, expected, new)
        problem: TransferError | None = None
        try:
            self.known.seen = new, peer.replace_head(version, new)
        except ConditionsUnknownError:
            raise TransferError(f"{peer.where}: the store has no conditional writes any more") from None
        except WriteRefusedError:
            pass
        except TransferError as error:  # nobody knows what became of the request
            problem = error
        else:
            return
        head, version = self.known.seen = self._look(peer, new, problem)
        if head is not None and is_among(peer, new, head):
            return
        if head != expected or problem is None:
            self._conflict(expected, head)
        raise problem

    def _look(
        self, peer: ObjectPeer, new: Multihash, problem: TransferError | None
    ) -> tuple[Multihash | None, Version | None]:
        try:
            return peer.versioned_head()
        except TransferError as error:
            self.known.seen = None, None
            raise TransferError(
                f"{(problem or error).message}: whether block {new} was committed is not known",
                hint="see with `odfchain log` whether it is there before the command is run again",
            ) from error

    def _conflict(self, expected: Multihash | None, actual: Multihash | None) -> NoReturn:
        self.follow()
        raise conflict(HEAD, expected, actual)


def send_continuation(
    dataset: DatasetFiles, peer: ObjectPeer, expected: Multihash | None, new: Multihash
) -> None:
    """What the blocks after `expected` up to `new` name is in the store, and then they are.

    Raises:
        WorkspaceError: `new` does not continue `expected`.
        And all errors of `send`.
    """
    send(dataset, peer, _continuation(dataset, expected, new))


def _continuation(dataset: DatasetFiles, expected: Multihash | None, new: Multihash) -> list[HashedBlock]:
    """The blocks after `expected` up to `new`, oldest first."""
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


def send(dataset: DatasetFiles, peer: ObjectPeer, blocks: list[HashedBlock]) -> None:
    """The blocks and all that they name are in the store; every file is hashed before it is sent.

    Raises:
        ObjectNotFoundError: a slice or checkpoint is neither here nor there.
        ObjectCorruptedError: a file here does not hash to its name.
        AccessError, TransferError: from the store.
    """

    def send_object(key: ObjectKey) -> None:
        store = store_of(dataset, key.part)
        # a checkpoint that did not change is named again
        if (key.part is Part.CHECKPOINT or not store.contains(key.name)) and peer.contains(key):
            return
        if not store.contains(key.name):
            raise ObjectNotFoundError(
                f"{store.locate(key.name)}: missing, and not in {peer.where} either; nothing was committed",
                hint="a dataset in a store is whole: bring its slices first",
            )
        peer.put(key, store.verified_path(key.name), SILENT)

    keys = dict.fromkeys(item.key for hashed in blocks for item in objects_of(hashed.block))
    stored = LocalObjectStore(dataset.folder / "blocks")
    with ThreadPoolExecutor(SHARING.parallel, thread_name_prefix="commit") as pool:
        list(pool.map(send_object, keys))
    # in turn, so that a block that is there has all before it
    for hashed in blocks:
        peer.put(ObjectKey(Part.BLOCK, hashed.hash), stored.verified_path(hashed.hash), SILENT)
    newest, oldest = blocks[-1].block.sequence_number, blocks[0].block.sequence_number
    every = max(_HINT_EVERY, 10 ** (len(str(newest)) - 2))
    if newest // every != (oldest - 1) // every and newest < SHARING.hinted_blocks:
        peer.put_hint(dataset.chain.hashes(blocks[-1].hash))


def is_among(peer: ObjectPeer, name: Multihash, head: Multihash) -> bool:
    """Whether a block of the store is in the chain of a head there, which others may have moved on.

    Raises:
        CorruptedPeerError, AccessError, TransferError: a block cannot be had.
    """
    if head == name:
        return True
    number = _block(peer, name).sequence_number
    at: Multihash | None = head
    while at is not None and at != name:
        block = _block(peer, at)
        at = block.prev_block_hash if block.sequence_number > number else None
    return at is not None


def _block(peer: ObjectPeer, name: Multihash) -> MetadataBlock:
    try:
        return decode_block(peer.block(name))
    except CodecError as error:
        raise CorruptedPeerError(f"{peer.where}blocks/{name}: {error}") from None
