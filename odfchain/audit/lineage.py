"""The graph of datasets and what they are made of, over the whole history of their chains.

What is not here or cannot be read becomes a node that says so: lineage is asked for most when something is
missing. A dataset is read once however many paths lead to it, so a circle cannot hold anybody up.
Source: specification "Provenance", "Query Evolution".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from odfchain.branches.branches import Branch, Branches
from odfchain.chain.chain import HashedBlock, MetadataChain
from odfchain.chain.index import sources_in_force
from odfchain.errors import CodecError, DatasetNotFoundError, OdfchainError
from odfchain.limits import LINEAGE
from odfchain.odf import events as ev
from odfchain.odf import sources as src
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.sources import Transform
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import POLLING_SOURCE, record_of
from odfchain.storage.local import HEAD
from odfchain.storage.locations import public_name
from odfchain.text import counted, one_line
from odfchain.transfer.sharing import AliasKind, aliases
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import MergeMode, MergeRecord, first_record, is_merge_state, merges
from odfchain.workspace.workspace_files import WorkspaceFiles

# The source of a transaction of a root dataset, as far as blocks record it.
# A block names its source only with the source's state; pushed data have none. Then the sources in force
# are candidates, and a single one is the answer. Source: specification "AddData" (`newSourceState`),
# "SetPollingSource", "AddPushSource".


@dataclass(frozen=True, slots=True)
class SourceUse:
    """The source of a transaction's data; `definition` is None where that is not known."""

    definition: ev.SetPollingSource | ev.AddPushSource | None
    state: ev.SourceState | None
    problem: str | None = None
    merged: MergeRecord | None = None
    """Of a merge, or a revert; `definition` is then of the rows that were there before."""

    @property
    def kind(self) -> str | None:
        """Polling, push, merge or revert."""
        if self.merged is not None:
            return self.merged.mode.value
        match self.definition:
            case ev.SetPollingSource():
                return "polling"
            case ev.AddPushSource():
                return "push"
        return None

    @property
    def name(self) -> str | None:
        """The source's name, where one is recorded; that of the branch that was merged."""
        if self.merged is not None:
            return one_line(self.merged.source_ref)
        if isinstance(self.definition, ev.AddPushSource):
            return one_line(self.definition.source_name)
        return one_line(self.state.source_name) if self.state else None

    @property
    def fetch(self) -> str | None:
        """The origin of a polling source, without user names, passwords and values of variables."""
        found = self.definition
        return describe_fetch(found.fetch) if isinstance(found, ev.SetPollingSource) else None

    @property
    def primary_key(self) -> tuple[str, ...] | None:
        """The columns that tell records apart, None where the merge strategy has none."""
        return getattr(self.definition.merge, "primary_key", None) if self.definition else None


def describe_fetch(step: src.FetchStep) -> str:
    """A fetch step in a line without secrets."""
    match step:
        case src.FetchStepUrl():
            return public_name(step.url)
        case src.FetchStepFilesGlob():
            return one_line(f"files {step.path}")
        case src.FetchStepContainer():
            return one_line(f"container {step.image}")
        case src.FetchStepMqtt():
            return one_line(f"MQTT {step.host}:{step.port}")
        case src.FetchStepEthereumLogs():
            return one_line(f"logs of Ethereum chain {step.chain_id}")


def describe_merge(merge: src.MergeStrategy) -> str:
    """A merge strategy and its key, in a few words."""
    key = getattr(merge, "primary_key", None)
    return one_line(f"{merge.KIND} by {', '.join(key)}" if key else merge.KIND)


def describe_merged(record: MergeRecord, *, drawn: bool = False) -> str:
    """Whose changes a block took over, in a line; without the source's hash where a line is drawn to it."""
    if record.mode is MergeMode.REVERT:
        text = f"reverts block {record.base[0]}"
    else:
        text = f"merged from {record.source_ref}" + ("" if drawn else f" ({record.source})")
    if record.conflicts:
        text += f", {counted(record.conflicts, 'conflict')} decided: {record.resolution.value}"
    return one_line(f"{text}: {record.message}" if record.message else text)


