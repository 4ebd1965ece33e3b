"""What a write comes to in a dataset's history: which events record it."""

from __future__ import annotations

import dataclasses
import itertools

from odfchain.codec.raw_arrow import schema_event
from odfchain.errors import NothingToCommitError
from odfchain.ingest.checkpoint import LookBack
from odfchain.ingest.writer_state import WriteOptions, WriterState, Written, staged_file
from odfchain.model import data_schema as ds
from odfchain.model.events import AddData, DataSlice, MetadataEvent
from odfchain.model.timestamp import Timestamp
from odfchain.repo.watermark import of_data
from odfchain.slices.writer import SliceFacts


def recorded_write(
    state: WriterState,
    target: ds.DataSchema | None,
    facts: tuple[SliceFacts, ...],
    back: LookBack | None,
    options: WriteOptions,
    *,
    input_rows: int,
    notes: tuple[str, ...] = (),
) -> Written:
    """The events that record a write, by the writer rules.

    Of several slices the last one says what comes of the input: whoever stops at one before it is told no
    watermark that later rows lie behind, and not that the source was read.
    """
    events: list[MetadataEvent] = []
    if target is not None and target != state.schema:
        events.append(schema_event(target, odf_form=state.odf_schema))
    after = dataclasses.replace(state, schema=target or state.schema)
    slices = data_slices(facts, state.next_offset)
    for new_data in slices[:-1]:
        before = after
        carried = back.carried if back else None
        after = dataclasses.replace(before, prev_offset=new_data.offset_interval.end, checkpoint=carried)
        events.append(_add_data(before, after, new_data))
    before, last = after, slices[-1] if slices else None
    after = dataclasses.replace(
        before,
        prev_offset=last.offset_interval.end if last else before.prev_offset,
        checkpoint=back.checkpoint if back else state.checkpoint,
        watermark=_of_rows(state, facts, options),
        source_state=options.new_source_state or state.source_state,
        recorded=back.recorded if back else state.recorded,
    )
    advanced = _advanced(after, options)
    if last is None:
        after = advanced
    if last is not None or after.watermark != state.watermark or after.source_state != state.source_state:
        events.append(_add_data(before, after, last))
    if after != advanced:  # rows that are only taken back have older event times
        events.append(_add_data(after, advanced, None))
        after = advanced
    if not events:
        raise NothingToCommitError("nothing to commit", input_rows=input_rows, notes=notes)
    staged = tuple(staged_file(each, state.since) for each in facts)
    return Written(tuple(events), staged, back.staged if back else None, after, facts, input_rows, notes)


def _add_data(before: WriterState, after: WriterState, new_data: DataSlice | None) -> AddData:
    return AddData(
        prev_checkpoint=before.checkpoint.physical_hash if before.checkpoint else None,
        prev_offset=before.prev_offset,
        new_data=new_data,
        new_checkpoint=after.checkpoint,
        new_watermark=after.watermark,
        new_source_state=after.source_state,
    )


def _of_rows(state: WriterState, facts: tuple[SliceFacts, ...], options: WriteOptions) -> Timestamp | None:
    if options.new_watermark is not None:
        return options.new_watermark
    times = [each.max_event_time_ms for each in facts if each.max_event_time_ms is not None]
    latest = max(times, default=None)
    return _after_time(state, latest, options)


def _advanced(state: WriterState, options: WriteOptions) -> WriterState:
    """The state with the watermark that the input's own event time gives it, which no row need have."""
    latest = options.event_time.epoch_ms if options.advances and options.new_watermark is None else None
    return dataclasses.replace(state, watermark=_after_time(state, latest, options))


def _after_time(state: WriterState, latest_ms: int | None, options: WriteOptions) -> Timestamp | None:
    bound = options.latest_believed
    return of_data(state.watermark, latest_ms, options.watermark, options.system_time, bound)


def data_slices(facts: tuple[SliceFacts, ...], start: int) -> list[DataSlice]:
    """The slices as blocks name them, the first record of all at an offset."""
    starts = itertools.accumulate((each.rows for each in facts), initial=start)
    return [each.slice_at(first) for each, first in zip(facts, starts, strict=False)]
