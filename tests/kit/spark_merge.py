"""The merge strategies as expressions of Spark's: the oracle of `odfchain.ingest.merge_strategies`."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.lazy import F, Window
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.enums import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT, TAKES_BACK
from odfchain.odf.events import DatasetVocabulary
from odfchain.spark.input_frames import ROW_ID
from odfchain.spark.types import col, comparable, physical_type
from odfchain.text import marker
from odfchain.workspace.config import DuplicateKeys, LateEdits
from tests.kit.spark_texts import any_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.window import WindowSpec


_BEFORE = "__odfchain_before"
OLD = "__odfchain_old"
"""The operation of the recorded row of an input row's key, null where there is none."""

_NEW, _RANK, _ROW, _OP = "__odfchain_new", "__odfchain_rank", "__odfchain_record", "__odfchain_op"


@dataclass(frozen=True, slots=True)
class MergeInput:
    """New rows: `ROW_ID` and data columns (event time among them) as physical types."""

    frame: DataFrame
    schema: ds.DataSchema
    """Data columns, without system columns other than event time (and the operation, where it is given)."""
    vocabulary: DatasetVocabulary
    file: str = ""

    def merged(
        self,
        history: DataFrame | None,
        strategy: src.MergeStrategy,
        duplicates: DuplicateKeys = DuplicateKeys.REFUSE,
        edits: LateEdits = LateEdits.IGNORE,
    ) -> Merged:
        """The rows that this input adds to the dataset.

        `history` holds all recorded rows (offset, operation and the columns of `history_columns`; all columns
        where `edits` are looked for), None when no slice was ever written.
        """
        match strategy:
            case src.MergeStrategyAppend():
                return _in_order_of_time(self, self.frame)
            case src.MergeStrategyLedger(primary_key=key):
                return _ledger(self, history, key, duplicates, edits)
            case src.MergeStrategySnapshot(primary_key=key, compare_columns=compare):
                return _snapshot(self, history, key, compare, duplicates)
            case src.MergeStrategyChangelogStream(primary_key=key):
                return _changelog(self, key)
            case src.MergeStrategyUpsertStream(primary_key=key):
                return _upsert(self, history, key)

    def repeated(self, key: tuple[str, ...], duplicates: DuplicateKeys) -> tuple[int, int]:
        """(rows left out that are copies of the one that is kept, rows left out that differ from it)."""
        numbered = _numbered(self, key, last=duplicates is DuplicateKeys.LAST)
        copy = F.count_if((col(_COPY) > 1) & ~col(_DIFFERS))
        ((copies, others),) = numbered.agg(copy, F.count_if(col(_DIFFERS))).collect()
        return copies, others

    def _takes_back(self) -> Column:
        return col(self.vocabulary.operation_type_column).try_cast("int").isin(*TAKES_BACK)

    def with_times_taken_back(self, history: DataFrame | None, event_time: Column) -> MergeInput:
        """The input whose rows that take back without an event time have that of the row that they take back.

        That is the newest one with their other values, of those before them in the input or else of the
        recorded ones. Rows that are added without an event time have `event_time`.
        """
        time, op = self.vocabulary.event_time_column, self.vocabulary.operation_type_column
        values = tuple(name for name in self.schema.names if name not in (time, op))
        before = F.lag(F.coalesce(col(time), event_time)).over(_same_key(values, last=False))
        frame = self.frame.withColumn(_BEFORE, before)
        # an earlier row of the input is newer than any recorded one
        before = col(_BEFORE)
        if history is not None:
            state = current_state(history, values, self)
            same = _all_of(col(name).eqNullSafe(col(_old_name(name))) for name in values)
            frame, before = frame.join(state, same, "left"), F.coalesce(before, col(_old_name(time)))
        filled = F.when(self._takes_back() & col(time).isNull(), before).otherwise(col(time))
        frame = frame.withColumn(time, filled).select(*[col(name) for name in self.frame.columns])
        return dataclasses.replace(self, frame=frame)


_COPY, _DIFFERS = "__odfchain_copy", "__odfchain_differs"


