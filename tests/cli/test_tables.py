"""Tables for people: a row is a line, a line fits the terminal, and what is left out is named."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyarrow as pa
import pytest

from odfchain.api.workspace import Workspace
from odfchain.cli.screen import fitted, shortened
from odfchain.text import text_width
from tests.kit import branch_rows
from tests.kit.queried_workspace import TYPES, add_types, new_workspace
from tests.kit.support import Run

COLUMNS = (
    pa.field("remark", pa.string()),
    pa.field("population", pa.int64()),
    pa.field("code", pa.string()),
    *(pa.field(f"more_{n}", pa.string()) for n in range(8)),
)
REMARK = "東京" * 40


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    workspace = new_workspace(tmp_path / "ws")
    add_types(workspace)
    cities = branch_rows.keyed(workspace, ("code",), COLUMNS, name="cities")
    branch_rows.record(
        cities,
        [("+A", 0, REMARK, 37_115_035, "HND", *["x" * 30] * 8), ("-C", 0, "a\nb", 1, "ZRH", *[None] * 8)],
        COLUMNS,
    )
    monkeypatch.chdir(workspace.path.parent)
    monkeypatch.delenv("COLUMNS", raising=False)
    return workspace


@pytest.mark.parametrize(
    "command",
    [
        ("tail", "types"), ("tail", "cities"), ("state", "types"), ("list",), ("sql", "-c", "select * from types"),
        ("sql", "-c", "select * from cities"), ("inspect", "slices", "types"), ("profile", "types"), ("manifest", "types"),
        ("config", "list"),
    ],
)  # fmt: skip
def test_a_line_has_at_most_80_characters(workspace: Workspace, run: Run, command: tuple[str, ...]) -> None:
    shown = run(*command)
    assert shown.code == 0
    assert [line for line in shown.out.splitlines() if text_width(line) > 80] == []
    whole = run(*command, "--wide").out
    # nothing but the line that names the columns comes in addition
    assert len(shown.out.splitlines()) - len(whole.splitlines()) in (0, 1)
    assert "--wide" not in whole
    if command[0] != "manifest":
        assert run(*command, "-o", "json").out == run(*command, "-o", "json", "--wide").out


def test_records_have_one_column_and_keys_are_next(workspace: Workspace, run: Run) -> None:
    assert run("tail", "cities").out.splitlines() == [
        "record            code  remark         population  more_0         more_1",
        "#0 +A 2026-01-01  HND   東京東京東京…    37115035  xxxxxxxxxxxx…  xxxxxxxxxxxx…",
        "#1 -C 2026-01-01  ZRH   a\\nb                    1",
        "6 more columns: more_2, more_3, more_4, more_5, more_6, mo… (--wide, or -o json)",
    ]  # fmt: skip
    head, row, _ = run("tail", "cities", "--wide").out.splitlines()
    assert head.split() == ["offset", "op", "system_time", "event_time", *(field.name for field in COLUMNS)]
    assert REMARK in row
    assert run("sql", "-c", "select * from cities").out == run("tail", "cities").out
    # columns that were asked for by name are what they are
    assert run("sql", "-c", 'select op, "offset" from cities').out == "op  offset\n 0       0\n 2       1\n"


def test_what_people_copy_is_whole_or_left_out(workspace: Workspace, run: Run) -> None:
    long = f"file://{workspace.path.parent}/{'published/' * 9}"
    assert run("repo", "add", "far", long).code == 0
    assert long.rstrip("/") in run("repo", "list").out
    pushed = run("push", "cities", "--to", f"{long}cities").out.splitlines()
    assert pushed[-1] == "1 more column: destination (--wide, or -o json)"
    assert f"{long}cities" in run("push", "cities", "--to", f"{long}cities", "--wide").out
    slices = run("inspect", "slices", "cities").out.splitlines()
    assert slices[-1] == "1 more column: path (--wide, or -o json)"
    assert run("rename", "cities", "cities-of-all-the-countries-of-the-continent").code == 0
    head, row, last = run("status", "cities-of-all-the-countries-of-the-continent").out.splitlines()
    assert (head.split(), last) == (["Name", "Status"], "1 more column: Next (--wide, or -o json)")
    assert "…" not in row[42:]


def test_a_value_that_is_cut_is_said_once(workspace: Workspace, run: Run) -> None:
    lines = run("history", "cities", "code=ZRH").out.splitlines()
    assert "…" not in lines[-1]
    lines = run("sql", "-c", "select code, remark from cities").out.splitlines()
    assert lines[-1] == "… is cut: --wide, or -o json"
    assert [line for line in lines if "--wide" in line] == lines[-1:]


def test_a_name_that_lacks_its_quotes_is_seen(workspace: Workspace, run: Run) -> None:
    done = run("sql", "-c", "select * from sales.by-month where 1 - 2 < 0")
    assert (done.code, 'is written in quotes: "sales.by-month"' in done.err) == (3, True)
    assert "quotes" not in run("sql", "-c", "select code from cities select - 1").err


def test_no_number_is_cut(workspace: Workspace, run: Run) -> None:
    (head, *_), rows = (lines := run("tail", "types").out.splitlines()), lines[1:-1]
    numbers = {name for name, (kind, _) in TYPES.items() if re.match("u?int|decimal|double|float", str(kind))}
    assert numbers & {*head.split()} == {"big", "small", "whole", "real"}
    assert [row.split()[3:6] for row in rows][:1] == [["9223372036854775813", "-128", "-9223372036854775808"]]
    assert "exact, wide, " in lines[-1]


def test_a_terminal_that_is_wider_shows_more(
    workspace: Workspace, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    lines = run("tail", "cities").out.splitlines()
    assert 130 < max(map(text_width, lines)) <= 140
    monkeypatch.setitem(os.environ, "COLUMNS", "30")
    assert run("tail", "cities").out.splitlines()[0] == "record            code"


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("Zürich", 6, "Zürich"),
        ("f16201a3bc42", 8, "f16201a…"),
        ("lat 25.32432 → 25.324307", 20, "lat 25.32432 →…"),
        ("lat 25.32432 → 25.324307", 13, "lat 25.32432…"),
        ("2026-11-26T22:22:29.830Z", 12, "2026-11-26T…"),
        ("12345", 3, "…"),
        ("-1 … 14,472, mean 3.5", 9, "-1…"),
        ("東京東京", 5, "東京…"),
        ("東京東京", 6, "東京…"),
        ("e\u0301e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301…"),
    ],
)
def test_what_is_cut_says_so(text: str, width: int, shown: str) -> None:
    assert shortened(text, width) == shown
    assert text_width(shown) <= width


def test_room_is_shared_by_what_lacks_most() -> None:
    rows = [("k", "n", "a", "b"), ("x" * 20, "1" * 20, "y" * 20, "z" * 60)]
    assert fitted(rows, 200) == {0: 20, 1: 20, 2: 20, 3: 60}
    assert fitted(rows, 90, uncut={1}) == {0: 20, 1: 20, 2: 20, 3: 24}
    assert fitted(rows, 60, uncut={1}) == {0: 20, 1: 20, 2: 16}
    assert fitted(rows, 40, uncut={1}) == {0: 20, 2: 18}
    assert fitted(rows, 10, uncut={1}, keys=2) == {0: 5, 1: 20}
    # columns without a value are left out first
    rows = [("k", "nothing", "none", "b"), ("x" * 20, "", "0", "z" * 60)]
    assert fitted(rows, 35) == {0: 20, 3: 13}
    assert fitted(rows, 45) == {0: 20, 1: 7, 3: 14}
