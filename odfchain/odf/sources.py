"""How data gets into a root dataset: fetch, prepare, read, preprocess, merge.

Source: specification "Data Ingestion" and the fragments of its metadata reference. Variants that only
newer versions know (0.35 to 0.39) are here too, so that newer blocks can be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from odfchain.limits import INGEST_LIMITS
from odfchain.odf.enums import CompressionFormat, MqttQos, SourceOrdering
from odfchain.odf.schema import DataSchema, Variant
from odfchain.odf.times import Duration, Timestamp

# --- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepCsv(Variant):
    """Reader for comma-separated files. Defaults: no header, `,` `"` `\\`, UTF-8, empty means null."""

    ddl_schema: tuple[str, ...] | None = None
    separator: str | None = None
    encoding: str | None = None
    quote: str | None = None
    escape: str | None = None
    header: bool | None = None
    infer_schema: bool | None = None
    null_value: str | None = None
    date_format: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepGeoJson(Variant):
    """Reader for one GeoJSON `FeatureCollection`; the geometry becomes a column."""

    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepEsriShapefile(Variant):
    """Reader for a zipped ESRI Shapefile; `sub_path` picks one of several and may be a glob."""

    ddl_schema: tuple[str, ...] | None = None
    sub_path: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepParquet(Variant):
    """Reader for Apache Parquet; a schema selects by name and casts."""

    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepJson(Variant):
    """Reader for a JSON array of objects, found at `sub_path` (`a.b.c`) when given."""

    sub_path: str | None = None
    ddl_schema: tuple[str, ...] | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepNdJson(Variant):
    """Reader for newline-delimited JSON objects."""

    ddl_schema: tuple[str, ...] | None = None
    date_format: str | None = None
    encoding: str | None = None
    timestamp_format: str | None = None
    schema: DataSchema | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStepNdGeoJson(Variant):
    """Reader for newline-delimited GeoJSON features."""

    ddl_schema: tuple[str, ...] | None = None
    schema: DataSchema | None = None


ReadStep: TypeAlias = (
    ReadStepCsv
    | ReadStepGeoJson
    | ReadStepEsriShapefile
    | ReadStepParquet
    | ReadStepJson
    | ReadStepNdJson
    | ReadStepNdGeoJson
)

# --- preprocessing and transforming ----------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlQueryStep:
    """One query of a multi-step SQL transform; the step without an alias is the output."""

    alias: str | None = None
    query: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalTable:
    """Flink extension: a stream seen as a temporal table."""

    name: str
    primary_key: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSql(Variant):
    """A transformation in a dialect of SQL; `query` is only for manifests, blocks carry `queries`."""

    engine: str
    version: str | None = None
    query: str | None = None
    queries: tuple[SqlQueryStep, ...] | None = None
    temporal_tables: tuple[TemporalTable, ...] | None = None


Transform: TypeAlias = TransformSql

# --- merging ---------------------------------------------------------------------------------------


class _Strategy(Variant):
    # asked where a strategy matters: a new one is declared here, and merged in `ingest`
    __slots__ = ()
    TAKES_OPERATIONS: ClassVar[bool] = False
    """The input gives the operation of each row."""
    LOOKS_BACK: ClassVar[bool] = False
    """It compares the input with what is recorded: an input may come twice."""
    KEEPS_STATE: ClassVar[bool] = False
    """It compares the input with the state by key, which a checkpoint can hold."""


@dataclass(frozen=True, slots=True)
class MergeStrategyAppend(_Strategy):
    """Every row is appended as it is."""

    # asked of every strategy; as a class variable it is no field, so no document has it
    primary_key: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategyLedger(_Strategy):
    """Rows whose primary key was seen before are dropped, the rest appended."""

    LOOKS_BACK = True
    primary_key: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategySnapshot(_Strategy):
    """The input is the whole present state; differences become appends, retractions and corrections."""

    LOOKS_BACK = True
    KEEPS_STATE = True
    primary_key: tuple[str, ...]
    compare_columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategyChangelogStream(_Strategy):
    """The input carries operation types of its own (ODF 0.37)."""

    TAKES_OPERATIONS = True
    primary_key: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeStrategyUpsertStream(_Strategy):
    """The input says which keys are present or deleted (ODF 0.37)."""

    TAKES_OPERATIONS = True
    LOOKS_BACK = True
    KEEPS_STATE = True
    primary_key: tuple[str, ...]


MergeStrategy: TypeAlias = (
    MergeStrategyAppend
    | MergeStrategyLedger
    | MergeStrategySnapshot
    | MergeStrategyChangelogStream
    | MergeStrategyUpsertStream
)


# --- fetching --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EventTimeSourceFromMetadata(Variant):
    """Event time from the source's metadata (HTTP headers, file times)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimeSourceFromPath(Variant):
    """Event time from the path: the first group of `pattern`, in `timestamp_format`."""

    pattern: str
    timestamp_format: str | None = None


