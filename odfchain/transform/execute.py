"""Executing one step of a derivative dataset: nothing is committed, so a replay does the same.

    execute   the engine writes a slice and a checkpoint              (staged)
    check     the slice is what the engine says, in the declared form

Source: specification "Derivative Transformations", "ExecuteTransform"; RFC-019.
"""

from __future__ import annotations

import contextlib
import dataclasses
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.chain.rules import as_stored, type_fits
from odfchain.errors import BadInputError, EngineError, SchemaError
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow, slice_schema, to_arrow
from odfchain.odf.engine_messages import TransformRequest, TransformRequestInput
from odfchain.odf.enums import OperationType
from odfchain.odf.events import Checkpoint, DatasetVocabulary, DataSlice, ExecuteTransform, OffsetInterval
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.row_hash import PAIR, Numbers, hash_rows, numbered
from odfchain.odf.sources import SqlQueryStep, Transform
from odfchain.odf.times import Timestamp
from odfchain.odf.transform_options import unmarked
from odfchain.progress import Progress
from odfchain.slices import writer
from odfchain.slices.reader import ParquetSource, data_batches, open_parquet
from odfchain.slices.row_rules import RowChecks
from odfchain.slices.state import SliceFile, Walk, last_of_each, rows_of, takes_back
from odfchain.storage import fsio
from odfchain.text import find_marker, first_line
from odfchain.transform.engines import Executed, InProcessEngine, TransformEngine
from odfchain.transform.planner import PlannedInput, PlannedStep
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import SystemColumns


def normalized(transform: Transform) -> Transform:
    """The transform as engines know it, with `queries` in place of the short form `query`."""
    transform = unmarked(transform)
    if transform.query is None:
        return transform
    return dataclasses.replace(transform, query=None, queries=(SqlQueryStep(query=transform.query),))


def _input(item: PlannedInput, schema_file: Path) -> TransformRequestInput:
    try:
        write_empty_parquet(item.schema, schema_file)
    except SchemaError as error:
        raise SchemaError(f"input {item.alias} ({item.dataset.alias}): {error}") from error
    known = (item.known_watermark,) if item.known_watermark is not None else ()
    return TransformRequestInput(
        dataset_id=item.event.dataset_id,
        dataset_alias=item.dataset.alias,
        query_alias=item.alias,
        vocab=item.vocabulary,
        offset_interval=item.interval,
        data_paths=tuple(str(item.dataset.data.verified_path(s.physical_hash)) for s in item.slices),
        schema_file=str(schema_file),
        explicit_watermarks=known + item.watermarks,
    )


def write_empty_parquet(schema: ds.DataSchema, path: Path) -> None:
    """Write a Parquet file that has a schema and no rows."""
    arrow = to_arrow(schema)
    try:
        pq.write_table(arrow.empty_table(), path)
    except OSError as error:
        raise fsio.storage_error(error, path) from error
    except pa.ArrowException as error:
        message = f"the schema cannot be written as Parquet: {' '.join(str(error).split())}"
        raise SchemaError(message) from error


Engines = Callable[[Transform], TransformEngine]


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """A step whose files are staged and checked."""

    step: PlannedStep
    executed: Executed
    """As the engine reports it."""
    schema: ds.DataSchema | None
    """The output's schema from now on; None while no engine has given one."""
    slice: DataSlice | None
    facts: writer.SliceFacts | None
    checkpoint: Checkpoint | None
    """The one that the next step begins with: a new one, or that of the step before."""
    watermark: Timestamp | None
    data_path: Path
    checkpoint_path: Path | None
    """The file of a new checkpoint."""

    def event(self) -> ExecuteTransform:
        """The event that the step's block records."""
        step = self.step
        return ExecuteTransform(
            query_inputs=tuple(item.event for item in step.inputs),
            prev_checkpoint=step.prev_checkpoint.physical_hash if step.prev_checkpoint else None,
            prev_offset=step.prev_offset,
            new_data=self.slice,
            new_checkpoint=self.checkpoint,
            new_watermark=self.watermark,
        )


