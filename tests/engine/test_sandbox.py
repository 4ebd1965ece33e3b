"""The sandbox around an engine's process: what it cannot reach from inside, and what it still can."""

from __future__ import annotations

import errno
import os
import platform
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import EngineError
from odfchain.progress import SILENT
from odfchain.transform import sandbox
from odfchain.transform.sandbox import REFUSED, require_sandbox, sandboxed_engine, start

PYTHON = [sys.executable, "-I", "-S", "-c"]


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A folder with one to read, one to write in, and one that is nobody's business."""
    for name in ("in", "out", "private"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path


def started(given: Path, program: str, *arguments: object, **options: Any) -> subprocess.Popen[Any]:
    command = [*PYTHON, program, *map(str, arguments)]
    return start(command, read=[given / "in"], write=[given / "out"], **options)


def said_by(process: subprocess.Popen[Any]) -> str:
    out, error = process.communicate(timeout=120)
    assert process.returncode == 0, error
    return out


def run(given: Path, program: str, *arguments: object) -> str:
    return said_by(started(given, program, *arguments, cwd=given, **TEXT))


TEXT: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        yield server


CONNECT = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5)
    print("reached")
except OSError as error:
    print(type(error).__name__)
"""


def test_the_machines_own_loopback_is_out_of_reach(given: Path, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    outside = subprocess.run([*PYTHON, CONNECT, str(port)], capture_output=True, text=True, check=True)
    assert outside.stdout == "reached\n"
    assert run(given, CONNECT, port) == "ConnectionRefusedError\n"


def test_there_is_no_way_out_but_a_loopback_of_its_own(given: Path) -> None:
    program = """
import socket
print([name for _, name in socket.if_nameindex()])
for family, address in ((socket.AF_INET, ("192.0.2.1", 80)), (socket.AF_INET6, ("2001:db8::1", 80))):
    with socket.socket(family) as one:
        try:
            one.connect(address)
        except OSError as error:
            print(error.strerror)
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
    one.sendall(b"x")
    print("own loopback works, and its name is", socket.gethostbyname(socket.gethostname()))
"""
    interfaces, *said = run(given, program).splitlines()
    assert "eth" not in interfaces
    assert said[:2] == ["Network is unreachable"] * 2 or "Cannot assign requested address" in said[1]
    assert said[-1] == "own loopback works, and its name is 127.0.0.1"


TRY = """
import sys
for path in sys.argv[2:]:
    try:
        with open(path, sys.argv[1]) as file:
            print(file.read(9) if sys.argv[1] == "r" else "written")
    except OSError as error:
        print(type(error).__name__, error.errno)
"""
MISSING, READ_ONLY = "FileNotFoundError 2", "OSError 30"


def test_only_the_named_folders_can_be_read(given: Path) -> None:
    home = Path.home() / ".profile"
    paths = [given / "in/file", given / "out/file", given / "private/file", home, "/etc/shadow", __file__]
    said = run(given, TRY, "r", *paths).splitlines()
    assert said == ["in", "out", MISSING, MISSING, MISSING, MISSING]


def test_only_the_folder_for_results_can_be_written(given: Path) -> None:
    elsewhere = ["/usr/x", "/etc/x", "/x", "/dev/x", "/proc/sys/x"]
    refused = [given / "in/new", given / "in/file", sandbox.__file__, *elsewhere]
    said = run(given, TRY, "w", given / "out/new", given / "new", *refused).splitlines()
    assert said[0] == "written"
    assert said[2:-1] == [READ_ONLY] * (len(refused) - 1)
    assert said[-1] != "written"
    assert (given / "out/new").exists()
    assert (given / "in/file").read_text() == "in"
    assert not (given / "new").exists()


def test_a_private_tmp_is_gone_with_the_process(given: Path) -> None:
    name = f"/tmp/{given.name}-trace"
    assert run(given, TRY, "w", name, "/dev/shm/trace", "/dev/null") == "written\n" * 3
    assert not Path(name).exists()
    assert not Path("/dev/shm/trace").exists()


def test_a_folder_within_a_folder_has_its_own_right(given: Path) -> None:
    inner = given / "in" / "results"
    inner.mkdir()
    command = [*PYTHON, TRY, "w", str(inner / "new"), str(given / "in/new")]
    said = said_by(start(command, read=[given / "in"], write=[inner], **TEXT)).splitlines()
    assert said == ["written", READ_ONLY]
    assert (inner / "new").exists()


def test_a_folder_behind_a_symbolic_link_has_both_names(given: Path) -> None:
    link = given / "link"
    link.symlink_to(given / "in")
    command = [*PYTHON, TRY, "r", str(link / "file"), str(given / "in/file")]
    assert said_by(start(command, read=[link], write=[], **TEXT)) == "in\nin\n"


def test_keys_in_the_environment_stay_outside(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    program = """
import glob, os
print(os.environ.get("AWS_SECRET_ACCESS_KEY"), os.environ["LC_ALL"], os.environ["HOME"])
for path in sorted(glob.glob("/proc/[0-9]*/environ")):
    with open(path, "rb") as file:
        print(path, b"hush" in file.read())