def _refuse_null_keys(frame: DataFrame, key: tuple[str, ...]) -> DataFrame:
    failure = F.raise_error(F.lit(marker("null-key"))).cast("boolean")
    is_null = _all_of(col(name).isNull() for name in key)
    return frame.where(F.when(is_null, failure).otherwise(F.lit(True)))


def _one_row_per_key(
    new: MergeInput, key: tuple[str, ...], duplicates: DuplicateKeys
) -> tuple[DataFrame, Observation]:
    # only repeated rows are counted here: comparing all values of rows whose keys differ would take a third
    # of a merge; `MergeInput.check_repeated` compares them if there are any
    from pyspark.sql import Observation

    seen = Observation()
    copy = F.row_number().over(_same_key(key, last=duplicates is DuplicateKeys.LAST))
    numbered = _refuse_null_keys(new.frame, key).withColumn(_COPY, copy)
    observed = numbered.observe(seen, F.count_if(col(_COPY) > 1).alias("repeated"))
    return observed.where(col(_COPY) == 1).drop(_COPY), seen


def _same_key(key: tuple[str, ...], *, last: bool) -> WindowSpec:
    return Window.partitionBy(*[col(name) for name in key]).orderBy(
        col(ROW_ID).desc() if last else col(ROW_ID).asc()
    )


def _numbered(new: MergeInput, key: tuple[str, ...], *, last: bool) -> DataFrame:
    same = _same_key(key, last=last)
    numbered = new.frame.withColumn(_COPY, F.row_number().over(same))
    others = [comparable(col(f.name), physical_type(f.type)) for f in new.schema.fields if f.name not in key]
    if not others:
        return numbered.withColumn(_DIFFERS, F.lit(False))
    upto = same.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    values = F.struct(*[value.alias(f"v{index}") for index, value in enumerate(others)])
    return numbered.withColumn(_DIFFERS, ~values.eqNullSafe(F.first(values).over(upto)))


@dataclass(frozen=True, slots=True)
class Merged:
    """Rows to append: operation and data columns (and `ROW_ID`), and the order they are to be written in."""

    frame: DataFrame
    order: tuple[str, ...]
    """The columns by which no two rows are alike; ascending, nulls first."""
    recorded: Observation | None = None
    """Observes `recorded`, the number of keys in the recorded state (Snapshot only)."""
    edits: Observation | None = None
    """Observes `edits`, the number of known keys with other values (Ledger, when they are looked for)."""
    edited: DataFrame | None = None
    """The input's rows with such keys."""
    duplicates: Observation | None = None
    """Observes `repeated`, the rows of the input that `_one_row_per_key` leaves out."""


# --- append and ledger -----------------------------------------------------------------------------


def _appended(frame: DataFrame, new: MergeInput) -> DataFrame:
    op = F.lit(APPEND).cast("int").alias(new.vocabulary.operation_type_column)
    return frame.select(op, col(ROW_ID), *[col(name) for name in new.schema.names])


def _in_order_of_time(new: MergeInput, frame: DataFrame) -> Merged:
    return Merged(_appended(frame, new), (new.vocabulary.event_time_column, ROW_ID))


def _ledger(
    new: MergeInput,
    history: DataFrame | None,
    key: tuple[str, ...],
    duplicates: DuplicateKeys,
    edits: LateEdits,
) -> Merged:
    rows, left_out = _one_row_per_key(new, key, duplicates)
    if history is not None and edits is not LateEdits.IGNORE:
        return dataclasses.replace(_with_edits(rows, new, history, key, edits), duplicates=left_out)
    if history is not None:
        seen = history.select(*[col(name).alias(_old_name(name)) for name in key])
        rows = rows.join(seen, _keys_match(key, new), "left_anti")
    return dataclasses.replace(_in_order_of_time(new, rows), duplicates=left_out)


# Late edits of a ledger (known keys with other values): ignored, reported, refused or recorded (RFC-009). The
# Ledger strategy itself never compares values, which hides that a source is not a ledger.

_EDITED, _TIME = "__odfchain_edited", "__odfchain_time"