@dataclass(frozen=True, slots=True)
class EventTimeSourceFromSystemTime(Variant):
    """Event time is the system time of the run."""


EventTimeSource: TypeAlias = (
    EventTimeSourceFromMetadata | EventTimeSourceFromPath | EventTimeSourceFromSystemTime
)


@dataclass(frozen=True, slots=True)
class SourceCachingForever(Variant):
    """Once ingested, a source is never read again."""


SourceCaching: TypeAlias = SourceCachingForever


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHeader:
    """A header of the request to a URL."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepUrl(Variant):
    """Fetch from a URL."""

    url: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    headers: tuple[RequestHeader, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepFilesGlob(Variant):
    """Take the local files that match a glob, one by one."""

    path: str
    event_time: EventTimeSource | None = None
    cache: SourceCaching | None = None
    order: SourceOrdering | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvVar:
    """An environment variable of a container."""

    name: str
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepContainer(Variant):
    """Run an OCI container that prints the data."""

    image: str
    command: tuple[str, ...] | None = None
    args: tuple[str, ...] | None = None
    env: tuple[EnvVar, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MqttTopicSubscription:
    """A topic of an MQTT broker (ODF 0.35)."""

    path: str
    qos: MqttQos | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepMqtt(Variant):
    """Subscribe to an MQTT broker (ODF 0.35)."""

    host: str
    port: int
    username: str | None = None
    password: str | None = None
    topics: tuple[MqttTopicSubscription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchStepEthereumLogs(Variant):
    """Read the logs of an Ethereum chain (ODF 0.36)."""

    chain_id: int | None = None
    node_url: str | None = None
    filter: str | None = None
    signature: str | None = None


FetchStep: TypeAlias = (
    FetchStepUrl | FetchStepFilesGlob | FetchStepContainer | FetchStepMqtt | FetchStepEthereumLogs
)

# --- preparing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepStepDecompress(Variant):
    """Unpack an archive; `sub_path` picks a member and may be a glob."""

    format: CompressionFormat
    sub_path: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepStepPipe(Variant):
    """Pipe the data through an external command."""

    command: tuple[str, ...]


PrepStep: TypeAlias = PrepStepDecompress | PrepStepPipe

# --- what blocks do not carry ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkRule:
    """How the watermark of a source moves; by default it is the largest event time.

    - After rows it is the largest event time so far, less the delay; never ahead of the data, and never
      further in the future than rows may be.
    - One that follows the system time moves in a block of its own without data: that is how the specification
      lets it be set without rows, and what `verify` takes for set by hand.
    - It never goes back. So one row dated 2999 would set it for ever, and rows that lie further in the future
      than a bound, which counts from the system time of the commit, are refused.

    Source: specification "Watermark", "AddData"; RFC-014.
    """

    max_delay: Duration | None = None
    """How much later than others a row may come: the watermark stays that far behind."""
    from_system_time: bool = False
    """True if the watermark follows the system time, also while the source has nothing new."""
    max_future: Duration | None = None
    """How far after the system time an event time may lie; default is the workspace's setting."""

    @property
    def delay_ms(self) -> int:
        """How far the watermark stays behind [ms]."""
        return self.max_delay.milliseconds if self.max_delay else 0

    def after_rows(
        self,
        previous: Timestamp | None,
        latest_ms: int | None,
        system_time: Timestamp,
        bound: Timestamp | None,
    ) -> Timestamp | None:
        """The watermark after rows whose largest event time is `latest_ms` [ms since the epoch]."""
        if latest_ms is None:
            return previous
        candidates = [Timestamp(0).shifted(latest_ms)]
        if bound is not None:
            candidates.append(bound)
        if self.from_system_time:
            candidates.append(system_time)
        mark = min(candidates).shifted(-self.delay_ms)
        return mark if previous is None else max(mark, previous)

    def at_system_time(self, previous: Timestamp | None, now: Timestamp, *, idle: bool) -> Timestamp | None:
        """Where the system time moves the watermark, or None; `idle` runs move it by steps worth a block."""
        if not self.from_system_time:
            return None
        mark = now.shifted(-self.delay_ms)
        if previous is None:
            return mark
        least = INGEST_LIMITS.watermark_step_ms if idle else 1
        return mark if mark.epoch_ms >= previous.epoch_ms + least else None
