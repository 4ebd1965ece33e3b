"""States on random changelogs, at random points and event times: the engines and a row-by-row oracle agree."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator
from typing import Any

import pytest

import odfchain as odf
from odfchain.spark.session import SparkEngine
from tests.kit.query_datasets import make, moment, on_spark

MADE = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NO_KEY: tuple[str, ...] = ()
HISTORIES = 12
COLUMNS = [["k", "float64"], ["s", "string"], ["n", "list"]]
VALUES: dict[str, list[Any]] = {
    "k": [None, 0.0, -0.0, 1.5, float("nan"), -float("nan")],
    "s": [None, "", "a"],
    "n": [None, [], [1], [1, None]],
}
Row = tuple[str, str, float | None, str | None, list[int | None] | None]


def history(seed: int) -> tuple[dict[str, Any], list[list[Row]]]:
    """A dataset as a case describes it, and the rows of its blocks."""
    rng = random.Random(seed)
    blocks: list[list[Row]] = []
    for _ in range(rng.randint(1, 4)):
        rows: list[Row] = []
        for _ in range(rng.randint(1, 8)):
            values = [rng.choice(VALUES[name]) for name, _ in COLUMNS]
            when = f"2026-01-{rng.randint(1, 6):02}"
            if rng.random() < 0.3:
                later = f"2026-01-{rng.randint(1, 6):02}"
                changed = [values[0], values[1], rng.choice(VALUES["n"])]
                rows += [("-C", when, *values), ("+C", later, *changed)]
            else:
                rows.append((rng.choice(["+A", "+A", "-R"]), when, *values))
        blocks.append(rows)
    made = [{"at": MADE.isoformat(), "columns": COLUMNS}]
    made += [{"at": system_time(i), "rows": [list(row) for row in rows]} for i, rows in enumerate(blocks)]
    return {"made": MADE.isoformat(), "blocks": made}, blocks


def system_time(block: int) -> str:
    return (MADE + dt.timedelta(hours=block + 1)).isoformat()


def alike(values: tuple[Any, ...]) -> str:
    """What is equal where values are: nulls, NaN and both zeros are (case 13)."""
    return repr([value + 0.0 if isinstance(value, float) else value for value in values])


def expected(rows: list[Row], key: tuple[str, ...], time: dt.datetime | None) -> list[int]:
    """The offsets in force, found by looking at one row after the other."""
    names = [name for name, _ in COLUMNS]
    if not key:
        kept: list[int] = []
        missing: list[str] = []
        for offset, (op, when, *values) in enumerate(rows):
            same = alike((when, *values))
            equal = [i for i in kept if alike((rows[i][1], *rows[i][2:])) == same]
            if op in ("-R", "-C"):
                kept.remove(equal[0]) if equal else missing.append(same)
            elif same in missing:
                missing.remove(same)
            else:
                kept.append(offset)
        return [i for i in kept if time is None or moment(rows[i][1]) <= time]
    parts = [names.index(name) + 2 for name in key]
    of_key: dict[str, list[int]] = {}
    for offset, row in enumerate(rows):
        of_key.setdefault(alike(tuple(row[part] for part in parts)), []).append(offset)
    found = []
    for offsets in of_key.values():
        if time is None:
            newest = offsets[-1]
        else:
            entries: dict[str, int] = {}
            for place, offset in enumerate(offsets):
                op, when = rows[offset][:2]
                after = rows[offsets[place + 1]] if place + 1 < len(offsets) else None
                if op == "-C":
                    if not (after and after[0] == "+C" and after[1] > when):
                        entries.pop(when, None)
                else:
                    entries[when] = offset
            times = [when for when in entries if moment(when) <= time]
            if not times:
                continue
            newest = entries[max(times)]
        if rows[newest][0] not in ("-R", "-C"):
            found.append(newest)
    return sorted(found)


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A workspace, and the rows of its datasets by block."""
    with odf.init(tmp_path_factory.mktemp("histories")) as workspace:
        found = [history(seed) for seed in range(HISTORIES)]
        for seed, (spec, _) in enumerate(found):
            make(workspace, f"h{seed}", spec)
        yield workspace, [blocks for _, blocks in found]


def agree(
    workspace: odf.Workspace, seed: int, blocks: list[list[Row]], questions: int, **options: Any
) -> int:
    """The engine gives what the oracle does for random questions; returns how many rows that were."""
    rng = random.Random(1000 + seed)
    count = 0
    for _ in range(questions):
        upto = rng.randint(0, len(blocks))
        point = f"@{system_time(upto - 1)}" if rng.random() < 0.8 and upto else ("" if upto else "@1")
        rows = [row for block in (blocks[:upto] if point else blocks) for row in block]
        key = rng.choice([NO_KEY, ("k",), ("s",), ("k", "s"), ("n", "s")])
        time = moment(f"2026-01-{rng.randint(1, 7):02}") if rng.random() < 0.6 else None
        asked = f"'{time.date()}'" if time else "NULL"
        sql = f"""select "offset" from state('h{seed}{point}', {asked}, '{", ".join(key)}') order by 1"""
        offsets = [row["offset"] for row in workspace.sql(sql, **options).to_arrow().to_pylist()]
        assert offsets == expected(rows, key, time), (sql, rows)
        count += len(offsets)
    return count


def test_the_embedded_engine_and_the_oracle_agree(histories: Any) -> None:
    workspace, found = histories
    assert sum(agree(workspace, seed, blocks, 25) for seed, blocks in enumerate(found)) > 100


@pytest.mark.parametrize(("upto", "questions"), [(4, 1), pytest.param(HISTORIES, 10, marks=pytest.mark.soak)])
def test_spark_and_the_oracle_agree(histories: Any, engine: SparkEngine, upto: int, questions: int) -> None:
    workspace, found = histories
    with on_spark(workspace, engine):
        for seed, blocks in enumerate(found[:upto]):
            agree(workspace, seed, blocks, questions, engine="spark")
