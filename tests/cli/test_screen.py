"""No character of a stranger acts on a terminal, whichever command prints it."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from odfchain.cli.main import COMMANDS
from odfchain.text import escaped_json, one_line, printable
from tests.kit.hostile_dataset import EVIL, make_workspace
from tests.kit.support import ROOT

OURS = re.compile(r"\r(?=\x1b)|\x1b\[(?:0|1|2|3|22|[0-9;]*3[0-7]|9[0-7]|\?25[lh]|2K|1A|K)*[mhlKA]?")
"""What we ourselves send a terminal: colours, bold, and how a progress bar is drawn."""


def acting(text: str) -> set[str]:
    """The characters of a text that act, as code points."""
    return {
        f"U+{ord(c):04X}"
        for c in text
        if unicodedata.category(c) in ("Cc", "Zl", "Zp", "Cs")
        or unicodedata.bidirectional(c) in ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
        or c in "\u200b\u200e\u200f\u061c\ufeff\u2060"
        or 0xE0000 <= ord(c) < 0xE0100
    }


# --- the rule --------------------------------------------------------------------------------------


def test_every_character_that_acts_is_seen() -> None:
    kept = set()
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        shown = printable(character)
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            if shown == character:
                kept.add(code)
            else:
                assert shown.isascii(), hex(code)
                assert shown.encode().decode("unicode_escape") == character
        elif not 0xE0000 <= code < 0xE1000 and code != 0x2065:  # reserved for more of their kind
            assert shown == character, hex(code)
    assert kept == {
        0x200C, 0x200D, 0x180E, 0x6DD, 0x70F, 0x8E2, 0x890, 0x891, 0x110BD, 0x110CD,
        *range(0x600, 0x606), *range(0x13430, 0x13439),
    }  # fmt: skip


def test_every_character_comes_back_from_json() -> None:
    for start in range(0, sys.maxunicode + 1, 4_096):
        characters = [chr(code) for code in range(start, start + 4_096)]
        assert json.loads(escaped_json(json.dumps(characters, ensure_ascii=False))) == characters


@pytest.mark.parametrize(
    "text",
    [
        "می‌خواهم", "क्‍ष", "👩‍🔬", "❤️", "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        "日本", "Zürich", "ﷺ", "e\u0301",
    ],
)  # fmt: skip
def test_scripts_and_emoji_stay_as_they_are(text: str) -> None:
    assert printable(text) == text == printable(printable(text))


def test_other_flags_of_tags_are_seen() -> None:
    assert printable("🏴\U000e0078\U000e007f") == "🏴\\U000e0078\\U000e007f"


def test_long_texts_are_cut() -> None:
    assert printable("x" * 10, 10) == "x" * 10
    assert printable("x" * 11, 10) == "x" * 9 + "…"
    assert printable("\x1b" * 11, 10) == "\\x1b\\x1b\\…"
    assert one_line("  a\r\n\t b \x0bc") == "a b \\x0bc"


# --- every command ---------------------------------------------------------------------------------

RUN = """
import sys
from odfchain.cli.main import main
for line in open(sys.argv[1]):
    args = __import__("json").loads(line)
    print("\\n=====", flush=True)
    code = main(args)
    sys.stdout.flush(); sys.stderr.flush()
    print(f"\\n+++++{code}", flush=True)
