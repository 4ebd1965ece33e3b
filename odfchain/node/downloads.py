"""Rows as a file that a browser stores: written while it is sent, and ended when the client leaves."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from odfchain.node.overview import download
from odfchain.node.visit import Refused, Visit, attended, refusal, refused_document
from odfchain.query.row_formats import write_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.query.sql_text import Query

TYPES = {
    "csv": "text/csv; charset=utf-8",
    "ndjson": "application/x-ndjson",
    "arrow": "application/vnd.apache.arrow.stream",
    "parquet": "application/vnd.apache.parquet",
}
"""The formats of rows, and their media types."""
Rows = tuple["pa.Schema", Iterable["pa.RecordBatch"]]
_PIECE_BYTES, _MOST = 64 << 10, 16
_threads = ThreadPoolExecutor(_MOST, thread_name_prefix="odfchain-download")  # each holds a batch of rows
_running: set[Streamed] = set()


@contextmanager
def asked_rows(visit: Visit, query: Query) -> Iterator[Rows]:
    """Inside, the rows of a query, which a walled process computes."""
    assert visit.node.queries is not None  # noqa: S101 - asked where there are
    with visit.node.queries.rows(query, visit.client) as result:
        yield result.schema, result.batches()


class _Pieces(io.RawIOBase):
    """What is written, in pieces of some size."""

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put, self._waiting = put, bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._waiting += data
        if len(self._waiting) >= _PIECE_BYTES:
            self.end()
        return len(data)

    def end(self) -> None:
        self._put(bytes(self._waiting))
        self._waiting.clear()


class Streamed(StreamingResponse):
    """Rows under the name of a file, as they are made and taken; nothing of them is read for a HEAD.

    Those that are `asked` by SQL wait for a process like other queries.
    """

    def __init__(
        self, visit: Visit, form: str, name: str, rows: AbstractContextManager[Rows], *, asked: bool = True
    ) -> None:
        super().__init__(iter(()), headers=download(f"{name}.{form}"), media_type=TYPES[form])
        self._visit, self._form, self._rows, self._asked = visit, form, rows, asked

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Write them; an error before the first of them is an answer of its own."""
        loop, visit, started = asyncio.get_running_loop(), self._visit, False

        async def sending(data: bytes, more: bool) -> None:
            nonlocal started
            if not started:
                started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": data, "more_body": more})

        def put(data: bytes) -> None:
            if visit.client.is_gone:
                raise BrokenPipeError
            asyncio.run_coroutine_threadsafe(sending(data, True), loop).result()

        def write() -> None:
            pieces = _Pieces(put)
            with self._rows as (schema, batches):
                write_rows(schema, batches, self._form, pieces)  # type: ignore[arg-type]
            pieces.end()

        try:
            if scope["method"] != "HEAD":
                await self._made(write)
            await sending(b"", False)
        except Exception as error:
            if visit.client.is_gone:
                return
            if started:
                visit.node.problem(f"a download ended early: {type(error).__name__}: {error}")
                raise  # the connection is cut: what came is not all
            await refused_document(refusal(error, visit.node, visit.number))(scope, receive, send)

    async def _made(self, write: Callable[[], None]) -> None:
        if self._asked:
            return await attended(self._visit, write, heavy=True)
        if len(_running) >= _MOST:
            raise Refused(503, "too many downloads are going on; try again in a minute", retry_after="60")
        _running.add(self)
        try:
            await attended(self._visit, write, threads=_threads)
        finally:
            _running.discard(self)
