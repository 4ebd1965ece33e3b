"""Saying no to a fragment of a query: what it does, where it stands, and what to write instead."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from odfchain.errors import QueryError
from odfchain.spark import query_functions as functions
from odfchain.spark import query_nodes as nodes
from odfchain.spark.query_errors import excerpt, located, one_line, option
from odfchain.spark.query_walk import Nodes, PlanWalker

MAX_NODES = 10_000
"""Plans and expressions of one query [count]; real ones have some hundreds."""

MAX_RANGE = 10_000_000
"""Rows that `range` may make up [count]: a calendar by the minute has half a million for each year."""

TEMPORAL = frozenset({"date", "timestamp", "timestamp_ntz", "time"})
"""Types whose values Spark may take from the clock."""

_PRINTABLE = TEMPORAL | frozenset(
    {"string", "boolean", "byte", "short", "integer", "long", "float", "double", "void"}
)
"""Types that Java's formatter prints by their value; of others it prints an address in memory."""

_DATE_TEXT = re.compile(r"\s*[+-]?[0-9]{4,7}(?:-[0-9]|[T\s]|\Z)", re.ASCII)
_QUOTED = re.compile(r"""r?(['"])(.*)\1\s*\Z""", re.DOTALL | re.IGNORECASE)
_VARYING = (
    "AttributeReference", "CommonExpressionRef", "NamedLambdaVariable", "OuterReference", "ScalarSubquery",
)  # fmt: skip
_CLOCK_HINT = "write the date and time themselves, such as TIMESTAMP '2020-01-31 12:00:00'"


@dataclass(frozen=True, slots=True)
class Step:
    """One query: how messages call it, the SQL for Spark, and whether that was translated."""

    label: str
    sql: str
    alias: str | None = None
    translated: bool = False


