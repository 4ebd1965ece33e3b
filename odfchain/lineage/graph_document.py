"""The graph of datasets as trees: nested documents for programs, indented lines for people.

A dataset that several paths lead to is opened up where it comes first; elsewhere it is named only. So the
size of an answer grows with the graph, not with the number of paths through it, and circles end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from odfchain.limits import LINEAGE
from odfchain.lineage.graph import Edge, Graph, Node, NodeState
from odfchain.text import counted


@dataclass(slots=True)
class TextTree:
    """A line for people, and what is indented below it."""

    text: str
    below: list[TextTree] = field(default_factory=list)
    style: str = ""


def _nested(graph: Graph, key: str, opened: set[str], depth: int) -> list[dict[str, Any]]:
    inputs = []
    for edge in graph.after.get(key, ()):
        node = graph.end_of(edge)
        item = _summary(node)
        item["inputs"] = []
        if node.id not in opened and depth < LINEAGE.depth:
            opened.add(node.id)
            item["inputs"] = _nested(graph, node.id, opened, depth + 1)
        inputs.append(item)
    return inputs


def _summary(node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "alias": node.alias,
        "kind": node.kind.value.lower() if node.kind else None,
        "missing": node.state is NodeState.MISSING,
    }


def graph_document(graph: Graph) -> dict[str, Any]:
    """The graph for programs: what was asked about (upstream: with nested inputs), all nodes, all edges."""
    opened: set[str] = set()
    asked = []
    for key in graph.roots:
        item = _summary(graph.nodes[key])
        if not graph.downstream:
            opened.add(key)
            item["inputs"] = _nested(graph, key, opened, 1)
        asked.append(item)
    return {
        "direction": "downstream" if graph.downstream else "upstream",
        "datasets": asked,
        "nodes": [_node_document(node) for node in graph.nodes.values()],
        "edges": [_edge_document(edge) for edge in graph.edges],
    }


def _node_document(node: Node) -> dict[str, Any]:
    return _summary(node) | {
        "state": node.state.value,
        "problem": node.problem,
        "blocks": node.blocks,
        "records": node.records,
        "watermark": node.watermark and str(node.watermark),
        "lastBlockTime": node.last_block_time and str(node.last_block_time),
        "pulledFrom": list(node.pulled_from),
        **node.branching.to_document(),
    }


def _edge_document(edge: Edge) -> dict[str, Any]:
    return {
        "upstream": edge.upstream,
        "downstream": edge.downstream,
        "alias": edge.alias,
        "inForce": edge.in_force,
        "uses": [{"firstBlock": use.first_block, "lastBlock": use.last_block} for use in edge.uses],
    }


# --- for people ----------------------------------------------------------------------------------------


def facts_of(node: Node, *, branching: bool = True) -> list[str]:
    """What is known of a dataset, in a few words each; times without fractions of a second."""
    match node.state:
        case NodeState.MISSING:
            return ["missing"] if node.alias is None else ["missing", node.id]
        case NodeState.DAMAGED:
            return ["damaged", *([node.problem] if node.problem else [])]
    facts = [node.kind.value.lower()] if node.kind else []
    facts += [counted(node.blocks or 0, "block"), counted(node.records or 0, "record")]
    if node.watermark is not None:
        facts.append(f"watermark {node.watermark}")
    if node.last_block_time is not None:
        facts.append(f"last block {node.last_block_time}")
    if node.pulled_from:
        facts.append(f"pulled from {node.pulled_from[0]}")
    return facts + (node.branching.lines() if branching else [])


def was_used(edge: Edge) -> str:
    """When an input that is used no more was used; empty where the newest transform has it."""
    return "" if edge.in_force else " and ".join(str(use) for use in edge.uses)


def trees_of(graph: Graph) -> list[TextTree]:
    """The graph for people: a tree for each dataset that was asked about."""
    opened: set[str] = set()
    return [_tree(graph, graph.nodes[key], None, opened, (key,)) for key in graph.roots]


_STYLES = {NodeState.PRESENT: "", NodeState.MISSING: "yellow", NodeState.DAMAGED: "red"}


def _tree(graph: Graph, node: Node, edge: Edge | None, opened: set[str], path: tuple[str, ...]) -> TextTree:
    words = facts_of(node, branching=False)
    if edge is not None and not edge.in_force:
        words.insert(0, was_used(edge))
    tree = TextTree(f"{node.name}: {', '.join(words)}", style=_STYLES[node.state])
    following = graph.after.get(node.id, ())
    if node.id not in opened:
        tree.below += (TextTree(line, style="cyan") for line in node.branching.lines())
    if node.id in path[:-1]:
        tree.text += " (comes from itself: a circle)"
    elif not following:
        opened.add(node.id)
    elif node.id in opened:
        tree.text += " (opened up above)"
    elif len(path) > LINEAGE.depth:
        tree.text += f" (more than {LINEAGE.depth} levels: ask for this dataset)"
    else:
        opened.add(node.id)
        for item in following:
            other = graph.end_of(item)
            tree.below.append(_tree(graph, other, item, opened, (*path, other.id)))
    return tree
