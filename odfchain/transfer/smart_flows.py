"""Client flows of the smart protocol: its messages in a pull and in a push, and the valid answers.

Nothing here decides what is believed: blocks are hashed, judged by the append rules and published by those
who ask for them. The same conversation may be held over a socket or, in tests, with a script.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import ClassVar, NoReturn, Protocol, TypeVar

from odfchain.errors import CorruptedPeerError, OdfchainError, TransferError
from odfchain.limits import SMART
from odfchain.text import cut, one_line
from odfchain.transfer.message_text import message_of, refusal_of, text_of
from odfchain.transfer.smart_messages import (
    Accepted,
    BlocksBatch,
    Empty,
    Internal,
    InvalidHead,
    Message,
    NameCollision,
    ObjectFile,
    Phase,
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
        """The other side's name in messages."""

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
        self.send(message)
        return self.await_(kind, seconds or self.reply_seconds)

    def send(self, message: Message) -> None:
        try:
            self.channel.send(text_of(message))
        # the node's reason for closing is the error, not the failed write
        except ClosedError as closed:
            self.closed(closed)

    def await_(self, kind: type[_Answer], seconds: float) -> _Answer:
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
        # a refusal may come as the reason of the closed connection
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
        """The transfer's plan."""
        return self._talk.ask(request, PullPlan).transfer_plan

    def blocks(self) -> BlocksBatch:
        """All of its blocks."""
        return self._talk.ask(Empty(), PulledBlocks).blocks

    def strategies(self, files: Sequence[ObjectFile]) -> tuple[PullStrategy, ...]:
        """Download URLs of these objects; may be called again for others, or for expired URLs."""
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
        """The upload strategy of these objects; with `more`, another list follows when they are uploaded."""
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
        """Ask for the commit, and wait for what seems to be its confirmation."""
        # an `Empty` may also be a late ping: the caller reads the node's head afterwards
        self._talk.ask(Empty(), Empty, self._work_seconds)

    def end(self) -> None:
        """All is done."""
        self._talk.channel.close(NORMAL, PUSHED)


# The node's side of a pull and of a push: a state machine with one state for each expected message.
# Message in, message out, or an error that ends the connection. Datasets and rules are behind `PullSource`
# and `PushTarget`; timeouts and sockets belong to the connection's owner.

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

    message: Message | None = None
    closing: Closing | None = None

    @property
    def text(self) -> str | None:
        """The frame of the message."""
        return None if self.message is None else text_of(self.message)


class FlowError(OdfchainError):
    """A flow that cannot go on, with the reason that the other side is given; never leaves the server."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(repr(refusal.reason))
        self.refusal = refusal


class PullSource(Protocol):
    """The dataset of a pull. Errors end the flow; a `FlowError` says how."""

    def plan(self, request: PullRequest) -> PullPlan | Refusal:
        """The transfer's plan; the head is read once, here."""

    def blocks(self) -> BlocksBatch:
        """The blocks of that plan."""

    def strategies(self, files: tuple[ObjectFile, ...]) -> PullStrategies:
        """Download URLs of objects."""


class PushTarget(Protocol):
    """The dataset of a push. Errors end the flow; a `FlowError` says how."""

    def begin(self, request: PushRequest) -> Refusal | None:
        """Check that the push may follow the head."""

    def take_blocks(self, batch: BlocksBatch) -> Refusal | None:
        """Validate the blocks and keep them in private."""

    def take_objects(self, files: tuple[ObjectFile, ...]) -> PushStrategies:
        """The upload strategy of each object."""

    def commit(self) -> None:
        """Publish blocks whose objects are all there, by one swap of the head."""


class Serving(ABC):
    """The node's side of a conversation."""

    side: ClassVar[str]

    def answer(self, text: str) -> Turn:
        """The next turn after a message of the client's."""
        try:
            return self._answer(text)
        except FlowError as error:
            return failed(error.refusal)
        except OdfchainError as error:
            return failed(_internal(self.side, self.phase, error))

    @property
    @abstractmethod
    def phase(self) -> Phase:
        """The awaited message."""

    @abstractmethod
    def _answer(self, text: str) -> Turn: ...


