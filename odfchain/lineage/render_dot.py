"""The graph of datasets in the language of Graphviz (DOT).

Nodes are called n0, n1 …; names and ids stand in labels only. In a quoted label a backslash starts an escape
(`\\N`, `\\l`) and a quote ends it, so both are escaped, and nothing else can leave the label.
Source: https://graphviz.org/doc/info/lang.html, https://graphviz.org/docs/attr-types/escString/.
"""

from __future__ import annotations

from collections.abc import Iterator

from odfchain.lineage.branch_facts import lies
from odfchain.lineage.graph import Graph, Node, NodeState
from odfchain.lineage.graph_document import facts_of, was_used
from odfchain.model.enums import DatasetKind
from odfchain.text import one_line

_STYLES = {
    NodeState.PRESENT: "solid",
    NodeState.MISSING: "dashed",
    NodeState.DAMAGED: "bold",
}


def quoted(*lines: str) -> str:
    """A label of some lines, whatever they contain."""
    texts = (one_line(line).replace("\\", "\\\\").replace('"', '\\"') for line in lines)
    return '"' + "\\n".join(texts) + '"'


def to_dot(graph: Graph) -> str:
    """The graph as one DOT document; edges point from inputs to what is made of them."""
    numbers = {key: f"n{index}" for index, key in enumerate(graph.nodes)}
    lines = ["digraph lineage {", "  rankdir=LR;", "  node [fontname=sans];", "  edge [fontname=sans];"]
    for key, node in graph.nodes.items():
        lines.append(f"  {numbers[key]} [{_attributes(node)}];")
        lines += _branches(numbers[key], node)
    for edge in graph.edges:
        words = was_used(edge)
        attributes = f" [style=dashed, label={quoted(words)}]" if words else ""
        lines.append(f"  {numbers[edge.upstream]} -> {numbers[edge.downstream]}{attributes};")
    return "\n".join([*lines, "}"]) + "\n"


def _branches(number: str, node: Node) -> Iterator[str]:
    """Branches beside their dataset, and arrows back from those that were merged."""
    facts = node.branching
    ways = {branch.name: lies(branch) for branch in facts.branches}
    blocks = {item.name: str(item) for item in facts.merged}
    for index, name in enumerate(dict.fromkeys([*ways, *blocks])):
        label = quoted(f"{node.name}@{name}", ways.get(name, "deleted"))
        yield f"  {number}b{index} [label={label}, shape=note, style=dashed];"
        yield f"  {number} -> {number}b{index} [style=dotted, dir=none];"
        if name in blocks:
            yield f"  {number}b{index} -> {number} [style=dotted, label={quoted(blocks[name])}];"


def _attributes(node: Node) -> str:
    shape = "ellipse" if node.kind is DatasetKind.ROOT else "box"
    label = quoted(node.name, *facts_of(node)[:3])
    return f"label={label}, tooltip={quoted(node.id)}, shape={shape}, style={_STYLES[node.state]}"
