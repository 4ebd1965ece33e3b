"""States at any block: from all slices, from a checkpoint, from one that was kept; always the same rows."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.api.queries import embedded
from odfchain.branches import state_cache
from odfchain.branches.state_cache import StateCache, read_cached_state
from odfchain.odf import events as ev
from odfchain.odf.physical_hash import hash_file
from odfchain.query.embedded import Embedded
from odfchain.query.resolved_tables import Pins
from odfchain.query.sql_text import Query
from odfchain.spark.session import SparkEngine
from odfchain.upkeep.garbage import collect
from odfchain.workspace.commit import StagedFile, commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import METADATA_KEY, describe, read_state
from tests.kit import branch_rows
from tests.kit.branch_cases import run_here
from tests.kit.branch_rows import Row
from tests.kit.opened_files import opened_files
from tests.kit.query_datasets import on_spark
from tests.kit.root_rows import staged_slice

KEY = ("k",)


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[odf.Workspace]:
    with odf.init(tmp_path / "ws") as workspace:
        yield workspace


@pytest.fixture
def keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    """States of few rows are worth keeping too."""
    monkeypatch.setattr(state_cache, "WORTH_KEEPING", 0)


def changes(seed: int, count: int = 6) -> list[Row]:
    """Rows as any changelog may have them."""
    rng = random.Random(seed)
    ops = rng.choices(["+A", "-R", "+C", "-C"], [5, 2, 2, 1], k=count)
    return [(op, rng.randrange(9), rng.choice([None, *"abcdef"]), str(rng.random()), None) for op in ops]


def history(workspace: odf.Workspace, blocks: int = 6) -> DatasetFiles:
    dataset = branch_rows.keyed(workspace)
    for number in range(blocks):
        branch_rows.record(dataset, changes(number))
    return dataset


def with_checkpoint(
    dataset: DatasetFiles, rows: list[Row], *, key: tuple[str, ...] = KEY, upto: int | None = None
) -> Path:
    """A block with rows that names the state before it, as RFC-018 has it; returns the file of that."""
    state = DatasetState.read(dataset.chain)
    last = state.last_offset
    stands = read_state(dataset, state, KEY).drop_columns(["system_time"]).sort_by("k")
    text = {METADATA_KEY: describe(key, last if upto is None else upto)}
    with dataset.staging() as folder:
        pq.write_table(stands.replace_schema_metadata(text), folder / "state")
        name, size = hash_file(folder / "state")
        new, staged = staged_slice(folder, branch_rows.table_of(dataset, rows))
        event = ev.AddData(
            prev_offset=last, new_data=new, new_checkpoint=ev.Checkpoint(physical_hash=name, size=size),
            new_watermark=state.watermark,
        )  # fmt: skip
        commit(
            dataset, state, [event], [staged], checkpoints=[StagedFile(folder / "state", name)],
            system_time=state.next_system_time(),
        )  # fmt: skip
    return Path(dataset.checkpoints.locate(name))


def kept(dataset: DatasetFiles) -> list[Path]:
    return sorted((dataset.folder / "info" / "states").glob("*"))


def at(dataset: DatasetFiles, number: int | None = None) -> DatasetState:
    chain = dataset.chain
    return DatasetState.read(chain, None if number is None else chain.hashes(chain.head())[number])


def read(dataset: DatasetFiles, state: DatasetState | None = None, most: int = 1 << 30) -> pa.Table:
    return read_cached_state(dataset, state or at(dataset), KEY, cache=StateCache.of(dataset, most))


class Reading:
    """First offsets of the slices, and the states, that were read since it was asked last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._found: list[Any] = []

        def spy(
            dataset: DatasetFiles, state: DatasetState, key: Any, columns: Any, *, slices: Any
        ) -> pa.Table:
            self._found += [
                "state" if path.parent.name in ("states", "checkpoints") else interval.start
                for path, interval in slices
            ]
            return read_state(dataset, state, key, columns, slices=slices)

        monkeypatch.setattr(state_cache, "read_state", spy)

    def __call__(self) -> list[Any]:
        found, self._found = self._found, []
        return found


def test_the_seed_s_example(ws: odf.Workspace) -> None:
    columns = (pa.field("key", pa.string()), pa.field("value", pa.string()))
    dataset = branch_rows.keyed(ws, ("key",), columns)
    for rows, expected in (
        ([("+A", 0, "e1", "benn")], [(0, "e1", "benn")]),
        ([("-C", 0, "e1", "benn"), ("+C", 0, "e1", "julia")], [(2, "e1", "julia")]),
        ([("+A", 0, "e2", "gunther")], [(2, "e1", "julia"), (3, "e2", "gunther")]),
    ):
        branch_rows.record(dataset, rows, columns)
        found = ws["d"].state().to_arrow().select(["offset", "key", "value"])
        assert [tuple(row.values()) for row in found.to_pylist()] == expected


