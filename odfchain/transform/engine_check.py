"""The checks of a coordinator before it commits an engine's output.

An engine may be an untrusted program. Its slice must be a plain Parquet file with the system columns that
were asked for; only those are read, batch by batch. Source: specification "Common Data Schema",
"Representation of Retractions and Corrections", "Engine Contract"; RFC-019.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odfchain.chain.rules import canonical
from odfchain.errors import BadInputError, EngineError, SchemaError
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow
from odfchain.odf.enums import TimeUnit
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.schema import format_type, stored
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import PER_SECOND, ParquetSource, open_parquet
from odfchain.slices.writer import (
    ROW_GROUP_ROWS,
    LogicalHash,
    RowTotals,
    SliceFacts,
    SliceInputError,
    SliceSpec,
    cast_column,
    hash_threads,
    parquet_writer,
    write_slice,
)
from odfchain.storage import fsio
from odfchain.text import find_marker, first_line

_UNREADABLE = "not a readable Parquet file: "

_CORRECT_FROM, _CORRECT_TO = 2, 3
_MS_UTC = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")


def check_output(
    path: Path,
    *,
    vocabulary: DatasetVocabulary,
    schema: ds.DataSchema | None,
    interval: OffsetInterval | None,
    system_time: Timestamp,
) -> ds.DataSchema:
    """The schema of an engine's slice, which has exactly the records of `interval` and may be committed.

    With a declared `schema` the slice has its columns in its order; without one the four system columns come
    first. Null flags of system columns are not looked at, their values are.

    Raises:
        EngineError: the engine broke a rule; says which, and the first offset where it did.
    """
    try:
        plain = stat.S_ISREG(path.lstat().st_mode)
    except OSError as error:
        raise _broken(f"no output file {path} ({error.strerror})") from None
    if not plain:
        raise _broken(f"the output {path} is not a plain file")
    with _reading(path), open_parquet(path) as file:
        found = _schema_of(file)
        _check_columns(found, vocabulary, schema)
        expected = interval.count if interval else 0
        if file.metadata.num_rows != expected:
            raise _broken(f"{expected:,} records are declared, the file has {file.metadata.num_rows:,}")
        if interval is not None:
            _check_records(file, vocabulary, interval, system_time)
    return found


def rewrite(
    path: Path,
    declared: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    start_offset: int,
    system_time_ms: int,
    folder: Path,
) -> SliceFacts | None:
    """A new file in `folder` with the same records in exactly the declared types; None when there are none.

    The file must have passed `check_output`.

    Raises:
        EngineError: the file cannot be read, or a value does not fit its declared type.
        SchemaError: a column type without a logical hash.
        StoreError: the new file cannot be written; it is removed.
    """
    spec = SliceSpec.of(declared, vocabulary, start_offset, system_time_ms, folder)
    try:
        return write_slice(_batches(path, declared, vocabulary), spec)
    except SliceInputError as error:
        found = find_marker(str(error))
        raise _broken(str(found["message"]) if found else str(error)) from None
    except pa.ArrowException as error:
        raise _broken(f"a value does not fit its declared type: {first_line(error)}") from None
    except OSError as error:
        raise fsio.storage_error(error, folder) from error


def measure(path: Path, vocabulary: DatasetVocabulary) -> SliceFacts:
    """Hashes and counts of a slice that has the declared types already; memory stays at one row group."""
    with _reading(path):
        physical, size = hash_file(path)
        with ThreadPoolExecutor(max(1, hash_threads() - 1)) as pool, open_parquet(path) as file:
            logical, totals = LogicalHash(file.schema_arrow, pool), RowTotals(vocabulary)
            for batch in file.batches():
                logical.batch(batch)
                totals.batch(batch)
    logical.finish()
    totals.finish()
    return SliceFacts(
        path=str(path),
        rows=totals.rows,
        size=size,
        physical_hash=str(physical),
        logical_hash=str(logical.hash),
        max_event_time_ms=totals.latest_ms,
        ops=totals.ops,
    )


def type_fits(declared: ds.DataType, found: ds.DataType, *, older: bool = False) -> bool:
    """True if values of the type `found` in a Parquet file are of the type `declared`.

    Nested values may be required that are declared optional. In an `older` file structs may lack members that
    are optional by now, and null flags are left to the values.
    """
    if isinstance(found, ds.DataTypeOption) and not isinstance(declared, ds.DataTypeOption) and not older:
        return False
    a = declared.inner if isinstance(declared, ds.DataTypeOption) else declared
    b = found.inner if isinstance(found, ds.DataTypeOption) else found
    match a, b:
        case ds.DataTypeStruct(), ds.DataTypeStruct():
            return _members_fit(a, b, older=older)
        case ds.DataTypeList(), ds.DataTypeList():
            return type_fits(a.item_type, b.item_type, older=older)
        case ds.DataTypeMap(), ds.DataTypeMap():
            keys = type_fits(a.key_type, b.key_type, older=older)
            return keys and type_fits(a.value_type, b.value_type, older=older)
    # Parquet does not keep seconds, lengths of lists and sorted keys of maps, so these make no difference
    return a == b or stored(canonical(a)) == _as_stored(b)


def _members_fit(declared: ds.DataTypeStruct, found: ds.DataTypeStruct, *, older: bool) -> bool:
    members = {f.name: f for f in found.fields}
    if len(members) != len(found.fields) or not members.keys() <= {f.name for f in declared.fields}:
        return False
    if not older and [f.name for f in declared.fields] != list(members):
        return False
    return all(
        type_fits(f.type, members[f.name].type, older=older) if f.name in members else f.optional
        for f in declared.fields
    )


def _as_stored(found: ds.DataType) -> ds.DataType:
    # like `stored`, but engines are asked for UTC: another zone in their file is a difference
    zone = found.timezone if isinstance(found, ds.DataTypeTimestamp) else None
    return stored(canonical(found)) if zone in (None, "", "UTC", "+00:00") else found


# --- columns ---------------------------------------------------------------------------------------


def _schema_of(file: ParquetSource) -> ds.DataSchema:
    try:
        return from_arrow(file.schema_arrow)
    except SchemaError as error:
        raise _broken(str(error)) from None


def _check_columns(
    found: ds.DataSchema, vocabulary: DatasetVocabulary, declared: ds.DataSchema | None
) -> None:
    for index, name in enumerate(found.names):
        if name in found.names[:index]:
            raise _broken(f"column `{name}` comes twice")
    if declared is not None:
        problem = schema_difference(declared, found, vocabulary)
        if problem is not None:
            raise _broken(f"the output does not have the schema of the dataset: {problem}")
    elif found.names[:4] != vocabulary.columns:
        expected, first = ", ".join(vocabulary.columns), ", ".join(found.names[:4])
        raise _broken(
            f"the first columns of the output must be {expected}, they are {first or 'none'}",
            hint=f"let the query select `{vocabulary.event_time_column}` first",
        )
    for name, allowed in _system_types(vocabulary).items():
        column = found.field(name)
        if column is None:
            raise _broken(f"column `{name}` is missing")
        if not any(_as_stored(column.value_type) == t for t in allowed):
            names = " or ".join(format_type(t) for t in allowed)
            raise _broken(f"column `{name}` must be {names}, it is {format_type(column.value_type)}")


def _system_types(vocabulary: DatasetVocabulary) -> dict[str, tuple[ds.DataType, ...]]:
    # the signed types are those that most engines write
    return {
        vocabulary.offset_column: (ds.DataTypeUInt64(), ds.DataTypeInt64()),
        vocabulary.operation_type_column: (ds.DataTypeUInt8(), ds.DataTypeInt32()),
        vocabulary.system_time_column: (_MS_UTC,),
        vocabulary.event_time_column: (_MS_UTC, ds.DataTypeDate()),
    }


def schema_difference(
    declared: ds.DataSchema, found: ds.DataSchema, vocabulary: DatasetVocabulary
) -> str | None:
    """Why a file with the schema `found` cannot be committed to a dataset with the declared one, or None."""
    # offsets may be int64 for uint64 and operations int32 for uint8, or the reverse, and optional columns may
    # be required: `rewrite` gives such a file the declared types
    for name in declared.names:
        if name not in found.names:
            return f"column `{name}` is missing"
    for name in found.names:
        if name not in declared.names:
            return f"column `{name}` is not declared"
    if declared.names != found.names:
        return f"the order of columns is {', '.join(found.names)}, declared is {', '.join(declared.names)}"
    alike = dict(list(_system_types(vocabulary).items())[:2])
    for a, b in zip(declared.fields, found.fields, strict=True):
        if a.value_type in alike.get(a.name, ()) and b.value_type in alike[a.name]:
            continue
        if not type_fits(a.value_type, b.value_type):
            return (
                f"column `{a.name}` is {format_type(b.value_type)}, declared is {format_type(a.value_type)}"
            )
        if b.optional and not a.optional and a.name not in vocabulary.columns:
            return f"column `{a.name}` may be null, declared is NOT NULL"
    return None


# --- records ---------------------------------------------------------------------------------------


def _check_records(
    file: ParquetSource, vocabulary: DatasetVocabulary, interval: OffsetInterval, system_time: Timestamp
) -> None:
    position, last_op = interval.start, 0
    for batch in file.batches(list(vocabulary.columns)):
        columns = [batch.column(name) for name in vocabulary.columns]
        for name, column in zip(vocabulary.columns, columns, strict=True):
            if column.null_count:
                at = position + pc.index(column.is_null(), pa.scalar(True)).as_py()
                raise _broken(f"offset {at}: column `{name}` is null")
        offset, op, time, _ = columns
        if (at := _first_gap(offset, position)) is not None:
            raise _broken(f"offset {position + at} was expected, the record has {offset[at].as_py()}")
        last_op = _check_operations(op.to_numpy(zero_copy_only=False), position, last_op)
        times = time.cast(pa.int64()).to_numpy()
        if (at := _first(times != system_time.epoch_ms)) is not None:
            raise _broken(
                f"offset {position + at}: the system time is {times[at]} ms, "
                f"that of the request is {system_time.epoch_ms} ms ({system_time.truncated_to_ms()})"
            )
        position += batch.num_rows
    if position != interval.end + 1:  # the pages have fewer rows than the footer says
        raise _broken(f"offset {position}: the file ends before, offset {interval.end} should be the last")
    if last_op == _CORRECT_FROM:
        raise _broken(f"offset {interval.end}: a correction (op 2) without its new values (op 3) after it")


def _first(wrong: np.ndarray[Any, np.dtype[np.bool_]]) -> int | None:
    found = np.flatnonzero(wrong)
    return int(found[0]) if len(found) else None


def _check_operations(ops: np.ndarray[Any, Any], position: int, before: int) -> int:
    at = _first((ops < 0) | (ops > _CORRECT_TO))
    if at is not None:
        raise _broken(f"offset {position + at}: operation {ops[at]} (0 to 3 are defined)")
    previous = np.concatenate(([before], ops[:-1]))
    at = _first((previous == _CORRECT_FROM) != (ops == _CORRECT_TO))
    if at is not None and ops[at] == _CORRECT_TO:
        raise _broken(f"offset {position + at}: new values (op 3) without the old ones (op 2) before them")
    if at is not None:
        raise _broken(
            f"offset {position + at - 1}: a correction (op 2) without its new values (op 3) after it"
        )
    return int(ops[-1])


# --- files -----------------------------------------------------------------------------------------


def _batches(path: Path, declared: ds.DataSchema, vocabulary: DatasetVocabulary) -> Iterator[pa.RecordBatch]:
    with _reading(path), open_parquet(path) as file:
        problem = schema_difference(declared, _schema_of(file), vocabulary)
        if problem is not None:
            raise _broken(f"the output does not have the schema of the dataset: {problem}")
        yield from file.batches()


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError, BadInputError) as error:
        reason = error.message if isinstance(error, BadInputError) else first_line(error)
        raise _broken(f"the output {path} is {_UNREADABLE}{reason.removeprefix(_UNREADABLE)}") from None


def _broken(message: str, *, hint: str | None = None) -> EngineError:
    return EngineError(f"the engine broke its contract: {message}", hint=hint)


# The records of an interval as one Parquet file, so that Spark keeps their order on any machine: it packs
# several files into partitions by size, and splits large ones. Memory stays at one row group (specification
# "Offset", "Data Slice"; RFC-019).

_APPEND = 0
_GROUP_BYTES = 128 << 20
"""Arrow memory of the records that become a row group [bytes]."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The records of `interval` in some files, with exactly the columns of `schema`."""

    paths: tuple[Path, ...]
    interval: OffsetInterval | None
    schema: pa.Schema
    vocabulary: DatasetVocabulary

    def into(self, folder: Path, name: str) -> Path | None:
        """One file with exactly these records in order; None without an interval.

        It is the input's own file where that is the same, else a new one in `folder`. Columns that an older
        file lacks are null.
        """
        if self.interval is None:
            return None
        # no copy where the file is exactly this already
        if len(self.paths) == 1 and self._is_exactly(self.paths[0], self.interval):
            return self.paths[0]
        target = folder / f"{name}.parquet"
        try:
            with _writing(target), parquet_writer(str(target), self.schema, self.vocabulary) as writer:
                self._write(writer, self.interval)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        return target

    def _write(self, writer: pq.ParquetWriter, interval: OffsetInterval) -> None:
        expected = interval.start
        group: list[pa.RecordBatch] = []
        rows = size = 0
        for path in self.paths:
            for batch in self._records(path, interval):
                offsets = batch.column(self.vocabulary.offset_column)
                if (at := _first_gap(offsets, expected)) is not None:
                    said = f"offset {expected + at} was expected, the next record has {offsets[at].as_py()}"
                    raise BadInputError(said, file=str(path))
                expected += batch.num_rows
                # each call of the writer makes a row group
                group.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if rows >= ROW_GROUP_ROWS or size >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(group), row_group_size=rows)
                    group, rows, size = [], 0, 0
        if group:
            writer.write_table(pa.Table.from_batches(group), row_group_size=rows)
        if expected != interval.end + 1:
            last = str(self.paths[-1]) if self.paths else None
            raise BadInputError(f"offsets {expected} to {interval.end} are missing", file=last)

    def _is_exactly(self, path: Path, interval: OffsetInterval) -> bool:
        # only the offsets are read
        name = self.vocabulary.offset_column
        with _reading_slice(path), open_parquet(path) as file:
            _check_present(file, [name], path)
            if not file.schema_arrow.equals(self.schema) or file.metadata.num_rows != interval.count:
                return False
            expected = interval.start
            for batch in file.batches([name]):
                if _first_gap(batch.column(name), expected) is not None:
                    return False
                expected += batch.num_rows
        return expected == interval.end + 1

    def _records(self, path: Path, interval: OffsetInterval) -> Iterator[pa.RecordBatch]:
        name = self.vocabulary.offset_column
        with _reading_slice(path), open_parquet(path) as file:
            self._check_columns(file.schema_arrow, path)
            _check_present(file, [name], path)
            for batch in file.batches(groups=_groups_within(file, name, interval)):
                offsets = batch.column(name)
                if offsets.null_count:
                    raise BadInputError(f"column `{name}` has nulls", file=str(path))
                numbers = offsets.to_numpy()
                if (numbers < 0).any():
                    raise BadInputError(f"offset {numbers.min()} is negative", file=str(path))
                numbers = numbers.astype(np.uint64)
                within = (numbers >= np.uint64(interval.start)) & (numbers <= np.uint64(interval.end))
                if not within.any():
                    continue
                kept = batch if within.all() else batch.filter(pa.array(within))
                columns = [_column(kept, field, path) for field in self.schema]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _check_columns(self, found: pa.Schema, path: Path) -> None:
        schema, names = self.schema, self.vocabulary
        for name in found.names:
            if found.names.count(name) > 1:
                raise BadInputError(f"column `{name}` comes twice", file=str(path))
            if name not in schema.names:
                raise BadInputError(f"column `{name}` is not in the schema of the dataset", file=str(path))
        system = (names.offset_column, names.operation_type_column)
        for field in schema:
            if field.name not in found.names:
                if not field.nullable or field.name in names.columns:
                    raise BadInputError(f"required column `{field.name}` is missing", file=str(path))
                continue
            data_type = found.field(field.name).type
            if field.name in system:
                fits = pa.types.is_integer(data_type) and pa.types.is_integer(field.type)
            else:
                fits = _fits(field, found.field(field.name), path)
            if not fits:
                said = f"column `{field.name}` is {data_type}, {field.type} was expected"
                raise BadInputError(said, file=str(path))