def _with_edits(
    rows: DataFrame, new: MergeInput, history: DataFrame, key: tuple[str, ...], edits: LateEdits
) -> Merged:
    # corrections are placed by the event time of their new values, `-C` right before its `+C`
    from pyspark.sql import Observation

    state = current_state(history, key, new, retracted=True)
    joined = _join_state(rows, state, key, new, "left")
    changed = any_of(_is_changed(n, new) for n in new.schema.names if n not in key)
    in_force = col(OLD).isNotNull() & ~col(OLD).isin(*TAKES_BACK)
    compared, seen = joined.withColumn(_EDITED, in_force & changed), Observation()
    observed = compared.observe(seen, F.count_if(col(_EDITED)).alias("edits"))
    change = F.when(col(OLD).isNull(), F.array(_row_struct(APPEND, new)))
    if edits is LateEdits.CORRECT:
        change = change.when(col(_EDITED), _correction(new))
    timed = observed.withColumn(_TIME, col(new.vocabulary.event_time_column))
    out = _exploded(timed, change.otherwise(F.array()), new, ROW_ID, _TIME)
    order = (_TIME, ROW_ID, new.vocabulary.operation_type_column)
    return Merged(out, order, edits=seen, edited=compared.where(_EDITED))


def _keys_match(key: tuple[str, ...], new: MergeInput) -> Column:
    parts = []
    for name in key:
        field, recorded = new.schema.field(name), col(_old_name(name))
        # a key of one column is never null (`_refuse_null_keys`), and a null-safe join has twice the keys
        required = len(key) == 1 or (field is not None and not field.optional)
        parts.append(col(name) == recorded if required else col(name).eqNullSafe(recorded))
    return _all_of(parts)


# --- snapshot --------------------------------------------------------------------------------------


def _snapshot(
    new: MergeInput,
    history: DataFrame | None,
    key: tuple[str, ...],
    compare: tuple[str, ...] | None,
    duplicates: DuplicateKeys,
) -> Merged:
    from pyspark.sql import Observation

    rows, left_out = _one_row_per_key(new, key, duplicates)
    if history is None:
        merged = _in_order_of_key(new, _appended(rows, new), key)
        return dataclasses.replace(merged, duplicates=left_out)
    joined = _join_state(
        rows.withColumn(_NEW, F.lit(True)), current_state(history, key, new), key, new, "full"
    )
    observation = Observation()
    joined = joined.observe(observation, F.count(col(OLD)).alias("recorded"))
    names = [n for n in new.schema.names if n not in key] if compare is None else list(compare)
    present, recorded = col(_NEW).isNotNull(), col(OLD).isNotNull()
    changed = any_of(_is_changed(name, new) for name in names)
    change = (
        F.when(present & ~recorded, F.array(_row_struct(APPEND, new)))
        .when(recorded & ~present, F.array(_row_struct(RETRACT, new, old=True)))
        .when(changed, _correction(new))
        .otherwise(F.array())
    )
    merged = _in_order_of_key(new, _exploded(joined, change, new), key)
    return Merged(merged.frame, merged.order, observation, duplicates=left_out)


def current_state(
    history: DataFrame, key: tuple[str, ...], new: MergeInput, *, retracted: bool = False
) -> DataFrame:
    """The newest rows of keys with prefixed columns, and their operation as `OLD`."""
    newest = Window.partitionBy(*[col(name) for name in key]).orderBy(
        col(new.vocabulary.offset_column).desc()
    )
    rows = history.withColumn(_RANK, F.row_number().over(newest)).where(col(_RANK) == 1).drop(_RANK)
    if not retracted:
        rows = rows.where(~col(new.vocabulary.operation_type_column).isin(*TAKES_BACK))
    return rows.select(
        col(new.vocabulary.operation_type_column).alias(OLD),
        *[col(n).alias(_old_name(n)) for n in new.schema.names if n in history.columns],
    )


def _join_state(
    rows: DataFrame, state: DataFrame, key: tuple[str, ...], new: MergeInput, how: str
) -> DataFrame:
    joined = rows.join(state, _keys_match(key, new), how)
    for f in new.schema.fields:  # columns that older slices do not have yet
        if _old_name(f.name) not in state.columns:
            joined = joined.withColumn(_old_name(f.name), F.lit(None))
    return joined


