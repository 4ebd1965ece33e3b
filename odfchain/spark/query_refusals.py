"""Refusals of a fragment of a query: what it does, its place, and what to write instead."""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from odfchain.errors import EngineError, OdfchainError, Place, QueryError
from odfchain.limits import QUERY
from odfchain.odf.sources import TransformSql
from odfchain.spark import query_rules as functions
from odfchain.spark.plans import PlanNodes, PlanWalker, class_name, items, option, strings
from odfchain.text import one_line, place_in

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


@dataclass(frozen=True, slots=True)
class QueryStep:
    """One query: how messages call it, the SQL for Spark, and whether that was translated."""

    label: str
    sql: str
    alias: str | None = None
    translated: bool = False

    @classmethod
    def all_of(cls, transform: TransformSql) -> list[QueryStep]:
        """The steps of a transform, as they are written."""
        if transform.query is not None:
            return [cls("query", transform.query)]
        queries = transform.queries or ()
        return [
            cls(
                (f"query step {number}" if len(queries) > 1 else "query")
                + (f" (`{step.alias}`)" if step.alias is not None else ""),
                step.query,
                step.alias,
            )
            for number, step in enumerate(queries, start=1)
        ]


def spark_error(
    error: Exception, label: str, *, translated: bool = False, sql: str | None = None
) -> OdfchainError:
    """The project's error for what Spark raised while it read or resolved a query."""
    text = str(error)
    if "StackOverflowError" in text:
        return QueryError(f"{label}: {_TOO_DEEP}", hint="split it into steps")
    if "Max iterations (" in text:
        message = f"{label}: has more names that stand for one another than Spark resolves"
        return QueryError(message, hint="split it into steps, with fewer WITH in each")
    if "OutOfMemoryError" in text:
        return EngineError("Java ran out of memory while it read a query")
    match = _CODE.search(text)
    if match is None:
        message = f"{label}: Spark cannot read this query: {one_line(text.partition(chr(10))[0], _LONGEST)}"
        return QueryError(message)
    whole = _TAIL.sub("", text[match.end() :].partition("\n== SQL")[0].partition("\n\tat ")[0])
    said = one_line(_ADVICE.sub("", whole), _LONGEST).removesuffix(".")
    found = None if translated else _POSITION.search(text)
    place = (int(found.group(1)), int(found.group(2)) + 1) if found else None
    hint, code = None, match.group(1)
    if code.startswith("INVALID_SQL_SYNTAX.UNSUPPORTED_SQL_STATEMENT") or code == "INTERNAL_ERROR":
        said, hint = "is a command, not a query", ONE_SELECT
    if code == "TABLE_OR_VIEW_NOT_FOUND":
        said, hint = said.partition(" Verify")[0], "a WITH is known only inside its own query"
    if code.startswith("UNRESOLVED_COLUMN") and (names := _names(whole)):
        said = f"there is no column `{one_line(names[0], 80)}`"
        hint = _columns_hint(names[0], names[1:])
    return QueryError.at(label, sql, place, said, hint=hint)


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
    sql = place = None
    if transform is not None:
        label, sql, place = _place_in_query(text, transform) or (label, None, None)
    return QueryError.at(label, sql, place, said, hint=hint)


def _place_in_query(text: str, transform: TransformSql) -> tuple[str, str, Place] | None:
    """(label of the step, its SQL, the place) of the fragment that Spark shows."""
    found = _CONTEXT.search(text)
    if found is None:
        return None
    line, column = int(found.group(1)), int(found.group(2))
    fragment = found.group(3)[len(found.group(4)) :][: len(found.group(5))]
    places = []
    for step in QueryStep.all_of(transform):
        lines = step.sql.split("\n")
        if line <= len(lines) and lines[line - 1].startswith(fragment, column - 1):
            places.append((step.label, step.sql, (line, column)))
    return places[0] if len(places) == 1 else None


