"""Queries are checked before they are recorded: what can be known without rows is known then.

    an input has a schema      names, types, the columns of the result, its fit with what is declared
    an input has none yet      the gate alone; the first pull finds the rest
    an engine at an address    the form of the definition

A definition without queries needs no Spark. Source: specification "Query Evolution", "Schema Evolution".
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain import errors
from odfchain.chain.chain import check_following, link_blocks
from odfchain.odf import events as ev
from odfchain.odf import transform_options as options
from odfchain.odf.arrow_schema import from_arrow, schema_of_event
from odfchain.odf.engine_messages import INPUT_TABLE, RawQueryRequest, TransformRequestInput
from odfchain.odf.events import DatasetSnapshot, MetadataEvent, Seed, SetAttachments, SetTransform
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import DatasetAlias, DatasetRefAny, local_alias
from odfchain.odf.physical_hash import sha3_256
from odfchain.odf.schema import DataSchema, parse_ddl
from odfchain.odf.sources import ReadStep, Transform
from odfchain.odf.times import Timestamp
from odfchain.progress import Progress
from odfchain.text import counted
from odfchain.transform.engines import EngineRules, datafusion_version, is_named_datafusion, place_of
from odfchain.workspace.commit import commit
from odfchain.workspace.config import TransformConfig
from odfchain.workspace.constraint_rules import check_declared
from odfchain.workspace.creation import changes, events_of, resolve_own_name
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.transform.engines import TransformEngine
    from odfchain.transform.spark_engine import SparkTransformEngine
    from odfchain.transform.step_files import StepInput


@dataclass(frozen=True, slots=True, kw_only=True)
class _Present:
    """State of a dataset when events are added to it; the defaults are those of a new one."""

    vocabulary: ev.DatasetVocabulary = field(default_factory=ev.DatasetVocabulary)
    schema: DataSchema | None = None
    executed_inputs: tuple[DatasetId, ...] | None = None
    """Those of the last execution; None when there was none."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The datasets of a workspace, and those that are about to be made there."""

    workspace: WorkspaceFiles
    pending: Mapping[DatasetAlias, _Present]

    @classmethod
    def of(cls, workspace: WorkspaceFiles, pending: Sequence[DatasetSnapshot] = ()) -> _Inputs:
        return cls(workspace, {each.name: _after(each.metadata, _Present()) for each in pending})

    def resolve(self, ref: DatasetRefAny) -> DatasetId | None:
        """The id of what a reference means; that of a dataset to come is a stand-in."""
        found = self.workspace.resolve(ref)
        alias = local_alias(ref)
        if found is not None or alias is None or alias not in self.pending:
            return found
        return _stand_in(alias)

    def find(self, dataset_id: DatasetId) -> tuple[DatasetAlias, _Present] | None:
        """The name of a dataset, and its state; None where it is not at hand."""
        for name, form in self.pending.items():
            if _stand_in(name) == dataset_id:
                return name, form
        files = self.workspace.present(dataset_id)
        if files is None:
            return None
        state = DatasetState.read(files.chain)
        return files.alias, _Present(schema=state.schema, vocabulary=state.vocabulary)


def _stand_in(name: DatasetAlias) -> DatasetId:
    # the dataset gets its id when it is made; until then one that goes by its name
    return DatasetId(sha3_256(str(name).encode()).digest())


