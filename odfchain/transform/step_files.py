"""Files of a step: the new rows of its inputs, and the rows that are remembered for the next one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odfchain.chain.rules import type_fits
from odfchain.errors import BadInputError, EngineError, SchemaError
from odfchain.lazy import t
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow, slice_schema
from odfchain.odf.engine_messages import TransformRequestInput
from odfchain.odf.enums import OperationType
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.physical_hash import hash_file
from odfchain.slices.reader import PER_SECOND, ParquetSource, check_parquet, first_gap, open_parquet
from odfchain.slices.writer import ROW_GROUP_ROWS, SliceInputError, cast_column, parquet_writer
from odfchain.spark import executor_files
from odfchain.spark.input_frames import parquet_rows
from odfchain.spark.jobs import explain
from odfchain.spark.stage import WrittenFile, write_into_store, write_ordered
from odfchain.spark.types import col, physical_struct, physical_type
from odfchain.storage import fsio
from odfchain.text import first_line
from odfchain.transform.retracting import TableColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


# Files of a step go between driver and executors by shared folders, or by the store (RFC-048). The driver has
# the inputs, because it checks their offsets. Executors without access to its folder read slices from the
# store, and unpacked files from `staging/`; they write to the store, and what the driver needs is copied back
# and hashed.

KeyOf = Callable[[Path], str | None]
"""The key under which a file of the driver is in the store in any case; None where it is not."""


@dataclass(frozen=True, slots=True)
class CutByWorkers:
    """One file, which a worker cuts from slices of the store; fulfils `ReadableFiles` for any key."""

    files: executor_files.ExecutorFiles
    keys: tuple[str, ...]
    made_of: Cut
    """Without the paths, which are the worker's."""

    def bring(self, key: str) -> Path:  # noqa: ARG002 - there is one file
        """As `ReadableFiles`; it is kept with what was brought."""
        cut_as = self.made_of
        what = (self.keys, cut_as.interval, cut_as.schema.serialize().to_pybytes(), cut_as.vocabulary)
        path, is_there = executor_files.kept_copy("cut", repr(what).encode())
        if is_there:
            return path
        paths = tuple(self.files.bring(each) for each in self.keys)
        with executor_files.worker_folder() as folder:
            made = dataclasses.replace(self.made_of, paths=paths).into(folder, "cut")
            assert made is not None  # noqa: S101 - the driver has cut it, too
            if made in paths:
                return made
            with fsio.storage_errors(path):
                made.replace(path)
        return path

    def read(self, key: str, start: int, end: int) -> bytes:
        """As `ReadableFiles`."""
        with self.bring(key).open("rb") as stream:
            stream.seek(start)
            return stream.read(end - start)


class StepFiles:
    """Those of one step; what it put into a store, but for slices that stay, is gone with `resources`."""

    def __init__(
        self,
        session: SparkSession,
        folder: Path,
        resources: contextlib.ExitStack,
        *,
        key_of: KeyOf,
        slices: str | None = None,
    ) -> None:
        """`session` or one like it computes the step, and `folder` is a private one of the driver.

        `slices` is what the keys of slices begin with that are to stay in the store.
        """
        self.folder = folder
        self._files = executor_files.files_of(session)
        self._handover = executor_files.Handover(lambda: session, resources)
        self._key_of, self._slices = key_of, slices

    def rows(
        self, session: SparkSession, path: Path, struct: StructType, made_of: Cut | None = None
    ) -> DataFrame:
        """The rows of a Parquet file of the driver, as Spark reads them under a schema, in their order.

        `made_of` is what the file was cut from.
        """
        source = executor_files.InputFile(path)
        if self._files is not None:
            source = self._handover.give(path, known=self._known(self._files, path, made_of))
        return parquet_rows(session, source, struct)

    def _known(
        self, files: executor_files.ExecutorFiles, path: Path, made_of: Cut | None
    ) -> executor_files.InputFile | None:
        # None where the store does not have the file
        if (key := self._key_of(path)) is not None:
            return executor_files.InputFile(path, files, key)
        keys = [self._key_of(each) for each in made_of.paths] if made_of is not None else []
        found = tuple(key for key in keys if key is not None)
        if made_of is None or not found or len(found) < len(keys):
            return None
        return executor_files.InputFile(
            path, CutByWorkers(files, found, dataclasses.replace(made_of, paths=()))
        )

    @property
    def keeps_slices(self) -> bool:
        """True if slices that workers write are put where they stay."""
        return self._files is not None and self._slices is not None

    def place(self, *, of_slice: bool = False) -> Callable[[], executor_files.StoreFolder] | None:
        """The place where executors write files; None where they write into the folder."""
        files = self._files
        if files is None:
            return None
        if of_slice and self._slices is not None:
            return functools.partial(executor_files.StoreFolder, files, self._slices)
        return functools.partial(self._handover.staging, files)

    def write(self, frame: DataFrame, *, few: int = 0) -> WrittenFile:
        """Write rows in the order they come to a file, also when there are none; `few` as `write_ordered`."""
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(frame.schema, timezone="UTC")
        described = schema.with_metadata({_SCHEMA_KEY: frame.schema.json().encode()})
        spec = _RowsSpec(described.serialize().to_pybytes(), str(self.folder))
        write, place = functools.partial(_write, spec=spec), self.place()
        put = functools.partial(write_into_store, write=_write_hashed, spec=spec)
        there = None if place is None else lambda: functools.partial(put, place=place())
        facts = write_ordered(frame, None, frame.columns, write, on_workers=there, few=few)
        # Spark starts no task for rows of which it knows beforehand that there are none
        written = WrittenFile(**facts) if facts is not None else write(iter(()))
        if written.path or place is None:
            return written
        target = self.folder / f"rows-{uuid.uuid4().hex}.parquet"
        executor_files.copy_put(place(), written.physical_hash, written.size, target)
        return dataclasses.replace(written, path=str(target))

    def read(self, session: SparkSession, path: Path) -> DataFrame:
        """The rows of a file that was written so, in their order."""
        from pyspark.sql.types import StructType

        try:
            with open_parquet(path) as file:
                struct = StructType.fromJson(json.loads((file.metadata.metadata or {})[_SCHEMA_KEY]))
        except (KeyError, ValueError, TypeError) as error:
            raise EngineError(f"{path.name}: the checkpoint's rows have no schema") from error
        check_parquet(path)
        return self.rows(session, path, struct).coalesce(1)


