"""A web server of one kind of object that answers in the ways in which servers lie."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from tests.kit.loopback import Handler, WebServer

BYTES = b"1234567"
MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"


class LyingObjects(WebServer):
    """`answers` has for each path what its object is and how it is served:

    `etag`, `time` (None: it is not said), `bytes`, `head` (a status instead of an answer to HEAD), `get`,
    `ranges` (False: the first byte cannot be asked for), `length` (False: it is not said; a number: it is
    said to be that, `head length` to HEAD alone), `cut` (the connection ends after so many bytes), `busy` (so
    many requests are refused for now), `to` (where requests are redirected), `headers` (bytes of them),
    `trickle` (an event: until it is set, no end of the body comes).
    """

    def __init__(self, answers: dict[str, dict[str, Any]], host: str = "127.0.0.1") -> None:
        self.answers = answers
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path, headers in lower case."""
        self.before: Callable[[str, str], None] = lambda method, path: None
        """Is called before an answer."""
        self.held: list[threading.Event] = []
        """What answers wait for; set at the end."""
        super().__init__(self._handler(), host)

    def __exit__(self, *_: object) -> None:
        for event in self.held:
            event.set()
        super().__exit__()

    def _handler(lies) -> type[Handler]:  # noqa: N805
        class Lying(Handler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer("head")

            def do_GET(self) -> None:
                self._answer("get")

            def _answer(self, method: str) -> None:
                headers = self.lowered()
                lies.requests.append((method.upper(), self.path, headers))
                lies.before(method.upper(), self.path)
                answer = lies.answers.get(self.path)
                status = 404 if answer is None else answer.get(method)
                if answer is None or status is not None:
                    return self.reply(int(status or 404))
                if answer.get("busy"):
                    answer["busy"] -= 1
                    return self.reply(503)
                if "to" in answer:
                    return self.reply(302, location=answer["to"])
                etag = answer.get("etag", '"abc"')
                if "if-match" in headers and headers["if-match"] != etag:
                    return self.reply(412)
                body, asked = answer.get("bytes", BYTES), headers.get("range")
                if asked and (not body or not answer.get("ranges", True)):
                    if not body:
                        return self.reply(416)
                    asked = None
                self.send_response(206 if asked else 200)
                if asked:
                    start, _, end = asked.removeprefix("bytes=").partition("-")
                    part = body[int(start) : int(end) + 1 if end else None]
                    last = int(start) + len(part) - 1
                    self.send_header("content-range", f"bytes {start}-{last}/{len(body)}")
                    body = part
                for name, value in (("etag", etag), ("last-modified", answer.get("time", MODIFIED))):
                    if value is not None:
                        self.send_header(name, value)
                said = answer.get("length", True)
                if method == "head":
                    said = answer.get("head length", said)
                length = len(body) if said is True else said
                self.send_header(
                    *(("content-length", str(length)) if said else ("transfer-encoding", "chunked"))
                )
                if "headers" in answer:
                    self.send_header("x-more", "x" * answer["headers"])
                with contextlib.suppress(OSError):  # who asked may be gone
                    self.end_headers()
                    if method == "get":
                        shown = body[: answer.get("cut")]
                        if "trickle" in answer:
                            self.wfile.write(shown[:1])
                            lies.held.append(answer["trickle"])
                            answer["trickle"].wait()
                        self.wfile.write(shown if said else b"%x\r\n%s\r\n0\r\n\r\n" % (len(shown), shown))
                        self.close_connection = self.close_connection or length != len(shown)
                return None

        return Lying
