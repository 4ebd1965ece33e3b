"""The graph of datasets as one page: a drawing in layers and a table, without scripts or other files.

Edges go from left to right; those that close a circle go back. Below are the profiles of the datasets that
were asked for, as far as they are known. Every text is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, NamedTuple

from odfchain.lineage.drawing import layout_of
from odfchain.lineage.graph import Edge, Graph, Node, NodeState
from odfchain.lineage.graph_document import facts_of, was_used
from odfchain.pages.pictures import histogram
from odfchain.profile.profile_words import line_of
from odfchain.text import counted, one_line, printable

_WIDTH, _HEIGHT = 220, 54
_GAP_X, _GAP_Y, _MARGIN = 90, 22, 12
_NAME_LENGTH, _FACTS_LENGTH = 26, 34
_COLUMNS = 200
"""Columns of a dataset whose profile is shown."""

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; }
.drawing { overflow-x: auto; }
rect { fill: Canvas; stroke: CanvasText; }
.derivative rect { rx: 4; } .root rect { rx: 27; }
.missing rect { stroke-dasharray: 6 4; } .damaged rect { stroke: #c62828; stroke-width: 3; }
.asked .name { font-weight: 700; }
text { fill: CanvasText; font-size: 14px; } .facts { font-size: 11px; opacity: .75; }
path { fill: none; stroke: CanvasText; opacity: .6; } path.past { stroke-dasharray: 5 4; }
marker path { fill: CanvasText; stroke: none; }
table { border-collapse: collapse; table-layout: fixed; width: 100%; margin-top: 2rem; }
th, td { text-align: left; overflow-wrap: anywhere; vertical-align: top; padding: .35rem .7rem .35rem 0; }
tr { border-bottom: 1px solid #8884; }
.profile table { table-layout: auto; margin-top: .5rem; }
.profile h2 { margin: 2.5rem 0 0; font-size: 1.2rem; }
.picture { display: block; width: 12rem; height: 2.2rem; }
.picture rect { fill: CanvasText; stroke: none; opacity: .55; } .floor { opacity: .8; }
.id { font-family: ui-monospace, monospace; font-size: 12px; }
"""


_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
)


class _Position(NamedTuple):
    x: int
    y: int


def to_html(graph: Graph, profiles: Mapping[str, Mapping[str, Any]] | None = None) -> str:
    """The graph as one self-contained page, with profiles by the keys of nodes."""
    asked = ", ".join(graph.nodes[key].name for key in graph.roots)
    title = f"{'What is made of' if graph.downstream else 'Lineage of'} {one_line(asked)}"
    made_of: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        made_of.setdefault(edge.downstream, []).append(edge)
    rows = "".join(_row(graph, node, made_of.get(key, [])) for key, node in graph.nodes.items())
    known = (profiles or {}).items()
    shown = "".join(_profile(graph.nodes[key].name, document) for key, document in known)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f'<h1>{_text(title)}</h1>\n<div class="drawing">\n{_drawing(graph)}\n</div>\n'
        "<table>\n<thead><tr><th>Dataset</th><th>What is known</th><th>Made of</th></tr></thead>\n"
        f"<tbody>\n{rows}</tbody>\n</table>\n{shown}</body>\n</html>\n"
    )


def _profile(name: str, document: Mapping[str, Any]) -> str:
    """The rows of a dataset, column by column, with pictures of their distributions."""
    names = ("Column", "Type", "Nulls", "Distinct", "Values", "Distribution")
    head = "".join(f"<th>{title}</th>" for title in names)
    columns = document["columns"]
    rows = "".join(_column(column, document["column_stats"][column["name"]]) for column in columns[:_COLUMNS])
    rest = len(columns) - _COLUMNS
    more = f"<p>{counted(rest, 'more column')} not shown here.</p>\n" if rest > 0 else ""
    title = f"{name}: {counted(document['num_rows'], 'row')} at block {document['odf']['sequence_number']:,}"
    return (
        f'<section class="profile">\n<h2>{_text(title)}</h2>\n'
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n{more}</section>\n"
    )


