"""What a dataset comes from, as far as it is here.

Unlike the lineage that a pull follows, this goes on where an input is missing or a chain is damaged: both are
what verification is there to tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odfchain.errors import DatasetNotFoundError, OdfchainError, StoreError
from odfchain.ids.refs import RemoteDatasetId
from odfchain.limits import LINEAGE
from odfchain.model.events import TransformInput
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.dependencies import like
from odfchain.repo.workspace_files import WorkspaceFiles


@dataclass(slots=True)
class Upstream:
    """Datasets, inputs before what is made of them, and what each says of inputs that are not here."""

    datasets: list[DatasetFiles] = field(default_factory=list)
    missing: dict[Path, list[str]] = field(default_factory=dict)
    """By the folder of the dataset that has the input."""


def upstream_at_hand(workspace: WorkspaceFiles, datasets: Iterable[DatasetFiles]) -> Upstream:
    """The datasets and everything they come from that is in the workspace, each once.

    A dataset whose chain cannot be read has no inputs here; its own verification says what is wrong.
    """
    upstream = Upstream()
    entered: set[tuple[Path, str]] = set()
    stack = [(dataset, False) for dataset in reversed(list(datasets))]
    while stack:
        dataset, expanded = stack.pop()
        if expanded:
            upstream.datasets.append(dataset)
            continue
        if (dataset.folder, dataset.ref) in entered:
            continue
        entered.add((dataset.folder, dataset.ref))
        stack.append((dataset, True))
        try:
            transform = DatasetState.read(dataset.chain).transform
        except OdfchainError:
            continue
        for item in reversed(transform.inputs if transform is not None else ()):
            ref = item.dataset_ref
            target = ref.id if isinstance(ref, RemoteDatasetId) else ref
            try:
                stack.append((like(workspace.dataset(str(target)), dataset), False))
            except (DatasetNotFoundError, StoreError):
                upstream.missing.setdefault(dataset.folder, []).append(missing_input(item.alias, target))
    return upstream


def missing_input(alias: str | None, target: object) -> str:
    """What is said of an input that is not here."""
    return (
        f"its input {alias} ({target}) is not in this workspace"
        if alias
        else (f"its input {target} is not in this workspace")
    )


def inputs_tree(workspace: WorkspaceFiles, dataset: DatasetFiles) -> list[dict[str, Any]]:
    """What a dataset is made of, nested, as reports show it; what is not here is marked as missing.

    An input that is reached by several ways is expanded once; so cycles end, too. So do lines of more than
    `LINEAGE.depth` datasets.
    """
    seen: set[Path] = {dataset.folder}

    def expand(parent: DatasetFiles, depth: int) -> list[dict[str, Any]]:
        try:
            transform = DatasetState.read(parent.chain).transform
        except OdfchainError:
            return []
        return [one(item, depth) for item in (transform.inputs if transform is not None else ())]

    def one(item: TransformInput, depth: int) -> dict[str, Any]:
        ref = item.dataset_ref
        target = ref.id if isinstance(ref, RemoteDatasetId) else ref
        found: dict[str, Any] = {"id": str(target), "alias": item.alias, "kind": None, "missing": True}
        try:
            here = workspace.dataset(str(target))
            found |= {"alias": str(here.alias), "missing": False, "kind": here.kind.value.lower()}
        except OdfchainError:
            return found | {"inputs": []}
        if here.folder in seen or depth >= LINEAGE.depth:
            return found | {"inputs": []}
        seen.add(here.folder)
        return found | {"inputs": expand(here, depth + 1)}

    return expand(dataset, 1)