@contextlib.contextmanager
def translate_spark_errors(label: str, *, translated: bool = False, sql: str | None = None) -> Iterator[None]:
    """What Spark or the connection to it raises inside becomes an error of the project."""
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
        raise spark_error(error, label, translated=translated, sql=sql) from error


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


# Text that becomes a date or a time: it has to be always the same one.
#
# Spark reads '10:00' as that time of the day on which it reads it, 'now' and 'today' from the clock, and
# '12:00 Europe/Paris' by the time zones of the Java at hand. So a text becomes a time by a format, or it is
# a constant that spells out the date. Types are those of Spark's JSON: a text for a plain type, an object
# for an array, a map or a struct. Source: RFC-016.

_TEMPORAL = re.compile(r"(date|timestamp|timestamp_ntz|timestamp_ltz|time(\(\d+\))?)\Z")
_TEXT = re.compile(r"(string|char|varchar|variant)\b")
# The option that says how a text is read as each type.
_TIME_FORMATS = {
    "date": "dateFormat",
    "timestamp": "timestampFormat",
    "timestamp_ltz": "timestampFormat",
    "timestamp_ntz": "timestampNTZFormat",
    "time": "timeFormat",
}

_DATE = re.compile(r"\s*[+-]?[0-9]{4,7}(?:-[0-9]|[T\s]|\Z)", re.ASCII)
_FIXED_ZONE = re.compile(r"(?:Z|UTC|GMT|UT)?(?:[+-][0-9:]+)?\s*\Z")
_BEFORE_ZONE = re.compile(r"[\s0-9:.T+-]*", re.ASCII)


def times_in(kind: Any) -> frozenset[str]:
    """The dates and times that a type holds at any depth."""
    if isinstance(kind, str):
        return frozenset({kind.partition("(")[0]}) if _TEMPORAL.match(kind) else frozenset()
    return frozenset().union(*(times_in(part) for part in parts_of(kind)))


def has_text(kind: Any) -> bool:
    """True if a type holds text at any depth, or values that may be text."""
    return bool(_TEXT.match(kind)) if isinstance(kind, str) else any(has_text(p) for p in parts_of(kind))


def holds(kind: Any, plain: Collection[str]) -> bool:
    """True if a type is one of these plain types, or holds one at any depth."""
    return kind in plain if isinstance(kind, str) else any(holds(part, plain) for part in parts_of(kind))


def reads_times(source: Any, target: Any) -> bool:
    """True if a cast of one type to another makes dates or times of text at any depth."""
    if isinstance(source, str) or isinstance(target, str):
        # a time of day that becomes a timestamp counts as well: Spark adds today's date
        made = times_in(target)
        return bool(made) and (has_text(source) or ("time" in times_in(source) and made != {"time"}))
    pairs = zip(parts_of(source), parts_of(target), strict=False)
    return any(reads_times(one, other) for one, other in pairs)


def unformatted(kind: Any, options: Mapping[str, str]) -> str | None:
    """The option that is missing when JSON or CSV is read as a type; None when every time has a format."""
    given = {name.lower() for name in options}
    wanted = [_TIME_FORMATS[name] for name in sorted(times_in(kind))]
    return next((name for name in wanted if name.lower() not in given), None)


def spells_date(text: str) -> bool:
    """True if a text begins with a date, so that Spark takes nothing of it from the clock."""
    return _DATE.match(text) is not None


def names_zone(text: str) -> bool:
    """True if a time is written with the name of a time zone, whose rules are the Java's at hand."""
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


# SQL that depends on the Java at hand: its Unicode, time zones, charsets and texts of numbers.
#
# A derivative is computed again by others, on another Java. Measured on Java 17, 21 and 25, over all code
# points, two million numbers and all letters of patterns, these differ: `\b` next to letters that are not
# ASCII, `\p{…}`, `\X`, `(?U)` and `(?u)` in patterns; `mask` and `%S`; `tanh` and `cbrt` in their last
# digit; `F` in patterns of dates; texts of floating-point numbers beyond 2^53 (2^24 for `float`); the rules
# of named time zones; and the charsets, of which small Javas have few. Where the argument that decides is a
# constant, it is looked at; where it is not, the call is refused. Queries of roots are recorded once, and
# may use all of it. Source: RFC-016.

