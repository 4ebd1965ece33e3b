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

import functools
from dataclasses import replace

from odfchain.chain.index import DataEvent, History, is_odf_schema
from odfchain.errors import AppendError, CodecError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import DATE_UNIT, schema_of_event
from odfchain.odf.enums import DatasetKind, TimeUnit
from odfchain.odf.events import MetadataBlock
from odfchain.odf.names import RemoteDatasetId
from odfchain.odf.schema import type_name
from odfchain.odf.sources import FetchStepEthereumLogs, Transform

_invalid = functools.partial(AppendError, "InvalidEvent")
_no_change = functools.partial(AppendError, "NoOpEvent")

# Append rules of the kind of dataset: which events belong in a root, and which in a derivative dataset.
#
# A root has its records from its sources, a derivative from its transform, and from nowhere else: what is
# added by other means than the query would never be replayed. One table serves append, pull, verification
# and the reading of manifests. Source: specification "Root Dataset", "Derivative Dataset", "Metadata
# Events".

# Events that are not listed belong in datasets of either kind.
_ONLY_IN: dict[str, DatasetKind] = {
    ev.AddData.KIND: DatasetKind.ROOT,
    ev.SetPollingSource.KIND: DatasetKind.ROOT,
    ev.DisablePollingSource.KIND: DatasetKind.ROOT,
    ev.AddPushSource.KIND: DatasetKind.ROOT,
    ev.DisablePushSource.KIND: DatasetKind.ROOT,
    ev.SetTransform.KIND: DatasetKind.DERIVATIVE,
    ev.ExecuteTransform.KIND: DatasetKind.DERIVATIVE,
}


def belongs_in(event: ev.MetadataEvent) -> DatasetKind | None:
    """The only kind of dataset that may have such an event; None when both may."""
    return _ONLY_IN.get(event.KIND)


def check_kind(event: ev.MetadataEvent, history: History) -> None:
    """The event belongs in a dataset of the kind that the Seed says."""
    wanted = belongs_in(event)
    if wanted is None:
        return
    seed = history.nearest_event(ev.Seed)
    if seed is None or seed.dataset_kind is wanted:
        return
    raise _invalid(
        "event-of-dataset-kind",
        f"{event.KIND} is no event of a {seed.dataset_kind.value.lower()} dataset: "
        f"it belongs in {wanted.value.lower()} datasets only",
    )


# Append rules of transforms: normalised form, resolved inputs, and how executions continue each other.
#
# Source: specification "SetTransform", "ExecuteTransform", "ExecuteTransformInput".


def check_normalized(transform: Transform | None, where: str) -> None:
    """A stored transform has `queries`, the last without and all others with an alias."""
    if transform is None:
        return
    if transform.query is not None:
        raise _invalid("transform-no-short-query", f"{where}: 'query' must be rewritten into 'queries'")
    if not transform.queries:
        raise _invalid("transform-has-queries", f"{where}: there is no query")
    if transform.queries[-1].alias is not None:
        raise _invalid(
            "transform-last-unaliased",
            f"{where}: the last query is the output and has no alias, not {transform.queries[-1].alias!r}",
        )
    for index, query in enumerate(transform.queries[:-1]):
        if query.alias is None:
            raise _invalid("transform-others-aliased", f"{where}: query {index} before the last has no alias")


def check_set_transform(event: ev.SetTransform) -> None:
    """Inputs exist, are distinct ids, and have aliases; the transform is normalised."""
    if not event.inputs:
        raise _invalid("set-transform-has-inputs", "a transform needs at least one input")
    ids = [item.id for item in event.inputs]
    if len(set(ids)) != len(ids):
        raise _invalid("set-transform-unique-inputs", "an input dataset is listed twice")
    for item in event.inputs:
        ref = item.dataset_ref
        if not isinstance(ref, RemoteDatasetId) or ref.repo is not None or item.alias is None:
            message = f"input {str(ref)!r} must be given by id and have an alias"
            raise _invalid("set-transform-resolved", message)
    check_normalized(event.transform, "transform")


