"""Every cap in one place, with its unit and its reason.

A reader of strangers' bytes needs bounds that hold whatever the bytes say. A limit that is reached is an
error that names the limit, never a silent cut. Sources: RFC-003.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is read. All counts are inclusive maxima."""

    block_bytes: int = 1 << 20
    """A metadata block file [bytes]. Real blocks are under 10 KiB; attachments are the large ones."""

    flatbuffer_depth: int = 64
    """Nesting of tables in a FlatBuffer [levels]. The C++ and Rust verifiers use the same number."""

    flatbuffer_visits: int = 100_000
    """Tables, vector elements and strings visited in one buffer [count]; stops shared-subtree blow-ups."""

    manifest_bytes: int = 1 << 20
    """A YAML or JSON manifest [bytes]."""

    manifest_depth: int = 32
    """Nesting of a YAML or JSON manifest [levels]."""

    manifest_nodes: int = 10_000
    """Mappings, sequences and scalars in one manifest [count]."""

    ref_bytes: int = 128
    """A reference file [bytes]; a base16 multihash has 69."""

    name_bytes: int = 200
    """A dataset alias [bytes]; leaves room for a file-system's 255."""

    chain_blocks: int = 10_000_000
    """Blocks of one chain that a walk will follow [count]; a walk also stops at head.sequence + 1."""

    list_items: int = 100_000
    """Items of one list in a decoded event [count]."""


LIMITS = Limits()
"""The limits in force; tests walk each boundary with values of their own."""
