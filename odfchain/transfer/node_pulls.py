"""Pulls over the smart transfer protocol: `/{alias}/pull`, a WebSocket in the same application.

What is handed out is what the simple protocol hands out, blocks in one piece; the objects are where that
protocol has them. Source: RFC-050.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from odfchain.chain.chain import MetadataChain
from odfchain.errors import ChainError, ObjectNotFoundError, OdfchainError
from odfchain.limits import SMART
from odfchain.odf.block_codec import decode_block
from odfchain.odf.identity import Multihash
from odfchain.storage.locations import HOST_AND_PORT
from odfchain.storage.store import RawBlock
from odfchain.text import cut, one_line
from odfchain.transfer import smart_messages as msg
from odfchain.transfer.access_tokens import Reader
from odfchain.transfer.block_batch import packed, plan_of
from odfchain.transfer.slice_files import BRING_OBJECTS, DataObject, objects_of
from odfchain.workspace.dataset_files import DatasetFiles

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

# The node's side of a pull and of a push: a state machine with one state for each expected message.
# Message in, message out, or an error that ends the connection. Timeouts and sockets belong to the
# connection's owner.

# A close frame has 125 bytes, two of them for the code (RFC 6455, 5.5.1).
_REASON_BYTES = 123
# Optional members are left out where a message has no room.
_NO_HEAD = '"actual_head":null,'


@dataclass(frozen=True, slots=True)
class Closing:
    """The connection ends."""

    code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message to send, and the end of the connection, if it ends."""

    message: msg.Message | None = None
    closing: Closing | None = None


class FlowError(OdfchainError):
    """A flow that cannot go on, with the reason that the other side is given; never leaves the server."""

    def __init__(self, refusal: msg.Refusal) -> None:
        super().__init__(repr(refusal.reason))
        self.refusal = refusal


class Serving(ABC):
    """The node's side of a conversation."""

    side: ClassVar[str]
    phase = msg.Phase.INITIAL_REQUEST
    """The awaited message."""

    def answer(self, text: str) -> Turn:
        """The next turn after a message of the client's."""
        try:
            return self._answer(text)
        except FlowError as error:
            return failed(error.refusal)
        except OdfchainError as error:
            return failed(self.refusal(one_line(error.message, SMART.text_characters)))

    def refusal(self, message: str) -> msg.Refusal:
        """A refusal that has no name of its own."""
        return msg.Refusal(msg.Internal(side=self.side, phase=self.phase, error_message=message))

    @abstractmethod
    def _answer(self, text: str) -> Turn: ...


def failed(refusal: msg.Refusal) -> Turn:
    """The connection ends with the refusal as its reason, cut to what a close frame holds."""
    for most in range(_REASON_BYTES, 0, -1):
        text = msg.text_of(_shortened(refusal, most)).replace(_NO_HEAD, "")
        if len(text) <= _REASON_BYTES:
            return Turn(closing=Closing(msg.FAILED, text))
    return Turn(closing=Closing(msg.FAILED))


def _shortened(refusal: msg.Refusal, most: int) -> msg.Refusal:
    match refusal.reason:
        case msg.Internal() as reason:
            return msg.Refusal(replace(reason, error_message=cut(reason.error_message, most)))
        case msg.NameCollision(dataset_alias=alias):
            return msg.Refusal(msg.NameCollision(dataset_alias=cut(alias, most)))
        case msg.InvalidHead(expected_head=head):
            # two hashes do not fit, and the client knows its own
            return msg.Refusal(msg.InvalidHead(actual_head=None, expected_head=head))
    return refusal


_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*", re.ASCII)
# The blocks of one batch, which lies in memory several times [bytes]; longer chains are walked.
_BLOCK_BYTES = 64 << 20
# Idle timeout [s]; clients that download answer pings meanwhile.
SILENT_SECONDS = 60.0
REVOKED = Closing(msg.FAILED, "The token was revoked.")
TOO_SILENT = Closing(msg.FAILED, "Nothing was said for too long.")

EXPECT = "odfchain.expect"
"""The extension of a WebSocket that says how large the next message may be [bytes]."""