"""

WALKED: dict[str, list[str]] = {
    "log": ["log", "evil"],
    "log made": ["log", "made"],
    **{f"log {o}": ["log", "evil", "-o", o] for o in ("json", "ndjson", "csv", "yaml")},
    **{f"schema {o}": ["inspect", "schema", "evil", "-o", o] for o in ("table", "ddl", "json", "yaml", "ndjson", "csv")},
    **{f"lineage {o}": ["inspect", "lineage", "-o", o] for o in ("tree", "dot", "html", "json")},
    **{f"query {d} {o}": ["inspect", "query", d, "-o", o] for d in ("evil", "made") for o in ("table", "json")},
    **{f"tail {o}": ["tail", "evil", "-o", o] for o in ("table", "json", "ndjson", "csv")},
    **{f"sql {o}": ["sql", "-c", "select * from evil", "-o", o] for o in ("table", "json", "ndjson", "csv")},
    "sql wrong": ["sql", "-c", f"select {EVIL}"],
    "sql no dataset": ["sql", "-c", f'select * from "{EVIL}"'],
    "sql no parameter": ["sql", "-c", "select 1", "--param", f"{EVIL}=1"],
    "export": ["export", "evil"],
    "witness list": ["witness", "list", "-o", "json"],
    "slices": ["inspect", "slices", "evil"],
    **{f"proof show {o}": ["proof", "show", "answer.json", "-o", o] for o in ("table", "json")},
    "proof verify": ["proof", "verify", "answer.json"],
    "proof of nothing": ["proof", "verify", EVIL],
    **{f"blame {o}": ["blame", "evil", "--offset", "1", "-o", o] for o in ("table", "json", "tree")},
    **{f"verify {o}": ["verify", "%", "-v", "-o", o] for o in ("table", "json", "ndjson", "html")},
    **{f"status {o}": ["status", "-o", o] for o in ("table", "json", "csv")},
    **{f"list {o}": ["list", "--wide", "-o", o] for o in ("table", "json", "csv")},
    "fsck": ["fsck"],
    "gc": ["gc", "--dry-run"],
    "compact": ["compact", "evil", "--dry-run"],
    "reset": ["reset", "evil", "2", "--dry-run"],
    "reset asks": ["reset", "evil", "2", "--force"],
    "delete asks": ["delete", "made"],
    "pull": ["pull", "evil"],
    "pull made": ["pull", "made"],
    "ingest": ["ingest", "evil", "--source", EVIL, "rows.csv"],
    "ingest no file": ["ingest", "evil", EVIL],
    "ingest unnamed": ["ingest", "evil", "rows.csv"],
    "add": ["add", "evil.yaml"],
    "add no file": ["add", EVIL],
    "digest": ["digest", "-o", "csv", f"slice {EVIL}".replace("/", "")],
    "digest no file": ["digest", EVIL],
    "no dataset": ["tail", EVIL],
    "no command": [EVIL],
    "no option": ["log", f"--{EVIL}"],
    "no choice": ["tail", "evil", "-o", EVIL],
    "no number": ["tail", "evil", "-n", EVIL],
    "missing": ["blame", "evil"],
    "missing choice": ["ingest"],
    "no workspace": ["-w", EVIL, "list"],
    "repo add": ["repo", "add", "x", f"https://x.example/{EVIL}"],
    "repo list": ["repo", "list"],
    "pull url": ["pull", f"http://127.0.0.1:9/{EVIL}"],
    "push": ["push", "evil", "--to", f"file:///proc/{EVIL}"],
    "search": ["search", EVIL],
    "block": ["block", "decode", EVIL],
    "rename": ["rename", "made", EVIL],
    "attest": ["attest", "evil", "--key", EVIL],
    "attestations": ["attestations", "evil"],
    "evidence": ["evidence", "list"],
    "sign": ["sign", "evil"],
    "key": ["key", "show", EVIL],
    "new": ["new", "--root", EVIL],
    "import": ["import", "rows.ndjson", "--as", "rows"],
    "config": ["config", "get", EVIL],
    "config set": ["config", "set", "share.parallel", EVIL],
    "login": ["login", f"http://x.example/{EVIL}"],
    "logout": ["logout", f"http://x.example/{EVIL}"],
    "token": ["token", "create", "x", "--allow", f"push:{EVIL}"],
    "token list": ["token", "list"],
    "fetch": ["fetch", "evil"],
    "serve": ["serve", "--host", EVIL],
    "add effects": ["add", "effects.yaml"],
    "source": ["source", "disable", "evil", "--source", f"no {EVIL}"],
    "assets": ["assets", "check", EVIL],
    "assets derive": ["assets", "derive", "evil.ndjson", "--output", "x.parquet"],
    "branch": ["branch", "create", "evil", EVIL],
    "correct": ["correct", "evil", "rows.csv"],
    "correct no file": ["correct", "evil", f"{EVIL}.csv"],
    "diff": ["diff", "evil", "1", "head", "-o", "csv"],
    "diff no point": ["diff", "evil", EVIL],
    "merge": ["merge", "evil", EVIL],
    "revert": ["revert", "evil", EVIL],
    **{f"state {o}": ["state", "evil", "-o", o] for o in ("table", "csv")},
    "history": ["history", "evil", f"{EVIL}=1"],
    **{f"profile {o}": ["profile", "evil", "-o", o] for o in ("table", "json", "html")},
    **{f"inspect profile {o}": ["inspect", "profile", "evil", "-o", o] for o in ("table", "json", "html")},
    "page of what is known": ["inspect", "lineage", "evil", "-o", "html"],
    **{f"manifest {o}": ["manifest", "evil", "-o", o] for o in ("table", "json")},
    "manifest where": ["manifest", "evil", "--where", EVIL],
    "debug": ["--debug", "tail", EVIL],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the workspace of a publisher who means harm, and files of theirs."""
    folder = tmp_path_factory.mktemp("screen")
    workspace = make_workspace(folder)
    (folder / "rows.csv").write_text(EVIL)
    (folder / "rows.ndjson").write_text(json.dumps({EVIL: EVIL}))
    item = {"type": "Feature", "id": EVIL, "assets": {EVIL: {"href": f"https://u@h/{EVIL}"}}}
    (folder / "evil.ndjson").write_text(json.dumps(item))
    (folder / "evil.yaml").write_text(json.dumps({"kind": EVIL, EVIL: [EVIL]}))
    fetch = {"kind": "Url", "url": f"https://${{{{ env.K }}}}{EVIL}.example/"}
    steps = {"fetch": fetch, "prepare": [{"kind": "Pipe", "command": ["sh", "-c", EVIL]}]}
    source = {"kind": "SetPollingSource", **steps, "read": {"kind": "NdJson"}, "merge": {"kind": "Append"}}
    content = {"name": "effects", "kind": "Root", "metadata": [source]}
    asks = {"kind": "DatasetSnapshot", "version": 1, "content": content}
    (folder / "effects.yaml").write_text(json.dumps(asks, ensure_ascii=False), encoding="utf-8")
    text = EVIL.replace("\0", "").replace("'", "")
    workspace.prove(f"select '{text}' as a").save(folder / "answer.json")
    (found,) = (workspace["evil"].path / "data").iterdir()
    shutil.copy(found, folder / f"slice {EVIL}".replace("\0", "").replace("/", ""))
    return folder


