"""Merge strategies: new rows and recorded history to the rows that are appended, as Spark plans.

Invariants (specification "Merge Strategies"; facts in `fixtures/conformance/merge_cases.json`; RFC-009 lists
where this deliberately differs from the reference implementation):

- Append takes every row; Ledger drops rows whose key was ever seen; both keep the order of event time, and of
  the file where event times are equal.
- Snapshot compares the input with the recorded state (`odfchain.slices.state`). Whether a row is
  present is a flag, never the nullness of a column. `-R` and `-C` carry the recorded values, event time
  included; `+A` and `+C` carry the new ones.
- A missing event time in the input is never a reason to see a change.
- Keys compare null-safe; rows of one input that are equal are one (`odfchain.ingest.keys`).
- Output is ordered by primary key and operation, so that `-C` comes right before its `+C`.

No row reaches the driver, and every comparison is an expression of Spark's.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, GuardError, IncompatibleSchemaError
from odfchain.ingest.keys import MergeInput, one_row_per_key, refuse_null_keys
from odfchain.odf import schema as ds
from odfchain.odf.enums import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT, TAKES_BACK
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.sources import (
    MergeStrategy,
    MergeStrategyAppend,
    MergeStrategyChangelogStream,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from odfchain.odf.times import Duration, Timestamp
from odfchain.slices.marker import marker
from odfchain.spark.input_frames import ROW_ID
from odfchain.spark.types import RESERVED, all_of, any_of, col, comparable, latest_rows, physical_type
from odfchain.text import cut
from odfchain.workspace.config import DuplicateKeys, LateEdits
from odfchain.workspace.dataset_state import OPERATIONS, operations_problem
from odfchain.workspace.watermark import ALLOW_FUTURE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation


OLD = "__odfchain_old"
"""The operation of the recorded row of an input row's key, null where there is none."""

_NEW, _RANK, _ROW, _OP = "__odfchain_new", "__odfchain_rank", "__odfchain_record", "__odfchain_op"


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
    duplicates: Observation | None = None
    """Observes `repeated`, the rows of the input that `one_row_per_key` leaves out."""


def history_columns(strategy: MergeStrategy, schema: ds.DataSchema) -> list[str] | None:
    """Data columns of the history that the strategy looks at; None when it looks at none of it."""
    if not strategy.LOOKS_BACK:
        return None
    return list(strategy.primary_key if isinstance(strategy, MergeStrategyLedger) else schema.names)


def check_strategy(
    strategy: MergeStrategy, schema: ds.DataSchema | None, file: str, *, operation: str = "op"
) -> None:
    """Check that the input has every column that the strategy names, and `operation` where needed.

    Raises:
        IncompatibleSchemaError: one is not, or the key is empty.
    """
    # without a schema only faults are found that any schema would have
    if isinstance(strategy, MergeStrategyAppend):
        return
    named = [("primaryKey", strategy.primary_key)]
    if isinstance(strategy, MergeStrategySnapshot) and strategy.compare_columns is not None:
        named.append(("compareColumns", strategy.compare_columns))
    for what, names in named:
        if not names:
            raise IncompatibleSchemaError(f"merge.{what} of the source is empty")
        for name in names:
            if names.count(name) > 1:
                raise IncompatibleSchemaError(f"merge.{what} of the source names column {name!r} twice")
            if not name:
                raise IncompatibleSchemaError(f"merge.{what} of the source names a column ''")
            if schema is not None and schema.field(name) is None:
                raise IncompatibleSchemaError(
                    f"{file}: merge.{what} names column {name!r}, which the input does not have "
                    f"(it has {', '.join(schema.names)})"
                )
    if schema is not None and (problem := operations_problem(strategy, schema.names, operation, "the input")):
        raise IncompatibleSchemaError(f"{file}: {problem.message}", hint=problem.hint)


