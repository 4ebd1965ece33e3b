"""The records of an input interval as one Parquet file in order of offset.

Spark packs several files into partitions by size, and splits large ones; with one file and one partition the
order of records is theirs, on any machine. Memory stays at one row group. Source: specification
"Offset", "Data Slice"; RFC-019.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.codec.arrow import from_arrow
from odfchain.engine.check import type_fits
from odfchain.errors import BadInputError, EngineError, SchemaError
from odfchain.model.events import DatasetVocabulary, OffsetInterval
from odfchain.slices.marker import find_marker
from odfchain.slices.reader import ParquetSource, open_parquet
from odfchain.slices.values import PER_SECOND
from odfchain.slices.writer import ROW_GROUP_ROWS, SliceInputError, cast_column, parquet_writer
from odfchain.store import fsio
from odfchain.text import first_line

_APPEND = 0
_GROUP_BYTES = 128 << 20
"""Arrow memory of the records that become a row group [bytes]."""


def cut(
    paths: Sequence[Path],
    interval: OffsetInterval | None,
    schema: pa.Schema,
    vocabulary: DatasetVocabulary,
    folder: Path,
    name: str,
) -> Path | None:
    """One file with exactly the records of `interval` in order and exactly the columns of `schema`.

    It is the input's own file where that is the same, else a new one in `folder`; None without an interval.
    Columns that an older file lacks are null.
    """
    if interval is None:
        return None
    if len(paths) == 1 and _is_exactly(paths[0], interval, schema, vocabulary):
        return paths[0]
    target = folder / f"{name}.parquet"
    try:
        _write(paths, interval, schema, vocabulary, target)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return target


@dataclass(frozen=True, slots=True)
class RowFacts:
    """What is known of the records of a file before a query sees them."""

    has_changes: bool
    """Whether some retract or correct others."""
    oldest_ms: int | None
    """The oldest event time [ms since 1970], rounded down; None when there is none."""


def row_facts(path: Path, vocabulary: DatasetVocabulary) -> RowFacts:
    """Operations and event times of all records, by their values: what a file says of them may be wrong.

    Raises:
        BadInputError: an unreadable file, one without operations or event times, or a null operation.
    """
    op, time = vocabulary.operation_type_column, vocabulary.event_time_column
    changes, oldest = False, None
    with _reading(path), open_parquet(path) as file:
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
    """The oldest of some times [ms since 1970], rounded down."""
    if pa.types.is_date(times.type):
        times = times.cast(pa.timestamp("ms"))
    if not pa.types.is_timestamp(times.type):
        return None
    number = pc.min(times.cast(pa.int64())).as_py()
    return None if number is None else int(number) * 1_000 // PER_SECOND[times.type.unit]


def _write(
    paths: Sequence[Path],
    interval: OffsetInterval,
    schema: pa.Schema,
    vocabulary: DatasetVocabulary,
    target: Path,
) -> None:
    expected = interval.start
    group: list[pa.RecordBatch] = []
    rows = size = 0
    with _writing(target), parquet_writer(str(target), schema, vocabulary) as writer:
        for path in paths:
            for batch in _records(path, interval, schema, vocabulary):
                _check_dense(batch.column(vocabulary.offset_column), expected, path)
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
        last = str(paths[-1]) if paths else None
        raise BadInputError(f"offsets {expected} to {interval.end} are missing", file=last)


# --- reading ---------------------------------------------------------------------------------------


def _is_exactly(
    path: Path, interval: OffsetInterval, schema: pa.Schema, vocabulary: DatasetVocabulary
) -> bool:
    """Whether the file is what would be written; its offsets are read for that, and nothing else."""
    name = vocabulary.offset_column
    with _reading(path), open_parquet(path) as file:
        _check_present(file, [name], path)
        if not file.schema_arrow.equals(schema) or file.metadata.num_rows != interval.count:
            return False
        expected = interval.start
        for batch in file.batches([name]):
            if _first_gap(batch.column(name), expected) is not None:
                return False
            expected += batch.num_rows
    return expected == interval.end + 1


def _records(
    path: Path, interval: OffsetInterval, schema: pa.Schema, vocabulary: DatasetVocabulary
) -> Iterator[pa.RecordBatch]:
    """The file's records within the interval, in the columns and types of the schema."""
    name = vocabulary.offset_column
    with _reading(path), open_parquet(path) as file:
        _check_columns(file.schema_arrow, schema, vocabulary, path)
        _check_present(file, [name], path)
        groups = _groups_within(file, name, interval)
        for batch in file.batches(groups=groups):
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
            columns = [_column(kept, field, path) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _groups_within(file: ParquetSource, name: str, interval: OffsetInterval) -> list[int]:
    """Row groups that have records of the interval, or offsets that are none; the values say so."""
    groups = []
    for group in range(file.metadata.num_row_groups):
        for batch in file.batches([name], groups=[group]):
            offsets = batch.column(name)
            least, most = pc.min_max(offsets).as_py().values()
            if offsets.null_count or (least < 0 or (least <= interval.end and most >= interval.start)):
                groups.append(group)
                break
    return groups


def _check_columns(found: pa.Schema, schema: pa.Schema, vocabulary: DatasetVocabulary, path: Path) -> None:
    for name in found.names:
        if found.names.count(name) > 1:
            raise BadInputError(f"column `{name}` comes twice", file=str(path))
        if name not in schema.names:
            raise BadInputError(f"column `{name}` is not in the schema of the dataset", file=str(path))
    system = (vocabulary.offset_column, vocabulary.operation_type_column)
    for field in schema:
        if field.name not in found.names:
            if not field.nullable or field.name in vocabulary.columns:
                raise BadInputError(f"required column `{field.name}` is missing", file=str(path))
            continue
        data_type = found.field(field.name).type
        if field.name in system:
            fits = pa.types.is_integer(data_type) and pa.types.is_integer(field.type)
        else:
            fits = _fits(field, found.field(field.name), path)
        if not fits:
            raise BadInputError(
                f"column `{field.name}` is {data_type}, {field.type} was expected", file=str(path)
            )


def _fits(declared: pa.Field, found: pa.Field, path: Path) -> bool:
    try:
        (a,), (b,) = from_arrow([declared]).fields, from_arrow([found]).fields
    except SchemaError as error:
        raise BadInputError(str(error), file=str(path)) from None
    return type_fits(a.type, b.type, older=True)


def _column(batch: pa.RecordBatch, field: pa.Field, path: Path) -> pa.Array:
    """A column in its declared type; null where the file lacks it."""
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
    """Index of the first record that does not follow; None when all do."""
    if offsets.null_count:
        return 0
    wanted = np.uint64(expected) + np.arange(len(offsets), dtype=np.uint64)
    wrong = np.flatnonzero(offsets.to_numpy(zero_copy_only=False).astype(np.uint64) != wanted)
    return int(wrong[0]) if len(wrong) else None


def _check_dense(offsets: pa.Array, expected: int, path: Path) -> None:
    at = _first_gap(offsets, expected)
    if at is not None:
        raise BadInputError(
            f"offset {expected + at} was expected, the next record has {offsets[at].as_py()}",
            file=str(path),
        )


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
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