@dataclass(frozen=True, slots=True)
class StepRun:
    """Where and by which engine steps are executed; nothing is committed."""

    dataset: DatasetFiles
    engine: TransformEngine
    folder: Path
    """An empty one, for what is staged."""
    system_time: Timestamp
    progress: Progress
    system_columns: SystemColumns = SystemColumns.SPECIFICATION

    def request(self, step: PlannedStep) -> TransformRequest:
        """A step's request (specification "TransformRequest"): its files were hashed, or are new."""
        # the watermark known before the step comes first, so that an engine without memory is held back by
        # idle inputs, too
        dataset, folder, checkpoint = self.dataset, self.folder, step.read_checkpoint
        return TransformRequest(
            dataset_id=dataset.id,
            dataset_alias=dataset.alias,
            system_time=self.system_time,
            vocab=step.vocabulary,
            transform=normalized(step.transform.transform),
            query_inputs=tuple(
                _input(item, folder / f"schema-{index}.parquet") for index, item in enumerate(step.inputs)
            ),
            next_offset=step.next_offset,
            prev_checkpoint_path=(
                str(dataset.checkpoints.verified_path(checkpoint.physical_hash)) if checkpoint else None
            ),
            new_checkpoint_path=str(folder / "checkpoint"),
            new_data_path=str(folder / "data"),
        )

    def execute(self, step: PlannedStep, *, to_commit: bool = False) -> ExecutedStep:
        """The step, executed; what the engine made is checked."""
        # what is to be committed may already be in the workspace's store
        data, checkpoint = self.folder / "data", self.folder / "checkpoint"
        engine, wanted = self.engine, step.schema
        if wanted is None and self.system_columns is not SystemColumns.SPECIFICATION:
            # the rest is the result's
            wanted = ds.DataSchema(fields=self.system_columns.numbers(step.vocabulary))
        if to_commit and step.output is None and isinstance(engine, InProcessEngine):
            engine = engine.keeping(self.dataset.keys("data"))
        executed = engine.execute(self.request(step), schema=wanted, progress=self.progress)
        self.progress.phase("Checking")
        facts, schema = self._checked(step, executed, data)
        if step.output is not None and schema is not None:
            self.progress.phase("Comparing with the output so far")
            facts = self._difference(step, facts, schema)
        kept, written = (step.read_checkpoint if executed.keeps_checkpoint else None), None
        if checkpoint.exists():
            name, size = hash_file(checkpoint)
            kept, written = Checkpoint(physical_hash=name, size=size), checkpoint
        known = [w for w in (executed.watermark, step.prev_watermark) if w is not None]
        return ExecutedStep(
            step,
            executed,
            schema,
            None if facts is None else facts.slice_at(step.next_offset),
            facts,
            kept,
            max(known, default=None),
            data if facts is None else Path(facts.path),
            written,
        )

    def _checked(
        self, step: PlannedStep, executed: Executed, data: Path
    ) -> tuple[writer.SliceFacts | None, ds.DataSchema | None]:
        # the output is checked, and rewritten where its form is not the declared one
        interval, vocabulary, now = executed.offset_interval, step.vocabulary, self.system_time
        if interval is None and not data.exists():
            return None, step.schema
        grown = _grown(step, executed, data)
        found = check_output(data, vocabulary=vocabulary, schema=grown, interval=interval, system_time=now)
        schema = grown or found
        if grown is None and self.system_columns is not SystemColumns.SPECIFICATION:
            # engines elsewhere choose types of their own
            schema = self.system_columns.of(found, vocabulary)
        if interval is None:
            return None, schema
        if executed.facts is not None:
            return executed.facts, schema
        if found == schema:
            return measure(data, vocabulary), schema
        return rewrite(data, schema, vocabulary, interval.start, now.epoch_ms, self.folder), schema

    def _difference(
        self, step: PlannedStep, facts: writer.SliceFacts | None, schema: ds.DataSchema
    ) -> writer.SliceFacts | None:
        names = step.vocabulary
        earlier = [
            SliceFile(self.dataset.data.verified_path(item.physical_hash), names, item.offset_interval)
            for item in step.output or ()
        ]
        made = None
        if facts is not None:
            interval = OffsetInterval(start=step.next_offset, end=step.next_offset + facts.rows - 1)
            made = SliceFile(Path(facts.path), names, interval)
        spec = writer.SliceSpec.of(schema, names, step.next_offset, self.system_time.epoch_ms, self.folder)
        return write_difference(earlier, made, schema, spec)


def _grown(step: PlannedStep, executed: Executed, data: Path) -> ds.DataSchema | None:
    # this engine adds new columns at the end only
    declared = step.schema
    if declared is None or executed.facts is None:
        return declared
    with open_parquet(data) as file:
        found = from_arrow(file.schema_arrow.remove_metadata())
    return ds.DataSchema(fields=declared.fields + found.fields[len(declared.fields) :], extra=declared.extra)


# The difference between the output so far and the query over everything (`odfchain.odf.transform_options`).


