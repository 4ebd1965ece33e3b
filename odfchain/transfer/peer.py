"""A peer: another place to read a dataset from, perhaps to write one to.

A kind of place (a server, a folder, a bucket) only says how a file is opened. What is made of it is the same
for all: how much is read at most, hashing, how often a failure that may pass is tried again, where a broken
object is continued, and what an absent file means. Nothing is believed: what does not hash to its name is
never handed on. `tests/share/test_peer_contract.py` runs one suite over all kinds of peers. Source: RFC-021.
"""

from __future__ import annotations

import contextlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar, final

from odfchain.chain.compare import HashList
from odfchain.chain.signed_heads import SignedFile, signature_key
from odfchain.errors import AccessError, CorruptedPeerError, FetchError, StoreError, TransferError
from odfchain.limits import LIMITS, SHARING, FetchLimits
from odfchain.odf.identity import Multihash
from odfchain.odf.names import is_branch_name
from odfchain.odf.physical_hash import hash_bytes
from odfchain.progress import Progress
from odfchain.storage.fsio import FileState
from odfchain.storage.http_client import PRIVATE_HINT, HttpPipeline, ProxyDeniedError
from odfchain.storage.http_connection import Body
from odfchain.storage.http_rules import (
    DEADLINE_HINT,
    Deadline,
    ProtocolError,
    Timing,
    TransientError,
    with_retries,
)
from odfchain.storage.local import HEAD, parse_ref
from odfchain.text import one_line
from odfchain.transfer.public_layout import (
    HINT_KEY,
    INDEX_KEY,
    MIRROR_HINT,
    MOST_NAMES_BYTES,
    REFS_HINT_KEY,
    Incoming,
    ObjectKey,
    ObjectKind,
    ref_key,
)

_T = TypeVar("_T")

PEER_LIMITS = FetchLimits(
    deadline=SHARING.request_seconds,
    connect_timeout=SHARING.connect_seconds,
    idle_timeout=SHARING.idle_seconds,
    bytes_per_second=SHARING.bytes_per_second,
    redirects=SHARING.redirects,
    retries=SHARING.retries,
    first_wait=SHARING.retry_seconds,
)
"""Bounds on a request; the deadline grows with what is asked for, and covers the retries."""

# Hints for peers, in place of those for sources.
_HINTS: dict[str | None, str] = {
    DEADLINE_HINT: "run the command again: what has arrived is kept",
    PRIVATE_HINT: "if you trust it, give the URL that it leads to",
}


class AbsentError(TransferError):
    """The place has no such file; never leaves this package."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file of a peer that is being read."""

    name: str
    """The name in messages."""
    body: Body
    total: int | None
    """Size of the whole file, where it is known [bytes]."""
    start: int = 0
    """From which of its bytes the body is; -1 where the place cannot continue it."""
    framed: bool = True
    """True if a body that ends early is all that the place has: the connection did not break."""


class RawBlock(NamedTuple):
    """The file of a block, and the hash that it has."""

    hash: Multihash
    data: bytes


