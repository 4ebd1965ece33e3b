"""What a chain says about the present: names, schema, sources, offsets, watermark.

Everything here is found through the chain's index: the cost does not grow with the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from odfchain.chain.chain import E, HashedBlock, MetadataChain
from odfchain.chain.index import DATA_EVENTS, DataEvent, sources_in_force
from odfchain.errors import AppendError, BrokenChainError, GuardError, InvalidIdError, SchemaError
from odfchain.limits import INGEST_LIMITS
from odfchain.odf.arrow_schema import schema_of_event
from odfchain.odf.enums import OperationType
from odfchain.odf.events import (
    AddData,
    AddPushSource,
    Checkpoint,
    DatasetVocabulary,
    DataSlice,
    DisablePollingSource,
    ExecuteTransform,
    MetadataBlock,
    Seed,
    SetAttachments,
    SetDataSchema,
    SetPollingSource,
    SetTransform,
    SetVocab,
    SourceState,
)
from odfchain.odf.identity import Multihash
from odfchain.odf.manifests import POLLING_SOURCE
from odfchain.odf.schema import DataSchema
from odfchain.odf.sources import MergeStrategy, MergeStrategyChangelogStream, WatermarkRule, primary_key
from odfchain.odf.times import Duration, Timestamp
from odfchain.odf.transform_options import is_rebuilt
from odfchain.text import one_line
from odfchain.workspace.config import read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.declared_constraints import Constraints, recorded_constraints
from odfchain.workspace.merge_record import is_merge_state


@dataclass(frozen=True, slots=True)
class SliceRef:
    """A data slice and the block that added it."""

    block_hash: Multihash
    sequence_number: int
    slice: DataSlice


@dataclass(frozen=True, slots=True)
class DatasetState:
    """A dataset as of one head."""

    chain: MetadataChain
    head: Multihash
    head_block: MetadataBlock

    @classmethod
    def read(cls, chain: MetadataChain, head: Multihash | None = None) -> DatasetState:
        """The state at `head` (default: the head reference).

        Raises:
            BrokenChainError: there is no head.
        """
        at = head if head is not None else chain.head()
        if at is None:
            raise BrokenChainError("the dataset has no head")
        return cls(chain, at, chain.get(at))

    def _nearest(self, *kinds: type[E]) -> E | None:
        return self.chain.nearest_event(*kinds, head=self.head)

    @property
    def seed(self) -> Seed:
        """The first event."""
        seed = self._nearest(Seed)
        if seed is None:
            raise BrokenChainError("the chain has no Seed")
        return seed

    @property
    def vocabulary(self) -> DatasetVocabulary:
        """Names of the system columns."""
        return DatasetVocabulary.from_event(self._nearest(SetVocab))

    @property
    def schema(self) -> DataSchema | None:
        """The declared schema, system columns included; None before the first data."""
        event = self._nearest(SetDataSchema)
        return schema_of_event(event.raw_arrow_schema, event.schema) if event is not None else None

    def next_system_time(self, given: Timestamp | None = None) -> Timestamp:
        """System time of the next block [ms]: the given one, else now, but never before the head's."""
        now = (given or Timestamp.now()).truncated_to_ms()
        return max(now, self.head_block.system_time)

    @property
    def odf_schema(self) -> bool:
        """Whether the schema in force is declared in the ODF form (not as raw Arrow)."""
        event = self._nearest(SetDataSchema)
        return event is not None and event.schema is not None

    @property
    def last_data(self) -> DataEvent | None:
        """The latest AddData or ExecuteTransform."""
        hashed = self.chain.nearest(*DATA_EVENTS, head=self.head)
        event = hashed.block.event if hashed else None
        return event if isinstance(event, AddData | ExecuteTransform) else None

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
    def source_state(self) -> SourceState | None:
        """The source state that the latest AddData carries; a merge record is none, and is looked past.

        Source: RFC-036.
        """
        if not isinstance(self.last_data, AddData):
            return None
        for block in self.chain.nearest_all("AddData", head=self.head):
            event = block.block.event
            state = event.new_source_state if isinstance(event, AddData) else None
            if not is_merge_state(state):
                return state
        return None

    def state_of_source(self, name: str) -> tuple[SourceState, Multihash] | None:
        """The latest state of a source and the block that records it; None when it has none.

        Blocks without data (a watermark set by hand) are looked past; data without a state says that the
        source had none. Source: specification "AddData" (`newSourceState`).
        """
        for block in self.chain.nearest_all("AddData", head=self.head):
            event = block.block.event
            assert isinstance(event, AddData)  # noqa: S101 - asked for this kind
            state = event.new_source_state
            if state is not None and state.source_name == name:
                return state, block.hash
            if state is None and event.new_data is not None:
                return None
        return None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that the latest AddData names, for the next one to continue."""
        event = self._nearest(AddData)
        return event.new_checkpoint if event is not None else None

    @property
    def transform(self) -> SetTransform | None:
        """The transform in force."""
        return self._nearest(SetTransform)

    @property
    def last_execution(self) -> ExecuteTransform | None:
        """The latest ExecuteTransform."""
        return self._nearest(ExecuteTransform)

    @property
    def executed_transform(self) -> SetTransform | None:
        """The transform by which the latest ExecuteTransform was made."""
        last = self.chain.nearest("ExecuteTransform", head=self.head)
        return self.chain.nearest_event(SetTransform, head=last.hash) if last is not None else None

    @property
    def awaits_rebuild(self) -> bool:
        """Whether the next execution computes everything anew (`odfchain.odf.transform_options`)."""
        event = self._nearest(SetTransform, ExecuteTransform)
        return (
            isinstance(event, SetTransform)
            and is_rebuilt(event.transform)
            and self.last_execution is not None
        )

    @property
    def polling_source(self) -> SetPollingSource | None:
        """The polling source in force."""
        event = self._nearest(SetPollingSource, DisablePollingSource)
        return event if isinstance(event, SetPollingSource) else None

    @property
    def push_sources(self) -> dict[str, AddPushSource]:
        """The push sources in force by name, the most recently defined first."""
        blocks = self.chain.nearest_all("AddPushSource", "DisablePushSource", head=self.head)
        return sources_in_force(block.block.event for block in blocks)

    @property
    def constraints(self) -> Constraints:
        """What CONSTRAINTS.yaml declares."""
        return recorded_constraints(self._nearest(SetAttachments))

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The merge strategy's key, else that of the constraints; () is none."""
        return self.merge_key or self.constraints.primary_key

    @property
    def merge_key(self) -> tuple[str, ...]:
        """The key of the sources in force, else of the last source; () is none."""
        last = self._nearest(AddPushSource, SetPollingSource)
        known = last if isinstance(last, AddPushSource | SetPollingSource) else None
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