"""
    said = run(given, program).splitlines()
    assert said == ["None C.UTF-8 /tmp", "/proc/1/environ False", "/proc/2/environ False"]


def test_no_privileges_are_left(given: Path) -> None:
    program = """
import os
with open("/proc/self/status") as status:
    said = dict(line.split() for line in status if line.startswith(("Cap", "NoNewPrivs", "Seccomp:")))
print([int(said[name], 16) for name in ("CapEff:", "CapPrm:", "CapBnd:", "CapInh:", "CapAmb:")])
print(said["NoNewPrivs:"], said["Seccomp:"], os.getuid(), os.getgid())
print(sorted(n for n in os.listdir("/proc") if n.isdigit()))
"""
    said = run(given, program).splitlines()
    assert said == ["[0, 0, 0, 0, 0]", "1 2 1000 1000", "['1', '2']"]


def test_refused_system_calls(given: Path) -> None:
    """Each with no valid argument: what the kernel would answer is anything but EPERM for most of them."""
    program = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
for number in sys.argv[1:]:
    ctypes.set_errno(0)
    print(libc.syscall(int(number), -1, -1, -1, -1, -1, -1), ctypes.get_errno())
"""
    column = 0 if platform.machine() == "x86_64" else 1
    numbers = {name: numbers[column] for name, numbers in REFUSED.items()}
    said = dict(zip(numbers, run(given, program, *numbers.values()).splitlines(), strict=True))
    assert said == dict.fromkeys(numbers, f"-1 {errno.EPERM}")
    clone3, new, x32 = 435, 470, 0x40000000 + 39  # the last is getpid, called the x32 way
    assert run(given, program, clone3, new, x32) == f"-1 {errno.ENOSYS}\n" * 3


def test_the_numbers_of_refused_system_calls_are_those_of_the_kernel() -> None:
    """Compared with the C library's own table, where its header is here."""
    for column, header in enumerate(("x86_64-linux-gnu/asm/unistd_64.h", "asm-generic/unistd.h")):
        if (table := Path("/usr/include") / header).exists():
            found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", table.read_text("ascii")))
            assert {name: int(found[name]) for name in REFUSED} == {n: c[column] for n, c in REFUSED.items()}


def test_calls_that_are_refused_by_their_arguments(given: Path) -> None:
    program = """
import ctypes, fcntl, os, platform, socket, threading
libc = ctypes.CDLL(None, use_errno=True)
clone = 56 if platform.machine() == "x86_64" else 220
for flag in (0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
    print(libc.syscall(clone, flag | 17, 0, 0, 0, 0), ctypes.get_errno(), end=" ")
print()
for family in (17, 29, 31, 38, 40):  # AF_PACKET, AF_CAN, AF_BLUETOOTH, AF_ALG, AF_VSOCK
    try:
        socket.socket(family, socket.SOCK_RAW)
    except OSError as error:
        print(error.errno, end=" ")
print()
for command in (0x5412, 0x541C):
    try:
        fcntl.ioctl(0, command, b"x")
    except OSError as error:
        print(error.errno, end=" ")
print()
thread = threading.Thread(target=print, args=["threads and processes are made as ever"])
thread.start(), thread.join()
print(os.waitpid(os.fork() or os._exit(7), 0)[1] >> 8)
"""
    families, terminal = f"{errno.EAFNOSUPPORT} " * 5, f"{errno.EPERM} " * 2
    assert run(given, program).splitlines() == [
        f"-1 {errno.EPERM} " * 7, families, terminal, "threads and processes are made as ever", "7",
    ]  # fmt: skip


def test_a_unix_socket_in_a_shared_folder_reaches_the_outside(given: Path) -> None:
    program = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.bind(sys.argv[1])
    server.listen()
    print("listening", flush=True)
    peer, _ = server.accept()
    with peer:
        peer.sendall(b"answer to " + peer.recv(100))
"""
    process = started(given, program, "s", stdout=subprocess.PIPE, cwd=given / "out")
    try:
        assert process.stdout.readline() == b"listening\n"
        here = os.open(given / "out", os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"/proc/self/fd/{here}/s")  # the path itself may be too long for a socket
            client.sendall(b"question")
            assert client.recv(100) == b"answer to question"
        os.close(here)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", 128 + signal.SIGTERM),
    ],
)
def test_the_end_of_the_command_is_the_end_of_the_whole(given: Path, program: str, code: int) -> None:
    assert started(given, program).wait(60) == code


ORPHANS = """
import os, sys, time
read, write = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        print("ready", flush=True)
        os.write(write, b".")
        time.sleep(600)
    os._exit(0)