def on_a_terminal(folder: Path, commands: list[list[str]]) -> list[str]:
    """What each command line writes to the terminal that is its standard output and error."""
    # no argument of a process holds a null character
    possible = [[arg.replace("\0", "") for arg in command] for command in commands]
    (folder / "commands").write_text("\n".join(map(json.dumps, possible)))
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": "200", "TERM": "xterm-256color", "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, "commands"], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    data = b""
    with os.fdopen(ours, "rb", buffering=0) as stream, contextlib.suppress(OSError):  # as its end reads
        while piece := stream.read(1 << 16):
            data += piece
    assert process.wait() == 0, data[-2_000:]
    return data.decode("utf-8").split("\r\n=====\r\n")[1:]


def in_a_pipe(folder: Path, *args: str) -> str:
    program = "import sys; from odfchain.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program]
    done = subprocess.run([*command, *args], cwd=folder, capture_output=True, check=False)
    return done.stdout.decode()


@pytest.fixture(scope="module")
def screens(folder: Path) -> dict[str, str]:
    return dict(zip(WALKED, on_a_terminal(folder, list(WALKED.values())), strict=True))


@pytest.mark.parametrize("name", WALKED)
def test_nothing_acts_on_the_terminal(screens: dict[str, str], name: str) -> None:
    text = screens[name]
    shown, _, code = text.rpartition("\r\n+++++")
    assert "this is a fault of odfchain" not in shown
    assert code.strip() not in ("1", "None")
    assert shown.strip() or name in ("fetch", "repo list")
    lines = OURS.sub("", shown).split("\r\n")
    assert {c for line in lines for c in acting(line)} == set()
    # a table or a tree may fold a text there, but below its own start, not at the margin
    assert not [line for line in lines if line.startswith("FAKED")]


@pytest.mark.parametrize(
    "name",
    [
        "log", "log made", "schema table", "lineage tree", "query evil table", "query made table", "tail table",
        "blame tree", "tail csv", "tail json", "sql csv", "sql no parameter", "export", "add effects", "source",
        "assets derive", "import", "no dataset", "no command", "no option",
    ],
)  # fmt: skip
def test_what_would_act_is_seen(screens: dict[str, str], name: str) -> None:
    assert "\\x1b" in screens[name] or "\\u001b" in screens[name]
    assert "[bold red]" in screens[name].replace("\r\n", "") or "…" in screens[name]
    assert ":skull:" in screens[name].replace("\r\n", "") or "…" in screens[name]


def test_all_commands_are_walked() -> None:
    walked = {args[0] for args in WALKED.values()}
    shows_nothing_of_a_dataset = {"init", "help", "engine", "completions", "version", "ui"}
    assert set(COMMANDS) - walked == shows_nothing_of_a_dataset


def test_json_on_a_terminal_is_the_same_data(screens: dict[str, str], folder: Path) -> None:
    shown = screens["tail json"].rpartition("\r\n+++++")[0]
    piped = in_a_pipe(folder, "tail", "evil", "-o", "json")
    assert json.loads(shown) == json.loads(piped)
    assert json.loads(piped)[1][f"text {EVIL}"] == EVIL
    assert "\u202e" in piped


def test_csv_in_a_pipe_is_untouched(folder: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(in_a_pipe(folder, "tail", "evil", "-o", "csv"), newline="")))
    assert rows[1][f"text {EVIL}"] == EVIL


def test_text_for_people_is_escaped_in_a_pipe_too(folder: Path) -> None:
    for args in (["log", "evil"], ["tail", "evil"], ["inspect", "schema", "evil"], ["inspect", "lineage"]):
        assert {c for line in in_a_pipe(folder, *args).split("\n") for c in acting(line)} == set()


# --- the only way to the screen --------------------------------------------------------------------


def test_commands_print_through_one_module() -> None:
    direct = re.compile(
        r"\b(?:click\.s?echo|click\.confirm|click\.prompt|(?<!\.)print|Console|std(?:out|err)\.write)\("
    )
    for path in (ROOT / "odfchain" / "cli").rglob("*.py"):
        if path.name not in ("screen.py", "conformance.py"):  # the client of a suite is no command
            found = [line for line in path.read_text().splitlines() if direct.search(line)]
            assert not found, f"{path.name}: {found[0].strip()}: use odfchain.cli.screen"