def write_difference(
    earlier: Sequence[SliceFile], made: SliceFile | None, schema: ds.DataSchema, spec: writer.SliceSpec
) -> writer.SliceFacts | None:
    """A slice that turns the rows of `earlier` into those of `made`; None where nothing has to change.

    Rows in force are counted (`odfchain.slices.state`). What is in both stays as it is. What has to
    go comes first, as retractions in the order in which it was recorded, then what is new in the order of
    `made`.
    """
    arrow = slice_schema(schema)
    try:
        old, new = _SliceRows.of(earlier), _SliceRows.of([] if made is None else [made])
        keys = numbered(np.concatenate([old.hashes, new.hashes]))
        count = int(keys.max()) + 1 if len(keys) else 0
        of_old, of_new = keys[: len(old.hashes)], keys[len(old.hashes) :]
        # rows in force are counted by kind: those in both stay as they are
        excess = np.bincount(of_old[old.kept], minlength=count)
        excess -= np.bincount(of_new[new.kept], minlength=count)
        gone = old.last(of_old, np.maximum(excess, 0))
        added = new.last(of_new, np.maximum(-excess, 0))

        def rows() -> Iterator[pa.RecordBatch]:
            yield from _chosen(earlier, gone, arrow, OperationType.RETRACT)
            yield from _chosen([] if made is None else [made], added, arrow, OperationType.APPEND)

        return writer.write_slice(rows(), spec)
    except (pa.ArrowException, ValueError, KeyError) as error:
        message = f"the output so far cannot be compared with the new one: {first_line(error)}"
        raise EngineError(message) from error


@dataclass(frozen=True, slots=True)
class _SliceRows:
    """All rows of some slices, in their order."""

    hashes: Numbers
    kept: Numbers

    @classmethod
    def of(cls, slices: Sequence[SliceFile]) -> _SliceRows:
        nothing = (np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, PAIR))

        def read(*, exact: bool) -> tuple[Numbers, Walk]:
            found: list[tuple[Numbers, ...]] = [nothing]
            for item in slices:
                for batch, *system in rows_of(item, None, None):
                    hashes = hash_rows(batch, item.vocabulary.columns[:3], exact=exact)
                    found.append((*system, hashes))
            offsets, operations, hashes = (np.concatenate(parts) for parts in zip(*found, strict=True))
            return hashes, Walk.of(offsets, takes_back(operations), numbered(hashes))

        # what this engine takes back is as it was recorded, and so is what it makes of the output
        hashes, walk = read(exact=True)
        return cls(hashes, walk.kept if not walk.unmatched.any() else read(exact=False)[1].kept)

    def last(self, keys: Numbers, wanted: Numbers) -> Numbers:
        # the last n rows in force of each kind
        chosen: Numbers = np.zeros(len(keys), dtype=bool)
        places = np.flatnonzero(self.kept)
        chosen[places[last_of_each(keys[places], wanted)]] = True
        return chosen


def _chosen(
    slices: Sequence[SliceFile], chosen: Numbers, schema: pa.Schema, op: OperationType
) -> Iterator[pa.RecordBatch]:
    at = 0
    for item in slices:
        for batch in data_batches(item.path):
            mask = chosen[at : at + batch.num_rows]
            at += batch.num_rows
            if not mask.any():
                continue
            rows = batch.filter(pa.array(mask))
            columns = []
            for field in schema:
                if field.name == item.vocabulary.operation_type_column:
                    columns.append(pa.array(np.full(rows.num_rows, op.code), field.type))
                elif field.name in rows.schema.names:
                    columns.append(rows.column(field.name))
                else:
                    columns.append(pa.nulls(rows.num_rows, field.type))
            yield pa.RecordBatch.from_arrays(columns, names=schema.names)


class JobThreads(ThreadPoolExecutor):
    """Threads that are waited for; but not after Ctrl-C, which closes the engine under them."""

    def __init__(self, jobs: int) -> None:
        """`jobs` threads, at least one."""
        super().__init__(max(1, jobs), thread_name_prefix="odfchain-steps")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        self.shutdown(wait=not interrupted, cancel_futures=kind is not None)


# --- what an engine made -------------------------------------------------------------------------------
#
# An engine may be an untrusted program. Its slice must be a plain Parquet file with the system columns that
# were asked for; only those are read, batch by batch. Source: specification "Common Data Schema",
# "Representation of Retractions and Corrections", "Engine Contract"; RFC-019.

_UNREADABLE = "not a readable Parquet file: "


def check_output(
    path: Path,
    *,
    vocabulary: DatasetVocabulary,
    schema: ds.DataSchema | None,
    interval: OffsetInterval | None,
    system_time: Timestamp,
) -> ds.DataSchema:
    """The schema of an engine's slice, which has exactly the records of `interval` and may be committed.

    A declared `schema` has its columns in its order, else the system columns come first. Their null flags are
    not looked at, their values are.
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
) -> writer.SliceFacts | None:
    """A new file in `folder` with a checked file's records in exactly the declared types; None if none."""
    spec = writer.SliceSpec.of(declared, vocabulary, start_offset, system_time_ms, folder)
    try:
        return writer.write_slice(_batches(path, declared, vocabulary), spec)
    except writer.SliceInputError as error:
        found = find_marker(str(error))
        raise _broken(str(found["message"]) if found else str(error)) from None
    except pa.ArrowException as error:
        raise _broken(f"a value does not fit its declared type: {first_line(error)}") from None
    except OSError as error:
        raise fsio.storage_error(error, folder) from error