def check_execute_transform(event: ev.ExecuteTransform, history: History) -> None:
    """An execution has a transform before it and continues the previous execution."""
    earlier = history.nearest_event(ev.ExecuteTransform)
    _check_input_order(event, history.nearest_event(ev.SetTransform), earlier)
    if earlier is not None:
        for new, old in zip(event.query_inputs, earlier.query_inputs, strict=False):
            _check_input(new, old)
    _checkpoint_continues(event, earlier, "execute-transform-checkpoint-continues")
    if not _advances(event, earlier) and all(i.new_block_hash is None for i in event.query_inputs):
        message = "ExecuteTransform changes neither data, checkpoint nor watermark, and takes in no new input"
        raise _no_change("execute-transform-advances", message)


def _checkpoint_continues(event: DataEvent, earlier: DataEvent | None, rule: str) -> None:
    last = earlier.new_checkpoint.physical_hash if earlier and earlier.new_checkpoint else None
    if event.prev_checkpoint != last:
        raise _invalid(rule, f"prevCheckpoint is {event.prev_checkpoint}, the chain's last checkpoint {last}")


def _advances(event: DataEvent, earlier: DataEvent | None) -> bool:
    """True if an event changes data, checkpoint or watermark."""
    new_checkpoint = event.new_checkpoint.physical_hash if event.new_checkpoint else None
    return (
        event.new_data is not None
        or new_checkpoint != event.prev_checkpoint
        or event.new_watermark != (earlier.new_watermark if earlier else None)
    )


def _check_input_order(
    event: ev.ExecuteTransform, transform: ev.SetTransform | None, earlier: ev.ExecuteTransform | None
) -> None:
    actual = [i.dataset_id for i in event.query_inputs]
    if transform is not None:
        expected = transform.input_ids
    elif earlier is not None:
        expected = [i.dataset_id for i in earlier.query_inputs]
    else:
        raise _invalid("execute-transform-needs-transform", "there is no SetTransform before this event")
    if actual != expected:
        message = "queryInputs do not name the transform's inputs in their order"
        raise _invalid("execute-transform-inputs-order", message)


def _check_input(new: ev.ExecuteTransformInput, old: ev.ExecuteTransformInput) -> None:
    where = f"input {new.dataset_id}"
    if new.new_block_hash is not None and new.new_block_hash == new.prev_block_hash:
        raise _invalid("input-block-interval", f"{where}: newBlockHash equals prevBlockHash")
    if new.new_offset is not None and new.new_offset == new.prev_offset:
        raise _invalid("input-offset-interval", f"{where}: newOffset equals prevOffset")
    if new.prev_block_hash != old.last_block_hash:
        raise _invalid(
            "input-prev-block-continues",
            f"{where}: prevBlockHash is {new.prev_block_hash}, the last block taken in {old.last_block_hash}",
        )
    if new.prev_offset != old.last_offset:
        message = f"{where}: prevOffset is {new.prev_offset}, the last record taken in {old.last_offset}"
        raise _invalid("input-prev-offset-continues", message)
    if new.new_offset is not None and new.new_block_hash is None:
        raise _invalid("input-offset-needs-block", f"{where}: new records without new blocks")


# Append rules of data schemas: only additions of optional columns keep old readers working.
#
# Both forms of `SetDataSchema`, raw Arrow (0.34.1) and ODF (0.37), are turned into one schema type and
# follow one rule. The first ODF schema of a chain may change optionality, because writers of raw schemas
# often did not know it. Source: specification "Schema Evolution"; RFC-015.

_HINT = (
    "a schema only gains columns that may be null (those that runs have added belong in a manifest's schema, "
    "too); make another dataset for anything else"
)


