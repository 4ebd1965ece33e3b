"""Refusals of a fragment of a query: what it does, its place, and what to write instead."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from odfchain.errors import EngineError, OdfchainError, QueryError, RefusedQueryError
from odfchain.limits import QUERY
from odfchain.odf.sources import TransformSql
from odfchain.spark import query_rules as functions
from odfchain.spark.plans import PlanNodes, PlanWalker
from odfchain.spark.query_rules import (
    OF_JAVA,
    deciding_arguments,
    has_text,
    holds,
    java_dependence,
    names_zone,
    option_dependence,
    parts_of,
    pattern_dependence,
    reads_times,
    spells_date,
    times_in,
    unformatted,
)
from odfchain.text import excerpt, located, one_line

# Spark's messages about a query, as one line: the step, the place, the fault.

_POSITION = re.compile(r"line (\d+),? pos (\d+)")
_CODE = re.compile(r"\s*\[([A-Z_0-9]+(?:\.[A-Z_0-9]+)*)\]\s*")
_TAIL = re.compile(r"\s*SQLSTATE:.*", re.DOTALL)
_ADVICE = re.compile(
    r" (?:Correct the (?:value|syntax)|Use (?:the SQL function )?[`']|If necessary set|Please, refer to).*",
    re.DOTALL,
)
_INSTEAD = re.compile(r"Use (?:the SQL function )?[`'](\w+)")
_NAME = re.compile(r"`(?:[^`]|``)*`(?:\.`(?:[^`]|``)*`)*")
_CONTEXT = re.compile(r"== SQL \(line (\d+), position (\d+)\) ==\n([^\n]*)\n( *)(\^+)")
_LONGEST = 300
ONE_SELECT = "a step is one SELECT over the tables it is given"
_TOO_DEEP = "is nested too deeply for Spark's parser"


def step_labels(transform: TransformSql) -> list[tuple[str, str]]:
    """The name of every step in messages, and its SQL."""
    if transform.query is not None:
        return [("query", transform.query)]
    queries = transform.queries or ()
    return [
        (
            (f"query step {number}" if len(queries) > 1 else "query")
            + (f" (`{step.alias}`)" if step.alias is not None else ""),
            step.query,
        )
        for number, step in enumerate(queries, start=1)
    ]


def spark_says(
    error: Exception, label: str, *, translated: bool = False, sql: str | None = None
) -> OdfchainError:
    """The project's error for what Spark raised while it read or resolved a query."""
    text = str(error)
    if "StackOverflowError" in text:
        return QueryError(f"{label}: {_TOO_DEEP}", hint="split it into steps")
    if "Max iterations (" in text:
        return QueryError(
            f"{label}: has more names that stand for one another than Spark resolves",
            hint="split it into steps, with fewer WITH in each",
        )
    if "OutOfMemoryError" in text:
        return EngineError("Java ran out of memory while it read a query")
    match = _CODE.search(text)
    if match is None:
        return QueryError(
            f"{label}: Spark cannot read this query: {one_line(text.partition(chr(10))[0], _LONGEST)}"
        )
    whole = _TAIL.sub("", text[match.end() :].partition("\n== SQL")[0].partition("\n\tat ")[0])
    said = one_line(_ADVICE.sub("", whole), _LONGEST).removesuffix(".")
    found = None if translated else _POSITION.search(text)
    line, column = (int(found.group(1)), int(found.group(2)) + 1) if found else (None, None)
    hint, code = None, match.group(1)
    if code.startswith("INVALID_SQL_SYNTAX.UNSUPPORTED_SQL_STATEMENT") or code == "INTERNAL_ERROR":
        said, hint = "is a command, not a query", ONE_SELECT
    if code == "TABLE_OR_VIEW_NOT_FOUND":
        said, hint = said.partition(" Verify")[0], "a WITH is known only inside its own query"
    if code.startswith("UNRESOLVED_COLUMN") and (names := _names(whole)):
        said = f"there is no column `{one_line(names[0], 80)}`"
        hint = _columns_hint(names[0], names[1:])
    return QueryError(located(label, line, column, said), hint=hint, excerpt=excerpt(sql, line, column))


def _names(text: str) -> list[str]:
    return [
        ".".join(part[1:-1].replace("``", "`") for part in re.findall(r"`(?:[^`]|``)*`", name))
        for name in _NAME.findall(text)
    ]


