"""Stores in memory: any files, or a chain that is served by one that misbehaves where it is told to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from odfchain.errors import ObjectCorruptedError
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.progress import Progress
from odfchain.storage.http_rules import Deadline, Pieces, TransientError
from odfchain.storage.local import conflict, parse_ref
from odfchain.storage.public_layout import HEAD_KEY, HINT_KEY, ObjectKey, SignedFile, encode_hint, ref_key
from odfchain.storage.store import PEER_LIMITS, AbsentError, Opened, Transport
from tests.kit.scenario import Chain

WHERE = "memory://peer/"


class MemoryTransport(Transport):
    """Files by key."""

    def __init__(self, files: dict[str, bytes] | None = None, where: str = WHERE) -> None:
        super().__init__(where, limits=replace(PEER_LIMITS, first_wait=0))
        self.files = {} if files is None else files
        self._lock = threading.Lock()

    def find(self, key: str) -> bytes | None:
        return self.files.get(key)

    def body(self, key: str, data: bytes) -> Iterator[bytes]:
        """The bytes of it as they are sent."""
        yield data

    @contextlib.contextmanager
    def open(self, key: str, start: int, cap: int, deadline: Deadline, /) -> Iterator[Opened]:
        data = self.find(key)
        if data is None:
            raise AbsentError(f"{self.where}{key}: not there")
        yield Opened(f"{self.where}{key}", Pieces(self.body(key, data[start:])), len(data), start=start)

    def size(self, key: str) -> int | None:
        data = self.find(key)
        return None if data is None else len(data)

    def put_file(self, key: ObjectKey, source: Path, progress: Progress) -> bool:
        data = source.read_bytes()
        if hash_bytes(data) != key.name:
            raise ObjectCorruptedError(f"{source}: another content")
        was_there = self.files.setdefault(str(key), data) is not data
        progress.advance(len(data))
        return was_there

    def write(self, key: str, data: bytes) -> None:
        self.files[key] = data

    def delete(self, key: str) -> None:
        self.files.pop(key, None)

    def swap(self, ref: str, expected: Multihash | None, new: Multihash) -> None:
        with self._lock:
            data = self.find(ref_key(ref))
            actual = None if data is None else parse_ref(data, self.where)
            if actual != expected:
                raise conflict(ref, expected, actual)
            self.write(ref_key(ref), str(new).encode())

    def folders(self, below: str) -> Sequence[str]:
        rest = [key.removeprefix(below) for key in self.files if key.startswith(below)]
        return sorted({key.partition("/")[0] for key in rest if "/" in key})

    def close(self) -> None:
        """Nothing stays open."""


class MemoryPeer(MemoryTransport):
    """Serves a chain, and writes down what it is asked for; None is a place without a dataset."""

    def __init__(self, chain: Chain | None, hint: Sequence[Multihash] | None = None) -> None:
        super().__init__()
        self.limits = replace(self.limits, retries=0)
        self.chain = chain
        self.hinted = hint
        self.requests: list[str] = []
        self.statements: dict[SignedFile, bytes] = {}
        """Files of signed statements; requests for them are not written down."""
        self.replaced: dict[ObjectKey, bytes | None] = {}
        """Other bodies; None: not there."""
        self.cut: dict[ObjectKey, int] = {}
        """After how many bytes the connection breaks, once."""
        self.before: Callable[[str], None] = lambda key: None
        """Called with every key before it is answered."""
        self.bytes_sent = 0

    def asked(self, part: str) -> list[str]:
        return [key for key in self.requests if key.startswith(part)]

    def find(self, key: str) -> bytes | None:
        if key in {file.value for file in SignedFile}:
            self.before(key)
            return self.statements.get(SignedFile(key))
        with self._lock:
            self.requests.append(key)
        self.before(key)
        if key == HEAD_KEY:
            return str(self.chain.head).encode() if self.chain else None
        if key == HINT_KEY:
            return None if self.hinted is None else encode_hint(self.hinted)
        assert self.chain is not None
        object_key = ObjectKey.parse(key)
        assert object_key is not None
        return (self.chain.objects | self.replaced).get(object_key)

    def body(self, key: str, data: bytes) -> Iterator[bytes]:
        cut = self.cut.pop(found, None) if (found := ObjectKey.parse(key)) is not None else None
        sent = data if cut is None else data[:cut]
        self.bytes_sent += len(sent)
        yield sent
        if cut is not None:
            raise TransientError("the connection broke")

    def close(self) -> None:
        self.requests.append("close")
