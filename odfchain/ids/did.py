"""Dataset identity: `did:odf` and its twin `did:key`, both made from an ed25519 public key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from odfchain.errors import InvalidIdError
from odfchain.ids.multibase import decode as decode_multibase
from odfchain.ids.multibase import encode as encode_multibase
from odfchain.ids.multibase import encode_base16
from odfchain.ids.multicodec import Multicodec, decode_varint, encode_varint

ED25519_KEY_BYTES = 32
DID_ODF_PREFIX = "did:odf:"
DID_KEY_PREFIX = "did:key:"

_ED25519_VARINT = encode_varint(Multicodec.ED25519_PUB)


@dataclass(frozen=True, slots=True)
class _Ed25519Did:
    PREFIX: ClassVar[str]
    public_key: bytes

    def __post_init__(self) -> None:
        if len(self.public_key) != ED25519_KEY_BYTES:
            raise InvalidIdError(
                f"an ed25519 public key of {len(self.public_key)} bytes (must be {ED25519_KEY_BYTES})"
            )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the binary form: varint 0xed and 32 key bytes.

        Raises:
            InvalidIdError: another key type or another length.
        """
        code, pos = decode_varint(data)
        if code != Multicodec.ED25519_PUB:
            raise InvalidIdError(f"key type 0x{code:x} is not supported (ed25519-pub is 0xed)")
        return cls(bytes(data[pos:]))

    @classmethod
    def from_multibase(cls, text: str) -> Self:
        """Parse the multibase part alone, without a `did:` prefix."""
        return cls.from_bytes(decode_multibase(text))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `did:…` in any supported multibase encoding; the prefix is case-sensitive.

        Raises:
            InvalidIdError: any part is malformed.
        """
        if not text.startswith(cls.PREFIX):
            raise InvalidIdError(f"{text!r} does not start with {cls.PREFIX!r}")
        return cls.from_multibase(text[len(cls.PREFIX) :])

    def to_bytes(self) -> bytes:
        """The binary form that metadata blocks carry (34 bytes)."""
        return _ED25519_VARINT + self.public_key


@dataclass(frozen=True, slots=True)
class DatasetId(_Ed25519Did):
    """The unique identity of a dataset: `did:odf:` and the base16 multibase of its public key.

    Source: specification "Unique Identifiers".
    """

    PREFIX = DID_ODF_PREFIX

    def __str__(self) -> str:
        return DID_ODF_PREFIX + encode_base16(self.to_bytes())

    def as_did_key(self) -> DidKey:
        """The same key under the `did:key` method."""
        return DidKey(self.public_key)


@dataclass(frozen=True, slots=True)
class DidKey(_Ed25519Did):
    """A `did:key` identifier, printed in base58btc as its own specification asks."""

    PREFIX = DID_KEY_PREFIX

    def __str__(self) -> str:
        return DID_KEY_PREFIX + encode_multibase(self.to_bytes(), "base58btc")

    def as_dataset_id(self) -> DatasetId:
        """The same key under the `did:odf` method."""
        return DatasetId(self.public_key)
