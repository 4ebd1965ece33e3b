"""What a client says in a pull and in a push, and which answers it understands.

Nothing here decides what is believed: blocks are hashed, judged by the append rules and published by those
who ask for them. The same conversation may be held over a socket or, in tests, with a script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol, TypeVar

from odfchain.errors import CorruptedPeerError, TransferError
from odfchain.smart.message_text import message_of, refusal_of, text_of
from odfchain.smart.smart_messages import (
    Accepted,
    BlocksBatch,
    Empty,
    Message,
    ObjectFile,
    PulledBlocks,
    PullObjects,
    PullPlan,
    PullRequest,
    PullStrategies,
    PullStrategy,
    PushedBlocks,
    PushObjects,
    PushRequest,
    PushStrategies,
    PushStrategy,
    Refusal,
    TransferPlan,
    UploadProgress,
)
from odfchain.text import one_line

NORMAL, FAILED = 1000, 1011
"""Codes that connections are closed with."""

PULLED, PUSHED = "Client pull flow succeeded", "Client push flow succeeded"


_Answer = TypeVar("_Answer", bound=Message)


class ClosedError(Exception):
    """The other side closed the connection, or it broke (code 1006)."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason or f"closed with code {code}")
        self.code = code
        self.reason = reason


class RefusedError(TransferError):
    """The node refuses with one of the protocol's reasons."""

    def __init__(self, where: str, refusal: Refusal) -> None:
        reason = refusal.reason
        super().__init__(f"{where}: the node refuses: {one_line(repr(reason), 300)}")
        self.reason = reason


class Channel(Protocol):
    """One connection to a node. Messages are whole; nothing of them is looked at."""

    @property
    def where(self) -> str:
        """What messages call the other side."""

    def send(self, text: str) -> None:
        """Send one message.

        Raises:
            ClosedError: it is not open any more.
        """

    def receive(self, seconds: float | None) -> str | None:
        """The next message; None when none came in time.

        Raises:
            ClosedError: it is not open any more, and all that came was received.
            CorruptedPeerError: what comes is no text, or larger than a message may be.
        """

    def close(self, code: int, reason: str) -> None:
        """Say that this was all; nothing is raised."""


@dataclass(slots=True)
class _Conversation:
    """Messages and their answers on one connection; each answer is waited for so long [s]."""

    channel: Channel
    reply_seconds: float

    def ask(self, message: Message, kind: type[_Answer], seconds: float | None = None) -> _Answer:
        """The answer of a kind to a message, which may take so long [s]."""
        self.send(message)
        return self.await_(kind, seconds or self.reply_seconds)

    def send(self, message: Message) -> None:
        """Send a message; a connection that was closed meanwhile says why."""
        try:
            self.channel.send(text_of(message))
        except ClosedError as closed:
            self.closed(closed)

    def await_(self, kind: type[_Answer], seconds: float) -> _Answer:
        """The next message, which is of a kind and comes in time [s]."""
        try:
            text = self.channel.receive(seconds)
        except ClosedError as closed:
            self.closed(closed)
        if text is None:
            raise TransferError(
                f"{self.channel.where}: no answer in {seconds:g} s",
                hint="run the command again: what has arrived is kept",
            )
        return self.understood(kind, text)

    def understood(self, kind: type[_Answer], text: str) -> _Answer:
        try:
            found: _Answer | Refusal = message_of(kind, text)
        except CorruptedPeerError as error:
            raise CorruptedPeerError(f"{self.channel.where}: {error.message}") from None
        if isinstance(found, Refusal):
            raise RefusedError(self.channel.where, found)
        return found

    def closed(self, closed: ClosedError) -> NoReturn:
        """Raise what a closed connection means: its reason may be a refusal, as if it were the answer."""
        if (refusal := refusal_of(closed.reason)) is not None:
            raise RefusedError(self.channel.where, refusal) from None
        said = one_line(closed.reason, 200) or "nothing"
        raise TransferError(
            f"{self.channel.where}: the node closed the connection (code {closed.code}) and said: {said}",
            hint="run the command again: what has arrived is kept",
        ) from None


class PullFlow:
    """A pull as the client holds it: a plan, the blocks, and where objects are, as often as needed."""

    def __init__(self, channel: Channel, reply_seconds: float) -> None:
        self._talk = _Conversation(channel, reply_seconds)

    def plan(self, request: PullRequest) -> TransferPlan:
        """What is coming."""
        return self._talk.ask(request, PullPlan).transfer_plan

    def blocks(self) -> BlocksBatch:
        """All of its blocks."""
        return self._talk.ask(Empty(), PulledBlocks).blocks

    def strategies(self, files: Sequence[ObjectFile]) -> tuple[PullStrategy, ...]:
        """Where these objects are; may be asked again for others, or for URLs that have expired."""
        asked = PullObjects(object_files=tuple(files))
        return self._talk.ask(asked, PullStrategies).object_transfer_strategies

    def end(self) -> None:
        """All has come."""
        self._talk.channel.close(NORMAL, PULLED)


class PushFlow:
    """A push as the client holds it: a plan, blocks, objects page by page, uploads, and the commit."""

    def __init__(self, channel: Channel, reply_seconds: float, work_seconds: float | None = None) -> None:
        """`work_seconds` is for answers that take work: judging blocks, hashing objects, the commit."""
        self._talk = _Conversation(channel, reply_seconds)
        self._work_seconds = work_seconds or reply_seconds

    def begin(self, request: PushRequest) -> None:
        """Say what is coming."""
        self._talk.ask(request, Accepted)

    def send_blocks(self, batch: BlocksBatch) -> None:
        """Send the blocks."""
        self._talk.ask(PushedBlocks(new_blocks=batch), Accepted, self._work_seconds)

    def strategies(self, files: Sequence[ObjectFile], *, more: bool = False) -> tuple[PushStrategy, ...]:
        """What becomes of these objects; with `more`, another list follows when they are uploaded."""
        asked = PushObjects(object_files=tuple(files), is_truncated=more)
        return self._talk.ask(asked, PushStrategies, self._work_seconds).object_transfer_strategies

    def answer_pings(self, uploaded: int, seconds: float) -> None:
        """Wait so long at most for the node to ask how far it is, and say so."""
        try:
            text = self._talk.channel.receive(seconds)
        except ClosedError as closed:
            self._talk.closed(closed)
        if text is not None:
            self._talk.understood(Empty, text)
            self._talk.send(UploadProgress(uploaded_objects_count=uploaded))

    def uploaded(self) -> None:
        """All objects of the last list are there; said of an empty list, too."""
        self._talk.send(UploadProgress())

    def commit(self) -> None:
        """Ask for the commit, and wait for what seems to be its confirmation.

        An empty message may be a late ping as well: what the node's head is afterwards tells.
        """
        self._talk.ask(Empty(), Empty, self._work_seconds)

    def end(self) -> None:
        """All is done."""
        self._talk.channel.close(NORMAL, PUSHED)
