"""Messages between coordinator and engine: bare FlatBuffers (specification "Engine Protocol")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import DatasetAlias
from odfchain.odf.schema import Variant
from odfchain.odf.sources import Transform
from odfchain.odf.times import Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """A watermark and the system time at which it was set."""

    system_time: Timestamp
    event_time: Timestamp


INPUT_TABLE = "input"
"""Name of the rows in a query over raw files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawQueryRequest:
    """A query over raw files, as in the preprocessing step of an ingest."""

    input_data_paths: tuple[str, ...]
    transform: Transform
    output_data_path: str


@dataclass(frozen=True, slots=True)
class RawQueryResponseProgress(Variant):
    """The query is running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawQueryResponseSuccess(Variant):
    """The query wrote `num_records` records."""

    num_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RawQueryResponseInvalidQuery(Variant):
    """The user's query is wrong."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RawQueryResponseInternalError(Variant):
    """The engine failed."""

    message: str
    backtrace: str | None = None


RawQueryResponse: TypeAlias = (
    RawQueryResponseProgress
    | RawQueryResponseSuccess
    | RawQueryResponseInvalidQuery
    | RawQueryResponseInternalError
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformRequestInput:
    """An input of a transformation step: its records, files and watermarks."""

    dataset_id: DatasetId
    dataset_alias: DatasetAlias
    query_alias: str
    vocab: DatasetVocabulary
    offset_interval: OffsetInterval | None = None
    data_paths: tuple[str, ...]
    schema_file: str
    explicit_watermarks: tuple[Watermark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformRequest:
    """The next step of a transformation."""

    dataset_id: DatasetId
    dataset_alias: DatasetAlias
    system_time: Timestamp
    vocab: DatasetVocabulary
    transform: Transform
    query_inputs: tuple[TransformRequestInput, ...]
    next_offset: int
    prev_checkpoint_path: str | None = None
    new_checkpoint_path: str
    new_data_path: str


@dataclass(frozen=True, slots=True)
class TransformResponseProgress(Variant):
    """The step is running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformResponseSuccess(Variant):
    """The step is done; offsets and watermark of what it produced, if any."""

    new_offset_interval: OffsetInterval | None = None
    new_watermark: Timestamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformResponseInvalidQuery(Variant):
    """The user's query is wrong."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformResponseInternalError(Variant):
    """The engine failed."""

    message: str
    backtrace: str | None = None


TransformResponse: TypeAlias = (
    TransformResponseProgress
    | TransformResponseSuccess
    | TransformResponseInvalidQuery
    | TransformResponseInternalError
)
