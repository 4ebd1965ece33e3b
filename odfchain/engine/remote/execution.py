"""One request that a server executes: what it tells the engine, what it answers, what becomes of the files.

What the engine writes has names of its own, beside those that the request asks for. It gets those when the
run is over, went well and is still wanted; else it is removed.
"""

from __future__ import annotations

import queue
import threading
import traceback
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.engine.remote.protocol import EXECUTE_RAW_QUERY, REFUSED, Call
from odfchain.errors import EngineError, OdfchainError, QueryError, RefusedQueryError
from odfchain.store import fsio

if TYPE_CHECKING:
    from odfchain.engine.interface import TransformEngine
    from odfchain.model.engine_messages import RawQueryRequest, TransformRequest

_TEXT_CHARACTERS = 1 << 16


@dataclass(slots=True)
class RunningRequest:
    """One request being executed; also what the engine reports its progress to."""

    call: Call
    staged: StagedRequest
    answers: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)
    """The terminal message, or None when nobody waits for it any more."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _given_up: bool = False
    _settled: bool = False

    def give_up(self) -> bool:
        """Nobody waits any more; returns whether there was something left to cancel."""
        with self._lock:
            if not self._settled:
                self._given_up = True
            self.answers.put(None)
            return self._given_up

    def _settle(self) -> None:
        """From here on it is too late to cancel."""
        with self._lock:
            self._check()
            self._settled = True

    def _check(self) -> None:
        if self._given_up:
            raise EngineError("the call was cancelled")

    def answer(self, engine: TransformEngine) -> bytes:
        """The terminal message; never raises."""
        try:
            self._check()
            success = self._run(engine)
            message = self.call.pack_response("Success", **success)
            self.staged.sync()
            self._settle()
            self.staged.publish()
        except QueryError as error:
            self._too_late()
            refused = REFUSED if isinstance(error, RefusedQueryError) else ""
            return self.call.pack_response("InvalidQuery", message=_text(refused + _with_hint(error)))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller is told
            self._too_late()
            return internal_error(self.call, error)
        finally:
            self.staged.discard()
        return message

    def _too_late(self) -> None:
        with self._lock:
            self._settled = True

    def _run(self, engine: TransformEngine) -> dict[str, Any]:
        request: Any = self.staged.request
        if self.call is EXECUTE_RAW_QUERY:
            return {"num_records": engine.query(request, progress=self)}
        done = engine.execute(request, schema=None, progress=self)
        return {"new_offset_interval": done.offset_interval, "new_watermark": done.watermark}

    def phase(self, name: str, total: int | None = None) -> None:  # noqa: ARG002
        """Not passed on: the protocol's `Progress` is empty."""
        self._check()

    def advance(self, steps: int = 1) -> None:  # noqa: ARG002
        """As `phase`."""
        self._check()

    def note(self, text: str) -> None:  # noqa: ARG002
        """As `phase`."""
        self._check()


# --- what the engine writes ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StagedRequest:
    """A request whose outputs have names of their own, beside those that they are to get."""

    request: TransformRequest | RawQueryRequest
    outputs: tuple[tuple[Path, Path], ...]
    """(where the engine writes, the name that was asked for), in the order of publication."""

    def sync(self) -> None:
        """Make what was written durable: the slow part of publication, while it can still be cancelled."""
        for written, _ in self.outputs:
            if written.exists():
                fsio.sync_file(written)

    def publish(self) -> None:
        """Give the files the names that were asked for: all of them or none."""
        try:
            for written, wanted in self.outputs:
                _move(written, wanted)
        except BaseException:
            for _, wanted in self.outputs:
                fsio.remove_quietly(wanted)
            raise

    def discard(self) -> None:
        """Remove what has not been published."""
        for written, _ in self.outputs:
            fsio.remove_quietly(written)


def _move(written: Path, wanted: Path) -> None:
    fsio.remove_quietly(wanted)  # of an earlier try
    if written.exists() and not fsio.adopt_file(written, wanted):
        raise EngineError(f"{wanted} is there already and cannot be replaced")


_OUTPUTS = ("new_checkpoint_path", "new_data_path", "output_data_path")


def staged(request: Any) -> StagedRequest:
    """A request as the engine gets it; the paths of its outputs are made here, and checked.

    Raises:
        EngineError: a path cannot be that of a file that both sides see.
    """
    changes, outputs = {}, []
    for name in _OUTPUTS:
        path = getattr(request, name, None)
        if path is None:
            continue
        if not Path(path).is_absolute() or "\0" in path:
            raise EngineError(f"{name} is {path!r}: the paths in a request must be absolute")
        written = f"{path}.{uuid.uuid4().hex}"
        changes[name] = written
        outputs.append((Path(written), Path(path)))
    return StagedRequest(replace(request, **changes), tuple(outputs))


# --- messages ------------------------------------------------------------------------------------


def internal_error(call: Call, error: BaseException) -> bytes:
    """The terminal message for anything that is not the query's fault."""
    if isinstance(error, OdfchainError):
        message = _with_hint(error)
    else:
        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    trace = "".join(traceback.format_exception(error))
    return call.pack_response(
        "InternalError", message=_text(message), backtrace=_text(trace[-_TEXT_CHARACTERS:])
    )


def _with_hint(error: OdfchainError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


def _text(text: str) -> str:
    """What of a text can be sent: no more than fits, in UTF-8."""
    return text[:_TEXT_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
