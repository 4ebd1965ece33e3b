"""Attacks on the reader: whatever the bytes, only the project's own error, in bounded time.

Every fixture block is swept bit by bit and truncated at every length; then come buffers that are built to
hurt: cycles, shared subtrees, deep nesting, huge counts, random noise.
"""

from __future__ import annotations

import contextlib
import random
import struct
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from odfchain.errors import CodecError
from odfchain.limits import Limits
from odfchain.odf.arrow_schema import decode_raw_arrow
from odfchain.odf.block_codec import decode_block, decode_header, encode_block, open_manifest
from odfchain.odf.flatbuffers import FlatBuffer, FlatBufferBuilder
from tests.kit.built_blocks import block, manifest, table
from tests.kit.strategies import BLOCKS
from tests.kit.support import conformance


def fixture_blocks() -> list[bytes]:
    file = conformance("flatbuffers_blocks")
    found = [
        bytes.fromhex(v["manifest_hex"])
        for name in ("list_A_head", "list_B_v0_166_0")
        for v in file[name]["vectors"]
    ]
    found += [
        bytes.fromhex(v[version]["manifest_hex"])
        for v in file["derived_vectors_not_upstream"]["vectors"]
        for version in ("v2", "v3")
    ]
    assert len(found) > 40
    return found


def read_everything(data: bytes) -> bool:
    """Whether the bytes are accepted; anything but the project's error fails the test."""
    accepted = True
    for read in (decode_block, decode_header, open_manifest):
        try:
            read(data)
        except CodecError:
            accepted = False
    if accepted:
        encode_block(decode_block(data))
    return accepted


@pytest.mark.parametrize("data", fixture_blocks(), ids=lambda d: f"{len(d)}-{d[24]}{d[40:44].hex()}")
def test_every_bit_flip_of_a_fixture(data: bytes, record_property: Callable[[str, object], None]) -> None:
    record_property("bits", 8 * len(data))
    assert read_everything(data)
    for index in range(len(data)):
        for bit in range(8):
            read_everything(data[:index] + bytes([data[index] ^ 1 << bit]) + data[index + 1 :])


@pytest.mark.parametrize("data", fixture_blocks()[:20], ids=len)
def test_every_truncation_of_a_fixture(data: bytes) -> None:
    for length in range(len(data)):
        assert not read_everything(data[:length]), f"cut to {length} of {len(data)} bytes and accepted"


@pytest.mark.parametrize("data", fixture_blocks()[:10], ids=len)
def test_every_word_of_a_fixture_replaced_by_extremes(data: bytes) -> None:
    for index in range(len(data) - 3):
        for word in map(struct.Struct("<I").pack, (0, 2**32 - 1, 2**31 - 1, 2**31, len(data))):
            read_everything(data[:index] + word + data[index + 4 :])


@given(st.binary(max_size=400))
@example(b"")
@example(bytes(8))
def test_noise(data: bytes) -> None:
    read_everything(data)
    with contextlib.suppress(CodecError):
        decode_raw_arrow(data)


@given(BLOCKS, st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), min_size=1, max_size=4))
def test_damaged_random_blocks(made: Any, damage: list[tuple[int, int]]) -> None:
    data = bytearray(encode_block(made))
    for position, xor in damage:
        data[position % len(data)] ^= xor
    read_everything(bytes(data))


def test_arrow_schema_sweep() -> None:
    data = bytes.fromhex(conformance("writer_cases")["legacy_arrow_schema_blob"]["hex"])
    decode_raw_arrow(data)
    for index in range(len(data)):
        for bit in range(8):
            with contextlib.suppress(CodecError):
                decode_raw_arrow(data[:index] + bytes([data[index] ^ 1 << bit]) + data[index + 1 :])
    for length in range(len(data) - 1):
        with contextlib.suppress(CodecError):
            decode_raw_arrow(data[:length])


OPTION, INT64, STRUCT = 20, 12, 21


def schema_block(build_type: Any) -> bytes:
    """A SetDataSchema block with one field whose type `build_type(builder)` gives (type number, offset)."""
    b = FlatBufferBuilder()
    number, offset = build_type(b)
    field = table(b, b.string("x"), bytes([number]), offset)
    event = table(b, None, table(b, b.offset_vector([field])))
    return block(b, 10, event)


def nested_options(depth: int) -> Any:
    def build(b: FlatBufferBuilder) -> tuple[int, int]:
        number, offset = INT64, table(b)
        for _ in range(depth):
            number, offset = OPTION, table(b, bytes([number]), offset)
        return number, offset

    return build


def test_nesting_to_the_limit_is_read() -> None:
    decode_block(schema_block(nested_options(50)))


def test_nesting_beyond_the_limit_is_refused() -> None:
    with pytest.raises(CodecError, match="deeper"):
        decode_block(schema_block(nested_options(5_000)))


def test_shared_subtrees_do_not_multiply() -> None:
    """Thirty levels, each a struct that names the level below twice: a billion visits if unbounded."""

    def build(b: FlatBufferBuilder) -> tuple[int, int]:
        number, offset = INT64, table(b)
        name = b.string("x")
        for _ in range(30):
            field = table(b, name, bytes([number]), offset)
            number, offset = STRUCT, table(b, b.offset_vector([field, field]))
        return number, offset

    data = schema_block(build)
    began = time.process_time()
    with pytest.raises(CodecError, match="objects"):
        decode_block(data)
    assert time.process_time() - began < 5


def test_a_vector_cannot_claim_more_than_the_buffer() -> None:
    data = bytearray(schema_block(nested_options(0)))
    for index in range(len(data) - 4):
        changed = bytes(data[:index]) + b"\xff\xff\xff\xff" + bytes(data[index + 4 :])
        read_everything(changed)


def test_budget_of_visits() -> None:
    buffer = FlatBuffer(bytes(64), Limits(flatbuffer_visits=3))
    buffer.visit(3)
    with pytest.raises(CodecError, match="more than 3"):
        buffer.visit()


def test_a_block_that_is_too_large_is_not_looked_at() -> None:
    with pytest.raises(CodecError, match="at most"):
        decode_block(bytes((1 << 20) + 1))


def test_random_offsets_in_random_buffers() -> None:
    random_ = random.Random(7)
    for _ in range(3_000):
        size = random_.randrange(8, 200)
        data = bytearray(random_.randbytes(size))
        for at in range(0, size - 3, 4):
            if random_.random() < 0.7:
                data[at : at + 4] = struct.pack("<I", random_.randrange(0, size))
        read_everything(bytes(data))
        read_everything(manifest(bytes(data)))


@pytest.mark.parametrize(
    "text",
    [
        "[]", "nope", '{"a": NaN}', '{"a": Infinity}', '{"a": "\\ud800"}', "[" * 10_000, '{"a":' * 500 + "1" + "}" * 500,
        '{"a": ' + "9" * 5_000 + "}", "", "1",
    ],
    ids=lambda t: t[:12],
)  # fmt: skip
def test_attributes_that_are_not_json_objects(text: str) -> None:
    b = FlatBufferBuilder()
    event = table(b, *[None] * 6, table(b, b.string(text)))
    with pytest.raises(CodecError):
        decode_block(block(b, 1, event))
