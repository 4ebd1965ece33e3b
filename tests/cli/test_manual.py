"""The manual: the pages of commands are those of their help, and `odfchain help` opens them."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from importlib.resources import files

import click
import pytest

from odfchain.cli import screen
from odfchain.cli.main import COMMANDS, cli
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
    for words, page in ((["ls"], "list"), (["branch", "create"], "branch")):
        shown = run("help", *words)
        assert (shown.code, shown.out.splitlines()[0]) == (0, f"# odfchain {page}")


def test_the_first_screen_has_some_commands_and_says_how_to_see_all(run: Run) -> None:
    first = run("help")
    assert first.code == 0
    assert first == run("--help")
    assert run().err == first.out
    lines = first.out.splitlines()
    assert (len(lines) < 24, max(map(len, lines)) < 80) == (True, True)
    assert [name for name in COMMANDS if f" {name} " in first.out and name not in ("init", "import")][:2] == [
        "help",
        "pull",
    ]
    assert "odfchain help --all" in lines[-1]


def test_the_whole_help_lists_every_command_and_the_options_of_all(run: Run) -> None:
    whole = run("help", "--all").out
    assert [line.split()[0] for line in whole.split("Start:")[1].splitlines() if line[:2] == "  "] == COMMANDS
    assert "--workspace DIR" in whole


@pytest.mark.parametrize("command", COMMANDS)
def test_the_list_says_of_a_command_what_its_help_begins_with(command: str, run: Run) -> None:
    listed = re.search(rf"^  {command} +(.*)$", run("help", "--all").out, re.MULTILINE)
    purpose = run(command, "--help").out.split("\n\n")[1]
    assert listed is not None
    assert " ".join(purpose.split()).startswith(listed[1])


def _all(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if path:
        yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _all(below, (*path, name))


EVERY = [*_all(cli)]


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_every_help_begins_with_an_example_and_the_purpose(path: tuple[str, ...], run: Run) -> None:
    shown = run(*path, "--help")
    examples, purpose, *_ = shown.out.split("\n\n")
    begin = f"Example: odfchain {' '.join(path)}"
    assert (shown.code, [line for line in examples.splitlines() if not line.startswith(begin)]) == (0, [])
    assert (purpose[:2], purpose[2].isupper()) == ("  ", True)
    assert "..." not in shown.out.partition("Commands:")[2], "the first sentence of a command is cut"


def test_every_example_is_understood_by_the_command_that_it_shows() -> None:
    text = files("odfchain").joinpath("cli", "examples.txt").read_text(encoding="utf-8")
    shown = set()
    for line in text.splitlines():
        _, *words = shlex.split(line)
        context = cli.make_context("odfchain", words)
        while isinstance(context.command, click.Group):
            name, found, rest = context.command.resolve_command(
                context, [*context._protected_args, *context.args]
            )
            assert found is not None
            context = found.make_context(name, rest, parent=context)
        shown.add(context.command_path)
    commands = {f"odfchain {' '.join(path)}" for path in EVERY}
    assert commands - shown == {name for name in commands if any(c.startswith(f"{name} ") for c in commands)}


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_the_options_of_all_stand_behind_every_command(path: tuple[str, ...], run: Run) -> None:
    behind = ("-w", "/nope", "-q", "-y", "--no-color", "--debug")
    assert run(*path, *behind, "--help").out == run(*path, "--help").out


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
