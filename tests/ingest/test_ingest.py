"""Ingesting files: every format and option, several files at once, two writers, odd names."""

from __future__ import annotations

import io
import json
import threading
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import RefConflictError, UsageError
from odfchain.odf.times import Timestamp
from odfchain.progress import Silent
from tests.kit.polled_sources import LEDGER, SNAPSHOT, rows
from tests.kit.pushed_files import BARE, push, put
from tests.kit.support import Run, manifest

if TYPE_CHECKING:
    from odfchain.spark.session import SparkEngine

GOOD = "city,population\nA,1\nB,2\n"


def records(dataset: Dataset) -> list[list[Any]]:
    """Data columns of all records."""
    return [row[4:] for row in rows(dataset, *dataset.scan().to_arrow().schema.names)]


def add(workspace: Workspace, read: str, *, schema: bool = True) -> Dataset:
    """A dataset whose CSV read step has these options."""
    text = manifest(name="d").replace("        header: true\n", f"        {read}\n" if read else "")
    return workspace.add(text if schema else text.replace("        schema:", "        #"))[0]


# --- CSV -------------------------------------------------------------------------------------------

ROWS = [["A", 1], ["B", 2]]
CSV: list[tuple[str, str | bytes, list[list[Any]]]] = [
    ("header: true", GOOD, ROWS),
    ("", "A,1\nB,2\n", ROWS),
    ("header: true", GOOD.replace("\n", "\r\n"), ROWS),
    ("header: true", GOOD.rstrip("\n"), ROWS),
    ("header: true", "\ufeff" + GOOD, ROWS),
    ("header: true", GOOD + "\n\n", ROWS),
    ("header: true", "population,city\n1,A\n2,B\n", ROWS),
    ("header: true", "Stadt,Einwohner\nA,1\nB,2\n", ROWS),
    ("separator: ';'", "A;1\nB;2\n", ROWS),
    ('separator: "\\t"', "A\t1\nB\t2\n", ROWS),
    ("separator: '|', quote: \"'\"", "'A|a'|1\n", [["A|a", 1]]),
    ("quote: ''", '"A",1\n', [['"A"', 1]]),
    ("", '"x,1",1\n"he said ""hi""",2\n', [["x,1", 1], ['he said "hi"', 2]]),
    ("", '"a \\"b\\" c",1\n', [['a "b" c', 1]]),
    ("", '"a \\"b\\"",1\n"c ""d""",2\n', [['a "b"', 1], ['c "d"', 2]]),
    ("escape: ''", '"a ""b""",1\n', [['a "b"', 1]]),
    ("escape: '\"'", '"a ""b""",1\n', [['a "b"', 1]]),
    ("", '"two\nlines",1\n"and\r\nmore",2\n', [["two\nlines", 1], ["and\r\nmore", 2]]),
    ("nullValue: NA", "NA,NA\nA,1\n", [[None, None], ["A", 1]]),
    ("", ",\nA,1\n", [[None, None], ["A", 1]]),
    ("encoding: latin1", "Zürich,1\n".encode("latin-1"), [["Zürich", 1]]),
    ("encoding: windows-1252", "1 €,1\n".encode("cp1252"), [["1 €", 1]]),
    ("encoding: utf-16", "A,1\nB,2\n".encode("utf-16"), ROWS),
    ("", "Zürich 東京 😀,1\n", [["Zürich 東京 😀", 1]]),
    ("", " A ,1\n", [[" A ", 1]]),
    ("", "A,1\n", [["A", 1]]),
]  # fmt: skip


@pytest.mark.parametrize("read", dict.fromkeys(read for read, _, _ in CSV))
def test_csv(workspace: Workspace, tmp_path: Path, read: str) -> None:
    """All files of one kind are ingested at once."""
    cases = [case for case in CSV if case[0] == read]
    dataset = add(workspace, read.replace(", ", "\n        "))
    dataset.ingest([put(tmp_path, content, f"{n}.csv") for n, (_, content, _) in enumerate(cases)])
    assert records(dataset) == [row for *_, rows in cases for row in rows]