OF_JAVA = frozenset({"cbrt", "mask", "tanh"})
"""Functions whose results differ between versions of Java."""

_FORMATS = functions.names(
    """
        date_format from_unixtime to_char to_date to_timestamp to_timestamp_ltz to_timestamp_ntz
        to_unix_timestamp to_varchar try_to_date try_to_timestamp unix_timestamp"""
)
_PATTERNS = functions.names(
    """
        regexp regexp_count regexp_extract regexp_extract_all regexp_instr regexp_like regexp_replace
        regexp_substr rlike split str_to_map"""
)
_ZONES = frozenset({"convert_timezone", "from_utc_timestamp", "to_utc_timestamp"})
# The zone comes last: after a date and a time of day, or after six numbers.
_MADE_IN_ZONE = frozenset(
    {"make_timestamp", "make_timestamp_ltz", "try_make_timestamp", "try_make_timestamp_ltz"}
)
_PRINTED = frozenset({"format_string", "printf"})
_CHARSETS = frozenset({"decode", "encode"})
# Which arguments decide, where it is not the second one alone.
_PLACES = {"convert_timezone": (0, 1), "format_string": (0,), "printf": (0,), "str_to_map": (1, 2)}

OPTIONS_OF_JAVA = frozenset({"locale", "timezone", "enabledatetimeparsingfallback"})
"""Options of JSON and CSV, in lower case, that bring in Java's own data or its guesses."""

CHARSETS = frozenset({"US-ASCII", "ISO-8859-1", "UTF-8", "UTF-16", "UTF-16BE", "UTF-16LE", "UTF-32"})
"""Charsets that every Java has."""

_OF_UNICODE = re.compile(r"\\\\|\\[bBXNpP]|\(\?[a-zA-Z]*[uU]")
_OF_LOCALE = re.compile(r"%%|%[-#+ 0,(<]*(?:\d+\$)?[-#+ 0,(<\d.]*[SCtT]")
_IN_QUOTES = re.compile(r"'[^']*'")
_FIXED_OFFSET = re.compile(r"Z|(?:UTC|GMT|UT)?(?:[+-]\d{1,2}(?::?\d{2}){0,2})?\Z", re.ASCII)


def deciding_arguments(function: str, arguments: int) -> tuple[int, ...]:
    """Which of so many arguments of a function decide whether its result is the same on every Java."""
    if function in _MADE_IN_ZONE:
        return (arguments - 1,) if arguments in (3, 7) else ()
    deciding = function in _FORMATS | _PATTERNS | _ZONES | _PRINTED | _CHARSETS
    return _PLACES.get(function, (1,)) if deciding else ()


def java_dependence(function: str, arguments: int, text: str | None) -> tuple[str, str] | None:
    """(what is wrong, what to write instead) of one of `arguments`, if it is; `text` of a constant one."""
    if function in _CHARSETS and arguments != 2:  # the other `decode` compares values
        return None
    if text is None:
        what = "is decided by the data, so it is not known whether every Java does the same"
        return what, "write a constant"
    if function in _FORMATS:
        return _format_dependence(text)
    if function in _PATTERNS:
        return pattern_dependence(text)
    zone = function in _ZONES or function in _MADE_IN_ZONE
    if zone and (not text or names_zone("10:00" + text) or not _FIXED_OFFSET.match(text)):
        what = "depends on the rules of a time zone, which differ between versions of Java"
        return what, "take a fixed offset such as '+02:00', or convert where the data is ingested"
    if function in _PRINTED and any(found != "%%" for found in _OF_LOCALE.findall(text)):
        what = "prints by rules that differ between versions of Java"
        return what, "use upper, or date_format with numbers"
    if function in _CHARSETS and text.upper() not in CHARSETS:
        return "names a charset that not every Java has", "one of " + ", ".join(sorted(CHARSETS))
    return None


