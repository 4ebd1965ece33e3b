"""Multihash: a digest that names its algorithm."""

from __future__ import annotations

from dataclasses import dataclass, field

from odfchain.errors import InvalidIdError
from odfchain.ids.multibase import decode as decode_multibase
from odfchain.ids.multicodec import Multicodec, decode_varint, encode_varint

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
        """Parse the binary form.

        Raises:
            InvalidIdError: unknown code, over-long digest, or a length that is not that of the rest.
        """
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
        return cls.from_bytes(decode_multibase(text))

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
