"""What Spark reports when a task fails, as one line a person can use.

Our own stages fail with a marker in the message; it survives the way from a Python worker or an expression
through the JVM to the driver, and is turned into the right error here.
"""

from __future__ import annotations

import re
import traceback

from odfchain.errors import (
    AccessError,
    BadInputError,
    EngineError,
    ObjectCorruptedError,
    ObjectNotFoundError,
    OdfchainError,
    OversizedInputError,
    StorageFullError,
    StoreError,
    TransferError,
    was_interrupted,
)
from odfchain.slices.marker import find_marker
from odfchain.text import message_of, one_line

_LONGEST = 500
_CALL = re.compile(r"An error occurred while calling \S+$")
"""Py4J's first line, which names an object of Java's; the error itself comes after it."""
_LOST = re.compile(r"ExecutorLostFailure \(.*?\) Reason: (.+)")
_RAISED: dict[str, type[OdfchainError]] = {
    kind.__name__: kind
    for kind in (
        AccessError, BadInputError, ObjectCorruptedError, ObjectNotFoundError, OversizedInputError,
        StorageFullError, StoreError, TransferError,
    )
}  # fmt: skip
"""What workers raise that is no fault of Spark's (`odfchain.spark.executor_files.telling`)."""
_FULL = re.compile(r"No space left on device|Disk quota exceeded|File too large", re.IGNORECASE)


def first_line(error: Exception) -> str:
    """The line of a Spark error that says what happened."""
    text = message_of(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if match := re.search(r"\[([A-Z_.]+)\] (.*)", line):
            return match.group(2)
    if len(lines) > 1 and _CALL.match(lines[0]):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else type(error).__name__


def is_of_spark(error: BaseException) -> bool:
    """Whether PySpark or the connection to its JVM raised it."""
    return _is_theirs(type(error).__module__) or _has_ended(error)


def _is_theirs(module: str) -> bool:
    return module.partition(".")[0] in ("pyspark", "py4j")


def _has_ended(error: BaseException) -> bool:
    """Whether there is no JVM to talk to any more; Py4J lets some errors of its socket pass."""
    if type(error).__name__ == "Py4JNetworkError":
        return True
    frames = (frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__))
    return isinstance(error, ConnectionError) and any(map(_is_theirs, frames))


def explain(error: Exception, *, file: str | None = None) -> OdfchainError:
    """The project's error for a failed Spark job.

    Raises:
        KeyboardInterrupt: the failure only hides that the user interrupted.
    """
    if was_interrupted(error):
        raise KeyboardInterrupt from error
    if isinstance(error, OdfchainError):
        return error
    if _has_ended(error):
        return EngineError("the Java process that Spark runs in has ended", hint="run the command again")
    text = message_of(error)
    fault = find_marker(text)
    if fault is not None and fault["kind"] == "raised":
        kind = _RAISED.get(str(fault["name"]), EngineError)
        return kind(str(fault["message"]), hint=str(fault["hint"]) or None)
    if fault is not None:
        return BadInputError(str(fault.get("message", fault["kind"])), file=file)
    if _FULL.search(text):
        return StorageFullError(
            "no space left on the device while writing", hint="free some space and run the command again"
        )
    if lost := _LOST.search(text):
        return EngineError(
            f"an executor of Spark's was lost: {one_line(lost[1], _LONGEST)}",
            hint="run the command again; where memory was short, with more: spark.executor.memory",
        )
    return EngineError(f"Spark failed: {one_line(first_line(error), _LONGEST)}")