def key_of_sources(
    polling: SetPollingSource | None,
    push: Mapping[str, AddPushSource],
    last: SetPollingSource | AddPushSource | None,
) -> tuple[str, ...]:
    """The key of the sources in force, else of the `last` one; () is none.

    Raises:
        SchemaError: sources have different keys.
    """
    in_force = [source for source in (polling, *push.values()) if source is not None]
    if not in_force and last is not None:
        in_force = [last]
    keys = {primary_key(source.merge) for source in in_force}
    if len(keys) > 1:
        listed = "; ".join(sorted(one_line(", ".join(key)) or "none" for key in keys))
        raise SchemaError(f"the sources of the dataset have different primary keys: {listed}")
    return keys.pop() if keys else ()


# Sources whose rows say themselves what they do.

OPERATIONS = ", ".join(f"{op.code} for {op.value}" for op in OperationType)
"""The codes of operations, for messages."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """What a source needs and does not have, and what helps."""

    message: str
    hint: str


def operations_problem(
    merge: MergeStrategy, names: Sequence[str], operation: str, where: str
) -> SourceProblem | None:
    """What is wrong where rows have to say what they do and no column does; None when nothing is."""
    if not isinstance(merge, MergeStrategyChangelogStream) or operation in names:
        return None
    return SourceProblem(
        f"merge ChangelogStream takes what each row does from the column {operation!r}, which {where} does "
        f"not have (it has {', '.join(names)})",
        f"give every row an integer {operation!r}: {OPERATIONS}; or use a strategy that finds out by itself: "
        "UpsertStream, Snapshot, Ledger, Append",
    )


# Where a watermark may stand, and which rows are dated too far in the future to be believed.
#
# - The watermark of a transaction with rows is the largest event time so far, less the delay that the
# source
#   allows; never ahead of the data, and never further in the future than rows may be.
# - A source that says `fromSystemTime` moves it to the system time, in a block of its own without data:
# that is
#   how the specification lets it be set without rows, and what `verify` takes for set by hand.
# - It never goes back: a later block must keep it or raise it. So one row dated 2999 would set it for ever,
# and
#   rows that lie further in the future than a bound are refused.
#
# The bound counts from the system time of the commit. Source: specification "Watermark", "AddData";
# RFC-014.

DEFAULT_RULE = WatermarkRule()
ALLOW_FUTURE = "--allow-future"


def rule_of(dataset: DatasetFiles, source_name: str) -> WatermarkRule:
    """How the watermark of a source moves, as its manifest says."""
    return read_config(dataset).watermarks.get(source_name, DEFAULT_RULE)


def rule_in_force(dataset: DatasetFiles, state: DatasetState) -> WatermarkRule:
    """The rule of the source in force, for rows from none; of several the one that waits longest."""
    names = [POLLING_SOURCE] if state.polling_source is not None else list(state.push_sources)
    rules = [rule_of(dataset, name) for name in names]
    return max(rules, key=_delay_ms, default=DEFAULT_RULE)


def _delay_ms(rule: WatermarkRule) -> int:
    return rule.max_delay.milliseconds if rule.max_delay else 0


def latest_believed(system_time: Timestamp, max_future: Duration) -> Timestamp:
    """The latest event time that is taken without asking."""
    return _shifted(system_time, max_future.milliseconds)


def _shifted(time: Timestamp, milliseconds: int) -> Timestamp:
    try:
        return Timestamp.from_epoch_ms(time.epoch_ms + milliseconds)
    except InvalidIdError:  # before the year 1, or after 9999
        edge = "9999-12-31T23:59:59.999Z" if milliseconds > 0 else "0001-01-01T00:00:00Z"
        return Timestamp.parse(edge)


def of_data(
    previous: Timestamp | None,
    latest_ms: int | None,
    rule: WatermarkRule,
    system_time: Timestamp,
    bound: Timestamp | None,
) -> Timestamp | None:
    """The watermark after rows whose largest event time is `latest_ms` [ms since the epoch]."""
    if latest_ms is None:
        return previous
    candidates = [_shifted(Timestamp(0), latest_ms)]
    if bound is not None:
        candidates.append(bound)
    if rule.from_system_time:
        candidates.append(system_time)
    mark = _shifted(min(candidates), -_delay_ms(rule))
    return mark if previous is None else max(mark, previous)


def of_system_time(
    previous: Timestamp | None, rule: WatermarkRule, system_time: Timestamp, *, idle: bool
) -> Timestamp | None:
    """Where the system time moves the watermark; None where it stays.

    An `idle` run, one that brings nothing else, moves it only by a step that is worth a block.
    """
    if not rule.from_system_time:
        return None
    mark = _shifted(system_time, -_delay_ms(rule))
    if previous is None:
        return mark
    least = INGEST_LIMITS.watermark_step_ms if idle else 1
    return mark if mark.epoch_ms >= previous.epoch_ms + least else None


def watermark_event(
    mark: Timestamp,
    *,
    prev_offset: int | None,
    checkpoint: Checkpoint | None,
    source_state: SourceState | None,
) -> AddData:
    """The event that sets a watermark and nothing else."""
    return AddData(
        prev_offset=prev_offset,
        prev_checkpoint=checkpoint.physical_hash if checkpoint else None,
        new_checkpoint=checkpoint,
        new_watermark=mark,
        new_source_state=source_state,
    )


def check_manual(
    dataset: DatasetFiles, state: DatasetState, mark: Timestamp, bound: Timestamp | None
) -> None:
    """A watermark may be set by hand.

    Raises:
        AppendError: it would go back; the message says which block set the present one, and what helps.
        GuardError: it lies further in the future than `bound`.
    """
    present = state.watermark
    if present is not None and mark < present:
        raise AppendError(
            "WatermarkIsNotMonotonic",
            "watermark-monotonic",
            f"{dataset.alias}: the watermark is {present} and can only be raised, not lowered to {mark}",
            hint=_way_back(dataset, state, present),
        )
    if bound is not None and mark > bound:
        raise GuardError(
            f"{dataset.alias}: the watermark {mark} would be later than {bound}, the latest that is taken "
            "without asking; it can never be lowered again",
            flag=ALLOW_FUTURE,
        )


def _way_back(dataset: DatasetFiles, state: DatasetState, present: Timestamp) -> str:
    """Which block made the watermark what it is, and the command that undoes it."""
    first = None
    for block in state.chain.nearest_all(*DATA_EVENTS, head=state.head):
        event = block.block.event
        if not isinstance(event, AddData | ExecuteTransform) or event.new_watermark != present:
            break
        first = block
    number = first.block.sequence_number if first is not None else state.head_block.sequence_number
    return (
        f"block {number} set it; to come back, drop that block and what follows with `odfchain reset "
        f"{dataset.alias} {number - 1}` and ingest again what came later (copies of the dropped blocks will "
        "differ)"
    )
