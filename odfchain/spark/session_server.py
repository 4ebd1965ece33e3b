"""The process that keeps a JVM with its Spark session between commands: `python -m
odfchain.spark.session_server`.

It starts the JVM, tells commands of the same fingerprint where it is, and counts them by their connections.
It ends, and with it the JVM and everything that Spark wrote, after an idle timeout, when it is
stopped, when the JVM dies, and when a command disconnects without a farewell: its session's state is unknown.
Before that, soon after the last command, unused memory is given back to the system.
Source: RFC-030.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from resource import getpagesize
from typing import Any

from odfchain.errors import StoreError
from odfchain.spark.gateway import Gateway, new_archive, start_gateway
from odfchain.spark.session import spark_scratch
from odfchain.spark.session_client import LOG, SOCKET, java_identity, line
from odfchain.versions import __version__

_LONGEST_LINE = 1 << 20

# Idle time after which memory is given back: in a script the next command comes at once.
_REST_SECONDS = 30

# Of the time that a session stays, where that is less.
_REST_SHARE = 0.1


def log(text: str) -> None:
    """One line in the log."""
    sys.stderr.write(line(text))
    sys.stderr.flush()


@dataclass(slots=True, eq=False)
class _Caller:
    """A connection; it has a place in the session once it has attached."""

    connection: socket.socket
    pid: int | None = None
    received: bytes = field(default=b"")


class SessionServer:
    """Serves one JVM on a socket until it has ended."""

    def __init__(self, order: dict[str, Any], listener: socket.socket, gateway: Gateway) -> None:
        self._order = order
        self._listener = listener
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
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

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
        if self._places:
            return None
        return self._left() if self._rested else min(self._left(), self._until_rest())

    def serve(self) -> None:
        """Returns when there is nothing left to wait for."""
        ended, end = socket.socketpair()
        self._selector.register(ended, selectors.EVENT_READ, self._jvm_died)
        # the selector cannot wait for a process: a thread waits, and closes a socket
        threading.Thread(target=self._close_when_it_ends, args=(end,), daemon=True).start()
        while not self._dead and (self._places or not self._retired):
            for key, _ in self._selector.select(self._patience()):
                key.data(key.fileobj)
            if not self._places and not self._rested and not self._until_rest():
                self._rested = True
                threading.Thread(target=self._give_back, daemon=True).start()
            if not self._places and not self._retired and not self._left():
                self.retire("idle timeout")

    def _close_when_it_ends(self, end: socket.socket) -> None:
        self._gateway.process.wait()
        end.close()

    def _give_back(self) -> None:
        # on a thread of its own: a command that comes meanwhile does not wait for it
        try:
            give_back(self._gateway)
        except OSError as error:
            log(f"its Java gives no memory back: {error}")

    def retire(self, why: str) -> None:
        """Accept no more connections, and end with the last one."""
        if self._retired:
            return
        self._retired = True
        log(f"takes no more commands: {why}")
        self._selector.unregister(self._listener)
        # the socket goes first, so that new commands start a server of their own
        (Path(self._order["folder"]) / SOCKET).unlink(missing_ok=True)
        self._listener.close()

    def _jvm_died(self, _: socket.socket) -> None:
        self._dead = True
        self.retire("its Java has ended")

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        caller = _Caller(connection)
        self._callers.add(caller)
        self._selector.register(connection, selectors.EVENT_READ, lambda _: self._hear(caller))

    def _hear(self, caller: _Caller) -> None:
        try:
            data = caller.connection.recv(65_536)
        except OSError:
            data = b""
        caller.received += data
        # closed without a word, or a peer that floods: its place is lost
        if not data or len(caller.received) > _LONGEST_LINE:
            self._forget(caller)
            return
        while b"\n" in caller.received:
            request, _, caller.received = caller.received.partition(b"\n")
            try:
                answer = self._reply(caller, json.loads(request))
                caller.connection.sendall(json.dumps(answer).encode() + b"\n")
            except (ValueError, TypeError, KeyError, OSError) as error:
                log(f"a request was not understood: {error}")
                self._forget(caller)
                return

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
        if not other and self._java_changed():
            other = ["Java"]
        if other:
            self.retire(f"replaced, because a command differs in {', '.join(other)}")
            return {"other": other}
        # no place: the caller starts another server
        if self._retired:
            return {}
        caller.pid = pid
        self._attached += 1
        return {
            "port": self._gateway.port,
            "secret": self._gateway.secret,
            "scratch": self._order["scratch"],
        }

    def _java_changed(self) -> bool:
        try:
            return java_identity(self._order["java"]) != self._java
        except OSError:
            # it was removed or cannot be read: as good as another one
            return True

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
        caller.connection.close()
        self._callers.discard(caller)
        if caller.pid is not None:
            self.retire(f"command {caller.pid} did not take leave")


# Gives unused memory of a JVM back to the system.
#
# Java keeps a heap that once was large. A full collection gives back what is free, as far as two settings
# let it; they are set for that moment only, because a heap that is always tight would be collected again
# and again. The session server asks for it in the text protocol of Py4J, so that it needs no PySpark for that
# (RFC-030).

# How much of the heap may be free after a collection [%].
_FREE_SHARES = {"MinHeapFreeRatio": "5", "MaxHeapFreeRatio": "20"}

# The first ones let Spark's cleaner drop unreachable objects; some collectors shrink in steps.
_COLLECTIONS = 4

_BETWEEN_SECONDS = 0.3
_ANSWER_SECONDS = 30
_BEAN = "com.sun.management.HotSpotDiagnosticMXBean"


class _Calls:
    """Calls of Java methods on one connection; what was made by them is let go at the end."""

    def __init__(self, gateway: Gateway) -> None:
        self._socket = socket.create_connection(("127.0.0.1", gateway.port), timeout=_ANSWER_SECONDS)
        self._answers = self._socket.makefile("rb")
        self._made: list[str] = []
        self._secret = gateway.secret

    def __enter__(self) -> _Calls:
        return self

    def __exit__(self, *_: object) -> None:
        with self._socket, self._answers, contextlib.suppress(OSError):
            for name in self._made:
                self._ask("m", "d", name)

    def authenticate(self) -> None:
        self._ask("A", self._secret, end=False)

    def call(self, target: str, method: str, *arguments: str) -> str:
        """A method's result: an object's name, or a text; an argument is `s` and a text, `r` and a name."""
        answer = self._ask("c", target, method, *arguments)
        if answer.startswith("r"):
            self._made.append(answer[1:])
        return answer[1:]

    def _ask(self, *words: str, end: bool = True) -> str:
        self._socket.sendall("".join(f"{word}\n" for word in ((*words, "e") if end else words)).encode())
        answer = self._answers.readline().decode().rstrip("\n")
        if not answer.startswith("!y"):
            raise OSError(f"Java answers {answer[:80]!r}")
        return answer[2:]


def give_back(gateway: Gateway) -> None:
    """Give unused heap memory of the JVM back to the system."""
    with _Calls(gateway) as java:
        java.authenticate()
        kind = java.call("z:java.lang.Class", "forName", f"s{_BEAN}")
        bean = java.call("z:java.lang.management.ManagementFactory", "getPlatformMXBean", f"r{kind}")
        before = {
            name: java.call(java.call(bean, "getVMOption", f"s{name}"), "getValue") for name in _FREE_SHARES
        }
        try:
            for name, value in _FREE_SHARES.items():
                java.call(bean, "setVMOption", f"s{name}", f"s{value}")
            for _ in range(_COLLECTIONS):
                java.call("z:java.lang.System", "gc")
                time.sleep(_BETWEEN_SECONDS)
        finally:
            for name, value in reversed(before.items()):
                java.call(bean, "setVMOption", f"s{name}", f"s{value}")


def resident_mib(pid: int) -> int | None:
    """The memory that a process has in use [MiB]; None where the system does not say."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * getpagesize() >> 20


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)  # of a server that was killed: the lock is ours
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen()
    return listener


