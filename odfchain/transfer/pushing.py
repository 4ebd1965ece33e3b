"""Sending a dataset to a place that can be written to.

Manifests and profiles go first, then slices and checkpoints, then blocks, oldest first, then the hint, then
the head by one compare-and-swap, and last what is signed (`odfchain.transfer.signed_statements`). Before the
blocks of the chain go those that were merged into it. A branch is sent in the same way. So a reader
sees the old dataset until it sees all of the new one, and an interrupted push is continued by
running the same again. Source: specification "Dataset Sharing"; RFC-021.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from odfchain import errors
from odfchain.chain.compare import (
    Ahead,
    Behind,
    ChainLinks,
    Comparison,
    Diverged,
    Equal,
    HashList,
    compare,
    whole_chain,
)
from odfchain.chain.signed_heads import SignatureStatus, SignedFile
from odfchain.chain.statements import Did
from odfchain.limits import SHARING
from odfchain.odf.block_codec import decode_block
from odfchain.odf.events import MetadataBlock, Seed
from odfchain.odf.identity import Multihash
from odfchain.progress import SILENT, Progress
from odfchain.storage.fsio import FileState
from odfchain.storage.http_connection import Pieces
from odfchain.storage.http_rules import Deadline
from odfchain.storage.local import HEAD
from odfchain.text import counted
from odfchain.transfer.branch_fetch import merged_into
from odfchain.transfer.peer import AbsentError, Opened, Peer, RawBlock, WritablePeer
from odfchain.transfer.public_layout import HEAD_KEY, ObjectKey, ObjectKind
from odfchain.transfer.receive import differ, shortened
from odfchain.transfer.signed_statements import push_statements, push_to_node
from odfchain.transfer.slice_files import DataObject, absent, objects_of, store_of
from odfchain.transfer.snapshot_objects import send_objects
from odfchain.workspace.dataset_files import DatasetFiles

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOptions:
    """How to push."""

    create: bool = True
    """Make the dataset at the destination when there is none."""
    force: bool = False
    """Overwrite what the destination has and the source has not."""
    parallel: int = SHARING.parallel
    """Objects that are sent at the same time [count]."""
    merged: bool = True
    """Send what was merged, too, as far as it is here."""
    trusted: tuple[Did, ...] = ()
    """Auditors whose attestations come first where there is no room for all."""
    public: bool = False
    """True if a dataset that a push makes at a node is readable by everybody."""


_OPTIONS = PushOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class PushPlan:
    """The plan of a push; nothing is written yet."""

    where: str
    old_head: Multihash | None
    """The destination's head; None when there is no dataset."""
    new_head: Multihash
    blocks: Sequence[Multihash]
    """The blocks to be sent, oldest first."""
    objects: tuple[DataObject, ...]
    """The slices and checkpoints to be sent; what the destination has is left out."""
    merged: Sequence[Multihash]
    """The blocks to be sent of what was merged, in their order; they go before the others."""
    present: int
    """Slices and checkpoints of these blocks that the destination has already [count]."""
    overwrites: bool
    """True if blocks of the destination are given up."""

    @property
    def up_to_date(self) -> bool:
        """True if there is nothing to do."""
        return self.old_head == self.new_head and not self.merged

    @property
    def bytes(self) -> int:
        """Size of the slices and checkpoints to be sent [bytes]."""
        return sum(item.size for item in self.objects)

    def __repr__(self) -> str:
        what = f"{len(self.blocks):,} blocks, {len(self.objects):,} objects of {self.bytes:,} bytes"
        return f"<push to {self.where}: {'up to date' if self.up_to_date else what}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class PushOutcome:
    """The result of a push."""

    plan: PushPlan
    caveat: str | None
    """The caveat of how the head was swapped."""
    signature: SignatureStatus = SignatureStatus.UNSIGNED
    """The state of the destination's signature."""
    problem: str | None = None
    """Files that could not be written after the head, or why there is no manifest."""
    snapshots: int = 0
    """Manifests and profiles sent, not counting the objects of the chain [count]."""

    @property
    def up_to_date(self) -> bool:
        """True if there was nothing to do."""
        return self.plan.up_to_date

    @property
    def num_blocks(self) -> int:
        """Blocks written to the destination [count]; with `force` over other blocks, the whole chain."""
        return len(self.plan.blocks)

    def __repr__(self) -> str:
        return f"{repr(self.plan).removesuffix('>')}, {self.problem or self.signature}>"