def merge(
    new: MergeInput,
    history: DataFrame | None,
    strategy: MergeStrategy,
    duplicates: DuplicateKeys = DuplicateKeys.REFUSE,
) -> Merged:
    """The rows that this input adds to the dataset.

    `history` holds all recorded rows (offset, operation and the columns of `history_columns`), None when no
    slice was ever written.
    """
    check_strategy(strategy, new.schema, new.file, operation=new.vocabulary.operation_type_column)
    match strategy:
        case MergeStrategyAppend():
            return _in_order_of_time(new, _with_operation(new.frame, new, APPEND))
        case MergeStrategyLedger(primary_key=key):
            return _ledger(new, history, key, duplicates)
        case MergeStrategySnapshot(primary_key=key, compare_columns=compare):
            return _snapshot(new, history, key, compare, duplicates)
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
    return Merged(frame, (new.vocabulary.event_time_column, ROW_ID))


def _ledger(
    new: MergeInput, history: DataFrame | None, key: tuple[str, ...], duplicates: DuplicateKeys
) -> Merged:
    rows, left_out = one_row_per_key(new, key, duplicates)
    if history is not None:
        seen = history.select(*[col(name).alias(old_name(name)) for name in key])
        rows = rows.join(seen, same_key(key, new), "left_anti")
    merged = _in_order_of_time(new, _with_operation(rows, new, APPEND))
    return dataclasses.replace(merged, duplicates=left_out)


def same_key(key: tuple[str, ...], new: MergeInput) -> Column:
    """The condition that an input row and a recorded one have the same key; null-safe where needed."""
    parts = []
    for name in key:
        field, recorded = new.schema.field(name), col(old_name(name))
        # a key of one column is never null (`refuse_null_keys`), and a null-safe join has twice the keys
        required = len(key) == 1 or (field is not None and not field.optional)
        parts.append(col(name) == recorded if required else col(name).eqNullSafe(recorded))
    return all_of(parts)


# --- snapshot --------------------------------------------------------------------------------------


def _snapshot(
    new: MergeInput,
    history: DataFrame | None,
    key: tuple[str, ...],
    compare: tuple[str, ...] | None,
    duplicates: DuplicateKeys,
) -> Merged:
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    rows, left_out = one_row_per_key(new, key, duplicates)
    if history is None:
        merged = _in_order_of_key(new, _with_operation(rows, new, APPEND), key)
        return dataclasses.replace(merged, duplicates=left_out)
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
    return Merged(merged.frame, merged.order, observation, duplicates=left_out)


def current_state(
    history: DataFrame, key: tuple[str, ...], new: MergeInput, *, retracted: bool = False
) -> DataFrame:
    """`latest_rows` with prefixed columns, and their operation as `OLD`."""
    rows = latest_rows(history, key, new.vocabulary, retracted=retracted)
    return rows.select(
        col(new.vocabulary.operation_type_column).alias(OLD),
        *[col(n).alias(old_name(n)) for n in new.schema.names if n in history.columns],
    )


def join_state(
    rows: DataFrame, state: DataFrame, key: tuple[str, ...], new: MergeInput, how: str
) -> DataFrame:
    """Input rows joined with recorded ones of the same key, with every column of the input on both sides."""
    from pyspark.sql import functions as F

    joined = rows.join(state, same_key(key, new), how)
    for f in new.schema.fields:  # columns that older slices do not have yet
        if old_name(f.name) not in state.columns:
            joined = joined.withColumn(old_name(f.name), F.lit(None))
    return joined


def is_changed(name: str, new: MergeInput) -> Column:
    """The condition that a column differs from the recorded value; a missing event time is never a change."""
    field = new.schema.field(name)
    assert field is not None  # noqa: S101 - check_strategy
    new_value, old_value = col(name), col(old_name(name))
    kind = physical_type(field.type)
    differs = ~comparable(new_value, kind).eqNullSafe(comparable(old_value, kind))
    if name == new.vocabulary.event_time_column:
        return new_value.isNotNull() & differs
    return differs


def row_struct(code: int, new: MergeInput, *, old: bool = False) -> Column:
    """A row to append, of the new or the recorded values, for `explode`."""
    from pyspark.sql import functions as F

    values = [col(old_name(n) if old else n).alias(n) for n in new.schema.names]
    return F.struct(F.lit(code).cast("int").alias(_OP), *values)


