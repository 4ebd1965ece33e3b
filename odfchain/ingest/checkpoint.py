"""When a write makes a new state checkpoint, and how (RFC-018)."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.codec.arrow import slice_schema
from odfchain.ids.multihash import Multihash
from odfchain.model import data_schema as ds
from odfchain.model.events import Checkpoint, DatasetVocabulary
from odfchain.model.sources import MergeStrategy, primary_key
from odfchain.repo.commit import StagedFile
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.recorded import (
    METADATA_KEY,
    RecordedRows,
    RecordedSlice,
    StateCheckpoint,
    checkpoint_is_due,
    describe,
    keeps_state,
    read_description,
)
from odfchain.slices.reader import check_parquet
from odfchain.spark.columns import col
from odfchain.spark.executor_files import ExecutorFiles, StoreFolder, files_of
from odfchain.spark.input_frames import spark_path
from odfchain.spark.latest_rows import latest_rows
from odfchain.spark.parquet_frame import parquet_frame
from odfchain.spark.state_writer import StateSpec, write_state
from odfchain.spark.tasks import task_results
from odfchain.spark.types import physical_struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class LookBack:
    """What the next merge looks back at."""

    recorded: Callable[[], RecordedRows]
    checkpoint: Checkpoint | None
    """What the block is to name as its new checkpoint; of several, the last one."""
    carried: Checkpoint | None = None
    """What those before the last one name."""
    staged: StagedFile | None = None
    """The file of a checkpoint that was just made."""


def read_recorded(
    session: SparkSession, recorded: RecordedRows, fields: tuple[ds.DataField, ...]
) -> DataFrame | None:
    """Recorded rows with some of their columns as physical types; None when nothing was ever recorded."""
    if (files := files_of(session)) is not None:
        keys = recorded.keys(files)
        return parquet_frame(session, files, physical_struct(fields), keys) if keys else None
    paths = list(recorded.paths())
    for path in paths:
        check_parquet(path)
    if not paths:
        return None
    return session.read.schema(physical_struct(fields)).parquet(*map(spark_path, paths))


def recorded_rows(
    dataset: DatasetFiles, state: DatasetState, session: Callable[[], SparkSession]
) -> RecordedRows:
    """What a merge looks back at; a checkpoint in a store stays there where executors read it from there."""
    if state.checkpoint is None or not dataset.checkpoints.on_demand:
        return RecordedRows.of(dataset, state)
    files = files_of(session())
    if files is None:
        return RecordedRows.of(dataset, state)

    def describe(key: str) -> StateCheckpoint | None:
        return task_results(session(), functools.partial(_describe, files=files, key=key), 1)[0]

    return RecordedRows.of(dataset, state, describe)


def _describe(_: int, files: ExecutorFiles, key: str) -> StateCheckpoint | None:
    found = read_description(files.bring(key), key)
    return None if found is None else dataclasses.replace(found, path=None)


def look_back(
    session: Callable[[], SparkSession],
    recorded: Callable[[], RecordedRows],
    checkpoint: Checkpoint | None,
    new: tuple[RecordedSlice, ...],
    strategy: MergeStrategy,
    schema: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    staging: Path,
    place: str = "",
    since: float = 0.0,
) -> LookBack:
    """What to look back at once `new` is recorded; a state checkpoint that is due is written in `staging`.

    A state checkpoint stays in force for blocks that make none: it says itself up to where it counts.
    Checkpoints of others do not, because rows are added that their makers have not seen. `place` is what the
    keys of checkpoints begin with, for executors that see no `staging`; none was put there before `since`.
    """

    def extended() -> RecordedRows:
        before = recorded()
        return dataclasses.replace(before, slices=(*before.slices, *new))

    if checkpoint is None and not keeps_state(strategy):
        return LookBack(extended, None)
    after = extended()
    kept = checkpoint if after.checkpoint is not None else None
    key = primary_key(strategy)
    if not keeps_state(strategy) or not checkpoint_is_due(after.for_state(key)):
        return LookBack(lambda: after, kept, carried=kept)
    made, staged, size = _write(session(), after.for_state(key), key, schema, vocabulary, staging, place)
    named = Checkpoint(physical_hash=staged.physical_hash, size=size)
    staged = dataclasses.replace(staged, since=since)
    return LookBack(lambda: dataclasses.replace(after, checkpoint=made), named, carried=kept, staged=staged)


def _write(
    session: SparkSession,
    recorded: RecordedRows,
    key: tuple[str, ...],
    schema: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    staging: Path,
    place: str,
) -> tuple[StateCheckpoint, StagedFile, int]:
    fields = tuple(f for f in schema.fields if f.name != vocabulary.system_time_column)
    rows = read_recorded(session, recorded, fields)
    assert rows is not None  # noqa: S101 - the slice that made the checkpoint due
    last = recorded.slices[-1].offsets.end
    spec = StateSpec(
        schema=slice_schema(ds.DataSchema(fields=fields)).serialize().to_pybytes(),
        vocabulary=vocabulary,
        metadata={METADATA_KEY: describe(key, last)},
        folder=str(staging),
    )
    order = [*(col(name).asc_nulls_first() for name in key), col(vocabulary.offset_column).asc()]
    files = files_of(session)
    into = None if files is None else StoreFolder(files, place)
    facts = write_state(latest_rows(rows, key, vocabulary), order, spec, into)
    path = Path(facts.path) if facts.path else None
    return (
        StateCheckpoint(path, key, last, facts.rows, f"{place}/{facts.physical_hash}"),
        StagedFile(path, Multihash.parse(facts.physical_hash)),
        facts.size,
    )
