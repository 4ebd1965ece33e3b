"""Options of every command stand before it or behind it, and what users of git type is answered."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kit.support import Run, manifest


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Path:
    """A folder with a workspace `a` that has one dataset, and `b` without any."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ODFCHAIN_WORKSPACE", raising=False)
    (tmp_path / "cities.yaml").write_text(manifest())
    for args in (["init", "a"], ["init", "b/c"], ["add", "cities.yaml", "-w", "a"]):
        assert run(*args).code == 0
    return tmp_path


def test_the_workspace_is_named_before_or_behind(
    here: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ODFCHAIN_WORKSPACE", "b/c")
    assert run("list", "-o", "csv").out.count("cities") == 0
    for args in (["-w", "a", "list"], ["list", "-w", "a"], ["-w", "/nope", "list", "--workspace=a"]):
        assert run(*args, "-o", "csv").out.count("cities") == 1
    for args in (["-w", "/nope", "list"], ["list", "-w", "/nope"]):
        result = run(*args)
        assert (result.code, result.err.splitlines()[0]) == (4, "error: /nope: no such folder")


def test_a_question_is_answered_and_notes_are_left_out_behind_the_command(here: Path, run: Run) -> None:
    assert "pass --yes" in run("delete", "cities", "-w", "a").err
    assert run("delete", "cities", "-w", "a", "-y", "-q").err == ""
    assert run("-q", "config", "set", "share.parallel", "7", "-w", "a").err == ""
    assert (here / "a" / ".odfchain" / "config.yaml").read_text().count("parallel: 7") == 1


def test_colours_are_left_out_for_one_command(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run("list", "-w", "a", "--no-color").code == 0
    assert "NO_COLOR" not in os.environ


@pytest.mark.parametrize(
    ("word", "command"),
    [("clone", "pull URL"), ("commit", "ingest DATASET"), ("checkout", "DATASET@BRANCH"), ("remote", "repo"), ("show", "log")],
)  # fmt: skip
def test_words_of_git_lead_to_the_command(run: Run, word: str, command: str) -> None:
    result = run(word, "x")
    assert (result.code, result.err.splitlines()[0]) == (2, f"error: no such command '{word}'")
    assert command in result.err.splitlines()[1]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["sql", "-o", "x.csv"], "a file is --output FILE"),
        (["export", "a", "-o", "x.csv"], "a file is --to FILE"),
        (["verify", "-o", "r.html"], "a file is > FILE"),
        (["login", "--stdin"], "did you mean --token-stdin"),
    ],
)
def test_an_earlier_spelling_names_the_one_of_now(run: Run, args: list[str], said: str) -> None:
    result = run(*args)
    assert (result.code, said in result.err) == (2, True), result.err


def test_spellings_of_kamu_are_understood_and_not_shown(here: Path, run: Run) -> None:
    assert run("export", "cities", "-w", "a", "--output-path", here / "x.csv").code == 0
    assert (here / "x.csv").exists()
    ingested = run("ingest", "cities", "none.csv", "-w", "a", "--source-name", "x")
    assert ingested.err.startswith("error: none.csv: no such file\n")
    for command in ("export", "sql", "ingest"):
        shown = run(command, "--help").out
        assert ("--output-path" in shown, "--source-name" in shown) == (False, False)
