"""`make bench kernels` puts whole commands next to those of a reference node, where there is one."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.kit import reference_stand_in

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """The modules of the benchmarks that are looked at."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    names = ("airport_lists", "bench_commands", "homes")
    before = set(sys.modules)
    found = {name: __import__(name) for name in names}
    for name in set(sys.modules) - before:
        monkeypatch.delitem(sys.modules, name)
    return found


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that stands in for the reference node's."""
    path = tmp_path / "kamu"
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{reference_stand_in.__file__}" "$@"\n')
    path.chmod(0o755)
    return path


def home(bench: dict[str, ModuleType], folder: Path, program: Path) -> Any:
    folder.mkdir()
    made = bench["homes"].Home(folder, program)
    made.run("init")
    return made


@pytest.mark.soak
def test_both_sides_do_the_same_and_times_are_told(
    bench: dict[str, ModuleType], program: Path, tmp_path: Path
) -> None:
    commands = bench["bench_commands"]
    ours, theirs = (home(bench, tmp_path / name, program) for name in ("ours", "theirs"))
    sides = commands.Sides(ours, theirs, 2)
    figures = [
        *commands.large_files(sides, 100),
        *commands.pulled_lists(sides, bench["airport_lists"].LISTS[2:]),
    ]
    assert [figure.name for figure in figures] == [
        "append of 100 rows × 6 columns ÷ kamu",  # noqa: RUF001
        "snapshot of 90 rows into 100 ÷ kamu",
        "verify of 100 rows ÷ kamu",
        "8 snapshots like regions, 12,695 rows recorded ÷ kamu",
        "4 snapshots like countries, 647 rows recorded ÷ kamu",
        "the same 4 snapshots",
    ]
    for figure in figures[:-1]:
        assert len(figure.samples) == len(figure.beside) == 2
        assert figure.value == pytest.approx(sum(figure.samples) / sum(figure.beside))
    assert theirs.records("snapshot1") == 100 + 2 * 90 + 10


def test_lists_have_the_size_of_the_real_ones_which_are_taken_where_they_are(
    bench: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lists, released = bench["airport_lists"].LISTS, bench["bench_commands"].RELEASED
    sizes = [sum(new + 2 * changed + gone for new, changed, gone in each.releases) for each in lists]
    assert sizes == [103_374, 34_014, 12_695, 647]
    assert {(each.name, size) for each, size in zip(lists, sizes, strict=True)} <= set(released)
    real, folder = tmp_path / "real", tmp_path / "taken"
    real.mkdir()
    folder.mkdir()
    for name, rows in (("2021-11-02", 'id,"code"\n1,"AD"\n'), ("2025-01-31", 'id,"code"\n')):
        (real / f"countries-{name}.csv").write_text(rows, encoding="utf-8")
    monkeypatch.setenv("OURAIRPORTS", str(real))
    assert [each.is_real for each in lists] == [False, False, False, True]
    lists[3].write(folder)
    assert [path.name for path in folder.iterdir()] == ["countries-2021-11-02.csv"]


def test_without_a_reference_node_released_figures_stand_in_and_are_marked(
    bench: dict[str, ModuleType], program: Path, tmp_path: Path
) -> None:
    commands = bench["bench_commands"]
    sides = commands.Sides(home(bench, tmp_path / "ours", program), None, 1)
    small, seconds = commands.pulled_lists(sides, bench["airport_lists"].LISTS[3:])
    assert small.name == "4 snapshots like countries, 647 rows recorded ÷ kamu (release build, another run)"
    assert small.value == small.samples[0] / 0.2
    assert (seconds.value, seconds.unit) == (small.samples[0], "s")
    *_, verify = commands.large_files(sides, 50)
    assert (verify.name, verify.unit, verify.remark) == ("verify of 50 rows", "s", "kamu was not there")


def test_other_records_than_the_reference_node_has_are_no_figure(
    bench: dict[str, ModuleType], program: Path, tmp_path: Path
) -> None:
    commands = bench["bench_commands"]
    ours, theirs = (home(bench, tmp_path / name, program) for name in ("ours", "theirs"))

    def work(side: Any, _: int) -> tuple[float, int]:
        return 1.0, 7 if side is ours else 8

    with pytest.raises(RuntimeError, match="append: 7 records here, 8 there"):
        commands.Sides(ours, theirs).figure("append", "append", 1.3, work)


def test_a_command_that_fails_says_what_it_said(
    bench: dict[str, ModuleType], program: Path, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=r"kamu rename a b` ended with 2: error: unexpected argument"):
        home(bench, tmp_path / "ours", program).run("rename", "a", "b")
