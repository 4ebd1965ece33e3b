"""The entry point: a command runs in a fork of the process that keeps a session, where there is one for it.

That process (`odfchain.spark.session_server`) has loaded everything. The fork gets arguments, environment,
standard streams and folder; this process passes signals on, and ends as the fork does.
Without such a process, or where it differs in version, user, environment or limits, the command runs here.
Nothing is imported before that but what Python has loaded, and modules in C. Source: RFC-057.
"""

from __future__ import annotations

import os
import sys

from odfchain.session_address import COMMANDS, address_folder

TYPE_CHECKING = False  # `typing` takes longer to load than all of this
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    import _signal as signal  # without names for the numbers

# They run as long as their user wants, or end the process that would run them.
_ALONE = frozenset({"serve", "engine", "server"})

# A process that is well answers within milliseconds, or when it has loaded a large library.
_ANSWER_SECONDS = 1


def run() -> None:
    """Run the command line of this process, and end with its exit code."""
    if sys.platform == "linux" and not os.environ.get("CI"):
        _run_there(f"{address_folder()}/{COMMANDS}")
    from odfchain.cli.main import run as run_here

    run_here()


def _may_run_there() -> bool:
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    # a closed stream has to stay closed
    if _ALONE.intersection(words[:3]) or None in (sys.stdin, sys.stdout, sys.stderr):
        return False
    # the shell of `sql` is there for hours; and who reads a terminal in the background has to be stopped by
    # the system, which leaves processes of other sessions alone
    return not os.isatty(0) or (words[-1:] != ["sql"] and os.tcgetpgrp(0) == os.getpgrp())


def _run_there(path: str) -> None:
    # returns if the command is to run here; nothing of it was done then
    import _socket as socket

    to_all = {signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGWINCH}
    passed_on = to_all | {signal.SIGHUP, signal.SIGTERM, signal.SIGCONT, signal.SIGUSR1, signal.SIGUSR2}
    # they wait until there is a process for them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    fork = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        fork.settimeout(_ANSWER_SECONDS)
        fork.connect(path)
        peer = fork.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if int.from_bytes(peer[4:8], sys.byteorder) != os.getuid() or not _may_run_there():
            raise OSError  # noqa: TRY301 - as if there were none
        ignored = [str(int(n)) for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
        arguments, variables = sys.argv[1:], map("=".join, os.environ.items())
        texts = [sys.prefix, sys.executable, " ".join(ignored), str(len(arguments)), *arguments, *variables]
        request = os.fsencode("\0".join(texts))
        fork.sendall(len(request).to_bytes(8, sys.byteorder) + request)
        if (process := _number(b"p", fork)) is None:
            raise OSError  # noqa: TRY301 - it differs
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        handed = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2, folder))
        # only now may it begin: who waited for too long has hung up, and runs the command here
        fork.sendmsg([b"g"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, handed)])
        os.close(folder)
    except OSError:
        fork.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return

    def pass_on(number: int, _: object) -> None:
        try:
            (os.killpg if number in to_all else os.kill)(process, number)
        except ProcessLookupError:
            return
        if number == signal.SIGTSTP:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            signal.signal(number, pass_on)  # here it goes on
            os.killpg(process, signal.SIGCONT)

    for number in passed_on:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    fork.settimeout(None)
    if (code := _number(b"c", fork)) is None:
        os.write(2, b"error: the command was killed, and so was the process that could say how\n")
        code = 7  # as where the Java of Spark has ended
    if code < 0:
        if -code in passed_on:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _number(kind: bytes, fork: Any) -> int | None:
    received = b""
    try:
        while not received.endswith(b"\n") and (chunk := fork.recv(64)):
            received += chunk
    except ConnectionResetError:
        pass
    return int(received.split()[0][1:]) if received.startswith(kind) else None
