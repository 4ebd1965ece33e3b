"""Every change of one row: what it was, what it became, and which branch it came from."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import odfchain as odf
from odfchain.api.queries import checked_slices
from odfchain.branches import row_history
from odfchain.branches.corrections import rows_of_keys
from odfchain.branches.diff import Change
from odfchain.branches.key_lookup import groups_with
from odfchain.branches.row_history import RowHistory
from odfchain.errors import SliceNotFoundError
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.slices.footers import ColumnStats, FileStats
from odfchain.slices.reader import open_parquet
from odfchain.slices.skipping import may_match, with_any_of
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import MergeMode, MergeRecord
from odfchain.workspace.read_slices import columns_of
from tests.kit import branch_rows
from tests.kit.branch_cases import run_here
from tests.kit.branch_rows import Row
from tests.kit.root_rows import staged_slice

IATA = (pa.field("iata", pa.string()), pa.field("name", pa.string()), pa.field("elevation", pa.int64()))


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[odf.Workspace]:
    with odf.init(tmp_path / "ws") as workspace:
        yield workspace


def airports(workspace: odf.Workspace) -> DatasetFiles:
    dataset = branch_rows.keyed(workspace, ("iata",), IATA)
    branch_rows.record(dataset, [("+A", 0, "GVA", "Geneva", 1411), ("+A", 0, "ZRH", "Zurich", 1416)], IATA)
    return dataset


def merge(
    target: DatasetFiles, source: DatasetFiles, base: Multihash, rows: list[Row],
    mode: MergeMode = MergeMode.MERGE,
) -> Multihash:  # fmt: skip
    """A block of these rows that says that it merged a branch."""
    state = DatasetState.read(target.chain)
    head = source.chain.head()
    record = MergeRecord(base=(base,), source=head, source_ref=source.ref, target=state.head, mode=mode)
    with target.staging() as folder:
        new, staged = staged_slice(folder, branch_rows.table_of(target, rows, IATA))
        event = ev.AddData(
            prev_offset=state.last_offset, new_data=new, new_watermark=state.watermark,
            new_source_state=record.to_state(),
        )  # fmt: skip
        return commit(target, state, [event], [staged], system_time=state.next_system_time())[-1]


def said(workspace: odf.Workspace, *words: str) -> list[str]:
    """The lines of a table, without system times."""
    result = run_here(workspace)("history", *words)
    assert result.code == 0, result.err
    return [" ".join(line.split()) for line in result.out.splitlines()]


def test_changes_newest_first_and_where_a_merge_has_them_from(ws: odf.Workspace) -> None:
    dataset = airports(ws)
    base = dataset.chain.head()
    fix = branch_rows.branch(dataset, "fix-names")
    origin = branch_rows.record(
        fix, [("-C", 0, "ZRH", "Zurich", 1416), ("+C", 0, "ZRH", "Zürich", 1416)], IATA
    )
    branch_rows.record(dataset, [("-C", 0, "ZRH", "Zurich", 1416), ("+C", 0, "ZRH", "Zurich", 1417)], IATA)
    merge(dataset, fix, base, [("-C", 0, "ZRH", "Zurich", 1417), ("+C", 0, "ZRH", "Zürich", 1417)])
    found = ws["d"].history({"iata": "ZRH"})
    assert [(c.change, c.columns, c.offset, c.sequence_number) for c in found] == [
        (Change.CHANGED, ("name",), 5, 5),
        (Change.CHANGED, ("elevation",), 3, 4),
        (Change.INSERTED, (), 1, 3),
    ]
    assert (found[0].before["name"], found[0].after["name"]) == ("Zurich", "Zürich")
    assert [c.via for c in found] == [row_history.ChangeOrigin("fix-names", origin, 3), None, None]
    assert found == ws["d"].at(5).history({"iata": "ZRH"})
    times = [str(c.system_time) for c in found]
    assert said(ws, "d", "iata=ZRH") == [
        "block system time change via",
        f"5 {times[0]} name Zurich → Zürich fix-names {str(origin)[:7]}…#3",
        f"4 {times[1]} elevation 1416 → 1417",
        f"3 {times[2]} inserted",
    ]
    assert said(ws, "d@4", "iata=ZRH", "-n", "1")[1:] == [f"4 {times[1]} elevation 1416 → 1417"]
    (line,) = run_here(ws)("history", "d", "iata=ZRH", "-n1", "-o", "ndjson").out.splitlines()
    shown, before = (
        json.loads(line),
        {"event_time": "2026-01-01T00:00:00Z", "name": "Zurich", "elevation": 1417},
    )
    expected = {"block": 5, "change": "changed", "columns": ["name"], "from": before}
    assert {name: shown[name] for name in expected} == expected
    assert shown["via"] == {"branch": "fix-names", "block": str(origin), "offset": 3}


def test_slices_that_cannot_have_the_key_are_not_opened(ws: odf.Workspace) -> None:
    dataset = airports(ws)
    branch_rows.record(dataset, [("+A", 0, "AAA", "Anaa", 10), ("+A", 0, "ABC", "Albacete", 20)], IATA)
    branch_rows.record(dataset, [("-C", 0, "ZRH", "Zurich", 1416), ("+C", 0, "ZRH", "Zürich", 1416)], IATA)
    found = ws["d"].history({"iata": "ZRH"})
    asked = pa.table({"iata": ["ZRH", "ZZZ"]})
    state = ws["d"].summary
    schema = columns_of(state, ["iata", "name"])
    rows, there = rows_of_keys(dataset, state, asked, ["iata"], schema)
    path = Path(dataset.data.locate(state.slices()[1].slice.physical_hash))
    path.unlink()
    assert ws["d"].history({"iata": "ZRH"}) == found
    assert rows_of_keys(dataset, state, asked, ["iata"], schema)[0] == rows
    assert there.tolist() == [True, False]
    with pytest.raises(SliceNotFoundError):
        ws["d"].history({"iata": "AAA"})


def test_merges_of_merges_lead_to_the_block_that_made_the_change(ws: odf.Workspace) -> None:
    dataset = airports(ws)
    base = dataset.chain.head()
    one, two = (branch_rows.branch(dataset, name) for name in ("one", "two"))
    pair: list[Row] = [("-C", 0, "ZRH", "Zurich", 1416), ("+C", 0, "ZRH", "Zürich", 1416)]
    origin = branch_rows.record(one, pair, IATA)
    branch_rows.record(one, [("+A", 0, "LUG", "Lugano", 279)], IATA)
    merge(two, one, base, [*pair, ("+A", 0, "LUG", "Lugano", 279)])
    merged = merge(dataset, two, base, [*pair, ("+A", 0, "LUG", "Lugano", 279)])
    (newest, _) = ws["d"].history({"iata": "ZRH"})
    assert newest.via == row_history.ChangeOrigin("one", origin, 3)
    # a block that is not here ends the way
    (dataset.folder / "blocks" / str(origin)).unlink()
    (newest, _) = ws["d"].history({"iata": "ZRH"})
    assert newest.via.branch == "two"
    merge(dataset, dataset, merged, [("-C", 0, "ZRH", "Zürich", 1416), ("+C", 0, "ZRH", "Zurich", 1416)],
          MergeMode.REVERT)  # fmt: skip
    assert said(ws, "d", "iata=ZRH")[1].endswith(f"name Zürich → Zurich revert of {str(merged)[:7]}…")


def test_what_is_no_key(ws: odf.Workspace) -> None:
    airports(ws)
    run = run_here(ws)
    for words, message in {
        ("name=Zurich",): "the primary key is iata, not name",
        ("iata=ZRH", "name=x"): "the primary key is iata, not iata, name",
        ("ZRH",): "is not COL=VALUE",
        ("iata=a", "iata=b"): "given twice",
    }.items():
        result = run("history", "d", *words)
        assert (result.code, message in result.err) == (2, True), result.err
    assert ws["d"].history({"iata": "XXX"}) == []
    assert "no row with this key" in run("history", "d", "iata=XXX").err
    branch_rows.keyed(ws, ("n",), (pa.field("n", pa.int64()),), name="numbers")
    with pytest.raises(odf.errors.UsageError, match="is not a value of type int64"):
        ws["numbers"].history({"n": "1.5"})
    branch_rows.keyed(ws, (), name="log")
    with pytest.raises(odf.errors.UsageError, match="no primary key"):
        ws["log"].history({"k": "a"})
    branch_rows.record(ws["log"]._files, [("+A", 0, "a")])
    newest = next(iter(ws["log"].log(1))).block.sequence_number
    done = run("revert", "log", str(newest))
    assert (done.code, "no primary key" in done.err) == (2, True)
    assert f"hint: `odfchain reset log {newest - 1}`" in done.err
    branch_rows.keyed(ws, columns=None, name="empty")
    assert ws["empty"].history({"k": "a"}) == []


KEYED = (pa.field("k", pa.float64()), pa.field("s", pa.string()), pa.field("v", pa.int64()))
KEYS = [(k, s) for k in (None, 0.0, -0.0, 1.5, float("nan")) for s in (None, "", "a")]


def alike(key: tuple[Any, Any]) -> str:
    """The same text for equal keys."""
    return repr((0.0 if key[0] == 0 else key[0], key[1]))


def walked(rows: list[Row], key: tuple[Any, Any]) -> list[tuple[str, int | None, int | None, int]]:
    """(change, value before, value after, offset) of a key, found row by row."""
    found: list[tuple[str, int | None, int | None, int]] = []
    current: tuple[int] | None = None
    pending: tuple[int, int] | None = None
    for offset, (op, _, k, s, v) in enumerate(rows):
        if alike((k, s)) != alike(key):
            continue
        if pending is not None and op in ("-R", "-C"):
            found.append(("removed", pending[0], None, pending[1]))
        if op == "-C":
            pending, current = (v, offset), None
            continue
        if op == "-R":
            found.append(("removed", v, None, offset))
            current = None
        else:
            before = pending[0] if pending else current[0] if current else None
            found.append(("inserted" if before is None else "changed", before, v, offset))
            current = (v,)
        pending = None
    if pending is not None:
        found.append(("removed", pending[0], None, pending[1]))
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 6))])
def test_histories_are_what_a_walk_finds(ws: odf.Workspace, seed: int) -> None:
    rng = random.Random(seed)
    dataset = branch_rows.keyed(ws, ("k", "s"), KEYED)
    rows: list[Row] = []
    for _ in range(5):
        block: list[Row] = []
        for _ in range(rng.randrange(1, 20)):
            op = rng.choice(["+A", "-R", "-C", "+C"])
            block.append((op, rng.randrange(3), *rng.choice(KEYS), rng.randrange(4)))
        branch_rows.record(dataset, block, KEYED)
        rows += block
    history = RowHistory(dataset, DatasetState.read(dataset.chain))
    locate = checked_slices(ws).located(dataset)
    whole: dict[str, list[Any]] = {}
    offsets = []
    for row in history.changes(locate).to_pylist():
        change = (
            row["change"],
            row["from"] and row["from"]["v"],
            row["to"] and row["to"]["v"],
            row["offset"],
        )
        whole.setdefault(alike((row["k"], row["s"])), []).append(change)
        offsets.append(row["offset"])
    assert offsets == sorted(offsets)
    for key in KEYS:
        named = dict(zip(("k", "s"), key, strict=True))
        found = history.of(named, locate=locate)
        told = [
            (c.change.value, c.before and c.before["v"], c.after and c.after["v"], c.offset) for c in found
        ]
        assert told[::-1] == whole.get(alike(key), []) == walked(rows, key)
        for limit in (0, 1, 3) if key[1] == "a" else ():
            assert history.of(named, limit=limit, locate=locate) == found[:limit]
    assert whole.keys() <= set(map(alike, KEYS))


@pytest.mark.parametrize(
    ("values", "sought", "groups"),
    [
        (pa.array([1, 2, 3, 9, 5, 6]), 5, [1, 2]),
        (pa.array([1, 2, None, None, 5, None]), None, [1, 2]),
        (pa.array(["a", "b", "c", "d", "e", "f"]), "d", [1]),
        (pa.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), 5.0, [0, 1, 2]),  # NaN is in no bounds
        (pa.array([True, True, False, False, False, True]), True, [0, 2]),
    ],
)
def test_row_groups_that_cannot_have_a_key(
    tmp_path: Path, values: pa.Array, sought: Any, groups: list[int]
) -> None:
    pq.write_table(pa.table({"k": values}), tmp_path / "file", row_group_size=2)
    condition = with_any_of("k", pa.array([sought], values.type), values.type)
    with open_parquet(tmp_path / "file") as file:
        assert list(groups_with(file, condition, ["k"])) == [(group, 2 * group) for group in groups]


@pytest.mark.parametrize(
    ("low", "high", "text", "expected"),
    [
        ("b", "c", "a", False),
        ("b", "c", "d", False),
        ("b", "c", "c", True),
        ("b", "ü", "z", True),  # in order of bytes
    ],
)
def test_each_of_a_few_texts_is_looked_for(low: str, high: str, text: str, expected: bool) -> None:
    bounds = FileStats(1, (ColumnStats("k", pa.string(), 0, low, high),))
    for sought in ([text], ["", text], ["", text, "\U0001f40d"]):
        condition = with_any_of("k", pa.array(sought), pa.string())
        assert may_match(bounds, condition) == expected, sought
    many = with_any_of("k", pa.array(["", *([text] * 100)]), pa.string())
    assert may_match(bounds, many) or not expected


def test_only_row_groups_that_may_have_the_key_are_decoded(
    ws: odf.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = airports(ws)
    branch_rows.record(dataset, [("+A", 0, "XXX", "x", 1)], IATA)
    read: list[int] = []
    batches = row_history.slice_batches

    def spy(*args: Any, **options: Any) -> Any:
        read.append(args[2].start)
        return batches(*args, **options)

    monkeypatch.setattr(row_history, "slice_batches", spy)
    assert len(ws["d"].history({"iata": "GVA"})) == 1
    assert read == [0]
