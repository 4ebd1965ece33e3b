"""Executing one step of a derivative dataset: nothing is committed, so a replay does the same.

    execute   the engine writes a slice and a checkpoint              (staged)
    check     the slice is what the engine says, in the declared form

Source: specification "Derivative Transformations", "ExecuteTransform"; RFC-019.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from odfchain.digest.physical import hash_file
from odfchain.engine.interface import Executed, KeepingEngine, TransformEngine
from odfchain.model.data_schema import DataSchema
from odfchain.model.events import Checkpoint, DataSlice, ExecuteTransform, OffsetInterval
from odfchain.model.sources import Transform
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.system_columns import SystemColumns
from odfchain.slices.writer import SliceFacts
from odfchain.transform.planner import PlannedStep
from odfchain.transform.request import build_request

Engines = Callable[[Transform], TransformEngine]
"""Finds the engine that executes a transform."""


@dataclass(frozen=True, slots=True)
class ExecutedStep:
    """A step whose files are staged and checked."""

    schema: DataSchema | None
    """What the output is declared as from now on; None while no engine has said."""
    slice: DataSlice | None
    facts: SliceFacts | None
    checkpoint: Checkpoint | None
    """The one that the next step begins with: a new one, or that of the step before."""
    watermark: Timestamp | None
    data_path: Path
    checkpoint_path: Path | None
    """The file of a new checkpoint."""
    takes_back_own: bool
    """As in `Executed`."""
    made_here: bool
    """Whether the engine of this process made it."""
    put_since: float = 0.0
    """As in `Executed`."""
    version: str | None = None
    """As in `Executed`."""

    def event(self, step: PlannedStep) -> ExecuteTransform:
        """What the block of the step records."""
        return ExecuteTransform(
            query_inputs=tuple(item.event for item in step.inputs),
            prev_checkpoint=step.prev_checkpoint.physical_hash if step.prev_checkpoint else None,
            prev_offset=step.prev_offset,
            new_data=self.slice,
            new_checkpoint=self.checkpoint,
            new_watermark=self.watermark,
        )


def execute_step(
    step: PlannedStep,
    dataset: DatasetFiles,
    engine: TransformEngine,
    folder: Path,
    system_time: Timestamp,
    progress: Progress = SILENT,
    system_columns: SystemColumns = SystemColumns.SPECIFICATION,
    *,
    to_commit: bool = False,
) -> ExecutedStep:
    """Execute a step in `folder` and check what the engine made; nothing is committed.

    What is `to_commit` may be in the workspace's store already.
    """
    data, checkpoint = folder / "data", folder / "checkpoint"
    request = build_request(
        step, dataset, folder, system_time=system_time, new_data_path=data, new_checkpoint_path=checkpoint
    )
    wanted = step.schema
    if wanted is None and system_columns is not SystemColumns.SPECIFICATION:
        wanted = DataSchema(fields=system_columns.numbers(step.vocabulary))  # the rest is the result's
    if to_commit and step.output is None and isinstance(engine, KeepingEngine):
        engine = engine.keeping(dataset.keys("data"))
    executed = engine.execute(request, schema=wanted, progress=progress)
    progress.phase("Checking")
    facts, schema = _checked(step, executed, data, folder, system_time, system_columns)
    made_here = facts is not None and facts is executed.facts
    if step.output is not None and schema is not None:
        progress.phase("Comparing with the output so far")
        facts = _difference(step, dataset, facts, schema, folder, system_time)
    new_data = None
    if facts is not None:
        data = Path(facts.path)
        new_data = facts.slice_at(step.next_offset)
    kept, written = (step.read_checkpoint if executed.keeps_checkpoint else None), None
    if checkpoint.exists():
        name, size = hash_file(checkpoint)
        kept, written = Checkpoint(physical_hash=name, size=size), checkpoint
    known = [w for w in (executed.watermark, step.prev_watermark) if w is not None]
    mark = max(known, default=None)
    return ExecutedStep(
        schema,
        new_data,
        facts,
        kept,
        mark,
        data,
        written,
        executed.takes_back_own or step.output is not None,
        made_here,
        executed.put_since,
        executed.version,
    )


def _checked(
    step: PlannedStep,
    executed: Executed,
    data: Path,
    folder: Path,
    system_time: Timestamp,
    system_columns: SystemColumns,
) -> tuple[SliceFacts | None, DataSchema | None]:
    """(hashes and counts of the slice in its declared form, the schema that it declares)."""
    from odfchain.engine.check import check_output, measure, rewrite

    interval, vocabulary = executed.offset_interval, step.vocabulary
    if interval is None and not data.exists():
        return None, step.schema
    grown = _grown(step, executed, data)
    found = check_output(
        data, vocabulary=vocabulary, schema=grown, interval=interval, system_time=system_time
    )
    schema = grown or found
    if grown is None and system_columns is not SystemColumns.SPECIFICATION:
        schema = system_columns.of(found, vocabulary)  # engines elsewhere choose types of their own
    if interval is None:
        return None, schema
    if executed.facts is not None:
        return executed.facts, schema
    if found == schema:
        return measure(data, vocabulary), schema
    return rewrite(data, schema, vocabulary, interval.start, system_time.epoch_ms, folder), schema


def _difference(
    step: PlannedStep,
    dataset: DatasetFiles,
    facts: SliceFacts | None,
    schema: DataSchema,
    folder: Path,
    system_time: Timestamp,
) -> SliceFacts | None:
    """What turns the output so far into what the query made of everything."""
    from odfchain.slices.rows_in_force import SliceFile
    from odfchain.slices.writer import SliceSpec
    from odfchain.transform.rebuilt import write_difference

    names = step.vocabulary
    earlier = [
        SliceFile(dataset.data.verified_path(item.physical_hash), names, item.offset_interval)
        for item in step.output or ()
    ]
    made = None
    if facts is not None:
        interval = OffsetInterval(start=step.next_offset, end=step.next_offset + facts.rows - 1)
        made = SliceFile(Path(facts.path), names, interval)
    spec = SliceSpec.of(schema, names, step.next_offset, system_time.epoch_ms, folder)
    return write_difference(earlier, made, schema, spec)


def _grown(step: PlannedStep, executed: Executed, data: Path) -> DataSchema | None:
    """The schema declared so far, with the columns that this engine has added at its end."""
    from odfchain.codec.arrow import from_arrow
    from odfchain.slices.reader import open_parquet

    declared = step.schema
    if declared is None or executed.facts is None:
        return declared
    with open_parquet(data) as file:
        found = from_arrow(file.schema_arrow.remove_metadata())
    return DataSchema(fields=declared.fields + found.fields[len(declared.fields) :], extra=declared.extra)
