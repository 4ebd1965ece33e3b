"""Check 13: a state checkpoint holds the rows that are in force up to its offset (RFC-018).

The state is computed anew from the slices: for each key the row with the largest offset, unless that is a
retraction. Rows are compared by offset, operation and hash of their values. Checkpoints of engines are bytes
that only their engine understands; they are held against a replay, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.audit.checks import CHECKPOINTS, OF_ENGINES
from odfchain.audit.correction_check import ReadableSlice
from odfchain.audit.report import Report
from odfchain.audit.slice_checks import UNREADABLE
from odfchain.audit.walk import StoredChain
from odfchain.digest.row_hash import Numbers, hash_rows
from odfchain.errors import OdfchainError
from odfchain.ids.multihash import Multihash
from odfchain.ingest.recorded import StateCheckpoint, read_description
from odfchain.limits import AUDIT
from odfchain.model.events import AddData, DatasetVocabulary, ExecuteTransform
from odfchain.repo.corrections import data_batches
from odfchain.repo.dataset_files import DatasetFiles
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
        except (*UNREADABLE, KeyError) as error:
            reason = one_line(error.message if isinstance(error, OdfchainError) else str(error))
            message_or_none = f"the state cannot be read: {reason}"
        if message_or_none is not None:
            report.fault(CHECKPOINTS, path, message_or_none, named.number)


def _named(dataset: DatasetFiles, chain: StoredChain, after: int, upto: int, report: Report) -> list[_Named]:
    damaged = {fault.file for fault in report.faults}
    found: list[_Named] = []
    seen: set[Multihash] = set()
    for stored in chain.within(after, upto):
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
    vocabulary = recorded[-1].expected.vocabulary
    expected = _state([(item.path, item.expected.vocabulary) for item in recorded], described)
    actual = _rows(described.path, vocabulary, described.key, described.last_offset)
    if len(actual) != len(expected):
        return f"the state has {len(actual):,} rows, its slices leave {len(expected):,} in force"
    actual = actual[np.argsort(actual["offset"], kind="stable")]
    expected = expected[np.argsort(expected["offset"], kind="stable")]
    differs = np.zeros(len(actual), dtype=bool)
    for name in ("offset", "op", "high", "low"):
        differs |= actual[name] != expected[name]
    if not differs.any():
        return None
    wrong = expected[int(np.argmax(differs))]
    return f"the state does not have the row at offset {int(wrong['offset']):,} as it is recorded"


_ROW = np.dtype(
    [
        ("offset", "<u8"), ("op", "<u1"), ("high", "<u8"), ("low", "<u8"),
        ("key_high", "<u8"), ("key_low", "<u8"),
    ]
)  # fmt: skip


def _state(files: Sequence[tuple[Path, DatasetVocabulary]], described: StateCheckpoint) -> Numbers:
    """The rows in force: the last of each key, unless it is a retraction."""
    rows = np.concatenate([_rows(path, names, described.key, described.last_offset) for path, names in files])
    order = np.lexsort((rows["offset"], rows["key_low"], rows["key_high"]))
    rows = rows[order]
    same = (rows["key_high"][1:] == rows["key_high"][:-1]) & (rows["key_low"][1:] == rows["key_low"][:-1])
    last = np.concatenate((~same, [True])) if len(rows) else np.zeros(0, dtype=bool)
    found: Numbers = rows[last & (rows["op"] != 1)]
    return found


def _as_keys(batch: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    """The columns of a key as merges compare them: null-safe, -0.0 as 0.0, and one NaN."""
    return pa.RecordBatch.from_arrays([_as_key(batch.column(name)) for name in key], names=list(key))


def _as_key(column: pa.Array) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return column
    number = pc.add(column.cast(pa.float64()), 0.0)
    return pc.if_else(pc.is_nan(number), pa.scalar(float("nan")), number)


def _rows(path: Path, names: DatasetVocabulary, key: Sequence[str], last_offset: int) -> Numbers:
    pieces = [np.zeros(0, dtype=_ROW)]
    system = set(names.columns[:3])
    for batch in data_batches(path):
        rows = np.zeros(batch.num_rows, dtype=_ROW)
        rows["offset"] = batch.column(names.offset_column).to_numpy(zero_copy_only=False)
        rows["op"] = batch.column(names.operation_type_column).to_numpy(zero_copy_only=False)
        values = hash_rows(batch, system)
        rows["high"], rows["low"] = values[:, 0], values[:, 1]
        missing = [name for name in key if name not in batch.schema.names]
        if missing:
            raise KeyError(f"there is no key column {missing[0]!r}")
        keys = hash_rows(_as_keys(batch, key), ())
        rows["key_high"], rows["key_low"] = keys[:, 0], keys[:, 1]
        pieces.append(rows[rows["offset"] <= last_offset])
    return np.concatenate(pieces)
