"""States and histories of a dataset, from what was computed and hashed before where that is here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from odfchain.api.questions import checked_slices
from odfchain.query.pins import Pin
from odfchain.query.relations import Relation, StateOf
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.read_slices import read_all

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.api.options import Time
    from odfchain.api.scan import Scan
    from odfchain.api.workspace import Workspace
    from odfchain.branch.row_history import RowChange
    from odfchain.repo.dataset_files import DatasetFiles


def state_of(scan: Scan) -> pa.Table:
    """The rows in force that a scan asks for, in order of offset; errors as `Scan.to_arrow`."""
    if scan.summary.schema is None:  # before the first data no row is in force, whatever the key
        return read_all(scan.dataset._files, scan.summary, scan.columns)
    checked = checked_slices(scan.dataset._workspace)
    relation = Relation(_pin(scan), StateOf(scan.event_time, scan.key))
    found = relation.state(checked, scan.columns)
    checked.keep()
    return found


def shown_state(workspace: Workspace, text: str, *, event_time: Time | None = None) -> Scan:
    """The rows in force of `DATASET[@POINT]`; without a key, those that were not taken back.

    Raises:
        InvalidIdError, FuturePointError: not a name, not a point, or a time in the future.
        DatasetNotFoundError, BranchNotFoundError, PointNotFoundError: it is not here.
        SchemaError: sources have different keys.
    """
    from odfchain.api.branch_points import at_point

    dataset = at_point(workspace, text)
    return dataset.state(key=dataset.summary.primary_key, event_time=event_time)


def history_of_row(
    workspace: Workspace, dataset: DatasetFiles, key: Mapping[str, Any], limit: int | None
) -> list[RowChange]:
    """The changes of one row, newest first; errors as `Dataset.history`."""
    from odfchain.branch.row_history import history_of

    checked = checked_slices(workspace)
    state = DatasetState.read(dataset.chain)
    found = history_of(dataset, state, key, limit=limit, locate=checked.located(dataset))
    checked.keep()
    return found


def _pin(scan: Scan) -> Pin:
    return Pin(scan.dataset.label, scan.dataset._files, scan.summary)
