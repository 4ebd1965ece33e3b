"""The present state in a chain: names, schema, sources, offsets, watermark.

Everything here is found through the chain's index: the cost does not grow with the chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from odfchain.chain.chain import HashedBlock, MetadataChain
from odfchain.chain.index import DATA_EVENTS, DataEvent, E, sources_in_force
from odfchain.errors import AppendError, ChainError, IngestError, SchemaError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import schema_of_event
from odfchain.odf.enums import OperationType
from odfchain.odf.identity import Multihash
from odfchain.odf.schema import DataSchema
from odfchain.odf.sources import MergeStrategy, MergeStrategyChangelogStream
from odfchain.odf.times import Timestamp
from odfchain.odf.transform_options import is_rebuilt
from odfchain.text import one_line
from odfchain.workspace.declared_constraints import Constraints, recorded_constraints
from odfchain.workspace.merge_record import is_merge_state

ALLOW_FUTURE = "--allow-future"
"""The option that takes rows which are dated too far in the future to be believed (RFC-014)."""


@dataclass(frozen=True, slots=True)
class SliceRef:
    """A data slice and the block that added it."""

    block_hash: Multihash
    sequence_number: int
    slice: ev.DataSlice


@dataclass(frozen=True, slots=True)
class DatasetState:
    """A dataset as of one head."""

    chain: MetadataChain
    head: Multihash
    head_block: ev.MetadataBlock

    @classmethod
    def read(cls, chain: MetadataChain, head: Multihash | None = None) -> DatasetState:
        """The state at `head` (default: the head reference, which must be there)."""
        at = head if head is not None else chain.head()
        if at is None:
            raise ChainError("the dataset has no head")
        return cls(chain, at, chain.get(at))

    def _nearest(self, *kinds: type[E]) -> E | None:
        return self.chain.nearest_event(*kinds, head=self.head)

    @property
    def seed(self) -> ev.Seed:
        """The first event."""
        if (seed := self._nearest(ev.Seed)) is None:
            raise ChainError("the chain has no Seed")
        return seed

    @property
    def vocabulary(self) -> ev.DatasetVocabulary:
        """Names of the system columns."""
        return ev.DatasetVocabulary.from_event(self._nearest(ev.SetVocab))

    @property
    def schema(self) -> DataSchema | None:
        """The declared schema, system columns included; None before the first data."""
        event = self._nearest(ev.SetDataSchema)
        return schema_of_event(event.raw_arrow_schema, event.schema) if event is not None else None

    def next_system_time(self, given: Timestamp | None = None) -> Timestamp:
        """System time of the next block [ms]: the given one, else now, but never before the head's."""
        return max((given or Timestamp.now()).truncated_to_ms(), self.head_block.system_time)

    @property
    def odf_schema(self) -> bool:
        """True if the schema in force is declared in the ODF form (not as raw Arrow)."""
        event = self._nearest(ev.SetDataSchema)
        return event is not None and event.schema is not None

    @property
    def last_data(self) -> DataEvent | None:
        """The latest AddData or ExecuteTransform."""
        hashed = self.chain.nearest(*DATA_EVENTS, head=self.head)
        event = hashed.block.event if hashed else None
        return event if isinstance(event, ev.AddData | ev.ExecuteTransform) else None

    @property
    def last_offset(self) -> int | None:
        """Offset of the last record, None when there is none."""
        last = self.last_data
        return last.last_offset if last else None

    @property
    def record_count(self) -> int:
        """Number of records in all slices."""
        last = self.last_offset
        return 0 if last is None else last + 1

    @property
    def watermark(self) -> Timestamp | None:
        """The present watermark."""
        last = self.last_data
        return last.new_watermark if last else None

    @property
    def source_state(self) -> ev.SourceState | None:
        """The source state that the latest AddData carries; a merge record is none, and is looked past.

        Source: RFC-036.
        """
        if not isinstance(self.last_data, ev.AddData):
            return None
        for block in self.chain.nearest_all("AddData", head=self.head):
            event = block.block.event
            state = event.new_source_state if isinstance(event, ev.AddData) else None
            if not is_merge_state(state):
                return state
        return None

    def state_of_source(self, name: str) -> tuple[ev.SourceState, Multihash] | None:
        """The latest state of a source and the block that records it; None when it has none.

        Blocks without data (a watermark set by hand) are looked past; data without a state says that the
        source had none. Source: specification "AddData" (`newSourceState`).
        """
        for block in self.chain.nearest_all("AddData", head=self.head):
            event = block.block.event
            assert isinstance(event, ev.AddData)  # noqa: S101 - asked for this kind
            if (state := event.new_source_state) is not None and state.source_name == name:
                return state, block.hash
            if state is None and event.new_data is not None:
                return None
        return None

    @property
    def checkpoint(self) -> ev.Checkpoint | None:
        """The checkpoint that the latest AddData names, for the next one to continue."""
        event = self._nearest(ev.AddData)
        return event.new_checkpoint if event is not None else None

    @property
    def transform(self) -> ev.SetTransform | None:
        """The transform in force."""
        return self._nearest(ev.SetTransform)

    @property
    def last_execution(self) -> ev.ExecuteTransform | None:
        """The latest ExecuteTransform."""
        return self._nearest(ev.ExecuteTransform)

    @property
    def executed_transform(self) -> ev.SetTransform | None:
        """The transform by which the latest ExecuteTransform was made."""
        last = self.chain.nearest("ExecuteTransform", head=self.head)
        return self.chain.nearest_event(ev.SetTransform, head=last.hash) if last is not None else None

    @property
    def awaits_rebuild(self) -> bool:
        """True if the next execution computes everything anew (`odfchain.odf.transform_options`)."""
        event = self._nearest(ev.SetTransform, ev.ExecuteTransform)
        is_new = isinstance(event, ev.SetTransform) and is_rebuilt(event.transform)
        return is_new and self.last_execution is not None

    @property
    def polling_source(self) -> ev.SetPollingSource | None:
        """The polling source in force."""
        event = self._nearest(ev.SetPollingSource, ev.DisablePollingSource)
        return event if isinstance(event, ev.SetPollingSource) else None

    @property
    def has_disabled_source(self) -> bool:
        """True if the newest event about polling, or about push sources, disables one."""
        polled = self._nearest(ev.SetPollingSource, ev.DisablePollingSource)
        pushed = self._nearest(ev.AddPushSource, ev.DisablePushSource)
        return isinstance(polled, ev.DisablePollingSource) or isinstance(pushed, ev.DisablePushSource)

    @property
    def push_sources(self) -> dict[str, ev.AddPushSource]:
        """The push sources in force by name, the most recently defined first."""
        blocks = self.chain.nearest_all("AddPushSource", "DisablePushSource", head=self.head)
        return sources_in_force(block.block.event for block in blocks)

    @property
    def attachments(self) -> tuple[ev.AttachmentEmbedded, ...]:
        """The attachments in force."""
        event = self._nearest(ev.SetAttachments)
        return event.attachments.items if event is not None else ()

    @property
    def constraints(self) -> Constraints:
        """The constraints that CONSTRAINTS.yaml declares."""
        return recorded_constraints(self._nearest(ev.SetAttachments))

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The merge strategy's key, else that of the constraints; () is none."""
        return self.merge_key or self.constraints.primary_key

    @property
    def merge_key(self) -> tuple[str, ...]:
        """The key of the sources in force, else of the last source; () is none."""
        last = self._nearest(ev.AddPushSource, ev.SetPollingSource)
        known = last if isinstance(last, ev.AddPushSource | ev.SetPollingSource) else None
        return key_of_sources(self.polling_source, self.push_sources, known)

    def data_blocks(self) -> Iterator[HashedBlock]:
        """Blocks with a data event, newest first; the others are skipped through the index."""
        return self.chain.nearest_all(*DATA_EVENTS, head=self.head)

    def slices_newest_first(self) -> Iterator[SliceRef]:
        """The data slices, newest first."""
        for name, block in self.data_blocks():
            if block.new_data is not None:
                yield SliceRef(name, block.sequence_number, block.new_data)

    def slices(self) -> list[SliceRef]:
        """All data slices, oldest first."""
        return list(self.slices_newest_first())[::-1]

    def check_watermark(self, alias: object, mark: Timestamp, bound: Timestamp | None) -> None:
        """A watermark may be set by hand.

        Raises:
            AppendError: it would go back; the message says which block set the present one, and what helps.
            IngestError: it lies further in the future than `bound`.
        """
        if (present := self.watermark) is not None and mark < present:
            raise AppendError(
                "WatermarkIsNotMonotonic",
                "watermark-monotonic",
                f"{alias}: the watermark is {present} and can only be raised, not lowered to {mark}",
                hint=self._way_back(alias, present),
            )
        if bound is not None and mark > bound:
            raise IngestError(
                f"{alias}: the watermark {mark} would be later than {bound}, the latest that is taken "
                "without asking; it can never be lowered again",
                flag=ALLOW_FUTURE,
            )

    def _way_back(self, alias: object, present: Timestamp) -> str:
        # which block made the watermark what it is, and the command that undoes it
        first = None
        for block in self.chain.nearest_all(*DATA_EVENTS, head=self.head):
            event = block.block.event
            if not isinstance(event, ev.AddData | ev.ExecuteTransform) or event.new_watermark != present:
                break
            first = block
        number = first.block.sequence_number if first is not None else self.head_block.sequence_number
        return (
            f"block {number} set it; to come back, drop that block and what follows with `odfchain reset "
            f"{alias} {number - 1}` and ingest again what came later (copies of the dropped blocks will "
            "differ)"
        )


