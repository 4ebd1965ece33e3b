"""Runs one command behind walls that Linux can build for any user: no network, and few folders.

A program of its own, started by path (`isolation` makes its command line), with nothing but the standard
library: it gives up its own view of the machine, so it has to be small and must not be the coordinator. The
network wall is a network namespace that has only loopback. The wall around files is a new root, made of the
folders that are named, with its own `/tmp`, `/proc`, `/dev` and an `/etc` of five lines; with it come a PID
namespace, so that nothing the command starts outlives it, an environment without secrets, and the loss of
all privileges inside. Three processes are needed: this one waits outside, the first of the PID namespace
reaps orphans and passes signals on, and the command. Source: namespaces(7), user_namespaces(7),
pid_namespaces(7), pivot_root(2), mount_setattr(2).
"""

# System calls are named as they are, and the /tmp that is meant is a private one:
# ruff: noqa: PTH100, PTH102, PTH103, PTH109, PTH110, PTH112, PTH114, PTH115, PTH120, PTH123, PTH208, PTH211
# ruff: noqa: S108

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

REFUSED = 120
"""Exit code when a wall cannot be built; standard error says which, in one line."""

MARK = "isolation: "
"""How that line begins."""

_NEWNS, _NEWUTS, _NEWIPC, _NEWUSER, _NEWPID, _NEWNET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _REC, _PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_DETACH = 2
_MOUNT_SETATTR, _AT_RECURSIVE = 442, 0x8000
_PDEATHSIG, _DUMPABLE, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 4, 24, 38
_LAST_CAPABILITY = 63
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_TMP = "size=1g,mode=1777"
"""The private /tmp lies in memory: for small files; Spark's own go to the run's folder."""

_KEPT = frozenset({"PATH", "LANG", "LANGUAGE", "TZ", "JAVA_HOME", "SPARK_HOME", "VIRTUAL_ENV"})
_PASSED_ON = {
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
}  # fmt: skip


class _Refused(Exception):  # noqa: N818 - it is a no, not a fault
    """A step towards a wall was refused; says which and why."""


@contextmanager
def _step(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _Refused(f"{name}: {error.strerror or error}") from error


_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> None:
    """A function of the C library; what it reports as an error is raised."""
    given = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    if getattr(_LIBC, function)(*given) == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    texts = [None if t is None else os.fsencode(t) for t in (source, target, kind, options)]
    _call("mount", *texts[:3], flags, texts[3])


def _seal(path: str, attributes: int) -> None:
    """Adds attributes to the mount at `path` and to all mounts beneath it; none is taken away."""
    wanted = ctypes.create_string_buffer(struct.pack("4Q", attributes, 0, 0, 0), 32)
    at_cwd = (1 << 64) - 100
    _call("syscall", _MOUNT_SETATTR, at_cwd, os.fsencode(path), _AT_RECURSIVE, wanted, 32)


def _own_user() -> None:
    """A user namespace in which this user keeps its number; it is what the other walls need."""
    user, group = os.geteuid(), os.getegid()
    with _step("user namespace"):
        _call("unshare", _NEWUSER)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)


def _own_network() -> None:
    with _step("network namespace"):
        _call("unshare", _NEWNET)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            request = struct.pack("16sh14x", b"lo", 0)
            (flags,) = struct.unpack_from("h", fcntl.ioctl(any_socket, _GET_FLAGS, request), 16)
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