def check_set_data_schema(event: ev.SetDataSchema, history: History) -> None:
    """A schema that replaces another names no column twice, is new and is compatible with it."""
    replaced = history.nearest_event(ev.SetDataSchema)
    try:
        new = schema_of_event(event.raw_arrow_schema, event.schema)
    except CodecError as error:
        # 0.34.1 takes any Arrow type, so the first schema need not be readable here; it can never be replaced
        if replaced is None:
            return
        raise _invalid("schema-readable", f"the schema cannot be read: {error}") from None
    old = _schema_in_force(history)
    if replaced is None or old is None:
        return
    twice = _named_twice(new.fields)
    if twice is not None:
        raise _invalid("schema-names-unique", f"column {twice!r} is declared twice")
    # a raw schema again is accepted: it changes nothing, and old chains have it
    if is_odf_schema(event) and is_odf_schema(replaced) and old == new:
        raise _no_change("schema-not-identical", "the schema is already like this")
    first_odf = event.schema is not None and not history.has_odf_schema()
    problem = _fields_change(old.fields, new.fields, "", ignore_optionality=first_odf)
    if problem is not None:
        raise _invalid("schema-compatible", problem, hint=_HINT)


def check_set_vocab(event: ev.SetVocab, history: History) -> None:
    """The system columns have four different names, and those keep what is recorded readable."""
    vocabulary = ev.DatasetVocabulary.from_event(event)
    if len(set(vocabulary.columns)) < len(vocabulary.columns):
        twice = next(name for name in vocabulary.columns if vocabulary.columns.count(name) > 1)
        raise _invalid("vocab-names-unique", f"two system columns would be called {twice!r}")
    if vocabulary == ev.DatasetVocabulary.from_event(history.nearest_event(ev.SetVocab)):
        return
    data = _nearest_data(history)
    if data is not None and data.last_offset is not None:
        message = "the system columns cannot get other names: records have those in force"
        raise _invalid("vocab-before-data", message, hint="make another dataset")
    schema = _schema_in_force(history)
    missing = [name for name in vocabulary.columns if schema is not None and schema.field(name) is None]
    if missing:
        message = f"the declared schema has no column {missing[0]!r}, which the vocabulary names"
        hint = "name the system columns before the schema is declared"
        raise _invalid("vocab-before-data", message, hint=hint)


def _schema_in_force(history: History) -> ds.DataSchema | None:
    event = history.nearest_event(ev.SetDataSchema)
    if event is None:
        return None
    try:
        return schema_of_event(event.raw_arrow_schema, event.schema)
    except CodecError as error:
        raise _invalid("schema-compatible", f"the schema in force cannot be read: {error}") from None


def _named_twice(fields: tuple[ds.DataField, ...]) -> str | None:
    seen: set[str] = set()
    for f in fields:
        if f.name in seen:
            return f.name
        seen.add(f.name)
        inner = f.value_type
        if isinstance(inner, ds.DataTypeStruct) and (twice := _named_twice(inner.fields)) is not None:
            return f"{f.name}.{twice}"
    return None


def _fields_change(
    old: tuple[ds.DataField, ...], new: tuple[ds.DataField, ...], where: str, *, ignore_optionality: bool
) -> str | None:
    # why the new ones cannot replace the old; the order of columns and attributes do not matter
    new_by_name = {f.name: f for f in new}
    for f in old:
        path = f"{where}{f.name}"
        match = new_by_name.pop(f.name, None)
        if match is None:
            return f"column {path!r} was removed or renamed"
        problem = _type_change(f.type, match.type, path, ignore_optionality=ignore_optionality)
        if problem is not None:
            return problem
        if _date_unit(f) != _date_unit(match):
            return f"column {path!r} changed its type: its days are counted in another unit"
    for f in new_by_name.values():
        if not f.optional:
            return f"new column {where + f.name!r} must be optional"
    return None