@dataclass
class PullServing(Serving):
    """The node's side of a pull; the dataset's chain is read under a lock that others wait for."""

    side = "Pull"
    dataset: DatasetFiles
    lock: threading.Lock
    base: str
    """The URL of the dataset."""
    authorization: str | None
    """The caller's header `Authorization`; his requests for objects need the same."""
    # The head of the plan, and where it begins. Its blocks are read again: the client may never ask for them.
    _planned: tuple[Multihash, Multihash | None] | None = field(default=None, init=False)

    def _answer(self, text: str) -> Turn:
        match self.phase:
            case msg.Phase.INITIAL_REQUEST:
                plan = self.plan(msg.message_of(msg.PullRequest, text))
                if isinstance(plan, msg.PullPlan):
                    self.phase = msg.Phase.METADATA_REQUEST
                return Turn(plan)
            case msg.Phase.METADATA_REQUEST:
                msg.message_of(msg.Empty, text)
                batch = self.blocks()
                self.phase = msg.Phase.OBJECTS_REQUEST
                return Turn(msg.PulledBlocks(blocks=batch))
            case _:
                asked: msg.PullObjects = msg.message_of(msg.PullObjects, text)
                return Turn(self.strategies(asked.object_files))

    def plan(self, request: msg.PullRequest) -> msg.PullPlan | msg.Refusal:
        """The transfer's plan; the head is read once, here."""
        with self.lock:
            chain = self.dataset.chain
            head = request.stop_at or chain.head()
            if head is None:
                return self.refusal("The dataset is empty.")
            tail = request.begin_after
            try:
                return self._plan(chain, head, tail, forced=request.force_update_if_diverged)
            except (ChainError, ObjectNotFoundError):
                if tail is None:
                    raise
                return msg.Refusal(msg.InvalidInterval(head=head, tail=tail))

    def _plan(
        self, chain: MetadataChain, head: Multihash, tail: Multihash | None, *, forced: bool
    ) -> msg.PullPlan | msg.Refusal:
        blocks = block_bytes = 0
        objects = list[DataObject]()
        if tail is not None and forced and not chain.contains(tail):
            tail = None
        for _, header, data in chain.walk_files(head, tail=tail):
            blocks += 1
            block_bytes += len(data)
            if blocks > SMART.blocks or block_bytes > _BLOCK_BYTES:
                return self.refusal(msg.TOO_MANY_BLOCKS)
            if header.event_kind in BRING_OBJECTS:
                objects += objects_of(decode_block(data))
        self._planned = head, tail
        return msg.PullPlan(transfer_plan=plan_of(blocks, block_bytes, objects))

    def blocks(self) -> msg.BlocksBatch:
        """The blocks of that plan."""
        with self.lock:
            assert self._planned is not None  # noqa: S101 - a plan comes first
            head, tail = self._planned
            files = [RawBlock(name, data) for name, _, data in self.dataset.chain.walk_files(head, tail=tail)]
            batch = packed(files.pop() for _ in range(len(files)))  # oldest first, and let go
        if not msg.fits_message(batch, SMART.message_bytes):
            raise FlowError(self.refusal(msg.TOO_MANY_BLOCKS))
        return batch

    def strategies(self, files: tuple[msg.ObjectFile, ...]) -> msg.PullStrategies:
        """Download URLs of objects."""
        return msg.PullStrategies(
            object_transfer_strategies=tuple(
                msg.PullStrategy(
                    object_file=file,
                    pull_strategy=msg.PullMethod.HTTP_DOWNLOAD,
                    download_from=msg.address_here(self.base, msg.key_of(file), self.authorization),
                )
                for file in files
            )
        )


def fields_of(scope: Message) -> dict[str, str]:
    """The header fields of a request, by their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def base_of(scope: Message, fields: Mapping[str, str], last: str, *, behind_proxy: bool) -> str | None:
    """The URL of the dataset whose path goes on with `last`, as the client sees it; None if unknown."""
    host, prefix = fields.get("host", ""), ""
    scheme = "https" if scope["scheme"] == "wss" else "http"
    # a client could send these headers itself: believed only behind a proxy
    if behind_proxy:
        scheme = "https" if fields.get("x-forwarded-proto", scheme).lower() == "https" else "http"
        host = fields.get("x-forwarded-host", host)
        prefix = fields.get("x-forwarded-prefix", "").rstrip("/")
    if not HOST_AND_PORT.fullmatch(host) or not _PREFIX.fullmatch(prefix):
        return None
    path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").removesuffix(last)
    return f"{scheme}://{host}{prefix}{path}"


async def answer_pull(serving: PullServing, reader: Reader, receive: Receive, send: Send) -> None:
    """Hold the conversation of one pull over a WebSocket that has not been accepted yet."""
    await send({"type": "websocket.accept"})
    while isinstance(closing := await heard(receive, SILENT_SECONDS), str):
        if not reader.is_current():
            closing = REVOKED
            break
        turn = await asyncio.to_thread(serving.answer, closing)
        await say(send, turn.message)
        if turn.closing is not None:
            closing = turn.closing
            break
    await end(send, closing)


async def heard(receive: Receive, seconds: float) -> str | Closing | None:
    """The client's next message; why the connection ends instead; None if the client has ended it."""
    try:
        async with asyncio.timeout(seconds):
            while (message := await receive())["type"] != "websocket.disconnect":
                if message["type"] == "websocket.receive":
                    text: str | None = message.get("text")
                    # the smart protocol has no binary messages
                    return Closing(msg.FAILED, "Messages are text.") if text is None else text
    except TimeoutError:
        return TOO_SILENT
    return None


async def say(send: Send, message: msg.Message | None) -> None:
    """Send a message, if there is one; its text, which may be large, is made in a thread."""
    if message is not None:
        text = await asyncio.to_thread(msg.text_of, message)
        await send({"type": "websocket.send", "text": text})


async def end(send: Send, closing: Closing | None) -> None:
    """End the connection, unless the client has done so."""
    if closing is not None:
        await send({"type": "websocket.close", "code": closing.code, "reason": closing.reason})


async def refuse_upgrade(send: Send, status: int, message: str) -> None:
    """Answer with a status in place of a connection."""
    body = json.dumps({"message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})
