"""Keys of the simple transfer protocol, below the URL of a dataset.

    refs/head                 hash of the newest block, as text
    blocks/f1620…             metadata blocks
    data/f1620…               slices
    checkpoints/f1620…        checkpoints
    manifests/f1620…          what describes a block, for readers without our code: made with the first of
    profiles/f1620…           them, and absent where none was made (RFC-042)
    hints/chain               optional: hashes of all blocks, seed first, one to a line (RFC-021)
    refs/head.jws             optional: the owner's signature of the head
    refs/NAME                 branches that are shared, with refs/NAME.jws each
    hints/refs                optional: the names of those branches, one to a line (RFC-038)
    attestations/audits.jws   optional: auditors' attestations, one signed statement to a line
    attestations/snapshots.jws   optional: signed hashes of manifests and profiles, in the same form

Objects are stored under the base16 text of their hash, and may be asked for in every other final multibase.
The grammar of keys is closed: what is not one of these is not there, so no key leads out of a folder.
Source: specification "Dataset Layout"; RFC-007 of Open Data Fabric.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self

from odfchain.errors import BusyError, CorruptedPeerError, InvalidIdError, StoreError, UnsupportedPeerError
from odfchain.limits import ATTEST, SHARING
from odfchain.odf.identity import HashList, Multihash
from odfchain.odf.names import DatasetName
from odfchain.odf.physical_hash import Hasher, sha3_256
from odfchain.progress import Progress
from odfchain.storage.fsio import FileState, file_state, lock_at_once, storage_errors
from odfchain.storage.local import check_object_name
from odfchain.storage.locations import Url
from odfchain.storage.template import public_name

HEAD_KEY = "refs/head"
HINT_KEY = "hints/chain"
REFS_HINT_KEY = "hints/refs"
INDEX_KEY = "datasets.json"
"""The list of a repository's datasets, next to them (RFC-021)."""

_OBJECT = re.compile(r"(blocks|data|checkpoints|manifests|profiles)/([!-~]{46,70})", re.ASCII)
# `odf+` before the URL of a node: the smart protocol is spoken there (RFC-050).
_SCHEMES = (
    "file", "http", "https", "odf+http", "odf+https", "s3", "s3+http", "s3+https", "gs", "az", "ipfs", "ipns",
)  # fmt: skip


def ref_key(ref: str) -> str:
    """The key of a reference: the head, or a branch."""
    return f"refs/{ref}"


class SignedFile(Enum):
    """The files of signed statements: unlike objects they change, and nothing about them is known before."""

    HEAD = "refs/head.jws"
    AUDITS = "attestations/audits.jws"
    SNAPSHOTS = "attestations/snapshots.jws"

    @property
    def limit(self) -> int:
        """The largest that is read [bytes]."""
        match self:
            case SignedFile.HEAD:
                return ATTEST.statement_bytes + 1
            case SignedFile.AUDITS:
                return ATTEST.attestations_bytes
            case SignedFile.SNAPSHOTS:
                return ATTEST.snapshot_lines_bytes

    def key(self, ref: str) -> str:
        """Its key; the signature of a head is next to the reference."""
        return signature_key(ref) if self is SignedFile.HEAD else self.value


def signature_key(ref: str) -> str:
    """The key of the signature of a reference."""
    return f"refs/{ref}.jws"


class ObjectKind(Enum):
    """The kinds of objects that a dataset consists of."""

    BLOCK = "blocks"
    DATA = "data"
    CHECKPOINT = "checkpoints"
    MANIFEST = "manifests"
    PROFILE = "profiles"

    @property
    def describes(self) -> bool:
        """True if such objects describe a block: signed lines name them, the chain does not."""
        return self in (ObjectKind.MANIFEST, ObjectKind.PROFILE)


@dataclass(frozen=True, slots=True)
class ObjectKey:
    """The place of an object under a dataset's URL."""

    kind: ObjectKind
    name: Multihash

    def __post_init__(self) -> None:
        check_object_name(self.name)

    def __str__(self) -> str:
        return f"{self.kind.value}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> ObjectKey | None:
        """The object that a key names, in any multibase encoding; None for every other text."""
        found = _OBJECT.fullmatch(text)
        if found is None:
            return None
        try:
            # every encoding in state "final" is read (specification "Hash Representation")
            return cls(ObjectKind(found[1]), Multihash.parse(found[2]))
        except (InvalidIdError, StoreError):
            return None