def measure(path: Path, vocabulary: DatasetVocabulary) -> writer.SliceFacts:
    """Hashes and counts of a slice that has the declared types already; memory stays at one row group."""
    with _reading(path):
        physical, size = hash_file(path)
        with ThreadPoolExecutor(max(1, writer.hash_threads() - 1)) as pool, open_parquet(path) as file:
            logical, totals = writer.LogicalHash(file.schema_arrow, pool), writer.RowTotals(vocabulary)
            for batch in file.batches():
                logical.batch(batch)
                totals.batch(batch)
    logical.finish()
    totals.finish()
    return writer.SliceFacts(
        path=str(path),
        rows=totals.rows,
        size=size,
        physical_hash=str(physical),
        logical_hash=str(logical.hash),
        max_event_time_ms=totals.latest_ms,
        ops=totals.ops,
    )


# --- columns ---------------------------------------------------------------------------------------


def _schema_of(file: ParquetSource) -> ds.DataSchema:
    try:
        return from_arrow(file.schema_arrow)
    except SchemaError as error:
        raise _broken(str(error)) from None


def _check_columns(found: ds.DataSchema, vocab: DatasetVocabulary, declared: ds.DataSchema | None) -> None:
    for index, name in enumerate(found.names):
        if name in found.names[:index]:
            raise _broken(f"column `{name}` comes twice")
    if declared is not None:
        problem = schema_difference(declared, found, vocab)
        if problem is not None:
            raise _broken(f"the output does not have the schema of the dataset: {problem}")
    elif found.names[:4] != vocab.columns:
        expected, first = ", ".join(vocab.columns), ", ".join(found.names[:4])
        message = f"the first columns of the output must be {expected}, they are {first or 'none'}"
        raise _broken(message, hint=f"let the query select `{vocab.event_time_column}` first")
    for name, allowed in _system_types(vocab).items():
        column = found.field(name)
        if column is None:
            raise _broken(f"column `{name}` is missing")
        if not any(as_stored(column.value_type) == t for t in allowed):
            names = " or ".join(ds.format_type(t) for t in allowed)
            raise _broken(f"column `{name}` must be {names}, it is {ds.format_type(column.value_type)}")


def _system_types(vocabulary: DatasetVocabulary) -> dict[str, tuple[ds.DataType, ...]]:
    # the signed types are those that most engines write
    return {
        vocabulary.offset_column: (ds.DataTypeUInt64(), ds.DataTypeInt64()),
        vocabulary.operation_type_column: (ds.DataTypeUInt8(), ds.DataTypeInt32()),
        vocabulary.system_time_column: (ds.MS_UTC,),
        vocabulary.event_time_column: (ds.MS_UTC, ds.DataTypeDate()),
    }


def schema_difference(declared: ds.DataSchema, found: ds.DataSchema, vocab: DatasetVocabulary) -> str | None:
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
    alike = dict(list(_system_types(vocab).items())[:2])
    for a, b in zip(declared.fields, found.fields, strict=True):
        if a.value_type in alike.get(a.name, ()) and b.value_type in alike[a.name]:
            continue
        if not type_fits(a.value_type, b.value_type):
            now, then = ds.format_type(b.value_type), ds.format_type(a.value_type)
            return f"column `{a.name}` is {now}, declared is {then}"
        if b.optional and not a.optional and a.name not in vocab.columns:
            return f"column `{a.name}` may be null, declared is NOT NULL"
    return None


# --- records ---------------------------------------------------------------------------------------


def _check_records(
    file: ParquetSource, vocabulary: DatasetVocabulary, interval: OffsetInterval, system_time: Timestamp
) -> None:
    names, time = vocabulary.columns, system_time.truncated_to_ms()
    columns = pa.schema([file.schema_arrow.field(name).with_nullable(True) for name in names])
    checks = RowChecks(columns, vocabulary, names, interval, time, same_time=True)
    for batch in file.batches(list(names)):
        checks.update(batch)
    checks.finish()
    for finding in checks.findings.values():
        raise _broken(finding.message)
    if checks.rows != interval.count:  # the pages have fewer rows than the footer says
        raise _broken(f"the file ends after {checks.rows:,} of {interval.count:,} records")


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
