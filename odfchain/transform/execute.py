"""Executing one step of a derivative dataset: nothing is committed, so a replay does the same.

    execute   the engine writes a slice and a checkpoint              (staged)
    check     the slice is what the engine says, in the declared form

Source: specification "Derivative Transformations", "ExecuteTransform"; RFC-019.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.errors import EngineError, SchemaError
from odfchain.odf.arrow_schema import from_arrow, slice_schema, to_arrow
from odfchain.odf.engine_messages import TransformRequest, TransformRequestInput
from odfchain.odf.enums import OperationType
from odfchain.odf.events import Checkpoint, DataSlice, ExecuteTransform, OffsetInterval
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.row_hash import PAIR, Numbers
from odfchain.odf.schema import DataSchema
from odfchain.odf.sources import SqlQueryStep, Transform
from odfchain.odf.times import Timestamp
from odfchain.odf.transform_options import unmarked
from odfchain.progress import SILENT, Progress, SideBySide, Silent
from odfchain.slices.reader import data_batches, open_parquet, read_footer
from odfchain.slices.state import SliceFile, Walk, hashed_rows, takes_back
from odfchain.slices.writer import SliceFacts, SliceSpec, notes_on_cut_times, write_slice
from odfchain.storage import fsio
from odfchain.text import first_line
from odfchain.transform.engine_check import check_output, measure, rewrite
from odfchain.transform.engines import Executed, InProcessEngine, TransformEngine
from odfchain.transform.planner import PlannedInput, PlannedStep, cut_after, read_backlog
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import SystemColumns

# The request of a planned step: its files, and names for new ones (specification "TransformRequest",
# "TransformRequestInput").


def build_request(
    step: PlannedStep,
    dataset: DatasetFiles,
    folder: Path,
    *,
    system_time: Timestamp,
    new_data_path: Path,
    new_checkpoint_path: Path,
) -> TransformRequest:
    """The request for a step; every file that it names was hashed, or is new and lies in `folder`."""
    # the watermark known before the step comes first, so that an engine without memory is held back by idle
    # inputs, too
    checkpoint = step.read_checkpoint
    return TransformRequest(
        dataset_id=dataset.id,
        dataset_alias=dataset.alias,
        system_time=system_time,
        vocab=step.vocabulary,
        transform=normalized(step.transform.transform),
        query_inputs=tuple(
            _input(item, folder / f"schema-{index}.parquet") for index, item in enumerate(step.inputs)
        ),
        next_offset=step.next_offset,
        prev_checkpoint_path=(
            str(dataset.checkpoints.verified_path(checkpoint.physical_hash)) if checkpoint else None
        ),
        new_checkpoint_path=str(new_checkpoint_path),
        new_data_path=str(new_data_path),
    )


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


def write_empty_parquet(schema: DataSchema, path: Path) -> None:
    """Write a Parquet file that has a schema and no rows.

    Raises:
        SchemaError: the schema has no form in Arrow or Parquet.
        StoreError: the file cannot be written.
    """
    arrow = to_arrow(schema)
    try:
        pq.write_table(arrow.empty_table(), path)
    except OSError as error:
        raise fsio.storage_error(error, path) from error
    except pa.ArrowException as error:
        raise SchemaError(
            f"the schema cannot be written as Parquet: {' '.join(str(error).split())}"
        ) from error


Engines = Callable[[Transform], TransformEngine]
"""Finds the engine that executes a transform."""


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """A step whose files are staged and checked."""

    schema: DataSchema | None
    """The output's schema from now on; None while no engine has given one."""
    slice: DataSlice | None
    facts: SliceFacts | None
    checkpoint: Checkpoint | None
    """The one that the next step begins with: a new one, or that of the step before."""
    watermark: Timestamp | None
    data_path: Path
    checkpoint_path: Path | None
    """The file of a new checkpoint."""
    takes_back_own: bool
    """As in `Executed`."""
    made_here: bool
    """True if the engine of this process made it."""
    put_since: float = 0.0
    """As in `Executed`."""
    version: str | None = None
    """As in `Executed`."""

    def event(self, step: PlannedStep) -> ExecuteTransform:
        """The event that the step's block records."""
        return ExecuteTransform(
            query_inputs=tuple(item.event for item in step.inputs),
            prev_checkpoint=step.prev_checkpoint.physical_hash if step.prev_checkpoint else None,
            prev_offset=step.prev_offset,
            new_data=self.slice,
            new_checkpoint=self.checkpoint,
            new_watermark=self.watermark,
        )


