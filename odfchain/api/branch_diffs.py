"""Differences between two points of a dataset, for the methods that compare and merge."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from odfchain.api.branching import AnyPoint, as_point, trust_of
from odfchain.branches.branches import BlockGraph
from odfchain.branches.diff import Diff, diff, diff_since_base
from odfchain.branches.executor import Engine
from odfchain.storage.local import HEAD
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.points import opened_at

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.odf.identity import Multihash
    from odfchain.workspace.dataset_files import DatasetFiles


def difference(workspace: Workspace, files: DatasetFiles, a: AnyPoint, b: AnyPoint | None) -> Diff:
    """From the state at A to that at B; of one point, from its merge base with the head to it."""
    points = [files.on(HEAD)] if b is None else []
    points += [opened_at(files, as_point(point)) for point in (a, b) if point is not None]
    compare = diff_since_base if b is None else diff
    known, on_trust = trust_of(workspace), False

    def trusted(dataset: DatasetFiles, after: Multihash, upto: Multihash) -> bool:
        nonlocal on_trust
        if known(dataset, after, upto):
            return True
        earlier = DatasetState.read(dataset.chain, after).slices_newest_first()
        # a partial copy may lack the slices to verify against: then the blocks of others are trusted
        if all(dataset.data.contains(ref.slice.physical_hash) for ref in earlier):
            return False
        on_trust = True
        return True

    one, other = points
    graph = BlockGraph(files, (one.ref, other.ref))
    found = compare(one, other, graph=graph, trusted=trusted, engine=engine_of(workspace))
    return dataclasses.replace(found, on_trust=on_trust)


def engine_of(workspace: Workspace) -> Engine:
    """The engine that compares and merges: this process, and the workspace's Spark for large inputs."""
    return Engine(workspace.session, workspace._files.config.branches.spark_bytes)