def source_of(chain: MetadataChain, block: HashedBlock) -> SourceUse:
    """The source of an AddData block's data."""
    event = block.block.event
    state = event.new_source_state if isinstance(event, ev.AddData) else None
    polling = chain.nearest_event(ev.SetPollingSource, ev.DisablePollingSource, head=block.hash)
    defined = chain.nearest_all("AddPushSource", "DisablePushSource", head=block.hash)
    push = sources_in_force(item.block.event for item in defined)
    candidates = [polling] if isinstance(polling, ev.SetPollingSource) else list(push.values())
    if is_merge_state(state):
        try:
            record = first_record(chain, block)
        except CodecError as error:
            return SourceUse(None, state, error.message)
        if record is not None:
            return SourceUse(candidates[0] if len(candidates) == 1 else None, None, merged=record)
        state = None  # carried on by a tool that knows no merges: it says nothing of this block
    if state is not None:
        if state.source_name == POLLING_SOURCE and isinstance(polling, ev.SetPollingSource):
            return SourceUse(polling, state)
        if state.source_name in push:
            return SourceUse(push[state.source_name], state)
        return SourceUse(None, state, f"no source called {one_line(state.source_name)!r} was in force")
    match candidates:
        case []:
            return SourceUse(None, None, "none was in force, the data were added directly")
        case [only]:
            return SourceUse(only, None)
    names = ", ".join(repr(one_line(source.source_name)) for source in push.values())
    return SourceUse(None, None, f"not recorded: one of the push sources {names}")


# The history of a dataset's transforms or sources, with counts of what each of them brought.
# A definition is in force until the next one in its place. Counts come from the data blocks at both ends of
# that interval, so the cost grows with the definitions, not with the chain. Source: specification "Query
# Evolution", "SetTransform", "SetPollingSource", "AddPushSource".

_KINDS = (
    "SetTransform", "SetPollingSource", "DisablePollingSource", "AddPushSource", "DisablePushSource",
)  # fmt: skip

Defining = ev.SetTransform | ev.SetPollingSource | ev.AddPushSource