def execute_step(
    step: PlannedStep,
    dataset: DatasetFiles,
    engine: TransformEngine,
    folder: Path,
    system_time: Timestamp,
    progress: Progress = SILENT,
    system_columns: SystemColumns = SystemColumns.SPECIFICATION,
    *,
    to_commit: bool = False,
) -> ExecutedStep:
    """Execute a step in `folder` and check what the engine made; nothing is committed."""
    # what is to be committed may already be in the workspace's store
    data, checkpoint = folder / "data", folder / "checkpoint"
    request = build_request(
        step, dataset, folder, system_time=system_time, new_data_path=data, new_checkpoint_path=checkpoint
    )
    wanted = step.schema
    if wanted is None and system_columns is not SystemColumns.SPECIFICATION:
        wanted = DataSchema(fields=system_columns.numbers(step.vocabulary))  # the rest is the result's
    if to_commit and step.output is None and isinstance(engine, InProcessEngine):
        engine = engine.keeping(dataset.keys("data"))
    executed = engine.execute(request, schema=wanted, progress=progress)
    progress.phase("Checking")
    facts, schema = _checked(step, executed, data, folder, system_time, system_columns)
    made_here = facts is not None and facts is executed.facts
    if step.output is not None and schema is not None:
        progress.phase("Comparing with the output so far")
        facts = _difference(step, dataset, facts, schema, folder, system_time)
    new_data = None
    if facts is not None:
        data = Path(facts.path)
        new_data = facts.slice_at(step.next_offset)
    kept, written = (step.read_checkpoint if executed.keeps_checkpoint else None), None
    if checkpoint.exists():
        name, size = hash_file(checkpoint)
        kept, written = Checkpoint(physical_hash=name, size=size), checkpoint
    known = [w for w in (executed.watermark, step.prev_watermark) if w is not None]
    mark = max(known, default=None)
    return ExecutedStep(
        schema,
        new_data,
        facts,
        kept,
        mark,
        data,
        written,
        executed.takes_back_own or step.output is not None,
        made_here,
        executed.put_since,
        executed.version,
    )


def _checked(
    step: PlannedStep,
    executed: Executed,
    data: Path,
    folder: Path,
    system_time: Timestamp,
    system_columns: SystemColumns,
) -> tuple[SliceFacts | None, DataSchema | None]:
    # the output is checked, and rewritten where its form is not the declared one
    interval, vocabulary = executed.offset_interval, step.vocabulary
    if interval is None and not data.exists():
        return None, step.schema
    grown = _grown(step, executed, data)
    found = check_output(
        data, vocabulary=vocabulary, schema=grown, interval=interval, system_time=system_time
    )
    schema = grown or found
    if grown is None and system_columns is not SystemColumns.SPECIFICATION:
        schema = system_columns.of(found, vocabulary)  # engines elsewhere choose types of their own
    if interval is None:
        return None, schema
    if executed.facts is not None:
        return executed.facts, schema
    if found == schema:
        return measure(data, vocabulary), schema
    return rewrite(data, schema, vocabulary, interval.start, system_time.epoch_ms, folder), schema


def _difference(
    step: PlannedStep,
    dataset: DatasetFiles,
    facts: SliceFacts | None,
    schema: DataSchema,
    folder: Path,
    system_time: Timestamp,
) -> SliceFacts | None:
    names = step.vocabulary
    earlier = [
        SliceFile(dataset.data.verified_path(item.physical_hash), names, item.offset_interval)
        for item in step.output or ()
    ]
    made = None
    if facts is not None:
        interval = OffsetInterval(start=step.next_offset, end=step.next_offset + facts.rows - 1)
        made = SliceFile(Path(facts.path), names, interval)
    spec = SliceSpec.of(schema, names, step.next_offset, system_time.epoch_ms, folder)
    return write_difference(earlier, made, schema, spec)


def _grown(step: PlannedStep, executed: Executed, data: Path) -> DataSchema | None:
    # this engine adds new columns at the end only
    declared = step.schema
    if declared is None or executed.facts is None:
        return declared
    with open_parquet(data) as file:
        found = from_arrow(file.schema_arrow.remove_metadata())
    return DataSchema(fields=declared.fields + found.fields[len(declared.fields) :], extra=declared.extra)


# The difference between the output so far and the query over everything (`odfchain.odf.transform_options`).


