"""One step of a query: what the new rows add to its result, and what must be remembered for the next.

Every operator turns the changes of its children into changes of its own, by plain batch SQL over those and
the rows that it remembers. Changes are rows that are new and rows that are taken back, each as a plan of its
own. What a windowed operator emits is complete; while lateness allows, what it remembers of complete results
is computed with and without the changes, and the difference is emitted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from odfchain.odf.enums import TAKES_BACK, OperationType
from odfchain.spark.types import comparable
from odfchain.transform.engine_interface import EngineRules
from odfchain.transform.operators import (
    Attribute,
    Catalyst,
    ConstantRows,
    EventTimes,
    InputScan,
    IntervalJoin,
    Operator,
    RowWise,
    SessionWindow,
    TimeExpression,
    TimeGroup,
    TimeMark,
    TimePoint,
    UnionAll,
    class_name,
    is_windowed,
    scala_items,
)

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
    from pyspark.sql import Window
    from pyspark.sql import functions as F

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
    from pyspark.sql import functions as F

    column, kind = F.col(name), frame.schema[name].dataType.simpleString()
    if "map<" in kind:
        return F.to_json(F.struct(column))
    return F.struct(column, column.cast("string")) if "double" in kind or "float" in kind else column


_DAY = 86_400_000_000
_ALL_USED = frozenset({"Distinct", "Except", "Intersect", "LateralJoin", "Union"})


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes of an operator's rows by a step, as plans with its attributes, and the marks of its times."""

    plan: Any
    """The rows that are new."""
    marks: Mapping[int, TimeMark]
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


