"""A chain as a transparency log: block `i` is leaf `i`, its data the 34 bytes of the block's multihash.

Nothing is stored twice: the frontier, the hashes of the complete trees of which the log is made, lets a block
be added without the others, and proofs are made from the chain's hashes. Source: RFC 6962 of the IETF,
section 2.1 (tree and proofs); RFC 9162, section 2.1 (how proofs are verified); RFC-064.
"""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from odfchain.chain.chain import MetadataChain
from odfchain.errors import SignatureError, StoreError
from odfchain.odf.identity import HashList, Multihash
from odfchain.storage.fsio import LocalScratch

HASH_BYTES = 32
MOST_HASHES = 64
"""Hashes of a frontier, and of a proof: a log of 2⁶⁴ blocks has no more [count]."""
FRONTIER_KEY = "info/log-frontier"


def leaf_hash(block: Multihash) -> bytes:
    """The hash of a leaf."""
    return hashlib.sha256(b"\0" + block.to_bytes()).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def _levels(hashes: list[bytes]) -> Iterable[list[bytes]]:
    while len(hashes) > 1:
        yield hashes
        paired = [_node(hashes[at], hashes[at + 1]) for at in range(0, len(hashes) - 1, 2)]
        hashes = paired + hashes[len(hashes) & ~1 :]  # the last one of an odd level rises as it is
    yield hashes


def tree_root(blocks: Iterable[Multihash]) -> bytes:
    """The root of a log of these blocks."""
    return _root([leaf_hash(block) for block in blocks])


def _root(hashes: list[bytes]) -> bytes:
    *_, top = _levels(hashes)
    return top[0] if top else hashlib.sha256().digest()


def inclusion_proof(blocks: Sequence[Multihash], index: int) -> list[bytes]:
    """The proof that a block is in the log of all."""
    proof = []
    for level in _levels([leaf_hash(block) for block in blocks]):
        if (index ^ 1) < len(level) > 1:
            proof.append(level[index ^ 1])
        index >>= 1
    return proof


def consistency_proof(blocks: Sequence[Multihash], old: int) -> list[bytes]:
    """The proof that the log of all continues that of the first `old`."""
    hashes = [leaf_hash(block) for block in blocks]
    if not 0 < old < len(hashes):
        return []
    proof, start, end, whole = list[bytes](), 0, len(hashes), True
    while old != end:
        middle = start + (1 << (end - start - 1).bit_length() - 1)
        if old <= middle:
            proof.append(_root(hashes[middle:end]))
            end = middle
        else:
            proof.append(_root(hashes[start:middle]))
            start, whole = middle, False
    return ([] if whole else [_root(hashes[start:end])]) + proof[::-1]


def verify_inclusion(block: Multihash, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """The block is leaf `index` of a log with this size and root, or `SignatureError`."""
    if 0 <= index < size and len(proof) <= MOST_HASHES:
        found, last, rest = leaf_hash(block), size - 1, list(proof)
        while last and rest:
            if index & 1 or index == last:
                while not index & 1:  # the last one of an odd level has risen
                    index, last = index >> 1, last >> 1
                found = _node(rest.pop(0), found)
            else:
                found = _node(found, rest.pop(0))
            index, last = index >> 1, last >> 1
        if not (last or rest) and found == root:
            return
    raise SignatureError("not-verified", "the proof does not show that the block is in the log")


def verify_consistency(old: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> None:
    """A log with this size and root continues another one, or `SignatureError`."""
    if old in (0, size):
        if not proof and (old_root == root if old else old_root == _root([])):
            return
    elif old < size and 0 < len(proof) <= MOST_HASHES:
        rest, at, last = list(proof), old - 1, size - 1
        while at & 1:
            at, last = at >> 1, last >> 1
        one = other = rest.pop(0) if at else old_root
        while last and rest:
            if at & 1 or at == last:
                while not at & 1:
                    at, last = at >> 1, last >> 1
                left = rest.pop(0)
                one, other = _node(left, one), _node(left, other)
            else:
                other = _node(other, rest.pop(0))
            at, last = at >> 1, last >> 1
        if not (last or rest) and (one, other) == (old_root, root):
            return
    raise SignatureError("not-verified", "the proof does not show that one log continues the other")


_HEADER = struct.Struct(">Q32s")


@dataclass(frozen=True, slots=True)
class Frontier:
    """A log, as far as it takes to add to it: the roots of its complete trees, the largest first."""

    size: int = 0
    hashes: tuple[bytes, ...] = ()
    head: Multihash | None = None
    """The newest block."""

    def append(self, block: Multihash) -> Frontier:
        """The log with one block more."""
        hashes, found, size = [*self.hashes], leaf_hash(block), self.size
        while size & 1:
            found, size = _node(hashes.pop(), found), size >> 1
        return replace(self, size=self.size + 1, hashes=(*hashes, found), head=block)

    def root(self) -> bytes:
        """The root of the log."""
        *rest, found = self.hashes or (_root([]),)
        for left in reversed(rest):
            found = _node(left, found)
        return found

    def encode(self) -> bytes:
        """A file of it."""
        body = _HEADER.pack(self.size, self.head.digest if self.head else b"") + b"".join(self.hashes)
        return body + hashlib.sha256(body).digest()

    @classmethod
    def decode(cls, data: bytes) -> Frontier | None:
        """The log in such a file; None where it is absent or damaged."""
        body, total = data[:-HASH_BYTES], data[-HASH_BYTES:]
        if hashlib.sha256(body).digest() != total or len(body) < _HEADER.size:
            return None
        size, head = _HEADER.unpack_from(body)
        hashes = [body[at : at + HASH_BYTES] for at in range(_HEADER.size, len(body), HASH_BYTES)]
        if not size or len(hashes) != size.bit_count() or len(hashes[-1]) != HASH_BYTES:
            return None
        return cls(size, tuple(hashes), Multihash.sha3_256(head))


def kept_log(folder: Path) -> Frontier:
    """What was kept last; an empty log where that is absent or damaged."""
    data = LocalScratch(folder / FRONTIER_KEY).read(0, _HEADER.size + (MOST_HASHES + 1) * HASH_BYTES)
    return Frontier.decode(data) or Frontier()


def log_of(folder: Path, chain: MetadataChain, head: Multihash) -> Frontier:
    """The log of a dataset's chain up to a block; what is kept of it in `info/` saves the walk."""
    known = kept_log(folder)
    if known.head == head:
        return known
    number, newer = chain.get(head).sequence_number, HashList()
    known = known if known.size <= number else Frontier()  # one as long, of another head, is another log
    if known.size:
        for name, header, _ in chain.walk_files(head):
            if header.sequence_number < known.size:
                known = known if name == known.head else Frontier()
                break
            newer.append(name)
    if not known.size or known.size + len(newer) != number + 1:
        known, newer = Frontier(), HashList(reversed(chain.hashes(head)))
    for name in reversed(newer):
        known = known.append(name)
    with contextlib.suppress(StoreError):
        LocalScratch(folder / FRONTIER_KEY).write(0, known.encode())
    return known
