"""A server of objects that costs next to nothing, for measuring what asks it: python object_server.py FOLDER

It prints its origin. In the bucket `source` are the files of FOLDER; what is put into `target` is counted and
thrown away, in one piece or in parts, as S3 takes them; in all others every key is an object of one byte.
"""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

_SPACE = bytearray(1 << 20)
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_FACTS = b'ETag: "abc"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n'
_BEGUN = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
_DONE = b"<CompleteMultipartUploadResult><ETag>abc</ETag></CompleteMultipartUploadResult>"


class ObjectServer(asyncio.BufferedProtocol):
    """One connection; requests come one after another."""

    def __init__(self, folder: Path, sizes: dict[bytes, int]) -> None:
        self._folder, self._sizes = folder, sizes
        self._head = bytearray()
        self._body = self._taken = 0
        self._request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As the base class."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002
        """As the base class."""
        return _SPACE

    def buffer_updated(self, nbytes: int) -> None:
        """As the base class."""
        if self._body > nbytes:  # nobody looks at what is thrown away
            self._body -= nbytes
            return
        if self._body:
            done, self._body = self._body, 0
            self._answer()
            self._head += _SPACE[done:nbytes]
        else:
            self._head += _SPACE[:nbytes]
        while (end := self._head.find(b"\r\n\r\n")) >= 0:
            self._request = bytes(self._head[:end])
            found = _LENGTH.search(self._request)
            self._body = self._taken = int(found[1]) if found else 0
            rest = len(self._head) - end - 4
            there = min(rest, self._body)
            del self._head[: end + 4 + there]
            self._body -= there
            if self._body:
                return
            self._answer()

    def _answer(self) -> None:
        method, path, _ = self._request.split(b" ", 2)
        path, _, query = path.partition(b"?")
        name = path.rpartition(b"/")[2]
        if method == b"PUT":
            if not query:
                self._sizes[path] = self._taken
            else:
                self._sizes[path] = self._sizes.get(path, 0) + self._taken
            self._reply(b"")
        elif method == b"POST":
            begins = query.startswith(b"uploads")
            if begins:
                self._sizes.pop(path, None)
            self._reply(_BEGUN if begins else _DONE)
        elif method == b"HEAD":
            size: int | None = 1
            if path.startswith(b"/target/"):
                size = self._sizes.get(path)
            elif path.startswith(b"/source/"):
                size = (self._folder / name.decode()).stat().st_size
            self._reply(b"", size)
        else:
            source = self._folder / name.decode()
            asyncio.get_running_loop().create_task(self._send(source, source.stat().st_size))

    def _reply(self, body: bytes, size: int | None = -1) -> None:
        if size is None:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        shown = len(body) if size == -1 else size
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (shown, _FACTS, body))

    async def _send(self, path: Path, size: int) -> None:
        with path.open("rb") as file:
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n" % (size, _FACTS))
            await asyncio.get_running_loop().sendfile(self._transport, file)


async def _serve(folder: Path) -> None:
    sizes: dict[bytes, int] = {}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ObjectServer(folder, sizes), "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
