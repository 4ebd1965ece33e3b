"""One step of a query: what the new rows add to its result, and what must be remembered for the next.

Every operator turns the changes of its children into changes of its own, by plain batch SQL over those and
the rows that it remembers. Changes are rows that are new and rows that are taken back, each as a plan of its
own. What a windowed operator emits is complete; while lateness allows, what it remembers of complete results
is computed with and without the changes, and the difference is emitted.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from odfchain.lazy import F, Window, t
from odfchain.odf.enums import TAKES_BACK, OperationType
from odfchain.spark.plans import items
from odfchain.spark.types import comparable
from odfchain.transform import operators as ops
from odfchain.transform.engines import EngineRules

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


# Rows less those that others take back.


def takes_back(operation: Column) -> Column:
    """The condition that rows with this operation take others back."""
    return operation.isin(*TAKES_BACK)


def in_force(
    rows: DataFrame, alike: Sequence[str], *, to_the_bit: bool = False
) -> tuple[DataFrame, DataFrame]:
    """(the rows in force, those that take back what is not there), both in the order in which they came.

    A row with `back` takes the oldest row out of force that came before it and has the same values in the
    columns `alike`; where there is none it has no effect, now or later. What is compared `to_the_bit` was
    emitted as it was recorded; else the rule is that of states (`odfchain.slices.state`).
    """
    values = [
        recorded(rows, name) if to_the_bit else comparable(F.col(name), rows.schema[name].dataType)
        for name in alike
    ]
    whole = Window.partitionBy(*values)
    each = whole.orderBy("i")
    until = each.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    earlier = each.rowsBetween(Window.unboundedPreceding, -1)
    numbered = rows.coalesce(1).withColumn("i", F.monotonically_increasing_id())
    step = F.when(F.col("back"), -1).otherwise(1)
    numbered = numbered.withColumn("level", F.sum(step).over(until))
    # a row that takes back what is absent has no effect, now or later: each new low of the level is one
    lowest = F.least(F.lit(0), F.coalesce(F.min("level").over(earlier), F.lit(0)))
    numbered = numbered.withColumn("unmatched", F.col("back") & (F.col("level") < lowest))
    gone = F.sum((F.col("back") & ~F.col("unmatched")).cast("int")).over(whole)
    # the oldest equal rows go first
    place = F.sum((~F.col("back")).cast("int")).over(until)
    numbered = numbered.withColumn("kept", ~F.col("back") & (place > gone)).sortWithinPartitions("i")
    made = ("i", "level", "unmatched", "kept", "back")
    return numbered.where("kept").drop(*made), numbered.where("unmatched").drop(*made)


def recorded(frame: DataFrame, name: str) -> Column:
    """A column as something that is equal only where it is recorded alike."""
    # Spark cannot compare maps, and takes -0.0 and 0.0 for the same
    column, kind = F.col(name), frame.schema[name].dataType.simpleString()
    if "map<" in kind:
        return F.to_json(F.struct(column))
    return F.struct(column, column.cast("string")) if "double" in kind or "float" in kind else column


_DAY = 86_400_000_000


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes of an operator's rows by a step, as plans with its attributes, and the marks of its times."""

    plan: Any
    """The rows that are new."""
    marks: Mapping[int, ops.TimeMark]
    back: Any = None
    """The rows that are taken back; None where there are none."""


@dataclass(slots=True)
class StepMemory:
    """The memory before a step and after it."""

    before: Mapping[str, DataFrame]
    after: dict[str, DataFrame] = field(default_factory=dict)
    late: list[tuple[str, DataFrame]] = field(default_factory=list)
    """Rows that came after what they belong to was complete, by input; they are counted and left out."""
    unmatched: list[tuple[str, DataFrame]] = field(default_factory=list)
    """Rows that take back what is not remembered, by input; they have no effect and are counted."""
    waiting: list[tuple[str, DataFrame | str]] = field(default_factory=list)
    """Rows, or the name under which they are remembered, that wait for the watermark, by input."""