def key_of_sources(
    polling: ev.SetPollingSource | None,
    push: Mapping[str, ev.AddPushSource],
    last: ev.SetPollingSource | ev.AddPushSource | None,
) -> tuple[str, ...]:
    """The key of the sources in force, which must agree, else of the `last` one; () is none."""
    in_force = [source for source in (polling, *push.values()) if source is not None]
    if not in_force and last is not None:
        in_force = [last]
    keys = {source.merge.primary_key for source in in_force}
    if len(keys) > 1:
        listed = "; ".join(sorted(one_line(", ".join(key)) or "none" for key in keys))
        raise SchemaError(f"the sources of the dataset have different primary keys: {listed}")
    return keys.pop() if keys else ()


# Sources whose rows say themselves what they do.

OPERATIONS = ", ".join(f"{op.code} for {op.value}" for op in OperationType)
"""The codes of operations, for messages."""


def operations_problem(
    merge: MergeStrategy, names: Sequence[str], operation: str, where: str
) -> tuple[str, str] | None:
    """(the problem where rows need an operation column and there is none, a hint); None without one."""
    if not isinstance(merge, MergeStrategyChangelogStream) or operation in names:
        return None
    problem = (
        f"merge ChangelogStream takes what each row does from the column {operation!r}, which {where} does "
        f"not have (it has {', '.join(names)})"
    )
    hint = (
        f"give every row an integer {operation!r}: {OPERATIONS}; or use a strategy that finds out by itself: "
    )
    return problem, hint + "UpsertStream, Snapshot, Ledger, Append"


