"""Merge strategies: new rows and recorded history to the rows that are appended, as Spark plans.

Invariants (specification "Merge Strategies"; facts in `fixtures/conformance/merge_cases.json`; RFC-009 lists
where this deliberately differs from the reference implementation):

- Append takes every row; Ledger drops rows whose key was ever seen; both keep the order of event time, and of
  the file where event times are equal.
- Snapshot compares the input with the recorded state, which for each key is the row with the largest offset
  unless that is a retraction. Whether a row is present is a flag, never the nullness of a column. `-R` and
  `-C` carry the recorded values, event time included; `+A` and `+C` carry the new ones.
- A missing event time in the input is never a reason to see a change.
- A null key or a key twice in one input stops the run.
- Output is ordered by primary key and operation, so that `-C` stands right before its `+C`.

No row reaches the driver, and every comparison is an expression of Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, IncompatibleSchemaError
from odfchain.metadata import data_schema as ds
from odfchain.metadata.enums import OperationType
from odfchain.metadata.events import DatasetVocabulary
from odfchain.metadata.sources import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from odfchain.spark.columns import all_of, any_of, col
from odfchain.spark.failure import marker
from odfchain.spark.read import ROW_ID

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation

OLD = "__odfchain_old"
"""Beside an input row: the operation of the recorded row of its key, null where there is none."""

_NEW = "__odfchain_new"
APPEND, RETRACT, CORRECT_FROM, CORRECT_TO = (
    op.code
    for op in (
        OperationType.APPEND,
        OperationType.RETRACT,
        OperationType.CORRECT_FROM,
        OperationType.CORRECT_TO,
    )
)


@dataclass(frozen=True, slots=True)
class Merged:
    """Rows to append: operation and data columns (and `ROW_ID`), and the order they are to be written in."""

    frame: DataFrame
    order: list[Column]
    recorded: Observation | None = None
    """Observes `recorded`, the number of keys in the recorded state (Snapshot only)."""
    edits: Observation | None = None
    """Observes `edits`, the number of known keys with other values (Ledger, when they are looked for)."""


@dataclass(frozen=True, slots=True)
class MergeInput:
    """New rows: `ROW_ID` and data columns (event time among them) as carriers."""

    frame: DataFrame
    schema: ds.DataSchema
    """Data columns, without system columns other than event time (and the operation, where it is given)."""
    vocabulary: DatasetVocabulary
    file: str = ""


def primary_key(strategy: MergeStrategy) -> tuple[str, ...]:
    """The strategy's primary key; empty for Append."""
    return () if isinstance(strategy, MergeStrategyAppend) else strategy.primary_key


def takes_operations(strategy: MergeStrategy) -> bool:
    """Whether the input says itself what each row does."""
    return isinstance(strategy, MergeStrategyChangelogStream | MergeStrategyUpsertStream)


def history_columns(strategy: MergeStrategy, schema: ds.DataSchema) -> list[str] | None:
    """Data columns of the history that the strategy looks at; None when it looks at none of it."""
    match strategy:
        case MergeStrategyAppend() | MergeStrategyChangelogStream():
            return None
        case MergeStrategyLedger(primary_key=key):
            return list(key)
    return list(schema.names)


def check_strategy(strategy: MergeStrategy, schema: ds.DataSchema, file: str) -> None:
    """Every column that the strategy names is in the input.

    Raises:
        IncompatibleSchemaError: one is not, or the key is empty.
    """
    if isinstance(strategy, MergeStrategyAppend):
        return
    named = [("primaryKey", strategy.primary_key)]
    if isinstance(strategy, MergeStrategySnapshot) and strategy.compare_columns is not None:
        named.append(("compareColumns", strategy.compare_columns))
    for what, names in named:
        if not names:
            raise IncompatibleSchemaError(f"merge.{what} of the source is empty")
        for name in names:
            if schema.field(name) is None:
                raise IncompatibleSchemaError(
                    f"{file}: merge.{what} names column {name!r}, which the input does not have "
                    f"(it has {', '.join(schema.names)})"
                )


