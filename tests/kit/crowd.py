"""Clients that have no token and all say the same to a node, frame by frame: what they can have it hold.

python -m tests.kit.crowd URL NAME CLIENTS       says what it says when all is sent, and ends with its input
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

from odfchain.limits import SMART

TEXT, CONTINUATION, PING = 1, 0, 9
_FIN, _MASKED = 0x80, 0x80


def frame(
    data: bytes, kind: int = TEXT, *, fin: bool = True, bits: int = 0, length: int | None = None
) -> bytes:
    """A frame, masked with zeros; `length` is what it says of its length."""
    size = len(data) if length is None else length
    head = kind | (_FIN if fin else 0) | bits
    if size < 126:
        return struct.pack(">BB4x", head, _MASKED | size) + data
    if size < 1 << 16:
        return struct.pack(">BBH4x", head, _MASKED | 126, size) + data
    return struct.pack(">BBQ4x", head, _MASKED | 127, size) + data


def listed(item: bytes, size: int) -> bytes:
    """A list of so many equal items that it has about this size."""
    return b"[" + (item + b",") * ((size - 2) // (len(item) + 1) - 1) + item + b"]"


_MOST = SMART.request_bytes
WORDS: dict[str, bytes] = {
    "silence": b"",
    "unfinished": frame(b" " * (_MOST - 1), length=_MOST),
    "unfinished, large": frame(b" " * _MOST, length=SMART.message_bytes),
    "pieces": b"".join(frame(b" " * 2_000, kind, fin=False) for kind in [TEXT, *[CONTINUATION] * 250]),
    "lists": frame(listed(b"[]", _MOST)),
    "lists, large": frame(listed(b"[]", 23 << 20)),
    "texts": frame(listed(b'"ab"', _MOST)),
    "numbers": frame(listed(b"1.5", _MOST)),
    "wide": frame("\U0001f600".encode() + b" " * (_MOST - 4)),
    "empty pieces": frame(b"", fin=False) + frame(b"", CONTINUATION, fin=False) * 100_000,
    "pings": frame(b"x" * 100, PING) * 10_000,
    "messages": frame(b"{}") * 100_000,
}


class RawClient:
    """A WebSocket to a node of which nothing is hidden."""

    def __init__(self, url: str, path: str = "cities/pull", *fields: str, host: str | None = None) -> None:
        parts = urlsplit(url)
        self.socket = self.silent(url)
        lines = (
            f"GET /{path} HTTP/1.1", f"Host: {host or parts.netloc}", "Connection: Upgrade", "Upgrade: websocket",
            "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "x-odf-smtp-version: 1", *fields, "", "",
        )  # fmt: skip
        self.socket.sendall("\r\n".join(lines).encode())
        self._unread = b""
        while b"\r\n\r\n" not in self._unread and (data := self.socket.recv(1 << 12)):
            self._unread += data
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        self.status = int(re.findall(rb"HTTP/1.1 (\d+)", head)[0]) if head else None

    @staticmethod
    def silent(url: str) -> socket.socket:
        """A connection on which nothing is said."""
        parts = urlsplit(url)
        return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=20)

    def say(self, data: bytes) -> None:
        """Send bytes, as far as they are taken."""
        with contextlib.suppress(OSError):
            self.socket.sendall(data)

    def heard(self) -> Iterator[tuple[int, bytes]]:
        """What comes, until the connection ends: kinds and contents of frames."""
        data = self._unread
        with contextlib.suppress(ConnectionError):
            while True:
                if len(data) >= 2:
                    start, size = 2, data[1] & 127
                    if size > 125:
                        start = 4 if size == 126 else 10
                        size = int.from_bytes(data[2:start], "big")
                    if len(data) >= start + size:
                        yield data[0] & 15, data[start : start + size]
                        data = data[start + size :]
                        continue
                more = self.socket.recv(1 << 16)
                if not more:
                    return
                data += more

    def end(self) -> int | None:
        """The code with which the node closes; None where it says none."""
        for kind, content in self.heard():
            if kind == 8:
                return int.from_bytes(content[:2], "big")
        return None

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def _crowd(url: str, words: str, clients: int) -> None:
    members = [RawClient(url) for _ in range(clients)]
    data = WORDS[words]

    def speak(some: list[RawClient]) -> None:
        for each in some:
            each.say(data)

    threads = [threading.Thread(target=speak, args=(members[start::8],)) for start in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(dict(Counter(each.status for each in members)), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _crowd(sys.argv[1], sys.argv[2], int(sys.argv[3]))
