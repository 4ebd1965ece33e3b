"""Ledger inputs that bring known keys with other values: ignored, told, refused or recorded (RFC-009).

The Ledger strategy by itself never looks at values: a key that was seen is seen. That is right for ledgers,
and hides it when a source is not one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.errors import BadInputError
from odfchain.ingest.merge import (
    APPEND,
    CORRECT_FROM,
    CORRECT_TO,
    RETRACT,
    Merged,
    MergeInput,
    is_changed,
    latest_rows,
    old_name,
    row_struct,
    unique_keys,
)
from odfchain.spark.columns import all_of, any_of, col
from odfchain.spark.read import ROW_ID
from odfchain.workspace.config import LateEdits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SEEN, _EDITED, _TIME = "__odfchain_seen", "__odfchain_edited", "__odfchain_time"


def merge_with_edits(
    new: MergeInput, history: DataFrame, key: tuple[str, ...], edits: LateEdits
) -> tuple[Merged, DataFrame]:
    """(rows to append, the edited rows of the input); `history` has all columns.

    Corrections stand where their new values stand in time, `-C` right before its `+C`.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    op = new.vocabulary.operation_type_column
    compared, seen = _compared(new, history, key), Observation()
    observed = compared.observe(seen, F.count_if(col(_EDITED)).alias("edits"))
    change = F.when(~col(_SEEN), F.array(row_struct(APPEND, new)))
    if edits is LateEdits.CORRECT:
        pair = F.array(row_struct(CORRECT_FROM, new, old=True), row_struct(CORRECT_TO, new))
        change = change.when(col(_EDITED), pair)
    time = col(new.vocabulary.event_time_column).alias(_TIME)
    out = observed.select(col(ROW_ID), time, F.explode(change.otherwise(F.array())).alias("__row"))
    out = out.select(ROW_ID, _TIME, "__row.*").withColumnRenamed("__op", op)
    order = [col(_TIME).asc_nulls_first(), col(ROW_ID).asc(), col(op).asc()]
    return Merged(out, order, edits=seen), compared.where(_EDITED)


def _compared(new: MergeInput, history: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """The input with the latest recorded row of each key, and two flags: is it known, was it edited."""
    from pyspark.sql import functions as F

    retracted = col(new.vocabulary.operation_type_column) == RETRACT
    known = latest_rows(history, key, new.vocabulary, retracted=True).select(
        F.lit(True).alias(_SEEN),
        retracted.alias("__retracted"),
        *[col(n).alias(old_name(n)) for n in new.schema.names if n in history.columns],
    )
    same = all_of(col(n) == col(old_name(n)) for n in key)
    joined = unique_keys(new.frame, key).join(known, same, "left")
    for n in new.schema.names:  # columns that older slices do not have yet
        if old_name(n) not in known.columns:
            joined = joined.withColumn(old_name(n), F.lit(None))
    seen = col(_SEEN).isNotNull()
    changed = any_of(is_changed(n, new) for n in new.schema.names if n not in key)
    edited = seen & ~col("__retracted") & changed
    return joined.withColumn(_EDITED, edited).withColumn(_SEEN, seen).drop("__retracted")


def first_edit(edited: DataFrame, new: MergeInput, key: tuple[str, ...]) -> BadInputError:
    """The first edited row of an input as an error. Called only when there is one."""
    (row,) = edited.orderBy(ROW_ID).limit(1).collect()
    shown = ", ".join(f"{n}={row[n]!r}" for n in key)
    column, old, now = next(
        (n, row[old_name(n)], row[n]) for n in new.schema.names if n not in key and row[n] != row[old_name(n)]
    )
    return BadInputError(
        f"key ({shown}) is recorded with another {column}: {old!r}, not {now!r}",
        file=new.file,
        row=new.frame.where(col(ROW_ID) < row[ROW_ID]).count() + 1,
        hint="late edits can be ignored or recorded as corrections: see --late-edits",
    )
