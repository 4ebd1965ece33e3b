"""Queries are checked before they are recorded: what can be known without rows is known then.

    an input has a schema      names, types, the columns of the result, its fit with what is declared
    an input has none yet      the gate alone; the first pull finds the rest
    an engine at an address    the form of the definition

A definition without queries needs no Spark. Source: specification "Query Evolution", "Schema Evolution".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from odfchain.chain.chain import check_following, link_blocks
from odfchain.errors import (
    AppendError,
    DatasetNotFoundError,
    EngineError,
    OdfchainError,
    QueryError,
    TransformError,
    WorkspaceError,
)
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import schema_of_event
from odfchain.odf.events import DatasetSnapshot, MetadataEvent, Seed, SetAttachments, SetTransform
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import DatasetAlias, DatasetRefAny, RemoteDatasetId, local_alias
from odfchain.odf.physical_hash import sha3_256
from odfchain.odf.schema import DataSchema
from odfchain.odf.sources import Transform
from odfchain.odf.times import Timestamp
from odfchain.progress import Progress
from odfchain.transform.catch_up import with_own_engine, with_versions
from odfchain.transform.changed_query import StateChange, counts_from, settle_state
from odfchain.workspace.commit import commit
from odfchain.workspace.constraint_rules import check_declared
from odfchain.workspace.creation import changes, events_of, resolve_own_name
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.transform.checked_query import StepInput
    from odfchain.transform.spark_engine import SparkTransformEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDescription:
    """Facts about an input now."""

    id: DatasetId
    name: DatasetAlias
    schema: DataSchema | None
    vocabulary: ev.DatasetVocabulary


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentDataset:
    """State of a dataset when events are added to it; the defaults are those of a new one."""

    vocabulary: ev.DatasetVocabulary = field(default_factory=ev.DatasetVocabulary)
    schema: DataSchema | None = None
    executed_inputs: tuple[DatasetId, ...] | None = None
    """Those of the last execution; None when there was none."""


Find = Callable[[DatasetId], InputDescription | None]
"""Finds an input of a transform."""


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks queries."""

    spark: Callable[[], SparkTransformEngine]
    """The engine of this process; asking for it starts nothing."""
    is_ours: Callable[[Transform], bool]
    """True if it executes a transform; raises a TransformError where no engine does."""


@dataclass(frozen=True, slots=True)
class InputLookup:
    """The datasets of a workspace, and those that are about to be made there."""

    workspace: WorkspaceFiles
    pending: Mapping[DatasetAlias, InputDescription]

    def resolve(self, ref: DatasetRefAny) -> DatasetId | None:
        """The id of what a reference means; that of a dataset to come is a stand-in."""
        found = self.workspace.resolve(ref)
        alias = local_alias(ref)
        if found is not None or alias is None or alias not in self.pending:
            return found
        return self.pending[alias].id

    def find(self, dataset_id: DatasetId) -> InputDescription | None:
        """Facts about a dataset; None where it is not at hand."""
        for form in self.pending.values():
            if form.id == dataset_id:
                return form
        try:
            files = self.workspace.dataset(dataset_id)
        except DatasetNotFoundError:
            return None
        state = DatasetState.read(files.chain)
        return InputDescription(
            id=files.id, name=files.alias, schema=state.schema, vocabulary=state.vocabulary
        )


def known_inputs(workspace: WorkspaceFiles, pending: Sequence[DatasetSnapshot] = ()) -> InputLookup:
    """The possible inputs of queries: the datasets of a workspace, and those that `pending` define."""
    forms = {}
    for snapshot in pending:
        now = _after(snapshot.metadata, CurrentDataset())
        stand_in = DatasetId(sha3_256(str(snapshot.name).encode()).digest())
        forms[snapshot.name] = InputDescription(
            id=stand_in, name=snapshot.name, schema=now.schema, vocabulary=now.vocabulary
        )
    return InputLookup(workspace, forms)


def present_of(state: DatasetState) -> CurrentDataset:
    """The present state of a dataset."""
    last = state.last_execution
    inputs = tuple(item.dataset_id for item in last.query_inputs) if last is not None else None
    return CurrentDataset(vocabulary=state.vocabulary, schema=state.schema, executed_inputs=inputs)


def has_queries(events: Sequence[ev.MetadataEvent]) -> bool:
    """True if there is anything in these events that `check_events` looks at."""
    return any(isinstance(event, ev.SetTransform) or _preprocess(event) is not None for event in events)


