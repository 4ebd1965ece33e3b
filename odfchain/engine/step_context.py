"""Where a step of a query stands: what came before it, the watermarks, and what it leaves for the next."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.engine import archive
from odfchain.engine.checked_query import Query
from odfchain.engine.engine_version import EngineRules, rules_of
from odfchain.engine.step_files import StepFiles
from odfchain.engine.step_inputs import StepInput, watermark_of
from odfchain.engine.stream.event_times import TimeMark, TimePoint
from odfchain.engine.stream.flow import StepMemory
from odfchain.model.engine_messages import TransformRequest
from odfchain.model.events import DatasetVocabulary
from odfchain.spark.executor_files import copy_put
from odfchain.spark.rows_writer import WrittenRows, write_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class StepContext:
    """A request, its query, and what the step before left."""

    request: TransformRequest
    query: Query
    inputs: list[StepInput]
    previous: archive.Manifest | None
    parts: Mapping[str, Path]
    restarted: bool
    marks: tuple[int | None, ...]
    """Of every input, the last known watermark [ms]."""
    before: int | None
    now: int | None

    @property
    def vocabulary(self) -> DatasetVocabulary:
        """That of the output."""
        return self.request.vocab

    @property
    def rules(self) -> EngineRules:
        """Those of the version that the transform names."""
        return rules_of(self.request.transform.version)

    @property
    def watermark(self) -> TimeMark:
        """The mark of the inputs' event times."""
        late = self.rules.allowed_lateness_ms
        before, now = _point(self.before), _point(self.now)
        return TimeMark(before, now, now, _point(self.before, late), _point(self.now, late))

    @classmethod
    def begin(
        cls, request: TransformRequest, query: Query, inputs: list[StepInput], folder: Path
    ) -> StepContext:
        """The step of a request; rows that are remembered are unpacked in the folder."""
        previous, restarted = None, False
        parts: dict[str, Path] = {}
        if request.prev_checkpoint_path is not None:
            unpacked = folder / "before"
            unpacked.mkdir()
            previous, parts = archive.open_checkpoint(Path(request.prev_checkpoint_path), unpacked)
            same = previous.query_hash == query.digest and previous.kind == query.kind.value
            if not same:
                restarted = bool(parts)
                parts = {}
        known = {m.dataset_id: m.watermark_ms for m in previous.inputs} if previous else {}
        marks = tuple(i.watermark(known.get(str(i.given.dataset_id))) for i in inputs)
        before = previous.watermark_ms if previous and not restarted else None
        return cls(
            request, query, inputs, previous, parts, restarted, marks, before, watermark_of(marks, before)
        )

    def output_watermark(self, promise: int | None) -> int | None:
        """What is promised of the output [ms], never less than before."""
        last = self.previous.output_watermark_ms if self.previous else None
        # nothing is promised beyond what the inputs promise, even where that would hold
        bounded = promise if promise is None or self.now is None else min(promise, self.now)
        known = [w for w in (bounded, last) if w is not None]
        return max(known, default=None)

    def finish(
        self,
        memory: StepMemory,
        watermark: int | None,
        left_out: Mapping[str, Mapping[str, int]],
        files: StepFiles,
        few: int,
    ) -> archive.Manifest:
        """Write the checkpoint that the next step begins with; `few` as in `write_rows`."""
        parts = {name: _written(frame, files, few) for name, frame in memory.after.items()}
        waiting: dict[str, int] = {}
        for table, rows in memory.waiting:
            if number := parts[rows].rows if isinstance(rows, str) else rows.count():
                waiting[table] = waiting.get(table, 0) + number
        manifest = archive.Manifest(
            format=archive.FORMAT if self.rules.number > 1 else 1,
            engine_version=self.rules.version,
            kind=self.query.kind.value,
            query_hash=self.query.digest,
            step=1 if self.previous is None or self.restarted else self.previous.step + 1,
            inputs=tuple(
                archive.InputMark(str(i.given.dataset_id), mark)
                for i, mark in zip(self.inputs, self.marks, strict=True)
            ),
            watermark_ms=self.now,
            output_watermark_ms=watermark,
            parts=tuple(archive.StateTable(name, facts.rows) for name, facts in sorted(parts.items())),
            waiting=waiting,
            **left_out,
        )
        archive.write_checkpoint(
            Path(self.request.new_checkpoint_path),
            manifest,
            {name: Path(facts.path) for name, facts in parts.items()},
        )
        return manifest


def _written(frame: DataFrame, files: StepFiles, few: int) -> WrittenRows:
    """Rows that are remembered, as a file of the driver."""
    place = files.place()
    facts = write_rows(frame, files.folder, few=few, place=place)
    if facts.path or place is None:
        return facts
    target = files.folder / f"rows-{uuid.uuid4().hex}.parquet"
    copy_put(place(), facts.physical_hash, facts.size, target)
    return dataclasses.replace(facts, path=str(target))


def _point(ms: int | None, late: int = 0) -> TimePoint | None:
    return None if ms is None else TimePoint((ms - late) * 1_000)
