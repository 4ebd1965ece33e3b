"""Giving memory of a JVM that nobody uses back to the system, and how much of it there is.

Java keeps a heap that once was large. A full collection gives back what is free, as far as two settings let
it; they are set for that moment only, because a heap that is always tight would be collected again and again.
The keeper asks for it in the text protocol of Py4J, so that it needs no PySpark for that (RFC-030).
"""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from resource import getpagesize

from odfchain.spark.gateway import Gateway

_FREE_SHARES = {"MinHeapFreeRatio": "5", "MaxHeapFreeRatio": "20"}
"""How much of the heap may be free after a collection [%]."""

_COLLECTIONS = 4
"""The first ones let Spark's cleaner drop what nobody has any more; some collectors shrink in steps."""

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
        """Before anything is called; errors as `call`."""
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
    """What the JVM has on its heap and does not use is the system's again."""
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
