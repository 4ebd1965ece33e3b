"""Client flows of the smart protocol: its messages in a pull and in a push, and the valid answers.

Nothing here decides what is believed: blocks are hashed, judged by the append rules and published by the
callers. The same conversation may be held over a socket or, in tests, with a script.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NoReturn, Protocol, TypeVar

from odfchain.errors import CorruptedPeerError, OdfchainError, TransferError
from odfchain.limits import SMART
from odfchain.text import cut, one_line
from odfchain.transfer import smart_messages as msg

NORMAL, FAILED = 1000, 1011
"""Codes that connections are closed with."""

PULLED, PUSHED = "Client pull flow succeeded", "Client push flow succeeded"


_Answer = TypeVar("_Answer", bound=msg.Message)


class ClosedError(Exception):
    """The other side closed the connection, or it broke (code 1006)."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason or f"closed with code {code}")
        self.code = code
        self.reason = reason


class RefusedError(TransferError):
    """The node refuses with one of the protocol's reasons."""

    def __init__(self, where: str, refusal: msg.Refusal) -> None:
        reason = refusal.reason
        super().__init__(f"{where}: the node refuses: {one_line(repr(reason), 300)}")
        self.reason = reason


class Channel(Protocol):
    """One connection to a node. Messages are whole; nothing of them is looked at."""

    @property
    def where(self) -> str:
        """The other side's name in messages."""

    def send(self, text: str) -> None:
        """Send one message.

        Raises:
            ClosedError: it is not open any more.
        """

    def receive(self, seconds: float | None) -> str | None:
        """The next message; None when none came in time.

        Raises:
            ClosedError: it is not open any more, and all messages were received.
            CorruptedPeerError: what comes is no text, or larger than a message may be.
        """

    def close(self, code: int, reason: str) -> None:
        """Say that this was all; nothing is raised."""


@dataclass(slots=True)
class _Conversation:
    """Messages and their answers on one connection; each answer is waited for so long [s]."""

    channel: Channel
    reply_seconds: float

    def _ask(self, message: msg.Message, kind: type[_Answer], seconds: float | None = None) -> _Answer:
        self._send(message)
        seconds = seconds or self.reply_seconds
        if (text := self._received(seconds)) is None:
            raise TransferError(
                f"{self.channel.where}: no answer in {seconds:g} s",
                hint="run the command again: what has arrived is kept",
            )
        return self._understood(kind, text)

    def _send(self, message: msg.Message) -> None:
        try:
            self.channel.send(msg.text_of(message))
        # the node's reason for closing is the error, not the failed write
        except ClosedError as closed:
            self._refuse(closed)

    def _received(self, seconds: float) -> str | None:
        try:
            return self.channel.receive(seconds)
        except ClosedError as closed:
            self._refuse(closed)

    def _understood(self, kind: type[_Answer], text: str) -> _Answer:
        try:
            found: _Answer | msg.Refusal = msg.message_of(kind, text)
        except CorruptedPeerError as error:
            raise CorruptedPeerError(f"{self.channel.where}: {error.message}") from None
        if isinstance(found, msg.Refusal):
            raise RefusedError(self.channel.where, found)
        return found

    def _refuse(self, closed: ClosedError) -> NoReturn:
        # a refusal may come as the reason of the closed connection
        if (refusal := msg.refusal_of(closed.reason)) is not None:
            raise RefusedError(self.channel.where, refusal) from None
        said = one_line(closed.reason, 200) or "nothing"
        raise TransferError(
            f"{self.channel.where}: the node closed the connection (code {closed.code}) and said: {said}",
            hint="run the command again: what has arrived is kept",
        ) from None


class PullFlow(_Conversation):
    """A pull as the client holds it: a plan, the blocks, and where objects are, as often as needed."""

    def plan(self, request: msg.PullRequest) -> msg.TransferPlan:
        """The transfer's plan."""
        return self._ask(request, msg.PullPlan).transfer_plan

    def blocks(self) -> msg.BlocksBatch:
        """All of its blocks."""
        return self._ask(msg.Empty(), msg.PulledBlocks).blocks

    def strategies(self, files: Sequence[msg.ObjectFile]) -> tuple[msg.PullStrategy, ...]:
        """Download URLs of these objects; may be called again for others, or for expired URLs."""
        return self._ask(
            msg.PullObjects(object_files=tuple(files)), msg.PullStrategies
        ).object_transfer_strategies


@dataclass(slots=True)
class PushFlow(_Conversation):
    """A push as the client holds it: a plan, blocks, objects page by page, uploads, and the commit."""

    work_seconds: float | None = None
    """For answers that take work: judging blocks, hashing objects, the commit."""

    def begin(self, request: msg.PushRequest) -> None:
        """Announce the push."""
        self._ask(request, msg.Accepted)

    def send_blocks(self, batch: msg.BlocksBatch) -> None:
        """Send the blocks."""
        self._ask(msg.PushedBlocks(new_blocks=batch), msg.Accepted, self.work_seconds)

    def strategies(
        self, files: Sequence[msg.ObjectFile], *, more: bool = False
    ) -> tuple[msg.PushStrategy, ...]:
        """The upload strategy of these objects; with `more`, another list follows when they are uploaded."""
        asked = msg.PushObjects(object_files=tuple(files), is_truncated=more)
        return self._ask(asked, msg.PushStrategies, self.work_seconds).object_transfer_strategies

    def answer_pings(self, uploaded: int, seconds: float) -> None:
        """Wait so long at most for the node to ask for the progress, and report it."""
        if (text := self._received(seconds)) is not None:
            self._understood(msg.Empty, text)
            self._send(msg.UploadProgress(uploaded_objects_count=uploaded))

    def uploaded(self) -> None:
        """All objects of the last list are there; said of an empty list, too."""
        self._send(msg.UploadProgress())

    def commit(self) -> None:
        """Ask for the commit, and wait for what seems to be its confirmation."""
        # an `Empty` may also be a late ping: the caller reads the node's head afterwards
        self._ask(msg.Empty(), msg.Empty, self.work_seconds)


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

    @property
    def text(self) -> str | None:
        """The frame of the message."""
        return None if self.message is None else msg.text_of(self.message)


class FlowError(OdfchainError):
    """A flow that cannot go on, with the reason that the other side is given; never leaves the server."""

    def __init__(self, refusal: msg.Refusal) -> None:
        super().__init__(repr(refusal.reason))
        self.refusal = refusal


class Serving(ABC):
    """The node's side of a conversation."""

    side: ClassVar[str]
    phase: msg.Phase
    """The awaited message."""

    def answer(self, text: str) -> Turn:
        """The next turn after a message of the client's."""
        try:
            return self._answer(text)
        except FlowError as error:
            return failed(error.refusal)
        except OdfchainError as error:
            return failed(_internal(self.side, self.phase, error))

    @abstractmethod
    def _answer(self, text: str) -> Turn: ...


def failed(refusal: msg.Refusal) -> Turn:
    """The connection ends with the refusal as its reason, cut to what a close frame holds."""
    for most in range(_REASON_BYTES, 0, -1):
        text = msg.text_of(_shortened(refusal, most)).replace(_NO_HEAD, "")
        if len(text) <= _REASON_BYTES:
            return Turn(closing=Closing(FAILED, text))
    return Turn(closing=Closing(FAILED))


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


def _internal(side: str, phase: msg.Phase, error: OdfchainError) -> msg.Refusal:
    return msg.Refusal(
        msg.Internal(side=side, phase=phase, error_message=one_line(error.message, SMART.text_characters))
    )
