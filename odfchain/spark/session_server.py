"""The process that keeps a JVM with its Spark session, and runs commands in forks of itself: `python -m
odfchain.spark.session_server`.

It starts the JVM, tells commands of the same fingerprint where it is, and counts them by their connections.
It ends, and with it the JVM and everything that Spark wrote, after an idle timeout, when it is
stopped, when the JVM dies, and when a command disconnects without a farewell: its session's state is unknown.
Before that, soon after the last command, unused memory is given back to the system. It has one thread, so
that it can be forked at any time, and loads what commands load when it is idle for the first time.
Source: RFC-030, RFC-057.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from resource import getpagesize
from typing import Any, BinaryIO

from odfchain.errors import StoreError
from odfchain.session_address import COMMANDS, SOCKET
from odfchain.spark.command_forks import LIBRARIES, load, run_asked
from odfchain.spark.gateway import Gateway, new_archive, start_gateway
from odfchain.spark.session import spark_scratch
from odfchain.spark.session_client import LOG, fingerprint, java_identity, note
from odfchain.versions import __version__

_LONGEST_LINE = 1 << 20
# A line comes at once: all others wait for its end.
_LINE_SECONDS = 1

# Idle time after which memory is given back: in a script the next command comes at once.
_REST_SECONDS = 30

# Of the time that a session stays, where that is less.
_REST_SHARE = 0.1


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection; it has a place in the session once it has attached."""

    connection: socket.socket
    lines: BinaryIO
    pid: int | None = None


