"""Check 13: a state checkpoint holds the rows that are in force up to its offset (RFC-018).

The state is computed anew from the slices (`odfchain.slices.rows_in_force`). Rows are compared by offset,
operation and exact hash of their values: a state has its rows as they were recorded. Checkpoints of engines
are bytes that only their engine understands; they are held against a replay, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odfchain.audit.checks import CHECKPOINTS, OF_ENGINES
from odfchain.audit.correction_check import ReadableSlice
from odfchain.audit.report import Report
from odfchain.audit.slice_checks import UNREADABLE
from odfchain.audit.walk import StoredChain
from odfchain.chain.earlier_blocks import DATA_EVENTS
from odfchain.digest.row_hash import PAIR, Numbers
from odfchain.errors import OdfchainError
from odfchain.ids.multihash import Multihash
from odfchain.limits import AUDIT
from odfchain.model.events import AddData, ExecuteTransform, OffsetInterval
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.recorded import StateCheckpoint, read_description
from odfchain.slices.rows_in_force import SliceFile, hashed_rows, in_force
from odfchain.text import one_line


@dataclass(frozen=True, slots=True)
class _Named:
    """A state checkpoint and the block that names it first."""

    number: int
    described: StateCheckpoint
    last_offset: int | None


def check_states(
    dataset: DatasetFiles,
    chain: StoredChain,
    after: int,
    upto: int,
    slices: Sequence[ReadableSlice],
    report: Report,
    *,
    complete: bool,
) -> None:
    """The state checkpoints that blocks `(after, upto]` name, each at the block that names it first."""
    for named in _named(dataset, chain, after, upto, report):
        path, last = named.described.path, named.described.last_offset
        report.count(CHECKPOINTS)
        if named.last_offset is None or last > named.last_offset:
            message = f"the state is said to be as of offset {last:,}, which comes after block {named.number}"
            report.fault(CHECKPOINTS, path, message, named.number)
            continue
        if not complete:
            report.skip([CHECKPOINTS], "not all slices are here that the state follows from")
            continue
        if last >= AUDIT.state_rows:
            report.skip(
                [CHECKPOINTS], f"states of more than {AUDIT.state_rows:,} records are not computed anew"
            )
            continue
        try:
            message_or_none = _difference(named.described, slices)
        except MemoryError:
            report.skip([CHECKPOINTS], "there is not enough memory to compute a state anew")
            continue
        except UNREADABLE as error:
            reason = one_line(error.message if isinstance(error, OdfchainError) else str(error))
            message_or_none = f"the state cannot be read: {reason}"
        if message_or_none is not None:
            report.fault(CHECKPOINTS, path, message_or_none, named.number)


def _named(dataset: DatasetFiles, chain: StoredChain, after: int, upto: int, report: Report) -> list[_Named]:
    if not chain.blocks.has_checkpoints:
        return []
    damaged = {fault.file for fault in report.faults}
    found: list[_Named] = []
    seen: set[Multihash] = set()
    for stored in chain.within(after, upto, *DATA_EVENTS):
        event = stored.block.event
        if not isinstance(event, AddData | ExecuteTransform) or event.new_checkpoint is None:
            continue
        name = event.new_checkpoint.physical_hash
        if name in seen:
            continue
        seen.add(name)
        path = Path(dataset.checkpoints.locate(name))
        if str(path) in damaged or not path.is_file():
            report.skip([CHECKPOINTS], "a checkpoint is missing or damaged")
            continue
        if isinstance(event, ExecuteTransform):
            report.unjudged.add(name)
            report.skip([CHECKPOINTS], OF_ENGINES)
            continue
        try:
            described = read_description(path)
        except OdfchainError as error:
            report.fault(CHECKPOINTS, path, error.message, stored.number)
            continue
        if described is None:
            report.skip([CHECKPOINTS], OF_ENGINES)
            continue
        found.append(_Named(stored.number, described, event.last_offset))
    return found


def _difference(described: StateCheckpoint, slices: Sequence[ReadableSlice]) -> str | None:
    """What is wrong with a state, as a message."""
    recorded = [item for item in slices if item.job.slice.offset_interval.start <= described.last_offset]
    if not recorded:
        return "there are no records that the state could follow from"
    assert described.path is not None  # noqa: S101 - the file was read
    vocabulary, last = recorded[-1].expected.vocabulary, described.last_offset
    chosen = in_force([item.file for item in recorded], described.key, upto=last)
    expected = _rows([item.file for item in recorded], last, chosen)
    actual = _rows([SliceFile(described.path, vocabulary, OffsetInterval(start=0, end=last))], last)
    if len(actual) != len(expected):
        return f"the state has {len(actual):,} rows, its slices leave {len(expected):,} in force"
    actual = actual[np.argsort(actual["offset"], kind="stable")]
    differs = actual != expected
    if not differs.any():
        return None
    wrong = expected[int(np.argmax(differs))]
    return f"the state does not have the row at offset {int(wrong['offset']):,} as it is recorded"


_ROW = np.dtype([("offset", "<u8"), ("op", "<u8"), ("values", PAIR)])


def _rows(files: Sequence[SliceFile], upto: int, chosen: Numbers | None = None) -> Numbers:
    """The rows of some files up to an offset, or those of them at the chosen offsets."""
    pieces = [np.zeros(0, dtype=_ROW)]
    for item in files:
        for offsets, operations, values in hashed_rows(item, upto, exact=True):
            rows = np.zeros(len(offsets), dtype=_ROW)
            rows["offset"], rows["op"], rows["values"] = offsets, operations, values
            pieces.append(rows if chosen is None else rows[np.isin(offsets, chosen)])
    return np.concatenate(pieces)
