"""A web server of one kind of object that answers in the ways in which servers lie."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

BYTES = b"1234567"
MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"


class LyingObjects:
    """`answers` has for each path what its object is and how it is served:

    `etag`, `time` (None: it is not said), `bytes`, `head` (a status instead of an answer to HEAD), `get`,
    `ranges` (False: the first byte cannot be asked for), `length` (False: it is not said).
    """

    def __init__(self, answers: dict[str, dict[str, Any]]) -> None:
        self.answers = answers
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path, headers in lower case."""
        self.before: Callable[[str, str], None] = lambda method, path: None
        """Is called before an answer."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(lies) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: Any) -> None:
                pass

            def do_HEAD(self) -> None:
                self._answer("head")

            def do_GET(self) -> None:
                self._answer("get")

            def _answer(self, method: str) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                lies.requests.append((method.upper(), self.path, headers))
                lies.before(method.upper(), self.path)
                answer = lies.answers.get(self.path)
                status = 404 if answer is None else answer.get(method)
                if answer is None or status is not None:
                    return self._refuse(int(status or 404))
                etag = answer.get("etag", '"abc"')
                if "if-match" in headers and headers["if-match"] != etag:
                    return self._refuse(412)
                body, asked = answer.get("bytes", BYTES), headers.get("range")
                if asked and (not body or not answer.get("ranges", True)):
                    if not body:
                        return self._refuse(416)
                    asked = None
                self.send_response(206 if asked else 200)
                if asked:
                    self.send_header("content-range", f"bytes 0-0/{len(body)}")
                    body = body[:1]
                for name, value in (("etag", etag), ("last-modified", answer.get("time", MODIFIED))):
                    if value is not None:
                        self.send_header(name, value)
                said = answer.get("length", True)
                self.send_header(
                    *(("content-length", str(len(body))) if said else ("transfer-encoding", "chunked"))
                )
                self.end_headers()
                if method == "get":
                    with contextlib.suppress(OSError):  # who asked may be gone
                        self.wfile.write(body if said else b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
                return None

            def _refuse(self, status: int) -> None:
                self.send_response(status)
                self.send_header("content-length", "0")
                self.end_headers()

        return Handler
