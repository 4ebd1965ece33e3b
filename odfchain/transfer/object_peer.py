"""A dataset in an object store: S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage.

The head is swapped by a conditional write: create it if there is none, or replace it if its entity tag (or
generation) is still the one that was read. Some clones of S3 accept such requests and ignore the condition.
So before the first swap the condition is put to the test on the block that the head is going to name: writing
its own bytes over it must be refused, and does no harm where it is not (RFC-021).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from odfchain.digest.physical import hash_bytes
from odfchain.errors import (
    AccessError,
    CorruptedPeerError,
    ObjectNotFoundError,
    StoreError,
    TransferError,
)
from odfchain.ids.multihash import Multihash
from odfchain.limits import LIMITS, FetchLimits
from odfchain.model.timestamp import Timestamp
from odfchain.progress import Progress
from odfchain.store.fsio import storage_error
from odfchain.store.interfaces import HEAD, check_object_name, parse_ref
from odfchain.store.local import conflict
from odfchain.transfer.hint_file import encode_hint, hint_bytes, parse_hint
from odfchain.transfer.incoming import MIRROR_HINT, Incoming
from odfchain.transfer.object_space import (
    PEER_LIMITS,
    ConditionsUnknownError,
    ObjectSpace,
    Version,
    WriteRefusedError,
)
from odfchain.transfer.public_layout import HEAD_KEY, HINT_KEY, ObjectKey, Part, PeerUrl, SignedFile

LOCK_KEY = "refs/.head.lock"
"""Held while the head is replaced, where a store cannot replace conditionally."""

_NO_VERSION: Version = ('"00000000000000000000000000000000"', "0")
"""A version that no block has."""

_PART = 8 << 20
_MOST_PARTS = 9_000
"""Stores take up to 10,000 parts."""

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Conditions:
    """Which conditions a store keeps when it writes."""

    create: bool
    update: bool


class ObjectPeer:
    """A dataset below a URL of an object store; fulfils `WritablePeer`."""

    def __init__(self, url: PeerUrl, limits: FetchLimits = PEER_LIMITS) -> None:
        """Nothing is asked of the store yet.

        Raises:
            UnsupportedPeerError: not the URL of an object store.
            TransferError: the environment does not say what the store needs.
        """
        self._space = ObjectSpace(url, limits)
        self._conditions: Conditions | None = None

    @property
    def where(self) -> str:
        """The URL."""
        return self._space.where

    def close(self) -> None:
        """Nothing to do: the library closes connections that are not used."""

    # --- reading -----------------------------------------------------------------------------------

    def head(self) -> Multihash | None:
        """The newest block; None when there is no such dataset."""
        return self._read_head()[0]

    def _read_head(self) -> tuple[Multihash | None, Version]:
        try:
            found = self._space.read(HEAD_KEY, LIMITS.ref_bytes)
        except ObjectNotFoundError:
            return None, (None, None)
        try:
            return parse_ref(found.data, f"{self.where}{HEAD_KEY}"), found.version
        except StoreError as error:
            raise CorruptedPeerError(str(error)) from error

    def block(self, name: Multihash) -> bytes:
        """The bytes of a block, which hash to its name."""
        key = ObjectKey(Part.BLOCK, name)
        try:
            found = self._space.read(str(key), LIMITS.block_bytes)
        except ObjectNotFoundError as error:
            raise self._missing(key) from error
        actual = hash_bytes(found.data)
        if actual != name:
            raise self._other_content(key, actual)
        return found.data

    def _missing(self, key: ObjectKey) -> CorruptedPeerError:
        return CorruptedPeerError(
            f"{self.where}{key}: not there, though the chain refers to it", hint=MIRROR_HINT
        )

    def _other_content(self, key: ObjectKey, actual: Multihash) -> CorruptedPeerError:
        return CorruptedPeerError(
            f"{self.where}{key}: the content hashes to {actual}, not to its name", hint=MIRROR_HINT
        )

    def fetch(self, key: ObjectKey, size: int, target: Path, progress: Progress) -> None:
        """Bring an object of exactly `size` bytes, which hashes to its name, into a file.

        Raises:
            CorruptedPeerError, AccessError, TransferError: as every method of a peer.
            StoreError: the file cannot be written.
        """
        with Incoming(key, size, target, name=f"{self.where}{key}", progress=progress) as incoming:
            while not incoming.complete():
                self._receive(key, incoming)

    def _receive(self, key: ObjectKey, incoming: Incoming) -> None:
        size = incoming.size
        try:
            found = self._space.size(str(key))  # first: a range beyond the end would be an error of its own
            if found != size:
                raise incoming.refuse(f"{found:,} bytes, not the {size:,} of the object")
            chunks = self._space.stream(str(key), size, incoming.received)
        except ObjectNotFoundError as error:
            raise self._missing(key) from error
        for chunk in chunks:
            rest = chunk
            while rest:
                room = incoming.room
                if not room:
                    raise incoming.refuse(f"longer than the announced {size:,} bytes")
                count = min(len(room), len(rest))
                room[:count] = rest[:count]
                incoming.append(count)
                rest = rest[count:]
        if incoming.received < size:
            raise TransferError(f"{self.where}{key}: ended after {incoming.received:,} of {size:,} bytes")

    def signed(self, file: SignedFile) -> bytes | None:
        """A file of signed statements; None when the store does not hand it out."""
        try:
            return self._space.read(file.value, file.limit).data
        except (ObjectNotFoundError, AccessError):
            return None  # without the right to list, a store refuses what is absent

    def hint(self, limit: int) -> Sequence[Multihash] | None:
        """Hashes of the blocks, seed first, as the peer says; None when it says nothing of use."""
        try:
            return parse_hint(self._space.read(HINT_KEY, hint_bytes(limit)).data, limit)
        except (ObjectNotFoundError, TransferError):
            return None

    # --- writing -----------------------------------------------------------------------------------

    def contains(self, key: ObjectKey) -> bool:
        """Whether an object is there (its bytes are not read)."""
        return self._space.contains(str(key))

    def put(self, key: ObjectKey, source: Path, progress: Progress) -> None:
        """Durably store a file that hashes to the key's name; what is there already stays as it is.

        Large files are sent in parts. An interrupted upload is not visible; the store keeps its parts until
        a life-cycle rule of the bucket removes them.
        """
        try:
            size = source.stat().st_size
            if size > _PART:
                part = max(_PART, -(-size // _MOST_PARTS))
                self._space.upload(str(key), _read_chunks(source, progress), part)
                return
            data = source.read_bytes()
        except OSError as error:
            raise storage_error(error, source) from error
        self._write(str(key), data)
        progress.advance(size)

    def _write(self, key: str, data: bytes) -> None:
        try:
            self._space.write(key, data, "create")
        except WriteRefusedError:
            return  # it is there
        except ConditionsUnknownError:
            self._space.write(key, data)

    def put_hint(self, hashes: Sequence[Multihash]) -> None:
        """Say what the chain's blocks are, seed first."""
        self._space.write(HINT_KEY, encode_hint(hashes))

    def put_signed(self, file: SignedFile, data: bytes | None) -> None:
        """Durably replace a file of signed statements; None removes it."""
        if data is None:
            self._space.delete(file.value)
        else:
            self._space.write(file.value, data)

    def swap_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Point the head at `new` if it points at `expected` now.

        A true compare-and-swap where the store keeps conditions, else what `caveat` says.

        Raises:
            RefConflictError: it points elsewhere; nothing is changed.
            TransferError: somebody holds the lock that a store without conditions needs.
        """
        check_object_name(new)
        conditions = self._probed(new)
        actual, version = self._read_head()
        if actual != expected:
            raise conflict(HEAD, expected, actual)
        if conditions.create if actual is None else conditions.update:
            self._swap(expected, new, "create" if actual is None else version)
        elif conditions.create:
            self._swap_locked(expected, new)
        else:
            self._space.write(HEAD_KEY, str(new).encode())

    def _swap(self, expected: Multihash | None, new: Multihash, condition: Version | str) -> None:
        try:
            self._space.write(HEAD_KEY, str(new).encode(), condition)
        except WriteRefusedError as error:
            # An answer may be lost and its request repeated: then what refuses is our own write.
            actual = self.head()
            if actual != new:
                raise conflict(HEAD, expected, actual) from error

    def _swap_locked(self, expected: Multihash | None, new: Multihash) -> None:
        owner = f"{secrets.token_hex(8)} {Timestamp.now()}".encode()
        try:
            self._space.write(LOCK_KEY, owner, "create")
        except WriteRefusedError as error:
            if self._space.read(LOCK_KEY, LIMITS.ref_bytes).data != owner:
                raise TransferError(
                    f"{self.where}{LOCK_KEY}: another writer is replacing the head",
                    hint="run the command again; if no other is running, remove this object from the store",
                ) from error
        try:
            actual = self.head()
            if actual != expected:
                raise conflict(HEAD, expected, actual)
            self._space.write(HEAD_KEY, str(new).encode())
        finally:
            self._space.delete(LOCK_KEY)

    def _probed(self, name: Multihash) -> Conditions:
        """What the store keeps, tried out on a block, to which its own bytes are written."""
        if self._conditions is None:
            if self._space.address.speaks_s3:
                key = str(ObjectKey(Part.BLOCK, name))
                if not self._space.contains(key):
                    return Conditions(create=True, update=True)  # nothing to try it out on
                data = self.block(name)
                self._conditions = Conditions(
                    self._keeps(key, data, "create"), self._keeps(key, data, _NO_VERSION)
                )
            else:
                self._conditions = Conditions(create=True, update=True)
        return self._conditions

    def _keeps(self, key: str, data: bytes, condition: Version | str) -> bool:
        try:
            self._space.write(key, data, condition)
        except WriteRefusedError:
            return True
        except ConditionsUnknownError:
            return False
        return False

    @property
    def caveat(self) -> str | None:
        """What is known, after a swap, of how the head is swapped; None for a true compare-and-swap."""
        found = self._conditions
        if found is None or (found.create and found.update):
            return None
        if found.create:
            return (
                f"{self.where} cannot replace conditionally: its head was replaced under {LOCK_KEY}, "
                "a lock that binds only those who look for it"
            )
        return (
            f"{self.where} has no conditional writes: two pushes at the same moment are not noticed, "
            "and the last one wins"
        )


def _read_chunks(source: Path, progress: Progress) -> Iterator[bytes]:
    try:
        with source.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk
                progress.advance(len(chunk))
    except OSError as error:
        raise storage_error(error, source) from error
