"""Checks 6 to 11 and 19 of one slice: its bytes are hashed, then its rows are decoded once for the others.

Memory stays at one row group, whatever the size of the file.

The bytes of a derivative slice are one of many ways to write its records. Where they are not the recorded
ones, the records decide: the same records written anew are a note, others are a fault.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from odfchain.audit.checks import (
    CORRECTIONS,
    LOGICAL,
    OFFSETS,
    PHYSICAL,
    PRESENT,
    SCHEMA,
    STATISTICS,
    SYSTEM,
)
from odfchain.audit.expected_schema import ExpectedSchema, SliceFinding, check_columns
from odfchain.audit.footer_check import FooterCheck
from odfchain.audit.report import Fault
from odfchain.audit.row_checks import RowChecks
from odfchain.digest.logical import LogicalDigest
from odfchain.digest.physical import hash_file
from odfchain.errors import OdfchainError, OversizedInputError
from odfchain.ids.multihash import Multihash
from odfchain.model.events import DataSlice
from odfchain.model.timestamp import Timestamp
from odfchain.progress import Progress
from odfchain.slices.hashes import other_rule
from odfchain.slices.reader import open_parquet
from odfchain.store.local import LocalObjectStore
from odfchain.text import one_line

UNREADABLE = (OdfchainError, pa.ArrowException, OSError, ValueError, OverflowError)
"""What reading an untrusted Parquet file can raise; `UnicodeDecodeError` is a `ValueError`."""


@dataclass(frozen=True, slots=True)
class SliceJob:
    """A slice that a block names, and what is known there of the rows; no form is known behind damage."""

    number: int
    time: Timestamp
    slice: DataSlice
    derivative: bool
    expected: ExpectedSchema | None


@dataclass(slots=True)
class SliceOutcome:
    """What one slice brought to the report."""

    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    """The checks that were run."""
    unchecked: str | None = None
    """Why the rows could not be looked at, where that is nobody's fault."""
    operations: tuple[int, ...] | None = None
    """Rows of each operation; None when the rows could not be looked at."""
    latest_ms: int | None = None
    """The largest event time [ms]."""
    as_recorded: bool = False
    """Whether the file has the recorded bytes."""
    system_span: tuple[int, int] | None = None
    """The system times of the first and the last row [ns since the epoch]."""


def check_slice(
    store: LocalObjectStore, job: SliceJob, progress: Progress, leaves: Executor | None = None
) -> SliceOutcome:
    """Physical hash, then records; a root's file with wrong bytes is not decoded.

    With `leaves`, the columns of a batch are hashed side by side.
    """
    path = Path(store.locate(job.slice.physical_hash))
    outcome = SliceOutcome(done=[PHYSICAL])
    try:
        actual, size = hash_file(path, progress.advance)
    except OSError as error:
        outcome.faults.append(
            Fault(PHYSICAL, str(path), f"the slice cannot be read: {error.strerror}", job.number)
        )
        return outcome
    if actual == job.slice.physical_hash:
        outcome.as_recorded = True
        _check_records(path, job, outcome, leaves)
    elif job.derivative:
        _check_written_anew(path, job, size, outcome, leaves)
    else:
        message = f"PhysicalHashMismatch: the slice's bytes hash to {actual}"
        outcome.faults.append(Fault(PHYSICAL, str(path), message, job.number))
    return outcome


def _check_written_anew(
    path: Path, job: SliceJob, size: int, outcome: SliceOutcome, leaves: Executor | None
) -> None:
    """A derivative's file that has other bytes: the same records are as good."""
    records = SliceOutcome()
    _check_records(path, job, records, leaves)
    outcome.done += records.done
    if records.unchecked is not None:
        outcome.unchecked = records.unchecked
        return
    outcome.operations, outcome.latest_ms = records.operations, records.latest_ms
    if not records.faults:
        outcome.system_span = records.system_span
        outcome.notes.append(
            f"{path}: the slice was written anew, with the same records (its bytes are not the recorded ones)"
        )
        outcome.notes += records.notes
        return
    # what the rows of another file say is not said of the recorded ones
    telling = [f for f in records.faults if f.check == LOGICAL] or records.faults
    if size == job.slice.size:
        outcome.faults += telling
    else:
        resized = other_size("slice", size, job.slice.size)
        message = "; ".join((resized, *(fault.message for fault in telling)))
        outcome.faults.append(Fault(PRESENT, str(path), message, job.number))


