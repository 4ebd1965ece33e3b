"""Corrections: what files may say, and what becomes of it."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.branches import corrections
from odfchain.branches.corrections import Wanted, read_given, rows_of_keys
from odfchain.branches.recording import stage_changes
from odfchain.errors import BadInputError, IngestError, OversizedInputError, SliceNotFoundError, UsageError
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import DatasetSnapshot, SetInfo
from odfchain.workspace import read_slices
from odfchain.workspace.merge_record import MergeRecord, merges
from tests.kit import query_datasets
from tests.kit.polled_sources import ABC, SNAPSHOT, file_url, polled, touch
from tests.kit.support import unchanged

COLUMNS = [["k", "string"], ["a", "string"], ["n", "int64"]]
ROWS = [
    ["+A", "2024-01-02", "A", "x", 1],
    ["+A", "2024-01-01", "B", "y", 2],
    ["+A", "2024-01-03", "C", None, 3],
]


def cities(
    folder: Path, *slices: list[Any], key: tuple[str, ...] = ("k",), columns: list[list[str]] = COLUMNS
) -> Dataset:
    workspace = Workspace.init(folder / "ws")
    query_datasets.cities(workspace, query_datasets.polling(*key), columns, *(slices or [ROWS]))
    return workspace["cities"]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    """Cities with the rows above."""
    return cities(tmp_path)


def file(folder: Path, text: str, name: str = "fixes.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def new_rows(dataset: Dataset, start: int = 3) -> list[list[Any]]:
    """(operation, day of the event time, values…) of what came last."""
    rows = dataset.scan().to_arrow().slice(start).to_pylist()
    return [[row["op"], row["event_time"].strftime("%Y-%m-%d"), row["k"], row["a"], row["n"]] for row in rows]


def test_columns_of_the_file_change_and_removed_keys_are_retracted_with_the_recorded_values(
    dataset: Dataset, tmp_path: Path
) -> None:
    outcome = dataset.correct(
        file(tmp_path, "n,k\n9,B\n7,A\n"), remove=file(tmp_path, "k,n\nC,99\n", "gone.csv")
    )
    assert new_rows(dataset) == [
        [2, "2024-01-02", "A", "x", 1],
        [3, "2024-01-02", "A", "x", 7],
        [2, "2024-01-01", "B", "y", 2],
        [3, "2024-01-01", "B", "y", 9],
        [1, "2024-01-03", "C", None, 3],
    ]
    assert (outcome.operations, outcome.number) == ({"-C": 2, "+C": 2, "-R": 1}, 4)
    assert repr(outcome) == "<2 corrected, 1 retracted, head is block 4>"
    assert dataset.verify().faults == []


def test_values_that_are_there_are_no_change(dataset: Dataset, tmp_path: Path) -> None:
    with unchanged(dataset.path):
        outcome = dataset.correct(file(tmp_path, "k,a,n,event_time\nA,x,1,\nC,,3,2024-01-03T00:00:00Z\n"))
    assert (outcome.up_to_date, outcome.number) == (True, 3)


def test_keys_that_are_not_recorded_have_to_be_allowed(dataset: Dataset, tmp_path: Path) -> None:
    fixes = file(tmp_path, "k,n\nA,7\n" + "".join(f"X{i},{i}\n" for i in range(7)))
    with pytest.raises(IngestError) as refused, unchanged(dataset.path):
        dataset.correct(fixes)
    assert refused.value.message == (
        f"{fixes}: 7 keys are not recorded in cities: k=X0; k=X1; k=X2; k=X3; k=X4, …"
    )
    assert "--allow-new" in refused.value.hint
    dataset.correct(fixes, allow_new=True, system_time="2024-02-01T00:00:00Z")
    assert new_rows(dataset)[2] == [0, "2024-02-01", "X0", None, 0]
    assert dataset.verify().faults == []
    gone = file(tmp_path, "k\nNOBODY\n", "gone.csv")
    with pytest.raises(BadInputError, match="1 key is not recorded in cities: k=NOBODY"):
        dataset.correct(remove=gone, allow_new=True)


def test_an_event_time_is_taken_from_the_file(dataset: Dataset, tmp_path: Path) -> None:
    dataset.correct(file(tmp_path, "k,event_time\nA,2024-01-05 12:30:00\nB,2024-01-06T01:00:00+02:00\n"))
    times = dataset.scan(["event_time"]).to_arrow()["event_time"].to_pylist()
    assert times[4] == dt.datetime(2024, 1, 5, 12, 30, tzinfo=dt.UTC)
    assert times[6] == dt.datetime(2024, 1, 5, 23, tzinfo=dt.UTC)
    assert str(dataset.summary.watermark) == "2024-01-05T23:00:00Z"
    late = file(tmp_path, "k,event_time\nA,2999-01-01T00:00:00Z\n")
    with pytest.raises(IngestError, match=r"row 1: the event time 2999-01-01T00:00:00Z is later than"):
        dataset.correct(late)
    assert not dataset.correct(late, allow_future=True).up_to_date


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 'k' of the primary key is missing"),
        ("a\nx\n", "column 'k' of the primary key is missing"),
        ("k,b\nA,x\n", "there is no column 'b' in the dataset (it has event_time, k, a, n)"),
        ("k,op\nA,1\n", "there is no column 'op' in the dataset (it has event_time, k, a, n)"),
        ("k,a,a\nA,x,x\n", "column 'a' comes twice"),
        ("k,n\nA,1\nB,one\n", "row 2: column `n`: one is not a value of type int64"),
        ("k,n\nA,1.5\n", "row 1: column `n`: 1.5 is not a value of type int64"),
        ("k,event_time\nA,soon\n", "row 1: column `event_time`: soon is not a value of type timestamp[ms, tz=UTC]"),
        ("k,n\nA,1\nB,2\nA,3\n", "row 3: k=A comes twice: also in row 1"),
        ("k,n\nA,1\n,2\n", "row 2: the primary key (k) is null"),
        ("k|n\nA|1\n", "there is no column 'k|n' in the dataset"),
        ("k,n\nA,1\nB,2,3\n", "row 2: it is not CSV"),
        ('{"k": "A"}\n{"n": 1}\n', "row 2: column 'k' of the primary key is missing"),
        ('{"k": "A", "b": 1}\n', "row 1: there is no column 'b'"),
        ('{"k": "A", "n": 1, "n": 2}\n', "row 1: it is not JSON: a name comes twice"),
        ('{"k": "A", "n": NaN}\n', "row 1: it is not JSON: NaN is not JSON"),
        ('["A"]\n', "row 1: it is not an object"),
        ('{"k": "A"\n', "row 1: it is not JSON"),
        ('{"k": 1}\n', "row 1: column `k`: 1 is not a text"),
        ('{"k": "A", "n": true}\n', "row 1: column `n`: True is not a value of type int64"),
        ('{"k": "A", "n": {"x": 1}}\n', "row 1: column `n`"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_is_refused(dataset: Dataset, tmp_path: Path, text: str, message: str) -> None:
    fixes = file(tmp_path, text, "fixes.ndjson" if text.startswith(("{", "[")) else "fixes.csv")
    with pytest.raises(BadInputError) as refused, unchanged(dataset.path):
        dataset.correct(fixes, allow_new=True)
    assert message in str(refused.value)
    assert str(refused.value).startswith(str(fixes))
    assert refused.value.exit_code == 3


def test_a_key_comes_once_in_all_files(dataset: Dataset, tmp_path: Path) -> None:
    one, two = file(tmp_path, "k,n\nA,7\n"), file(tmp_path, "k\nB\nA\n", "gone.csv")
    with pytest.raises(BadInputError, match=r"gone.csv: row 2: k=A comes twice: also in .*fixes.csv, row 1"):
        dataset.correct(one, remove=two)
    files = [one, file(tmp_path, '{"k": "B", "a": "z"}\n', "more.ndjson")]
    assert dataset.correct(files).operations == {"-C": 2, "+C": 2}


def test_csv_of_spreadsheets(dataset: Dataset, tmp_path: Path) -> None:
    fixes = tmp_path / "fixes.csv"
    fixes.write_bytes('\ufeffk,a\r\nA,"two\nlines, ""quoted"""\r\nB,""\r\n\r\nC,\r\n'.encode())
    assert dataset.correct(fixes).operations == {"-C": 2, "+C": 2}
    assert states_of(dataset) == {"A": ('two\nlines, "quoted"', 1), "B": ("", 2), "C": (None, 3)}
    fixes.write_text("n;k\n7;A\n")
    assert dataset.correct(fixes).operations == {"-C": 1, "+C": 1}
    fixes.write_bytes("sep=;\r\nn;k\r\n8;A\r\n".encode("utf-16"))
    assert dataset.correct(fixes).operations == {"-C": 1, "+C": 1}
    fixes.write_text("k\ta\nA\t" + "long" * 500_000 + "\n")
    assert dataset.correct(fixes).operations == {"-C": 1, "+C": 1}
    fixes.write_bytes("k,a\nA,Zürich\n".encode("latin-1"))
    with pytest.raises(BadInputError, match="it is not UTF-8"):
        dataset.correct(fixes)


