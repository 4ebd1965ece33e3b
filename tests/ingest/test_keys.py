"""Keys of an input: copies, contradictions and nulls, against an oracle row by row and on the command line (RFC-009)."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import BadInputError
from odfchain.ingest.merge_strategies import NewRows, Policies, RefusedInputError, State
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.sources import (
    MergeStrategy,
    MergeStrategyLedger,
    MergeStrategySnapshot,
    MergeStrategyUpsertStream,
)
from odfchain.workspace import read_slices
from odfchain.workspace.config import DuplicateKeys
from tests.kit.support import Result, manifest, unchanged

KEY = ("a", "b")
SEEDS = {"ci": 2, "local": 20, "soak": 100, "deep": 400}[os.environ.get("HYPOTHESIS_PROFILE", "ci")]
STRATEGIES: dict[str, MergeStrategy] = {
    "ledger": MergeStrategyLedger(primary_key=KEY),
    "snapshot": MergeStrategySnapshot(primary_key=KEY),
    "upsert": MergeStrategyUpsertStream(primary_key=KEY),
}


class Record(NamedTuple):
    """A row of the input: event time, a key of two parts, a value."""

    t: int | None
    a: str | None
    b: float | None
    v: int | None


Rows = list[tuple[int, Record]]
"""Rows of a dataset: operation and record."""


# --- the oracle ------------------------------------------------------------------------------------


def key_of(row: Record) -> tuple[object, object]:
    if row.b is None:
        return row.a, None
    return row.a, "NaN" if math.isnan(row.b) else row.b + 0.0


def place(row: Record) -> tuple[object, ...]:
    """Order of keys: nulls first, NaN last."""
    b = row.b
    return (
        (row.a is not None, row.a or ""),
        (b is not None, b is not None and math.isnan(b), 0.0 if b is None or math.isnan(b) else b),
    )


def kept(rows: Iterable[Record], duplicates: DuplicateKeys, *, stream: bool) -> list[Record] | None:
    """One row for each key in the order of the input; None when the input is refused."""
    found: dict[object, tuple[int, Record]] = {}
    for index, row in enumerate(rows):
        key = key_of(row)
        if key == (None, None):
            return None
        if key not in found or stream or duplicates is DuplicateKeys.LAST:
            found[key] = index, row
        elif duplicates is DuplicateKeys.REFUSE and (row.t, row.v) != (found[key][1].t, found[key][1].v):
            return None
    return [row for _, row in sorted(found.values(), key=lambda item: item[0])]


def oracle(strategy: str, history: Rows, new: list[Record], duplicates: DuplicateKeys) -> Rows | None:
    rows = kept(new, duplicates, stream=strategy == "upsert")
    if rows is None:
        return None
    if strategy == "ledger":
        seen = {key_of(row) for _, row in history}
        fresh = [row for row in rows if key_of(row) not in seen]
        return [(0, row) for row in sorted(fresh, key=lambda row: (row.t is not None, row.t or 0))]
    state = {key_of(row): (op, row) for op, row in history}
    in_force = {key: row for key, (op, row) in state.items() if op != 1}
    out: Rows = []
    for row in rows:
        old = in_force.pop(key_of(row), None)
        if old is None:
            out.append((0, row))
        elif row.v != old.v or (row.t is not None and row.t != old.t):
            out += [(2, old), (3, row)]
    if strategy == "snapshot":
        out += [(1, old) for old in in_force.values()]
    return sorted(out, key=lambda item: (place(item[1]), item[0]))


# --- against the merge -----------------------------------------------------------------------------

SCHEMA = pa.schema(
    [("t", TIME := pa.timestamp("ms", "UTC")), ("a", pa.string()), ("b", pa.float64()), ("v", pa.int64())]
)
SYSTEM = pa.schema([("offset", pa.uint64()), ("op", pa.uint8())])
NO_TIME = -1


def table(rows: list[Record]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(v, pa.int64() if f.type == TIME else f.type).cast(f.type)
              for v, f in zip(columns, SCHEMA, strict=True)]  # fmt: skip
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def merged(strategy: str, history: Rows, new: list[Record], duplicates: DuplicateKeys) -> Rows | None:
    vocabulary = DatasetVocabulary(event_time_column="t")
    policies = Policies(NO_TIME, duplicates)
    given = NewRows(table(new), np.arange(len(new)) + 1, vocabulary, policies)
    recorded = None
    if history:
        old = table([row for _, row in history])
        system = [pa.array(range(len(old)), pa.uint64()), pa.array([op for op, _ in history], pa.uint8())]
        rows = pa.table([*system, *old.columns], names=[*SYSTEM.names, *SCHEMA.names]).to_batches(3)
        recorded = State.of(rows, STRATEGIES[strategy], vocabulary)
    try:
        found = given.merged(STRATEGIES[strategy], recorded)
    except RefusedInputError:
        return None
    rows = found.columns(["op", *SCHEMA.names], found.in_order())
    times = rows["t"].cast(pa.int64()).to_pylist()
    return [
        (row["op"], Record(None if time == NO_TIME else time, row["a"], row["b"], row["v"]))
        for row, time in zip(rows.drop_columns(["t"]).to_pylist(), times, strict=True)
    ]


def shown(rows: Rows | None) -> object:
    """Rows as they can be compared: NaN is equal to itself, and the sign of zero does not matter."""
    return rows and [(op, row.t, key_of(row), row.v) for op, row in rows]


@pytest.mark.hypothesis  # a property, though not by that library: `make soak` runs it longer
@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_like_an_oracle_row_by_row(strategy: str, seed: int) -> None:
    rng = random.Random(f"{strategy} {seed}")
    history: Rows = []
    written = refused = 0
    for step in range(4):
        pool = [
            Record(rng.choice([None, 1, 2]), rng.choice([None, "x", "y"]), b, rng.choice([None, 1]))
            for b in rng.choices([None, 0.0, -0.0, 1.5, math.nan], k=6)
        ]
        new = [row for row in pool if key_of(row) != (None, None) or rng.random() < 0.1]
        new += rng.choices(new or pool, k=rng.randrange(4))
        duplicates = rng.choice(list(DuplicateKeys)) if step else DuplicateKeys.FIRST
        expected = oracle(strategy, history, new, duplicates)
        found = merged(strategy, history, new, duplicates)
        assert shown(found) == shown(expected), (history, new, duplicates)
        history += found or []
        written, refused = written + bool(found), refused + (found is None)
    assert written, "a test of refusals alone"


# --- as a user sees it -----------------------------------------------------------------------------

LEDGER = "{kind: Ledger, primaryKey: [country, city]}"
COLUMNS_DDL = '["event_time TIMESTAMP", "country STRING", "city STRING", "population BIGINT"]'
HEADER = "event_time,country,city,population\n"


def dataset_of(workspace: Workspace, merge: str = LEDGER, columns: str = COLUMNS_DDL) -> Dataset:
    (dataset,) = workspace.add(manifest(merge, columns))
    return dataset


def rows_of(dataset: Dataset) -> list[tuple[Any, ...]]:
    return [
        tuple(row.values())
        for row in dataset.scan(["op", "country", "city", "population"]).to_arrow().to_pylist()
    ]


def test_copies_and_contradictions(
    workspace: Workspace, tmp_path: Path, run_cli: Callable[..., Result]
) -> None:
    dataset = dataset_of(workspace)
    run = ("-w", dataset.path.parent.parent.parent, "ingest", "cities")
    path = tmp_path / "in.csv"
    path.write_text(HEADER + "2020-01-01,CA,A,1\n2020-01-02,,A,2\n2020-01-01,CA,A,1\n2020-01-02,,A,2\n")
    done = run_cli(*run, path)
    assert done.code == 0, done.err
    assert "in.csv: rows that are copies of others in every column: 2; each is recorded once" in done.err
    assert rows_of(dataset) == [(0, "CA", "A", 1), (0, None, "A", 2)]
    assert run_cli(*run, path).code == 0
    assert len(rows_of(dataset)) == 2, "a key with a null in it is known as well"
    path.write_text(HEADER + "2020-01-03,CA,B,3\n2020-01-03,,B,4\n2020-01-03,,B,5\n")
    with unchanged(dataset.path):
        done = run_cli(*run, path)
    assert done.code == 3
    assert (
        "in.csv: row 3: primary key (country=None, city='B') occurs twice: also in row 2 "
        "with other values (population=4 there, population=5 here)\n"
        "hint: --duplicate-keys first or last keeps one of them" in done.err
    )
    done = run_cli(*run, path, "--duplicate-keys", "last")
    assert "in.csv: rows with a key of another row and other values: 1; the last was kept" in done.err
    assert rows_of(dataset)[2:] == [(0, "CA", "B", 3), (0, None, "B", 5)]
    path.write_text(HEADER + "2020-01-04,CA,C,6\n2020-01-04,CA,C,7\n2020-01-05,,,8\n")
    done = run_cli(*run, path, "--duplicate-keys", "first")
    assert (done.code, "in.csv: row 3: primary key (country, city) has only nulls" in done.err) == (3, True)
    (dataset.path.parent.parent / "config.yaml").write_text(
        "kind: WorkspaceConfig\nversion: 1\ncontent: {ingest: {duplicateKeys: first}}\n"
    )
    path.write_text(HEADER + "2020-01-04,CA,C,6\n2020-01-04,CA,C,7\n")
    assert run_cli(*run, path).code == 0
    assert rows_of(dataset)[4:] == [(0, "CA", "C", 6)]
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
    from odfchain.odf.times import Timestamp

    dataset = dataset_of(workspace, "{kind: Ledger, primaryKey: [event_time, city]}", COLUMNS_DDL)
    path = tmp_path / "in.csv"
    path.write_text(HEADER + ",CA,A,1\n2020-01-01,CA,A,2\n")
    day = [Timestamp.parse(f"2020-01-0{n}T00:00:00Z") for n in (1, 2)]
    assert not dataset.ingest([path], event_time=day[1]).up_to_date
    assert dataset.ingest([path], event_time=day[1]).up_to_date
    with pytest.raises(BadInputError, match=r"row 2: primary key \(event_time=.*, city='A'\) occurs twice"):
        dataset.ingest([path], event_time=day[0])


def test_values_of_a_contradiction_are_shown_as_they_are_written(
    workspace: Workspace, tmp_path: Path
) -> None:
    columns = '["u UUID", "t TIMESTAMP(6)", "d DECIMAL(5,2)", "s STRING", "n INT"]'
    dataset = dataset_of(workspace, "{kind: Snapshot, primaryKey: [u, t, d, s]}", columns)
    path = tmp_path / "in.csv"
    row = "123e4567-e89b-12d3-a456-426614174000,2020-01-01T10:00:00.123456Z,1.5,x,"
    path.write_text(f"u,t,d,s,n\n{row}1\n{row}\n")
    with pytest.raises(BadInputError) as caught:
        dataset.ingest([path])
    assert (
        "(u=123e4567-e89b-12d3-a456-426614174000, t=2020-01-01 10:00:00.123456, d=1.50, s='x') occurs twice: "
        "also in row 1 with other values (n=1 there, n=None here)" in str(caught.value)
    )


def test_columns_may_have_any_name_that_is_not_reserved(workspace: Workspace, tmp_path: Path) -> None:
    names = ["__rank", "__op", "__row", "__bad"]
    dataset = dataset_of(
        workspace,
        "{kind: Snapshot, primaryKey: [__rank]}",
        str([f"{n} INT" for n in names]).replace("'", '"'),
    )
    path = tmp_path / "in.csv"
    for value in (1, 2):
        path.write_text(f"{','.join(names)}\n1,{value},5,5\n")
        dataset.ingest([path])
    assert dataset.scan(names).to_arrow().to_pylist()[-1] == dict(zip(names, (1, 2, 5, 5), strict=True))


def test_a_first_record_is_no_list_of_names(workspace: Workspace, tmp_path: Path) -> None:
    source = manifest(schema='["a STRING", "b STRING"]').replace("header: true", "header: false")
    (dataset,) = workspace.add(source)
    path = tmp_path / "in.csv"
    path.write_text("x,x\n__odfchain_row,y\n")
    assert dataset.ingest([path]).inputs[0].rows == 2
