"""Arrow batches to one Parquet slice and what observers find out, in one pass and with bounded memory.

The rows come ordered and without `offset` and `system_time`; both are added here, so that no step of the
plan needs a global row number. Encodings are those of the specification's "Common Data Schema": offsets as
deltas, operation and system time through dictionaries; pages of version 1, snappy, required columns required.
Both hashes are observers (`odfchain.slices.writer`): of the bytes as they are written, and of the rows,
leaf by leaf on other threads.
"""

from __future__ import annotations

import abc
import io
import itertools
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odfchain.odf.arrow_schema import castable, slice_schema, with_extensions
from odfchain.odf.events import DatasetVocabulary, DataSlice, OffsetInterval
from odfchain.odf.identity import Multihash
from odfchain.odf.logical_hash import LogicalDigest
from odfchain.odf.physical_hash import sha3_256
from odfchain.odf.schema import DataSchema
from odfchain.slices.footers import footer_stats
from odfchain.slices.reader import check_values
from odfchain.text import marker

# Observers: hashes and counts made in the pass that writes or reads the records.


class SliceObserver(abc.ABC):
    """Sees everything that goes into a slice, once.

    `batch` is given all rows in their final form and order, system columns included, with the schema of the
    file. They are cut anywhere, and no batch is empty: what an observer says must not depend on the cuts.
    Batches are shared and must not be changed. A kept batch keeps its rows in memory: what is kept must
    be bounded by something else than the number of rows.

    `data` is given the bytes of the file in order; the view is valid during the call only. Calls of `batch`
    come one after the other, on any thread, and so do calls of `data`; one of each may run at the same
    time. What either raises ends the slice, which is removed.

    `finish` is called once, when all rows and bytes were seen; what was found is known from then on. It is
    not called for a slice that is given up.
    """

    def batch(self, rows: pa.RecordBatch) -> None:  # noqa: B027 - who looks at bytes has no use for rows
        """See the next rows."""

    def data(self, view: memoryview) -> None:  # noqa: B027 - and the other way round
        """See the next bytes of the file."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Know what was to be found."""


class PhysicalHash(SliceObserver):
    """The hash and the size of the file."""

    def __init__(self) -> None:
        self.hash: Multihash
        self.size = 0
        """Bytes seen so far."""
        self._hasher = sha3_256()

    def data(self, view: memoryview) -> None:
        self._hasher.update(view)
        self.size += len(view)

    def finish(self) -> None:
        self.hash = Multihash.sha3_256(self._hasher.digest())


class LogicalHash(SliceObserver):
    """The hash of the records, its leaves side by side where there is an executor."""

    def __init__(self, schema: pa.Schema, executor: Executor | None = None) -> None:
        self.hash: Multihash
        self._digest = LogicalDigest(schema, executor=executor)

    def batch(self, rows: pa.RecordBatch) -> None:
        self._digest.update(rows)

    def finish(self) -> None:
        self.hash = self._digest.finish()


class RowTotals(SliceObserver):
    """How many rows there are of each operation, and the latest event time."""

    def __init__(self, vocabulary: DatasetVocabulary) -> None:
        self.ops: dict[str, int] = {}
        """Rows for each operation code (as text, for JSON)."""
        self.latest_ms: int | None = None
        """The latest event time [ms since 1970]; None when there is none."""
        self._names = vocabulary
        self._counts = np.zeros(256, dtype=np.int64)

    def batch(self, rows: pa.RecordBatch) -> None:
        operations = rows.column(self._names.operation_type_column).to_numpy(zero_copy_only=False)
        self._counts += np.bincount(operations, minlength=256)[:256]
        latest = pc.max(in_milliseconds(rows.column(self._names.event_time_column))).as_py()
        if latest is not None and (self.latest_ms is None or latest > self.latest_ms):
            self.latest_ms = latest

    def finish(self) -> None:
        self.ops = {str(code): int(count) for code, count in enumerate(self._counts) if count}

    @property
    def rows(self) -> int:
        """All rows so far."""
        return int(self._counts.sum())


