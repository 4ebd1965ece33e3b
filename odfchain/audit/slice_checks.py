"""Checks 6 to 11 and 19 of one slice: its bytes are hashed, then its rows are decoded once for the others.

Memory stays at one row group for files of any size, and at the rows of small datasets: checks 10 and 13 need
them, too.

The bytes of a derivative slice are one of many ways to write its records. Where they are not the recorded
ones, the records decide: the same records written anew are a note, others are a fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as t

from odfchain.audit.chain_checks import Run, StoredBlock
from odfchain.audit.report import (
    CORRECTIONS,
    LOGICAL,
    OF_ROWS,
    OFFSETS,
    PHYSICAL,
    PRESENT,
    SCHEMA,
    STATISTICS,
    SYSTEM,
    WATERMARKS,
    Checking,
    Fault,
    Finding,
    LeftOut,
    Looked,
    Note,
    Read,
    Skipped,
    fault,
)
from odfchain.audit.row_checks import ExpectedSchema, SchemaInForce
from odfchain.chain.index import DATA_EVENTS
from odfchain.errors import OdfchainError, OversizedInputError, SchemaError, StoreError
from odfchain.odf.arrow_schema import slice_schema, to_arrow
from odfchain.odf.events import AddData, Checkpoint, DataSlice, ExecuteTransform, SetDataSchema, SetVocab
from odfchain.odf.identity import Multihash
from odfchain.odf.logical_hash import LogicalDigest
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.schema import DataSchema
from odfchain.odf.times import Timestamp
from odfchain.progress import Progress
from odfchain.slices.footers import bounds_of, leaves, nanoseconds_per_unit, shown
from odfchain.slices.reader import hash_parquet, open_parquet
from odfchain.slices.row_rules import RowChecks, SliceFinding
from odfchain.slices.state import KeptRows, SliceFile
from odfchain.storage.fsio import shortage
from odfchain.storage.local import LocalObjectStore
from odfchain.text import counted, one_line
from odfchain.transfer.slice_files import is_partial

# Check 19: the statistics in a slice's footer are true, because engines skip rows by them.
# Each row group is checked by itself, because it is skipped by itself. Bounds may be wide (writers cut
# texts) or missing; counts of nulls are exact; NaN is in no bounds; lists and maps are not checked, since
# their statistics are not used. Source: RFC-043.

# Decoded rows of a dataset that are kept for other checks at most [bytes].
_KEPT_BYTES = 64 << 20
# So many values are compared by Python sooner than Arrow is called.
_FEW = 64


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column as footers have it, and how its values are compared."""

    name: str
    kind: pa.DataType
    # The type of numbers that values of this type are compared by, and how much of a bound one of them is.
    view: pa.DataType | None
    scale: int

    @classmethod
    def of(cls, name: str, kind: pa.DataType) -> _Leaf:
        view = None
        if t.is_date32(kind) or t.is_time32(kind):
            view = pa.int32()
        elif t.is_timestamp(kind) or t.is_time64(kind):
            view = pa.int64()
        return cls(name, kind, view, nanoseconds_per_unit(kind) if view and not t.is_date32(kind) else 1)

    def bounds(self, stats: pq.Statistics) -> tuple[Any, Any]:
        if not stats.has_min_max:
            return None, None
        if not t.is_string(self.kind) and not t.is_large_string(self.kind):
            return bounds_of(stats, self.kind)
        # raw bytes: a writer may cut a text within a character
        low, high = stats.min_raw, stats.max_raw
        return (low, high) if isinstance(low, bytes) and isinstance(high, bytes) else (None, None)


