"""The metadata block, its header, and the snapshot that a new dataset is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.model.enums import DatasetKind
from odfchain.model.events import AddData, DataSlice, ExecuteTransform, MetadataEvent
from odfchain.model.sources import WatermarkRule
from odfchain.model.timestamp import Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataBlock:
    """One link of a metadata chain (specification "MetadataBlock")."""

    system_time: Timestamp
    prev_block_hash: Multihash | None = None
    sequence_number: int
    event: MetadataEvent

    @property
    def new_data(self) -> DataSlice | None:
        """The slice that the block adds, where it adds one."""
        return self.event.new_data if isinstance(self.event, AddData | ExecuteTransform) else None


class BlockHeader(NamedTuple):
    """What a walk along a chain needs; read without decoding the event."""

    prev_block_hash: Multihash | None
    sequence_number: int
    event_kind: str
    """Name of the event's table, such as `AddData`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSnapshot:
    """A dataset's definition as a list of events (specification "DatasetSnapshot")."""

    name: DatasetAlias
    kind: DatasetKind
    metadata: tuple[MetadataEvent, ...]
    watermarks: Mapping[str, WatermarkRule] = field(default_factory=dict, metadata={"tree": False})
    """How the watermarks of its sources move; in the manifest it stands with each source."""
