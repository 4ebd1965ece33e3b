"""How many rows two profiles have in common, by the smallest hashes that each publishes.

Plain Python: what compares profiles loads no numpy. Source: RFC-040.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

KMV_SIZE = 4_096
"""The smallest distinct row hashes that a profile has."""


def published_hashes(data: bytes) -> tuple[int, ...]:
    """The row hashes of a profile, from little-endian numbers of 8 bytes.

    Raises:
        ValueError: they are no ascending hashes, or too many.
    """
    if len(data) % 8 or len(data) > 8 * KMV_SIZE:
        raise ValueError("not the smallest hashes of rows")
    found = struct.unpack(f"<{len(data) // 8}Q", data)
    if any(after <= before for before, after in pairwise(found)):
        raise ValueError("hashes of rows are not in order")
    return found


def jaccard(one: Sequence[int], other: Sequence[int]) -> float:
    """The share of the 4,096 smallest hashes of both that both have; two empty sets are equal."""
    here, there = set(one), set(other)
    union = sorted(here | there)[:KMV_SIZE]
    return sum(value in here and value in there for value in union) / len(union) if union else 1.0
