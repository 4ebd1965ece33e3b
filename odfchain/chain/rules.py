"""The append rules of a metadata chain, as pure functions over blocks.

Invariants of every chain (specification "Metadata Chain", "Metadata Reference"; rule ids as in
`fixtures/conformance/chain_rules.json`, RFC-004):

- the first block, and only the first, is a Seed; sequence numbers count from 0 without gaps;
- every block names an existing predecessor, and system time never goes back;
- once there is a watermark it is kept, and never goes back;
- offsets continue without gaps, checkpoints chain, data needs a schema first;
- an event changes something;
- polling and push sources in force exclude each other, and only what is defined can be disabled (RFC-013);
  transforms are stored normalised and resolved to ids;
- a schema only gains optional columns, and system columns keep their names once there is a schema or data
  (RFC-015);
- an event belongs in the kind of dataset that the Seed names.

Rules that look at the block alone come first; then those that compare with earlier blocks, nearest first.
Earlier blocks are asked for through `History`, which answers from an index, so appending does not walk.
"""

from __future__ import annotations

from odfchain.chain import kind_rules, schema_rules, transform_rules
from odfchain.chain.earlier_blocks import DATA_EVENTS, DataEvent, History
from odfchain.errors import AppendError
from odfchain.model import events as ev
from odfchain.model.metadata_block import MetadataBlock
from odfchain.model.sources import FetchStepEthereumLogs


def check_append(block: MetadataBlock, history: History | None) -> None:
    """Check that a block may follow its predecessors; `history` is None when it names no predecessor."""
    check_alone(block)
    if history is None:
        return
    previous = history.previous()
    _sequence(block, previous)
    _system_time(block, previous)
    kind_rules.check_kind(block.event, history)
    match block.event:
        case ev.AddData() | ev.ExecuteTransform() as event:
            _watermark(event, history)
            _offsets(event, history)
            _schema_first(event, history)
            if isinstance(event, ev.AddData):
                _add_data(event, history)
            else:
                transform_rules.check_execute_transform(event, history)
        case ev.SetPollingSource():
            _polling_source(history)
        case ev.AddPushSource() as event:
            _push_source(event, history)
        case ev.DisablePollingSource() | ev.DisablePushSource() as event:
            _disable(event, history)
        case ev.SetDataSchema() as event:
            schema_rules.check_set_data_schema(event, history)
        case ev.SetVocab() as event:
            schema_rules.check_set_vocab(event, history)


# --- the block alone -------------------------------------------------------------------------------


def check_alone(block: MetadataBlock) -> None:
    """The rules that need no other block.

    Raises:
        AppendError: the first rule that is broken.
    """
    event = block.event
    if block.prev_block_hash is None:
        if not isinstance(event, ev.Seed):
            raise AppendError(
                "FirstBlockMustBeSeed",
                "seed-first",
                f"the first block of a chain is a Seed, not {event.KIND}",
            )
        if block.sequence_number != 0:
            raise AppendError(
                "SequenceIntegrity",
                "seq-start-zero",
                f"the first block has sequence number 0, not {block.sequence_number}",
            )
    elif isinstance(event, ev.Seed):
        raise AppendError(
            "AppendingSeedBlockToNonEmptyChain", "seed-only-once", "a Seed can only be the first block"
        )
    match event:
        case ev.AddData() | ev.ExecuteTransform():
            _data_event_alone(event)
        case ev.AddPushSource():
            _one_schema(event, "push-one-schema")
            transform_rules.check_normalized(event.preprocess, "preprocess")
        case ev.SetPollingSource():
            _polling_source_alone(event)
        case ev.SetTransform():
            transform_rules.check_set_transform(event)


def _data_event_alone(event: DataEvent) -> None:
    if not (event.new_data or event.new_checkpoint or event.new_watermark) and not (
        isinstance(event, ev.AddData) and event.new_source_state
    ):
        rule = "add-data-not-empty" if isinstance(event, ev.AddData) else "execute-transform-not-empty"
        raise AppendError("NoOpEvent", rule, f"{event.KIND} carries nothing new")
    if event.new_data is None:
        return
    interval = event.new_data.offset_interval
    expected = 0 if event.prev_offset is None else event.prev_offset + 1
    if interval.start != expected:
        raise AppendError(
            "OffsetsAreNotSequential",
            "offset-interval-start",
            f"new data starts at offset {interval.start}, expected {expected}",
        )
    if interval.end < interval.start:
        raise AppendError(
            "InvalidEvent",
            "offset-interval-order",
            f"the offset interval [{interval.start}; {interval.end}] is reversed",
        )


def _one_schema(event: ev.AddPushSource | ev.SetPollingSource, rule: str) -> None:
    if event.read.schema is not None and event.read.ddl_schema is not None:
        raise AppendError("InvalidEvent", rule, "a read step gives a DDL schema or an ODF schema, not both")


