"""Signed statements on their way out: after the head, so that nothing is signed there that nobody can read.

What the destination has is not lost: the better signature of the head stays, and attestations are joined. Two
pushes at the same moment may each write what they know; the next one joins them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from odfchain.errors import StoreError, TransferError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.model.timestamp import Timestamp
from odfchain.store.interfaces import HEAD
from odfchain.text import one_line
from odfchain.trust.attestation_lines import AUDITS
from odfchain.trust.offered import better, chain_at
from odfchain.trust.parties import SignedFile, StatementWriter, StoredDataset
from odfchain.trust.signed_branch import check_branch
from odfchain.trust.signed_head import BlockAt, SignatureStatus, check_head, read_head_signature
from odfchain.trust.signed_lines import LineFile, T, content_of
from odfchain.trust.signing_keys import Did
from odfchain.trust.snapshot_lines import SNAPSHOTS


@dataclass(frozen=True, slots=True)
class Statements:
    """What the destination has beside its head now; `problem` says what could not be written there."""

    signature: SignatureStatus
    problem: str | None = None


def push_statements(
    dataset: StoredDataset, peer: StatementWriter, head: Multihash, trusted: Sequence[Did] = ()
) -> Statements:
    """The destination, whose head is `head`, has its signature and the attestations of this chain.

    Of a branch it has the signature; attestations go with the head. A failure there is no failure of the
    push, which is done by then; nor are local statements that cannot be read.
    """
    status = SignatureStatus.UNSIGNED
    dataset_id, block_at = dataset.id, chain_at(dataset, head)
    try:
        if dataset.chain.ref != HEAD:
            return Statements(_push_branch_signature(dataset, dataset_id, peer, head))
        status = _push_signature(dataset, dataset_id, peer, head, block_at)
        _push_lines(AUDITS, dataset, dataset_id, peer, block_at, trusted)
        # the owner is the first to be believed about his own dataset
        _push_lines(SNAPSHOTS, dataset, dataset_id, peer, block_at, (dataset_id, *trusted))
    except (TransferError, StoreError) as error:
        return Statements(status, f"not all signed statements were written: {one_line(error.message, 800)}")
    return Statements(status)


def _push_signature(
    dataset: StoredDataset, dataset_id: DatasetId, peer: StatementWriter, head: Multihash, block_at: BlockAt
) -> SignatureStatus:
    number = dataset.chain.get(head).sequence_number
    here, there = read_head_signature(dataset.folder), _there(peer, SignedFile.HEAD)
    ours, theirs = (check_head(c, dataset_id, head, number, block_at=block_at) for c in (here, there))
    best = better(theirs, ours, Timestamp.now())
    if best != there and peer.head() == head:
        peer.put_signed(SignedFile.HEAD, best)
    return check_head(best, dataset_id, head, number, block_at=block_at).status


def push_to_node(
    dataset: StoredDataset, dataset_id: DatasetId, peer: StatementWriter, head: Multihash
) -> SignatureStatus:
    """What is beside the head of a node after the owner's signature of it was offered, if it is here."""
    number = dataset.chain.get(head).sequence_number
    here = read_head_signature(dataset.folder)
    if check_head(here, dataset_id, head, number).status is not SignatureStatus.SIGNED:
        return SignatureStatus.UNSIGNED
    peer.put_signed(SignedFile.HEAD, here)
    return SignatureStatus.SIGNED if _there(peer, SignedFile.HEAD) == here else SignatureStatus.UNSIGNED


def _push_branch_signature(
    dataset: StoredDataset, dataset_id: DatasetId, peer: StatementWriter, head: Multihash
) -> SignatureStatus:
    ref = dataset.chain.ref
    here, there = read_head_signature(dataset.folder, ref), _there(peer, SignedFile.HEAD)
    found = [check_branch(content, dataset_id, ref, head) for content in (here, there)]
    signed = [each.text for each in found if each.status is SignatureStatus.SIGNED]
    best = f"{signed[0]}\n".encode() if signed else None
    if best != there and peer.head() == head:
        peer.put_signed(SignedFile.HEAD, best)
    return SignatureStatus.SIGNED if signed else SignatureStatus.UNSIGNED


def _push_lines(
    file: LineFile[T],
    dataset: StoredDataset,
    dataset_id: DatasetId,
    peer: StatementWriter,
    block_at: BlockAt,
    trusted: Sequence[Did],
) -> None:
    wanted = file.of_chain(block_at)
    ours = file.valid(file.content(dataset.folder), dataset_id, wanted)
    if not ours:
        return
    place = SignedFile(file.key)
    there = _there(peer, place)
    kept, _ = file.joined(file.valid(there, dataset_id, wanted), ours, trusted)
    content = content_of(kept)
    if content != there:
        peer.put_signed(place, content)


def _there(peer: StatementWriter, file: SignedFile) -> bytes | None:
    """What the destination has; where that is nothing that can be read, anything is better."""
    try:
        return peer.signed(file)
    except TransferError:
        return b""