def write_difference(
    earlier: Sequence[SliceFile], made: SliceFile | None, schema: DataSchema, spec: SliceSpec
) -> SliceFacts | None:
    """A slice that turns the rows of `earlier` into those of `made`; None where nothing has to change.

    Rows in force are counted (`odfchain.slices.state`). What is in both stays as it is. What has to
    go comes first, as retractions in the order in which it was recorded, then what is new in the order of
    `made`.

    Raises:
        EngineError: the rows of two slices cannot be compared.
    """
    arrow = slice_schema(schema)
    try:
        old, new = _SliceRows.of(earlier), _SliceRows.of([] if made is None else [made])
        _, keys = np.unique(np.concatenate([old.hashes, new.hashes]), return_inverse=True)
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

        return write_slice(rows(), spec)
    except (pa.ArrowException, ValueError, KeyError) as error:
        raise EngineError(
            f"the output so far cannot be compared with the new one: {first_line(error)}"
        ) from error


@dataclass(frozen=True, slots=True)
class _SliceRows:
    """All rows of some slices, in their order."""

    hashes: Numbers
    kept: Numbers
    """True for rows in force."""

    @classmethod
    def of(cls, slices: Sequence[SliceFile]) -> _SliceRows:
        nothing = (np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, PAIR))

        def read(*, exact: bool) -> tuple[Numbers, Walk]:
            rows = [nothing, *(found for item in slices for found in hashed_rows(item, exact=exact))]
            offsets, operations, hashes = (np.concatenate(parts) for parts in zip(*rows, strict=True))
            return hashes, Walk.of(offsets, takes_back(operations), hashes)

        # what this engine takes back is as it was recorded, and so is what it makes of the output
        hashes, walk = read(exact=True)
        return cls(hashes, walk.kept if not walk.unmatched.any() else read(exact=False)[1].kept)

    def last(self, keys: Numbers, wanted: Numbers) -> Numbers:
        # the last n rows in force of each kind
        chosen: Numbers = np.zeros(len(keys), dtype=bool)
        places = np.flatnonzero(self.kept)[::-1]
        order = np.argsort(keys[places], kind="stable")
        places = places[order]
        groups = keys[places]
        starts = (
            np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1]))) if len(groups) else groups
        )
        rank = np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))
        chosen[places[rank < wanted[groups]]] = True
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


# A large step is cut into several that are computed side by side (RFC-049):
#
#     pieces    blocks of the input with so many bytes                        footers are read
#     rows      how many records come of each piece                           a query, side by side
#     steps     pieces whose records fit into one slice
#     execute   each step as it will be replayed, offsets known beforehand    side by side
#
# Only row-by-row queries over one input are cut, so the result is the same. Where a step ends depends on the
# chain, the footers, the counts and the limit alone, so it can be replayed.

T = TypeVar("T")

_MOST_AT_ONCE = 64
"""Threads that wait for Spark [count]."""


@dataclass(frozen=True, slots=True)
class StepRun:
    """Context for executing steps; nothing is committed."""

    dataset: DatasetFiles
    engine: TransformEngine
    folder: Path
    """An empty one, for what is staged."""
    system_time: Timestamp
    system_columns: SystemColumns
    progress: Progress


def executed_steps(run: StepRun, step: PlannedStep, max_bytes: int) -> list[tuple[PlannedStep, ExecutedStep]]:
    """The step, or several in its place whose slices have about `max_bytes` of values, executed."""
    steps = _cut(run, step, max_bytes) if max_bytes else [step]
    if len(steps) == 1:
        return [(step, _execute(run, step, run.folder, run.progress))]
    work = [functools.partial(_execute, run, each) for each in steps]
    done = _side_by_side(run, "Computing", work)
    known = step.prev_watermark
    settled = []
    for each, following, executed in zip(steps, [*steps[1:], None], done, strict=True):
        new = executed.slice
        if new is None or (following is not None and following.next_offset != new.offset_interval.end + 1):
            raise EngineError(
                f"{run.dataset.alias}: a step brought other records than were counted before it",
                hint="this is a fault of odfchain; please report it. Meanwhile `slice.maxBytes: 0` avoids it",
            )
        known = max((mark for mark in (known, executed.watermark) if mark is not None), default=None)
        settled.append((each, dataclasses.replace(executed, watermark=known)))
    finer: Counter[str] = Counter()
    for executed in done:
        finer += Counter(executed.facts.finer if executed.facts is not None else {})
    for note in notes_on_cut_times(finer):
        run.progress.note(note)
    return settled


def _execute(run: StepRun, step: PlannedStep, folder: Path, progress: Progress) -> ExecutedStep:
    return execute_step(
        step, run.dataset, run.engine, folder, run.system_time, progress, run.system_columns, to_commit=True
    )


# --- where a step is cut -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """Blocks of an input up to one with data."""

    end: Multihash
    rows: int
    size: int
    """Of its records, not compressed [bytes]."""


