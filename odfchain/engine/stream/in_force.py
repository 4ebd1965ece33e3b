"""Rows less those that others take back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odfchain.model.enums import TAKES_BACK
from odfchain.spark.columns import comparable

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def takes_back(operation: Column) -> Column:
    """Whether rows with this operation take others back."""
    return operation.isin(*TAKES_BACK)


def in_force(
    rows: DataFrame, alike: Sequence[str], *, to_the_bit: bool = False
) -> tuple[DataFrame, DataFrame]:
    """(the rows in force, those that take back what is not there), both in the order in which they came.

    A row with `back` takes the oldest row out of force that came before it and has the same values in the
    columns `alike`; where there is none it has no effect, now or later. What is compared `to_the_bit` was
    emitted as it was recorded; else the rule is that of states (`odfchain.slices.rows_in_force`).
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
    lowest = F.least(F.lit(0), F.coalesce(F.min("level").over(earlier), F.lit(0)))
    numbered = numbered.withColumn("unmatched", F.col("back") & (F.col("level") < lowest))
    gone = F.sum((F.col("back") & ~F.col("unmatched")).cast("int")).over(whole)
    place = F.sum((~F.col("back")).cast("int")).over(until)
    numbered = numbered.withColumn("kept", ~F.col("back") & (place > gone)).sortWithinPartitions("i")
    made = ("i", "level", "unmatched", "kept", "back")
    return numbered.where("kept").drop(*made), numbered.where("unmatched").drop(*made)


def recorded(frame: DataFrame, name: str) -> Column:
    """A column as something that is equal only where it is recorded alike.

    Maps cannot be compared, and Spark takes -0.0 and 0.0 for the same.
    """
    from pyspark.sql import functions as F

    column, kind = F.col(name), frame.schema[name].dataType.simpleString()
    if "map<" in kind:
        return F.to_json(F.struct(column))
    return F.struct(column, column.cast("string")) if "double" in kind or "float" in kind else column
