"""A bounds-checked FlatBuffers reader that treats every byte as hostile.

Python's flatbuffers package has no verifier: a flipped bit makes it read a wrong value in silence or raise
whatever the interpreter raises. Here every offset is checked before it is followed, depth and the number of
visited objects are bounded, strings must be UTF-8 and zero-terminated, and the only exception that leaves
is `DecodeError` (RFC-003).

Invariants:
- no position outside the buffer is ever read, and none is negative;
- a field lies inside its table, a vector's elements inside the buffer;
- visiting costs are counted, so a buffer that refers to the same subtree again and again is refused.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from odfchain.errors import DecodeError
from odfchain.limits import LIMITS, Limits

_u32 = struct.Struct("<I").unpack_from
_i32 = struct.Struct("<i").unpack_from
_u16x2 = struct.Struct("<HH").unpack_from


@lru_cache(maxsize=256)
def _slots_struct(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}H")


class TableView:
    """One table of a buffer: field positions by slot."""

    __slots__ = ("_slots", "_span", "pos")

    def __init__(self, pos: int, span: int, slots: tuple[int, ...]) -> None:
        self.pos = pos
        self._span = span
        self._slots = slots

    def field(self, slot: int, width: int) -> int:
        """Position of the field in `slot`, `width` bytes of which are inside the table; 0 when absent."""
        if slot >= len(self._slots):
            return 0
        offset = self._slots[slot]
        if offset == 0:
            return 0
        if offset < 4 or offset + width > self._span:
            raise DecodeError(f"a field at offset {offset} lies outside its table of {self._span} bytes")
        return self.pos + offset


class FlatBuffer:
    """A buffer and what is left of its budget of visits."""

    __slots__ = ("_visits", "data", "limits", "size")

    def __init__(self, data: bytes, limits: Limits = LIMITS) -> None:
        self.data = data
        self.size = len(data)
        self.limits = limits
        self._visits = limits.flatbuffer_visits

    def root_position(self) -> int:
        """Position of the table that the first four bytes point at."""
        if self.size < 8:
            raise DecodeError(f"a buffer of {self.size} bytes is too short")
        return self.follow(0)

    def visit(self, count: int = 1) -> None:
        """Spend budget.

        Raises:
            DecodeError: more objects are visited than `limits.flatbuffer_visits`.
        """
        self._visits -= count
        if self._visits < 0:
            raise DecodeError(f"more than {self.limits.flatbuffer_visits:,} objects in one buffer")

    def follow(self, pos: int) -> int:
        """The position that the unsigned offset at `pos` points to (`pos` has been checked by the caller)."""
        target: int = pos + _u32(self.data, pos)[0]
        if target + 4 > self.size or target == pos:
            raise DecodeError(f"an offset at byte {pos} points outside the buffer")
        return target

    def table(self, pos: int, depth: int) -> TableView:
        """The table at `pos` (four readable bytes are there); its vtable is checked.

        Raises:
            DecodeError: too deep, or table or vtable do not fit into the buffer.
        """
        if depth > self.limits.flatbuffer_depth:
            raise DecodeError(f"tables nest deeper than {self.limits.flatbuffer_depth}")
        self._visits -= 1
        if self._visits < 0:
            self.visit(0)
        size = self.size
        vtable: int = pos - _i32(self.data, pos)[0]
        if vtable < 0 or vtable + 4 > size:
            raise DecodeError(f"the vtable of the table at byte {pos} lies outside the buffer")
        length, span = _u16x2(self.data, vtable)
        if length < 4 or length & 1 or vtable + length > size or span < 4 or pos + span > size:
            raise DecodeError(f"the vtable at byte {vtable} does not fit into the buffer")
        slots = _slots_struct((length - 4) >> 1).unpack_from(self.data, vtable + 4)
        return TableView(pos, span, slots)

    def bytes_at(self, field: int) -> bytes:
        """The `[ubyte]` vector that the offset at `field` points to."""
        start = self.follow(field)
        self._visits -= 1
        if self._visits < 0:
            self.visit(0)
        length: int = _u32(self.data, start)[0]
        end = start + 4 + length
        if end > self.size:
            raise DecodeError(f"a vector of {length:,} bytes at byte {start} runs past the end of the buffer")
        return self.data[start + 4 : end]

    def string_at(self, field: int) -> str:
        """The string that the offset at `field` points to.

        Raises:
            DecodeError: it runs past the end, has no terminator, or is not UTF-8.
        """
        start = self.follow(field)
        self._visits -= 1
        if self._visits < 0:
            self.visit(0)
        length: int = _u32(self.data, start)[0]
        end = start + 4 + length
        if end >= self.size or self.data[end] != 0:
            raise DecodeError(f"a string at byte {start} is not terminated inside the buffer")
        try:
            return self.data[start + 4 : end].decode()
        except UnicodeDecodeError:
            raise DecodeError(f"a string at byte {start} is not UTF-8") from None

    def vector_at(self, field: int, width: int) -> tuple[int, int]:
        """(position of the first element, count) of the vector that the offset at `field` points to."""
        start = self.follow(field)
        count: int = _u32(self.data, start)[0]
        if start + 4 + count * width > self.size:
            raise DecodeError(
                f"a vector of {count:,} elements at byte {start} runs past the end of the buffer"
            )
        if count > self.limits.list_items:
            raise DecodeError(f"a vector of {count:,} elements (at most {self.limits.list_items:,})")
        self.visit(1 + count)
        return start + 4, count
