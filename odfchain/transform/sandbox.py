"""The Spark engine in a sandboxed process, for queries that others wrote.

The process sees the folders that it is given and nothing of the user's, and has no network but loopback
inside. What it is asked for, and where it writes, comes over a Unix socket in a folder that both see.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import json
import os
import platform
import shutil
import signal
import site
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from odfchain.errors import EngineError, JavaNotFoundError
from odfchain.odf.flatbuffers import schema_path
from odfchain.spark.gateway import PATH_VARIABLE, archive_path
from odfchain.spark.java import find_java

if TYPE_CHECKING:
    from odfchain.progress import Progress
    from odfchain.transform.engine_protocol import RemoteEngine


# System calls that are refused by seccomp. Namespaces and dropped capabilities already prevent their effects;
# the filter also shields the kernel's code for them, and sockets of families outside network namespaces
# (AF_VSOCK reaches a virtual machine's host). The list is that of Flatpak and Docker, less what Python and
# Java need. The program is assembled here because libseccomp's bindings on PyPI are one file of 2021 over
# ctypes (seccomp(2), linux/filter.h, asm/unistd.h).

# name: (number on x86-64, number on 64-bit ARM)
REFUSED: Final = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "chroot": (161, 51),
    "delete_module": (176, 106), "fanotify_init": (300, 262), "finit_module": (313, 273),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "init_module": (175, 105), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "kcmp": (312, 272), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "mount": (165, 40), "mount_setattr": (442, 442),
    "move_mount": (429, 429), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "open_tree": (428, 428), "perf_event_open": (298, 241), "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142),
    "request_key": (249, 218), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
}  # fmt: skip
_CLONE, _CLONE3, _IOCTL, _SOCKET = (56, 220), (435, 435), (16, 29), (41, 198)
_LAST_KNOWN = 462
"""Calls that came later (Linux 6.10) are not there, and neither are those of the x32 way to call."""

_MACHINES: Final = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7), "arm64": (1, 0xC000_00B7)}
"""The column of the table, and what the kernel calls the machine (AUDIT_ARCH_…)."""

_NEW_NAMESPACES = 0x7E02_0000
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
_INTO_A_TERMINAL = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX

_LOAD, _IF_EQUAL, _IF_GREATER, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST, _SECOND = 0, 4, 16, 24  # where struct seccomp_data has what is loaded
_ALLOW, _KILL, _ERROR = 0x7FFF_0000, 0x8000_0000, 0x0005_0000


def filter_program() -> bytes:
    """The filter for this machine, as `bwrap --seccomp` reads it: array of `struct sock_filter`."""
    column, machine = _MACHINES[platform.machine()]
    allow, kill = (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _KILL)
    refuse, missing, family = (
        (_RETURN, 0, 0, _ERROR | code) for code in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT)
    )

    def when(number: int, *then: tuple[int, int, int, int]) -> list[tuple[int, int, int, int]]:
        return [(_IF_EQUAL, 0, len(then), number), *then]

    program = [(_LOAD, 0, 0, _MACHINE), (_IF_EQUAL, 1, 0, machine), kill, (_LOAD, 0, 0, _NUMBER)]
    program += [(_IF_GREATER, 0, 1, _LAST_KNOWN), missing]
    for numbers in REFUSED.values():
        program += when(numbers[column], refuse)
    program += when(_CLONE3[column], missing)  # its flags lie in memory; the C library goes on with clone
    flags = [(_LOAD, 0, 0, _FIRST), (_IF_ANY_BIT, 0, 1, _NEW_NAMESPACES), refuse, allow]
    program += when(_CLONE[column], *flags)
    families = [step for number in _FAMILIES for step in when(number, allow)]
    program += when(_SOCKET[column], (_LOAD, 0, 0, _FIRST), *families, family)
    commands = [step for number in _INTO_A_TERMINAL for step in when(number, refuse)]
    program += when(_IOCTL[column], (_LOAD, 0, 0, _SECOND), *commands, allow)
    return b"".join(struct.pack("=HBBI", *step) for step in [*program, allow])


# Bubblewrap: a second defence behind the gate (`odfchain.spark.query_gate`). The process has its own network
# (loopback only), process ids and root folder (system programs, Python, Java, the folders of one request), no
# capabilities and few system calls. Without bubblewrap nothing is run.

_PACKAGE = Path(__file__).parents[1]
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
"""Settings of Ubuntu, Debian and Linux for user namespaces: the value for off, and one for on."""
_WITHOUT = "; `transform.isolation: never` runs such queries without a sandbox"


def require_sandbox(otherwise: str = _WITHOUT) -> None:
    """A sandbox can be had here: one was just built; `otherwise` ends the hint, the way without one."""
    if not sys.platform.startswith("linux") or platform.machine() not in _MACHINES:
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
    folders reaches the outside. Processes that the command started end with it, and everything ends with the
    process that is returned, and with the thread that calls this. What the command's exit code is, that is
    the whole's; a signal is 128 more.
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
        info = opened.enter_context(open(reading, "rb"))  # noqa: PTH123 - a pipe has no path
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
            process.first = int(json.loads(info.read())["child-pid"])
        return process


def _unavailable(why: str, command: str, otherwise: str) -> EngineError:
    message = f"queries of others run in a sandbox, and it cannot be had here: {why}"
    return EngineError(message, hint=command + otherwise)


def _command_that_mends() -> str:
    for name, off, on in _SETTINGS:
        with contextlib.suppress(OSError, UnicodeError):
            if Path("/proc/sys", *name.split(".")).read_text("ascii").strip() == off:
                return f"sysctl -w {name}={on}"
    return "in a container: docker run --security-opt seccomp=unconfined …"


def _private(path: str) -> tuple[str, ...]:
    return ("--size", str(_TMP_BYTES), "--tmpfs", path)


def _system_folders() -> list[str]:
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
    # both names of a symbolic link; writable wins; parents first, so that an inner folder keeps its own right
    shown = {
        name: ("--bind" if path in write else "--ro-bind", str(path.resolve()))
        for path in (*read, *write)
        for name in (str(path.absolute()), str(path.resolve()))
    }
    return [part for name in sorted(shown) if name not in _SYSTEM for part in (*shown[name], name)]


def environment_kept() -> dict[str, str]:
    """The variables of the caller's environment that the command gets: others can hold keys."""
    kept = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith("LC_")}
    return kept | {"HOME": "/tmp", "TMPDIR": "/tmp", "PYTHONPATH": str(_PACKAGE.parent)}  # noqa: S108


