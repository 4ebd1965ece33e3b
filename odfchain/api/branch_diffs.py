"""What lies between two points of a dataset, for the methods that compare and merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.api.branch_points import AnyPoint, as_point
from odfchain.api.branch_trust import trust_of
from odfchain.branch.block_graph import BlockGraph
from odfchain.branch.computing import Engine
from odfchain.branch.diffing import Diff, diff, diff_since_base
from odfchain.repo.points import opened_at
from odfchain.store.interfaces import HEAD

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.repo.dataset_files import DatasetFiles


def difference(workspace: Workspace, files: DatasetFiles, a: AnyPoint, b: AnyPoint | None) -> Diff:
    """From the state at A to that at B; of one point, from its merge base with the head to it."""
    points = [files.on(HEAD)] if b is None else []
    points += [opened_at(files, as_point(point)) for point in (a, b) if point is not None]
    compare = diff_since_base if b is None else diff
    one, other = points
    graph = BlockGraph(files, (one.ref, other.ref))
    return compare(one, other, graph=graph, trusted=trust_of(workspace), engine=engine_of(workspace))


def engine_of(workspace: Workspace) -> Engine:
    """What compares and merges: this process, and the workspace's Spark for what is large."""
    return Engine(workspace.session, workspace._files.config.branches.spark_bytes)