def _date_unit(f: ds.DataField) -> object:
    # the one attribute that is part of a type: Arrow tells dates in milliseconds from dates in days
    is_date = isinstance(f.value_type, ds.DataTypeDate)
    return f.extra.entries.get(DATE_UNIT) if is_date and f.extra is not None else None


def _type_change(old: ds.DataType, new: ds.DataType, path: str, *, ignore_optionality: bool) -> str | None:
    old_optional, new_optional = isinstance(old, ds.DataTypeOption), isinstance(new, ds.DataTypeOption)
    if old_optional != new_optional and not ignore_optionality:
        was, now = ("optional", "required") if old_optional else ("required", "optional")
        return f"column {path!r} was {was} and would be {now}"
    a = old.inner if isinstance(old, ds.DataTypeOption) else old
    b = new.inner if isinstance(new, ds.DataTypeOption) else new
    match a, b:
        case ds.DataTypeStruct(), ds.DataTypeStruct():
            return _fields_change(a.fields, b.fields, f"{path}.", ignore_optionality=ignore_optionality)
        case ds.DataTypeList(), ds.DataTypeList() if a.fixed_length == b.fixed_length:
            return _type_change(a.item_type, b.item_type, f"{path}[]", ignore_optionality=ignore_optionality)
        case ds.DataTypeMap(), ds.DataTypeMap() if bool(a.keys_sorted) == bool(b.keys_sorted):
            parts = ((a.key_type, b.key_type, "key"), (a.value_type, b.value_type, "value"))
            problems = (
                _type_change(x, y, f"{path}.{part}", ignore_optionality=ignore_optionality)
                for x, y, part in parts
            )
            return next((problem for problem in problems if problem is not None), None)
    if canonical(a) != canonical(b):
        was, now = type_name(a), type_name(b)
        return f"column {path!r} changed its type" + (f" from {was} to {now}" if was != now else "")
    return None


def canonical(data_type: ds.DataType) -> ds.DataType:
    """The type with its defaults written out, so that equal meanings compare equal."""

    def change(part: ds.DataType) -> ds.DataType | None:
        match part:
            case ds.DataTypeTimestamp(unit=unit, timezone=zone):
                zone = "UTC" if zone is None else zone
                return ds.DataTypeTimestamp(unit=unit or TimeUnit.MILLISECOND, timezone=zone)
            case ds.DataTypeTime(unit=None) | ds.DataTypeDuration(unit=None):
                return replace(part, unit=TimeUnit.MILLISECOND)
            case ds.DataTypeMap(keys_sorted=None):
                return canonical(replace(part, keys_sorted=False))
        return None

    return ds.with_types(data_type, change)


def type_fits(declared: ds.DataType, found: ds.DataType, *, older: bool = False) -> bool:
    """True if values of the type `found` in a Parquet file are of the type `declared`.

    Nested values may be required that are declared optional. In an `older` file structs may lack members that
    are optional by now, and null flags are left to the values.
    """
    if isinstance(found, ds.DataTypeOption) and not isinstance(declared, ds.DataTypeOption) and not older:
        return False
    a = declared.inner if isinstance(declared, ds.DataTypeOption) else declared
    b = found.inner if isinstance(found, ds.DataTypeOption) else found
    match a, b:
        case ds.DataTypeStruct(), ds.DataTypeStruct():
            return _members_fit(a, b, older=older)
        case ds.DataTypeList(), ds.DataTypeList():
            return type_fits(a.item_type, b.item_type, older=older)
        case ds.DataTypeMap(), ds.DataTypeMap():
            keys = type_fits(a.key_type, b.key_type, older=older)
            return keys and type_fits(a.value_type, b.value_type, older=older)
    # Parquet does not keep seconds, lengths of lists and sorted keys of maps, so these make no difference
    return a == b or ds.stored(canonical(a)) == as_stored(b)