def merge(new: MergeInput, history: DataFrame | None, strategy: MergeStrategy) -> Merged:
    """The rows that this input adds to the dataset.

    `history` holds all recorded rows (offset, operation and the columns of `history_columns`), None when no
    slice was ever written.

    Raises:
        IncompatibleSchemaError: a column that the strategy names is missing.
    """
    check_strategy(strategy, new.schema, new.file)
    match strategy:
        case MergeStrategyAppend():
            return _in_order_of_time(new, _with_operation(new.frame, new, APPEND))
        case MergeStrategyLedger(primary_key=key):
            return _ledger(new, history, key)
        case MergeStrategySnapshot(primary_key=key, compare_columns=compare):
            return _snapshot(new, history, key, compare)
        case MergeStrategyChangelogStream(primary_key=key):
            return _changelog(new, key)
        case MergeStrategyUpsertStream(primary_key=key):
            return _upsert(new, history, key)


# --- append and ledger -----------------------------------------------------------------------------


def _with_operation(frame: DataFrame, new: MergeInput, code: int) -> DataFrame:
    from pyspark.sql import functions as F

    op = F.lit(code).cast("int").alias(new.vocabulary.operation_type_column)
    return frame.select(op, col(ROW_ID), *[col(name) for name in new.schema.names])


def _in_order_of_time(new: MergeInput, frame: DataFrame) -> Merged:
    return Merged(frame, [col(new.vocabulary.event_time_column).asc_nulls_first(), col(ROW_ID).asc()])


def _ledger(new: MergeInput, history: DataFrame | None, key: tuple[str, ...]) -> Merged:
    rows = unique_keys(new.frame, key)
    if history is not None:
        seen = history.select(*[col(name).alias(old_name(name)) for name in key])
        # null keys were refused, so plain equality loses nothing
        rows = rows.join(seen, all_of(col(name) == col(old_name(name)) for name in key), "left_anti")
    return _in_order_of_time(new, _with_operation(rows, new, APPEND))


# --- snapshot --------------------------------------------------------------------------------------


def _snapshot(
    new: MergeInput, history: DataFrame | None, key: tuple[str, ...], compare: tuple[str, ...] | None
) -> Merged:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    rows = unique_keys(new.frame, key)
    if history is None:
        return _in_order_of_key(new, _with_operation(rows, new, APPEND), key)
    joined = join_state(
        rows.withColumn(_NEW, F.lit(True)), current_state(history, key, new), key, new, "full"
    )
    observation = Observation()
    joined = joined.observe(observation, F.count(col(OLD)).alias("recorded"))
    names = [n for n in new.schema.names if n not in key] if compare is None else list(compare)
    present, recorded = col(_NEW).isNotNull(), col(OLD).isNotNull()
    changed = any_of(is_changed(name, new) for name in names)
    change = (
        F.when(present & ~recorded, F.array(row_struct(APPEND, new)))
        .when(recorded & ~present, F.array(row_struct(RETRACT, new, old=True)))
        .when(changed, correction(new))
        .otherwise(F.array())
    )
    merged = _in_order_of_key(new, exploded(joined, change, new), key)
    return Merged(merged.frame, merged.order, observation)


def current_state(
    history: DataFrame, key: tuple[str, ...], new: MergeInput, *, retracted: bool = False
) -> DataFrame:
    """`latest_rows` with prefixed columns, and their operation as `OLD`."""
    rows = latest_rows(history, key, new.vocabulary, retracted=retracted)
    return rows.select(
        col(new.vocabulary.operation_type_column).alias(OLD),
        *[col(n).alias(old_name(n)) for n in new.schema.names if n in history.columns],
    )


