"""One step of a query: what the new rows add to its result, and what must be remembered for the next.

Every operator turns the new rows of its children into new rows of its own, by plain batch SQL over those and
the rows that it remembers. The rows of stateless and bounded operators are final when they are emitted; only
what contains an unbounded operator may take results back (`odfchain.engine.whole`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from odfchain.engine.catalyst import Attribute, Catalyst
from odfchain.engine.operators import (
    Constant,
    Group,
    IntervalJoin,
    Merged,
    Narrow,
    Operator,
    Session,
    Source,
)
from odfchain.engine.times import Mark, Moment, TimeExpression, Times

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_DAY = 86_400_000_000
_ALL_USED = frozenset({"Distinct", "Except", "Intersect", "LateralJoin", "Union"})


@dataclass(frozen=True, slots=True)
class Rows:
    """New rows of an operator, as a plan with its attributes, and the marks of its times."""

    plan: Any
    marks: Mapping[int, Mark]


@dataclass(slots=True)
class Memory:
    """What is remembered before a step, and after it."""

    before: Mapping[str, DataFrame]
    after: dict[str, DataFrame] = field(default_factory=dict)
    late: list[tuple[str, DataFrame]] = field(default_factory=list)
    """Rows that came after what they belong to was complete, by input; they are counted and left out."""


class Flow:
    """Executes one step of the operators of a query."""

    def __init__(
        self,
        catalyst: Catalyst,
        times: Times,
        root: Operator,
        inputs: Mapping[str, DataFrame],
        watermark: Mark,
        memory: Memory,
        used: frozenset[int],
    ) -> None:
        """`inputs` are the new rows by table, columns `c0`, `c1`, … in the order of their schemas.

        `used` are the attributes that the query needs (`used_columns`).
        """
        self.catalyst = catalyst
        self.times = times
        self.inputs = inputs
        self.watermark = watermark
        self.memory = memory
        self._numbers = {id(op): index for index, op in enumerate(root.walk())}
        self.used = used

    def rows(self, op: Operator) -> Rows:
        """The new rows of an operator."""
        match op:
            case Source():
                plan = self.catalyst.adapted(self.inputs[op.node.table or ""], op.node.output)
                return Rows(plan, {op.event_time: self.watermark})
            case Constant():
                return Rows(op.node.plan, {})
            case Merged():
                return self._merged(op)
            case Narrow():
                return self._narrow(op)
            case Group():
                return self._group(op)
            case Session():
                from odfchain.engine.sessions import session_rows

                return session_rows(self, op)
            case IntervalJoin():
                from odfchain.engine.joins import joined_rows

                return joined_rows(self, op)
        raise AssertionError(op.node.kind)

    def part(self, op: Operator, role: str) -> str:
        """The name under which an operator remembers rows."""
        return f"{role}-{self._numbers[id(op)]}"

    def kept(self, attributes: tuple[Attribute, ...]) -> list[str]:
        """The columns of these that the query uses at all."""
        return [f"c{index}" for index, a in enumerate(attributes) if a.id in self.used]

    def remembered(self, name: str) -> DataFrame | None:
        """The rows remembered under a name."""
        return self.memory.before.get(name)

    # --- row by row --------------------------------------------------------------------------------

    def _merged(self, op: Merged) -> Rows:
        children = [self.rows(child) for child in op.children]
        marks = {}
        for number, branches in op.branches.items():
            found = [c.marks.get(n) for c, n in zip(children, branches, strict=True)]
            if all(mark is not None for mark in found):
                marks[number] = least([mark for mark in found if mark is not None])
        return Rows(self.catalyst.rebuilt(op.node, [c.plan for c in children]), marks)

    def _narrow(self, op: Narrow) -> Rows:
        children = [self.rows(child) for child in op.children]
        plan = self.catalyst.rebuilt(op.node, [c.plan for c in children])
        varying, rows = next(
            (child, rows)
            for child, rows in zip(op.children, children, strict=True)
            if not isinstance(child, Constant)
        )
        marks = self.times.marks(op.times, varying.node, rows.marks)
        if op.node.kind == "Expand":
            marks |= self._window_marks(op, varying, rows.marks)
        return Rows(plan, marks)

    def _window_marks(self, op: Narrow, child: Operator, known: Mapping[int, Mark]) -> dict[int, Mark]:
        """The earliest of the windows that contain each moment."""
        from pyspark.sql import functions as F

        found = {}
        for number, time in op.times.items():
            if number == time.source or time.source not in known:
                continue
            moments = known[time.source].moments()
            names = {a.id: f"c{index}" for index, a in enumerate(op.node.output)}
            probe = self.times.probe(child.node, time.source, moments)
            frame = self.catalyst.frame(self.catalyst.rebuilt(op.node, [probe]))
            window, moment = F.col(names[number]), F.col(names[time.source])
            frame = frame.where((window["start"] <= moment) & (moment < window["end"]))
            earliest = frame.groupBy(F.unix_micros(moment)).agg(
                F.unix_micros(F.min(window["start"])), F.unix_micros(F.min(window["end"]))
            )
            by_moment = {row[0]: Moment(row[1], row[2]) for row in earliest.collect()}
            # between windows that leave gaps there is none: then nothing can be said
            found[number] = Mark(*[by_moment.get(m.start) if m else None for m in moments])
        return found

    # --- groups ------------------------------------------------------------------------------------

    def _group(self, op: Group) -> Rows:
        (child,) = op.children
        rows = self.rows(child)
        mark = self.times.marks({-1: op.key}, child.node, rows.marks).get(-1, NOTHING_KNOWN)
        new, key = self.with_key(rows.plan, child, op.key)
        name = self.part(op, "group")
        new = self.without_late(op, new, key, mark.before)
        everything = self.together(name, new, [*self.kept(child.node.output), "k"])
        complete = earlier(key, mark.now, everything)
        self.memory.after[name] = everything.where(~complete)
        plan = self.catalyst.rebuilt(
            op.node, [self.catalyst.adapted(everything.where(complete), child.node.output)]
        )
        return Rows(plan, self.times.marks(op.times, child.node, rows.marks))

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

    def without_late(self, op: Operator, frame: DataFrame, time: Column, before: Moment | None) -> DataFrame:
        """The rows that are not too late; the others are remembered to be counted."""
        if before is None:
            return frame
        late = earlier(time, before, frame)
        self.memory.late.append((table_of(op), frame.where(late)))
        return frame.where(~late)

    def together(self, name: str, new: DataFrame, columns: list[str]) -> DataFrame:
        """Remembered rows and new ones, in this order."""
        old = self.remembered(name)
        rows = new.select(*columns)
        return rows if old is None else old.select(*columns).union(rows).coalesce(1)


NOTHING_KNOWN = Mark(None, None, None)


def table_of(op: Operator) -> str:
    """The inputs that rows of an operator come from."""
    return ", ".join(dict.fromkeys(o.node.table or "" for o in op.walk() if isinstance(o, Source)))


def used_columns(catalyst: Catalyst, root: Operator) -> frozenset[int]:
    """The attributes that a query computes with or returns; the others need not be remembered."""
    used: set[int] = set()
    waiting = [(root, {a.id for a in root.node.output})]
    while waiting:
        op, wanted = waiting.pop()
        used |= wanted
        below = _needed(catalyst, op, wanted)
        used |= below
        waiting += [(child, below & {a.id for a in child.node.output}) for child in op.children]
    return frozenset(used)


def _needed(catalyst: Catalyst, op: Operator, wanted: set[int]) -> set[int]:
    """The attributes of the children that are needed for some of an operator's own."""
    found = {time.source for number, time in op.times.items() if number in wanted}
    match op:
        case Group(key=key):
            found.add(key.source)
        case Session(session=session, time=time):
            found |= {session, time}
        case IntervalJoin(left_time=left, right_time=right):
            found |= {left, right}
    node = op.node
    if node.kind in _ALL_USED:
        return found | {a.id for child in node.children for a in child.output}
    if node.kind == "Project":
        return found | catalyst.used_by(node, wanted)
    if node.kind == "Expand":
        return found | wanted
    return found | wanted | catalyst.references(node)


