"""`flatbuffers_blocks.json`: every vector, both ways, in both manifest versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from odfchain.errors import CodecError, UnsupportedVersionError
from odfchain.odf import events as ev
from odfchain.odf.block_codec import block_hash, decode_block, decode_header, encode_block, open_manifest
from odfchain.odf.identity import Multihash
from odfchain.odf.manifests import block_document, read_block
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import from_tree, to_tree
from odfchain.odf.yaml import dump_json, dump_yaml
from tests.kit.block_vectors import FILE, vectors
from tests.kit.strategies import BLOCKS


@pytest.mark.parametrize(("tree", "version", "digest", "hex_bytes"), vectors())
def test_vector(tree: dict[str, Any], version: int, digest: str, hex_bytes: str | None) -> None:
    from odfchain.odf.events import MetadataBlock

    block = from_tree(MetadataBlock, tree)
    data = encode_block(block, version)
    assert block_hash(data).digest.hex() == digest
    if hex_bytes is not None:
        assert data.hex() == hex_bytes
    assert open_manifest(data)[0] == version
    assert decode_block(data) == block
    header = decode_header(data)
    assert header == (block.prev_block_hash, block.sequence_number, block.event.KIND)


def test_decoded_documents_are_spelled_like_their_era() -> None:
    """Version 2 documents use the names of 0.34.1, version 3 documents the newer ones (RFC-005)."""
    for name in ("list_A_head", "list_B_v0_166_0"):
        for v in FILE[name]["vectors"]:
            version = FILE[name]["manifest_version"]
            block = decode_block(bytes.fromhex(v["manifest_hex"]))
            assert block_document(block, version)["content"]["event"] == v["event"]


def test_default_version_is_3() -> None:
    block = decode_block(bytes.fromhex(FILE["list_B_v0_166_0"]["vectors"][1]["manifest_hex"]))
    assert open_manifest(encode_block(block))[0] == 3


def test_other_versions_are_refused() -> None:
    data = bytes.fromhex(FILE["list_A_head"]["vectors"][0]["manifest_hex"])
    block = decode_block(data)
    for version in (0, 1, 4):
        with pytest.raises(UnsupportedVersionError):
            encode_block(block, version)
    index = data.index((3).to_bytes(4, "little") + (0x400000 >> 0).to_bytes(4, "little")[:0])
    for version in (1, 4, 255):
        with pytest.raises(UnsupportedVersionError, match=str(version)):
            decode_block(data[:index] + version.to_bytes(4, "little") + data[index + 4 :])


@given(BLOCKS)
def test_round_trip_of_any_block(block: Any) -> None:
    for version in (2, 3):
        data = encode_block(block, version)
        assert decode_block(data) == block
        assert encode_block(decode_block(data), version) == data
        assert decode_header(data).event_kind == block.event.KIND


@given(BLOCKS)
def test_round_trip_of_any_block_through_documents(block: Any) -> None:
    for version in (2, 3):
        document = block_document(block, version)
        assert read_block(dump_yaml(document)) == (version, block)
        assert read_block(dump_json(document)) == (version, block)


@pytest.mark.parametrize("number", [-1, 2**64])
def test_numbers_that_do_not_fit_are_refused(number: int) -> None:
    from odfchain.odf.events import MetadataBlock

    block = MetadataBlock(system_time=Timestamp(0), sequence_number=number, event=ev.SetInfo())
    with pytest.raises(CodecError):
        encode_block(block)


def test_text_that_utf8_cannot_hold_is_refused() -> None:
    from odfchain.odf.events import MetadataBlock

    block = MetadataBlock(system_time=Timestamp(0), sequence_number=0, event=ev.SetInfo(description="\ud800"))
    with pytest.raises(CodecError):
        encode_block(block)


def test_unknown_slots_are_ignored() -> None:
    """A newer writer may append fields; the block still reads, and its hash is over the bytes as they are."""
    from odfchain.odf.flatbuffers import FlatBufferBuilder

    builder = FlatBufferBuilder()
    text = builder.string("from the future")
    start = builder.size
    builder.push_offset(text)
    event = builder.end_table(start, [0, 0, builder.size])
    start, slots = builder.size, [0] * 6
    builder.push_struct(bytes(4) + b"\x01\x00" + bytes(10), 4)
    slots[0] = builder.size
    builder.push(b"\x08", 1)
    slots[3] = builder.size
    builder.push_offset(event)
    slots[4] = builder.size
    builder.push((7).to_bytes(8, "little"), 8)
    slots[5] = builder.size
    content = builder.finish(builder.end_table(start, slots))
    patched = bytearray(content)
    patched[patched.index(bytes(4) + b"\x01\x00") : patched.index(bytes(4) + b"\x01\x00") + 4] = (
        2020
    ).to_bytes(4, "little")
    outer = FlatBufferBuilder()
    vector = outer.byte_vector(bytes(patched))
    start, slots = outer.size, []
    for piece, width in (((0x400000).to_bytes(8, "little"), 8), ((3).to_bytes(4, "little"), 4)):
        outer.push(piece, width)
        slots.append(outer.size)
    outer.push_offset(vector)
    slots.append(outer.size)
    data = outer.finish(outer.end_table(start, slots))
    assert decode_block(data).event == ev.SetInfo()


def test_engine_messages_round_trip() -> None:
    from odfchain.odf import engine_messages as engine
    from odfchain.odf.block_codec import Decoder, Encoder
    from odfchain.odf.flatbuffers import load_fbs
    from tests.kit.strategies import dataclass

    encoder, decoder = Encoder(load_fbs("odf.fbs"), 4), Decoder(load_fbs("odf.fbs"))

    @given(dataclass(engine.TransformRequest), dataclass(engine.RawQueryRequest))
    def requests(transform: Any, raw: Any) -> None:
        assert decoder.decode("TransformRequest", encoder.encode("TransformRequest", transform)) == transform
        assert decoder.decode("RawQueryRequest", encoder.encode("RawQueryRequest", raw)) == raw

    requests()
    for root, value in (
        ("RawQueryResponseRoot", engine.RawQueryResponseSuccess(num_records=3)),
        ("TransformResponseRoot", engine.TransformResponseInternalError(message="m", backtrace="b")),
        ("TransformResponseRoot", engine.TransformResponseProgress()),
    ):
        assert decoder.decode(root, encoder.encode(root, value)) == value


def test_missing_required_field_is_named() -> None:
    with pytest.raises(CodecError, match="MetadataBlock"):
        decode_block(_empty_block())


def _empty_block() -> bytes:
    from odfchain.odf.flatbuffers import FlatBufferBuilder

    inner = FlatBufferBuilder()
    content = inner.finish(inner.end_table(inner.size, []))
    outer = FlatBufferBuilder()
    vector = outer.byte_vector(content)
    start, slots = outer.size, []
    for piece, width in (((0x400000).to_bytes(8, "little"), 8), ((3).to_bytes(4, "little"), 4)):
        outer.push(piece, width)
        slots.append(outer.size)
    outer.push_offset(vector)
    slots.append(outer.size)
    return outer.finish(outer.end_table(start, slots))


def test_trees_of_values_are_plain() -> None:
    assert to_tree(Multihash.sha3_256(bytes(32))) == "f1620" + "00" * 32
