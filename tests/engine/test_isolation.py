"""The walls around an engine's process: what it cannot reach from inside, and what it still can."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from odfchain.engine.sandbox import isolation
from odfchain.engine.sandbox.isolated import isolated_engine
from odfchain.engine.sandbox.isolation import Isolation, availability, isolated
from odfchain.engine.sandbox.namespaces import MARK, REFUSED
from odfchain.errors import EngineError
from odfchain.progress import SILENT

BOTH = Isolation(network=True, files=True)
NONE = Isolation(network=False, files=False)
PYTHON = [sys.executable, "-I", "-S", "-c"]

needs_walls = pytest.mark.skipif(
    not (availability().network and availability().files), reason=f"here: {availability()}"
)


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A folder with one to read, one to write in, and one that is nobody's business."""
    for name in ("in", "out", "private"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path


def behind(given: Path, program: str, *arguments: object, walls: Isolation = BOTH) -> list[str]:
    command = [*PYTHON, program, *map(str, arguments)]
    return isolated(command, read=[given / "in"], write=[given / "out"], walls=walls)


def run(given: Path, program: str, *arguments: object, walls: Isolation = BOTH) -> str:
    """What the program prints; it has to succeed."""
    result = subprocess.run(
        behind(given, program, *arguments, walls=walls),
        capture_output=True, text=True, timeout=60, check=False, cwd=given,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout


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


@needs_walls
@pytest.mark.parametrize("walls", [BOTH, Isolation(network=True, files=False)], ids=str)
def test_the_machines_own_loopback_is_out_of_reach(
    given: Path, listener: socket.socket, walls: Isolation
) -> None:
    port = listener.getsockname()[1]
    assert run(given, CONNECT, port, walls=Isolation(network=False, files=True)) == "reached\n"
    assert run(given, CONNECT, port, walls=walls) == "ConnectionRefusedError\n"


@needs_walls
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


@needs_walls
def test_only_the_named_folders_can_be_read(given: Path) -> None:
    home = Path.home() / ".profile"
    paths = [given / "in/file", given / "out/file", given / "private/file", home, "/etc/shadow", __file__]
    said = run(given, TRY, "r", *paths).splitlines()
    assert said == ["in", "out", MISSING, MISSING, MISSING, MISSING]


@needs_walls
def test_only_the_folder_for_results_can_be_written(given: Path) -> None:
    installed = Path(isolation.__file__)
    refused = [given / "in/new", given / "in/file", installed, "/usr/x", "/etc/x", "/x", "/proc/sys/x"]
    said = run(given, TRY, "w", given / "out/new", given / "new", *refused).splitlines()
    assert said[0] == "written"
    assert said[2:-1] == [READ_ONLY] * (len(refused) - 1)
    assert said[-1] != "written"
    assert (given / "out/new").exists()
    assert (given / "in/file").read_text() == "in"
    assert not (given / "new").exists()


@needs_walls
def test_a_private_tmp_is_gone_with_the_process(given: Path) -> None:
    name = f"/tmp/{given.name}-trace"
    assert run(given, TRY, "w", name, "/dev/shm/trace", "/dev/null") == "written\n" * 3
    assert not Path(name).exists()
    assert not Path("/dev/shm/trace").exists()


@needs_walls
def test_a_folder_within_a_folder_has_its_own_right(given: Path) -> None:
    inner = given / "in" / "results"
    inner.mkdir()
    command = [*PYTHON, TRY, "w", str(inner / "new"), str(given / "in/new")]
    argv = isolated(command, read=[given / "in"], write=[inner], walls=BOTH)
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["written", READ_ONLY]
    assert (inner / "new").exists()


@needs_walls
def test_a_folder_behind_a_symbolic_link_has_both_names(given: Path) -> None:
    link = given / "link"
    link.symlink_to(given / "in")
    command = [*PYTHON, TRY, "r", str(link / "file"), str(given / "in/file")]
    argv = isolated(command, read=[link], write=[], walls=BOTH)
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "in\nin\n"


@needs_walls
def test_keys_in_the_environment_stay_outside(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    program = """
import glob, os
print(os.environ.get("AWS_SECRET_ACCESS_KEY"), os.environ["LC_ALL"], os.environ["HOME"])
for path in sorted(glob.glob("/proc/[0-9]*/environ")):
    try:
        with open(path, "rb") as file:
            print(path, b"hush" in file.read())
    except PermissionError:
        print(path, "refused")
"""
    said = run(given, program).splitlines()
    assert said == ["None C.UTF-8 /tmp", "/proc/1/environ refused", "/proc/2/environ False"]


@needs_walls
def test_no_privileges_are_left(given: Path) -> None:
    program = """
import ctypes, os
with open("/proc/self/status") as status:
    print([int(line.split()[1], 16) for line in status if line.startswith(("CapEff", "CapPrm", "CapBnd"))])
libc = ctypes.CDLL(None)
print(libc.unshare(0x10000000), libc.umount2(b"/tmp", 2), libc.mount(None, b"/", None, 32 | 4096, None))
print(os.getuid(), os.listdir("/root") if os.path.isdir("/root") else None)
"""
    said = run(given, program).splitlines()
    assert said[:2] == ["[0, 0, 0]", "-1 -1 -1"]
    assert said[2].startswith(f"{os.getuid()} ")


@needs_walls
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
    process = subprocess.Popen(behind(given, program, "s"), stdout=subprocess.PIPE, cwd=given / "out")
    try:
        assert process.stdout is not None
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


@needs_walls
@pytest.mark.parametrize("walls", [BOTH, Isolation(network=True, files=False)], ids=str)
@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("raise SystemExit(7)", 7),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
    ],
)
def test_the_end_of_the_command_is_the_end_of_the_whole(
    given: Path, program: str, code: int, walls: Isolation
) -> None:
    assert subprocess.run(behind(given, program, walls=walls), check=False, timeout=60).returncode == code


@needs_walls
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_are_passed_on(given: Path, number: signal.Signals) -> None:
    program = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [{int(number)}])
