"""Numbers, times and lists of blocks in the words that a page shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from odfchain.text import counted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LabelledValue:
    """A line of a list of facts; a `code` is there to be copied."""

    label: str
    value: str
    code: bool = False


@dataclass(frozen=True, slots=True)
class Excerpt(Generic[T]):
    """The first of many things, and how many were left out."""

    shown: tuple[T, ...]
    rest: int = 0


def excerpt(things: Sequence[T], limit: int) -> Excerpt[T]:
    """At most `limit` of the things."""
    return Excerpt(tuple(things[:limit]), max(0, len(things) - limit))


def listed(words: Sequence[str]) -> str:
    """Words as in a sentence: `a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def size_in_words(size: int) -> str:
    """A size in the unit that keeps it below 1,024: `12 bytes`, `3.4 MiB`."""
    if size < 1024:
        return counted(size, "byte")
    power = min((size.bit_length() - 1) // 10, len(_UNITS))
    return f"{size / 1024**power:,.1f} {_UNITS[power - 1]}"


_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def moment(text: str) -> str:
    """A time of RFC 3339 in UTC, to the second; text that is no time stays as it is."""
    try:
        time = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return text
    return f"{time:%Y-%m-%d %H:%M:%S} UTC"


def day(text: str) -> str:
    """The day of a time in UTC; text that is no time stays as it is."""
    words = moment(text)
    return words if words == text else words[:10]


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Runs of numbers that follow each other, as first and last; in order, each number once."""
    found: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def blocks_in_words(numbers: Iterable[int], limit: int = 8) -> str:
    """Sequence numbers in a few words: `block 3`, `blocks 3 and 20`; empty for none."""
    known = sorted(set(numbers))
    if not known:
        return ""
    runs = [f"{a:,}" if a == b else f"{a:,} to {b:,}" for a, b in spans(known)]
    if len(runs) > limit:
        runs = [*runs[:limit], f"{len(runs) - limit:,} more ranges"]
    return f"block{'s' if len(known) > 1 else ''} {listed(runs)}"