def earlier(time: Column, moment: Moment | None, frame: DataFrame) -> Column:
    """Whether a time is before a moment; never when that is not known."""
    from pyspark.sql import functions as F

    if moment is None:
        return F.lit(False)
    kind = frame.select(time).schema[0].dataType.typeName()
    if kind == "date":
        return F.coalesce(F.unix_date(time) < -(-moment.start // _DAY), F.lit(False))
    return F.coalesce(time < F.timestamp_micros(F.lit(moment.start)), F.lit(False))


def least(marks: list[Mark]) -> Mark:
    """The mark of what comes from any of several."""

    def smallest(moments: list[Moment | None]) -> Moment | None:
        known = [m for m in moments if m is not None]
        if len(known) < len(moments):
            return None
        ends = [m.end for m in known if m.end is not None]
        return Moment(min(m.start for m in known), min(ends) if ends else None)

    return Mark(*[smallest(list(column)) for column in zip(*[m.moments() for m in marks], strict=True)])


def shifted(mark: Mark, micros: int, *, early: int = 0) -> Mark:
    """A mark some time later; what is complete may be held back by `early`, what is promised is not."""

    def move(moment: Moment | None, by: int) -> Moment | None:
        return None if moment is None else Moment(moment.start + by)

    return Mark(move(mark.before, micros - early), move(mark.now, micros - early), move(mark.promise, micros))