def option_dependence(options: Mapping[str, str], *, formats: bool) -> tuple[str, str] | None:
    """Find options of JSON or CSV that depend on the Java; `formats` are looked at, too."""
    for name, text in options.items():
        if name.lower() in OPTIONS_OF_JAVA:
            return f"has the option {one_line(name, 40)}", "leave it out"
        if formats and name.lower().endswith("format") and (wrong := _format_dependence(text)) is not None:
            return wrong
    return None


def _format_dependence(text: str) -> tuple[str, str] | None:
    found = re.search("[FOVvz]", _IN_QUOTES.sub("", text))
    if found is None:
        return None
    what = f"has `{found.group()}` in its pattern, which differs between versions of Java"
    return what, "take numbers: yyyy-MM-dd HH:mm:ssXXX"


def pattern_dependence(text: str | None) -> tuple[str, str] | None:
    r"""Find what depends on the Java in a regular expression: `\p{L}` follows its edition of Unicode."""
    if text is None:
        what = "takes its pattern from the data, and some patterns differ between versions of Java"
        return what, "write a constant"
    found = next((m.group() for m in _OF_UNICODE.finditer(text) if m.group() != "\\\\"), None)
    if found is None:
        return None
    what = f"has `{found}` in its pattern, which differs between versions of Java"
    return what, "name the characters, as in [A-Za-z0-9_]"


class StepChecker:
    """Raises a `QueryError` that says where, for one step; `refuse` returns it."""

    def __init__(self, step: QueryStep, *, replayed: bool = False) -> None:
        """`replayed` queries must give the same another day: no text becomes a time without a format."""
        self._step = step
        self._replayed = replayed
        self._count = 0

    def refuse(
        self, node: Any, what: str, hint: str | None, around: Any = None, word: str = ""
    ) -> QueryError:
        """An error that shows the fragment of the query that a node was read from."""
        place, fragment = _place(node) if node is not None else (None, "")
        if not fragment and around is not None:
            place, fragment = _place(around)
        if not fragment and word:
            place, fragment = _find(self._step, word)
        return self.refuse_at(place, fragment, what, hint)

    def refuse_at(self, place: Place | None, fragment: str, what: str, hint: str | None) -> QueryError:
        """The error for a fragment of the query's text."""
        shown = f"`{fragment}` " if fragment else "the query "
        text = what if what.startswith(("there ", "a table ", "table ", "the ", "VALUES ")) else shown + what
        step = self._step
        place = None if step.translated else place
        return QueryError.at(step.label, step.sql, place, text, hint=hint, refused=True)

    def count(self, *found: PlanNodes) -> None:
        """Bounds the size of a query."""
        self._count += sum(len(part.classes) for part in found)
        if self._count > QUERY.nodes:
            message = f"{self._step.label}: has more than {QUERY.nodes:,} nodes as a plan"
            raise QueryError(message, hint="split it into steps", refused=True)

    def classes(self, among: PlanNodes, allowed: frozenset[str], instead: str | None = None) -> None:
        """Every node is of a class on the list."""
        for i, name in enumerate(among.classes):
            if name not in allowed:
                short = name.rpartition(".")[2].strip("$").rpartition("$")[2]
                what, hint = functions.REFUSED.get(short, (f"is {short}, which a query may not use", instead))
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
        quoted = _QUOTED.search(_source(node))
        if quoted is None or not spells_date(quoted.group(2)):
            raise self.refuse(node, "may mean the present time", _CLOCK_HINT)
        if self._replayed and names_zone(quoted.group(2)):
            raise self.refuse(node, *_ZONE)

    def parsed(self, node: Any) -> None:
        """Text that is read by a schema becomes times as a cast would make them, unless formats are given."""
        kind, options = json.loads(node.dataType().json()), _options(node)
        if class_name(node) == "CsvToStructs" and holds(kind, ("variant",)):
            raise self.refuse(
                node, "guesses which texts are times, and may read a bare time of day as today's",
                "read the column as a string",
            )  # fmt: skip
        wrong = option_dependence(options, formats=self._replayed)
        if (self._replayed or times_in(kind)) and wrong is not None:
            raise self.refuse(node, *wrong)
        missing = unformatted(kind, options)
        if missing is not None:
            message = f"say how times are written, as in from_json(x, schema, map('{missing}', 'yyyy-MM-dd'))"
            raise self.refuse(node, "may read a bare time of day as today's", message)

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
        arguments = items(node.arguments())
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

    def _of_floats(self, node: Any, around: Any = None) -> QueryError:
        message = "makes text of a floating-point number, which differs between versions of Java"
        return self.refuse(node, message, "cast it first: cast(cast(x AS decimal(18, 6)) AS string)", around)

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
            message = f"makes {count:,} rows, more than {QUERY.range_rows:,}"
            raise self.refuse(node, message, None, word="range")

    def split(self, node: Any) -> QueryError:
        """An error for a `range` that says how to split the work, into as many tasks as it likes."""
        message = "says how to split the work, not what to compute"
        return self.refuse(node, message, "range takes start, end, step", word="range")

    def window(self, walker: PlanWalker, node: Any, *varying: str) -> None:
        """Rows before and after a row are only those that an order puts there."""
        order = items(node.orderSpec())
        frame = node.frameSpecification()
        by_rows = class_name(frame) == "SpecifiedWindowFrame" and not frame.isUnbounded()
        constant = not any(walker.plans(item).of(*varying) for item in order)
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
        if self._replayed and target != "variant" and has_text(target) and holds(source, _FLOATS):
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
        if "Alias" in class_name(value):
            value = value.child()
        if class_name(value) != "Literal":
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
        value = child.value() if class_name(child) == "Literal" else ""
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
    kind, children = class_name(value), items(value.children())
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
    if class_name(column) != "AttributeReference":
        return None
    names = {region[i].exprId().id(): region[i].child() for i in region.of("Alias")}
    while class_name(column) == "AttributeReference":
        column = names.get(column.exprId().id())
        if column is None:
            return None
    return column if _is_constant(column) else None


