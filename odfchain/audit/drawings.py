"""The graph of datasets as a page and for Graphviz; the blocks of a dataset on all its branches as text."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from odfchain.audit.lineage import Edge, Graph, Node, NodeState, describe_merged, facts_of, lies, was_used
from odfchain.chain.chain import HashedBlock
from odfchain.errors import CodecError
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.profiles.pages import Render, line_of, one_page
from odfchain.storage.local import HEAD
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import MergeMode, MergeRecord, first_record
from odfchain.workspace.points import branch_names

# The graph of datasets in the language of Graphviz (DOT).
# Nodes are called n0, n1 …; names and ids are in labels only. In a quoted label a backslash starts an
# escape (`\N`, `\l`) and a quote ends it, so both are escaped. Source:
# https://graphviz.org/doc/info/lang.html, https://graphviz.org/docs/attr-types/escString/.

_STYLES = {NodeState.PRESENT: "solid", NodeState.MISSING: "dashed", NodeState.DAMAGED: "bold"}


def quoted(*lines: str) -> str:
    """A label of some lines of any text."""
    texts = (one_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(texts) + '"'


def _branches(number: str, node: Node) -> Iterator[str]:
    facts = node.branching
    # merged branches that were deleted are drawn from the merge records
    ways = {branch.name: lies(branch) for branch in facts.branches}
    blocks = {item.name: str(item) for item in facts.merged}
    for index, name in enumerate(dict.fromkeys([*ways, *blocks])):
        label = quoted(f"{node.name}@{name}", ways.get(name, "deleted"))
        yield f"  {number}b{index} [label={label}, shape=note, style=dashed];"
        yield f"  {number} -> {number}b{index} [style=dotted, dir=none];"
        if name in blocks:
            yield f"  {number}b{index} -> {number} [style=dotted, label={quoted(blocks[name])}];"


def _attributes(node: Node) -> str:
    shape = "ellipse" if node.kind is DatasetKind.ROOT else "box"
    label = quoted(node.name, *facts_of(node)[:3])
    return f"label={label}, tooltip={quoted(node.id)}, shape={shape}, style={_STYLES[node.state]}"


# Layout of a drawing: layers from left to right.
# A dataset's layer is the longest path to it from a dataset without inputs. An edge across layers gets a
# free place in each of them, so that it crosses no box (as K. Sugiyama et al., 1981).

# More are not worth their space: long edges are then drawn straight.
_FREE_PLACES = 5_000


@dataclass(frozen=True, slots=True)
class Layout:
    """Keys of datasets and of free places, layer by layer; and the places that each edge goes through."""

    layers: tuple[tuple[str, ...], ...]
    routes: tuple[tuple[Edge, tuple[str, ...]], ...]


def layout_of(graph: Graph) -> Layout:
    """Every dataset has a place, after its inputs unless it is in a circle with them."""
    layer = _layers(graph)
    rows: list[list[str]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for key in graph.nodes:
        rows[layer[key]].append(key)
    routes = []
    before: dict[str, list[str]] = {}
    free = sum(max(0, layer[e.downstream] - layer[e.upstream] - 1) for e in graph.edges)
    for index, edge in enumerate(graph.edges):
        passed = range(layer[edge.upstream] + 1, layer[edge.downstream]) if free <= _FREE_PLACES else ()
        places = [f"\0{index}:{number}" for number in passed]  # no key has this character
        for number, place in zip(passed, places, strict=True):
            rows[number].append(place)
        route = (edge.upstream, *places, edge.downstream)
        for here, there in pairwise(route):
            before.setdefault(there, []).append(here)
        routes.append((edge, route))
    height: dict[str, float] = {}
    for row in rows:  # next to what leads there: fewer lines cross
        row.sort(key=lambda key: fmean([height[k] for k in before.get(key, ()) if k in height] or [0.0]))
        height |= {key: float(index) for index, key in enumerate(row)}
    return Layout(tuple(tuple(row) for row in rows), tuple(routes))


def _layers(graph: Graph) -> dict[str, int]:
    inputs: dict[str, list[str]] = {key: [] for key in graph.nodes}
    outputs: dict[str, list[str]] = {key: [] for key in graph.nodes}
    for edge in graph.edges:
        inputs[edge.downstream].append(edge.upstream)
        outputs[edge.upstream].append(edge.downstream)
    waiting = Counter({key: len(upstream) for key, upstream in inputs.items()})
    layer: dict[str, int] = {}
    ready = [key for key in graph.nodes if not inputs[key]]
    rest = iter(graph.nodes)
    while len(layer) < len(graph.nodes):
        if not ready:  # only circles are left: one of them is cut
            ready = [next(key for key in rest if key not in layer)]
        key = ready.pop()
        if key in layer:
            continue
        layer[key] = max((layer[other] + 1 for other in inputs[key] if other in layer), default=0)
        for other in outputs[key]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return layer


_WIDTH, _HEIGHT = 220, 54
_GAP_X, _GAP_Y, _MARGIN = 90, 22, 12
# Columns of a dataset whose profile is shown.
_COLUMNS = 200


class _Position(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True, slots=True)
class GraphDrawing:
    """A graph of datasets for Graphviz, or as a page."""

    graph: Graph

    def to_dot(self) -> str:
        """The graph as one DOT document; edges point from inputs to what is made of them."""
        numbers = {key: f"n{index}" for index, key in enumerate(self.graph.nodes)}
        lines = ["digraph lineage {", "  rankdir=LR;", "  node [fontname=sans];", "  edge [fontname=sans];"]
        for key, node in self.graph.nodes.items():
            lines.append(f"  {numbers[key]} [{_attributes(node)}];")
            lines += _branches(numbers[key], node)
        for edge in self.graph.edges:
            words = was_used(edge)
            attributes = f" [style=dashed, label={quoted(words)}]" if words else ""
            lines.append(f"  {numbers[edge.upstream]} -> {numbers[edge.downstream]}{attributes};")
        return "\n".join([*lines, "}"]) + "\n"

    def to_html(
        self,
        profiles: Mapping[str, Mapping[str, Any]] | None = None,
        links: Mapping[str, str] | None = None,
        render: Render = one_page,
    ) -> str:
        """The graph as one self-contained page, with profiles and addresses by the keys of nodes."""
        asked = ", ".join(self.graph.nodes[key].name for key in self.graph.roots)
        made_of: dict[str, list[str]] = {key: [] for key in self.graph.nodes}
        for edge in self.graph.edges:
            words = was_used(edge)
            made_of[edge.downstream].append(
                self.graph.nodes[edge.upstream].name + (f" ({words})" if words else "")
            )
        layout = layout_of(self.graph)
        places = {
            key: _Position(_MARGIN + x * (_WIDTH + _GAP_X), _MARGIN + y * (_HEIGHT + _GAP_Y))
            for x, row in enumerate(layout.layers)
            for y, key in enumerate(row)
        }
        return render(
            "audit",
            "lineage.html.j2",
            title=f"{'What is made of' if self.graph.downstream else 'Lineage of'} {one_line(asked)}",
            width=max((p.x for p in places.values()), default=0) + _WIDTH + _MARGIN,
            height=max((p.y for p in places.values()), default=0) + _HEIGHT + _MARGIN,
            box_width=_WIDTH,
            box_height=_HEIGHT,
            facts_of=facts_of,
            line_of=line_of,
            graph=self.graph,
            places=places,
            made_of=made_of,
            lines=[(was_used(edge), _path([places[key] for key in route])) for edge, route in layout.routes],
            links=links or {},
            profiles=profiles or {},
            most_columns=_COLUMNS,
        )


def _path(places: list[_Position]) -> str:
    # from the right side of one box, through the free places, to the left side of the other
    x, y = places[0].x + _WIDTH, places[0].y + _HEIGHT // 2
    path = f"M{x} {y}"
    for place in places[1:]:
        left, middle = place.x, place.y + _HEIGHT // 2
        path += f"C{x + _GAP_X // 2} {y} {left - _GAP_X // 2} {middle} {left} {middle}"
        x, y = place.x + _WIDTH, middle
        if place is not places[-1]:
            path += f"H{x}"
    return path


# The blocks of a dataset on all its branches as lines of text, newest first, with lanes for its branches.
#
#     ● 9   merged from fix-names …  (head)
#     ├─╮
#     │ ● 9   …  (fix-names)
#     ● │ 8
#     ├─╯
#     ● 7
#
# A block is below every block that was made from it: later system times come first, then larger
# numbers.
# What is drawn is bounded by what is asked for: a chain is read only as far as it is drawn.


@dataclass(frozen=True, slots=True)
class DrawnBlock:
    """A block, the lines that lead to it and away from it, and its note."""

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
    """The merged branch."""


class BlockDrawing:
    """The blocks that the head and the branches lead to, also by merges.

    Lanes go from left to right; each waits for the block that its line leads down to.
    """

    def __init__(self, dataset: DatasetFiles, shows: Callable[[str], bool] = bool) -> None:
        """Of the branches those that it `shows`."""
        self._chain = dataset.chain
        self._references: dict[Multihash, list[str]] = {}
        for name in (HEAD, *filter(shows, branch_names(dataset))):
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

    def blocks(self, limit: int | None = None) -> Iterator[DrawnBlock]:
        """At most `limit`, newest first."""
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
        if None not in self._lanes:
            # a new lane on the right
            self._lanes.append(None)
        return self._lanes.index(None)

    def _line(self, marks: dict[int, str]) -> str:
        return " ".join(
            marks.get(i, "│" if waits is not None else " ") for i, waits in enumerate(self._lanes)
        ).rstrip()

    def _joined(self, lane: int, other: int, *, begins: bool, ends: bool) -> str:
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