def _columns_hint(name: str, known: list[str]) -> str | None:
    def likeness(other: str) -> float:
        # with the table's name or without: what is written is compared with what could be
        candidates = (other, other.rpartition(".")[2])
        return max(difflib.SequenceMatcher(None, name.lower(), c.lower()).ratio() for c in candidates)

    near = sorted((k for k in known if likeness(k) >= 0.6), key=likeness, reverse=True)[:3]
    if near:
        return f"did you mean {' or '.join(one_line(k, 80) for k in near)}?"
    return f"columns here are {', '.join(one_line(k, 80) for k in known)}" if known else None


def failed_query(
    error: Exception, label: str = "the query", *, transform: TransformSql | None = None
) -> QueryError | None:
    """The error of a query whose values cannot be computed (a cast, a division by zero); None for others."""
    # Spark is lazy: such a fault shows only when the rows are written, far from the query
    text = str(error)
    match = _CODE.search(text)
    state = re.search(r"SQLSTATE: (\w{2})\w{3}", text)
    if match is None or state is None or state.group(1) != "22":
        return None
    whole = _TAIL.sub("", text[match.end() :])
    instead = _INSTEAD.search(whole)
    hint = f"{instead.group(1)} gives NULL instead" if instead else "try_cast and try_divide give NULL"
    said = one_line(_ADVICE.sub("", whole), _LONGEST).removesuffix(".")
    place = _place_in_query(text, transform) if transform is not None else None
    if place is None:
        return QueryError(f"{label}: {said}", hint=hint)
    step, sql, line, column = place
    return QueryError(located(step, line, column, said), hint=hint, excerpt=excerpt(sql, line, column))


def _place_in_query(text: str, transform: TransformSql) -> tuple[str, str, int, int] | None:
    """(label of the step, its SQL, line, column) of the fragment that Spark shows."""
    found = _CONTEXT.search(text)
    if found is None:
        return None
    line, column = int(found.group(1)), int(found.group(2))
    fragment = found.group(3)[len(found.group(4)) :][: len(found.group(5))]
    places = []
    for label, sql in step_labels(transform):
        lines = sql.split("\n")
        if line <= len(lines) and lines[line - 1].startswith(fragment, column - 1):
            places.append((label, sql, line, column))
    return places[0] if len(places) == 1 else None


@contextlib.contextmanager
def asking_spark(label: str, *, translated: bool = False, sql: str | None = None) -> Iterator[None]:
    """Whatever Spark or the connection to it raises inside becomes an error of the project.

    Raises:
        QueryError: Spark refuses the query.
        EngineError: Java is gone or out of memory.
    """
    from py4j.protocol import Py4JNetworkError
    from pyspark.logger import PySparkLogger

    # PySpark prints every error of a query as JSON on the screen, before it raises it
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
    try:
        yield
    except OdfchainError:
        raise
    except (Py4JNetworkError, ConnectionError) as error:
        raise EngineError(f"the connection to Java broke: {one_line(str(error))}") from error
    except Exception as error:  # Spark's and the bridge's share no base class
        raise spark_says(error, label, translated=translated, sql=sql) from error


def option(value: Any) -> Any:
    """The value of a Scala Option, or None."""
    return value.get() if value.isDefined() else None


TEMPORAL = frozenset({"date", "timestamp", "timestamp_ntz", "time"})
"""Types whose values Spark may take from the clock."""

# Types that Java's formatter prints by their value; of others it prints an address in memory.
_PRINTABLE = TEMPORAL | frozenset(
    {"string", "boolean", "byte", "short", "integer", "long", "float", "double", "void"}
)

_QUOTED = re.compile(r"""r?(['"])(.*)\1\s*\Z""", re.DOTALL | re.IGNORECASE)
_FORMAT_HINT = "say how the text is written: to_timestamp(x, 'yyyy-MM-dd HH:mm:ss'), to_date(x, 'yyyy-MM-dd')"
_ZONE = "names a time zone, whose rules differ between versions of Java", "write an offset such as +02:00"
_FLOATS = frozenset({"float", "double"})
_CLOCK_HINT = "write the date and time themselves, such as TIMESTAMP '2020-01-31 12:00:00'"


