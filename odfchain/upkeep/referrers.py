"""Who in a workspace refers to what would be given up: it stays, unless its loss is asked for.

    changes      rows in force, on whatever branch, that name them: BLOCK#OFFSET in a foreign key `changesOf`
    a branch     rows on a branch of the same name that refer to records which the head does not have
    a dataset    foreign keys to it, and what is made of it

A block that something else still leads to, also as the source of a merge, is not given up. Source: RFC-037.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np

from odfchain.branch.broken_rows import Search
from odfchain.branch.foreign_keys import ForeignKeys, cannot_refer, finder, said_by
from odfchain.branch.judged_rows import Rows
from odfchain.branch.named_changes import block_named
from odfchain.errors import GuardError, OdfchainError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.ids.refs import RemoteDatasetId
from odfchain.model.events import ExecuteTransform
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.declared_constraints import ForeignKey
from odfchain.repo.references import OVERWRITTEN, branch_names, ref_names
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.store.interfaces import HEAD
from odfchain.text import counted
from odfchain.upkeep.reachable import led_to

FLAG = "--break-references"
_SHOWN = 8


def refuse(what: str, referrers: Sequence[str], flag: str = FLAG) -> None:
    """Nothing, where nobody refers to what would be given up.

    Raises:
        GuardError: somebody does; all of them are named, as far as they are few.
    """
    if referrers:
        more = f", and {len(referrers) - _SHOWN:,} more" if len(referrers) > _SHOWN else ""
        listed = ", ".join(referrers[:_SHOWN])
        raise GuardError(f"{what} is referred to by {listed}{more}; nothing was given up", flag=flag)


def of_changes(
    workspace: WorkspaceFiles, dataset: DatasetFiles, stays: Callable[[], Collection[Multihash]]
) -> tuple[list[str], set[Multihash]]:
    """(whose rows name changes in stored blocks that are not among those that stay, the blocks).

    Raises:
        SliceNotFoundError, ObjectCorruptedError: such rows cannot be read.
    """
    asked = []
    for rows, key in _keys(workspace, dataset.id):
        if key.changes and cannot_refer(key, rows, rows) is None:
            wanted = said_by(rows, key.columns)
            asked.append((rows, key, wanted, [block_named(text) for text in wanted.texts]))
    known = {block for *_, blocks in asked for block in blocks if block is not None}
    lost = {block for block in known if dataset.chain.contains(block)}
    lost -= set(stays()) if lost else set()
    found, named = [], set[Multihash]()
    for rows, key, wanted, blocks in asked:
        bad = np.array([block in lost for block in blocks], bool)
        if not bad.any():
            continue
        count, _ = Search(rows.columns, key.columns, wanted, bad, "").run(rows.files())
        if count:
            found.append(f"{rows.name} ({counted(count, 'row')} with changes by {key})")
            named |= lost.intersection(block for block in blocks if block is not None)
    return found, named


def of_branch(workspace: WorkspaceFiles, branch: DatasetFiles) -> list[str]:
    """Whose rows on their branch of the same name refer to records that the head does not have."""
    head = branch.on(HEAD)
    instead = {branch.id: Rows.up_to(head, DatasetState.read(head.chain))}
    found = []
    for rows, key in _keys(workspace, branch.id, branch.ref):
        if not key.changes:
            now, later = (
                ForeignKeys(finder(workspace), pending=pending).holds(key, rows) for pending in ({}, instead)
            )
            count = (later.count if later else 0) - (now.count if now else 0)
            if count > 0:
                found.append(f"{rows.name} ({counted(count, 'row')} by {key})")
    return found


def check_datasets_go(workspace: WorkspaceFiles, doomed: Sequence[DatasetFiles]) -> None:
    """No dataset but these declares foreign keys to one of them, or is made of one.

    Raises:
        GuardError: some do.
    """
    bring_branches(workspace)
    names = {DatasetId.from_multibase(dataset.folder.name): str(dataset.alias) for dataset in doomed}
    found = []
    for on, state in _versions(workspace):
        if state.seed.dataset_id in names:
            continue
        keys = [key for key in state.constraints.foreign_keys if key.dataset in names]
        found += [f"{on.label} (foreign key {key} to {names[key.dataset]})" for key in keys]
        made_of = [names[item] for item in dict.fromkeys(_inputs(state)) if item in names]
        found += [f"{on.label} (made of {name})" for name in made_of]
    refuse(", ".join(names.values()), found, "--force")


def check_branch_goes(workspace: WorkspaceFiles, branch: DatasetFiles) -> None:
    """Nobody refers to what only a branch has, or has under its name.

    Raises:
        GuardError: somebody does.
        SliceNotFoundError, ObjectCorruptedError: whether it is so cannot be read.
    """
    rows, _ = of_changes(workspace, branch, lambda: still_reached(branch))
    refuse(f"what only {branch.label} has", [*rows, *of_branch(workspace, branch)])


def still_reached(dataset: DatasetFiles, *more: Multihash) -> set[Multihash]:
    """The blocks that stay when the reference of a dataset moves to others, heads given up before aside."""
    refs = (ref for ref in ref_names(dataset) if ref != dataset.ref and not ref.startswith(OVERWRITTEN))
    return led_to(dataset, [*map(dataset.chain.head, refs), *more])


def bring_branches(workspace: WorkspaceFiles) -> None:
    """Branches that a store has are here; whoever calls holds no lock of a dataset."""
    for dataset in workspace.datasets():
        dataset.shared.branches(dataset.folder)


def _versions(
    workspace: WorkspaceFiles, ref: str | None = None
) -> Iterator[tuple[DatasetFiles, DatasetState]]:
    """Every dataset on its head and its branches (on `ref` only), as far as what it declares can be read."""
    for dataset in workspace.datasets():
        for name in (HEAD, *branch_names(dataset)):
            on = dataset.on(name)
            try:
                state = DatasetState.read(on.chain)
                _ = state.seed, state.constraints
            except OdfchainError:
                continue  # it refuses its own rows
            if ref in (None, name):
                yield on, state


def _keys(
    workspace: WorkspaceFiles, dataset: DatasetId, ref: str | None = None
) -> Iterator[tuple[Rows, ForeignKey]]:
    """The foreign keys to a dataset, with all rows of the one that declares it."""
    for on, state in _versions(workspace, ref):
        keys = [key for key in state.constraints.foreign_keys if key.dataset == dataset]
        if keys:
            rows = Rows.after(on, None, state)
            yield from ((rows, key) for key in keys)


def _inputs(state: DatasetState) -> Iterator[DatasetId]:
    """What a dataset is made of, and what it was made of before."""
    for item in state.transform.inputs if state.transform is not None else ():
        if isinstance(item.dataset_ref, RemoteDatasetId):
            yield item.dataset_ref.id
    for hashed in state.chain.nearest_all(ExecuteTransform.KIND, head=state.head):
        event = hashed.block.event
        if isinstance(event, ExecuteTransform):
            yield from (item.dataset_id for item in event.query_inputs)