def _members_fit(declared: ds.DataTypeStruct, found: ds.DataTypeStruct, *, older: bool) -> bool:
    members = {f.name: f for f in found.fields}
    if len(members) != len(found.fields) or not members.keys() <= {f.name for f in declared.fields}:
        return False
    if not older and [f.name for f in declared.fields] != list(members):
        return False
    return all(
        type_fits(f.type, members[f.name].type, older=older) if f.name in members else f.optional
        for f in declared.fields
    )


def as_stored(found: ds.DataType) -> ds.DataType:
    """The type as `stored`; engines are asked for UTC, so another zone in their file is a difference."""
    zone = found.timezone if isinstance(found, ds.DataTypeTimestamp) else None
    return ds.stored(canonical(found)) if zone in (None, "", "UTC", "+00:00") else found


def check_append(block: MetadataBlock, history: History | None) -> None:
    """Check that a block may follow its predecessors; `history` is None when it names no predecessor."""
    check_alone(block)
    if history is None:
        return
    previous = history.previous()
    _sequence(block, previous)
    _system_time(block, previous)
    check_kind(block.event, history)
    match block.event:
        case ev.AddData() | ev.ExecuteTransform() as event:
            _watermark(event, history)
            _offsets(event, history)
            _schema_first(event, history)
            if isinstance(event, ev.AddData):
                _add_data(event, history)
            else:
                check_execute_transform(event, history)
        case ev.SetPollingSource():
            if history.push_sources():
                message = "a dataset with push sources cannot have a polling source"
                raise _invalid("polling-no-push", message)
        case ev.AddPushSource() as event:
            _push_source(event, history)
        case ev.DisablePollingSource() | ev.DisablePushSource() as event:
            _disable(event, history)
        case ev.SetDataSchema() as event:
            check_set_data_schema(event, history)
        case ev.SetVocab() as event:
            check_set_vocab(event, history)


# --- the block alone -------------------------------------------------------------------------------


def check_alone(block: MetadataBlock) -> None:
    """The rules that need no other block."""
    event = block.event
    if block.prev_block_hash is None:
        if not isinstance(event, ev.Seed):
            message = f"the first block of a chain is a Seed, not {event.KIND}"
            raise AppendError("FirstBlockMustBeSeed", "seed-first", message)
        if block.sequence_number != 0:
            message = f"the first block has sequence number 0, not {block.sequence_number}"
            raise AppendError("SequenceIntegrity", "seq-start-zero", message)
    elif isinstance(event, ev.Seed):
        message = "a Seed can only be the first block"
        raise AppendError("AppendingSeedBlockToNonEmptyChain", "seed-only-once", message)
    match event:
        case ev.AddData() | ev.ExecuteTransform():
            _data_event_alone(event)
        case ev.AddPushSource():
            _one_schema(event, "push-one-schema")
            check_normalized(event.preprocess, "preprocess")
        case ev.SetPollingSource():
            _polling_source_alone(event)
        case ev.SetTransform():
            check_set_transform(event)


def _data_event_alone(event: DataEvent) -> None:
    if not (event.new_data or event.new_checkpoint or event.new_watermark) and not (
        isinstance(event, ev.AddData) and event.new_source_state
    ):
        rule = "add-data-not-empty" if isinstance(event, ev.AddData) else "execute-transform-not-empty"
        raise _no_change(rule, f"{event.KIND} carries nothing new")
    if event.new_data is None:
        return
    span = event.new_data.offset_interval
    expected = 0 if event.prev_offset is None else event.prev_offset + 1
    if span.start != expected:
        message = f"new data starts at offset {span.start}, expected {expected}"
        raise AppendError("OffsetsAreNotSequential", "offset-interval-start", message)
    if span.end < span.start:
        raise _invalid("offset-interval-order", f"the offset interval [{span.start}; {span.end}] is reversed")


def _one_schema(event: ev.AddPushSource | ev.SetPollingSource, rule: str) -> None:
    if event.read.schema is not None and event.read.ddl_schema is not None:
        raise _invalid(rule, "a read step gives a DDL schema or an ODF schema, not both")