# The records of an interval as one Parquet file, so that Spark keeps their order on any machine: it packs
# several files into partitions by size, and splits large ones. Memory stays at one row group (specification
# "Offset", "Data Slice"; RFC-019).

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
                if (at := first_gap(offsets, expected)) is not None:
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
        with open_parquet(path) as file:
            _check_present(file, [name], path)
            if not file.schema_arrow.equals(self.schema) or file.metadata.num_rows != interval.count:
                return False
            expected = interval.start
            for batch in file.batches([name]):
                if first_gap(batch.column(name), expected) is not None:
                    return False
                expected += batch.num_rows
        return expected == interval.end + 1

    def _records(self, path: Path, interval: OffsetInterval) -> Iterator[pa.RecordBatch]:
        name = self.vocabulary.offset_column
        with open_parquet(path) as file:
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
        raise explain(error, file=str(path)) from None
    except pa.ArrowException as error:
        raise BadInputError(f"column `{field.name}`: {first_line(error)}", file=str(path)) from None


def _check_present(file: ParquetSource, names: Sequence[str], path: Path) -> None:
    for name in names:
        if name not in file.schema_arrow.names:
            raise BadInputError(f"required column `{name}` is missing", file=str(path))


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

    @staticmethod
    def of(path: Path, vocabulary: DatasetVocabulary) -> RowFacts:
        """Operations and event times of all records, by their values: what a file says may be wrong."""
        op, time = vocabulary.operation_type_column, vocabulary.event_time_column
        changes, oldest = False, None
        with open_parquet(path) as file:
            _check_present(file, [op, time], path)
            for batch in file.batches([op, time]):
                ops = batch.column(op)
                if ops.null_count:
                    raise BadInputError(f"column `{op}` has nulls", file=str(path))
                changes = changes or bool(pc.any(pc.not_equal(ops, OperationType.APPEND.code)).as_py())
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


# Inputs of a step and their new rows.

_SHORT_ROW = 2_048
"""Bytes of a row up to which Arrow batches may be cut by rows alone."""


@dataclass(frozen=True, slots=True)
class InputRows(RowFacts):
    """The new rows of an input: columns `c0`, `c1`, … in the order of its schema, rows by offset."""

    alias: str
    frame: DataFrame
    short: bool = True
    empty: bool = False

    def may_have_before(self, ms: int) -> bool:
        """True if some row may be older than this."""
        return not self.empty and (self.oldest_ms is None or self.oldest_ms < ms)