def test_ndjson_says_for_each_row_what_changes(dataset: Dataset, tmp_path: Path) -> None:
    fixes = file(tmp_path, '{"k": "A", "n": 7}\n\n{"a": null, "k": "B"}\n{"k": "C"}\n', "f.jsonl")
    dataset.correct(fixes)
    assert states_of(dataset) == {"A": ("x", 7), "B": (None, 2), "C": (None, 3)}


def test_parquet_is_cast_where_nothing_is_lost(dataset: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "fixes.parquet"
    pq.write_table(pa.table({"k": pa.array(["A"]).dictionary_encode(), "n": pa.array([7], pa.int16())}), path)
    assert dataset.correct(path).operations == {"-C": 1, "+C": 1}
    pq.write_table(pa.table({"k": ["A", "B"], "n": [7.0, 7.5]}), path)
    with pytest.raises(BadInputError, match=r"row 2: column `n`: 7\.5 is not a value of type int64"):
        dataset.correct(path)
    file(tmp_path, "no", "no.parquet")
    with pytest.raises(BadInputError, match="not a readable Parquet file"):
        dataset.correct(tmp_path / "no.parquet")


def test_files_are_named_and_bounded(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, message in (
        ({"files": tmp_path / "fixes.xlsx"}, r"read from .csv, .ndjson and .parquet"),
        ({"files": tmp_path / "none.csv"}, "no such file"),
        ({"files": tmp_path, "input_format": "csv"}, "is a folder"),
        ({}, "name the files of corrections"),
    ):
        with pytest.raises(UsageError, match=message):
            dataset.correct(**given)  # type: ignore[arg-type]
    monkeypatch.setattr("odfchain.branches.corrections.MOST_BYTES", 5)
    with pytest.raises(OversizedInputError, match="more than 5 bytes"):
        dataset.correct(file(tmp_path, "k,n\nA,1\n"))
    assert isinstance(dataset.correct(file(tmp_path, "k\n", "empty"), input_format="csv").number, int)


def test_a_dataset_without_rows_is_not_corrected(tmp_path: Path) -> None:
    workspace = Workspace.init(tmp_path)
    blocks = [{"at": query_datasets.AT, "event": query_datasets.polling("k")}]
    query_datasets.make(workspace, "bare", {"made": query_datasets.AT, "blocks": blocks})
    with pytest.raises(UsageError, match="no rows yet"):
        workspace["bare"].correct(file(tmp_path, "k,n\nA,1\n"))


def test_every_type_can_be_corrected(tmp_path: Path) -> None:
    """From all three forms the same values."""
    columns = {  # type, text in CSV, text in NDJSON, value
        "t": (pa.timestamp("us", "UTC"), "2024-01-02T03:04:05.000006Z", '"2024-01-02T03:04:05.000006Z"',
              dt.datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=dt.UTC)),
        "d": (pa.date32(), "2024-02-29", '"2024-02-29"', dt.date(2024, 2, 29)),
        "f": (pa.float64(), "1e-3", "0.001", 0.001),
        "x": (pa.decimal128(20, 4), *["123456789012345.6789"] * 2, decimal.Decimal("123456789012345.6789")),
        "b": (pa.bool_(), "true", "true", True),
        "y": (pa.binary(), "00ff", '"00ff"', b"\0\xff"),
        "l": (pa.list_(pa.int64()), "[1,null]", "[1,null]", [1, None]),
        "s": (pa.struct([("p", pa.string())]), '{"p":"q"}', '{"p":"q"}', {"p": "q"}),
        "u": (pa.uint64(), str(2**64 - 1), str(2**64 - 1), 2**64 - 1),
    }  # fmt: skip
    schema = pa.schema([("k", pa.string()), *((name, kind) for name, (kind, *_) in columns.items())])
    expected = pa.Table.from_pylist([{"k": "A", **{n: c[3] for n, c in columns.items()}}], schema)
    quoted = ['"' + c[1].replace('"', '""') + '"' for c in columns.values()]
    members = ", ".join(f'"{name}": {c[2]}' for name, c in columns.items())
    texts = [
        file(tmp_path, f"k,{','.join(columns)}\nA,{','.join(quoted)}\n", "a.csv"),
        file(tmp_path, f'{{"k": "A", {members}}}\n', "a.ndjson"),
        tmp_path / "a.parquet",
    ]
    pq.write_table(expected, texts[2])
    for path in texts:
        assert read_given(path, Wanted(schema, ("k",), "t")).rows.equals(expected), path


def test_the_recorded_key_stays(tmp_path: Path) -> None:
    columns = [["f", "float64"], ["k", "string"], ["a", "string"]]
    rows = [["+A", "2024-01-01", 0.0, None, "x"], ["+A", "2024-01-01", float("nan"), "k", "x"]]
    dataset = cities(tmp_path, rows, key=("f", "k"), columns=columns)
    assert dataset.correct(file(tmp_path, "f,k,a\n-0.0,,y\nNaN,k,y\n")).operations == {"-C": 2, "+C": 2}
    keys = dataset.scan(["f"]).to_arrow()["f"].to_pylist()[2:]
    assert list(map(str, keys)) == ["0.0", "0.0", "nan", "nan"]
    assert dataset.verify().faults == []


@pytest.mark.parametrize("groups", [3, 1000])
def test_rows_that_are_looked_up_are_those_of_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: int
) -> None:
    """With keys of nulls and no numbers, over many slices, and from a checkpoint."""
    monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 10**9)
    chance = random.Random(5)
    texts, numbers = ["a", "b", "ä", None], [0.0, 1.5, float("nan"), None]
    slices: list[list[Any]] = []
    inforce: dict[str, list[Any]] = {}
    for _ in range(6):
        slices.append(rows := [])
        for number in range(12):
            key = (chance.choice(texts), chance.choice(numbers))
            if key == (None, None):
                continue
            old = inforce.pop(str(key), None)
            if old is not None:
                rows.append(["-R", "2024-01-01", *old])
            if old is None or chance.random() < 0.5:
                inforce[str(key)] = [*key, number]
                rows.append(["+A", "2024-01-01", *inforce[str(key)]])
    monkeypatch.setattr("tests.kit.root_rows.pq.write_table", _in_groups(groups))
    columns = [["k", "string"], ["f", "float64"], ["n", "int64"]]
    dataset = cities(tmp_path, *slices, key=("k", "f"), columns=columns)
    schema = pa.schema([("k", pa.string()), ("f", pa.float64()), ("n", pa.int64())])
    pairs = list(itertools.product(texts, numbers))
    asked = pa.Table.from_pylist([{"k": k, "f": f} for k, f in pairs], schema.remove(2))
    found, there = rows_of_keys(dataset._files, dataset.summary, asked, ("k", "f"), schema)
    expected = [inforce.get(str(pair)) for pair in pairs]
    assert there.tolist() == [row is not None for row in expected]
    assert repr([list(row.values()) for row in found.to_pylist()]) == repr(
        [row or [None] * 3 for row in expected]
    )
    state = dataset.state(["k", "f", "n"]).to_arrow()
    assert state.num_rows == there.sum()