class Flow(ABC):
    """Executes one step of the operators of a query; `StepFlow` is the whole of it."""

    def __init__(
        self,
        catalyst: Catalyst,
        times: EventTimes,
        root: Operator,
        inputs: Mapping[str, DataFrame],
        watermark: TimeMark,
        memory: StepMemory,
        used: frozenset[int],
        *,
        rules: EngineRules,
        changing: frozenset[str] = frozenset(),
        may_be_late: bool = True,
    ) -> None:
        """`inputs` are the new rows by table, columns `c0`, `c1`, … in the order of their schemas.

        `used` are the attributes that the query needs (`used_columns`), `changing` the tables of which some
        new rows take others back. Unless they `may_be_late`, all are known to be at or after the watermark
        that was in force before the step, and so is all that comes of them.
        """
        self.catalyst = catalyst
        self.times = times
        self.inputs = inputs
        self.watermark = watermark
        self.memory = memory
        self._numbers = {id(op): index for index, op in enumerate(root.walk())}
        self.used = used
        self.rules = rules
        self._changing = changing
        self._may_be_late = may_be_late

    def rows(self, op: Operator) -> RowChanges:
        """The new rows of an operator."""
        match op:
            case InputScan():
                return self._scan(op)
            case ConstantRows():
                return RowChanges(op.node.plan, {})
            case UnionAll():
                return self._union(op)
            case RowWise():
                return self._row_wise(op)
            case TimeGroup():
                return self._group(op)
            case SessionWindow():
                return self.session_rows(op)
            case IntervalJoin():
                return self.joined_rows(op)
        raise AssertionError(op.node.kind)

    @abstractmethod
    def session_rows(self, op: SessionWindow) -> RowChanges:
        """The new rows of a session window."""

    @abstractmethod
    def joined_rows(self, op: IntervalJoin) -> RowChanges:
        """The new rows of a join that is bounded by time."""

    def part(self, op: Operator, role: str) -> str:
        """The name under which an operator remembers rows."""
        return f"{role}-{self._numbers[id(op)]}"

    def kept(self, attributes: tuple[Attribute, ...]) -> list[str]:
        """The columns of these that the query uses at all."""
        return [f"c{index}" for index, a in enumerate(attributes) if a.id in self.used]

    def remembered(self, name: str) -> DataFrame | None:
        """The rows remembered under a name."""
        return self.memory.before.get(name)

    def nothing(self, op: Operator) -> Any:
        """No rows, as a plan with the attributes of an operator."""
        return self.catalyst.adapted(self.catalyst.frame(op.node.plan).where("false"), op.node.output)

    # --- row by row --------------------------------------------------------------------------------

    def _scan(self, op: InputScan) -> RowChanges:
        from pyspark.sql import functions as F

        table = op.node.table or ""
        frame, marks = self.inputs[table], {op.event_time: self.watermark}
        if table not in self._changing:
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

    def _union(self, op: UnionAll) -> RowChanges:
        children = [self.rows(child) for child in op.children]
        marks = {}
        for number, branches in op.branches.items():
            branch_marks = [c.marks.get(n) for c, n in zip(children, branches, strict=True)]
            if all(mark is not None for mark in branch_marks):
                marks[number] = least([mark for mark in branch_marks if mark is not None])
        back = None
        if any(c.back is not None for c in children):
            plans = [
                c.back if c.back is not None else self.nothing(o)
                for c, o in zip(children, op.children, strict=True)
            ]
            back = self.catalyst.rebuilt(op.node, plans)
        return RowChanges(self.catalyst.rebuilt(op.node, [c.plan for c in children]), marks, back)

    def _row_wise(self, op: RowWise) -> RowChanges:
        children = [self.rows(child) for child in op.children]
        plan = self.catalyst.rebuilt(op.node, [c.plan for c in children])
        varying, rows = next(
            (child, rows)
            for child, rows in zip(op.children, children, strict=True)
            if not isinstance(child, ConstantRows)
        )
        marks = self.times.marks(op.times, varying.node, rows.marks)
        if op.node.kind == "Expand":
            marks |= self._window_marks(op, varying, rows.marks)
        back = None
        if rows.back is not None:
            back = self.catalyst.rebuilt(op.node, [rows.back if c is rows else c.plan for c in children])
        return RowChanges(plan, marks, back)

    def _window_marks(
        self, op: RowWise, child: Operator, known: Mapping[int, TimeMark]
    ) -> dict[int, TimeMark]:
        # the earliest of the windows that contain each moment
        from pyspark.sql import functions as F

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
            by_moment = {row[0]: TimePoint(row[1], row[2]) for row in earliest.collect()}
            # between windows that leave gaps there is none: then nothing can be said
            found[number] = TimeMark(*[by_moment.get(m.start) if m else None for m in points])
        return found

    # --- groups ------------------------------------------------------------------------------------

    def _group(self, op: TimeGroup) -> RowChanges:
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
        old = self.remembered(name)
        was = None if old is None else old.where(earlier(key, mark.before, old))
        return self.difference(op, everything.where(complete), was, marks)

    def difference(
        self, op: Operator, now: DataFrame, was: DataFrame | None, marks: Mapping[int, TimeMark]
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
        self, op: Operator, now: DataFrame, was: DataFrame, marks: Mapping[int, TimeMark]
    ) -> RowChanges:
        """The rows of an operator that are added and removed between `was` and `now`."""
        from pyspark.sql import functions as F

        both = now.withColumn("back", F.lit(False)).union(was.withColumn("back", F.lit(True)))
        new, gone = in_force(both, now.columns, to_the_bit=True)
        output = op.node.output
        return RowChanges(self.catalyst.adapted(new, output), marks, self.catalyst.adapted(gone, output))

    def changed(
        self,
        op: Operator,
        name: str,
        new: DataFrame,
        back: DataFrame | None,
        columns: list[str],
        time: Column,
        mark: TimeMark,
    ) -> DataFrame:
        """The remembered rows of an operator under a name, with new ones, less those taken `back`."""
        # a row to take back that is absent is late if the others of its time were forgotten
        from pyspark.sql import functions as F

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

    def waits(self, op: Operator, rows: DataFrame, remembered: str | None = None) -> None:
        """Rows wait in an operator; without lateness they are what is `remembered` under a name."""
        # only rows of the inputs count, not waiting results of other windows
        if self.rules.takes_corrections and not any(
            is_windowed(below) for child in op.children for below in child.walk()
        ):
            known = remembered if not self.rules.allowed_lateness_ms else None
            self.memory.waiting.append((table_of(op), rows if known is None else known))

    def with_key(self, plan: Any, child: Operator, key: TimeExpression) -> tuple[DataFrame, Column]:
        """The rows with the time they are grouped by as column `k`, and that as something to compare."""
        from pyspark.sql import functions as F
        from pyspark.sql import types as t

        references = [a.reference for a in child.node.output]
        expression = key.expression if key.expression is not None else child.attribute(key.source).reference
        if expression.getClass().getName().endswith(".Alias"):
            expression = expression.child()
        named = self.catalyst.alias(expression, "key")
        frame = self.catalyst.frame(self.catalyst.project(plan, [*references, named]))
        frame = frame.withColumnRenamed(f"c{len(references)}", "k")
        column = F.col("k")
        return frame, column["start"] if isinstance(frame.schema["k"].dataType, t.StructType) else column

    def without_late(
        self, inputs: str, frame: DataFrame, time: Column, before: TimePoint | None
    ) -> DataFrame:
        """The rows that are not too late; the others, which are of `inputs`, are remembered to be counted."""
        if before is None or not self._may_be_late:
            return frame
        late = earlier(time, before, frame)
        self.memory.late.append((inputs, frame.where(late)))
        return frame.where(~late)

    def together(self, name: str, new: DataFrame, columns: list[str]) -> DataFrame:
        """Remembered rows and new ones, in this order."""
        old = self.remembered(name)
        rows = new.select(*columns)
        return rows if old is None else old.select(*columns).union(rows).coalesce(1)


NOTHING_KNOWN = TimeMark(None, None, None, None, None)


def made_columns(op: Operator) -> frozenset[int]:
    """The columns of an operator that are passed on from those that are made when a row is recorded."""
    # a windowed operator's output is made of rows in force, with their columns
    if isinstance(op, InputScan):
        return op.made
    if not isinstance(op, RowWise | UnionAll):
        return frozenset()
    below = frozenset(n for child in op.children for n in made_columns(child))
    if isinstance(op, UnionAll):
        columns = zip(op.node.output, *(child.node.output for child in op.children), strict=True)
        return frozenset(first.id for first, *others in columns if any(o.id in below for o in others))
    passed = {a.id for a in op.node.output} & below
    if op.node.kind == "Project":
        for named in scala_items(op.node.plan.projectList()):
            value = named.child() if class_name(named) == "Alias" else named
            if class_name(value) == "AttributeReference" and value.exprId().id() in below:
                passed.add(named.exprId().id())
    return frozenset(passed)


