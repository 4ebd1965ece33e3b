"""Releases of a list, and what is made of them: nobody waits for the next one, and no correction stops a window."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from odfchain.errors import QueryError
from tests.kit.support import Result, derivative, manifest

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.workspace import Workspace

COUNTED = "SELECT max(event_time) AS event_time, country, count(*) AS n FROM cities GROUP BY country"
DAILY = (
    "SELECT window(event_time, '1 day').start AS event_time, country, count(*) AS n FROM cities "
    "GROUP BY window(event_time, '1 day'), country"
)
LATE = f"query: {DAILY!r}, allowedLateness: 60 days"

RELEASES = [
    [("2020-01-01", "Ayr", "UK"), ("2020-01-01", "Bonn", "DE"), ("2020-01-01", "Cork", "IE"), ("2020-01-01", "Ulm", "DE")],
    [("2020-02-01", "Ayr", "GB"), ("2020-01-01", "Bonn", "DE"), ("2020-01-01", "Ulm", "DE"), ("2020-02-01", "Graz", "AT")],
    [("2020-02-01", "Ayr", "GB"), ("2020-02-10", "Bonn", "GE"), ("2020-01-01", "Ulm", "DE"), ("2020-02-01", "Graz", "AT")],
]  # fmt: skip
"""Event time, name, country. The second corrects Ayr, drops Cork and brings Graz; the third corrects Bonn."""


@pytest.fixture
def home(workspace: Workspace) -> Path:
    workspace.add(
        manifest(
            "{kind: Snapshot, primaryKey: [city]}",
            '["event_time TIMESTAMP", "city STRING", "country STRING"]',
        )
    )
    return workspace.path.parent


def release(workspace: Workspace, number: int, folder: Path) -> None:
    rows = [f"{day}T00:00:00Z,{city},{country}" for day, city, country in RELEASES[number]]
    path = folder / f"{number}.csv"
    path.write_text("\n".join(["event_time,city,country", *rows, ""]), encoding="utf-8")
    workspace["cities"].ingest([path])


def rows_of(dataset: Dataset) -> list[tuple[Any, ...]]:
    """Operation, day, country and count of every row."""
    if dataset.schema is None:
        return []
    table = dataset.scan(["op", "event_time", "country", "n"]).to_arrow().to_pylist()
    return [(row["op"], f"{row['event_time']:%m-%d}", row["country"], row["n"]) for row in table]


@pytest.mark.soak
def test_releases_count_at_once_and_correct_what_was_made_of_them(
    workspace: Workspace, home: Path, tmp_path: Path, run_cli: Callable[..., Result]
) -> None:
    for name, query in (("counted", COUNTED), ("daily", DAILY), ("corrected", LATE)):
        path = tmp_path / f"{name}.yaml"
        path.write_text(derivative(query, name=name), encoding="utf-8")
        assert run_cli("-w", home, "add", path).code == 0
    names = ("counted", "daily", "corrected")
    notes: list[list[str]] = []
    for number in range(len(RELEASES)):
        release(workspace, number, tmp_path)
        notes.append([])
        for name in names:
            result = run_cli("-w", home, "pull", name)
            assert result.code == 0, result.err
            notes[-1] += [line for line in result.err.splitlines() if "rows" in line or "row " in line]
    counted, daily, corrected = (rows_of(workspace[name]) for name in names)
    assert counted == [
        (0, "01-01", "DE", 2), (0, "01-01", "IE", 1), (0, "01-01", "UK", 1),
        (1, "01-01", "IE", 1), (1, "01-01", "UK", 1), (0, "02-01", "AT", 1), (0, "02-01", "GB", 1),
        (1, "01-01", "DE", 2), (0, "01-01", "DE", 1), (0, "02-10", "GE", 1),
    ]  # fmt: skip
    assert daily == [(0, "01-01", "DE", 2), (0, "02-01", "AT", 1), (0, "02-01", "GB", 1)]
    assert corrected == [
        (0, "01-01", "DE", 2), (2, "01-01", "DE", 2), (3, "01-01", "DE", 1),
        (0, "02-01", "AT", 1), (0, "02-01", "GB", 1),
    ]  # fmt: skip
    waits = "cities: 4 rows wait for the watermark 2020-01-01T00:00:00Z to move on"
    assert [sum(waits in line for line in step) for step in notes] == [2, 0, 0]
    late = "cities: 1 row came too late and was left out"
    assert [sum(late in line for line in step) for step in notes] == [0, 0, 1]
    result = run_cli("-w", home, "verify", "%", "--replay")
    assert result.code == 0, result.out


def test_a_query_without_windows_has_no_lateness(workspace: Workspace, home: Path, tmp_path: Path) -> None:
    assert home
    release(workspace, 0, tmp_path)
    with pytest.raises(QueryError, match="allowedLateness is for windows"):
        workspace.add(derivative(f"query: {COUNTED!r}, allowedLateness: 60 days"))


def test_a_query_that_corrections_do_not_find_is_told_so(
    workspace: Workspace, home: Path, tmp_path: Path, run_cli: Callable[..., Result]
) -> None:
    release(workspace, 0, tmp_path)
    path = tmp_path / "parity.yaml"
    for sql, blind in (
        (DAILY.replace("FROM cities", "FROM (SELECT *, offset % 2 AS odd FROM cities)").replace("count(*)", "sum(odd)"), True),
        (DAILY.replace("FROM cities", "FROM cities WHERE offset > 0"), True),
        (DAILY.replace("FROM cities", "FROM cities WHERE op < 2"), False),
        (DAILY.replace("count(*)", "max(offset)"), False),
    ):  # fmt: skip
        path.write_text(derivative(sql, name="parity"), encoding="utf-8")
        result = run_cli("-w", home, "add", path)
        assert result.code == 0, result.err
        assert ("the query computes with `offset`" in result.err) == blind, result.err
        workspace.delete("parity")