def in_milliseconds(event_time: pa.Array) -> pa.Array:
    """Event times as numbers [ms since 1970]."""
    if pa.types.is_date(event_time.type):
        # a date counts as its midnight UTC
        event_time = event_time.cast(pa.timestamp("ms"))
    return event_time.cast(pa.timestamp("ms", event_time.type.tz), safe=False).cast(pa.int64())


ROW_GROUP_ROWS = 1 << 20
"""Rows of one Parquet row group; what is in memory at most is one group, compressed."""

_HASH_THREADS = 4


@dataclass(frozen=True, slots=True)
class SliceSpec:
    """Specification of a slice; sent to the worker that writes it."""

    schema: bytes
    """The target Arrow schema, system columns included, serialized by pyarrow."""
    vocabulary: DatasetVocabulary
    start_offset: int
    system_time_ms: int
    folder: str
    """A folder that driver and workers both see, or one of the worker's own."""

    @classmethod
    def of(
        cls, schema: DataSchema, vocabulary: DatasetVocabulary, start: int, now_ms: int, folder: Path
    ) -> SliceSpec:
        """A slice with the columns of a schema and the offsets from `start` on."""
        return cls(slice_schema(schema).serialize().to_pybytes(), vocabulary, start, now_ms, str(folder))


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """Facts about a written slice; all that comes back from the cluster."""

    path: str
    """Empty where its writer has put it into the store, under its physical hash."""
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
    footer: str | None = None
    """The statistics in its footer, as `odfchain.slices.footers` writes them."""

    def slice_at(self, start: int) -> DataSlice:
        """The slice as a block names it, its first record at an offset."""
        return DataSlice(
            logical_hash=Multihash.parse(self.logical_hash),
            physical_hash=Multihash.parse(self.physical_hash),
            offset_interval=OffsetInterval(start=start, end=start + self.rows - 1),
            size=self.size,
        )


