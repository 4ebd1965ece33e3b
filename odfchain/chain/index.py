"""A derived, disposable index of a chain: for every block its hash, its kind, and where to look next.

Row `n` (fixed size, position = sequence number) holds the hash and event kind of block `n` and, for each of
the thirteen event kinds and for merges, the sequence number of the nearest such block at or before `n`. So
"the last data block before here" is one look-up however long the chain is (RFC-004).

The index is only a cache. Rows carry a checksum; before use the newest row must name the chain's head, and
every block found through it is read by its hash and checked to be what the row says. Whatever does not fit
is thrown away and rebuilt by walking. Verification never uses it.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol, TypeAlias, TypeVar, get_args

from odfchain.errors import StoreError
from odfchain.odf import events as ev
from odfchain.odf.events import AddData, MetadataBlock, MetadataEvent
from odfchain.odf.identity import Multihash

EVENT_KINDS: tuple[str, ...] = tuple(event.KIND for event in get_args(MetadataEvent))
"""Event kinds in the order of the union `MetadataEvent`."""

MERGE = "odfchain/merge"
"""Source name of the AddData that carry a merge record (RFC-036); the index takes it for one more kind."""

_COLUMNS = (*EVENT_KINDS, MERGE)
_NONE = (1 << 64) - 1
# `<` aligns nothing by itself: the 7 bytes put the numbers at multiples of 8
_BODY = struct.Struct(f"<32sB7x{len(_COLUMNS)}Q")
_CRC = struct.Struct("<I4x")
_LINK = struct.Struct("<32sBQ")
ROW_BYTES = _BODY.size + _CRC.size
_ROWS_AT_ONCE = 4096


class Scratch(Protocol):
    """A private byte file that may vanish at any time without harm."""

    def read(self, start: int, count: int) -> bytes:
        """Up to `count` bytes from `start` (fewer at the end)."""

    def write(self, start: int, data: bytes) -> None:
        """Write at `start` and drop everything after what was written."""


class IndexRow(NamedTuple):
    """One block's row in the index."""

    hash: Multihash
    kind: str
    nearest: tuple[int | None, ...]
    """For each of `EVENT_KINDS`, then for `MERGE`: number of the nearest such block at or before this one."""

    def nearest_of(self, kinds: tuple[str, ...]) -> int | None:
        """The largest sequence number among these kinds."""
        numbers = [n for kind in kinds if (n := self.nearest[_COLUMNS.index(kind)]) is not None]
        return max(numbers, default=None)


class Link(NamedTuple):
    """One step of a walk: a block's hash, sequence number and event kind, or `MERGE`."""

    hash: Multihash
    sequence_number: int
    kind: str

    @classmethod
    def of(cls, name: Multihash, block: MetadataBlock) -> Link:
        """The step to a block."""
        return cls(name, block.sequence_number, link_kind(block.event))

    @property
    def event_kind(self) -> str:
        """The kind of the block's event."""
        return AddData.KIND if self.kind == MERGE else self.kind


def link_kind(event: MetadataEvent) -> str:
    """The kind of an event; `MERGE` of one that carries a merge record."""
    return MERGE if is_merge(event) else event.KIND


def is_merge(event: MetadataEvent) -> bool:
    """True if an event carries what calls itself a merge record, first in its chain or carried on."""
    state = event.new_source_state if isinstance(event, AddData) else None
    return state is not None and state.source_name == MERGE


def _pack(row: IndexRow) -> bytes:
    numbers = [_NONE if n is None else n for n in row.nearest]
    body = _BODY.pack(row.hash.digest, EVENT_KINDS.index(row.kind), *numbers)
    return body + _CRC.pack(zlib.crc32(body))


def _unpack(data: bytes) -> IndexRow | None:
    if len(data) != ROW_BYTES:
        return None
    body = data[: _BODY.size]
    if _CRC.unpack(data[_BODY.size :])[0] != zlib.crc32(body):
        return None
    digest, kind, *numbers = _BODY.unpack(body)
    if kind >= len(EVENT_KINDS):
        return None
    known = tuple(None if n == _NONE else n for n in numbers)
    return IndexRow(Multihash.sha3_256(digest), EVENT_KINDS[kind], known)