class PullServing(Serving):
    """The node's side of a pull."""

    side = "Pull"

    def __init__(self, source: PullSource) -> None:
        self._source = source
        self._phase = Phase.INITIAL_REQUEST

    @property
    def phase(self) -> Phase:
        """As `Serving`."""
        return self._phase

    def _answer(self, text: str) -> Turn:
        match self._phase:
            case Phase.INITIAL_REQUEST:
                plan = self._source.plan(message_of(PullRequest, text))
                if isinstance(plan, PullPlan):
                    self._phase = Phase.METADATA_REQUEST
                return Turn(plan)
            case Phase.METADATA_REQUEST:
                message_of(Empty, text)
                batch = self._source.blocks()
                self._phase = Phase.OBJECTS_REQUEST
                return Turn(PulledBlocks(blocks=batch))
            case _:
                asked: PullObjects = message_of(PullObjects, text)
                return Turn(self._source.strategies(asked.object_files))


class _Push(Enum):
    """The state of a push."""

    BEGIN = auto()
    BLOCKS = auto()
    OBJECTS = auto()
    UPLOADS = auto()
    COMMIT = auto()
    END = auto()


_PUSH_PHASES = {
    _Push.BEGIN: Phase.INITIAL_REQUEST,
    _Push.BLOCKS: Phase.METADATA_REQUEST,
    _Push.OBJECTS: Phase.OBJECTS_REQUEST,
    _Push.UPLOADS: Phase.OBJECTS_UPLOAD_PROGRESS,
    _Push.COMMIT: Phase.COMPLETE_REQUEST,
    _Push.END: Phase.COMPLETE_REQUEST,
}


class PushServing(Serving):
    """The node's side of a push."""

    side = "Push"

    def __init__(self, target: PushTarget) -> None:
        self._target = target
        self._waits_for = _Push.BEGIN
        self._truncated = False

    @property
    def asks_for_progress(self) -> bool:
        """True while the client uploads: it gets an `Empty` now and then to report its progress."""
        return self._waits_for is _Push.UPLOADS

    @property
    def is_done(self) -> bool:
        """True if all is committed: only the end of the connection follows."""
        return self._waits_for is _Push.END

    @property
    def phase(self) -> Phase:
        """As `Serving`."""
        return _PUSH_PHASES[self._waits_for]

    def _answer(self, text: str) -> Turn:
        match self._waits_for:
            case _Push.BEGIN:
                return self._accepted(self._target.begin(message_of(PushRequest, text)), _Push.BLOCKS)
            case _Push.BLOCKS:
                pushed: PushedBlocks = message_of(PushedBlocks, text)
                return self._accepted(self._target.take_blocks(pushed.new_blocks), _Push.OBJECTS)
            case _Push.OBJECTS:
                named: PushObjects = message_of(PushObjects, text)
                if named.is_truncated and not named.object_files:
                    raise CorruptedPeerError("no object is named, and more are to come")
                strategies = self._target.take_objects(named.object_files)
                self._truncated, self._waits_for = named.is_truncated, _Push.UPLOADS
                return Turn(strategies)
            case _Push.UPLOADS:
                progress: UploadProgress = message_of(UploadProgress, text)
                if progress.uploaded_objects_count is None:
                    self._waits_for = _Push.OBJECTS if self._truncated else _Push.COMMIT
                return Turn()
            case _Push.COMMIT:
                message_of(Empty, text)
                self._target.commit()
                self._waits_for = _Push.END
                return Turn(Empty())
            case _Push.END:
                return Turn(closing=Closing(NORMAL))

    def _accepted(self, refusal: Refusal | None, then: _Push) -> Turn:
        if refusal is not None:
            return Turn(refusal)
        self._waits_for = then
        return Turn(Accepted())


def failed(refusal: Refusal) -> Turn:
    """The connection ends with the refusal as its reason, cut to what a close frame holds."""
    for most in range(_REASON_BYTES, 0, -1):
        text = text_of(_shortened(refusal, most)).replace(_NO_HEAD, "")
        if len(text) <= _REASON_BYTES:
            return Turn(closing=Closing(FAILED, text))
    return Turn(closing=Closing(FAILED))


def _shortened(refusal: Refusal, most: int) -> Refusal:
    match refusal.reason:
        case Internal() as reason:
            return Refusal(replace(reason, error_message=cut(reason.error_message, most)))
        case NameCollision(dataset_alias=alias):
            return Refusal(NameCollision(dataset_alias=cut(alias, most)))
        case InvalidHead(expected_head=head):
            # two hashes do not fit, and the client knows its own
            return Refusal(InvalidHead(actual_head=None, expected_head=head))
    return refusal


def _internal(side: str, phase: Phase, error: OdfchainError) -> Refusal:
    return Refusal(
        Internal(side=side, phase=phase, error_message=one_line(error.message, SMART.text_characters))
    )
