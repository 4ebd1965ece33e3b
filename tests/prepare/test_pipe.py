"""Piping: real programs, each failure named with its own last words, nothing left running or written."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import IngestError
from odfchain.ingest.prepare import prepare
from odfchain.odf.enums import CompressionFormat
from odfchain.odf.sources import PrepStep, PrepStepDecompress, PrepStepPipe
from odfchain.progress import Silent
from tests.kit.support import conformance

CASES = {case["id"]: case for case in conformance("polling_cases")["cases"]}
COPY = "import shutil, sys; shutil.copyfileobj(sys.stdin.buffer, sys.stdout.buffer)"


def python(program: str, *args: str) -> PrepStepPipe:
    return PrepStepPipe(command=(sys.executable, "-S", "-c", textwrap.dedent(program), *args))


class Bench:
    """A private folder and a user's file."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "run"
        self.folder.mkdir()
        self.source = tmp_path / "input.txt"
        self.outside = tmp_path / "outside"
        self.outside.mkdir()

    def run(self, *steps: PrepStep, data: bytes = b"a\nb\n", **kwargs: Any) -> bytes:
        self.source.write_bytes(data)
        found = prepare(steps, self.source, self.folder, name="input.txt", allow_commands=True, **kwargs)
        assert self.source.read_bytes() == data
        assert found != self.source
        assert list(self.folder.iterdir()) == [found]
        content = found.read_bytes()
        found.unlink()
        return content

    def refused(self, *steps: PrepStep, **kwargs: Any) -> str:
        with pytest.raises(IngestError) as caught:
            self.run(*steps, **kwargs)
        assert list(self.folder.iterdir()) == []
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith("input.txt: ")
        return str(caught.value)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def is_gone(pid_file: Path) -> bool:
    """Whether the process has ended, or does so at once."""
    try:
        fd = os.pidfd_open(int(pid_file.read_text()))
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], 10)[0])
    finally:
        os.close(fd)


def test_case_pipe_jq(bench: Bench) -> None:
    given, expected = CASES["prep.pipe_jq"]["given"], CASES["prep.pipe_jq"]["expect"]
    program = """
        import json, sys
        for row in json.load(sys.stdin):
            print(json.dumps(row, separators=(",", ":")))
    """
    assert bench.run(python(program), data=given["input"].encode()) == expected.encode()


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not on this machine")
def test_case_pipe_jq_with_jq(bench: Bench) -> None:
    given, expected = CASES["prep.pipe_jq"]["given"], CASES["prep.pipe_jq"]["expect"]
    step = PrepStepPipe(command=tuple(given["command"]))
    assert bench.run(step, data=given["input"].encode()) == expected.encode()


def test_several_commands_run_as_one_pipeline(bench: Bench) -> None:
    data = os.urandom(3_000_000)
    upper = python("import sys; sys.stdout.write(sys.stdin.read().upper())")
    hexed = python("import sys; sys.stdout.write(sys.stdin.buffer.read().hex())")
    assert bench.run(python(COPY), hexed, upper, data=data) == data.hex().upper().encode()


def test_unpacking_and_piping_mix(bench: Bench) -> None:
    import gzip

    packed = python("import gzip, sys; sys.stdout.buffer.write(gzip.compress(sys.stdin.buffer.read()))")
    unpack = PrepStepDecompress(format=CompressionFormat.GZIP)
    twice = python("import sys; sys.stdout.write(sys.stdin.read() * 2)")
    assert bench.run(unpack, twice, packed, unpack, data=gzip.compress(b"x\n")) == b"x\nx\n"


