"""Queries of which a later row may change any earlier result: the change of the result is what is emitted.

What a step emits is the result over the rows that count now less the result over those that counted before:
rows that are gone are retracted, rows that are new appended. Every recorded row counts at once, and so does
what retracts or corrects it; windowed parts of the query say when theirs count.

By the first rules of the engine only final rows count, which are those older than the watermark: a retraction
at once, both rows of a correction when the corrected one is final (`odfchain.transform.retracting`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odfchain.lazy import F, Window
from odfchain.odf.enums import OperationType
from odfchain.transform import operators as ops
from odfchain.transform.stream_flow import Flow, earlier, in_force, recorded, takes_back

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


# Every recorded row counts at once; a `-R` or `-C` removes the oldest equal row in force. Rows are equal if
# all columns are that the query uses, but for those made at recording. These are the second rules of the
# engine; `FinalRowsFlow` has the first (RFC-019).


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Positions of the system columns in an input's schema."""

    names: tuple[str, ...]
    offset: int
    operation: int
    system_time: int
    event_time: int

    @property
    def made(self) -> frozenset[str]:
        """The columns that are made when a row is recorded: a row and what takes it back differ in them."""
        return frozenset(f"c{index}" for index in (self.offset, self.operation, self.system_time))


OPERATION = "op"
"""Column of what was emitted that says whether a row is new (0) or gone (1)."""


