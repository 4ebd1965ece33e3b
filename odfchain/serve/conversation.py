"""One WebSocket: uvicorn's, with bounds on what all of them together hold in memory.

Everybody who can connect may open one and say anything. So a message is bounded by what may come next
(`EXPECT`), by the length that its frame declares; what has come and is not dealt with is bounded for all
together, and so is what was sent and is not taken. Messages of blocks, which need a token, come two at a
time. Of uvicorn's insides it uses `conn`, `frames`, `queue`, `disconnected` and what it overrides.
Imported by `odfchain.serve.server` when a server starts. Source: RFC-050.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.server import ServerProtocol

from odfchain.limits import SHARING, SMART
from odfchain.serve.smart_pulls import EXPECT, Message
from odfchain.smart.client_flow import FAILED
from odfchain.smart.frames import FewFrames
from odfchain.smart.message_text import text_of
from odfchain.smart.smart_messages import TOO_MANY_BLOCKS, Internal, Phase, Refusal

_TRY_LATER = 1013
_FREE_BYTES = 16 << 10
"""What every connection may hold, whatever all hold [bytes]: most messages."""
_BUSY = text_of(Refusal(Internal(side="Pull", phase=Phase.METADATA_REQUEST, error_message=TOO_MANY_BLOCKS)))
"""Clients of ours go on with the simple protocol, which sends no more than is taken."""


class _Server(FewFrames, ServerProtocol):
    """What a server understands of a connection."""


@dataclass(slots=True)
class Memory:
    """What the conversations of one server hold; for its event loop alone."""

    members: set[Conversation] = field(default_factory=set)
    large: set[Conversation] = field(default_factory=set)
    """Those with a message of blocks."""
    waiting: list[Conversation] = field(default_factory=list)
    """Those with the beginning of one, which are not read from."""

    held: int = 0
    """What has come of all messages but those of blocks, and is not dealt with [bytes]."""

    def judge(self, new: Conversation) -> None:
        """End the conversations that hold the most until all that hold something may go on."""
        size = new.arriving
        if size > SMART.request_bytes < new.conn.max_message_size and new not in self.large:
            if len(self.large) < SMART.large_messages:
                self.large.add(new)
            elif new not in self.waiting:
                new.transport.pause_reading()
                self.waiting.append(new)
        self.count(new, size)
        while size > _FREE_BYTES and new.came and self.held > SMART.unfinished_bytes:
            max(self.members - self.large, key=lambda each: each.came).give_up()

    def count(self, one: Conversation, size: int) -> None:
        """Take note of what a conversation holds, of which so much is of a message that is not whole."""
        before, one.came = one.counted, size
        one.counted = 0 if one in self.large else size + one.queued + one.taken
        self.held += one.counted - before

    def has_room(self, size: int) -> bool:
        """Whether so much may be sent beside what others have not taken yet."""
        return size <= _FREE_BYTES or size + self._unread() <= SMART.unread_bytes

    def _unread(self) -> int:
        return sum(each.transport.get_write_buffer_size() for each in self.members)

    def done(self, conversation: Conversation) -> None:
        """A message has been dealt with, or will never be."""
        if conversation in self.waiting:
            self.waiting.remove(conversation)
        if conversation in self.large:
            self.large.remove(conversation)
            if self.waiting:
                following = self.waiting.pop(0)
                self.large.add(following)
                following.transport.resume_reading()


class Conversation(WebSocketsSansIOProtocol):
    """A WebSocket that takes small messages, unless the application expects a large one."""

    def __init__(self, *args: Any, memory: Memory, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: Any = _Server(max_size=SMART.request_bytes, logger=self.logger)
        self._memory = memory
        self._running = False
        self.came = self.counted = 0
        """What `Memory` has noted [bytes]."""
        self._stall_timer: asyncio.TimerHandle | None = None
        self.queued = 0
        """Of messages that the application has not asked for [bytes]."""
        self.taken = 0
        """Of the one that it deals with."""

    @property
    def arriving(self) -> int:
        """What has come of a message that is not whole [bytes]."""
        return len(self.conn.reader.buffer) + sum(map(len, self.frames))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection counts from now on."""
        super().connection_made(transport)
        self._memory.members.add(self)

    def data_received(self, data: bytes) -> None:
        """What has come is kept within the bounds of all."""
        super().data_received(data)
        if not self.handshake_initiated:  # uvicorn says nothing to a request that is none
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.transport.close()
        self._memory.judge(self)

    def send_receive_event_to_app(self) -> None:
        """A message is whole, and becomes a text, in which a character has up to four bytes."""
        size = sum(map(len, self.frames))
        if not all(each.isascii() for each in self.frames):
            self.queued += 3 * size
        self._memory.judge(self)
        if self.frames:
            self.queued += size
            super().send_receive_event_to_app()

    def give_up(self) -> None:
        """End the connection for what it holds."""
        self.conn.fail(_TRY_LATER, "too much is sent to this node now: try again later")
        self.handle_parser_exception()
        self._forget()

    def handle_parser_exception(self) -> None:
        """The connection ends for what has come; before it was accepted without a word."""
        if self.conn.close_sent is None:
            self.transport.abort()
            return
        super().handle_parser_exception()
        self.loop.call_later(SHARING.stall_seconds, self.transport.abort)

    def _forget(self) -> None:
        self.frames = []
        self.conn.reader.discard()
        self._memory.count(self, 0)

    async def run_asgi(self) -> None:
        """The application may say how large the next message is."""
        self._running = True
        extensions: Any = self.scope["extensions"]
        extensions[EXPECT] = self._expect
        await super().run_asgi()

    def _expect(self, most: int) -> None:
        self.conn.max_message_size = most

    async def receive(self) -> Any:
        """The next message; the one before it is dealt with."""
        self.taken = 0
        self._memory.done(self)
        self._memory.count(self, self.came)
        message = await super().receive()
        self.taken = sys.getsizeof(message.get("text") or message.get("bytes"))
        if self.queue.empty():
            self.queued = 0
        self._memory.count(self, self.arriving)
        return message

    async def send(self, message: Message) -> None:  # type: ignore[override] # of a narrower type in uvicorn
        """Send a message, unless too much is on its way to clients that do not take it."""
        if not self._memory.has_room(len(message.get("text") or "")):
            message = {"type": "websocket.close", "code": FAILED, "reason": _BUSY}
        await super().send(message)  # type: ignore[arg-type]

    # --- ends ----------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        """The client takes less than it asks for; it has some time."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(SHARING.piece_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """It has taken most of it."""
        super().resume_writing()
        self._not_stalled()

    def _not_stalled(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing comes any more; what the application has is still there."""
        super().connection_lost(exc)
        self._not_stalled()
        self._forget()
        self._leave()

    def on_task_complete(self, task: asyncio.Task[None]) -> None:
        """The application is done with this connection, which has some time to end."""
        super().on_task_complete(task)
        self._running, self.taken, self.queued = False, 0, 0
        self.loop.call_later(SHARING.stall_seconds, self.transport.abort)
        self._leave()

    def _leave(self) -> None:
        if self.disconnected and not self._running:
            self._memory.done(self)
            self._memory.count(self, 0)
            self._memory.members.discard(self)