@dataclass(frozen=True, slots=True)
class QueryInput:
    """An input of a transform: how its queries call it, its id, and its name here (None: it is missing)."""

    alias: str | None
    id: str
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A transform or source, the blocks in which it is in force, and the records that came in them."""

    block: Multihash
    sequence_number: int
    system_time: Timestamp
    event: Defining
    last_block: int
    in_force: bool
    first_offset: int | None = None
    """Offset of the first record of these blocks; with `last_offset` None when there is none."""
    last_offset: int | None = None
    shared: bool = False
    """True if other sources were in force in some of the same blocks: the records may be theirs."""
    inputs: tuple[QueryInput, ...] = ()

    @classmethod
    def all_of(cls, workspace: WorkspaceFiles, dataset: DatasetFiles) -> list[Definition]:
        """Every transform or source that a dataset has had, oldest first."""
        state = DatasetState.read(dataset.chain)
        found: list[tuple[HashedBlock, HashedBlock | None]] = []
        following: dict[str, HashedBlock] = {}
        for block in dataset.chain.nearest_all(*_KINDS, head=state.head):  # newest first
            if isinstance(block.block.event, Defining):
                found.append((block, following.get(_slot(block))))
            following[_slot(block)] = block
        if not found:
            raise DatasetNotFoundError(
                f"{dataset.alias} has no transform and no source", hint="its data are pushed to it directly"
            )
        newest = state.head_block.sequence_number
        spans = [
            (block.block.sequence_number, end.block.sequence_number - 1 if end else newest)
            for block, end in found
        ]
        definitions = []
        for (block, end), (first, last) in zip(reversed(found), reversed(spans), strict=True):
            event, heads = block.block.event, (block.hash, end.hash if end else state.head)
            before, upto = (DatasetState.read(dataset.chain, head).last_offset for head in heads)
            assert isinstance(event, Defining)  # noqa: S101 - it was chosen for this
            new = upto is not None and upto != before
            named = event.inputs if isinstance(event, ev.SetTransform) else ()
            definitions.append(
                cls(
                    block=block.hash,
                    sequence_number=first,
                    system_time=block.block.system_time,
                    event=event,
                    last_block=last,
                    in_force=end is None,
                    first_offset=(0 if before is None else before + 1) if new else None,
                    last_offset=upto if new else None,
                    shared=sum(begin <= last and first <= stop for begin, stop in spans) > 1,
                    inputs=tuple(_input(workspace, item) for item in named),
                )
            )
        return definitions

    @property
    def transform(self) -> Transform | None:
        """The transform, or how a source is preprocessed."""
        return self.event.transform if isinstance(self.event, ev.SetTransform) else self.event.preprocess

    @property
    def records(self) -> int:
        """Number of records in the blocks."""
        if self.first_offset is None or self.last_offset is None:
            return 0
        return self.last_offset - self.first_offset + 1

    def to_document(self) -> dict[str, Any]:
        """The definition as JSON can hold it."""
        transform = self.transform
        found: dict[str, Any] = {
            **record_of(self, "block", "sequence_number", "system_time", "event:event.KIND", "in_force"),
            "blocks": record_of(self, "from:sequence_number", "to:last_block"),
            "records": self.records,
            "offsets": None if self.first_offset is None else [self.first_offset, self.last_offset],
            "sharedWithOtherSources": self.shared,
            **record_of(self, "engine:transform.engine", "version:transform.version"),
            "steps": steps_of(transform),
            "inputs": [
                record_of(i, "alias", "id", "name") | {"missing": i.name is None} for i in self.inputs
            ],
        }
        match self.event:
            case ev.SetPollingSource() as event:
                source = {"kind": "polling", "name": None, "fetch": describe_fetch(event.fetch)}
            case ev.AddPushSource() as event:
                source = {"kind": "push", "name": event.source_name, "fetch": None}
            case ev.SetTransform():
                return found | {"source": None}
        source |= {"read": self.event.read.KIND, "merge": describe_merge(self.event.merge)}
        return found | {"source": source}


def _slot(block: HashedBlock) -> str:
    # two definitions of the same slot replace each other
    match block.block.event:
        case ev.AddPushSource() | ev.DisablePushSource() as event:
            return f"push {event.source_name}"
        case ev.SetTransform():
            return "transform"
    return "polling"


def _input(workspace: WorkspaceFiles, item: ev.TransformInput) -> QueryInput:
    target = str(item.id or item.dataset_ref)
    try:
        name = str(workspace.dataset(target).alias)
    except OdfchainError:
        name = None
    return QueryInput(item.alias, target, name)


def steps_of(transform: Transform | None) -> list[dict[str, Any]]:
    """The queries of a transform in their order, each with the name of its result."""
    if transform is None:
        return []
    steps = [{"alias": step.alias, "query": step.query} for step in transform.queries or ()]
    return steps or ([{"alias": None, "query": transform.query}] if transform.query else [])


# Branches in lineage: each relative to the head, and the merges into the head.

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class MergedBranch:
    """A branch that the head has merged, which may be gone by now, and the blocks that did, oldest first."""

    name: str
    blocks: tuple[int, ...]

    def __str__(self) -> str:
        newest = f"block {self.blocks[-1]}"
        times = f"{counted(len(self.blocks), 'time')}, last in {newest}" if len(self.blocks) > 1 else newest
        return f"merged {self.name} {'in ' if len(self.blocks) == 1 else ''}{times}"


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """The branches of a dataset, and those that its head has merged."""

    branches: tuple[Branch, ...] = ()
    merged: tuple[MergedBranch, ...] = ()

    @classmethod
    def of(cls, dataset: DatasetFiles) -> BranchFacts:
        """The readable facts of a branch; a damaged one is compared with nothing."""
        try:
            chain = dataset.on(HEAD).chain
            found: dict[str, list[int]] = {}
            for item in merges(chain, DatasetState.read(chain).head):
                if item.record.mode is MergeMode.MERGE:
                    name = one_line(item.record.source_ref)
                    found.setdefault(name, []).append(item.block.block.sequence_number)
            merged = tuple(MergedBranch(name, tuple(blocks)) for name, blocks in found.items())
            return cls(tuple(Branches(dataset).all()), merged)
        except OdfchainError:
            return cls()

    def lines(self) -> list[str]:
        """A few words on each branch and each that was merged; of many, on the first ones."""
        ways = [f"branch {item.name}: {lies(item)}" for item in self.branches]
        return [*_first(ways, "branches"), *_first([str(item) for item in self.merged], "merged branches")]

    def to_document(self) -> dict[str, Any]:
        """The branches for programs."""
        return {
            "branches": [item.to_document() for item in self.branches],
            "merged": [{"branch": item.name, "blocks": list(item.blocks)} for item in self.merged],
        }


def lies(branch: Branch) -> str:
    """How a branch lies to the head, in words."""
    words = [f"{branch.ahead} ahead"] if branch.ahead else []
    words += [f"{branch.behind} behind"] if branch.behind else []
    return ", ".join(words) or "as the head"


def _first(lines: Sequence[str], what: str) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"and {more:,} more {what}"] if more > 0 else [])]


class NodeState(Enum):
    """The facts of a dataset."""

    PRESENT = "present"
    MISSING = "missing"
    DAMAGED = "damaged"
    """Here, but its chain cannot be read; `problem` says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A dataset of the graph; `id` is its key."""

    id: str
    alias: str | None
    """Its name here; of a missing dataset the name that a transform gives it."""
    state: NodeState
    kind: DatasetKind | None = None
    problem: str | None = None
    blocks: int | None = None
    records: int | None = None
    watermark: Timestamp | None = None
    last_block_time: Timestamp | None = None
    pulled_from: tuple[str, ...] = ()
    """The copy's origin, without user names and passwords."""
    branching: BranchFacts = field(default_factory=BranchFacts)

    @property
    def name(self) -> str:
        """The display name."""
        return self.alias or self.id

    def summary(self) -> dict[str, Any]:
        """The dataset as it is nested in others."""
        return {
            "id": self.id,
            "alias": self.alias,
            "kind": self.kind.value.lower() if self.kind else None,
            "missing": self.state is NodeState.MISSING,
        }

    def to_document(self) -> dict[str, Any]:
        """The dataset for programs."""
        return self.summary() | {
            "state": self.state.value,
            **record_of(self, "problem", "blocks", "records", "watermark", "last_block_time", "pulled_from"),
            **self.branching.to_document(),
        }


