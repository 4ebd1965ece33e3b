"""Which columns of a plan are times that move on, and how far they have come.

The watermark of an input says that no later row is older. Through a projection such as a window's start, a
date or a time and some days the same can be said of what is computed: no later value is smaller than the
value at the watermark. Such a column is called a *time* here, and the smallest value that can still come its
*mark*. A group, a window or a row that waits for a partner is complete when the marks have passed it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odfchain.engine.catalyst import Attribute, Catalyst, PlanNode, class_name, scala_items

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_MONOTONE = frozenset(
    [
        "AddMonths",
        "Alias",
        "Cast",
        "DateAdd",
        "DateAddInterval",
        "DateAddYMInterval",
        "DateSub",
        "DatetimeSub",
        "KnownNotNull",
        "KnownNullable",
        "LastDay",
        "ParseToDate",
        "PreciseTimestampConversion",
        "TimestampAdd",
        "TimestampAddInterval",
        "TruncDate",
        "TruncTimestamp",
    ]
)
"""Expressions whose value never falls while the time in them rises, if `_keeps_order` says so."""

_CAST = frozenset(["date", "timestamp", "timestamp_ntz"])
_VARYING_UNITS = frozenset(["MONTH", "QUARTER", "YEAR"])

_SHIFTS = frozenset(["Alias", "Cast", "DatetimeSub", "TimestampAddInterval"])
"""Of these, those that can add the same length of time to every time."""

_FLOORS = frozenset(["Alias", "Cast", "ParseToDate", "TruncDate", "TruncTimestamp"])
"""Of these, those whose value is never later than the time in them."""

_WINDOWS = ("spark.timeWindow", "spark.sessionWindow")
_TIMES = ("timestamp", "date")
_DAY = 86_400_000_000
_REMEMBERED = 10_000
"""Computed times that are kept [count]: they only save asking Spark again."""
_PROBES = (0, 31 * _DAY, 59 * _DAY, 19_782 * _DAY, 19_783 * _DAY + 1, -40_000 * _DAY)
"""Times at which a shift is tried: different lengths of months and years, before and after 1970 [µs]."""


@dataclass(frozen=True, slots=True)
class TimePoint:
    """A point in time [µs since 1970], for windows with the end."""

    start: int
    end: int | None = None


@dataclass(frozen=True, slots=True)
class TimeMark:
    """Smallest value that can still come: before this step, after it, and what may be promised to others.

    What is older was complete before the step, or is complete now. What is complete is kept for some time, in
    which late rows and corrections change it.
    """

    before: TimePoint | None
    now: TimePoint | None
    promise: TimePoint | None
    kept_before: TimePoint | None
    """What is older could not be changed any more when the step began."""
    kept_now: TimePoint | None
    """What is older cannot be changed any more, and is forgotten."""

    def points(self) -> tuple[TimePoint | None, ...]:
        """All of them as a row."""
        return self.before, self.now, self.promise, self.kept_before, self.kept_now


@dataclass(frozen=True, slots=True)
class TimeExpression:
    """A time computed from one time of the child; without an expression it is the same."""

    source: int
    expression: Any = None
    floor: bool = True
    """Whether its value is never later than the source's."""