def blind_to(catalyst: Catalyst, root: Operator) -> tuple[str, ...]:
    """The made columns that a query uses below windows, so that corrections do not find their rows."""
    # below any other operator rows are remembered as they came, so they are found again
    found: dict[str, None] = {}
    waiting = [child for op in root.walk() if is_windowed(op) for child in op.children]
    while waiting:
        op = waiting.pop()
        if not isinstance(op, RowWise | UnionAll):
            continue
        waiting += op.children
        made = {n for child in op.children for n in made_columns(child)}
        used = set(catalyst.references(op.node)) if not isinstance(op, UnionAll) else set()
        if op.node.kind == "Project":
            named = [
                e.child() if class_name(e) == "Alias" else e for e in scala_items(op.node.plan.projectList())
            ]
            computed = [e for e in named if class_name(e) != "AttributeReference"]
            used = {a.exprId().id() for e in computed for a in scala_items(e.references().toSeq())}
        names = {a.id: a.name for child in op.children for a in child.node.output}
        found |= dict.fromkeys(sorted(names[n] for n in made & used))
    return tuple(found)


def table_of(op: Operator) -> str:
    """The inputs that rows of an operator come from."""
    return ", ".join(dict.fromkeys(o.node.table or "" for o in op.walk() if isinstance(o, InputScan)))


def used_columns(catalyst: Catalyst, root: Operator, rules: EngineRules) -> frozenset[int]:
    """The attributes that a query computes with or returns; the others need not be remembered."""
    used: set[int] = set()
    waiting = [(root, {a.id for a in root.node.output})]
    while waiting:
        op, wanted = waiting.pop()
        used |= wanted
        below = _needed(catalyst, op, wanted, rules)
        used |= below
        waiting += [(child, below & {a.id for a in child.node.output}) for child in op.children]
    return frozenset(used)


def _needed(catalyst: Catalyst, op: Operator, wanted: set[int], rules: EngineRules) -> set[int]:
    found = {time.source for number, time in op.times.items() if number in wanted}
    match op:
        case TimeGroup(key=key):
            found.add(key.source)
        case SessionWindow(session=session, time=time):
            found |= {session, time}
        case IntervalJoin(left_time=left, right_time=right):
            found |= {left, right}
    node = op.node
    if node.kind in _ALL_USED:
        return found | {a.id for child in node.children for a in child.output}
    if node.kind == "Project":
        return found | catalyst.used_by(node, wanted)
    if node.kind == "Expand":
        made = catalyst.expanded_from(node, wanted) if rules.reads_grouping_sets else frozenset()
        return found | wanted | made
    return found | wanted | catalyst.references(node)


def earlier(time: Column, point: TimePoint | None, frame: DataFrame) -> Column:
    """The condition that a time is before a moment; false when the moment is unknown."""
    from pyspark.sql import functions as F

    if point is None:
        return F.lit(False)
    kind = frame.select(time).schema[0].dataType.typeName()
    if kind == "date":
        return F.coalesce(F.unix_date(time) < -(-point.start // _DAY), F.lit(False))
    return F.coalesce(time < _moment(point.start, frame.sparkSession), F.lit(False))


def _moment(micros: int, session: SparkSession) -> Column:
    # a constant is part of a compiled plan's code, which would be compiled anew for each step; a value of a
    # query of its own, in a struct, is passed to the code
    from pyspark.sql import functions as F

    if session.conf.get("spark.sql.codegen.wholeStage") == "false":
        return F.timestamp_micros(F.lit(micros))
    moment = f"SELECT named_struct('at', timestamp_micros(m)) FROM VALUES ({micros}L) AS t(m)"  # noqa: S608 - a number
    return F.expr(f"({moment}).at")


def least(marks: list[TimeMark]) -> TimeMark:
    """The mark of what comes from any of several."""

    def smallest(points: list[TimePoint | None]) -> TimePoint | None:
        known = [m for m in points if m is not None]
        if len(known) < len(points):
            return None
        ends = [m.end for m in known if m.end is not None]
        return TimePoint(min(m.start for m in known), min(ends) if ends else None)

    return TimeMark(*[smallest(list(column)) for column in zip(*[m.points() for m in marks], strict=True)])


def shifted(mark: TimeMark, micros: int, *, early: int = 0) -> TimeMark:
    """A mark some time later; what is complete may be held back by `early`, what is promised is not."""

    def move(point: TimePoint | None, by: int) -> TimePoint | None:
        return None if point is None else TimePoint(point.start + by)

    return TimeMark(
        move(mark.before, micros - early),
        move(mark.now, micros - early),
        move(mark.promise, micros),
        move(mark.kept_before, micros - early),
        move(mark.kept_now, micros - early),
    )
