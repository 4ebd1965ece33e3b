"""A point in time with nanosecond precision, always UTC."""

from __future__ import annotations

import contextlib
import datetime as dt
import re
import time
import zlib
from calendar import isleap
from dataclasses import dataclass

from odfchain.errors import InvalidIdError, SchemaError

_RFC3339 = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt ](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9})\d*)?([Zz]|[+-]\d{2}:\d{2})", re.ASCII
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
        """Parse RFC 3339 with seconds and an offset; the result is in UTC."""
        match = _RFC3339.fullmatch(text)
        if match is None:
            hint = "write it with seconds and an offset, like 2024-02-29T12:00:00Z"
            raise InvalidIdError(f"{text!r} is not an RFC 3339 time", hint=hint)
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
        """Build from the fields of the FlatBuffers struct, if they are in their ranges."""
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

    def shifted(self, milliseconds: int) -> Timestamp:
        """So much later, or earlier, in whole milliseconds; at most to where the years end."""
        try:
            return Timestamp.from_epoch_ms(self.epoch_ms + milliseconds)
        except InvalidIdError:  # before the year 1, or after 9999
            edge = "9999-12-31T23:59:59.999Z" if milliseconds > 0 else "0001-01-01T00:00:00Z"
            return Timestamp.parse(edge)

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


# Durations: `1 day`, `36 hours`, `90m`, `1h 30m`.

_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_WORDS = {
    "millisecond": "ms", "sec": "s", "second": "s", "min": "m", "minute": "m",
    "hour": "h", "day": "d", "week": "w",
}  # fmt: skip
_TERM = re.compile(r"\s*([0-9]{1,12})\s*([A-Za-z]+)\s*", re.ASCII)
_LONGEST_MS = 10_000 * 366 * 86_400_000


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """Whole milliseconds, none or more; printed with the largest units that divide it."""

    milliseconds: int

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Parse numbers with units: ms, s, m, h, d, w, or their English names; ten thousand years at most."""
        position, total = 0, 0
        while match := _TERM.match(text, position):
            word = match[2] if match[2] in _UNITS else _WORDS.get(match[2].lower().removesuffix("s"))
            if word is None:
                break
            total += int(match[1]) * _UNITS[word]
            position = match.end()
        if position != len(text) or not text.strip():
            hint = "write it like 1 day, 36 hours or 90m"
            raise InvalidIdError(f"{text!r} is not a length of time", hint=hint)
        if total > _LONGEST_MS:
            raise InvalidIdError(f"{text!r} is longer than ten thousand years")
        return cls(total)

    def __str__(self) -> str:
        terms, rest = [], self.milliseconds
        for name, unit in (("day", "d"), ("hour", "h"), ("minute", "m"), ("second", "s"), ("ms", "ms")):
            count, rest = divmod(rest, _UNITS[unit])
            if count:
                terms.append(f"{count} {name}{'s' if count > 1 and name != 'ms' else ''}")
        return " ".join(terms) or "0 s"


# Recurrences: `1h`, or `0 6 * * *`.

_CRON = re.compile(r"[0-9A-Za-z*/,#-]{1,40}(?: +[0-9A-Za-z*/,#-]{1,40}){4}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Moments that come again: once in a length of time, or by the five fields of cron in UTC.

    Each `key` has moments of its own, so that all who say `1h` do not begin together. With cron they are
    within the minute.
    """

    text: str
    length: Duration | None

    @classmethod
    def parse(cls, text: str) -> Recurrence:
        """A length of time of a second or more, or a cron text that matches sometime."""
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - most commands have no use for it

        text = text.strip()
        with contextlib.suppress(InvalidIdError):
            if (length := Duration.parse(text)).milliseconds >= 1_000:
                return cls(text, length)
        with contextlib.suppress(CronSimError, StopIteration):
            if _CRON.fullmatch(text) and next(CronSim(text, _EPOCH)):
                return cls(text, None)
        hint = "write it like 1h, or like '30 6 * * *': minute, hour, day, month, weekday in UTC"
        raise InvalidIdError(f"{text[:200]!r} is neither a length of time nor a cron text", hint=hint)

    def after(self, moment: Timestamp, key: str) -> Timestamp:
        """The first of a key's moments that is later."""
        spread = zlib.crc32(key.encode())
        if self.length is not None:
            length = self.length.milliseconds
            return moment.shifted(length - (moment.epoch_ms - spread) % length)
        from cronsim import CronSim  # noqa: PLC0415 - as above

        spread %= _UNITS["m"]
        after = next(CronSim(self.text, moment.shifted(-spread).to_datetime()))
        return Timestamp.from_datetime(after).shifted(spread)

    def __str__(self) -> str:
        return self.text


