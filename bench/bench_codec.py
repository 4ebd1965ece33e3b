"""Blocks to bytes and back: what every append and every walk pays."""

from __future__ import annotations

from collections.abc import Iterator

from figures import Figure, per_call

from odfchain.odf import events as ev
from odfchain.odf.block_codec import block_hash, decode_block, decode_header, encode_block
from odfchain.odf.events import MetadataBlock
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp


def add_data_block() -> MetadataBlock:
    """A block as ingestion writes them."""
    now = Timestamp.parse("2026-01-01T12:00:00Z")
    data = ev.DataSlice(
        logical_hash=hash_bytes(b"logical"),
        physical_hash=hash_bytes(b"physical"),
        offset_interval=ev.OffsetInterval(start=1_000_000, end=1_999_999),
        size=123_456_789,
    )
    event = ev.AddData(
        prev_offset=999_999,
        new_data=data,
        new_watermark=now,
        new_source_state=ev.SourceState(source_name="default", kind="odf/etag", value='"33a64df551425fcc"'),
    )
    return MetadataBlock(
        system_time=now, prev_block_hash=hash_bytes(b"prev"), sequence_number=1_234, event=event
    )


def bench_codec() -> Iterator[Figure]:
    """Encode + hash, full decode, header only."""
    block = add_data_block()
    data = encode_block(block)
    assert decode_block(data) == block
    yield Figure(
        "encode + hash of an AddData block", per_call(lambda: block_hash(encode_block(block))), "µs", 150
    )
    yield Figure("full decode", per_call(lambda: decode_block(data)), "µs", 80)
    yield Figure(
        "header only (previous hash, sequence, kind)", per_call(lambda: decode_header(data)), "µs", 15
    )
    yield Figure("hash alone", per_call(lambda: block_hash(data)), "µs", remark=f"{len(data)} bytes")
