"""What a query does with time: its plan as operators, each with what it must remember.

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from odfchain.engine.catalyst import Attribute, Catalyst, PlanNode, class_name, scala_items
from odfchain.engine.stream.event_times import EventTimes, TimeExpression
from odfchain.model.events import DatasetVocabulary


class QueryKind(enum.Enum):
    """What a query must remember from one step to the next; the values stand in recorded checkpoints."""

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
    """Whether an operator keeps rows until the watermark has passed what they belong to."""
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


class PlanReader:
    """Makes operators of a plan."""

    def __init__(
        self, catalyst: Catalyst, times: EventTimes, vocabularies: Mapping[str, DatasetVocabulary]
    ) -> None:
        """`vocabularies` are those of the inputs by table."""
        self._catalyst = catalyst
        self._times = times
        self._vocabularies = vocabularies

    def read(self, root: PlanNode) -> Operator:
        """The operators of a query."""
        return self._read(root)

    def _read(self, node: PlanNode, conditions: tuple[Any, ...] = ()) -> Operator:
        if node.table is not None:
            numbers = {a.name: a.id for a in node.output}
            offset, operation, system_time, time = (
                numbers[name] for name in self._vocabularies[node.table].columns
            )
            return InputScan(
                node=node, event_time=time, operation=operation, times={time: TimeExpression(time)},
                made=frozenset((offset, system_time)),
            )  # fmt: skip
        if node.kind == "Sort":
            below = self._read(node.children[0])
            # rows of stateless queries stay in the order they come in, others have an order of their own
            stateless = kind_of(below) is QueryKind.STATELESS
            return RowWise(node=node, children=(below,), times=_passed(node, below)) if stateless else below
        given: tuple[Any, ...] = ()
        if node.kind == "Filter":
            given = (node.plan.condition(),)
        children = tuple(self._read(child, given) for child in node.children)
        if all(isinstance(child, ConstantRows) for child in children):
            return ConstantRows(node=node, children=children)
        if self._catalyst.has_subquery(node):
            return Retracting(node=node, children=children, why="a subquery")
        windowed = self._recognised(node, children, conditions)
        if windowed is None:
            return Retracting(node=node, children=children, why=_CALLED.get(node.kind, node.kind.upper()))
        return windowed

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
                return self._by_time(node, children[0], scala_items(node.plan.partitionSpec()), passed)
            case "Join":
                return self._join(node, children, conditions)
        if node.kind in _ROWWISE:
            return RowWise(node=node, children=children, times=_passed(node, children[0]))
        return None

    # --- by kind of node ---------------------------------------------------------------------------

    def _projected(self, node: PlanNode, child: Operator) -> dict[int, TimeExpression]:
        named = scala_items(node.plan.projectList())
        times = {e.exprId().id(): self._times.find(e, child.times) for e in named}
        return {number: time for number, time in times.items() if time is not None}

    def _expanded(self, node: PlanNode, child: Operator) -> Operator:
        """The windows that a row is in, or its grouping sets, which have no time."""
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
        grouping = scala_items(node.plan.groupingExpressions())
        for attribute in child.node.output:
            if attribute.is_session and any(_is(g, attribute.id) for g in grouping):
                return self._session(node, child, attribute)
        return self._by_time(node, child, grouping, scala_items(node.plan.aggregateExpressions()))

    def _by_time(
        self, node: PlanNode, child: Operator, keys: Iterable[Any], outputs: Iterable[Any]
    ) -> Operator | None:
        """Groups of rows by a time among `keys`; None where there is none."""
        key = self._key(keys, child)
        if key is None:
            return None
        return TimeGroup(node=node, children=(child,), key=key, times=self._grouped(outputs, key, child))

    def _key(self, expressions: Iterable[Any], child: Operator) -> TimeExpression | None:
        """The time among the expressions that rows are grouped by; a window before any other."""
        times = [time for e in expressions if (time := self._times.find(e, child.times)) is not None]
        windows = [t for t in times if t.expression is None and child.attribute(t.source).is_window]
        return next(iter(windows or times), None)

    def _grouped(
        self, outputs: Iterable[Any], key: TimeExpression, child: Operator
    ) -> dict[int, TimeExpression]:
        """The times among the columns of complete groups: what comes from the key, or is not before it."""
        later = _not_before(key, child)
        found = {}
        for output in outputs:
            time = self._times.find(output, child.times)
            if time is not None and self._from_key(output, time, key):
                found[output.exprId().id()] = time
            elif _time_within(output) in later:
                found[output.exprId().id()] = dataclasses.replace(key, floor=False)
        return found

    @staticmethod
    def _from_key(output: Any, time: TimeExpression, key: TimeExpression) -> bool:
        if time.source != key.source:
            return False
        if key.expression is None:
            return True
        value = output.child() if class_name(output) == "Alias" else output
        return bool(value.semanticEquals(key.expression))

    def _session(self, node: PlanNode, child: Operator, session: Attribute) -> Operator | None:
        time = child.times.get(session.id)
        if time is None:
            return None
        times = {}
        for output in scala_items(node.plan.aggregateExpressions()):
            found = self._times.find(output, {session.id})
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
                a = self._times.shift(one, {n: left.attribute(n) for n in left.times})
                b = self._times.shift(other, {n: right.attribute(n) for n in right.times})
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
    """The comparisons that must all hold."""
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


def _is(expression: Any, number: int) -> bool:
    return class_name(expression) == "AttributeReference" and expression.exprId().id() == number


def _not_before(key: TimeExpression, child: Operator) -> set[int]:
    """The columns of the child whose times are never before the key of their group."""
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
    """The column of which the smallest or largest value is taken, or that is passed on."""
    value = output.child() if class_name(output) == "Alias" else output
    if class_name(value) == "AggregateExpression":
        function = value.aggregateFunction()
        if class_name(function) not in ("Max", "Min"):
            return None
        value = function.children().apply(0)
    return int(value.exprId().id()) if class_name(value) == "AttributeReference" else None
