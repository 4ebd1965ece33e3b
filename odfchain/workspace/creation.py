"""From a snapshot to the first blocks of a new dataset.

Source: specification "DatasetSnapshot"; rule ids as in `chain_rules.json` (`snapshot_rules`). Queries are
normalised and inputs resolved here, because a block may not hold the short forms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias, TypeVar

from odfchain.chain.index import DataEvent
from odfchain.chain.rules import belongs_in, canonical, check_normalized
from odfchain.errors import AppendError, CodecError, ManifestError, OdfchainError, SchemaError, child_path
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import encode_raw_arrow, schema_of_event
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import DatasetSnapshot
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import DatasetAlias, DatasetRefAny, RemoteDatasetId, local_alias
from odfchain.odf.schema import DataSchema, check_recordable, format_ddl, parse_ddl, recorded, type_name
from odfchain.odf.sources import ReadStep, ReadStepParquet, SqlQueryStep, Transform
from odfchain.odf.times import check_date_format, check_timestamp_format
from odfchain.odf.transform_options import lateness_option, split_version, unmarked, with_own_name
from odfchain.workspace.dataset_state import DatasetState, operations_problem
from odfchain.workspace.declared_constraints import ConstraintsFile, Resolve

# Newer manifests in the form that events of 0.34.1 have; what that form cannot hold is refused by its path.
#
#     read.schema: {fields: [...]}            DDL text for each column
#     SetDataSchema.schema: {fields: [...]}   a raw Arrow schema
#
# A reader of 0.34.1 silently ignores the newer form and would read other columns. Nothing is
# dropped: each column is written, read back and compared. Source: specification "Schema Format"; RFC-005.

Source: TypeAlias = ev.AddPushSource | ev.SetPollingSource


def carried_source(event: Source, path: str) -> Source:
    """The source with its columns as DDL, which can be read, and recorded where no query prepares them."""
    prepared = event.preprocess is not None
    read = _read_step(event.read, child_path(path, "read"), prepared=prepared)
    return dataclasses.replace(event, read=read)


def carried_schema(event: ev.SetDataSchema, path: str) -> ev.SetDataSchema:
    """The event with a raw Arrow schema, of which it has one."""
    if (event.schema is None) == (event.raw_arrow_schema is None):
        raise ManifestError("give one of 'schema' and 'rawArrowSchema'", path=path)
    given, raw = event.schema, event.raw_arrow_schema
    where = child_path(path, "rawArrowSchema" if given is None else "schema")
    try:
        if given is not None:
            _check_attributes(given, where)
            raw = encode_raw_arrow(given)
        back = schema_of_event(raw, None)
        check_recordable(back.fields)
    except (SchemaError, CodecError) as error:
        raise ManifestError(error.message, path=where, hint=error.hint) from None
    kept = tuple(dataclasses.replace(f, type=recorded(f.type)) for f in back.fields)
    _check_fields(back.fields if given is None else given.fields, kept, where)
    return ev.SetDataSchema(raw_arrow_schema=raw)


def _read_step(read: ReadStep, path: str, *, prepared: bool) -> ReadStep:
    for key, name, check in (
        ("dateFormat", "date_format", check_date_format),
        ("timestampFormat", "timestamp_format", check_timestamp_format),
    ):
        if (text := getattr(read, name, None)) is not None:
            _at(child_path(path, key), check, text)
    where = child_path(path, "schema")
    if read.schema is not None and read.ddl_schema is not None:
        raise ManifestError("'schema' and 'ddlSchema' say the same thing twice", path=path)
    if read.schema is not None:
        read = dataclasses.replace(read, ddl_schema=_as_ddl(read.schema, where), schema=None)
    if read.ddl_schema is not None:
        columns = _at(where, parse_ddl, read.ddl_schema).fields
        if not prepared:
            _at(where, check_recordable, columns)
        _check_readable(read, columns, where)
    return read


def _check_readable(read: ReadStep, columns: tuple[ds.DataField, ...], path: str) -> None:
    for f in columns if not isinstance(read, ReadStepParquet) else ():
        for part in ds.types_within(f.type):
            if isinstance(part, ds.DataTypeBinary) and part.fixed_length != 16:
                raise ManifestError(
                    f"column `{f.name}`: {type_name(part)} cannot be read from text",
                    path=path,
                    hint="declare STRING, and convert it by a preprocess query: unhex(…), unbase64(…)",
                )


def _as_ddl(schema: ds.DataSchema, path: str) -> tuple[str, ...]:
    _check_attributes(schema, path)
    columns = []
    for index, column in enumerate(schema.fields):
        where = f"{path}.fields[{index}]"
        alone = ds.DataSchema(fields=(column,))
        text = _at(child_path(where, "type"), format_ddl, alone)
        _check_fields(alone.fields, _at(where, parse_ddl, text).fields, path, first=index)
        columns += text
    _at(path, parse_ddl, columns)  # there are columns, and no two of one name
    return tuple(columns)


_Written = TypeVar("_Written")
_Read = TypeVar("_Read")


def _at(path: str, make: Callable[[_Written], _Read], given: _Written) -> _Read:
    try:
        return make(given)
    except SchemaError as error:
        raise ManifestError(error.message, path=path, hint=error.hint) from None


def _check_attributes(schema: ds.DataSchema, path: str) -> None:
    if schema.extra is not None and schema.extra.entries:
        raise _attributes(schema.extra, path)


def _attributes(extra: ds.ExtraAttributes, path: str) -> ManifestError:
    names = ", ".join(sorted(extra.entries))
    return ManifestError(
        f"attributes cannot be recorded in ODF 0.34.1: {names}",
        path=child_path(path, "extra"),
        hint="leave them out; what they say can go into an attachment (SetAttachments)",
    )


def _check_fields(
    given: tuple[ds.DataField, ...], back: tuple[ds.DataField, ...], path: str, *, first: int = 0
) -> None:
    for index, (one, other) in enumerate(zip(given, back, strict=True), start=first):
        where = f"{path}.fields[{index}]"
        if one.name != other.name:
            raise ManifestError(f"the name {one.name!r} cannot be recorded", path=child_path(where, "name"))
        if one.extra is not None and one.extra.entries and one.extra != other.extra:
            raise _attributes(one.extra, where)
        _check_type(one.type, other.type, child_path(where, "type"))


def _check_type(given: ds.DataType, back: ds.DataType, path: str) -> None:
    match given, back:
        case ds.DataTypeOption(inner=a), ds.DataTypeOption(inner=b):
            return _check_type(a, b, path)
        case ds.DataTypeStruct(fields=a), ds.DataTypeStruct(fields=b) if len(a) == len(b):
            return _check_fields(a, b, path)
        case ds.DataTypeList(), ds.DataTypeList() if given.fixed_length == back.fixed_length:
            return _check_type(given.item_type, back.item_type, child_path(path, "itemType"))
        case ds.DataTypeMap(key_type=a, value_type=b), ds.DataTypeMap(key_type=c, value_type=d):
            _check_type(a, c, child_path(path, "keyType"))
            _check_type(b, d, child_path(path, "valueType"))
    if canonical(given) != canonical(back):
        message = f"{_words(given)} cannot be recorded in ODF 0.34.1 (it would become {_words(back)})"
        raise ManifestError(message, path=path)
    return None


def _words(data_type: ds.DataType) -> str:
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return f"optional {_words(inner)}"
        case ds.DataTypeTimestamp(timezone=""):
            return f"{type_name(data_type)} without a time zone"
        case ds.DataTypeTimestamp(timezone=str(zone)) if zone != "UTC":
            return f"{type_name(data_type)} in the time zone {zone!r}"
        case ds.DataTypeList(fixed_length=length) if length is not None:
            return f"{type_name(data_type)} of {length} items"
        case ds.DataTypeMap(keys_sorted=True):
            return f"{type_name(data_type)} with sorted keys"
    return type_name(data_type)


_LISTED = (
    ev.SetPollingSource,
    ev.AddPushSource,
    ev.SetTransform,
    ev.SetAttachments,
    ev.SetInfo,
    ev.SetLicense,
    ev.SetVocab,
    ev.SetDataSchema,
)


def events_of(
    snapshot: DatasetSnapshot, resolve: Resolve, vocabulary: ev.DatasetVocabulary | None = None
) -> list[ev.MetadataEvent]:
    """The events of a snapshot in the form that blocks hold, without the Seed.

    `vocabulary` is what is in force where the snapshot says nothing about it.
    """
    try:
        return _events_of(snapshot, resolve, vocabulary)
    except ManifestError as error:
        raise snapshot.located(error) from None


def _events_of(
    snapshot: DatasetSnapshot, resolve: Resolve, vocabulary: ev.DatasetVocabulary | None
) -> list[ev.MetadataEvent]:
    events = []
    for event in snapshot.metadata:
        if isinstance(event, ev.SetVocab):
            vocabulary = ev.DatasetVocabulary.from_event(event)
    for index, event in enumerate(snapshot.metadata):
        path = f"metadata[{index}]"
        _check_allowed(event, snapshot.kind, path)
        if isinstance(event, ev.SetTransform) and snapshot.name in {
            local_alias(item.dataset_ref) for item in event.inputs
        }:
            raise ManifestError("a dataset cannot be an input of itself", path=f"{path}.inputs")
        events.append(_normalized(event, resolve, path))
        _check_operations(events[-1], vocabulary or ev.DatasetVocabulary(), path)
    return events


def _check_operations(event: ev.MetadataEvent, vocabulary: ev.DatasetVocabulary, path: str) -> None:
    if not isinstance(event, ev.SetPollingSource | ev.AddPushSource) or event.preprocess is not None:
        return
    if event.read.ddl_schema is None:
        return
    names = parse_ddl(event.read.ddl_schema).names
    problem = operations_problem(event.merge, names, vocabulary.operation_type_column, "the declared schema")
    if problem is not None:
        message, hint = problem
        raise ManifestError(message, path=f"{path}.merge", hint=hint)


def _check_allowed(event: ev.MetadataEvent, kind: DatasetKind, path: str) -> None:
    if isinstance(event, ev.Seed):
        raise ManifestError("a Seed is made when the dataset is created, it cannot be listed", path=path)
    if not isinstance(event, _LISTED):
        disables = isinstance(event, ev.DisablePollingSource | ev.DisablePushSource)
        raise ManifestError(
            f"{event.KIND} cannot be listed in a snapshot",
            path=path,
            hint="`odfchain source disable DATASET` records it" if disables else None,
        )
    if belongs_in(event) not in (None, kind):
        other = "Derivative" if kind is DatasetKind.ROOT else "Root"
        raise ManifestError(f"{event.KIND} belongs in {other} datasets only", path=path)


def _normalized(event: ev.MetadataEvent, resolve: Resolve, path: str) -> ev.MetadataEvent:
    match event:
        case ev.SetPollingSource() | ev.AddPushSource():
            event = carried_source(event, path)
            if event.preprocess is None:
                return event
            preprocess = _normalize_transform(event.preprocess, f"{path}.preprocess")
            return dataclasses.replace(event, preprocess=preprocess)
        case ev.SetDataSchema():
            return carried_schema(event, path)
        case ev.SetAttachments():
            return ConstraintsFile(event).resolved(resolve)
        case ev.SetTransform():
            return ev.SetTransform(
                inputs=_resolved_inputs(event.inputs, resolve, path),
                transform=_normalize_transform(event.transform, f"{path}.transform"),
            )
    return event


def _normalize_transform(transform: Transform, path: str) -> Transform:
    if transform.query is not None and transform.queries is not None:
        raise ManifestError("give 'query' or 'queries', not both", path=path)
    queries = transform.queries
    if transform.query is not None:
        queries = (SqlQueryStep(query=transform.query),)
    if not queries:
        raise ManifestError("a transform needs a 'query' or 'queries'", path=path)
    if sum(q.alias is None for q in queries) > 1:
        raise ManifestError("more than one query has no alias: only the last is the output", path=path)
    normalized = dataclasses.replace(transform, query=None, queries=queries)
    try:
        check_normalized(normalized, "queries")
    except AppendError as error:
        raise ManifestError(error.message, path=path) from None
    return normalized


def _resolved_inputs(
    inputs: tuple[ev.TransformInput, ...], resolve: Resolve, path: str
) -> tuple[ev.TransformInput, ...]:
    resolved, missing = [], []
    for item in inputs:
        if (dataset_id := _resolve(item.dataset_ref, resolve)) is None:
            missing.append(str(item.dataset_ref))
            continue
        alias = item.alias if item.alias is not None else str(item.dataset_ref)
        resolved.append(ev.TransformInput(dataset_ref=RemoteDatasetId(None, dataset_id), alias=alias))
    if missing:
        raise ManifestError(
            f"unknown input datasets: {', '.join(missing)}",
            path=f"{path}.inputs",
            hint="add or pull them first",
        )
    return tuple(resolved)


def _resolve(ref: DatasetRefAny, resolve: Resolve) -> DatasetId | None:
    try:
        return resolve(ref)
    except OdfchainError:
        return None


def in_creation_order(snapshots: Iterable[DatasetSnapshot]) -> list[DatasetSnapshot]:
    """The snapshots so that what others refer to comes before them; otherwise the order stays."""
    named: dict[DatasetAlias, DatasetSnapshot] = {}
    for snapshot in snapshots:
        if snapshot.name in named:
            both = f"{_where(named[snapshot.name])} and {_where(snapshot)}"
            raise ManifestError(f"two manifests define {both}", hint="give one of them another name")
        named[snapshot.name] = snapshot
    order = TopologicalSorter({name: _inputs(s) & (named.keys() - {name}) for name, s in named.items()})
    try:
        order.prepare()
    except CycleError as error:
        circle = " → ".join(_where(named[name]) for name in error.args[1])
        raise ManifestError(f"datasets refer to each other, none can be made first: {circle}") from None
    ordered: list[DatasetSnapshot] = []
    while order.is_active():
        ready = set(order.get_ready())
        ordered += (s for name, s in named.items() if name in ready)
        order.done(*ready)
    return ordered


def _where(snapshot: DatasetSnapshot) -> str:
    source = snapshot.origin and snapshot.origin.source
    return f"{snapshot.name} ({source})" if source else str(snapshot.name)


def _inputs(snapshot: DatasetSnapshot) -> set[DatasetAlias]:
    return {alias for ref in _refs(snapshot) if (alias := local_alias(ref)) is not None}


def referenced(snapshot: DatasetSnapshot) -> list[DatasetAlias | DatasetId]:
    """The datasets of this workspace that a definition names, once or more."""
    refs = _refs(snapshot)
    return [*_inputs(snapshot), *[ref.id for ref in refs if isinstance(ref, RemoteDatasetId)]]


def _refs(snapshot: DatasetSnapshot) -> list[DatasetRefAny]:
    refs: list[DatasetRefAny] = []
    for event in snapshot.metadata:
        if isinstance(event, ev.SetTransform):
            refs += (item.dataset_ref for item in event.inputs)
        elif isinstance(event, ev.SetAttachments):
            refs += ConstraintsFile(event).referenced()
    return refs


def resolve_own_name(resolve: Resolve, names: Iterable[DatasetAlias], own: DatasetId) -> Resolve:
    """The same, where these names mean the dataset that is being defined."""
    known = set(names)

    def found(ref: DatasetRefAny) -> DatasetId | None:
        return own if local_alias(ref) in known else resolve(ref)

    return found


# From a snapshot to the events that an existing dataset lacks of it.
#
# What a snapshot has and the chain has not is appended; what it does not mention stays in force. Source:
# specification "Dataset Evolution", "Query Evolution".


def changes(events: Sequence[ev.MetadataEvent], state: DatasetState) -> list[ev.MetadataEvent]:
    """Those of the events that differ from what is in force, in their order.

    A transform without a version keeps the one in force when nothing else of it changes; the former name of
    this project's engine is no other one. A schema to
    which runs have added columns is still the one that was declared. A declared schema that lacks a column
    which was declared before is a change: the append rules refuse it.
    """
    return [event for event in events if not _in_force(event, state)]


def _in_force(event: ev.MetadataEvent, state: DatasetState) -> bool:
    match event:
        case ev.AddPushSource():
            return _same_source(event, state.push_sources.get(event.source_name))
        case ev.SetPollingSource():
            return _same_source(event, state.polling_source)
        case ev.SetVocab():
            return state.vocabulary == ev.DatasetVocabulary.from_event(event)
        case ev.SetDataSchema():
            declared = schema_of_event(event.raw_arrow_schema, event.schema)
            return any(_same_columns(declared, old) for old in (state.schema, _declared_schema(state)))
        case ev.SetTransform():
            return state.transform is not None and _same_transform(event, state.transform)
    latest = state.chain.nearest(event.KIND, head=state.head)
    return latest is not None and latest.block.event == event


def _declared_schema(state: DatasetState) -> DataSchema | None:
    if not (schemas := list(state.chain.nearest_all("SetDataSchema", head=state.head))):
        return None
    names = state.chain.hashes(state.head)
    for block in (item.block for item in schemas):
        number = block.sequence_number + 1
        following = state.chain.get(names[number]) if number < len(names) else None
        # a run records the columns that it added together with its rows
        by_a_run = (
            following is not None
            and isinstance(following.event, DataEvent)
            and following.system_time == block.system_time
        )
        if not by_a_run or block is schemas[-1].block:
            event = block.event
            assert isinstance(event, ev.SetDataSchema)  # noqa: S101 - asked for this kind
            return schema_of_event(event.raw_arrow_schema, event.schema)
    return None


def _same_transform(new: ev.SetTransform, old: ev.SetTransform) -> bool:
    old = dataclasses.replace(old, transform=unmarked(old.transform))
    base, lateness = split_version(new.transform.version or "")
    version = new.transform.version
    if not base and old.transform.version is not None:
        # the options of a query are said, or they are not in force
        version = split_version(old.transform.version)[0] + lateness_option(lateness)
    versioned = dataclasses.replace(new, transform=dataclasses.replace(new.transform, version=version))
    return versioned in (old, dataclasses.replace(old, transform=with_own_name(old.transform)))


def _same_columns(new: DataSchema, old: DataSchema | None) -> bool:
    # an older block may record the same in the older form
    if old is None:
        return False
    one, other = ([(f.name, canonical(f.type)) for f in each.fields] for each in (new, old))
    return one == other


def _same_source(new: Source, old: Source | None) -> bool:
    # an older block may record the same in the older form
    if old is None or new == old:
        return old is not None
    try:
        return carried_source(old, "") == new
    except ManifestError:
        return False
