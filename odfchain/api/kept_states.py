"""States of a dataset, from what was computed and hashed before where that is here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from odfchain.api.questions import checked_slices
from odfchain.branch.state_cache import read_cached_state

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.api.workspace import Workspace
    from odfchain.repo.dataset_files import DatasetFiles
    from odfchain.repo.dataset_state import DatasetState


def state_of(
    workspace: Workspace,
    dataset: DatasetFiles,
    state: DatasetState,
    key: Sequence[str],
    columns: Sequence[str] | None,
) -> pa.Table:
    """The rows in force at a head, in order of offset; errors as `Scan.to_arrow`."""
    checked = checked_slices(workspace)
    found = read_cached_state(
        dataset, state, key, columns, cache=checked.states(dataset), locate=checked.located(dataset)
    )
    checked.keep()
    return found