class _Claim:
    """A row group's statistics of a column, and the values of its rows so far."""

    __slots__ = ("bounded", "found", "found_nulls", "high", "leaf", "low", "nulls")

    def __init__(self, leaf: _Leaf, stats: pq.Statistics) -> None:
        self.leaf = leaf
        self.nulls: int | None = stats.null_count if stats.has_null_count else None
        self.low, self.high = bounds = leaf.bounds(stats)
        self.bounded = None not in bounds
        self.found_nulls = 0
        self.found: tuple[Any, Any] | None = None

    def update(self, column: pa.Array) -> None:
        nulls = column.null_count
        self.found_nulls += nulls
        if not self.bounded or nulls == len(column):
            return
        try:
            low, high = _range_of(column if self.leaf.view is None else column.view(self.leaf.view))
        except pa.ArrowNotImplementedError:  # values that have no order here
            self.bounded = False
            return
        if low is not None and low == low:  # noqa: PLR0124 - not NaN
            known = (low, high) if self.found is None else self.found
            self.found = (min(low, known[0]), max(high, known[1]))

    def lies(self) -> Iterator[tuple[str, str]]:
        if self.nulls is not None and self.nulls != self.found_nulls:
            said, found = counted(self.nulls, "null"), counted(self.found_nulls, "null")
            yield "nulls", self._message(said, found)
        if self.found is not None:
            scale, texts = self.leaf.scale, isinstance(self.found[0], str)
            low, high = (v.encode() if texts else v * scale if scale > 1 else v for v in self.found)
            if low < self.low or high > self.high:
                yield "bounds", self._message(self._shown(self.low, self.high), self._shown(low, high))

    def _message(self, said: str, found: str) -> str:
        return f"column `{one_line(self.leaf.name)}`: the footer says {said}, the rows have {found}"

    def _shown(self, low: Any, high: Any) -> str:
        return f"{_text(low, self.leaf.kind)} … {_text(high, self.leaf.kind)}"


class FooterCheck:
    """Fed the batches of one slice in order; then `finish` says what the footer claims wrongly."""

    def __init__(self, footer: pq.FileMetaData, schema: pa.Schema) -> None:
        self._footer = footer
        self._leaves, self._flat = _plan(schema)
        self._findings: dict[tuple[str, str], SliceFinding] = {}
        self._groups = footer.num_row_groups
        self._group = -1
        self._left = 0
        self._claims: list[tuple[int, _Claim]] = []
        self._next_group()

    def update(self, batch: pa.RecordBatch) -> None:
        """Look at the next rows."""
        position = 0
        while position < batch.num_rows and self._group < self._groups:
            count = min(self._left, batch.num_rows - position)
            part = batch if count == batch.num_rows else batch.slice(position, count)
            columns = part.columns if self._flat else list(_leaf_arrays(part))
            for index, claim in self._claims:
                claim.update(columns[index])
            position += count
            self._left -= count
            if not self._left:
                self._next_group()

    def finish(self) -> list[SliceFinding]:
        """There are no more rows: one finding for each column, the first row group where it shows."""
        return list(self._findings.values())

    def _next_group(self) -> None:
        while not self._left:
            for _, claim in self._claims:
                # the claims of a group are complete when its rows have been seen
                for what, message in claim.lies():
                    where = f" (row group {self._group + 1} of {self._groups})" if self._groups > 1 else ""
                    finding = SliceFinding(STATISTICS, message + where)
                    self._findings.setdefault((what, claim.leaf.name), finding)
            self._group, self._claims = self._group + 1, []
            if self._group >= self._groups:
                return
            group = self._footer.row_group(self._group)
            self._left = group.num_rows
            for index, leaf in enumerate(self._leaves):
                stats = group.column(index).statistics if leaf is not None else None
                if leaf is not None and stats is not None:
                    self._claims.append((index, _Claim(leaf, stats)))


@lru_cache(maxsize=32)
def _plan(schema: pa.Schema) -> tuple[tuple[_Leaf | None, ...], bool]:
    found = [None if repeated else _Leaf.of(name, kind) for name, kind, repeated in leaves(schema)]
    # without nesting, leaves and columns are the same
    nested = any(t.is_nested(field.type) or t.is_dictionary(field.type) for field in schema)
    return tuple(found), not nested


