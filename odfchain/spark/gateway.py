"""The JVM that PySpark talks to, started by odfchain.

PySpark can start the JVM itself, but then its log lands on the user's screen and Spark's launcher asks for
a module (`jdk.incubator.vector`) that small Java runtimes lack. So the launcher's command is asked for, the
module flag taken out, and PySpark connected through its own `PYSPARK_GATEWAY_PORT`/`_SECRET` interface.
The JVM ends when its standard input is closed, that is, when this process ends in any way.

Everybody may read the command line of a process, and settings can hold secrets: both Javas get theirs from
files that only this user can read, and that are gone once Spark can be connected to.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from odfchain.errors import EngineError
from odfchain.storage import fsio

# A class archive: what the JVM loads for Spark, laid out so that it is mapped, not read and checked anew.
#
# Starting Spark means loading tens of thousands of classes, which is much of the time of a short command.
# The JVM can write down what it loaded (class data sharing, JEP 350) and map that file the next time; a
# session that stays does it when it ends and there is none yet, `odfchain engine warm-up` whenever it is
# run. The file is only a cache: a JVM that finds other classes or another Java than it was made with leaves
# it alone. Source: RFC-011.

PATH_VARIABLE = "ODFCHAIN_CLASS_ARCHIVE"
"""The environment variable that names another file."""

_KEY_CHARACTERS = 16


def pyspark_folder() -> Path:
    """Where PySpark is installed; it is not loaded for that."""
    spec = find_spec("pyspark")
    assert spec is not None and spec.origin is not None  # noqa: S101, PT018 - a dependency
    return Path(spec.origin).parent


def archive_path(java: Path) -> Path:
    """Where the archive for this Java and this Spark is, or would be."""
    if given := os.environ.get(PATH_VARIABLE):
        return Path(given)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    parts = (version("pyspark"), str(pyspark_folder()), str(java.resolve()))
    key = hashlib.sha3_256("\0".join(parts).encode()).hexdigest()[:_KEY_CHARACTERS]
    return cache / "odfchain" / f"spark-classes-{key}.jsa"


def archive_options(java: Path) -> list[str]:
    """Options of the JVM that use the archive; none where there is no archive that can be trusted."""
    path = archive_path(java)
    try:
        found = path.lstat()
    except OSError:
        return []
    # the content of the file becomes code: only the user or root may have written it
    own = found.st_uid in (os.getuid(), 0)
    if not own or not stat.S_ISREG(found.st_mode) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return []
    return [f"-XX:SharedArchiveFile={path}"]


@contextlib.contextmanager
def new_archive(target: Path) -> Iterator[Path]:
    """Gives the path that a JVM is to write; what is there at the end is the archive, complete or absent."""
    fsio.make_folder(target.parent, mode=0o700)
    recorded = target.with_name(f".{target.name}-{uuid.uuid4().hex[:8]}")
    try:
        yield recorded
        if recorded.is_file():
            recorded.chmod(0o600)
            with fsio.storage_errors(target):
                recorded.replace(target)  # a cache: what a crash of the machine leaves of it, the JVM refuses
    finally:
        with contextlib.suppress(OSError):
            os.unlink(recorded)  # noqa: PTH108


_INCUBATOR = "--add-modules=jdk.incubator.vector"
_MAIN = "org.apache.spark.deploy.SparkSubmit"
_START_SECONDS = 120
_END_SECONDS = 10
_RECORD_SECONDS = 300


@dataclass(slots=True)
class Gateway:
    """A running JVM: what PySpark needs to connect, and how to end it."""

    process: subprocess.Popen[bytes]
    port: int
    secret: str
    log: Path
    scratch: Path
    patience: float = _END_SECONDS
    """How long it may take to end [s]."""

    def close(self) -> None:
        """End the JVM; it is killed when it does not go by itself."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(timeout=self.patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _launch_command(java: Path, conf: dict[str, str], folder: Path) -> tuple[list[str], dict[str, str]]:
    """(command, environment) that start Spark's gateway with these settings, by files in a private folder."""
    home = os.environ.get("SPARK_HOME") or str(pyspark_folder())
    env = dict(os.environ)
    env.update(
        SPARK_HOME=home, SPARK_SCALA_VERSION="2.13", JAVA_HOME=str(java.parent.parent), SPARK_CONNECT_MODE="0"
    )
    settings = folder / "spark.properties"
    text = "".join(f"{_property(key)}={_property(value)}\n" for key, value in conf.items())
    _write_private(settings, text.encode("ascii"))
    launcher = subprocess.run(
        [str(java), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", f"{home}/jars/*",
         "org.apache.spark.launcher.Main", _MAIN,
         "--properties-file", str(settings), "--load-spark-defaults", "pyspark-shell"],
        env=env, capture_output=True, text=True, timeout=_START_SECONDS, check=False,
    )  # fmt: skip
    command = [part for part in launcher.stdout.strip("\n").split("\0") if part.strip("\n")]
    if launcher.returncode != 0 or not command:
        raise EngineError(f"Spark's launcher failed: {launcher.stderr.strip().splitlines()[:1]}")
    command[0] = command[0].strip("\n")
    return [part for part in command if part != _INCUBATOR], env


def _property(text: str) -> str:
    # escapes alone: Java reads properties files as ISO-8859-1
    data = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{unit:04x}" for (unit,) in struct.iter_unpack(">H", data))


def _write_private(path: Path, data: bytes) -> None:
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(data)


def for_us_alone(path: str, flags: int) -> int:
    """An `opener` of files that only the user can read, and that are no links."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _by_file(command: list[str], folder: Path) -> list[str]:
    main = command.index(_MAIN)
    # arguments are visible to other users of the machine, and `extraJavaOptions` may hold passwords
    marks = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"})
    lines = "".join(f'"{part.translate(marks)}"\n' for part in command[1:main])
    _write_private(folder / "java.arguments", os.fsencode(lines))
    return [command[0], f"@{folder / 'java.arguments'}", *command[main:]]


def _connection(jvm: subprocess.Popen[bytes], info: Path, log: Path, unwanted: Callable[[], bool]) -> bytes:
    """The connection data that the JVM writes to `info` once it listens."""
    deadline = time.monotonic() + _START_SECONDS
    while not info.exists():
        if unwanted():
            raise EngineError("Spark is not needed any more")
        if jvm.poll() is not None or time.monotonic() > deadline:
            raise EngineError("the Java process for Spark did not start", hint=f"its output is in {log}")
        time.sleep(0.02)
    return info.read_bytes()


def start_gateway(
    java: Path,
    conf: dict[str, str],
    log: Path,
    scratch: Path,
    *,
    record: Path | None = None,
    unwanted: Callable[[], bool] = lambda: False,
) -> Gateway:
    """Start the JVM, with settings in files below `scratch`, and wait for it; its output goes to `log`.

    With `record` it writes a class archive there when it ends, which takes a while.
    """
    with tempfile.TemporaryDirectory(prefix="gateway-", dir=scratch) as name:
        folder = Path(name)
        command, env = _launch_command(java, conf, folder)
        command[1:1] = archive_options(java) if record is None else [f"-XX:ArchiveClassesAtExit={record}"]
        info = folder / "connection"
        env["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(info)
        with open(log, "ab", opener=for_us_alone) as output:
            process = subprocess.Popen(
                _by_file(command, folder),
                env=env,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for us, not for the JVM
            )
        try:
            data = _connection(process, info, log, unwanted)
        except BaseException:  # before it has reported its port, it does not notice that we are gone
            with process:
                process.kill()
            raise
    # two fields: the port as a big-endian int, then the length-prefixed secret
    port = int.from_bytes(data[:4], "big")
    length = int.from_bytes(data[4:8], "big")
    patience = _END_SECONDS if record is None else _RECORD_SECONDS
    return Gateway(process, port, data[8 : 8 + length].decode(), log, scratch, patience)
