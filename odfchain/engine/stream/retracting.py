"""Queries of which a later row may change any earlier result: the change of the result is what is emitted.

What a step emits is the result over the rows that count now less the result over those that counted before:
rows that are gone are retracted, rows that are new appended. Every recorded row counts at once, and so does
what retracts or corrects it; windowed parts of the query say when theirs count.

By the first rules of the engine only final rows count, which are those older than the watermark: a retraction
at once, both rows of a correction when the corrected one is final (`odfchain.engine.stream.tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from odfchain.engine.stream.flow import Flow, StepMemory
from odfchain.engine.stream.in_force import in_force, recorded
from odfchain.engine.stream.operators import ConstantRows, InputScan, Operator, Retracting, RowWise, UnionAll
from odfchain.engine.stream.tables import TableColumns, Tables
from odfchain.model.enums import OperationType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPERATION = "op"
"""Column of what was emitted that says whether a row is new (0) or gone (1)."""


class RetractingFlow:
    """Executes one step of a retracting query."""

    def __init__(
        self,
        flow: Flow,
        tables: Tables,
        *,
        idle: bool,
        asked_again: Callable[[Mapping[str, DataFrame]], DataFrame] | None,
    ) -> None:
        """`idle` says that no input has new rows.

        `asked_again` computes the whole query over tables, where that cannot be taken apart (subqueries).
        """
        self._idle = idle
        self._asked_again = asked_again
        self._flow = flow
        self._tables = tables
        self._now: dict[str, DataFrame] = {}
        self._before: dict[str, DataFrame] = {}

    @property
    def _memory(self) -> StepMemory:
        return self._flow.memory

    def change(self, root: Operator) -> DataFrame:
        """The rows that the step adds to the result and takes from it, with `OPERATION`."""
        from pyspark.sql import functions as F

        columns = [f"c{index}" for index in range(len(root.node.output))]
        if self._idle and self._memory.before and not self._tables.may_count_more():
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
            net = F.sum("n").alias("n")
            if self._flow.rules.tells_zeros_apart:
                alike = [recorded(counted, name).alias(f"key-{name}") for name in columns]
                counted = counted.groupBy(*alike).agg(*[F.first(name).alias(name) for name in columns], net)
            else:
                counted = counted.groupBy(*columns).agg(net)
            counted = counted.where("n <> 0")
            copies = F.array_repeat(F.signum("n"), F.abs("n").cast("int"))
            counted = counted.select(*columns, F.explode(copies).alias("n"))
        operation = F.when(F.col("n") < 0, OperationType.RETRACT.code).otherwise(OperationType.APPEND.code)
        return counted.select(*columns, operation.alias(OPERATION))

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
        columns = self._tables.tables
        for table in columns:
            made[table] = self._tables.before(table) if past else self._tables.now(table)
        named = {table: frame.toDF(*columns[table].names) for table, frame in made.items()}
        result = self._asked_again(named)
        return result.toDF(*[f"c{index}" for index in range(len(result.columns))])

    def _plan(self, op: Operator, made: dict[str, DataFrame], *, past: bool) -> Any:
        catalyst = self._flow.catalyst
        if isinstance(op, ConstantRows):
            return op.node.plan
        if isinstance(op, InputScan):
            table = op.node.table or ""
            if table not in made:
                made[table] = self._tables.before(table) if past else self._tables.now(table)
            return catalyst.adapted(made[table], op.node.output)
        if isinstance(op, Retracting | RowWise | UnionAll) or any(
            isinstance(o, Retracting) for o in op.walk()
        ):
            return catalyst.rebuilt(op.node, [self._plan(child, made, past=past) for child in op.children])
        return catalyst.adapted(self._emitted(op, past=past), op.node.output)

    def _emitted(self, op: Operator, *, past: bool) -> DataFrame:
        """All that a windowed operator emitted, less what it took back."""
        name = self._flow.part(op, "emitted")
        old = self._flow.remembered(name)
        columns = self._flow.kept(op.node.output)
        if past:
            return old if old is not None else self._flow.catalyst.frame(op.node.plan).where("false")
        rows, catalyst = self._flow.rows(op), self._flow.catalyst
        everything = self._flow.together(name, catalyst.frame(rows.plan), columns)
        if rows.back is not None:
            from pyspark.sql import functions as F

            back = catalyst.frame(rows.back).select(*columns).withColumn("back", F.lit(True))
            both = everything.withColumn("back", F.lit(False)).union(back)
            everything, _ = in_force(both, columns, to_the_bit=True)
        self._memory.after[name] = everything
        return everything


def used_of_tables(
    root: Operator, used: frozenset[int], tables: Mapping[str, TableColumns], *, whole: bool
) -> dict[str, list[str]]:
    """The columns of each input that the query uses; all of them for one that is computed as a `whole`."""
    if whole:
        return {table: [f"c{i}" for i in range(len(c.names))] for table, c in tables.items()}
    places: dict[str, set[int]] = {table: set() for table in tables}
    for op in root.walk():
        if isinstance(op, InputScan):
            found = {i for i, a in enumerate(op.node.output) if a.id in used}
            places.setdefault(op.node.table or "", set()).update(found)
    return {table: [f"c{i}" for i in sorted(found)] for table, found in places.items()}
