"""Rows that were worked out here into one transaction: a slice, and the events that record it.

    rows → slice        in this process, by the writer that Spark's workers use; no JVM is started
    [SetDataSchema]     where the columns have become others
    AddData             data, watermark, checkpoint; with a merge record, where it is a merge
    [AddData]           after a merge record: the state of the source is in force again, and a watermark
                        that is later than the data (RFC-036)

The rules are those of every write (`odfchain.ingest.ingesting`): offsets go on, the watermark is the largest
event time so far, less the delay of the source, the state of the source is carried on, and a state
checkpoint that is due is made (RFC-018).
"""

from __future__ import annotations

import dataclasses
import functools
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from odfchain.branches.intervals import IN_PROCESS_BYTES
from odfchain.errors import NothingToCommitError
from odfchain.odf.arrow_schema import schema_event, slice_schema
from odfchain.odf.enums import OperationType
from odfchain.odf.events import AddData, Checkpoint, MetadataEvent, OffsetInterval, SourceState
from odfchain.odf.identity import Multihash
from odfchain.odf.schema import DataSchema
from odfchain.odf.sources import WatermarkRule
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.slices import writer
from odfchain.slices.ordering import order_of
from odfchain.slices.reader import BATCH_ROWS
from odfchain.slices.state import SliceFile, newest_rows
from odfchain.spark.jobs import explain
from odfchain.workspace.commit import CommitCheck, StagedFile, commit
from odfchain.workspace.config import read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import MergeRecord
from odfchain.workspace.read_slices import (
    METADATA_KEY,
    RecordedRows,
    RecordedSlice,
    checkpoint_is_due,
    describe,
)

# A state checkpoint made in this process (RFC-018), with the content that Spark would write
# (`odfchain.ingest.history`). A state that is too large is left to the next write that runs Spark: a
# checkpoint only saves time.


def _checkpoint_after(
    dataset: DatasetFiles,
    state: DatasetState,
    offsets: OffsetInterval,
    path: Path,
    schema: DataSchema,
    staging: Path,
) -> tuple[Checkpoint | None, StagedFile | None]:
    # (the checkpoint in force once a new slice, at `path` and with its rows in `schema`, follows `state`; its
    # file if it was just made)
    sources = [state.polling_source, *state.push_sources.values()]
    keeps = any(source is not None and source.merge.KEEPS_STATE for source in sources)
    if state.checkpoint is None and not keeps:
        return None, None
    key = state.primary_key
    before, named = RecordedRows.since_checkpoint(dataset, state, key)
    kept = state.checkpoint if named else None
    new = RecordedSlice(offsets, functools.partial(Path, path))
    after = replace(before, slices=(*before.slices, new))
    if not keeps or not checkpoint_is_due(after):
        return kept, None
    if before.checkpoint is not None and state.checkpoint is not None:
        dataset.checkpoints.verified_path(state.checkpoint.physical_hash)
    if sum(file.stat().st_size for file in after.paths()) > IN_PROCESS_BYTES:
        return kept, None
    return _write_state(after, key, state, schema, staging)


def _write_state(
    recorded: RecordedRows, key: tuple[str, ...], state: DatasetState, schema: DataSchema, staging: Path
) -> tuple[Checkpoint, StagedFile]:
    names = state.vocabulary
    kept = DataSchema(fields=tuple(f for f in schema.fields if f.name != names.system_time_column))
    columns = slice_schema(kept)
    intervals = [piece.offsets for piece in recorded.slices]
    if recorded.checkpoint is not None:
        intervals.insert(0, OffsetInterval(start=0, end=recorded.checkpoint.last_offset))
    found = zip(recorded.paths(), intervals, strict=True)
    files = [SliceFile(path, names, interval) for path, interval in found]
    rows = newest_rows(files, key, columns)
    rows = rows.take(pa.array(order_of(rows, key))).combine_chunks()
    physical, path = writer.PhysicalHash(), staging / f"state-{uuid.uuid4().hex}.parquet"
    metadata = {METADATA_KEY: describe(key, intervals[-1].end)}
    with writer.ObservedParquet(path, columns, names, [physical], metadata=metadata) as file:
        for batch in rows.to_batches(max_chunksize=BATCH_ROWS):
            file.write(batch)
    return Checkpoint(physical_hash=physical.hash, size=physical.size), StagedFile(path, physical.hash)


@dataclass(frozen=True, slots=True)
class ChangeOutcome:
    """Result of a commit; nothing was committed where `head` is the old one."""

    old_head: Multihash
    head: Multihash
    number: int
    """The number of the head's block."""
    operations: Mapping[str, int]
    """Rows written for each operation (`+A`, `-R`, `-C`, `+C`)."""

    @property
    def up_to_date(self) -> bool:
        """True if nothing was committed."""
        return self.head == self.old_head

    @classmethod
    def nothing(cls, state: DatasetState) -> ChangeOutcome:
        """The outcome of a commit without changes."""
        return cls(state.head, state.head, state.head_block.sequence_number, {})

    @property
    def summary(self) -> str:
        """The result in a sentence."""
        return described(self.operations)

    def __repr__(self) -> str:
        return f"<{self.summary}, head is block {self.number:,}>"


def described(operations: Mapping[str, int]) -> str:
    """Changes for people: `1 corrected, 2 retracted`."""
    words = {"+A": "added", "+C": "corrected", "-R": "retracted"}
    found = [f"{operations[op]:,} {word}" for op, word in words.items() if operations.get(op)]
    return ", ".join(found) or "no changes"