os.wait()
os.read(read, 1)
{end}
"""


@pytest.mark.parametrize("end", ["command", "launcher killed"])
def test_what_the_command_started_ends_with_it(given: Path, end: str) -> None:
    """Standard output is at its end only when every process that holds it is gone."""
    program = ORPHANS.format(end="" if end == "command" else "time.sleep(600)")
    process = started(given, program, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    if end != "command":
        process.kill()
    watchdog = threading.Timer(30, process.kill)
    watchdog.start()
    assert process.stdout.read() == b""
    watchdog.cancel()
    process.stdout.close()
    assert process.wait(30) == (0 if end == "command" else -signal.SIGKILL)


def test_nothing_is_left_of_a_sandbox_that_was_being_built(given: Path) -> None:
    for _ in range(60):
        process = started(given, "", stdout=subprocess.PIPE)
        process.kill()
        assert select.select([process.stdout], [], [], 30)[0], "somebody holds the output"
        process.communicate()


def test_nothing_stays_mounted(given: Path) -> None:
    before = Path("/proc/self/mounts").read_text()
    assert run(given, "print(len(open('/proc/self/mounts').readlines()) > 5)") == "True\n"
    assert Path("/proc/self/mounts").read_text() == before
    assert sorted(p.name for p in given.iterdir()) == ["in", "out", "private"]


def test_folders_that_cannot_be_given() -> None:
    with pytest.raises(EngineError, match="nowhere is not there"):
        start(["true"], read=[Path("/nowhere")], write=[])
    with pytest.raises(EngineError, match="not given the root folder"):
        start(["true"], read=[], write=[Path("/usr/..")])


def refused() -> tuple[str, str]:
    with pytest.raises(EngineError) as caught:
        require_sandbox()
    assert caught.value.hint is not None
    return str(caught.value), caught.value.hint


def test_without_bubblewrap_a_query_is_refused_and_the_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    what = "queries of others run in a sandbox, and it cannot be had here: bubblewrap is not installed"
    hint = "apt-get install bubblewrap; `transform.isolation: never` runs such queries without a sandbox"
    assert refused() == (what, hint)
    engine = sandboxed_engine([], tmp_path, tmp_path, progress=SILENT)
    with pytest.raises(EngineError, match="bubblewrap is not installed"), engine:
        pytest.fail("it must not run")


@pytest.mark.parametrize("place", [("sys.platform", "darwin"), ("platform.machine", lambda: "riscv64")])
def test_another_platform_is_refused(place: tuple[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*place)
    what, hint = refused()
    assert what.endswith("it needs Linux on x86-64 or 64-bit ARM")
    assert "transform.isolation: never" in hint


def test_where_users_may_not_make_namespaces_the_refusal_says_so(given: Path) -> None:
    """Within a sandbox no other can be made: a real machine that refuses."""
    program = """
from odfchain.transform.sandbox import require_sandbox
try:
    require_sandbox()
except Exception as error:
    print(error, error.hint, sep="\\n")
"""
    process = start([sys.executable, "-c", program], read=[], write=[given / "out"], **TEXT)
    what, hint = said_by(process).splitlines()
    assert "bwrap: " in what
    assert "namespace" in what
    assert hint.startswith("in a container: docker run --security-opt seccomp=unconfined")


def test_a_switch_of_the_kernel_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    real = Path.read_text
    switched = Path("/proc/sys/user/max_user_namespaces")
    monkeypatch.setattr(Path, "read_text", lambda self, *a: "0\n" if self == switched else real(self, *a))
    what, hint = refused()
    assert what.endswith("cannot be had here: bwrap: No permissions to create new namespace")
    assert hint.startswith("sysctl -w user.max_user_namespaces=15000; ")


def test_spark_runs_in_the_sandbox(given: Path) -> None:
    program = """
import sys
from pathlib import Path
from odfchain.spark.session import SparkEngine

engine = SparkEngine(Path(sys.argv[1]), driver_memory="512m", conf={"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"})
spark = engine.session
assert spark.range(10).count() == 10
assert spark.sparkContext.parallelize([1, 2], 1).map(lambda x: x + 1).sum() == 5  # in a Python worker
spark.read.text(sys.argv[2]).write.parquet(sys.argv[1] + "/copy")
try:
    spark.read.text(sys.argv[3]).count()
except Exception as error:
    print(error.getCondition())
engine.close()
"""
    command = [sys.executable, "-c", program, *(str(given / n) for n in ("out", "in/file", "private/file"))]
    process = start(command, read=[given / "in"], write=[given / "out"], **TEXT)
    assert said_by(process) == "PATH_NOT_FOUND\n"
    assert sorted(p.name for p in (given / "out").glob("[!.]*")) == ["copy", "file"]


def test_what_a_process_asks_for_beyond_its_memory_is_refused(tmp_path: Path) -> None:
    engine = sandboxed_engine([], tmp_path, tmp_path, progress=SILENT, memory_mib=16)
    with pytest.raises(EngineError, match="the engine did not start"), engine:
        pytest.fail("16 MiB are too few for Python and its libraries")
