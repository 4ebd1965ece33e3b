"""Replaying a derivative dataset: every transaction is computed again and must give what is recorded.

A transaction needs its recorded inputs and the recorded checkpoint before it, not the result of replaying the
one before it. So they run side by side, and a fault in one does not accuse those that follow.

    plan      query, vocabulary, schema and input blocks as of the block      (planner)
    execute   by the engine version that the transform names, in staging      (nothing is committed)
    compare   data or none, offsets, records in their order, watermark        (faults)
              bytes of the checkpoint                                         (notes)

A transaction is at fault when it contradicts its inputs or its replay. One that cannot be replayed here, for
want of an input, a file or the engine's version, is unchecked. Source: specification "Dataset Validation";
RFC-019.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from odfchain import errors
from odfchain.audit.chain_checks import Run
from odfchain.audit.input_claims import Find, missing_input
from odfchain.audit.lineage import input_aliases
from odfchain.audit.report import (
    BLOCKS,
    HEAD,
    INPUTS,
    LINKS,
    REPLAY,
    Checking,
    Fault,
    Finding,
    LeftOut,
    Note,
    Replayed,
    Skipped,
    fault,
)
from odfchain.audit.row_checks import shown
from odfchain.chain.chain import HashedBlock
from odfchain.odf.events import DataSlice, ExecuteTransform, OffsetInterval
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.logical_hash import LogicalDigest
from odfchain.odf.row_hash import comparable, same_cells
from odfchain.odf.sources import Transform
from odfchain.odf.times import Timestamp
from odfchain.odf.transform_options import unmarked
from odfchain.progress import Progress, SideBySide
from odfchain.slices.reader import ParquetSource, hash_parquet, open_parquet
from odfchain.text import one_line
from odfchain.transform.engines import datafusion_version, is_named_datafusion, place_of, rules_of
from odfchain.transform.execute import Engines, ExecutedStep, JobThreads, StepRun
from odfchain.transform.planner import PlannedStep, RecordedStep, plan_recorded
from odfchain.workspace.config import TransformConfig
from odfchain.workspace.dataset_state import DatasetState

if TYPE_CHECKING:
    from odfchain.transform.engines import TransformEngine


_CHAIN_CHECKS = frozenset({HEAD, BLOCKS, LINKS})


@dataclass(frozen=True, slots=True)
class Replaying:
    """The replay of a dataset that is verified, by the engines that may execute its transforms."""

    run: Run
    inputs: Find
    engines: Engines
    config: TransformConfig
    known: Sequence[Fault]
    """What is wrong with the dataset or its inputs, which is not found again."""

    def replay(self, after: int, *, jobs: int = 2) -> Checking[None]:
        """What replaying the transactions after a block shows; `jobs` run side by side.

        What is found does not depend on `jobs`.
        """
        run, chain, progress = self.run, self.run.chain, self.run.progress
        if chain.seed is None or any(item.check in _CHAIN_CHECKS for item in self.known):
            yield LeftOut("no transaction was replayed: the chain cannot be followed", check=REPLAY)
            return
        wanted = [
            HashedBlock(stored.name, stored.block)
            for stored in chain.within(after, run.upto, ExecuteTransform.KIND)
        ]
        tail, head = chain.hash_at(after), chain.hash_at(run.upto)
        step = f"Replaying {run.dataset.alias}"
        progress.phase(step, len(wanted))
        together = SideBySide(progress, step)
        with JobThreads(jobs) as pool:
            running = [self._started(pool, plan, together.part()) for plan in self._plans(wanted, tail, head)]
            for work in running:
                yield from work.result() if isinstance(work, Future) else work
                progress.advance()

    def _plans(
        self, wanted: Sequence[HashedBlock], after: Multihash | None, upto: Multihash | None
    ) -> Iterator[RecordedStep | list[Finding]]:
        named = dict.fromkeys(dataset_id for item in wanted for dataset_id in _input_ids(item))
        inputs = {dataset_id: self.inputs(dataset_id) for dataset_id in named}
        at_hand = [item for item in inputs.values() if item is not None]
        aliases = input_aliases(DatasetState.read(self.run.dataset.chain).transform)
        remaining = deque(wanted)
        while remaining:
            # a missing input leaves this transaction out; the next ones are planned after it
            if gone := [i for i in _input_ids(remaining[0]) if inputs[i] is None]:
                reasons = "; ".join(missing_input(aliases.get(i), i) for i in gone)
                after = remaining[0].hash
                yield [LeftOut(reasons, remaining.popleft().block.sequence_number, REPLAY)]
                continue
            try:
                for step in plan_recorded(self.run.dataset, at_hand, tail=after, head=upto):
                    remaining.popleft()
                    yield step
            except errors.OdfchainError as error:
                # planning goes on behind the transaction that cannot be planned
                after = remaining[0].hash
                yield [*self._unplanned(remaining.popleft(), error)]

    def _unplanned(self, block: HashedBlock, error: errors.OdfchainError) -> Iterator[Finding]:
        number = block.block.sequence_number
        # an input that has changed since proves nothing about this block
        if not isinstance(error, errors.TransformError) or isinstance(error, errors.DivergedInputError):
            yield LeftOut(error.message, number, REPLAY)
            return
        if not any(item.check == INPUTS and item.sequence_number == number for item in self.known):
            yield fault(INPUTS, self.run.block_file(block.hash), error.message, number)
        yield Skipped([REPLAY], "transactions that contradict their inputs were not computed again")

    def _name(self, transform: Transform) -> str:
        # the version of the engine, or where it is if that is not this process
        if (place := place_of(transform, self.config)) is not None:
            return f"{transform.engine} " + (f"in {place.image}" if place.image else f"at {place.address}")
        return datafusion_version() if is_named_datafusion(transform) else rules_of(transform.version).version

    def _started(
        self, pool: JobThreads, plan: RecordedStep | list[Finding], progress: Progress
    ) -> list[Finding] | Future[list[Finding]]:
        if isinstance(plan, list):
            return plan
        transform = unmarked(plan.step.transform.transform)
        try:
            engine = self.engines(transform)
        except (errors.TransformError, errors.DatasetNotFoundError) as error:
            return [LeftOut(error.message, plan.sequence_number, REPLAY)]
        return pool.submit(self._replayed, plan, engine, self._name(transform), progress)

    def _replayed(
        self, recorded: RecordedStep, engine: TransformEngine, name: str, progress: Progress
    ) -> list[Finding]:
        dataset, number = self.run.dataset, recorded.sequence_number
        try:
            with dataset.staging() as folder:
                run = StepRun(dataset, engine, folder, recorded.system_time, progress)
                done = run.execute(recorded.step)
                problem = "; ".join(self._differences(recorded, done))
                notes = list(_checkpoint_notes(recorded, done, done.executed.version or name))
                if (said := done.executed.version) is not None:
                    prefix = f"{recorded.step.transform.transform.engine}_"
                    name = prefix + said.removeprefix(prefix)
        except (errors.JavaNotFoundError, errors.StorageFullError):
            raise
        except errors.QueryError as error:
            # what is allowed changes with the engine, and says nothing about who recorded it (RFC-016)
            if error.refused:
                return [LeftOut(f"it cannot be replayed: {name} refuses the query: {error}", number, REPLAY)]
            problem = f"{name} refuses the query: {error}"
        except errors.OdfchainError as error:
            return [LeftOut(f"it cannot be replayed: {error}", number, REPLAY)]
        # another checkpoint goes without saying then
        if problem:
            file = self.run.block_file(recorded.block_hash)
            return [fault(REPLAY, file, f"DataNotReproducible: {problem}", number), Replayed(name)]
        old, new = recorded.event.new_checkpoint, done.checkpoint
        same = old.physical_hash if old and new and old.physical_hash == new.physical_hash else None
        return [*notes, Replayed(name, same)]

    def _differences(self, recorded: RecordedStep, done: ExecutedStep) -> Iterator[str]:
        old, new = recorded.event.new_data, done.slice
        if old is None and new is not None:
            yield f"nothing recorded, {new.offset_interval.count:,} records replayed"
        elif old is not None and new is None:
            yield f"{old.offset_interval.count:,} records recorded, none replayed"
        elif old is not None and new is not None:
            # the most telling difference comes first; the reference implementation hashes null structs in
            # another way (RFC-006)
            if (
                old.logical_hash != new.logical_hash
                and hash_parquet(done.data_path, null_rule="reference")[0] != old.logical_hash
            ):
                yield self._first(recorded, old, done.data_path)
            if old.offset_interval != new.offset_interval:
                counts = (
                    f"{old.offset_interval.count:,} records recorded, {new.offset_interval.count:,} replayed"
                )
                yield f"{counts} (offsets {_span(old.offset_interval)}, {_span(new.offset_interval)})"
        one, other = recorded.event.new_watermark, done.watermark
        if one != other and one != _watermark_of_others(recorded.step):
            yield f"watermark {one or 'none'} recorded, {other or 'none'} replayed"

    def _first(self, recorded: RecordedStep, data: DataSlice, replayed: Path) -> str:
        path = self.run.dataset.data.path(data.physical_hash)
        try:
            found = first_difference(path, replayed, offset_column=recorded.step.vocabulary.offset_column)
        except errors.OdfchainError as error:
            return f"the records differ from the replayed ones (where, is not known: {error})"
        if found is not None:
            return str(found)
        return "the recorded logical hash is not that of the replayed records, which the slice does hold"


def _watermark_of_others(step: PlannedStep) -> Timestamp | None:
    # the reference's engine on DataFusion, which says no version, looks at the marks of this step alone
    transform = step.transform.transform
    if not is_named_datafusion(transform) or transform.version is not None:
        return None
    latest = [max(mark.event_time for mark in item.watermarks) for item in step.inputs if item.watermarks]
    known = [mark for mark in (min(latest, default=None), step.prev_watermark) if mark is not None]
    return max(known, default=None)


def _input_ids(block: HashedBlock) -> list[DatasetId]:
    event = block.block.event
    return [item.dataset_id for item in event.query_inputs] if isinstance(event, ExecuteTransform) else []


def _checkpoint_notes(recorded: RecordedStep, done: ExecutedStep, version: str) -> Iterator[Note]:
    # other versions may write other bytes for the same state
    if unmarked(recorded.step.transform.transform).version != version:
        return
    old, new = recorded.event.new_checkpoint, done.checkpoint
    if (old and old.physical_hash) != (new and new.physical_hash):
        yield Note(
            f"block {recorded.sequence_number}: the checkpoint differs: "
            f"{old.physical_hash if old else 'none'} recorded, "
            f"{new.physical_hash if new else 'none'} replayed"
        )


def _span(interval: OffsetInterval) -> str:
    return f"{interval.start} to {interval.end}"


# The first difference of two slices: a column, or a row and its first different column.
# Values are compared by type, value and place, not encoding; a NaN equals itself. Both files are read in
# parallel batches. Source: specification "Physical and Logical Hashes".

_BATCH_ROWS = 8_192
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference; `offset` is None when already the columns differ, `column` when a row is missing.

    `recorded` and `replayed` are values, types or column names as text on one line; None is what is missing.
    """

    offset: int | None
    column: str | None
    recorded: str | None
    replayed: str | None

    def __str__(self) -> str:
        if self.column is not None:
            where = f"column `{one_line(self.column, _SHOWN_CHARACTERS)}`"
        else:
            where = "columns" if self.offset is None else "record"
        if self.offset is not None:
            where = f"offset {self.offset}, {where}"
        return f"{where}: recorded {self.recorded or 'nothing'}, replayed {self.replayed or 'nothing'}"