@dataclass(frozen=True, slots=True)
class InputUse:
    """Blocks of a derivative dataset in which a transform with this input was in force; None: until now."""

    first_block: int
    last_block: int | None

    def __str__(self) -> str:
        if self.last_block is None:
            return f"since block {self.first_block}"
        return f"until block {self.last_block}"


@dataclass(frozen=True, slots=True)
class Edge:
    """`downstream` is or was made of `upstream`, which its queries call `alias`."""

    upstream: str
    downstream: str
    alias: str | None
    uses: tuple[InputUse, ...]

    @property
    def in_force(self) -> bool:
        """True if the newest transform has this input."""
        return self.uses[-1].last_block is None

    def to_document(self) -> dict[str, Any]:
        """The edge for programs."""
        return {
            **record_of(self, "upstream", "downstream", "alias", "in_force"),
            "uses": [record_of(use, "first_block", "last_block") for use in self.uses],
        }


@dataclass(slots=True)
class Graph:
    """Datasets and edges; `roots` are those that were asked about."""

    downstream: bool = False
    roots: list[str] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    after: dict[str, list[Edge]] = field(default_factory=dict)
    """The edges that lead on from each node: to its inputs, or to what is made of it."""

    def __repr__(self) -> str:
        way = "downstream" if self.downstream else "upstream"
        return f"<lineage {way}: {len(self.nodes):,} datasets, {len(self.edges):,} edges>"

    @property
    def edges(self) -> list[Edge]:
        """All edges, in the order in which they were found."""
        return [edge for edges in self.after.values() for edge in edges]

    def end_of(self, edge: Edge) -> Node:
        """The node that an edge leads to."""
        return self.nodes[edge.downstream if self.downstream else edge.upstream]

    def to_document(self) -> dict[str, Any]:
        """The graph for programs: what was asked about (upstream: with nested inputs), nodes, and edges."""
        opened: set[str] = set()
        asked = []
        for key in self.roots:
            item = self.nodes[key].summary()
            if not self.downstream:
                opened.add(key)
                item["inputs"] = self._nested(key, opened, 1)
            asked.append(item)
        return {
            "direction": "downstream" if self.downstream else "upstream",
            "datasets": asked,
            "nodes": [node.to_document() for node in self.nodes.values()],
            "edges": [edge.to_document() for edge in self.edges],
        }

    def to_trees(self) -> list[TextTree]:
        """The graph for people: a tree for each dataset that was asked about."""
        opened: set[str] = set()
        return [self._tree(self.nodes[key], None, opened, (key,)) for key in self.roots]

    def _nested(self, key: str, opened: set[str], depth: int) -> list[dict[str, Any]]:
        inputs = []
        for edge in self.after.get(key, ()):
            node = self.end_of(edge)
            item = node.summary()
            item["inputs"] = []
            if node.id not in opened and depth < LINEAGE.depth:
                opened.add(node.id)
                item["inputs"] = self._nested(node.id, opened, depth + 1)
            inputs.append(item)
        return inputs

    def _tree(self, node: Node, edge: Edge | None, opened: set[str], path: tuple[str, ...]) -> TextTree:
        words = facts_of(node, branching=False)
        if edge is not None and not edge.in_force:
            words.insert(0, was_used(edge))
        tree = TextTree(f"{node.name}: {', '.join(words)}", style=_STYLES[node.state])
        following = self.after.get(node.id, ())
        if node.id not in opened:
            tree.below += (TextTree(line, style="cyan") for line in node.branching.lines())
        if node.id in path[:-1]:
            tree.text += " (comes from itself: a circle)"
        elif not following:
            opened.add(node.id)
        elif node.id in opened:
            tree.text += " (opened up above)"
        elif len(path) > LINEAGE.depth:
            tree.text += f" (more than {LINEAGE.depth} levels: ask for this dataset)"
        else:
            opened.add(node.id)
            for item in following:
                other = self.end_of(item)
                tree.below.append(self._tree(other, item, opened, (*path, other.id)))
        return tree


