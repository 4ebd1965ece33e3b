"""Sessions: rows that follow each other closely, complete when the watermark has passed the end.

Spark lets a row that comes exactly at the end of a session prolong it, so a session that ends at the
watermark is still open. A row is too late when it would be a session of its own that was complete and
forgotten; one that falls into a session which is still remembered is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odfchain.engine.catalyst import class_name, scala_items
from odfchain.engine.stream.event_times import TimeMark, TimePoint
from odfchain.engine.stream.flow import NOTHING_KNOWN, Flow, RowChanges, earlier, table_of
from odfchain.engine.stream.operators import SessionWindow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def session_rows(flow: Flow, op: SessionWindow) -> RowChanges:
    """What the step changes of the sessions that are complete."""
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
    """The rows that are not too late; the others are remembered to be counted."""
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
    """The rows with the end of their session as `ended`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    in_order = Window.partitionBy(*[F.col(n) for n in names]).orderBy(own["start"], own["end"])
    reached = F.max(own["end"]).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.coalesce((own["start"] > reached).cast("int"), F.lit(1))
    numbered = rows.withColumn("begins", begins).withColumn("session", F.sum("begins").over(in_order))
    whole = Window.partitionBy(*[F.col(n) for n in names], F.col("session"))
    return numbered.withColumn("ended", F.max(own["end"]).over(whole))


def _oldest(rows: DataFrame, own: Column) -> int | None:
    """The start of the oldest session [µs]."""
    from pyspark.sql import functions as F

    found: int | None = rows.agg(F.unix_micros(F.min(own["start"]))).collect()[0][0]
    return found


def _reached(session: TimePoint | None, oldest: int | None) -> TimePoint | None:
    """The oldest start of a session that can still come: an open one's, or that of a row almost too late."""
    if session is None or session.end is None:
        return None
    now = session.start - (session.end - session.start)
    return TimePoint(now if oldest is None else min(now, oldest), session.start)
