"""Which datasets of a workspace come from which others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from graphlib import CycleError, TopologicalSorter

from odfchain.errors import DatasetNotFoundError, WorkspaceError
from odfchain.ids.branch_names import is_branch_name
from odfchain.ids.refs import RemoteDatasetId
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.workspace_files import WorkspaceFiles


def inputs_of(workspace: WorkspaceFiles, dataset: DatasetFiles) -> list[DatasetFiles]:
    """The inputs of a derivative dataset in the order of its transform; none of a root dataset.

    On a branch these are its inputs on the branch of that name, or on their head where they have none.

    Raises:
        DatasetNotFoundError: an input is not in the workspace.
    """
    transform = DatasetState.read(dataset.chain).transform
    inputs = []
    for item in transform.inputs if transform is not None else ():
        ref = item.dataset_ref
        target = ref.id if isinstance(ref, RemoteDatasetId) else ref
        try:
            inputs.append(like(workspace.dataset(str(target)), dataset))
        except DatasetNotFoundError:
            raise DatasetNotFoundError(
                f"{dataset.alias}: its input {item.alias or target} ({target}) is not in this workspace"
            ) from None
    return inputs


def like(dataset: DatasetFiles, other: DatasetFiles) -> DatasetFiles:
    """A dataset on the branch that another one is on, or on its head where it has none of that name."""
    if not is_branch_name(other.ref):
        return dataset
    dataset.shared.branch(dataset.folder, other.ref)
    there = dataset.on(other.ref)
    return dataset if there.chain.head() is None else there


def with_upstream(
    workspace: WorkspaceFiles,
    datasets: Iterable[DatasetFiles],
    ends: Callable[[DatasetFiles], bool] = lambda _: False,
) -> list[DatasetFiles]:
    """The datasets and everything they come from, each once, inputs before what is made of them.

    `ends` says whose inputs do not matter.

    Raises:
        WorkspaceError: a dataset comes from itself.
    """
    known: dict[str, DatasetFiles] = {}
    graph: TopologicalSorter[str] = TopologicalSorter()
    waiting = list(datasets)
    while waiting:
        dataset = waiting.pop()
        name = _name_of(dataset)
        if name in known:
            continue
        known[name] = dataset
        inputs = [] if ends(dataset) else inputs_of(workspace, dataset)
        graph.add(name, *map(_name_of, inputs))
        waiting += inputs
    try:
        return [known[name] for name in graph.static_order()]
    except CycleError as error:
        cycle = " ← ".join(str(known[name].alias) for name in error.args[1])
        raise WorkspaceError(f"datasets come from each other in a circle: {cycle}") from None


def _name_of(dataset: DatasetFiles) -> str:
    return f"{dataset.folder.name}@{dataset.ref}"
