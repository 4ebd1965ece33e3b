"""The second wall around a stranger's query: a process without network that sees only what it was given.

The gate (`odfchain.sql.gate`) decides what may run. This wall stands behind it, in case the gate or Spark
errs: where Linux lets a user make namespaces, the engine's process has a network of its own with nothing but
loopback, and a root folder of its own with the system's programs, Python, Java, and the folders of one
request. Whether the walls can be had is found out by building them, and said in words for the report; where
they cannot, the gate stands alone. `namespaces` is the program that builds them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import site
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from odfchain.engine.sandbox.namespaces import MARK
from odfchain.errors import EngineError, JavaNotFoundError
from odfchain.spark.java import find_java

_LAUNCHER = Path(__file__).with_name("namespaces.py")
_PACKAGE = Path(__file__).parents[2]
_TRY_SECONDS = 30
_PROBE = [sys.executable, "-I", "-S", "-c", "pass"]
_SETTINGS = (
    (Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"), "1"),
    (Path("/proc/sys/kernel/unprivileged_userns_clone"), "0"),
    (Path("/proc/sys/user/max_user_namespaces"), "0"),
)
"""Where Linux, Ubuntu and Debian switch user namespaces off, and the value that does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """Which walls can be built on this machine."""

    network: bool
    """No network but a loopback of its own."""
    files: bool
    """No files but the system's programs and the folders that are named."""
    reason: str = ""
    """Why a wall is missing, in a few words; empty when none is."""

    def __str__(self) -> str:
        """The walls as a phrase for a report."""
        names = [name for name, there in (("network", self.network), ("files", self.files)) if there]
        said = " and ".join(names) + " isolated" if names else "not isolated"
        return f"{said} ({self.reason})" if self.reason else said


@functools.cache
def availability() -> Isolation:
    """The walls that could be built just now, around a command that does nothing.

    Tried once per process. Nothing is raised: whatever goes wrong is the reason why a wall is missing.
    """
    if not sys.platform.startswith("linux"):
        return Isolation(network=False, files=False, reason="only Linux has namespaces")
    everything = Isolation(network=True, files=True)
    reason = _refusal(everything)
    if reason is None:
        return everything
    for part in (Isolation(network=True, files=False), Isolation(network=False, files=True)):
        if _refusal(part) is None:
            return Isolation(network=part.network, files=part.files, reason=reason)
    return Isolation(network=False, files=False, reason=reason)


def isolated(
    command: Sequence[str],
    *,
    read: Sequence[Path],
    write: Sequence[Path],
    walls: Isolation | None = None,
) -> list[str]:
    """The command line that runs `command` behind `walls`, by default all that can be had here.

    Where there are none it is the command itself: look at `availability` to refuse that. Behind the files
    wall the command sees `read` (files or folders, read-only) and `write`; it has a small private `/tmp`, and
    of the environment what programs need, without keys. A Unix socket in one of the folders reaches the
    outside. The command's exit code or signal is that of the whole, signals are passed on to it, and whatever
    it started ends with it. Where a wall cannot be built, nothing runs: exit code `namespaces.REFUSED`.

    Raises:
        EngineError: a folder is not there, or is the root folder.
    """
    walls = availability() if walls is None else walls
    for path in (*read, *write):
        if not path.exists():
            raise EngineError(f"{path} is not there, so it cannot be shown to the engine")
        if path.resolve() == Path("/"):
            raise EngineError("the engine is not given the root folder", hint="name the folders it needs")
    options = [f"--{name}" for name in ("network", "files") if getattr(walls, name)]
    if not options:
        return list(command)
    if walls.files:
        options += ["--packages", str(_PACKAGE.parent)]
        options += [part for path in (*_installation(), *read) for part in ("--read", str(path.absolute()))]
        options += [part for path in write for part in ("--write", str(path.absolute()))]
    return [sys.executable, "-I", "-S", str(_LAUNCHER), *options, "--", *command]


@functools.cache
def _installation() -> tuple[Path, ...]:
    """Where Python, its packages, this one and Java are, beyond the system's own folders."""
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        found.append(site.getusersitepackages())
    folders = [_PACKAGE, *map(Path, found)]
    with contextlib.suppress(JavaNotFoundError):
        folders.append(find_java().resolve().parent.parent)
    if home := os.environ.get("SPARK_HOME"):
        folders.append(Path(home))
    spark = importlib.util.find_spec("pyspark")
    if spark is not None and spark.origin:
        folders.append(Path(spark.origin).parent)
    kept: list[Path] = []
    for folder in sorted({f.absolute() for f in folders if f.is_dir() and f.resolve() != Path("/")}):
        if not any(folder.is_relative_to(other) for other in (*kept, Path("/usr"))):
            kept.append(folder)
    return tuple(kept)


def _refusal(walls: Isolation) -> str | None:
    """Why these walls cannot be built, None when they were."""
    try:
        result = subprocess.run(
            isolated(_PROBE, read=(), write=(), walls=walls),
            capture_output=True, stdin=subprocess.DEVNULL, timeout=_TRY_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return f"the trial failed: {type(error).__name__}"
    if result.returncode == 0:
        return None
    return _reason(result.stderr.decode("utf-8", "replace"))


def _reason(said: str) -> str:
    """What the launcher said of the wall that it could not build, in a few words."""
    lines = [line.removeprefix(MARK) for line in said.splitlines() if line.startswith(MARK)]
    if not lines:
        return "the trial ended without a word"
    for setting, off in _SETTINGS:
        with contextlib.suppress(OSError, UnicodeError):
            if setting.read_text("ascii").strip() == off:
                return f"user namespaces are switched off: {setting.name} is {off}"
    if lines[0].startswith("user namespace"):
        return "user namespaces are switched off"
    return lines[0]
