"""What `DATASET@POINT` names for commands: the block, its slices, and its rows as they are exported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.model.ddl import type_name
from odfchain.query.pins import Pin, Pins

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.query.query_result import QueryResult


@dataclass(frozen=True, slots=True)
class SliceFile:
    """A slice of a dataset: what its block says of it, and whether the file is here."""

    block: int
    start: int
    end: int
    records: int
    size: int
    logical_hash: str
    physical_hash: str
    path: Path
    here: bool

    def to_document(self) -> dict[str, Any]:
        """The slice as JSON has it."""
        return {
            "block": self.block,
            "offsetInterval": {"start": self.start, "end": self.end},
            "records": self.records,
            "size": self.size,
            "logicalHash": self.logical_hash,
            "physicalHash": self.physical_hash,
            "path": str(self.path),
            "here": self.here,
        }


def pinned(workspace: Workspace, text: str) -> Pin:
    """The dataset and block that a text names; unlike in SQL, names ignore case.

    Raises:
        InvalidIdError, QueryError: not a name, not a point, or a time in the future.
        DatasetNotFoundError, PointNotFoundError: the dataset, or the block, is not here.
    """
    name, at, point = text.partition("@")
    return Pins(workspace._files).pin(f"{workspace[name].alias}{at}{point}")


def columns_of(workspace: Workspace, text: str) -> list[tuple[str, str]]:
    """Name and type of each column at a point; none before the first data. Errors as `pinned`."""
    schema = pinned(workspace, text).state.schema
    return [(each.name, type_name(each.type, each.extra)) for each in schema.fields] if schema else []


def slices_of(workspace: Workspace, text: str) -> list[SliceFile]:
    """The slices that a dataset has at a point, oldest first; errors as `pinned`."""
    pin = pinned(workspace, text)
    found = []
    for ref in pin.state.slices():
        part, interval = ref.slice, ref.slice.offset_interval
        found.append(
            SliceFile(
                ref.sequence_number, interval.start, interval.end, interval.count, part.size,
                str(part.logical_hash), str(part.physical_hash),
                pin.dataset.data.path(part.physical_hash).resolve(),
                pin.dataset.data.contains(part.physical_hash),
            )
        )  # fmt: skip
    return found


def exported(workspace: Workspace, text: str, *, state: bool = False) -> QueryResult:
    """The records at a point, or those in force, in order of offset; nothing is read before it is asked for.

    Raises:
        As `pinned`, and as `Workspace.sql`.
    """
    from odfchain.api.questions import embedded

    pin = pinned(workspace, text)
    # slices are read one after the other: rows come as they were recorded, and nothing has to be sorted
    engine = embedded(workspace, partitions=1)
    pins = Pins(workspace._files, given={pin.name: (pin.id, pin.block_hash)})
    table = f"state('{pin.name}')" if state else f'"{pin.name}"'  # no name and no point has a quote
    return engine.run(f"select * from {table}", pins)  # noqa: S608 - as is said above