print("ready", flush=True)
print("got", signal.sigwait([{int(number)}]), flush=True)
raise SystemExit(3)
"""
    with subprocess.Popen(behind(given, program), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == f"got {int(number)}\n".encode()
        assert process.wait(30) == 3


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


@needs_walls
@pytest.mark.parametrize("end", ["command", "launcher killed"])
def test_what_the_command_started_ends_with_it(given: Path, end: str) -> None:
    """Standard output is at its end only when every process that holds it is gone."""
    program = ORPHANS.format(end="" if end == "command" else "time.sleep(600)")
    process = subprocess.Popen(behind(given, program), stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    if end != "command":
        process.kill()
    watchdog = threading.Timer(30, process.kill)
    watchdog.start()
    assert process.stdout.read() == b""
    watchdog.cancel()
    process.stdout.close()
    assert process.wait(30) == (0 if end == "command" else -signal.SIGKILL)


@needs_walls
def test_nothing_stays_mounted(given: Path) -> None:
    before = Path("/proc/self/mounts").read_text()
    assert run(given, "print(len(open('/proc/self/mounts').readlines()) > 5)") == "True\n"
    assert Path("/proc/self/mounts").read_text() == before
    assert sorted(p.name for p in given.iterdir()) == ["in", "out", "private"]


@needs_walls
def test_a_command_that_is_not_there(given: Path) -> None:
    argv = isolated(["no-such-command"], read=[], write=[given / "out"], walls=BOTH)
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == 127
    assert result.stderr == f"{MARK}no-such-command: No such file or directory\n"


@needs_walls
def test_nothing_runs_when_a_wall_cannot_be_built(given: Path) -> None:
    argv = behind(given, "print('ran')")
    (given / "in" / "file").unlink()
    (given / "in").rmdir()
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert result.returncode == REFUSED
    assert result.stdout == ""
    assert result.stderr == f"{MARK}showing {given / 'in'}: No such file or directory\n"


def test_folders_that_cannot_be_given(given: Path) -> None:
    with pytest.raises(EngineError, match="nowhere is not there"):
        isolated(["true"], read=[given / "nowhere"], write=[])
    with pytest.raises(EngineError, match="not given the root folder"):
        isolated(["true"], read=[], write=[Path("/usr/..")])


def test_without_walls_the_command_is_itself(given: Path) -> None:
    none = Isolation(network=False, files=False, reason="only Linux has namespaces")
    assert isolated(["true"], read=[given], write=[], walls=none) == ["true"]
    assert str(none) == "not isolated (only Linux has namespaces)"
    assert str(BOTH) == "network and files isolated"


def test_another_platform_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    said = availability.__wrapped__()
    assert said == Isolation(network=False, files=False, reason="only Linux has namespaces")


@needs_walls
def test_where_users_may_not_make_namespaces_the_reason_says_so(given: Path) -> None:
    """Behind the walls no further user namespace can be made: a real machine that refuses."""
    program = """
from odfchain.engine.sandbox.isolated import isolated_engine
from odfchain.engine.sandbox.isolation import availability
print(availability())
"""
    argv = isolated([sys.executable, "-c", program], read=[], write=[given / "out"], walls=BOTH)
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert result.stderr == ""
    assert result.stdout == "not isolated (user namespaces are switched off: max_user_namespaces is 0)\n"


@needs_walls
def test_spark_runs_behind_the_walls(given: Path) -> None:
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
    argv = isolated(command, read=[given / "in"], write=[given / "out"], walls=BOTH)
    result = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "PATH_NOT_FOUND\n"
    assert sorted(p.name for p in (given / "out").glob("[!.]*")) == ["copy", "file"]


def test_what_a_process_asks_for_beyond_its_memory_is_refused(tmp_path: Path) -> None:
    engine = isolated_engine([], tmp_path, tmp_path, progress=SILENT, memory_mib=16, walls=NONE)
    with pytest.raises(EngineError, match="the engine did not start"), engine:
        pytest.fail("16 MiB are too few for Python and its libraries")
