"""A place in the session that stays: finding this user's server, starting one, and leaving it again.

The server (`odfchain.spark.session_server`) listens on a Unix socket in a folder that only its user can
enter. One line of JSON is a request, one line is the answer; a command has its place while its connection
is open. Source: RFC-030.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import resource
import select
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from odfchain.errors import EngineError, StoreError
from odfchain.session_address import SOCKET, address_folder
from odfchain.spark.gateway import archive_options, archive_path, for_us_alone, pyspark_folder
from odfchain.spark.java import find_java
from odfchain.storage.fsio import make_folder
from odfchain.versions import __version__

LOG = "keeper.log"
_LOCK = "keeper.lock"

# A server that is well answers in a millisecond; one that was suspended does not answer at all.
_ANSWER_SECONDS = 5

_START_SECONDS = 150
# How long to wait for another command that is starting the session.
_WAIT_SECONDS = 120

_LOOK_SECONDS = 0.02
_PLAIN_PATH = re.compile(r"[\w/.~+-]+", re.ASCII)
_LARGEST_LOG = 1 << 20

# Names of environment variables that Java, Spark, or the Python of its workers look at.
_MATTERS = re.compile(
    # PySpark and we set some on the way
    r"(?!(SPARK_(AUTH_SOCKET_TIMEOUT|BUFFER_SIZE|WORKER_DIR)|PYSPARK_(DRIVER_)?PYTHON)$)"
    r"(_?JAVA|JDK|SPARK|PYSPARK|PYTHON|HADOOP|ARROW|AWS|AZURE|GOOGLE|OMP|MALLOC|LD|LC)_?\w*"
    r"|PATH|HOME|USER|LANG|LANGUAGE|TZ|TMPDIR|\w*_PROXY",
    re.IGNORECASE | re.ASCII,
)


@dataclass(slots=True)
class Lease:
    """A place in the session that stays, and what PySpark needs to connect."""

    connection: socket.socket
    port: int
    secret: str
    scratch: Path

    @classmethod
    def take(
        cls,
        settings: Callable[[Path], dict[str, str]],
        *,
        idle: float,
        where: str,
        unwanted: Callable[[], bool],
    ) -> Lease:
        """A place in the JVM that stays, started if need be; `where` is the session's working folder."""
        folder = server_folder()
        # a fixed scratch folder: the real one differs each time and must not tell sessions apart
        parts = fingerprint(settings(Path("/scratch")) | {"folder": where}, os.environ)
        with turn(folder) as lock:
            if (place := _attach(folder, parts)) is not None:
                return place
            own, java = scratch_base(_cache_folder()) / new_name(), find_java()
            order = {
                "folder": str(folder),
                "scratch": str(own),
                "java": str(java),
                "archive": None if archive_options(java) else str(archive_path(java)),
                "settings": settings(own),
                "parts": parts,
                "idle": idle,
                "cwd": where,
            }
            _start_server(folder, order, lock)
            # the command has ended meanwhile, the session stays for the next one
            if unwanted():
                raise EngineError("Spark is not needed any more")
            if (place := _attach(folder, parts)) is None:
                raise EngineError("the session that stays has ended at once")
            return place

    def leave(self) -> None:
        """Give the place back, with nothing of ours left in the session."""
        with contextlib.suppress(OSError):
            _ask(self.connection, {"ask": "leave"})
        self.abandon()

    def abandon(self) -> None:
        """Disconnect without a farewell: the server discards the session."""
        self.connection.close()


def own_folder(folder: Path) -> Path:
    """This folder, made if need be, private to the user."""
    with contextlib.suppress(FileExistsError):  # whatever it is
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise EngineError(f"{folder} is no folder", hint="remove it")
    if found.st_uid != os.getuid():
        raise EngineError(f"{folder} belongs to another user")
    if found.st_mode & 0o077:
        raise EngineError(f"{folder} can be entered by others", hint=f"chmod 700 {folder}")
    return folder


def temporary_folder() -> Path:
    """The user's own folder among the temporary files of all users."""
    return own_folder(Path(tempfile.gettempdir()) / f"odfchain-{os.getuid()}")


def new_name() -> str:
    """A name for what a session leaves until it ends."""
    return f"spark-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def scratch_base(run_folder: Path) -> Path:
    """Where Spark may write, for a folder: some settings of Spark cannot hold blanks, commas or quotes."""
    return run_folder if _PLAIN_PATH.fullmatch(str(run_folder)) else temporary_folder()


def _cache_folder() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "odfchain" / "run"
    with contextlib.suppress(StoreError, OSError):
        make_folder(folder, mode=0o700)
        if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK):
            return folder
    return temporary_folder()


def server_folder() -> Path:
    """Where the server of this user listens and writes its log."""
    return own_folder(Path(address_folder()))


