"""Branches of a dataset: made, listed, renamed, and given up only by who says so.

A branch is a reference (RFC-035), so making one costs what moving a head costs, however long the chain is.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from odfchain import errors
from odfchain.chain.chain import descend
from odfchain.chain.index import MERGE
from odfchain.chain.signed_heads import SignatureStatus
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import Multihash
from odfchain.odf.names import check_branch_name
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import record_of
from odfchain.storage import fsio
from odfchain.storage.local import HEAD
from odfchain.workspace import points
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import FetchedBranches, MergeMode, understood_record

# The graph of blocks: edges to predecessors, and from a merge block to the source of its merge record.
# The merge base is the best common ancestor; if there are several (criss-cross merges), their own merge is
# the base (RFC-036). Forks are found by bisection over the index; no indexed chain is walked.


@dataclass(frozen=True, slots=True)
class _Line:
    """The chain up to a block: what a reference's index knows of it, and the blocks after that."""

    files: DatasetFiles | None
    """The dataset on that reference; None where no reference leads to any of the blocks."""
    head: Multihash | None
    number: int
    """The newest block that the index knows; -1 is none."""
    after: dict[int, Multihash] = field(default_factory=dict)

    def at(self, number: int) -> Multihash | None:
        if number > self.number or self.files is None or self.head is None:
            return self.after.get(number)
        return self.files.chain.hash_at(number, self.head)