@dataclass(eq=False)
class RetractingFlow:
    """Executes one step of a retracting query; the rows of each input are remembered under one name."""

    flow: Flow
    tables: Mapping[str, TableColumns]
    changing: frozenset[str]
    """The inputs whose new rows take others back."""
    used: Mapping[str, list[str]]
    """The columns of each that are needed."""
    versions: frozenset[str]
    """Those that are temporal tables: what was in force stays, and what corrects it is its next version."""
    idle: bool
    """No input has new rows."""
    asked_again: Callable[[Mapping[str, DataFrame]], DataFrame] | None
    """Computes the whole query over tables, where that cannot be taken apart (subqueries)."""

    def _name(self, table: str, role: str = "rows") -> str:
        return f"{role}-{sorted(self.tables).index(table)}"

    def now(self, table: str) -> DataFrame:
        """The rows that count from this step on, by offset; they are remembered."""
        used, name = self.used[table], self._name(table)
        old, rows = self.flow.memory.before.get(name), self._new(table)
        if old is not None:
            rows = old.select(*used, "o", F.lit(False).alias("back")).union(rows).coalesce(1)
        if table in self.changing and table not in self.versions:
            alike = [column for column in used if column not in self.tables[table].made]
            rows, unmatched = in_force(rows, alike, to_the_bit=not self.flow.rules.takes_back_equals)
            self.flow.memory.unmatched.append((table, unmatched))
        kept = rows.select(*used, "o").coalesce(1).sortWithinPartitions("o")
        self.flow.memory.after[name] = kept
        return kept.select(*used)

    def before(self, table: str) -> DataFrame:
        """The rows that counted before this step, by offset."""
        old = self.flow.memory.before.get(self._name(table))
        rows = self.flow.inputs[table].where("false") if old is None else old.sortWithinPartitions("o")
        return rows.select(*self.used[table])

    def _new(self, table: str) -> DataFrame:
        # `o`: the order of rows, `back`: they take others back
        places = self.tables[table]
        frame = self.flow.inputs[table]
        back = takes_back(F.col(f"c{places.operation}"))
        if table in self.versions:
            frame = frame.where(~back)
        order = F.col(f"c{places.offset}").cast("bigint")
        operation = f"c{places.operation}"
        shown = [
            # what counts is in force, however it came
            F.lit(OperationType.APPEND.code).alias(c) if c == operation else F.col(c)
            for c in self.used[table]
        ]
        return frame.select(*shown, order.alias("o"), back.alias("back"))

    def may_count_more(self) -> bool:
        """True if rows may count now that were remembered and did not count before."""
        before, now = self.flow.watermark.before, self.flow.watermark.now
        # what a windowed part emits now is not known without computing it
        return before != now and any(not self._is_table(name) for name in self.flow.memory.before)

    @staticmethod
    def _is_table(name: str) -> bool:
        return name.startswith("rows-")

    def change(self, root: ops.Operator) -> DataFrame:
        """The rows that the step adds to the result and takes from it, with `OPERATION`."""
        nothing = self.flow.catalyst.no_rows(root.node)
        columns = nothing.columns
        if self.idle and self.flow.memory.before and not self.may_count_more():
            self.flow.memory.after.update(self.flow.memory.before)
            return nothing.withColumn(OPERATION, F.lit(OperationType.APPEND.code))
        now = self._result(root, past=False)
        past = self._result(root, past=True) if self.flow.memory.before else None
        rows = [f.withColumn("n", F.lit(n)) for f, n in ((now, 1), (past, -1)) if f is not None]
        counted = rows[0] if rows else nothing.withColumn("n", F.lit(1))
        if len(rows) == 2:
            counted = rows[0].union(rows[1]).coalesce(1)
            net = F.sum("n").alias("n")
            if self.flow.rules.tells_zeros_apart:
                alike = [recorded(counted, name).alias(f"key-{name}") for name in columns]
                counted = counted.groupBy(*alike).agg(*[F.first(name).alias(name) for name in columns], net)
            else:
                counted = counted.groupBy(*columns).agg(net)
            counted = counted.where("n <> 0")
            copies = F.array_repeat(F.signum("n"), F.abs("n").cast("int"))
            counted = counted.select(*columns, F.explode(copies).alias("n"))
        operation = F.when(F.col("n") < 0, OperationType.RETRACT.code).otherwise(OperationType.APPEND.code)
        return counted.select(*columns, operation.alias(OPERATION))

    def _result(self, root: ops.Operator, *, past: bool) -> DataFrame | None:
        # None where nothing is final: a global aggregate would make a row of nothing
        made: dict[str, DataFrame] = {}
        if self.asked_again is not None:
            frame = self._whole_query(made, past=past)
        else:
            frame = self.flow.catalyst.frame(self._plan(root, made, past=past))
        counts_nothing = any(
            op.node.kind == "Aggregate" and op.node.plan.groupingExpressions().isEmpty() for op in root.walk()
        )
        if counts_nothing and all(source.isEmpty() for source in made.values()):
            return None
        return frame

    def _whole_query(self, made: dict[str, DataFrame], *, past: bool) -> DataFrame:
        assert self.asked_again is not None  # noqa: S101 - asked by the caller
        columns = self.tables
        for table in columns:
            made[table] = self.before(table) if past else self.now(table)
        named = {table: frame.toDF(*columns[table].names) for table, frame in made.items()}
        result = self.asked_again(named)
        return result.toDF(*[f"c{index}" for index in range(len(result.columns))])

    def _plan(self, op: ops.Operator, made: dict[str, DataFrame], *, past: bool) -> Any:
        catalyst = self.flow.catalyst
        if isinstance(op, ops.ConstantRows):
            return op.node.plan
        if isinstance(op, ops.InputScan):
            table = op.node.table or ""
            if table not in made:
                made[table] = self.before(table) if past else self.now(table)
            return catalyst.adapted(made[table], op.node.output)
        if isinstance(op, ops.Retracting | ops.RowWise | ops.UnionAll) or any(
            isinstance(o, ops.Retracting) for o in op.walk()
        ):
            return catalyst.rebuilt(op.node, [self._plan(child, made, past=past) for child in op.children])
        return catalyst.adapted(self._emitted(op, past=past), op.node.output)

    def _emitted(self, op: ops.Operator, *, past: bool) -> DataFrame:
        name = self.flow.part(op, "emitted")
        old = self.flow.memory.before.get(name)
        columns = self.flow.kept(op.node.output)
        if past:
            return old if old is not None else self.flow.catalyst.no_rows(op.node)
        rows, catalyst = self.flow.rows(op), self.flow.catalyst
        everything = self.flow.together(name, catalyst.frame(rows.plan), columns)
        if rows.back is not None:
            back = catalyst.frame(rows.back).select(*columns).withColumn("back", F.lit(True))
            both = everything.withColumn("back", F.lit(False)).union(back)
            everything, _ = in_force(both, columns, to_the_bit=True)
        self.flow.memory.after[name] = everything
        return everything


