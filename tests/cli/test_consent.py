"""`add` of a manifest that does something: it is shown, and asked about."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from odfchain.cli.main import main
from tests.kit.polled_sources import APPEND, MANIFEST

KEYED = "{kind: Url, url: 'https://api.example.com/v2?key=${{ env.KEY }}'}"
PLAIN = "{kind: Url, url: 'https://api.example.com/v2'}"
JQ = "[{kind: Pipe, command: [jq, -c, '.data[]']}]"
IMAGE = "{kind: Container, image: ghcr.io/x/y, env: [{name: KEY}]}"
Add = Callable[..., tuple[int, str]]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.init(tmp_path)


@pytest.fixture
def add(workspace: Workspace, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Add:
    def run(
        *args: str, fetch: str = PLAIN, prepare: str = "[]", before: tuple[str, ...] = ()
    ) -> tuple[int, str]:
        manifest = tmp_path / "m.yaml"
        manifest.write_text(
            MANIFEST.format(fetch=fetch, prepare=prepare, read="{kind: NdJson}", preprocess="", merge=APPEND)
        )
        code = main(["-w", str(tmp_path), *before, "add", str(manifest), *args])
        return code, capsys.readouterr().err

    return run


def answer(monkeypatch: pytest.MonkeyPatch, given: bool) -> list[str]:
    """A terminal whose user answers; what was asked is in the list."""
    asked: list[str] = []

    def ask(question: str) -> bool:
        asked.append(question)
        return given

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("odfchain.cli.screen.ask", ask)
    return asked


def names(workspace: Workspace) -> list[str]:
    return [str(dataset.alias) for dataset in workspace]


def test_what_does_nothing_is_not_asked_about(workspace: Workspace, add: Add) -> None:
    code, said = add(fetch="{kind: FilesGlob, path: '${{ env.DIR }}/*.csv'}")
    assert code == 0
    assert "  " not in said
    assert names(workspace) == ["cities"]


@pytest.mark.parametrize(
    ("fetch", "prepare", "line", "flags"),
    [
        (KEYED, "[]", "  sends the variable KEY to api.example.com", "--allow-host api.example.com"),
        (PLAIN, JQ, "  runs the command: jq -c '.data[]'", "--allow-commands"),
        (KEYED, JQ, "  runs the command: jq", "--allow-commands --allow-host api.example.com"),
        (IMAGE, "[]", "  runs the container image: ghcr.io/x/y, and gives it the variables KEY", "--allow-commands"),
        ("{kind: Url, url: 'https://${{ env.H }}/'}", "[]", "  sends the variable H to ${{ env.H }}", "--allow-host '${{ env.H }}'"),
    ],
)  # fmt: skip
def test_without_a_terminal_it_is_refused_with_the_flags(
    workspace: Workspace, add: Add, fetch: str, prepare: str, line: str, flags: str
) -> None:
    code, said = add(fetch=fetch, prepare=prepare)
    assert code == 2
    assert line in said
    assert "m.yaml: ingesting into cities" in said
    assert said.endswith(f"hint: if you trust it, add {flags}\n")
    assert names(workspace) == []
    import shlex

    assert add(*shlex.split(flags), fetch=fetch, prepare=prepare) == (0, "added cities (root)\n")


def test_closed_input_cannot_answer(workspace: Workspace, add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    code, said = add(fetch=KEYED)
    assert (code, "standard input is not a terminal" in said) == (2, True)
    for args, expected in ((["add", "--stdin"], 3), (["login", "--token-stdin", "https://a.example"], 8)):
        assert main(["-w", str(workspace.path.parent), *args]) == expected


def test_yes_is_for_everything(workspace: Workspace, add: Add) -> None:
    assert add(fetch=KEYED, prepare=JQ, before=("-y",)) == (0, "added cities (root)\n")


def test_an_answer(workspace: Workspace, add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answer(monkeypatch, False)
    code, said = add(fetch=KEYED)
    assert (code, names(workspace), len(asked)) == (2, [], 1)
    assert "not confirmed; nothing was made" in said
    asked = answer(monkeypatch, True)
    assert add(fetch=KEYED)[0] == 0
    assert (names(workspace), len(asked)) == (["cities"], 1)


def test_an_update_is_asked_about_too(workspace: Workspace, add: Add) -> None:
    assert add()[0] == 0
    code, said = add("--update", prepare=JQ)
    assert (code, "--allow-commands" in said) == (2, True)
    assert add("--update", "--allow-commands", prepare=JQ)[0] == 0


@pytest.mark.parametrize(("flag", "code"), [("--allow-host", 2), ("--allow-commands", 2)])
def test_one_flag_is_not_the_other(workspace: Workspace, add: Add, flag: str, code: int) -> None:
    given = [flag, "evil.com"] if flag == "--allow-host" else [flag]
    assert add(*given, fetch=KEYED)[0] == code
    assert add("--allow-host", "api.example.com", prepare=JQ)[0] == 2


def test_a_command_is_shown_whole_and_on_one_line(workspace: Workspace, add: Add) -> None:
    command = r'["sh", "-c", "true\n\u001b[2J\u202e' + "x" * 5_000 + ' ; rm -rf ~"]'
    code, said = add(prepare=f"[{{kind: Pipe, command: {command}}}]")
    assert code == 2
    (line,) = [line for line in said.splitlines() if "runs the command" in line]
    assert line.endswith("; rm -rf ~'")
    assert r"true\n\x1b[2J\u202exxx" in line
    assert "\x1b" not in line.replace("\x1b[31m", "")


def bind(workspace: Workspace, text: str) -> None:
    config = workspace.path / "config.yaml"
    config.write_text(config.read_text().replace("variables: {} ", f"variables: {text} "))


def test_a_variable_that_is_bound_to_this_host_needs_no_question(workspace: Workspace, add: Add) -> None:
    bind(workspace, "{KEY: {value: s3cret, hosts: [api.example.com]}}")
    assert add(fetch=KEYED) == (0, "added cities (root)\n")


@pytest.mark.parametrize("fetch", [KEYED, IMAGE])
def test_a_variable_that_is_bound_to_others_is_refused(workspace: Workspace, add: Add, fetch: str) -> None:
    bind(workspace, "{KEY: {value: s3cret, hosts: [other.example.com]}}")
    code, said = add(fetch=fetch, before=("-y",))
    assert code == 2
    assert "the variable KEY may be sent to other.example.com only" in said
    assert "s3cret" not in said
    assert names(workspace) == []


def test_a_plain_variable_is_as_it_was(workspace: Workspace) -> None:
    bind(workspace, "{A: x, B: {value: y}, C: {value: z, hosts: []}}")
    assert workspace.ingest_config.values == {"A": "x", "B": "y", "C": "z"}
    assert workspace.ingest_config.bindings == {"C": ()}
