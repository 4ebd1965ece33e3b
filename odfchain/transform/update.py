"""A definition is checked against a workspace, and what an existing dataset lacks of it is appended."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from odfchain.chain.chain import check_following, link_blocks
from odfchain.errors import AppendError, OdfchainError, WorkspaceError
from odfchain.ids.did import DatasetId
from odfchain.ids.names import DatasetAlias
from odfchain.model.events import MetadataEvent, Seed, SetAttachments, SetTransform
from odfchain.model.metadata_block import DatasetSnapshot
from odfchain.model.timestamp import Timestamp
from odfchain.progress import Progress
from odfchain.repo.commit import commit
from odfchain.repo.constraint_rules import check_declared
from odfchain.repo.creation import events_of, with_own_name
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.evolution import changes
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.transform.definition import with_own_engine, with_versions
from odfchain.transform.state_change import StateChange, counts_from, settle_state
from odfchain.transform.validate import (
    Checker,
    CurrentDataset,
    InputLookup,
    check_events,
    has_queries,
    known_inputs,
    present_of,
)


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
    resolve = with_own_name(inputs.resolve, (snapshot.name,), stand_in)
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
    resolve = with_own_name(workspace.resolve, (dataset.alias, snapshot.name), dataset.id)
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