def key_of(dataset: DatasetFiles) -> str:
    """The id of a dataset; the name of its folder says it where its chain cannot."""
    try:
        return str(dataset.id)
    except OdfchainError:
        try:
            return str(DatasetId.from_multibase(dataset.folder.name))
        except OdfchainError:
            return dataset.folder.name


def lineage_of(
    workspace: WorkspaceFiles, datasets: Iterable[DatasetFiles], *, downstream: bool = False
) -> Graph:
    """The upstream (or `downstream`) graph of the datasets; errors are in the nodes.

    Downstream only the datasets of this workspace can be known.
    """
    graph = Graph(downstream=downstream)
    reading = _GraphReader(workspace)
    before = _consumers(reading) if downstream else {}
    waiting: list[tuple[str, DatasetFiles | None, str | None]] = []
    for dataset in datasets:
        key = reading.enter(dataset)
        if key not in graph.roots:
            graph.roots.append(key)
            waiting.append((key, dataset, None))
    waiting.reverse()
    while waiting:
        key, found, named = waiting.pop()
        if key in graph.nodes:
            continue
        graph.nodes[key] = reading.node(key, found, named)
        graph.after[key] = before.get(key, []) if downstream else reading.inputs(key)
        for edge in reversed(graph.after[key]):
            other = edge.downstream if downstream else edge.upstream
            waiting.append((other, reading.local.get(other), edge.alias))
    return graph


def _consumers(reading: _GraphReader) -> dict[str, list[Edge]]:
    edges: dict[str, list[Edge]] = {}
    for dataset in reading.workspace.datasets():
        for edge in reading.inputs(reading.enter(dataset)):
            edges.setdefault(edge.upstream, []).append(edge)
    return edges


class _GraphReader:
    """Reads each dataset once."""

    def __init__(self, workspace: WorkspaceFiles) -> None:
        self.workspace = workspace
        self.local: dict[str, DatasetFiles] = {}
        self._problems: dict[str, str] = {}
        self._edges: dict[str, list[Edge]] = {}

    def enter(self, dataset: DatasetFiles) -> str:
        key = key_of(dataset)
        self.local[key] = dataset
        return key

    def inputs(self, key: str) -> list[Edge]:
        if (dataset := self.local.get(key)) is None:
            return []
        if key not in self._edges:
            uses: dict[str, tuple[str | None, list[InputUse]]] = {}
            try:
                for first, last, event in transforms_of(dataset):
                    for item in event.inputs:
                        other = self._resolve(str(item.id or item.dataset_ref))
                        intervals = uses.setdefault(other, (item.alias, []))[1]
                        if intervals and last is not None and intervals[0].first_block == last + 1:
                            intervals[0] = InputUse(first, intervals[0].last_block)
                        else:
                            intervals.insert(0, InputUse(first, last))
            except OdfchainError as error:
                self._problems[key] = str(error)
            edges = [Edge(other, key, named, tuple(found)) for other, (named, found) in uses.items()]
            self._edges[key] = edges
        return self._edges[key]

    def _resolve(self, target: str) -> str:
        key = one_line(target)
        if key not in self.local:
            try:
                return self.enter(self.workspace.dataset(target))
            except DatasetNotFoundError:
                pass
            except OdfchainError as error:
                self._problems[key] = str(error)
        return key

    def node(self, key: str, dataset: DatasetFiles | None, named: str | None) -> Node:
        if dataset is None:
            problem = self._problems.get(key)
            known = NodeState.DAMAGED if problem else NodeState.MISSING
            return Node(id=key, alias=named and one_line(named), state=known, problem=problem)
        alias = str(dataset.alias)
        self.inputs(key)  # a chain that breaks further back is damaged too
        try:
            state = DatasetState.read(dataset.chain)
            facts = Node(
                id=key,
                alias=alias,
                state=NodeState.DAMAGED if key in self._problems else NodeState.PRESENT,
                kind=state.seed.dataset_kind,
                problem=self._problems.get(key),
                blocks=state.head_block.sequence_number + 1,
                records=state.record_count,
                watermark=state.watermark,
                last_block_time=state.head_block.system_time,
                pulled_from=_pulled_from(dataset),
                branching=BranchFacts.of(dataset),
            )
        except OdfchainError as error:
            return Node(id=key, alias=alias, state=NodeState.DAMAGED, problem=str(error))
        return facts


