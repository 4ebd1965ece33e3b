"""The history of what a dataset is made by: its transforms, or its sources, and what each of them brought.

A definition is in force from its block until the next definition that takes its place. The counts come from
the data blocks at both ends of that interval, so the cost grows with the definitions, not with the chain.
Source: specification "Query Evolution", "SetTransform", "SetPollingSource", "AddPushSource".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from odfchain.chain.chain import HashedBlock, MetadataChain
from odfchain.errors import DatasetNotFoundError, OdfchainError
from odfchain.ids.multihash import Multihash
from odfchain.ids.refs import RemoteDatasetId
from odfchain.lineage.source_names import describe_fetch, describe_merge
from odfchain.model.events import (
    AddPushSource,
    DisablePushSource,
    SetPollingSource,
    SetTransform,
    TransformInput,
)
from odfchain.model.sources import Transform
from odfchain.model.timestamp import Timestamp
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.workspace_files import WorkspaceFiles

_KINDS = (
    "SetTransform", "SetPollingSource", "DisablePollingSource", "AddPushSource", "DisablePushSource",
)  # fmt: skip

Defining = SetTransform | SetPollingSource | AddPushSource


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
    """Whether other sources were in force in some of the same blocks: the records may be theirs."""
    inputs: tuple[QueryInput, ...] = ()

    @property
    def transform(self) -> Transform | None:
        """The transform, or how a source is preprocessed."""
        return self.event.transform if isinstance(self.event, SetTransform) else self.event.preprocess

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
            "block": str(self.block),
            "sequenceNumber": self.sequence_number,
            "systemTime": str(self.system_time),
            "event": self.event.KIND,
            "inForce": self.in_force,
            "blocks": {"from": self.sequence_number, "to": self.last_block},
            "records": self.records,
            "offsets": None if self.first_offset is None else [self.first_offset, self.last_offset],
            "sharedWithOtherSources": self.shared,
            "engine": transform.engine if transform else None,
            "version": transform.version if transform else None,
            "steps": steps_of(transform),
            "inputs": [
                {"alias": i.alias, "id": i.id, "name": i.name, "missing": i.name is None} for i in self.inputs
            ],
        }
        match self.event:
            case SetPollingSource() as event:
                source = {"kind": "polling", "name": None, "fetch": describe_fetch(event.fetch)}
            case AddPushSource() as event:
                source = {"kind": "push", "name": event.source_name, "fetch": None}
            case SetTransform():
                return found | {"source": None}
        return found | {
            "source": source | {"read": self.event.read.KIND, "merge": describe_merge(self.event.merge)}
        }


def definitions_of(workspace: WorkspaceFiles, dataset: DatasetFiles) -> list[Definition]:
    """Every transform or source that a dataset has had, oldest first.

    Raises:
        DatasetNotFoundError: it has had none.
    """
    state = DatasetState.read(dataset.chain)
    definitions: list[Definition] = []
    ends: dict[int, HashedBlock] = {}
    following: dict[str, HashedBlock] = {}
    for block in dataset.chain.nearest_all(*_KINDS, head=state.head):  # newest first
        end = following.get(_slot(block))
        following[_slot(block)] = block
        event = block.block.event
        if not isinstance(event, SetTransform | SetPollingSource | AddPushSource):
            continue
        number = block.block.sequence_number
        ends[number] = end or HashedBlock(state.head, state.head_block)
        inputs = event.inputs if isinstance(event, SetTransform) else ()
        definitions.append(
            Definition(
                block=block.hash,
                sequence_number=number,
                system_time=block.block.system_time,
                event=event,
                last_block=end.block.sequence_number - 1 if end else state.head_block.sequence_number,
                in_force=end is None,
                inputs=tuple(_input(workspace, item) for item in inputs),
            )
        )
    if not definitions:
        raise DatasetNotFoundError(
            f"{dataset.alias} has no transform and no source",
            hint="its data are pushed to it directly",
        )
    return [
        _counted(dataset.chain, item, ends[item.sequence_number], definitions)
        for item in reversed(definitions)
    ]


def _slot(block: HashedBlock) -> str:
    """What only one definition at a time can be."""
    match block.block.event:
        case AddPushSource() | DisablePushSource() as event:
            return f"push {event.source_name}"
        case SetTransform():
            return "transform"
    return "polling"


def _input(workspace: WorkspaceFiles, item: TransformInput) -> QueryInput:
    ref = item.dataset_ref
    target = str(ref.id if isinstance(ref, RemoteDatasetId) else ref)
    try:
        name = str(workspace.dataset(target).alias)
    except OdfchainError:
        name = None
    return QueryInput(item.alias, target, name)


def _counted(
    chain: MetadataChain, item: Definition, end: HashedBlock, all_found: list[Definition]
) -> Definition:
    before, upto = (DatasetState.read(chain, head).last_offset for head in (item.block, end.hash))
    shared = any(
        other is not item
        and other.sequence_number <= item.last_block
        and item.sequence_number <= other.last_block
        for other in all_found
    )
    if upto is None or upto == before:
        return replace(item, shared=shared)
    first = 0 if before is None else before + 1
    return replace(item, first_offset=first, last_offset=upto, shared=shared)


def steps_of(transform: Transform | None) -> list[dict[str, Any]]:
    """The queries of a transform in their order, each with the name of its result."""
    if transform is None:
        return []
    steps = [{"alias": step.alias, "query": step.query} for step in transform.queries or ()]
    return steps or ([{"alias": None, "query": transform.query}] if transform.query else [])