class FinalRowsFlow(RetractingFlow):
    """By the first rules: only rows count that are older than the watermark."""

    @staticmethod
    def _is_table(name: str) -> bool:
        return name.startswith(("rows-", "changes-"))

    def may_count_more(self) -> bool:
        """True if a remembered row becomes final with this step."""
        if super().may_count_more():
            return True
        before, now = self.flow.watermark.before, self.flow.watermark.now
        time = F.col("t")
        return before != now and any(
            not frame.where(earlier(time, now, frame) & ~earlier(time, before, frame)).isEmpty()
            for frame in self.flow.memory.before.values()
        )

    def _remembered(self, table: str) -> tuple[str, DataFrame | None]:
        """The name under which an input's rows are kept from now on, and those kept so far."""
        plain, changes = self._name(table), self._name(table, "changes")
        old = self.flow.memory.before.get(changes)
        if old is not None or table in self.changing:
            return changes, old if old is not None else self.flow.memory.before.get(plain)
        return plain, self.flow.memory.before.get(plain)

    def now(self, table: str) -> DataFrame:
        """The rows that count now; what is remembered is these and those that will count later."""
        used = self.used[table]
        columns = [*used, "t", "o", "w"]
        name, old = self._remembered(table)
        new = self._new(table).select(*columns)
        everything = new if old is None else old.select(*columns).union(new).coalesce(1)
        final = earlier(F.col("t"), self.flow.watermark.now, everything)
        counted = everything.where(final)
        if name.startswith("changes"):
            counted = self._net(counted, used)
            self.flow.memory.after[name] = counted.union(everything.where(~final)).coalesce(1)
        else:
            self.flow.memory.after[name] = everything
        return counted.sortWithinPartitions("o").select(*used)

    def before(self, table: str) -> DataFrame:
        """The rows that were final before this step."""
        _, old = self._remembered(table)
        if old is None:
            return self.flow.inputs[table].where("false")
        final = earlier(F.col("t"), self.flow.watermark.before, old)
        return old.where(final).sortWithinPartitions("o").select(*self.used[table])

    def _new(self, table: str) -> DataFrame:
        # `t`: the time from which a row counts, `o`: its order, `w`: its weight
        places = self.tables[table]
        frame = self.flow.inputs[table]
        time, operation = F.col(f"c{places.event_time}").cast("timestamp"), F.col(f"c{places.operation}")
        order = F.col(f"c{places.offset}").cast("bigint")
        before = self.flow.watermark.before
        if table not in self.changing:
            fresh = self.flow.without_late(table, frame, time, before)
            return fresh.select(*self.used[table], time.alias("t"), order.alias("o"), F.lit(1).alias("w"))
        following = Window.orderBy(order)
        paired = (operation == OperationType.CORRECT_FROM.code) & (
            F.lead(operation).over(following) == OperationType.CORRECT_TO.code
        )
        # a row that is corrected before it is final counts neither way
        corrected = F.greatest(time, F.lead(time).over(following))
        counts_from = F.when(paired, corrected).otherwise(time)
        weight = F.when(takes_back(operation), -1).otherwise(1)
        frame = frame.withColumns({"t": counts_from, "o": order, "w": weight})
        if before is not None:
            late = (operation == OperationType.APPEND.code) & earlier(F.col("t"), before, frame)
            self.flow.memory.late.append((table, frame.where(late)))
            frame = frame.where(~late)
        return frame.select(*self.used[table], "t", "o", "w")

    def _net(self, counted: DataFrame, columns: list[str]) -> DataFrame:
        # a retraction of a row that is absent has no effect
        kept = counted.groupBy(*columns).agg(
            F.min("t").alias("t"), F.min("o").alias("o"), F.sum("w").alias("n")
        )
        copies = F.explode(F.array_repeat(F.lit(1), F.greatest(F.col("n"), F.lit(0)).cast("int")))
        return kept.select(*columns, "t", "o", copies.alias("w"))
