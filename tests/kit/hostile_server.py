"""A peer on a raw socket that serves a small real dataset, and for some keys does what a script says instead.

Whatever the script, it ends: no answer is longer than `MOST` bytes, and leaving the block ends them all.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Self

from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.storage.public_layout import HEAD_KEY, HINT_KEY, ObjectKind
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.loopback import RawServer
from tests.kit.recorded_dataset import schema_event, slice_of
from tests.kit.scenario import Chain, time_of
from tests.kit.support import seeded_id

MOST = 64 << 20
"""No answer is longer [bytes]."""

Lookup = Callable[[str], bytes | None]


class End(Enum):
    """How an answer ends."""

    CLOSE = "the connection is closed"
    RESET = "the connection is reset"
    HANG = "nothing more is sent"


@dataclass(frozen=True)
class Trick:
    """What is sent instead of the honest answer; it is made from the honest body."""

    pieces: Callable[[bytes], Iterable[bytes]]
    end: End = End.CLOSE


class HostilePeer(RawServer):
    """Answers GET under `/ds/`; keeps connections, continues bodies, and plays its tricks."""

    def __init__(self, lookup: Lookup, tricks: Mapping[str, Trick] | None = None) -> None:
        self.requests: list[str] = []
        self.sent = 0
        """Bytes of all answers."""
        self.strike: tuple[int, Callable[[], None]] | None = None
        """After how many bytes something happens, once, and what; nothing is sent after them."""
        super().__init__()
        self._lookup = lookup
        self._tricks = tricks or {}
        self._lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.port}/ds/"

    def asked(self, part: str) -> list[str]:
        return [key for key in self.requests if key.startswith(part)]

    def serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        unread = bytearray()
        while (request := _head_of(connection, unread)) is not None:
            key, start = request
            self.requests.append(key)
            trick = self._tricks.get(key) or self._tricks.get(key.partition("/")[0] + "/*")
            if trick is not None:
                self._play(connection, trick, self._lookup(key) or b"")
                return
            self._send(connection, _honest(self._lookup(key), start))

    def _play(self, connection: socket.socket, trick: Trick, honest: bytes) -> None:
        left = MOST
        for piece in trick.pieces(honest):
            self._send(connection, piece[:left])
            left -= len(piece)
            if left <= 0 or self.over.is_set():
                break
        if trick.end is End.HANG:
            self.over.wait()
        elif trick.end is End.RESET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):  # else the end may overtake what was sent
                pass

    def _send(self, connection: socket.socket, data: bytes) -> None:
        if self.strike is None:
            connection.sendall(data)
            with self._lock:
                self.sent += len(data)
            return
        with self._lock:  # bytes are counted in the order in which they are sent
            if self.strike is not None:
                at, act = self.strike
                rest = at - self.sent
                if rest <= len(data):
                    connection.sendall(data[:rest])
                    self.sent, self.strike = at, None
                    act()
                    raise ConnectionAbortedError
            connection.sendall(data)
            self.sent += len(data)


def _head_of(connection: socket.socket, unread: bytearray) -> tuple[str, int] | None:
    """Key and first byte of the next request; what was read beyond it is left in `unread`."""
    while (end := unread.find(b"\r\n\r\n")) < 0:
        piece = connection.recv(1 << 16)
        if not piece:
            return None
        unread += piece
    data = bytes(unread[: end + 4])
    del unread[: end + 4]
    found = re.match(rb"GET /ds/(\S*) HTTP/1\.1\r\n", data)
    assert found is not None, data
    start = re.search(rb"\r\nRange: bytes=(\d+)-\r\n", data, re.IGNORECASE)
    return found[1].decode("ascii"), int(start[1]) if start else 0


def _honest(body: bytes | None, start: int) -> bytes:
    if body is None:
        return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    if start == 0:
        return answer(body)
    head = f"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{len(body) - 1}/{len(body)}\r\n"
    return f"{head}Content-Length: {len(body) - start}\r\n\r\n".encode() + body[start:]


def answer(body: bytes, *, length: int | None = None, more: str = "") -> bytes:
    """A whole answer with a body of that length, or of another one; `more` are lines of headers."""
    size = len(body) if length is None else length
    return f"HTTP/1.1 200 OK\r\n{more}Content-Length: {size}\r\n\r\n".encode() + body


# --- tricks ------------------------------------------------------------------------------------------


def raw(*pieces: bytes, end: End = End.CLOSE) -> Trick:
    """These bytes and nothing else."""
    return Trick(lambda _: pieces, end)


def body(change: Callable[[bytes], bytes]) -> Trick:
    return Trick(lambda honest: [answer(change(honest))])


def length(change: Callable[[int], int]) -> Trick:
    """The honest body under another Content-Length, on a connection that is closed after it."""
    return Trick(lambda honest: [answer(honest, length=change(len(honest)), more="Connection: close\r\n")])


def cut(end: End) -> Trick:
    """Half of the honest body, each time that it is asked for."""
    return Trick(lambda honest: [answer(honest[: len(honest) // 2], length=len(honest))], end)


def endless(head: bytes, piece: bytes) -> Trick:
    """A body that goes on and on."""

    def pieces(_: bytes) -> Iterator[bytes]:
        yield head
        while True:
            yield piece

    return Trick(pieces)


ENDLESS = endless(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536)
ENDLESS_CHUNKS = endless(
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65_536 + b"\r\n"
)
HEADER_FLOOD = endless(b"HTTP/1.1 200 OK\r\n", b"X-Flood: 0123456789\r\n" * 3_000)


# --- datasets ----------------------------------------------------------------------------------------


class RealChain(Chain):
    """A chain whose slices are Parquet files, so that clients may check the records, too."""

    scratch: DatasetFiles

    @classmethod
    def begin(cls, folder: Path, seed: str = "test") -> Self:
        """A seed and a schema; `folder` is for drafts of slices."""
        chain = cls()
        DatasetFiles.create_folders(folder, DatasetAlias.parse("draft"))
        chain.scratch = DatasetFiles.open(folder)
        chain.append(ev.Seed(dataset_id=seeded_id(seed), dataset_kind=DatasetKind.ROOT))
        chain.append(schema_event())
        return chain

    def fork(self) -> Self:
        """Another chain that has the same blocks so far."""
        other = type(self)(list(self.hashes), dict(self.objects), self.sequence, self.offset, self.checkpoint)
        other.scratch = self.scratch
        return other

    def rows(self, *cities: str, size: int | None = None) -> Multihash:
        """A block with a slice of these records and a checkpoint; `size` is what it says of the slice."""
        start = 0 if self.offset is None else self.offset + 1
        new = slice_of(self.scratch, start, list(cities))
        self.store(ObjectKind.DATA, (self.scratch.folder / "data" / str(new.physical_hash)).read_bytes())
        said = new if size is None else replace(new, size=size)
        return self.append_slice(said, f"state after {cities}".encode())

    def note(self, text: str) -> Multihash:
        """A block that only says something."""
        return self.append(ev.SetInfo(description=text), system_time=time_of(self.sequence))


def lookup(chain: Chain, *, head: bytes | None = None, hint: bool = False) -> Lookup:
    """What an honest peer has of a chain."""
    found = {str(key): data for key, data in chain.objects.items()}
    found[HEAD_KEY] = str(chain.head).encode() if head is None else head
    if hint:
        found[HINT_KEY] = b"".join(b"%s\n" % str(name).encode() for name in chain.hashes)
    return found.get
