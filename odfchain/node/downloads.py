"""Rows as a file that a browser stores: written while it is sent, and ended when the client leaves."""

from __future__ import annotations

import asyncio
import contextlib
import io
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any

from starlette.responses import Response, StreamingResponse

from odfchain.node.overview import download
from odfchain.node.visit import Refused, Visit
from odfchain.query.row_formats import write_rows

if TYPE_CHECKING:
    import pyarrow as pa

TYPES = {
    "csv": "text/csv; charset=utf-8",
    "ndjson": "application/x-ndjson",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}
"""The formats of rows, and their media types."""
_PIECES, _PIECE = 4, 1 << 16
_running = threading.BoundedSemaphore(16)  # downloads at a time: each holds a thread, and a batch of rows


class _Pipe(io.RawIOBase):
    """What is written in a thread comes out of a bounded queue of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop, self._waiting = loop, bytearray()
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_PIECES)
        self.left = False

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._waiting += data
        if len(self._waiting) >= _PIECE:
            self.send(bytes(self._waiting))
            self._waiting.clear()
        return len(data)

    def end(self, *, whole: bool) -> None:
        """All is written; a file that is not whole ends without its last piece."""
        if whole and self._waiting:
            self.send(bytes(self._waiting))
        self.send(None)

    def send(self, piece: bytes | None) -> None:
        """Wait until the client has room for more."""
        if self.left and piece is not None:
            raise BrokenPipeError
        asyncio.run_coroutine_threadsafe(self.pieces.put(piece), self._loop).result()


def streamed(
    visit: Visit, form: str, name: str, rows: Callable[[], contextlib.AbstractContextManager[Rows]]
) -> Response:
    """The rows in a format, under the name of a file; nothing of them is read for a HEAD."""
    headers = download(f"{name}.{form}")
    if visit.request.method == "HEAD":
        return Response(headers=headers, media_type=TYPES[form])
    if not _running.acquire(blocking=False):
        raise Refused(503, "too many downloads are going on; try again in a minute", retry_after="60")
    return StreamingResponse(_sent(form, rows, visit.node.problem), headers=headers, media_type=TYPES[form])


Rows = tuple["pa.Schema", Iterable["pa.RecordBatch"]]


async def _sent(
    form: str, rows: Callable[[], contextlib.AbstractContextManager[Rows]], problem: Callable[[str], None]
) -> AsyncIterator[bytes]:
    pipe = _Pipe(asyncio.get_running_loop())
    failed: list[Exception] = []

    def write() -> None:
        try:
            with rows() as (schema, batches):
                write_rows(schema, batches, form, pipe)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - the file ends in the middle, and the log says why
            failed.append(error)
        finally:
            _running.release()
            with contextlib.suppress(RuntimeError, BrokenPipeError):
                pipe.end(whole=not failed)

    threading.Thread(target=write, daemon=True).start()
    try:
        while (piece := await pipe.pieces.get()) is not None:
            yield piece
        if failed:
            problem(f"a download ended early: {type(failed[0]).__name__}: {failed[0]}")
            raise failed[0]  # the connection breaks, so the client knows
    finally:
        pipe.left = True
        while not pipe.pieces.empty():
            pipe.pieces.get_nowait()
