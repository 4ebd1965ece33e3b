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


def tree_root(blocks: Iterable[Multihash]) -> bytes:
    """The root of a log of these blocks."""
    return _root([leaf_hash(block) for block in blocks])


def _root(hashes: list[bytes]) -> bytes:
    while len(hashes) > 1:
        paired = [_node(hashes[at], hashes[at + 1]) for at in range(0, len(hashes) - 1, 2)]
        hashes = paired + hashes[len(hashes) & ~1 :]  # the last one of an odd level rises as it is
    return hashes[0] if hashes else hashlib.sha256().digest()


def _beside(size: int, upto: int, *, leaf: bool = False) -> tuple[list[slice], int]:
    """The trees beside the way to the largest one that ends at `upto`, the lowest first; where it starts.

    With `leaf` it is the way to the last leaf of these.
    """
    trees, start, end = list[slice](), 0, size
    while end != upto or (leaf and end - start > 1):
        middle = start + (1 << (end - start - 1).bit_length() - 1)
        if upto <= middle:
            trees.append(slice(middle, end))
            end = middle
        else:
            trees.append(slice(start, middle))
            start = middle
    return trees[::-1], start


def inclusion_proof(blocks: Sequence[Multihash], index: int) -> list[bytes]:
    """The proof that a block is in the log of all."""
    hashes = [leaf_hash(block) for block in blocks]
    return [_root(hashes[tree]) for tree in _beside(len(hashes), index + 1, leaf=True)[0]]


def consistency_proof(blocks: Sequence[Multihash], old: int) -> list[bytes]:
    """The proof that the log of all continues that of the first `old`."""
    if not 0 < old < len(blocks):
        return []
    hashes = [leaf_hash(block) for block in blocks]
    trees, start = _beside(len(hashes), old)
    return [_root(hashes[tree]) for tree in ([slice(start, old), *trees] if start else trees)]


def verify_inclusion(block: Multihash, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """The block is leaf `index` of a log with this size and root, or `SignatureError`."""
    trees = _beside(size, index + 1, leaf=True)[0] if 0 <= index < size else []
    found = leaf_hash(block)
    for tree, other in zip(trees, proof, strict=False):
        found = _node(found, other) if tree.start > index else _node(other, found)
    if not 0 <= index < size or len(trees) != len(proof) or found != root:
        raise SignatureError("not-verified", "the proof does not show that the block is in the log")


def verify_consistency(old: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> None:
    """A log with this size and root continues another one, or `SignatureError`."""
    trees, start = _beside(size, old) if 0 < old < size else ([], 0)
    one = other = proof[0] if start and proof else old_root
    for tree, beside in zip(trees, proof[start > 0 :], strict=False):
        one = one if tree.start >= old else _node(beside, one)
        other = _node(other, beside) if tree.start >= old else _node(beside, other)
    known = (one, other) == (old_root, root) if old else old_root == _root([])
    if not 0 <= old <= size or len(proof) != len(trees) + (start > 0) or not known:
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
    known, newer, last = kept_log(folder), HashList(), None
    for last, header, _ in chain.walk_files(head) if known.size else ():
        if header.sequence_number < known.size:
            break
        newer.append(last)
    if last is None or last != known.head:  # there is none, or it is of another chain
        known, newer = Frontier(), HashList(reversed(chain.hashes(head)))
    for name in reversed(newer):
        known = known.append(name)
    if newer:
        with contextlib.suppress(StoreError):
            LocalScratch(folder / FRONTIER_KEY).write(0, known.encode())
    return known
