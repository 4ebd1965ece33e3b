"""A HyperLogLog of 64-bit hashes: the same bytes for any cut, order and number of parts.

What is published is a sketch of Apache DataSketches (HLL_8 with 2**12 registers), made canonical by a union.
Its registers follow from one hash each: the one with the longest run of zeros. Those are found here for many
hashes at once, and only they are handed to the library. Source: RFC-040.
"""

from __future__ import annotations

import datasketches as ds
import numpy as np

from odfchain.digest.row_hash import Numbers
from odfchain.profile.value_hashes import Hashes, rotated

_LG_REGISTERS = 12
_KIND = ds.tgt_hll_type.HLL_8
_SEED = 9_001
"""The library's."""
_MURMUR = tuple(
    np.uint64(n)
    for n in (0x87C37B91114253D5, 0x4CF5AD432745937F, 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53)
)  # fmt: skip


class Hll:
    """A HyperLogLog of 64-bit hashes."""

    def __init__(self) -> None:
        self._runs = np.zeros(1 << _LG_REGISTERS, dtype=np.uint8)
        """Of each register; 0 where nothing was seen."""
        self._hashes: Hashes = np.zeros(1 << _LG_REGISTERS, dtype=np.uint64)

    def update(self, hashes: Hashes) -> None:
        """Add hashes."""
        registers, runs = _registers(hashes)
        longer = runs > self._runs[registers]
        if longer.any():
            registers, runs, hashes = registers[longer], runs[longer], hashes[longer]
            order = np.argsort(runs, kind="stable")  # of equal registers the last one stays
            self._runs[registers[order]] = runs[order]
            self._hashes[registers[order]] = hashes[order]

    def merge(self, other: Hll) -> None:
        """Add what another one has seen."""
        longer = other._runs > self._runs
        self._runs[longer] = other._runs[longer]
        self._hashes[longer] = other._hashes[longer]

    @property
    def hashes(self) -> Hashes:
        """The hashes that it follows from, one for each register that saw any."""
        return self._hashes[self._runs > 0]

    @property
    def estimate(self) -> float:
        """How many distinct hashes there are."""
        return float(self._union().get_estimate())

    def to_bytes(self) -> bytes:
        """The canonical form; 8 bytes when nothing was seen."""
        return bytes(self._union().get_result(_KIND).serialize_compact())

    def _union(self) -> ds.hll_union:
        union = ds.hll_union(_LG_REGISTERS)
        if self._runs.any():
            part = ds.hll_sketch(_LG_REGISTERS, _KIND, True)  # it starts at its full size
            for value in self.hashes.view(np.int64).tolist():
                part.update(value)
            # fed twice, a part marks the union as out of order: one form for every way
            union.update(part)
            union.update(part)
        return union


def _registers(hashes: Hashes) -> tuple[Numbers, Numbers]:
    """(register, run of zeros and one more) of each hash, by MurmurHash3 of its 8 bytes."""
    first, second = _MURMUR[:2]
    start = np.uint64(_SEED ^ 8)
    one = (rotated(hashes * first, 31) * second ^ start) + start
    two = _mixed(one + start)
    low = _mixed(one) + two
    high = low + two
    # bits of a double are exact for the upper 53
    top = high >> np.uint64(11)
    bits = np.where(top > 0, np.frexp(top.astype(np.float64))[1] + 11, np.frexp(high.astype(np.float64))[1])
    runs = np.minimum(64 - bits, 62) + 1
    return (low & np.uint64((1 << _LG_REGISTERS) - 1)).astype(np.intp), runs.astype(np.uint8)


def _mixed(words: Hashes) -> Hashes:
    for factor in _MURMUR[2:]:
        words = (words ^ (words >> np.uint64(33))) * factor
    return words ^ (words >> np.uint64(33))