def _in_groups(rows: int) -> Any:
    write = pq.write_table
    return lambda table, path, **options: write(table, path, row_group_size=rows, **options)


def test_a_correction_reads_no_more_than_it_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest slice decides, and row groups without a key are passed over."""
    monkeypatch.setattr("tests.kit.root_rows.pq.write_table", _in_groups(2))
    rows = [["+A", "2024-01-01", chr(65 + i), "x", i] for i in range(8)]
    dataset = cities(tmp_path, rows, [["-C", "2024-01-01", "C", "x", 2], ["+C", "2024-01-01", "C", "y", 2]])
    (old, _) = dataset.summary.slices()
    path = dataset._files.data.verified_path(old.slice.physical_hash)
    path.rename(path.with_suffix(".away"))
    assert dataset.correct(file(tmp_path, "k,n\nC,9\n")).operations == {"-C": 1, "+C": 1}
    with pytest.raises(SliceNotFoundError, match="is not here"):
        dataset.correct(file(tmp_path, "k,n\nA,9\n"))
    path.with_suffix(".away").rename(path)
    groups: list[Any] = []
    from odfchain.slices.reader import ParquetSource

    batches = ParquetSource.batches

    def seen(self: ParquetSource, columns: Any = None, **more: Any) -> Any:
        groups.append(more.get("groups"))
        return batches(self, columns, **more)

    monkeypatch.setattr(ParquetSource, "batches", seen)
    dataset.correct(file(tmp_path, "k,n\nG,9\n"))
    assert [group for group in groups if group is not None] == [[3], [3]], "the key, then the row"


@pytest.mark.soak
def test_what_is_polled_is_compared_with_corrections(workspace: Workspace, tmp_path: Path) -> None:
    """The state of the source is carried on, past merge records too, and what is polled next is compared."""
    source = tmp_path / "in.csv"
    touch(source, ABC, 1_600_000_000)
    dataset = polled(workspace, file_url(source), merge=SNAPSHOT)
    dataset.pull()
    state = dataset.summary.source_state
    assert state is not None
    dataset.correct(file(tmp_path, "city,population\nA,1\n"))
    assert dataset.summary.source_state == state
    assert dataset.pull().status == "up to date"
    head = dataset.head
    record = MergeRecord(base=(head,), source=head, source_ref="fix", target=head)
    now = dataset.summary
    with dataset._files.staging() as staging:
        merged = stage_changes(
            dataset._files, now, None, staging=staging, system_time=now.next_system_time(), record=record
        )
        merged.commit(dataset._files, now, now.next_system_time())
    assert dataset.pull().status == "up to date"
    touch(source, ABC.replace("C,3000", "C,5"), 1_600_000_100)
    pulled = dataset.pull()
    assert (pulled.operations["-C"], pulled.operations["-R"]) == (2, 0), "A is what the source says again"
    assert dataset.summary.source_state != state
    assert merges(dataset._files.chain, dataset.summary.head)[0].record == record
    assert dataset.verify().faults == []


def test_the_head_of_a_copy_is_corrected_on_a_branch(dataset: Dataset, tmp_path: Path) -> None:
    copy = Workspace.init(tmp_path / "copy").pull(dataset.path.as_uri(), name="copied").dataset
    fixes = file(tmp_path, "k,n\nA,7\n")
    with pytest.raises(UsageError, match="copied is a copy") as refused:
        copy.correct(fixes)
    assert refused.value.hint == "`odfchain branch create copied NAME`, then correct copied@NAME"
    assert not copy.create_branch("mine").correct(fixes).up_to_date
    info = SetInfo(description="Cities of theirs.")
    redefined = DatasetSnapshot(name=copy.alias, kind=DatasetKind.ROOT, metadata=(info,))
    for change in (
        lambda: copy.ingest(fixes),
        lambda: copy.ingest_frame(pa.table({"k": ["D"]})),
        lambda: copy.set_watermark("2030-01-01T00:00:00Z"),
        copy.disable_source,
        lambda: copy._workspace.update(redefined),
    ):
        with pytest.raises(UsageError, match="copied is a copy: its head moves by `pull` only"):
            change()
    assert copy.head == dataset.head
    assert not copy.correct(fixes, force=True).up_to_date


def states_of(dataset: Dataset) -> dict[str, tuple[Any, ...]]:
    rows = dataset.state(["k", "a", "n"]).to_arrow().to_pylist()
    return {row["k"]: (row["a"], row["n"]) for row in rows}


def test_random_corrections_are_what_plain_loops_make_and_reverts_undo_them(
    dataset: Dataset, tmp_path: Path
) -> None:
    """Corrections, additions and removals one after the other; then each block is taken back, newest first."""
    chance = random.Random(3)
    expected = states_of(dataset)
    seen: list[tuple[int, dict[str, tuple[Any, ...]]]] = []
    for _ in range(5):
        before, lines, gone = dict(expected), [], []
        for key in chance.sample("ABCDEFGH", 4):
            if key in expected and chance.random() < 0.3:
                gone.append(key)
                del expected[key]
                continue
            row = {name: chance.choice([None, "x", "y"]) for name in ["a"] if chance.random() < 0.7}
            row |= {name: chance.choice([None, 1, 2]) for name in ["n"] if chance.random() < 0.7}
            lines.append(json.dumps({"k": key, **row}))
            old = expected.get(key, (None, None))
            expected[key] = (row.get("a", old[0]), row.get("n", old[1]))
        files = file(tmp_path, "\n".join(lines), "f.ndjson")
        outcome = dataset.correct(
            files, remove=file(tmp_path, "\n".join(["k", *gone]), "g.csv"), allow_new=True
        )
        assert states_of(dataset) == expected
        assert outcome.up_to_date == (before == expected)
        if not outcome.up_to_date:
            seen.append((outcome.number, before))
    assert len(seen) > 2
    for number, before in seen[::-1]:
        dataset.revert(number)
        assert states_of(dataset) == before
    report = dataset.verify()
    assert (report.faults, report.unchecked) == ([], [])


def test_a_correction_is_made_anew_when_another_writer_was_faster(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = corrections.rows_of_keys
    other = file(tmp_path, "k,a\nA,other\n", "other.csv")

    def meanwhile(*args: Any) -> Any:
        found = looked_up(*args)
        monkeypatch.setattr(corrections, "rows_of_keys", looked_up)
        Workspace.open(tmp_path / "ws")["cities"].correct(other)
        return found

    monkeypatch.setattr(corrections, "rows_of_keys", meanwhile)
    dataset.correct(file(tmp_path, "k,n\nA,7\n"))
    assert states_of(dataset)["A"] == ("other", 7)
    assert dataset.verify().faults == []
