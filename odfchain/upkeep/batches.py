"""Which neighbouring transactions of a root dataset become one, as a pure function over its events.

Merged are AddData events between which nothing else happened, as long as records and bytes stay below the
limits. The result says of the dataset's state what the last of them said:

- the watermark and the checkpoint are those of the last one;
- a watermark set by hand, which only a block without data may carry ahead of the data, stays apart from data;
- a merge stays as it is, because whoever computes it again compares its slice (RFC-036); blocks that only
  carry its record on are like any other;
- a batch speaks of one source: where the next event continues another source, or none, a new batch begins.
  So the latest state of every source stays what it was ("AddData", `newSourceState`).

Source: specification "AddData", "Watermark".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from odfchain.model.data_schema import ExtraAttributes
from odfchain.model.events import AddData, DataSlice
from odfchain.model.metadata_block import MetadataBlock
from odfchain.model.timestamp import Timestamp
from odfchain.repo.merge_record import is_merge_state

MAX_SLICE_BYTES = 300_000_000
MAX_SLICE_RECORDS = 10_000
"""What the reference implementation makes of it when nothing else is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How large a merged slice may become."""

    bytes: int = MAX_SLICE_BYTES
    """Sum of the sizes of what is merged [bytes]."""
    records: int = MAX_SLICE_RECORDS
    """Records [count]."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Blocks that become one: neighbouring AddData, or a single block of any kind."""

    blocks: tuple[MetadataBlock, ...]

    @property
    def merges(self) -> bool:
        """Whether it is more than one block."""
        return len(self.blocks) > 1

    @property
    def slices(self) -> list[DataSlice]:
        """The slices, oldest first."""
        return [e.new_data for e in self._events if e.new_data is not None]

    @property
    def _events(self) -> list[AddData]:
        return [b.event for b in self.blocks if isinstance(b.event, AddData)]

    def event(self, data: DataSlice | None, previous: AddData | None) -> AddData:
        """The event that says what those of the batch said; `previous` is the AddData before it."""
        events = self._events
        states = [e.new_source_state for e in events if e.new_source_state is not None]
        checkpoint = previous.new_checkpoint if previous is not None else None
        return AddData(
            prev_checkpoint=checkpoint.physical_hash if checkpoint is not None else None,
            prev_offset=events[0].prev_offset,
            new_data=data,
            new_checkpoint=events[-1].new_checkpoint,
            new_watermark=events[-1].new_watermark,
            new_source_state=states[-1] if states else None,
            extra=events[0].extra,
        )


def batches(blocks: Iterable[MetadataBlock], limits: BatchLimits) -> Iterator[Batch]:
    """All blocks in their order, neighbours that may become one together."""
    waiting: list[MetadataBlock] = []
    joined = _BatchDraft()
    watermark: Timestamp | None = None
    merged: set[str] = set()
    for block in blocks:
        if isinstance(block.event, AddData) and not _is_new_merge(block.event, merged):
            by_hand = block.event.new_data is None and block.event.new_watermark != watermark
            watermark = block.event.new_watermark
            longer = joined.with_(block.event, by_hand=by_hand)
            if waiting and (longer is None or not longer.within(limits)):
                yield Batch(tuple(waiting))
                waiting, longer = [], _BatchDraft().with_(block.event, by_hand=by_hand)
            waiting.append(block)
            joined = longer or _BatchDraft()
            continue
        if waiting:
            yield Batch(tuple(waiting))
        waiting, joined = [], _BatchDraft()
        watermark = block.event.new_watermark if isinstance(block.event, AddData) else watermark
        yield Batch((block,))
    if waiting:
        yield Batch(tuple(waiting))


def _is_new_merge(event: AddData, known: set[str]) -> bool:
    """Whether a merge record is here for the first time; from now on it is known."""
    state = event.new_source_state
    if state is None or not is_merge_state(state) or state.value in known:
        return False
    known.add(state.value)
    return True


@dataclass(frozen=True, slots=True)
class _BatchDraft:
    """What a batch is so far."""

    bytes: int = 0
    records: int = 0
    slices: int = 0
    source: str | None = None
    """The source it speaks of."""
    decided: bool = False
    """Whether `source` counts: blocks without data and state fit to every source."""
    extra: ExtraAttributes | None = None
    empty: bool = True
    by_hand: bool = False
    """Whether it sets a watermark without data."""

    def with_(self, event: AddData, *, by_hand: bool) -> _BatchDraft | None:
        """The batch with one more event; None when they cannot be one."""
        state = event.new_source_state
        source = state.source_name if state is not None else None
        decides = state is not None or event.new_data is not None
        if self.decided and decides and source != self.source:
            return None
        if (self.by_hand and event.new_data is not None) or (by_hand and self.slices):
            return None
        if not self.empty and event.extra != self.extra:
            return None
        size = event.new_data.size if event.new_data is not None else 0
        records = event.new_data.offset_interval.count if event.new_data is not None else 0
        return _BatchDraft(
            self.bytes + size,
            self.records + records,
            self.slices + (event.new_data is not None),
            source if decides else self.source,
            self.decided or decides,
            event.extra,
            empty=False,
            by_hand=self.by_hand or by_hand,
        )

    def within(self, limits: BatchLimits) -> bool:
        """Whether it may be one slice; one slice alone may have any size."""
        return self.slices < 2 or (self.bytes <= limits.bytes and self.records <= limits.records)
