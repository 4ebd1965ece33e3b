"""The rows in force of a derivative are what its query says of the rows in force of its input."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.transform.engines import RULES, engine_version
from tests.kit.support import check_replay, derivative, ingest_rows, manifest, net

START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
ZEROS = [("a", "-0.0", 1), ("b", "0.0", 2), ("c", "-0.0", 3), ("d", "NaN", 4)]
"""Key, a floating-point value, a number."""


@pytest.fixture
def numbers(workspace: Workspace) -> Dataset:
    merge = "{kind: Snapshot, primaryKey: [k]}"
    schema = '["event_time TIMESTAMP", "k STRING", "f DOUBLE", "v BIGINT"]'
    (dataset,) = workspace.add(manifest(merge, schema, name="numbers"))
    return dataset


def release(dataset: Dataset, rows: list[tuple[str, str, int]]) -> None:
    ingest_rows(dataset, "event_time,k,f,v", (f"{START.isoformat()},{k},{f},{v}" for k, f, v in rows))


def derived(workspace: Workspace, query: str, name: str = "derived") -> Dataset:
    text = derivative(query, name=name, inputs="[{datasetRef: numbers}]")
    (dataset,) = workspace.add(text, check=False)
    return dataset


def written(rows: list[list[Any]]) -> Counter[str]:
    return Counter(repr(row) for row in rows)


def test_grouping_sets_and_unpivot_read_the_columns_that_they_are_made_of(
    workspace: Workspace, numbers: Dataset
) -> None:
    sets = "SELECT max(event_time) AS event_time, k, count(*) AS n FROM numbers GROUP BY ROLLUP (k)"
    squares = "SELECT event_time, k, v, v * v AS w FROM numbers"
    unpivot = f"SELECT event_time, k, name, value FROM ({squares}) UNPIVOT (value FOR name IN (v, w))"
    rollup, long = derived(workspace, sets, "rollup"), derived(workspace, unpivot, "long")
    for count in (2, 3):
        release(numbers, ZEROS[:count])
        rollup.pull()
        long.pull()
    assert net(rollup, "k", "n") == written([["a", 1], ["b", 1], ["c", 1], [None, 3]])
    assert net(long, "k", "name", "value") == written(
        [["a", "v", 1], ["a", "w", 1], ["b", "v", 2], ["b", "w", 4], ["c", "v", 3], ["c", "w", 9]]
    )
    check_replay(rollup)
    check_replay(long)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT event_time, k, f, rank() OVER (ORDER BY v DESC) AS place FROM numbers",
        "SELECT max(event_time) AS event_time, min(k) AS k, min(f) AS f, count(*) AS place FROM numbers GROUP BY v",
    ],
)
def test_a_zero_below_zero_is_taken_back_as_it_was_recorded(
    workspace: Workspace, numbers: Dataset, query: str
) -> None:
    dataset = derived(workspace, query)
    for rows in (ZEROS, [("a", "0.0", 1), *ZEROS[1:3], ("d", "NaN", 4)], [*ZEROS[1:], ("e", "0.0", 9)]):
        release(numbers, rows)
        dataset.pull()
    assert net(dataset, "k", "f") == written([["b", 0.0], ["c", -0.0], ["d", float("nan")], ["e", 0.0]])
    check_replay(dataset)


@pytest.mark.parametrize(
    ("rules", "ranked", "counted"),
    [
        pytest.param(2, [["a", 1], ["b", 2], ["c", 3]], [[2]], marks=pytest.mark.soak),
        (RULES, [["b", 1], ["c", 2]], [[1]]),
    ],
)
def test_a_row_takes_back_an_equal_one_that_is_written_otherwise(
    workspace: Workspace, rules: int, ranked: list[list[Any]], counted: list[list[Any]]
) -> None:
    """As in the state of the input; what was recorded by earlier rules is replayed by them."""
    schema = '["op INT", "event_time TIMESTAMP", "k STRING", "f DOUBLE", "v BIGINT"]'
    (numbers,) = workspace.add(manifest("{kind: ChangelogStream, primaryKey: [k]}", schema, name="numbers"))
    version = engine_version().replace(f"odfchain_{RULES}", f"odfchain_{rules}")
    engine, inputs = f"spark, version: {version}", "[{datasetRef: numbers}]"
    rank = "SELECT event_time, k, f, rank() OVER (ORDER BY v) AS place FROM numbers"
    day = "window(event_time, '1 day')"
    count = f"SELECT {day}.start AS event_time, count(*) AS place, min(f) AS f FROM numbers GROUP BY {day}"
    ranking, counting = (
        workspace.add(derivative(query, name=name, inputs=inputs, engine=engine), check=False)[0]
        for name, query in (("ranking", rank), ("counting", count))
    )
    first = ["0,2024-01-01,a,-0.0,1", "0,2024-01-01,b,1,2"]
    for lines in (first, ["1,2024-01-01,a,0.0,1", "0,2024-01-05,c,1,3"]):
        ingest_rows(numbers, "op,event_time,k,f,v", lines)
        ranking.pull()
        counting.pull()
    assert net(ranking, "k", "place") == written(ranked)
    assert net(counting, "place") == written(counted)
    for dataset in (ranking, counting):
        check_replay(dataset)