def check_events(
    events: Sequence[ev.MetadataEvent],
    present: CurrentDataset,
    find: Find,
    checker: Checker,
    progress: Progress,
) -> None:
    """The queries in events that are about to be recorded can be executed, as far as is known.

    What the user should know of them goes to `progress` as notes. The events have the form of blocks.
    """
    present = _after(events, present)
    for event in events:
        if isinstance(event, ev.SetTransform):
            _check_transform(event, present, find, checker, progress)
        elif (preprocess := _preprocess(event)) is not None:
            from odfchain.transform.spark_engine import INPUT_TABLE

            # whatever dialect it is in: preprocessing is always done here
            checker.spark().check_form(preprocess, [INPUT_TABLE])


def _preprocess(event: ev.MetadataEvent) -> Transform | None:
    return event.preprocess if isinstance(event, ev.SetPollingSource | ev.AddPushSource) else None


def _after(events: Sequence[ev.MetadataEvent], present: CurrentDataset) -> CurrentDataset:
    vocabulary, schema = present.vocabulary, present.schema
    for event in events:
        if isinstance(event, ev.SetVocab):
            vocabulary = ev.DatasetVocabulary.from_event(event)
        elif isinstance(event, ev.SetDataSchema):
            schema = schema_of_event(event.raw_arrow_schema, event.schema)
    return CurrentDataset(vocabulary=vocabulary, schema=schema, executed_inputs=present.executed_inputs)


def _check_transform(
    event: ev.SetTransform, present: CurrentDataset, find: Find, checker: Checker, progress: Progress
) -> None:
    from odfchain.odf.engine_messages import TransformRequestInput
    from odfchain.transform.checked_query import StepInput
    from odfchain.transform.engine_result import settled_schema

    ids = [i.dataset_ref.id for i in event.inputs if isinstance(i.dataset_ref, RemoteDatasetId)]
    aliases = [item.alias or str(item.dataset_ref) for item in event.inputs]
    _check_inputs(ids, aliases, present)
    if not checker.is_ours(event.transform):
        _say_what_calls_need(progress)
        return
    inputs: list[StepInput] = []
    unknown: list[str] = []
    for dataset_id, alias in zip(ids, aliases, strict=True):
        form = find(dataset_id)
        if form is None or form.schema is None:
            unknown.append(alias)
            continue
        given = TransformRequestInput(
            dataset_id=dataset_id,
            dataset_alias=form.name,
            query_alias=alias,
            vocab=form.vocabulary,
            data_paths=(),
            schema_file="",
            explicit_watermarks=(),
        )
        inputs.append(StepInput(given, form.schema))
    if unknown:
        _check_temporal(event.transform, aliases)
        checker.spark().check_form(event.transform, aliases)
        names = ", ".join(f"`{name}`" for name in unknown)
        has = "has" if len(unknown) == 1 else "have"
        progress.note(f"{names} {has} no columns before the first pull, which then checks those of the query")
        return
    checked = checker.spark().check(event.transform, inputs, present.vocabulary, progress)
    if present.schema is not None:
        _check_system_columns(present.schema, checked.schema, present.vocabulary)
        settled_schema(checked.schema, present.schema)
    for note in checked.notes:
        progress.note(note)


def _say_what_calls_need(progress: Progress) -> None:
    from odfchain.transform.engine_client import load_grpc

    try:
        load_grpc()
    except EngineError as error:
        progress.note(f"the first pull will fail: {error.message}; {error.hint}")


def _check_inputs(ids: Sequence[DatasetId], aliases: Sequence[str], present: CurrentDataset) -> None:
    for alias in aliases:
        if aliases.count(alias) > 1:
            raise TransformError(
                f"two inputs are called `{alias}`", hint="give each an alias: {datasetRef: …, alias: …}"
            )
    if present.executed_inputs is not None and present.executed_inputs != tuple(ids):
        raise TransformError(
            f"the inputs would be {', '.join(aliases)}, which are not those that the dataset was computed "
            "from so far (or not in their order)",
            hint="make another dataset",
        )


def _check_temporal(transform: Transform, aliases: Sequence[str]) -> None:
    # a temporal table is an input with a key; whether the key's columns exist is not known yet
    for table in transform.temporal_tables or ():
        if table.name not in aliases:
            raise QueryError(f"temporalTables names `{table.name}`, which is not an input")
        if not table.primary_key:
            raise QueryError(f"the temporal table `{table.name}` has no primary key")


