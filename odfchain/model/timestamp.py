"""A point in time with nanosecond precision, always UTC."""

from __future__ import annotations

import datetime as dt
import re
import time
from calendar import isleap
from dataclasses import dataclass

from odfchain.errors import InvalidIdError

_RFC3339 = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt ](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d{2}:\d{2})",
    re.ASCII,
)
_EPOCH_ORDINAL = 719_163  # date(1970, 1, 1).toordinal()
_DAY_NS = 86_400_000_000_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MIN_YEAR, MAX_YEAR = 1, 9999


def _days_before_year(year: int) -> int:
    y = year - 1
    return y * 365 + y // 4 - y // 100 + y // 400


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """Nanoseconds since 1970-01-01T00:00:00Z, for the years 1 to 9999.

    Printed as RFC 3339 in UTC with `Z` and 0, 3, 6 or 9 fraction digits, whichever loses nothing. In
    FlatBuffers it is the struct `Timestamp` (year, day of year, seconds of the day, nanoseconds); in data it
    is truncated to milliseconds. Source: specification "Metadata Reference" (`date-time`), RFC-013 of ODF.
    """

    epoch_ns: int

    @classmethod
    def parse(cls, text: str) -> Timestamp:
        """Parse RFC 3339 with seconds and an offset; the result is in UTC.

        Raises:
            InvalidIdError: a date alone, no seconds, no offset, or a day or time that does not exist.
        """
        match = _RFC3339.fullmatch(text)
        if match is None:
            raise InvalidIdError(
                f"{text!r} is not an RFC 3339 time",
                hint="write it with seconds and an offset, like 2024-02-29T12:00:00Z",
            )
        year, month, day, hour, minute, second, fraction, offset = match.groups()
        try:
            days = dt.date(int(year), int(month), int(day)).toordinal() - _EPOCH_ORDINAL
        except ValueError as error:
            raise InvalidIdError(f"{text!r}: {error}") from None
        if int(hour) > 23 or int(minute) > 59 or int(second) > 59:
            raise InvalidIdError(f"{text!r} is not a time of day")
        seconds = (int(hour) * 60 + int(minute)) * 60 + int(second)
        if offset not in "Zz":
            hours, minutes = int(offset[1:3]), int(offset[4:6])
            if hours > 23 or minutes > 59:
                raise InvalidIdError(f"{text!r} has an offset that does not exist")
            shift = (hours * 60 + minutes) * 60
            seconds -= shift if offset[0] == "+" else -shift
        nanos = int((fraction or "0").ljust(9, "0"))
        return cls._checked((days * 86_400 + seconds) * 1_000_000_000 + nanos, text)

    @classmethod
    def _checked(cls, epoch_ns: int, what: object) -> Timestamp:
        days = epoch_ns // _DAY_NS + _EPOCH_ORDINAL
        if not 1 <= days <= dt.date.max.toordinal():
            raise InvalidIdError(f"{what}: years {MIN_YEAR} to {MAX_YEAR} can be represented")
        return cls(epoch_ns)

    @classmethod
    def from_parts(cls, year: int, ordinal: int, second_of_day: int, nanos: int) -> Timestamp:
        """Build from the fields of the FlatBuffers struct.

        Raises:
            InvalidIdError: a field is out of its range.
        """
        if not MIN_YEAR <= year <= MAX_YEAR:
            raise InvalidIdError(f"year {year} (years {MIN_YEAR} to {MAX_YEAR} can be represented)")
        if not 1 <= ordinal <= 365 and not (ordinal == 366 and isleap(year)):
            raise InvalidIdError(f"day {ordinal} of the year {year}")
        if second_of_day >= 86_400 or nanos >= 1_000_000_000:
            raise InvalidIdError(f"second {second_of_day} of the day and {nanos} ns")
        days = _days_before_year(year) + ordinal - _EPOCH_ORDINAL
        return cls((days * 86_400 + second_of_day) * 1_000_000_000 + nanos)

    def to_parts(self) -> tuple[int, int, int, int]:
        """(year, day of year from 1, second of the day, nanoseconds)."""
        seconds, nanos = divmod(self.epoch_ns, 1_000_000_000)
        days, second_of_day = divmod(seconds, 86_400)
        date = dt.date.fromordinal(days + _EPOCH_ORDINAL)
        return date.year, date.toordinal() - _days_before_year(date.year), second_of_day, nanos

    @classmethod
    def now(cls) -> Timestamp:
        """The system clock, truncated to milliseconds: what the data columns can hold."""
        return cls(time.time_ns() // 1_000_000 * 1_000_000)

    @classmethod
    def from_epoch_ms(cls, epoch_ms: int) -> Timestamp:
        """Build from milliseconds since the epoch."""
        return cls._checked(epoch_ms * 1_000_000, f"{epoch_ms} ms")

    @classmethod
    def from_datetime(cls, value: dt.datetime) -> Timestamp:
        """Build from an aware datetime (naive ones are taken as UTC)."""
        aware = value if value.tzinfo else value.replace(tzinfo=dt.UTC)
        delta = aware - _EPOCH
        return cls((delta.days * 86_400 + delta.seconds) * 1_000_000_000 + delta.microseconds * 1_000)

    def to_datetime(self) -> dt.datetime:
        """An aware UTC datetime, truncated to microseconds."""
        return _EPOCH + dt.timedelta(microseconds=self.epoch_ns // 1_000)

    @property
    def epoch_ms(self) -> int:
        """Whole milliseconds since the epoch, rounded towards the past."""
        return self.epoch_ns // 1_000_000

    def truncated_to_ms(self) -> Timestamp:
        """The same time without what is finer than a millisecond."""
        return Timestamp(self.epoch_ms * 1_000_000)

    def __str__(self) -> str:
        seconds, nanos = divmod(self.epoch_ns, 1_000_000_000)
        days, second_of_day = divmod(seconds, 86_400)
        date = dt.date.fromordinal(days + _EPOCH_ORDINAL)
        minutes, second = divmod(second_of_day, 60)
        hour, minute = divmod(minutes, 60)
        fraction = f"{nanos:09d}"
        while fraction.endswith("000"):
            fraction = fraction[:-3]
        dot = "." if fraction else ""
        return f"{date.isoformat()}T{hour:02d}:{minute:02d}:{second:02d}{dot}{fraction}Z"
