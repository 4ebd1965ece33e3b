"""When a request is made again, and when time is up. Clock and waiting are given from outside."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from odfchain.errors import FetchError
from odfchain.limits import FetchLimits

_T = TypeVar("_T")
DEADLINE_HINT = "the workspace's configuration can allow more time: fetch.deadlineSeconds"
SIZE_HINT = "the workspace's configuration can allow more: fetch.maxBytes"


class TransientError(Exception):
    """A failure that may pass; never leaves this package."""

    def __init__(self, reason: str, *, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait = wait
        """Seconds that the server asked for."""


class ProtocolError(TransientError):
    """What answers does not keep to the protocol, or says too much; a peer is not asked again."""

    def __init__(self, reason: str, *, name: str) -> None:
        super().__init__(reason)
        self.name = name
        """What was asked for."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A clock and a way to wait, both in seconds."""

    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


class Deadline:
    """The moment by which all must be done, retries included."""

    def __init__(self, seconds: float, timing: Timing, *, name: str) -> None:
        self._clock = timing.clock
        self._end = timing.clock() + seconds
        self._seconds = seconds
        self._name = name

    @property
    def remaining(self) -> float:
        """Seconds left; zero or less when time is up."""
        return self._end - self._clock()

    def check(self) -> None:
        """Nothing happens while there is time.

        Raises:
            FetchError: time is up.
        """
        if self.remaining <= 0:
            raise self.error()

    def error(self) -> FetchError:
        """What to say when time is up."""
        return FetchError(f"{self._name}: not complete after {self._seconds:g} s", hint=DEADLINE_HINT)


def with_retries(
    attempt: Callable[[], _T], *, name: str, limits: FetchLimits, timing: Timing, deadline: Deadline
) -> _T:
    """The result of the first attempt that succeeds; waits longer before each one, within the deadline.

    Raises:
        FetchError: the last attempt failed too, or the server wants a wait that ends after the deadline.
    """
    pause = limits.first_wait
    for tried in range(1, limits.retries + 2):
        try:
            return attempt()
        except TransientError as error:
            failure = error
        if tried > limits.retries:
            break
        wait = max(pause, failure.wait or 0.0)
        if wait >= deadline.remaining:
            late = "no time is left for another attempt"
            if failure.wait is not None:
                late = f"the server asks for a pause of {failure.wait:g} s, which is too long"
            raise FetchError(f"{name}: {failure.reason}; {late}", hint=DEADLINE_HINT)
        timing.wait(wait)
        pause *= 2
    attempts = limits.retries + 1
    raise FetchError(f"{name}: {failure.reason} ({attempts} attempt{'s' if attempts > 1 else ''})")
