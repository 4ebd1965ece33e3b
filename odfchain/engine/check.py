"""What a coordinator makes sure of before it commits what an engine wrote.

An engine may be somebody else's program. Its slice must be a plain Parquet file with the system columns that
were asked for; only those are read, batch by batch. Source: specification "Common Data Schema",
"Representation of Retractions and Corrections", "Engine Contract"; RFC-019.
"""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.chain.schema_rules import canonical
from odfchain.codec.arrow import from_arrow
from odfchain.digest.physical import hash_file
from odfchain.errors import BadInputError, EngineError, SchemaError
from odfchain.model import data_schema as ds
from odfchain.model.ddl import format_type
from odfchain.model.enums import TimeUnit
from odfchain.model.events import DatasetVocabulary, OffsetInterval
from odfchain.model.recordable import stored
from odfchain.model.timestamp import Timestamp
from odfchain.slices.marker import find_marker
from odfchain.slices.observers import LogicalHash, RowTotals
from odfchain.slices.reader import ParquetSource, open_parquet
from odfchain.slices.writer import SliceFacts, SliceInputError, SliceSpec, hash_threads, write_slice
from odfchain.store import fsio
from odfchain.text import first_line

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
        raise _broken(f"there is no output file {path} ({error.strerror})") from None
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
    """Whether values of the type `found` in a Parquet file are of the type `declared`.

    What Parquet does not keep makes no difference: seconds, lengths of lists, sorted keys of maps. Nested
    values may be required that are declared optional. In an `older` file structs may lack members that are
    optional by now, and null flags are left to the values.
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
    """As `stored`; but engines are asked for UTC, so another zone in their file makes a difference."""
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
    """Types of the system columns; the signed ones are what most engines write."""
    return {
        vocabulary.offset_column: (ds.DataTypeUInt64(), ds.DataTypeInt64()),
        vocabulary.operation_type_column: (ds.DataTypeUInt8(), ds.DataTypeInt32()),
        vocabulary.system_time_column: (_MS_UTC,),
        vocabulary.event_time_column: (_MS_UTC, ds.DataTypeDate()),
    }


def schema_difference(
    declared: ds.DataSchema, found: ds.DataSchema, vocabulary: DatasetVocabulary
) -> str | None:
    """Why a file with the schema `found` cannot be committed to a dataset with the declared one, or None.

    Offsets may be int64 for uint64 and operations int32 for uint8, or the other way round, and columns may
    be required that are declared optional; `rewrite` gives such a file the declared types.
    """
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
        _check_offsets(offset.to_numpy(zero_copy_only=False), position)
        last_op = _check_operations(op.to_numpy(zero_copy_only=False), position, last_op)
        _check_system_time(time.cast(pa.int64()).to_numpy(), position, system_time)
        position += batch.num_rows
    if position != interval.end + 1:  # the pages have fewer rows than the footer says
        raise _broken(f"offset {position}: the file ends before, offset {interval.end} should be the last")
    if last_op == _CORRECT_FROM:
        raise _broken(f"offset {interval.end}: a correction (op 2) without its new values (op 3) after it")


def _first(wrong: np.ndarray[Any, np.dtype[np.bool_]]) -> int | None:
    found = np.flatnonzero(wrong)
    return int(found[0]) if len(found) else None


def _check_offsets(offsets: np.ndarray[Any, Any], position: int) -> None:
    expected = np.uint64(position) + np.arange(len(offsets), dtype=np.uint64)
    at = _first(offsets.astype(np.uint64) != expected)
    if at is not None:
        raise _broken(f"offset {position + at} was expected, the record has {offsets[at]}")


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


def _check_system_time(times: np.ndarray[Any, Any], position: int, expected: Timestamp) -> None:
    at = _first(times != expected.epoch_ms)
    if at is not None:
        raise _broken(
            f"offset {position + at}: the system time is {times[at]} ms, "
            f"that of the request is {expected.epoch_ms} ms ({expected.truncated_to_ms()})"
        )


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
