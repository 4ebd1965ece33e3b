"""A little S3 on loopback: atomic, with conditions that can be switched off, and with faults on demand."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import re
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from tests.kit.loopback import Handler, WebServer

START = 1_445_412_480.0
"""When objects were written, unless a test says otherwise [s since the epoch]: 2015-10-21T07:28:00Z."""
RESET = 0
"""A status of a hook: the connection breaks off without an answer."""
MOST_SKEW = 900
"""How much the clock of who asks may differ from a store's that looks at it [s]."""


@dataclass(frozen=True)
class Fault:
    """What happens to an answer: another one is in its place, or it does not arrive as it was sent."""

    status: int | None = None
    """The status in place of the answer's; `RESET` is no answer."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: bool = False
    """The connection breaks off within the answer."""
    reset: bool = False
    """The connection breaks off after the answer."""
    silent: bool = False
    """Nothing comes until the one who asks gives up."""
    drip: bool = False
    """The answer comes byte by byte."""


Hook = Callable[[str, str], "int | Fault | None"]


class SmallS3(WebServer):
    """Buckets in the path. `objects` is open to tests that look or damage."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path, headers in lower case."""
        self.keeps = {"if-none-match", "if-match"}
        """The conditions that are not ignored."""
        self.before: Hook = lambda method, path: None
        """May do something first, and may answer with a status in place of the store."""
        self.after: Hook = lambda method, path: None
        """May answer with a status though the request was carried out."""
        self.lists: Callable[[str], bool] = lambda path: True
        """Whether a listing has an object already."""
        self.uploads: dict[str, dict[int, bytes]] = {}
        """Parts of objects that are not complete, by the id of their upload."""
        self.forgets = False
        """Whether of parts only the lengths are kept."""
        self.clock: Callable[[], float] = lambda: START
        """The time of the store [s since the epoch]."""
        self.written: dict[str, float] = {}
        """When objects were written; those that a test puts there have the time of the store's start."""
        self.looks_at_clocks = False
        """Whether requests are refused whose clock differs from this machine's."""
        self.lock = threading.Lock()
        super().__init__(self._handler())
        self._server.daemon_threads = False

    def url(self, path: str) -> str:
        return f"s3+{self.origin}/{path}"

    def listing(self, bucket: str, query: dict[str, list[str]]) -> bytes:
        """The objects of a bucket with a prefix, in one answer."""
        start = f"{bucket}/{query.get('prefix', [''])[0]}"
        if "delimiter" in query:
            below = {path[len(start) :].split("/")[0] for path in self.objects if path.startswith(start)}
            folders = [escape(f"{start}{name}/".partition("/")[2]) for name in sorted(below)]
            inside = "".join(f"<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>" for name in folders)
            return f"<ListBucketResult><IsTruncated>false</IsTruncated>{inside}</ListBucketResult>".encode()
        found = [
            f"<Contents><Key>{escape(path.partition('/')[2])}</Key>"
            f"<LastModified>{self.modified(path):%Y-%m-%dT%H:%M:%S.000Z}</LastModified><ETag>{escape(tag_of(data))}</ETag><Size>{len(data)}</Size></Contents>"
            for path, data in sorted(self.objects.items())
            if path.startswith(start) and self.lists(path)
        ]
        return (
            f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found)}</ListBucketResult>".encode()
        )

    def modified(self, path: str) -> dt.datetime:
        return dt.datetime.fromtimestamp(self.written.get(path, START), dt.UTC)

    def _write(self, path: str, data: bytes) -> None:
        self.objects[path] = data
        self.written[path] = self.clock()

    def sent(self, method: str) -> list[str]:
        return [path for used, path, _ in self.requests if used == method]

    def _handler(store) -> type[Handler]:  # noqa: N805
        class S3(Handler):
            def _break_off(self) -> None:
                self.close_connection = True
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

            def _reply(self, status: int, body: bytes, headers: Mapping[str, str], fault: Fault) -> None:
                if fault.silent:
                    self.connection.recv(1)  # ends when the other side closes
                if status == RESET or fault.silent:
                    self._break_off()
                    return
                reason = self.responses.get(status, ("", ""))[0]
                fields = {**headers, "Content-Length": headers.get("length", str(len(body)))}
                lines = [f"HTTP/1.0 {status} {reason}", *(f"{n}: {v}" for n, v in fields.items()), "", ""]
                data = "\r\n".join(lines).encode() + (b"" if self.command == "HEAD" else body)
                if fault.cut:
                    data = data[: -max(1, len(body) // 2)]
                for part in [data[i : i + 1] for i in range(len(data))] if fault.drip else [data]:
                    self.wfile.write(part)
                if fault.cut or fault.reset:
                    self._break_off()

            def _handle(self) -> None:
                with contextlib.suppress(ConnectionError):  # who asked may be gone
                    self._answer()

            def _answer(self) -> None:
                body, headers = self.content(), self.lowered()
                path = unquote(urlsplit(self.path).path).lstrip("/")
                store.requests.append((self.command, path, headers))
                found = store.before(self.command, path)
                if found is None and store.looks_at_clocks:
                    found = skewed(headers)
                if found is not None:
                    return self._fail(found)
                query = dict(parse_qsl(urlsplit(self.path).query, keep_blank_values=True))
                with store.lock:
                    if "uploads" in query or "uploadId" in query:
                        status, body, more = self._upload(path, query, body)
                    else:
                        status, body, more = self._carry_out(path, body, headers)
                more = {"Last-Modified": f"{store.modified(path):%a, %d %b %Y %H:%M:%S GMT}"} | more
                if (found := store.after(self.command, path)) is not None:
                    return self._fail(found, status, body, more)
                return self._reply(status, body, more, Fault())

            def _fail(
                self,
                found: int | Fault,
                status: int = 500,
                body: bytes = b"",
                headers: Mapping[str, str] = {},
            ) -> None:
                fault = Fault(found) if isinstance(found, int) else found
                if fault.status is None:
                    return self._reply(status, body, headers, fault)
                return self._reply(fault.status, fault.body, fault.headers, fault)

            def _upload(
                self, path: str, query: dict[str, str], body: bytes
            ) -> tuple[int, bytes, dict[str, str]]:
                if "uploads" in query:
                    name = f"upload{secrets.token_hex(8)}"  # several may begin at once
                    store.uploads[name] = {}
                    begun = f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId></InitiateMultipartUploadResult>"
                    return 200, begun.encode(), {}
                name = query["uploadId"]
                if self.command == "DELETE":
                    return (204 if store.uploads.pop(name, None) is not None else 404), b"", {}
                if self.command == "PUT":
                    store.uploads[name][int(query["partNumber"])] = (
                        bytes(len(body)) if store.forgets else body
                    )
                    return 200, b"", {"ETag": tag_of(body)}
                parts = store.uploads.pop(name)
                store._write(path, b"".join(parts[number] for number in sorted(parts)))
                tag = f"&quot;{'0' * 32}-{len(parts)}&quot;"
                done = f"<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
                return 200, done.encode(), {}

            def _carry_out(
                self, path: str, body: bytes, headers: dict[str, str]
            ) -> tuple[int, bytes, dict[str, str]]:
                held = store.objects.get(path)
                tag = tag_of(held) if held is not None else None
                if self.command == "PUT":
                    kept = {name: headers[name] for name in store.keeps if name in headers}
                    if kept.get("if-none-match") == "*" and held is not None:
                        return 412, b"", {}
                    if "if-match" in kept and kept["if-match"] != tag:
                        return (412 if held is not None else 404), b"", {}
                    source = headers.get("x-amz-copy-source", headers.get("x-goog-copy-source"))
                    if source is not None:
                        body = store.objects[unquote(source).lstrip("/")]
                        store._write(path, body)
                        shown = f"<CopyObjectResult><ETag>{tag_of(body)}</ETag></CopyObjectResult>"
                        return 200, shown.encode(), {"ETag": tag_of(body)}
                    store._write(path, body)
                    return 200, b"", {"ETag": tag_of(body)}
                if self.command == "POST":  # the bulk form of deleting
                    bucket = path.split("/", maxsplit=1)[0]
                    keys = re.findall(r"<Key>([^<]*)</Key>", body.decode())
                    for key in keys:
                        store.objects.pop(f"{bucket}/{unescape(key)}", None)
                    gone = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
                    return 200, f"<DeleteResult>{gone}</DeleteResult>".encode(), {}
                if self.command == "GET" and "/" not in path:
                    return 200, store.listing(path, parse_qs(urlsplit(self.path).query)), {}
                if held is None:
                    return 404, b"", {}
                found = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
                if found:
                    start, end = int(found[1]), min(int(found[2] or len(held)) + 1, len(held))
                    shown = f"bytes {start}-{end - 1}/{len(held)}"
                    return 206, held[start:end], {"ETag": str(tag), "Content-Range": shown}
                return 200, held, {"ETag": str(tag)}

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the library looks for these

        return S3


def skewed(headers: Mapping[str, str]) -> Fault | None:
    """What S3 answers to a request whose time is not near the store's; None where it is."""
    stamp = dt.datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=dt.UTC).timestamp()
    if abs(stamp - time.time()) <= MOST_SKEW:
        return None
    text = "The difference between the request time and the current time is too large."
    error = f"<Error><Code>RequestTimeTooSkewed</Code><Message>{text}</Message></Error>"
    return Fault(403, {"Content-Type": "application/xml"}, error.encode())


def tag_of(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
