"""Hint files as text: the hashes of a chain's blocks, seed first, and the names of branches, one to a line.

They save time and are never believed. Source: RFC-021, RFC-038.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from odfchain.chain.compare import HashList
from odfchain.ids.branch_names import is_branch_name
from odfchain.ids.multihash import Multihash
from odfchain.limits import SHARING

HINT_LINE_BYTES = 70
"""A hash in base16 and the end of its line [bytes]."""

MOST_NAMES_BYTES = 64 << 10
"""The largest list of branches that is read [bytes]."""

_LINE = re.compile(rb"f1620[0-9a-f]{64}")


def encode_hint(hashes: Iterable[Multihash]) -> bytes:
    """The content of the file."""
    return b"".join(b"%s\n" % str(name).encode("ascii") for name in hashes)


def hint_bytes(limit: int) -> int:
    """The largest file that can list `limit` hashes and is read at all [bytes]."""
    return min(limit, SHARING.hinted_blocks) * HINT_LINE_BYTES


def parse_hint(data: bytes, limit: int) -> HashList | None:
    """The hashes that the file lists; None if it is malformed, empty, or lists more than `limit`.

    An untrusted publisher chose how many lines there are, so none is kept as an object of its own.
    """
    if not data or len(data) > hint_bytes(limit):
        return None
    found = HashList()
    for start in range(0, len(data), HINT_LINE_BYTES):
        line = data[start : start + HINT_LINE_BYTES]
        if not _LINE.fullmatch(line.removesuffix(b"\n")):
            return None
        found.append(Multihash.sha3_256(bytes.fromhex(line[5:].decode("ascii"))))
    return found


def encode_names(branches: Iterable[str]) -> bytes:
    """The content of the file that lists branches; empty where it would be too long."""
    data = b"".join(b"%s\n" % name.encode("ascii") for name in sorted(branches))
    return data if len(data) <= MOST_NAMES_BYTES else b""


def parse_names(data: bytes) -> list[str]:
    """The branches that the file lists, ordered; what cannot name one is left out."""
    return sorted(
        {name for name in data.decode("ascii", errors="replace").split("\n") if is_branch_name(name)}
    )
