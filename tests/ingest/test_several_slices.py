"""An input beyond `slice.maxBytes` becomes several blocks, and is as if it were one (RFC-049)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.ingest import merge_input
from odfchain.ingest.history import LookBack, WriterState
from odfchain.ingest.ingesting import IngestOutcome, Written, _with_batch, recorded_write
from odfchain.ingest.merge_input import WriteOptions
from odfchain.odf import schema as ds
from odfchain.odf.events import AddData, Checkpoint, DatasetVocabulary, SourceState
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.sources import MergeStrategyAppend
from odfchain.odf.times import Timestamp
from odfchain.slices.writer import SliceFacts
from odfchain.spark import executor_files, slice_runs
from odfchain.spark.plans import INTERPRETED
from odfchain.spark.session import SparkEngine
from odfchain.spark.slice_runs import Rows, Run, cuts
from odfchain.workspace.read_slices import RecordedRows
from tests.kit.keyed_inputs import COLUMNS, MERGES, releases
from tests.kit.support import limit_slices, manifest

BYTES = 2_048
MANY_TASKS = INTERPRETED | {
    "spark.sql.files.maxPartitionBytes": "4096",
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.shuffle.partitions": "5",
    "spark.sql.adaptive.enabled": "false",
}


@contextlib.contextmanager
def settings(engine: SparkEngine, values: dict[str, str]) -> Iterator[None]:
    conf = engine.session.conf
    before = {key: conf.get(key, None) for key in values}
    for key, value in values.items():
        conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            if old is None:
                conf.unset(key)
            else:
                conf.set(key, old)


def ingest(dataset: Dataset, path: Path, **options: Any) -> IngestOutcome:
    return dataset.ingest(
        [path],
        system_time="2050-01-01T00:00:00Z",
        event_time="2049-01-01T00:00:00Z",
        allow_retract=True,
        **options,
    )


def added(dataset: Dataset) -> list[AddData]:
    """The blocks with rows, oldest first."""
    return [
        e.block.event for e in reversed(list(dataset._files.chain.nearest_all("AddData", head=dataset.head)))
    ]  # type: ignore[misc]


def records(dataset: Dataset) -> str:
    return repr(dataset.scan().to_arrow().to_pylist())


@pytest.mark.parametrize(
    "kind", ["snapshot", *(pytest.param(k, marks=pytest.mark.soak) for k in MERGES if k != "snapshot")]
)
def test_it_is_as_if_it_were_one(
    workspace: Workspace, engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The same records, whatever the limit; the same blocks, whatever the number of tasks."""
    operations = ["op INT"] if kind in ("changelog", "upsert") else []
    schema = json.dumps([*operations, *COLUMNS])
    one, few, many = (
        workspace.add(manifest(MERGES[kind], schema, name=name, kind="NdJson"))[0]
        for name in ("one", "few", "many")
    )
    runs: list[int] = []

    def counted(found: Sequence[Run], max_bytes: int) -> list[Rows]:
        runs.append(len(found))
        return cuts(found, max_bytes)

    monkeypatch.setattr(slice_runs, "cuts", counted)
    path = tmp_path / "input.ndjson"
    for text in releases(kind):
        path.write_text(text)
        limit_slices(workspace, 0)
        whole = ingest(one, path)
        limit_slices(workspace, BYTES)
        with settings(engine, INTERPRETED):
            parts = [ingest(few, path)]
        with settings(engine, MANY_TASKS), monkeypatch.context() as patch:
            patch.setattr(executor_files, "RANGE_BYTES", 100)
            patch.setattr(merge_input, "task_bytes", lambda _: 400)
            parts.append(ingest(many, path))
        for part in parts:
            (expected,), (found,) = whole.inputs, part.inputs
            assert dataclasses.replace(found, slices=1) == expected
            assert part.watermark == whole.watermark
            assert 1 < found.slices == part.blocks - (whole.blocks - 1)
    assert all(of_many > of_few for of_few, of_many in zip(runs[::2], runs[1::2], strict=True))
    blocks = added(few)
    assert blocks == added(many)
    assert records(few) == records(many) == records(one)
    assert [report.faults for report in (few.verify(), many.verify())] == [[], []]
    marks = [event.new_watermark for event in blocks]
    assert len(set(marks)) == 2, "a block in the middle carries on what was"


OLD, NEW = (SourceState(source_name="default", kind="odf/etag", value=value) for value in ("1", "2"))
SCHEMA = ds.DataSchema(fields=(ds.DataField(name="x", type=ds.DataTypeInt64()),))


def written(checkpoint: Checkpoint | None) -> Written:
    """Three slices of a source that was read before, as a transaction."""
    state = WriterState(
        vocabulary=DatasetVocabulary(),
        merge=MergeStrategyAppend(),
        schema=SCHEMA,
        prev_offset=9,
        checkpoint=checkpoint,
        watermark=Timestamp(1),
        source_state=OLD,
        recorded=RecordedRows,
    )
    facts = tuple(
        SliceFacts(f"slice {n}", 5, 100, str(hash_bytes(b"p%d" % n)), str(hash_bytes(b"l")), latest, {"0": 5})
        for n, latest in enumerate((9_000, 7_000, 8_000))
    )
    back = LookBack(RecordedRows, checkpoint=NEW_CHECKPOINT, carried=checkpoint)
    options = WriteOptions(Timestamp(10**13), Timestamp(10**13), Path(), new_source_state=NEW)
    return recorded_write(state, SCHEMA, facts, back, options, input_rows=20)


NEW_CHECKPOINT = Checkpoint(physical_hash=hash_bytes(b"state"), size=5)


@pytest.mark.parametrize("checkpoint", [None, Checkpoint(physical_hash=hash_bytes(b"before"), size=6)])
def test_the_last_block_says_what_comes_of_the_input(checkpoint: Checkpoint | None) -> None:
    """Whoever stops in the middle is told no watermark that rows lie behind, nor that the source was read."""
    made = written(checkpoint)
    events = [event for event in made.events if isinstance(event, AddData)]
    before = checkpoint.physical_hash if checkpoint else None
    assert [event.prev_checkpoint for event in events] == [before] * 3
    assert [event.new_checkpoint for event in events] == [checkpoint, checkpoint, NEW_CHECKPOINT]
    assert [event.new_watermark for event in events] == [Timestamp(1), Timestamp(1), made.state.watermark]
    assert made.state.watermark == Timestamp.from_epoch_ms(9_000)
    assert [event.new_source_state for event in events] == [OLD, OLD, NEW]
    assert [event.prev_offset for event in events] == [9, 14, 19]
    assert [event.new_data.offset_interval.start for event in events if event.new_data] == [10, 15, 20]
    assert (made.state.prev_offset, made.state.checkpoint, made.state.source_state) == (
        24,
        NEW_CHECKPOINT,
        NEW,
    )


def test_a_batch_is_recorded_with_its_last_rows() -> None:
    batch = SourceState(source_name="default", kind="odfchain/batch", value='{"orders":1}')
    states = [event.new_source_state for event in _with_batch(written(None), batch).events]  # type: ignore[union-attr]
    assert states == [OLD, OLD, batch]
