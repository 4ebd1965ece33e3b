"""What a write knows of its dataset, how it is to be done, and what it comes to."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.ids.multihash import Multihash
from odfchain.ingest.checkpoint import recorded_rows
from odfchain.model import data_schema as ds
from odfchain.model.duration import Duration
from odfchain.model.events import Checkpoint, DatasetVocabulary, MetadataEvent, SourceState
from odfchain.model.sources import MergeStrategy, WatermarkRule
from odfchain.model.timestamp import Timestamp
from odfchain.repo.commit import StagedFile, slice_path
from odfchain.repo.corrections import SOURCES, are_of_several_keys
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.recorded import RecordedRows
from odfchain.repo.system_columns import SystemColumns
from odfchain.repo.watermark import DEFAULT_RULE, latest_believed
from odfchain.repo.workspace_config import DuplicateKeys, LateEdits
from odfchain.slices.writer import SliceFacts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class WriterState:
    """What a write needs to know of the dataset, pending transactions included."""

    vocabulary: DatasetVocabulary
    merge: MergeStrategy
    schema: ds.DataSchema | None
    prev_offset: int | None
    checkpoint: Checkpoint | None
    watermark: Timestamp | None
    source_state: SourceState | None
    recorded: Callable[[], RecordedRows]
    """What there is to look back at, found when asked for."""
    has_source: bool = False
    """Whether the chain defines where rows come from; without that a new column is taken for an accident."""
    odf_schema: bool = False
    """Whether the schema in force is declared in the ODF form, so that a new one is as well."""
    has_several_keys: Callable[[], bool] = lambda: False
    """Whether sources tell records apart by different keys; found when asked for."""
    dataset: DatasetFiles | None = field(default=None, repr=False, compare=False)
    """Where slices are that executors put into its store; None where they see the staging folder."""
    since: float = field(default_factory=time.monotonic, repr=False, compare=False)
    """When the run began, before which nothing of it was put into the store [s, `time.monotonic`]."""

    @property
    def next_offset(self) -> int:
        """Offset of the next record."""
        return 0 if self.prev_offset is None else self.prev_offset + 1

    def keys(self, kind: str) -> str:
        """What the keys of slices (`data`) or checkpoints (`checkpoints`) begin with, for executors."""
        return "" if self.dataset is None else self.dataset.keys(kind)

    def path_of(self, facts: SliceFacts) -> Path:
        """The file of a slice that was just written; one that is in the store comes here now."""
        return (
            Path(facts.path)
            if self.dataset is None
            else slice_path(self.dataset, staged_file(facts, self.since))
        )

    @classmethod
    def of(
        cls,
        dataset: DatasetFiles,
        state: DatasetState,
        strategy: MergeStrategy,
        session: Callable[[], SparkSession],
    ) -> WriterState:
        """The state of a dataset at a head, for writes in a session."""
        return cls(
            vocabulary=state.vocabulary,
            merge=strategy,
            schema=state.schema,
            prev_offset=state.last_offset,
            checkpoint=state.checkpoint,
            watermark=state.watermark,
            source_state=state.source_state,
            has_source=state.polling_source is not None or bool(state.push_sources),
            odf_schema=state.odf_schema,
            recorded=functools.cache(lambda: recorded_rows(dataset, state, session)),
            has_several_keys=lambda: are_of_several_keys(
                block.block.event for block in state.chain.nearest_all(*SOURCES, head=state.head)
            ),
            dataset=dataset,
        )


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How one input is written."""

    system_time: Timestamp
    event_time: Timestamp
    """Event time of rows that carry none."""
    staging: Path
    new_source_state: SourceState | None = None
    new_watermark: Timestamp | None = None
    """Overrides the computed watermark."""
    advances: bool = False
    """The watermark follows `event_time`, unless the input's rows have event times of their own."""
    allow_empty: bool = False
    max_retract_ratio: float = 1.0
    late_edits: LateEdits = LateEdits.IGNORE
    """What to do with known keys that have other values (Ledger)."""
    duplicate_keys: DuplicateKeys = DuplicateKeys.REFUSE
    """What to do with rows of the input that have one key and other values (Ledger, Snapshot)."""
    system_columns: SystemColumns = SystemColumns.SPECIFICATION
    """Types of offsets and operations, where the dataset has no schema yet."""
    watermark: WatermarkRule = DEFAULT_RULE
    max_future: Duration | None = None
    """How far after the system time an event time may lie; None is no bound."""
    allow_future: bool = False
    """Take rows beyond that bound; the watermark stays within it."""
    slice_bytes: int = 0
    """A larger input becomes slices of at most so many bytes of values each; 0: always one."""

    @property
    def latest_believed(self) -> Timestamp | None:
        """The bound on event times; None is none."""
        return None if self.max_future is None else latest_believed(self.system_time, self.max_future)


@dataclass(frozen=True, slots=True)
class Written:
    """A transaction that is ready to be committed, and the state after it."""

    events: tuple[MetadataEvent, ...]
    slices: tuple[StagedFile, ...]
    checkpoint: StagedFile | None
    state: WriterState
    facts: tuple[SliceFacts, ...]
    """Of each slice."""
    input_rows: int
    notes: tuple[str, ...] = ()
    """What the user should know about how the input was made to fit."""


def staged_file(facts: SliceFacts, since: float) -> StagedFile:
    """A slice that was written, as what is to be committed."""
    path = Path(facts.path) if facts.path else None
    return StagedFile(path, Multihash.parse(facts.physical_hash), facts.footer, since)