def shown(workspace: odf.Workspace, *words: str) -> list[dict[str, Any]]:
    result = run_here(workspace)("state", *words, "-o", "ndjson")
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def test_a_state_is_printed(ws: odf.Workspace) -> None:
    dataset = history(ws)
    branch_rows.record(branch_rows.branch(dataset, "fix"), [("+A", 0, "z", "there")])
    offsets = read(dataset)["offset"].to_pylist()
    assert [row["offset"] for row in shown(ws, "d")] == offsets
    assert [row["offset"] for row in shown(ws, "d", "-n", "2")] == offsets[-2:]
    assert shown(ws, "d@fix")[-1]["a"] == "there"
    earlier = read(dataset, at(dataset, 4))["offset"].to_pylist()
    assert [row["offset"] for row in shown(ws, "d@head:4")] == earlier
    plain = branch_rows.keyed(ws, (), name="log")
    branch_rows.record(plain, [("+A", 0, "a"), ("+A", 0, "a"), ("-R", 0, "a"), ("+A", 0, "b")])
    assert [(row["offset"], row["k"]) for row in shown(ws, "log")] == [(1, "a"), (3, "b")]
    assert shown(ws, "log@2") == []


@pytest.mark.parametrize(
    ("point", "code", "message"),
    [
        ("99", 4, "no block 99"),
        ("2025", 4, "no block 2,025"),  # a number: a year is written 2025-01
        ("1999-01-01", 4, "begins at"),
        ("2999-01-01", 3, "lies in the future"),
        ("none", 4, "has no branch"),
        ("f1620" + 64 * "0", 4, "no block"),
        ("A", 2, "a point is a branch, a block's number or hash, or a time"),
    ],
)
def test_case_39_points_that_are_none(ws: odf.Workspace, point: str, code: int, message: str) -> None:
    history(ws, 1)
    result = run_here(ws)("state", f"d@{point}")
    assert (result.code, message in result.err, result.out) == (code, True, ""), result.err


def test_cases_42_and_44_what_was_true_at_an_event_time(ws: odf.Workspace) -> None:
    dataset = branch_rows.keyed(ws)
    branch_rows.record(dataset, [("+A", 0, "k", "old")])
    branch_rows.record(dataset, [("-C", 0, "k", "old"), ("+C", 5, "k", "new")])
    fix = branch_rows.branch(dataset, "fix")
    branch_rows.record(fix, [("-R", 5, "k", "new")])

    def values(point: str, day: int) -> list[str]:
        return [row["a"] for row in shown(ws, f"d{point}", "--event-time", f"2026-01-{day + 1:02}")]

    assert [values("", day) for day in (4, 5, 9)] == [["old"], ["new"], ["new"]]
    assert [values("@fix", day) for day in (4, 9)] == [["old"], []]
    assert [values("@3", day) for day in (4, 5)] == [["old"], ["old"]]
    assert [row["a"] for row in shown(ws, "d", "--event-time", "2027")] == ["new"]
    result = run_here(ws)("state", "d", "--event-time", "later")
    assert (result.code, "is not a time" in result.err) == (2, True)


