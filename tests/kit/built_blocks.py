"""Blocks that are built field by field, and may hold what no encoder would write."""

from __future__ import annotations

import struct

from odfchain.odf.flatbuffers import FlatBufferBuilder


def table(b: FlatBufferBuilder, *fields: bytes | int | None) -> int:
    """A table; bytes are a number, an integer is the offset of what is built already, None is left out."""
    start, slots = b.size, []
    for field in fields:
        if isinstance(field, bytes):
            b.push(field, len(field))
        elif field is not None:
            b.push_offset(field)
        slots.append(0 if field is None else b.size)
    return b.end_table(start, slots)


def manifest(content: bytes) -> bytes:
    """The manifest around the content of a block."""
    outer = FlatBufferBuilder()
    vector = outer.byte_vector(content)
    return outer.finish(table(outer, (0x400000).to_bytes(8, "little"), (3).to_bytes(4, "little"), vector))


def block(
    b: FlatBufferBuilder,
    kind: int,
    event: int,
    future: bytes | None = None,
    prev: int | None = None,
    number: int = 0,
) -> bytes:
    """A block around an event that is built already, as `prev` is; `future` is in a slot that is not known."""
    start, slots = b.size, [0] * 5
    b.push_struct(struct.pack("<iH2xII", 2020 if prev is None else 2060, 1, 0, 0), 4)
    slots[0] = b.size
    if prev is not None:
        b.push_offset(prev)
        slots[1] = b.size
        b.push(number.to_bytes(8, "little"), 8)
        slots[2] = b.size
    b.push(bytes([kind]), 1)
    slots[3] = b.size
    b.push_offset(event)
    slots[4] = b.size
    if future is not None:
        b.push(future, len(future))
        slots.append(b.size)
    return manifest(b.finish(b.end_table(start, slots)))
