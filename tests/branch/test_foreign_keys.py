"""Foreign keys at commits and merges: numbered cases, read from the fixture, input and expectation."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from odfchain.branches.key_lookup import WantedKeys
from tests.kit.foreign_key_cases import Case, Scene, load

CASES = load()


@pytest.mark.parametrize("name", CASES)
def test_case(tmp_path: Path, name: str) -> None:
    Scene(CASES[name], tmp_path).hold()


def corruptions(case: Case) -> dict[str, Case]:
    """The case with one of its expectations made wrong or left out, each kind once."""
    words = ["in no text"]
    wrong: dict[str, Any] = dict.fromkeys(("says", "refused", "noted", "notes"), words)
    wrong |= {"state": "failed", "violations": []}
    found: dict[str, Case] = {}
    places = [("datasets", name) for name in case["datasets"]]
    places += [("steps", index) for index in range(len(case.get("steps", [])))] + [("check18", None)]
    for part, at in places:
        given = case.get(part, {}) if at is None else case[part][at]
        changes = {(what, "wrong"): {what: value} for what, value in wrong.items() if what in given}
        changes |= {(what, "left out"): {} for what in ("says", "refused", "noted") if what in given}
        if "rows" in given and "refused" not in given:
            changes["rows", "refused"] = {"refused": words}
        for (what, how), change in changes.items():
            changed = copy.deepcopy(case)
            target = changed[part] if at is None else changed[part][at]
            target.pop(what, None) if how == "left out" else target.update(change)
            found.setdefault(f"{what} {how}", changed)
    return found


CORRUPTED = [
    pytest.param(changed, id=f"{name}-{what}", marks=pytest.mark.soak if name == "deleted-parent" else [])
    for name in ("45", "49-op", "own-row-taken-back-at-once", "merged-and-reported", "deleted-parent")
    for what, changed in corruptions(CASES[name]).items()
]


@pytest.mark.parametrize("case", CORRUPTED)
def test_a_corrupted_expectation_fails(tmp_path: Path, case: Case) -> None:
    """So each kind of expectation is looked at."""
    with pytest.raises(AssertionError):
        Scene(case, tmp_path).hold()


RANDOM: Case = {
    "id": "random",
    "datasets": {
        "parent": {"columns": ["p", ["q", "float64"], "a"], "key": ["p", "q"]},
        "child": {
            "columns": ["c", "p", ["q", "float64"], "up"],
            "key": ["c"],
            "constraints": "foreignKeys:\n"
            "  - {columns: [p, q], references: {dataset: parent}}\n"
            "  - {columns: [up], references: {dataset: child}}\n",
        },
    },
}
State = dict[Any, list[Any]]


def is_whole(parent: State, child: State) -> bool:
    return all(
        (p is None or q is None or (p, q) in parent) and (up is None or up in child)
        for _, p, q, up in child.values()
    )


def changed(state: State, new: State) -> list[list[Any]]:
    """The rows that lead from one state to another, as a Snapshot writes them."""
    rows = []
    for key in sorted({*state, *new}, key=str):
        old, now = state.get(key), new.get(key)
        if old is None:
            rows.append(["+A", *(now or [])])
        elif now is None:
            rows.append(["-R", *old])
        elif old != now:
            rows += [["-C", *old], ["+C", *now]]
    return rows


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 12))])
def test_random_commits_are_accepted_where_all_keys_lead_somewhere(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    scene = Scene(RANDOM, tmp_path)
    for name, spec in RANDOM["datasets"].items():
        scene.add(name, spec)
    states: dict[str, State] = {"parent": {}, "child": {}}
    outcomes = {True: 0, False: 0}

    def some(name: str, state: State) -> State:
        new = dict(state)
        for _ in range(chance.randint(1, 3)):
            p, q = chance.choice("xy"), chance.choice([0.0, -0.0, 1.5, float("1e300")])
            c, up = chance.choice("abcd"), chance.choice([None, None, *"abcd"])
            key = (p, q) if name == "parent" else c
            if key in new and chance.random() < 0.5:
                del new[key]
            elif name == "parent":
                new[key] = [*(new[key][:2] if key in new else key), chance.choice("12")]
            else:
                new[key] = [c, chance.choice([p, p, None]), chance.choice([q, q, q, None]), up]
        return new

    for _ in range(30):
        name = chance.choice(["parent", "child", "child"])
        between = some(name, states[name])
        after = some(name, between) if chance.random() < 0.4 else between
        rows = changed(states[name], between) + changed(between, after)
        if not rows:
            continue
        expected = is_whole(**states | {name: after})
        outcomes[expected] += 1
        step: dict[str, Any] = {"on": name, "rows": rows}
        scene.take(step if expected else step | {"refused": [name if name == "child" else "child"]})
        if expected:
            states[name] = after
    assert min(outcomes.values()) > 3
    assert scene.workspace["child"].verify().state(18) == "passed"


def test_keys_are_numbered_whatever_their_types() -> None:
    schema = pa.schema([("0", pa.decimal128(9, 2)), ("1", pa.list_(pa.int64())), ("2", pa.string())])
    rows = pa.table(
        [[1, 1, 2, None, 1], [[1], [1], [1], [1], None], ["a", "b", "a", "a", "a"]], schema=schema
    )
    wanted = WantedKeys.of(schema, rows.to_batches())
    assert wanted.count == 3
    assert sorted(wanted.numbers(rows.to_batches()[0])[:3]) == [0, 1, 2]
    assert wanted.numbers(rows.to_batches()[0])[3:].tolist() == [-1, -1]
    others = pa.table([[2, 1], [[1], [2]], ["b", "a"]], schema=schema).to_batches()[0]
    assert wanted.numbers(others).tolist() == [-1, -1]
    assert WantedKeys.of(schema, []).numbers(others).tolist() == [-1, -1]


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.int8(), pa.string()])
@pytest.mark.parametrize("far", [False, True])
def test_values_are_found_whatever_their_range(kind: pa.DataType, far: bool) -> None:
    signed, wide = not pa.types.is_unsigned_integer(kind), kind != pa.int8()
    least, most = (-(2**63), 2**63 - 1) if signed else (0, 2**64 - 1)
    some: list[Any] = [7, 3, 9, 100, *([least, most] if far and wide else [])]
    others = [8, 0, 127, *([-5, -128] if signed else [])]
    others += [least, least + 1, most, most - 1] if wide else []
    chance = random.Random(1)
    given: list[Any] = [chance.choice([*some, *others, None]) for _ in range(500)]
    if kind == pa.string():
        some, given = [str(v) for v in some], [None if v is None else str(v) for v in given]
    schema = pa.schema([("0", kind)])
    wanted = WantedKeys.of(schema, pa.table([some], schema=schema).to_batches())
    for rows in (given, [v for v in given if v is not None]):
        numbers = wanted.numbers(pa.table([rows], schema=schema).to_batches()[0])
        assert [int(n) for n in numbers] == [some.index(v) if v in some else -1 for v in rows]
