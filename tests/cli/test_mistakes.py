"""What people mistype, and what they are answered: each case says how the command ends, its error and its hint."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.odf.yaml import read_document
from tests.kit.support import FIXTURES, Result, Run

MISTAKES = read_document((FIXTURES / "cli" / "mistakes.yaml").read_bytes()).value
LISTS = FIXTURES / "data" / "airports"
_TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_cli: Run) -> Path:
    """A workspace with a snapshot, a dataset without a key, and files that cannot be used."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afolder").mkdir()
    for name, text in MISTAKES["files"].items():
        (tmp_path / name).write_bytes(text.encode("latin1"))
    first = LISTS / "2025-07-06.csv"
    Path("small.csv").write_text("".join(first.read_text().splitlines(keepends=True)[:50]))
    for args in (
        ["init"], ["import", first, "--as", "airports", "--key", "icao"], ["ingest", "airports", LISTS / "2026-09-05.csv"],
        ["import", "small.csv", "--as", "small"], ["new", "per.country", "--derivative"],
    ):  # fmt: skip
        assert run_cli(*args).code == 0, args
    return tmp_path


def answer(folder: Path, result: Result) -> dict[str, object]:
    """The exit code, the first error and its hint; what differs from run to run has a name."""
    said = _TIME.sub("{time}", result.err.replace(str(folder), "{ws}")).splitlines()
    found: dict[str, object] = {"code": result.code}
    for kind in ("error", "hint"):
        line = next((line for line in said if line.startswith(f"{kind}: ")), None)
        if line is not None:
            found[kind] = line.removeprefix(f"{kind}: ")
    return found


def test_each_mistake_has_its_answer_and_changes_nothing(
    folder: Path, run_cli: Run, state_of: Callable[[Path], object]
) -> None:
    before = state_of(folder)
    wrong = []
    for case in MISTAKES["cases"]:
        result = run_cli(*shlex.split(case["type"]))
        expected = {key: case[key] for key in ("code", "error", "hint") if key in case}
        if (found := answer(folder, result)) != expected:
            wrong.append((case["type"], found, expected))
        assert "Traceback" not in result.err
    assert wrong == []
    assert state_of(folder) == before


@pytest.fixture
def state_of() -> Callable[[Path], object]:
    """The heads of all datasets, and the files beside them."""
    return lambda folder: (
        sorted((str(path), path.read_text()) for path in folder.glob(".odfchain/datasets/*/refs/*")),
        sorted(path.name for path in folder.iterdir()),
    )
