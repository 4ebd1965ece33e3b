"""Places that a dataset's folder can be published at, for suites that run over all kinds of peers.

A new kind is one more entry of `PLACES`: a function that yields a `Place`. What is published is what the folder
holds at that time.
"""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol

import pytest

from odfchain.errors import OdfchainError, TransferError
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage.http_store import HttpTransport
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKey, ObjectKind, SignedFile
from odfchain.storage.store import PEER_LIMITS, Store
from odfchain.transfer.open_peer import KINDS, Kind, Listing
from tests.kit.loopback import WebServer
from tests.kit.memory_peer import MemoryTransport
from tests.kit.servers import Clock
from tests.kit.small_s3 import SmallS3


class Place(Protocol):
    """Somewhere that folders with the protocol's layout are published."""

    def publish(self, folder: Path) -> PeerUrl:
        """The URL under which the folder's content is now; `folder` is below the place's root."""


@dataclass
class FolderPlace:
    def publish(self, folder: Path) -> PeerUrl:
        return PeerUrl.parse(folder.as_uri())


@dataclass
class WebPlace:
    """A web server on loopback whose root is a folder."""

    root: Path
    port: int
    requests: list[str]
    """Request lines, as far as they can be seen from here."""
    connections: list[object]
    """One entry for each connection that was made."""

    def publish(self, folder: Path) -> PeerUrl:
        return PeerUrl.parse(f"http://127.0.0.1:{self.port}/{folder.relative_to(self.root).as_posix()}")


@contextlib.contextmanager
def in_folder(root: Path) -> Iterator[FolderPlace]:
    yield FolderPlace()


@contextlib.contextmanager
def by_threads(root: Path, protocol: str = "HTTP/1.1") -> Iterator[WebPlace]:
    """The standard library's handler of files; with HTTP/1.1 it keeps connections."""
    place = WebPlace(root, 0, [], [])

    class Handler(SimpleHTTPRequestHandler):
        protocol_version = protocol

        def setup(self) -> None:
            place.connections.append(self.client_address)
            super().setup()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            place.requests.append(self.requestline)

    with WebServer(functools.partial(Handler, directory=str(root))) as server:
        place.port = server.port
        yield place


@contextlib.contextmanager
def by_child(root: Path) -> Iterator[WebPlace]:
    """`python -m http.server`, as anybody would start it."""
    command = [
        sys.executable,
        "-u",
        "-m",
        "http.server",
        "0",
        "--bind",
        "127.0.0.1",
        "--directory",
        str(root),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        try:
            found = re.search(r"port (\d+)", child.stdout.readline())
            yield WebPlace(root, int(found[1]), [], [])
        finally:
            child.terminate()


@dataclass
class NodePlace:
    """The same for who asks as of a node, without its protocol: files come one by one."""

    web: WebPlace

    def publish(self, folder: Path) -> PeerUrl:
        return PeerUrl.parse(f"odf+{self.web.publish(folder).text}")


@contextlib.contextmanager
def as_node(root: Path) -> Iterator[NodePlace]:
    with by_threads(root) as web:
        yield NodePlace(web)


@dataclass
class BucketPlace:
    """A prefix of a bucket, which has what the folder has at each request."""

    store: SmallS3

    def publish(self, folder: Path) -> PeerUrl:
        place = f"bucket/{folder.name}"

        def refresh(*_: object) -> None:
            self.store.objects |= {f"{place}/{key}": data for key, data in files_of(folder).items()}

        self.store.before = refresh
        return PeerUrl.parse(self.store.url(place))


@contextlib.contextmanager
def in_bucket(root: Path) -> Iterator[BucketPlace]:
    with SmallS3() as store:
        yield BucketPlace(store)


@dataclass
class MemoryPlace:
    """A transport of its own: a file and a line in the table is all there is to it."""

    files: dict[str, bytes]
    folder: Path

    def publish(self, folder: Path) -> PeerUrl:
        self.folder = folder
        return PeerUrl("memory://here/")


@contextlib.contextmanager
def in_memory(root: Path) -> Iterator[MemoryPlace]:
    place = MemoryPlace({}, root)

    class Refreshed(MemoryTransport):
        def find(self, key: str) -> bytes | None:
            return (files_of(place.folder) | self.files).get(key)

    KINDS["memory"] = Kind(lambda url, _: Refreshed(place.files, url.text), listing=Listing.FOLDERS)
    try:
        yield place
    finally:
        del KINDS["memory"]


def files_of(folder: Path) -> dict[str, bytes]:
    """The files below a folder by key."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {key: path.read_bytes() for key, path in found.items()}


PLACES: dict[str, Callable[[Path], AbstractContextManager[Place]]] = {
    "folder": in_folder,
    "bucket": in_bucket,
    "memory": in_memory,
    "node": as_node,
    "http.server in threads": by_threads,
    "python -m http.server": by_child,
}
WRITABLE = {name: PLACES[name] for name in ("folder", "bucket", "memory")}


class Published:
    """A dataset's folder as the protocol wants it, with things that no rule of chains has looked at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, kind: ObjectKind, data: bytes, *, named: Multihash | None = None) -> ObjectKey:
        """Store bytes under their hash, or under that of something else."""
        key = ObjectKey(kind, named or hash_bytes(data))
        self._write(str(key), data)
        return key

    def head(self, text: bytes) -> None:
        self._write("refs/head", text)

    def signed(self, file: SignedFile, text: bytes) -> None:
        self._write(file.value, text)

    def hint(self, text: bytes) -> None:
        self._write("hints/chain", text)

    def _write(self, key: str, data: bytes) -> None:
        path = self.folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name("draft")
        draft.write_bytes(data)
        draft.replace(path)  # a server may still be reading the old one


@contextlib.contextmanager
def http_peer(url: str, *, clock: Clock | None = None, **options: Any) -> Iterator[Store]:
    """A dataset on the web that waits for nothing in earnest; limits are given by their names."""
    limits = {key: options.pop(key) for key in list(options) if hasattr(PEER_LIMITS, key)}
    timing = (clock or Clock()).timing
    peer = Store(HttpTransport(PeerUrl.parse(url), replace(PEER_LIMITS, **limits), timing=timing, **options))
    try:
        yield peer
    finally:
        peer.close()


@contextlib.contextmanager
def refused_by(
    peer: Store, key: object, match: str | None = None, kind: type[OdfchainError] = TransferError
) -> Iterator[pytest.ExceptionInfo[OdfchainError]]:
    """What is done raises this error, whose one line begins with the peer and the object."""
    with pytest.raises(kind, match=match) as caught:
        yield caught
    text = str(caught.value)
    assert text.startswith(f"{peer.where}{key}")
    assert text.isprintable()
    assert len(text) < 500
