"""Times in the notation of `java.text.SimpleDateFormat`, which the specification names for event times.

Letters: `y M d H h m s S a E z Z X`; text in quotes, `''` for a quote; every other letter is refused. Where
Java would roll over (month 13), guess, or look at the clock, this is strict:

- fields must be in their range, the whole text must fit, and a day of the week must be the date's;
- two-digit years (`yy`) lie in 1969 to 2068, as `%y` has them. Java's window moves with the present day, so
  that one file could get two event times;
- up to three `S` are milliseconds, as in Java. More are a fraction of so many digits: Java would read
  123456 as 123 seconds, which nobody means;
- zones are offsets, `Z`, `UTC`, `GMT` and `UT`; names like `EST` mean different zones to different people.

Fields that are missing are those of 1970-01-01T00:00:00Z. Source: specification "EventTimeSource::FromPath".
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from odfchain.errors import FetchError, InvalidIdError
from odfchain.model.timestamp import Timestamp

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July",
    "August", "September", "October", "November", "December",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NUMBERS = "yMdHhmsS"
_OFFSET = r"[+-]\d{2}:?\d{2}"
_ZONE = rf"(?:UTC|GMT|UT)(?:{_OFFSET})?|{_OFFSET}"
_ISO_ZONES = {1: r"Z|[+-]\d{2}", 2: r"Z|[+-]\d{4}", 3: r"Z|[+-]\d{2}:\d{2}"}
_RANGES = {"M": (1, 12), "d": (1, 31), "H": (0, 23), "h": (1, 12), "m": (0, 59), "s": (0, 59)}
_MAX_PATTERN = 1_000
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")


@dataclass(frozen=True, slots=True)
class _Field:
    letter: str
    count: int

    @property
    def is_number(self) -> bool:
        return self.letter in _NUMBERS and not (self.letter == "M" and self.count > 2)


def parse(pattern: str, text: str) -> Timestamp:
    """The time that `text` gives in the notation of `pattern`; UTC unless it has a zone.

    Raises:
        FetchError: the pattern has a letter that is not known, or the text does not fit it.
    """
    parts = _tokens(pattern)
    match = re.fullmatch(_regex(parts), text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise FetchError(f"{text!r} does not have the form {pattern!r}")
    fields = [part for part in parts if isinstance(part, _Field)]
    found = {field: match[n + 1] for n, field in enumerate(fields)}
    try:
        return _time(found)
    except (ValueError, InvalidIdError) as error:
        raise FetchError(f"{text!r} is not a time in the form {pattern!r}: {error}") from None


def _tokens(pattern: str) -> list[_Field | str]:
    """Fields and literal text."""
    if len(pattern) > _MAX_PATTERN:
        raise FetchError(f"a time format has at most {_MAX_PATTERN:,} characters, not {len(pattern):,}")
    parts: list[_Field | str] = []
    position = 0
    while position < len(pattern):
        match = _TOKEN.match(pattern, position)
        if match is None:
            raise FetchError(f"time format {pattern!r}: the quote at position {position + 1} is not closed")
        letter = match[2]
        if letter is None:
            parts.append(match[0] if match[1] is None else match[1].replace("''", "'") or "'")
        elif letter not in "yMdHhmsSaEzZX" or (letter == "X" and len(match[0]) > 3):
            raise FetchError(
                f"time format {pattern!r}: {match[0]!r} at position {position + 1} is not known",
                hint="known are y M d H h m s S a E z Z X XX XXX; put literal text in single quotes",
            )
        else:
            parts.append(_Field(letter, len(match[0])))
        position = match.end()
    return parts


def _regex(parts: list[_Field | str]) -> str:
    out = []
    for n, part in enumerate(parts):
        if isinstance(part, str):
            out.append(re.escape(part))
            continue
        before, after = parts[n - 1] if n else "", parts[n + 1] if n + 1 < len(parts) else ""
        touches = isinstance(before, _Field) and before.is_number
        continues = isinstance(after, _Field) and after.is_number
        out.append(f"({_field_regex(part, touches=touches, continues=continues)})")
    return "".join(out)


def _field_regex(field: _Field, *, touches: bool, continues: bool) -> str:
    letter, count = field.letter, field.count
    if field.is_number:
        if continues or (letter == "S" and count > 3):
            return rf"\d{{{count}}}"  # where digits follow digits, only the width tells the fields apart
        if letter == "y" and count == 2:
            return r"\d{2}"
        return rf"\d{{{count if touches else 1},{max(count, 4)}}}"
    if letter == "M":
        return "|".join(f"{name}|{name[:3]}" for name in _MONTHS)
    if letter == "E":
        return "|".join(f"{name}|{name[:3]}" for name in _DAYS)
    if letter == "a":
        return "AM|PM"
    return _ISO_ZONES[count] if letter == "X" else _ZONE


def _time(found: dict[_Field, str]) -> Timestamp:
    values = {"y": 1970, "M": 1, "d": 1, "H": 0, "h": 0, "m": 0, "s": 0}
    nanos, offset, weekday, afternoon = 0, 0, None, False
    for field, text in found.items():
        letter = field.letter
        if letter == "S":
            nanos = int(text.ljust(9, "0")[:9]) if field.count > 3 else int(text) * 1_000_000
            if nanos > 999_999_999:
                raise ValueError(f"{text} milliseconds are more than a second")
        elif letter == "E":
            weekday = _index(_DAYS, text)
        elif letter == "a":
            afternoon = text.upper() == "PM"
        elif letter in "zZX":
            offset = _offset(text)
        elif not field.is_number:
            values[letter] = _index(_MONTHS, text) + 1
        else:
            values[letter] = _number(field, text)
    if not any(field.letter == "H" for field in found):
        values["H"] = values["h"] % 12 + (12 if afternoon else 0)
    date = dt.date(values["y"], values["M"], values["d"])
    if weekday is not None and date.weekday() != weekday:
        raise ValueError(f"{date} is a {_DAYS[date.weekday()]}")
    time = Timestamp.from_parts(
        date.year,
        date.timetuple().tm_yday,
        (values["H"] * 60 + values["m"]) * 60 + values["s"],
        nanos,
    )
    shifted = Timestamp(time.epoch_ns - offset * 1_000_000_000)
    try:
        str(shifted)
    except (ValueError, OverflowError):
        raise ValueError("the years 1 to 9999 can be represented") from None
    return shifted


def _number(field: _Field, text: str) -> int:
    number = int(text)
    if field.letter == "y" and field.count == 2:
        return number + (1900 if number > 68 else 2000)
    low, high = _RANGES.get(field.letter, (0, number))
    if not low <= number <= high:
        raise ValueError(f"{number} is not from {low} to {high}")
    return number


def _index(names: tuple[str, ...], text: str) -> int:
    return [name[:3].lower() for name in names].index(text[:3].lower())


def _offset(text: str) -> int:
    """Seconds east of Greenwich."""
    digits = re.sub(r"[^0-9]", "", text)
    if not digits:
        return 0
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    if hours > 23 or minutes > 59:
        raise ValueError(f"{text} is not an offset")
    seconds = (hours * 60 + minutes) * 60
    return -seconds if "-" in text else seconds