class SessionServer:
    """Serves one JVM on a socket until it has ended."""

    def __init__(self, order: dict[str, Any], gateway: Gateway) -> None:
        self._order = order
        rooms = pkgutil.walk_packages([str(Path(__file__).parents[1])], "odfchain.")
        self._to_load = [*LIBRARIES, *(module.name for module in rooms)]
        self._forks: dict[int, socket.socket] = {}
        self._gateway = gateway
        self._java = java_identity(order["java"])
        self._began = datetime.now(UTC)
        self._attached = 0
        self._empty_since = time.monotonic()
        self._rested = True  # nothing was done yet
        self._callers: set[_Caller] = set()
        self._retired = False
        self._dead = False
        self._selector = selectors.DefaultSelector()
        self._listeners = [self._listen(SOCKET, self._accept), self._listen(COMMANDS, self._fork)]

    @property
    def _places(self) -> list[int]:
        return sorted(caller.pid for caller in self._callers if caller.pid is not None)

    def _left(self) -> float:
        """Seconds until the idle timeout."""
        return float(max(0, self._empty_since + self._order["idle"] - time.monotonic()))

    def _until_rest(self) -> float:
        """Seconds until unused memory is given back."""
        rest = min(_REST_SECONDS, _REST_SHARE * self._order["idle"])
        return float(max(0, self._empty_since + rest - time.monotonic()))

    def _patience(self) -> float | None:
        """Longest wait for a connection [s] before there is something to do; None without bound."""
        if self._places or self._forks:
            return None
        if self._to_load and self._attached:
            return 0
        return self._left() if self._rested else min(self._left(), self._until_rest())

    def serve(self) -> None:
        """Returns when there is nothing left to wait for."""
        ended, end = socket.socketpair()
        ended.setblocking(False)
        end.setblocking(False)
        # the selector cannot wait for processes: when one has ended, the signal is written to a socket
        signal.set_wakeup_fd(end.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(ended, selectors.EVENT_READ, self._reap)
        self._reap(ended)
        while self._forks or (not self._dead and (self._places or not self._retired)):
            ready = self._selector.select(self._patience())
            for key, _ in ready:
                key.data(key.fileobj)
            if ready or self._places or self._forks:
                continue
            if self._to_load and self._attached:
                load(self._to_load.pop(0))
            elif not self._rested and not self._until_rest():
                self._rested = True
                self._give_back()
            elif not self._left():
                self.retire("idle timeout")
        signal.set_wakeup_fd(-1)  # the sockets are closed before other processes of this one end

    def _fork(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
            pid = os.fork()
        except OSError as error:
            note(f"a command cannot be run: {error}")
            return
        if pid == 0:
            run_asked(client, self._is_same)
        self._forks[pid] = client

    def _is_same(self, environment: Mapping[str, str]) -> bool:
        ours, parts = self._order["parts"], fingerprint({}, environment)
        return all(ours[name] == parts[name] for name in ("version", "Spark", "Java", "environment"))

    def _reap(self, ended: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            ended.recv(4_096)
        for pid in list(self._forks):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                self._empty_since = time.monotonic()
                # if it could not say it itself
                with self._forks.pop(pid) as client, contextlib.suppress(OSError):
                    client.sendall(b"c%d\n" % os.waitstatus_to_exitcode(status))
        if self._gateway.process.poll() is not None:
            self._dead = True
            self.retire("its Java has ended")

    def _give_back(self) -> None:
        # in a process of its own, and nobody's child: a command that comes meanwhile does not wait for it
        if (child := os.fork()) == 0:
            try:
                if os.fork() == 0:
                    os.close(self._gateway.process.stdin.fileno())  # type: ignore[union-attr]  # its end is Java's
                    give_back(self._gateway)
            except Exception as error:  # noqa: BLE001 - of Py4J, Java or the connection
                note(f"its Java gives no memory back: {error}")
            finally:
                os._exit(0)
        os.waitpid(child, 0)

    def _listen(self, name: str, heard: Callable[[socket.socket], None]) -> socket.socket:
        path = Path(self._order["folder"]) / name
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)  # of a server that was killed: the lock is ours
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        self._selector.register(listener, selectors.EVENT_READ, heard)
        return listener

    def retire(self, why: str) -> None:
        """Accept no more connections, and end with the last one."""
        if self._retired:
            return
        self._retired = True
        note(f"takes no more commands: {why}")
        for listener in self._listeners:
            # the sockets go first, so that new commands start a server of their own
            Path(listener.getsockname()).unlink(missing_ok=True)
            self._selector.unregister(listener)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        connection.settimeout(_LINE_SECONDS)
        caller = _Caller(connection, connection.makefile("rb"))
        self._callers.add(caller)
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._hear(caller))

    def _hear(self, caller: _Caller) -> None:
        line = b""
        try:
            line = caller.lines.readline(_LONGEST_LINE)
            answer = self._reply(caller, json.loads(line))
            caller.connection.sendall(json.dumps(answer).encode() + b"\n")
        except (ValueError, TypeError, KeyError, OSError) as error:
            if line:
                note(f"a request was not understood: {error}")
            # closed without a word, or a peer that floods: its place is lost
            self._forget(caller)

    def _reply(self, caller: _Caller, request: dict[str, Any]) -> dict[str, Any]:
        match request["ask"]:
            case "attach":
                return self._attach(caller, request["parts"], int(request["pid"]))
            case "leave":
                caller.pid = None
                if not self._places:
                    self._empty_since, self._rested = time.monotonic(), False
                return {"left": True}
            case "status":
                return self._status()
            case "stop":
                self.retire("stop requested")
                return {"clients": self._places}
            case _:
                return {"error": "unknown"}

    def _attach(self, caller: _Caller, parts: dict[str, str], pid: int) -> dict[str, Any]:
        ours = self._order["parts"]
        other = [name for name in ours if ours[name] != parts.get(name)]
        if not other and java_identity(self._order["java"]) != self._java:
            other = ["Java"]
        if other:
            self.retire(f"replaced, because a command differs in {', '.join(other)}")
        # no place: the caller starts another server
        if self._retired:
            return {}
        caller.pid = pid
        self._attached += 1
        return {"port": self._gateway.port, "secret": self._gateway.secret, "scratch": self._order["scratch"]}

    def _status(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "jvm": self._gateway.process.pid,
            "version": __version__,
            "since": self._began.isoformat(timespec="seconds"),
            "attached": self._attached,
            "clients": self._places,
            "javaMiB": resident_mib(self._gateway.process.pid),
            "idleSeconds": self._order["idle"],
            "endsInSeconds": None if self._places else round(self._left()),
            "log": str(Path(self._order["folder"]) / LOG),
        }

    def _forget(self, caller: _Caller) -> None:
        self._selector.unregister(caller.connection)
        caller.lines.close()
        caller.connection.close()
        self._callers.discard(caller)
        if caller.pid is not None:
            self.retire(f"command {caller.pid} did not take leave")


# Gives unused memory of a JVM back to the system.
#
# Java keeps a heap that once was large. A full collection gives back what is free, as far as two settings
# let it; they are set for that moment only, because a heap that is always tight would be collected again
# and again (RFC-030).

# How much of the heap may be free after a collection [%].
_FREE_SHARES = {"MinHeapFreeRatio": "5", "MaxHeapFreeRatio": "20"}

# The first ones let Spark's cleaner drop unreachable objects; some collectors shrink in steps.
_COLLECTIONS = 4

_BETWEEN_SECONDS = 0.3
_ANSWER_SECONDS = 30
_BEAN = "com.sun.management.HotSpotDiagnosticMXBean"


def give_back(gateway: Gateway) -> None:
    """Give unused heap memory of the JVM back to the system; raises what Py4J does of other answers."""
    from py4j.java_gateway import GatewayParameters, JavaGateway

    where = GatewayParameters(port=gateway.port, auth_token=gateway.secret, read_timeout=_ANSWER_SECONDS)
    lang = JavaGateway(gateway_parameters=where).jvm.java.lang
    bean = lang.management.ManagementFactory.getPlatformMXBean(lang.Class.forName(_BEAN))
    before = {name: bean.getVMOption(name).getValue() for name in _FREE_SHARES}
    try:
        for name, value in _FREE_SHARES.items():
            bean.setVMOption(name, value)
        for _ in range(_COLLECTIONS):
            lang.System.gc()
            time.sleep(_BETWEEN_SECONDS)
    finally:
        for name, value in reversed(before.items()):
            bean.setVMOption(name, value)


def resident_mib(pid: int) -> int | None:
    """The memory that a process has in use [MiB]; None where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * getpagesize() >> 20


def _tell_of_archive(path: Path) -> None:
    if path.is_file():
        note(f"made a class archive, so that the next Java starts faster: {path}")
    else:
        note(f"no class archive was written, with which the next Java would start faster: {path}")


def main() -> None:
    """Keep a session as the order on standard input says."""
    order = json.load(sys.stdin)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.chdir(order["cwd"])
    folder, scratch, java = Path(order["folder"]), Path(order["scratch"]), Path(order["java"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(spark_scratch(scratch.parent, scratch.name))
        record = None
        if order["archive"]:
            # its Java writes one at its end, if it can
            stack.callback(_tell_of_archive, Path(order["archive"]))
            with contextlib.suppress(StoreError, OSError):
                record = stack.enter_context(new_archive(Path(order["archive"])))
        gateway = start_gateway(java, order["settings"], folder / LOG, scratch, record=record)
        stack.callback(gateway.close)
        server = SessionServer(order, gateway)
        note(f"keeps Java {gateway.process.pid}")
        os.close(order["lock"])
        with contextlib.suppress(BrokenPipeError):  # its starter may have ended
            os.write(1, b"ready\n")
        os.dup2(2, 1)
        try:
            server.serve()
        finally:
            server.retire("it ends")
    note(f"Java {gateway.process.pid} has ended")


if __name__ == "__main__":
    main()