@functools.cache
def _installation() -> tuple[Path, ...]:
    # Python, its packages, this package and Java, where they are not in the system's folders
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


_SERVE = """\
import resource, sys
bytes = int(sys.argv[1]) << 20
if bytes:
    resource.setrlimit(resource.RLIMIT_DATA, (bytes, bytes))
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
from odfchain.cli.main import main
sys.exit(main(sys.argv[2:]))
"""
"""The limit holds for Python, and is inherited by Java: what is asked of the system beyond it is refused. The
process ends with what started it (PR_SET_PDEATHSIG)."""


@contextlib.contextmanager
def sandboxed_engine(
    read: Sequence[Path],
    write: Path,
    scratch: Path,
    *,
    progress: Progress,
    deadline: float | None = None,
    memory_mib: int = 0,
    engine: str = "spark",
    walled: bool | None = True,
) -> Iterator[RemoteEngine]:
    """An engine that can read the folders `read` and write in `write`; it ends with the block.

    Spark's own temporary files go to `scratch`, which lies in `write`. Each of its processes may use
    `memory_mib`; 0 is no limit. It is `spark` or `datafusion`. One that is not `walled` is a plain process;
    None takes that where a sandbox cannot be had.
    """
    from odfchain.transform.engine_protocol import RemoteEngine

    try:
        if walled is not False:
            require_sandbox()
            walled = True
    except EngineError:
        if walled:
            raise
    progress.phase(
        f"Starting {'Spark' if engine == 'spark' else 'DataFusion'}{' in a sandbox' if walled else ''}"
    )
    # the path of a socket must be short, so it lies in a folder of its own
    with (
        tempfile.TemporaryDirectory(prefix="odfchain-") as shared,
        (Path(shared) / "stderr").open("wb") as log,
    ):
        socket = Path(shared) / "engine.sock"
        command = [
            sys.executable, "-c", _SERVE, str(memory_mib),
            "-q", "engine", "serve", "--engine", engine, "--socket", str(socket), "--print-address",
            *(["--heap-mib", str(memory_mib // 2)] if memory_mib else []),
        ]  # fmt: skip
        # in a checkout the schemas lie outside the package
        shown, environment = [*read, schema_path("odf.fbs").parent], {"TMPDIR": str(scratch)}
        if engine == "spark":
            archive = archive_path(find_java())
            shown += [archive] if archive.is_file() else []
            environment[PATH_VARIABLE] = str(archive)
        options: dict[str, Any] = {
            "cwd": shared, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": log,
            "text": True,
        }  # fmt: skip
        process: subprocess.Popen[str]
        if walled:
            process = start(
                command, read=shown, write=[write, Path(shared)], environment=environment, **options
            )
        else:
            process = subprocess.Popen(command, env=environment_kept() | environment, **options)
        try:
            # a version is said where there is one; it is ours, and was compared before
            accept = None if engine == "spark" else lambda _: None
            yield RemoteEngine(_address(process, Path(shared)), deadline=deadline, accept=accept, notes=True)
        finally:
            _end(process)


def _address(process: subprocess.Popen[str], folder: Path) -> str:
    assert process.stdout is not None  # noqa: S101 - a pipe was asked for
    line = process.stdout.readline().strip()
    if line:
        return line
    process.wait()
    written = (folder / "stderr").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [text for text in written if "error: " in text] or written or ["it said nothing"]
    hint = "`odfchain engine serve --port 0` shows whether it starts outside the sandbox" + _WITHOUT
    raise EngineError(f"the engine did not start (exit code {process.returncode}): {errors[0]}", hint=hint)


def _end(process: subprocess.Popen[str]) -> None:
    # the output closes only when the last process that holds it has ended
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.read()
        process.stdout.close()
