"""The text of a query, before any engine has it: its bounds, points in names, and calls of table functions.

The functions are `state(name[, event_time[, key]])`, `to_table`, `diff` and `history`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from odfchain.errors import InvalidIdError, QueryError
from odfchain.limits import OWN
from odfchain.query.resolved_tables import Changes, Pin, Pins, StateOf
from odfchain.text import one_line
from odfchain.transform.closed_sql import check_text, dotted_name, quoted
from odfchain.workspace.points import parse_time

# The fewest and the most of each.
_ARGUMENTS = {"state": (1, 3), "to_table": (1, 1), "diff": (2, 2), "history": (1, 1)}
FUNCTIONS = frozenset(_ARGUMENTS)
"""`to_table` is what the reference node calls it; it takes a name only."""
_USAGES = {"diff": "write diff('name@POINT', 'name@POINT')", "history": "write history('name[@POINT]')"}
Call = tuple[str | None, ...]
"""The name of a function, then its arguments."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query as it is asked, and what its names mean."""

    sql: str
    pins: Pins
    params: Mapping[str, Any] | None = None
    """The values of `$name`."""
    limit: int | None = None
    """The most rows that are given, after `skip` others."""
    skip: int = 0
    seconds: float | None = None
    """How long it may take in all, without what the reader of the rows takes; None is as long as it needs."""


def usage(name: str) -> str:
    """How a function is called."""
    return _USAGES.get(name, "write state('name[@POINT]'[, 'event time'[, 'column, column']])")


def wrong_count(name: str, count: int) -> str | None:
    """The fault of a wrong number of arguments, if any."""
    least, most = _ARGUMENTS[name]
    if least <= count <= most:
        return None
    return f"{count} arguments, not {least}" + (f" to {most}" if most > least else "")


def may_be_name(name: str, number: int) -> bool:
    """True if an argument of a function is the name of a dataset, which needs no quotes; else NULL is one."""
    return number == 0 or name == "diff"


def relation_of(call: Call, pins: Pins) -> Pin | Changes:
    """The table that a call means."""
    function, name, *rest = call
    assert name is not None  # noqa: S101 - of a call that was checked
    pin = pins.pin(name)
    if function in _USAGES:
        other = rest[0] if rest else None
        return Changes(pin, None if other is None else pins.pin(other), pins.workspace.has_key(pin.id))
    time, key = (*rest, None, None)[:2]
    moment = None
    if time is not None:
        try:
            moment = parse_time(time)
        except InvalidIdError as error:
            raise QueryError(f"state of {one_line(name)}: {error.message}", hint=error.hint) from None
    columns = None if key is None else tuple(part.strip() for part in key.split(",") if part.strip())
    return replace(pin, projection=StateOf(moment, columns))


def checked_text(sql: str) -> str:
    """The text of one query, without what ends it, and with points in its names."""
    check_text(sql, OWN)
    sql = sql.strip().rstrip(";").rstrip()
    return _Words(sql).rewritten() if re.search(r"\bas\s+of\b", sql, re.IGNORECASE) else sql


# Time travel: `NAME VERSION AS OF '…'` and `NAME TIMESTAMP AS OF '…'` become `"NAME@POINT" AS "NAME"`.
# The grammar is Spark's, which other engines lack, so the text is rewritten word by word before any engine
# reads it. A timestamp may also be written in digits alone. Source: RFC-035.

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|/\*(?s:.)*?(?:\*/|\Z))
    | (?P<text>'(?:[^']|'')*'?) | (?P<quoted>"(?:[^"]|"")*"?|`(?:[^`]|``)*`?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*) | (?P<number>\d+(?![\w.])) | (?P<other>(?s:.))""",
    re.VERBOSE | re.ASCII,
)
# The keywords before AS OF; True: of a time.
_KINDS = {"version": False, "system_version": False, "timestamp": True, "system_time": True}
# Words that are no alias of the table before them.
_AFTER_TABLE = frozenset({
    "anti", "cluster", "cross", "distribute", "end", "except", "fetch", "for", "from", "full", "group",
    "having", "inner", "intersect", "join", "lateral", "left", "limit", "minus", "natural", "offset", "on",
    "order", "outer", "pivot", "qualify", "right", "select", "semi", "sort", "tablesample", "union",
    "unpivot", "using", "where", "window",
})  # fmt: skip


def numbered_values(sql: str) -> str:
    """The text with `$1`, `$2`, … for the `?` that other databases have."""
    numbers = itertools.count(1)
    return "".join(
        f"${next(numbers)}" if (found.lastgroup, found[0]) == ("other", "?") else found[0]
        for found in _TOKEN.finditer(sql)
    )


def value_names(sql: str) -> list[str]:
    """The names of `$name` in a text, numbers in their order."""
    pieces = [(found.lastgroup, found[0]) for found in _TOKEN.finditer(sql)]
    named = [
        text for (_, before), (kind, text) in itertools.pairwise(pieces)
        if before == "$" and kind in ("word", "number")
    ]  # fmt: skip
    return sorted(dict.fromkeys(named), key=lambda name: int(name) if name.isdecimal() else 0)


