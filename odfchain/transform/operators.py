"""A query's plan as operators with their times, each with the memory that it needs.

    stateless   every row by itself: projections, filters, UNION ALL, joins with constants
    windowed    groups by a time, sessions, joins that bound the difference of two times: complete when the
                marks have passed, and forgotten then
    retracting  everything else: a later row may change any earlier result

The kind of a query is that of its hungriest operator. Nothing is guessed: what is not recognised here is
retracting. Source: RFC-019.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from odfchain.lazy import F, t
from odfchain.odf.events import DatasetVocabulary
from odfchain.spark.plans import class_name, items, java_of, jvm_of, of_plan, the_object
from odfchain.spark.query_rules import names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# Analyzed Spark plans as plain trees. A query's plan is made over empty tables; later leaves or branches are
# replaced by rows that carry the same attribute numbers.

_TRANSPARENT = ("SubqueryAlias",)


@dataclass(frozen=True, slots=True)
class Attribute:
    """A column of a plan: its number, what it is called, and the JVM's object."""

    id: int
    name: str
    reference: Any

    @property
    def is_window(self) -> bool:
        """True if `window(…)` computes it: a struct of start and end."""
        return "spark.timeWindow" in self.reference.metadata().json()

    @property
    def is_session(self) -> bool:
        """True if `session_window(…)` computes it."""
        return "spark.sessionWindow" in self.reference.metadata().json()


