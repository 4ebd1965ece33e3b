"""Sessions: rows that follow each other closely, complete when the watermark has passed the end.

Spark lets a row that comes exactly at the end of a session prolong it, so a session that ends at the
watermark is still open.
"""

from __future__ import annotations

from odfchain.engine.catalyst import scala_items
from odfchain.engine.flow import NOTHING_KNOWN, Flow, Rows, earlier
from odfchain.engine.operators import Session
from odfchain.engine.times import Mark, Moment


def session_rows(flow: Flow, op: Session) -> Rows:
    """The sessions that became complete."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    (child,) = op.children
    rows = flow.rows(child)
    mark = rows.marks.get(op.session, NOTHING_KNOWN)
    index = next(i for i, a in enumerate(child.node.output) if a.id == op.session)
    # every row is a session of its own until those that touch are put together
    own = F.col(f"c{index}")
    keys = [
        flow.catalyst.alias(e, "key")
        for e in scala_items(op.node.plan.groupingExpressions())
        if not (hasattr(e, "exprId") and e.exprId().id() == op.session)
    ]
    references = [a.reference for a in child.node.output]
    frame = flow.catalyst.frame(flow.catalyst.project(rows.plan, [*references, *keys]))
    names = [f"k{number}" for number in range(len(keys))]
    for number, name in enumerate(names):
        frame = frame.withColumnRenamed(f"c{len(references) + number}", name)
    part = flow.part(op, "session")
    new = flow.without_late(op, frame, own["end"], mark.before)
    columns = [*dict.fromkeys([*flow.kept(child.node.output), f"c{index}"]), *names]
    everything = flow.together(part, new, columns)
    in_order = Window.partitionBy(*[F.col(n) for n in names]).orderBy(own["start"], own["end"])
    reached = F.max(own["end"]).over(in_order.rowsBetween(Window.unboundedPreceding, -1))
    begins = F.coalesce((own["start"] > reached).cast("int"), F.lit(1))
    numbered = everything.withColumn("begins", begins).withColumn("session", F.sum("begins").over(in_order))
    whole = Window.partitionBy(*[F.col(n) for n in names], F.col("session"))
    ended = numbered.withColumn("ended", F.max(own["end"]).over(whole))
    complete = earlier(F.col("ended"), mark.now, ended)
    still_open = ended.where(~complete).select(*columns)
    flow.memory.after[part] = still_open
    plan = flow.catalyst.rebuilt(op.node, [flow.catalyst.adapted(ended.where(complete), child.node.output)])
    oldest = still_open.agg(F.unix_micros(F.min(own["start"]))).collect()[0][0]
    marks = {op.session: _sessions_mark(mark, oldest)}
    return Rows(plan, flow.times.marks(op.times, child.node, marks))


def _sessions_mark(mark: Mark, oldest: int | None) -> Mark:
    """The oldest start of a session that can still come: an open one's, or that of a row almost too late."""
    if mark.now is None or mark.now.end is None:
        return NOTHING_KNOWN
    now = mark.now.start - (mark.now.end - mark.now.start)
    start = now if oldest is None else min(now, oldest)
    moment = Moment(start, mark.now.start)
    return Mark(None, moment, moment)
