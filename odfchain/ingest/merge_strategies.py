"""Merge strategies: new rows and recorded history to the rows that are appended, as Spark plans.

Invariants (specification "Merge Strategies"; facts in `fixtures/conformance/merge_cases.json`; RFC-009 lists
where this deliberately differs from the reference implementation):

- Append takes every row; Ledger drops rows whose key was ever seen; both keep the order of event time, and of
  the file where event times are equal.
- Snapshot compares the input with the recorded state (`odfchain.slices.state`). Whether a row is
  present is a flag, never the nullness of a column. `-R` and `-C` carry the recorded values, event time
  included; `+A` and `+C` carry the new ones.
- A missing event time in the input is never a reason to see a change.
- One input is a set of keyed records. Rows that are equal in every column are one record; rows with one key
  and other values are refused unless the user says which counts. Parts of a key compare null-safe, like
  every other value; only a key of nulls alone names nothing and is refused.
- Output is ordered by primary key and operation, so that `-C` comes right before its `+C`.

No row reaches the driver, and every comparison is an expression of Spark's.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, GuardError, IncompatibleSchemaError
from odfchain.lazy import F, Window, pa, pc, pq
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.enums import APPEND, CORRECT_FROM, CORRECT_TO, RETRACT, TAKES_BACK
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.times import Duration, Timestamp
from odfchain.spark.input_frames import ROW_ID
from odfchain.spark.types import RESERVED, any_of, col, comparable, latest_rows, physical_type
from odfchain.text import cut, marker
from odfchain.workspace.config import DuplicateKeys, LateEdits
from odfchain.workspace.dataset_state import ALLOW_FUTURE, OPERATIONS, operations_problem

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
        check_strategy(strategy, self.schema, self.file, operation=self.vocabulary.operation_type_column)
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

    def row_number(self, row_id: int) -> int:
        """The row with this `ROW_ID`, counted from 1."""
        return self.frame.where(col(ROW_ID) < row_id).count() + 1

    def check_repeated(self, key: tuple[str, ...], duplicates: DuplicateKeys) -> tuple[int, int]:
        """(rows left out that are copies of the one that is kept, rows left out that differ from it).

        Raises:
            BadInputError: rows of one key differ, and no option says which counts.
        """
        numbered = _numbered(self, key, last=duplicates is DuplicateKeys.LAST)
        copy = F.count_if((col(_COPY) > 1) & ~col(_DIFFERS))
        ((copies, others),) = numbered.agg(copy, F.count_if(col(_DIFFERS))).collect()
        if others and duplicates is DuplicateKeys.REFUSE and (refusal := self.first_bad_key(key)) is not None:
            raise refusal
        return copies, others

    def first_bad_key(self, key: tuple[str, ...], *, unique: bool = True) -> BadInputError | None:
        """The first null key, or (`unique`) key of two rows that differ, as an error, for a failed job."""
        null = self.frame.where(_all_of(col(n).isNull() for n in key)).orderBy(ROW_ID).limit(1).collect()
        if null:
            what = f"column `{key[0]}` is null" if len(key) == 1 else f"({', '.join(key)}) has only nulls"
            return BadInputError(f"primary key {what}", file=self.file, row=self.row_number(null[0][ROW_ID]))
        if not unique:
            return None
        differing = _numbered(self, key, last=False).where(_DIFFERS)
        twice = differing.orderBy(ROW_ID).limit(1).collect()
        if not twice:
            return None
        of_key = _all_of(col(name).eqNullSafe(twice[0][name]) for name in key)
        (first,) = self.frame.where(of_key).orderBy(ROW_ID).limit(1).collect()
        there, here = (_texts(self, row[ROW_ID]) for row in (first, twice[0]))
        others = [n for n in self.schema.names if n not in key and there[n] != here[n]]
        return BadInputError(
            f"primary key ({_listed(here, key)}) occurs twice: "
            f"also in row {self.row_number(first[ROW_ID]):,} with other values "
            f"({_listed(there, others)} there, {_listed(here, others)} here)",
            file=self.file,
            row=self.row_number(twice[0][ROW_ID]),
            hint="--duplicate-keys first or last keeps one of them",
        )

    def first_fault(self, strategy: src.MergeStrategy) -> BadInputError | None:
        """The first row whose operation or key the strategy refuses, as an error, after a job has failed."""
        takes, key = strategy.TAKES_OPERATIONS, strategy.primary_key
        fault = None
        if takes and self.schema.field(self.vocabulary.operation_type_column) is not None:
            fault = _first_bad_operation(self)
        if fault is None and key:
            fault = self.first_bad_key(key, unique=not takes)
        return fault

    def first_torn_correction(self, key: tuple[str, ...]) -> BadInputError | None:
        """The first -C or +C without the other half next to it among the rows of its key, as an error."""
        op = col(self.vocabulary.operation_type_column).cast("int")
        steps = _same_key(key, last=False)
        old, opened = op == CORRECT_FROM, F.lag(op).over(steps).eqNullSafe(CORRECT_FROM)
        torn = (old & ~F.lead(op).over(steps).eqNullSafe(CORRECT_TO)) | ((op == CORRECT_TO) & ~opened)
        rows = self.frame.withColumn(_NEW, torn).where(col(_NEW)).orderBy(ROW_ID).limit(1).collect()
        if not rows:
            return None
        begun = rows[0][self.vocabulary.operation_type_column] == CORRECT_FROM
        return BadInputError(
            "old values (-C, 2) without the new ones (+C, 3) of the same key after them"
            if begun
            else "new values (+C, 3) without the old ones (-C, 2) of the same key before them",
            file=self.file,
            row=self.row_number(rows[0][ROW_ID]),
            hint="a row that is taken back is -R (1)" if begun else "a row that is new is +A (0)",
        )

    def _takes_back(self) -> Column:
        return col(self.vocabulary.operation_type_column).try_cast("int").isin(*TAKES_BACK)

    def has_back_without_time(self) -> bool:
        """True if a row takes another back and does not say of which event time that one is."""
        name = self.vocabulary.event_time_column
        return bool(self.frame.where(self._takes_back() & col(name).isNull()).limit(1).collect())

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

    def first_future_row(
        self, written: Path, event_time: Timestamp, bound: Timestamp, system_time: Timestamp
    ) -> GuardError | None:
        """The first row that a slice adds after `bound`, as an error; rows without have `event_time`."""
        times = _times_after(written, self.vocabulary, bound)
        if not times:
            return None
        name = self.vocabulary.event_time_column
        given = col(name).cast("timestamp")
        time = F.coalesce(given, F.timestamp_millis(F.lit(event_time.epoch_ms)))
        future = self.frame.where(F.unix_millis(time).isin(times))
        few = self.schema.names[:4]  # enough to recognise the row
        shown = [col(n).cast("string").alias(f"c{i}") for i, n in enumerate(few)]
        columns = [col(ROW_ID), time.cast("string").alias("time"), given.isNull().alias("none"), *shown]
        rows = future.orderBy(ROW_ID).limit(1).select(*columns).collect()
        after = Duration(bound.epoch_ms - system_time.epoch_ms)
        limit = f"{bound} ({after} after the system time {system_time})"
        if not rows:  # the input does not read the same twice
            return _refused(f"{self.file}: a row has an event time later than {limit}")
        row = rows[0]
        number = self.row_number(row[ROW_ID])
        values = ", ".join(f"{n}={row[f'c{i}']!r}" for i, n in enumerate(few) if n != name)
        whose = "the row has no event time, and that of the source" if row["none"] else "its event time"
        shown_row = f"{self.file}: row {number:,} ({cut(values, _SHOWN)})"
        return _refused(f"{shown_row}: {whose}, {row['time']}, is later than {limit}")

    def first_taken_back_in_vain(self, order: tuple[str, ...], place: int) -> BadInputError:
        """The row of the input that is at a place of the slice, as an error."""
        ordered = self.frame.orderBy(*[col(name).asc_nulls_first() for name in order])
        (row,) = ordered.offset(place).limit(1).select(ROW_ID).collect()
        return BadInputError(
            "takes back (-R, 1, or -C, 2) values that no row in force has",
            file=self.file,
            row=self.row_number(row[ROW_ID]),
            hint="write the values and the event time that were recorded; where no event time is written, it "
            "is that of the newest row with the same values",
        )

    def first_edit(self, edited: DataFrame, key: tuple[str, ...]) -> BadInputError:
        """The first edited row of an input as an error. Called only when there is one."""
        others = [n for n in self.schema.names if n not in key]
        flags = [_is_changed(n, self).alias(f"{RESERVED}changed_{i}") for i, n in enumerate(others)]
        (row,) = edited.select("*", *flags).orderBy(ROW_ID).limit(1).collect()
        shown = ", ".join(f"{n}={row[n]!r}" for n in key)
        column = next(n for i, n in enumerate(others) if row[f"{RESERVED}changed_{i}"])
        old, now = row[_old_name(column)], row[column]
        return BadInputError(
            f"key ({shown}) is recorded with another {column}: {old!r}, not {now!r}",
            file=self.file,
            row=self.row_number(row[ROW_ID]),
            hint="late edits can be ignored or recorded as corrections: see --late-edits",
        )


_COPY, _DIFFERS = "__odfchain_copy", "__odfchain_differs"
_SHOWN_COLUMNS, _SHOWN_CHARACTERS = 6, 60


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


def _texts(new: MergeInput, row_id: int) -> dict[str, str]:
    # by Spark, because Python would write times in the local zone
    texts = [_text(col(f.name), f).alias(f.name) for f in new.schema.fields]
    (row,) = new.frame.where(col(ROW_ID) == row_id).select(*texts).collect()
    texts_only = {f.name for f in new.schema.fields if isinstance(f.value_type, ds.DataTypeString)}
    return {name: repr(row[name]) if name in texts_only else str(row[name]) for name in new.schema.names}


def _text(value: Column, field: ds.DataField) -> Column:
    match field.value_type:
        case ds.DataTypeBinary(fixed_length=16):
            return F.regexp_replace(F.lower(F.hex(value)), "^(.{8})(.{4})(.{4})(.{4})", "$1-$2-$3-$4-")
        case ds.DataTypeBinary():
            return F.hex(value)
    return value.cast("string")


def _listed(texts: dict[str, str], names: Sequence[str]) -> str:
    shown = [f"{name}={cut(texts[name], _SHOWN_CHARACTERS)}" for name in names[:_SHOWN_COLUMNS]]
    return ", ".join(shown) + (", …" if len(names) > _SHOWN_COLUMNS else "")


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


def check_strategy(
    strategy: src.MergeStrategy, schema: ds.DataSchema | None, file: str, *, operation: str = "op"
) -> None:
    """Check that the input has every column that the strategy names, and `operation` where needed."""
    # without a schema only faults are found that any schema would have
    if isinstance(strategy, src.MergeStrategyAppend):
        return
    named = [("primaryKey", strategy.primary_key)]
    if isinstance(strategy, src.MergeStrategySnapshot) and strategy.compare_columns is not None:
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
        message, hint = problem
        raise IncompatibleSchemaError(f"{file}: {message}", hint=hint)


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
    """`latest_rows` with prefixed columns, and their operation as `OLD`."""
    rows = latest_rows(history, key, new.vocabulary, retracted=retracted)
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
    assert field is not None  # noqa: S101 - check_strategy
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


def _first_bad_operation(new: MergeInput) -> BadInputError | None:
    op = new.vocabulary.operation_type_column
    wrong = new.frame.where(col(op).isNotNull() & _code(col(op)).isNull())
    rows = wrong.orderBy(ROW_ID).limit(1).collect()
    if not rows:
        return None
    return BadInputError(
        f"column `{op}`: {rows[0][op]!r} is not an operation ({OPERATIONS})",
        file=new.file,
        row=new.row_number(rows[0][ROW_ID]),
    )


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


# Rows dated too far in the future (RFC-014).

_DAY_MS = 86_400_000
_SHOWN = 120
_TIMES = 100


def _times_after(written: Path, vocabulary: DatasetVocabulary, bound: Timestamp) -> list[int]:
    # the first ones that a slice adds rows of [ms]; taking such rows back is always right
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


def _refused(message: str) -> GuardError:
    return GuardError(
        message,
        flag=ALLOW_FUTURE,
        setting="set ingest.maxFuture, or the source's `watermark: {maxFuture: …}`",
    )


def _all_of(conditions: Iterable[Column]) -> Column:
    """True if every condition holds; true for none."""
    found = list(conditions)
    return functools.reduce(operator.and_, found) if found else F.lit(True)
