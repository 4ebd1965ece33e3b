"""HTTP headers: dates, entity tags, ranges, waits. Pure rules. Source: RFC 9110 of the IETF."""

from __future__ import annotations

import datetime as dt
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from email.utils import parsedate_tz
from typing import TypeVar

from odfchain.errors import FetchError
from odfchain.limits import FetchLimits
from odfchain.odf.times import Timestamp

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII | re.IGNORECASE)
_SECOND_NS = 1_000_000_000


class Headers:
    """The headers of an answer by their names in any case; of several with one name the first counts."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._values: dict[str, str] = {}
        for name, value in pairs:
            self._values.setdefault(name.lower(), value.strip())

    def get(self, name: str) -> str | None:
        """The value, or None if there is none or it is empty."""
        return self._values.get(name.lower()) or None

    def location(self) -> str | None:
        """`Location`, read as the UTF-8 that servers write when they leave out the escapes."""
        value = self.get("location")
        if value is None:
            return None
        raw = value.encode("latin-1")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return value

    def date(self, name: str) -> Timestamp | None:
        """The value as a time, or None if it is missing or malformed."""
        value = self.get(name)
        return None if value is None else parse_http_date(value)

    def length(self) -> int | None:
        """`Content-Length`, where it is there and counts."""
        value = self.get("content-length")
        if value is None or self.get("transfer-encoding") or not re.fullmatch(r"[0-9]{1,19}", value):
            return None
        return int(value)

    def retry_after(self) -> float | None:
        """Seconds the server wants to be left alone, or None if it does not say (RFC 9110, 10.2.3)."""
        value = self.get("retry-after")
        if value is None:
            return None
        if re.fullmatch(r"[0-9]{1,9}", value):
            return float(value)
        time = parse_http_date(value)
        if time is None:
            return None
        now = self.date("date") or Timestamp.now()  # the server's own clock, so that ours may be wrong
        return max(0.0, (time.epoch_ns - now.epoch_ns) / _SECOND_NS)

    def range_validator(self) -> str | None:
        """The `If-Range` validator to continue this answer, or None if it must not be continued."""
        if (self.get("accept-ranges") or "").lower() == "none":
            return None
        tag = self.get("etag")
        if tag is not None and tag.startswith('"'):
            return tag
        modified, made = self.date("last-modified"), self.date("date")
        # a date is strong if the answer was made at least a second after it (RFC 9110, 8.8.2.2 and 13.1.5)
        if modified is not None and made is not None and made.epoch_ns - modified.epoch_ns >= _SECOND_NS:
            return self.get("last-modified")
        return None


def parse_http_date(text: str) -> Timestamp | None:
    """The time in any of the three forms that recipients must accept (RFC 9110, 5.6.7), or None."""
    # also understands what mail programs write: other zones, and years of two digits from 1969 on
    found = parsedate_tz(text)
    if found is None:
        return None
    year, month, day, hour, minute, second, _, _, _, offset = found
    try:
        second = 59 if second == 60 else second  # a leap second is legal, and nothing here can hold it
        zone = dt.timezone(dt.timedelta(seconds=offset or 0))
        return Timestamp.from_datetime(dt.datetime(year, month, day, hour, minute, second, tzinfo=zone))
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class ContentRange:
    """Which bytes of how many a partial answer brings; `last` is inclusive, an unknown total is None."""

    first: int
    last: int
    total: int | None

    @classmethod
    def parse(cls, text: str | None) -> ContentRange | None:
        """The range of a header, or None if it is malformed (RFC 9110, 14.4)."""
        match = _CONTENT_RANGE.fullmatch(text or "")
        if match is None:
            return None
        total = None if match[3] == "*" else int(match[3])
        found = cls(int(match[1]), int(match[2]), total)
        return found if found.first <= found.last and (total is None or found.last < total) else None


# When a request is made again, and when time is up. Clock and waiting are given from outside.

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


class StaleError(TransientError):
    """Nothing came; a connection that was used before may have been closed since: a new one may do."""


class ProxyDeniedError(FetchError):
    """The proxy refuses; never leaves this package and its callers."""


class ProtocolError(TransientError):
    """The response breaks the protocol, or is too large; the request is not repeated."""

    def __init__(self, reason: str, *, name: str) -> None:
        super().__init__(reason)
        self.name = name
        """The requested object, for messages."""


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
        """Nothing happens while there is time."""
        if self.remaining <= 0:
            raise self.error()

    def error(self) -> FetchError:
        """The error to raise when time is up."""
        return FetchError(f"{self._name}: not complete after {self._seconds:g} s", hint=DEADLINE_HINT)


def with_retries(
    attempt: Callable[[], _T], *, name: str, limits: FetchLimits, timing: Timing, deadline: Deadline
) -> _T:
    """The first result of attempts, each after a longer wait; FetchError where none succeeds in time."""
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


# What an answer brings.

_CHUNK_BYTES = 1 << 18
_PIECE_BYTES = 1 << 16


class Body(ABC):
    """Bytes that are on their way, of a size that may be known."""

    length: int | None = None
    """Size where it is declared [bytes]."""

    @abstractmethod
    def read_into(self, view: memoryview) -> int:
        """Bytes of the body, as many as are there and fit; 0 at its end."""

    def chunks(self, size: int = _CHUNK_BYTES) -> Iterator[memoryview]:
        """The body in pieces, each of which is there until the next one is asked for."""
        piece = memoryview(bytearray(size))
        while count := self.read_into(piece):
            yield piece[:count]

    def read(self, limit: int) -> bytes | None:
        """The whole body, or None if it is longer than `limit`; memory grows with what has arrived."""
        if self.length is not None and self.length > limit:
            return None
        data = bytearray()
        for chunk in self.chunks(min(self.length or _PIECE_BYTES, 1 << 20)):
            data += chunk
            if len(data) > limit:
                return None
        return bytes(data)


class Pieces(Body):
    """Pieces of any size as a body."""

    def __init__(self, pieces: Iterator[bytes | memoryview], length: int | None = None) -> None:
        self._pieces = pieces
        self.length = length
        self._rest = memoryview(b"")

    def read_into(self, view: memoryview) -> int:
        while not self._rest:
            if (following := next(self._pieces, None)) is None:
                return 0
            self._rest = memoryview(following)
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count