class BlockGraph:
    """The blocks of a dataset and how they come from each other; references count as they were at first.

    Every method raises ChainError, StoreError or CodecError where a block cannot be read.
    """

    def __init__(self, dataset: DatasetFiles, refs: Sequence[str] = ()) -> None:
        """`refs` are references that probably lead to what will be asked for."""
        self._dataset, self._chain = dataset, dataset.chain
        self._waiting = [*dict.fromkeys([dataset.ref, *refs, *points.ref_names(dataset)])]
        self._known: list[tuple[DatasetFiles, Multihash, int]] = []
        self._line = functools.cache(self._found_line)
        self._forks: dict[tuple[Multihash, Multihash], Multihash] = {}

    def number(self, block: Multihash) -> int:
        """A block's sequence number."""
        return self._chain.get(block).sequence_number

    # --- along predecessors --------------------------------------------------------------------------

    def fork(self, one: Multihash, other: Multihash) -> Multihash:
        """The last common block of two chains."""
        if (found := self._forks.get((one, other))) is None:
            found = self._fork(one, other)
            self._forks[one, other] = self._forks[other, one] = found
        return found

    def _fork(self, one: Multihash, other: Multihash) -> Multihash:
        if one == other:
            return one
        mine, theirs = self._line(one), self._line(other)
        common, beyond = -1, min(self.number(one), self.number(other)) + 1
        found = None
        while beyond - common > 1:
            middle = (common + beyond) // 2
            if (block := mine.at(middle)) is not None and block == theirs.at(middle):
                common, found = middle, block
            else:
                beyond = middle
        if found is None or self.number(found) != common:
            raise errors.ChainError(
                f"blocks {one} and {other} are of different chains: they have no block in common"
            )
        return found

    def _found_line(self, block: Multihash) -> _Line:
        after: dict[int, Multihash] = {}
        for current, found in descend([block], self._chain.get):
            number = found.sequence_number
            for files, head, top in self._references():
                if number <= top and files.chain.hash_at(number, head) == current:
                    return _Line(files, head, number, after)
            after[number] = current
        return _Line(None, None, -1, after)

    def _references(self) -> Iterator[tuple[DatasetFiles, Multihash, int]]:
        # opened only when the references before did not hold the block
        yield from list(self._known)
        while self._waiting:
            files = self._dataset.on(self._waiting.pop(0))
            if (head := files.chain.head()) is not None:
                self._known.append((files, head, files.chain.get(head).sequence_number))
                yield self._known[-1]

    def files_of(self, block: Multihash) -> DatasetFiles:
        """The dataset opened so that the chain up to a block is read without changing an index."""
        line = self._line(block)
        return points.opened_at(self._dataset, block) if line.files is None or line.after else line.files

    # --- along merges --------------------------------------------------------------------------------

    def is_ancestor(self, one: Multihash, other: Multihash) -> bool:
        """True if `one` is `other` or one of its ancestors, merges included."""
        return self.fork(one, other) == one or self.newest_reached(one, other) == one

    def newest_reached(self, one: Multihash, other: Multihash) -> Multihash:
        """The newest block of the chain up to `one` that `other` is, or was made from."""
        fork = self.fork(one, other)
        found = [fork, *(self.fork(one, tip) for tip in self._tips([other], [fork])[0])]
        return max(found, key=self.number)

    def best_common(self, ones: Sequence[Multihash], others: Sequence[Multihash]) -> tuple[Multihash, ...]:
        """The best common ancestors of two blocks, in order of sequence number and hash.

        Several `ones` (or `others`) stand for a block that was merged from them.
        """
        forks = [self.fork(one, other) for one, other in itertools.product(ones, others)]
        # what was merged at or before a fork is an ancestor of it
        (mine, lacking), (theirs, lacking_too) = self._tips(ones, forks), self._tips(others, forks)
        if both := lacking & lacking_too:
            raise errors.ObjectNotFoundError(
                f"{self._dataset.alias}: both sides merged block {min(both, key=str)}, which is not here",
                hint=f"`odfchain fetch {self._dataset.alias} --merged` brings what was merged",
            )
        found = {*forks, *(self.fork(one, other) for one, other in itertools.product(mine, theirs))}
        best: list[Multihash] = []
        for block in sorted(found, key=self.number, reverse=True):
            if not any(self.is_ancestor(block, other) for other in best):
                best = [other for other in best if not self.is_ancestor(other, block)] + [block]
        return tuple(sorted(best, key=lambda block: (self.number(block), str(block))))

    def _tips(
        self, blocks: Sequence[Multihash], known: Sequence[Multihash]
    ) -> tuple[list[Multihash], set[Multihash]]:
        # blocks whose chains hold all ancestors but those of `known`, and merge sources that are not stored
        # here
        tips: list[Multihash] = []
        lacking: set[Multihash] = set()
        waiting = list(blocks)
        while waiting:
            block = waiting.pop()
            if not self._chain.contains(block):
                lacking.add(block)
                continue
            upto = max(self.number(self.fork(block, other)) for other in [*known, *tips])
            if upto < self.number(block):
                tips = [tip for tip in tips if self.fork(block, tip) != tip] + [block]
                waiting += self._sources(block, upto)
        return tips, lacking

    def _sources(self, block: Multihash, after: int) -> Iterator[Multihash]:
        # newest first
        line, number = self._line(block), self.number(block)
        while number > max(after, line.number):
            yield from _source_of(self._chain.get(line.after[number]))
            number -= 1
        start = line.at(number) if number > after else None
        while start is not None and line.files is not None:
            merge = line.files.chain.nearest(MERGE, head=start)
            if merge is None or merge.block.sequence_number <= after:
                return
            yield from _source_of(merge.block)
            start = merge.block.prev_block_hash


