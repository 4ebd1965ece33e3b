"""A little Azure on loopback: blobs, blocks, conditions and copies, for whoever signs with the account's key.

Signatures are computed here as the protocol says it ("Authorize with Shared Key"), from the request as it came;
`make soak` holds the same tests against Azurite, which others wrote.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Self
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.kit.loopback import Handler, WebServer

ACCOUNT = "odfaccount"
KEY = base64.b64encode(b"a key of the account's").decode()
MODIFIED = "Wed, 21 Oct 2015 07:28:00 GMT"
_SIGNED = (
    "content-encoding", "content-language", "content-length", "content-md5", "content-type", "date",
    "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range",
)  # fmt: skip


def authorization(method: str, target: str, headers: dict[str, str]) -> str:
    """What `Authorization` must be of a request with these headers in lower case."""
    parts = urlsplit(target)
    values = [headers.get(name, "") for name in _SIGNED]
    values[2] = "" if values[2] == "0" else values[2]
    values[5] = "" if "x-ms-date" in headers else values[5]
    ours = [f"{name}:{headers[name].strip()}" for name in sorted(headers) if name.startswith("x-ms-")]
    query: dict[str, list[str]] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        query.setdefault(name.lower(), []).append(value)
    asked = [f"{name}:{','.join(sorted(query[name]))}" for name in sorted(query)]
    text = "\n".join([method, *values, *ours, f"/{ACCOUNT}{parts.path}", *asked])
    signed = hmac.digest(base64.b64decode(KEY), text.encode(), "sha256")
    return f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}"


def create_container(endpoint: str, name: str, *, public: bool = False) -> None:
    """Make a container; of a public one everybody may read the blobs."""
    more = {"x-ms-blob-public-access": "blob"} if public else {}
    assert asked(endpoint, "PUT", f"{name}?restype=container", **more) == 201


def asked(endpoint: str, method: str, path: str, **more: str) -> int:
    parts = urlsplit(f"{endpoint}/{path}")
    headers = {
        "x-ms-date": formatdate(usegmt=True),
        "x-ms-version": "2023-11-03",
        "content-length": "0",
        **more,
    }
    target = f"{parts.path}?{parts.query}" if parts.query else parts.path
    headers["authorization"] = authorization(method, target, headers)
    with contextlib.closing(http.client.HTTPConnection(parts.hostname or "", parts.port)) as connection:
        connection.request(method, target, headers=headers)
        return connection.getresponse().status


class SmallAzure(WebServer):
    """One account, in the path. `blobs` is open to tests that look or damage."""

    def __init__(self) -> None:
        self.blobs: dict[str, tuple[bytes, str]] = {}
        """Content and entity tag of each `container/key`."""
        self.blocks: dict[str, dict[str, bytes]] = {}
        """Blocks of blobs that are not committed yet."""
        self.public: set[str] = set()
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path, headers in lower case."""
        self.targets: list[str] = []
        """What was asked for, with queries."""
        self.before: Callable[[str, str], int | None] = lambda method, path: None
        """May do something first, and may answer with a status in place of the store."""
        self.lock = threading.Lock()
        self._versions = 0
        super().__init__(self._handler())
        self.endpoint = f"{self.origin}/{ACCOUNT}"

    def sent(self, method: str) -> list[str]:
        return [path for used, path, _ in self.requests if used == method]

    def _tag(self) -> str:
        self._versions += 1
        return f'"0x8DCE0FF{self._versions:08X}"'

    def _carry_out(
        self, method: str, target: str, headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        path = unquote(parts.path).removeprefix(f"/{ACCOUNT}/")
        signed = headers.get("authorization")
        if signed is not None and signed != authorization(method, target, headers):
            return 403, b"", {"x-ms-error-code": "AuthenticationFailed"}
        if signed is None and (method not in ("GET", "HEAD") or path.partition("/")[0] not in self.public):
            return 404, b"", {"x-ms-error-code": "ResourceNotFound"}
        if query.get("comp") == "batch":
            return self._batch(body)
        if query.get("restype") == "container":
            self.public |= {path} if "x-ms-blob-public-access" in headers else set()
            return 201, b"", {}
        held = self.blobs.get(path)
        tag = None if held is None else held[1]
        if headers.get("if-none-match") == "*" and tag is not None:
            return 409, b"", {"x-ms-error-code": "BlobAlreadyExists"}
        if headers.get("if-match", tag) != tag:
            return 412, b"", {"x-ms-error-code": "ConditionNotMet"}
        if method == "PUT":
            return self._write(path, query, headers, body)
        if held is None:
            return 404, b"", {"x-ms-error-code": "BlobNotFound"}
        if method == "DELETE":
            del self.blobs[path]
            return 202, b"", {}
        shown = {"ETag": held[1]}
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range") or headers.get("x-ms-range") or "")
        if found is None:
            return 200, held[0], shown
        start, end = int(found[1]), int(found[2] or len(held[0]) - 1)
        if start >= len(held[0]):
            return 416, b"", {}
        part = held[0][start : end + 1]
        last = start + len(part) - 1
        return 206, part, shown | {"Content-Range": f"bytes {start}-{last}/{len(held[0])}"}

    def _batch(self, body: bytes) -> tuple[int, bytes, dict[str, str]]:
        """Requests in one, each with its own signature: how obstore removes blobs."""
        done = b""
        boundary = body.partition(b"\r\n")[0]
        for part in body.split(boundary)[1:-1]:
            first, *lines = part.split(b"\r\n\r\n")[1].decode().split("\r\n")
            method, target, _ = first.split(" ")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            status = self._carry_out(method, target, headers, b"")[0]
            content = f"HTTP/1.1 {status} Done\r\nContent-Length: 0\r\n\r\n"
            done += f"--b\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n{content}".encode()
        return 202, done + b"--b--\r\n", {"Content-Type": "multipart/mixed; boundary=b"}

    def _write(
        self, path: str, query: dict[str, str], headers: dict[str, str], body: bytes
    ) -> tuple[int, bytes, dict[str, str]]:
        if query.get("comp") == "block":
            self.blocks.setdefault(path, {})[query["blockid"]] = body
            return 201, b"", {}
        more = {}
        if query.get("comp") == "blocklist":
            names = re.findall(rb"<(?:Latest|Uncommitted)>([^<]*)<", body)
            blocks = self.blocks.pop(path)
            body = b"".join(blocks[name.decode()] for name in names)
        elif "x-ms-copy-source" in headers:
            source = unquote(urlsplit(headers["x-ms-copy-source"]).path).removeprefix(f"/{ACCOUNT}/")
            if source not in self.blobs:
                return 404, b"", {"x-ms-error-code": "BlobNotFound"}
            body, more = self.blobs[source][0], {"x-ms-copy-status": "success", "x-ms-copy-id": "1"}
        elif headers.get("x-ms-blob-type") != "BlockBlob":
            return 400, b"", {"x-ms-error-code": "MissingRequiredHeader"}
        self.blobs[path] = (body, self._tag())
        md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        return (202 if more else 201), b"", {"ETag": self.blobs[path][1], "Content-MD5": md5, **more}

    def _handler(store) -> type[Handler]:  # noqa: N805
        class Azure(Handler):
            protocol_version = "HTTP/1.1"

            def _handle(self) -> None:
                body, headers = self.content(), self.lowered()
                path = unquote(urlsplit(self.path).path).removeprefix(f"/{ACCOUNT}/")
                store.requests.append((self.command, path, headers))
                store.targets.append(self.path)
                status = store.before(self.command, path)
                answer: tuple[int, bytes, dict[str, str]] = (status or 0, b"", {})
                if status is None:
                    with store.lock:
                        answer = store._carry_out(self.command, self.path, headers, body)
                self.send_response(answer[0])
                usual = {"Last-Modified": MODIFIED, "x-ms-version": "2023-11-03"}
                for name, value in (usual | answer[2]).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer[1])))
                with contextlib.suppress(OSError):  # who asked may be gone
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(answer[1])

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 - the library looks for these

        return Azure


class Azurite:
    """The stand-in for Azure's storage that its makers publish (npm), without a log of requests."""

    def __init__(self, folder: Path) -> None:
        command = shutil.which("azurite-blob")
        assert command, "azurite-blob is not on the PATH: npm install --global azurite@3.37.0"
        self._process = subprocess.Popen(
            [command, "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--silent"],
            cwd=folder,
            env={"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}", "PATH": f"{Path(command).parent}:/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            text=True,
        )
        self.endpoint = f"{_origin(self._process.stdout or ())}/{ACCOUNT}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it would wait for connections that clients keep
        self._process.communicate()


def _origin(lines: Iterable[str]) -> str:
    found = (re.search(r"listens on (http://\S+)", line) for line in lines)
    return next(each[1] for each in found if each)


def stand_ins(folder: Path, name: str) -> Iterator[SmallAzure | Azurite]:
    """A server by name, `small` or `azurite`."""
    with SmallAzure() if name == "small" else Azurite(folder) as server:
        yield server