class Peer(ABC):
    """A dataset somewhere else. Methods may be called from several threads.

    Raises, all of them:
        CorruptedPeerError: what was sent is not what was asked for; the message names object and peer.
        AccessError: the peer refuses.
        TransferError: it cannot be reached, is too slow, or sends too much.
    """

    ref = HEAD
    """The reference that is asked for and moved: the head, or a branch."""

    def __init__(
        self,
        where: str,
        *,
        limits: FetchLimits = PEER_LIMITS,
        timing: Timing | None = None,
        turns: AbstractContextManager[object] | None = None,
    ) -> None:
        """A place that messages call `where`; `turns` is entered for as long as a file is asked for."""
        self._where = where
        self._limits = limits
        self._timing = timing or Timing()
        self._turns = turns or contextlib.nullcontext()

    @abstractmethod
    def open(self, key: str, start: int, cap: int, deadline: Deadline, /) -> AbstractContextManager[Opened]:
        """A file, from byte `start` on where the place can do that; no more than `cap` bytes are wanted.

        Raises:
            AbsentError: there is no such file.
            TransientError: worth another attempt.
            FetchError: no answer in time.
            CorruptedPeerError, AccessError, TransferError: as every method.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of connections."""

    def pipeline(self) -> HttpPipeline | None:
        """A way to ask for many blocks without waiting for each; None when none is known to work now."""
        return None

    def batch(self, after: Multihash | None, count: int) -> Iterator[RawBlock]:  # noqa: ARG002 - for nodes
        """Blocks that come in one piece, most likely the `count` above `after`; nothing from mere files."""
        # plain files come one by one
        return iter(())

    def has_hashed(self, key: ObjectKey, state: FileState) -> bool:  # noqa: ARG002 - for what is pushed
        """True if a file of this state is known to hash to the object's name: it was hashed on arrival."""
        return False

    def announce(self, objects: Sequence[tuple[ObjectKey, int]]) -> None:  # noqa: B027 - for nodes
        """These objects, with their sizes [bytes], are going to be fetched."""

    @property
    def where(self) -> str:
        """The URL, for messages; without credentials."""
        return self._where

    @final
    def head(self, ref: str | None = None) -> Multihash | None:
        """The newest block (of `ref`, if given); None when there is no such dataset, or no such branch."""
        try:
            data, name = self._read(ref_key(ref or self.ref), LIMITS.ref_bytes)
            # a branch in a store that machines share is deleted by making its object empty
            return parse_ref(data, name) if data or (ref or self.ref) == HEAD else None
        except AbsentError:
            return None
        except StoreError as error:
            raise CorruptedPeerError(one_line(str(error), 800)) from None

    @final
    def block(self, name: Multihash) -> bytes:
        """The bytes of a block, which hash to its name; at most `LIMITS.block_bytes`."""
        with _promised():
            data, where = self._read(str(ObjectKey(ObjectKind.BLOCK, name)), LIMITS.block_bytes)
        actual = hash_bytes(data)
        if actual != name:
            raise CorruptedPeerError(
                f"{where}: the content hashes to {actual}, not to its name", hint=MIRROR_HINT
            )
        return data

    @final
    def fetch(self, key: ObjectKey, size: int, target: Path, progress: Progress) -> None:
        """Bring an object of exactly `size` bytes, which hashes to its name, into a file.

        After an error about the content nothing is left there. `progress` advances by bytes.
        """
        with Incoming(key, size, target, name=f"{self._where}{key}", progress=progress) as incoming:
            # each round continues a broken transfer where the peer supports that
            while not incoming.complete():
                with _promised("a signed line names" if key.kind.describes else "the chain refers to"):
                    self._attempts(
                        str(key), size, lambda opened: _receive(opened, incoming), lambda: incoming.received
                    )

    @final
    def signed(self, file: SignedFile) -> bytes | None:
        """A file of signed statements, of which only the size is checked; None when it is not there."""
        try:
            return self._read(self._signed_key(file), file.limit)[0]
        # many static hosts answer 403 for absent files, so AccessError means that there is none
        except (AbsentError, AccessError):
            return None

    @final
    def hint(self, limit: int) -> Sequence[Multihash] | None:
        """Hashes of the blocks, seed first, as the peer says; at most `limit`. None when it says nothing."""
        if self.ref != HEAD:
            return None
        try:
            # without retries: a hint only saves time
            return parse_hint(self._read(HINT_KEY, _hint_bytes(limit), retries=0)[0], limit)
        except TransferError:
            return None

    @final
    def branches(self) -> list[str]:
        """The branches that the peer says it has, ordered; nothing depends on its truth."""
        try:
            data = self._read(REFS_HINT_KEY, MOST_NAMES_BYTES, retries=0)[0]
        except TransferError:
            return []
        # what cannot name a branch is left out
        return sorted({name for name in data.decode("ascii", "replace").split("\n") if is_branch_name(name)})

    def _signed_key(self, file: SignedFile) -> str:
        return signature_key(self.ref) if file is SignedFile.HEAD else file.value

    @final
    def index(self, limit: int) -> bytes | None:
        """The index of a repository of at most `limit` bytes; None when there is none."""
        try:
            return self._read(INDEX_KEY, limit)[0]
        except AbsentError:
            return None

    def _read(self, key: str, limit: int, retries: int | None = None) -> tuple[bytes, str]:
        def take(opened: Opened) -> tuple[bytes, str]:
            # the declared size is checked before anything is read
            data = opened.body.read(limit) if (opened.total or 0) <= limit else None
            if data is None:
                raise TransferError(f"{opened.name}: larger than the allowed {limit:,} bytes")
            return data, opened.name

        return self._attempts(key, limit, take, retries=retries)

    def _attempts(
        self,
        key: str,
        cap: int,
        take: Callable[[Opened], _T],
        received: Callable[[], int] = lambda: 0,
        retries: int | None = None,
    ) -> _T:
        limits = self._limits if retries is None else replace(self._limits, retries=retries)
        name = f"{self._where}{key}"

        def attempt() -> _T:
            try:
                with self.open(key, received(), cap, deadline) as opened:
                    return take(opened)
            except ProtocolError as error:  # another attempt would be answered in the same way
                raise TransferError(f"{error.name}: {error.reason}") from error

        with self._turns, as_transfer_errors():
            # the time limit grows with the size of the file
            seconds = limits.deadline + math.ceil(cap / SHARING.bytes_per_second)
            deadline = Deadline(seconds, self._timing, name=name)
            return with_retries(attempt, name=name, limits=limits, timing=self._timing, deadline=deadline)