class _ObservedFile(io.RawIOBase):
    """A write-only file whose bytes observers see."""

    def __init__(self, path: Path, observers: Sequence[SliceObserver]) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._stream = os.fdopen(fd, "wb", buffering=0)
        self._observers = observers
        self._size = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.closed:
            # Arrow's writer closes itself when it is abandoned after an error; the file is gone by then.
            return len(view)
        written = 0
        # an unbuffered file may take less than it is given
        while written < len(view):
            written += self._stream.write(view[written:])
        for observer in self._observers:
            observer.data(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        return self._size

    def writable(self) -> bool:
        return True

    def close(self) -> None:
        self._stream.close()
        super().close()


class ObservedParquet:
    """A new Parquet file of records, all of which its observers see as they are written.

    Used as a context, at whose end the file is complete and the observers have finished; when it is left by
    an exception the file is not. With an executor, rows are observed while they are written.
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        vocabulary: DatasetVocabulary,
        observers: Sequence[SliceObserver],
        *,
        executor: Executor | None = None,
        metadata: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self._observers, self._executor, self._metadata = observers, executor, metadata
        self._file = _ObservedFile(path, observers)
        self._footers: list[pq.FileMetaData] = []
        self._writer = parquet_writer(
            pa.PythonFile(self._file, mode="w"), schema, vocabulary, collected=self._footers
        )
        self._observing: Future[None] | None = None

    @property
    def footer(self) -> str | None:
        """The statistics in the footer of a complete file, as a line (`odfchain.slices.footers`)."""
        (footer,) = self._footers
        return footer_stats(footer, footer.schema.to_arrow_schema()).to_text()

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows in the schema of the file."""
        # observers are called one batch after the other, and no more than one is kept waiting
        self._wait()
        if self._executor is None:
            self._observe(rows)
        else:
            self._observing = self._executor.submit(self._observe, rows)
        self._writer.write_batch(rows, row_group_size=ROW_GROUP_ROWS)

    def _observe(self, rows: pa.RecordBatch) -> None:
        for observer in self._observers:
            observer.batch(rows)

    def _wait(self) -> None:
        if self._observing is not None:
            self._observing.result()

    def __enter__(self) -> ObservedParquet:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                # the last rows may still be with the observers, and what one raises ends the slice
                self._wait()
                if self._metadata is not None:
                    self._writer.add_key_value_metadata(self._metadata)
                self._writer.close()
        finally:
            self._file.close()
            # an abandoned writer would close itself later, and complain that it has no footer
            self._writer.is_open = False
        if kind is None:
            for observer in self._observers:
                # after the writer is closed: the footer is part of the physical hash
                observer.finish()


def parquet_writer(
    sink: Any,
    schema: pa.Schema,
    vocabulary: DatasetVocabulary,
    *,
    collected: list[pq.FileMetaData] | None = None,
    plain: Sequence[str] = (),
) -> pq.ParquetWriter:
    """A Parquet writer with the encodings of the "Common Data Schema"; UUID columns are annotated as such.

    `schema` and the batches that are written are in the types of a dataset (`odfchain.odf.arrow_schema`). The
    footer is added to `collected` when the file is complete. Columns that are `plain` get no dictionary.
    """
    # every offset occurs once, so a dictionary of them would be as large as they are
    dictionary = [name for name in schema.names if name not in (vocabulary.offset_column, *plain)]
    return _AnnotatingWriter(
        sink,
        with_extensions(schema),
        version="2.6",
        data_page_version="1.0",
        compression="snappy",
        use_dictionary=_leaf_paths(schema, dictionary),
        column_encoding={vocabulary.offset_column: "DELTA_BINARY_PACKED"},
        write_statistics=True,
        # an `ARROW:schema` entry would be a second schema: the chain's is the one that counts (RFC-012)
        store_schema=False,
        metadata_collector=collected,
    )


class _AnnotatingWriter(pq.ParquetWriter):  # type: ignore[misc]
    """Takes 16 bytes where the file has UUIDs."""

    # `write_batch` of pyarrow comes through here too
    def write_table(self, table: pa.Table, row_group_size: int | None = None) -> None:
        annotated = pa.schema([f.with_type(self.schema.field(f.name).type) for f in table.schema])
        columns = [
            pa.chunked_array([_built(chunk, f.type) for chunk in column.chunks], f.type)
            for column, f in zip(table.columns, annotated, strict=True)
        ]
        super().write_table(pa.Table.from_arrays(columns, schema=annotated), row_group_size)


def _leaf_paths(schema: pa.Schema, names: list[str]) -> list[str]:
    # dictionary settings go by leaf, named as Parquet names them
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
    """Write all rows to a new file in `spec.folder`; None (and no file) when there are none."""
    schema = pa.ipc.read_schema(pa.py_buffer(spec.schema))
    rows = (batch for batch in batches if batch.num_rows)
    first = next(iter(rows), None)
    if first is None:
        return None
    path = Path(spec.folder) / f"slice-{uuid.uuid4().hex}.parquet"
    try:
        return _write(first, rows, schema, spec, path)
    except BaseException:
        # also after an interrupt: nothing else knows of the file
        path.unlink(missing_ok=True)
        raise


def _write(
    first: pa.RecordBatch, rest: Iterable[pa.RecordBatch], schema: pa.Schema, spec: SliceSpec, path: Path
) -> SliceFacts:
    offset, finer = spec.start_offset, dict[str, int]()
    threads = hash_threads()
    with ThreadPoolExecutor(max_workers=threads) as pool:
        physical, totals = PhysicalHash(), RowTotals(spec.vocabulary)
        logical = LogicalHash(schema, pool)
        observers, executor = (physical, logical, totals), pool if threads > 1 else None
        with ObservedParquet(path, schema, spec.vocabulary, observers, executor=executor) as file:
            for batch in itertools.chain([first], rest):
                finished = finish_batch(batch, schema, spec, offset)
                count_finer(batch, finished, finer)
                file.write(finished)
                offset += finished.num_rows
    return SliceFacts(
        path=str(path),
        rows=offset - spec.start_offset,
        size=physical.size,
        physical_hash=str(physical.hash),
        logical_hash=str(logical.hash),
        max_event_time_ms=totals.latest_ms,
        ops=totals.ops,
        finer=finer,
        footer=file.footer,
    )


def hash_threads() -> int:
    """How many threads hash the records of one slice."""
    return min(_HASH_THREADS, os.cpu_count() or 1)


def notes_on_cut_times(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Notes for the user on times that were cut to the unit of their column."""
    return tuple(
        f"`{name}`: {number:,} times are finer than the column keeps; what is finer was cut off"
        for name, number in counts.items()
    )


def count_finer(given: Any, finished: Any, counts: dict[str, int]) -> None:
    """Count the times of batches or tables that became coarser, by the names of their columns."""
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


def finish_batch(batch: pa.RecordBatch, schema: pa.Schema, spec: SliceSpec, offset: int) -> pa.RecordBatch:
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
    """The column as its declared type."""
    if not target.nullable and column.null_count:
        raise _missing(target.name, f"Column `{target.name}` contains {column.null_count} null values")
    cast = as_declared(column, target)
    try:
        check_values(cast, target.name)
    except ValueError as error:
        raise SliceInputError(marker("bad-value", column=target.name, message=str(error))) from None
    return cast


def as_declared(column: pa.Array, target: pa.Field) -> pa.Array:
    """The column as its declared type, where any value may be null; errors as `cast_column`."""
    try:
        loose = _cast_values(column, target.type)
        _check_items(loose, target.name, target.type)
        return _built(loose, target.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        text = str(error).splitlines()[0]
        raise SliceInputError(
            marker("bad-cast", column=target.name, message=f"column `{target.name}`: {text}")
        ) from None


def _cast_values(column: pa.Array, target: pa.DataType) -> pa.Array:
    if column.type == target:
        return column
    if pa.types.is_null(target):
        return pa.nulls(len(column))
    options = pc.CastOptions.safe(castable(target))
    options.allow_time_truncate = pa.types.is_timestamp(target)  # counted; nested times are never cut
    return column.cast(options=options)


def _built(column: pa.Array, target: pa.DataType) -> pa.Array:
    if column.type == target:
        return column
    if not pa.types.is_struct(target):
        return column.cast(target)
    # a required member may be null where its struct is, which Arrow's cast refuses
    members = [
        _built(member if field.nullable or not member.null_count else _filled(member), field.type)
        for member, field in zip((column.field(i) for i in range(len(target))), target, strict=True)
    ]
    return pa.StructArray.from_arrays(members, fields=list(target), mask=column.is_null())


def _filled(column: pa.Array) -> pa.Array:
    # any value will do: these nulls are in structs that are null themselves
    some = pa.array([None], pa.struct([("", column.type)])).field(0)
    places = pc.if_else(column.is_valid(), np.arange(len(column)), len(column))
    return pa.concat_arrays([column, some]).take(places)


def _check_items(column: pa.Array, name: str, data_type: pa.DataType) -> None:
    """Nested values are there where they have to be; `name` is a column, or the path of a part of it."""
    if pa.types.is_list(data_type):
        items = column.flatten()
        if items.null_count and not data_type.value_field.nullable:
            raise _missing(name, f"List column `{name}` contains {items.null_count} null elements")
        _check_items(items, name, data_type.value_type)
    elif pa.types.is_struct(data_type):
        for field, values in zip(data_type, column.flatten(), strict=True):
            path = f"{name}.{field.name}"
            # `flatten` makes members null where the struct is null, and those are not missing
            nulls = values.null_count - column.null_count
            if nulls and not field.nullable:
                raise _missing(name, f"Column `{path}` contains {nulls} null values")
            _check_items(values, path, field.type)


def _missing(name: str, what: str) -> SliceInputError:
    message = f"{what} while none were expected"
    return SliceInputError(marker("null-in-required", column=name, message=message))