def correction(new: MergeInput) -> Column:
    """The two rows that replace the recorded values by the new ones."""
    from pyspark.sql import functions as F

    return F.array(row_struct(CORRECT_FROM, new, old=True), row_struct(CORRECT_TO, new))


def exploded(joined: DataFrame, change: Column, new: MergeInput, *keep: str) -> DataFrame:
    """The rows that `change` makes of each row, with the columns that are to be kept of it."""
    from pyspark.sql import functions as F

    out = joined.select(*keep, F.explode(change).alias(_ROW)).select(*keep, f"{_ROW}.*")
    return out.withColumnRenamed(_OP, new.vocabulary.operation_type_column)


def _in_order_of_key(new: MergeInput, frame: DataFrame, key: tuple[str, ...]) -> Merged:
    return Merged(frame, (*key, new.vocabulary.operation_type_column))


# --- changelog and upsert streams (ODF 0.37) -------------------------------------------------------


def _changelog(new: MergeInput, key: tuple[str, ...]) -> Merged:
    from pyspark.sql import functions as F

    op = new.vocabulary.operation_type_column
    checked = F.coalesce(_code(col(op)), F.raise_error(F.lit(marker("bad-operation", column=op))))
    names = [n for n in new.schema.names if n != op]
    frame = new.frame.select(checked.alias(op), col(ROW_ID), *[col(n) for n in names])
    # the order of the input within a key keeps multi-step histories intact
    return Merged(frame, (*key, ROW_ID))


def _code(op: Column) -> Column:
    # null for anything that is not an operation
    from pyspark.sql import functions as F

    code = op.try_cast("int")
    whole = op.try_cast("double") == code
    return F.when(code.between(APPEND, CORRECT_TO) & whole, code)


def first_bad_operation(new: MergeInput) -> BadInputError | None:
    """The first row that says of itself what no row can do, as an error; None when there is none."""
    # only after a job has failed
    op = new.vocabulary.operation_type_column
    wrong = new.frame.where(col(op).isNotNull() & _code(col(op)).isNull())
    rows = wrong.orderBy(ROW_ID).limit(1).collect()
    if not rows:
        return None
    return BadInputError(
        f"column `{op}`: {rows[0][op]!r} is not an operation ({OPERATIONS})",
        file=new.file,
        row=new.frame.where(col(ROW_ID) < rows[0][ROW_ID]).count() + 1,
    )


def first_torn_correction(new: MergeInput, key: tuple[str, ...]) -> BadInputError | None:
    """The first -C or +C without the other half next to it among the rows of its key, as an error."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    op = col(new.vocabulary.operation_type_column).cast("int")
    steps = Window.partitionBy(*[col(name) for name in key]).orderBy(col(ROW_ID))
    old, opened = op == CORRECT_FROM, F.lag(op).over(steps).eqNullSafe(CORRECT_FROM)
    torn = (old & ~F.lead(op).over(steps).eqNullSafe(CORRECT_TO)) | ((op == CORRECT_TO) & ~opened)
    rows = new.frame.withColumn(_NEW, torn).where(col(_NEW)).orderBy(ROW_ID).limit(1).collect()
    if not rows:
        return None
    begun = rows[0][new.vocabulary.operation_type_column] == CORRECT_FROM
    return BadInputError(
        "old values (-C, 2) without the new ones (+C, 3) of the same key after them"
        if begun
        else "new values (+C, 3) without the old ones (-C, 2) of the same key before them",
        file=new.file,
        row=new.frame.where(col(ROW_ID) < rows[0][ROW_ID]).count() + 1,
        hint="a row that is taken back is -R (1)" if begun else "a row that is new is +A (0)",
    )


def _upsert(new: MergeInput, history: DataFrame | None, key: tuple[str, ...]) -> Merged:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    op = new.vocabulary.operation_type_column
    data = ds.DataSchema(fields=tuple(f for f in new.schema.fields if f.name != op))
    rows = new.frame if op in new.schema.names else new.frame.withColumn(op, F.lit(APPEND))
    failure = F.raise_error(F.lit(marker("bad-operation", column=op)))
    given = F.coalesce(_code(col(op)), F.when(col(op).isNotNull(), failure), F.lit(APPEND))
    rows = refuse_null_keys(rows, key).where(given != CORRECT_FROM)
    last = Window.partitionBy(*[col(name) for name in key]).orderBy(col(ROW_ID).desc())
    rows = rows.withColumn(_RANK, F.row_number().over(last)).where(col(_RANK) == 1)
    rows = rows.withColumn(_NEW, given == RETRACT).drop(op, _RANK)
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


# --- small helpers ---------------------------------------------------------------------------------


def old_name(name: str) -> str:
    """The name of a column's recorded value after the join."""
    return f"__odfchain_old_{name}"