def _groups_within(file: ParquetSource, name: str, interval: OffsetInterval) -> list[int]:
    # by the values, not the statistics; invalid offsets count, so that they are reported later
    groups = []
    for group in range(file.metadata.num_row_groups):
        for batch in file.batches([name], groups=[group]):
            offsets = batch.column(name)
            least, most = pc.min_max(offsets).as_py().values()
            if offsets.null_count or (least < 0 or (least <= interval.end and most >= interval.start)):
                groups.append(group)
                break
    return groups


def _fits(declared: pa.Field, found: pa.Field, path: Path) -> bool:
    try:
        (a,), (b,) = from_arrow([declared]).fields, from_arrow([found]).fields
    except SchemaError as error:
        raise BadInputError(str(error), file=str(path)) from None
    return type_fits(a.type, b.type, older=True)


def _column(batch: pa.RecordBatch, field: pa.Field, path: Path) -> pa.Array:
    # null where the file lacks the column
    if field.name not in batch.schema.names:
        return pa.nulls(batch.num_rows, field.type)
    try:
        return cast_column(batch.column(field.name), field)
    except SliceInputError as error:
        found = find_marker(str(error))
        raise BadInputError(str(found["message"]) if found else str(error), file=str(path)) from None
    except pa.ArrowException as error:
        raise BadInputError(f"column `{field.name}`: {first_line(error)}", file=str(path)) from None


