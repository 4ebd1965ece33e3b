"""The manual: the pages of commands are those of their help, and `odfchain help` opens them."""

from __future__ import annotations

import importlib.util

import pytest

from odfchain.cli import screen
from odfchain.cli.main import COMMANDS
from tests.kit.support import ROOT, Run

PAGES = ROOT / "docs" / "commands"


def test_the_pages_of_commands_are_current() -> None:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    stored = {path.name: path.read_text(encoding="utf-8") for path in PAGES.glob("*.md")}
    assert stored == module.render(), "make them anew: python docs/pages.py"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_opens_the_page_of_a_command(command: str, run: Run) -> None:
    shown = run("help", command)
    assert (shown.code, shown.out) == (0, (PAGES / f"{command}.md").read_text(encoding="utf-8"))


def test_help_opens_the_page_of_another_name_of_a_command(run: Run) -> None:
    shown = run("help", "ls")
    assert (shown.code, shown.out.splitlines()[0]) == (0, "# odfchain list")


def test_help_without_a_topic_lists_the_commands(run: Run) -> None:
    alone = run("help")
    assert alone.code == 0
    assert alone == run("--help")


def test_help_names_what_an_unknown_topic_may_have_meant(run: Run) -> None:
    code, _, said = run("help", "vrify\x1b")
    assert (code, "no page about 'vrify\\x1b'" in said, "did you mean verify?" in said) == (2, True, True)
    code, _, said = run("help", "xyz")
    assert (code, "there are: add, assets, attest, " in said) == (2, True)


def test_a_terminal_gets_the_page_folded_and_by_a_pager(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[str] = []
    monkeypatch.setattr("click.echo_via_pager", shown.append)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    table, example = "| " + "x" * 80, "y" * 80
    screen.echo_manual(f"- {'word ' * 20}\n{table}\n```sh\n{example}\n```\n\n{'word ' * 20}")
    lines = shown[0].split("\n")
    assert [line for line in lines if len(line) > 59] == [table, example]
    assert [line[:3] for line in lines if "word" in line] == ["- w", "  w", "wor", "wor"]
    assert capsys.readouterr().out == ""
