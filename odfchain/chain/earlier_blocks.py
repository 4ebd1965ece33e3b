"""Questions about earlier blocks that the append rules ask.

Three answers exist: by walking (always right, slow on long chains), from the derived index (one look-up),
and from blocks that are not in the store yet because their transaction is still open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from odfchain.model import events as ev
from odfchain.model.metadata_block import MetadataBlock

DataEvent: TypeAlias = ev.AddData | ev.ExecuteTransform
DATA_EVENTS = ("AddData", "ExecuteTransform")


class History(Protocol):
    """The blocks before the one that is being appended."""

    def previous(self) -> MetadataBlock:
        """The direct predecessor."""

    def nearest(self, *kinds: str) -> MetadataBlock | None:
        """The nearest earlier block whose event is of one of these kinds."""

    def push_sources(self) -> Mapping[str, ev.AddPushSource]:
        """The push sources in force by name."""

    def has_odf_schema(self) -> bool:
        """Whether any earlier block declares a schema in the ODF form."""


def is_odf_schema(event: ev.MetadataEvent) -> bool:
    """Whether an event declares a schema in the ODF form (not as raw Arrow)."""
    return isinstance(event, ev.SetDataSchema) and event.schema is not None


def sources_in_force(events: Iterable[ev.MetadataEvent]) -> dict[str, ev.AddPushSource]:
    """The push sources that events, newest first, leave in force; the most recently defined first."""
    active: dict[str, ev.AddPushSource] = {}
    decided: set[str] = set()
    for event in events:
        if isinstance(event, ev.AddPushSource | ev.DisablePushSource) and event.source_name not in decided:
            decided.add(event.source_name)
            if isinstance(event, ev.AddPushSource):
                active[event.source_name] = event
    return active


class WalkedHistory:
    """Answers by walking from the predecessor towards the seed; every block is read at most once."""

    def __init__(self, walk: Callable[[], Iterator[MetadataBlock]]) -> None:
        self._rest = walk()
        self._seen: list[MetadataBlock] = [next(self._rest)]

    def _blocks(self) -> Iterator[MetadataBlock]:
        index = 0
        while True:
            if index == len(self._seen):
                block = next(self._rest, None)
                if block is None:
                    return
                self._seen.append(block)
            yield self._seen[index]
            index += 1

    def previous(self) -> MetadataBlock:
        """The block the walk starts at."""
        return self._seen[0]

    def nearest(self, *kinds: str) -> MetadataBlock | None:
        """The first block of one of these kinds that the walk meets."""
        return next((b for b in self._blocks() if b.event.KIND in kinds), None)

    def push_sources(self) -> Mapping[str, ev.AddPushSource]:
        """What the walk finds in force."""
        return sources_in_force(block.event for block in self._blocks())

    def has_odf_schema(self) -> bool:
        """Whether the walk meets one."""
        return any(is_odf_schema(block.event) for block in self._blocks())


class ReplayHistory:
    """Answers from blocks seen so far while a chain is replayed from its seed; every question costs O(1)."""

    def __init__(self) -> None:
        self._last: MetadataBlock | None = None
        self._nearest: dict[str, MetadataBlock] = {}
        self._push_sources: dict[str, ev.AddPushSource] = {}
        self._has_odf_schema = False

    def add(self, block: MetadataBlock) -> None:
        """The next block of the chain."""
        self._last = block
        self._nearest[block.event.KIND] = block
        self._has_odf_schema = self._has_odf_schema or is_odf_schema(block.event)
        if isinstance(block.event, ev.AddPushSource):
            self._push_sources[block.event.source_name] = block.event
        elif isinstance(block.event, ev.DisablePushSource):
            self._push_sources.pop(block.event.source_name, None)

    def previous(self) -> MetadataBlock:
        """The block added last."""
        assert self._last is not None  # noqa: S101 - asked after the seed
        return self._last

    def nearest(self, *kinds: str) -> MetadataBlock | None:
        """The newest block of one of these kinds."""
        blocks = [self._nearest[kind] for kind in kinds if kind in self._nearest]
        return max(blocks, key=lambda block: block.sequence_number, default=None)

    def push_sources(self) -> Mapping[str, ev.AddPushSource]:
        """What the blocks so far leave in force."""
        return self._push_sources

    def has_odf_schema(self) -> bool:
        """Whether any block so far is one."""
        return self._has_odf_schema


class PendingHistory:
    """Blocks of an open transaction (oldest first) in front of what is in the chain already."""

    def __init__(self, pending: Sequence[MetadataBlock], base: History | None) -> None:
        self._pending = pending
        self._base = base

    def previous(self) -> MetadataBlock:
        """The last pending block."""
        return self._pending[-1]

    def nearest(self, *kinds: str) -> MetadataBlock | None:
        """The newest pending block of one of these kinds, else what the chain has."""
        for block in reversed(self._pending):
            if block.event.KIND in kinds:
                return block
        return self._base.nearest(*kinds) if self._base else None

    def push_sources(self) -> Mapping[str, ev.AddPushSource]:
        """What the chain and then the pending blocks leave in force."""
        earlier = self._base.push_sources().values() if self._base else ()
        return sources_in_force([*[block.event for block in reversed(self._pending)], *earlier])

    def has_odf_schema(self) -> bool:
        """Whether a pending block or the chain has one."""
        if any(is_odf_schema(block.event) for block in self._pending):
            return True
        return self._base is not None and self._base.has_odf_schema()
