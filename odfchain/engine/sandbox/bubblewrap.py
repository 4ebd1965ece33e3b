"""A process that sees only what it was given and has no network, made by bubblewrap.

The gate (`odfchain.sql.gate`) decides what a query may be. The sandbox stands behind it, in case the gate or
Spark errs: a network of its own with nothing but loopback, a root folder of its own with the system's
programs, Python, Java, and the folders of one request, its own process ids, no capabilities, and few system
calls (`system_calls`). Where it cannot be had, nothing is run.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import shutil
import signal
import site
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from odfchain.engine.sandbox.system_calls import filter_program, has_filter
from odfchain.errors import EngineError, JavaNotFoundError
from odfchain.spark.java import find_java

_PACKAGE = Path(__file__).parents[2]
_TMP_BYTES = 1 << 30
"""The private /tmp lies in memory: for small files; Spark's own go to the run's folder."""
_USER = "1000"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")
_WRITTEN = {
    "/etc/passwd": f"engine:x:{_USER}:{_USER}::/tmp:/bin/sh\n",
    "/etc/group": f"engine:x:{_USER}:\n",
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_KEPT = frozenset({"PATH", "LANG", "LANGUAGE", "TZ", "JAVA_HOME", "SPARK_HOME", "VIRTUAL_ENV"})
_SETTINGS = (
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "15000"),
)
"""Where Ubuntu, Debian and Linux switch user namespaces off, the value that does, and one that does not."""
_WITHOUT = "; `transform.isolation: never` runs such queries without a sandbox"


def require_sandbox(otherwise: str = _WITHOUT) -> None:
    """A sandbox can be had here: one was just built around a command that does nothing.

    `otherwise` is said after the command that mends it: the way without a sandbox.

    Raises:
        EngineError: it cannot; the hint is the one command that mends it.
    """
    if not sys.platform.startswith("linux") or not has_filter():
        raise _unavailable("it needs Linux on x86-64 or 64-bit ARM", "use such a machine", otherwise)
    if shutil.which("bwrap") is None:
        raise _unavailable("bubblewrap is not installed", "apt-get install bubblewrap", otherwise)
    try:
        process = start(
            [sys.executable, "-I", "-S", "-c", "pass"],
            read=(), write=(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip
        _, said = process.communicate()
    except OSError as error:
        raise _unavailable(f"the trial failed: {error.strerror}", "try again", otherwise) from error
    if process.returncode:
        lines = said.decode("utf-8", "replace").strip().splitlines() or ["the trial ended without a word"]
        raise _unavailable(lines[0], _command_that_mends(), otherwise)


class Sandboxed(subprocess.Popen[Any]):
    """A process in a sandbox; killed, it ends with all that is in there, also while that is being built."""

    first: int | None = None
    """The process that all others in there end with; None where nothing was built."""

    def kill(self) -> None:
        """Everything in it is sent SIGKILL."""
        running = self.poll() is None
        super().kill()
        # while it is being built, the first process waits for the one outside, even if that is gone
        if running and self.first is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.first, signal.SIGKILL)


def start(
    command: Sequence[str],
    *,
    read: Sequence[Path],
    write: Sequence[Path],
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Sandboxed:
    """`command` in a sandbox; `options` are those of `Popen`.

    The command sees `read` (files or folders, read-only) and `write`; it has a small private `/tmp`, and of
    the environment what programs need, without keys, with `environment` added. A Unix socket in one of the
    folders reaches the outside. Whatever the command started ends with it, and everything ends with the
    process that is returned, and with the thread that calls this. What the command's exit code is, that is
    the whole's; a signal is 128 more.

    Raises:
        EngineError: a folder is not there, or is the root folder.
    """
    for path in (*read, *write):
        if not path.exists():
            raise EngineError(f"{path} is not there, so it cannot be shown to the engine")
        if path.resolve() == Path("/"):
            raise EngineError("the engine is not given the root folder", hint="name the folders it needs")
    with contextlib.ExitStack() as opened:

        def given(data: bytes) -> int:
            reading, writing = os.pipe()
            opened.callback(os.close, reading)
            os.write(writing, data)  # far less than a pipe holds
            os.close(writing)
            return reading

        texts = {path: given(text.encode()) for path, text in _WRITTEN.items()}
        calls = given(filter_program())
        reading, writing = os.pipe()
        told = opened.enter_context(open(reading, "rb"))  # noqa: PTH123 - a pipe has no path
        says = opened.enter_context(open(writing, "wb"))  # noqa: PTH123 - as above
        argv = [
            shutil.which("bwrap") or "bwrap",
            *("--unshare-all", "--unshare-user", "--uid", _USER, "--gid", _USER, "--hostname", "localhost"),
            *("--cap-drop", "ALL", "--new-session", "--die-with-parent", "--seccomp", str(calls)),
            *("--info-fd", str(writing)),
            *_system_folders(),
            *(part for path, text in texts.items() for part in ("--ro-bind-data", str(text), path)),
            *("--dev", "/dev", *_private("/dev/shm"), "--remount-ro", "/dev"),  # noqa: S108 - a private one
            *("--proc", "/proc", "--remount-ro", "/proc", *_private("/tmp")),  # noqa: S108 - a private one
            *_shown([*_installation(), *read], write),
            *("--remount-ro", "/", "--"),
        ]
        process = Sandboxed(
            [*argv, *command], env={**environment_kept(), **(environment or {})},
            pass_fds=[*texts.values(), calls, writing], **options,
        )  # fmt: skip
        says.close()
        with contextlib.suppress(ValueError, KeyError):  # it failed, as its end will tell
            process.first = int(json.loads(told.read())["child-pid"])
        return process


def _unavailable(why: str, command: str, otherwise: str) -> EngineError:
    return EngineError(
        f"queries of others run in a sandbox, and it cannot be had here: {why}", hint=command + otherwise
    )


def _command_that_mends() -> str:
    for name, off, on in _SETTINGS:
        with contextlib.suppress(OSError, UnicodeError):
            if Path("/proc/sys", *name.split(".")).read_text("ascii").strip() == off:
                return f"sysctl -w {name}={on}"
    return "in a container: docker run --security-opt seccomp=unconfined …"


def _private(path: str) -> tuple[str, ...]:
    return ("--size", str(_TMP_BYTES), "--tmpfs", path)


def _system_folders() -> list[str]:
    """What programs need in order to run at all."""
    options: list[str] = []
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            options += ["--symlink", str(path.readlink()), name]
        elif path.is_dir():
            options += ["--ro-bind", name, name]
    for path in (*(Path("/etc", name) for name in _ETC), *sorted(Path("/etc").glob("java*"))):
        options += ["--ro-bind-try", str(path.resolve()), str(path)]
    return options


def _shown(read: Sequence[Path], write: Sequence[Path]) -> list[str]:
    """Both names of what is behind a symbolic link; what is asked for twice is writable.

    Parents come first, so that a folder within a folder keeps its own right.
    """
    shown = {
        name: ("--bind" if path in write else "--ro-bind", str(path.resolve()))
        for path in (*read, *write)
        for name in (str(path.absolute()), str(path.resolve()))
    }
    return [part for name in sorted(shown) if name not in _SYSTEM for part in (*shown[name], name)]


def environment_kept() -> dict[str, str]:
    """What the command may know of the caller's environment, which can hold keys."""
    kept = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith("LC_")}
    return kept | {"HOME": "/tmp", "TMPDIR": "/tmp", "PYTHONPATH": str(_PACKAGE.parent)}  # noqa: S108


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