def _after(events: Sequence[ev.MetadataEvent], present: _Present) -> _Present:
    vocabulary, schema = present.vocabulary, present.schema
    for event in events:
        if isinstance(event, ev.SetVocab):
            vocabulary = ev.DatasetVocabulary.from_event(event)
        elif isinstance(event, ev.SetDataSchema):
            schema = schema_of_event(event.raw_arrow_schema, event.schema)
    return _Present(vocabulary=vocabulary, schema=schema, executed_inputs=present.executed_inputs)


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks queries."""

    spark: Callable[[], SparkTransformEngine]
    """The engine of this process; asking for it starts nothing."""
    is_ours: Callable[[Transform], bool]
    """True if it executes a transform; raises a TransformError where no engine does."""
    datafusion: Callable[[], contextlib.AbstractContextManager[tuple[TransformEngine, Path]]]
    """The engine on DataFusion, and a folder that it may write in."""
    progress: Progress

    def check(
        self, events: Sequence[MetadataEvent], present: _Present, inputs: _Inputs, name: DatasetAlias
    ) -> None:
        """Events, which have the form of blocks, can be appended; notes for the user go to `progress`."""
        present = _after(events, present)
        try:
            for event in events:
                if isinstance(event, ev.SetTransform):
                    self._check_transform(event, present, inputs)
                elif (
                    isinstance(event, ev.SetPollingSource | ev.AddPushSource) and event.preprocess is not None
                ):
                    self._check_preprocess(event.read, event.preprocess)
        except errors.OdfchainError as error:
            error.message = f"{name}: {error.message}"
            raise

    def _check_preprocess(self, read: ReadStep, query: Transform) -> None:
        if not is_named_datafusion(query):
            self.spark().check_form(query, [INPUT_TABLE])  # translated, where it has another dialect
        elif self.is_ours(query := dataclasses.replace(query, version=None)):
            from odfchain.transform.execute import write_empty_parquet

            none = DataSchema(fields=())
            columns = read.schema or (parse_ddl(read.ddl_schema) if read.ddl_schema else none)
            with self.datafusion() as (engine, folder):
                given, made = str(folder / "input"), str(folder / "result")
                write_empty_parquet(columns, folder / "input")
                request = RawQueryRequest(input_data_paths=(given,), transform=query, output_data_path=made)
                try:
                    engine.query(request, progress=self.progress)
                except errors.QueryError as error:
                    # without declared columns the first run checks those of the query
                    if columns.fields or "there is no column" not in error.message:
                        raise

    def _check_transform(self, event: ev.SetTransform, present: _Present, known: _Inputs) -> None:
        from odfchain.transform.checked_query import check_temporal
        from odfchain.transform.spark_engine import settled_schema
        from odfchain.transform.step_files import StepInput

        ids = event.input_ids
        aliases = [item.alias or str(item.dataset_ref) for item in event.inputs]
        _check_inputs(ids, aliases, present)
        if not self.is_ours(event.transform):
            return
        inputs: list[StepInput] = []
        unknown: list[str] = []
        for dataset_id, alias in zip(ids, aliases, strict=True):
            name, form = known.find(dataset_id) or (None, _Present())
            if name is None or form.schema is None:
                unknown.append(alias)
                continue
            given = TransformRequestInput(
                dataset_id=dataset_id,
                dataset_alias=name,
                query_alias=alias,
                vocab=form.vocabulary,
                data_paths=(),
                schema_file="",
                explicit_watermarks=(),
            )
            inputs.append(StepInput(given, form.schema))
        if unknown:
            for table in event.transform.temporal_tables or ():
                check_temporal(table, aliases)
            if not is_named_datafusion(event.transform):
                self.spark().check_form(event.transform, aliases)
            names = ", ".join(f"`{name}`" for name in unknown)
            has = "has" if len(unknown) == 1 else "have"
            text = f"{names} {has} no columns before the first pull, which then checks those of the query"
            self.progress.note(text)
            return
        notes: tuple[str, ...] = ()
        if is_named_datafusion(event.transform):
            found = self._on_datafusion(event.transform, inputs, present.vocabulary)
        else:
            checked = self.spark().check(event.transform, inputs, present.vocabulary, self.progress)
            found, notes = checked.schema, checked.notes
        if present.schema is not None:
            _check_system_columns(present.schema, found, present.vocabulary)
            settled_schema(found, present.schema)
        for note in notes:
            self.progress.note(note)

    def _on_datafusion(
        self, transform: Transform, inputs: Sequence[StepInput], vocabulary: ev.DatasetVocabulary
    ) -> DataSchema:
        # a step without rows: what comes of it is a schema
        from odfchain.odf.engine_messages import TransformRequest
        from odfchain.slices.reader import open_parquet
        from odfchain.transform.execute import normalized, write_empty_parquet

        with self.datafusion() as (engine, folder):
            given = []
            for number, item in enumerate(inputs):
                file = folder / f"schema-{number}.parquet"
                write_empty_parquet(item.schema, file)
                given.append(dataclasses.replace(item.given, schema_file=str(file)))
            request = TransformRequest(
                dataset_id=DatasetId(bytes(32)),
                dataset_alias=DatasetAlias.parse("new"),
                system_time=Timestamp.now(),
                vocab=vocabulary,
                transform=normalized(transform),
                query_inputs=tuple(given),
                next_offset=0,
                prev_checkpoint_path=None,
                new_checkpoint_path=str(folder / "checkpoint"),
                new_data_path=str(folder / "data"),
            )
            engine.execute(request, schema=None, progress=self.progress)
            with open_parquet(folder / "data") as data:
                return from_arrow(data.schema_arrow)


def _check_inputs(ids: Sequence[DatasetId], aliases: Sequence[str], present: _Present) -> None:
    for alias in aliases:
        if aliases.count(alias) > 1:
            hint = "give each an alias: {datasetRef: …, alias: …}"
            raise errors.TransformError(f"two inputs are called `{alias}`", hint=hint)
    if present.executed_inputs is not None and present.executed_inputs != tuple(ids):
        raise errors.TransformError(
            f"the inputs would be {', '.join(aliases)}, which are not those that the dataset was computed "
            "from so far (or not in their order)",
            hint="make another dataset",
        )


def _check_system_columns(declared: DataSchema, found: DataSchema, vocabulary: ev.DatasetVocabulary) -> None:
    # the declared schema begins with the system columns, and its event time is the query's
    if declared.names[:4] != found.names[:4]:
        hint = f"the first columns are {', '.join(found.names[:4])}"
        raise errors.QueryError(f"the declared schema begins with {', '.join(declared.names[:4])}", hint=hint)
    was, now = (schema.field(vocabulary.event_time_column) for schema in (declared, found))
    if was is not None and now is not None and was.value_type != now.value_type:
        raise errors.QueryError(
            f"the event time `{was.name}` is {now.value_type.KIND} and is declared as {was.value_type.KIND}",
            hint="cast it to what is declared",
        )


# Events that are added to a derivative dataset at its creation.

_NO_ADDRESSES = TransformConfig()


def with_versions(snapshot: DatasetSnapshot, config: TransformConfig = _NO_ADDRESSES) -> DatasetSnapshot:
    """The definition with this engine's version where none is given (specification "Engine Versioning")."""
    return _each(snapshot, lambda event: _versioned(_named(event, config), config))