# Formats of dates and times in read steps, and their form for Java.
#
#     rfc3339                what the specification requires; the default
#     yyyy-MM-dd HH:mm       Java's DateTimeFormatter, as Spark reads it
#     %Y-%m-%d %H:%M         strftime, as Rust and Python programs write it: all that has a percent sign
#
# The specification leaves all but the first to implementations. A format is recorded as it was written;
# only who reads with it translates it. What has no exact counterpart is refused. Source: specification
# "ReadStep::Csv"; RFC-010.

RFC3339 = "rfc3339"
_MAX = 200
_LITERAL = re.compile(r"[A-Za-z\[\]{}#']+")
_STRFTIME = re.compile(r"%(-?)(:?[A-Za-z%]|\.?[369]?f)|([^%]+)|(%.?)", re.DOTALL)
_COMPOUND = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y", "r": "%I:%M:%S %p"}
# the letter for digits of any number, and how many there are where digits follow
_NUMBERS = {
    "m": ("M", 2), "d": ("d", 2), "H": ("H", 2), "I": ("h", 2), "M": ("m", 2), "S": ("s", 2), "j": ("D", 3),
}  # fmt: skip
_FIXED = {
    "Y": "yyyy", "y": "yy", "b": "MMM", "h": "MMM", "B": "MMMM", "p": "a",
    "z": "XX", ":z": "XXX",
    "f": "SSSSSSSSS", "3f": "SSS", "6f": "SSSSSS", "9f": "SSSSSSSSS",
    ".f": ".SSSSSSSSS", ".3f": ".SSS", ".6f": ".SSSSSS", ".9f": ".SSSSSSSSS",
    "%": "%",
}  # fmt: skip
_JAVA = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|[^A-Za-z']")
# how often a letter may stand in a row; others can only be printed, or count weeks, which are no dates
_JAVA_LETTERS = {
    "G": 4, "y": 6, "M": 4, "L": 4, "d": 2, "D": 3, "a": 1, "h": 2, "H": 2, "k": 2, "K": 2, "m": 2, "s": 2,
    "S": 9, "V": 2, "z": 4, "O": 4, "X": 5, "x": 5, "Z": 5,
}  # fmt: skip
_PARTS = ("year", "month", "day", "hour", "minute", "second", "fraction")
_READS = {
    "y": ("year",), "M": ("month",), "L": ("month",), "d": ("day",), "D": ("month", "day"),
    "h": ("hour",), "H": ("hour",), "k": ("hour",), "K": ("hour",),
    "m": ("minute",), "s": ("second",), "S": ("fraction",),
}  # fmt: skip
_HINTS = {
    "strftime": "%m is the month, %M the minute",
    "java": "M is the month, m the minute; d is the day, H the hour",
}
_MISTAKEN = {"Y": "y is the year", "D": "d is the day of the month"}


def java_format(text: str) -> str:
    """The format in the notation of Java's DateTimeFormatter, or `SchemaError`; `rfc3339` stays as it is."""
    if len(text) > _MAX:
        raise SchemaError(f"a time format has at most {_MAX} characters, not {len(text):,}")
    if text == RFC3339:
        return text
    if not text:
        raise SchemaError(f"a time format is empty (the default is {RFC3339})")
    return _from_strftime(text) if "%" in text else _checked(text)


def check_timestamp_format(text: str) -> None:
    """A format reads all that lies above the smallest thing that it reads; else `SchemaError`."""
    if text == RFC3339:
        return
    letters = _letters(text)
    read = {part for letter in letters for part in _READS.get(letter, ())}
    if not read:
        raise SchemaError(f"time format {text!r}: holds no field of a date or time")
    # what is not read is the same in every value: `yyyy-mm-dd` (minutes for months) would shift all of them
    lacking = next((part for part in _PARTS[: max(map(_PARTS.index, read))] if part not in read), None)
    if lacking is not None:
        message = f"time format {text!r} does not read the {lacking}: it would be the same in every value"
        raise SchemaError(message, hint=_HINTS["strftime" if "%" in text else "java"])
    # half-day hours without AM or PM mean two times
    if letters & {"h", "K"} and "a" not in letters:
        hint = "write %H, or %I with %p" if "%" in text else "write HH, or hh with a"
        raise SchemaError(f"time format {text!r} reads hours of half a day and not which half", hint=hint)


def check_date_format(text: str) -> None:
    """As `check_timestamp_format`, and no time zone is read: a day would be the one of UTC."""
    check_timestamp_format(text)
    if text != RFC3339 and _letters(text) & set("VzOXxZ"):
        message = f"time format {text!r} reads a time zone: dates would become those of UTC"
        raise SchemaError(message, hint="declare the column as TIMESTAMP")


def _letters(text: str) -> set[str]:
    return {match[1] for match in _JAVA.finditer(java_format(text)) if match[1] is not None}


def _from_strftime(text: str) -> str:
    tokens = _directives(text)
    parts = []
    for index, (directive, literal) in enumerate(tokens):
        if directive is None:
            parts.append(_LITERAL.sub(lambda m: "'" + m[0].replace("'", "''") + "'", literal))
        elif directive in _NUMBERS:
            letter, width = _NUMBERS[directive]
            follows = tokens[index + 1][0] if index + 1 < len(tokens) else None
            # adjacent digits are separated by their width alone
            touches = _is_digits(follows) or (index > 0 and _is_digits(tokens[index - 1][0]))
            parts.append(letter * (width if touches else 1))
        else:
            parts.append(_FIXED[directive])
    return "".join(parts)


def _is_digits(directive: str | None) -> bool:
    return directive is not None and (directive in _NUMBERS or _FIXED[directive][0] in "yS")


def _directives(text: str) -> list[tuple[str | None, str]]:
    """(directive or None, literal text) in order."""
    found: list[tuple[str | None, str]] = []
    for match in _STRFTIME.finditer(text):
        dash, directive, literal, broken = match.groups()
        if literal is not None:
            found.append((None, literal))
        elif directive in _COMPOUND and not dash:
            found += _directives(_COMPOUND[directive])
        elif directive in _NUMBERS or (directive in _FIXED and not dash):
            found.append((directive, ""))
        else:
            hint = "known are %Y %y %m %d %j %H %I %M %S %f %.f %p %b %B %z %:z %F %T %R %D %%"
            raise SchemaError(f"time format {text!r}: {broken or match[0]!r} is not known", hint=hint)
    return found


def _checked(text: str) -> str:
    position = 0
    letters = set()
    while position < len(text):
        match = _JAVA.match(text, position)
        if match is None:
            raise SchemaError(f"time format {text!r}: the quote at position {position + 1} is not closed")
        if match[1] is not None:
            letters.add(match[1])
            if len(match[0]) > _JAVA_LETTERS.get(match[1], 0):
                mistaken = _MISTAKEN.get(match[1])
                raise SchemaError(
                    f"time format {text!r}: {match[0]!r} at position {position + 1} is not known",
                    hint=f"{mistaken}; " * bool(mistaken)
                    + "known are y M d D a H h m s S z X; put literal text in single quotes",
                )
        position = match.end()
    if "D" in letters and letters & {"M", "L"}:
        raise SchemaError(f"time format {text!r}: D is the day of the year", hint=f"{_MISTAKEN['D']}")
    if not letters:
        raise SchemaError(f"time format {text!r}: holds no field of a date or time")
    return text
