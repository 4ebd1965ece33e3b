"""An input beyond slice.maxBytes becomes several blocks, and is as if it were one, wherever executors write (RFC-048, RFC-049)."""

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
from odfchain.errors import ObjectCorruptedError
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
from odfchain.workspace import read_slices
from odfchain.workspace.read_slices import RecordedRows
from tests.kit import shared_store
from tests.kit.keyed_inputs import COLUMNS, MERGES, releases
from tests.kit.shared_store import PREFIX, objects, wide_machine
from tests.kit.small_s3 import SmallS3
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


# --- Executors that see no folder of the driver: slices and checkpoints are what they are elsewhere (RFC-048) ---


TIMES = {"system_time": "2050-01-01T00:00:00Z", "event_time": "2049-01-01T00:00:00Z"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: SparkEngine) -> Iterator[SmallS3]:
    """A store on loopback that workers have credentials for; no input is taken for a small one."""
    shared_store.environment(monkeypatch, tmp_path / "home")
    monkeypatch.setattr(executor_files, "CARRIED_BYTES", -1)
    monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 1)
    with SmallS3() as store, shared_store.credentials_of_workers(engine):
        yield store


@pytest.fixture
def wide(store: SmallS3, engine: SparkEngine, tmp_path: Path) -> Workspace:
    """A workspace in the store, whose executors are told of no folder."""
    return wide_machine(store, tmp_path / "wide", engine)


def added_of_kind(workspace: Workspace, kind: str, name: str) -> Dataset:
    operations = ["op INT"] if kind in ("changelog", "upsert") else []
    schema = json.dumps([*operations, *COLUMNS])
    return workspace.add(manifest(MERGES[kind], schema, name=name, kind="NdJson"))[0]


def rows_and_files(dataset: Dataset) -> list[Any]:
    """What the blocks say of rows: the hashes of slices and checkpoints, offsets, sizes, watermarks."""
    found = dataset._files.chain.nearest_all("AddData", head=dataset.head)
    return [each.block.event for each in reversed(list(found))]


def here(dataset: Dataset) -> list[Path]:
    folder = dataset._files.folder
    return [*(folder / "data").iterdir(), *(folder / "checkpoints").iterdir()]


@pytest.mark.parametrize(
    ("kind", "max_bytes"),
    [
        pytest.param("snapshot", BYTES, marks=pytest.mark.soak),
        pytest.param("snapshot", 0, marks=pytest.mark.soak),
        *(
            pytest.param(kind, size, marks=pytest.mark.soak)
            for kind in MERGES
            if kind != "snapshot"
            for size in (0, BYTES)
        ),
    ],
)
def test_blocks_are_those_of_executors_that_see_the_folder(
    workspace: Workspace, wide: Workspace, store: SmallS3, tmp_path: Path, kind: str, max_bytes: int
) -> None:
    """Hashes of slices and of checkpoints; the driver brings neither, and the runs are gone."""
    limit_slices(workspace, max_bytes)
    limit_slices(wide, max_bytes)
    of_folder, of_store = added_of_kind(workspace, kind, "one"), added_of_kind(wide, kind, "one")
    path = tmp_path / "input.ndjson"
    for text in releases(kind):
        path.write_text(text)
        expected = of_folder.ingest([path], allow_retract=True, **TIMES)
        found = of_store.ingest([path], allow_retract=True, **TIMES)
        assert found.inputs == expected.inputs
        assert (found.inputs[0].slices > 1) == bool(max_bytes)
    assert rows_and_files(of_store) == rows_and_files(of_folder)
    assert here(of_store) == []
    for part in ("data", "checkpoints"):
        names = {file.name for file in (of_folder._files.folder / part).iterdir()}
        assert {key.rpartition("/")[2] for key in objects(store, f"/{part}/")} == names
    assert objects(store, "staging/") == {}
    if kind == "snapshot":
        assert objects(store, "/checkpoints/")
    assert of_store.verify().ok


def test_rows_of_new_slices_are_brought_where_a_rule_looks_at_them(
    wide: Workspace, store: SmallS3, tmp_path: Path
) -> None:
    """A row of the future is named as elsewhere, by the executor; nothing is written."""
    (dataset,) = wide.add(manifest(schema='["city STRING", "event_time TIMESTAMP"]'))
    (path := tmp_path / "a.csv").write_text("city,event_time\na,2020-01-01\nb,2090-01-01\n")
    head = dataset.head
    with pytest.raises(Exception, match=r"a\.csv: row 2 .*2090"):
        dataset.ingest([path], **TIMES)
    assert dataset.head == head
    assert objects(store, "/data/") == {}


def test_a_recorded_slice_that_is_another_is_not_believed(
    wide: Workspace, store: SmallS3, tmp_path: Path
) -> None:
    dataset = added_of_kind(wide, "ledger", "one")
    one, two = releases("ledger")
    (path := tmp_path / "input.ndjson").write_text(one)
    dataset.ingest([path], **TIMES)
    (key,) = objects(store, "/data/")
    store.objects[f"{PREFIX}/{key}"] += b"x"
    path.write_text(two)
    with pytest.raises(ObjectCorruptedError, match=f"{key}: the content hashes to "):
        dataset.ingest([path], **TIMES)


def test_a_slice_that_is_not_committed_is_read_by_executors(
    wide: Workspace, store: SmallS3, tmp_path: Path
) -> None:
    """Of two files in one run the second one is compared with the first, which is not committed yet."""
    (dataset,) = wide.add(manifest("{kind: Ledger, primaryKey: [city]}"))
    for name, text in (("a", "A,1\nB,2\n"), ("b", "B,2\nC,3\n")):
        (tmp_path / f"{name}.csv").write_text(f"city,population\n{text}")
    store.requests.clear()
    done = dataset.ingest([tmp_path / "a.csv", tmp_path / "b.csv"], **TIMES)
    assert [each.rows for each in done.inputs] == [2, 1]
    assert here(dataset) == []
    assert dataset.verify().ok


def test_a_commit_by_executors_asks_no_more_of_the_store(
    wide: Workspace, store: SmallS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small input goes within the plan; a larger one is put, read and removed."""
    wide.add(manifest())
    path = tmp_path / "a.csv"

    def asked_for(city: str) -> list[str]:
        path.write_text(f"city,population\n{city},1\n")
        store.requests.clear()
        wide["cities"].ingest([path], **TIMES)
        return [asked for _, asked, _ in store.requests]

    asked_for("A")
    asked = asked_for("B")
    assert len([each for each in asked if "/staging/" in each]) == 2, "put, and read by a worker"
    assert len(asked) == 8 + 4, "its folder is listed and removed; the rest as everywhere"
    monkeypatch.setattr(executor_files, "CARRIED_BYTES", path.stat().st_size)
    assert len(asked_for("C")) == 8, "as everywhere"
    assert wide["cities"].scan(["city"]).to_arrow()["city"].to_pylist() == ["A", "B", "C"]
