"""A dataset in an object store: S3 and what speaks like it, Google Cloud Storage, Azure Blob Storage.

The head is swapped by a conditional write: create it if there is none, or replace it if its entity tag (or
generation) is still the one that was read. Some clones of S3 accept such requests and ignore the condition.
So before the first swap the condition is put to the test on the block that the head is going to name: writing
its own bytes over it must be refused, and does no harm where it is not (RFC-021).
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import (
    CorruptedPeerError,
    ObjectNotFoundError,
    StoreError,
    TransferError,
)
from odfchain.ids.multihash import Multihash
from odfchain.limits import LIMITS, FetchLimits
from odfchain.model.timestamp import Timestamp
from odfchain.net.retry import Deadline
from odfchain.progress import Progress
from odfchain.store.interfaces import HEAD, check_object_name, parse_ref
from odfchain.store.local import conflict
from odfchain.transfer.hint_file import encode_hint, encode_names
from odfchain.transfer.object_space import (
    STORE_LIMITS,
    ConditionsUnknownError,
    ObjectSpace,
    Version,
    WriteRefusedError,
)
from odfchain.transfer.peer import AbsentError, Opened, WritablePeer, as_transfer_errors
from odfchain.transfer.public_layout import HINT_KEY, REFS_HINT_KEY, ObjectKey, ObjectKind, PeerUrl, ref_key
from odfchain.trust.parties import SignedFile

NO_VERSION: Version = ('"00000000000000000000000000000000"', "0")
"""A version that no block has."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Which conditions a store keeps when it writes."""

    create: bool
    update: bool