@dataclass(frozen=True, slots=True)
class PlanNode:
    """A node of a plan; `kind` is Spark's class, without the package."""

    kind: str
    plan: Any
    children: tuple[PlanNode, ...]
    output: tuple[Attribute, ...]
    table: str | None = None
    """The input of a leaf."""

    def walk(self) -> Iterator[PlanNode]:
        """The node and all beneath it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class _AttributeParts:
    """Parts of an attribute in the JVM: its number, its metadata, a null of its type."""

    number: Any
    metadata: Any
    null: Any


def unaliased(expression: Any) -> Any:
    """The expression without the name that it has in a projection."""
    return expression.child() if class_name(expression) == "Alias" else expression


def number_of(expression: Any) -> int | None:
    """The number of the attribute that an expression is; None for other expressions."""
    return int(expression.exprId().id()) if class_name(expression) == "AttributeReference" else None


def used_by(*expressions: Any) -> frozenset[int]:
    """The numbers of the attributes that expressions, or nodes of a plan, refer to."""
    return frozenset(a.exprId().id() for e in expressions for a in items(e.references().toSeq()))


class Catalyst:
    """Reads and makes plans in the JVM of one session."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self._jvm = jvm_of(session)
        self._java = java_of(session)
        sql = self._jvm.org.apache.spark.sql
        self._logical = sql.catalyst.plans.logical
        self._expressions = sql.catalyst.expressions
        self._plans = sql.catalyst.plans
        self._to_seq = self._jvm.org.apache.spark.api.python.PythonUtils.toSeq
        self._none = the_object(self._jvm.scala, "None")
        self._nothing = self._to_seq([])
        self._known: dict[int, _AttributeParts] = {}
        self._inline = sql.catalyst.optimizer.InlineCTE(True, False, False)

    # --- reading -----------------------------------------------------------------------------------

    def read(self, plan: Any, tables: Iterable[str]) -> PlanNode:
        """The nodes of an analyzed plan; views named in `tables` are leaves, others are looked through."""
        # common table expressions (WITH) are inlined
        return self._read(self._inline.apply(plan), frozenset(tables))

    def _read(self, plan: Any, tables: frozenset[str]) -> PlanNode:
        kind = class_name(plan)
        while kind in _TRANSPARENT or (kind == "View" and not self._is_input(plan, tables)):
            plan = plan.children().apply(0)
            kind = class_name(plan)
        table = self._table(plan) if kind == "View" else None
        children = () if table else tuple(self._read(c, tables) for c in items(plan.children()))
        return PlanNode(kind, plan, children, self.attributes(plan), table)

    def _is_input(self, view: Any, tables: frozenset[str]) -> bool:
        # inputs are views of empty rows; a temporal table has the name of one and is made of it
        below = class_name(view.children().apply(0))
        return self._table(view) in tables and below == "LocalRelation"

    @staticmethod
    def _table(view: Any) -> str:
        name: str = view.desc().identifier().table()
        return name

    @staticmethod
    def attributes(plan: Any) -> tuple[Attribute, ...]:
        """The columns of a plan."""
        return tuple(Attribute(a.exprId().id(), a.name(), a) for a in items(plan.output()))

    @staticmethod
    def has_subquery(node: PlanNode) -> bool:
        """True if an expression of the node holds a query of its own."""
        return not node.plan.subqueries().isEmpty() or not node.plan.innerChildren().isEmpty()

    # --- making ------------------------------------------------------------------------------------

    def rebuilt(self, node: PlanNode, children: Sequence[Any]) -> Any:
        """The node over other plans that have its children's attributes."""
        return node.plan.withNewChildren(self._to_seq(list(children))) if children else node.plan

    def frame(self, plan: Any) -> DataFrame:
        """The rows of a plan, with columns `c0`, `c1`, … by position."""
        from pyspark.sql import DataFrame

        made = DataFrame(of_plan(self._java, self._jvm, plan), self.session)
        return made.toDF(*[f"c{index}" for index in range(len(made.columns))])

    def no_rows(self, node: PlanNode) -> DataFrame:
        """None of the rows of a node, as `frame` has them."""
        return self.frame(node.plan).where("false")

    def adapted(self, frame: DataFrame, attributes: Sequence[Attribute]) -> Any:
        """The plan of `frame`, whose columns `c0`, `c1`, … become these attributes; missing ones are null."""
        places = {name: index for index, name in enumerate(frame.schema.names)}
        plan = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
        output, nothing = plan.output(), self._nothing
        named = []
        for index, attribute in enumerate(attributes):
            known = self._known_of(attribute)
            place = places.get(f"c{index}")
            value = known.null if place is None else output.apply(place)
            named.append(
                self._expressions.Alias(value, attribute.name, known.number, nothing, known.metadata, nothing)
            )
        return self.project(plan, named)

    def _known_of(self, attribute: Attribute) -> _AttributeParts:
        # asked of the JVM once for each attribute of a query: calls are slow
        if (known := self._known.get(attribute.id)) is None:
            reference = attribute.reference
            known = self._known[attribute.id] = _AttributeParts(
                reference.exprId(),
                self._jvm.scala.Option.apply(reference.metadata()),
                self._expressions.Literal(None, reference.dataType()),
            )
        return known

    def project(self, plan: Any, named: Sequence[Any]) -> Any:
        """A plan that computes these named expressions."""
        return self._logical.Project(self._to_seq(list(named)), plan)

    def alias(self, expression: Any, name: str) -> Any:
        """The expression under a name and a number of its own."""
        fresh = the_object(self._expressions, "NamedExpression").newExprId()
        nothing = self._nothing
        return self._expressions.Alias(expression, name, fresh, nothing, self._none, nothing)

    def join(self, node: PlanNode, left: Any, right: Any, kind: str) -> Any:
        """A join of the node's condition and of another type (such as `Inner`), over these plans."""
        hint, join_type = self._logical.JoinHint.NONE(), the_object(self._plans, kind)
        return self._logical.Join(left, right, join_type, node.plan.condition(), hint)

    @staticmethod
    def schema_of(plan: Any) -> StructType:
        """The names, types and nullability of a plan's columns."""
        from pyspark.sql.types import StructType

        return StructType.fromJson(json.loads(plan.schema().json()))


# A watermark says that no later row is older. The same holds for what is computed monotonically from the
# event time (a window's start, a date, a time plus days). Such a column is a *time*, and the smallest value
# that can still come its *mark*. A group, window or waiting row is complete when the marks have passed it.

