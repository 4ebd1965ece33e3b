"""The thirteen metadata events and the fragments that belong to them alone.

Source: specification "Metadata Events" and "Fragments". Field names are the specification's in snake_case;
the order of fields is that of `schemas/odf.fbs`, because it decides the bytes that are hashed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import NamedTuple, TypeAlias

from odfchain.errors import ManifestError, line_of
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import DatasetAlias, DatasetRefAny, RemoteDatasetId
from odfchain.odf.schema import DataSchema, ExtraAttributes, Variant
from odfchain.odf.sources import FetchStep, MergeStrategy, PrepStep, ReadStep, Transform, WatermarkRule
from odfchain.odf.times import Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetInterval:
    """A closed interval `[start; end]` of record offsets (uint64)."""

    start: int
    end: int

    @property
    def count(self) -> int:
        """Number of records in the interval."""
        return self.end - self.start + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSlice:
    """A part file of data: its two hashes, its offsets, and its size [bytes]."""

    logical_hash: Multihash
    physical_hash: Multihash
    offset_interval: OffsetInterval
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint file: its hash and size [bytes]."""

    physical_hash: Multihash
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """How far a source was read; standard kinds are `odf/etag` and `odf/last-modified`."""

    source_name: str
    kind: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AddData(Variant):
    """Data was ingested into a root dataset."""

    prev_checkpoint: Multihash | None = None
    prev_offset: int | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Timestamp | None = None
    new_source_state: SourceState | None = None
    extra: ExtraAttributes | None = None

    @property
    def last_offset(self) -> int | None:
        """Offset of the last record of the dataset after this event, if it has any."""
        return self.new_data.offset_interval.end if self.new_data else self.prev_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteTransformInput:
    """What one input contributed: blocks `(prev, new]` and records `(prev, new]`."""

    dataset_id: DatasetId
    prev_block_hash: Multihash | None = None
    new_block_hash: Multihash | None = None
    prev_offset: int | None = None
    new_offset: int | None = None

    @property
    def last_block_hash(self) -> Multihash | None:
        """The last block of the input that has been taken in so far."""
        return self.new_block_hash or self.prev_block_hash

    @property
    def last_offset(self) -> int | None:
        """The last record of the input that has been taken in so far."""
        # not `or`: the first record has offset 0
        return self.prev_offset if self.new_offset is None else self.new_offset

    @property
    def record_count(self) -> int:
        """Number of records taken in by this transaction."""
        if self.new_offset is None:
            return 0
        # offsets count from 0, so without a previous one there are `new_offset` + 1 records
        return self.new_offset + 1 if self.prev_offset is None else self.new_offset - self.prev_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteTransform(Variant):
    """A derivative transformation was performed."""

    query_inputs: tuple[ExecuteTransformInput, ...]
    prev_checkpoint: Multihash | None = None
    prev_offset: int | None = None
    new_data: DataSlice | None = None
    new_checkpoint: Checkpoint | None = None
    new_watermark: Timestamp | None = None

    @property
    def last_offset(self) -> int | None:
        """Offset of the last record of the dataset after this event, if it has any."""
        return self.new_data.offset_interval.end if self.new_data else self.prev_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Seed(Variant):
    """The first event of every chain: the dataset's identity."""

    dataset_id: DatasetId
    dataset_kind: DatasetKind


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPollingSource(Variant):
    """How externally hosted data is ingested."""

    fetch: FetchStep
    prepare: tuple[PrepStep, ...] | None = None
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformInput:
    """An input of a derivative dataset; in a block the reference is an id (as text) and the alias is set."""

    dataset_ref: DatasetRefAny
    alias: str | None = None

    @property
    def id(self) -> DatasetId | None:
        """The dataset's id; None where it is given by another name, as in a manifest."""
        return self.dataset_ref.id if isinstance(self.dataset_ref, RemoteDatasetId) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTransform(Variant):
    """The transformation that produces a derivative dataset."""

    inputs: tuple[TransformInput, ...]
    transform: Transform

    @property
    def input_ids(self) -> list[DatasetId]:
        """The ids of its inputs; in a block all have one."""
        return [item.id for item in self.inputs if item.id is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVocab(Variant):
    """Names of the system columns, where they differ from the defaults."""

    offset_column: str | None = None
    operation_type_column: str | None = None
    system_time_column: str | None = None
    event_time_column: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetVocabulary:
    """Names of the system columns of a dataset (specification "Common Data Schema")."""

    offset_column: str = "offset"
    operation_type_column: str = "op"
    system_time_column: str = "system_time"
    event_time_column: str = "event_time"

    @classmethod
    def from_event(cls, event: SetVocab | None) -> DatasetVocabulary:
        """The names in force after the latest `SetVocab`; names it leaves out are the defaults."""
        given = {} if event is None else asdict(event)
        return cls(**{name: text for name, text in given.items() if text})

    @property
    def columns(self) -> tuple[str, str, str, str]:
        """The four names in storage order."""
        return self.offset_column, self.operation_type_column, self.system_time_column, self.event_time_column


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentEmbedded:
    """A file that is carried inside the metadata."""

    path: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentsEmbedded(Variant):
    """Attachments given inline."""

    items: tuple[AttachmentEmbedded, ...]


# a union of one member in the specification (`schemas/odf.fbs`)
Attachments: TypeAlias = AttachmentsEmbedded


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAttachments(Variant):
    """Files that belong to the dataset, such as a readme."""

    attachments: Attachments


@dataclass(frozen=True, slots=True, kw_only=True)
class SetInfo(Variant):
    """A sentence and keywords that describe the dataset."""

    description: str | None = None
    keywords: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLicense(Variant):
    """The license of the data."""

    short_name: str
    name: str
    spdx_id: str | None = None
    website_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDataSchema(Variant):
    """The schema of all data slices that follow, as raw Arrow (0.34.1) or in the ODF form (0.37)."""

    raw_arrow_schema: bytes | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPushSource(Variant):
    """How data pushed from a logical source is ingested."""

    source_name: str = "default"
    read: ReadStep
    preprocess: Transform | None = None
    merge: MergeStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class DisablePushSource(Variant):
    """A push source is no longer used."""

    source_name: str


@dataclass(frozen=True, slots=True)
class DisablePollingSource(Variant):
    """The polling source is no longer used."""


MetadataEvent: TypeAlias = (
    AddData
    | ExecuteTransform
    | Seed
    | SetPollingSource
    | SetTransform
    | SetVocab
    | SetAttachments
    | SetInfo
    | SetLicense
    | SetDataSchema
    | AddPushSource
    | DisablePushSource
    | DisablePollingSource
)


# The metadata block, its header, and the snapshot that a new dataset is made from.


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
    """The fields that a walk along a chain needs; read without decoding the event."""

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
    """Parts of the document that a dataset of 0.34.1 does not keep, and that other nodes cannot read."""

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
    """How the watermarks of its sources move; in the manifest each source has its own."""
    origin: Origin | None = field(default=None, compare=False, repr=False, metadata={"tree": False})

    def located(self, error: ManifestError) -> ManifestError:
        """The same fault where the definition was read, as far as that is known."""
        return error if self.origin is None else self.origin.located(error)