@dataclass(frozen=True, slots=True)
class PeerUrl(Url):
    """The URL of a dataset or of a repository of datasets; it ends in a slash."""

    @classmethod
    def parse(cls, text: str) -> PeerUrl:
        """The URL with a slash at its end."""
        if "://" not in text and not text.startswith("file:"):
            raise UnsupportedPeerError(
                f"{text!r} is not a URL",
                hint="write a folder like file:///srv/datasets/, a server like https://host/",
            )
        try:
            url = cls(text)
        except InvalidIdError:
            raise UnsupportedPeerError(f"{public_name(text)!r} is not a URL") from None
        if url.scheme not in _SCHEMES:
            raise UnsupportedPeerError(
                f"{url}: datasets cannot be carried over {url.scheme or 'that'!r}",
                hint=f"the schemes are {', '.join(_SCHEMES[:-1])} and {_SCHEMES[-1]}",
            )
        if set("?#") & set(text):
            raise UnsupportedPeerError(f"{url}: the URL of a dataset has no query and no fragment")
        if not url.parts.netloc and url.scheme != "file":
            raise UnsupportedPeerError(f"{url}: the URL names no host")
        if url.scheme == "file" and "%2f" in url.parts.path.lower():
            raise UnsupportedPeerError(f"{url}: an escaped slash", hint="where / is meant, write it so")
        if url.scheme == "file" and url.parts.netloc not in ("", "localhost"):
            raise UnsupportedPeerError(
                f"{url}: a file URL names no other machine", hint="write it like file:///srv/datasets/name"
            )
        return url if text.endswith("/") else cls(f"{text}/")

    @property
    def is_smart(self) -> bool:
        """True if it is a node's URL, for the smart protocol."""
        return self.scheme != self.protocol

    @property
    def plain(self) -> PeerUrl:
        """The same place over the simple protocol: without `odf+`."""
        return PeerUrl(self.text[len("odf+") :]) if self.is_smart else self

    def dataset(self, path: str) -> PeerUrl:
        """The dataset of a repository at this URL; `path` is its alias."""
        return PeerUrl.parse(f"{self.text}{path}/")

    def name(self) -> DatasetName:
        """The default name of a pulled dataset: the end of the path, else the host."""
        try:
            return DatasetName(self.segments[-1] if self.segments else self.host)
        except InvalidIdError as error:
            raise InvalidIdError(f"{self}: {error}", hint="say what to call it: --as NAME") from None


# Hint files: the hashes of a chain's blocks, seed first, and the names of branches, one to a line. They
# save time and are untrusted. Source: RFC-021, RFC-038.

MOST_NAMES_BYTES = 64 << 10
"""The largest list of branches that is read [bytes]."""


def encode_hint(hashes: Iterable[Multihash]) -> bytes:
    """The content of the file."""
    return b"".join(b"%s\n" % str(name).encode("ascii") for name in hashes)


def encode_names(branches: Iterable[str]) -> bytes:
    """The content of the file that lists branches; empty where it would be too long."""
    data = b"".join(b"%s\n" % name.encode("ascii") for name in sorted(branches))
    return data if len(data) <= MOST_NAMES_BYTES else b""


# A hash in base16 and the end of its line [bytes].
_HINT_LINE_BYTES = 70
_LINE = re.compile(rb"f1620[0-9a-f]{64}")


def hint_bytes(limit: int) -> int:
    """Size of a hint that lists so many blocks, and at most what a hint may list."""
    return min(limit, SHARING.hinted_blocks) * _HINT_LINE_BYTES


def parse_hint(data: bytes, limit: int) -> HashList | None:
    """The hashes that the file lists; None if it is malformed, empty, or lists more than `limit`."""
    if not data or len(data) > hint_bytes(limit):
        return None
    found = HashList()
    # an untrusted publisher chose the number of lines: packed, not one object for each
    for start in range(0, len(data), _HINT_LINE_BYTES):
        line = data[start : start + _HINT_LINE_BYTES]
        if not _LINE.fullmatch(line.removesuffix(b"\n")):
            return None
        found.append(Multihash.sha3_256(bytes.fromhex(line[5:].decode("ascii"))))
    return found


