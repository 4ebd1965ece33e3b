"""The blocks of a chain on a page: marks of a strip, and rows of a table; few of both for many blocks.

With more blocks than there is room for, a mark stands for several and is as bad as the worst of them. In the
table faulty blocks keep rows of their own, as do their neighbours; the others are put together in ranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from odfchain.pages.document_node import DocumentNode
from odfchain.pages.page_words import day, listed, moment
from odfchain.text import counted

STATES = {"faulty": "faulty", "unchecked": "not checked", "ok": "as recorded"}
"""The states of a block, the worst first, in words."""

KINDS = {
    "data": "data added",
    "merge": "branch merged",
    "transform": "transformation executed",
    "definition": "definition changed",
    "seed": "dataset created",
}
"""What the event of a block does, in words."""

_KIND_OF = {"AddData": "data", "ExecuteTransform": "transform", "Seed": "seed"}


@dataclass(frozen=True, slots=True)
class BlockView:
    """One block as the report has it; `faults` are indexes into the faults of the report."""

    number: int
    hash: str
    time: str
    event: str
    records: int
    watermark: str | None
    state: str
    faults: tuple[int, ...]
    merged: str | None = None
    """The branch that it merged."""

    @property
    def kind(self) -> str:
        """What its event does, as in `KINDS`."""
        return "merge" if self.merged is not None else _KIND_OF.get(self.event, "definition")

    @property
    def what(self) -> str:
        """Its event in words."""
        return self.event if self.merged is None else f"{self.event}, merged from {self.merged}"


@dataclass(frozen=True, slots=True)
class MarkBar:
    """A piece of a mark: its kind, and where it is [of 40 parts of the height, from the top]."""

    kind: str
    top: int
    height: int


@dataclass(frozen=True, slots=True)
class TimelineMark:
    """One place of the strip: what happened in its blocks, and the worst of their states."""

    title: str
    state: str
    bars: tuple[MarkBar, ...]


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One row of the table: a block, or a range of blocks that has no hash."""

    where: str
    time: str
    event: str
    records: int
    watermark: str
    state: str
    result: str
    hash: str
    faults: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """The time line: its marks, what its ends are called, and the counts for its key."""

    marks: tuple[TimelineMark, ...]
    blocks: int
    each: int
    first: str
    last: str
    kinds: Mapping[str, int]
    states: Mapping[str, int]
    summary: str


def read_blocks(parts: Sequence[DocumentNode], faults: int) -> list[BlockView]:
    """The blocks of a report with `faults` faults, oldest first as in the report."""
    views = []
    for node in parts:
        named = []
        for index in node["faults"].items():
            if not 0 <= index.number() < faults:
                index.refuse("the index of a fault")
            named.append(index.number())
        mark, merged = node["watermark"], node.optional("merged")
        views.append(
            BlockView(
                number=node["sequenceNumber"].number(),
                hash=node["hash"].text(100),
                time=node["systemTime"].text(40),
                event=node["event"].text(40),
                records=node["records"].number(),
                watermark=mark.text(40) if mark.known else None,
                state=node["state"].word(*STATES),
                faults=tuple(named),
                merged=merged.text(64) if merged is not None else None,
            )
        )
    return views