def _each(snapshot: DatasetSnapshot, change: Callable[[SetTransform], MetadataEvent]) -> DatasetSnapshot:
    metadata = tuple(change(e) if isinstance(e, SetTransform) else e for e in snapshot.metadata)
    return dataclasses.replace(snapshot, metadata=metadata)


def _named(event: SetTransform, config: TransformConfig) -> SetTransform:
    # by this engine's name if it is for it, former names included; one with an address is another engine's
    if place_of(event.transform, config) is not None:
        return event
    return dataclasses.replace(event, transform=options.with_own_name(event.transform))


def _versioned(event: SetTransform, config: TransformConfig) -> SetTransform:
    transform = event.transform
    base, lateness = options.split_version(transform.version or "")
    elsewhere = place_of(transform, config) is not None
    if not elsewhere and is_named_datafusion(transform) and not lateness:
        named = dataclasses.replace(transform, version=transform.version or datafusion_version())
        return dataclasses.replace(event, transform=named)
    if elsewhere or not options.is_own_name(transform.engine):
        if lateness:
            own = options.OWN_ENGINE
            raise errors.TransformError(
                f"{options.ALLOWED_LATENESS} is an option of the engine {own}, and the transform is for "
                f"`{transform.engine}`",
                hint=f"leave it out, or write the query for {own}",
            )
        return event
    if base or not options.is_own(transform):
        return event
    version = EngineRules(allowed_lateness_ms=lateness).version
    return dataclasses.replace(event, transform=dataclasses.replace(transform, version=version))


