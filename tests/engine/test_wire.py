"""The protobuf message around every buffer: read as protobuf reads it, whatever the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.engine.remote import protocol as wire
from odfchain.engine.remote.protocol import unwrap, wrap
from odfchain.errors import DecodeError


@given(st.binary(max_size=300))
def test_a_buffer_round_trips(data: bytes) -> None:
    assert unwrap(wrap(data)) == data


@given(
    st.lists(st.tuples(st.integers(1, 1 << 20), st.sampled_from([0, 1, 2, 5]), st.binary(max_size=12))),
    st.binary(max_size=3),
)
def test_messages_read_as_protobuf_reads_them(fields: list[tuple[int, int, bytes]], tail: bytes) -> None:
    """Fields of any number and wire type, the own one among them, and an end that may be torn."""
    message = b""
    for number, kind, value in fields:
        body = {0: wire._varint(len(value)), 1: value.ljust(8, b"\0")[:8], 5: value.ljust(4, b"\0")[:4]}
        message += wire._varint(number << 3 | kind) + body.get(kind, wire._varint(len(value)) + value)
    message += tail
    expected = _reference(message)
    try:
        assert unwrap(message) == expected
    except DecodeError:
        assert expected is None or any(byte & 7 in (3, 4) for byte in tail)


def _reference(message: bytes) -> bytes | None:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError as Malformed

    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="engine", syntax="proto3")
    declared = file.message_type.add(name="Message").field
    declared.add(name="flatbuffer", number=1, type=12, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    cls = message_factory.GetMessageClass(pool.FindMessageTypeByName("engine.Message"))
    try:
        found: bytes = cls.FromString(message).flatbuffer
    except Malformed:
        return None
    return found


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a", b"\x0a\x05abcd", b"\x80" * 11, b"\x02\x00", b"\x0b\x0c", b"\x0f", b"\x0d\x00", b"\x09\x00",
        b"\x0a" + b"\xff" * 9 + b"\x01",
    ],
)  # fmt: skip
def test_malformed_messages(message: bytes) -> None:
    with pytest.raises(DecodeError, match="protobuf message"):
        unwrap(message)


def test_of_several_values_the_last_counts_and_others_are_skipped() -> None:
    assert unwrap(b"\x10\x07" + wrap(b"one") + b"\x1a\x01x" + wrap(b"two") + b"\x08\x01") == b"two"
