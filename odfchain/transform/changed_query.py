"""The memory of a query that is replaced by another.

    --rebuild    the new query is computed over everything; what changes by that is recorded
    --from-now   the old query finishes what it can, the new one begins with the rows that come next
    neither      refused while anything is remembered

A query that remembers nothing is changed without a word more.
Source: specification "Query Evolution"; RFC-019.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from odfchain.errors import CodecError, EngineError, StoreError, TransformError
from odfchain.odf.enums import OperationType
from odfchain.odf.events import SetTransform
from odfchain.odf.sources import Transform
from odfchain.odf.transform_options import is_own, is_rebuilt, rebuilt, unmarked
from odfchain.progress import Progress
from odfchain.text import counted
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from odfchain.odf.schema import DataSchema
    from odfchain.slices.state import SliceFile
    from odfchain.slices.writer import SliceFacts, SliceSpec


class StateChange(Enum):
    """Choices for the memory of a replaced query."""

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
        TransformError: state is remembered, and `change` does not say what becomes of it; or the engine
            cannot do that.
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
    """A note on a query that replaces another in block `number`."""
    if is_rebuilt(transform.transform):
        return f"block {number} asks for a rebuild: the next pull computes the query over everything"
    return f"the new query counts from block {number} on; what was recorded before stays"


@dataclasses.dataclass(frozen=True, slots=True)
class _RememberedRows:
    """Memory of the last step for the next one."""

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
    # none if another query has replaced it for good
    from odfchain.transform.archive import read_manifest

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


# The difference between the output so far and the query over everything (`odfchain.odf.transform_options`).

if TYPE_CHECKING:
    Numbers = np.ndarray[Any, Any]


def write_difference(
    earlier: Sequence[SliceFile], made: SliceFile | None, schema: DataSchema, spec: SliceSpec
) -> SliceFacts | None:
    """A slice that turns the rows of `earlier` into those of `made`; None where nothing has to change.

    Rows in force are counted (`odfchain.slices.state`). What is in both stays as it is. What has to
    go comes first, as retractions in the order in which it was recorded, then what is new in the order of
    `made`.

    Raises:
        EngineError: the rows of two slices cannot be compared.
    """
    import numpy as np
    import pyarrow as pa

    from odfchain.odf.arrow_schema import slice_schema
    from odfchain.slices.writer import write_slice

    arrow = slice_schema(schema)
    try:
        old, new = _SliceRows.of(earlier), _SliceRows.of([] if made is None else [made])
        _, keys = np.unique(np.concatenate([old.hashes, new.hashes]), return_inverse=True)
        count = int(keys.max()) + 1 if len(keys) else 0
        of_old, of_new = keys[: len(old.hashes)], keys[len(old.hashes) :]
        # rows in force are counted by kind: those in both stay as they are
        excess = np.bincount(of_old[old.kept], minlength=count)
        excess -= np.bincount(of_new[new.kept], minlength=count)
        gone = old.last(of_old, np.maximum(excess, 0))
        added = new.last(of_new, np.maximum(-excess, 0))

        def rows() -> Iterator[pa.RecordBatch]:
            yield from _chosen(earlier, gone, arrow, OperationType.RETRACT)
            yield from _chosen([] if made is None else [made], added, arrow, OperationType.APPEND)

        return write_slice(rows(), spec)
    except (pa.ArrowException, ValueError, KeyError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise EngineError(f"the output so far cannot be compared with the new one: {line}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class _SliceRows:
    """All rows of some slices, in their order."""

    hashes: Numbers
    kept: Numbers
    """True for rows in force."""

    @classmethod
    def of(cls, slices: Sequence[SliceFile]) -> _SliceRows:
        import numpy as np

        from odfchain.odf.row_hash import PAIR
        from odfchain.slices.state import Walk, hashed_rows, takes_back

        nothing = (np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, PAIR))

        def read(*, exact: bool) -> tuple[Numbers, Walk]:
            rows = [nothing, *(found for item in slices for found in hashed_rows(item, exact=exact))]
            offsets, operations, hashes = (np.concatenate(parts) for parts in zip(*rows, strict=True))
            return hashes, Walk.of(offsets, takes_back(operations), hashes)

        # what this engine takes back is as it was recorded, and so is what it makes of the output
        hashes, walk = read(exact=True)
        return cls(hashes, walk.kept if not walk.in_vain.any() else read(exact=False)[1].kept)

    def last(self, keys: Numbers, wanted: Numbers) -> Numbers:
        # the last n rows in force of each kind
        import numpy as np

        chosen: Numbers = np.zeros(len(keys), dtype=bool)
        places = np.flatnonzero(self.kept)[::-1]
        order = np.argsort(keys[places], kind="stable")
        places = places[order]
        groups = keys[places]
        starts = (
            np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1]))) if len(groups) else groups
        )
        rank = np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))
        chosen[places[rank < wanted[groups]]] = True
        return chosen


def _chosen(
    slices: Sequence[SliceFile], chosen: Numbers, schema: pa.Schema, op: OperationType
) -> Iterator[pa.RecordBatch]:
    import numpy as np
    import pyarrow as pa

    from odfchain.slices.reader import data_batches

    at = 0
    for item in slices:
        for batch in data_batches(item.path):
            mask = chosen[at : at + batch.num_rows]
            at += batch.num_rows
            if not mask.any():
                continue
            rows = batch.filter(pa.array(mask))
            columns = []
            for field in schema:
                if field.name == item.vocabulary.operation_type_column:
                    columns.append(pa.array(np.full(rows.num_rows, op.code), field.type))
                elif field.name in rows.schema.names:
                    columns.append(rows.column(field.name))
                else:
                    columns.append(pa.nulls(rows.num_rows, field.type))
            yield pa.RecordBatch.from_arrays(columns, names=schema.names)
