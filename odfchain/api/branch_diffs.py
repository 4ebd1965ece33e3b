"""What lies between two points of a dataset, for the methods that compare and merge."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from odfchain.api.branch_points import AnyPoint, as_point
from odfchain.api.branch_trust import trust_of
from odfchain.branch.block_graph import BlockGraph
from odfchain.branch.computing import Engine
from odfchain.branch.diffing import Diff, diff
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.points import opened_at
from odfchain.store.interfaces import HEAD

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.repo.dataset_files import DatasetFiles


def difference(workspace: Workspace, files: DatasetFiles, a: AnyPoint, b: AnyPoint | None) -> Diff:
    """From the state at A to that at B; of one point, from its merge base with the head to it.

    Where there are several bases (two branches were merged into each other), from the newest of them.
    """
    known = functools.partial(diff, trusted=trust_of(workspace), engine=engine_of(workspace))
    if b is not None:
        one, other = (opened_at(files, as_point(point)) for point in (a, b))
        return known(one, other, graph=BlockGraph(files, (one.ref, other.ref)))
    head, other = files.on(HEAD), opened_at(files, as_point(a))
    graph = BlockGraph(head, (other.ref,))
    ends = [DatasetState.read(side.chain).head for side in (head, other)]
    base = graph.best_common([ends[0]], [ends[1]])[-1]
    return known(opened_at(files, base), other, graph=graph, against=head)


def engine_of(workspace: Workspace) -> Engine:
    """What compares and merges: this process, and the workspace's Spark for what is large."""
    return Engine(workspace.session, workspace._files.config.branches.spark_bytes)
