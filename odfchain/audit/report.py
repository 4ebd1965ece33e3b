"""What verification says about a dataset: faults, what could not be checked, and notes.

A fault is proof that something is not as recorded. What could not be checked proves nothing either way, so it
is kept apart: it neither accuses the dataset nor lets it pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from odfchain.metadata.enums import DatasetKind

CHECKS = {
    1: "head reference",
    2: "block bytes",
    3: "chain links",
    4: "append rules",
    5: "files present, sizes",
    6: "physical hashes",
    7: "logical hashes, offsets",
    8: "replayed transformations",
}

REPLAY_CHECK = 8


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is not as recorded."""

    check: int
    file: str
    message: str
    sequence_number: int | None = None


@dataclass(frozen=True, slots=True)
class Unchecked:
    """Something that could not be checked, in these blocks or in the whole dataset."""

    message: str
    blocks: tuple[int, ...] = ()

    @property
    def where(self) -> str:
        """The blocks in a few words; empty for the whole dataset."""
        if not self.blocks:
            return ""
        if len(self.blocks) > _SHOWN_BLOCKS:
            return f"{len(self.blocks):,} blocks from {self.blocks[0]} to {self.blocks[-1]}"
        plural = "s" if len(self.blocks) > 1 else ""
        return f"block{plural} " + ", ".join(map(str, self.blocks))


_SHOWN_BLOCKS = 8


@dataclass(slots=True)
class Replay:
    """How much was computed again; `engines` are the versions that did."""

    transactions: int = 0
    engines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The outcome for one dataset."""

    dataset_id: str
    alias: str
    head: str | None
    kind: DatasetKind | None = None
    """None when the Seed cannot be reached."""
    blocks: int = 0
    slices: int = 0
    records: int = 0
    data_bytes: int = 0
    faults: list[Fault] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    replay: Replay | None = None
    """None when it was not asked for, or the dataset is a root."""

    @property
    def ok(self) -> bool:
        """Whether all that was asked for was checked, and no fault was found."""
        return not self.faults and not self.unchecked

    @property
    def checks(self) -> dict[int, str]:
        """The checks that were run."""
        return {n: name for n, name in CHECKS.items() if n != REPLAY_CHECK or self.replay is not None}

    def leave_out(self, message: str, block: int | None = None) -> None:
        """Say that something could not be checked; blocks with the same reason become one item."""
        blocks = () if block is None else (block,)
        for index, known in enumerate(self.unchecked):
            if known.message == message:
                self.unchecked[index] = Unchecked(message, known.blocks + blocks)
                return
        self.unchecked.append(Unchecked(message, blocks))

    def sort(self) -> None:
        """Put the faults in the order of the chain, those of the whole dataset first."""
        self.faults.sort(key=lambda f: (-1 if f.sequence_number is None else f.sequence_number, f.check))