class EventTimes:
    """Recognises times in expressions, and computes their marks."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        # a step begins at the moment at which the one before it ended
        self._known: dict[tuple[int, TimePoint], TimePoint | None] = {}

    # --- recognising -------------------------------------------------------------------------------

    def find(self, expression: Any, times: Collection[int]) -> TimeExpression | None:
        """The time that an expression computes; None when it computes none."""
        kind = class_name(expression)
        if kind == "AttributeReference":
            number = expression.exprId().id()
            return TimeExpression(number) if number in times else None
        if kind == "Alias" and any(m in expression.metadata().json() for m in _WINDOWS):
            used = {a.exprId().id() for a in scala_items(expression.references().toSeq())}
            return TimeExpression(min(used), expression) if len(used) == 1 and used <= set(times) else None
        if expression.dataType().typeName() not in _TIMES:
            return None
        found = self._source(expression, times, _MONOTONE)
        if found is None:
            return None
        if kind == "Alias" and class_name(expression.child()) == "AttributeReference":
            return TimeExpression(found)
        return TimeExpression(found, expression, self._source(expression, times, _FLOORS) is not None)

    def _source(self, expression: Any, times: Collection[int], allowed: frozenset[str]) -> int | None:
        """The one time in an expression of which all else is constant and every step is allowed."""
        kind = class_name(expression)
        if kind == "AttributeReference":
            number: int = expression.exprId().id()
            return number if number in times else None
        if kind == "GetStructField":
            child = expression.child()
            if class_name(child) != "AttributeReference" or child.exprId().id() not in times:
                return None
            if allowed is _FLOORS and expression.ordinal() != 0:  # a window ends after the times in it
                return None
            return int(child.exprId().id())
        if kind not in allowed or not _keeps_order(expression):
            return None
        varying = [child for child in scala_items(expression.children()) if not child.foldable()]
        return self._source(varying[0], times, allowed) if len(varying) == 1 else None

    def shift(self, expression: Any, times: Mapping[int, Attribute]) -> tuple[int, int] | None:
        """(time, what is added to it [µs]) of an expression that only adds a fixed length; None otherwise."""
        if class_name(expression) == "AttributeReference":
            number = expression.exprId().id()
            return (number, 0) if number in times else None
        found = self._source(expression, times, _SHIFTS)
        if found is None or expression.dataType().typeName() != "timestamp":
            return None
        if times[found].reference.dataType().typeName() != "timestamp":
            return None
        points = [TimePoint(probe) for probe in _PROBES]
        values = self.evaluate([self._catalyst.alias(expression, "shifted")], times[found], points)[0]
        shifts = {v.start - m.start for v, m in zip(values, points, strict=True) if v is not None}
        return (found, shifts.pop()) if len(shifts) == 1 else None

    # --- computing ---------------------------------------------------------------------------------

    def marks(
        self, wanted: Mapping[int, TimeExpression], child: PlanNode, known: Mapping[int, TimeMark]
    ) -> dict[int, TimeMark]:
        """The marks of computed times, given those of the child's."""
        found: dict[int, TimeMark] = {}
        sources: dict[int, list[int]] = {}
        for number, time in wanted.items():
            if time.source not in known:
                continue
            if time.expression is None:
                found[number] = known[time.source]
            else:
                sources.setdefault(time.source, []).append(number)
        for source, numbers in sources.items():
            (attribute,) = [a for a in child.output if a.id == source]
            points = [m for m in known[source].points() if m is not None]
            new = [
                m
                for m in dict.fromkeys(points)
                if any((id(wanted[n]), m) not in self._known for n in numbers)
            ]
            if len(self._known) > _REMEMBERED:
                self._known.clear()
                new = list(dict.fromkeys(points))
            expressions = [self._named(wanted[n].expression) for n in numbers]
            values = self.evaluate(expressions, attribute, new) if new else []
            for number, row in zip(numbers, values, strict=False):
                self._known |= {(id(wanted[number]), m): v for m, v in zip(new, row, strict=True)}
            for n in numbers:
                found[n] = TimeMark(*[m and self._known[id(wanted[n]), m] for m in known[source].points()])
        return found

    def _named(self, expression: Any) -> Any:
        return expression if class_name(expression) == "Alias" else self._catalyst.alias(expression, "time")

    def evaluate(
        self, expressions: Sequence[Any], attribute: Attribute, points: Sequence[TimePoint | None]
    ) -> list[list[TimePoint | None]]:
        """The value of each expression at each moment of one attribute."""
        if not any(points):
            return [[None] * len(points) for _ in expressions]
        plan = self._catalyst.adapted(self._probe(attribute, points), [attribute])
        frame = self._catalyst.frame(self._catalyst.project(plan, expressions))
        return read_moments(frame, len(points))

    def probe(self, child: PlanNode, source: int, points: Sequence[TimePoint | None]) -> Any:
        """A plan with the child's attributes and a row for each moment; all but the time is null."""
        index = next(i for i, a in enumerate(child.output) if a.id == source)
        frame = self._probe(child.output[index], points)
        return self._catalyst.adapted(frame.withColumnRenamed("c0", f"c{index}"), child.output)

    def _probe(self, attribute: Attribute, points: Sequence[TimePoint | None]) -> DataFrame:
        from pyspark.sql import functions as F

        def number(value: int | None) -> str:
            return "CAST(NULL AS BIGINT)" if value is None else f"{value}L"

        rows = ", ".join(
            f"({number(m.start if m else None)}, {number(m.end if m else None)})" for m in points
        )
        frame = self._catalyst.session.sql(f"SELECT * FROM VALUES {rows} AS t(s, e)")  # noqa: S608 - numbers
        kind = attribute.reference.dataType().typeName()
        start, end = F.timestamp_micros("s"), F.timestamp_micros("e")
        if kind == "struct":
            value = F.when(F.col("s").isNotNull(), F.struct(start.alias("start"), end.alias("end")))
        elif kind == "date":
            value = start.cast("date")
        else:
            value = start
        return frame.select(value.alias("c0"))


def _keeps_order(expression: Any) -> bool:
    """Whether a later time never becomes an earlier one.

    Text may be read back in another order, and numbers are rounded. Months cut the day but not the time of
    the day: a month after January 31, 01:00 comes before a month after January 30, 23:00.
    """
    kind = class_name(expression)
    if kind == "Cast":
        return {t.typeName() for t in (expression.dataType(), expression.child().dataType())} <= _CAST
    if kind == "TimestampAdd":
        return expression.unit().upper() not in _VARYING_UNITS
    if kind == "TimestampAddInterval":
        return bool(expression.interval().dataType().typeName() != "interval")
    return True


def as_micros(value: Column, kind: str) -> Column:
    """A timestamp, or a date's midnight, as microseconds since 1970."""
    from pyspark.sql import functions as F

    return F.unix_date(value).cast("bigint") * _DAY if kind == "date" else F.unix_micros(value)


def read_moments(frame: DataFrame, count: int) -> list[list[TimePoint | None]]:
    """The times in each column of a frame that has one row for each moment."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as t

    parts = []
    for index, moment in enumerate(frame.schema):
        column = F.col(f"c{index}")
        if isinstance(moment.dataType, t.StructType):
            parts += [F.unix_micros(column["start"]), F.unix_micros(column["end"])]
        else:
            name = "date" if isinstance(moment.dataType, t.DateType) else "timestamp"
            parts += [as_micros(column, name), F.lit(None).cast("bigint")]
    rows = frame.select(*parts).collect()
    assert len(rows) == count  # noqa: S101 - a projection keeps its rows
    return [
        [None if row[at] is None else TimePoint(row[at], row[at + 1]) for row in rows]
        for at in range(0, len(parts), 2)
    ]
