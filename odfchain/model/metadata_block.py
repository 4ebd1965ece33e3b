"""The metadata block, its header, and the snapshot that a new dataset is made from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from odfchain.errors import ManifestError, line_of
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


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a definition was read, so that a fault that is found later is located there."""

    source: str | None
    lines: Mapping[str, int]
    """The line of every path in its manifest, such as `content.metadata[2].merge`."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where the members of a snapshot are, where the document has another form; the whole of it under ''."""
    notes: tuple[str, ...] = ()
    """What of the document a dataset of 0.34.1 does not keep, and what other nodes cannot read."""

    def located(self, error: ManifestError) -> ManifestError:
        """The same fault with file, line and the path in the document."""
        if error.source is not None:  # of a document inside, such as CONSTRAINTS.yaml
            return error
        member, rest = re.fullmatch(r"(\w*)(.*)", error.path, re.DOTALL).groups()  # type: ignore[union-attr]
        line = line_of(self.lines, f"content.{error.path}" if error.path else "")
        return error.located(source=self.source, line=line, path=self.places.get(member, member) + rest)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSnapshot:
    """A dataset's definition as a list of events (specification "DatasetSnapshot")."""

    name: DatasetAlias
    kind: DatasetKind
    metadata: tuple[MetadataEvent, ...]
    watermarks: Mapping[str, WatermarkRule] = field(default_factory=dict, metadata={"tree": False})
    """How the watermarks of its sources move; in the manifest it stands with each source."""
    origin: Origin | None = field(default=None, compare=False, repr=False, metadata={"tree": False})

    def located(self, error: ManifestError) -> ManifestError:
        """The same fault where the definition was read, as far as that is known."""
        return error if self.origin is None else self.origin.located(error)