def _polling_source_alone(event: ev.SetPollingSource) -> None:
    transform_rules.check_normalized(event.preprocess, "preprocess")
    fetch = event.fetch
    if isinstance(fetch, FetchStepEthereumLogs) and fetch.chain_id is None and fetch.node_url is None:
        raise AppendError("InvalidEvent", "polling-eth-chain", "EthereumLogs needs a chainId or a nodeUrl")
    _one_schema(event, "polling-one-schema")


# --- against earlier blocks ------------------------------------------------------------------------


def _sequence(block: MetadataBlock, previous: MetadataBlock) -> None:
    if block.sequence_number != previous.sequence_number + 1:
        raise AppendError(
            "SequenceIntegrity",
            "seq-plus-one",
            f"block {block.sequence_number} cannot follow block {previous.sequence_number}",
        )


def _system_time(block: MetadataBlock, previous: MetadataBlock) -> None:
    if block.system_time < previous.system_time:
        raise AppendError(
            "SystemTimeIsNotMonotonic",
            "system-time-monotonic",
            f"system time {block.system_time} is before {previous.system_time} of the previous block",
        )


def _nearest_data(history: History) -> DataEvent | None:
    block = history.nearest(*DATA_EVENTS)
    if block is None:
        return None
    assert isinstance(block.event, ev.AddData | ev.ExecuteTransform)  # noqa: S101 - asked for these kinds
    return block.event


def _watermark(event: DataEvent, history: History) -> None:
    earlier = _nearest_data(history)
    if earlier is None or earlier.new_watermark is None:
        return
    if event.new_watermark is None:
        raise AppendError(
            "WatermarkIsNotMonotonic",
            "watermark-kept",
            f"the watermark {earlier.new_watermark} of the previous data block must be kept or raised",
        )
    if event.new_watermark < earlier.new_watermark:
        raise AppendError(
            "WatermarkIsNotMonotonic",
            "watermark-monotonic",
            f"watermark {event.new_watermark} is before {earlier.new_watermark} of the previous data block",
        )


def _offsets(event: DataEvent, history: History) -> None:
    earlier = _nearest_data(history)
    if earlier is not None and event.prev_offset != earlier.last_offset:
        raise AppendError(
            "InvalidEvent",
            "prev-offset-continues",
            f"prevOffset is {event.prev_offset}, the chain's last offset {earlier.last_offset}",
        )


def _schema_first(event: DataEvent, history: History) -> None:
    if event.new_data is not None and history.nearest("SetDataSchema") is None:
        rule = "add-data-schema-first" if isinstance(event, ev.AddData) else "execute-transform-schema-first"
        raise AppendError("InvalidEvent", rule, "SetDataSchema must come before the first event with data")


def _add_data(event: ev.AddData, history: History) -> None:
    block = history.nearest("AddData")
    earlier = block.event if block is not None else None
    assert earlier is None or isinstance(earlier, ev.AddData)  # noqa: S101 - asked for this kind
    last_checkpoint = earlier.new_checkpoint.physical_hash if earlier and earlier.new_checkpoint else None
    if event.prev_checkpoint != last_checkpoint:
        raise AppendError(
            "InvalidEvent",
            "add-data-checkpoint-continues",
            f"prevCheckpoint is {event.prev_checkpoint}, the chain's last checkpoint {last_checkpoint}",
        )
    if event.new_data is None:
        new_checkpoint = event.new_checkpoint.physical_hash if event.new_checkpoint else None
        if (
            new_checkpoint == event.prev_checkpoint
            and event.new_watermark == (earlier.new_watermark if earlier else None)
            and event.new_source_state == (earlier.new_source_state if earlier else None)
        ):
            raise AppendError(
                "NoOpEvent",
                "add-data-advances",
                "AddData changes neither data, checkpoint, watermark nor source state",
            )


def _polling_source(history: History) -> None:
    if history.push_sources():
        raise AppendError(
            "InvalidEvent", "polling-no-push", "a dataset with push sources cannot have a polling source"
        )


def _polls(history: History) -> bool:
    latest = history.nearest("SetPollingSource", "DisablePollingSource")
    return latest is not None and isinstance(latest.event, ev.SetPollingSource)


def _push_source(event: ev.AddPushSource, history: History) -> None:
    if _polls(history):
        raise AppendError(
            "InvalidEvent", "push-no-polling", "a dataset with a polling source cannot have push sources"
        )
    if history.push_sources().get(event.source_name) == event:
        raise AppendError(
            "NoOpEvent",
            "push-not-identical",
            f"push source {event.source_name!r} is already defined like this",
        )


def _disable(event: ev.DisablePollingSource | ev.DisablePushSource, history: History) -> None:
    if isinstance(event, ev.DisablePollingSource):
        if not _polls(history):
            raise AppendError("InvalidEvent", "disable-defined", "there is no polling source to disable")
    elif event.source_name not in history.push_sources():
        raise AppendError(
            "InvalidEvent", "disable-defined", f"there is no push source {event.source_name!r} to disable"
        )