def test_no_shell_and_few_variables(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    program = "import json, os, sys; json.dump([sorted(os.environ), os.getcwd(), sys.argv[1:]], sys.stdout)"
    variables, folder, args = json.loads(bench.run(python(program, "$HOME; ls | *", "a b")))
    assert set(variables) <= {"PATH", "HOME", "LANG", "TMPDIR", "LC_CTYPE"}, "LC_CTYPE is Python's own"
    assert {"PATH", "LANG"} <= set(variables)
    assert folder == str(bench.folder)
    assert args == ["$HOME; ls | *", "a b"]


def test_commands_of_strangers_are_refused(bench: Bench) -> None:
    bench.source.write_bytes(b"not gzip")
    mark = bench.outside / "ran"
    steps = [
        PrepStepDecompress(format=CompressionFormat.GZIP),
        python("import sys; open(sys.argv[1], 'w')", str(mark)),
    ]
    with pytest.raises(IngestError, match=r"and commands are not allowed") as caught:
        prepare(steps, bench.source, bench.folder, name="x")
    assert caught.value.hint is not None
    assert "--allow-commands" in caught.value.hint
    assert "ingest.allowCommands" in caught.value.hint
    assert not mark.exists()


# --- failures ----------------------------------------------------------------------------------------


def test_an_exit_code_and_the_last_words(bench: Bench) -> None:
    program = """
        import sys
        for n in range(10_000):
            print("line", n, file=sys.stderr)
        sys.stderr.buffer.write(b"broken \\xff byte\\n")
        print("partial output")
        sys.exit(3)
    """
    said = bench.refused(python(program))
    assert (
        "` ended with exit code 3: line 9996 | line 9997 | line 9998 | line 9999 | broken \ufffd byte" in said
    )


def test_last_words_without_an_end_are_bounded(bench: Bench) -> None:
    program = "import sys; sys.stderr.write('first ' + 'x' * 5_000_000); sys.exit(1)"
    said = bench.refused(python(program))
    assert len(said) < 4_096 + 400
    assert "first" not in said.rpartition("exit code 1")[2]


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM", "SIGPIPE"])
def test_a_signal_is_named(bench: Bench, name: str) -> None:
    program = (
        "import os, signal, sys; n = int(sys.argv[1]); n == 9 or signal.signal(n, 0); os.kill(os.getpid(), n)"
    )
    said = bench.refused(python(program, str(int(signal.Signals[name]))))
    assert f"was killed by {name}" in said


def test_programs_that_cannot_be_started(bench: Bench) -> None:
    plain = bench.outside / "plain.txt"
    plain.write_text("no program")
    assert "the program of `no-such-program -x` was not found" in bench.refused(
        PrepStepPipe(command=("no-such-program", "-x"))
    )
    assert "cannot be started: Permission denied" in bench.refused(PrepStepPipe(command=(str(plain),)))
    plain.chmod(0o755)
    assert "cannot be started: Exec format error" in bench.refused(PrepStepPipe(command=(str(plain),)))
    assert "cannot be started: embedded null byte" in bench.refused(PrepStepPipe(command=("a\0b",)))
    assert "empty command" in bench.refused(PrepStepPipe(command=()))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_any_stage_can_fail_and_only_its_words_are_told(bench: Bench, position: int) -> None:
    fine = "import sys; print('all is well', file=sys.stderr); sys.stdout.write(sys.stdin.read())"
    steps = [python(fine), python(fine), python(fine)]
    steps[position] = python(
        "import sys; sys.stdin.read(); sys.exit('this is stage %s' % sys.argv[1])", str(position)
    )
    said = bench.refused(*steps)
    assert said.endswith(f"ended with exit code 1: this is stage {position}")
    assert "all is well" not in said.rpartition("exit code 1")[2]


def test_a_stage_that_has_read_enough_is_no_failure(bench: Bench) -> None:
    endless = (
        "import signal, sys; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nwhile True: print('y' * 1000)"
    )
    head = "import sys; sys.stdout.write(sys.stdin.readline()[:1])"
    assert bench.run(python(endless), python(head)) == b"y"
    assert bench.run(python(head), data=b"x" * 5_000_000) == b"x", "the same for the input file"


def test_a_broken_pipe_does_not_hide_the_failure_behind_it(bench: Bench) -> None:
    endless = (
        "import signal, sys; signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nwhile True: print('y' * 1000)"
    )
    said = bench.refused(python(endless), python("import sys; sys.exit('no')"))
    assert said.endswith("ended with exit code 1: no")
    assert "SIGPIPE" not in said


def test_a_failure_ends_programs_that_would_run_for_ever(bench: Bench) -> None:
    pid, child = bench.outside / "pid", bench.outside / "child"
    sleeper = """
        import os, signal, subprocess, sys
        open(sys.argv[1], "w").write(str(os.getpid()))
        child = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
        open(sys.argv[2], "w").write(str(child.pid))
        print("ready", flush=True)
        signal.pause()
    """
    failing = "import sys; sys.stdin.readline(); sys.exit('enough')"
    assert bench.refused(python(sleeper, str(pid), str(child)), python(failing)).endswith("enough")
    assert is_gone(pid)
    assert is_gone(child)


def test_the_output_is_bounded(bench: Bench) -> None:
    pid = bench.outside / "pid"
    program = "import os, sys; open(sys.argv[1], 'w').write(str(os.getpid()))\nwhile True: print('y' * 1000)"
    said = bench.refused(python(program, str(pid)), max_bytes=100_000)
    assert "larger than 100,000 bytes (limit max_bytes)" in said
    assert is_gone(pid)


class Interrupted(Silent):
    """The user presses Ctrl-C once data flows."""

    def __init__(self) -> None:
        self.calls = 0

    def advance(self, steps: int = 1) -> None:
        if steps:
            raise KeyboardInterrupt


def test_an_interrupt_ends_everything(bench: Bench) -> None:
    pid = bench.outside / "pid"
    program = """
        import os, signal, sys
        open(sys.argv[1], "w").write(str(os.getpid()))
        sys.stdout.write(sys.stdin.read()); sys.stdout.flush()
        signal.pause()
    """
    with pytest.raises(KeyboardInterrupt):
        bench.run(python(program, str(pid)), progress=Interrupted())
    assert is_gone(pid)
    assert list(bench.folder.iterdir()) == []


class Counted(Silent):
    """A progress that adds up."""

    def __init__(self) -> None:
        self.total: int | None = None
        self.done = 0

    def phase(self, name: str, total: int | None = None) -> None:
        self.total = total

    def advance(self, steps: int = 1) -> None:
        self.done += steps


def test_progress_follows_the_input(bench: Bench) -> None:
    progress = Counted()
    data = b"x" * 1_234_567
    assert bench.run(python(COPY), data=data, progress=progress) == data
    assert progress.done == progress.total == len(data)
