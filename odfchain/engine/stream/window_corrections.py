"""What a windowed query takes back and puts in place of it, as the rows that are recorded.

A result that is taken back and the one that takes its place are a correction (-C, then +C) when both are of
the same group: where the result shows what its rows are grouped by, and the step changes one row of that.
What has no such partner is a retraction (-R) or an addition (+A). Source: specification "Representation of
Retractions and Corrections"; RFC-019.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from odfchain.engine.catalyst import class_name, scala_items
from odfchain.engine.stream.operators import Operator, RowWise, SessionWindow, TimeGroup
from odfchain.engine.stream.retracting import OPERATION
from odfchain.model.enums import OperationType

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_PLACE = "place"
"""Column that says where a row stands: the row itself, or the one that it takes the place of."""


def corrected(new: DataFrame, back: DataFrame, identity: Sequence[int] | None) -> DataFrame:
    """The rows of a step with `OPERATION`, and what `in_place` orders them by.

    `identity` are the columns that tell the groups of the result apart; None where it does not show them.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    codes = {op: F.lit(op.code) for op in OperationType}
    row = F.struct(*[F.col(name) for name in new.columns])
    rows = new.withColumn(OPERATION, codes[OperationType.APPEND]).union(
        back.withColumn(OPERATION, codes[OperationType.RETRACT])
    )
    rows = rows.coalesce(1).withColumn(_PLACE, row)
    if identity is None:
        return rows
    is_back = F.col(OPERATION) == codes[OperationType.RETRACT]
    group = Window.partitionBy(*[F.col(f"c{index}") for index in identity])
    gone, come = F.sum(is_back.cast("int")).over(group), F.sum((~is_back).cast("int")).over(group)
    rows = rows.withColumn("pair", (gone == 1) & (come == 1))
    old = F.max(F.when(is_back, F.col(_PLACE))).over(group)
    operation = (
        F.when(F.col("pair") & is_back, codes[OperationType.CORRECT_FROM])
        .when(F.col("pair"), codes[OperationType.CORRECT_TO])
        .otherwise(F.col(OPERATION))
    )
    rows = rows.withColumn(_PLACE, F.when(F.col("pair"), old).otherwise(F.col(_PLACE)))
    return rows.withColumn(OPERATION, operation).drop("pair")


def in_place(frame: DataFrame, event_time: int) -> list[Column]:
    """The order of corrected rows: as without corrections, a correction where the old row stands."""
    from pyspark.sql import functions as F

    count = sum(name.startswith("c") for name in frame.columns)
    place = [F.col(f"{_PLACE}.c{index}").asc_nulls_first() for index in range(count)]
    return [place[event_time], *place, F.col(OPERATION).asc()]


# --- what the rows of a query are the results of -----------------------------------------------------


def identity_of(root: Operator) -> list[int] | None:
    """The columns that tell the groups of a result apart; None where there are none or they do not show."""
    found = _keys(root)
    if found is None:
        return None
    shown, keys = found
    places = [index for index, a in enumerate(root.node.output) if a.id in shown]
    covered = {key for index in places for key in shown[root.node.output[index].id]}
    return places if covered == keys else None


def _keys(op: Operator) -> tuple[dict[int, frozenset[int]], set[int]] | None:
    """(for each column that follows from keys alone the numbers of those, all numbers)."""
    if isinstance(op, TimeGroup | SessionWindow) and op.node.kind == "Aggregate":
        grouping = scala_items(op.node.plan.groupingExpressions())
        numbers = {
            g.exprId().id(): n for n, g in enumerate(grouping) if class_name(g) == "AttributeReference"
        }
        found = {}
        for named in scala_items(op.node.plan.aggregateExpressions()):
            value = named.child() if class_name(named) == "Alias" else named
            same = frozenset(n for n, g in enumerate(grouping) if value.semanticEquals(g))
            if from_keys := same or _of_keys(value, numbers):
                found[named.exprId().id()] = from_keys
        return found, set(range(len(grouping)))
    if not isinstance(op, RowWise) or len(op.children) != 1:
        return None
    below = _keys(op.children[0])
    if below is None or op.node.kind in ("Filter", "View"):
        return below
    if op.node.kind != "Project":
        return None
    shown, keys = below
    found = {}
    for named in scala_items(op.node.plan.projectList()):
        used = {a.exprId().id() for a in scala_items(named.references().toSeq())}
        if used and used <= set(shown):
            found[named.exprId().id()] = frozenset(key for number in used for key in shown[number])
    return found, keys


def _of_keys(value: Any, numbers: dict[int, int]) -> frozenset[int]:
    """The keys that an expression follows from; none when anything else is in it."""
    used = {a.exprId().id() for a in scala_items(value.references().toSeq())}
    return (
        frozenset(numbers[n] for n in used)
        if used <= set(numbers) and not _aggregates(value)
        else frozenset()
    )


def _aggregates(value: Any) -> bool:
    return class_name(value) == "AggregateExpression" or any(
        _aggregates(child) for child in scala_items(value.children())
    )
