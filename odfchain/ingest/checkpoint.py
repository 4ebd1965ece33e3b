"""When a write makes a new state checkpoint, and how (RFC-018)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.codec.arrow import to_arrow
from odfchain.ids.multihash import Multihash
from odfchain.model import data_schema as ds
from odfchain.model.events import Checkpoint, DatasetVocabulary
from odfchain.model.sources import MergeStrategy, primary_key
from odfchain.repo.commit import StagedFile
from odfchain.repo.recorded import (
    METADATA_KEY,
    RecordedRows,
    RecordedSlice,
    StateCheckpoint,
    checkpoint_is_due,
    describe,
    keeps_state,
)
from odfchain.slices.reader import check_parquet
from odfchain.spark.columns import col
from odfchain.spark.input_frames import spark_path
from odfchain.spark.latest_rows import latest_rows
from odfchain.spark.state_writer import StateSpec, write_state
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
    """Recorded rows with some of their columns as physical types; None when nothing was ever recorded.

    Raises:
        ObjectNotFoundError, ObjectCorruptedError: a slice is missing or damaged.
        BadInputError: a slice is not readable, or becomes more than the limits allow.
    """
    paths = list(recorded.paths())
    for path in paths:
        check_parquet(path)
    if not paths:
        return None
    return session.read.schema(physical_struct(fields)).parquet(*map(spark_path, paths))


def look_back(
    session: Callable[[], SparkSession],
    recorded: Callable[[], RecordedRows],
    checkpoint: Checkpoint | None,
    new: tuple[RecordedSlice, ...],
    strategy: MergeStrategy,
    schema: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    staging: Path,
) -> LookBack:
    """What to look back at once `new` is recorded; a state checkpoint that is due is written in `staging`.

    A state checkpoint stays in force for blocks that make none: it says itself up to where it counts.
    Checkpoints of others do not, because rows are added that their makers have not seen.

    Raises:
        StorageFullError, EngineError: from Spark.
        ObjectNotFoundError, ObjectCorruptedError: a slice is missing or damaged.
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
    made, staged = _write(session(), after.for_state(key), key, schema, vocabulary, staging)
    named = Checkpoint(physical_hash=staged.physical_hash, size=staged.path.stat().st_size)
    return LookBack(lambda: dataclasses.replace(after, checkpoint=made), named, carried=kept, staged=staged)


def _write(
    session: SparkSession,
    recorded: RecordedRows,
    key: tuple[str, ...],
    schema: ds.DataSchema,
    vocabulary: DatasetVocabulary,
    staging: Path,
) -> tuple[StateCheckpoint, StagedFile]:
    fields = tuple(f for f in schema.fields if f.name != vocabulary.system_time_column)
    rows = read_recorded(session, recorded, fields)
    assert rows is not None  # noqa: S101 - the slice that made the checkpoint due
    last = recorded.slices[-1].offsets.end
    spec = StateSpec(
        schema=to_arrow(ds.DataSchema(fields=fields)).serialize().to_pybytes(),
        vocabulary=vocabulary,
        metadata={METADATA_KEY: describe(key, last)},
        folder=str(staging),
    )
    order = [*(col(name).asc_nulls_first() for name in key), col(vocabulary.offset_column).asc()]
    facts = write_state(latest_rows(rows, key, vocabulary), order, spec)
    path = Path(facts.path)
    return (
        StateCheckpoint(path, key, last, facts.rows),
        StagedFile(path, Multihash.parse(facts.physical_hash)),
    )