class _Root:
    """A new root folder that is being filled; until it is entered, the old one is at `/old`."""

    def __init__(self) -> None:
        with _step("mount namespace"):
            _mount(None, "/", None, _REC | _PRIVATE)
            _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, "size=4m,mode=755")
            for name in ("new", "old"):
                os.mkdir(f"/tmp/{name}")
            _mount("/tmp/new", "/tmp/new", None, _BIND)
            os.chdir("/tmp")
            _call("pivot_root", b".", b"old")
            os.chdir("/")

    def show(self, source: str, shown_as: str, *, writable: bool = False, device: bool = False) -> None:
        """The file or folder `source` of the old root can be seen at `shown_as`."""
        with _step(f"showing {shown_as}"):
            real, target = "/old" + source, "/new" + shown_as
            if os.path.isdir(real):
                os.makedirs(target, mode=0o755, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
                if not os.path.exists(target):
                    os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
            _mount(real, target, None, _BIND | _REC)
            _seal(target, _NOSUID | (0 if device else _NODEV) | (0 if writable else _RDONLY))

    def write(self, path: str, text: str) -> None:
        """A file with this text."""
        target = "/new" + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as file:
            file.write(text)

    def system(self) -> None:
        """What programs need in order to run at all."""
        for path in _SYSTEM:
            if os.path.islink("/old" + path):
                os.symlink(os.readlink("/old" + path), "/new" + path)
            elif os.path.isdir("/old" + path):
                self.show(path, path)
        configuration = [n for n in os.listdir("/old/etc") if n.startswith("java")]
        for name in (*_ETC, *configuration):
            real = os.path.realpath(f"/old/etc/{name}")
            if os.path.exists(real) and real.startswith("/old/"):
                self.show(real.removeprefix("/old"), f"/etc/{name}")
        user, group = os.geteuid(), os.getegid()
        self.write("/etc/passwd", f"engine:x:{user}:{group}::/tmp:/bin/sh\n")
        self.write("/etc/group", f"engine:x:{group}:\n")
        self.write("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
        self.write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")
        for name in _DEVICES:
            self.show(f"/dev/{name}", f"/dev/{name}", writable=True, device=True)
        for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
            os.symlink(f"/proc/self/fd{target}", f"/new/dev/{name}")

    def private(self) -> None:
        """`/tmp`, `/dev/shm` and a `/proc` that shows only what runs behind the walls."""
        with _step("private /tmp"):
            for path in ("/new/tmp", "/new/dev/shm"):
                os.makedirs(path, exist_ok=True)
                _mount("tmpfs", path, "tmpfs", _NOSUID | _NODEV, _TMP)
        with _step("private /proc"):
            os.mkdir("/new/proc")
            _mount("proc", "/new/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
            # no way back to privileges through a user namespace within this one
            with open("/new/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
                file.write("0")
            # root without capabilities may still write settings of the kernel
            _seal("/new/proc", _RDONLY)

    def enter(self, folder: str) -> None:
        """The new root is `/`, and the old one is gone."""
        with _step("new root"):
            _mount(None, "/new", None, _BIND | _REMOUNT | _RDONLY | _NOSUID | _NODEV)
            os.chdir("/new")
            _call("pivot_root", b".", b".")
            _call("umount2", b".", _DETACH)
            os.chdir(folder if os.path.isdir(folder) else "/")


def _build(read: list[str], write: list[str]) -> None:
    """The new root, made of these folders, as the view of this process."""
    here = os.getcwd()
    # both names of what is behind a symbolic link; what is asked for twice is writable
    named = [
        (path, name) for path in (*read, *write) for name in (os.path.abspath(path), os.path.realpath(path))
    ]
    shown = {name: os.path.realpath(path) for path, name in named}
    writable = {name for path, name in named if path in write}
    root = _Root()
    with _step("system folders"):
        root.system()
    root.private()
    for path in sorted(shown):  # parents first, so that a folder within a folder keeps its own right
        if path not in _SYSTEM:
            root.show(shown[path], path, writable=path in writable)
    with _step("host name"):
        socket.sethostname("localhost")
    root.enter(here)


def _without_privileges() -> None:
    with _step("privileges"):
        for capability in range(_LAST_CAPABILITY + 1):
            if _LIBC.prctl(_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                break  # the kernel knows no more of them
        _call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)


def _environment(packages: str) -> dict[str, str]:
    """What the command may know of the caller's environment, which can hold keys."""
    kept = {k: v for k, v in os.environ.items() if k in _KEPT or k.startswith("LC_")}
    return kept | {"HOME": "/tmp", "TMPDIR": "/tmp", "PYTHONPATH": packages}


def _run(command: list[str], environment: dict[str, str]) -> NoReturn:
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; the command shall not
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606
    except OSError as error:
        _say(f"{command[0]}: {error.strerror}")
        os._exit(127)


def _fork(child: Callable[[], NoReturn]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except (_Refused, OSError) as error:
            _say(str(error))
        finally:
            os._exit(REFUSED)
    return pid


def _wait(child: int) -> int:
    """The wait status of `child`; signals are passed on to it, orphans are reaped.

    What the terminal sends reaches the whole group anyway, so only what a process sent is passed on.
    """
    while True:
        seen = signal.sigwaitinfo(_PASSED_ON | {signal.SIGCHLD})
        if seen.si_signo != signal.SIGCHLD:
            if seen.si_code <= 0:
                os.kill(child, seen.si_signo)
            continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == child:
                return status
            if pid == 0:
                break


def _end_as(status: int) -> NoReturn:
    """End in the way that the command ended, be it by a signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else REFUSED)


def _behind_both(
    command: list[str], read: list[str], write: list[str], environment: dict[str, str]
) -> NoReturn:
    """The command within a new root and a new PID namespace."""
    with _step("mount namespace"):
        _call("unshare", _NEWNS | _NEWUTS | _NEWIPC)
    with _step("PID namespace"):
        _call("unshare", _NEWPID)
    signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON | {signal.SIGCHLD})
    alive_read, alive_write = os.pipe()
    told_read, told_write = os.pipe()

    def first() -> NoReturn:
        os.close(alive_write)
        os.close(told_read)
        _call("prctl", _PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.set_blocking(alive_read, False)
        try:
            os.read(alive_read, 1)
            os._exit(REFUSED)  # the end of the pipe: the process outside is gone already
        except BlockingIOError:
            pass
        _build(read, write)
        _without_privileges()
        _call("prctl", _DUMPABLE, 0, 0, 0, 0)  # nobody reads this process's environment in /proc
        status = _wait(_fork(lambda: _run(command, environment)))
        os.write(told_write, struct.pack("i", status))
        os._exit(0)

    pid = _fork(first)
    os.close(alive_read)
    os.close(told_write)
    ended = _wait(pid)
    told = os.read(told_read, 4)
    _end_as(struct.unpack("i", told)[0] if len(told) == 4 else ended)


def _say(what: str) -> None:
    os.write(2, f"{MARK}{what}\n".encode("utf-8", "surrogateescape"))


def main(arguments: list[str]) -> NoReturn:
    """Run `[--network] [--files] [--packages P] {--read P | --write P}... -- command...`; never returns."""
    read, write, packages, walls = list[str](), list[str](), "", set[str]()
    given = iter(arguments)
    for name in given:
        if name == "--":
            break
        if name in ("--network", "--files"):
            walls.add(name)
        elif name == "--packages":
            packages = next(given)
        else:
            {"--read": read, "--write": write}[name].append(next(given))
    command = list(given)
    try:
        _own_user()
        if "--network" in walls:
            _own_network()
        if "--files" in walls:
            _behind_both(command, read, write, _environment(packages))
        _without_privileges()
    except _Refused as error:
        _say(str(error))
        os._exit(REFUSED)
    _run(command, dict(os.environ))


if __name__ == "__main__":
    main(sys.argv[1:])
