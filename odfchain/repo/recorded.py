"""What merging looks back at: the slices so far, and the state checkpoint that stands for the older ones.

A state checkpoint is a Parquet file with the rows that are still in force: for each primary key the one with
the largest offset, unless that is a retraction. Rows are as recorded, their offset and operation included,
ordered by key; the file says itself which key it was made for and up to which offset (RFC-018). So the rows
of a checkpoint and of the slices after it lead to the same state as all slices.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, CodecError, ObjectNotFoundError
from odfchain.ids.multihash import Multihash
from odfchain.model.events import OffsetInterval
from odfchain.model.sources import MergeStrategy, MergeStrategySnapshot, MergeStrategyUpsertStream
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState, SliceRef
from odfchain.repo.kept_footers import KeptFooters

if TYPE_CHECKING:
    from odfchain.slices.footers import FileStats
    from odfchain.slices.skipping import Condition
    from odfchain.spark.executor_files import ExecutorFiles

METADATA_KEY = b"odfchain.state"
"""Key of the Parquet file's metadata under which a checkpoint describes itself."""

_VERSION = 1
_LARGEST_DELTA = 32
"""Slices that are read beside a checkpoint before the next one is due; opening many files is slow."""
_SMALLEST_DELTA = 50_000
"""Rows that are not worth a checkpoint."""


@dataclass(frozen=True, slots=True)
class RecordedSlice:
    """A slice of the history; `locate` gives its file, verified."""

    offsets: OffsetInterval
    locate: Callable[[], Path]
    name: Multihash | None = None
    """Its physical hash, once it is committed."""
    footer: Callable[[], FileStats] | None = None
    """What its footer reports, as `KeptFooters.stats`; once it is committed."""
    key: str = ""
    """Its key for executors that see no folder of the driver (`odfchain.spark.executor_files`)."""
    unsent: Path | None = None
    """Its file, where it is not in the store under that key yet."""

    def key_in(self, files: ExecutorFiles) -> str:
        """Its key, under which it is in the store; errors as `ExecutorFiles.put`."""
        if self.unsent is not None:
            files.put(self.unsent, self.key)
        return self.key

    def may_hold(self, condition: Condition) -> bool:
        """Whether a row of it may be as a condition says."""
        from odfchain.slices.skipping import may_match, understood  # noqa: PLC0415 - it loads Arrow

        return self.footer is None or not understood(condition) or may_match(self.footer(), condition)

    @property
    def rows(self) -> int:
        """Number of records."""
        return self.offsets.end - self.offsets.start + 1


@dataclass(frozen=True, slots=True)
class StateCheckpoint:
    """The state of a dataset up to an offset, as a verified file."""

    path: Path | None
    """None where executors have written or looked at it, and it is not here."""
    key: tuple[str, ...]
    last_offset: int
    rows: int
    stored: str = ""
    """Its key for executors that see no folder of the driver."""


def describe(key: tuple[str, ...], last_offset: int) -> bytes:
    """The description of a state checkpoint that its Parquet metadata carry."""
    return json.dumps({"version": _VERSION, "primaryKey": list(key), "lastOffset": last_offset}).encode()


def read_description(path: Path, stored: str = "") -> StateCheckpoint | None:
    """The state checkpoint in a file; None when the file is something else (checkpoints of other engines).

    `stored` is its key for executors.

    Raises:
        CodecError: the file calls itself a state checkpoint and its description is not understood.
    """
    from odfchain.slices.reader import open_parquet  # noqa: PLC0415

    try:
        with open_parquet(path) as file:
            footer = file.metadata
    except BadInputError:
        return None
    text = (footer.metadata or {}).get(METADATA_KEY)
    if text is None:
        return None
    try:
        tree = json.loads(text)
        if tree["version"] != _VERSION:
            return None
        key = tuple(str(name) for name in tree["primaryKey"])
        return StateCheckpoint(path, key, int(tree["lastOffset"]), footer.num_rows, stored)
    except (ValueError, KeyError, TypeError) as error:
        raise CodecError(f"{path}: the description of the state checkpoint is damaged: {error}") from None


