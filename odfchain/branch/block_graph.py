"""Which blocks a block was made from: ancestors along predecessors, and along merges.

A merge edge leads from a block with a merge record to the source of that record. The base of a merge is the
best common ancestor of two blocks: common to both, and no ancestor of another common one. There may be
several (two branches merged into each other), and then their own merge is the base. Source: RFC-036.

Nothing walks a chain that an index knows: a fork is found by bisection, merges by the index's own column.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from odfchain.chain.index import MERGE
from odfchain.errors import ChainError, ObjectNotFoundError
from odfchain.ids.multihash import Multihash
from odfchain.model.metadata_block import MetadataBlock
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.merge_record import MergeMode, understood_record
from odfchain.repo.points import opened_at
from odfchain.repo.references import ref_names


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

    Every method raises BrokenChainError, StoreError or CodecError where a block cannot be read.
    """

    def __init__(self, dataset: DatasetFiles, refs: Sequence[str] = ()) -> None:
        """`refs` are references that probably lead to what will be asked for."""
        self._dataset = dataset
        self._chain = dataset.chain
        first = [dataset.ref, *refs]
        self._waiting = [*dict.fromkeys([*first, *ref_names(dataset)])]
        self._known: list[tuple[DatasetFiles, Multihash, int]] = []
        self._lines: dict[Multihash, _Line] = {}
        self._forks: dict[tuple[Multihash, Multihash], Multihash] = {}

    def number(self, block: Multihash) -> int:
        """A block's sequence number."""
        return self._chain.get(block).sequence_number

    def is_stored(self, block: Multihash) -> bool:
        """Whether a block is here."""
        return self._chain.contains(block)

    # --- along predecessors --------------------------------------------------------------------------

    def fork(self, one: Multihash, other: Multihash) -> Multihash:
        """The last common block of two chains."""
        found = self._forks.get((one, other))
        if found is None:
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
            block = mine.at(middle)
            if block is not None and block == theirs.at(middle):
                common, found = middle, block
            else:
                beyond = middle
        if found is None or self.number(found) != common:
            raise ChainError(
                f"blocks {one} and {other} are of different chains: they have no block in common"
            )
        return found

    def _line(self, block: Multihash) -> _Line:
        line = self._lines.get(block)
        if line is None:
            line = self._lines[block] = self._found_line(block)
        return line

    def _found_line(self, block: Multihash) -> _Line:
        after: dict[int, Multihash] = {}
        current: Multihash | None = block
        while current is not None:
            number = self.number(current)
            for files, head, top in self._references():
                if number <= top and files.chain.hash_at(number, head) == current:
                    return _Line(files, head, number, after)
            after[number] = current
            current = self._chain.get(current).prev_block_hash
        return _Line(None, None, -1, after)

    def _references(self) -> Iterator[tuple[DatasetFiles, Multihash, int]]:
        """References and their newest blocks; opened when the ones before did not do."""
        yield from list(self._known)
        while self._waiting:
            files = self._dataset.on(self._waiting.pop(0))
            head = files.chain.head()
            if head is not None:
                self._known.append((files, head, files.chain.get(head).sequence_number))
                yield self._known[-1]

    def files_of(self, block: Multihash) -> DatasetFiles:
        """The dataset opened so that the chain up to a block is read without changing an index."""
        line = self._line(block)
        return opened_at(self._dataset, block) if line.files is None or line.after else line.files

    # --- along merges --------------------------------------------------------------------------------

    def is_ancestor(self, one: Multihash, other: Multihash) -> bool:
        """Whether a block is another, or was made use of by it."""
        fork = self.fork(one, other)
        if fork == one:
            return True
        return any(self.fork(one, tip) == one for tip in self._tips([other], [fork])[0])

    def newest_reached(self, one: Multihash, other: Multihash) -> Multihash:
        """The newest block of the chain up to `one` that `other` is, or was made from."""
        fork = self.fork(one, other)
        found = [fork, *(self.fork(one, tip) for tip in self._tips([other], [fork])[0])]
        return max(found, key=self.number)

    def best_common(self, ones: Sequence[Multihash], others: Sequence[Multihash]) -> tuple[Multihash, ...]:
        """The best common ancestors of two blocks, in order of sequence number and hash.

        Several `ones` (or `others`) stand for a block that was merged from them.

        Raises:
            ObjectNotFoundError: both sides merged a block that is not stored here.
        """
        forks = [self.fork(one, other) for one, other in itertools.product(ones, others)]
        # what was merged at or before a fork is an ancestor of it
        (mine, lacking), (theirs, lacking_too) = self._tips(ones, forks), self._tips(others, forks)
        if both := lacking & lacking_too:
            raise ObjectNotFoundError(
                f"{self._dataset.alias}: both sides merged block {min(both, key=str)}, which is not here",
                hint=f"`odfchain fetch {self._dataset.alias} --merged` brings what was merged",
            )
        found = {*forks, *(self.fork(one, other) for one, other in itertools.product(mine, theirs))}
        return self._in_order(self._best(found))

    def _best(self, found: Iterable[Multihash]) -> list[Multihash]:
        best: list[Multihash] = []
        for block in sorted(found, key=self.number, reverse=True):
            if not any(self.is_ancestor(block, other) for other in best):
                best = [other for other in best if not self.is_ancestor(other, block)] + [block]
        return best

    def _in_order(self, blocks: Iterable[Multihash]) -> tuple[Multihash, ...]:
        return tuple(sorted(blocks, key=lambda block: (self.number(block), str(block))))

    def _tips(
        self, blocks: Sequence[Multihash], known: Sequence[Multihash]
    ) -> tuple[list[Multihash], set[Multihash]]:
        """Blocks whose chains hold all ancestors but those of `known`; and sources that are not here."""
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
        """What the chain up to a block merged after a number, newest first."""
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
    """The source of the merge that a block records; what is not understood is no merge."""
    record = understood_record(block.event)
    return [record.source] if record is not None and record.mode is MergeMode.MERGE else []
