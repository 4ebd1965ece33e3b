"""The blocks of a dataset on all its branches as lines of text, newest first, with lanes for its branches.

    ● 9   merged from fix-names …  (head)
    ├─╮
    │ ● 9   …  (fix-names)
    ● │ 8
    ├─╯
    ● 7

A block stands below every block that was made from it: later system times come first, then larger numbers.
What is drawn is bounded by what is asked for: a chain is read only as far as it is drawn.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from odfchain.chain.chain import HashedBlock
from odfchain.errors import CodecError
from odfchain.ids.multihash import Multihash
from odfchain.lineage.source_names import describe_merged
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.merge_record import MergeMode, MergeRecord, first_record
from odfchain.repo.references import branch_names
from odfchain.store.interfaces import HEAD


@dataclass(frozen=True, slots=True)
class DrawnBlock:
    """A block, the lines that lead to it and away from it, and what is to be said beside it."""

    block: HashedBlock
    before: tuple[str, ...]
    """Lines above it, where lanes end in it."""
    line: str
    """The lanes in its own line."""
    after: tuple[str, ...]
    """Lines below it, where a merge begins a lane or joins one."""
    references: tuple[str, ...]
    """The head and the branches that point at it."""
    note: str | None
    """What was merged."""


def draw_blocks(dataset: DatasetFiles, limit: int | None = None) -> Iterator[DrawnBlock]:
    """The blocks that the head and the branches lead to, also by merges, at most `limit`, newest first.

    Raises (when it is walked):
        BrokenChainError, StoreError, CodecError: a chain cannot be read.
    """
    return _Drawing(dataset).blocks(limit)


class _Drawing:
    """Lanes from left to right; each waits for the block that its line leads down to."""

    def __init__(self, dataset: DatasetFiles) -> None:
        self._chain = dataset.chain
        self._references: dict[Multihash, list[str]] = {}
        for name in (HEAD, *branch_names(dataset)):
            block = DatasetState.read(dataset.on(name).chain).head
            self._references.setdefault(block, []).append(name)
        self._waiting: list[tuple[int, int, int, Multihash]] = []
        self._known: set[Multihash] = set()
        self._lanes: list[Multihash | None] = []
        for block in self._references:
            self._wait_for(block)

    def _wait_for(self, name: Multihash) -> None:
        if name not in self._known:
            self._known.add(name)
            block = self._chain.get(name)
            item = (-block.system_time.epoch_ns, -block.sequence_number, len(self._known), name)
            heapq.heappush(self._waiting, item)

    def blocks(self, limit: int | None) -> Iterator[DrawnBlock]:
        drawn: set[Multihash] = set()
        while self._waiting and (limit is None or len(drawn) < limit):
            name = heapq.heappop(self._waiting)[-1]
            drawn.add(name)
            yield self._draw(HashedBlock(name, self._chain.get(name)), drawn)

    def _draw(self, block: HashedBlock, drawn: set[Multihash]) -> DrawnBlock:
        lane, *others = [i for i, waits in enumerate(self._lanes) if waits == block.hash] or [self._free()]
        before = []
        for other in others:
            before.append(self._joined(lane, other, begins=False, ends=True))
            self._lanes[other] = None
        self._lanes[lane] = block.hash
        line = self._line({lane: "●"})
        prev = block.block.prev_block_hash
        self._lanes[lane] = prev if prev not in drawn else None
        if prev is not None:
            self._wait_for(prev)
        note, after = None, []
        record = self._record(block)
        if record is not None:
            here = record.mode is MergeMode.MERGE and self._chain.contains(record.source)
            note = describe_merged(record, drawn=here)
            if here:
                after = self._merged(lane, record.source, drawn)
        while self._lanes and self._lanes[-1] is None:
            self._lanes.pop()
        names = tuple(self._references.get(block.hash, ()))
        return DrawnBlock(block, tuple(before), line, tuple(after), names, note)

    def _merged(self, lane: int, source: Multihash, drawn: set[Multihash]) -> list[str]:
        """The line from a merge to the lane that leads to its source."""
        if source in drawn:
            return []  # clocks that were wrong: it was recorded later than its merge
        self._wait_for(source)
        known = next((i for i, waits in enumerate(self._lanes) if waits == source), None)
        there = self._free() if known is None else known
        self._lanes[there] = source
        return [self._joined(lane, there, begins=known is None, ends=False)]

    def _record(self, block: HashedBlock) -> MergeRecord | None:
        try:
            return first_record(self._chain, block)
        except CodecError:
            return None

    def _free(self) -> int:
        """A lane that nothing waits in."""
        if None not in self._lanes:
            self._lanes.append(None)
        return self._lanes.index(None)

    def _line(self, marks: dict[int, str]) -> str:
        return " ".join(
            marks.get(i, "│" if waits is not None else " ") for i, waits in enumerate(self._lanes)
        ).rstrip()

    def _joined(self, lane: int, other: int, *, begins: bool, ends: bool) -> str:
        """A line that joins `lane` and `other`, which begins below it, or ends in it, or goes on."""
        left, right = min(lane, other), max(lane, other)
        right_of = {(True, False): "╮", (False, True): "╯", (False, False): "┤"}[begins, ends]
        left_of = {(True, False): "╭", (False, True): "╰", (False, False): "├"}[begins, ends]
        text = ""
        for i, waits in enumerate(self._lanes):
            if i == lane:
                mark = "├" if lane == left else "┤"
            elif i == other:
                mark = right_of if other == right else left_of
            elif left < i < right:
                mark = "─" if waits is None else "┼"
            else:
                mark = " " if waits is None else "│"
            text += mark + ("─" if left <= i < right else " ")
        return text.rstrip()
