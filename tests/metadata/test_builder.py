"""Our builder against Google's: the same calls give the same bytes."""

from __future__ import annotations

import struct
from typing import Any

import flatbuffers
from hypothesis import given
from hypothesis import strategies as st

from odfchain.odf.flatbuffers import FlatBufferBuilder

# A tree of tables: (scalars as (slot, width, value), children as strings, bytes, or tables)
SCALAR = st.tuples(st.sampled_from([1, 2, 4, 8]), st.integers(1, 250))
LEAF = st.one_of(st.text(max_size=9).map(lambda t: ("s", t)), st.binary(max_size=9).map(lambda d: ("b", d)))
TREE: Any = st.deferred(
    lambda: st.tuples(
        st.just("t"), st.lists(st.one_of(SCALAR.map(lambda s: ("n", *s)), LEAF, TREE), max_size=4)
    )
)


def ours(tree: Any) -> bytes:
    b = FlatBufferBuilder()

    def build(node: Any) -> int:
        match node[0]:
            case "s":
                return b.string(node[1])
            case "b":
                return b.byte_vector(node[1])
        offsets = [build(child) if child[0] != "n" else 0 for child in node[1]]
        start, slots = b.size, [0] * len(node[1])
        for index, child in enumerate(node[1]):
            if child[0] == "n":
                b.push(child[2].to_bytes(child[1], "little"), child[1])
            else:
                b.push_offset(offsets[index])
            slots[index] = b.size
        return b.end_table(start, slots)

    return b.finish(build(tree))


def googles(tree: Any) -> bytes:
    b = flatbuffers.Builder(64)
    prepend = {1: b.PrependUint8Slot, 2: b.PrependUint16Slot, 4: b.PrependUint32Slot, 8: b.PrependUint64Slot}

    def build(node: Any) -> int:
        match node[0]:
            case "s":
                return b.CreateString(node[1])
            case "b":
                return b.CreateByteVector(node[1])
        offsets = [build(child) if child[0] != "n" else 0 for child in node[1]]
        b.StartObject(len(node[1]))
        for index, child in enumerate(node[1]):
            if child[0] == "n":
                prepend[child[1]](index, child[2], 0)
            else:
                b.PrependUOffsetTRelativeSlot(index, offsets[index], 0)
        return b.EndObject()

    b.Finish(build(tree))
    return bytes(b.Output())


@given(TREE)
def test_same_bytes_for_any_tree_of_tables(tree: Any) -> None:
    assert ours(tree) == googles(tree)


@given(st.lists(st.text(max_size=8), max_size=6))
def test_same_bytes_for_vectors_of_strings(items: list[str]) -> None:
    mine = FlatBufferBuilder()
    vector = mine.offset_vector([mine.string(item) for item in items])
    start = mine.size
    mine.push_offset(vector)
    result = mine.finish(mine.end_table(start, [mine.size]))

    theirs = flatbuffers.Builder(64)
    offsets = [theirs.CreateString(item) for item in items]
    theirs.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        theirs.PrependUOffsetTRelative(offset)
    vector = theirs.EndVector()
    theirs.StartObject(1)
    theirs.PrependUOffsetTRelativeSlot(0, vector, 0)
    theirs.Finish(theirs.EndObject())
    assert result == bytes(theirs.Output())


def test_struct_alignment() -> None:
    for alignment in (1, 4):
        b = FlatBufferBuilder()
        start = b.size
        b.push(b"\x01", 1)
        one = b.size
        b.push_struct(struct.pack("<iH2xII", 1, 2, 3, 4), alignment)
        two = b.size
        data = b.finish(b.end_table(start, [two, one]))
        assert (data.index(struct.pack("<iH2xII", 1, 2, 3, 4)) % 4 == 0) is (alignment == 4)