def strip_of(blocks: Sequence[BlockView], limit: int) -> Timeline | None:
    """The time line of a chain in at most `limit` marks; None for a chain of which no block is known."""
    if not blocks:
        return None
    each = -(-len(blocks) // limit)
    groups = [blocks[start : start + each] for start in range(0, len(blocks), each)]
    kinds, states = _tally(blocks)
    return Timeline(
        marks=tuple(_mark(group) for group in groups),
        blocks=len(blocks),
        each=each,
        first=f"block {blocks[0].number:,}, {day(blocks[0].time)}",
        last=f"block {blocks[-1].number:,}, {day(blocks[-1].time)}" if len(blocks) > 1 else "",
        kinds=kinds,
        states=states,
        summary=f"{counted(len(blocks), 'block')}: {_states_in_words(states)}; {_kinds_in_words(kinds)}",
    )


def _tally(blocks: Sequence[BlockView]) -> tuple[dict[str, int], dict[str, int]]:
    """How many blocks there are of each kind and state, in the order of the tables above."""
    kinds, states = Counter(b.kind for b in blocks), Counter(b.state for b in blocks)
    return {k: kinds[k] for k in KINDS if kinds[k]}, {s: states[s] for s in STATES if states[s]}


def _states_in_words(states: Mapping[str, int]) -> str:
    return listed([f"{number:,} {STATES[state]}" for state, number in states.items()])


def _kinds_in_words(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{KINDS[kind]}: {number:,}" for kind, number in kinds.items())


_HEIGHT = 40
_HEIGHTS = {"data": 40, "merge": 40, "transform": 40, "definition": 18, "seed": 40}
"""Kinds are told apart by more than colour: a dataset has data or transformations, and one creation."""
_SEEN = 4
"""The height of a kind that few blocks of a mark have."""


def _mark(group: Sequence[BlockView]) -> TimelineMark:
    kinds, states = _tally(group)
    if len(group) == 1:
        (block,) = group
        height = _HEIGHTS[block.kind]
        title = f"Block {block.number:,}, {moment(block.time)}: {block.what}, {STATES[block.state]}"
        return TimelineMark(title, block.state, (MarkBar(block.kind, _HEIGHT - height, height),))
    bars, below = [], _HEIGHT
    for kind, number in sorted(kinds.items(), key=lambda item: item[1]):
        top = max(0, below - max(_SEEN, round(_HEIGHT * number / len(group))))
        bars.append(MarkBar(kind, top, below - top))
        below = top
    title = f"Blocks {group[0].number:,} to {group[-1].number:,}, {_days(group)}: "
    title += f"{_kinds_in_words(kinds)}; {_states_in_words(states)}"
    return TimelineMark(title, next(iter(states)), tuple(bars))


def _days(group: Sequence[BlockView]) -> str:
    first, last = day(group[0].time), day(group[-1].time)
    return first if first == last else f"{first} to {last}"


def rows_of(blocks: Sequence[BlockView], limit: int) -> list[BlockRow]:
    """The table of a chain in about `limit` rows (at most twice as many), every block in one of them."""
    if len(blocks) <= limit:
        return [_row(block) for block in blocks]
    return [
        _row(group[0]) if len(group) == 1 else _range_row(group) for group in _groups(blocks, max(4, limit))
    ]


def _groups(blocks: Sequence[BlockView], limit: int) -> Iterator[Sequence[BlockView]]:
    """Blocks that stay alone, and the ranges between them in pieces of a round length."""
    alone = {0, len(blocks) - 1}
    for index, block in enumerate(blocks):
        if len(alone) >= limit // 2:
            break
        if block.state == "faulty":
            alone |= {index - 1, index, index + 1} & set(range(len(blocks)))
    piece = _round_up(-(-len(blocks) // max(1, limit // 3)))
    start = 0
    for index in [*sorted(alone), len(blocks)]:
        while start < index:
            end = min(index, start - start % piece + piece)
            yield blocks[start:end]
            start = end
        if index < len(blocks):
            yield blocks[index : index + 1]
            start = index + 1


def _round_up(number: int) -> int:
    """The next of 1, 2, 5, 10, 20, 50 ...: ranges of such lengths are read easily."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if step * factor >= number:
                return step * factor
        step *= 10


def _row(block: BlockView) -> BlockRow:
    return BlockRow(
        where=f"{block.number:,}",
        time=moment(block.time),
        event=block.what,
        records=block.records,
        watermark=moment(block.watermark) if block.watermark else "",
        state=block.state,
        result=STATES[block.state],
        hash=block.hash,
        faults=block.faults,
    )


def _range_row(group: Sequence[BlockView]) -> BlockRow:
    kinds, states = _tally(group)
    watermarks = [block.watermark for block in group if block.watermark]
    worst = next(iter(states))
    return BlockRow(
        where=f"{group[0].number:,} to {group[-1].number:,}",
        time=_days(group),
        event=_kinds_in_words(kinds),
        records=sum(block.records for block in group),
        watermark=moment(watermarks[-1]) if watermarks else "",
        state=worst,
        result=f"all {STATES[worst]}" if len(states) == 1 else _states_in_words(states),
        hash="",
        faults=(),
    )