class Judge:
    """Says no, and where, for one step.

    Every method but `refuse` raises a `QueryError` when it does not like what it sees.
    """

    def __init__(self, step: Step, *, replayed: bool = False) -> None:
        """`replayed` queries must give the same another day: no text becomes a time without a format."""
        self._step = step
        self._replayed = replayed
        self._count = 0

    def refuse(
        self, node: Any, what: str, hint: str | None, around: Any = None, word: str = ""
    ) -> QueryError:
        """An error that shows the fragment of the query that a node was read from."""
        line, column, fragment = _place(node) if node is not None else (None, None, "")
        if not fragment and around is not None:
            line, column, fragment = _place(around)
        if self._step.translated:
            line = column = None
        if not fragment and word:
            line, column, fragment = _find(self._step, word)
        shown = f"`{fragment}` " if fragment else "the query "
        text = what if what.startswith(("there ", "a table ", "table ", "the ", "VALUES ")) else shown + what
        return QueryError(
            located(self._step.label, line, column, text),
            hint=hint,
            excerpt=excerpt(self._step.sql, line, column),
        )

    def count(self, *found: Nodes) -> None:
        """Bounds the size of a query."""
        self._count += sum(len(part.classes) for part in found)
        if self._count > MAX_NODES:
            raise QueryError(
                f"{self._step.label}: has more than {MAX_NODES:,} nodes as a plan", hint="split it into steps"
            )

    def classes(self, found: Nodes, allowed: frozenset[str], otherwise: str | None = None) -> None:
        """Every node is of a class on the list."""
        for i, name in enumerate(found.classes):
            if name not in allowed:
                short = name.rpartition(".")[2].strip("$").rpartition("$")[2]
                what, hint = nodes.REFUSED.get(short, (f"is {short}, which a query may not use", otherwise))
                called = _snake(short)
                what = functions.UNLISTED.get(called, what)
                raise self.refuse(found[i], what, functions.INSTEAD.get(called, hint), word=called)

    def function(self, found: Nodes, i: int, ordered: set[int]) -> None:
        """The function that is called here is on the list, and right in this place."""
        node = found[i]
        generator = found.classes[i].endswith("UnresolvedGenerator")
        name = node.name().unquotedString() if generator else ".".join(strings(node.nameParts()))
        lower = name.lower()
        if not generator and node.isInternal():
            raise self.refuse(node, "is internal to Spark", None)
        if lower in functions.PLAIN_NAMES and (not generator or lower in functions.GENERATOR_NAMES):
            return
        if i in ordered and lower in functions.ORDERED_NAMES:
            return
        if lower in functions.SORTED_NAMES and i > 0 and found.classes[i - 1].endswith("UnresolvedFunction"):
            outer = strings(found[i - 1].nameParts())
            # an order of one's own (a second argument of array_sort) may leave ties as they arrived
            own = found[i - 1].arguments().size() > 1 and outer[-1].lower() == "array_sort"
            if len(outer) == 1 and outer[0].lower() in functions.SORTING and not own:
                return
        if lower in functions.ORDERED_NAMES | functions.SORTED_NAMES:
            raise self.refuse(node, "depends on the order in which rows arrive", order_hint())
        shown = one_line(name, 80)
        close = difflib.get_close_matches(lower, sorted(functions.PLAIN_NAMES), 1, 0.8)
        guess = f"did you mean {close[0]}?" if close and lower not in functions.UNLISTED else None
        reason = functions.UNLISTED.get(lower, "is not on the list of allowed functions")
        raise self.refuse(node, f"the function `{shown}` {reason}", functions.INSTEAD.get(lower) or guess)

    def literal(self, node: Any) -> None:
        """DATE 'today' and its like are computed from the clock by the parser itself."""
        if node.dataType().typeName() not in TEMPORAL:
            return
        fragment = _source(node)
        quoted = _QUOTED.search(fragment)
        if quoted is None or not _DATE_TEXT.match(quoted.group(2)):
            raise self.refuse(node, "may mean the present time", _CLOCK_HINT)

    def parsed(self, node: Any) -> None:
        """Text that is read by a schema may become times as a cast would make them."""
        if self._replayed:
            self._time_of_day(node, None, None)

    def _time_of_day(self, node: Any, given: Any, function: Any) -> None:
        """A text like '10:00' becomes that time of the day on which it is read."""
        if "timestamp" not in node.dataType().catalogString():
            return
        texts = given is None or any(kind in given.catalogString() for kind in ("string", "variant"))
        if texts and (given is None or "timestamp" not in given.catalogString()):
            raise self.refuse(
                function or node,
                "may read a bare time of day as today's",
                "say how the text is written: to_timestamp(x, 'yyyy-MM-dd HH:mm:ss')",
                node,
            )

    def collation(self, node: Any) -> None:
        """A type may bring a library's rules for the order of text, as the keyword COLLATE does."""
        if "COLLATE" in node.dataType().sql():
            what, hint = nodes.REFUSED["UnresolvedCollation"]
            raise self.refuse(node, what, hint)

    def range(self, node: Any) -> None:
        """`range` makes rows from nothing: a slip of the finger would keep the machine busy for days."""
        start, end, step = int(node.start()), int(node.end()), int(node.step())
        count = max(0, -((start - end) // step))
        if count > MAX_RANGE:
            raise self.refuse(node, f"makes {count:,} rows, more than {MAX_RANGE:,}", None, word="range")

    def window(self, walker: PlanWalker, node: Any, *varying: str) -> None:
        """Rows before and after a row are only those that an order puts there."""
        order = list(items(node.orderSpec()))
        frame = node.frameSpecification()
        by_rows = frame.getClass().getSimpleName() == "SpecifiedWindowFrame" and not frame.isUnbounded()
        constant = not any(walker.tree(item).of(*varying) for item in order)
        if (order or by_rows) and constant:
            raise self.refuse(node, "depends on the order in which rows arrive", order_hint(), word="over")

    def formatted(self, node: Any) -> None:
        """The formatter of Java prints what has no other text as an address in memory."""
        for child in items(node.children()):
            kind = child.dataType().typeName()
            if kind not in _PRINTABLE and not kind.startswith("decimal"):
                raise self.refuse(node, f"cannot print a {kind} as text", "use to_json, hex or cast")

    def cast(self, walker: PlanWalker, found: Nodes, i: int, function: Any = None) -> None:
        """Spark takes 'now', 'today' and a bare time of day from the clock when a constant is cast."""
        node = found[i]
        child = found[i + 1]
        if self._replayed and child.foldable() is False:
            self._time_of_day(node, child.dataType(), function)
        if node.dataType().typeName() not in TEMPORAL:
            return
        if child.dataType().typeName() != "string" or walker.tree(child).of(*_VARYING):
            return
        value = child.value() if found.classes[i + 1].endswith(".Literal") else ""
        if value is not None and not _DATE_TEXT.match(value if isinstance(value, str) else value.toString()):
            raise self.refuse(function or node, "may mean the present time", _CLOCK_HINT, node)


def items(sequence: Any) -> Iterator[Any]:
    """What a Scala collection holds."""
    for i in range(sequence.size()):
        yield sequence.apply(i)


def strings(sequence: Any) -> list[str]:
    """The texts that a Scala collection holds."""
    return [str(item) for item in items(sequence)]


def _source(node: Any) -> str:
    """The part of the SQL text that a node was read from; Spark counts in code points."""
    origin = node.origin()
    text, start, stop = (option(v) for v in (origin.sqlText(), origin.startIndex(), origin.stopIndex()))
    return "" if text is None or start is None or stop is None else str(text)[start : stop + 1]


def _place(node: Any) -> tuple[int | None, int | None, str]:
    origin = node.origin()
    line, position = option(origin.line()), option(origin.startPosition())
    return line, None if position is None else position + 1, one_line(_source(node), 60)


def _find(step: Step, word: str) -> tuple[int | None, int | None, str]:
    """Where a word stands in the text, for nodes that Spark does not place."""
    match = re.search(rf"\b{re.escape(word)}\b", step.sql, re.IGNORECASE)
    if match is None:
        return None, None, ""
    before = step.sql[: match.start()]
    line, column = before.count("\n") + 1, match.start() - before.rfind("\n")
    return (None, None, match.group()) if step.translated else (line, column, match.group())


def tables_hint(name: str, known: Collection[str]) -> str:
    """Which table may have been meant."""
    near = difflib.get_close_matches(name, sorted(known), 1, 0.6)
    near = near or [k for k in known if k.lower() == name.lower()]
    if near:
        return f"did you mean `{near[0]}`?"
    return "it can use " + ", ".join(f"`{k}`" for k in sorted(known)[:8]) if known else "it has no tables"


def order_hint() -> str:
    """How to take the order of arrival out of a result."""
    return "use it OVER (… ORDER BY …) with an order that has no ties, or sort_array(collect_list(x))"


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
