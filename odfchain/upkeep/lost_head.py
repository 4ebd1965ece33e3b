"""A head reference that is lost: which block it was, as far as that can be proven.

A candidate is a stored block that no other block and no other reference names, whose chain is complete down
to the Seed of this dataset. (Blocks of branches, and what was merged, are candidates only where somebody
speaks for them.) That alone proves nothing: a transaction that was interrupted leaves such a block
too. So it is taken only if it is the only one and somebody else speaks for it: the owner's signature of the
head, the memory of what was last pulled, or a peer whose chain contains it; and never where signature or
memory speak of a later block, or of another one. Everything else is for the user to decide.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from odfchain.codec.blocks import decode_block
from odfchain.errors import CodecError, InvalidIdError, OdfchainError, SignatureError, StoreError
from odfchain.ids.branch_names import is_branch_name
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.model.events import Seed
from odfchain.model.metadata_block import MetadataBlock
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.references import branch_names, ref_names, refs_of
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.store.interfaces import HEAD
from odfchain.transfer.peer import Peer
from odfchain.transfer.public_layout import ObjectKind
from odfchain.transfer.slice_files import store_of
from odfchain.trust.offered import signed_last
from odfchain.trust.seen import Seen, SeenHeads
from odfchain.trust.signed_head import read_head_signature
from odfchain.trust.signed_statements import read_branch
from odfchain.upkeep.reachable import merged_blocks


@dataclass(frozen=True, slots=True)
class HeadCandidate:
    """A block that the head may have been, and who speaks for it; None: nobody."""

    head: Multihash
    sequence_number: int
    proof: str | None = None


@dataclass(frozen=True, slots=True)
class _StoredBlocks:
    """Every block of a dataset that is good, by hash."""

    blocks: dict[Multihash, MetadataBlock]
    dataset_id: DatasetId

    def is_complete(self, head: Multihash) -> bool:
        """Whether the chain of a block leads to the Seed of this dataset."""
        current: Multihash | None = head
        expected = self.blocks[head].sequence_number if head in self.blocks else -1
        while current is not None:
            block = self.blocks.get(current)
            if block is None or block.sequence_number != expected:
                return False
            expected, current = expected - 1, block.prev_block_hash
            if current is None:
                event = block.event
                return expected == -1 and isinstance(event, Seed) and event.dataset_id == self.dataset_id
        return False


def stored_blocks(dataset: DatasetFiles) -> _StoredBlocks | None:
    """The good blocks of a dataset; None when its folder is not named by an id."""
    try:
        dataset_id = DatasetId.from_multibase(dataset.folder.name)
    except InvalidIdError:
        return None
    store, found = store_of(dataset, ObjectKind.BLOCK), {}
    for name in store.names():
        try:
            found[name] = decode_block(store.get(name))
        except (StoreError, CodecError):
            continue
    return _StoredBlocks(found, dataset_id)


def candidates(workspace: WorkspaceFiles, dataset: DatasetFiles, peer: Peer | None) -> list[HeadCandidate]:
    """What the lost head may have been, the newest block first; with their proofs."""
    stored = stored_blocks(dataset)
    if stored is None:
        return []
    named = {block.prev_block_hash for block in stored.blocks.values()} | _given_up(dataset)
    tips = [name for name in stored.blocks if name not in named and stored.is_complete(name)]
    beside = _beside(dataset, stored)
    spoken_for = [signed_last(dataset, stored.dataset_id), _seen(workspace, stored.dataset_id)]
    tips += {said.head for said in spoken_for if said is not None and said.head in beside} - {*tips}
    heads = [_with_proof(workspace, dataset, stored, name, peer) for name in tips]
    heads = [head for head in heads if head.proof is not None or head.head not in beside]
    return sorted(heads, key=lambda c: (-c.sequence_number, str(c.head)))


def is_candidate(dataset: DatasetFiles, head: Multihash) -> bool:
    """Whether a block has a complete chain of this dataset, so that the head may be set to it."""
    stored = stored_blocks(dataset)
    return stored is not None and stored.is_complete(head)


def by_name(dataset: DatasetFiles, ref: str, prefix: str) -> Multihash | None:
    """The only stored block whose hash begins as the name of its reference says."""
    digits = ref.removeprefix(prefix)
    named = [n for n in store_of(dataset, ObjectKind.BLOCK).names() if n.digest.hex().startswith(digits)]
    return named[0] if len(named) == 1 and digits else None


def signed_tip(dataset: DatasetFiles, branch: str) -> Multihash | None:
    """The block that the owner has signed last as a branch's newest, if its chain is here."""
    stored = stored_blocks(dataset)
    try:
        signer, signed = read_branch((read_head_signature(dataset.folder, branch) or b"")[:-1])
    except (SignatureError, StoreError):
        return None
    if stored is None or signed.ref != branch or not signer == signed.dataset_id == stored.dataset_id:
        return None
    return signed.head if stored.is_complete(signed.head) else None


def _given_up(dataset: DatasetFiles) -> set[Multihash | None]:
    return _heads(dataset, [ref for ref in ref_names(dataset) if ref != HEAD and not is_branch_name(ref)])


def _beside(dataset: DatasetFiles, stored: _StoredBlocks) -> set[Multihash]:
    """The blocks of branches, which may have gone on from the head, and what was merged, too."""
    found = {name for block in stored.blocks.values() for name in merged_blocks(dataset, block.event)}
    for head in _heads(dataset, branch_names(dataset)):
        current: Multihash | None = head
        while current is not None and current in stored.blocks and current not in found:
            found.add(current)
            current = stored.blocks[current].prev_block_hash
    return found


def _heads(dataset: DatasetFiles, names: list[str]) -> set[Multihash | None]:
    heads: set[Multihash | None] = set()
    for name in names:
        with contextlib.suppress(StoreError):
            heads.add(refs_of(dataset).get(name))
    return heads


def _with_proof(
    workspace: WorkspaceFiles,
    dataset: DatasetFiles,
    stored: _StoredBlocks,
    name: Multihash,
    peer: Peer | None,
) -> HeadCandidate:
    number = stored.blocks[name].sequence_number
    signed = signed_last(dataset, stored.dataset_id)
    if signed is not None and signed.head == name:
        return HeadCandidate(name, number, "the owner has signed it as the head")
    seen = _seen(workspace, stored.dataset_id)
    if any(s is not None and s.sequence_number >= number and s.head != name for s in (signed, seen)):
        return HeadCandidate(name, number)  # an owner who went on from here would sign a second history
    if seen is not None and seen.head == name:
        return HeadCandidate(name, number, "it is the block that was last pulled or pushed")
    if peer is not None and _contains(peer, stored, name, number):
        return HeadCandidate(name, number, f"the chain of {peer.where} contains it")
    return HeadCandidate(name, number)


def _seen(workspace: WorkspaceFiles, dataset_id: DatasetId) -> Seen | None:
    try:
        return SeenHeads(workspace.root / "seen").get(dataset_id)
    except StoreError:
        return None


def _contains(peer: Peer, stored: _StoredBlocks, name: Multihash, number: int) -> bool:
    """Whether the peer's chain leads to a block; blocks that are here are not asked for."""
    try:
        current, at = peer.head(), None
        while current is not None and current != name:
            block = stored.blocks.get(current)
            if block is None:
                block = decode_block(peer.block(current))
            if block.sequence_number <= number or (at is not None and block.sequence_number != at - 1):
                return False
            at, current = block.sequence_number, block.prev_block_hash
    except OdfchainError:
        return False
    return current == name
