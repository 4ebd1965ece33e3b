"""Metadata blocks as bytes: the manifest around them, their hash, and the header a walk needs.

A block file is a FlatBuffers `Manifest` whose `content` is a finished FlatBuffers `MetadataBlock`; its hash
is SHA3-256 over the whole file as it was received. Manifest version 3 is written; versions 2 and 3 are read.
They differ only in the alignment of the `Timestamp` struct. Source: specification "Metadata Block Hashing",
"Manifest"; RFC-002.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import cast

from odfchain.codec.builder import FlatBufferBuilder
from odfchain.codec.decoder import Decoder
from odfchain.codec.encoder import Encoder
from odfchain.codec.fbs import load_fbs
from odfchain.codec.flatbuffer import FlatBuffer
from odfchain.digest.sha3 import sha3_256
from odfchain.errors import DecodeError, InvalidIdError, UnsupportedVersionError
from odfchain.ids.multicodec import Multicodec
from odfchain.ids.multihash import Multihash
from odfchain.limits import LIMITS
from odfchain.model.metadata_block import BlockHeader, MetadataBlock

MANIFEST_VERSION = 3
"""The manifest version that is written unless another is asked for."""

TIMESTAMP_ALIGNMENT = {2: 1, 3: 4}
"""Manifest versions that are read, and the alignment of `Timestamp` in each."""

_KIND = struct.pack("<q", Multicodec.ODF_METADATA_BLOCK)
_i64 = struct.Struct("<q").unpack_from
_i32 = struct.Struct("<i").unpack_from
_u64 = struct.Struct("<Q").unpack_from


@lru_cache
def _encoder(version: int) -> Encoder:
    return Encoder(load_fbs("odf.fbs"), TIMESTAMP_ALIGNMENT[version])


@lru_cache
def _decoder() -> Decoder:
    return Decoder(load_fbs("odf.fbs"))


@lru_cache
def _event_names() -> dict[int, str]:
    return dict(enumerate(load_fbs("odf.fbs").unions["MetadataEvent"], start=1))


def encode_block(block: MetadataBlock, version: int = MANIFEST_VERSION) -> bytes:
    """The bytes of a block file in the given manifest version; the same block always gives the same bytes.

    Raises:
        UnsupportedVersionError: a version other than 2 or 3.
    """
    if version not in TIMESTAMP_ALIGNMENT:
        raise UnsupportedVersionError(f"manifest version {version} cannot be written (2 and 3 can)")
    content = _encoder(version).encode("MetadataBlock", block)
    builder = FlatBufferBuilder()
    vector = builder.byte_vector(content)
    start = builder.size
    slots = []
    builder.push(_KIND, 8)
    slots.append(builder.size)
    builder.push(struct.pack("<i", version), 4)
    slots.append(builder.size)
    builder.push_offset(vector)
    slots.append(builder.size)
    return builder.finish(builder.end_table(start, slots))


def block_hash(data: bytes) -> Multihash:
    """The hash of a block file: over the bytes as they are."""
    return Multihash.sha3_256(sha3_256(data).digest())


def open_manifest(data: bytes) -> tuple[int, bytes]:
    """(manifest version, content) of a block file.

    Raises:
        DecodeError: too large, malformed, or of another kind.
        UnsupportedVersionError: a version other than 2 or 3.
    """
    if len(data) > LIMITS.block_bytes:
        raise DecodeError(f"a block of {len(data):,} bytes (at most {LIMITS.block_bytes:,})")
    buffer = FlatBuffer(data)
    manifest = buffer.table(buffer.root_position(), 0)
    kind_at, version_at, content_at = manifest.field(0, 8), manifest.field(1, 4), manifest.field(2, 4)
    kind = _i64(data, kind_at)[0] if kind_at else 0
    if kind != Multicodec.ODF_METADATA_BLOCK:
        raise DecodeError(f"a manifest of kind 0x{kind & 0xFFFF_FFFF_FFFF_FFFF:x} is not a metadata block")
    version = _i32(data, version_at)[0] if version_at else 0
    if version not in TIMESTAMP_ALIGNMENT:
        raise UnsupportedVersionError(f"manifest version {version} is not supported (2 and 3 are read)")
    if not content_at:
        raise DecodeError("the manifest has no content")
    return version, buffer.bytes_at(content_at)


def decode_block(data: bytes) -> MetadataBlock:
    """The block that a file holds."""
    _, content = open_manifest(data)
    return cast("MetadataBlock", _decoder().decode("MetadataBlock", content))


def decode_header(data: bytes) -> BlockHeader:
    """Previous hash, sequence number and event kind, without decoding the event.

    Raises:
        DecodeError: whatever is wrong with the bytes that are looked at.
        UnsupportedVersionError: a newer manifest version or event.
    """
    _, content = open_manifest(data)
    buffer = FlatBuffer(content)
    block = buffer.table(buffer.root_position(), 0)
    prev_at, sequence_at, kind_at = block.field(1, 4), block.field(2, 8), block.field(3, 1)
    kind = _event_names().get(content[kind_at] if kind_at else 0)
    if kind is None:
        raise UnsupportedVersionError("an event of a kind that this version of odfchain does not know")
    try:
        prev = Multihash.from_bytes(buffer.bytes_at(prev_at)) if prev_at else None
    except InvalidIdError as error:
        raise DecodeError(f"MetadataBlock.prev_block_hash: {error}") from None
    return BlockHeader(
        prev,
        _u64(content, sequence_at)[0] if sequence_at else 0,
        kind,
    )
