"""A FlatBuffers builder that writes back to front, one push at a time.

The reference bytes depend on every detail of how a builder pads, orders and shares vtables, so this class
does exactly what the common builders do and no more (`tests/metadata/test_builder.py` holds it against
Google's). It keeps the pushed pieces in a list and joins them once, which in Python is several times faster
than filling a byte array (RFC-002).

Positions are counted from the end of the buffer: the "offset" of an object is the number of bytes from its
start to the end.
"""

from __future__ import annotations

import struct

_U32 = struct.Struct("<I").pack
_I32 = struct.Struct("<i").pack
_PADDING = tuple(bytes(n) for n in range(16))


class FlatBufferBuilder:
    """Builds one buffer. Call order is the caller's business: children first, then the table."""

    __slots__ = ("_minalign", "_parts", "_vtables", "size")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._vtables: dict[bytes, int] = {}
        self._minalign = 1
        self.size = 0
        """Bytes pushed so far; right after a push this is the offset of what was pushed."""

    def prep(self, alignment: int, following: int) -> None:
        """Pad so that after `following` more bytes the position is a multiple of `alignment`."""
        if alignment > self._minalign:
            self._minalign = alignment
        padding = -(self.size + following) & (alignment - 1)
        if padding:
            self._parts.append(_PADDING[padding])
            self.size += padding

    def push(self, data: bytes, alignment: int) -> None:
        """Push bytes that end up at a multiple of `alignment` (their own length must be one)."""
        if alignment > self._minalign:
            self._minalign = alignment
        padding = -self.size & (alignment - 1)
        if padding:
            self._parts.append(_PADDING[padding])
            self.size += padding
        self._parts.append(data)
        self.size += len(data)

    def push_struct(self, data: bytes, alignment: int) -> None:
        """Push a struct whose start must be a multiple of `alignment`."""
        self.prep(alignment, len(data))
        self._parts.append(data)
        self.size += len(data)

    def push_offset(self, target: int) -> None:
        """Push the distance from here to the object at offset `target`."""
        self.prep(4, 0)
        self._parts.append(_U32(self.size - target + 4))
        self.size += 4

    def byte_vector(self, data: bytes) -> int:
        """Push a length-prefixed `[ubyte]` and return its offset."""
        length = len(data)
        self.prep(4, length)
        self._parts.append(_U32(length) + data)
        self.size += length + 4
        return self.size

    def string(self, text: str) -> int:
        """Push a length-prefixed, zero-terminated string and return its offset (never shared)."""
        data = text.encode()
        self.prep(4, len(data) + 1)
        self._parts.append(_U32(len(data)) + data + b"\0")
        self.size += len(data) + 5
        return self.size

    def offset_vector(self, targets: list[int]) -> int:
        """Push a vector of offsets and return its own offset."""
        self.prep(4, 4 * len(targets))
        for target in reversed(targets):
            self._parts.append(_U32(self.size - target + 4))
            self.size += 4
        self._parts.append(_U32(len(targets)))
        self.size += 4
        return self.size

    def end_table(self, start: int, slots: list[int]) -> int:
        """Close a table whose fields were pushed since position `start`; `slots` holds their offsets or 0.

        An identical vtable written earlier is used again. Returns the offset of the table.
        """
        self.prep(4, 0)
        parts = self._parts
        placeholder = len(parts)
        parts.append(b"")
        table = self.size = self.size + 4
        while slots and not slots[-1]:
            slots.pop()
        entries = struct.pack(
            f"<{len(slots) + 2}H",
            4 + 2 * len(slots),
            table - start,
            *[table - offset if offset else 0 for offset in slots],
        )
        vtable = self._vtables.get(entries)
        if vtable is None:
            parts.append(entries)
            self.size += len(entries)
            vtable = self._vtables[entries] = self.size
        parts[placeholder] = _I32(vtable - table)
        return table

    def finish(self, root: int) -> bytes:
        """The finished buffer: root offset in front, total length a multiple of the largest alignment."""
        self.prep(self._minalign, 4)
        self.push_offset(root)
        return b"".join(reversed(self._parts))
