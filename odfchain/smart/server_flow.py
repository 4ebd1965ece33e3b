"""What a node answers in a pull and in a push: one state for each message that may come next.

A message in, a message out, or a fault that ends the connection. What is behind it, datasets and rules, is
asked through `PullSource` and `PushTarget`; time and sockets are the business of who holds the connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import ClassVar, Protocol

from odfchain.errors import CorruptedPeerError, OdfchainError
from odfchain.limits import SMART
from odfchain.smart.client_flow import FAILED, NORMAL
from odfchain.smart.message_text import message_of, text_of
from odfchain.smart.smart_messages import (
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
    PushedBlocks,
    PushObjects,
    PushRequest,
    PushStrategies,
    Refusal,
    UploadProgress,
)
from odfchain.text import cut, one_line

_REASON_BYTES = 123
"""A close frame has 125 bytes, two of them for the code (RFC 6455, 5.5.1)."""
_NO_HEAD = '"actual_head":null,'
"""What may be null may be left out, and is, where there is no room."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The connection ends."""

    code: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """What is sent, and whether the connection ends after it."""

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
        """What is coming; the head is read once, here."""

    def blocks(self) -> BlocksBatch:
        """The blocks of that plan."""

    def strategies(self, files: tuple[ObjectFile, ...]) -> PullStrategies:
        """Where objects are."""


class PushTarget(Protocol):
    """The dataset of a push. Errors end the flow; a `FlowError` says how."""

    def begin(self, request: PushRequest) -> Refusal | None:
        """Whether this may follow the head."""

    def take_blocks(self, batch: BlocksBatch) -> Refusal | None:
        """Judge the blocks by all rules and keep them where nobody sees them."""

    def take_objects(self, files: tuple[ObjectFile, ...]) -> PushStrategies:
        """What becomes of each object."""

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
        """What is waited for."""

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
    """What a push waits for."""

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
        """Whether the client uploads now, and is asked now and then how far it is: with an `Empty`."""
        return self._waits_for is _Push.UPLOADS

    @property
    def is_done(self) -> bool:
        """Whether all is committed: nothing but the end of the connection is to come."""
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