def pinned_text(sql: str, blocks: Mapping[str, str]) -> str | None:
    """The query with the block of each name that it reads; None where its words do not say which they are."""
    return _Words(checked_text(sql)).pinned(blocks)


_CLAUSES = frozenset({"select", "where", "group", "having", "order", "limit", "union", "except", "intersect"})


class _Words:
    """The pieces of a text, and those of them that say something."""

    def __init__(self, sql: str) -> None:
        self._pieces = [(found.lastgroup, found[0]) for found in _TOKEN.finditer(sql)]
        self._words = [place for place, (kind, _) in enumerate(self._pieces) if kind != "space"]

    def rewritten(self) -> str:
        made = [text for _, text in self._pieces]
        for place in range(len(self._words)):
            if (found := self._clause(place)) is None:
                continue
            start, end, point = found
            first, last = self._words[start], self._words[end - 1]
            name = self._name(start)
            alias = "" if self._has_alias(end) else f" AS {quoted(name)}"
            made[first : last + 1] = ["", *[""] * (last - first)]
            made[first] = f"{quoted(f'{name}@{point}')}{alias}"
        return "".join(made)

    def pinned(self, blocks: Mapping[str, str]) -> str | None:
        """As `pinned_text`."""
        made, left = [text for _, text in self._pieces], set(blocks)
        # for each bracket that is open: tables follow, arguments of a function, or neither
        inside = [""]
        for place in range(len(self._words)):
            (kind, text), word = self._piece(place), self._word(place)
            before = self._piece(place - 1)[1].lower()
            is_table = inside[-1] == "from" and before in ("from", "join", ",", "(")
            if text == "(":
                called = self._word(place - 1) not in ("", "as", "in", "exists", "on", "using", *_AFTER_TABLE)
                inside.append(before if called else "from" if is_table else "")
            elif text == ")":
                inside[1:] = inside[1:-1]
            elif word in ("from", "join") and (inside[-1] in ("", "from")):
                inside[-1] = "from"
            elif word in _CLAUSES:
                inside[-1] = ""
            name = word or (text[1:-1].replace(text[0] * 2, text[0]) if kind in ("quoted", "text") else "")
            if name not in blocks:
                continue
            pinned = f"{name.partition('@')[0]}@{blocks[name]}"
            is_argument = inside[-1] in FUNCTIONS and (before == "(" or inside[-1] == "diff")
            if (self._word(place + 1), self._piece(place + 2)[1]) == ("as", "("):
                return None  # a subquery of this name
            if is_argument:
                made[self._words[place]] = "'" + pinned.replace("'", "''") + "'"
            elif is_table and kind != "text":
                alias = "" if self._has_alias(place + 1) else f" AS {quoted(name)}"
                made[self._words[place]] = quoted(pinned) + alias
            else:
                continue
            left.discard(name)
        return None if left else "".join(made)

    def _word(self, place: int) -> str:
        kind, text = self._piece(place)
        return text.lower() if kind == "word" else ""

    def _piece(self, place: int) -> tuple[str | None, str]:
        return self._pieces[self._words[place]] if 0 <= place < len(self._words) else (None, "")

    def _clause(self, place: int) -> tuple[int, int, str] | None:
        kind = self._word(place)
        if kind not in _KINDS or (self._word(place + 1), self._word(place + 2)) != ("as", "of"):
            return None
        value = place + 3
        # `TIMESTAMP '…'` and `DATE '…'` are literals with a type
        if self._word(value) in ("timestamp", "date") and self._piece(value + 1)[0] == "text":
            value += 1
        what, text = self._piece(value)
        if what not in ("text", "number"):
            return None
        name = place - 2 if self._word(place - 1) == "for" else place - 1
        if self._piece(name)[0] not in ("word", "quoted"):
            return None
        literal = text[1:-1].replace("''", "'") if what == "text" else text
        return name, value + 1, _point(literal, time=_KINDS[kind])

    def _name(self, place: int) -> str:
        kind, text = self._piece(place)
        if self._piece(place - 1)[1] == ".":
            whole = ".".join(self._piece(at)[1] for at in range(max(0, place - 2), place + 1, 2))
            raise dotted_name(whole)
        name = text.lower() if kind == "word" else text[1:-1].replace(text[0] * 2, text[0])
        if "@" in name:
            raise QueryError(f"`{one_line(name)}` has a point already", hint="leave one of the two out")
        return name

    def _has_alias(self, place: int) -> bool:
        kind, _ = self._piece(place)
        return kind == "quoted" or (kind == "word" and self._word(place) not in _AFTER_TABLE)


def _point(text: str, *, time: bool) -> str:
    if not time:
        return text
    try:
        moment = text.strip().replace(" ", "T", 1)
        if "T" in moment and not re.search(r"(Z|[+-]\d\d:?\d\d)$", moment, re.IGNORECASE):
            moment += "Z"  # the zone of sessions is UTC
        return str(parse_time(moment))
    except InvalidIdError as error:
        raise QueryError(f"TIMESTAMP AS OF: {error.message}", hint=error.hint) from None