def fingerprint(settings: dict[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """All that a session depends on and another command may have otherwise, each part as a hash."""
    package, spark = Path(__file__).parents[1], pyspark_folder() / "jars"
    environment = sorted((k, v) for k, v in environ.items() if _MATTERS.fullmatch(k))
    limits = [resource.getrlimit(getattr(resource, n)) for n in dir(resource) if n.startswith("RLIMIT_")]
    return {
        "version": _digest([__version__, str(package), _newest(package)]),
        "Spark": _digest([version("pyspark"), str(spark), spark.stat().st_mtime_ns]),
        "Python": _digest([sys.executable, sys.version, sys.prefix]),
        "Java": _digest(_java_on_the_path(environ)),
        "settings": _digest(sorted(settings.items())),
        "environment": _digest(environment),
        "limits": _digest([limits, _umask(), os.getuid(), sorted(os.getgroups())]),
    }


def _digest(value: Any) -> str:
    return hashlib.sha3_256(json.dumps(value).encode()).hexdigest()


def _newest(folder: Path) -> int:
    files = (Path(where, name) for where, _, names in os.walk(folder) for name in names)
    # times of folders do not count: they change whenever Python compiles a module
    return max(file.stat().st_mtime_ns for file in files if file.suffix != ".pyc")


def _java_on_the_path(environ: Mapping[str, str]) -> list[Any]:
    home = environ.get("JAVA_HOME")
    found = f"{home}/bin/java" if home else shutil.which("java", path=environ.get("PATH"))
    return [] if found is None else java_identity(found)


def java_identity(java: str) -> list[Any]:
    """The identity of a Java installation, none without one: another one in its place has another one."""
    with contextlib.suppress(OSError):
        real = Path(java).resolve()
        found = real.stat()
        return [str(real), found.st_mtime_ns, found.st_size]
    return []


def _umask() -> int:
    with contextlib.suppress(OSError):  # asking by setting it would be seen by other threads
        for text in Path("/proc/self/status").read_text().splitlines():
            if text.startswith("Umask:"):
                return int(text.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@contextlib.contextmanager
def turn(folder: Path) -> Iterator[int]:
    """One command after the other finds or starts the session; gives the lock's file descriptor."""
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EngineError("another command is still starting the session that stays") from None
                time.sleep(_LOOK_SECONDS)
        yield fd
    finally:
        os.close(fd)


def _attach(folder: Path, parts: dict[str, str]) -> Lease | None:
    # a server whose session has another fingerprint listens no more afterwards
    with contextlib.ExitStack() as opened:
        connection = _connected(folder, opened)
        answer = connection and _ask(connection, {"ask": "attach", "parts": parts, "pid": os.getpid()})
        if not connection or not answer or "port" not in answer:
            return None
        opened.pop_all()
    return Lease(connection, answer["port"], answer["secret"], Path(answer["scratch"]))


def _start_server(folder: Path, order: dict[str, Any], lock: int) -> None:
    path = folder / LOG
    with contextlib.suppress(OSError):
        if path.stat().st_size > _LARGEST_LOG:
            path.unlink()
    # `lock` goes to the server: other commands wait for it even if this process ends before it listens
    with open(path, "ab", opener=for_us_alone) as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "odfchain.spark.session_server"],
            cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, pass_fds=(lock,),
            start_new_session=True,
        )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - pipes
    with process.stdin, process.stdout:
        process.stdin.write(json.dumps(order | {"lock": lock}).encode())
        process.stdin.close()
        ready, _, _ = select.select([process.stdout], [], [], _START_SECONDS)
        if not ready or process.stdout.readline() != b"ready\n":
            raise EngineError("the session that stays did not start", hint=f"its log is {path}")


def log_file() -> Path:
    """Where the server and its Java write what happens."""
    return server_folder() / LOG


def note(text: str) -> None:
    """One line in the log, if there can be one."""
    line = f"{datetime.now(UTC):%y/%m/%d %H:%M:%S} keeper: {' '.join(text.split())}\n"
    with contextlib.suppress(OSError, EngineError), open(log_file(), "ab", opener=for_us_alone) as log:
        log.write(line.encode())


def ask_server(what: Literal["status", "stop"]) -> dict[str, Any] | None:
    """The answer of this user's server; None where there is none.

    Asked to stop, it ends at once, or with the commands that it has, and says so.
    """
    with contextlib.ExitStack() as opened:
        if (connection := _connected(server_folder(), opened)) is None:
            return None
        try:
            answer = _ask(connection, {"ask": what})
            if what == "stop" and not answer.get("clients"):
                connection.settimeout(_WAIT_SECONDS)
                connection.recv(1)  # closed when all has ended
        except OSError as error:
            raise EngineError("the session that stays does not answer", hint="end its process") from error
        return answer or None


def _connected(folder: Path, opened: contextlib.ExitStack) -> socket.socket | None:
    connection = opened.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
    connection.settimeout(_ANSWER_SECONDS)
    try:
        connection.connect(str(folder / SOCKET))
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    return connection


def _ask(connection: socket.socket, message: dict[str, Any]) -> dict[str, Any]:
    received = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(json.dumps(message).encode() + b"\n")
        while not received.endswith(b"\n") and (chunk := connection.recv(65_536)):
            received += chunk
    answer: dict[str, Any] = json.loads(received) if received.endswith(b"\n") else {}
    return answer
