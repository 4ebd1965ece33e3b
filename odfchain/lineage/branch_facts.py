"""What lineage says of a dataset's branches: how each lies to the head, and what the head has merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from odfchain.branch.branches import Branch, list_branches
from odfchain.errors import OdfchainError
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.merge_record import MergeMode, merges
from odfchain.store.interfaces import HEAD
from odfchain.text import counted, one_line

_SHOWN = 5


@dataclass(frozen=True, slots=True)
class MergedBranch:
    """A branch that the head has merged, which may be gone by now, and the blocks that did, oldest first."""

    name: str
    blocks: tuple[int, ...]

    def __str__(self) -> str:
        newest = f"block {self.blocks[-1]}"
        times = f"{counted(len(self.blocks), 'time')}, last in {newest}" if len(self.blocks) > 1 else newest
        return f"merged {self.name} {'in ' if len(self.blocks) == 1 else ''}{times}"


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """The branches of a dataset, and those that its head has merged."""

    branches: tuple[Branch, ...] = ()
    merged: tuple[MergedBranch, ...] = ()

    @classmethod
    def of(cls, dataset: DatasetFiles) -> BranchFacts:
        """What can be read; a branch that is damaged says nothing about the head."""
        try:
            chain = dataset.on(HEAD).chain
            found: dict[str, list[int]] = {}
            for item in merges(chain, DatasetState.read(chain).head):
                if item.record.mode is MergeMode.MERGE:
                    name = one_line(item.record.source_ref)
                    found.setdefault(name, []).append(item.block.block.sequence_number)
            merged = tuple(MergedBranch(name, tuple(blocks)) for name, blocks in found.items())
            return cls(tuple(list_branches(dataset)), merged)
        except OdfchainError:
            return cls()

    def lines(self) -> list[str]:
        """A few words on each branch and each that was merged; of many, on the first ones."""
        ways = [f"branch {item.name}: {lies(item)}" for item in self.branches]
        return [*_first(ways, "branches"), *_first([str(item) for item in self.merged], "merged branches")]

    def to_document(self) -> dict[str, Any]:
        """The branches for programs."""
        return {
            "branches": [item.to_document() for item in self.branches],
            "merged": [{"branch": item.name, "blocks": list(item.blocks)} for item in self.merged],
        }


def lies(branch: Branch) -> str:
    """How a branch lies to the head, in words."""
    words = [f"{branch.ahead} ahead"] if branch.ahead else []
    words += [f"{branch.behind} behind"] if branch.behind else []
    return ", ".join(words) or "as the head"


def _first(lines: Sequence[str], what: str) -> list[str]:
    more = len(lines) - _SHOWN
    return [*lines[:_SHOWN], *([f"and {more:,} more {what}"] if more > 0 else [])]