def other_size(what: str, actual: int, declared: int) -> str:
    """The message about a file whose size is not the recorded one."""
    return f"SizeMismatch: the {what} has {actual:,} bytes, its block says {declared:,}"


def _check_records(path: Path, job: SliceJob, outcome: SliceOutcome, leaves: Executor | None) -> None:
    try:
        logical, rows, checks = _decode(path, job, outcome, leaves)
    except MemoryError:  # also Arrow's; it says nothing of the dataset
        outcome.unchecked = f"{path}: there is not enough memory to read the records"
        return
    except OversizedInputError as error:  # it might be honest, though hardly
        outcome.unchecked = str(error)
        return
    except UNREADABLE as error:
        reason = one_line(error.message if isinstance(error, OdfchainError) else str(error))
        message = f"the records cannot be hashed: {reason}"
        outcome.faults.append(Fault(LOGICAL, str(path), message, job.number))
        return
    outcome.done += [LOGICAL, OFFSETS, STATISTICS]
    if logical != job.slice.logical_hash:
        _blame(path, job, outcome, logical)
    expected = job.slice.offset_interval.count
    if rows != expected:
        message = f"the slice has {rows:,} records, its offsets say {expected:,}"
        outcome.faults.append(Fault(OFFSETS, str(path), message, job.number))
    if checks is None:
        return
    outcome.done += [SYSTEM, SCHEMA]
    outcome.operations, outcome.latest_ms = tuple(checks.operations), checks.latest_ms
    outcome.system_span = checks.system_span
    if any(checks.operations[1:]):
        outcome.done.append(CORRECTIONS)
    if checks.system_times > 1:
        outcome.notes.append(f"{path}: rows of several system times, as in a slice that was compacted")
    outcome.faults += (_fault(path, job, item) for item in checks.findings.values())


def _decode(
    path: Path, job: SliceJob, outcome: SliceOutcome, leaves: Executor | None
) -> tuple[Multihash, int, RowChecks | None]:
    """One pass over the rows: (logical hash, number of rows, what the rows say)."""
    with open_parquet(path) as file:
        schema = file.schema_arrow
        digest = LogicalDigest(schema, executor=leaves)
        checks = None
        if job.expected is not None:
            checks = RowChecks(schema, job.expected, job.slice.offset_interval, job.time)
            faults, notes = check_columns(schema, job.expected)
            outcome.notes += notes
            outcome.faults += (_fault(path, job, item) for item in faults)
        footer, rows = FooterCheck(file.metadata, schema), 0
        for batch in file.batches():
            digest.update(batch)
            footer.update(batch)
            rows += batch.num_rows
            if checks is not None:
                checks.update(batch)
        if checks is not None:
            checks.finish()
        outcome.faults += (_fault(path, job, item) for item in footer.finish())
    return digest.finish(), rows, checks


def check_system_times(
    store: LocalObjectStore, jobs: Sequence[SliceJob], outcomes: Mapping[int, SliceOutcome]
) -> Iterator[Fault]:
    """Check 9 between slices: no row is said to have been recorded before one that comes earlier.

    Slices that could not be read are passed over. Source: specification "System Time".
    """
    latest: int | None = None
    for job in jobs:
        span = outcomes[job.number].system_span if job.number in outcomes else None
        if span is None:
            continue
        first, last = span
        if latest is not None and first < latest:
            message = (
                f"row at offset {job.slice.offset_interval.start:,}: the system time is before that of "
                "the slices before it"
            )
            yield Fault(SYSTEM, store.locate(job.slice.physical_hash), message, job.number)
        latest = last if latest is None else max(latest, last)


def _blame(path: Path, job: SliceJob, outcome: SliceOutcome, logical: Multihash) -> None:
    rule, declared = None, job.expected.schema if job.expected is not None else None
    with contextlib.suppress(*UNREADABLE, MemoryError):  # it was readable a moment ago
        rule = other_rule(path, job.slice.logical_hash, declared)
    if rule is not None:
        outcome.notes.append(f"{path}: the logical hash {rule}")
        return
    message = (
        f"LogicalHashMismatch: the records differ from the recorded ones: "
        f"they hash to {logical}, the block says {job.slice.logical_hash}"
    )
    outcome.faults.append(Fault(LOGICAL, str(path), message, job.number))


def _fault(path: Path, job: SliceJob, finding: SliceFinding) -> Fault:
    return Fault(finding.check, str(path), finding.message, job.number)
