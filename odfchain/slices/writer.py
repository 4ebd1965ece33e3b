"""Arrow batches to one Parquet slice and both its hashes, in one pass and with bounded memory.

The rows come ordered and without `offset` and `system_time`; both are added here, so that no step of the
plan needs a global row number. Encodings are those of the specification's "Common Data Schema": offsets as
deltas, operation and system time through dictionaries; pages of version 1, snappy, required columns required.
The physical hash is fed as the file is written, the logical hash leaf by leaf on other threads.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odfchain.codec.uuids import with_extensions
from odfchain.digest.logical import LogicalDigest
from odfchain.digest.sha3 import sha3_256
from odfchain.ids.multihash import Multihash
from odfchain.model.events import DatasetVocabulary
from odfchain.slices.marker import marker
from odfchain.slices.values import check_values

ROW_GROUP_ROWS = 1 << 20
"""Rows of one Parquet row group; what is in memory at most is one group, compressed."""

HASH_THREADS = 4


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """What a slice is to look like; sent to the worker that writes it."""

    schema: bytes
    """The target Arrow schema, system columns included, serialized by pyarrow."""
    vocabulary: DatasetVocabulary
    start_offset: int
    system_time_ms: int
    folder: str
    """A folder that driver and workers both see."""


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """What is known of a written slice; all that comes back from the cluster."""

    path: str
    rows: int
    size: int
    """Bytes of the file."""
    physical_hash: str
    logical_hash: str
    max_event_time_ms: int | None
    ops: dict[str, int] = field(default_factory=dict)
    """Rows for each operation code (as text, for JSON)."""
    finer: dict[str, int] = field(default_factory=dict)
    """Times that were cut to the unit of their column, by column."""


class HashingFile:
    """A write-only file that hashes what passes through."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self.path = str(path)
        self._stream = os.fdopen(fd, "wb", buffering=0)
        self.hasher = sha3_256()
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.closed:
            # Arrow's writer closes itself when it is abandoned after an error; the file is gone by then.
            return len(view)
        written = 0
        while written < len(view):
            written += self._stream.write(view[written:])
        self.hasher.update(view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        pass

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
            self.closed = True

    def __enter__(self) -> HashingFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def parquet_writer(sink: Any, schema: pa.Schema, vocabulary: DatasetVocabulary) -> pq.ParquetWriter:
    """A Parquet writer with the encodings of the "Common Data Schema"; UUID columns are annotated as such.

    `schema` and the batches that are written are in the types of a dataset (`odfchain.codec.arrow`).
    """
    dictionary = [name for name in schema.names if name != vocabulary.offset_column]
    return _AnnotatingWriter(
        sink,
        with_extensions(schema),
        version="2.6",
        data_page_version="1.0",
        compression="snappy",
        use_dictionary=_leaf_paths(schema, dictionary),
        column_encoding={vocabulary.offset_column: "DELTA_BINARY_PACKED"},
        write_statistics=True,
        store_schema=False,
    )


class _AnnotatingWriter(pq.ParquetWriter):  # type: ignore[misc]
    """Takes 16 bytes where the file has UUIDs."""

    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        """Write the rows, as `pyarrow.parquet.ParquetWriter` does."""
        annotated = pa.schema([f.with_type(self.schema.field(f.name).type) for f in table.schema])
        super().write_table(table.cast(annotated), row_group_size)


def _leaf_paths(schema: pa.Schema, names: list[str]) -> list[str]:
    """Parquet column paths of the leaves under these columns (dictionary settings go by leaf)."""
    paths: list[str] = []

    def walk(prefix: str, data_type: pa.DataType) -> None:
        if pa.types.is_struct(data_type):
            for index in range(data_type.num_fields):
                child = data_type.field(index)
                walk(f"{prefix}.{child.name}", child.type)
        elif pa.types.is_map(data_type):
            walk(f"{prefix}.key_value.key", data_type.key_type)
            walk(f"{prefix}.key_value.value", data_type.item_type)
        elif pa.types.is_list(data_type) or pa.types.is_fixed_size_list(data_type):
            walk(f"{prefix}.list.element", data_type.value_type)
        else:
            paths.append(prefix)

    for name in names:
        walk(name, schema.field(name).type)
    return paths


class SliceInputError(Exception):
    """The rows do not fit the declared schema; the message is a marker."""


def write_slice(batches: Iterable[pa.RecordBatch], spec: SliceSpec) -> SliceFacts | None:
    """Write all rows to a new file in `spec.folder`; None (and no file) when there are none.

    Raises:
        SliceInputError: a null in a required column, or a value that does not fit its type.
        OSError: the file cannot be written; it is removed.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(spec.schema))
    rows = (batch for batch in batches if batch.num_rows)
    first = next(iter(rows), None)
    if first is None:
        return None
    path = Path(spec.folder) / f"slice-{uuid.uuid4().hex}.parquet"
    try:
        return _write(first, rows, schema, spec, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _write(
    first: pa.RecordBatch, rest: Iterable[pa.RecordBatch], schema: pa.Schema, spec: SliceSpec, path: Path
) -> SliceFacts:
    with HashingFile(path) as sink:
        return _write_to(sink, first, rest, schema, spec)


def _write_to(
    sink: HashingFile,
    first: pa.RecordBatch,
    rest: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    spec: SliceSpec,
) -> SliceFacts:
    vocabulary = spec.vocabulary
    offset, max_event_time = spec.start_offset, None
    ops = np.zeros(256, dtype=np.int64)
    finer: dict[str, int] = {}
    threads = min(HASH_THREADS, os.cpu_count() or 1)
    with ThreadPoolExecutor(max_workers=threads) as pool:
        digest = LogicalDigest(schema, executor=pool)
        writer = parquet_writer(pa.PythonFile(sink, mode="w"), schema, vocabulary)
        hashing = None
        for batch in _chain(first, rest):
            finished = _finish_batch(batch, schema, spec, offset)
            _count_finer(batch, finished, finer)
            if hashing is not None:
                hashing.result()
            hashing = pool.submit(_update, digest, finished) if threads > 1 else None
            if hashing is None:
                digest.update(finished)
            writer.write_batch(finished, row_group_size=ROW_GROUP_ROWS)
            offset += finished.num_rows
            ops += np.bincount(
                finished.column(vocabulary.operation_type_column).to_numpy(zero_copy_only=False),
                minlength=256,
            )[:256]
            latest = pc.max(_as_ms(finished.column(vocabulary.event_time_column))).as_py()
            if latest is not None and (max_event_time is None or latest > max_event_time):
                max_event_time = latest
        if hashing is not None:
            hashing.result()
        writer.close()
        sink.close()
        logical = digest.finish()
    return SliceFacts(
        path=sink.path,
        rows=offset - spec.start_offset,
        size=sink.size,
        physical_hash=str(Multihash.sha3_256(sink.hasher.digest())),
        logical_hash=str(logical),
        max_event_time_ms=max_event_time,
        ops={str(code): int(count) for code, count in enumerate(ops) if count},
        finer=finer,
    )


def notes_on_cut_times(counts: Mapping[str, int]) -> tuple[str, ...]:
    """What the user should know about times that were cut to the unit of their column."""
    return tuple(
        f"`{name}`: {number:,} times are finer than the column keeps; what is finer was cut off"
        for name, number in counts.items()
    )


def _count_finer(given: pa.RecordBatch, finished: pa.RecordBatch, counts: dict[str, int]) -> None:
    """Add up the times of a batch that lost digits."""
    for name in given.schema.names:
        before = given.column(name)
        if name not in finished.schema.names or not pa.types.is_timestamp(before.type):
            continue
        after = finished.column(name)
        if not pa.types.is_timestamp(after.type) or after.type.unit == before.type.unit:
            continue
        number = pc.sum(pc.not_equal(after.cast(before.type), before)).as_py()
        if number:
            counts[name] = counts.get(name, 0) + number


def _update(digest: LogicalDigest, batch: pa.RecordBatch) -> None:
    digest.update(batch)


def _chain(first: pa.RecordBatch, rest: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    yield first
    yield from rest


def _as_ms(event_time: pa.Array) -> pa.Array:
    """Event times as milliseconds since the epoch; a date counts as its midnight UTC."""
    if pa.types.is_date(event_time.type):
        event_time = event_time.cast(pa.timestamp("ms"))
    return event_time.cast(pa.timestamp("ms", event_time.type.tz), safe=False).cast(pa.int64())


def _finish_batch(batch: pa.RecordBatch, schema: pa.Schema, spec: SliceSpec, offset: int) -> pa.RecordBatch:
    """The batch in its final form: all columns in order, declared types, system columns filled in."""
    vocabulary, count = spec.vocabulary, batch.num_rows
    columns = []
    for target in schema:
        if target.name == vocabulary.offset_column:
            numbers = np.arange(offset, offset + count, dtype=np.uint64)
            columns.append(pa.array(numbers).cast(target.type))
            continue
        if target.name == vocabulary.system_time_column:
            constant = pa.scalar(spec.system_time_ms, pa.int64()).cast(pa.timestamp("ms", "UTC"))
            columns.append(pa.repeat(constant, count).cast(target.type))
            continue
        columns.append(cast_column(batch.column(target.name), target))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_column(column: pa.Array, target: pa.Field) -> pa.Array:
    """The column as its declared type.

    Raises:
        SliceInputError: a null in a required column, or a value that does not fit.
    """
    if not target.nullable and column.null_count:
        raise SliceInputError(
            marker(
                "null-in-required",
                column=target.name,
                message=f"Column `{target.name}` contains {column.null_count} null values "
                "while none were expected",
            )
        )
    try:
        cast = _cast_values(column, target.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        text = str(error).splitlines()[0]
        raise SliceInputError(
            marker("bad-cast", column=target.name, message=f"column `{target.name}`: {text}")
        ) from None
    _check_items(cast, target.name, target.type)
    try:
        check_values(cast, target.name)
    except ValueError as error:
        raise SliceInputError(marker("bad-value", column=target.name, message=str(error))) from None
    return cast


def _cast_values(column: pa.Array, target: pa.DataType) -> pa.Array:
    if column.type == target:
        return column
    if pa.types.is_time32(target):
        return column.cast(pa.int32()).cast(target)
    if pa.types.is_null(target):
        return pa.nulls(len(column))
    options = pc.CastOptions.safe(target)
    options.allow_time_truncate = pa.types.is_timestamp(target)  # counted; nested times are never cut
    return column.cast(options=options)


def _check_items(column: pa.Array, name: str, data_type: pa.DataType) -> None:
    if pa.types.is_list(data_type) and not data_type.value_field.nullable:
        nulls = column.flatten().null_count
        if nulls:
            raise SliceInputError(
                marker(
                    "null-in-required",
                    column=name,
                    message=f"List column `{name}` contains {nulls} null elements while none were expected",
                )
            )