def latest_rows(
    history: DataFrame, key: tuple[str, ...], vocabulary: DatasetVocabulary, *, retracted: bool = False
) -> DataFrame:
    """For each key the row with the largest offset, unless that is a retraction (or with them, too)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    latest = Window.partitionBy(*[col(name) for name in key]).orderBy(col(vocabulary.offset_column).desc())
    rows = history.withColumn("__rank", F.row_number().over(latest)).where("__rank = 1").drop("__rank")
    return rows if retracted else rows.where(col(vocabulary.operation_type_column) != RETRACT)


def join_state(
    rows: DataFrame, state: DataFrame, key: tuple[str, ...], new: MergeInput, how: str
) -> DataFrame:
    """Input rows beside the recorded ones of the same key, with every column of the input on both sides."""
    from pyspark.sql import functions as F

    # null keys were refused in the input; a recorded null key finds no partner under either equality
    joined = rows.join(state, all_of(col(name) == col(old_name(name)) for name in key), how)
    for f in new.schema.fields:  # columns that older slices do not have yet
        if old_name(f.name) not in state.columns:
            joined = joined.withColumn(old_name(f.name), F.lit(None))
    return joined


def is_changed(name: str, new: MergeInput) -> Column:
    """Whether a column has another value than was recorded; a missing event time is never a change."""
    field = new.schema.field(name)
    assert field is not None  # noqa: S101 - check_strategy
    new_value, old_value = col(name), col(old_name(name))
    differs = ~_comparable(new_value, field).eqNullSafe(_comparable(old_value, field))
    if name == new.vocabulary.event_time_column:
        return new_value.isNotNull() & differs
    return differs


def _comparable(value: Column, field: ds.DataField) -> Column:
    from pyspark.sql import functions as F

    return F.array_sort(F.map_entries(value)) if isinstance(field.value_type, ds.DataTypeMap) else value


def row_struct(code: int, new: MergeInput, *, old: bool = False) -> Column:
    """A row to append, of the new or the recorded values, for `explode`."""
    from pyspark.sql import functions as F

    values = [col(old_name(n) if old else n).alias(n) for n in new.schema.names]
    return F.struct(F.lit(code).cast("int").alias("__op"), *values)


def correction(new: MergeInput) -> Column:
    """The two rows that replace the recorded values by the new ones."""
    from pyspark.sql import functions as F

    return F.array(row_struct(CORRECT_FROM, new, old=True), row_struct(CORRECT_TO, new))


def exploded(joined: DataFrame, change: Column, new: MergeInput, *keep: str) -> DataFrame:
    """The rows that `change` makes of each row, with the columns that are to be kept of it."""
    from pyspark.sql import functions as F

    out = joined.select(*keep, F.explode(change).alias("__row")).select(*keep, "__row.*")
    return out.withColumnRenamed("__op", new.vocabulary.operation_type_column)


def _in_order_of_key(new: MergeInput, frame: DataFrame, key: tuple[str, ...]) -> Merged:
    order = [col(name).asc_nulls_first() for name in key]
    return Merged(frame, [*order, col(new.vocabulary.operation_type_column).asc()])


# --- changelog and upsert streams (ODF 0.37) -------------------------------------------------------


def _changelog(new: MergeInput, key: tuple[str, ...]) -> Merged:
    from pyspark.sql import functions as F

    op = new.vocabulary.operation_type_column
    valid = F.when(col(op).between(APPEND, CORRECT_TO), col(op).cast("int"))
    checked = F.coalesce(valid, F.raise_error(F.lit(marker("bad-operation", column=op))))
    names = [n for n in new.schema.names if n != op]
    frame = new.frame.select(checked.alias(op), col(ROW_ID), *[col(n) for n in names])
    # the order of the input within a key keeps multi-step histories intact
    return Merged(frame, [*[col(name).asc_nulls_first() for name in key], col(ROW_ID).asc()])


def _upsert(new: MergeInput, history: DataFrame | None, key: tuple[str, ...]) -> Merged:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    op = new.vocabulary.operation_type_column
    data = ds.DataSchema(fields=tuple(f for f in new.schema.fields if f.name != op))
    rows = new.frame if op in new.schema.names else new.frame.withColumn(op, F.lit(APPEND))
    given = F.coalesce(col(op).cast("int"), F.lit(APPEND))
    rows = _refuse_null_keys(rows, key).where(given != CORRECT_FROM)
    last = Window.partitionBy(*[col(name) for name in key]).orderBy(col(ROW_ID).desc())
    rows = rows.withColumn("__rank", F.row_number().over(last)).where("__rank = 1")
    rows = rows.withColumn(_NEW, given == RETRACT).drop(op, "__rank")
    target = MergeInput(rows, data, new.vocabulary, new.file)
    if history is None:
        return _in_order_of_key(target, _with_operation(rows.where(~col(_NEW)), target, APPEND), key)
    joined = join_state(rows, current_state(history, key, target), key, target, "left")
    recorded, deleted = col(OLD).isNotNull(), col(_NEW)
    changed = any_of(is_changed(n, target) for n in data.names if n not in key)
    change = (
        F.when(deleted & recorded, F.array(row_struct(RETRACT, target, old=True)))
        .when(~deleted & ~recorded, F.array(row_struct(APPEND, target)))
        .when(~deleted & changed, correction(target))
        .otherwise(F.array())
    )
    return _in_order_of_key(target, exploded(joined, change, target), key)


# --- keys ------------------------------------------------------------------------------------------


def _refuse_null_keys(frame: DataFrame, key: Iterable[str]) -> DataFrame:
    from pyspark.sql import functions as F

    is_null = any_of(col(name).isNull() for name in key)
    failure = F.raise_error(F.lit(marker("null-key"))).cast("boolean")
    return frame.where(F.when(is_null, failure).otherwise(F.lit(True)))


def unique_keys(frame: DataFrame, key: tuple[str, ...]) -> DataFrame:
    """The same rows, or a failed task where a key is null or occurs twice."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    same = Window.partitionBy(*[col(name) for name in key]).orderBy(col(ROW_ID))
    failure = F.raise_error(F.lit(marker("duplicate-key"))).cast("boolean")
    numbered = _refuse_null_keys(frame, key).withColumn("__copy", F.row_number().over(same))
    return numbered.where(F.when(col("__copy") > 1, failure).otherwise(F.lit(True))).drop("__copy")


