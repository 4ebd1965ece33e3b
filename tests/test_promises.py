"""`rfcs/063-promises.md`: every test that the table of promises names is there, and no promise is without an answer."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.kit.promise_figures import COLUMNS, NAMED, PAGE, filled
from tests.kit.support import ROOT

ROW = "| 1 | Kept | `tests/test_promises.py::test_the_page_is_true` | 1 case; 0.1 s | 2 cases; 9 s | 2026-11-27 |"


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Functions of tests by their source: nothing is imported or run."""
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))


def faults_of(page: str) -> list[str]:
    """What is wrong with the table, a line for each."""
    _, columns, table = page.partition(COLUMNS)
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
    faults = [] if columns else ["there is no table of promises"]
    numbers = {row[0] for row in rows}
    if [row[0] for row in rows if row[1]] != [str(number + 1) for number in range(len(numbers))]:
        faults.append("promises are not numbered one after the other")
    for number, _, test, short, long, date in rows:
        if not (named := NAMED.fullmatch(test)):
            faults.append(f"{number}: no test: {test}")
        elif named[2] not in defined_in(ROOT / named[1]):
            faults.append(f"{number}: there is no {named[1]}::{named[2]}")
        elif not (short and long and re.fullmatch(r"\d{4}-\d\d-\d\d", date)) or "not run" in short + long:
            faults.append(f"{number}: {named[2]} has no figures")
    return faults


def test_the_page_is_true() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert faults_of(page) == []
    assert len(NAMED.findall(page)) > 100


@pytest.mark.parametrize(
    ("right", "wrong", "fault"),
    [
        ("is_true", "is_gone", "1: there is no tests/test_promises.py::test_the_page_is_gone"),
        ("test_promises.py", "test_gone.py", "1: there is no tests/test_gone.py::test_the_page_is_true"),
        ("`tests/test_promises.py::test_the_page_is_true`", "no test yet", "1: no test: no test yet"),
        ("| 1 case; 0.1 s |", "| |", "1: test_the_page_is_true has no figures"),
        ("| 2 cases; 9 s |", "| not run yet |", "1: test_the_page_is_true has no figures"),
        ("| 1 |", "| 2 |", "promises are not numbered one after the other"),
    ],
)  # fmt: skip
def test_a_page_that_rots_fails(right: str, wrong: str, fault: str) -> None:
    page = f"{COLUMNS}\n|---|---|---|---|---|---|\n{ROW}\n"
    assert faults_of(page) == []
    assert faults_of(page.replace(right, wrong)) == [fault]
    assert faults_of("") != []


def test_the_figures_of_a_run_are_written_into_its_column() -> None:
    name = "tests/test_promises.py::test_the_page_is_true"
    tests = [
        {
            "name": f"{name}[{kills}]",
            "outcome": outcome,
            "seconds": 1.25,
            "figures": {"kills": kills, "by": "x"},
        }
        for kills, outcome in ((1_000, "passed"), (1, "failed"))
    ]
    page = f"{COLUMNS}\n|---|---|---|---|---|---|\n{ROW}\n"
    found = filled(page, {"profile": "deep", "tests": tests}, "2027-01-01")
    assert found.endswith(
        f"| `{name}` | 1 case; 0.1 s | 2 cases: 1 failed, 1,001 kills; 2.5 s | 2027-01-01 |\n"
    )
    assert filled(page, {"profile": "ci", "tests": []}, "2027-01-01") == page