@dataclass(frozen=True, slots=True)
class RecordedRows:
    """Everything recorded so far, slices oldest first."""

    slices: tuple[RecordedSlice, ...] = ()
    checkpoint: StateCheckpoint | None = None
    folder: Path | None = None
    """A private one for what can be computed again from the slices."""

    @classmethod
    def of(
        cls,
        dataset: DatasetFiles,
        state: DatasetState,
        describe: Callable[[str], StateCheckpoint | None] | None = None,
    ) -> RecordedRows:
        """The recorded rows of a dataset at a head.

        `describe` looks at a checkpoint in the store by its key, where the file itself need not come here.
        """
        kept = KeptFooters(dataset)
        slices = tuple(_recorded_slice(dataset, ref, kept) for ref in state.slices())
        checkpoint = None
        if state.checkpoint is not None:
            name = state.checkpoint.physical_hash
            stored = dataset.key("checkpoints", name)
            with contextlib.suppress(ObjectNotFoundError):  # it only saves time
                if describe is not None and not Path(dataset.checkpoints.locate(name)).is_file():
                    checkpoint = describe(stored)
                else:
                    checkpoint = read_description(dataset.checkpoints.verified_path(name), stored)
        return cls(slices, checkpoint, dataset.folder / "info" / "keys")

    @classmethod
    def since_checkpoint(
        cls, dataset: DatasetFiles, state: DatasetState, key: tuple[str, ...]
    ) -> SinceCheckpoint:
        """As `of(…).for_state(key)`, looking back to the checkpoint only, which is not verified."""
        described = None
        if state.checkpoint is not None:
            path = Path(dataset.checkpoints.locate(state.checkpoint.physical_hash))
            described = read_description(path) if path.is_file() else None
        used = described if described is not None and described.key == key else None
        slices: list[RecordedSlice] = []
        kept = KeptFooters(dataset)
        for ref in state.slices_newest_first():
            if used is not None and ref.slice.offset_interval.start <= used.last_offset:
                break
            slices.append(_recorded_slice(dataset, ref, kept))
        return SinceCheckpoint(cls(tuple(slices[::-1]), used), described is not None)

    def for_state(self, key: tuple[str, ...]) -> RecordedRows:
        """What the state of a key follows from: the checkpoint, if it is of that key, and later slices."""
        if self.checkpoint is None or self.checkpoint.key != key:
            return RecordedRows(self.slices)
        last = self.checkpoint.last_offset
        return RecordedRows(tuple(s for s in self.slices if s.offsets.start > last), self.checkpoint)

    def paths(self) -> list[Path]:
        """The files, verified."""
        own = [self.checkpoint.path] if self.checkpoint and self.checkpoint.path else []
        return own + [piece.locate() for piece in self.slices]

    def keys(self, files: ExecutorFiles) -> list[str]:
        """What executors call the files, which are in the store; errors as `ExecutorFiles.put`."""
        own = [self.checkpoint.stored] if self.checkpoint else []
        return own + [piece.key_in(files) for piece in self.slices]


@dataclass(frozen=True, slots=True)
class SinceCheckpoint:
    """What a state follows from, and whether the chain names a checkpoint that is a state here."""

    rows: RecordedRows
    named: bool


def _recorded_slice(dataset: DatasetFiles, ref: SliceRef, kept: KeptFooters) -> RecordedSlice:
    name = ref.slice.physical_hash
    locate = functools.partial(dataset.data.verified_path, name)
    key, footer = dataset.key("data", name), functools.partial(kept.stats, ref)
    return RecordedSlice(ref.slice.offset_interval, locate, name, footer, key)


def keeps_state(strategy: MergeStrategy) -> bool:
    """Whether the strategy compares its input with the state that a checkpoint can hold."""
    return isinstance(strategy, MergeStrategySnapshot | MergeStrategyUpsertStream)


def checkpoint_is_due(rows: RecordedRows) -> bool:
    """Whether so much has come after the checkpoint (or the first slice) that a new one saves work.

    It is when the rows to read beside the state are half as many as those of the state, so that merges read
    at most half as much again as they must and checkpoints take at most twice the space of the log.
    """
    slices = rows.slices if rows.checkpoint else rows.slices[1:]
    base = rows.checkpoint.rows if rows.checkpoint else sum(s.rows for s in rows.slices[:1])
    later = sum(s.rows for s in slices)
    return len(slices) >= _LARGEST_DELTA or later >= max(_SMALLEST_DELTA, base // 2)