class ChainIndex:
    """The index of one chain, brought up to date against a head before it is asked."""

    def __init__(self, scratch: Scratch, walk: Callable[[Multihash], Iterator[Link]]) -> None:
        self._scratch = scratch
        self._walk = walk
        self._head: Link | None = None

    def row(self, sequence_number: int) -> IndexRow | None:
        """The row of a block, or None when it is missing or damaged."""
        return _unpack(self._scratch.read(sequence_number * ROW_BYTES, ROW_BYTES))

    def hashes(self, count: int) -> list[Multihash] | None:
        """The hashes of rows 0 to `count` - 1; None when one of them is missing or damaged."""
        hashes: list[Multihash] = []
        while len(hashes) < count:
            rows = min(_ROWS_AT_ONCE, count - len(hashes))
            data = self._scratch.read(len(hashes) * ROW_BYTES, rows * ROW_BYTES)
            for start in range(0, rows * ROW_BYTES, ROW_BYTES):
                row = _unpack(data[start : start + ROW_BYTES])
                if row is None:
                    return None
                hashes.append(row.hash)
        return hashes

    def sync(self, head: Link) -> None:
        """Make rows 0 to `head.sequence_number` describe the chain that ends at `head`."""
        if self._head == head:
            return
        if self.fits(head) is not None:
            self._head = head
            return
        missing = bytearray()  # a million links as objects would take 400 MB
        known: IndexRow | None = None
        # only unknown blocks are read; a damaged or foreign index matches none of them and is rebuilt
        for link in self._walk(head.hash):
            known = self.fits(link)
            if known is not None:
                break
            missing += _LINK.pack(link.hash.digest, _COLUMNS.index(link.kind), link.sequence_number)
        self._extend(known, missing)
        self._head = head

    def fits(self, link: Link) -> IndexRow | None:
        """The row of a step, None where it is missing, damaged or another's."""
        row = self.row(link.sequence_number)
        return row if row is not None and (row.hash, row.kind) == (link.hash, link.event_kind) else None

    def _extend(self, known: IndexRow | None, newest_first: bytearray) -> None:
        nearest: list[int | None] = list(known.nearest) if known else [None] * len(_COLUMNS)
        pending = bytearray()
        for place in range(len(newest_first) - _LINK.size, -1, -_LINK.size):
            digest, column, number = _LINK.unpack_from(newest_first, place)
            link = Link(Multihash.sha3_256(digest), number, _COLUMNS[column])
            # a merge is an AddData, too
            for kind in {link.kind, link.event_kind}:
                nearest[_COLUMNS.index(kind)] = number
            pending += _pack(IndexRow(link.hash, link.event_kind, tuple(nearest)))
            if place == 0 or len(pending) == _ROWS_AT_ONCE * ROW_BYTES:
                self._write((number + 1) * ROW_BYTES - len(pending), bytes(pending))
                pending.clear()

    def rebuild(self, head: Link) -> None:
        """Forget everything and index the chain anew."""
        self._head = None
        # a write drops what follows it, so this drops all rows
        self._write(0, b"")
        self.sync(head)

    def _write(self, start: int, data: bytes) -> None:
        # A cache that cannot be written (full disk, read-only media) must not stop the work.
        with contextlib.suppress(StoreError):
            self._scratch.write(start, data)


# Questions about earlier blocks that the append rules ask.
#
# Two answers exist: from the derived index (one look-up; by walking, which is slow, where there is none), and
# from blocks that are not in the store yet because their transaction is still open.

E = TypeVar("E", bound=MetadataEvent)
DataEvent: TypeAlias = ev.AddData | ev.ExecuteTransform
DATA_EVENTS = ("AddData", "ExecuteTransform")