def _cut(run: StepRun, step: PlannedStep, max_bytes: int) -> list[PlannedStep]:
    pieces = _pieces(step, max_bytes)
    if len(pieces) < 2 or not isinstance(run.engine, InProcessEngine):
        return [step]
    planned = cut_after(run.dataset, step, [piece.end for piece in pieces[:-1]])
    work = [functools.partial(_count, run, run.engine, each) for each in planned]
    notes: dict[str, None] = {}
    counts = [rows for rows in _side_by_side(run, "Counting", work, notes) if rows is not None]
    for note in notes:
        run.progress.note(note)
    if len(counts) < len(pieces):
        return [step]
    ends, wanted = zip(*_fitting(pieces, counts, max_bytes), strict=True)
    if len(ends) == 1:
        return [step]
    offsets = itertools.accumulate(wanted, initial=step.next_offset)
    return [
        dataclasses.replace(each, prev_offset=offset - 1 if offset else None)
        for each, offset in zip(cut_after(run.dataset, step, ends[:-1]), offsets, strict=False)
    ]


def _fitting(pieces: Sequence[_Piece], counts: Sequence[int], max_bytes: int) -> list[tuple[Multihash, int]]:
    # a record counts as much as a row that is read; a piece without records goes with another one
    found: list[tuple[Multihash, int]] = []
    size = 0.0
    for piece, rows in zip(pieces, counts, strict=True):
        more = piece.size * rows / piece.rows
        if found and not (size and more and size + more > max_bytes):
            found[-1] = piece.end, found[-1][1] + rows
            size += more
        else:
            found.append((piece.end, rows))
            size = more
    return found


def _pieces(step: PlannedStep, max_bytes: int) -> list[_Piece]:
    # None where the step cannot be cut
    if len(step.inputs) != 1 or step.output is not None or step.prev_checkpoint is not None:
        return []
    (item,) = step.inputs
    end = item.event.new_block_hash
    if len(item.slices) < 2 or end is None:
        return []
    backlog = read_backlog(item.dataset.chain, item.event.prev_block_hash, end)
    assert backlog is not None  # noqa: S101 - it was planned
    found: list[_Piece] = []
    for name, block in backlog.blocks:
        if (data := block.new_data) is None:
            continue
        footer, _ = read_footer(item.dataset.data.verified_path(data.physical_hash))
        size = sum(footer.row_group(group).total_byte_size for group in range(footer.num_row_groups))
        rows = data.offset_interval.count
        if found and found[-1].size + size <= max_bytes:
            rows, size = found[-1].rows + rows, found.pop().size + size
        found.append(_Piece(name, rows, size))
    return found


def _count(
    run: StepRun, engine: InProcessEngine, step: PlannedStep, folder: Path, progress: Progress
) -> int | None:
    request = build_request(
        step, run.dataset, folder, system_time=run.system_time,
        new_data_path=folder / "data", new_checkpoint_path=folder / "checkpoint",
    )  # fmt: skip
    return engine.rows_of(request, progress=progress)


# --- side by side --------------------------------------------------------------------------------------


class JobThreads(ThreadPoolExecutor):
    """Threads that are waited for; but not after Ctrl-C, which closes the engine under them."""

    def __init__(self, jobs: int) -> None:
        """`jobs` threads, at least one."""
        super().__init__(max(1, jobs), thread_name_prefix="odfchain-steps")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        interrupted = kind is not None and not issubclass(kind, Exception)
        self.shutdown(wait=not interrupted, cancel_futures=kind is not None)


class _Noted(Silent):
    """Keeps notes, each once."""

    def __init__(self, notes: dict[str, None]) -> None:
        self._notes = notes

    def note(self, text: str) -> None:
        self._notes[text] = None


def _side_by_side(
    run: StepRun,
    phase: str,
    work: Sequence[Callable[[Path, Progress], T]],
    notes: dict[str, None] | None = None,
) -> list[T]:
    # each piece of work has a folder of its own; results keep the order
    run.progress.phase(phase, len(work))
    together = SideBySide(run.progress, phase)
    tasks = run.engine.tasks() if isinstance(run.engine, InProcessEngine) else 1
    with JobThreads(min(len(work), tasks, _MOST_AT_ONCE)) as threads:
        waiting = []
        for number, each in enumerate(work):
            folder = run.folder / f"{phase.lower()}-{number}"
            folder.mkdir()
            progress = together.part() if notes is None else _Noted(notes)
            waiting.append(threads.submit(each, folder, progress))
        found = []
        for future in waiting:
            found.append(future.result())
            run.progress.advance()
    return found