def test_csv_without_a_schema_is_text_unless_types_are_to_be_inferred(workspace: Workspace) -> None:
    text = add(workspace, "header: true", schema=False)
    push(text, GOOD)
    assert records(text) == [["A", "1"], ["B", "2"]]
    workspace.rename("d", "other")
    inferred = add(workspace, "header: true\n        inferSchema: true", schema=False)
    lines = ["1,1.5,true,2020-01-01,2020-01-01T00:00:00,1", "2,2,FALSE,2020-01-02,2020-01-01 00:00:01,x"]
    push(inferred, "\n".join(["i,f,b,d,t,m", *lines, ""]))
    types = {f.name: str(f.type) for f in inferred.scan().to_arrow().schema}
    assert {k: types[k] for k in "ifbdtm"} == {
        "i": "int64", "f": "double", "b": "bool", "d": "date32[day]", "t": "timestamp[ms, tz=UTC]", "m": "string"
    }  # fmt: skip


def test_renamed_and_reordered_columns_are_told(workspace: Workspace, run_cli: Run, tmp_path: Path) -> None:
    add(workspace, "header: true")
    said = run_cli("-w", workspace.path, "ingest", "d", put(tmp_path, "population,city\n1,A\n")).err
    assert "columns are in another order than the schema; matched by name" in said
    said = run_cli("-w", workspace.path, "ingest", "d", put(tmp_path, "Stadt,population\nA,1\n")).err
    assert "read by position: 'Stadt' as 'city'" in said


# --- other formats ---------------------------------------------------------------------------------


def test_ndjson(workspace: Workspace) -> None:
    (dataset,) = workspace.add(manifest(kind="NdJson"))
    lines = [
        '{"city": "A", "population": 1}',
        "",
        '{"population": "2", "city": "B", "more": [1]}',
        '{"city": null}',
    ]
    push(dataset, "\n".join(lines), "in.ndjson")
    assert records(dataset) == [["A", 1], ["B", 2], [None, None]]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin1", "utf-16"])
def test_ndjson_keeps_numbers_as_they_are_written(workspace: Workspace, encoding: str) -> None:
    text = manifest(schema='["t STRING", "d DECIMAL(30, 20)", "b DECIMAL(38, 0)"]', kind="NdJson")
    options = f"kind: NdJson\n        encoding: {encoding}\n"
    (dataset,) = workspace.add(text.replace("kind: NdJson\n", options))
    line = '{"t": 1.50, "d": 0.12345678901234567890, "b": 12345678901234567890123, "x": "ü"}\n'
    push(dataset, line.encode(encoding), "in.ndjson")
    expected = ["1.50", Decimal("0.12345678901234567890"), Decimal(12345678901234567890123)]
    assert records(dataset) == [expected]


def test_ndjson_without_a_schema(workspace: Workspace) -> None:
    (dataset,) = workspace.add(BARE)
    given = [{"b": {"x": [1, 2]}, "a": 1.5, "c": None}, {"b": {"x": []}, "a": 2, "c": "text"}]
    push(dataset, "\n".join(map(json.dumps, given)), "in.ndjson")
    assert records(dataset) == [[1.5, {"x": [1, 2]}, None], [2.0, {"x": []}, "text"]]


