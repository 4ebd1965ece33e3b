"""Tables of any content, for blocks that no encoder would write."""

from __future__ import annotations

from typing import Any

from flatbuffers import Builder, number_types


def table(b: Builder, *fields: tuple[int, str, Any], slots: int | None = None) -> int:
    """A table of fields (slot, kind, value): the name of a number type, or "Offset"."""
    b.StartObject(max((slot for slot, _, _ in fields), default=-1) + 1 if slots is None else slots)
    for slot, kind, value in fields:
        if kind == "Offset":
            b.PrependUOffsetTRelative(value)
        elif kind == "Timestamp":
            b.Prep(4, 16)
            for part, flags in zip(value, ("Uint32", "Uint32", "Uint16", "Uint16", "Int32"), strict=True):
                b.Place(part, getattr(number_types, f"{flags}Flags"))
        else:
            b.Prepend(getattr(number_types, f"{kind}Flags"), value)
        b.Slot(slot)
    return b.EndObject()


def finished(b: Builder, root: int) -> bytes:
    """The buffer with this root."""
    b.Finish(root)
    return bytes(b.Output())


def offsets(b: Builder, targets: list[int]) -> int:
    """A vector of offsets."""
    b.StartVector(4, len(targets), 4)
    for target in reversed(targets):
        b.PrependUOffsetTRelative(target)
    return b.EndVector()


def block_of(b: Builder, kind: int, event: int, *more: tuple[int, str, Any]) -> bytes:
    """A block file whose event is the table at `event`."""
    timestamp = (0, 0, 0, 1, 2020)  # nanosecond, second, padding, day, year
    fields = ((0, "Timestamp", timestamp), (3, "Uint8", kind), (4, "Offset", event), *more)
    return manifest(finished(b, table(b, *fields)))


def manifest(content: bytes) -> bytes:
    """A block file with this content."""
    b = Builder()
    vector = b.CreateByteVector(content)
    return finished(b, table(b, (0, "Int64", 0x400000), (1, "Int32", 3), (2, "Offset", vector)))