def _column(column: Mapping[str, Any], stats: Mapping[str, Any]) -> str:
    *words, _ = line_of(column, stats)
    cells = "".join(f"<td>{_text(one_line(word))}</td>" for word in words[1:])
    counts = stats.get("histogram", {}).get("counts", ())
    label = f"Histogram of {one_line(column['name'])}"
    picture = histogram(counts, label) if counts else ""
    return f"<tr><th>{_text(one_line(words[0]))}</th>{cells}<td>{picture}</td></tr>\n"


def _row(graph: Graph, node: Node, edges: list[Edge]) -> str:
    made_of = []
    for edge in edges:
        words = was_used(edge)
        made_of.append(graph.nodes[edge.upstream].name + (f" ({words})" if words else ""))
    return (
        f'<tr><td>{_text(node.name)}<div class="id">{_text(node.id)}</div></td>'
        f"<td>{_text(', '.join(facts_of(node)))}</td><td>{_text(', '.join(made_of))}</td></tr>\n"
    )


def _drawing(graph: Graph) -> str:
    layout = layout_of(graph)
    places = {
        key: _Position(_MARGIN + x * (_WIDTH + _GAP_X), _MARGIN + y * (_HEIGHT + _GAP_Y))
        for x, row in enumerate(layout.layers)
        for y, key in enumerate(row)
    }
    width = max((p.x for p in places.values()), default=0) + _WIDTH + _MARGIN
    height = max((p.y for p in places.values()), default=0) + _HEIGHT + _MARGIN
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    opening = f'<svg role="img" aria-label="graph of datasets" {size} xmlns="http://www.w3.org/2000/svg">'
    parts = [opening, _TIP]
    parts += [_line(edge, [places[key] for key in route]) for edge, route in layout.routes]
    parts += [_box(graph, node, places[key]) for key, node in graph.nodes.items()]
    return "\n".join([*parts, "</svg>"])


def _line(edge: Edge, places: list[_Position]) -> str:
    """An edge: from the right side of a box through free places to the left side of another."""
    x, y = places[0].x + _WIDTH, places[0].y + _HEIGHT // 2
    path = f"M{x} {y}"
    for place in places[1:]:
        left, middle = place.x, place.y + _HEIGHT // 2
        path += f"C{x + _GAP_X // 2} {y} {left - _GAP_X // 2} {middle} {left} {middle}"
        x, y = place.x + _WIDTH, middle
        if place is not places[-1]:
            path += f"H{x}"
    words = was_used(edge)
    past = ' class="past"' if words else ""
    return f'<path{past} marker-end="url(#tip)" d="{path}"><title>{_text(words or "in force")}</title></path>'


def _box(graph: Graph, node: Node, place: _Position) -> str:
    classes = [node.state.value, node.kind.value.lower() if node.kind else "unknown"]
    if node.id in graph.roots:
        classes.append("asked")
    facts = facts_of(node)
    seen = facts[:3] if node.state is NodeState.PRESENT else facts[:1]
    middle = place.x + _WIDTH // 2
    return (
        f'<g class="{" ".join(classes)}"><title>{_text(", ".join([node.name, *facts]))}</title>'
        f'<rect x="{place.x}" y="{place.y}" width="{_WIDTH}" height="{_HEIGHT}"/>'
        f'<text class="name" text-anchor="middle" x="{middle}" y="{place.y + 23}">'
        f"{_text(one_line(node.name, _NAME_LENGTH))}</text>"
        f'<text class="facts" text-anchor="middle" x="{middle}" y="{place.y + 41}">'
        f"{_text(one_line(', '.join(seen), _FACTS_LENGTH))}</text></g>"
    )


def _text(text: str) -> str:
    return escape(printable(text))
