"""Keys of an input: copies, contradictions, nulls and late edits (RFC-009), slices that cannot hold them (RFC-032)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import BadInputError
from odfchain.ingest import history, merge_input
from odfchain.ingest.merge_input import InputMerge
from odfchain.ingest.merge_task import MergeRules
from odfchain.odf.times import Timestamp
from odfchain.workspace import read_slices
from odfchain.workspace.config import LateEdits
from odfchain.workspace.read_slices import RecordedRows
from tests.kit.polled_sources import rows
from tests.kit.pushed_files import push, put
from tests.kit.support import Run, copied, manifest, unchanged

LEDGER = "{kind: Ledger, primaryKey: [country, city]}"
COLUMNS_DDL = '["event_time TIMESTAMP", "country STRING", "city STRING", "population BIGINT"]'
SHOWN = ("op", "country", "city", "population")
HEADER = "event_time,country,city,population\n"


def dataset_of(workspace: Workspace, merge: str = LEDGER, columns: str = COLUMNS_DDL) -> Dataset:
    (dataset,) = workspace.add(manifest(merge, columns))
    return dataset


def test_copies_and_contradictions(workspace: Workspace, tmp_path: Path, run_cli: Run) -> None:
    dataset = dataset_of(workspace)
    run = ("-w", dataset.path.parent.parent.parent, "ingest", "cities")
    path = put(tmp_path, HEADER + "2020-01-01,CA,A,1\n2020-01-02,,A,2\n2020-01-01,CA,A,1\n2020-01-02,,A,2\n")
    done = run_cli(*run, path)
    assert done.code == 0, done.err
    assert "in.csv: rows that are copies of others in every column: 2; each is recorded once" in done.err
    assert rows(dataset, *SHOWN) == [[0, "CA", "A", 1], [0, None, "A", 2]]
    assert run_cli(*run, path).code == 0
    assert len(rows(dataset, *SHOWN)) == 2, "a key with a null in it is known as well"
    path.write_text(HEADER + "2020-01-03,CA,B,3\n2020-01-03,,B,4\n2020-01-03,,B,5\n")
    with unchanged(dataset.path):
        done = run_cli(*run, path)
    assert done.code == 3
    assert (
        "in.csv: row 3: primary key (country=None, city='B') occurs twice: also in row 2 "
        "with other values (population=4 there, population=5 here)\n"
        "hint: choose other --key columns if these name no row; --duplicate-keys first or last keeps one"
        in done.err
    )
    done = run_cli(*run, path, "--duplicate-keys", "last")
    assert "in.csv: rows with a key of another row and other values: 1; the last was kept" in done.err
    assert rows(dataset, *SHOWN)[2:] == [[0, "CA", "B", 3], [0, None, "B", 5]]
    path.write_text(HEADER + "2020-01-04,CA,C,6\n2020-01-04,CA,C,7\n2020-01-05,,,8\n")
    done = run_cli(*run, path, "--duplicate-keys", "first")
    assert (done.code, "in.csv: row 3: primary key (country, city) has only nulls" in done.err) == (3, True)
    (dataset.path.parent.parent / "config.yaml").write_text(
        "kind: WorkspaceConfig\nversion: 1\ncontent: {ingest: {duplicateKeys: first}}\n"
    )
    path.write_text(HEADER + "2020-01-04,CA,C,6\n2020-01-04,CA,C,7\n")
    assert run_cli(*run, path).code == 0
    assert rows(dataset, *SHOWN)[4:] == [[0, "CA", "C", 6]]
    assert dataset.verify().ok


@pytest.mark.parametrize("kind", ["Snapshot", "UpsertStream"])
def test_a_state_checkpoint_tells_keys_as_the_merge_does(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(read_slices, "_SMALLEST_DELTA", 1)
    merge = f"{{kind: {kind}, primaryKey: [city, level]}}"
    dataset = dataset_of(workspace, merge, '["city STRING", "level DOUBLE", "population BIGINT"]')
    path = tmp_path / "in.csv"
    for population in (1, 2, 3):
        path.write_text(
            "city,level,population\n"
            + "".join(f"{key},{population}\n" for key in (",0.0", ",NaN", "A,", "B,-0.0"))
        )
        dataset.ingest([path])
        path.write_text(path.read_text().replace("B,-0.0", "B,0.0").replace(",0.0", ",-0.0"))
        assert dataset.ingest([path]).up_to_date
    assert any((dataset.path / "checkpoints").iterdir())
    assert dataset.summary.record_count == 4 + 2 * 8
    assert dataset.verify().ok


def test_an_event_time_in_the_key_is_compared_as_it_is_recorded(workspace: Workspace, tmp_path: Path) -> None:
    dataset = dataset_of(workspace, "{kind: Ledger, primaryKey: [event_time, city]}", COLUMNS_DDL)
    path = put(tmp_path, HEADER + ",CA,A,1\n2020-01-01,CA,A,2\n")
    day = [Timestamp.parse(f"2020-01-0{n}T00:00:00Z") for n in (1, 2)]
    assert not dataset.ingest([path], event_time=day[1]).up_to_date
    assert dataset.ingest([path], event_time=day[1]).up_to_date
    with pytest.raises(BadInputError, match=r"row 2: primary key \(event_time=.*, city='A'\) occurs twice"):
        dataset.ingest([path], event_time=day[0])


def test_values_of_a_contradiction_are_shown_as_they_are_written(workspace: Workspace) -> None:
    columns = '["u UUID", "t TIMESTAMP(6)", "d DECIMAL(5,2)", "s STRING", "n INT"]'
    dataset = dataset_of(workspace, "{kind: Snapshot, primaryKey: [u, t, d, s]}", columns)
    row = "123e4567-e89b-12d3-a456-426614174000,2020-01-01T10:00:00.123456Z,1.5,x,"
    with pytest.raises(BadInputError) as caught:
        push(dataset, f"u,t,d,s,n\n{row}1\n{row}\n")
    assert (
        "(u=123e4567-e89b-12d3-a456-426614174000, t=2020-01-01 10:00:00.123456, d=1.50, s='x') occurs twice: "
        "also in row 1 with other values (n=1 there, n=None here)" in str(caught.value)
    )


def test_columns_may_have_any_name_that_is_not_reserved(workspace: Workspace) -> None:
    names = ["__rank", "__op", "__row", "__bad"]
    columns = json.dumps([f"{name} INT" for name in names])
    dataset = dataset_of(workspace, "{kind: Snapshot, primaryKey: [__rank]}", columns)
    for value in (1, 2):
        push(dataset, f"{','.join(names)}\n1,{value},5,5\n")
    assert rows(dataset, *names)[-1] == [1, 2, 5, 5]


def test_a_first_record_is_no_list_of_names(workspace: Workspace) -> None:
    source = manifest(schema='["a STRING", "b STRING"]').replace("header: true", "header: false")
    (dataset,) = workspace.add(source)
    assert push(dataset, "x,x\n__odfchain_row,y\n").inputs[0].rows == 2


# --- Ledgers whose sources change what they said (RFC-009) --------------------------------------------


EDIT_HEADER = "event_time,city,population\n"
FIRST = EDIT_HEADER + "2020-01-01,A,1\n2020-01-02,B,2\n2020-01-03,C,\n"
SECOND = EDIT_HEADER + "2020-01-04,D,4\n2020-01-02,B,20\n2020-01-01,A,1\n2020-01-03,C,3\n"


@pytest.fixture(scope="module")
def edited(new_workspace: Callable[[], Workspace]) -> Workspace:
    workspace = new_workspace()
    schema = '["event_time TIMESTAMP", "city STRING", "population BIGINT"]'
    (dataset,) = workspace.add(manifest("{kind: Ledger, primaryKey: [city]}", schema))
    push(dataset, FIRST)
    return workspace


@pytest.fixture
def edited_ledger(edited: Workspace, workspace: Workspace) -> Dataset:
    return copied(edited, workspace)["cities"]


def added(
    dataset: Dataset, edits: LateEdits, text: str = SECOND, name: str = "second.csv"
) -> list[list[Any]]:
    """Rows that an input adds: operation, city, population."""
    push(dataset, text, name, late_edits=edits)
    return rows(dataset, "op", "city", "population")[3:]


def test_they_are_ignored_unless_asked_for(edited_ledger: Dataset, run_cli: Run) -> None:
    assert added(edited_ledger, LateEdits.IGNORE) == [[0, "D", 4]]
    home = edited_ledger.path.parent.parent
    done = run_cli("-w", home, "ingest", "cities", put(home.parent, SECOND, "second.csv"))
    assert "second.csv: rows with a recorded key: 4; they were ignored (--late-edits compares" in done.err


def test_they_are_recorded_as_corrections(edited_ledger: Dataset) -> None:
    corrected = [[2, "B", 2], [3, "B", 20], [2, "C", None], [3, "C", 3], [0, "D", 4]]
    assert added(edited_ledger, LateEdits.CORRECT) == corrected
    assert added(edited_ledger, LateEdits.CORRECT) == corrected, "and only once"
    back = EDIT_HEADER + "2020-01-02,B,2\n"
    assert added(edited_ledger, LateEdits.CORRECT, back)[5:] == [[2, "B", 20], [3, "B", 2]]
    assert edited_ledger.verify().ok


def test_the_first_one_stops_the_run(edited_ledger: Dataset) -> None:
    for name, text, row in (("second.csv", SECOND, 2), ("timeless.csv", EDIT_HEADER + ",B,20\n", 1)):
        said = rf"{name}: row {row}: key \(city='B'\) is recorded with another population: 2, not 20"
        with unchanged(edited_ledger.path), pytest.raises(BadInputError, match=said):
            added(edited_ledger, LateEdits.REFUSE, text, name)
    fine = EDIT_HEADER + "2020-01-01,A,1\n,C,\n2020-01-05,E,5\n"
    assert added(edited_ledger, LateEdits.REFUSE, fine) == [[0, "E", 5]]


def test_they_are_told(edited_ledger: Dataset, run_cli: Run) -> None:
    home = edited_ledger.path.parent.parent
    path = put(home.parent, SECOND, "second.csv")
    done = run_cli("-w", home, "ingest", "cities", path, "--late-edits", "warn")
    assert "second.csv: 2 rows have a recorded key and other values; they were ignored" in done.err
    assert len(rows(edited_ledger)) == 4


def test_the_workspace_says_what_is_done(edited_ledger: Dataset, run_cli: Run) -> None:
    home = edited_ledger.path.parent.parent
    config = "kind: WorkspaceConfig\nversion: 1\ncontent: {ingest: {lateEdits: refuse}}\n"
    (home / "config.yaml").write_text(config)
    run = ("-w", home, "ingest", "cities", put(home.parent, SECOND, "second.csv"))
    assert run_cli(*run).code == 3
    assert run_cli(*run, "--late-edits", "ignore").code == 0


# --- Slices that cannot hold a key of the input are not read, and nothing recorded depends on it (RFC-032) ---


KNOWN_KEY = ["id", "share", "day"]
COLUMNS = ["id BIGINT", "share DOUBLE", "day TIMESTAMP", "amount DECIMAL(10, 2)", "name STRING"]
SHARES = ["0", "-0.0", "NaN", "0.5", None]
DAYS = [None, "2020-01-01T00:00:00.123Z", "1969-12-31T23:59:59Z"]


def ledger(workspace: Workspace, name: str, key: list[str]) -> Dataset:
    merge = f"{{kind: Ledger, primaryKey: [{', '.join(key)}]}}"
    return workspace.add(manifest(merge, json.dumps(COLUMNS), name=name, kind="NdJson"))[0]


def record(dataset: Dataset, rows: list[dict[str, object]], **options: LateEdits) -> None:
    push(
        dataset, "".join(json.dumps(row) + "\n" for row in rows), "in",
        system_time="2050-01-01T00:00:00Z", event_time="2049-01-01T00:00:00Z", duplicate_keys="first", **options,
    )  # fmt: skip


def numbered(*ids: int) -> list[dict[str, object]]:
    return [{"id": n, "name": f"row {n}"} for n in ids]


def recorded(dataset: Dataset) -> list[tuple[object, ...]]:
    table = dataset.scan(["offset", "op", *[c.split()[0] for c in COLUMNS]]).to_arrow()
    return [tuple(map(repr, row.values())) for row in table.to_pylist()]


def files_of(dataset: Dataset) -> list[Path]:
    return sorted((dataset.path / "info" / "keys").glob("*"))


def watch(patch: pytest.MonkeyPatch, seen: list[list[int]]) -> None:
    """Every ledger is indexed, row by row; seen are the first offsets of the slices that each merge reads."""
    original = InputMerge.relevant

    def note(merge: InputMerge, rules: MergeRules, rows: RecordedRows) -> RecordedRows:
        found = original(merge, rules, rows)
        seen.append([piece.offsets.start for piece in found.slices])
        return found

    patch.setattr(history, "INDEXED_ROWS", 1)
    patch.setattr(history, "PIECE_ROWS", 1)
    patch.setattr(InputMerge, "relevant", note)


@pytest.fixture(scope="module")
def made(new_workspace: Callable[[], Workspace]) -> Workspace:
    """Three slices of two rows, the first two of them indexed; their footers leave every key between open."""
    workspace, seen = new_workspace(), list[list[int]]()
    dataset = ledger(workspace, "a", ["id"])
    with pytest.MonkeyPatch.context() as patch:
        watch(patch, seen)
        for ids in ((1, 20), (3, 18), (5, 16)):
            record(dataset, numbered(*ids))
    assert seen == [[], []], "new keys need no slice at all"
    return workspace


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """The first offsets of the slices that each merge reads."""
    seen: list[list[int]] = []
    watch(monkeypatch, seen)
    return seen


@pytest.fixture
def dataset(made: Workspace, workspace: Workspace, read: list[list[int]]) -> Dataset:
    return copied(made, workspace)["a"]


def test_only_slices_with_such_a_key_are_read(dataset: Dataset, read: list[list[int]]) -> None:
    record(dataset, numbered(3, 7))
    assert read == [[2]]
    assert len(recorded(dataset)) == 7
    record(dataset, numbered(7, 1, 8))
    assert read[1:] == [[0, 6]]
    assert [row[2] for row in recorded(dataset)] == ["1", "20", "3", "18", "5", "16", "7", "8"]
    assert len(files_of(dataset)) == 4, "the newest slice is indexed by the next merge"
    assert dataset.verify().ok


def test_slices_whose_footers_leave_out_the_keys_are_not_even_indexed(
    dataset: Dataset, read: list[list[int]]
) -> None:
    record(dataset, numbered(100, 200))
    record(dataset, numbered(150, 200))
    assert read == [[], [6]]
    assert len(files_of(dataset)) == 3, "the third slice is not"
    assert len(recorded(dataset)) == 9


@pytest.mark.parametrize("edits", [pytest.param(LateEdits.IGNORE, marks=pytest.mark.soak), LateEdits.CORRECT])
@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 12))])
def test_the_rows_are_those_without(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, seed: int, edits: LateEdits
) -> None:
    """Keys of several columns with nulls, NaN, zeros of both signs, that come again in any slice."""
    draw = random.Random(seed)
    key = draw.sample([*KNOWN_KEY, "amount", "name"], draw.randrange(1, 4))
    indexed, plain = ledger(workspace, "indexed", key), ledger(workspace, "plain", key)
    for _ in range(5):
        rows = [
            {
                "id": draw.choice([None, *range(4)]) if len(key) > 1 else draw.randrange(4),
                "share": draw.choice(SHARES[: None if len(key) > 1 else -1]),
                "day": draw.choice(DAYS if len(key) > 1 else DAYS[1:]),
                "amount": draw.choice(["1.10", "1.1", "-3"]),
                "name": draw.choice(["", "a", "ä"]),
            }
            for _ in range(draw.randrange(1, 5))
        ]
        rows = [row for row in rows if any(row[name] is not None for name in key)] or numbered(1)
        record(plain, rows, late_edits=edits)
        with monkeypatch.context() as patched:
            patched.setattr(history, "INDEXED_ROWS", 1)
            record(indexed, rows, late_edits=edits)
    assert files_of(indexed)
    assert not files_of(plain)
    assert recorded(indexed) == recorded(plain) != []


DAMAGED: dict[str, Callable[[bytes, bytes], bytes]] = {
    "cut": lambda content, _: content[:-8],
    "without hashes": lambda content, _: content[:16],
    "longer": lambda content, _: content + content[-8:],
    "a bit": lambda content, _: content[:-1] + bytes([content[-1] ^ 1]),
    "another slice's": lambda _, other: other,
}


@pytest.mark.parametrize("damage", [*DAMAGED, "gone", "a folder"])
def test_a_damaged_index_is_made_again(dataset: Dataset, damage: str) -> None:
    files = files_of(dataset)
    before = [file.read_bytes() for file in files]
    for file, content, other in zip(files, before, before[::-1], strict=True):
        file.unlink()
        if damage == "a folder":
            file.mkdir()
        elif damage != "gone":
            file.write_bytes(DAMAGED[damage](content, other))
    record(dataset, numbered(1, 3, 5, 7))
    assert [row[2] for row in recorded(dataset)] == ["1", "20", "3", "18", "5", "16", "7"]
    if damage != "a folder":
        assert [file.read_bytes() for file in files] == before


def test_files_of_slices_that_are_gone_are_removed(dataset: Dataset) -> None:
    dataset.reset([entry.hash for entry in dataset.log()][1], force=True)
    record(dataset, numbered(3))
    assert len(recorded(dataset)) == 4
    record(dataset, numbered(5, 9))
    assert [row[2] for row in recorded(dataset)] == ["1", "20", "3", "18", "5", "9"]
    names = {file.name.partition(".")[0] for file in files_of(dataset)}
    assert names <= {file.name for file in (dataset.path / "data").iterdir()}


def test_small_ledgers_and_large_inputs_have_no_index(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ledger(workspace, "a", ["id"])
    record(dataset, numbered(1))
    record(dataset, numbered(1, 2))
    assert not files_of(dataset)
    monkeypatch.setattr(history, "INDEXED_ROWS", 1)
    monkeypatch.setattr(merge_input, "LARGEST_INPUT", 10)
    record(dataset, numbered(2, 3))
    assert not files_of(dataset)
    assert len(recorded(dataset)) == 3