def _range_of(column: pa.Array) -> tuple[Any, Any]:
    # Python is faster for a few values, numpy for floats without NaN
    if len(column) <= _FEW:
        values = [value for value in column.to_pylist() if value is not None and value == value]  # noqa: PLR0124
        return (min(values), max(values)) if values else (None, None)
    if t.is_float64(column.type) and not column.null_count:
        numbers = column.to_numpy()
        low, high = float(numbers.min()), float(numbers.max())
        if low == low:  # noqa: PLR0124 - with NaN, Arrow leaves it out
            return low, high
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def _leaf_arrays(batch: pa.RecordBatch) -> Iterator[pa.Array | None]:
    def walk(column: pa.Array) -> Iterator[pa.Array | None]:
        if t.is_struct(column.type):
            for member in column.flatten():
                yield from walk(member)
        elif t.is_dictionary(column.type):
            yield column.dictionary_decode()
        elif t.is_nested(column.type):
            # lists and maps: their statistics are not checked
            yield from (None for _ in leaves(pa.schema([("c", column.type)])))
        else:
            yield column

    for column in batch.columns:
        yield from walk(column)


def _text(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes) and (t.is_string(kind) or t.is_large_string(kind)):
        return repr(one_line(value.decode(errors="backslashreplace"), 60))
    text = shown(value, kind)
    return one_line(str(value if text is None else text), 60)


UNREADABLE = (OdfchainError, pa.ArrowException, OSError, ValueError, OverflowError)
"""Exceptions of reading an untrusted Parquet file; `UnicodeDecodeError` is a `ValueError`."""


@dataclass(frozen=True, slots=True)
class SliceJob:
    """A slice that a block names, and what is known there of the rows; no form is known behind damage."""

    number: int
    time: Timestamp
    slice: DataSlice
    derivative: bool
    expected: ExpectedSchema | None
    keep: int = 0
    """Its rows are kept if they have at most so many bytes."""

    def file(self, path: Path, kept: KeptRows | None = None) -> SliceFile | None:
        """Its file for the rules of states."""
        known = self.expected
        return None if known is None else SliceFile(path, known.vocabulary, self.slice.offset_interval, kept)

    def fault(self, check: int, path: Path, message: str) -> Fault:
        """A fault of the slice in its file."""
        return Fault(check, str(path), message, self.number)


@dataclass(slots=True)
class SliceOutcome:
    """What is found in one slice, and what its rows say."""

    findings: list[Finding] = field(default_factory=list)
    operations: tuple[int, ...] | None = None
    """Rows of each operation; None when the rows could not be looked at."""
    latest_ms: int | None = None
    """The largest event time [ms]."""
    as_recorded: bool = False
    """True if the file has the recorded bytes."""
    system_span: tuple[int, int] | None = None
    """The system times of the first and the last row [ns since the epoch]."""
    kept: KeptRows | None = None
    """Its rows, where they are few."""

    @property
    def faults(self) -> list[Fault]:
        """What is not as recorded."""
        return [item for item in self.findings if isinstance(item, Fault)]


_NOT_LOOKED_AT = "a slice is missing or damaged, so its rows were not looked at"


def check_slice(
    store: LocalObjectStore, job: SliceJob, progress: Progress, leaves: Executor | None = None
) -> SliceOutcome:
    """Physical hash, then records; a root's file with wrong bytes is not decoded.

    With `leaves`, the columns of a batch are hashed side by side.
    """
    path, outcome = Path(store.locate(job.slice.physical_hash)), SliceOutcome()
    try:
        actual, size = hash_file(path)  # soon done: what takes time are the records
    except OSError as error:
        if (short := shortage(error)) is not None:
            raise short from None
        outcome.findings.append(job.fault(PHYSICAL, path, f"the slice cannot be read: {error.strerror}"))
    else:
        outcome.as_recorded = actual == job.slice.physical_hash
        if outcome.as_recorded or job.derivative:
            _check_records(path, job, outcome, progress, leaves)
        else:
            message = f"PhysicalHashMismatch: the slice's bytes hash to {actual}"
            outcome.findings.append(job.fault(PHYSICAL, path, message))
        if job.derivative and not outcome.as_recorded:
            _judge_written_anew(path, job, size, outcome)
    read = Read(slices=1, records=job.slice.offset_interval.count, data_bytes=job.slice.size)
    if not any(item == Looked(LOGICAL) or isinstance(item, LeftOut) for item in outcome.findings):
        outcome.findings.append(Skipped(OF_ROWS, _NOT_LOOKED_AT))
        read = Read(slices=1)
    outcome.findings += [Looked(PHYSICAL), read]
    return outcome