@dataclass(eq=False)
class Flow:
    """Executes one step of the operators of a query."""

    catalyst: ops.Catalyst
    times: ops.EventTimes
    root: ops.Operator
    inputs: Mapping[str, DataFrame]
    """The new rows by table, columns `c0`, `c1`, … in the order of their schemas."""
    watermark: ops.TimeMark
    memory: StepMemory
    used: frozenset[int]
    """The attributes that the query needs."""
    rules: EngineRules
    changing: frozenset[str]
    """The tables of which some new rows take others back."""
    may_be_late: bool
    """False if all new rows, and so all that comes of them, are at or after the watermark before the step."""

    @functools.cached_property
    def _numbers(self) -> dict[int, int]:
        return {id(op): index for index, op in enumerate(self.root.walk())}

    def rows(self, op: ops.Operator) -> RowChanges:
        """The new rows of an operator."""
        match op:
            case ops.InputScan():
                return self._scan(op)
            case ops.ConstantRows():
                return RowChanges(op.node.plan, {})
            case ops.UnionAll():
                return self._union(op)
            case ops.RowWise():
                return self._row_wise(op)
            case ops.TimeGroup():
                return self._group(op)
            case ops.SessionWindow():
                return _session_rows(self, op)
            case ops.IntervalJoin():
                return _joined_rows(self, op)
        raise AssertionError(op.node.kind)

    def part(self, op: ops.Operator, role: str) -> str:
        """The name under which an operator remembers rows."""
        return f"{role}-{self._numbers[id(op)]}"

    def kept(self, attributes: tuple[ops.Attribute, ...]) -> list[str]:
        """The columns of these that the query uses at all."""
        return [f"c{index}" for index, a in enumerate(attributes) if a.id in self.used]

    def nothing(self, op: ops.Operator) -> Any:
        """No rows, as a plan with the attributes of an operator."""
        return self.catalyst.adapted(self.catalyst.no_rows(op.node), op.node.output)

    # --- row by row --------------------------------------------------------------------------------

    def _scan(self, op: ops.InputScan) -> RowChanges:
        table = op.node.table or ""
        frame, marks = self.inputs[table], {op.event_time: self.watermark}
        if table not in self.changing:
            return RowChanges(self.catalyst.adapted(frame, op.node.output), marks)
        operation = next(f"c{i}" for i, a in enumerate(op.node.output) if a.id == op.operation)
        back = takes_back(F.col(operation))
        # what counts is in force, however it came
        new, old = (
            self.catalyst.adapted(
                frame.where(which).withColumn(operation, F.lit(OperationType.APPEND.code)), op.node.output
            )
            for which in (~back, back)
        )
        return RowChanges(new, marks, old)

    def _union(self, op: ops.UnionAll) -> RowChanges:
        children = [self.rows(child) for child in op.children]
        marks = {}
        for number, branches in op.branches.items():
            branch_marks = [c.marks.get(n) for c, n in zip(children, branches, strict=True)]
            if all(mark is not None for mark in branch_marks):
                marks[number] = least([mark for mark in branch_marks if mark is not None])
        back = None
        if any(c.back is not None for c in children):
            pairs = zip(children, op.children, strict=True)
            plans = [c.back if c.back is not None else self.nothing(o) for c, o in pairs]
            back = self.catalyst.rebuilt(op.node, plans)
        return RowChanges(self.catalyst.rebuilt(op.node, [c.plan for c in children]), marks, back)

    def _row_wise(self, op: ops.RowWise) -> RowChanges:
        children = [self.rows(child) for child in op.children]
        plan = self.catalyst.rebuilt(op.node, [c.plan for c in children])
        varying, rows = next(
            (child, rows)
            for child, rows in zip(op.children, children, strict=True)
            if not isinstance(child, ops.ConstantRows)
        )
        marks = self.times.marks(op.times, varying.node, rows.marks)
        if op.node.kind == "Expand":
            marks |= self._window_marks(op, varying, rows.marks)
        back = None
        if rows.back is not None:
            back = self.catalyst.rebuilt(op.node, [rows.back if c is rows else c.plan for c in children])
        return RowChanges(plan, marks, back)

    def _window_marks(
        self, op: ops.RowWise, child: ops.Operator, known: Mapping[int, ops.TimeMark]
    ) -> dict[int, ops.TimeMark]:
        # the earliest of the windows that contain each moment
        found = {}
        for number, time in op.times.items():
            if number == time.source or time.source not in known:
                continue
            points = known[time.source].points()
            names = {a.id: f"c{index}" for index, a in enumerate(op.node.output)}
            probe = self.times.probe(child.node, time.source, points)
            frame = self.catalyst.frame(self.catalyst.rebuilt(op.node, [probe]))
            window, point = F.col(names[number]), F.col(names[time.source])
            frame = frame.where((window["start"] <= point) & (point < window["end"]))
            earliest = frame.groupBy(F.unix_micros(point)).agg(
                F.unix_micros(F.min(window["start"])), F.unix_micros(F.min(window["end"]))
            )
            by_moment = {row[0]: ops.TimePoint(row[1], row[2]) for row in earliest.collect()}
            # between windows that leave gaps there is none: then nothing can be said
            found[number] = ops.TimeMark(*[by_moment.get(m.start) if m else None for m in points])
        return found

    # --- groups ------------------------------------------------------------------------------------

    def _group(self, op: ops.TimeGroup) -> RowChanges:
        (child,) = op.children
        rows = self.rows(child)
        marks = self.times.marks({-1: op.key, **op.times}, child.node, rows.marks)
        mark = marks.pop(-1, NOTHING_KNOWN)
        new, key = self.with_key(rows.plan, child, op.key)
        back = None if rows.back is None else self.with_key(rows.back, child, op.key)[0]
        name = self.part(op, "group")
        new = self.without_late(table_of(op), new, key, mark.kept_before)
        columns = [*self.kept(child.node.output), "k"]
        everything = self.changed(child, name, new, back, columns, key, mark)
        complete = earlier(key, mark.now, everything)
        self.memory.after[name] = everything.where(~earlier(key, mark.kept_now, everything))
        self.waits(op, everything.where(~complete), name)
        old = self.memory.before.get(name)
        was = None if old is None else old.where(earlier(key, mark.before, old))
        return self.difference(op, everything.where(complete), was, marks)

    def difference(
        self, op: ops.Operator, now: DataFrame, was: DataFrame | None, marks: Mapping[int, ops.TimeMark]
    ) -> RowChanges:
        """The change of the result from the rows that `was` complete before to those that are `now`."""
        child = op.children[0]

        def result(frame: DataFrame) -> Any:
            return self.catalyst.rebuilt(op.node, [self.catalyst.adapted(frame, child.node.output)])

        # without lateness nothing is kept that was complete
        if was is None or not self.rules.allowed_lateness_ms:
            return RowChanges(result(now), marks)
        return self.changes(op, self.catalyst.frame(result(now)), self.catalyst.frame(result(was)), marks)

    def changes(
        self, op: ops.Operator, now: DataFrame, was: DataFrame, marks: Mapping[int, ops.TimeMark]
    ) -> RowChanges:
        """The rows of an operator that are added and removed between `was` and `now`."""
        both = now.withColumn("back", F.lit(False)).union(was.withColumn("back", F.lit(True)))
        new, gone = in_force(both, now.columns, to_the_bit=True)
        output = op.node.output
        return RowChanges(self.catalyst.adapted(new, output), marks, self.catalyst.adapted(gone, output))

    def changed(
        self,
        op: ops.Operator,
        name: str,
        new: DataFrame,
        back: DataFrame | None,
        columns: list[str],
        time: Column,
        mark: ops.TimeMark,
    ) -> DataFrame:
        """The remembered rows of an operator under a name, with new ones, less those taken `back`."""
        # a row to take back that is absent is late if the others of its time were forgotten
        everything = self.together(name, new, columns)
        if back is None:
            return everything
        both = everything.withColumn("back", F.lit(False)).union(
            back.select(*columns).withColumn("back", F.lit(True))
        )
        made = made_columns(op)
        unlike = {f"c{i}" for i, a in enumerate(op.node.output) if a.id in made}
        alike = [c for c in columns if c not in unlike]
        left, unmatched = in_force(both, alike, to_the_bit=not self.rules.takes_back_equals)
        late = earlier(time, mark.kept_before, unmatched)
        self.memory.late.append((table_of(op), unmatched.where(late)))
        self.memory.unmatched.append((table_of(op), unmatched.where(~late)))
        return left

    def waits(self, op: ops.Operator, rows: DataFrame, remembered: str | None = None) -> None:
        """Rows wait in an operator; without lateness they are what is `remembered` under a name."""
        # only rows of the inputs count, not waiting results of other windows
        if self.rules.takes_corrections and not any(
            ops.is_windowed(below) for child in op.children for below in child.walk()
        ):
            known = remembered if not self.rules.allowed_lateness_ms else None
            self.memory.waiting.append((table_of(op), rows if known is None else known))

    def with_key(self, plan: Any, child: ops.Operator, key: ops.TimeExpression) -> tuple[DataFrame, Column]:
        """The rows with the time they are grouped by as column `k`, and that as something to compare."""
        expression = key.expression if key.expression is not None else child.attribute(key.source).reference
        frame = self.with_keys(plan, child, {"k": ops.unaliased(expression)})
        column = F.col("k")
        return frame, column["start"] if isinstance(frame.schema["k"].dataType, t.StructType) else column

    def with_keys(self, plan: Any, child: ops.Operator, keys: Mapping[str, Any]) -> DataFrame:
        """The rows with what expressions compute of them as further columns."""
        columns = [a.reference for a in child.node.output]
        named = [self.catalyst.alias(expression, "key") for expression in keys.values()]
        frame = self.catalyst.frame(self.catalyst.project(plan, [*columns, *named]))
        for number, name in enumerate(keys, start=len(columns)):
            frame = frame.withColumnRenamed(f"c{number}", name)
        return frame

    def without_late(
        self, inputs: str, frame: DataFrame, time: Column, before: ops.TimePoint | None
    ) -> DataFrame:
        """The rows that are not too late; the others, which are of `inputs`, are remembered to be counted."""
        if before is None or not self.may_be_late:
            return frame
        late = earlier(time, before, frame)
        self.memory.late.append((inputs, frame.where(late)))
        return frame.where(~late)

    def together(self, name: str, new: DataFrame, columns: list[str]) -> DataFrame:
        """Remembered rows and new ones, in this order."""
        old = self.memory.before.get(name)
        rows = new.select(*columns)
        return rows if old is None else old.select(*columns).union(rows).coalesce(1)


