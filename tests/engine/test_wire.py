"""The protobuf message around every buffer: read as protobuf reads it, whatever the bytes."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import CodecError
from odfchain.transform.engine_protocol import unwrap, wrap


@given(st.binary(max_size=300))
def test_a_buffer_round_trips(data: bytes) -> None:
    assert unwrap(wrap(data)) == data


@given(st.binary(max_size=300))
def test_the_message_is_the_one_field_that_the_contract_declares(data: bytes) -> None:
    assert wrap(data) == _declared()(flatbuffer=data).SerializeToString()


@given(st.binary(max_size=40))
def test_any_bytes_are_a_message_or_an_error(message: bytes) -> None:
    with contextlib.suppress(CodecError):
        assert unwrap(message) == _declared().FromString(message).flatbuffer


@functools.cache
def _declared() -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="m.proto", package="engine", syntax="proto3")
    declared = file.message_type.add(name="Message").field
    declared.add(name="flatbuffer", number=1, type=12, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("engine.Message"))


@pytest.mark.parametrize(
    "message",
    [
        b"\x0a", b"\x0a\x05abcd", b"\x80" * 11, b"\x02\x00", b"\x0f", b"\x0d\x00", b"\x09\x00",
        b"\x0a" + b"\xff" * 9 + b"\x01",
    ],
)  # fmt: skip
def test_malformed_messages(message: bytes) -> None:
    with pytest.raises(CodecError, match="protobuf message"):
        unwrap(message)


def test_of_several_values_the_last_counts_and_others_are_skipped() -> None:
    assert unwrap(b"\x10\x07" + wrap(b"one") + b"\x1a\x01x" + wrap(b"two") + b"\x08\x01") == b"two"
