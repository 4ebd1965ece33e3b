"""What a head, or a branch, names is in the store before it is: slices, then blocks, oldest first.

What was there already may be about to be removed, so it is looked at again under a mark
(`odfchain.transfer.shared_marks`). A head that does not continue the one before names blocks that were there
once, or that replace others; it is sent as any other, from the newest block that both have on.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from odfchain.chain.chain import HashedBlock
from odfchain.chain.earlier_blocks import DATA_EVENTS
from odfchain.codec.blocks import decode_block
from odfchain.errors import CodecError, CorruptedPeerError, ObjectNotFoundError
from odfchain.ids.multihash import Multihash
from odfchain.limits import SHARING
from odfchain.model.metadata_block import MetadataBlock
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store.interfaces import HEAD
from odfchain.store.local import LocalObjectStore
from odfchain.transfer.object_peer import ObjectPeer
from odfchain.transfer.public_layout import ObjectKey, ObjectKind
from odfchain.transfer.shared_marks import LIFE, Marks
from odfchain.transfer.slice_files import objects_of, store_of

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
