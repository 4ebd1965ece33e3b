"""A command in a fork of the process that keeps a session: for whom, and how the fork becomes the command.

The process that asks (`odfchain.cli.client`) stays as the one that the user's shell knows. The fork gets its
streams, folder, environment and ignored signals, and a process group of its own, to which signals are passed
on. What a fork could not have otherwise, such as limits, rights and name spaces, has to be as it is here.
Source: RFC-057.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn

from odfchain.startup import start_lean

_STATUS = ("Uid", "Gid", "Groups", "Umask", "Cap", "NoNewPrivs", "Seccomp", "Cpus_allowed:", "Mems_allowed:")
_LINKS = ("exe", "root", "ns/mnt", "ns/net", "ns/pid", "ns/user", "ns/uts", "ns/ipc")


LIBRARIES = (
    "pyarrow.parquet", "pyarrow.compute", "pyarrow.dataset", "pyspark.sql.functions", "py4j.java_gateway",
    "sqlglot", "rich.table", "rich.progress", "urllib3", "jinja2",
)  # fmt: skip
"""What commands put off until they need it, and many need."""


def load(module: str) -> None:
    """Every fork from now on has a module."""
    start_lean()
    with contextlib.suppress(ImportError):  # of an extra
        import_module(module)
    gc.freeze()  # pages that the collector leaves alone are shared by all forks


def run_asked(client: socket.socket, is_same: Callable[[Mapping[str, str]], bool]) -> NoReturn:
    """Be the command that a client asks for, if this fork can, and end with its exit code."""
    code = 1
    try:
        os.setpgid(0, 0)
        prefix, executable, ignored, count, *words = _request(client)
        environment = dict(word.split("=", 1) for word in words[int(count) :])
        _take_signals({int(number) for number in ignored.split()})
        same = (prefix, executable) == (sys.prefix, sys.executable) and is_same(environment)
        client.sendall(b"p%d\n" % os.getpid() if same and _is_alike(client) else b"no\n")
        # a client that has waited for too long has hung up: it runs the command itself
        go, descriptors, _, _ = socket.recv_fds(client, 1, 4)
        if go and len(descriptors) == 4:
            _take_over(client, descriptors, environment)
            ended = threading.Event()
            threading.Thread(target=_end_with, args=(client, ended), daemon=True).start()
            sys.argv = ["odfchain", *words[: int(count)]]
            # it is above this room, so it is named at the call only
            code = import_module("odfchain.cli.main").main()
            # as at the end of any Python, but that nothing is taken apart
            threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - `multiprocessing` does it, too
            atexit._run_exitfuncs()  # noqa: SLF001
            sys.stdout.flush()
            sys.stderr.flush()
            ended.set()
            client.sendall(b"c%d\n" % code)
    finally:
        os._exit(code)


def _request(client: socket.socket) -> list[str]:
    with client.makefile("rb", 0) as stream:
        size = int.from_bytes(stream.read(8), sys.byteorder)
        data = b""
        while len(data) < size and (chunk := stream.read(size - len(data))):
            data += chunk
    return os.fsdecode(data).split("\0")


def _is_alike(client: socket.socket) -> bool:
    pid, uid, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid == os.getuid() and _circumstances(pid) == _circumstances(os.getpid())


def _circumstances(pid: int) -> list[str]:
    process = Path(f"/proc/{pid}")
    return [
        *(line for line in (process / "status").read_text().splitlines() if line.startswith(_STATUS)),
        *(str((process / name).readlink()) for name in _LINKS),
        (process / "limits").read_text(),
        str(os.getpriority(os.PRIO_PROCESS, pid)),
    ]


def _take_signals(ignored: set[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in map(int, signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}):
        default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else default)


def _take_over(client: socket.socket, descriptors: list[int], environment: dict[str, str]) -> None:
    os.fchdir(descriptors.pop())
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    # Java ends when its standard input is closed everywhere, and others wait for the ends of connections
    for opened in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the one that listed them
            if opened not in (0, 1, 2, client.fileno()):
                os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.stdin = _stream(sys.stdin, 0, "rb")
    sys.stdout, sys.stderr = _stream(sys.stdout, 1, "wb"), _stream(sys.stderr, 2, "wb")


def _stream(here: Any, descriptor: int, mode: str) -> TextIOWrapper:
    # encoding and buffering follow from the environment, which is the same
    through = here.write_through
    buffer: Any = open(descriptor, mode, 0 if through else -1, closefd=False)  # noqa: SIM115
    lines = descriptor == 2 or os.isatty(descriptor)
    return TextIOWrapper(buffer, here.encoding, here.errors, "\n", lines, through)


def _end_with(client: socket.socket, ended: threading.Event) -> None:
    with contextlib.suppress(OSError):
        client.recv(1)
    if not ended.is_set():
        os.killpg(0, signal.SIGKILL)
