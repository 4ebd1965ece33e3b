"""Joins that bound the difference of two times.

A pair is emitted in the step that brings the second of its rows. A row that an outer join keeps is emitted
without a partner when the watermark has passed the last time that a partner could have. Both sides are
remembered as long as they may be taken back, as long as a partner may come or, for outer joins, as long as
what they are paired with waits. Where a row is taken back, or a partner may come after its time, the join of
what is remembered is computed as it was and as it is, and the difference is emitted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odfchain.transform.operators import (
    IntervalJoin,
    Operator,
    SessionWindow,
    TimeMark,
    TimePoint,
    class_name,
    scala_items,
)
from odfchain.transform.stream_flow import NOTHING_KNOWN, Flow, RowChanges, earlier, least, shifted, table_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_MILLISECOND = 1_000


@dataclass(frozen=True, slots=True)
class _JoinSide:
    child: Operator
    role: str
    time: Column
    old: DataFrame | None
    new: DataFrame
    changes: bool
    """True if rows are taken back."""
    everything: DataFrame
    mark: TimeMark
    partner: TimeMark
    """The mark of the other side."""
    first: int
    """The least that a partner is later [µs]."""
    last: int
    """The most that a partner is later [µs]."""

    def plan(self, flow: Flow, frame: DataFrame) -> Any:
        return flow.catalyst.adapted(frame, self.child.node.output)

    def resolved(self, point: TimePoint | None, frame: DataFrame) -> Column:
        return earlier(self.time, _moved(point, -self.last), frame)

    def as_it_was(self, flow: Flow) -> _JoinSide:
        rows = self.old if self.old is not None else flow.catalyst.frame(self.child.node.plan).where("false")
        return dataclasses.replace(
            self, everything=rows, mark=_earlier_mark(self.mark), partner=_earlier_mark(self.partner)
        )

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
        oldest = TimePoint(min(m.start for m in known))
        return self.everything.where(~earlier(self.time, oldest, self.everything))


def joined_rows(flow: Flow, op: IntervalJoin) -> RowChanges:
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
        now = _total(flow, op, one, other)
        was = _total(flow, op, one.as_it_was(flow), other.as_it_was(flow))
        return flow.changes(op, now, was, marks)
    plan = flow.catalyst.adapted(_result(flow, op, one, other), op.node.output)
    return RowChanges(plan, marks)


_WAITING = {
    "LeftOuter": ("left",), "LeftSemi": ("left",), "LeftAnti": ("left",), "RightOuter": ("right",),
    "FullOuter": ("left", "right"),
}  # fmt: skip
"""The sides whose rows wait until no partner can come."""


def _unresolved(flow: Flow, op: IntervalJoin, side: _JoinSide, other: _JoinSide) -> DataFrame:
    # rows of an outer join that have a partner do not wait
    waiting = side.everything.where(~side.resolved(side.partner.now, side.everything))
    if op.kind in ("LeftSemi", "LeftAnti"):
        return waiting
    return _matched(flow, op, side, waiting, other, "LeftAnti")


def _side(
    flow: Flow,
    op: IntervalJoin,
    child: Operator,
    rows: RowChanges,
    name: tuple[str, int],
    marks: tuple[TimeMark, TimeMark],
    bounds: tuple[int, int],
) -> _JoinSide:
    from pyspark.sql import functions as F
    from pyspark.sql import types as t

    role, number = name
    part = flow.part(op, role)
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
        child, role, time, flow.remembered(part), new, back is not None, everything, marks[0], marks[1],
        bounds[0], bounds[1],
    )  # fmt: skip


def _result(flow: Flow, op: IntervalJoin, left: _JoinSide, right: _JoinSide) -> DataFrame:
    if op.kind in ("LeftSemi", "LeftAnti"):
        return _alone(flow, op, left, right, op.kind)
    pairs = _pairs(flow, op, left, right)
    if op.kind in ("LeftOuter", "FullOuter"):
        pairs = pairs.union(_padded(_alone(flow, op, left, right, "LeftAnti"), pairs, 0))
    if op.kind in ("RightOuter", "FullOuter"):
        start = len(left.child.node.output)
        pairs = pairs.union(_padded(_alone(flow, op, right, left, "LeftAnti"), pairs, start))
    return pairs.coalesce(1)


def _pairs(flow: Flow, op: IntervalJoin, left: _JoinSide, right: _JoinSide) -> DataFrame:
    def join(one: DataFrame, other: DataFrame) -> DataFrame:
        plan = flow.catalyst.join(op.node, left.plan(flow, one), right.plan(flow, other), "Inner")
        return flow.catalyst.frame(plan)

    # at least one row of a pair is new
    pairs = join(left.new, right.everything)
    return pairs if left.old is None else pairs.union(join(left.old, right.new)).coalesce(1)


def _total(flow: Flow, op: IntervalJoin, left: _JoinSide, right: _JoinSide) -> DataFrame:
    def alone(side: _JoinSide, other: _JoinSide, kind: str) -> DataFrame:
        clear = side.everything.where(side.resolved(side.partner.now, side.everything))
        return _matched(flow, op, side, clear, other, kind)

    # pairs, and rows that are known to be alone
    if op.kind in ("LeftSemi", "LeftAnti"):
        return alone(left, right, op.kind)
    plan = flow.catalyst.join(
        op.node, left.plan(flow, left.everything), right.plan(flow, right.everything), "Inner"
    )
    found = flow.catalyst.frame(plan)
    if op.kind in ("LeftOuter", "FullOuter"):
        found = found.union(_padded(alone(left, right, "LeftAnti"), found, 0))
    if op.kind in ("RightOuter", "FullOuter"):
        found = found.union(_padded(alone(right, left, "LeftAnti"), found, len(left.child.node.output)))
    return found.coalesce(1)


def _alone(flow: Flow, op: IntervalJoin, side: _JoinSide, other: _JoinSide, kind: str) -> DataFrame:
    return _matched(flow, op, side, side.newly_resolved(), other, kind)


def _matched(
    flow: Flow, op: IntervalJoin, side: _JoinSide, rows: DataFrame, other: _JoinSide, kind: str
) -> DataFrame:
    # `LeftSemi`: with a partner, `LeftAnti`: without
    plan = flow.catalyst.join(op.node, side.plan(flow, rows), other.plan(flow, other.everything), kind)
    return flow.catalyst.frame(plan)


def _earlier_mark(mark: TimeMark) -> TimeMark:
    return dataclasses.replace(mark, now=mark.before, kept_now=mark.kept_before)


def _padded(frame: DataFrame, like: DataFrame, start: int) -> DataFrame:
    # nulls for the other side; `start` is where this side's columns begin
    from pyspark.sql import functions as F

    columns = []
    for index, given in enumerate(like.schema):
        place = index - start
        value = F.col(f"c{place}") if 0 <= place < len(frame.columns) else F.lit(None).cast(given.dataType)
        columns.append(value.alias(given.name))
    return frame.select(*columns)


def _moved(point: TimePoint | None, by: int) -> TimePoint | None:
    return None if point is None else TimePoint(point.start + by)


# Session windows. Spark extends a session by a row exactly at its end, so one that ends at the watermark is
# still open. A row is late only if it would be a session of its own that is already forgotten, not if it
# falls into a remembered one.


def session_rows(flow: Flow, op: SessionWindow) -> RowChanges:
    """The changes of complete sessions by the step."""
    from pyspark.sql import functions as F

    (child,) = op.children
    rows = flow.rows(child)
    mark = rows.marks.get(op.session, NOTHING_KNOWN)
    index = next(i for i, a in enumerate(child.node.output) if a.id == op.session)
    # every row is a session of its own until those that touch are put together
    own = F.col(f"c{index}")
    new, names = _with_keys(flow, op, rows.plan)
    back = None if rows.back is None else _with_keys(flow, op, rows.back)[0]
    part = flow.part(op, "session")
    columns = [*dict.fromkeys([*flow.kept(child.node.output), f"c{index}"]), *names]
    old = flow.remembered(part)
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
    reached = TimeMark(before, now, now, kept_before, kept_now)
    marks = flow.times.marks(op.times, child.node, {op.session: reached})
    return flow.difference(op, numbered.where(complete), was, marks)


def _with_keys(flow: Flow, op: SessionWindow, plan: Any) -> tuple[DataFrame, list[str]]:
    """(rows with what they are grouped by besides the session, the names of that)."""
    (child,) = op.children
    keys = [
        flow.catalyst.alias(e, "key")
        for e in scala_items(op.node.plan.groupingExpressions())
        if class_name(e) != "AttributeReference" or e.exprId().id() != op.session
    ]
    references = [a.reference for a in child.node.output]
    frame = flow.catalyst.frame(flow.catalyst.project(plan, [*references, *keys]))
    names = [f"k{number}" for number in range(len(keys))]
    for number, name in enumerate(names):
        frame = frame.withColumnRenamed(f"c{len(references) + number}", name)
    return frame, names


def _without_late(
    flow: Flow,
    op: SessionWindow,
    new: DataFrame,
    old: DataFrame | None,
    own: Column,
    names: list[str],
    mark: TimeMark,
) -> DataFrame:
    # late rows are remembered so that they can be counted
    if old is None or mark.kept_before is None or not flow.rules.takes_corrections:
        return flow.without_late(table_of(op), new, own["end"], mark.kept_before)
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    both = old.select(*new.columns).withColumn("new", F.lit(False)).union(new.withColumn("new", F.lit(True)))
    both = both.coalesce(1).withColumn("i", F.monotonically_increasing_id())
    in_order = Window.partitionBy(*[F.col(n) for n in names]).orderBy(own["start"], F.col("new"), own["end"])
    reached = F.max(F.when(~F.col("new"), own["end"])).over(
        in_order.rowsBetween(Window.unboundedPreceding, -1)
    )
    both = both.withColumn("within", F.coalesce(reached >= own["start"], F.lit(False)))
    late = earlier(own["end"], mark.kept_before, both) & ~F.col("within")
    marked = both.where("new").withColumn("late", late).sortWithinPartitions("i")
    flow.memory.late.append((table_of(op), marked.where("late")))
    return marked.where("NOT late").select(*new.columns)


def _sessions(rows: DataFrame, own: Column, names: list[str]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    in_order = Window.partitionBy(*[F.col(n) for n in names]).orderBy(own["start"], own["end"])
    reached = F.max(own["end"]).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.coalesce((own["start"] > reached).cast("int"), F.lit(1))
    numbered = rows.withColumn("begins", begins).withColumn("session", F.sum("begins").over(in_order))
    whole = Window.partitionBy(*[F.col(n) for n in names], F.col("session"))
    return numbered.withColumn("ended", F.max(own["end"]).over(whole))


def _oldest(rows: DataFrame, own: Column) -> int | None:
    # microseconds
    from pyspark.sql import functions as F

    found: int | None = rows.agg(F.unix_micros(F.min(own["start"]))).collect()[0][0]
    return found


def _reached(session: TimePoint | None, oldest: int | None) -> TimePoint | None:
    # an open session's start, or that of the oldest row that is not too late
    if session is None or session.end is None:
        return None
    now = session.start - (session.end - session.start)
    return TimePoint(now if oldest is None else min(now, oldest), session.start)


# One step of a query over all of its operators.


class StepFlow(Flow):
    """A flow that knows sessions and joins, which are pages of their own."""

    def session_rows(self, op: SessionWindow) -> RowChanges:
        """Sessions that became complete."""
        return session_rows(self, op)

    def joined_rows(self, op: IntervalJoin) -> RowChanges:
        """Pairs that became complete."""
        return joined_rows(self, op)
