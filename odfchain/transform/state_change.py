"""What becomes of what a query remembers when another query takes its place.

    --rebuild    the new query is computed over everything; what changes by that is recorded
    --from-now   the old query finishes what it can, the new one begins with the rows that come next
    neither      refused while anything is remembered

A query that remembers nothing is changed without a word more.
Source: specification "Query Evolution"; RFC-019.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import Enum

from odfchain.errors import CodecError, EngineError, StoreError, TransformError
from odfchain.model.events import SetTransform
from odfchain.model.own_engine import is_own
from odfchain.model.rebuild import is_rebuilt, rebuilt, unmarked
from odfchain.model.sources import Transform
from odfchain.progress import Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.text import counted


class StateChange(Enum):
    """What a user may decide."""

    REBUILD = "rebuild"
    """Compute the new query over everything."""
    FROM_NOW = "from-now"
    """Give up what the old query remembers once it has finished what it can."""


def settle_state(
    dataset: DatasetFiles,
    state: DatasetState,
    new: SetTransform,
    change: StateChange | None,
    finish: Callable[[], object],
    progress: Progress,
) -> SetTransform:
    """The transform to record, after the old one has finished what was asked of it.

    Raises:
        TransformError: something is remembered, and nobody said what becomes of it; or the engine of the
            transform cannot do what was said.
    """
    if change is StateChange.REBUILD:
        _check_own(dataset, new.transform)
        if state.last_execution is None:
            progress.note("nothing was computed so far, so there is nothing to compute anew")
            return new
        return dataclasses.replace(new, transform=rebuilt(new.transform))
    pending = state.awaits_rebuild
    if change is StateChange.FROM_NOW:
        if pending:
            progress.note("the rebuild that was asked for is given up; the result so far stays")
        else:
            finish()
            state = DatasetState.read(dataset.chain)
        if not _same_query(new, state.executed_transform):
            _say_given_up(_remembered(dataset, state), progress)
        return new
    if pending and is_own(new.transform):
        progress.note("the rebuild that was asked for is still to come, and is now one by this query")
        return dataclasses.replace(new, transform=rebuilt(new.transform))
    kept = _remembered(dataset, state)
    if kept.is_empty:
        return new
    raise TransformError(
        f"the query changes, and the one in force remembers {kept}: open windows or running totals would be "
        "lost without a word",
        hint="--rebuild computes the new query over everything and records what changes by that; --from-now "
        "finishes what the old query can, and begins with the rows that come next",
    )


def counts_from(transform: SetTransform, number: int) -> str:
    """What a user is told of a query that takes the place of another in block `number`."""
    if is_rebuilt(transform.transform):
        return f"block {number} asks for a rebuild: the next pull computes the query over everything"
    return f"the new query counts from block {number} on; what was recorded before stays"


@dataclasses.dataclass(frozen=True, slots=True)
class _RememberedRows:
    """What the last step left for the next one."""

    rows: int | None
    """None where only another engine can tell."""

    @property
    def is_empty(self) -> bool:
        return self.rows == 0

    def __str__(self) -> str:
        if self.rows is None:
            return "something (its checkpoint cannot be read here)"
        return counted(self.rows, "row")


def _remembered(dataset: DatasetFiles, state: DatasetState) -> _RememberedRows:
    """What the query that was executed last remembers, unless another one has taken its place for good."""
    from odfchain.engine.archive import read_manifest

    last, transform = state.last_execution, state.executed_transform
    if last is None or last.new_checkpoint is None or transform is None:
        return _RememberedRows(0)
    if not state.awaits_rebuild and not _same_query(state.transform, transform):
        return _RememberedRows(0)  # it was given up with the block of the other one
    if not is_own(transform.transform):
        return _RememberedRows(None)
    try:
        path = dataset.checkpoints.verified_path(last.new_checkpoint.physical_hash)
        manifest = read_manifest(path)
    except (CodecError, EngineError, StoreError):
        return _RememberedRows(None)
    return _RememberedRows(sum(part.rows for part in manifest.parts))


def _same_query(one: SetTransform | None, other: SetTransform | None) -> bool:
    """Whether one goes on with what the other remembers."""
    if one is None or other is None:
        return False
    return one.inputs == other.inputs and unmarked(one.transform) == unmarked(other.transform)


def _say_given_up(kept: _RememberedRows, progress: Progress) -> None:
    if kept.rows is None:
        progress.note("what the old query remembers is given up; how much that is, only its engine can tell")
    elif kept.rows:
        progress.note(f"what the old query remembers is given up: {kept}; its result so far stays")


def _check_own(dataset: DatasetFiles, transform: Transform) -> None:
    if not is_own(transform):
        raise TransformError(
            f"{dataset.alias}: --rebuild needs the engine of this project, and the transform is for "
            f"`{transform.engine}`",
            hint="--from-now goes on with its engine; another dataset computes everything",
        )
