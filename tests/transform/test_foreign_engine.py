"""Engines of others, over real gRPC: what a verification would call a fault is refused before it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import EngineError, OdfchainError, QueryError, TransformError
from odfchain.odf import events as ev
from odfchain.odf.engine_messages import TransformRequest
from odfchain.odf.events import OffsetInterval
from odfchain.odf.manifests import read_snapshots
from odfchain.odf.schema import DataSchema
from odfchain.odf.sources import TransformSql
from odfchain.odf.times import Timestamp
from odfchain.progress import Progress
from odfchain.text import printable
from odfchain.transform.engine_protocol import EngineServer
from odfchain.transform.engines import Executed, check_version
from odfchain.workspace.config import TransformConfig
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.root_rows import MADE, START, TIME, add_root, append, records, schema_with
from tests.kit.support import derivative, tree_of

SCHEMA = schema_with(pa.field("city", pa.string()))

Row = tuple[int, str]
"""Operation and city."""


def add_rows(dataset: DatasetFiles, rows: Sequence[Row]) -> None:
    """A transaction of the root, whose watermark is later each time."""
    start = DatasetState.read(dataset.chain).record_count
    times, cities = [START] * len(rows), [city for _, city in rows]
    table = records(SCHEMA, start, [op for op, _ in rows], times, cities)
    append(dataset, table, Timestamp(MADE.epoch_ns + start * 1_000_000_000))


class ForeignEngine:
    """Passes rows on with their operations, in the order in which it came to read the files.

    `change` makes other rows of them; where it makes none, there is no data file.
    """

    def __init__(self, *, backwards: bool = True, checkpoint: bytes | None = None) -> None:
        self.backwards = backwards
        self.checkpoint = checkpoint
        self.change: Callable[[pa.Table], pa.Table] = lambda rows: rows
        self.requests: list[TransformRequest] = []

    def execute(
        self, request: TransformRequest, *, schema: DataSchema | None, progress: Progress
    ) -> Executed:
        del schema, progress
        self.requests.append(request)
        (source,) = request.query_inputs
        (query,) = request.transform.queries or ()
        paths = list(source.data_paths)
        if self.backwards and "ORDER BY offset" not in query.query:
            paths.reverse()
        tables = [pq.ParquetFile(path).read() for path in paths]
        rows = self.change(pa.concat_tables(tables) if tables else SCHEMA.empty_table())
        if self.checkpoint is not None:
            Path(request.new_checkpoint_path).write_bytes(self.checkpoint)
        marks = [w.event_time for w in source.explicit_watermarks]
        if not rows.num_rows:
            return Executed(offset_interval=None, watermark=max(marks, default=None))
        first, last = request.next_offset, request.next_offset + rows.num_rows - 1
        made = {
            "offset": pa.array(range(first, last + 1), pa.int64()),
            "op": pc.cast(rows["op"], pa.int32()),
            "system_time": pa.repeat(pa.scalar(request.system_time.epoch_ms, TIME), rows.num_rows),
        } | {name: rows[name] for name in ("event_time", "city")}
        pq.write_table(pa.table(made), request.new_data_path)
        interval = OffsetInterval(start=first, end=last)
        return Executed(offset_interval=interval, watermark=max(marks, default=None))

    def query(self, request: Any, *, progress: Progress) -> int:
        raise NotImplementedError


class NamedEngine(ForeignEngine):
    """Says its version."""

    version = "v1"


@contextmanager
def foreign(workspace: Workspace, engine: ForeignEngine, compatible: str = "") -> Iterator[None]:
    with EngineServer(engine, port=0) as server:
        engines = f"engines: {{datafusion: '{server.address}'}}, compatibleVersions: [{compatible}]"
        settings = f"kind: WorkspaceConfig\nversion: 1\ncontent: {{transform: {{{engines}}}}}\n"
        (workspace.path / "config.yaml").write_text(settings)
        yield


@pytest.fixture
def here(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path / "workspace")


@pytest.fixture
def cities(here: Workspace) -> DatasetFiles:
    return add_root(here, "cities", SCHEMA)


QUERY = "SELECT op, event_time, city FROM cities"


def copied(workspace: Workspace, query: str = QUERY, name: str = "copied") -> Dataset:
    return workspace.add(derivative(query, name=name, engine="datafusion"))[0]


def faults(dataset: Dataset) -> list[str]:
    return [f"{fault.check}: {fault.message}" for fault in dataset.verify().faults]


def events_of(dataset: Dataset, kind: type[Any]) -> list[Any]:
    """Oldest first."""
    events = [found.block.event for found in dataset._files.chain.walk()][::-1]
    return [event for event in events if isinstance(event, kind)]


def rows_of(dataset: Dataset) -> list[Row]:
    return [(row["op"], row["city"]) for row in dataset.scan().to_arrow().to_pylist()]


FOUR = [[(0, "A"), (0, "B")], [(1, "A")], [(2, "B"), (3, "C")], [(0, "A"), (1, "C")]]
"""Four releases of a snapshot."""


def test_a_changelog_that_begins_with_corrections(here: Workspace, cities: DatasetFiles) -> None:
    for rows in FOUR:
        add_rows(cities, rows)
    with foreign(here, ForeignEngine()):
        made = copied(here)
        before = tree_of(made.path)
        with pytest.raises(EngineError) as caught:
            made.pull()
        assert caught.value.message == (
            "the engine broke its contract: the row at offset 1 takes back values that no row in force has "
            "(2 such rows); nothing was recorded"
        )
        assert "ORDER BY offset" in str(caught.value.hint)
        assert tree_of(made.path) == before
    with foreign(here, ForeignEngine()):
        made = copied(here, f"{QUERY} ORDER BY offset", "ordered")
        made.pull()
    assert rows_of(made) == [row for rows in FOUR for row in rows]
    assert faults(made) == []


def test_what_was_recorded_before_counts(here: Workspace, cities: DatasetFiles) -> None:
    """Slice by slice there is nothing to read in another order; a row may be taken back once."""
    engine = ForeignEngine()
    with foreign(here, engine):
        made = copied(here)
        for rows in FOUR:
            add_rows(cities, rows)
            made.pull()
        assert faults(made) == []
        add_rows(cities, [(0, "D")])
        for change in (
            lambda rows: with_rows(rows, [(1, "C")]),
            lambda rows: with_rows(rows, [(1, "D"), (0, "D")]),
            lambda rows: with_rows(rows, [(0, "D"), (1, "D"), (1, "D")]),
            lambda rows: with_rows(rows, [(2, "Z"), (3, "A")]),
        ):
            engine.change = change
            with pytest.raises(EngineError, match="takes back values that no row in force has"):
                made.pull()
        engine.change = lambda rows: with_rows(rows, [(0, "D"), (1, "D"), (2, "A"), (3, "E")])
        made.pull()
    assert faults(made) == []
    assert rows_of(made)[-4:] == [(0, "D"), (1, "D"), (2, "A"), (3, "E")]


def with_rows(table: pa.Table, rows: Sequence[Row]) -> pa.Table:
    found = table.slice(0, 1).to_pylist()[0]
    return pa.Table.from_pylist([found | {"op": op, "city": city} for op, city in rows], schema=table.schema)


Break = Callable[[pa.Table], pa.Table]
BROKEN: dict[str, Break] = {
    "unknown operation": lambda rows: with_rows(rows, [(4, "A")]),
    "a +C alone": lambda rows: with_rows(rows, [(3, "A")]),
    "a -C alone": lambda rows: with_rows(rows, [(0, "A"), (2, "A")]),
    "a pair apart": lambda rows: with_rows(rows, [(0, "A"), (2, "A"), (0, "B"), (3, "C")]),
    "a -R of nothing": lambda rows: with_rows(rows, [(1, "A")]),
    "no event time": lambda rows: rows.set_column(3, "event_time", pa.nulls(rows.num_rows, TIME)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_whatever_is_recorded_verifies(here: Workspace, name: str, cities: DatasetFiles) -> None:
    add_rows(cities, [(0, "A"), (0, "B")])
    engine = ForeignEngine()
    engine.change = BROKEN[name]
    with foreign(here, engine):
        made = copied(here)
        before = tree_of(made.path)
        with pytest.raises(OdfchainError):
            made.pull()
        assert tree_of(made.path) == before


def test_a_step_without_rows_needs_no_file(here: Workspace, cities: DatasetFiles) -> None:
    """Not even the first one, which would have shown the schema; it is not repeated for nothing."""
    add_rows(cities, [(0, "A")])
    engine = ForeignEngine()
    engine.change = lambda rows: rows.slice(0, 0)
    with foreign(here, engine):
        made = copied(here)
        assert made.pull().blocks == 1
        assert made.summary.schema is None
        assert made.pull().blocks == 0
        assert len(engine.requests) == 1
        add_rows(cities, [(0, "B")])
        engine.change = lambda rows: rows
        assert made.pull().blocks == 2
        engine.change = lambda rows: rows.slice(0, 0)
        add_rows(cities, [(0, "C")])
        assert made.pull().blocks == 1
    assert rows_of(made) == [(0, "B")]
    assert faults(made) == []


def test_the_checkpoint_before_is_carried_on(here: Workspace, cities: DatasetFiles) -> None:
    engine = ForeignEngine(checkpoint=b"state one")
    with foreign(here, engine):
        made = copied(here)
        for number, state in enumerate([b"state one", None, None, b"state two"]):
            engine.checkpoint = state
            add_rows(cities, [(0, str(number))])
            made.pull()
    done = events_of(made, ev.ExecuteTransform)
    first, last = (done[i].new_checkpoint for i in (0, 3))
    assert last is not None
    assert [e.new_checkpoint for e in done] == [first, first, first, last]
    assert [e.prev_checkpoint for e in done] == [None, *[first.physical_hash] * 3]
    read = [r.prev_checkpoint_path for r in engine.requests]
    assert read[0] is None
    assert all(path is not None and path.endswith(str(first.physical_hash)) for path in read[1:])
    assert faults(made) == []


def transforms(dataset: Dataset) -> list[tuple[str, str | None]]:
    return [(e.transform.engine, e.transform.version) for e in events_of(dataset, ev.SetTransform)]


def versioned(version: str, name: str = "copied") -> str:
    return derivative(QUERY, name=name, engine=f"datafusion, version: '{version}'")


def test_what_the_engine_says_it_is_is_recorded_with_its_first_step(
    here: Workspace, cities: DatasetFiles
) -> None:
    add_rows(cities, [(0, "A")])
    engine = NamedEngine()
    with foreign(here, engine):
        made = copied(here)
        assert transforms(made) == [("datafusion", None)]
        assert made.pull().blocks == 3  # the version, the schema, the data
        assert transforms(made) == [("datafusion", None), ("datafusion", "v1")]
        assert engine.requests[-1].transform.version is None
        add_rows(cities, [(0, "B")])
        assert made.pull().blocks == 1
        assert engine.requests[-1].transform.version == "v1"
        (snapshot,) = read_snapshots(derivative(QUERY, name="copied", engine="datafusion"))
        assert here.update(snapshot)[1] == []  # the manifest that was added
        report = made.verify(replay=True)
        assert report.ok
        assert report.replay.engines == ["datafusion_v1"]
    assert faults(made) == []


def test_another_version_of_an_engine_elsewhere_is_refused(here: Workspace, cities: DatasetFiles) -> None:
    add_rows(cities, [(0, "A")])
    engine = NamedEngine()
    with foreign(here, engine):
        made = copied(here)
        made.pull()
        (wrong,) = here.add(versioned("v9", "wrong"))
        with pytest.raises(TransformError, match=r"asks for engine version v9, and the engine at .* is v1"):
            wrong.pull()
        assert transforms(wrong) == [("datafusion", "v9")]
    engine.version = "v2"
    add_rows(cities, [(0, "B")])
    with foreign(here, engine):
        before = tree_of(made.path)
        said = r"asks for engine version v1, and the engine at .* is v2"
        with pytest.raises(TransformError, match=said) as caught:
            made.pull()
        assert "transform.compatibleVersions" in str(caught.value.hint)
        assert tree_of(made.path) == before
        report = made.verify(replay=True)
        assert (report.verdict, report.faults, report.state(15)) == ("incomplete", [], "notChecked")
        assert "asks for engine version v1" in report.unchecked[0].message
    with foreign(here, engine, "v1"):
        assert made.verify(replay=True).ok
        assert made.pull().blocks == 1
        assert transforms(made)[-1] == ("datafusion", "v1")
    engine.version = "v1"
    with foreign(here, engine):
        assert made.verify(replay=True).ok


def test_an_engine_that_says_nothing_is_taken_at_the_word_of_the_manifest(here: Workspace) -> None:
    add_rows(add_root(here, "cities", SCHEMA), [(0, "A")])
    with foreign(here, ForeignEngine()):
        (made,) = here.add(versioned("v9"))
        assert made.pull().blocks == 2
        assert transforms(made) == [("datafusion", "v9")]
        assert made.verify(replay=True).ok


@pytest.mark.parametrize("said", ["", "v 1", "v1+rebuild", "v1+allowedLateness=PT1S", "x" * 257])
def test_what_an_engine_says_is_bounded(here: Workspace, said: str) -> None:
    add_rows(add_root(here, "cities", SCHEMA), [(0, "A")])
    engine = NamedEngine()
    engine.version = said
    with foreign(here, engine):
        made = copied(here)
        before = tree_of(made.path)
        broken = "breaks the engine contract: the version that it says"
        with pytest.raises(EngineError, match=broken) as caught:
            made.pull()
        assert len(str(caught.value)) < 500
        assert tree_of(made.path) == before


def test_a_version_that_a_chain_names_is_shown_on_one_short_line() -> None:
    transform = TransformSql(engine="datafusion", version="\x1b[31m" + "x" * 100_000)
    with pytest.raises(TransformError) as caught:
        check_version(transform, TransformConfig(), "v1", "the engine")
    assert len(caught.value.message) < 500
    assert caught.value.message == printable(caught.value.message)


def test_a_query_of_ours_that_chooses_operations(workspace: Workspace) -> None:
    """The offset of a row is not that of what takes it back, so both differ."""
    cities = add_root(workspace, "cities", SCHEMA)
    add_rows(cities, [(0, "A"), (1, "A")])
    (good,) = workspace.add(derivative(QUERY, name="good"))
    good.pull()
    assert faults(good) == []
    (bad,) = workspace.add(derivative("SELECT op, event_time, city, offset AS o FROM cities", name="bad"))
    with pytest.raises(QueryError, match="takes back at offset 1 values that no row in force has") as caught:
        bad.pull()
    assert "select nothing that differs between them" in str(caught.value.hint)
