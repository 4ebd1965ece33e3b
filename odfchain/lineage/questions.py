"""Lineage as a user asks for it: references instead of files."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from odfchain.ids.did import DatasetId
from odfchain.ids.names import DatasetAlias
from odfchain.lineage.graph import Graph, lineage_of
from odfchain.lineage.graph_document import upstream_document
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.lineage.blame import Blame
    from odfchain.lineage.queries import Definition

Ref = str | DatasetId | DatasetAlias
"""A dataset of this workspace."""


@dataclass(frozen=True, slots=True)
class Lineage:
    """What the datasets of a workspace come from."""

    workspace: WorkspaceFiles

    def graph(self, refs: Iterable[str] = (), *, downstream: bool = False) -> Graph:
        """What datasets (default: all) come from, or what comes from them; gaps and damage are in the graph.

        A reference may be a `%` pattern.

        Raises:
            InvalidIdError: not a reference.
            DatasetNotFoundError: a dataset that was asked about is not here.
        """
        named = [dataset for ref in refs for dataset in self.workspace.matching(ref)]
        return lineage_of(self.workspace, named or self.workspace.datasets(), downstream=downstream)

    def upstream(self, dataset: Ref | DatasetFiles) -> list[dict[str, Any]]:
        """The inputs of a dataset as the nested documents of a verification report.

        Raises:
            DatasetNotFoundError: there is no such dataset.
        """
        return upstream_document(self.workspace, self._files(dataset))

    def definitions(self, ref: Ref) -> list[Definition]:
        """Every transform or source that a dataset has had, oldest first, and what it brought.

        Raises:
            DatasetNotFoundError: there is no such dataset, or it has had none.
            BrokenChainError, StoreError, CodecError: the chain cannot be read.
        """
        from odfchain.lineage.queries import definitions_of  # noqa: PLC0415

        return definitions_of(self.workspace, self._files(ref))

    def blame(self, ref: Ref, first: int, last: int | None = None, *, recursive: bool = False) -> Blame:
        """Where the records `[first; last]` (default: one) come from; with `recursive` down to the roots.

        Raises:
            DatasetNotFoundError: there is no such dataset.
            UsageError: there are no such records, or too many.
            BrokenChainError, StoreError, CodecError: the dataset's own chain cannot be read.
        """
        from odfchain.lineage.blame import blame_records  # noqa: PLC0415

        return blame_records(self.workspace, self._files(ref), first, last, recursive=recursive)

    def _files(self, dataset: Ref | DatasetFiles) -> DatasetFiles:
        return dataset if isinstance(dataset, DatasetFiles) else self.workspace.dataset(dataset)
