"""Commands in forks of the process that keeps a session: nobody sees a difference, and where there is one, they run alone."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odfchain.api.workspace import Workspace
from tests.kit.processes import ANY, HEEDS_INTERRUPTS, THERE, TIMEOUT, begun_with, environment, wait_until
from tests.kit.support import ROOT, manifest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes of other systems are not compared")

ALONE = f"import os; os.environ['CI'] = '1'; {ANY}"
READS = ("block", "encode", "-")
"""A command that waits for its input."""


def readlink(path: str) -> str:
    with contextlib.suppress(OSError):
        return str(Path(path).readlink())
    return ""


class Keeper:
    """The process that runs commands, in a folder with a workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = environment(
            XDG_RUNTIME_DIR=str(folder), XDG_CACHE_HOME=str(folder / "cache"), PYTHONPATH=str(ROOT)
        )
        del self.env["CI"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.kept_commands"], env=self.env, stdout=subprocess.PIPE
        )
        assert self.process.stdout.readline() == b"ready\n"

    def command(self, *args: str, program: str = THERE) -> list[str]:
        return [sys.executable, "-c", program, *args]

    def alone(self, *args: str, **options: object) -> subprocess.CompletedProcess[bytes]:
        return self.run(*args, program=ALONE, **options)

    def run(
        self, *args: str, program: str = THERE, before: str = "", **options: object
    ) -> subprocess.CompletedProcess[bytes]:
        given: dict[str, object] = {"cwd": self.folder, "env": self.env}
        if "input" not in options:
            given["stdin"] = subprocess.DEVNULL
        given |= options
        return subprocess.run(
            begun_with(before, *self.command(*args, program=program)),
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
            **given,
        )  # type: ignore[call-overload]

    def begin(self, *args: str, before: str = HEEDS_INTERRUPTS) -> subprocess.Popen[bytes]:
        """A command that waits for its input there."""
        process = subprocess.Popen(
            begun_with(before, *self.command(*args)), cwd=self.folder, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        stream = f"/proc/{process.pid}/fd/0"
        wait_until(
            lambda: [f for f in self.forks() if readlink(f"/proc/{f}/fd/0") == readlink(stream)], process
        )
        time.sleep(0.5)
        return process

    def forks(self) -> list[int]:
        pid = self.process.pid
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in found if Path(f"/proc/{child}/cmdline").read_bytes() != b"cat\0"]

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def kept() -> Iterator[Keeper]:
    # the path of a socket has at most 107 bytes
    with tempfile.TemporaryDirectory(prefix="odf-", dir="/tmp") as name:
        Workspace.init(name).add(manifest())
        keeper = Keeper(Path(name))
        try:
            yield keeper
        finally:
            keeper.end()


@pytest.fixture(scope="module")
def common() -> Iterator[Keeper]:
    with kept() as keeper:
        yield keeper


@pytest.fixture
def own() -> Iterator[Keeper]:
    with kept() as keeper:
        yield keeper


TOUR = [
    ["list"], ["list", "-o", "json"], ["ls", "--wide"], ["log", "cities"], ["log", "cities", "-o", "json"], ["tail", "cities"],
    ["verify", "cities"], ["inspect", "schema", "cities"], ["log", "no-such"], ["nothing"], ["lst"], ["log"], ["list", "--no"], [],
    ["--help"], ["list", "--help"], ["help", "list"], ["version"], ["completions", "bash"], ["config", "list"], ["-w", "/", "list"],
    ["delete", "cities"], ["--debug", "log", "no-such"], ["sql", "select 1 as a"], ["token", "list"], ["log", "\udcff"],
]  # fmt: skip


@pytest.mark.parametrize("args", TOUR, ids=" ".join)
def test_nothing_differs(common: Keeper, args: list[str]) -> None:
    alike(common, *args)


def alike(keeper: Keeper, *args: str, **options: object) -> None:
    """The command does the same there and alone."""
    there, alone = keeper.run(*args, **options), keeper.alone(*args, **options)
    assert (there.returncode, there.stdout, there.stderr) == (alone.returncode, alone.stdout, alone.stderr)


def on_a_terminal(command: list[str], keeper: Keeper) -> tuple[int, bytes]:
    main, side = pty.openpty()
    termios.tcsetwinsize(side, (30, 60))
    process = subprocess.Popen(
        begun_with("os.setsid(); import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)", *command),
        cwd=keeper.folder, env=keeper.env | {"TERM": "xterm"}, stdin=side, stdout=side, stderr=side,
    )  # fmt: skip
    os.close(side)
    shown = b""
    with contextlib.suppress(OSError):
        while data := os.read(main, 4_096):
            shown += data
    os.close(main)
    return process.wait(TIMEOUT), shown


@pytest.mark.parametrize("args", [["list"], ["log", "cities"], ["nothing"]], ids=" ".join)
def test_a_terminal_is_the_clients(common: Keeper, args: list[str]) -> None:
    alone = common.command(*args, program=ALONE)
    assert on_a_terminal(common.command(*args), common) == on_a_terminal(alone, common)


def test_input_and_output_are_the_clients(common: Keeper) -> None:
    text = common.alone("block", "decode", "cities").stdout
    for data in (text, b"nonsense"):
        alike(common, *READS, input=data)


def test_what_a_command_does_not_read_stays(common: Keeper) -> None:
    read, write = os.pipe()
    os.write(write, b"abc")
    assert common.run("list", stdin=read).returncode == 0
    assert os.read(read, 10) == b"abc"
    os.close(read)
    os.close(write)