# Late edits of a ledger (known keys with other values): ignored, reported, refused or recorded (RFC-009). The
# Ledger strategy itself never compares values, which hides that a source is not a ledger.

_EDITED, _TIME = "__odfchain_edited", "__odfchain_time"


def merge_with_edits(
    new: MergeInput,
    history: DataFrame,
    key: tuple[str, ...],
    edits: LateEdits,
    duplicates: DuplicateKeys = DuplicateKeys.REFUSE,
) -> tuple[Merged, DataFrame]:
    """(rows to append, the edited rows of the input); `history` has all columns."""
    # corrections are placed by the event time of their new values, `-C` right before its `+C`
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
    # each input row with the latest recorded row of its key
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


# Rows dated too far in the future (RFC-014).

_DAY_MS = 86_400_000
_SHOWN = 120
_TIMES = 100


def times_after(written: Path, vocabulary: DatasetVocabulary, bound: Timestamp) -> list[int]:
    """The first later event times that a slice adds rows of [ms]; taking such rows back is always right."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    op, time = vocabulary.operation_type_column, vocabulary.event_time_column
    table = pq.read_table(written, columns=[op, time])
    times = table[time]
    if pa.types.is_date(times.type):
        times = pc.multiply(times.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), _DAY_MS)
    else:
        times = times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64())
    back = pc.is_in(table[op].cast(pa.int32()), pa.array(TAKES_BACK, pa.int32()))
    late = times.filter(pc.and_not(pc.greater(times, bound.epoch_ms), back))
    late_times: list[int] = late.unique().to_pylist()[:_TIMES]
    return late_times


def first_future_row(
    new: MergeInput, times: list[int], event_time: Timestamp, bound: Timestamp, system_time: Timestamp
) -> GuardError:
    """The first row of the input at one of these times [ms], as an error; rows without have `event_time`."""
    from pyspark.sql import functions as F

    name = new.vocabulary.event_time_column
    given = col(name).cast("timestamp")
    time = F.coalesce(given, F.timestamp_millis(F.lit(event_time.epoch_ms)))
    future = new.frame.where(F.unix_millis(time).isin(times))
    shown = [col(n).cast("string").alias(f"c{i}") for i, n in enumerate(_plain(new))]
    columns = [col(ROW_ID), time.cast("string").alias("time"), given.isNull().alias("none"), *shown]
    rows = future.orderBy(ROW_ID).limit(1).select(*columns).collect()
    after = Duration(bound.epoch_ms - system_time.epoch_ms)
    limit = f"{bound} ({after} after the system time {system_time})"
    if not rows:  # the input does not read the same twice
        return _refused(f"{new.file}: a row has an event time later than {limit}")
    row = rows[0]
    number = new.frame.where(col(ROW_ID) < row[ROW_ID]).count() + 1
    values = ", ".join(f"{n}={row[f'c{i}']!r}" for i, n in enumerate(_plain(new)) if n != name)
    whose = "the row has no event time, and that of the source" if row["none"] else "its event time"
    return _refused(
        f"{new.file}: row {number:,} ({cut(values, _SHOWN)}): {whose}, {row['time']}, is later than {limit}"
    )


def _refused(message: str) -> GuardError:
    return GuardError(
        message,
        flag=ALLOW_FUTURE,
        setting="set ingest.maxFuture, or the source's `watermark: {maxFuture: …}`",
    )


def _plain(new: MergeInput) -> list[str]:
    # only the first columns: enough to recognise the row
    return list(new.schema.names)[:4]