# A hash in base16 and the end of its line [bytes].
_HINT_LINE_BYTES = 70
_LINE = re.compile(rb"f1620[0-9a-f]{64}")


def _hint_bytes(limit: int) -> int:
    return min(limit, SHARING.hinted_blocks) * _HINT_LINE_BYTES


def parse_hint(data: bytes, limit: int) -> HashList | None:
    """The hashes that the file lists; None if it is malformed, empty, or lists more than `limit`."""
    if not data or len(data) > _hint_bytes(limit):
        return None
    found = HashList()
    # an untrusted publisher chose the number of lines: packed, not one object for each
    for start in range(0, len(data), _HINT_LINE_BYTES):
        line = data[start : start + _HINT_LINE_BYTES]
        if not _LINE.fullmatch(line.removesuffix(b"\n")):
            return None
        found.append(Multihash.sha3_256(bytes.fromhex(line[5:].decode("ascii"))))
    return found


class WritablePeer(Peer):
    """A dataset somewhere else that may be written to."""

    takes_files = True
    """True if it is written file by file; a node takes a push as a whole."""

    @abstractmethod
    def contains(self, key: ObjectKey) -> bool:
        """True if an object is there (its bytes are not read)."""

    @abstractmethod
    def put(self, key: ObjectKey, source: Path, progress: Progress) -> object:
        """Durably store a file that hashes to the key's name; storing it again changes nothing."""

    @abstractmethod
    def swap_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Point the head, or the branch, at `new` if it points at `expected` now (None: there is none).

        Raises:
            RefConflictError: it points elsewhere; nothing is changed.
        """

    @abstractmethod
    def put_hint(self, hashes: Sequence[Multihash]) -> None:
        """Say what the chain's blocks are, seed first."""

    @abstractmethod
    def put_names(self, branches: Sequence[str]) -> None:
        """Say what the branches are called."""

    @abstractmethod
    def put_signed(self, file: SignedFile, data: bytes | None) -> None:
        """Durably replace a file of signed statements; None removes it."""

    @property
    def caveat(self) -> str | None:
        """The caveat of how the head is swapped; None for a true compare-and-swap."""
        return None


@contextlib.contextmanager
def as_transfer_errors() -> Iterator[None]:
    """Translate errors of sources into those of peers."""
    try:
        yield
    except FetchError as error:
        kind = AccessError if isinstance(error, ProxyDeniedError) else TransferError
        raise kind(error.message, hint=_HINTS.get(error.hint, error.hint)) from error


@contextlib.contextmanager
def _promised(by: str = "the chain refers to") -> Iterator[None]:
    try:
        yield
    except AbsentError as error:
        # an absent object that the chain names is a damaged copy, not an absent dataset
        raise CorruptedPeerError(
            f"{error.message}, though {by} it",
            hint="the peer's copy is incomplete: try another peer that has the dataset",
        ) from error


def _receive(opened: Opened, incoming: Incoming) -> None:
    fits = opened.total in (None, incoming.size)
    if opened.start not in (0, incoming.received) or (opened.start and not fits):
        incoming.restart()
        raise TransientError("the peer continued with something else than the rest of the object")
    if not fits:
        raise incoming.refuse(f"{opened.total:,} bytes, not the {incoming.size:,} of the object")
    if incoming.received and not opened.start:
        incoming.restart()
    while (room := incoming.room) and (count := opened.body.read_into(room)):
        incoming.append(count)
    if incoming.received < incoming.size:
        what = f"ended after {incoming.received:,} of {incoming.size:,} bytes"
        # the length was framed, so the object itself is wrong; an unframed body may have been cut
        if opened.framed and not opened.start:
            raise incoming.refuse(f"the object {what}")
        raise TransientError(f"the body {what}")