def plan_push(dataset: DatasetFiles, peer: WritablePeer, options: PushOptions = _OPTIONS) -> PushPlan:
    """Plan `push_dataset`; the destination is only read, and no further than needed."""
    head = dataset.chain.head()
    if head is None:
        raise errors.BrokenChainError(f"{dataset.alias}: the dataset has no head")
    old = peer.head()
    if old is None and not options.create:
        raise errors.DatasetNotFoundError(f"{peer.where}: no such dataset", hint="allow to create it")
    local = ChainLinks(dataset.chain)
    destination = RemoteLinks(dataset, peer)
    if old is None and dataset.ref != HEAD:
        found: Comparison = _ahead_of_head(dataset, peer, head, destination)
    else:
        found = compare(head, local, old, destination)
    if isinstance(found, Ahead | Equal):
        newest_first = found.blocks if isinstance(found, Ahead) else ()
    else:
        assert old is not None  # noqa: S101 - what is not there is not ahead
        if not options.force:
            raise _differ(dataset, peer, head, old, found)
        if isinstance(found, Diverged) and found.common is None:
            _check_same_dataset(dataset, peer, head, old, found, destination.seed)
        newest_first = whole_chain(local, head)
    blocks = HashList(reversed(newest_first))
    merged = _merged_blocks(dataset, peer, head, options)
    objects, present = _missing_there(dataset, peer, [*merged, *blocks] if merged else blocks, options)
    return PushPlan(
        where=peer.where,
        old_head=old,
        new_head=head,
        blocks=blocks,
        objects=objects,
        merged=merged,
        present=present,
        overwrites=isinstance(found, Behind | Diverged),
    )


def push_dataset(
    dataset: DatasetFiles,
    peer: WritablePeer,
    options: PushOptions = _OPTIONS,
    progress: Progress = SILENT,
) -> PushOutcome:
    """Make the destination's chain the same as the local one; readers there see all of it or nothing.

    Every file is hashed before it is sent. What the destination has already is not sent again.
    """
    plan = plan_push(dataset, peer, options)
    if not peer.takes_files:
        if not plan.up_to_date:
            _send_to_node(dataset, peer, plan, options, progress)
            return PushOutcome(
                plan=plan, caveat=None, signature=push_to_node(dataset, dataset.id, peer, plan.new_head)
            )
        return PushOutcome(plan=plan, caveat=None)
    sent = send_objects(dataset, peer, parallel=options.parallel)
    # every file is hashed before it is sent, and skipped if the destination has it
    caveat = None
    if not plan.up_to_date:
        _send(dataset, peer, plan, options, progress)
        caveat = peer.caveat
    signed = push_statements(dataset, peer, plan.new_head, options.trusted)
    return PushOutcome(
        plan=plan,
        caveat=caveat,
        signature=signed.signature,
        problem="; ".join(filter(None, (signed.problem, *sent.problems))) or None,
        snapshots=sent.objects,
    )


def _send(
    dataset: DatasetFiles, peer: WritablePeer, plan: PushPlan, options: PushOptions, progress: Progress
) -> None:
    blocks = store_of(dataset, ObjectKind.BLOCK)

    def send_object(item: DataObject) -> None:
        peer.put(item.key, store_of(dataset, item.key.kind).verified_path(item.key.name), progress)

    def send_block(name: Multihash) -> None:
        peer.put(ObjectKey(ObjectKind.BLOCK, name), blocks.verified_path(name), SILENT)
        progress.advance()

    if plan.objects:
        progress.phase(f"Sending {dataset.alias}", plan.bytes)
        _in_parallel(send_object, plan.objects, options.parallel)
    progress.phase(f"Sending blocks of {dataset.alias}", len(plan.merged) + len(plan.blocks))
    for name in plan.merged:
        send_block(name)
    _in_parallel(send_block, plan.blocks, options.parallel)
    if plan.old_head != plan.new_head:
        _put_hint(dataset, peer, plan.new_head, progress)
        peer.swap_head(plan.old_head, plan.new_head)


