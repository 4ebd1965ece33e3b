"""Dataset identity: `did:odf` and its twin `did:key`, both made from an ed25519 public key."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import eq
from typing import TYPE_CHECKING, ClassVar, Self, overload

from odfchain.errors import InvalidIdError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


# Multicodec codes that Open Data Fabric uses, and the unsigned varint they are written with.
#
# Source: specification "Hash Representation" and "Metadata Block Hashing"; the multiformats tables for the
# public codes. The last three live in the private use area.


class Multicodec(IntEnum):
    """A code of the multicodec table; `str()` gives the table's name."""

    CIDV1 = 0x01
    SHA2_256 = 0x12
    SHA3_256 = 0x16
    ED25519_PUB = 0xED
    MULTIDID = 0x0D1D
    ARROW0_SHA3_256 = 0x300016
    ODF_METADATA_BLOCK = 0x400000
    ODF_DATASET_SNAPSHOT = 0x400001

    def __str__(self) -> str:
        return self.name.lower().replace("_", "-")

    @classmethod
    def from_code(cls, code: int) -> Multicodec:
        """The codec with this number."""
        codec = _BY_CODE.get(code)
        if codec is None:
            raise InvalidIdError(f"unsupported multicodec code 0x{code:x}")
        return codec


_BY_CODE: dict[int, Multicodec] = {int(codec): codec for codec in Multicodec}


