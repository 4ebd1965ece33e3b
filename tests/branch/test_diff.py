"""Diffs of points: against brute force on random histories, and what they say where somebody lies."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.branch.block_graph import BlockGraph
from odfchain.branch.computing import Engine
from odfchain.branch.diffing import Change, Diff, diff
from odfchain.errors import ChainError, SchemaError
from odfchain.ids.multihash import Multihash
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.points import opened_at
from odfchain.repo.read_slices import read_state
from tests.kit.branch_rows import COLUMNS, Row, branch, give_columns, keyed, record
from tests.kit.opened_files import opened_files


def no_spark() -> Any:
    raise AssertionError("Spark is not needed")


HERE = Engine(no_spark)


def between(
    dataset: DatasetFiles, a: Multihash, b: Multihash, *, trusted: bool = True, engine: Engine = HERE
) -> Diff:
    one, other = (opened_at(dataset, block) for block in (a, b))
    return diff(one, other, graph=BlockGraph(dataset), trusted=lambda *_: trusted, engine=engine)


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[DatasetFiles]:
    with odf.init(tmp_path / "workspace") as workspace:
        yield keyed(workspace)


def head_of(dataset: DatasetFiles) -> Multihash:
    head = dataset.chain.head()
    assert head is not None
    return head


# --- random histories ------------------------------------------------------------------------------------

PAIRS = pa.struct([("x", pa.string()), ("y", pa.int64())])
WIDE = (
    pa.field("k", pa.float64()), pa.field("n", pa.string()), pa.field("a", pa.string()), pa.field("b", pa.float64()),
    pa.field("s", PAIRS), pa.field("m", pa.list_(pa.int64())),
)  # fmt: skip
KEY = ("k", "n")
VALUES: dict[str, list[Any]] = {
    "k": [None, 0.0, 1.5, math.nan],
    "n": ["", "é", "z", None],
    "a": [None, "x", "y", ""],
    "b": [None, 0.0, -0.0, math.nan, 2.0],
    "s": [None, {"x": "p", "y": None}, {"x": None, "y": 1}],
    "m": [None, [], [1, None], [2]],
}


def plain(value: Any) -> Any:
    """Equal where two cells are."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dict):
        return tuple((name, plain(part)) for name, part in value.items())
    return tuple(value) if isinstance(value, list) else value


State = dict[tuple[Any, ...], Row]
"""By key: the day of the event time and the values."""


def some_rows(rng: random.Random, state: State) -> list[Row]:
    """Rows of a block, as an honest writer records them; the state goes along."""
    rows: list[Row] = []
    for _ in range(rng.randint(1, 6)):
        values = [rng.choice(VALUES[name]) for name in VALUES]
        key, row = tuple(map(plain, values[:2])), (rng.randint(1, 5), *values)
        old = state.get(key)
        if old is None:
            rows.append(("+A", *row))
            state[key] = row
        elif rng.random() < 0.4:
            rows.append(("-R", *old))
            del state[key]
        else:
            rows += [("-C", *old), ("+C", *row)]
            state[key] = row
    return rows


def history(workspace: odf.Workspace, rng: random.Random) -> tuple[DatasetFiles, dict[Multihash, State]]:
    """A dataset with branches from anywhere, and the state at each of its blocks with data."""
    dataset = keyed(workspace, KEY, WIDE)
    states: dict[Multihash, State] = {head_of(dataset): {}}
    branches = [dataset]
    for number in range(rng.randint(3, 12)):
        if rng.random() < 0.3:
            branches.append(branch(dataset, f"b-{number}", rng.choice(list(states))))
        on = rng.choice(branches)
        state = dict(states[head_of(on)])
        states[record(on, some_rows(rng, state), WIDE)] = state
    return dataset, states


def brute_force(before: State, after: State) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """By key: what happens to it, the rows, and the columns that change."""
    found: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    names = ["event_time", *VALUES]
    for key in before.keys() | after.keys():
        old, new = before.get(key), after.get(key)
        if old is None or new is None:
            found[key] = ("inserted" if old is None else "removed", shown(old), shown(new), ())
            continue
        columns = [name for name, o, n in zip(names, old, new, strict=True) if plain(o) != plain(n)]
        if changed := tuple(name for name in columns if name not in KEY):
            found[key] = ("changed", shown(old), shown(new), changed)
    return found


def shown(row: Row | None) -> tuple[Any, ...] | None:
    return None if row is None else (row[0], *map(plain, row[3:]))