def _is_constant(node: Any) -> bool:
    # `nvl` and the like are foldable only after Spark has replaced them, which is before it reads the clock
    return node.foldable() or all(class_name(leaf) == "Literal" for leaf in items(node.collectLeaves()))


def _options(node: Any) -> dict[str, str]:
    if class_name(node) in ("FormatString", "VariantGet"):
        return {}
    return {pair._1(): pair._2() for pair in items(node.options().toSeq())}  # noqa: SLF001


def _text(node: Any) -> str | None:
    if class_name(node) != "Literal" or node.dataType().typeName() != "string":
        return None
    value = node.value()
    return None if value is None else str(value if isinstance(value, str) else value.toString())


def _source(node: Any) -> str:
    # Spark counts in code points, as Python does
    origin = node.origin()
    text, start, stop = (option(v) for v in (origin.sqlText(), origin.startIndex(), origin.stopIndex()))
    return "" if text is None or start is None or stop is None else str(text)[start : stop + 1]


def _place(node: Any) -> tuple[Place, str]:
    origin = node.origin()
    line, position = option(origin.line()), option(origin.startPosition())
    return (line, None if position is None else position + 1), one_line(_source(node), 60)


def _find(step: QueryStep, word: str) -> tuple[Place | None, str]:
    # Spark gives no place for some nodes: the word is searched
    match = re.search(rf"\b{re.escape(word)}\b", step.sql, re.IGNORECASE)
    return (None, "") if match is None else (place_in(step.sql, match.start()), match.group())


def order_hint() -> str:
    """How to take the order of arrival out of a result."""
    return "use it OVER (… ORDER BY …) with an order that has no ties, or sort_array(collect_list(x))"
