"""The shell of `odfchain sql`, at a pseudo-terminal as a person has it."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odfchain.cli.query import names_for, statements
from tests.kit.processes import HEEDS_INTERRUPTS, ODFCHAIN, begun_with, environment, wait_until
from tests.kit.queried_workspace import add_numbers, new_workspace

PROMPT = "odfchain> "
_DRAWN = re.compile(r"\x1b\[\??[0-9;]*[a-zA-Z]|\r")


OWN_TERMINAL = f"{HEEDS_INTERRUPTS}; import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)"
"""Ctrl-C at the terminal reaches the process, as it does for a person."""


class Terminal:
    """A shell, and what a person sees of it."""

    def __init__(self, folder: Path, state: Path) -> None:
        self._ours, theirs = pty.openpty()
        env = environment(XDG_STATE_HOME=str(state), TERM="dumb", COLUMNS="200", INPUTRC="/dev/null")
        self._process = subprocess.Popen(
            begun_with(OWN_TERMINAL, ODFCHAIN, "sql"), cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._seen = ""
        self.wait_for(PROMPT)

    def wait_for(self, text: str, seconds: float = 40) -> str:
        """What appears up to a text; that is taken away."""
        end = time.monotonic() + seconds
        while text not in self._seen:
            assert time.monotonic() < end, self._seen
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    piece = os.read(self._ours, 1 << 16)
                except OSError:
                    piece = b""
                assert piece, f"the shell ended: {self._seen}"
                self._seen += _DRAWN.sub("", piece.decode())
        found, _, self._seen = self._seen.partition(text)
        return found

    def sees(self, text: str, seconds: float) -> bool:
        """Whether a text appears within a time; that is taken away."""
        try:
            self.wait_for(text, seconds)
        except AssertionError:
            return False
        return True

    def send(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def ask(self, line: str) -> list[str]:
        """The lines that answer a line."""
        self.send(f"{line}\n")
        return self.wait_for(PROMPT).strip("\n").split("\n")[1:]

    def works(self) -> None:
        """Returns when the process that answers has computed for a second."""

        def spent() -> int:
            found = 0
            for path in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError):
                    parts = path.read_text().rpartition(")")[2].split()
                    found += int(parts[1] == str(self._process.pid)) * (int(parts[11]) + int(parts[12]))
            return found

        begun = spent()
        wait_until(lambda: spent() - begun > os.sysconf("SC_CLK_TCK"), self._process)

    def end(self, keys: str) -> int:
        """The exit code after these keys."""
        self.send(keys)
        end = time.monotonic() + 20
        while self._process.poll() is None and time.monotonic() < end:
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    os.read(self._ours, 1 << 16)
                except OSError:
                    break
        return self._process.wait(timeout=20)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shell")
    workspace = new_workspace(folder)
    add_numbers(workspace, "rows", [300])
    add_numbers(workspace, "org.x.y", [2, 1])
    (folder / "two.sql").write_text("select 1 a; select ';' b -- ;\n;\nselect 3 c\n")
    return folder


@pytest.fixture
def shell(folder: Path, tmp_path: Path) -> Iterator[Terminal]:
    found = Terminal(folder, tmp_path / "state")
    yield found
    found.close()


def test_a_conversation(shell: Terminal, folder: Path, tmp_path: Path) -> None:
    answer = shell.ask("select count(*) n from rows;")
    assert [line.strip() for line in answer[:2]] == ["n", "300"]
    assert re.fullmatch(r"rows @ 2 \(f1620...…....\), 1 row, \d+\.\d s", answer[2])
    # a statement of several lines, and two of one
    shell.send("select ';' semicolon,\n")
    shell.wait_for("...> ")
    shell.send("2 two -- ;\n")
    shell.wait_for("...> ")
    shown = "\n".join(shell.ask("; select 3 three;"))
    assert re.search(r"semicolon +two\n; +2\n1 row, .* s\nthree\n +3\n1 row, ", shown)
    # more rows than are shown
    answer = shell.ask("select v from rows order by v;")
    assert answer[-2].strip() == "99"
    assert "300 rows (200 of them not shown)" in answer[-1]
    # errors, and the shell goes on
    answer = shell.ask("select vv from rows;")
    assert answer[0].startswith("error: ")
    assert any(line.strip() == "^" for line in answer)
    assert shell.ask('select * from "no.such";')[0].startswith("error: ")
    assert shell.ask(".nothing")[0].startswith("error: unknown command .nothing")
    # commands
    tables = [line.split() for line in shell.ask(".tables")]
    assert tables[0] == ["name", "kind", "columns", "rows", "branches"]
    assert tables[1:3] == [["org.x.y", "Root", "5", "3"], ["rows", "Root", "5", "300"]]
    assert ["v", "BIGINT"] in [line.split() for line in shell.ask(".schema org.x.y@2")]
    shell.ask(".mode csv")
    assert shell.ask("select 1 a;")[:2] == ["a", "1"]
    shell.ask(".timer off")
    assert shell.ask("select 1 a;")[2] == "1 row"
    shell.ask(f".output {tmp_path}/out.ndjson")
    assert shell.ask("select 1 a;") == ["1 row"]
    assert shell.ask("select 2 a;")[:2] == ["a", "2"]
    assert (tmp_path / "out.ndjson").read_text() == '{"a": 1}\n'
    answer = [line for line in shell.ask(".read two.sql") if "row" not in line]
    assert answer == ["a", "1", "b", ";", "c", "3"]
    assert shell.ask(".read nothing.sql")[0].startswith("error: nothing.sql: ")
    assert "Exec" in "".join(shell.ask(".explain select v from rows where v > 2"))
    shell.ask(".at 2000")
    assert "begins at" in shell.ask("select count(*) from rows;")[0]
    shell.ask(".at")
    assert shell.ask("select count(*) n from rows;")[1] == "300"
    assert shell.ask(".at soon")[0].startswith("error: ")
    assert any(line.startswith(".read FILE") for line in shell.ask(".help"))
    assert shell.end(".quit\n") == 0


def test_case_28_ctrl_c_ends_the_query_and_not_the_shell(shell: Terminal, tmp_path: Path) -> None:
    shell.send("select count(*) from rows a, rows b, rows c, rows d where a.v + b.v + c.v + d.v < 0;\n")
    shell.wait_for("< 0;")
    shell.works()
    shell.send("\x03")
    shell.wait_for("interrupted")
    shell.wait_for(PROMPT)
    assert [line.strip() for line in shell.ask("select 1 a;")[:2]] == ["a", "1"]
    # at the prompt it forgets what was typed
    shell.send("select what\n")
    shell.wait_for("...> ")
    # an interpreter that has drawn its prompt and does not wait for keys yet learns of Ctrl-C at the next one
    assert any(not shell.send("\x03") and shell.sees(PROMPT, 1) for _ in range(40))
    shell.send("select 2 a;\n")
    shell.wait_for("select 2 a;")
    assert shell.wait_for(PROMPT).split()[:2] == ["a", "2"]
    assert shell.end("\x04") == 0
    history = tmp_path / "state" / "odfchain" / "sql_history"
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "select 2 a;" in history.read_text().splitlines()


def test_names_are_completed(shell: Terminal) -> None:
    shell.send("sel\t\t")
    shell.wait_for("select")
    shell.send(' count(*) n from "org.\t')
    shell.wait_for('org.x.y"')
    assert [line.strip() for line in shell.ask(";")[:2]] == ["n", "3"]


@pytest.mark.parametrize(
    ("text", "whole", "rest"),
    [
        ("", [], ""),
        (" ; ;\n", [], ""),
        ("select 1;", ["select 1"], ""),
        ("select 1; select 2", ["select 1"], "select 2"),
        ("select ';' || \";\";x", ["select ';' || \";\""], "x"),
        ("select 'it''s;", [], "select 'it''s;"),
        ("select 1 -- ;\n;", ["select 1 -- ;"], ""),
        ("select /* ; /* ; */ ; */ 1;", ["select /* ; /* ; */ ; */ 1"], ""),
        ("select /* ;", [], "select /* ;"),
        ("select $$;$$;", ["select $$;$$"], ""),
        ("select $a$;$$;$a$, `;`;", ["select $a$;$$;$a$, `;`"], ""),
        ("select a$b from x where y = $b; select $b$", ["select a$b from x where y = $b"], "select $b$"),
        ("-- it's; a comment\n/* ; */ -- '\n", [], ""),
        (
            "-- first\nselect 1; .mode csv\n.read it's;\nselect 2",
            ["select 1", ".mode csv", ".read it's;"],
            "select 2",
        ),
        ("/* open", [], "/* open"),
        ("select 1 - -1; ", ["select 1 - -1"], ""),
    ],
)
def test_where_statements_end(text: str, whole: list[str], rest: str) -> None:
    assert statements(text) == (whole, rest)


def test_what_words_may_become() -> None:
    datasets, columns = ["org.x", "plain", "ev\x1bil"], {"Pop", "place"}
    assert names_for("pl", "select ", datasets, columns) == ["place", "plain"]
    assert names_for("po", "select ", datasets, columns) == ['"Pop"']
    assert names_for("org", 'from "', datasets, columns) == ["org.x"]
    assert names_for("org", "from ", datasets, columns) == ['"org.x"']
    assert names_for("org", "from state('", datasets, columns) == ["org.x"]
    assert names_for("SEL", "", datasets, columns) == ["SELECT"]
    assert names_for("ev", "from ", datasets, columns) == []
