"""The state checkpoint that a write is due to make, made in this process (RFC-018).

It holds what Spark would write (`odfchain.ingest.checkpoint`): the rows in force with their offsets and
operations, ordered by key. What is too large for one process is left to the next write that runs Spark: a
checkpoint only saves time.
"""

from __future__ import annotations

import functools
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from odfchain.branch.computing import IN_PROCESS_BYTES
from odfchain.branch.written_rows import order_of
from odfchain.codec.arrow import slice_schema
from odfchain.ids.multihash import Multihash
from odfchain.model.data_schema import DataSchema
from odfchain.model.events import Checkpoint, OffsetInterval
from odfchain.repo.commit import StagedFile
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.recorded import (
    METADATA_KEY,
    RecordedRows,
    RecordedSlice,
    checkpoint_is_due,
    describe,
    keeps_state,
)
from odfchain.slices import rows_in_force
from odfchain.slices.bounds import BATCH_ROWS
from odfchain.slices.newest_rows import newest_rows
from odfchain.slices.observers import PhysicalHash
from odfchain.slices.writer import ObservedParquet


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """What a block is to name as its checkpoint, and the file where it was just made."""

    named: Checkpoint | None
    staged: tuple[StagedFile, ...] = ()


def checkpoint_after(
    dataset: DatasetFiles,
    state: DatasetState,
    offsets: OffsetInterval,
    path: Path,
    schema: DataSchema,
    staging: Path,
) -> CheckpointDue:
    """The checkpoint in force once a new slice (`path`, its rows in `schema`) follows `state`."""
    sources = [state.polling_source, *state.push_sources.values()]
    keeps = any(source is not None and keeps_state(source.merge) for source in sources)
    if state.checkpoint is None and not keeps:
        return CheckpointDue(None)
    key = state.primary_key
    before = RecordedRows.since_checkpoint(dataset, state, key)
    kept = CheckpointDue(state.checkpoint if before.named else None)
    new = RecordedSlice(offsets, functools.partial(Path, path))
    after = replace(before.rows, slices=(*before.rows.slices, new))
    if not keeps or not checkpoint_is_due(after):
        return kept
    if before.rows.checkpoint is not None and state.checkpoint is not None:
        dataset.checkpoints.verified_path(state.checkpoint.physical_hash)
    if sum(file.stat().st_size for file in after.paths()) > IN_PROCESS_BYTES:
        return kept
    return _made(after, key, state, schema, staging)


def _made(
    recorded: RecordedRows, key: tuple[str, ...], state: DatasetState, schema: DataSchema, staging: Path
) -> CheckpointDue:
    names = state.vocabulary
    kept = DataSchema(fields=tuple(f for f in schema.fields if f.name != names.system_time_column))
    columns = slice_schema(kept)
    intervals = [piece.offsets for piece in recorded.slices]
    if recorded.checkpoint is not None:
        intervals.insert(0, OffsetInterval(start=0, end=recorded.checkpoint.last_offset))
    files = [
        rows_in_force.SliceFile(path, names, interval)
        for path, interval in zip(recorded.paths(), intervals, strict=True)
    ]
    last = intervals[-1].end
    rows = newest_rows(files, key, columns)
    rows = rows.take(pa.array(order_of(rows, key))).combine_chunks()
    physical, path = PhysicalHash(), staging / f"state-{uuid.uuid4().hex}.parquet"
    metadata = {METADATA_KEY: describe(key, last)}
    with ObservedParquet(path, columns, names, [physical], metadata=metadata) as file:
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
            file.write(batch)
    made = StagedFile(path, Multihash.parse(str(physical.hash)))
    return CheckpointDue(Checkpoint(physical_hash=made.physical_hash, size=physical.size), (made,))