def _judge_written_anew(path: Path, job: SliceJob, size: int, outcome: SliceOutcome) -> None:
    faults = outcome.faults
    left_out = any(isinstance(item, LeftOut) for item in outcome.findings)
    # other bytes with the same records are as good for a derivative
    if not faults and not left_out:
        message = "the slice was written anew, with the same records (its bytes are not the recorded ones)"
        outcome.findings.insert(0, Note(f"{path}: {message}"))
        return
    # what the rows of another file say is not said of the recorded ones
    outcome.findings = [item for item in outcome.findings if isinstance(item, Looked | LeftOut)]
    outcome.system_span = None
    telling = [item for item in faults if item.check == LOGICAL] or faults
    if left_out:
        return
    if size == job.slice.size:
        outcome.findings += telling
    else:
        resized = other_size("slice", size, job.slice.size)
        message = "; ".join((resized, *(item.message for item in telling)))
        outcome.findings.append(job.fault(PRESENT, path, message))


def other_size(what: str, actual: int, declared: int) -> str:
    """The message about a file whose size is not the recorded one."""
    return f"SizeMismatch: the {what} has {actual:,} bytes, its block says {declared:,}"


def _check_records(
    path: Path, job: SliceJob, outcome: SliceOutcome, progress: Progress, leaves: Executor | None
) -> None:
    found = outcome.findings
    try:
        logical, rows, checks = _decode(path, job, outcome, progress, leaves)
    except MemoryError:  # also Arrow's; it says nothing of the dataset
        reason = f"{path}: there is not enough memory to read the records"
        found.append(LeftOut(reason, job.number, LOGICAL, OF_ROWS))
        return
    except OversizedInputError as error:  # it might be honest, though hardly
        found.append(LeftOut(str(error), job.number, LOGICAL, OF_ROWS))
        return
    except UNREADABLE as error:
        reason = one_line(error.message if isinstance(error, OdfchainError) else str(error))
        found.append(job.fault(LOGICAL, path, f"the records cannot be hashed: {reason}"))
        return
    found += map(Looked, (LOGICAL, OFFSETS, STATISTICS))
    if logical != job.slice.logical_hash:
        found.append(_judge_hash(path, job, logical))
    expected = job.slice.offset_interval.count
    if rows != expected:
        message = f"the slice has {rows:,} records, its offsets say {expected:,}"
        found.append(job.fault(OFFSETS, path, message))
    if checks is None:
        return
    found += map(Looked, (SYSTEM, SCHEMA))
    outcome.operations, outcome.latest_ms = tuple(checks.operations), checks.latest_ms
    outcome.system_span = checks.system_span
    if any(checks.operations[1:]):
        found.append(Looked(CORRECTIONS))
    if checks.system_times > 1:
        found.append(Note(f"{path}: rows of several system times, as in a slice that was compacted"))
    found += (job.fault(item.check, path, item.message) for item in checks.findings.values())