def _send_to_node(
    dataset: DatasetFiles, peer: WritablePeer, plan: PushPlan, options: PushOptions, progress: Progress
) -> None:
    # loaded here: most pushes are to folders and stores
    from odfchain.transfer.node_peer import Shipment, SmartDestination  # noqa: PLC0415
    from odfchain.transfer.smart_messages import Visibility  # noqa: PLC0415

    assert isinstance(peer, SmartDestination)  # noqa: S101 - the one that takes no files
    peer.parallel = options.parallel
    progress.phase(f"Sending {dataset.alias}", len(plan.blocks))
    peer.send(
        Shipment(
            expected=plan.old_head,
            new=plan.new_head,
            blocks=plan.blocks,
            read=dataset.chain.get_bytes,
            objects=plan.objects,
            path=lambda item: store_of(dataset, item.key.kind).verified_path(item.key.name),
            force=plan.overwrites,
            visibility=Visibility.PUBLIC if options.public else Visibility.PRIVATE,
        ),
        progress,
    )


class RemoteLinks:
    """Fulfils `Links` for a peer's chain; a block that is here too is not asked for."""

    def __init__(self, dataset: DatasetFiles, peer: Peer) -> None:
        self._chain = dataset.chain
        self._peer = peer
        self.seed: Seed | None = None
        """The first event of the peer's chain, when its first block was read."""

    def link(self, name: Multihash) -> MetadataBlock:
        here = self._chain.contains(name)
        data = self._chain.get_bytes(name) if here else self._peer.block(name)
        try:
            block = decode_block(data)
        except errors.CodecError as error:
            raise errors.CorruptedPeerError(f"{self._peer.where}blocks/{name}: {error}") from error
        if isinstance(block.event, Seed):
            self.seed = block.event
        return block

    def broken(self, problem: str) -> errors.OdfchainError:
        return errors.CorruptedPeerError(f"{self._peer.where}: the chain is broken: {problem}")


def _ahead_of_head(dataset: DatasetFiles, peer: WritablePeer, head: Multihash, there: RemoteLinks) -> Ahead:
    old = peer.head(HEAD)
    found = compare(head, ChainLinks(dataset.chain), old, there)
    if isinstance(found, Ahead):
        return found
    if not isinstance(found, Diverged):
        return Ahead(())
    # chains without a common block are different datasets, or a forged history
    if found.common is None:
        assert old is not None  # noqa: S101 - a place without a head has no other chain
        _check_same_dataset(dataset, peer, head, old, found, there.seed)
    return Ahead(HashList(name for name, _ in dataset.chain.walk(head, tail=found.common)))


def _merged_blocks(
    dataset: DatasetFiles, peer: WritablePeer, head: Multihash, options: PushOptions
) -> Sequence[Multihash]:
    if not options.merged or not peer.takes_files:
        return ()  # nodes know one line of blocks

    def is_there(name: Multihash) -> bool:
        return peer.contains(ObjectKey(ObjectKind.BLOCK, name))

    return [
        name
        for merged in merged_into(dataset, head, until=is_there)
        if merged.whole and not absent(dataset, merged.objects)
        for name in merged.in_order
        if not is_there(name)
    ]


def _differ(
    dataset: DatasetFiles, peer: WritablePeer, head: Multihash, old: Multihash, found: Behind | Diverged
) -> errors.OdfchainError:
    there = f"the head is {shortened(old)} there, {shortened(head)} here"
    if isinstance(found, Behind):
        return differ(
            errors.DestinationAheadError,
            (head, old, found),
            f"{peer.where} has {counted(len(found.blocks), 'block')} that {dataset.alias} has not: {there}",
            "pull them first, or give them up with --force",
        )
    common = f"after block {shortened(found.common)}" if found.common else "and have no block in common"
    return differ(
        errors.DatasetsDivergedError,
        (head, old, found),
        f"{dataset.alias} and {peer.where} diverged {common}: {counted(found.source_blocks, 'block')} only "
        f"here, {counted(found.destination_blocks, 'block')} only there; {there}",
        "pull the other one under a new name (--as) to compare them, push to another place, "
        "or overwrite the destination with --force",
    )


