"""What a store promises, whatever it is made of.

`tests/store/test_contract.py` runs the same suite over every implementation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from odfchain.errors import InvalidIdError, StoreError
from odfchain.ids.multicodec import Multicodec
from odfchain.ids.multihash import Multihash
from odfchain.limits import LIMITS

HEAD = "head"
"""The reference that every dataset has."""


class ObjectStore(Protocol):
    """Objects named by the SHA3-256 multihash of their bytes: immutable, verified on read."""

    def contains(self, name: Multihash) -> bool:
        """Whether an object of this name is there (its bytes are not read)."""

    def get(self, name: Multihash) -> bytes:
        """The object's bytes.

        Raises:
            ObjectNotFoundError: there is no such object.
            ObjectCorruptedError: its bytes do not hash to its name.
        """

    def put(self, data: bytes) -> Multihash:
        """Durably store bytes and return their name; storing them again changes nothing.

        Raises:
            StorageFullError, StoreError: nothing is stored.
        """

    def put_file(self, source: Path, name: Multihash) -> None:
        """Durably take over a finished file whose hash is `name`; the source is consumed.

        Raises:
            StorageFullError, StoreError: nothing is stored and the source stays.
        """

    def verified_path(self, name: Multihash) -> Path:
        """A local file with the object's bytes, checked to hash to its name.

        Raises:
            ObjectNotFoundError, ObjectCorruptedError: as `get`.
        """

    def size(self, name: Multihash) -> int:
        """Size of the object [bytes].

        Raises:
            ObjectNotFoundError: there is no such object.
        """

    def names(self) -> Iterator[Multihash]:
        """Every object's name, in no particular order."""

    def locate(self, name: Multihash) -> str:
        """Where the object is or would be, for messages."""


class RefStore(Protocol):
    """Named pointers to blocks, moved only by compare-and-swap."""

    def get(self, name: str) -> Multihash | None:
        """What the reference points at, None when it does not exist.

        Raises:
            StoreError: what is stored is not a hash.
        """

    def compare_and_swap(self, name: str, expected: Multihash | None, new: Multihash) -> None:
        """Durably point the reference at `new` if it points at `expected` now (None: does not exist).

        Raises:
            RefConflictError: it points elsewhere; nothing is changed.
            StoreError: it cannot be written; the old value stays.
        """

    def names(self) -> Iterator[str]:
        """Every reference's name."""


def check_object_name(name: Multihash) -> None:
    """Objects are named by full SHA3-256 multihashes and nothing else.

    Raises:
        StoreError: another algorithm or a cut digest.
    """
    if name.codec is not Multicodec.SHA3_256 or len(name.digest) != 32:
        raise StoreError(f"{name} cannot name an object (a full sha3-256 multihash can)")


def parse_ref(data: bytes, where: str) -> Multihash:
    """The hash that a reference file holds; surrounding white space is ignored.

    Raises:
        StoreError: too long, or not the multihash of a block.
    """
    if len(data) > LIMITS.ref_bytes:
        raise StoreError(f"{where}: a reference of {len(data)} bytes (at most {LIMITS.ref_bytes})")
    try:
        value = Multihash.parse(data.decode("ascii").strip())
        check_object_name(value)
    except (UnicodeDecodeError, InvalidIdError, StoreError) as error:
        raise StoreError(f"{where}: not a reference to a block: {error}") from None
    return value