def as_found(changes: pa.Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """The same of a table of changes, in which every key is there once."""
    found = {}
    for row in changes.to_pylist():
        key = tuple(plain(row[name]) for name in KEY)
        assert key not in found
        sides = [
            side and (side["event_time"].day - 1, *(plain(side[n]) for n in list(VALUES)[2:]))
            for side in (row["from"], row["to"])
        ]
        found[key] = (row["change"], *sides, tuple(row["columns"]))
    return found


def applied(state: pa.Table, found: Diff) -> dict[tuple[Any, ...], Any]:
    """A state with the changes of a diff."""
    names = found.changes.schema.field("to").type.names
    result = {key_of(row): {name: row[name] for name in names} for row in state.to_pylist()}
    for row in found.changes.to_pylist():
        result.pop(key_of(row), None)
        if row["to"] is not None:
            result[key_of(row)] = row["to"]
    return {key: {n: plain(v) for n, v in row.items()} for key, row in result.items()}


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(plain(row[name]) for name in KEY)


def random_histories(folder: Path, seed: int, count: int, engine: Engine = HERE) -> None:
    rng = random.Random(seed)
    with odf.init(folder / "workspace") as workspace:
        dataset, states = history(workspace, rng)
        pairs = [(a, b) for a in states for b in states]
        for a, b in rng.sample(pairs, min(count, len(pairs))):
            for trusted in (True, False):
                found = between(dataset, a, b, trusted=trusted, engine=engine)
                assert as_found(found.changes) == brute_force(states[a], states[b]), (seed, trusted)
            before, after = (read_state(dataset, DatasetState.read(dataset.chain, at)) for at in (a, b))
            nothing = Diff(b, b, b, KEY, found.changes.slice(0, 0), 0, 0, 0)
            assert applied(before, found) == applied(after, nothing), seed


@pytest.mark.parametrize("seed", range(6))
def test_a_diff_is_what_brute_force_finds_and_leads_from_state_to_state(tmp_path: Path, seed: int) -> None:
    random_histories(tmp_path, seed, 5)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 300))
def test_a_diff_is_what_brute_force_finds_on_many_histories(tmp_path: Path, seed: int) -> None:
    random_histories(tmp_path, seed, 60)


# --- what is read, and what is said ----------------------------------------------------------------------


def test_what_one_side_did_and_what_both_did(dataset: DatasetFiles) -> None:
    """The example of two branches that both changed ZRH."""
    columns = (
        pa.field("iata", pa.string()),
        pa.field("name", pa.string()),
        pa.field("elevation", pa.int64()),
    )
    with odf.init(dataset.folder.parent / "airports") as workspace:
        head = keyed(workspace, ("iata",), columns)
        record(
            head,
            [
                ("+A", 1, "ZRH", "Zurich", 1416),
                ("+A", 1, "XXA", "Ghost", 0),
                ("+A", 1, "GVA", "Geneva", 1411),
            ],
            columns,
        )
        fork = record(head, [("+A", 1, "LUG", "Lugano", 900)], columns)
        fix = branch(head, "fix-names")
        record(
            fix,
            [
                ("-C", 1, "ZRH", "Zurich", 1416),
                ("+C", 1, "ZRH", "Zürich", 1416),
                ("-R", 1, "XXA", "Ghost", 0),
            ],
            columns,
        )
        record(
            head,
            [
                ("-C", 1, "ZRH", "Zurich", 1416),
                ("+C", 1, "ZRH", "Zurich", 1417),
                ("-C", 1, "GVA", "Geneva", 1411),
                ("+C", 1, "GVA", "Genève", 1411),
            ],
            columns,
        )
        with opened_files(head.folder / "data") as opened:
            found = between(head, head_of(head), head_of(fix))
        later = [s.slice.physical_hash for s in DatasetState.read(head.chain).slices()[-1:]]
        later += [s.slice.physical_hash for s in DatasetState.read(fix.chain).slices()[-1:]]
        one = between(head, fork, head_of(fix))
    assert set(opened) == set(map(str, later)), "a slice at or before the fork was opened"
    assert [(row["iata"], row["change"], row["columns"]) for row in found.changes.to_pylist()] == [
        ("GVA", "changed", ["name"]), ("XXA", "removed", []), ("ZRH", "changed", ["name", "elevation"]),
    ]  # fmt: skip
    assert found.counts == {Change.INSERTED: 0, Change.CHANGED: 2, Change.REMOVED: 1}
    assert found.changed_columns == {"name": 2, "elevation": 1}
    assert found.fork == fork
    assert [(row["iata"], row["columns"]) for row in one.changes.to_pylist()] == [
        ("XXA", []),
        ("ZRH", ["name"]),
    ]