@dataclass(frozen=True, slots=True)
class Definitions:
    """Definitions of datasets in a workspace, which are checked before they are recorded."""

    workspace: WorkspaceFiles
    checker: Checker | None
    """None where queries are not looked at."""
    progress: Progress
    usable: Callable[..., None]
    """Raises where no run can use events; of a dataset it is also given the state, and which are new."""

    def check(self, snapshot: DatasetSnapshot, among: Sequence[DatasetSnapshot]) -> None:
        """A definition can be made with `among` and used: its rules hold, and what queries it has work."""
        inputs = _Inputs.of(self.workspace, among)
        stand_in = DatasetId(bytes(32))
        resolve = resolve_own_name(inputs.resolve, (snapshot.name,), stand_in)
        events = events_of(with_versions(snapshot, self.workspace.config.transform), resolve)
        self.usable(events)
        seed = Seed(dataset_id=stand_in, dataset_kind=snapshot.kind)
        now = Timestamp.now()
        check_following(link_blocks([seed, *events], prev=None, next_sequence_number=0, system_time=now))
        if self.checker is not None:
            self.checker.check(events, _Present(), inputs, snapshot.name)

    def update(
        self,
        dataset: DatasetFiles,
        snapshot: DatasetSnapshot,
        *,
        state: StateChange | None,
        finish: Callable[[], object],
        drop_constraints: bool,
    ) -> list[MetadataEvent]:
        """Append those events of a definition that differ from what is in force; returns them.

        `state` says what becomes of what the query remembers, where it remembers anything; `finish` brings
        the dataset up to date by the query in force, which `StateChange.FROM_NOW` asks for. Constraints in
        force may be left out only with `drop_constraints`.
        """
        if snapshot.kind is not dataset.kind:
            raise errors.WorkspaceError(
                f"{dataset.alias} is a {dataset.kind.value} dataset, "
                f"and the manifest defines a {snapshot.kind.value} one",
                hint="make another dataset",
            )
        before = DatasetState.read(dataset.chain)
        config = self.workspace.config.transform
        resolve = resolve_own_name(self.workspace.resolve, (dataset.alias, snapshot.name), dataset.id)
        given = events_of(_each(snapshot, lambda e: _named(e, config)), resolve, before.vocabulary)
        found = changes(given, before)
        if found:
            self.workspace.check_is_no_copy(dataset, "`odfchain pull` brings what its owner defines")
        self.usable(given, before, found)
        if any(isinstance(event, SetAttachments) for event in found):
            name, find = str(dataset.alias), self.workspace.columns_of
            check_declared(given, name, find, dataset.id, before, may_drop=drop_constraints)
        if state is StateChange.REBUILD and before.last_execution is not None:
            # a rebuild is asked for by a transform, also where the query itself stays
            found += [event for event in given if isinstance(event, SetTransform) and event not in found]
        found = list(with_versions(dataclasses.replace(snapshot, metadata=tuple(found)), config).metadata)
        if self.checker is not None:
            last = before.last_execution
            inputs = tuple(item.dataset_id for item in last.query_inputs) if last is not None else None
            present = _Present(vocabulary=before.vocabulary, schema=before.schema, executed_inputs=inputs)
            self.checker.check(found, present, _Inputs.of(self.workspace), dataset.alias)
        transform = next((event for event in found if isinstance(event, SetTransform)), None)
        if transform is not None:
            kept = _settle_state(dataset, before, transform, state, finish, self.progress)
            found = [kept if event is transform else event for event in found]
            if state is StateChange.FROM_NOW:
                # `finish` may have added blocks, and what follows is committed after those
                before = DatasetState.read(dataset.chain)
        if found:
            try:
                blocks = commit(dataset, before, found, [], system_time=before.next_system_time())
            except errors.AppendError as error:
                error.message = f"{dataset.alias}: {error.message}"
                raise
            if transform is not None and before.last_data is not None:
                number = before.head_block.sequence_number + len(blocks)
                self.progress.note(
                    f"block {number} asks for a rebuild: the next pull computes the query over everything"
                    if options.is_rebuilt(kept.transform)
                    else f"the new query counts from block {number} on; what was recorded before stays"
                )
        return found