def _source_of(block: MetadataBlock) -> list[Multihash]:
    # a record that is not understood is no merge
    record = understood_record(block.event)
    return [record.source] if record is not None and record.mode is MergeMode.MERGE else []


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch, and how it lies to the head."""

    name: str
    block: Multihash
    """Its newest block."""
    number: int
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
        own = ("name", "block:number", "blockHash:block", "ahead", "behind")
        return record_of(self, *own, "base:base_number", "baseHash:base", "last_change", "signature")


def _point(dataset: DatasetFiles, name: str, block: Multihash) -> None:
    fsio.remove_quietly(dataset.on(name).index_path)  # of a branch that other tools have removed
    try:
        dataset.chain.set_ref(name, block, expected=None)
    except errors.RefConflictError:
        _check_free(dataset, name)
        raise


def _check_free(dataset: DatasetFiles, name: str) -> None:
    if dataset.chain.head(name) is not None:
        raise errors.NameCollisionError(
            f"{dataset.alias} has a branch {name!r} already",
            hint=f"choose another name; `odfchain branch list {dataset.alias}` lists the branches",
        )


def _check_whole(dataset: DatasetFiles, block: Multihash) -> None:
    # garbage collection must not have begun to remove the chain
    try:
        for _ in dataset.chain.walk(block):
            pass
    except (errors.ObjectNotFoundError, errors.ChainError) as error:
        raise errors.PointNotFoundError(
            f"{dataset.alias}: no reference leads to block {block}, and its chain is here no more: {error}"
        ) from None


@dataclass(frozen=True, slots=True)
class Branches:
    """The branches of a dataset."""

    dataset: DatasetFiles

    def all(self) -> list[Branch]:
        """The branches, ordered by name."""
        head = self.dataset.on(HEAD)
        graph = BlockGraph(head)
        return [_described(head, graph, name) for name in points.branch_names(self.dataset)]

    def create(self, name: str, at: points.Point | None = None) -> DatasetFiles:
        """The dataset on a new branch, durably at a point (default: where it is opened)."""
        dataset = self.dataset
        check_branch_name(name)
        _check_free(dataset, name)
        block = DatasetState.read(dataset.chain).head if at is None else points.named_block(dataset, at)
        if isinstance(at, Multihash) and points.reference_of(dataset, block) is None:
            with points.locked_for(dataset):
                _check_whole(dataset, block)
                _point(dataset, name, block)
        else:
            _point(dataset, name, block)
        return dataset.on(name)

    def delete(
        self, name: str, *, force: bool = False, check: Callable[[DatasetFiles], None] = lambda _: None
    ) -> str | None:
        """Delete a branch; returns the reference under which unmerged blocks are kept, or None.

        `check` is given the dataset on the branch before that, and raises where it must stay.
        """
        dataset = self.dataset
        there = points.on_branch(dataset, check_branch_name(name))
        block = DatasetState.read(there.chain).head
        if not (merged := _is_merged(there, block)) and not force:
            raise errors.WorkspaceError(
                f"{dataset.alias}: branch {name!r} has blocks that neither the head nor another branch has, "
                "or has merged",
                hint=f"`odfchain diff {dataset.alias} {name}` shows what they change; "
                "merge it, or give it up with --force",
                exit_code=5,
            )
        check(there)
        kept = None if merged else points.keep_reachable(dataset, block)
        points.remove_branch(there, block)
        FetchedBranches(dataset).rename(name, None)
        return kept

    def rename(self, old: str, new: str) -> DatasetFiles:
        """The dataset on its branch `old`, which is called `new` from now on."""
        dataset = self.dataset
        there = points.on_branch(dataset, check_branch_name(old))
        if check_branch_name(new) == old:
            return there
        _check_free(dataset, new)
        block = DatasetState.read(there.chain).head
        _point(dataset, new, block)
        try:
            points.remove_branch(there, block)
        except BaseException:
            points.remove_branch(dataset.on(new), block)
            raise
        FetchedBranches(dataset).rename(old, new)
        return dataset.on(new)


def _described(dataset: DatasetFiles, graph: BlockGraph, name: str) -> Branch:
    there = points.on_branch(dataset, name)
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
        return str(branch.head_signature().status)
    except errors.StoreError:  # something else is in its place
        return str(SignatureStatus.INVALID)


def _is_merged(branch: DatasetFiles, block: Multihash) -> bool:
    others = [name for name in (HEAD, *points.branch_names(branch)) if name != branch.ref]
    heads = [branch.chain.head(name) for name in others]
    graph = BlockGraph(branch, [HEAD])
    return any(head is not None and graph.is_ancestor(block, head) for head in heads)