NOTHING_KNOWN = ops.TimeMark(None, None, None, None, None)


def made_columns(op: ops.Operator) -> frozenset[int]:
    """The columns of an operator that are passed on from those that are made when a row is recorded."""
    # a windowed operator's output is made of rows in force, with their columns
    if isinstance(op, ops.InputScan):
        return op.made
    if not isinstance(op, ops.RowWise | ops.UnionAll):
        return frozenset()
    below = frozenset(n for child in op.children for n in made_columns(child))
    if isinstance(op, ops.UnionAll):
        columns = zip(op.node.output, *(child.node.output for child in op.children), strict=True)
        return frozenset(first.id for first, *others in columns if any(o.id in below for o in others))
    passed = {a.id for a in op.node.output} & below
    if op.node.kind == "Project":
        for named in items(op.node.plan.projectList()):
            if ops.number_of(ops.unaliased(named)) in below:
                passed.add(named.exprId().id())
    return frozenset(passed)


def table_of(op: ops.Operator) -> str:
    """The inputs that rows of an operator come from."""
    return ", ".join(dict.fromkeys(o.node.table or "" for o in op.walk() if isinstance(o, ops.InputScan)))


def earlier(time: Column, point: ops.TimePoint | None, frame: DataFrame) -> Column:
    """The condition that a time is before a moment; false when the moment is unknown."""
    if point is None:
        return F.lit(False)
    if frame.select(time).schema[0].dataType.typeName() == "date":
        return F.coalesce(F.unix_date(time) < -(-point.start // _DAY), F.lit(False))
    return F.coalesce(time < _moment(point.start, frame.sparkSession), F.lit(False))


def _moment(micros: int, session: SparkSession) -> Column:
    # a constant is part of a compiled plan's code, which would be compiled anew for each step; a value of a
    # query of its own, in a struct, is passed to the code
    if session.conf.get("spark.sql.codegen.wholeStage") == "false":
        return F.timestamp_micros(F.lit(micros))
    moment = f"SELECT named_struct('at', timestamp_micros(m)) FROM VALUES ({micros}L) AS t(m)"  # noqa: S608 - a number
    return F.expr(f"({moment}).at")


def least(marks: list[ops.TimeMark]) -> ops.TimeMark:
    """The mark of what comes from any of several."""

    def smallest(points: list[ops.TimePoint | None]) -> ops.TimePoint | None:
        known = [m for m in points if m is not None]
        if len(known) < len(points):
            return None
        ends = [m.end for m in known if m.end is not None]
        return ops.TimePoint(min(m.start for m in known), min(ends) if ends else None)

    return ops.TimeMark(*[smallest(list(each)) for each in zip(*[m.points() for m in marks], strict=True)])


def shifted(mark: ops.TimeMark, micros: int, *, early: int = 0) -> ops.TimeMark:
    """A mark some time later; what is complete may be held back by `early`, what is promised is not."""
    complete = ops.TimeMark(*[_moved(point, micros - early) for point in mark.points()])
    return dataclasses.replace(complete, promise=_moved(mark.promise, micros))


# Joins that bound the difference of two times. A pair is emitted in the step that brings the second of its
# rows. A row that an outer join keeps is emitted without a partner when the watermark has passed the last
# time that a partner could have. Both sides are remembered as long as they may be taken back, as long as a
# partner may come or, for outer joins, as long as what they are paired with waits. Where a row is taken back,
# or a partner may come after its time, the join of what is remembered is computed as it was and as it is, and
# the difference is emitted.

_MILLISECOND = 1_000


@dataclass(frozen=True, slots=True)
class _JoinSide:
    child: ops.Operator
    role: str
    time: Column
    old: DataFrame | None
    new: DataFrame
    changes: bool
    """True if rows are taken back."""
    everything: DataFrame
    mark: ops.TimeMark
    partner: ops.TimeMark
    first: int
    """The least that a partner is later [µs]."""
    last: int
    """The most that a partner is later [µs]."""

    def plan(self, flow: Flow, frame: DataFrame) -> Any:
        return flow.catalyst.adapted(frame, self.child.node.output)

    def resolved(self, point: ops.TimePoint | None, frame: DataFrame) -> Column:
        return earlier(self.time, _moved(point, -self.last), frame)

    def as_it_was(self, flow: Flow) -> _JoinSide:
        rows = self.old if self.old is not None else flow.catalyst.no_rows(self.child.node)
        mark = _earlier_mark(self.mark)
        return dataclasses.replace(self, everything=rows, mark=mark, partner=_earlier_mark(self.partner))

    def newly_resolved(self) -> DataFrame:
        resolved = self.new.where(self.resolved(self.partner.now, self.new))
        if self.old is None:
            return resolved
        waited = ~self.resolved(self.partner.before, self.old)
        return self.old.where(waited & self.resolved(self.partner.now, self.old)).union(resolved).coalesce(1)

    def remembered(self, *, waits: bool, may_go: bool) -> DataFrame:
        # rows that may still get a partner or be taken back, and partners of rows that still wait
        needed = [_moved(self.partner.kept_now, -self.last)]
        if may_go:
            needed.append(self.mark.kept_now)
        if waits:
            needed.append(_moved(self.mark.kept_now, self.first - self.last))
        known = [m for m in needed if m is not None]
        if len(known) < len(needed):
            return self.everything
        oldest = ops.TimePoint(min(m.start for m in known))
        return self.everything.where(~earlier(self.time, oldest, self.everything))


def _joined_rows(flow: Flow, op: ops.IntervalJoin) -> RowChanges:
    """The pairs that became complete, and the rows for which it became clear that they stay alone."""
    left, right = op.children
    first, second = flow.rows(left), flow.rows(right)
    left_mark = first.marks.get(op.left_time, NOTHING_KNOWN)
    right_mark = second.marks.get(op.right_time, NOTHING_KNOWN)
    one = _side(flow, op, left, first, ("left", op.left_time), (left_mark, right_mark), (op.low, op.high))
    other = _side(
        flow, op, right, second, ("right", op.right_time), (right_mark, left_mark), (-op.high, -op.low)
    )
    waits, may_go = op.kind != "Inner", flow.rules.takes_corrections
    flow.memory.after[flow.part(op, "left")] = one.remembered(waits=waits, may_go=may_go)
    flow.memory.after[flow.part(op, "right")] = other.remembered(waits=waits, may_go=may_go)
    # a pair may hold the oldest row that still waits for a partner
    marks = {
        op.left_time: least([left_mark, shifted(right_mark, -op.high, early=_MILLISECOND)]),
        op.right_time: least([right_mark, shifted(left_mark, op.low, early=_MILLISECOND)]),
    }
    marks = {number: marks[number] for number in op.times}
    for side, partner in ((one, other), (other, one)):
        if side.role in _WAITING.get(op.kind, ()):
            flow.waits(op, _unresolved(flow, op, side, partner))
    if one.changes or other.changes or (waits and flow.rules.allowed_lateness_ms):
        now = _result(flow, op, one, other, whole=True)
        was = _result(flow, op, one.as_it_was(flow), other.as_it_was(flow), whole=True)
        return flow.changes(op, now, was, marks)
    plan = flow.catalyst.adapted(_result(flow, op, one, other, whole=False), op.node.output)
    return RowChanges(plan, marks)


_WAITING = {
    "LeftOuter": ("left",), "LeftSemi": ("left",), "LeftAnti": ("left",), "RightOuter": ("right",),
    "FullOuter": ("left", "right"),
}  # fmt: skip
"""The sides whose rows wait until no partner can come."""


def _unresolved(flow: Flow, op: ops.IntervalJoin, side: _JoinSide, other: _JoinSide) -> DataFrame:
    # rows of an outer join that have a partner do not wait
    waiting = side.everything.where(~side.resolved(side.partner.now, side.everything))
    if op.kind in ("LeftSemi", "LeftAnti"):
        return waiting
    return _joined(flow, op, side, waiting, other, other.everything, "LeftAnti")


def _side(
    flow: Flow,
    op: ops.IntervalJoin,
    child: ops.Operator,
    rows: RowChanges,
    name: tuple[str, int],
    marks: tuple[ops.TimeMark, ops.TimeMark],
    bounds: tuple[int, int],
) -> _JoinSide:
    role, number = name
    part = flow.part(op, role)
    old = flow.memory.before.get(part)
    index = next(i for i, a in enumerate(child.node.output) if a.id == number)
    columns = flow.kept(child.node.output)
    frame = flow.catalyst.frame(rows.plan)
    time = F.col(f"c{index}")
    if isinstance(frame.schema[index].dataType, t.StructType):
        time = time["start"]
    new = flow.without_late(table_of(child), frame, time, marks[0].kept_before).select(*columns)
    back = None if rows.back is None else flow.catalyst.frame(rows.back)
    if back is not None:
        # what is too late for one half of a correction is so for the other
        back = flow.without_late(table_of(child), back, time, marks[0].kept_before)
    everything = flow.changed(child, part, new, back, columns, time, marks[0])
    return _JoinSide(
        child, role, time, old, new, back is not None, everything, marks[0], marks[1],
        bounds[0], bounds[1],
    )  # fmt: skip


def _result(flow: Flow, op: ops.IntervalJoin, left: _JoinSide, right: _JoinSide, *, whole: bool) -> DataFrame:
    # the pairs, and the rows that an outer join keeps without a partner; not `whole`: those of this step
    def alone(side: _JoinSide, other: _JoinSide, kind: str) -> DataFrame:
        known = side.everything
        clear = known.where(side.resolved(side.partner.now, known)) if whole else side.newly_resolved()
        return _joined(flow, op, side, clear, other, other.everything, kind)

    if op.kind in ("LeftSemi", "LeftAnti"):
        return alone(left, right, op.kind)
    given = left.everything if whole else left.new
    found = _joined(flow, op, left, given, right, right.everything, "Inner")
    if not whole and left.old is not None:  # at least one row of a pair is new
        found = found.union(_joined(flow, op, left, left.old, right, right.new, "Inner")).coalesce(1)
    if op.kind in ("LeftOuter", "FullOuter"):
        found = found.union(_padded(alone(left, right, "LeftAnti"), found, 0))
    if op.kind in ("RightOuter", "FullOuter"):
        found = found.union(_padded(alone(right, left, "LeftAnti"), found, len(left.child.node.output)))
    return found.coalesce(1)


def _joined(
    flow: Flow,
    op: ops.IntervalJoin,
    one: _JoinSide,
    rows: DataFrame,
    other: _JoinSide,
    others: DataFrame,
    kind: str,
) -> DataFrame:
    # some rows of each side; `LeftSemi`: those with a partner, `LeftAnti`: those without
    plan = flow.catalyst.join(op.node, one.plan(flow, rows), other.plan(flow, others), kind)
    return flow.catalyst.frame(plan)


def _earlier_mark(mark: ops.TimeMark) -> ops.TimeMark:
    return dataclasses.replace(mark, now=mark.before, kept_now=mark.kept_before)


def _padded(frame: DataFrame, like: DataFrame, start: int) -> DataFrame:
    # nulls for the other side; `start` is where this side's columns begin
    columns = []
    for index, given in enumerate(like.schema):
        place = index - start
        value = F.col(f"c{place}") if 0 <= place < len(frame.columns) else F.lit(None).cast(given.dataType)
        columns.append(value.alias(given.name))
    return frame.select(*columns)


def _moved(point: ops.TimePoint | None, by: int) -> ops.TimePoint | None:
    return None if point is None else ops.TimePoint(point.start + by)


# Session windows. Spark extends a session by a row exactly at its end, so one that ends at the watermark is
# still open. A row is late only if it would be a session of its own that is already forgotten, not if it
# falls into a remembered one.


def _session_rows(flow: Flow, op: ops.SessionWindow) -> RowChanges:
    """The changes of complete sessions by the step."""
    (child,) = op.children
    rows = flow.rows(child)
    mark = rows.marks.get(op.session, NOTHING_KNOWN)
    index = next(i for i, a in enumerate(child.node.output) if a.id == op.session)
    # every row is a session of its own until those that touch are put together
    own = F.col(f"c{index}")
    others = [e for e in items(op.node.plan.groupingExpressions()) if ops.number_of(e) != op.session]
    keys = {f"k{number}": expression for number, expression in enumerate(others)}
    new, names = flow.with_keys(rows.plan, child, keys), list(keys)
    back = None if rows.back is None else flow.with_keys(rows.back, child, keys)
    part = flow.part(op, "session")
    columns = [*dict.fromkeys([*flow.kept(child.node.output), f"c{index}"]), *names]
    old = flow.memory.before.get(part)
    new = _without_late(flow, op, new.select(*columns), old, own, names, mark)
    everything = flow.changed(child, part, new, back, columns, own["end"], mark)
    numbered = _sessions(everything, own, names)
    complete = earlier(F.col("ended"), mark.now, numbered)
    remembered = numbered.where(~earlier(F.col("ended"), mark.kept_now, numbered))
    flow.memory.after[part] = remembered.select(*columns)
    flow.waits(op, numbered.where(~complete), part)
    was = before = kept_before = None
    if flow.rules.takes_corrections and old is not None:
        sessions = _sessions(old, own, names)
        done = earlier(F.col("ended"), mark.before, sessions)
        was = sessions.where(done)
        before = _reached(mark.before, _oldest(sessions.where(~done), own))
        kept_before = _reached(mark.kept_before, _oldest(sessions, own))
    now = _reached(mark.now, _oldest(numbered.where(~complete), own))
    kept_now = _reached(mark.kept_now, _oldest(remembered, own)) if flow.rules.allowed_lateness_ms else now
    reached = ops.TimeMark(before, now, now, kept_before, kept_now)
    marks = flow.times.marks(op.times, child.node, {op.session: reached})
    return flow.difference(op, numbered.where(complete), was, marks)


def _without_late(
    flow: Flow,
    op: ops.SessionWindow,
    new: DataFrame,
    old: DataFrame | None,
    own: Column,
    names: list[str],
    mark: ops.TimeMark,
) -> DataFrame:
    # late rows are remembered so that they can be counted
    if old is None or mark.kept_before is None or not flow.rules.takes_corrections:
        return flow.without_late(table_of(op), new, own["end"], mark.kept_before)

    both = old.select(*new.columns).withColumn("new", F.lit(False)).union(new.withColumn("new", F.lit(True)))
    both = both.coalesce(1).withColumn("i", F.monotonically_increasing_id())
    ordered = Window.partitionBy(*[F.col(n) for n in names]).orderBy(own["start"], F.col("new"), own["end"])
    reached = F.max(F.when(~F.col("new"), own["end"])).over(
        ordered.rowsBetween(Window.unboundedPreceding, -1)
    )
    both = both.withColumn("within", F.coalesce(reached >= own["start"], F.lit(False)))
    late = earlier(own["end"], mark.kept_before, both) & ~F.col("within")
    marked = both.where("new").withColumn("late", late).sortWithinPartitions("i")
    flow.memory.late.append((table_of(op), marked.where("late")))
    return marked.where("NOT late").select(*new.columns)


def _sessions(rows: DataFrame, own: Column, names: list[str]) -> DataFrame:
    in_order = Window.partitionBy(*[F.col(n) for n in names]).orderBy(own["start"], own["end"])
    reached = F.max(own["end"]).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.coalesce((own["start"] > reached).cast("int"), F.lit(1))
    numbered = rows.withColumn("begins", begins).withColumn("session", F.sum("begins").over(in_order))
    whole = Window.partitionBy(*[F.col(n) for n in names], F.col("session"))
    return numbered.withColumn("ended", F.max(own["end"]).over(whole))


def _oldest(rows: DataFrame, own: Column) -> int | None:
    # microseconds
    found: int | None = rows.agg(F.unix_micros(F.min(own["start"]))).collect()[0][0]
    return found


def _reached(session: ops.TimePoint | None, oldest: int | None) -> ops.TimePoint | None:
    # an open session's start, or that of the oldest row that is not too late
    if session is None or session.end is None:
        return None
    now = session.start - (session.end - session.start)
    return ops.TimePoint(now if oldest is None else min(now, oldest), session.start)