_MONOTONE = names(
    """
        AddMonths Alias Cast DateAdd DateAddInterval DateAddYMInterval DateSub DatetimeSub KnownNotNull
        KnownNullable LastDay ParseToDate PreciseTimestampConversion TimestampAdd TimestampAddInterval
        TruncDate TruncTimestamp"""
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
    """Older rows could not change any more when the step began."""
    kept_now: TimePoint | None
    """Older rows cannot change any more, and are forgotten."""

    def points(self) -> tuple[TimePoint | None, ...]:
        """All of them as a row."""
        return self.before, self.now, self.promise, self.kept_before, self.kept_now


@dataclass(frozen=True, slots=True)
class TimeExpression:
    """A time computed from one time of the child; without an expression it is the same."""

    source: int
    expression: Any = None
    floor: bool = True
    """True if its value is never later than the source's."""


class EventTimes:
    """Recognises times in expressions, and computes their marks."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._catalyst = catalyst
        # a step begins at the moment at which the one before it ended
        self._known: dict[tuple[int, TimePoint], TimePoint | None] = {}

    # --- recognising -------------------------------------------------------------------------------

    def find(self, expression: Any, times: Collection[int]) -> TimeExpression | None:
        """The time that an expression computes; None when it computes none."""
        if (number := number_of(expression)) is not None:
            return TimeExpression(number) if number in times else None
        is_named = class_name(expression) == "Alias"
        if is_named and any(m in expression.metadata().json() for m in _WINDOWS):
            used = used_by(expression)
            return TimeExpression(min(used), expression) if len(used) == 1 and used <= set(times) else None
        if expression.dataType().typeName() not in _TIMES:
            return None
        found = self._source(expression, times, _MONOTONE)
        if found is None:
            return None
        if is_named and number_of(expression.child()) is not None:
            return TimeExpression(found)
        return TimeExpression(found, expression, self._source(expression, times, _FLOORS) is not None)

    def _source(self, expression: Any, times: Collection[int], allowed: frozenset[str]) -> int | None:
        # one time only, and all else constant: otherwise nothing is known of the order
        kind = class_name(expression)
        if kind == "GetStructField":
            if allowed is _FLOORS and expression.ordinal() != 0:  # a window ends after the times in it
                return None
            expression = expression.child()
        if kind in ("AttributeReference", "GetStructField"):
            number = number_of(expression)
            return number if number in times else None
        if kind not in allowed or not _keeps_order(expression):
            return None
        varying = [child for child in items(expression.children()) if not child.foldable()]
        return self._source(varying[0], times, allowed) if len(varying) == 1 else None

    def shift(self, expression: Any, times: Mapping[int, Attribute]) -> tuple[int, int] | None:
        """(time, what is added to it [µs]) of an expression that only adds a fixed length; None otherwise."""
        if (number := number_of(expression)) is not None:
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
            distinct = dict.fromkeys(points)
            new = [m for m in distinct if any((id(wanted[n]), m) not in self._known for n in numbers)]
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
        return _read_moments(frame, len(points))

    def probe(self, child: PlanNode, source: int, points: Sequence[TimePoint | None]) -> Any:
        """A plan with the child's attributes and a row for each moment; all but the time is null."""
        index = next(i for i, a in enumerate(child.output) if a.id == source)
        frame = self._probe(child.output[index], points)
        return self._catalyst.adapted(frame.withColumnRenamed("c0", f"c{index}"), child.output)

    def _probe(self, attribute: Attribute, points: Sequence[TimePoint | None]) -> DataFrame:
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
    # text may be read back in another order, and numbers are rounded; months cut the day but not the time:
    # January 31, 01:00 plus a month comes before January 30, 23:00 plus a month
    kind = class_name(expression)
    if kind == "Cast":
        return {t.typeName() for t in (expression.dataType(), expression.child().dataType())} <= _CAST
    if kind == "TimestampAdd":
        return expression.unit().upper() not in _VARYING_UNITS
    if kind == "TimestampAddInterval":
        return bool(expression.interval().dataType().typeName() != "interval")
    return True


def _read_moments(frame: DataFrame, count: int) -> list[list[TimePoint | None]]:
    # the times in each column of a frame that has one row for each moment
    parts = []
    for index, moment in enumerate(frame.schema):
        column = F.col(f"c{index}")
        if isinstance(moment.dataType, t.StructType):
            parts += [F.unix_micros(column["start"]), F.unix_micros(column["end"])]
        elif isinstance(moment.dataType, t.DateType):
            parts += [F.unix_date(column).cast("bigint") * _DAY, F.lit(None).cast("bigint")]
        else:
            parts += [F.unix_micros(column), F.lit(None).cast("bigint")]
    rows = frame.select(*parts).collect()
    assert len(rows) == count  # noqa: S101 - a projection keeps its rows
    return [
        [None if row[at] is None else TimePoint(row[at], row[at + 1]) for row in rows]
        for at in range(0, len(parts), 2)
    ]


class QueryKind(enum.Enum):
    """The memory that a query needs between steps; the values are part of recorded checkpoints."""

    STATELESS = "stateless"
    WINDOWED = "bounded"
    RETRACTING = "unbounded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A node of the plan, and the times among its columns."""

    node: PlanNode
    children: tuple[Operator, ...] = ()
    times: Mapping[int, TimeExpression] = field(default_factory=dict)
    """For each column that is a time the time of a child that it comes from."""

    def walk(self) -> Iterator[Operator]:
        """The operator and all beneath it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    def attribute(self, number: int) -> Attribute:
        """The column of this number."""
        return next(a for a in self.node.output if a.id == number)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputScan(Operator):
    """The rows of an input; its event time is the one time that others come from."""

    event_time: int
    operation: int
    made: frozenset[int]
    """The columns that are made when a row is recorded: a row and what takes it back differ in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantRows(Operator):
    """Rows that the query itself spells out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowWise(Operator):
    """Every row by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnionAll(Operator):
    """UNION ALL; a column is a time when it is one in every branch."""

    branches: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeGroup(Operator):
    """Rows that belong together share a time: complete when no later row can have it."""

    key: TimeExpression


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindow(Operator):
    """Rows that follow each other closely; complete when the watermark has passed the end."""

    session: int
    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalJoin(Operator):
    """Pairs whose right time is `low` to `high` microseconds after the left one."""

    kind: str
    left_time: int
    right_time: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Retracting(Operator):
    """Anything: all rows are needed, for ever."""

    why: str
    """The construct that makes it so, as the user knows it."""


def kind_of(root: Operator) -> QueryKind:
    """The kind of a query."""
    if any(isinstance(op, Retracting) for op in root.walk()):
        return QueryKind.RETRACTING
    return QueryKind.WINDOWED if any(is_windowed(op) for op in root.walk()) else QueryKind.STATELESS


def is_windowed(op: Operator) -> bool:
    """True if an operator keeps rows until the watermark has passed what they belong to."""
    return isinstance(op, TimeGroup | SessionWindow | IntervalJoin)


_ROWWISE = frozenset({"Filter", "Generate", "Project", "View"})
_PASSING_CONSTANTS = {
    "Inner": (True, True), "Cross": (True, True), "LeftOuter": (False, True), "RightOuter": (True, False),
    "LeftSemi": (False, True), "LeftAnti": (False, True),
}  # fmt: skip
"""Joins that treat every row by itself when the (left, right) side is constant."""

_CALLED = {
    "Aggregate": "GROUP BY without a time", "Window": "OVER without a time in PARTITION BY",
    "Distinct": "DISTINCT without a time", "Join": "JOIN without bounds on the difference of the times",
    "GlobalLimit": "LIMIT", "LocalLimit": "LIMIT", "Offset": "OFFSET", "Union": "UNION with constant rows",
    "LateralJoin": "LATERAL",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class PlanReader:
    """Makes operators of a plan."""

    times: EventTimes
    vocabularies: Mapping[str, DatasetVocabulary]
    """Those of the inputs, by table."""

    def read(self, node: PlanNode, conditions: tuple[Any, ...] = ()) -> Operator:
        """The operators of a query; `conditions` are those of a filter right above the node."""
        if node.table is not None:
            numbers = {a.name: a.id for a in node.output}
            offset, operation, system_time, time = (numbers[n] for n in self.vocabularies[node.table].columns)
            return InputScan(
                node=node, event_time=time, operation=operation, times={time: TimeExpression(time)},
                made=frozenset((offset, system_time)),
            )  # fmt: skip
        if node.kind == "Sort":
            below = self.read(node.children[0])
            # rows of stateless queries stay in the order they come in, others have an order of their own
            stateless = kind_of(below) is QueryKind.STATELESS
            return RowWise(node=node, children=(below,), times=_passed(node, below)) if stateless else below
        given = (node.plan.condition(),) if node.kind == "Filter" else ()
        children = tuple(self.read(child, given) for child in node.children)
        if all(isinstance(child, ConstantRows) for child in children):
            return ConstantRows(node=node, children=children)
        if Catalyst.has_subquery(node):
            return Retracting(node=node, children=children, why="a subquery")
        why = _CALLED.get(node.kind, node.kind.upper())
        recognised = self._recognised(node, children, conditions)
        return recognised or Retracting(node=node, children=children, why=why)

    def _recognised(
        self, node: PlanNode, children: tuple[Operator, ...], conditions: tuple[Any, ...]
    ) -> Operator | None:
        match node.kind:
            case "Project":
                return RowWise(node=node, children=children, times=self._projected(node, children[0]))
            case "Expand":
                return self._expanded(node, children[0])
            case "Union":
                return self._union(node, children)
            case "Aggregate":
                return self._aggregate(node, children[0])
            case "Distinct":
                passed = [a.reference for a in children[0].node.output]
                return self._by_time(node, children[0], passed, passed)
            case "Window":
                passed = [a.reference for a in children[0].node.output]
                return self._by_time(node, children[0], items(node.plan.partitionSpec()), passed)
            case "Join":
                return self._join(node, children, conditions)
        if node.kind in _ROWWISE:
            return RowWise(node=node, children=children, times=_passed(node, children[0]))
        return None

    # --- by kind of node ---------------------------------------------------------------------------

    def _projected(self, node: PlanNode, child: Operator) -> dict[int, TimeExpression]:
        named = items(node.plan.projectList())
        times = {e.exprId().id(): self.times.find(e, child.times) for e in named}
        return {number: time for number, time in times.items() if time is not None}

    def _expanded(self, node: PlanNode, child: Operator) -> Operator:
        # grouping sets have no time
        windows = [a for a in node.output if a.is_window]
        times = _passed(node, child)
        if len(windows) == 1 and len(child.times) == 1:
            (source,) = child.times
            times[windows[0].id] = TimeExpression(source)
        return RowWise(node=node, children=(child,), times=times)

    def _union(self, node: PlanNode, children: tuple[Operator, ...]) -> Operator | None:
        if any(isinstance(child, ConstantRows) for child in children):
            return None
        branches = {}
        for index, attribute in enumerate(node.output):
            numbers = tuple(child.node.output[index].id for child in children)
            if all(n in child.times for n, child in zip(numbers, children, strict=True)):
                branches[attribute.id] = numbers
        times = {number: TimeExpression(number) for number in branches}
        return UnionAll(node=node, children=children, times=times, branches=branches)

    def _aggregate(self, node: PlanNode, child: Operator) -> Operator | None:
        grouping = items(node.plan.groupingExpressions())
        for attribute in child.node.output:
            if attribute.is_session and attribute.id in map(number_of, grouping):
                return self._session(node, child, attribute)
        return self._by_time(node, child, grouping, items(node.plan.aggregateExpressions()))

    def _by_time(
        self, node: PlanNode, child: Operator, keys: Iterable[Any], outputs: Iterable[Any]
    ) -> Operator | None:
        # None without a time among the keys
        key = self._key(keys, child)
        if key is None:
            return None
        return TimeGroup(node=node, children=(child,), key=key, times=self._grouped(outputs, key, child))

    def _key(self, expressions: Iterable[Any], child: Operator) -> TimeExpression | None:
        # a window is preferred to any other time
        times = [time for e in expressions if (time := self.times.find(e, child.times)) is not None]
        windows = [t for t in times if t.expression is None and child.attribute(t.source).is_window]
        return next(iter(windows or times), None)

    def _grouped(
        self, outputs: Iterable[Any], key: TimeExpression, child: Operator
    ) -> dict[int, TimeExpression]:
        # times that come from the key, or are never before it
        later = _not_before(key, child)
        found = {}
        for output in outputs:
            time = self.times.find(output, child.times)
            if time is not None and self._from_key(output, time, key):
                found[output.exprId().id()] = time
            elif _time_within(output) in later:
                found[output.exprId().id()] = dataclasses.replace(key, floor=False)
        return found

    @staticmethod
    def _from_key(output: Any, time: TimeExpression, key: TimeExpression) -> bool:
        if time.source != key.source:
            return False
        return True if key.expression is None else bool(unaliased(output).semanticEquals(key.expression))

    def _session(self, node: PlanNode, child: Operator, session: Attribute) -> Operator | None:
        time = child.times.get(session.id)
        if time is None:
            return None
        times = {}
        for output in items(node.plan.aggregateExpressions()):
            found = self.times.find(output, {session.id})
            if found is not None:
                times[output.exprId().id()] = found
        return SessionWindow(node=node, children=(child,), session=session.id, time=time.source, times=times)

    def _join(
        self, node: PlanNode, children: tuple[Operator, ...], conditions: tuple[Any, ...]
    ) -> Operator | None:
        kind = class_name(node.plan.joinType())
        left, right = children
        fixed = tuple(isinstance(child, ConstantRows) for child in children)
        if any(fixed):
            passes = _PASSING_CONSTANTS.get(kind, (False, False))
            if not all(p for p, f in zip(passes, fixed, strict=True) if f):
                return None
            return RowWise(node=node, children=children, times=_passed(node, right if fixed[0] else left))
        if kind not in ("Inner", "Cross", "LeftOuter", "RightOuter", "FullOuter", "LeftSemi", "LeftAnti"):
            return None
        own = () if node.plan.condition().isEmpty() else (node.plan.condition().get(),)
        given = own + (conditions if kind in ("Inner", "Cross") else ())
        return self._interval(node, kind, left, right, given)

    def _interval(
        self, node: PlanNode, kind: str, left: Operator, right: Operator, conditions: tuple[Any, ...]
    ) -> Operator | None:
        bounds: dict[tuple[int, int], list[int | None]] = {}
        for comparison, first, second in _comparisons(conditions):
            for compared, one, other in (
                (comparison, first, second), (_MIRRORED.get(comparison), second, first),
            ):  # fmt: skip
                a = self.times.shift(one, {n: left.attribute(n) for n in left.times})
                b = self.times.shift(other, {n: right.attribute(n) for n in right.times})
                if a is None or b is None or compared is None:
                    continue
                bound, difference = bounds.setdefault((a[0], b[0]), [None, None]), a[1] - b[1]
                # left + a OP right + b, so right - left (mirrored OP) a - b
                if compared in ("EqualTo", "LessThan", "LessThanOrEqual"):
                    bound[0] = difference if bound[0] is None else max(bound[0], difference)
                if compared in ("EqualTo", "GreaterThan", "GreaterThanOrEqual"):
                    bound[1] = difference if bound[1] is None else min(bound[1], difference)
        for (left_time, right_time), (low, high) in bounds.items():
            if low is not None and high is not None:
                kept = {a.id for a in node.output}
                times = {n: TimeExpression(n) for n in (left_time, right_time) if n in kept}
                return IntervalJoin(
                    node=node, children=(left, right), kind="Inner" if kind == "Cross" else kind, times=times,
                    left_time=left_time, right_time=right_time, low=low, high=high,
                )  # fmt: skip
        return None


_MIRRORED = {
    "EqualTo": "EqualTo", "LessThan": "GreaterThan", "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan", "GreaterThanOrEqual": "LessThanOrEqual",
}  # fmt: skip


def _comparisons(conditions: Iterable[Any]) -> Iterator[tuple[str, Any, Any]]:
    for condition in conditions:
        kind = class_name(condition)
        if kind == "And":
            yield from _comparisons((condition.left(), condition.right()))
        elif kind == "Between":
            yield "GreaterThanOrEqual", condition.input(), condition.lower()
            yield "LessThanOrEqual", condition.input(), condition.upper()
        elif kind in _MIRRORED:
            yield kind, condition.left(), condition.right()


def _passed(node: PlanNode, child: Operator) -> dict[int, TimeExpression]:
    return {a.id: TimeExpression(a.id) for a in node.output if a.id in child.times}


def _not_before(key: TimeExpression, child: Operator) -> set[int]:
    found = {key.source} if key.floor else set()
    if key.expression is not None:
        return found
    number, below = key.source, child
    while (time := below.times.get(number)) is not None and time.floor:
        number = time.source
        found.add(number)
        if len(below.children) != 1:
            break
        below = below.children[0]
    return found


def _time_within(output: Any) -> int | None:
    value = unaliased(output)
    if class_name(value) == "AggregateExpression":
        function = value.aggregateFunction()
        if class_name(function) not in ("Max", "Min"):
            return None
        value = function.children().apply(0)
    return number_of(value)