def encode_varint(value: int) -> bytes:
    """Unsigned LEB128 of `value`, in the fewest bytes."""
    if value < 0:
        raise InvalidIdError(f"a varint cannot hold {value}")
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, pos: int = 0) -> tuple[int, int]:
    """The value that starts at `pos`, of 32 bits at most in the shortest form, and the position after it."""
    value = 0
    for index in range(5):
        if pos + index >= len(data):
            raise InvalidIdError("a varint is cut short")
        byte = data[pos + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if index > 0 and byte == 0:
                raise InvalidIdError("a varint is not in its shortest form")
            if value > 0xFFFF_FFFF:
                break
            return value, pos + index + 1
    raise InvalidIdError("a varint exceeds 32 bits")


# Multibase text: base16 here, every other encoding through the `multiformats` library.
#
# The specification asks for all encodings that the multibase registry lists as final; base16 is the one
# that is printed (specification "Hash Representation", RFC-012 of ODF). Base16 is on every hot path and
# done natively; the library is loaded only when another prefix is met.

FINAL_PREFIXES = {
    "f": "base16",
    "F": "base16upper",
    "b": "base32",
    "B": "base32upper",
    "z": "base58btc",
    "m": "base64",
    "u": "base64url",
    "U": "base64urlpad",
}
"""Prefix to name of every encoding in state "final"."""

_MAX_TEXT = 256
# The text of a block's hash: f, 16, 20, and 32 bytes.
_HASH_CHARACTERS, _BEGINNING = 69, re.compile(r"f1620[0-9a-f]*")


def encode_base16(data: bytes) -> str:
    """Lower-case base16 with its prefix `f`."""
    return "f" + data.hex()


def encode(data: bytes, encoding: str) -> str:
    """`data` in the named encoding, one of `FINAL_PREFIXES`, with its prefix."""
    if encoding == "base16":
        return encode_base16(data)
    if encoding not in FINAL_PREFIXES.values():
        raise InvalidIdError(f"unsupported multibase encoding {encoding!r}")
    import multiformats.multibase  # noqa: PLC0415 - slow to load, rarely needed

    return str(multiformats.multibase.encode(data, encoding))


def decode(text: str) -> bytes:
    """The bytes of a text in any of the final encodings."""
    if not text:
        raise InvalidIdError("an empty multibase string")
    if len(text) > _MAX_TEXT:
        raise InvalidIdError(f"a multibase string of {len(text)} characters (at most {_MAX_TEXT})")
    prefix = text[0]
    if prefix in "fF":
        # Mixed case is read under either prefix, as the reference implementation does.
        try:
            return binascii.unhexlify(text[1:])
        except (binascii.Error, ValueError):
            raise InvalidIdError(f"malformed base16 in {text!r}") from None
    if prefix not in FINAL_PREFIXES:
        hint = "hashes and keys are usually written in base16 and start with 'f'"
        raise InvalidIdError(f"unsupported multibase prefix {prefix!r} in {text!r}", hint=hint)
    import multiformats.multibase  # noqa: PLC0415 - slow to load, rarely needed

    try:
        return bytes(multiformats.multibase.decode(text))
    except Exception as error:
        raise InvalidIdError(f"malformed {FINAL_PREFIXES[prefix]} in {text!r}") from error


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
            message = f"an ed25519 public key of {len(self.public_key)} bytes (must be {ED25519_KEY_BYTES})"
            raise InvalidIdError(message)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Parse the binary form: varint 0xed and 32 key bytes."""
        code, pos = decode_varint(data)
        if code != Multicodec.ED25519_PUB:
            raise InvalidIdError(f"key type 0x{code:x} is not supported (ed25519-pub is 0xed)")
        return cls(bytes(data[pos:]))

    @classmethod
    def from_multibase(cls, text: str) -> Self:
        """Parse the multibase part alone, without a `did:` prefix."""
        return cls.from_bytes(decode(text))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `did:…` in any supported multibase encoding; the prefix is case-sensitive."""
        if not text.startswith(cls.PREFIX):
            raise InvalidIdError(f"{text!r} does not start with {cls.PREFIX!r}")
        return cls.from_multibase(text[len(cls.PREFIX) :])

    def to_bytes(self) -> bytes:
        """The binary form that metadata blocks carry (34 bytes)."""
        return _ED25519_VARINT + self.public_key


@dataclass(frozen=True, slots=True)
class DatasetId(_Ed25519Did):
    """A dataset's identity: `did:odf:` and its public key in base16 (specification "Unique Identifiers")."""

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
        return DID_KEY_PREFIX + encode(self.to_bytes(), "base58btc")


# The ed25519 key pair behind a dataset's identity.


@dataclass(frozen=True, slots=True, repr=False)
class DatasetKey:
    """A private key, never printed or shared. `cryptography` is loaded on use: most commands touch no key."""

    _private: Ed25519PrivateKey

    @classmethod
    def generate(cls) -> DatasetKey:
        """A new key pair from the operating system's randomness."""
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

        return cls(ed25519.Ed25519PrivateKey.generate())

    @classmethod
    def from_pem(cls, pem: bytes) -> DatasetKey:
        """Load an unencrypted PKCS#8 PEM of an ed25519 key."""
        from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise InvalidIdError("the key file is not an unencrypted PKCS#8 PEM") from error
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise InvalidIdError("the key file does not hold an ed25519 key")
        return cls(key)

    def to_pem(self) -> bytes:
        """Unencrypted PKCS#8 PEM, for a file with mode 0600."""
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

        return self._private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def dataset_id(self) -> DatasetId:
        """The identity this key pair gives (specification "Unique Identifiers")."""
        return DatasetId(self._private.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        """A 64-byte ed25519 signature of `message`."""
        return self._private.sign(message)

    def __repr__(self) -> str:
        return f"DatasetKey(<private key of {self.dataset_id}>)"


# Multihash: a digest that names its algorithm.

MAX_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Multihash:
    """An algorithm code and a digest of at most 32 bytes; equal when both are equal.

    The binary form is `varint(code) ++ varint(length) ++ digest`; the text form is multibase, base16 when
    printed. A digest shorter than its algorithm's is accepted when its length prefix says so, as the
    reference implementation does. Source: specification "Hash Representation".
    """

    codec: Multicodec
    digest: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.digest) > MAX_DIGEST_BYTES:
            raise InvalidIdError(f"a digest of {len(self.digest)} bytes (at most {MAX_DIGEST_BYTES})")

    @classmethod
    def sha3_256(cls, digest: bytes) -> Multihash:
        """The multihash of a finished SHA3-256 digest (32 bytes)."""
        return cls(Multicodec.SHA3_256, digest)

    @classmethod
    def from_bytes(cls, data: bytes) -> Multihash:
        """Parse the binary form."""
        if len(data) == 34 and data[:2] == b"\x16\x20":  # the form of every block and file hash
            return cls(Multicodec.SHA3_256, bytes(data[2:]))
        code, pos = decode_varint(data)
        length, pos = decode_varint(data, pos)
        codec = Multicodec.from_code(code)
        if length > MAX_DIGEST_BYTES:
            raise InvalidIdError(f"a digest of {length} bytes (at most {MAX_DIGEST_BYTES})")
        if len(data) - pos != length:
            raise InvalidIdError(f"a multihash declares {length} digest bytes but {len(data) - pos} follow")
        return cls(codec, bytes(data[pos:]))

    @classmethod
    def parse(cls, text: str) -> Multihash:
        """Parse the text form in any supported multibase encoding."""
        if len(text) < _HASH_CHARACTERS and _BEGINNING.fullmatch(text):
            raise InvalidIdError(f"{text!r} is only the beginning of a hash: write all of it")
        return cls.from_bytes(decode(text))

    def to_bytes(self) -> bytes:
        """The binary form."""
        if self.codec is Multicodec.SHA3_256 and len(self.digest) == 32:
            return b"\x16\x20" + self.digest
        return encode_varint(self.codec) + encode_varint(len(self.digest)) + self.digest

    def __str__(self) -> str:
        return "f" + self.to_bytes().hex()

    def __repr__(self) -> str:
        return f"Multihash({str(self)!r})"

    @property
    def short(self) -> str:
        """The last eight characters of the base16 text, for people."""
        return str(self)[-8:]


class HashList(Sequence[Multihash]):
    """Hashes of blocks, 32 bytes each: a list of a million of them takes 32 MB."""

    def __init__(self, hashes: Iterable[Multihash] = ()) -> None:
        self._digests = bytearray()
        for name in hashes:
            self.append(name)

    def append(self, name: Multihash) -> None:
        """Add a hash at the end."""
        self._digests += name.digest

    def __eq__(self, other: object) -> bool:
        if isinstance(other, HashList):
            return self._digests == other._digests
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment] # it grows

    def __len__(self) -> int:
        return len(self._digests) // MAX_DIGEST_BYTES

    @overload
    def __getitem__(self, index: int) -> Multihash: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Multihash]: ...

    def __getitem__(self, index: int | slice) -> Multihash | Sequence[Multihash]:
        if isinstance(index, slice):
            return HashList(self[i] for i in range(*index.indices(len(self))))
        start = range(len(self))[index] * MAX_DIGEST_BYTES
        return Multihash.sha3_256(bytes(self._digests[start : start + MAX_DIGEST_BYTES]))
