"""The rows of an input that count in a query which may take results back, now and before the step.

Every recorded row counts at once. A retraction, or the old half of a correction, takes the oldest row out of
force that looks like it; rows look alike when all columns are equal that the query uses, but for those which
are made when a row is recorded. Of the two rules of the engine these are the second; `FinalTables` are the
first. Source: RFC-019.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.engine.stream.flow import Flow, StepMemory, earlier
from odfchain.engine.stream.in_force import in_force, takes_back
from odfchain.model.enums import OperationType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Where the system columns of an input stand in its schema."""

    names: tuple[str, ...]
    offset: int
    operation: int
    system_time: int
    event_time: int

    @property
    def made(self) -> frozenset[str]:
        """The columns that are made when a row is recorded: a row and what takes it back differ in them."""
        return frozenset(f"c{index}" for index in (self.offset, self.operation, self.system_time))


class Tables:
    """What a step counts of the inputs; memory is kept under one name for each input."""

    def __init__(
        self,
        flow: Flow,
        tables: Mapping[str, TableColumns],
        changing: frozenset[str],
        used: Mapping[str, list[str]],
        versions: frozenset[str] = frozenset(),
    ) -> None:
        """`changing` are the inputs whose new rows take others back; `used` the columns that are needed.

        `versions` are the inputs that are temporal tables: what was in force stays, and what corrects it is
        the next version of it.
        """
        self.tables = tables
        self._flow = flow
        self._changing = changing
        self._versions = versions
        self._used = used

    @property
    def _memory(self) -> StepMemory:
        return self._flow.memory

    def _name(self, table: str, role: str = "rows") -> str:
        return f"{role}-{sorted(self.tables).index(table)}"

    def now(self, table: str) -> DataFrame:
        """The rows that count from this step on, by offset; they are remembered."""
        used, name = self._used[table], self._name(table)
        old, rows = self._flow.remembered(name), self._new(table)
        if old is not None:
            from pyspark.sql import functions as F

            rows = old.select(*used, "o", F.lit(False).alias("back")).union(rows).coalesce(1)
        if table in self._changing and table not in self._versions:
            alike = [column for column in used if column not in self.tables[table].made]
            rows, unmatched = in_force(rows, alike, to_the_bit=not self._flow.rules.takes_back_equals)
            self._memory.unmatched.append((table, unmatched))
        kept = rows.select(*used, "o").coalesce(1).sortWithinPartitions("o")
        self._memory.after[name] = kept
        return kept.select(*used)

    def before(self, table: str) -> DataFrame:
        """The rows that counted before this step, by offset."""
        old = self._flow.remembered(self._name(table))
        rows = self._flow.inputs[table].where("false") if old is None else old.sortWithinPartitions("o")
        return rows.select(*self._used[table])

    def _new(self, table: str) -> DataFrame:
        """New rows with their order (`o`), and whether they take others back (`back`)."""
        from pyspark.sql import functions as F

        places = self.tables[table]
        frame = self._flow.inputs[table]
        back = takes_back(F.col(f"c{places.operation}"))
        if table in self._versions:
            frame = frame.where(~back)
        order = F.col(f"c{places.offset}").cast("bigint")
        operation = f"c{places.operation}"
        shown = [
            # what counts is in force, however it came
            F.lit(OperationType.APPEND.code).alias(c) if c == operation else F.col(c)
            for c in self._used[table]
        ]
        return frame.select(*shown, order.alias("o"), back.alias("back"))

    def may_count_more(self) -> bool:
        """Whether rows may count now that were remembered and did not count before."""
        before, now = self._flow.watermark.before, self._flow.watermark.now
        # what a windowed part emits now is not known without computing it
        return before != now and any(not self._is_table(name) for name in self._memory.before)

    @staticmethod
    def _is_table(name: str) -> bool:
        return name.startswith("rows-")


class FinalTables(Tables):
    """By the first rules: only rows count that are older than the watermark."""

    @staticmethod
    def _is_table(name: str) -> bool:
        return name.startswith(("rows-", "changes-"))

    def may_count_more(self) -> bool:
        """Whether a remembered row becomes final with this step."""
        from pyspark.sql import functions as F

        if super().may_count_more():
            return True
        before, now = self._flow.watermark.before, self._flow.watermark.now
        time = F.col("t")
        return before != now and any(
            not frame.where(earlier(time, now, frame) & ~earlier(time, before, frame)).isEmpty()
            for frame in self._memory.before.values()
        )

    def _remembered(self, table: str) -> tuple[str, DataFrame | None]:
        """The name under which an input's rows are kept from now on, and those kept so far."""
        plain, changes = self._name(table), self._name(table, "changes")
        old = self._flow.remembered(changes)
        if old is not None or table in self._changing:
            return changes, old if old is not None else self._flow.remembered(plain)
        return plain, self._flow.remembered(plain)

    def now(self, table: str) -> DataFrame:
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

    def before(self, table: str) -> DataFrame:
        """The rows that were final before this step."""
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

        places = self.tables[table]
        frame = self._flow.inputs[table]
        time, operation = F.col(f"c{places.event_time}").cast("timestamp"), F.col(f"c{places.operation}")
        order = F.col(f"c{places.offset}").cast("bigint")
        before = self._flow.watermark.before
        if table not in self._changing:
            fresh = self._flow.without_late(table, frame, time, before)
            return fresh.select(*self._used[table], time.alias("t"), order.alias("o"), F.lit(1).alias("w"))
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
            self._memory.late.append((table, frame.where(late)))
            frame = frame.where(~late)
        return frame.select(*self._used[table], "t", "o", "w")

    def _net(self, counted: DataFrame, columns: list[str]) -> DataFrame:
        """Rows less those that were retracted; a retraction of what is not there has no effect."""
        from pyspark.sql import functions as F

        kept = counted.groupBy(*columns).agg(
            F.min("t").alias("t"), F.min("o").alias("o"), F.sum("w").alias("n")
        )
        copies = F.explode(F.array_repeat(F.lit(1), F.greatest(F.col("n"), F.lit(0)).cast("int")))
        return kept.select(*columns, "t", "o", copies.alias("w"))
