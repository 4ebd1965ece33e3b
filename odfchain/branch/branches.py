"""Branches of a dataset: made, listed, renamed, and given up only by who says so.

A branch is a reference (RFC-035), so making one costs what moving a head costs, however long the chain is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from odfchain.branch.block_graph import BlockGraph
from odfchain.errors import (
    BrokenChainError,
    BusyError,
    NameCollisionError,
    ObjectNotFoundError,
    PointNotFoundError,
    RefConflictError,
    StoreError,
    UnsavedBlocksError,
)
from odfchain.ids.branch_names import check_branch_name
from odfchain.ids.multihash import Multihash
from odfchain.model.timestamp import Timestamp
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.fetched_branches import rename_fetched
from odfchain.repo.points import Point, named_block, on_branch, reference_of
from odfchain.repo.references import branch_names, keep_reachable, lock_path, remove_branch
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD
from odfchain.trust.head_signature import head_signature
from odfchain.trust.signed_head import SignatureStatus


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch, and how it lies to the head."""

    name: str
    block: Multihash
    """Its newest block."""
    number: int
    """The number of that block."""
    ahead: int
    """Blocks of its chain that the head does not have, nor has merged."""
    behind: int
    """Blocks of the head's chain that it does not have, nor has merged."""
    base: Multihash
    """The newest block that both have, or have merged: a merge takes what the branch changed since."""
    base_number: int
    last_change: Timestamp
    """System time of its newest block."""
    signature: str
    """`signed` by the owner, `unsigned` or `invalid`: for people only, because branches may be reset."""

    def to_document(self) -> dict[str, Any]:
        """The branch as JSON has it."""
        return {
            "name": self.name,
            "block": self.number,
            "blockHash": str(self.block),
            "ahead": self.ahead,
            "behind": self.behind,
            "base": self.base_number,
            "baseHash": str(self.base),
            "lastChange": str(self.last_change),
            "signature": self.signature,
        }


def create_branch(dataset: DatasetFiles, name: str, at: Point | None = None) -> DatasetFiles:
    """The dataset on a new branch, durably at a point (default: where it is opened).

    Raises:
        BusyError: no reference leads to the block, and garbage is being collected or something pulled.
    """
    check_branch_name(name)
    _check_free(dataset, name)
    block = DatasetState.read(dataset.chain).head if at is None else named_block(dataset, at)
    if isinstance(at, Multihash) and reference_of(dataset, block) is None:
        with fsio.try_locked(lock_path(dataset)) as free:
            if not free:
                raise BusyError(
                    f"{dataset.alias}: something is being pulled into it, or its garbage is being collected",
                    hint="run the command again when that is done",
                )
            _check_whole(dataset, block)
            _point(dataset, name, block)
    else:
        _point(dataset, name, block)
    return dataset.on(name)


def _point(dataset: DatasetFiles, name: str, block: Multihash) -> None:
    fsio.remove_quietly(dataset.on(name).index_path)  # of a branch that other tools have removed
    try:
        dataset.chain.set_ref(name, block, expected=None)
    except RefConflictError:
        _check_free(dataset, name)
        raise


def _check_free(dataset: DatasetFiles, name: str) -> None:
    if dataset.chain.head(name) is not None:
        raise NameCollisionError(
            f"{dataset.alias} has a branch {name!r} already",
            hint=f"choose another name; `odfchain branch list {dataset.alias}` lists the branches",
        )


def _check_whole(dataset: DatasetFiles, block: Multihash) -> None:
    """Garbage collection has not begun to remove the chain."""
    try:
        for _ in dataset.chain.walk(block):
            pass
    except (ObjectNotFoundError, BrokenChainError) as error:
        raise PointNotFoundError(
            f"{dataset.alias}: no reference leads to block {block}, and its chain is here no more: {error}"
        ) from None


def list_branches(dataset: DatasetFiles) -> list[Branch]:
    """The branches of a dataset, ordered by name."""
    head = dataset.on(HEAD)
    graph = BlockGraph(head)
    return [_described(head, graph, name) for name in branch_names(dataset)]


def _described(dataset: DatasetFiles, graph: BlockGraph, name: str) -> Branch:
    there = on_branch(dataset, name)
    head, newest = DatasetState.read(dataset.chain).head, DatasetState.read(there.chain)
    base = graph.best_common([head], [newest.head])[-1]
    number = newest.head_block.sequence_number
    return Branch(
        name=name,
        block=newest.head,
        number=number,
        ahead=number - graph.number(graph.newest_reached(newest.head, head)),
        behind=graph.number(head) - graph.number(graph.newest_reached(head, newest.head)),
        base=base,
        base_number=graph.number(base),
        last_change=newest.head_block.system_time,
        signature=_signature(there),
    )


def _signature(branch: DatasetFiles) -> str:
    try:
        return str(head_signature(branch).status)
    except StoreError:  # something else is in its place
        return str(SignatureStatus.INVALID)


def delete_branch(
    dataset: DatasetFiles,
    name: str,
    *,
    force: bool = False,
    check: Callable[[DatasetFiles], None] = lambda _: None,
) -> str | None:
    """The branch is gone; what no other branch has merged stays under the reference returned, or nothing.

    `check` is given the dataset on the branch before that, and raises where it must stay.

    Raises:
        UnsavedBlocksError: nobody has merged it (unless `force`); it stays.
    """
    there = on_branch(dataset, check_branch_name(name))
    block = DatasetState.read(there.chain).head
    merged = _is_merged(there, block)
    if not merged and not force:
        raise UnsavedBlocksError(
            f"{dataset.alias}: branch {name!r} has blocks that neither the head nor another branch has, "
            "or has merged",
            hint=f"`odfchain diff {dataset.alias} {name}` shows what they change; "
            "merge it, or give it up with --force",
        )
    check(there)
    kept = None if merged else keep_reachable(dataset, block)
    _remove(there, block)
    rename_fetched(dataset, name, None)
    return kept


def _is_merged(branch: DatasetFiles, block: Multihash) -> bool:
    """Whether another branch, or the head, has a block, or has merged it."""
    others = [name for name in (HEAD, *branch_names(branch)) if name != branch.ref]
    heads = [branch.chain.head(name) for name in others]
    graph = BlockGraph(branch, [HEAD])
    return any(head is not None and graph.is_ancestor(block, head) for head in heads)


def rename_branch(dataset: DatasetFiles, old: str, new: str) -> DatasetFiles:
    """The dataset on its branch `old`, which is called `new` from now on."""
    there = on_branch(dataset, check_branch_name(old))
    if check_branch_name(new) == old:
        return there
    _check_free(dataset, new)
    block = DatasetState.read(there.chain).head
    _point(dataset, new, block)
    try:
        _remove(there, block)
    except BaseException:
        _remove(dataset.on(new), block)
        raise
    rename_fetched(dataset, old, new)
    return dataset.on(new)


def _remove(branch: DatasetFiles, block: Multihash) -> None:
    branch.shared.forget_branch(branch.folder, branch.ref, block)
    remove_branch(branch, block)
