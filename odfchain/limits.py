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


@dataclass(frozen=True, slots=True)
class SharingLimits:
    """Bounds on peers: on those that are read from, and on clients that read from here (RFC-021)."""

    request_seconds: float = 30.0
    """One request, its retries included [s]; and `bytes_per_second` more for what is asked for."""

    bytes_per_second: int = 64 << 10
    """The slowest peer that is waited for [bytes/s]: a bad mobile connection."""

    connect_seconds: float = 5.0
    """From the first packet to a connection, and again for TLS [s]."""

    idle_seconds: float = 10.0
    """Without a byte, in a request [s]."""

    store_idle_seconds: float = 20.0
    """The same for object stores [s], which think longer before they answer."""

    redirects: int = 3
    """Redirects of one request [count]; static hosts need one or two."""

    retries: int = 3
    """Attempts after the first, on failures that may pass [count]."""

    retry_seconds: float = 0.5
    """Wait before the first of them [s]; it doubles each time."""

    parallel: int = 10
    """Requests at the same time [count], as in the reference implementation."""

    answer_head_bytes: int = 32 << 10
    """Status line and headers of an answer, interim answers and trailers included [bytes]; common servers
    allow 8 to 16 KiB."""

    chain_bytes: int = 8 << 30
    """All blocks that one pull receives [bytes]: ten million of an ordinary size, not of the largest."""

    hinted_blocks: int = 1_000_000
    """A chain that has a hint, and the hashes that are read of one [count]: a file of 70 MB."""

    index_bytes: int = 16 << 20
    """The index of a repository [bytes]; about 50,000 datasets."""

    listed_datasets: int = 10_000
    """Datasets of a repository that are listed, and folders that are looked into for them [count]."""

    connections: int = 400
    """Clients served at the same time [count], more are answered with 503; with a file each they fit into
    the usual 1,024 handles."""

    request_head_seconds: float = 20.0
    """Until a client has sent the headers of its request [s]; without it a few thousand bytes hold all
    connections."""

    request_head_bytes: int = 64 << 10
    """These headers [bytes]."""

    piece_seconds: float = 300.0
    """Until a client has taken one piece of a response [s]."""


SHARING = SharingLimits()
"""The limits in force between peers."""
