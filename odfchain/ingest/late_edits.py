"""Ledger inputs that bring known keys with other values: ignored, told, refused or recorded (RFC-009).

The Ledger strategy by itself never looks at values: a key that was seen is seen. That is right for ledgers,
and hides it when a source is not one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.errors import BadInputError
from odfchain.ingest.merge_input import MergeInput
from odfchain.ingest.merge_strategies import (
    OLD,
    Merged,
    correction,
    current_state,
    exploded,
    is_changed,
    join_state,
    old_name,
    row_struct,
)
from odfchain.ingest.primary_keys import one_row_per_key
from odfchain.model.enums import APPEND, TAKES_BACK
from odfchain.repo.workspace_config import DuplicateKeys, LateEdits
from odfchain.spark.columns import RESERVED, any_of, col
from odfchain.spark.input_frames import ROW_ID

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EDITED, _TIME = "__odfchain_edited", "__odfchain_time"


def merge_with_edits(
    new: MergeInput,
    history: DataFrame,
    key: tuple[str, ...],
    edits: LateEdits,
    duplicates: DuplicateKeys = DuplicateKeys.REFUSE,
) -> tuple[Merged, DataFrame]:
    """(rows to append, the edited rows of the input); `history` has all columns.

    Corrections stand where their new values stand in time, `-C` right before its `+C`.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    rows, left_out = one_row_per_key(new, key, duplicates)
    compared, seen = _compared(rows, new, history, key), Observation()
    observed = compared.observe(seen, F.count_if(col(_EDITED)).alias("edits"))
    change = F.when(col(OLD).isNull(), F.array(row_struct(APPEND, new)))
    if edits is LateEdits.CORRECT:
        change = change.when(col(_EDITED), correction(new))
    timed = observed.withColumn(_TIME, col(new.vocabulary.event_time_column))
    out = exploded(timed, change.otherwise(F.array()), new, ROW_ID, _TIME)
    order = (_TIME, ROW_ID, new.vocabulary.operation_type_column)
    return Merged(out, order, edits=seen, duplicates=left_out), compared.where(_EDITED)


def _compared(rows: DataFrame, new: MergeInput, history: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """The input beside the latest recorded row of each key, and whether it edits that."""
    state = current_state(history, key, new, retracted=True)
    joined = join_state(rows, state, key, new, "left")
    changed = any_of(is_changed(n, new) for n in new.schema.names if n not in key)
    in_force = col(OLD).isNotNull() & ~col(OLD).isin(*TAKES_BACK)
    return joined.withColumn(_EDITED, in_force & changed)


def first_edit(edited: DataFrame, new: MergeInput, key: tuple[str, ...]) -> BadInputError:
    """The first edited row of an input as an error. Called only when there is one."""
    others = [n for n in new.schema.names if n not in key]
    flags = [is_changed(n, new).alias(f"{RESERVED}changed_{i}") for i, n in enumerate(others)]
    (row,) = edited.select("*", *flags).orderBy(ROW_ID).limit(1).collect()
    shown = ", ".join(f"{n}={row[n]!r}" for n in key)
    column = next(n for i, n in enumerate(others) if row[f"{RESERVED}changed_{i}"])
    return BadInputError(
        f"key ({shown}) is recorded with another {column}: {row[old_name(column)]!r}, not {row[column]!r}",
        file=new.file,
        row=new.frame.where(col(ROW_ID) < row[ROW_ID]).count() + 1,
        hint="late edits can be ignored or recorded as corrections: see --late-edits",
    )