def _decode(
    path: Path, job: SliceJob, outcome: SliceOutcome, progress: Progress, leaves: Executor | None
) -> tuple[Multihash, int, RowChecks | None]:
    found, kept, room = outcome.findings, list[pa.RecordBatch](), job.keep
    with open_parquet(path) as file:
        schema = file.schema_arrow
        digest = LogicalDigest(schema, executor=leaves)
        checks = None
        if job.expected is not None:
            checks = RowChecks(
                schema, job.expected.vocabulary, job.expected.required, job.slice.offset_interval, job.time
            )
            faults, notes = job.expected.check(schema)
            found += map(Note, notes)
            found += (job.fault(item.check, path, item.message) for item in faults)
        footer, rows = FooterCheck(file.metadata, schema), 0
        for batch in file.batches():
            digest.update(batch)
            footer.update(batch)
            rows += batch.num_rows
            progress.advance(batch.num_rows * job.slice.size // max(1, job.slice.offset_interval.count))
            room -= batch.nbytes
            kept = [*kept, batch] if room >= 0 else []
            if checks is not None:
                checks.update(batch)
        if checks is not None:
            checks.finish()
        outcome.kept = KeptRows(schema, kept) if room >= 0 else None
        found += (job.fault(item.check, path, item.message) for item in footer.finish())
    return digest.finish(), rows, checks


def _judge_hash(path: Path, job: SliceJob, logical: Multihash) -> Fault | Note:
    rule, declared = None, job.expected.schema if job.expected is not None else None
    with contextlib.suppress(*UNREADABLE, MemoryError):  # it was readable a moment ago
        rule = _other_rule(path, job.slice.logical_hash, declared)
    if rule is not None:
        return Note(f"{path}: the logical hash {rule}")
    message = (
        f"LogicalHashMismatch: the records differ from the recorded ones: "
        f"they hash to {logical}, the block says {job.slice.logical_hash}"
    )
    return job.fault(LOGICAL, path, message)


def _other_rule(path: Path, recorded: Multihash, declared: DataSchema | None) -> str | None:
    # by which other rule a file has the recorded logical hash, as words
    if hash_parquet(path, null_rule="reference")[0] == recorded:
        return "follows the reference implementation's rule for null structs"
    if declared is None:
        return None
    with contextlib.suppress(pa.ArrowException, ValueError, SchemaError):  # other columns, or finer times
        # this project once hashed times of day in seconds as declared, not as Parquet gives them back
        # (RFC-012)
        schema = to_arrow(declared)
        if schema != slice_schema(declared) and hash_parquet(path, schema=schema)[0] == recorded:
            return "is that of the declared types, where Parquet keeps others"
    return None


InputMarks = Callable[[ExecuteTransform], Sequence[Timestamp | None] | None]
"""The watermarks of the inputs at the blocks that an execution names; None when they are not at hand."""


@dataclass(frozen=True, slots=True)
class SliceReading:
    """The slices of a verification, oldest first, and the outcome of each by the number of its block."""

    run: Run
    jobs: Sequence[SliceJob]
    outcomes: Mapping[int, SliceOutcome]

    @classmethod
    def of(cls, run: Run, threads: int) -> Checking[SliceReading]:
        """Check all slices and checkpoints."""
        jobs = yield from check_objects(run)
        checked = cls(run, jobs, (yield from _read(run, jobs, threads)))
        yield from checked._system_times()
        return checked

    def _system_times(self) -> Checking[None]:
        # check 9 between slices: no row is said to have been recorded before one that comes earlier
        latest: int | None = None
        for job in self.jobs:
            span = self.outcomes[job.number].system_span
            # the slice could not be read, which is a finding of its own
            if span is None:
                continue
            first, last = span
            if latest is not None and first < latest:
                message = (
                    f"row at offset {job.slice.offset_interval.start:,}: the system time is before that of "
                    "the slices before it"
                )
                place = self.run.dataset.data.locate(job.slice.physical_hash)
                yield Fault(SYSTEM, place, message, job.number)
            latest = last if latest is None else max(latest, last)

    # Check 12: watermarks never go back, and are not ahead of the data. A root's watermark is at most the
    # largest event time so far; one that is set by hand (a block without data) is a note. A derivative's is
    # at most those of its inputs; beyond all of them is a note, because a query may move event times: only a
    # replay can tell.

    def check_watermarks(self, input_marks: InputMarks) -> Checking[None]:
        """Those of the blocks `(after, upto]`; what came before the range is taken as it is recorded."""
        run = self.run
        last: Timestamp | None = None
        latest_ms: int | None = None
        known = run.chain.complete and run.chain.newest is None
        for stored in run.chain.blocks.of(*DATA_EVENTS):
            if stored.number > run.upto:
                break
            if not stored.sound:
                known, last = False, None
                continue
            event = stored.block.event
            if not isinstance(event, AddData | ExecuteTransform):
                continue
            if event.new_data is not None:
                outcome = self.outcomes.get(stored.number)
                known = known and outcome is not None and outcome.operations is not None
                times = (latest_ms, outcome.latest_ms if outcome is not None else None)
                latest_ms = max((ms for ms in times if ms is not None), default=None)
            mark = event.new_watermark
            if stored.number > run.after:
                yield Looked(WATERMARKS, int(mark is not None or last is not None))
                if last is not None and (mark is None or mark < last):
                    message = f"the watermark goes back from {last} to {mark or 'none'}"
                    yield fault(WATERMARKS, run.block_file(stored.name), message, stored.number)
                elif mark is None or mark == last:
                    pass
                elif isinstance(event, ExecuteTransform):
                    yield from _check_derived(stored.number, mark, input_marks(event))
                elif event.new_data is None:
                    yield Note(f"block {stored.number} sets the watermark {mark} by hand")
                elif latest_ms is None or mark.epoch_ms > latest_ms:
                    if known:
                        message = f"the watermark {mark} is ahead of the data, whose latest event time is "
                        message += _event_time(latest_ms)
                        yield fault(WATERMARKS, run.block_file(stored.name), message, stored.number)
                    else:
                        yield Skipped([WATERMARKS], "the event times of earlier slices are not known")
            last = mark


def _event_time(epoch_ms: int | None) -> str:
    if epoch_ms is None:
        return "none"
    try:
        return str(Timestamp.from_epoch_ms(epoch_ms))
    except OdfchainError:
        return f"{epoch_ms} ms"


def _check_derived(number: int, mark: Timestamp, marks: Sequence[Timestamp | None] | None) -> Checking[None]:
    if marks is None:
        yield Skipped([WATERMARKS], "the watermarks of its inputs are not at hand")
        return
    given = [item for item in marks if item is not None]
    least = min(given) if given and len(given) == len(marks) else None
    if least is None or mark > least:
        yield Note(
            f"block {number}: the watermark {mark} is ahead of its inputs' {least or 'none'}; only a replay "
            "can tell whether the query moves event times"
        )


def _read(run: Run, jobs: Sequence[SliceJob], threads: int) -> Checking[dict[int, SliceOutcome]]:
    # several in parallel, each decoded once for all checks
    if not jobs:
        return {}
    whole = sum(job.slice.size for job in jobs)
    run.progress.phase(f"Checking the slices of {run.dataset.alias}", whole)
    jobs = [replace(job, keep=_KEPT_BYTES * job.slice.size // max(1, whole)) for job in jobs]
    threads = max(1, threads)
    with ExitStack() as pools:
        leaves: Executor | None = None
        if threads > 1 and len(jobs) < threads:
            leaves = pools.enter_context(ThreadPoolExecutor(threads - len(jobs)))  # each job has one already

        def check(index: int) -> SliceOutcome:
            return check_slice(run.dataset.data, jobs[index], run.progress, leaves)

        # the largest first, so that none of the threads is left with one when the others are done
        order = sorted(range(len(jobs)), key=lambda index: -jobs[index].slice.size)
        results: Iterable[SliceOutcome]
        if threads == 1 or len(jobs) == 1:
            results = map(check, order)
        else:
            results = pools.enter_context(ThreadPoolExecutor(min(threads, len(jobs)))).map(check, order)
        outcomes = dict(zip(order, results, strict=True))
    noted: set[str] = set()
    for index in range(len(jobs)):
        for item in outcomes[index].findings:
            if not isinstance(item, Note):
                yield item
            elif item.text not in noted:  # several blocks may name one file
                noted.add(item.text)
                yield item
    return {job.number: outcomes[index] for index, job in enumerate(jobs)}


# Checks 5 and 6: the named files exist with their sizes, and checkpoints are hashed. What a partial copy
# lacks is no fault: it is reported as not checked.

_NOT_HERE = "the {} is not in this partial copy; `odfchain fetch {}` brings it"


def check_objects(run: Run) -> Checking[list[SliceJob]]:
    """Presence, sizes, and bytes of checkpoints; returns the slices whose bytes are worth hashing."""
    slices: list[SliceJob] = []
    partial = is_partial(run.dataset)
    in_force = SchemaInForce(believed=run.chain.complete)
    beginning = run.chain.complete
    for stored in run.chain.blocks.of(*DATA_EVENTS, SetDataSchema.KIND, SetVocab.KIND):
        in_force.add(stored)
        event = stored.block.event
        inside = run.after < stored.number <= run.upto and stored.sound
        begins = beginning and isinstance(event, AddData | ExecuteTransform)
        beginning = beginning and stored.sound and not begins
        if not inside or not isinstance(event, AddData | ExecuteTransform):
            continue
        if begins and event.prev_offset is not None:
            # no append rule says so of the first one, because there is none before it to compare with
            message = f"prevOffset is {event.prev_offset}, and there are no records before this block"
            yield fault(OFFSETS, run.block_file(stored.name), message, stored.number)
        if event.new_data is not None:
            expected, problem = in_force.expected()
            time, is_step = stored.block.system_time, isinstance(event, ExecuteTransform)
            job = SliceJob(stored.number, time, event.new_data, is_step, expected)
            if problem is not None:
                message = f"the declared schema cannot be read: {one_line(problem)}"
                yield LeftOut(message, stored.number, SCHEMA)
            if expected is None:
                yield Skipped(OF_ROWS[2:], "the chain before it is damaged, so the form of rows is not known")
            if (yield from _check_slice_file(run, job, partial=partial)):
                slices.append(job)
        if event.new_checkpoint is not None:
            yield from _check_checkpoint(run, stored, event.new_checkpoint, partial=partial)
    return slices


def _check_slice_file(run: Run, job: SliceJob, *, partial: bool) -> Checking[bool]:
    store, name = run.dataset.data, job.slice.physical_hash
    # a partial copy may lack slices on purpose
    if partial and _is_missing(store, name):
        message = _NOT_HERE.format("slice", run.dataset.alias)
        yield LeftOut(message, job.number, PRESENT, (PHYSICAL, *OF_ROWS))
        return False
    yield Looked(PRESENT)
    found = _size_fault(store, name, job.slice.size, "slice", job.number, any_size=job.derivative)
    if found is None:
        return True
    yield found
    yield Read(slices=1)
    yield Skipped((PHYSICAL, *OF_ROWS), _NOT_LOOKED_AT)
    return False


def _check_checkpoint(run: Run, stored: StoredBlock, named: Checkpoint, *, partial: bool) -> Checking[None]:
    # A checkpoint that did not change is named again; its bytes were hashed at the block that made it.
    store, name = run.dataset.checkpoints, named.physical_hash
    if partial and _is_missing(store, name):
        message = _NOT_HERE.format("checkpoint", run.dataset.alias)
        yield LeftOut(message, stored.number, PRESENT, (PHYSICAL,))
        return
    yield Looked(PRESENT)
    if (found := _size_fault(store, name, named.size, "checkpoint", stored.number)) is not None:
        yield found
        return
    yield Looked(PHYSICAL)
    try:
        store.verified_path(name)
    except OdfchainError as error:
        place = store.locate(name)
        reason = error.message.removeprefix(f"{place}: ")
        message = f"PhysicalHashMismatch: the checkpoint is damaged: {reason}"
        yield fault(PHYSICAL, place, message, stored.number)


def _is_missing(store: LocalObjectStore, name: Multihash) -> bool:
    try:
        return not store.contains(name)
    except StoreError:
        # what cannot be read is not missing: reading it reports the error
        return False


def _size_fault(
    store: LocalObjectStore, name: Multihash, size: int, what: str, number: int, *, any_size: bool = False
) -> Fault | None:
    try:
        actual = store.size(name)
    except OdfchainError as error:
        place = _locate(store, name)
        message = f"the {what} is missing: {error.message.removeprefix(f'{place}: ')}"
        return fault(PRESENT, place, message, number)
    if not store.contains(name):
        return fault(PRESENT, store.locate(name), f"the {what} is not an ordinary file", number)
    if actual == size or any_size:
        return None
    return fault(PRESENT, store.locate(name), other_size(what, actual, size), number)


def _locate(store: LocalObjectStore, name: Multihash) -> str:
    try:
        return store.locate(name)
    except StoreError:
        return str(name)
