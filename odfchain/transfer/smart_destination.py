"""A node as the destination of a push over the smart transfer protocol.

The node is told what comes, gets the blocks in one piece, says which objects it lacks and where they go, and
commits. Whether it did is not taken from its words: its head is read afterwards. Source: RFC-050.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile

from odfchain.codec.blocks import decode_header
from odfchain.errors import AccessError, CorruptedPeerError, NameCollisionError, TransferError
from odfchain.ids.multihash import Multihash
from odfchain.limits import SHARING, SMART
from odfchain.net.pool import request_headers
from odfchain.net.retry import Deadline, with_retries
from odfchain.progress import Progress
from odfchain.smart.block_batch import RawBlock, packed
from odfchain.smart.client_flow import NORMAL, PUSHED, PushFlow, RefusedError
from odfchain.smart.message_text import fits_message
from odfchain.smart.smart_messages import (
    BlocksBatch,
    Internal,
    InvalidHead,
    NameCollision,
    Phase,
    PushMethod,
    PushRequest,
    PushStrategy,
    RefCollision,
    TransferPlan,
    Visibility,
)
from odfchain.store.fsio import storage_errors
from odfchain.store.local import conflict
from odfchain.text import one_line
from odfchain.transfer.peer import WritablePeer, as_transfer_errors
from odfchain.transfer.public_layout import ObjectKey
from odfchain.transfer.slice_files import DataObject
from odfchain.transfer.smart_channel import WebSocketChannel
from odfchain.transfer.smart_objects import object_file
from odfchain.transfer.smart_peer import SmartPeer, given_headers
from odfchain.trust.parties import SignedFile

_TOO_LARGE = (
    "a proxy before the node takes no files of that size: in nginx that is `client_max_body_size 0` "
    "(docs/nodes.md)"
)
_BLOCKS_PER_SECOND, _HASHED_PER_SECOND = 50, 8 << 20
"""What a node does at least [count/s, bytes/s]; it is given the time."""
_PING_SECONDS = 0.2
"""How often it is looked whether the node asks how far it is [s]; it does so every 10 s."""


_MESSAGE_BYTES = 16 << 20
"""The largest message that the reference node takes [bytes]."""
_BLOCK_BYTES = 64 << 20
"""The blocks of one push, which lie in memory several times on both sides [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipment:
    """What is to be at the node: the blocks above its head, oldest first, and the objects they name."""

    expected: Multihash | None
    new: Multihash
    blocks: Sequence[Multihash]
    read: Callable[[Multihash], bytes]
    objects: Sequence[DataObject]
    path: Callable[[DataObject], Path]
    """The file of an object, which was hashed."""
    force: bool = False
    visibility: Visibility = Visibility.PRIVATE


@dataclass(frozen=True, slots=True)
class _Cargo:
    """Blocks in one piece, and what they come to [bytes]."""

    batch: BlocksBatch
    block_bytes: int


class SmartDestination(SmartPeer, WritablePeer):
    """A dataset at a node that may be written to, as a whole and not file by file."""

    takes_files = False
    parallel = SHARING.parallel

    def send(self, shipment: Shipment, progress: Progress) -> None:
        """The node's head is the new one, and all that it refers to is there; or it is what it was.

        Long or large chains are pushed in several pieces, each of which is a chain in itself.

        Raises:
            AccessError, TransferError: it refuses, or fails.
        """
        expected = shipment.expected
        waiting = sorted(shipment.objects, key=lambda item: item.sequence_number)
        first = _first_number(shipment)
        start, most = 0, SMART.blocks
        while start < len(shipment.blocks):
            names = shipment.blocks[start : start + most]
            cargo = _loaded(shipment, names)
            if cargo is None:
                if len(names) == 1:
                    raise TransferError(f"{self.where}: block {names[0]} does not fit into a message")
                most = (len(names) + 1) // 2
                continue
            last = first + start + len(names) - 1
            start += len(names)
            part = [item for item in waiting if item.sequence_number <= last]
            waiting = waiting[len(part) :]
            if len(shipment.blocks) > len(names):
                progress.note(f"blocks up to {last:,} are pushed on their own")
            self._send(
                replace(shipment, expected=expected, new=names[-1], blocks=names, objects=part),
                cargo,
                progress,
            )
            expected = names[-1]

    def _send(self, shipment: Shipment, cargo: _Cargo, progress: Progress) -> None:
        for attempt in (1, 2):
            try:
                self._converse(shipment, cargo, progress)
            except RefusedError as refused:
                if _may_be_done(refused) and self._has(shipment):
                    return  # committed, and the node, or the store behind it, could not say so
                raise self._meant(refused, shipment) from None
            except TransferError as error:
                failure: TransferError | None = error
            else:
                failure = None
            head = self.head()
            if head == shipment.new:
                return  # whatever the connection said
            if head != shipment.expected:
                raise conflict(self.ref, shipment.expected, head)
            if failure is not None and (attempt == 2 or _is_final(failure)):
                raise failure
        raise TransferError(
            f"{self.where}: the node says that it is done, and its head is what it was",
            hint="ask those who run the node",
        )

    def _has(self, shipment: Shipment) -> bool:
        with contextlib.suppress(TransferError):  # then what the node said is all that is known
            return self.head() == shipment.new
        return False

    def _meant(self, refused: RefusedError, shipment: Shipment) -> Exception:
        match refused.reason:
            case InvalidHead():
                return conflict(self.ref, shipment.expected, self.head())
            case RefCollision(dataset_id=other):
                return NameCollisionError(
                    f"{self.where}: the dataset is there under another name: {one_line(other)}"
                )
            case NameCollision(dataset_alias=other):
                return NameCollisionError(f"{self.where}: another dataset has that name: {one_line(other)}")
        return refused

    def _converse(self, shipment: Shipment, cargo: _Cargo, progress: Progress) -> None:
        channel = self.connected("push")
        flow = PushFlow(channel, SHARING.request_seconds, _work_seconds(shipment))
        ended = ""
        try:
            flow.begin(
                PushRequest(
                    current_head=shipment.expected,
                    transfer_plan=_plan(cargo, shipment.objects),
                    force_update_if_diverged=shipment.force,
                    visibility_for_created_dataset=shipment.visibility,
                )
            )
            flow.send_blocks(cargo.batch)
            progress.advance(len(shipment.blocks))
            for page, more in _pages(shipment.objects):
                self._upload(flow, channel, shipment, page, more=more, progress=progress)
                flow.uploaded()
            flow.commit()
            ended = PUSHED
        finally:
            channel.close(NORMAL, ended)

    def _upload(
        self,
        flow: PushFlow,
        channel: WebSocketChannel,
        shipment: Shipment,
        page: Sequence[DataObject],
        *,
        more: bool,
        progress: Progress,
    ) -> None:
        asked = {file: item for item in page if (file := object_file(item.key, item.size)) is not None}
        wanted = []
        for strategy in flow.strategies(tuple(asked), more=more):
            item = asked.get(strategy.object_file)
            if item is None:
                raise CorruptedPeerError(f"{self.where}: the node asks for an object that was not named")
            if strategy.push_strategy is PushMethod.HTTP_UPLOAD:
                wanted.append((item, strategy))
        stop = threading.Event()

        def put(item: DataObject, strategy: PushStrategy) -> None:
            self._put(item.key, shipment.path(item), strategy, channel.address, stop)
            progress.advance(0)

        pool = ThreadPoolExecutor(max_workers=self.parallel, thread_name_prefix="odfchain-push")
        pending: set[Future[None]] = {pool.submit(put, *each) for each in wanted}
        try:
            done = 0
            while pending:
                ready, pending = wait(pending, _PING_SECONDS, FIRST_COMPLETED)
                for future in ready:
                    future.result()
                done += len(ready)
                flow.answer_pings(done, 0.0)
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def _put(
        self, key: ObjectKey, path: Path, strategy: PushStrategy, address: str, stop: threading.Event
    ) -> None:
        name = f"{self.where}{key}"
        given = strategy.upload_to
        if given is None:
            raise CorruptedPeerError(f"{name}: the node wants it and does not say where")
        headers = given_headers(given, name)
        with storage_errors(path):
            size = path.stat().st_size
        seconds = SHARING.request_seconds + size / SHARING.bytes_per_second
        deadline = Deadline(seconds, self._timing, name=name)

        def attempt() -> None:
            if stop.is_set():
                raise TransferError(f"{name}: stopped, because another object could not be sent")
            route = self.way_to(given.url, name, address)
            own = [*headers, ("Content-Type", "application/octet-stream")]
            with path.open("rb") as file:
                text = request_headers(route, (), own)
                with self._pool.exchange(
                    route, text, deadline=deadline, name=name, file=(file, size)
                ) as answer:
                    if answer.status == 507:
                        raise _FullError(
                            f"{name}: {answer.what}: the node has no space for it",
                            hint="ask those who run the node; what is there already is not sent again",
                        )
                    if passing := answer.passing():
                        raise passing
                    what = f"{name}: {answer.what}, for {size:,} bytes"
                    if answer.status in (401, 403):
                        hint = self.clock.refusal_hint(answer.headers.date("date"), self._timing.clock())
                        raise (AccessError if given.expires_at is None else _ExpiredError)(what, hint=hint)
                    if not 200 <= answer.status <= 299:
                        raise TransferError(what, hint=_TOO_LARGE if answer.status == 413 else None)

        with self._turns, as_transfer_errors():
            with_retries(attempt, name=name, limits=self._limits, timing=self._timing, deadline=deadline)

    # --- a node takes no single files ----------------------------------------------------------------

    def contains(self, key: ObjectKey) -> bool:  # noqa: ARG002 - as `WritablePeer`
        """Not known before the node is asked where objects go."""
        return False

    def put(self, key: ObjectKey, source: Path, progress: Progress) -> None:  # noqa: ARG002 - as above
        """Refused."""
        raise TransferError(f"{self.where}{key}: a node takes no single files")

    def swap_head(self, expected: Multihash | None, new: Multihash) -> None:  # noqa: ARG002 - as above
        """Refused."""
        raise TransferError(f"{self.where}: the head of a node moves with what is pushed")

    def put_hint(self, hashes: Sequence[Multihash]) -> None:
        """Nothing: nodes know their chains."""

    def put_names(self, branches: Sequence[str]) -> None:
        """Nothing: nodes have no branches."""

    def put_signed(self, file: SignedFile, data: bytes | None) -> None:
        """The signature of a head that was just pushed is offered once; most nodes have no place for it."""
        if file is not SignedFile.HEAD or data is None:
            return
        name = f"{self.where}{file.value}"
        deadline = Deadline(SHARING.request_seconds, self._timing, name=name)
        with contextlib.suppress(TransferError), as_transfer_errors(), TemporaryFile() as stream:
            stream.write(data)
            stream.flush()
            first = replace(self._base, path=self._base.path + file.value.encode("ascii"))
            route = self._pool.route(first, name)
            text = request_headers(route, self._given)
            sent = (stream, len(data))
            with self._pool.exchange(route, text, deadline=deadline, name=name, file=sent):
                pass


class _FullError(TransferError):
    """The node's disk is full: another attempt finds it so."""


class _ExpiredError(AccessError):
    """An address that was for some time only is refused: the node gives another one."""


def _is_final(error: TransferError) -> bool:
    """Whether a second conversation would end as the first."""
    if isinstance(error, _ExpiredError):
        return False
    return isinstance(error, (AccessError, CorruptedPeerError, _FullError))


def _may_be_done(refused: RefusedError) -> bool:
    """Whether what was refused may be there all the same, from this push or from one before it."""
    match refused.reason:
        case InvalidHead():
            return True
        case Internal(phase=Phase.COMPLETE_REQUEST):
            return True
    return False


def _work_seconds(shipment: Shipment) -> float:
    """How long a node may work for one answer [s]: its disk may be slow, and others push as well.

    A node that has gone is noticed before: the connection asks every 20 s whether it is there.
    """
    size = sum(item.size for item in shipment.objects)
    return SHARING.request_seconds + len(shipment.blocks) / _BLOCKS_PER_SECOND + size / _HASHED_PER_SECOND


def _first_number(shipment: Shipment) -> int:
    """The sequence number of the first block."""
    return decode_header(shipment.read(shipment.blocks[0])).sequence_number


def _loaded(shipment: Shipment, names: Sequence[Multihash]) -> _Cargo | None:
    """These blocks of a shipment in one piece; None where a node, or a message, has no room for them."""
    blocks, size = [], 0
    for name in names:
        blocks.append(RawBlock(name, shipment.read(name)))
        size += len(blocks[-1].data)
        if size > _BLOCK_BYTES:
            return None
    batch = packed(blocks)
    return _Cargo(batch, size) if fits_message(batch, _MESSAGE_BYTES) else None


def _plan(cargo: _Cargo, objects: Sequence[DataObject]) -> TransferPlan:
    offsets = [item.offsets for item in objects if item.offsets is not None]
    return TransferPlan(
        num_blocks=cargo.batch.num_blocks,
        num_objects=len(objects),
        num_records=sum(each.end - each.start + 1 for each in offsets),
        bytes_in_raw_blocks=cargo.block_bytes,
        bytes_in_raw_objects=sum(item.size for item in objects),
    )


def _pages(objects: Sequence[DataObject]) -> Iterator[tuple[list[DataObject], bool]]:
    """Lists of objects, at least one, and whether another follows."""
    rest = iter(objects)
    page = list(islice(rest, SMART.items))
    while True:
        following = list(islice(rest, SMART.items))
        yield page, bool(following)
        if not following:
            return
        page = following
