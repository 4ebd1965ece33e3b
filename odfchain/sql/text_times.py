"""Where text becomes a date or a time, and whether it is always the same one.

Spark reads '10:00' as that time of the day on which it reads it, 'now' and 'today' from the clock, and
'12:00 Europe/Paris' by the time zones of the Java at hand. So a text becomes a time by a format, or it is a
constant that spells out the date. Types are those of Spark's JSON: a text for a plain type,
an object for an array, a map or a struct. Source: RFC-016.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

_TEMPORAL = re.compile(r"(date|timestamp|timestamp_ntz|timestamp_ltz|time(\(\d+\))?)\Z")
_TEXT = re.compile(r"(string|char|varchar|variant)\b")
_FORMATS = {
    "date": "dateFormat",
    "timestamp": "timestampFormat",
    "timestamp_ltz": "timestampFormat",
    "timestamp_ntz": "timestampNTZFormat",
    "time": "timeFormat",
}
"""The option that says how a text is read as each type."""

_DATE = re.compile(r"\s*[+-]?[0-9]{4,7}(?:-[0-9]|[T\s]|\Z)", re.ASCII)
_FIXED_ZONE = re.compile(r"(?:Z|UTC|GMT|UT)?(?:[+-][0-9:]+)?\s*\Z")
_BEFORE_ZONE = re.compile(r"[\s0-9:.T+-]*", re.ASCII)


def times_in(kind: Any) -> frozenset[str]:
    """The dates and times that a type holds at any depth."""
    if isinstance(kind, str):
        return frozenset({kind.partition("(")[0]}) if _TEMPORAL.match(kind) else frozenset()
    return frozenset().union(*(times_in(part) for part in parts_of(kind)))


def has_text(kind: Any) -> bool:
    """Whether a type holds text at any depth, or values that may be text."""
    return bool(_TEXT.match(kind)) if isinstance(kind, str) else any(has_text(p) for p in parts_of(kind))


def holds(kind: Any, plain: Collection[str]) -> bool:
    """Whether a type is one of these plain types, or holds one at any depth."""
    return kind in plain if isinstance(kind, str) else any(holds(part, plain) for part in parts_of(kind))


def reads_times(source: Any, target: Any) -> bool:
    """Whether a cast of one type to another makes dates or times of text at any depth.

    A time of day that becomes a timestamp counts as well: Spark adds today's date.
    """
    if isinstance(source, str) or isinstance(target, str):
        made = times_in(target)
        return bool(made) and (has_text(source) or ("time" in times_in(source) and made != {"time"}))
    pairs = zip(parts_of(source), parts_of(target), strict=False)
    return any(reads_times(one, other) for one, other in pairs)


def unformatted(kind: Any, options: Mapping[str, str]) -> str | None:
    """The option that is missing when JSON or CSV is read as a type; None when every time has a format."""
    given = {name.lower() for name in options}
    wanted = [_FORMATS[name] for name in sorted(times_in(kind))]
    return next((name for name in wanted if name.lower() not in given), None)


def spells_date(text: str) -> bool:
    """Whether a text begins with a date, so that Spark takes nothing of it from the clock."""
    return _DATE.match(text) is not None


def names_zone(text: str) -> bool:
    """Whether a time is written with the name of a time zone, whose rules are the Java's at hand."""
    before = _BEFORE_ZONE.match(text)
    rest = text[before.end() :] if before is not None else text
    return _FIXED_ZONE.match(rest) is None


def parts_of(kind: Any) -> list[Any]:
    """The types that an array, a map or a struct is made of."""
    if isinstance(kind, str):
        return []
    if kind["type"] == "array":
        return [kind["elementType"]]
    if kind["type"] == "map":
        return [kind["keyType"], kind["valueType"]]
    if kind["type"] == "struct":
        return [field["type"] for field in kind["fields"]]
    return []  # types of users, which queries have not
