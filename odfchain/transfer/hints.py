"""The hint beside a chain: hashes of all its blocks, seed first, one to a line.

A chain can only be walked one block after the other, which over a network is one round trip each. With the
hint a client asks for many blocks at a time; it verifies every link all the same, so a hint that is wrong
costs time and nothing else. The hashes come from the chain's index: no block is read. Source: RFC-021.
"""

from __future__ import annotations

from collections import OrderedDict

from odfchain.chain.chain import MetadataChain
from odfchain.ids.multihash import Multihash
from odfchain.limits import SHARING
from odfchain.transfer.hint_file import encode_hint

_CACHE_BYTES = 64 << 20


class HintCache:
    """Hints by head, as many as fit into a fixed amount of memory. For one thread at a time."""

    def __init__(self, capacity: int = _CACHE_BYTES) -> None:
        self._capacity = capacity
        self._hints: OrderedDict[Multihash, bytes] = OrderedDict()
        self._size = 0

    def get(self, chain: MetadataChain, head: Multihash) -> bytes:
        """The hint for a head of the chain, empty for a chain that is too long for one."""
        found = self._hints.get(head)
        if found is not None:
            self._hints.move_to_end(head)
            return found
        too_long = chain.get(head).sequence_number >= SHARING.hinted_blocks
        made = b"" if too_long else encode_hint(chain.hashes(head))
        if len(made) <= self._capacity:
            self._hints[head] = made
            self._size += len(made)
        while self._size > self._capacity:
            _, dropped = self._hints.popitem(last=False)
            self._size -= len(dropped)
        return made