@dataclass(frozen=True, slots=True)
class Recorded:
    """A transaction that is ready to be committed; more events may be put before its own."""

    events: tuple[MetadataEvent, ...]
    slices: tuple[StagedFile, ...] = ()
    checkpoints: tuple[StagedFile, ...] = ()
    facts: writer.SliceFacts | None = None

    @property
    def operations(self) -> dict[str, int]:
        """Rows written for each operation (`+A`, `-R`, `-C`, `+C`)."""
        written = self.facts.ops if self.facts is not None else {}
        return {OperationType.from_code(int(code)).value: count for code, count in written.items()}

    def after(self, *events: MetadataEvent) -> Recorded:
        """The same transaction with events before its own."""
        return dataclasses.replace(self, events=(*events, *self.events))

    def commit(
        self,
        dataset: DatasetFiles,
        state: DatasetState,
        system_time: Timestamp,
        check: CommitCheck | None = None,
    ) -> ChangeOutcome:
        """Durably append it on top of `state` by one move of the head.

        An error of `check` stops it before any file has its final name.
        """
        hashes = commit(
            dataset, state, self.events, self.slices, checkpoints=self.checkpoints,
            system_time=system_time, check=check,
        )  # fmt: skip
        number = state.head_block.sequence_number + len(hashes)
        return ChangeOutcome(state.head, hashes[-1], number, self.operations)


def stage_changes(
    dataset: DatasetFiles,
    state: DatasetState,
    rows: pa.Table | writer.SliceFacts | None,
    *,
    staging: Path,
    system_time: Timestamp,
    schema: DataSchema | None = None,
    record: MergeRecord | None = None,
    resume: SourceState | None = None,
    source_watermark: Timestamp | None = None,
    bound: Timestamp | None = None,
) -> Recorded:
    """The transaction that appends rows to `state`, its slice and checkpoint in `staging`.

    `rows` have the operation and the data columns, in the order they are to be written, or are a slice that
    was written already. `schema` is that of the dataset after it (default: as it is). With a merge `record`,
    which may come without rows, the state of the source that was in force, or `resume`, is in force again
    after it, and so is a `source_watermark` that is later. No watermark comes after `bound`.

    Raises:
        NothingToCommitError: no rows and no record.
    """
    target = schema if schema is not None else state.schema
    facts = rows
    if isinstance(rows, pa.Table):
        # in the sizes in which Spark brings them, so that the same rows become the same file
        batches = rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS)
        facts = write_batches(state, batches, target, system_time, staging)
    if facts is None and record is None:
        raise NothingToCommitError("nothing to commit", input_rows=0)
    events: list[MetadataEvent] = []
    if target is not None and target != state.schema:
        events.append(schema_event(target, odf_form=state.odf_schema))
    checkpoint, made, new_data = state.checkpoint, None, None
    staged: tuple[StagedFile, ...] = ()
    if facts is not None and target is not None:
        new_data = facts.slice_at(state.record_count)
        staged = (StagedFile(Path(facts.path), new_data.physical_hash, facts.footer),)
        checkpoint, made = _checkpoint_after(
            dataset, state, new_data.offset_interval, Path(facts.path), target, staging
        )
    latest = facts.max_event_time_ms if facts is not None else None
    in_force = resume if resume is not None else state.source_state
    added = AddData(
        prev_checkpoint=state.checkpoint.physical_hash if state.checkpoint else None,
        prev_offset=state.last_offset,
        new_data=new_data,
        new_checkpoint=checkpoint,
        new_watermark=_rule_in_force(dataset, state).after_rows(state.watermark, latest, system_time, bound),
        new_source_state=in_force if record is None else record.to_state(),
    )
    events.append(added)
    if record is not None:
        # other tools resume from the newest block, so what a merge hides of the source is repeated after it
        later = max((m for m in (added.new_watermark, source_watermark) if m is not None), default=None)
        if in_force is not None or later != added.new_watermark:
            again = AddData(
                prev_checkpoint=checkpoint.physical_hash if checkpoint else None,
                prev_offset=added.last_offset,
                new_checkpoint=checkpoint,
                new_watermark=later,
                new_source_state=in_force,
            )
            events.append(again)
    return Recorded(tuple(events), staged, (made,) if made is not None else (), facts)


def _rule_in_force(dataset: DatasetFiles, state: DatasetState) -> WatermarkRule:
    # for rows from no source; of several sources the one that waits longest
    names = [POLLING_SOURCE] if state.polling_source is not None else list(state.push_sources)
    rules = map(read_config(dataset).rule_of, names)
    return max(rules, key=lambda rule: rule.delay_ms, default=WatermarkRule())


def write_batches(
    state: DatasetState,
    batches: Iterable[pa.RecordBatch],
    schema: DataSchema | None,
    system_time: Timestamp,
    staging: Path,
) -> writer.SliceFacts | None:
    """Rows as the slice that comes next after `state`, in `staging`; None where there are none."""
    if schema is None:
        return None
    spec = writer.SliceSpec.of(schema, state.vocabulary, state.record_count, system_time.epoch_ms, staging)
    try:
        return writer.write_slice(batches, spec)
    except (writer.SliceInputError, OSError) as error:
        raise explain(error) from error
