"""From a snapshot to the first blocks of a new dataset.

Source: specification "DatasetSnapshot"; rule ids as in `chain_rules.json` (`snapshot_rules`). Queries are
normalised and inputs resolved here, because a block may not hold the short forms.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from graphlib import CycleError, TopologicalSorter

from odfchain.chain.kind_rules import belongs_in
from odfchain.chain.transform_rules import check_normalized
from odfchain.errors import AppendError, ManifestError, OdfchainError
from odfchain.ids.did import DatasetId
from odfchain.ids.names import DatasetAlias
from odfchain.ids.refs import DatasetRefAny, RemoteDatasetId, local_alias
from odfchain.model import events as ev
from odfchain.model.ddl import parse_ddl
from odfchain.model.enums import DatasetKind
from odfchain.model.metadata_block import DatasetSnapshot
from odfchain.model.sources import SqlQueryStep, Transform
from odfchain.repo.carried import carried_schema, carried_source
from odfchain.repo.declared_constraints import referenced_names, resolved_attachments
from odfchain.repo.operations import operations_problem

Resolve = Callable[[DatasetRefAny], DatasetId | None]
"""Finds the id of a dataset that a reference names, None when it is unknown."""

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

    Raises:
        ManifestError: the snapshot breaks a rule, or an input is not known; located where it was read.
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
        if isinstance(event, ev.SetTransform) and snapshot.name in _local_inputs(event):
            raise ManifestError("a dataset cannot be an input of itself", path=f"{path}.inputs")
        events.append(_normalized(event, resolve, path))
        _check_operations(events[-1], vocabulary or ev.DatasetVocabulary(), path)
    return events


def _check_operations(event: ev.MetadataEvent, vocabulary: ev.DatasetVocabulary, path: str) -> None:
    """Where columns are declared, those that the merge strategy needs are among them."""
    if not isinstance(event, ev.SetPollingSource | ev.AddPushSource) or event.preprocess is not None:
        return
    if event.read.ddl_schema is None:
        return
    names = parse_ddl(event.read.ddl_schema).names
    problem = operations_problem(event.merge, names, vocabulary.operation_type_column, "the declared schema")
    if problem is not None:
        raise ManifestError(problem.message, path=f"{path}.merge", hint=problem.hint)


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
            return resolved_attachments(event, resolve)
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
        dataset_id = _resolve(item.dataset_ref, resolve)
        if dataset_id is None:
            missing.append(str(item.dataset_ref))
            continue
        resolved.append(
            ev.TransformInput(
                dataset_ref=RemoteDatasetId(None, dataset_id),
                alias=item.alias if item.alias is not None else str(item.dataset_ref),
            )
        )
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
    """The snapshots so that what others refer to comes before them; otherwise the order stays.

    Raises:
        ManifestError: two have one name, or some refer to each other so that none can be made first.
    """
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


def _local_inputs(event: ev.SetTransform) -> set[DatasetAlias | None]:
    return {local_alias(item.dataset_ref) for item in event.inputs}


def referenced(snapshot: DatasetSnapshot) -> list[DatasetAlias | DatasetId]:
    """The datasets of this workspace that a definition names, once or more."""
    refs = _refs(snapshot)
    ids = [ref.id for ref in refs if isinstance(ref, RemoteDatasetId)]
    return [*_inputs(snapshot), *ids]


def _refs(snapshot: DatasetSnapshot) -> list[DatasetRefAny]:
    refs: list[DatasetRefAny] = []
    for event in snapshot.metadata:
        if isinstance(event, ev.SetTransform):
            refs += (item.dataset_ref for item in event.inputs)
        elif isinstance(event, ev.SetAttachments):
            refs += referenced_names(event)
    return refs


def with_own_name(resolve: Resolve, names: Iterable[DatasetAlias], own: DatasetId) -> Resolve:
    """The same, where these names mean the dataset that is being defined."""
    known = set(names)

    def found(ref: DatasetRefAny) -> DatasetId | None:
        return own if local_alias(ref) in known else resolve(ref)

    return found
