"""A length of time as people write it: `1 day`, `36 hours`, `90m`, `1h 30m`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from odfchain.errors import InvalidIdError

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
        """Parse numbers with units: ms, s, m, h, d, w, or their English names.

        Raises:
            InvalidIdError: not that, or more than ten thousand years.
        """
        position, total = 0, 0
        while match := _TERM.match(text, position):
            word = match[2] if match[2] in _UNITS else _WORDS.get(match[2].lower().removesuffix("s"))
            if word is None:
                break
            total += int(match[1]) * _UNITS[word]
            position = match.end()
        if position != len(text) or not text.strip():
            raise InvalidIdError(
                f"{text!r} is not a length of time", hint="write it like 1 day, 36 hours or 90m"
            )
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