def first_bad_key(new: MergeInput, key: tuple[str, ...]) -> BadInputError | None:
    """The first null or repeated key of an input, as an error. Called only after a job has failed."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    def row_number(row_id: int) -> int:
        return new.frame.where(col(ROW_ID) < row_id).count() + 1

    null = new.frame.where(any_of(col(n).isNull() for n in key)).orderBy(ROW_ID).limit(1).collect()
    if null:
        column = next(n for n in key if null[0][n] is None)
        return BadInputError(
            f"primary key column `{column}` is null", file=new.file, row=row_number(null[0][ROW_ID])
        )
    same = Window.partitionBy(*[col(n) for n in key]).orderBy(col(ROW_ID))
    numbered = new.frame.withColumn("__before", F.lag(col(ROW_ID)).over(same))
    twice = numbered.where("__before is not null").orderBy(ROW_ID).limit(1).collect()
    if not twice:
        return None
    shown = ", ".join(f"{n}={twice[0][n]!r}" for n in key)
    return BadInputError(
        f"primary key ({shown}) occurs twice: also in row {row_number(twice[0]['__before']):,}",
        file=new.file,
        row=row_number(twice[0][ROW_ID]),
    )


# --- small helpers ---------------------------------------------------------------------------------


def old_name(name: str) -> str:
    """What the recorded value of a column is called beside the new one."""
    return f"__odfchain_old_{name}"
