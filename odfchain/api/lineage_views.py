"""What datasets and records come from, as documents, indented lines, drawings and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.lineage.blame_document import blame_document, blame_tree
from odfchain.lineage.graph_document import graph_document, trees_of
from odfchain.lineage.render_dot import to_dot
from odfchain.lineage.render_html import to_html

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.lineage.graph import Graph

__all__ = [
    "blame_document", "blame_tree", "graph_document", "lineage_page", "to_dot", "to_html", "trees_of",
]  # fmt: skip

_PROFILES = 20
"""Datasets whose profile a page shows."""


def lineage_page(workspace: Workspace, graph: Graph) -> str:
    """The graph as one page, with what is known of the rows of the datasets that were asked for."""
    from odfchain.lineage.graph import NodeState

    known = {}
    for key in list(graph.roots)[:_PROFILES]:
        if graph.nodes[key].state is NodeState.PRESENT:
            found = workspace[graph.nodes[key].id].known_profile()
            if found is not None:
                known[key] = found.document
    return to_html(graph, known)
