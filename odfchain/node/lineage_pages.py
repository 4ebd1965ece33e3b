"""What a dataset is made of, and what is made of it, as one drawing with links; only of what may be seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from starlette.responses import Response

from odfchain.audit.drawings import GraphDrawing
from odfchain.audit.lineage import Edge, Graph, Node, lineage_of
from odfchain.node.dataset_head import DatasetHead, head_of, render_below
from odfchain.node.pages import DATASET, Page
from odfchain.node.visit import Visit


@dataclass(frozen=True, slots=True)
class Lineage:
    """Both directions from one dataset, which is the root of the graph."""

    dataset: DatasetHead
    graph: Graph
    command: str


def lineage(visit: Visit) -> Lineage:
    """The graph around a dataset; what the reader does not see is as missing as what is not here."""
    files, node = visit.files, visit.node
    seen = {d.folder.name: d for d in node.published.datasets() if visit.reader.sees(d.alias)}
    upstream = lineage_of(replace(node.files, only=frozenset(seen)), [files])
    # nothing is made of inputs in a root: of many datasets most need not be opened
    made = {
        known.folder for known in node.catalog.datasets() if not (known.line and known.line.kind == "Root")
    }
    downstream = lineage_of(
        replace(node.files, only=frozenset(seen.keys() & (made | {files.folder.name}))),
        [files],
        downstream=True,
    )
    after: dict[str, list[Edge]] = {}
    for edge in dict.fromkeys((*upstream.edges, *downstream.edges)):
        after.setdefault(edge.downstream, []).append(edge)
    nodes = {key: _public(visit, each) for key, each in (downstream.nodes | upstream.nodes).items()}
    head = head_of(visit, files)
    return Lineage(head, Graph(False, upstream.roots, nodes, after), f"odfchain lineage {head.name}")


def _public(visit: Visit, node: Node) -> Node:
    branching = node.branching
    shown = tuple(each for each in branching.branches if visit.node.shows_branch(each.name))
    origins = tuple(url for url in node.pulled_from if "://" in url and not url.startswith("file:"))
    problem = node.problem and visit.node.public(node.problem)
    return replace(node, problem=problem, pulled_from=origins, branching=replace(branching, branches=shown))


def _page(visit: Visit, view: Lineage) -> str:
    nodes = view.graph.nodes
    links = {key: f"{visit.root}{node.alias}/" for key, node in nodes.items() if node.blocks and node.alias}
    return GraphDrawing(view.graph).to_html(
        links=links, render=render_below(visit, view, "Lineage", "lineage")
    )


def _dot(_: Visit, view: Lineage) -> Response:
    return Response(GraphDrawing(view.graph).to_dot(), media_type="text/vnd.graphviz; charset=utf-8")


PAGES = (Page(f"{DATASET}/-/lineage", "", lineage, {"dot": _dot}, made_by=_page),)
