"""Blocks of metadata as files: bytes to a document that people can read, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from odfchain.api.known_errors import OwnErrors
from odfchain.codec.blocks import block_hash, decode_block, encode_block, open_manifest
from odfchain.codec.yaml_manifest import block_document, read_block
from odfchain.ids.multihash import Multihash


@dataclass(frozen=True, slots=True)
class BlockFile(OwnErrors):
    """A block: its document, the hash of its bytes, and of the bytes that encode the document."""

    document: dict[str, Any]
    hash: Multihash
    canonical_hash: Multihash

    @classmethod
    def decode(cls, data: bytes) -> BlockFile:
        """The block of some bytes.

        Raises:
            DecodeError, UnsupportedVersionError: they are not a block that this version knows.
        """
        version, _ = open_manifest(data)
        block = decode_block(data)
        return cls(block_document(block, version), block_hash(data), block_hash(encode_block(block, version)))


def encode(text: bytes, *, source: str, version: int) -> tuple[Multihash, bytes]:
    """The hash and the bytes of a block that is given as YAML or JSON; `source` is named in errors.

    Raises:
        ManifestError: naming line and path.
    """
    _, block = read_block(text, source=source)
    data = encode_block(block, version)
    return block_hash(data), data
