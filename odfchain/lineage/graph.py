"""The graph of datasets and what they are made of, over the whole history of their chains.

What is not here or cannot be read becomes a node that says so: lineage is asked for most when something is
missing. A dataset is read once however many paths lead to it, so a circle cannot hold anybody up.
Source: specification "Provenance", "Query Evolution".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from odfchain.errors import DatasetNotFoundError, OdfchainError
from odfchain.ids.did import DatasetId
from odfchain.ids.refs import DatasetRefAny, RemoteDatasetId
from odfchain.lineage.branch_facts import BranchFacts
from odfchain.model.enums import DatasetKind
from odfchain.model.events import SetTransform
from odfchain.model.timestamp import Timestamp
from odfchain.net.template import public_name
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.text import one_line
from odfchain.transfer.aliases import AliasKind, aliases


class NodeState(Enum):
    """What is known of a dataset."""

    PRESENT = "present"
    MISSING = "missing"
    """Not in this workspace."""
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
    """Where the copy comes from, without user names and passwords."""
    branching: BranchFacts = field(default_factory=BranchFacts)

    @property
    def name(self) -> str:
        """What people call it."""
        return self.alias or self.id


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
        """Whether the newest transform has this input."""
        return self.uses[-1].last_block is None


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
    """What the datasets come from, or (`downstream`) what comes from them; errors are in the nodes.

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
        """The edges to all inputs that a dataset has had, those in force first."""
        dataset = self.local.get(key)
        if dataset is None:
            return []
        if key not in self._edges:
            uses: dict[str, tuple[str | None, list[InputUse]]] = {}
            try:
                for first, last, event in transforms_of(dataset):
                    for item in event.inputs:
                        other = self._resolve(item.dataset_ref)
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

    def _resolve(self, ref: DatasetRefAny) -> str:
        target = str(ref.id if isinstance(ref, RemoteDatasetId) else ref)
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


def transforms_of(dataset: DatasetFiles) -> Iterator[tuple[int, int | None, SetTransform]]:
    """The transforms of a dataset with the first and last block in which each is in force, newest first.

    The last block of the newest one is None: it is in force still.
    """
    if dataset.chain.head() is None:
        DatasetState.read(dataset.chain)
    last: int | None = None
    for found in dataset.chain.nearest_all("SetTransform"):
        event = found.block.event
        assert isinstance(event, SetTransform)  # noqa: S101 - asked for this kind
        yield found.block.sequence_number, last, event
        last = found.block.sequence_number - 1