@dataclass(frozen=True, slots=True)
class QueryStep:
    """One query: how messages call it, the SQL for Spark, and whether that was translated."""

    label: str
    sql: str
    alias: str | None = None
    translated: bool = False


class StepChecker:
    """Says no, and where, for one step.

    Every method but `refuse` raises a `QueryError` when it does not like what it sees.
    """

    def __init__(self, step: QueryStep, *, replayed: bool = False) -> None:
        """`replayed` queries must give the same another day: no text becomes a time without a format."""
        self._step = step
        self._replayed = replayed
        self._count = 0

    def refuse(
        self, node: Any, what: str, hint: str | None, around: Any = None, word: str = ""
    ) -> RefusedQueryError:
        """An error that shows the fragment of the query that a node was read from."""
        line, column, fragment = _place(node) if node is not None else (None, None, "")
        if not fragment and around is not None:
            line, column, fragment = _place(around)
        if self._step.translated:
            line = column = None
        if not fragment and word:
            line, column, fragment = _find(self._step, word)
        return self._refusal(line, column, fragment, what, hint)

    def refuse_at(self, place: tuple[int, int], fragment: str, what: str, hint: str) -> RefusedQueryError:
        """The error for a fragment of text that was not parsed yet; lines and columns count from 1."""
        line, column = (None, None) if self._step.translated else place
        return self._refusal(line, column, fragment, what, hint)

    def _refusal(
        self, line: int | None, column: int | None, fragment: str, what: str, hint: str | None
    ) -> RefusedQueryError:
        shown = f"`{fragment}` " if fragment else "the query "
        text = what if what.startswith(("there ", "a table ", "table ", "the ", "VALUES ")) else shown + what
        return RefusedQueryError(
            located(self._step.label, line, column, text),
            hint=hint,
            excerpt=excerpt(self._step.sql, line, column),
        )

    def count(self, *found: PlanNodes) -> None:
        """Bounds the size of a query."""
        self._count += sum(len(part.classes) for part in found)
        if self._count > QUERY.nodes:
            raise RefusedQueryError(
                f"{self._step.label}: has more than {QUERY.nodes:,} nodes as a plan",
                hint="split it into steps",
            )

    def classes(self, among: PlanNodes, allowed: frozenset[str], otherwise: str | None = None) -> None:
        """Every node is of a class on the list."""
        for i, name in enumerate(among.classes):
            if name not in allowed:
                short = name.rpartition(".")[2].strip("$").rpartition("$")[2]
                what, hint = functions.REFUSED.get(
                    short, (f"is {short}, which a query may not use", otherwise)
                )
                called = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", short).lower()
                what = functions.UNLISTED.get(called, what)
                raise self.refuse(among[i], what, functions.INSTEAD.get(called, hint), word=called)

    def function(self, expressions: PlanNodes, i: int, ordered: set[int]) -> None:
        """The function that is called here is on the list, and right in this place."""
        node = expressions[i]
        generator = expressions.classes[i].endswith("UnresolvedGenerator")
        name = node.name().unquotedString() if generator else ".".join(strings(node.nameParts()))
        lower = name.lower()
        if not generator and node.isInternal():
            raise self.refuse(node, "is internal to Spark", None)
        if lower in functions.PLAIN_NAMES and (not generator or lower in functions.GENERATOR_NAMES):
            return
        if i in ordered and lower in functions.ORDERED_NAMES:
            return
        if (
            lower in functions.SORTED_NAMES
            and i > 0
            and expressions.classes[i - 1].endswith("UnresolvedFunction")
        ):
            outer = strings(expressions[i - 1].nameParts())
            # an order of one's own (a second argument of array_sort) may leave ties as they arrived
            own = expressions[i - 1].arguments().size() > 1 and outer[-1].lower() == "array_sort"
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
        if quoted is None or not spells_date(quoted.group(2)):
            raise self.refuse(node, "may mean the present time", _CLOCK_HINT)
        if self._replayed and names_zone(quoted.group(2)):
            raise self.refuse(node, *_ZONE)

    def parsed(self, node: Any) -> None:
        """Text that is read by a schema becomes times as a cast would make them, unless formats are given."""
        kind, options = json.loads(node.dataType().json()), _options(node)
        if _class_name(node) == "CsvToStructs" and holds(kind, ("variant",)):
            raise self.refuse(
                node, "guesses which texts are times, and may read a bare time of day as today's",
                "read the column as a string",
            )  # fmt: skip
        wrong = option_dependence(options, formats=self._replayed)
        if (self._replayed or times_in(kind)) and wrong is not None:
            raise self.refuse(node, *wrong)
        missing = unformatted(kind, options)
        if missing is not None:
            raise self.refuse(
                node,
                "may read a bare time of day as today's",
                f"say how times are written, as in from_json(x, schema, map('{missing}', 'yyyy-MM-dd'))",
            )

    def deciding(self, expressions: PlanNodes, i: int) -> None:
        """A function, or a match by RLIKE, gives the same on every Java; for queries that are replayed."""
        node, operator = expressions[i], expressions.classes[i].endswith(".RLike")
        if not self._replayed:
            return
        if operator:
            wrong = pattern_dependence(_text(node.right()))
            if wrong is not None:
                raise self.refuse(node, *wrong)
            return
        name = strings(node.nameParts())[-1].lower()
        if name in OF_JAVA:
            raise self.refuse(node, "differs between versions of Java", functions.INSTEAD.get(name))
        if not (places := deciding_arguments(name, node.arguments().size())):
            return
        arguments = list(items(node.arguments()))
        for place in places:
            if place < len(arguments):
                wrong = java_dependence(name, len(arguments), _text(arguments[place]))
                if wrong is not None:
                    raise self.refuse(node, *wrong)

    def printed(self, node: Any) -> None:
        """Refuse printing whose text differs between versions of Java; for queries that are replayed."""
        if self._replayed:
            if (wrong := option_dependence(_options(node), formats=True)) is not None:
                raise self.refuse(node, *wrong)
            for child in items(node.children()):
                if holds(json.loads(child.dataType().json()), _FLOATS):
                    raise self._of_floats(node)

    def _of_floats(self, node: Any, around: Any = None) -> RefusedQueryError:
        return self.refuse(
            node,
            "makes text of a floating-point number, which differs between versions of Java",
            "cast it first: cast(cast(x AS decimal(18, 6)) AS string)",
            around,
        )

    def collation(self, node: Any) -> None:
        """A type may bring a library's rules for the order of text, as the keyword COLLATE does."""
        if "COLLATE" in node.dataType().sql():
            what, hint = functions.REFUSED["UnresolvedCollation"]
            raise self.refuse(node, what, hint)

    def range(self, node: Any) -> None:
        """`range` makes rows from nothing: a slip of the finger would keep the machine busy for days."""
        if node.numSlices().isDefined():
            raise self.split(node)
        start, end, step = int(node.start()), int(node.end()), int(node.step())
        count = max(0, -((start - end) // step))
        if count > QUERY.range_rows:
            raise self.refuse(
                node, f"makes {count:,} rows, more than {QUERY.range_rows:,}", None, word="range"
            )

    def split(self, node: Any) -> RefusedQueryError:
        """An error for a `range` that says how to split the work, into as many tasks as it likes."""
        return self.refuse(
            node,
            "says how to split the work, not what to compute",
            "range takes start, end, step",
            word="range",
        )

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

    def cast(self, expressions: PlanNodes, i: int, region: PlanNodes, function: Any = None) -> None:
        """A text becomes a date or a time by a format, or is a constant that spells out the date.

        Where rows are recorded once, a column of text may be cast as well; `region` makes the columns.
        """
        node, child = expressions[i], expressions[i + 1]
        source, target = (json.loads(kind.dataType().json()) for kind in (child, node))
        if self._replayed and target_is_text(target) and holds(source, _FLOATS):
            raise self._of_floats(function or node, node)
        if not reads_times(source, target):
            return
        if isinstance(source, str) and isinstance(target, str) and source != "variant" and has_text(source):
            if _is_constant(child):
                self._constant(child, function or node, node)
                return
            if not self._replayed:
                if (made := _constant_column(region, child)) is not None:
                    self._constant(made, made, node)
                return
        elif (parts := _written_out(child, source, target)) is not None:
            for part in parts:
                self._constant(part, function or node, node)
            return
        constant = _is_constant(child) or not has_text(source)
        hint = _FORMAT_HINT if has_text(source) else "add it to a date: make_timestamp(day, time)"
        what = "may mean the present time" if constant else "may read a bare time of day as today's"
        raise self.refuse(function or node, what, hint, node)

    def is_spelled(self, value: Any) -> bool:
        """True if a value of PIVOT is a constant; a text begins with a date, and a time of day is none."""
        if "Alias" in value.getClass().getSimpleName():
            value = value.child()
        if value.getClass().getSimpleName() != "Literal":
            return False
        if value.dataType().typeName().startswith("time("):
            return False
        text = _text(value)
        return text is None or (spells_date(text) and not (self._replayed and names_zone(text)))

    def pivot(self, node: Any, texts: list[Any]) -> None:
        """The values of PIVOT are cast while names are resolved; `texts` are those that spell out no date."""
        if texts and times_in(json.loads(node.pivotColumn().dataType().json())):
            raise self.refuse(texts[0], "may mean the present time", _CLOCK_HINT)

    def _constant(self, child: Any, node: Any, around: Any) -> None:
        value = child.value() if _class_name(child) == "Literal" else ""
        if value is None:
            return
        text = value if isinstance(value, str) else value.toString()
        if not spells_date(text):
            raise self.refuse(node, "may mean the present time", _CLOCK_HINT, around)
        if self._replayed and names_zone(text):
            raise self.refuse(node, *_ZONE, around)


def _written_out(value: Any, source: Any, target: Any) -> list[Any] | None:
    if not reads_times(source, target):
        return []
    kind, children = _class_name(value), list(items(value.children()))
    if isinstance(source, str) or isinstance(target, str):
        if kind == "Cast" and children[0].dataType().typeName() == "void":  # a null among texts
            return []
        return [value] if kind == "Literal" and source == "string" else None
    if kind not in ("CreateArray", "CreateMap", "CreateNamedStruct"):
        return None
    if kind == "CreateNamedStruct":
        children = children[1::2]
    pairs = zip(cycle(parts_of(source)), cycle(parts_of(target)), strict=False)
    found = [_written_out(child, *pair) for child, pair in zip(children, pairs, strict=False)]
    return None if None in found else [text for texts in found for text in texts or ()]


def _constant_column(region: PlanNodes, column: Any) -> Any:
    if column.getClass().getSimpleName() != "AttributeReference":
        return None
    names = {region[i].exprId().id(): region[i].child() for i in region.of("Alias")}
    while column.getClass().getSimpleName() == "AttributeReference":
        column = names.get(column.exprId().id())
        if column is None:
            return None
    return column if _is_constant(column) else None


def _is_constant(node: Any) -> bool:
    # `nvl` and the like are foldable only after Spark has replaced them, which is before it reads the clock
    return node.foldable() or all(
        leaf.getClass().getSimpleName() == "Literal" for leaf in items(node.collectLeaves())
    )


def target_is_text(kind: Any) -> bool:
    """True if a cast to this type makes text at any depth."""
    return kind != "variant" and has_text(kind)


def _class_name(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _options(node: Any) -> dict[str, str]:
    if _class_name(node) in ("FormatString", "VariantGet"):
        return {}
    return {pair._1(): pair._2() for pair in items(node.options().toSeq())}  # noqa: SLF001


def _text(node: Any) -> str | None:
    if node.getClass().getSimpleName() != "Literal" or node.dataType().typeName() != "string":
        return None
    value = node.value()
    return None if value is None else str(value if isinstance(value, str) else value.toString())


def items(sequence: Any) -> Iterator[Any]:
    """The items of a Scala collection."""
    for i in range(sequence.size()):
        yield sequence.apply(i)


def strings(sequence: Any) -> list[str]:
    """The texts that a Scala collection holds."""
    return [str(item) for item in items(sequence)]


def _source(node: Any) -> str:
    # Spark counts in code points, as Python does
    origin = node.origin()
    text, start, stop = (option(v) for v in (origin.sqlText(), origin.startIndex(), origin.stopIndex()))
    return "" if text is None or start is None or stop is None else str(text)[start : stop + 1]


def _place(node: Any) -> tuple[int | None, int | None, str]:
    origin = node.origin()
    line, position = option(origin.line()), option(origin.startPosition())
    return line, None if position is None else position + 1, one_line(_source(node), 60)


def _find(step: QueryStep, word: str) -> tuple[int | None, int | None, str]:
    # Spark gives no place for some nodes: the word is searched
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
