"""Multicodec codes that Open Data Fabric uses, and the unsigned varint they are written with.

Source: specification "Hash Representation" and "Metadata Block Hashing"; the multiformats tables for the
public codes. The last three live in the private use area.
"""

from __future__ import annotations

from enum import IntEnum

from odfchain.errors import InvalidIdError


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
    def from_name(cls, name: str) -> Multicodec:
        """The code with exactly this lower-case name.

        Raises:
            InvalidIdError: the name is not in the table.
        """
        for codec in cls:
            if str(codec) == name:
                return codec
        raise InvalidIdError(f"unsupported multicodec name {name!r}")

    @classmethod
    def from_code(cls, code: int) -> Multicodec:
        """The codec with this number.

        Raises:
            InvalidIdError: the number is not in the table.
        """
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
    """The value that starts at `pos` and the position after it.

    Raises:
        InvalidIdError: the bytes end early, the form is not the shortest one, or the value exceeds 32 bits.
    """
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