def _check_same_dataset(
    dataset: DatasetFiles,
    peer: WritablePeer,
    head: Multihash,
    old: Multihash,
    found: Diverged,
    theirs: Seed | None,
) -> None:
    ours = dataset.seed
    if theirs is not None and (theirs.dataset_id, theirs.dataset_kind) == (
        ours.dataset_id,
        ours.dataset_kind,
    ):
        return
    name = f"the dataset {theirs.dataset_id}" if theirs else "a chain that begins without Seed"
    # --force overwrites the blocks of a dataset, never another dataset
    raise differ(
        errors.DatasetsDivergedError,
        (head, old, found),
        f"{peer.where} holds {name}, not {dataset.alias} ({ours.dataset_id}); nothing was overwritten",
        "push to another place, or remove what is there first",
    )


def _missing_there(
    dataset: DatasetFiles, peer: WritablePeer, blocks: Iterable[Multihash], options: PushOptions
) -> tuple[tuple[DataObject, ...], int]:
    wanted: dict[ObjectKey, DataObject] = {}
    for name in blocks:
        for item in objects_of(dataset.chain.get(name)):
            wanted.setdefault(item.key, item)
    there: set[ObjectKey] = set()

    def look(key: ObjectKey) -> None:
        if peer.contains(key):
            there.add(key)

    _in_parallel(look, wanted, options.parallel)
    missing = [found for key, found in wanted.items() if key not in there]
    for item in missing:
        # a partial copy can be pushed on where the destination has the rest
        store = store_of(dataset, item.key.kind)
        if not store.contains(item.key.name):
            what = "slice" if item.key.kind is ObjectKind.DATA else "checkpoint"
            raise errors.ObjectNotFoundError(
                f"{store.locate(item.key.name)}: the {what} of block {item.sequence_number} is missing; "
                "nothing was sent",
                hint=f"bring it from another copy first: odfchain fetch {dataset.alias} --from URL",
            )
    return tuple(missing), len(there)


def _put_hint(dataset: DatasetFiles, peer: WritablePeer, head: Multihash, progress: Progress) -> None:
    if dataset.ref != HEAD:
        known = peer.branches()
        if dataset.ref not in known:
            try:
                peer.put_names([*known, dataset.ref])
            except errors.TransferError as error:
                progress.note(f"the list of branches was not written: {error}")
        return
    if dataset.chain.get(head).sequence_number >= SHARING.hinted_blocks:
        return
    try:
        peer.put_hint(dataset.chain.hashes(head))
    except errors.TransferError as error:
        progress.note(f"the hint for faster clones was not written: {error}")


def _in_parallel(work: Callable[[_T], None], items: Iterable[_T], workers: int) -> None:
    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="odfchain-push")
    pending: deque[Future[None]] = deque()
    try:
        for item in items:
            # a bounded queue, so that no item starts after a failure
            if len(pending) >= 2 * workers:
                pending.popleft().result()
            pending.append(pool.submit(work, item))
        while pending:
            pending.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


# A push to this node as a peer to pull from: pushes are validated and published as pulls are.


class PushedPeer(Peer):
    """Blocks that were received, hash to their names, and end in the head; objects wait where pulls look."""

    def __init__(
        self,
        where: str,
        head: Multihash,
        blocks: Sequence[RawBlock] = (),
        signature: bytes | None = None,
        has_hashed: Callable[[ObjectKey, FileState], bool] = lambda *_: False,
    ) -> None:
        """The pushed blocks; `has_hashed` says which files are known to hash to the names of objects."""
        super().__init__(where)
        self._has_hashed = has_hashed
        self._blocks = blocks
        self._files = {str(ObjectKey(ObjectKind.BLOCK, block.hash)): block.data for block in blocks}
        self._files[HEAD_KEY] = str(head).encode()
        if signature is not None:
            self._files[SignedFile.HEAD.value] = signature

    @contextmanager
    def open(self, key: str, start: int, cap: int, deadline: Deadline, /) -> Iterator[Opened]:  # noqa: ARG002 - as `Peer`
        data = self._files.get(key)
        if data is None:
            raise AbsentError(f"{self.where}{key}: it was not sent")
        yield Opened(f"{self.where}{key}", Pieces(iter([data[start:]])), len(data), start=start)

    def batch(self, after: Multihash | None, count: int) -> Iterator[RawBlock]:  # noqa: ARG002 - as `Peer`
        """All of them."""
        return iter(self._blocks)

    def has_hashed(self, key: ObjectKey, state: FileState) -> bool:
        return self._has_hashed(key, state)

    def close(self) -> None:
        pass
