"""Where the datasets of a drawing stand: in layers from left to right, and edges beside what they pass.

A dataset's layer is the longest path to it from a dataset without inputs. An edge that passes layers gets a
free place in each of them, so that it is not drawn through the boxes there (as K. Sugiyama et al., 1981).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from odfchain.lineage.graph import Edge, Graph

_FREE_PLACES = 5_000
"""More are not worth their space: long edges are then drawn straight."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Keys of datasets and of free places, layer by layer; and the places that each edge goes through."""

    layers: tuple[tuple[str, ...], ...]
    routes: tuple[tuple[Edge, tuple[str, ...]], ...]


def layout_of(graph: Graph) -> Layout:
    """Every dataset has a place, after its inputs unless it is in a circle with them."""
    layer = _layers(graph)
    rows: list[list[str]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for key in graph.nodes:
        rows[layer[key]].append(key)
    routes = []
    before: dict[str, list[str]] = {}
    free = sum(max(0, layer[e.downstream] - layer[e.upstream] - 1) for e in graph.edges)
    for index, edge in enumerate(graph.edges):
        passed = range(layer[edge.upstream] + 1, layer[edge.downstream]) if free <= _FREE_PLACES else ()
        places = [f"\0{index}:{number}" for number in passed]  # no key has this character
        for number, place in zip(passed, places, strict=True):
            rows[number].append(place)
        route = (edge.upstream, *places, edge.downstream)
        for here, there in pairwise(route):
            before.setdefault(there, []).append(here)
        routes.append((edge, route))
    height: dict[str, float] = {}
    for row in rows:  # next to what leads there: fewer lines cross
        row.sort(key=lambda key: _mean([height[k] for k in before.get(key, ()) if k in height]))
        height |= {key: float(index) for index, key in enumerate(row)}
    return Layout(tuple(tuple(row) for row in rows), tuple(routes))


def _layers(graph: Graph) -> dict[str, int]:
    inputs: dict[str, list[str]] = {key: [] for key in graph.nodes}
    outputs: dict[str, list[str]] = {key: [] for key in graph.nodes}
    for edge in graph.edges:
        inputs[edge.downstream].append(edge.upstream)
        outputs[edge.upstream].append(edge.downstream)
    waiting = Counter({key: len(upstream) for key, upstream in inputs.items()})
    layer: dict[str, int] = {}
    ready = [key for key in graph.nodes if not inputs[key]]
    rest = iter(graph.nodes)
    while len(layer) < len(graph.nodes):
        if not ready:  # only circles are left: one of them is cut
            ready = [next(key for key in rest if key not in layer)]
        key = ready.pop()
        if key in layer:
            continue
        layer[key] = max((layer[other] + 1 for other in inputs[key] if other in layer), default=0)
        for other in outputs[key]:
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return layer


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
