"""Sketches of a multiset of rows: the same bytes for any cut, order and number of parts.

- KMV (bottom-k MinHash): the 4,096 smallest distinct row hashes, with how often each occurs.
- Row sample: the 16,384 rows whose offsets have the smallest splitmix64. It needs no seed, does not depend on
  cuts, and survives a compaction, which keeps offsets.

`odfchain.profile.hyperloglog` is another one. Source: RFC-040.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from odfchain.profile.row_likeness import KMV_SIZE
from odfchain.profile.value_hashes import Hashes, splitmix64

SAMPLE_ROWS = 16_384


@dataclass(frozen=True, slots=True, eq=False)
class Kmv:
    """The smallest distinct row hashes, ascending, and how often each occurs."""

    hashes: Hashes
    counts: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def of(cls, hashes: Hashes) -> Kmv:
        """Of all rows."""
        found, counts = np.unique(hashes, return_counts=True)
        return cls(found[:KMV_SIZE], counts[:KMV_SIZE].astype(np.int64))

    def with_rows(self, hashes: Hashes) -> Kmv:
        """These rows, too."""
        if len(self.hashes) == KMV_SIZE:  # larger ones change nothing
            hashes = hashes[hashes <= self.hashes[-1]]
        return self + Kmv.of(hashes) if len(hashes) else self

    def __add__(self, other: Kmv) -> Kmv:
        together = np.concatenate((self.hashes, other.hashes))
        found, place = np.unique(together, return_inverse=True)
        counts = np.zeros(len(found), dtype=np.int64)
        np.add.at(counts, place, np.concatenate((self.counts, other.counts)))
        return Kmv(found[:KMV_SIZE], counts[:KMV_SIZE])

    @property
    def duplicate_fraction(self) -> float:
        """The share of rows that repeat another one; exact up to 4,096 distinct rows."""
        rows = int(self.counts.sum())
        return 0.0 if rows == 0 else (rows - len(self.hashes)) / rows

    @property
    def distinct(self) -> float:
        """How many distinct rows there are, estimated beyond 4,096."""
        if len(self.hashes) < KMV_SIZE:
            return float(len(self.hashes))
        return (KMV_SIZE - 1) * 2.0**64 / (int(self.hashes[-1]) + 1)

    def to_bytes(self) -> bytes:
        """The hashes as little-endian numbers of 8 bytes."""
        return self.hashes.astype("<u8").tobytes()


def sampled(offsets: Hashes, most: int = SAMPLE_ROWS) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Positions of the rows that are in the sample, those with the smallest hash of their offset first."""
    keys = splitmix64(offsets.astype(np.uint64))
    if len(keys) > most:
        nearest = np.argpartition(keys, most)[:most]
        return nearest[np.argsort(keys[nearest], kind="stable")]
    return np.argsort(keys, kind="stable")