# A download into a file: hashed as it is written, and resumed after an interruption.
# Bytes of an earlier run are hashed first, and the whole must hash to the object's name, whichever peers it
# came from. A file has one writer.

BUFFER_BYTES = 1 << 20
"""Large pieces, because the hash lets other threads run while it works on one."""

MIRROR_HINT = "the peer's copy is damaged or not honest: try another peer that has the dataset"
"""The hint for wrong content."""


class Incoming:
    """One object and its file. Leaving the block without success keeps what has arrived.

    Progress advances by bytes, each byte once, also if some arrive again. What does not `resume` has a new
    file, which is gone afterwards unless it was published.

    Raises:
        BusyError: another transfer writes to the file.
        StorageFullError: no space for the object.
        StoreError: the file cannot be written or read.
    """

    def __init__(
        self,
        key: ObjectKey,
        size: int,
        target: Path,
        *,
        name: str,
        progress: Progress,
        resume: bool = True,
    ) -> None:
        # Bytes in the file.
        self.received = 0
        self.size = size
        self._key = key
        self._target = target
        self._name = name
        self._progress = progress
        self._reported = 0
        self._inherited = False
        self._resume = self._keep = resume
        self._hasher: Hasher = sha3_256()
        self._fd = -1
        self._buffer = memoryview(bytearray(max(1, min(size, BUFFER_BYTES))))

    def __enter__(self) -> Self:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            with storage_errors(self._target):
                self._fd = os.open(self._target, flags if self._resume else flags | os.O_EXCL, 0o644)
                self._adopt()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._keep or (self.received == 0 and error is not None):
            self._remove()
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # another error is on its way, or the caller syncs the file
                os.close(fd)

    def _adopt(self) -> None:
        if not lock_at_once(self._fd):
            raise BusyError(f"{self._target}: another transfer writes to it", hint="try again when it ended")
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            raise StoreError(f"{self._target}: not a regular file")
        if found.st_size > self.size:
            os.ftruncate(self._fd, 0)
            return
        while self.received < found.st_size:
            # what an earlier run left is hashed before it is continued
            count = os.readv(self._fd, [self._buffer])
            if count == 0:
                break
            self._take(self._buffer[:count])
        self._inherited = self.received > 0

    @property
    def room(self) -> memoryview:
        """The buffer for the next bytes; empty when all have arrived."""
        return self._buffer[: self.size - self.received]

    def append(self, count: int) -> None:
        """Take over the first `count` bytes of `room`."""
        self.add(self._buffer[:count])

    def add(self, data: memoryview) -> None:
        """Take over bytes, no more of them than there is room for in the object."""
        with storage_errors(self._target):
            rest = data
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        self._take(data)

    def _take(self, data: memoryview) -> None:
        self._hasher.update(data)
        self.received += len(data)
        if self.received > self._reported:
            self._progress.advance(self.received - self._reported)
            self._reported = self.received

    def restart(self) -> None:
        """Forget what has arrived."""
        with storage_errors(self._target):
            os.lseek(self._fd, 0, os.SEEK_SET)
            os.ftruncate(self._fd, 0)
        self.received, self._inherited, self._hasher = 0, False, sha3_256()

    def complete(self) -> bool:
        """True if the object is complete and hashes to its name."""
        if self.received < self.size:
            return False
        actual = Multihash.sha3_256(self._hasher.digest())
        if actual == self._key.name:
            return True
        if self._inherited:
            # the wrong bytes may be those of an earlier run: one new start
            self.restart()
            return False
        raise self.refuse(f"the content hashes to {actual}, not to its name")

    def sync(self) -> None:
        """Make what has arrived durable."""
        with storage_errors(self._target):
            os.fsync(self._fd)

    def publish(self, path: Path) -> FileState:
        """Give the file its name, also one that is taken; returns the state of the file that was written."""
        with storage_errors(path):
            self._target.replace(path)
            self._keep = True
            return file_state(os.fstat(self._fd))

    def refuse(self, what: str) -> CorruptedPeerError:
        """The error for an object that is not what it should be; its file is removed."""
        self._remove()
        return CorruptedPeerError(f"{self._name}: {what}", hint=MIRROR_HINT)

    def _remove(self) -> None:
        # another file may have the name by now
        with contextlib.suppress(OSError):
            if os.path.samestat(self._target.lstat(), os.fstat(self._fd)):
                self._target.unlink()