def test_parquet(workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(manifest(kind="Parquet"))
    table = pa.table({"population": pa.array([1, 2], pa.int32()), "extra": [0, 0], "city": ["A", "B"]})
    pq.write_table(table, tmp_path / "in.parquet")
    dataset.ingest([tmp_path / "in.parquet"])
    assert records(dataset) == ROWS, "columns are picked by name and widened"


def test_without_a_source_the_extension_tells_the_format(workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(BARE)
    push(dataset, GOOD)
    push(dataset, '{"city": "C", "population": 3}', "in.jsonl")
    pq.write_table(pa.table({"city": ["D"], "population": [4]}), tmp_path / "in.parquet")
    dataset.ingest([tmp_path / "in.parquet"])
    assert records(dataset) == [*ROWS, ["C", 3], ["D", 4]]
    with pytest.raises(UsageError, match="the format of this file is not known") as caught:
        push(dataset, GOOD + "E,5\n", "in.dat")
    assert "--input-format" in str(caught.value.hint)
    push(dataset, GOOD + "E,5\n", "in.dat", input_format="csv")
    assert dataset.summary.record_count == 7


def test_standard_input(workspace: Workspace, run_cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (dataset,) = workspace.add(manifest())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(GOOD.encode())))
    result = run_cli("-w", workspace.path, "ingest", "cities", "--stdin", "-o", "json")
    assert (result.code, result.rows[0]["rows"], result.rows[0]["+A"]) == (0, 2, 2)
    assert records(dataset) == ROWS


NAMES = [
    "_hidden.csv", ".dot.csv", "a[1].csv", "a*.csv", "a{b}.csv", "a:b.csv", "a%20b.csv", "ü.csv", "x.csv.gz",
    "-dash.csv", "a b.csv",
]  # fmt: skip


def test_file_names_mean_nothing(workspace: Workspace, tmp_path: Path) -> None:
    """Spark on its own reads no rows from `_hidden.csv`: in a snapshot that would retract everything."""
    (dataset,) = workspace.add(manifest())
    dataset.ingest([put(tmp_path, f"city,population\n{n},{n}\n", name) for n, name in enumerate(NAMES)])
    assert records(dataset) == [[str(n), n] for n in range(len(NAMES))]


def test_a_workspace_in_a_folder_with_an_odd_name(tmp_path: Path, engine: SparkEngine) -> None:
    folder = tmp_path / "my [data], {x} *?"
    workspace = Workspace.init(folder)
    workspace._engines.spark = engine
    (dataset,) = workspace.add(manifest(SNAPSHOT))
    for content in (GOOD, GOOD + "C,3\n", GOOD + "C,4\n"):
        push(dataset, content)
    assert [row[0] for row in records(dataset)] == ["A", "B", "C", "C", "C"]
    assert dataset.scan().to_spark().count() == 5
    assert dataset.verify().ok


# --- runs ------------------------------------------------------------------------------------------


def test_several_files_are_transactions_of_one_publication(workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(manifest(LEDGER))
    files = [put(tmp_path, f"city,population\nA,1\nc{n},{n}\n", f"{n}.csv") for n in range(3)]
    outcome = dataset.ingest(files)
    assert [item.operations for item in outcome.inputs] == [{"+A": 2}, {"+A": 1}, {"+A": 1}]
    assert [item.offsets for item in outcome.inputs] == [(0, 1), (2, 2), (3, 3)]
    assert [hb.block.event.KIND for hb in dataset.log(4)] == [*["AddData"] * 3, "SetDataSchema"]
    assert (outcome.blocks, outcome.head) == (4, dataset.head)
    assert dataset.verify().ok
    again = dataset.ingest(files)
    assert (again.up_to_date, again.head, again.blocks) == (True, outcome.head, 0)


def test_several_sources(workspace: Workspace) -> None:
    text = manifest()
    again = text[text.index("    - kind: AddPushSource") :].replace("default", "two")
    (dataset,) = workspace.add(text + again)
    with pytest.raises(UsageError, match="several push sources: ") as caught:
        push(dataset, GOOD)
    assert "--source" in str(caught.value.hint)
    push(dataset, GOOD, source_name="two")
    assert dataset.summary.record_count == 2


def test_times_can_be_given_and_make_a_run_reproducible(tmp_path: Path, engine: SparkEngine) -> None:
    """Same files, same times: the same slices; the blocks differ only in the identity of the dataset."""
    found = []
    for name in ("one", "two"):
        workspace = Workspace.init(tmp_path / name)
        workspace._engines.spark = engine
        (dataset,) = workspace.add(manifest(SNAPSHOT))
        push(dataset, GOOD, system_time="2050-01-01T00:00:00Z", event_time="2020-01-01T00:00:00Z")
        found.append([ref.slice for ref in dataset.summary.slices()])
        assert dataset.summary.watermark == Timestamp.parse("2020-01-01T00:00:00Z")
    assert found[0] == found[1]


def test_a_clock_that_went_back_does_not_stop_the_chain(workspace: Workspace) -> None:
    (dataset,) = workspace.add(manifest())
    later, earlier = Timestamp.parse("2100-01-01T00:00:00Z"), Timestamp.parse("2030-01-01T00:00:00Z")
    push(dataset, GOOD, system_time=later)
    push(dataset, GOOD, system_time=earlier)
    assert {hb.block.system_time for hb in dataset.log(2)} == {later}


def test_the_same_records_by_arrow_and_by_spark(workspace: Workspace) -> None:
    (dataset,) = workspace.add(manifest(SNAPSHOT))
    assert dataset.scan().to_spark().count() == 0, "before the first data"
    push(dataset, GOOD)
    push(dataset, GOOD.replace("A,1", "A,9"))
    columns = ("offset", "op", "city", "population")
    found = dataset.scan().to_spark().select(*columns).orderBy("offset").collect()
    assert [[int(row["offset"]), *row[1:]] for row in found] == rows(dataset, *columns)
    assert dataset.tail(1)["city"].to_pylist() == ["A"]
    assert dataset.scan(["city"]).to_arrow().schema.names == ["city"]


# --- two writers -----------------------------------------------------------------------------------


class Meeting(Silent):
    """Both writers reach the commit before either goes on; once."""

    def __init__(self, barrier: threading.Barrier) -> None:
        self.barrier = barrier
        self.notes: list[str] = []
        self.met = False

    def phase(self, name: str, total: int | None = None) -> None:
        if name == "Committing" and not self.met:
            self.met = True
            self.barrier.wait(timeout=120)

    def note(self, text: str) -> None:
        self.notes.append(text)


def race(dataset: Dataset, files: list[Path], **options: Any) -> tuple[list[Any], list[str]]:
    barrier, outcomes = threading.Barrier(2), []
    meetings = [Meeting(barrier) for _ in files]

    def run(path: Path, meeting: Meeting) -> None:
        try:
            outcomes.append(dataset.ingest([path], progress=meeting, **options))
        except RefConflictError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in zip(files, meetings, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes, [note for meeting in meetings for note in meeting.notes]


def test_the_slower_writer_repeats_its_run_on_the_new_head(workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(manifest(LEDGER))
    push(dataset, GOOD)
    files = [put(tmp_path, "city,population\nC,3\n" + f"{x},4\n", f"{x}.csv") for x in "DE"]
    outcomes, notes = race(dataset, files)
    assert sorted(o.inputs[0].rows for o in outcomes) == [1, 2], "C was new for one of them only"
    faster, known = notes
    assert faster == "another writer was faster; repeating the run on the new head"
    assert known.endswith(": rows with a recorded key: 1; they were ignored (--late-edits compares values)")
    assert sorted(row[0] for row in records(dataset)) == ["A", "B", "C", "D", "E"]
    assert dataset.verify().ok


def test_or_says_so(workspace: Workspace, tmp_path: Path) -> None:
    (dataset,) = workspace.add(manifest())
    files = [put(tmp_path, GOOD, f"{n}.csv") for n in range(2)]
    outcomes, notes = race(dataset, files, retries=0)
    (error,) = [o for o in outcomes if isinstance(o, RefConflictError)]
    assert "expected" in str(error)
    assert notes == []
    assert dataset.summary.record_count == 2
    assert dataset.verify().ok
    assert [p.name for p in (dataset.path / "staging").iterdir()] == [".lock"]
