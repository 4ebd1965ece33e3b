"""Queries of which a later row may change any earlier result: the change of the result is what is emitted.

The result counts the rows that are final, which are those older than the watermark. What a step emits is the
result over the final rows now less the result over those that were final before: rows that are gone are
retracted, rows that are new appended. Rows of an input that retract or correct others take effect on what is
counted: a retraction at once, both rows of a correction when the corrected one is final.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odfchain.engine.flow import Flow, Memory, earlier
from odfchain.engine.operators import Constant, Merged, Narrow, Operator, Source, Whole
from odfchain.metadata.enums import OperationType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OPERATION = "op"
"""Column of what was emitted that says whether a row is new (0) or gone (1)."""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Where the system columns of an input stand in its schema."""

    names: tuple[str, ...]
    offset: int
    operation: int
    event_time: int


class WholeFlow:
    """Executes one step of a query that is not bounded."""

    def __init__(
        self,
        flow: Flow,
        tables: Mapping[str, TableColumns],
        changing: frozenset[str],
        *,
        idle: bool,
        asked_again: Callable[[Mapping[str, DataFrame]], DataFrame] | None,
    ) -> None:
        """`changing` are the inputs whose new rows retract or correct others; `idle` says none has any.

        `asked_again` computes the whole query over tables, where that cannot be taken apart (subqueries).
        """
        self._idle = idle
        self._asked_again = asked_again
        self._flow = flow
        self._tables = tables
        self._changing = changing
        self._now: dict[str, DataFrame] = {}
        self._before: dict[str, DataFrame] = {}

    @property
    def _memory(self) -> Memory:
        return self._flow.memory

    def change(self, root: Operator) -> DataFrame:
        """The rows that the step adds to the result and takes from it, with `OPERATION`."""
        from pyspark.sql import functions as F

        self._used = (
            self._used_of_tables(root)
            if self._asked_again is None
            else {t: [f"c{i}" for i in range(len(c.names))] for t, c in self._tables.items()}
        )
        columns = [f"c{index}" for index in range(len(root.node.output))]
        if self._idle and self._memory.before and not self._becomes_final():
            self._memory.after.update(self._memory.before)
            nothing = self._flow.catalyst.frame(root.node.plan).where("false")
            return nothing.withColumn(OPERATION, F.lit(OperationType.APPEND.code))
        now = self._result(root, self._now, past=False)
        past = self._result(root, self._before, past=True) if self._memory.before else None
        rows = [f.withColumn("n", F.lit(n)) for f, n in ((now, 1), (past, -1)) if f is not None]
        counted = (
            rows[0]
            if rows
            else self._flow.catalyst.frame(root.node.plan).where("false").withColumn("n", F.lit(1))
        )
        if len(rows) == 2:
            counted = rows[0].union(rows[1]).coalesce(1)
            counted = counted.groupBy(*columns).agg(F.sum("n").alias("n")).where("n <> 0")
            copies = F.array_repeat(F.signum("n"), F.abs("n").cast("int"))
            counted = counted.select(*columns, F.explode(copies).alias("n"))
        operation = F.when(F.col("n") < 0, OperationType.RETRACT.code).otherwise(OperationType.APPEND.code)
        return counted.select(*columns, operation.alias(OPERATION))

    def _becomes_final(self) -> bool:
        """Whether a remembered row counts now that did not before."""
        from pyspark.sql import functions as F

        before, now = self._flow.watermark.before, self._flow.watermark.now
        if before == now:
            return False
        for name, frame in self._memory.before.items():
            if not name.startswith(("rows-", "changes-")):
                return True  # what a bounded part emits now is not known without computing it
            time = F.col("t")
            if not frame.where(earlier(time, now, frame) & ~earlier(time, before, frame)).isEmpty():
                return True
        return False

    def _result(self, root: Operator, made: dict[str, DataFrame], *, past: bool) -> DataFrame | None:
        """The result over what is final; None where nothing is, and a query would count that as well."""
        if self._asked_again is not None:
            frame = self._whole_query(made, past=past)
        else:
            frame = self._flow.catalyst.frame(self._plan(root, made, past=past))
        counts_nothing = any(
            op.node.kind == "Aggregate" and op.node.plan.groupingExpressions().isEmpty() for op in root.walk()
        )
        if counts_nothing and all(source.isEmpty() for source in made.values()):
            return None
        return frame

    # --- the query over what is final --------------------------------------------------------------

    def _whole_query(self, made: dict[str, DataFrame], *, past: bool) -> DataFrame:
        assert self._asked_again is not None  # noqa: S101 - asked by the caller
        for table in self._tables:
            made[table] = self._final_before(table) if past else self._final_now(table)
        named = {table: frame.toDF(*self._tables[table].names) for table, frame in made.items()}
        found = self._asked_again(named)
        return found.toDF(*[f"c{index}" for index in range(len(found.columns))])

    def _plan(self, op: Operator, made: dict[str, DataFrame], *, past: bool) -> Any:
        catalyst = self._flow.catalyst
        if isinstance(op, Constant):
            return op.node.plan
        if isinstance(op, Source):
            table = op.node.table or ""
            if table not in made:
                made[table] = self._final_before(table) if past else self._final_now(table)
            return catalyst.adapted(made[table], op.node.output)
        if isinstance(op, Whole | Narrow | Merged) or any(isinstance(o, Whole) for o in op.walk()):
            return catalyst.rebuilt(op.node, [self._plan(child, made, past=past) for child in op.children])
        return catalyst.adapted(self._emitted(op, past=past), op.node.output)

    def _emitted(self, op: Operator, *, past: bool) -> DataFrame:
        """All that a bounded operator emitted: final as it is."""
        name = self._flow.part(op, "emitted")
        old = self._flow.remembered(name)
        columns = self._flow.kept(op.node.output)
        if past:
            return old if old is not None else self._flow.catalyst.frame(op.node.plan).where("false")
        new = self._flow.catalyst.frame(self._flow.rows(op).plan)
        everything = self._flow.together(name, new, columns)
        self._memory.after[name] = everything
        return everything

    # --- inputs ------------------------------------------------------------------------------------

    def _used_of_tables(self, root: Operator) -> dict[str, list[str]]:
        used: dict[str, set[int]] = {}
        for op in root.walk():
            if isinstance(op, Source):
                found = {i for i, a in enumerate(op.node.output) if a.id in self._flow.used}
                used.setdefault(op.node.table or "", set()).update(found)
        return {table: [f"c{i}" for i in sorted(found)] for table, found in used.items()}

    def _remembered(self, table: str) -> tuple[str, DataFrame | None]:
        """The name under which an input's rows are kept from now on, and those kept so far."""
        number = sorted(self._tables).index(table)
        plain, changes = f"rows-{number}", f"changes-{number}"
        old = self._flow.remembered(changes)
        if old is not None or table in self._changing:
            return changes, old if old is not None else self._flow.remembered(plain)
        return plain, self._flow.remembered(plain)

    def _final_now(self, table: str) -> DataFrame:
        """The rows that count now; what is remembered is these and those that will count later."""
        from pyspark.sql import functions as F

        used = self._used[table]
        columns = [*used, "t", "o", "w"]
        name, old = self._remembered(table)
        new = self._new(table).select(*columns)
        everything = new if old is None else old.select(*columns).union(new).coalesce(1)
        final = earlier(F.col("t"), self._flow.watermark.now, everything)
        counted = everything.where(final)
        if name.startswith("changes"):
            counted = self._net(counted, used)
            self._memory.after[name] = counted.union(everything.where(~final)).coalesce(1)
        else:
            self._memory.after[name] = everything
        return counted.sortWithinPartitions("o").select(*used)

    def _final_before(self, table: str) -> DataFrame:
        from pyspark.sql import functions as F

        _, old = self._remembered(table)
        if old is None:
            return self._flow.inputs[table].where("false")
        final = earlier(F.col("t"), self._flow.watermark.before, old)
        return old.where(final).sortWithinPartitions("o").select(*self._used[table])

    def _new(self, table: str) -> DataFrame:
        """New rows with the time from which they count (`t`), their order (`o`) and weight (`w`)."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        places = self._tables[table]
        frame = self._flow.inputs[table]
        time, operation = F.col(f"c{places.event_time}").cast("timestamp"), F.col(f"c{places.operation}")
        order = F.col(f"c{places.offset}").cast("bigint")
        before = self._flow.watermark.before
        if table not in self._changing:
            fresh = self._without_late(table, frame, time)
            return fresh.select(*self._used[table], time.alias("t"), order.alias("o"), F.lit(1).alias("w"))
        following = Window.orderBy(order)
        paired = (operation == OperationType.CORRECT_FROM.code) & (
            F.lead(operation).over(following) == OperationType.CORRECT_TO.code
        )
        # a row that is corrected before it is final counts neither way
        corrected = F.greatest(time, F.lead(time).over(following))
        counts_from = F.when(paired, corrected).otherwise(time)
        weight = F.when(
            operation.isin(OperationType.RETRACT.code, OperationType.CORRECT_FROM.code), -1
        ).otherwise(1)
        frame = frame.withColumns({"t": counts_from, "o": order, "w": weight})
        if before is not None:
            late = (operation == OperationType.APPEND.code) & earlier(F.col("t"), before, frame)
            self._memory.late.append((table, frame.where(late)))
            frame = frame.where(~late)
        return frame.select(*self._used[table], "t", "o", "w")

    def _without_late(self, table: str, frame: DataFrame, time: Column) -> DataFrame:
        before = self._flow.watermark.before
        if before is None:
            return frame
        late = earlier(time, before, frame)
        self._memory.late.append((table, frame.where(late)))
        return frame.where(~late)

    def _net(self, counted: DataFrame, columns: list[str]) -> DataFrame:
        """Rows less those that were retracted; a retraction of what is not there has no effect."""
        from pyspark.sql import functions as F

        kept = counted.groupBy(*columns).agg(
            F.min("t").alias("t"), F.min("o").alias("o"), F.sum("w").alias("n")
        )
        copies = F.explode(F.array_repeat(F.lit(1), F.greatest(F.col("n"), F.lit(0)).cast("int")))
        return kept.select(*columns, "t", "o", copies.alias("w"))