class ObjectPeer(WritablePeer):
    """A dataset below a URL of an object store; fulfils `WritablePeer`."""

    def __init__(self, url: PeerUrl, limits: FetchLimits = STORE_LIMITS) -> None:
        """Nothing is asked of the store yet."""
        self._space = ObjectSpace(url, limits)
        super().__init__(self._space.where, limits=limits)
        self._conditions: Conditions | None = None

    def close(self) -> None:
        """Nothing to do: the library closes connections that are not used."""

    # --- reading -----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def open(self, key: str, start: int, cap: int, _deadline: Deadline, /) -> Iterator[Opened]:
        """As `Peer`.

        Raises:
            AbsentError, AccessError, TransferError: as there.
        """
        try:
            found = self._space.open(key, start, cap)
        except ObjectNotFoundError as error:
            raise AbsentError(f"{self._where}{key}: not there") from error
        try:
            yield Opened(f"{self._where}{key}", found, found.total, start=found.start, framed=False)
        finally:
            found.close()  # a store that sends too much does not wait for us to read it

    def _read_head(self) -> tuple[Multihash | None, Version | None]:
        try:
            data, version = self._space.read(ref_key(self.ref), LIMITS.ref_bytes)
        except ObjectNotFoundError:
            return None, None
        if not data and self.ref != HEAD:
            return None, version  # a branch that was deleted
        try:
            return parse_ref(data, f"{self._where}{ref_key(self.ref)}"), version
        except StoreError as error:
            raise CorruptedPeerError(str(error)) from error

    def versioned_head(self) -> tuple[Multihash | None, Version | None]:
        """The head, or the branch, and the version that a conditional write names; None where none is there.

        A branch that was deleted is None and has a version: its object is empty.
        """
        with as_transfer_errors():
            return self._read_head()

    # --- writing -----------------------------------------------------------------------------------

    def replace_head(self, version: Version | None, new: Multihash) -> Version:
        """Point the head at `new` if it is in this version still (None: there is none), by one request."""
        return self._space.write(
            ref_key(self.ref), str(new).encode(), "create" if version is None else version
        )

    def empty_ref(self, version: Version | None) -> Version:
        """Make the object of a branch empty if it is in this version still: it is none any more."""
        return self._space.write(ref_key(self.ref), b"", "create" if version is None else version)

    def remove(self) -> None:
        """The dataset is not there any more: its head first, so that nobody finds half of it."""
        self._space.delete(ref_key(HEAD))
        self._space.clear()

    def contains(self, key: ObjectKey) -> bool:
        """Whether an object is there (its bytes are not read)."""
        return self._space.contains(str(key))

    def size(self, key: ObjectKey) -> int:
        """Size of an object [bytes]; its bytes are not read."""
        return self._space.size(str(key))

    def put(self, key: ObjectKey, source: Path, progress: Progress) -> None:
        """Durably store a file that hashes to the key's name, as `ObjectSpace.put_file`."""
        self._space.put_file(str(key), source, progress)

    def put_unless_there(self, key: ObjectKey, source: Path) -> bool:
        """As `put`; returns whether it was there."""
        return self._space.put_file(str(key), source)

    def put_hint(self, hashes: Sequence[Multihash]) -> None:
        """Say what the chain's blocks are, seed first."""
        self._space.write(HINT_KEY, encode_hint(hashes))

    def put_names(self, branches: Sequence[str]) -> None:
        """Say what the branches are called."""
        self._space.write(REFS_HINT_KEY, encode_names(branches))

    def put_signed(self, file: SignedFile, data: bytes | None) -> None:
        """Durably replace a file of signed statements; None removes it."""
        if data is None:
            self._space.delete(self._signed_key(file))
        else:
            self._space.write(self._signed_key(file), data)

    def swap_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Point the head, or the branch, at `new` if it points at `expected` now.

        A true compare-and-swap where the store keeps conditions, else what `caveat` says.

        Raises:
            RefConflictError: it points elsewhere; nothing is changed.
            TransferError: somebody holds the lock that a store without conditions needs.
        """
        check_object_name(new)
        conditions = self._probed(new)
        actual, version = self._read_head()
        if actual != expected:
            raise conflict(self.ref, expected, actual)
        if conditions.create if version is None else conditions.update:
            self._swap(expected, new, "create" if version is None else version)
        elif conditions.create:
            self._swap_locked(expected, new)
        else:
            self._space.write(ref_key(self.ref), str(new).encode())

    def _swap(self, expected: Multihash | None, new: Multihash, condition: Version | str) -> None:
        try:
            self._space.write(ref_key(self.ref), str(new).encode(), condition)
        except WriteRefusedError as error:
            # An answer may be lost and its request repeated: then what refuses is our own write.
            actual = self.head()
            if actual != new:
                raise conflict(self.ref, expected, actual) from error

    @property
    def _lock_key(self) -> str:
        """Held while the reference is replaced, where a store cannot replace conditionally."""
        return f"refs/.{self.ref}.lock"

    def _swap_locked(self, expected: Multihash | None, new: Multihash) -> None:
        owner = f"{secrets.token_hex(8)} {Timestamp.now()}".encode()
        try:
            self._space.write(self._lock_key, owner, "create")
        except WriteRefusedError as error:
            if self._space.read(self._lock_key, LIMITS.ref_bytes)[0] != owner:
                raise TransferError(
                    f"{self._where}{self._lock_key}: another writer is replacing the head",
                    hint="run the command again; if no other is running, remove this object from the store",
                ) from error
        try:
            actual = self.head()
            if actual != expected:
                raise conflict(self.ref, expected, actual)
            self._space.write(ref_key(self.ref), str(new).encode())
        finally:
            self._space.delete(self._lock_key)

    def _probed(self, name: Multihash) -> Conditions:
        """What the store keeps, tried out on a block, to which its own bytes are written."""
        if self._conditions is None:
            if self._space.address.speaks_s3:
                key = str(ObjectKey(ObjectKind.BLOCK, name))
                if not self._space.contains(key):
                    return Conditions(create=True, update=True)  # nothing to try it out on
                data = self.block(name)
                self._conditions = Conditions(
                    self._keeps(key, data, "create"), self._keeps(key, data, NO_VERSION)
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
                f"{self._where} cannot replace conditionally: its head was replaced under {self._lock_key}, "
                "a lock that binds only those who look for it"
            )
        return (
            f"{self._where} has no conditional writes: two pushes at the same moment are not noticed, "
            "and the last one wins"
        )