def _new_archive(stack: contextlib.ExitStack, target: str | None) -> Path | None:
    """Where the JVM records a class archive at its end; None if there is one, or none can be made."""
    if target is None:
        return None
    path = Path(target)
    with contextlib.ExitStack() as made:
        made.callback(_tell_of_archive, path)
        try:
            record = made.enter_context(new_archive(path))
        except (StoreError, OSError):
            return None  # which is reported
        stack.push(made.pop_all())
    return record


def _tell_of_archive(path: Path) -> None:
    if path.is_file():
        log(f"made a class archive, so that the next Java starts faster: {path}")
    else:
        log(f"no class archive was written, with which the next Java would start faster: {path}")


def main() -> int:
    """Keep a session as the order on standard input says."""
    order = json.load(sys.stdin)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    os.chdir(order["cwd"])
    folder, scratch, java = Path(order["folder"]), Path(order["scratch"]), Path(order["java"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(spark_scratch(scratch.parent, scratch.name))
        record = _new_archive(stack, order["archive"])
        gateway = start_gateway(java, order["settings"], folder / LOG, scratch, record=record)
        stack.callback(gateway.close)
        listener = stack.enter_context(_listen(folder / SOCKET))
        server = SessionServer(order, listener, gateway)
        log(f"keeps Java {gateway.process.pid}")
        os.close(order["lock"])
        with contextlib.suppress(BrokenPipeError):  # its starter may have ended
            os.write(1, b"ready\n")
        os.dup2(2, 1)
        try:
            server.serve()
        finally:
            server.retire("it ends")
    log(f"Java {gateway.process.pid} has ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