def _check_present(file: ParquetSource, names: Sequence[str], path: Path) -> None:
    for name in names:
        if name not in file.schema_arrow.names:
            raise BadInputError(f"required column `{name}` is missing", file=str(path))


def _first_gap(offsets: pa.Array, expected: int) -> int | None:
    # None when all follow each other
    if offsets.null_count:
        return 0
    wanted = np.uint64(expected) + np.arange(len(offsets), dtype=np.uint64)
    return _first(offsets.to_numpy(zero_copy_only=False).astype(np.uint64) != wanted)


@contextlib.contextmanager
def _reading_slice(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise BadInputError(f"not a readable Parquet file: {first_line(error)}", file=str(path)) from None


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise fsio.storage_error(error, target) from error
    except pa.ArrowException as error:
        raise EngineError(f"{target}: {first_line(error)}") from None


@dataclass(frozen=True, slots=True)
class RowFacts:
    """Facts about the records of a file before a query reads them."""

    has_changes: bool
    """True if some retract or correct others."""
    oldest_ms: int | None
    """The oldest event time [ms since 1970], rounded down; None when there is none."""


def row_facts(path: Path, vocabulary: DatasetVocabulary) -> RowFacts:
    """Operations and event times of all records, by their values: what a file says of them may be wrong.

    Raises:
        BadInputError: an unreadable file, one without operations or event times, or a null operation.
    """
    op, time = vocabulary.operation_type_column, vocabulary.event_time_column
    changes, oldest = False, None
    with _reading_slice(path), open_parquet(path) as file:
        _check_present(file, [op, time], path)
        for batch in file.batches([op, time]):
            ops = batch.column(op)
            if ops.null_count:
                raise BadInputError(f"column `{op}` has nulls", file=str(path))
            changes = changes or bool(pc.any(pc.not_equal(ops, _APPEND)).as_py())
            first = _oldest(batch.column(time))
            if first is not None and (oldest is None or first < oldest):
                oldest = first
    return RowFacts(changes, oldest)


def _oldest(times: pa.Array) -> int | None:
    # milliseconds, rounded down
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("ms"))
    if not pa.types.is_timestamp(times.type):
        return None
    number = pc.min(times.cast(pa.int64())).as_py()
    return None if number is None else int(number) * 1_000 // PER_SECOND[times.type.unit]