def test_what_is_compared_may_be_huge_but_for_what_changed(dataset: DatasetFiles) -> None:
    """No slice at or before the fork is there any more, and nobody asks for it: case 67."""
    record(dataset, [("+A", 1, str(k), "x", "y") for k in range(50)])
    fix = branch(dataset, "fix")
    record(fix, [("-C", 1, "7", "x", "y"), ("+C", 1, "7", "x", "z")])
    record(dataset, [("-R", 1, "8", "x", "y")])
    for ref in DatasetState.read(dataset.chain).slices()[:1]:
        Path(dataset.data.locate(ref.slice.physical_hash)).unlink()
    found = between(dataset, head_of(dataset), head_of(fix))
    assert found.changes.select(["k", "change"]).to_pylist() == [
        {"k": "7", "change": "changed"}, {"k": "8", "change": "inserted"},
    ]  # fmt: skip


def test_two_bases_of_one_key_are_a_fault(dataset: DatasetFiles) -> None:
    record(dataset, [("+A", 1, "1", "x", "y")])
    fix = branch(dataset, "fix")
    record(fix, [("-C", 1, "1", "lie", "y"), ("+C", 1, "1", "x", "z")])
    record(dataset, [("-C", 1, "1", "x", "y"), ("+C", 1, "1", "q", "y")])
    with pytest.raises(ChainError, match="k = '1'") as caught:
        between(dataset, head_of(dataset), head_of(fix))
    assert caught.value.exit_code == 6
    # who does not believe what they say looks it up
    found = between(dataset, head_of(dataset), head_of(fix), trusted=False)
    assert found.changes["columns"].to_pylist() == [["a", "b"]]


def test_a_new_column_is_null_on_the_other_side(dataset: DatasetFiles) -> None:
    record(dataset, [("+A", 1, "1", "x", "y"), ("+A", 1, "2", "x", "y")])
    fix = branch(dataset, "fix")
    more = (*COLUMNS, pa.field("c", pa.int64()))
    give_columns(fix, more)
    record(fix, [("-C", 1, "1", "x", "y"), ("+C", 1, "1", "x", "y", 5)], more)
    (row,) = between(dataset, head_of(dataset), head_of(fix)).changes.to_pylist()
    assert (row["columns"], row["from"]["c"], row["to"]["c"]) == (["c"], None, 5)


def test_without_a_key_a_diff_is_the_rows_that_each_side_added(tmp_path: Path) -> None:
    with odf.init(tmp_path / "workspace") as workspace:
        dataset = keyed(workspace, ())
        record(dataset, [("+A", 1, "1", "x", "y")])
        fix = branch(dataset, "fix")
        record(fix, [("+A", 1, "r", "x", "y"), ("-R", 1, "1", "x", "y")])
        record(dataset, [("+A", 1, "r", "x", "y")])
        found = between(dataset, head_of(dataset), head_of(fix))
    rows = [(row["change"], (row["to"] or row["from"])["k"]) for row in found.changes.to_pylist()]
    assert rows == [("removed", "r"), ("inserted", "r"), ("removed", "1")]
    assert found.key == ()


def test_other_primary_keys_are_refused(tmp_path: Path) -> None:
    from odfchain.codec.manifest import read_snapshots
    from tests.kit.branch_rows import add

    with odf.init(tmp_path / "workspace") as workspace:
        dataset = keyed(workspace)
        record(dataset, [("+A", 1, "1", "x", "y")])
        fix = branch(dataset, "fix")
        text = (
            "{kind: DatasetSnapshot, version: 1, content: {name: d, kind: Root, metadata: [{kind: AddPushSource, sourceName: "
            "default, read: {kind: Csv}, merge: {kind: Ledger, primaryKey: [k, a]}}]}}"
        )
        add(fix, *read_snapshots(text)[0].metadata)
        with pytest.raises(SchemaError, match="different primary keys: k and k, a"):
            between(dataset, head_of(dataset), head_of(fix))


def test_nothing_lies_between_a_point_and_itself(dataset: DatasetFiles) -> None:
    at = record(dataset, [("+A", 1, "1", "x", "y")])
    found = between(dataset, at, at)
    assert found.changes.num_rows == 0
    assert sum(found.counts.values()) == 0
    assert found.changes.schema.names == ["k", "change", "from", "to", "columns"]