class History:
    """The blocks before the one that is being appended."""

    def blocks(self, *kinds: str) -> Iterator[MetadataBlock]:
        """Those with events of these kinds, of any where none is given; newest first."""
        raise NotImplementedError

    def previous(self) -> MetadataBlock:
        """The direct predecessor."""
        return next(self.blocks())

    def nearest(self, *kinds: str) -> MetadataBlock | None:
        """The nearest earlier block whose event is of one of these kinds."""
        return next(self.blocks(*kinds), None)

    def nearest_event(self, *kinds: type[E]) -> E | None:
        """The nearest earlier event of one of these classes."""
        block = self.nearest(*(kind.KIND for kind in kinds))
        event = block.event if block is not None else None
        return event if isinstance(event, kinds) else None

    def push_sources(self) -> Mapping[str, ev.AddPushSource]:
        """The push sources in force by name."""
        return sources_in_force(block.event for block in self.blocks("AddPushSource", "DisablePushSource"))

    def has_odf_schema(self) -> bool:
        """True if any earlier block declares a schema in the ODF form."""
        return any(is_odf_schema(block.event) for block in self.blocks("SetDataSchema"))


def is_odf_schema(event: ev.MetadataEvent) -> bool:
    """True if an event declares a schema in the ODF form (not as raw Arrow)."""
    return isinstance(event, ev.SetDataSchema) and event.schema is not None


def sources_in_force(events: Iterable[ev.MetadataEvent]) -> dict[str, ev.AddPushSource]:
    """The push sources that events, newest first, leave in force; the most recently defined first."""
    active: dict[str, ev.AddPushSource] = {}
    decided: set[str] = set()
    for event in events:
        # newest first, so the first event about a source decides
        if isinstance(event, ev.AddPushSource | ev.DisablePushSource) and event.source_name not in decided:
            decided.add(event.source_name)
            if isinstance(event, ev.AddPushSource):
                active[event.source_name] = event
    return active


SOURCES = (ev.AddPushSource.KIND, ev.SetPollingSource.KIND)
"""Events that define sources."""


def are_of_several_keys(events: Iterable[ev.MetadataEvent]) -> bool:
    """True if the sources that these events define tell records apart by different keys."""
    keys = {e.merge.primary_key for e in events if isinstance(e, ev.AddPushSource | ev.SetPollingSource)}
    # with several keys, what one source took back another may take back again
    return len(keys) > 1


class ReplayHistory(History):
    """Answers in O(1) from blocks that were added one after the other, then from what they continue."""

    def __init__(self, base: History | None = None) -> None:
        self._base = base
        self._last: MetadataBlock | None = None
        self._nearest: dict[str, MetadataBlock] = {}
        self._push_sources: dict[str, ev.AddPushSource] | None = None
        self._has_odf_schema = False

    def add(self, block: MetadataBlock) -> None:
        """The next block of the chain."""
        self._last = block
        self._nearest[block.event.KIND] = block
        self._has_odf_schema = self._has_odf_schema or is_odf_schema(block.event)
        if isinstance(block.event, ev.AddPushSource):
            self.push_sources()[block.event.source_name] = block.event
        elif isinstance(block.event, ev.DisablePushSource):
            self.push_sources().pop(block.event.source_name, None)

    def previous(self) -> MetadataBlock:
        if self._last is not None:
            return self._last
        assert self._base is not None  # noqa: S101 - asked after the seed
        return self._base.previous()

    def nearest(self, *kinds: str) -> MetadataBlock | None:
        blocks = [self._nearest[kind] for kind in kinds if kind in self._nearest]
        # what was added here is newer than all of the base
        if not blocks and self._base is not None:
            return self._base.nearest(*kinds)
        return max(blocks, key=lambda block: block.sequence_number, default=None)

    def push_sources(self) -> dict[str, ev.AddPushSource]:
        if self._push_sources is None:
            # a copy: `add` changes it, and the base stays as it is
            self._push_sources = dict(self._base.push_sources()) if self._base is not None else {}
        return self._push_sources

    def has_odf_schema(self) -> bool:
        return self._has_odf_schema or (self._base is not None and self._base.has_odf_schema())