def _check_system_columns(declared: DataSchema, found: DataSchema, vocabulary: ev.DatasetVocabulary) -> None:
    # the declared schema begins with the system columns, and its event time is the query's
    if declared.names[:4] != found.names[:4]:
        raise QueryError(
            f"the declared schema begins with {', '.join(declared.names[:4])}",
            hint=f"the first columns are {', '.join(found.names[:4])}",
        )
    was, now = (schema.field(vocabulary.event_time_column) for schema in (declared, found))
    if was is not None and now is not None and was.value_type != now.value_type:
        raise QueryError(
            f"the event time `{was.name}` is {now.value_type.KIND} and is declared as {was.value_type.KIND}",
            hint="cast it to what is declared",
        )


# Validation of a definition in a workspace, and the events that an existing dataset lacks of it.


def check_definition(
    workspace: WorkspaceFiles,
    snapshot: DatasetSnapshot,
    among: Sequence[DatasetSnapshot],
    checker: Checker | None,
    progress: Progress,
    usable: Callable[[Sequence[MetadataEvent]], None],
) -> None:
    """A definition can be made with `among` and used: its rules hold, and with a checker its queries work."""
    inputs = known_inputs(workspace, among)
    stand_in = DatasetId(bytes(32))
    resolve = resolve_own_name(inputs.resolve, (snapshot.name,), stand_in)
    events = events_of(with_versions(snapshot, workspace.config.transform), resolve)
    usable(events)
    seed = Seed(dataset_id=stand_in, dataset_kind=snapshot.kind)
    now = Timestamp.now()
    check_following(link_blocks([seed, *events], prev=None, next_sequence_number=0, system_time=now))
    if checker is not None:
        _check(events, CurrentDataset(), inputs, snapshot.name, checker, progress)


def update_dataset(
    workspace: WorkspaceFiles,
    dataset: DatasetFiles,
    snapshot: DatasetSnapshot,
    checker: Checker | None,
    progress: Progress,
    *,
    usable: Callable[..., None],
    state: StateChange | None = None,
    finish: Callable[[], object] = lambda: None,
    drop_constraints: bool = False,
) -> list[MetadataEvent]:
    """Append those events of a definition that differ from what is in force; returns them.

    `usable` is given the events, the state before and what is to be appended, and raises where no run can use
    that. `state` says what becomes of what the query remembers, where it remembers anything; `finish` brings
    the dataset up to date by the query in force, which `StateChange.FROM_NOW` asks for. Constraints in force
    may be left out only with `drop_constraints`.

    Raises:
        WorkspaceError: the definition is one of another kind of dataset.
    """
    if snapshot.kind is not dataset.kind:
        raise WorkspaceError(
            f"{dataset.alias} is a {dataset.kind.value} dataset, "
            f"and the manifest defines a {snapshot.kind.value} one",
            hint="make another dataset",
        )
    before = DatasetState.read(dataset.chain)
    config = workspace.config.transform
    resolve = resolve_own_name(workspace.resolve, (dataset.alias, snapshot.name), dataset.id)
    given = events_of(with_own_engine(snapshot, config), resolve, before.vocabulary)
    found = changes(given, before)
    usable(given, before, found)
    if any(isinstance(event, SetAttachments) for event in found):
        name, find = str(dataset.alias), workspace.columns_of
        check_declared(given, name, find, dataset.id, before, may_drop=drop_constraints)
    if state is StateChange.REBUILD and before.last_execution is not None:
        found += [event for event in given if isinstance(event, SetTransform) and event not in found]
    found = list(with_versions(dataclasses.replace(snapshot, metadata=tuple(found)), config).metadata)
    if checker is not None:
        _check(found, present_of(before), known_inputs(workspace), dataset.alias, checker, progress)
    transform = next((event for event in found if isinstance(event, SetTransform)), None)
    if transform is not None:
        kept = settle_state(dataset, before, transform, state, finish, progress)
        found = [kept if event is transform else event for event in found]
        if state is StateChange.FROM_NOW:
            before = DatasetState.read(dataset.chain)
    if found:
        try:
            blocks = commit(dataset, before, found, [], system_time=before.next_system_time())
        except AppendError as error:
            error.message = f"{dataset.alias}: {error.message}"
            raise
        if transform is not None and before.last_data is not None:
            number = before.head_block.sequence_number + len(blocks)
            progress.note(counts_from(kept, number))
    return found


def _check(
    events: Sequence[MetadataEvent],
    present: CurrentDataset,
    inputs: InputLookup,
    name: DatasetAlias,
    checker: Checker,
    progress: Progress,
) -> None:
    if not has_queries(events):
        return
    try:
        check_events(events, present, inputs.find, checker, progress)
    except OdfchainError as error:
        error.message = f"{name}: {error.message}"
        raise
