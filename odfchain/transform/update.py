"""A definition is checked against a workspace, and what an existing dataset lacks of it is appended."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from odfchain.dataset.commit import commit
from odfchain.dataset.creation import events_of
from odfchain.dataset.evolution import changes
from odfchain.dataset.files import DatasetFiles
from odfchain.dataset.state import DatasetState
from odfchain.errors import OdfchainError, WorkspaceError
from odfchain.ids.names import DatasetAlias
from odfchain.metadata.block import DatasetSnapshot
from odfchain.metadata.events import MetadataEvent
from odfchain.progress import Progress
from odfchain.transform.creation import with_versions
from odfchain.transform.validate import (
    Checker,
    KnownInputs,
    Present,
    check_events,
    has_queries,
    known_inputs,
    present_of,
)
from odfchain.workspace.workspace import WorkspaceFiles


def check_definition(
    workspace: WorkspaceFiles,
    snapshot: DatasetSnapshot,
    among: Sequence[DatasetSnapshot],
    checker: Checker,
    progress: Progress,
) -> None:
    """The queries of a definition that is made together with `among` can be executed, as far as is known.

    Raises:
        ManifestError: the definition breaks a rule, or its inputs are not known.
        QueryError, SchemaError, TransformError, EngineError: as `check_events`.
    """
    inputs = known_inputs(workspace, among)
    events = events_of(with_versions(snapshot), inputs.resolve)
    _check(events, Present(), inputs, snapshot.name, checker, progress)


def update_dataset(
    workspace: WorkspaceFiles,
    dataset: DatasetFiles,
    snapshot: DatasetSnapshot,
    checker: Checker | None,
    progress: Progress,
) -> list[MetadataEvent]:
    """Append those events of a definition that differ from what is in force; returns them.

    Raises:
        WorkspaceError: the definition is one of another kind of dataset.
        ManifestError, AppendError: it breaks a rule.
        QueryError, SchemaError, TransformError, EngineError: as `check_events`, which needs a checker.
        RefConflictError: another writer was faster.
    """
    if snapshot.kind is not dataset.kind:
        raise WorkspaceError(
            f"{dataset.alias} is a {dataset.kind.value} dataset, "
            f"and the manifest defines a {snapshot.kind.value} one",
            hint="make another dataset",
        )
    state = DatasetState.read(dataset.chain)
    found = changes(events_of(snapshot, workspace.resolve), state)
    found = list(with_versions(dataclasses.replace(snapshot, metadata=tuple(found))).metadata)
    if checker is not None:
        _check(found, present_of(state), known_inputs(workspace), dataset.alias, checker, progress)
    if found:
        commit(dataset, state, found, [], system_time=state.next_system_time())
    return found


def _check(
    events: Sequence[MetadataEvent],
    present: Present,
    inputs: KnownInputs,
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