@pytest.mark.usefixtures("keeping")
def test_case_40_one_state_by_log_checkpoint_and_cache(
    ws: odf.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = history(ws, 3)  # blocks 3, 4 and 5
    with_checkpoint(dataset, changes(3))
    expected = {number: read_state(dataset, at(dataset, number), KEY) for number in range(3, 7)}
    reading = Reading(monkeypatch)
    assert (read(dataset, at(dataset, 5), most=0).equals(expected[5]), reading()) == (True, [0, 6, 12])
    assert (read(dataset, most=0).equals(expected[6]), reading()) == (True, ["state", 18])
    some = read_cached_state(dataset, at(dataset), KEY, ["system_time", "a"], cache=StateCache.of(dataset, 0))
    assert some.equals(expected[6].select(["system_time", "a"]))
    reading()
    assert kept(dataset) == []
    assert (read(dataset, at(dataset, 4)).equals(expected[4]), reading()) == (True, [0, 6])
    assert len(kept(dataset)) == 1
    assert (read(dataset, at(dataset, 5)).equals(expected[5]), reading()) == (True, ["state", 12])
    (dataset.folder / "info" / "states" / kept(dataset)[0].name).unlink()
    assert (read(dataset).equals(expected[6]), reading()) == (True, ["state", 18])
    assert (read(dataset).equals(expected[6]), reading()) == (True, [])
    few = read_cached_state(dataset, at(dataset), KEY, ["a", "k"])
    assert (few.equals(expected[6].select(["a", "k"])), reading()) == (True, [])
    whole = ws["d"].state().to_arrow()
    assert (whole.equals(expected[6]), reading()) == (True, [])


@pytest.mark.parametrize(
    "spoilt",
    [{"key": ("a",)}, {"upto": 99}, "missing", "damaged"],
    ids=["key", "future", "missing", "damaged"],
)
def test_a_checkpoint_of_another_key_or_none_is_passed_over(
    ws: odf.Workspace, monkeypatch: pytest.MonkeyPatch, spoilt: Any
) -> None:
    dataset = history(ws, 2)
    path = with_checkpoint(dataset, changes(2), **(spoilt if isinstance(spoilt, dict) else {}))
    if spoilt == "missing":
        path.unlink()
    elif spoilt == "damaged":
        path.write_bytes(path.read_bytes() + b"x")
    reading = Reading(monkeypatch)
    assert read(dataset).equals(read_state(dataset, at(dataset), KEY))
    assert reading() == [0, 6, 12]


def test_a_column_that_came_later_is_null_in_a_state_that_was_kept_before(
    ws: odf.Workspace, keeping: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = history(ws, 2)
    read(dataset)
    wider = (*branch_rows.COLUMNS, pa.field("c", pa.string()))
    branch_rows.give_columns(dataset, wider)
    reading = Reading(monkeypatch)
    found = read(dataset)
    assert (found["c"].null_count, len(kept(dataset)), reading()) == (len(found), 1, [])
    branch_rows.record(dataset, [("+A", 0, "z", "", "", "new")], wider)
    assert read(dataset).equals(read_state(dataset, at(dataset), KEY))
    assert reading() == ["state", 12]


@pytest.mark.soak
def test_case_40_spark_finds_the_same_state(ws: odf.Workspace, engine: SparkEngine) -> None:
    dataset = history(ws)
    with on_spark(ws, engine):
        found = ws["d"].state().to_spark().toArrow().sort_by("offset")
    assert found.to_pylist() == read(dataset).to_pylist()


@pytest.mark.usefixtures("keeping")
@pytest.mark.parametrize("how", ["a byte", "cut", "empty", "gone", "another name", "a folder"])
def test_case_41_a_damaged_state_is_computed_anew(ws: odf.Workspace, how: str) -> None:
    dataset = history(ws)
    expected = read(dataset)
    (file,) = kept(dataset)
    content = file.read_bytes()
    file.unlink()
    match how:
        case "a byte":
            file.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
        case "cut":
            file.write_bytes(content[:-1])
        case "empty":
            file.write_bytes(b"")
        case "another name":  # the right bytes of something that is no state
            (file.parent / "x").write_bytes(b"text")
            name, _ = hash_file(file.parent / "x")
            (file.parent / "x").rename(file.with_name(f"{file.name.rpartition('.')[0]}.{name}"))
        case "a folder":
            file.mkdir()
    assert read(dataset).equals(expected)
    assert [path.read_bytes() for path in kept(dataset) if path.is_file()] in ([content], [])
    assert read(dataset).equals(expected)


@pytest.mark.usefixtures("keeping")
def test_states_that_were_used_least_recently_go_first(ws: odf.Workspace) -> None:
    dataset = history(ws, 4)
    for number in (3, 4, 5):
        read(dataset, at(dataset, number))

    def size() -> int:
        return sum(path.stat().st_size for path in kept(dataset))

    most, hashes = size(), dataset.chain.hashes(dataset.chain.head())
    by_block = {n: next(p for p in kept(dataset) if p.name.startswith(str(hashes[n]))) for n in (3, 4, 5)}
    for age, number in enumerate((5, 4, 3)):
        os.utime(by_block[number], (age, age))
    read(dataset, at(dataset, 5))  # it was the oldest; now it is the youngest
    read(dataset, at(dataset, 6), most=most)
    assert (by_block[5].exists(), by_block[4].exists(), size() <= most) == (True, False, True)


@pytest.mark.usefixtures("keeping")
def test_nothing_is_kept_that_is_too_large_or_not_wanted(ws: odf.Workspace) -> None:
    dataset = history(ws)
    for most in (0, 10):
        read(dataset, most=most)
        assert kept(dataset) == []
    read_cached_state(dataset, at(dataset), KEY, ["a"])  # not all of it was read
    assert kept(dataset) == []


def test_few_rows_are_not_worth_keeping(ws: odf.Workspace) -> None:
    dataset = history(ws)
    read(dataset)
    assert kept(dataset) == []


@pytest.mark.usefixtures("keeping")
def test_a_cache_that_cannot_be_written_does_not_stop_the_work(ws: odf.Workspace) -> None:
    dataset = history(ws)
    (dataset.folder / "info" / "states").write_text("no folder")
    assert read(dataset).equals(read_state(dataset, at(dataset), KEY))


@pytest.mark.usefixtures("keeping")
def test_queries_use_them_and_proofs_and_verification_do_not(ws: odf.Workspace) -> None:
    dataset = history(ws)
    query = Query("select * from state('d') order by \"offset\"", Pins(ws._files))
    engine = embedded(ws).engine  # in this process, where states of few rows are worth keeping
    expected = engine.run(query).to_arrow()
    (file,) = kept(dataset)
    with opened_files(file.parent) as seen:
        assert engine.run(query).to_arrow().equals(expected)
    assert file.name in seen
    with opened_files(file.parent) as seen:
        assert Embedded().run(query).to_arrow().equals(expected)
        ws["d"].verify()
    assert seen == []


@pytest.mark.usefixtures("keeping")
def test_garbage_collection_empties_it(ws: odf.Workspace) -> None:
    dataset = history(ws)
    expected = read(dataset)
    (file,) = kept(dataset)
    (garbage,) = [each for each in collect(dataset).removed if each.kind == "states"]
    assert (garbage.files, kept(dataset), file.exists()) == (1, [], False)
    assert read(dataset).equals(expected)
