"""`flatbuffers_blocks.json`: every vector, both ways, in both manifest versions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from odfchain.errors import CodecError, UnsupportedVersionError
from odfchain.odf import engine_messages as engine
from odfchain.odf import events as ev
from odfchain.odf.block_codec import (
    Decoder,
    Encoder,
    block_hash,
    decode_block,
    decode_header,
    encode_block,
    open_manifest,
)
from odfchain.odf.flatbuffers import FlatBufferBuilder, load_fbs
from odfchain.odf.identity import Multihash
from odfchain.odf.manifests import block_document, read_block
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import from_tree, to_tree
from odfchain.odf.yaml import dump_json, dump_yaml
from tests.kit.block_vectors import FILE, vectors
from tests.kit.built_blocks import block as built_block
from tests.kit.built_blocks import manifest, table
from tests.kit.strategies import BLOCKS, dataclass


@pytest.mark.parametrize(("tree", "version", "digest", "hex_bytes"), vectors())
def test_vector(tree: dict[str, Any], version: int, digest: str, hex_bytes: str | None) -> None:
    block = from_tree(ev.MetadataBlock, tree)
    data = encode_block(block, version)
    assert block_hash(data).digest.hex() == digest
    if hex_bytes is not None:
        assert data.hex() == hex_bytes
    assert open_manifest(data)[0] == version
    assert decode_block(data) == block
    assert decode_header(data) == (block.prev_block_hash, block.sequence_number, block.event.KIND)


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
    index = data.index((3).to_bytes(4, "little"))
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


@pytest.mark.parametrize(
    "changes",
    [{"sequence_number": -1}, {"sequence_number": 2**64}, {"event": ev.SetInfo(description="\ud800")}],
    ids=["negative", "too large", "not in UTF-8"],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    fields = {"system_time": Timestamp(0), "sequence_number": 0, "event": ev.SetInfo()}
    with pytest.raises(CodecError):
        encode_block(ev.MetadataBlock(**(fields | changes)))


def test_unknown_slots_are_ignored() -> None:
    """A newer writer may append fields; the block still reads, and its hash is over the bytes as they are."""
    b = FlatBufferBuilder()
    event = table(b, None, None, b.string("from the future"))
    assert decode_block(built_block(b, 8, event, (7).to_bytes(8, "little"))).event == ev.SetInfo()


def test_missing_required_field_is_named() -> None:
    b = FlatBufferBuilder()
    with pytest.raises(CodecError, match="MetadataBlock"):
        decode_block(manifest(b.finish(table(b))))


def test_engine_messages_round_trip() -> None:
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


def test_trees_of_values_are_plain() -> None:
    assert to_tree(Multihash.sha3_256(bytes(32))) == "f1620" + "00" * 32
