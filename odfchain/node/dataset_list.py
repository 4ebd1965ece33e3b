"""The list of datasets, and the overview of one."""

from __future__ import annotations

from dataclasses import dataclass

from odfchain import errors
from odfchain.node.pages import Page
from odfchain.node.visit import Visit
from odfchain.odf.tree import to_tree
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

LISTED = 50
"""Datasets on a page [count]."""


@dataclass(frozen=True, slots=True)
class ListedDataset:
    """A line of the list; `fault` where it cannot be read."""

    alias: str
    kind: str | None = None
    records: int | None = None
    changed: str | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class DatasetList:
    """One page of the datasets that the reader sees."""

    datasets: tuple[ListedDataset, ...]
    total: int
    page: int
    search: str


def listed(visit: Visit) -> DatasetList:
    """The datasets whose names have the text that is searched."""
    search, page = visit.asked("q") or "", max(1, visit.count("page", 1, 1_000_000))
    wanted = search.casefold()
    found = [
        d for d in visit.node.published.datasets() if visit.reader.sees(d.alias) and wanted in str(d.alias)
    ]
    shown = found[(page - 1) * LISTED : page * LISTED]
    return DatasetList(
        tuple(_line(visit, DatasetFiles.open(d.folder)) for d in shown), len(found), page, search
    )


def _line(visit: Visit, files: DatasetFiles) -> ListedDataset:
    alias = str(files.alias)
    try:
        state = DatasetState.read(files.chain)
        kind = str(to_tree(state.seed.dataset_kind))
        return ListedDataset(alias, kind, state.record_count, str(state.head_block.system_time))
    except errors.OdfchainError as error:
        return ListedDataset(alias, fault=visit.node.public(one_line(str(error), 400)))


PAGES = (Page("/", "datasets", listed),)