class StateChange(Enum):
    """Choices for the memory of a replaced query."""

    REBUILD = "rebuild"
    """Compute the new query over everything."""
    FROM_NOW = "from-now"
    """Give up what the old query remembers once it has finished what it can."""


def _settle_state(
    dataset: DatasetFiles,
    state: DatasetState,
    new: SetTransform,
    change: StateChange | None,
    finish: Callable[[], object],
    progress: Progress,
) -> SetTransform:
    """The transform to record, after the old one has finished what was asked of it."""
    if change is StateChange.REBUILD:
        if not options.is_own(new.transform):
            raise errors.TransformError(
                f"{dataset.alias}: --rebuild needs the engine of this project, and the transform is for "
                f"`{new.transform.engine}`",
                hint="--from-now goes on with its engine; another dataset computes everything",
            )
        if state.last_execution is None:
            progress.note("nothing was computed so far, so there is nothing to compute anew")
            return new
        return dataclasses.replace(new, transform=options.rebuilt(new.transform))
    pending = state.awaits_rebuild
    if change is StateChange.FROM_NOW:
        if pending:
            progress.note("the rebuild that was asked for is given up; the result so far stays")
        else:
            finish()
            state = DatasetState.read(dataset.chain)
        if not _same_query(new, state.executed_transform):
            kept = _remembered(dataset, state)
            if kept is None:
                note = "what the old query remembers is given up; how much that is, only its engine can tell"
                progress.note(note)
            elif kept:
                rows = counted(kept, "row")
                progress.note(f"what the old query remembers is given up: {rows}; its result so far stays")
        return new
    if pending and options.is_own(new.transform):
        progress.note("the rebuild that was asked for is still to come, and is now one by this query")
        return dataclasses.replace(new, transform=options.rebuilt(new.transform))
    kept = _remembered(dataset, state)
    if kept == 0:
        return new
    rows = "something (its checkpoint cannot be read here)" if kept is None else counted(kept, "row")
    raise errors.TransformError(
        f"the query changes, and the one in force remembers {rows}: open windows or running totals would be "
        "lost without a word",
        hint="--rebuild computes the new query over everything and records what changes by that; --from-now "
        "finishes what the old query can, and begins with the rows that come next",
    )


def _remembered(dataset: DatasetFiles, state: DatasetState) -> int | None:
    # rows of the last step for the next one, none if another query has replaced it for good; None where only
    # another engine can tell
    from odfchain.transform.archive import Manifest

    last, transform = state.last_execution, state.executed_transform
    if last is None or last.new_checkpoint is None or transform is None:
        return 0
    if not state.awaits_rebuild and not _same_query(state.transform, transform):
        return 0  # it was given up with the block of the other one
    if not options.is_own(transform.transform):
        return None
    try:
        path = dataset.checkpoints.verified_path(last.new_checkpoint.physical_hash)
        manifest = Manifest.read(path)
    except (errors.CodecError, errors.EngineError, errors.StoreError):
        return None
    return sum(part.rows for part in manifest.parts)


def _same_query(one: SetTransform | None, other: SetTransform | None) -> bool:
    if one is None or other is None:
        return False
    return one.inputs == other.inputs and options.unmarked(one.transform) == options.unmarked(other.transform)