def test_a_reader_that_leaves(common: Keeper) -> None:
    for program in (THERE, ALONE):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            common.command("--help", program=program), env=common.env, cwd=common.folder, stdout=write, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
        os.close(write)
        assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM), (signal.SIGHUP, -signal.SIGHUP), (signal.SIGQUIT, -signal.SIGQUIT)],
)  # fmt: skip
def test_signals_reach_the_command(common: Keeper, number: int, code: int) -> None:
    process = common.begin(*READS)
    process.send_signal(number)
    process.wait(TIMEOUT)
    _, said = process.communicate()
    assert process.returncode == code
    assert said.strip() == (b"interrupted; nothing was committed" if code == 130 else b"")
    wait_until(lambda: not common.forks())


def test_an_ignored_signal_stays_ignored(common: Keeper) -> None:
    process = common.begin(*READS, before="import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)")
    (fork,) = common.forks()
    process.send_signal(signal.SIGINT)
    os.kill(fork, signal.SIGINT)
    time.sleep(0.2)
    process.communicate(b"nonsense", timeout=TIMEOUT)
    assert process.returncode == 3


def test_a_command_can_be_stopped_and_goes_on(common: Keeper) -> None:
    def state(pid: int) -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    process = common.begin(*READS)
    (fork,) = common.forks()
    process.send_signal(signal.SIGTSTP)
    wait_until(lambda: state(process.pid) + state(fork) == "TT")
    process.send_signal(signal.SIGCONT)
    wait_until(lambda: state(fork) == "S")
    process.communicate(b"nonsense", timeout=TIMEOUT)
    assert process.returncode == 3


def test_a_client_that_is_killed_ends_its_command(common: Keeper) -> None:
    process = common.begin(*READS)
    process.kill()
    wait_until(lambda: not common.forks())
    process.communicate()
    assert common.run("list").returncode == 0


def test_a_command_that_is_killed_ends_its_client(common: Keeper) -> None:
    process = common.begin(*READS)
    os.kill(common.forks()[0], signal.SIGKILL)
    process.wait(TIMEOUT)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


def test_a_keeper_that_is_killed(own: Keeper) -> None:
    """What it runs goes on, and what comes runs by itself."""
    process = own.begin(*READS)
    own.process.kill()
    own.process.wait()
    process.communicate(b"nonsense", timeout=TIMEOUT)
    assert process.returncode == 3
    assert own.run("list", program=ANY).returncode == 0
    assert own.run("list").returncode != 0, "there is none"


def test_a_keeper_that_does_not_answer(own: Keeper) -> None:
    """A command that has waited is not run again when it goes on."""
    own.process.send_signal(signal.SIGSTOP)
    done = own.run("rename", "cities", "towns", program=ANY)
    own.process.send_signal(signal.SIGCONT)
    assert (done.returncode, done.stderr) == (0, b"cities is now towns\n")
    wait_until(lambda: not own.forks())
    assert own.run("log", "towns").returncode == 0


def test_a_folder_that_is_gone(common: Keeper, tmp_path: Path) -> None:
    gone = "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')"
    alike(common, "list", before=gone, cwd=tmp_path)


def refused(keeper: Keeper, **options: object) -> bool:
    here, there = keeper.run("list", program=ANY, **options), keeper.run("list", **options)
    assert here.returncode == 0, here.stderr
    return b"ModuleNotFoundError" in there.stderr


@pytest.mark.parametrize(
    "before",
    [
        "os.umask(0o077)",
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))",
        "os.nice(1)",
        "os.environ['LC_ALL'] = 'C'",
        "os.environ['JAVA_HOME'] = '/none'",
        "os.environ['PYTHONUNBUFFERED'] = '1'",
        "os.environ['CI'] = '1'",
        "os.close(0)",
    ],
)
def test_who_differs_runs_by_itself(common: Keeper, before: str) -> None:
    assert refused(common, before=before)


@pytest.mark.parametrize("before", ["", "os.environ['COLUMNS'] = '77'", "os.environ['EDITOR'] = 'x'"])
def test_who_does_not_differ_runs_there(common: Keeper, before: str) -> None:
    assert not refused(common, before=before)


def test_variables_are_the_clients(common: Keeper, tmp_path: Path) -> None:
    Workspace.init(tmp_path)
    env = common.env | {"ODFCHAIN_WORKSPACE": str(tmp_path)}
    alike(common, "list", env=env)
    assert common.run("list", env=env).stderr != common.alone("list").stderr


def test_an_installed_package_that_has_changed(own: Keeper) -> None:
    from odfchain import versions

    found = Path(versions.__file__)
    before = found.stat()
    try:
        os.utime(found)
        assert refused(own)
    finally:
        os.utime(found, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not refused(own)


def test_commands_that_stay_for_long_run_by_themselves(common: Keeper) -> None:
    assert b"ModuleNotFoundError" in common.run("engine", "status").stderr
    assert common.run("engine", "status", "-o", "json", program=ANY).returncode == 0


def test_requests_that_are_none(common: Keeper) -> None:
    import socket

    for said in (b"", b"x", b"\xff" * 9, (9).to_bytes(8, sys.byteorder) + b"no\0thing"):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(common.folder / "odfchain" / "commands.sock"))
            client.sendall(said)
    wait_until(lambda: not common.forks())
    assert common.run("list").returncode == 0
