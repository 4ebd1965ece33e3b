"""Random histories of branches, diffs of their points, and what brute force finds there."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa

import odfchain as odf
from odfchain.branches.branches import BlockGraph
from odfchain.branches.diff import Comparison, Diff
from odfchain.branches.intervals import Engine
from odfchain.odf.identity import Multihash
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.points import opened_at
from odfchain.workspace.read_slices import read_state
from tests.kit.branch_rows import Row, branch, keyed, record
from tests.kit.support import no_session
from tests.kit.upkeep_scenes import head_of

HERE = Engine(no_session)


def between(
    dataset: DatasetFiles, a: Multihash, b: Multihash, *, trusted: bool = True, engine: Engine = HERE
) -> Diff:
    one, other = (opened_at(dataset, block) for block in (a, b))
    ends = Comparison.of(*((each, DatasetState.read(each.chain)) for each in (one, other)))
    return ends.diff(BlockGraph(dataset), lambda *_: trusted, engine)


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