@dataclass(frozen=True, slots=True)
class StepInput:
    """An input as the request describes it."""

    given: TransformRequestInput
    schema: ds.DataSchema

    @classmethod
    def of(cls, given: TransformRequestInput) -> StepInput:
        """The input of a request."""
        try:
            with open_parquet(Path(given.schema_file)) as file:
                schema = from_arrow(file.schema_arrow.remove_metadata())
        except BadInputError as error:
            raise EngineError(f"{given.query_alias}: the schema file cannot be read: {error}") from None
        for name in given.vocab.columns:
            if schema.field(name) is None:
                raise EngineError(f"{given.query_alias}: the schema has no column `{name}`")
        return cls(given, schema)

    @property
    def identity(self) -> tuple[str, str, DatasetVocabulary, ds.DataSchema]:
        """The parts that a plan and its digest depend on."""
        return str(self.given.dataset_id), self.given.query_alias, self.given.vocab, self.schema

    @property
    def columns(self) -> TableColumns:
        """Positions of the system columns."""
        names = self.schema.names
        return TableColumns(tuple(names), *map(names.index, self.given.vocab.columns))

    def struct(self) -> StructType:
        """The table as queries see it: offsets and operations are signed integers."""
        signed = {
            self.given.vocab.offset_column: t.LongType(),
            self.given.vocab.operation_type_column: t.IntegerType(),
        }
        return t.StructType(
            [
                t.StructField(f.name, signed.get(f.name) or physical_type(f.type), f.optional)
                for f in self.schema.fields
            ]
        )

    def watermark(self, known: int | None) -> int | None:
        """The last watermark of the input [ms], those of earlier steps included."""
        given = [w.event_time.epoch_ms for w in self.given.explicit_watermarks]
        return max([*given, *([] if known is None else [known])], default=None)

    def rows(self, session: SparkSession, files: StepFiles, wanted: Collection[int] | None) -> InputRows:
        """The new rows, with the system columns and those at the places `wanted` (None: all)."""
        given, struct, folder = self.given, self.struct(), files.folder
        slices = tuple(map(Path, given.data_paths))
        made_of = Cut(slices, given.offset_interval, slice_schema(self.schema), given.vocab)
        path = made_of.into(folder, f"input-{len(list(folder.iterdir()))}")
        names = [f"c{index}" for index in range(len(struct.fields))]
        if path is None:
            none = session.createDataFrame([], struct).toDF(*names).coalesce(1)
            return InputRows(False, None, given.query_alias, none, empty=True)
        stored = physical_struct(self.schema.fields)
        check_parquet(path)
        frame = files.rows(session, path, stored, made_of)
        system = self.columns
        kept = {system.offset, system.operation, system.event_time}
        kept.update(range(len(names)) if wanted is None else wanted)
        columns = [
            (col(f.name) if f.dataType == s.dataType else col(f.name).cast(f.dataType)).alias(n)
            for i, (f, s, n) in enumerate(zip(struct.fields, stored.fields, names, strict=True))
            if i in kept
        ]
        typed = frame.select(*columns)
        known, short = RowFacts.of(path, given.vocab), _has_short_rows(path)
        return InputRows(
            known.has_changes, known.oldest_ms, given.query_alias, typed.coalesce(1), short=short
        )


def _has_short_rows(path: Path) -> bool:
    with open_parquet(path) as file:
        metadata = file.metadata
    size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    return bool(size < _SHORT_ROW * max(1, metadata.num_rows))


# Rows that are remembered: one Parquet file whose bytes depend on the rows alone, in one Arrow stage.

_SCHEMA_KEY = b"odfchain.spark.schema"
"""Key of the file's metadata that holds Spark's schema of the rows, as JSON."""


@dataclass(frozen=True, slots=True)
class _RowsSpec:
    """Specification of a file; sent to the worker that writes it."""

    schema: bytes
    """Arrow schema of the rows, serialized by pyarrow."""
    folder: str
    """A folder that driver and workers both see, or one of the worker's own."""


def _write_hashed(batches: Iterator[pa.RecordBatch], spec: _RowsSpec) -> WrittenFile:
    facts = _write(batches, spec)
    name, size = hash_file(Path(facts.path))
    return dataclasses.replace(facts, size=size, physical_hash=str(name))


def _write(batches: Iterator[pa.RecordBatch], spec: _RowsSpec) -> WrittenFile:
    target = pa.ipc.read_schema(pa.py_buffer(spec.schema))
    path = Path(spec.folder) / f"rows-{uuid.uuid4().hex}.parquet"
    rows = 0
    with pq.ParquetWriter(path, target, version="2.6", compression="snappy", store_schema=False) as writer:
        for batch in batches:
            writer.write_table(pa.Table.from_batches([batch]).cast(target))
            rows += batch.num_rows
        writer.add_key_value_metadata(target.metadata)
    return WrittenFile(str(path), rows)