def first_difference(recorded: Path, replayed: Path, *, offset_column: str) -> Difference | None:
    """The first difference between two slices; None when their columns and records are the same.

    Offsets are those of `recorded`, and where it has none left, of `replayed`.
    """
    with open_parquet(recorded) as one, open_parquet(replayed) as other:
        if (found := _columns(one.schema_arrow, other.schema_arrow)) is not None:
            return found
        position = 0
        for left, right in _side_by_side(one, other):
            if left is None or right is None:
                rest = left if right is None else right
                if rest is None:
                    return None
                at = _offset(rest, 0, offset_column, position)
                return Difference(at, None, _row(left), _row(right))
            if (differs := _in_batch(left, right)) is not None:
                row, index = differs
                return Difference(
                    _offset(left, row, offset_column, position),
                    left.schema.field(index).name,
                    shown(left.column(index)[row]),
                    shown(right.column(index)[row]),
                )
            position += left.num_rows
    raise AssertionError("the last pair has an end")  # pragma: no cover


def _columns(one: pa.Schema, other: pa.Schema) -> Difference | None:
    for was in one:
        if was.name not in other.names:
            return Difference(None, was.name, _type(was), None)
        now = other.field(other.get_field_index(was.name))
        if not _same_type(was, now):
            return Difference(None, was.name, _type(was), _type(now))
    for was in other:
        if was.name not in one.names:
            return Difference(None, was.name, None, _type(was))
    if one.names != other.names:
        return Difference(None, None, ", ".join(one.names), ", ".join(other.names))
    return None


