"""The list of datasets: search, order, pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from odfchain.node.catalog import ListedDataset
from odfchain.node.pages import Page
from odfchain.node.visit import Refused, Visit
from odfchain.text import one_line

LISTED = 50
"""Datasets on a page [count]."""
_ORDERS: dict[str, tuple[Callable[[ListedDataset], Any], bool]] = {
    "name": (lambda line: line.alias.casefold(), False),
    "records": (lambda line: line.records or 0, True),
    "size": (lambda line: line.size or 0, True),
    "changed": (lambda line: line.changed or "", True),
    "state": (lambda line: ("faulty", "unchecked", "ok", "none").index(line.mark), False),
}
"""By what a list is ordered, and if the largest come first."""


@dataclass(frozen=True, slots=True)
class DatasetList:
    """One page of the datasets that the reader sees."""

    datasets: tuple[ListedDataset, ...]
    total: int
    page: int
    pages: int
    search: str
    sort: str
    unread: int
    """Datasets that are read for the first time just now: known by their names alone."""
    command: str = "odfchain list"


def listed(visit: Visit) -> DatasetList:
    """The datasets whose name, description or keywords have the text that is searched."""
    search, sort = visit.asked("q") or "", visit.asked("sort") or "name"
    if sort not in _ORDERS:
        raise Refused(400, f"no order is called {one_line(sort, 40)!r}", hint=f"orders: {', '.join(_ORDERS)}")
    wanted, key, catalog = search.casefold(), _ORDERS[sort], visit.node.catalog
    seen = [
        (each.line or ListedDataset(str(each.alias or each.folder)), each)
        for each in catalog.datasets()
        if not visit.reader.restricted or (each.alias is not None and visit.reader.sees(each.alias))
    ]
    found = [item for item in seen if wanted in (item[1].words or item[0].alias.casefold())]
    found.sort(key=lambda item: item[0].alias.casefold())
    if sort != "name":
        found.sort(key=lambda item: key[0](item[0]), reverse=key[1])
    pages = max(1, -(-len(found) // LISTED))
    page = min(max(1, visit.count("page", 1, 1_000_000)), pages)
    shown = [catalog.line(each.folder).line for _, each in found[(page - 1) * LISTED : page * LISTED]]
    return DatasetList(
        tuple(replace(line, fault=line.fault and visit.node.public(line.fault)) for line in shown if line),
        len(found), page, pages, search, sort, sum(each.line is None for _, each in seen),
    )  # fmt: skip


PAGES = (Page("/", "datasets", listed),)