# Types of the system columns in new datasets: the specification's, or those of the reference node.
#
#     specification   offset uint64, op uint8
#     reference       offset int64, op int32
#
# A chain is continued as it declares itself, so the choice counts until the first `SetDataSchema` is
# written, and that carries it from then on. It is kept in the dataset's private settings (`info/config`),
# else in the workspace's. Source: specification "Common Data Schema"; RFC-001.


class SystemColumns(Enum):
    """Whose types offsets and operations have."""

    SPECIFICATION = "specification"
    """As the specification says: what every reader can read."""
    REFERENCE = "reference"
    """As the reference node writes them: it can append to such a dataset."""

    def numbers(self, vocabulary: ev.DatasetVocabulary) -> tuple[ds.DataField, ds.DataField]:
        """The columns of offsets and operations."""
        offset: ds.DataType = ds.DataTypeUInt64()
        operation: ds.DataType = ds.DataTypeUInt8()
        if self is SystemColumns.REFERENCE:
            offset, operation = ds.DataTypeInt64(), ds.DataTypeInt32()
        return (
            ds.DataField(name=vocabulary.offset_column, type=offset),
            ds.DataField(name=vocabulary.operation_type_column, type=operation),
        )

    def before(
        self, others: Iterable[ds.DataField], event_time: ds.DataField, vocabulary: ev.DatasetVocabulary
    ) -> ds.DataSchema:
        """The schema of a dataset: the system columns, then others in their order."""
        system_time = ds.DataField(name=vocabulary.system_time_column, type=ds.MS_UTC)
        after = (field for field in others if field.name not in vocabulary.columns)
        return ds.DataSchema(fields=(*self.numbers(vocabulary), system_time, event_time, *after))

    def of(self, schema: ds.DataSchema, vocabulary: ev.DatasetVocabulary) -> ds.DataSchema:
        """The schema with these types of offsets and operations."""
        mine = {field.name: field for field in self.numbers(vocabulary)}
        fields = tuple(mine.get(field.name, field) for field in schema.fields)
        return ds.DataSchema(fields=fields, extra=schema.extra)