def _same_type(one: pa.Field, other: pa.Field) -> bool:
    if one.type == other.type:
        return True
    try:
        first, second = (LogicalDigest(pa.schema([f])).finish() for f in (one, other))
    # a type without a logical hash equals only itself
    except errors.SchemaError:
        return False
    return first == second


def _side_by_side(
    one: ParquetSource, other: ParquetSource
) -> Iterator[tuple[pa.RecordBatch | None, pa.RecordBatch | None]]:
    lefts, rights = (file.batches(most_rows=_BATCH_ROWS) for file in (one, other))
    left = right = None
    while True:
        left = left if left is not None and left.num_rows else _next(lefts)
        right = right if right is not None and right.num_rows else _next(rights)
        if left is None or right is None:
            yield left, right
            return
        # batches of both files have different sizes
        count = min(left.num_rows, right.num_rows)
        yield left.slice(0, count), right.slice(0, count)
        left, right = left.slice(count), right.slice(count)


def _next(batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return next((batch for batch in batches if batch.num_rows), None)


def _in_batch(left: pa.RecordBatch, right: pa.RecordBatch) -> tuple[int, int] | None:
    both = zip(left.columns, right.columns, strict=True)
    same = [same_cells(*(pa.chunked_array([comparable(c, exact=True)]) for c in pair)) for pair in both]
    wrong = np.argwhere(~np.stack(same, axis=1))
    return (int(wrong[0][0]), int(wrong[0][1])) if len(wrong) else None


def _offset(batch: pa.RecordBatch, row: int, column: str, position: int) -> int:
    if column in batch.schema.names:
        value = batch.column(batch.schema.get_field_index(column))[row].as_py()
        if isinstance(value, int):
            return value
    return position + row


def _type(field: pa.Field) -> str:
    return one_line(str(field.type), _SHOWN_CHARACTERS)


def _row(batch: pa.RecordBatch | None) -> str | None:
    if batch is None:
        return None
    values = (f"{name}={shown(batch.column(i)[0])}" for i, name in enumerate(batch.schema.names))
    return one_line(", ".join(values), _SHOWN_CHARACTERS)