def _pulled_from(dataset: DatasetFiles) -> tuple[str, ...]:
    try:
        return tuple(public_name(text) for text in aliases(dataset, AliasKind.PULL))
    except OdfchainError:
        return ()  # a damaged note of the owner's says nothing about the dataset


def input_aliases(transform: ev.SetTransform | None) -> dict[DatasetId, str]:
    """How the queries of a transform call its inputs, where they have other names there."""
    inputs = transform.inputs if transform is not None else ()
    return {item.id: item.alias for item in inputs if item.id is not None and item.alias is not None}


def transforms_of(dataset: DatasetFiles) -> Iterator[tuple[int, int | None, ev.SetTransform]]:
    """The transforms of a dataset with the first and last block in which each is in force, newest first.

    The last block of the newest one is None: it is in force still.
    """
    if dataset.chain.head() is None:
        DatasetState.read(dataset.chain)
    last: int | None = None
    for found in dataset.chain.nearest_all("SetTransform"):
        event = found.block.event
        assert isinstance(event, ev.SetTransform)  # noqa: S101 - asked for this kind
        yield found.block.sequence_number, last, event
        last = found.block.sequence_number - 1


# The graph of datasets as trees: nested documents for programs, indented lines for people. A dataset is
# expanded at its first place only, so output grows with the graph, not with its paths, and cycles end.


@dataclass(slots=True)
class TextTree:
    """A line for people, and what is indented below it."""

    text: str
    below: list[TextTree] = field(default_factory=list)
    style: str = ""

    @classmethod
    def parse(cls, text: str) -> TextTree:
        """The tree of lines that are two blanks further in for each level, each with a mark of its style."""
        top = cls("")
        path = [top]
        for line in filter(None, text.split("\n")):
            mark, _, said = line.lstrip(" ").partition(" ")
            item = cls(said, style=_MARKS[mark])
            del path[(len(line) - len(said) - 2) // 2 + 1 :]
            path[-1].below.append(item)
            path.append(item)
        return top.below[0]


_MARKS = {"-": "", "*": "bold", "?": "yellow", "!": "red"}


def facts_of(node: Node, *, branching: bool = True) -> list[str]:
    """Short facts of a dataset; times without fractions of a second."""
    match node.state:
        case NodeState.MISSING:
            return ["missing"] if node.alias is None else ["missing", node.id]
        case NodeState.DAMAGED:
            return ["damaged", *([node.problem] if node.problem else [])]
    facts = [node.kind.value.lower()] if node.kind else []
    facts += [counted(node.blocks or 0, "block"), counted(node.records or 0, "record")]
    if node.watermark is not None:
        facts.append(f"watermark {node.watermark}")
    if node.last_block_time is not None:
        facts.append(f"last block {node.last_block_time}")
    if node.pulled_from:
        facts.append(f"pulled from {node.pulled_from[0]}")
    return facts + (node.branching.lines() if branching else [])


def was_used(edge: Edge) -> str:
    """When an input that is used no more was used; empty where the newest transform has it."""
    return "" if edge.in_force else " and ".join(str(use) for use in edge.uses)


_STYLES = {NodeState.PRESENT: "", NodeState.MISSING: "yellow", NodeState.DAMAGED: "red"}
