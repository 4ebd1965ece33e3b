"""A peer in memory: it writes down what it is asked for and misbehaves where it is told to."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from odfchain.chain.signed_heads import SignedFile
from odfchain.errors import CorruptedPeerError, TransferError
from odfchain.limits import LIMITS
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes, hash_file
from odfchain.progress import Progress
from odfchain.storage.fsio import FileState
from odfchain.transfer.peer import RawBlock
from odfchain.transfer.public_layout import HEAD_KEY, HINT_KEY, ObjectKey, ObjectKind
from tests.kit.scenario import Chain

WHERE = "memory://peer/"


class MemoryPeer:
    """Serves a chain; None is a place without a dataset."""

    where = WHERE

    def __init__(self, chain: Chain | None, hint: Sequence[Multihash] | None = None) -> None:
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
        self._lock = threading.Lock()

    def asked(self, part: str) -> list[str]:
        """The requests for a kind of key."""
        return [key for key in self.requests if key.startswith(part)]

    def _note(self, key: str) -> None:
        with self._lock:
            self.requests.append(key)
        self.before(key)

    def head(self) -> Multihash | None:
        self._note(HEAD_KEY)
        return self.chain.head if self.chain else None

    def signed(self, file: SignedFile) -> bytes | None:
        self.before(file.value)
        return self.statements.get(file)

    def hint(self, limit: int) -> Sequence[Multihash] | None:
        self._note(HINT_KEY)
        return None if self.hinted is None else self.hinted[:limit]

    def batch(self, after: Multihash | None, count: int) -> Iterator[RawBlock]:
        return iter(())

    def announce(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:
        pass

    def has_hashed(self, key: ObjectKey, state: FileState) -> bool:
        return False

    def _body(self, key: ObjectKey) -> bytes:
        assert self.chain is not None
        data = self.replaced[key] if key in self.replaced else self.chain.objects.get(key)
        if data is None:
            raise CorruptedPeerError(f"{key} of {self.where}: not there")
        return data

    def block(self, name: Multihash) -> bytes:
        key = ObjectKey(ObjectKind.BLOCK, name)
        self._note(str(key))
        data = self._body(key)
        if len(data) > LIMITS.block_bytes or hash_bytes(data) != name:
            raise CorruptedPeerError(f"{key} of {self.where}: the content does not hash to its name")
        return data

    def fetch(self, key: ObjectKey, size: int, target: Path, progress: Progress) -> None:
        self._note(str(key))
        data = self._body(key)
        if len(data) != size:
            raise CorruptedPeerError(f"{key} of {self.where}: {len(data)} bytes, expected {size}")
        with target.open("ab") as stream:
            rest = data[stream.tell() : self.cut.get(key, size)]
            stream.write(rest)
            self.bytes_sent += len(rest)
        progress.advance(len(rest))
        if self.cut.pop(key, None) is not None:
            raise TransferError(f"{key} of {self.where}: the connection broke")
        if hash_file(target)[0] != key.name:
            target.unlink()
            raise CorruptedPeerError(f"{key} of {self.where}: the content does not hash to its name")

    def pipeline(self) -> None:
        """None is known to work."""

    def close(self) -> None:
        self.requests.append("close")