def _polling_source_alone(event: ev.SetPollingSource) -> None:
    check_normalized(event.preprocess, "preprocess")
    fetch = event.fetch
    if isinstance(fetch, FetchStepEthereumLogs) and fetch.chain_id is None and fetch.node_url is None:
        raise _invalid("polling-eth-chain", "EthereumLogs needs a chainId or a nodeUrl")
    _one_schema(event, "polling-one-schema")


# --- against earlier blocks ------------------------------------------------------------------------


def _sequence(block: MetadataBlock, previous: MetadataBlock) -> None:
    if block.sequence_number != previous.sequence_number + 1:
        message = f"block {block.sequence_number} cannot follow block {previous.sequence_number}"
        raise AppendError("SequenceIntegrity", "seq-plus-one", message)


def _system_time(block: MetadataBlock, previous: MetadataBlock) -> None:
    if block.system_time < previous.system_time:
        message = f"system time {block.system_time} is before {previous.system_time} of the previous block"
        raise AppendError("SystemTimeIsNotMonotonic", "system-time-monotonic", message)


def _nearest_data(history: History) -> DataEvent | None:
    event = history.nearest_event(ev.AddData, ev.ExecuteTransform)
    return event if isinstance(event, DataEvent) else None


def _watermark(event: DataEvent, history: History) -> None:
    earlier = _nearest_data(history)
    if earlier is None or earlier.new_watermark is None:
        return
    if event.new_watermark is None:
        message = f"the watermark {earlier.new_watermark} of the previous data block must be kept or raised"
        raise AppendError("WatermarkIsNotMonotonic", "watermark-kept", message)
    if event.new_watermark < earlier.new_watermark:
        raise AppendError(
            "WatermarkIsNotMonotonic",
            "watermark-monotonic",
            f"watermark {event.new_watermark} is before {earlier.new_watermark} of the previous data block",
        )


def _offsets(event: DataEvent, history: History) -> None:
    earlier = _nearest_data(history)
    if earlier is not None and event.prev_offset != earlier.last_offset:
        message = f"prevOffset is {event.prev_offset}, the chain's last offset {earlier.last_offset}"
        raise _invalid("prev-offset-continues", message)


def _schema_first(event: DataEvent, history: History) -> None:
    if event.new_data is not None and history.nearest("SetDataSchema") is None:
        rule = "add-data-schema-first" if isinstance(event, ev.AddData) else "execute-transform-schema-first"
        raise _invalid(rule, "SetDataSchema must come before the first event with data")


def _add_data(event: ev.AddData, history: History) -> None:
    earlier = history.nearest_event(ev.AddData)
    _checkpoint_continues(event, earlier, "add-data-checkpoint-continues")
    source_state = earlier.new_source_state if earlier else None
    if not _advances(event, earlier) and event.new_source_state == source_state:
        message = "AddData changes neither data, checkpoint, watermark nor source state"
        raise _no_change("add-data-advances", message)


def _polls(history: History) -> bool:
    latest = history.nearest_event(ev.SetPollingSource, ev.DisablePollingSource)
    return isinstance(latest, ev.SetPollingSource)


def _push_source(event: ev.AddPushSource, history: History) -> None:
    if _polls(history):
        raise _invalid("push-no-polling", "a dataset with a polling source cannot have push sources")
    if history.push_sources().get(event.source_name) == event:
        message = f"push source {event.source_name!r} is already defined like this"
        raise _no_change("push-not-identical", message)


def _disable(event: ev.DisablePollingSource | ev.DisablePushSource, history: History) -> None:
    if isinstance(event, ev.DisablePollingSource):
        if not _polls(history):
            raise _invalid("disable-defined", "there is no polling source to disable")
    elif event.source_name not in history.push_sources():
        raise _invalid("disable-defined", f"there is no push source {event.source_name!r} to disable")