def _is_changed(name: str, new: MergeInput) -> Column:
    field = new.schema.field(name)
    assert field is not None
    new_value, old_value = col(name), col(_old_name(name))
    kind = physical_type(field.type)
    differs = ~comparable(new_value, kind).eqNullSafe(comparable(old_value, kind))
    if name == new.vocabulary.event_time_column:  # a missing one is never a change
        return new_value.isNotNull() & differs
    return differs


def _row_struct(code: int, new: MergeInput, *, old: bool = False) -> Column:
    values = [col(_old_name(n) if old else n).alias(n) for n in new.schema.names]
    return F.struct(F.lit(code).cast("int").alias(_OP), *values)


def _correction(new: MergeInput) -> Column:
    return F.array(_row_struct(CORRECT_FROM, new, old=True), _row_struct(CORRECT_TO, new))


def _exploded(joined: DataFrame, change: Column, new: MergeInput, *keep: str) -> DataFrame:
    out = joined.select(*keep, F.explode(change).alias(_ROW)).select(*keep, f"{_ROW}.*")
    return out.withColumnRenamed(_OP, new.vocabulary.operation_type_column)


def _in_order_of_key(new: MergeInput, frame: DataFrame, key: tuple[str, ...]) -> Merged:
    return Merged(frame, (*key, new.vocabulary.operation_type_column))


# --- changelog and upsert streams (ODF 0.37) -------------------------------------------------------


def _changelog(new: MergeInput, key: tuple[str, ...]) -> Merged:
    op = new.vocabulary.operation_type_column
    checked = F.coalesce(_code(col(op)), F.raise_error(F.lit(marker("bad-operation", column=op))))
    names = [n for n in new.schema.names if n != op]
    frame = new.frame.select(checked.alias(op), col(ROW_ID), *[col(n) for n in names])
    # the order of the input within a key keeps multi-step histories intact
    return Merged(frame, (*key, ROW_ID))


def _code(op: Column) -> Column:
    # null for anything that is not an operation
    code = op.try_cast("int")
    whole = op.try_cast("double") == code
    return F.when(code.between(APPEND, CORRECT_TO) & whole, code)


def _upsert(new: MergeInput, history: DataFrame | None, key: tuple[str, ...]) -> Merged:
    op = new.vocabulary.operation_type_column
    data = ds.DataSchema(fields=tuple(f for f in new.schema.fields if f.name != op))
    rows = new.frame if op in new.schema.names else new.frame.withColumn(op, F.lit(APPEND))
    failure = F.raise_error(F.lit(marker("bad-operation", column=op)))
    given = F.coalesce(_code(col(op)), F.when(col(op).isNotNull(), failure), F.lit(APPEND))
    rows = _refuse_null_keys(rows, key).where(given != CORRECT_FROM)
    rows = rows.withColumn(_RANK, F.row_number().over(_same_key(key, last=True))).where(col(_RANK) == 1)
    rows = rows.withColumn(_NEW, given == RETRACT).drop(op, _RANK)
    target = MergeInput(rows, data, new.vocabulary, new.file)
    if history is None:
        return _in_order_of_key(target, _appended(rows.where(~col(_NEW)), target), key)
    joined = _join_state(rows, current_state(history, key, target), key, target, "left")
    recorded, deleted = col(OLD).isNotNull(), col(_NEW)
    changed = any_of(_is_changed(n, target) for n in data.names if n not in key)
    change = (
        F.when(deleted & recorded, F.array(_row_struct(RETRACT, target, old=True)))
        .when(~deleted & ~recorded, F.array(_row_struct(APPEND, target)))
        .when(~deleted & changed, _correction(target))
        .otherwise(F.array())
    )
    return _in_order_of_key(target, _exploded(joined, change, target), key)


def _old_name(name: str) -> str:
    # of a column's recorded value after the join
    return f"__odfchain_old_{name}"


def _all_of(conditions: Iterable[Column]) -> Column:
    """True if every condition holds; true for none."""
    found = list(conditions)
    return functools.reduce(operator.and_, found) if found else F.lit(True)
