"""Signed statements on their way: read with the head, judged by the chain, kept beside the copy's head.

A copy's `refs/head.jws` is the owner's word on the copy's own chain, or it is not there: what a peer has is
stored only if it is that. Without a policy an unsigned or wrongly signed head is said and not refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from odfchain.errors import SignatureError, StoreError, TransferError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.limits import ATTEST
from odfchain.model.timestamp import Timestamp
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD
from odfchain.text import one_line
from odfchain.trust.parties import SignedFile, StatementReader, StoredDataset
from odfchain.trust.problems import Problem
from odfchain.trust.signature_policy import SignaturePolicy, length
from odfchain.trust.signed_head import (
    HEAD_SIGNATURE_KEY,
    BlockAt,
    HeadSignature,
    SignatureStatus,
    check_head,
    read_head_signature,
)
from odfchain.trust.signed_lines import LineFile, Merged, T
from odfchain.trust.signed_statements import SignedHead, read_head
from odfchain.trust.signing_keys import Did

_NS = 1_000_000_000
_PAUSES = (0.02, 0.1)
"""How long a signature is waited for that follows its head [s]: about as long as a push takes for it."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The head that a peer names, and what it has as its signature; `unread` says why that is not known."""

    head: Multihash
    content: bytes | None
    unread: str | None = None

    @property
    def signed(self) -> Multihash | None:
        """The head that somebody has signed with a valid signature, this one or another."""
        try:
            return None if self.content is None else read_head(self.content[:-1])[1].head
        except SignatureError:
            return None

    @property
    def fits(self) -> bool:
        """Whether it is a valid signature of this head, by whomever."""
        return self.signed == self.head


def read_offer(
    peer: StatementReader, policy: SignaturePolicy, pause: Callable[[float], None] = time.sleep
) -> Offer | None:
    """The peer's head and signature, read once more when they do not fit: its owner may just have committed.

    Where a signature is required and that of another head is there, it is waited for a moment.

    None: there is no such dataset.
    """
    offer = _read(peer)
    if offer is None or offer.fits or (offer.content is None and not policy.required):
        return offer
    offer = _read(peer)
    for seconds in _PAUSES if policy.required else ():
        if offer is None or offer.fits or offer.signed is None:
            break
        pause(seconds)
        offer = _read(peer)
    return offer


def _read(peer: StatementReader) -> Offer | None:
    head = peer.head()
    if head is None:
        return None
    try:
        return Offer(head, peer.signed(SignedFile.HEAD))
    except TransferError as error:
        return Offer(head, None, one_line(error.message, 800))


def judge(offer: Offer, dataset_id: DatasetId, number: int, block_at: BlockAt) -> HeadSignature:
    """What the signature of an offer is worth; `block_at` knows the peer's chain."""
    if offer.unread is not None:
        return HeadSignature(
            SignatureStatus.UNSIGNED, Problem.MISSING, f"the head's signature cannot be read: {offer.unread}"
        )
    return check_head(offer.content, dataset_id, offer.head, number, block_at=block_at)


def refuse_unsigned(found: HeadSignature, policy: SignaturePolicy, *, name: str, where: str) -> None:
    """The signature is what the policy wants.

    Raises:
        SignatureError: it is not; dataset, peer and problem are named.
    """
    if not policy.required:
        return
    about = f"{name} at {where}"
    try:
        signed = found.require(about)
    except SignatureError as error:
        raise SignatureError(
            error.problem,
            f"{error.message}; a signature is required",
            hint="ask its owner for a signature (`odfchain sign`), or try another peer; "
            "--no-require-signature takes it as it is",
        ) from None
    now = policy.now()
    if (late := _of_the_future(signed, now)) is not None:
        raise SignatureError(
            Problem.IN_FUTURE,
            f"{about}: {late}",
            hint="compare the clocks of both machines; the owner can sign anew: `odfchain sign`",
        )
    age = (now.epoch_ns - signed.time.epoch_ns) // _NS
    if policy.max_age is not None and age > policy.max_age:
        raise SignatureError(
            Problem.TOO_OLD,
            f"{about}: the head's signature is of {signed.time}, {length(age)} ago (at most "
            f"{length(policy.max_age)} are accepted): the peer is frozen, newer blocks may be withheld",
            hint="try another peer, or ask the owner to sign the head anew: `odfchain sign`",
        )


def warnings(
    found: HeadSignature, offer: Offer, now: Timestamp, known: SignedHead | None, *, about: str
) -> list[str]:
    """What the user has to hear of a signature that was not refused; `known` was signed when last seen."""
    if found.status is SignatureStatus.INVALID:
        return [f"{about}: {found.message}; this signature is not kept"]
    if found.status is SignatureStatus.SIGNED and found.signed is not None:
        late = _of_the_future(found.signed, now)
        return [] if late is None else [f"{about}: {late}"]
    if known is not None:
        said = f"block {known.sequence_number} was signed when it was last seen ({known.time})"
        return [f"{about}: {found.message}; but {said}: the signature was stripped, or blocks were added"]
    if found.problem is not Problem.MISSING or offer.unread is not None:
        return [f"{about}: {found.message}"]
    return []


def _of_the_future(signed: SignedHead, now: Timestamp) -> str | None:
    if signed.time.epoch_ns - now.epoch_ns <= ATTEST.clock_seconds * _NS:
        return None
    return f"the head's signature is of {signed.time}, which is in the future (it is {now} here)"


# --- keeping ---------------------------------------------------------------------------------------------


def keep_signature(
    dataset: StoredDataset, dataset_id: DatasetId, head: Multihash, found: HeadSignature, now: Timestamp
) -> None:
    """Durably keep the better of the peer's signature and the one that is here; a wrong one is removed.

    Nothing is done when the head has moved on meanwhile.
    """
    number = dataset.chain.get(head).sequence_number
    with fsio.locked(dataset.folder / "info" / "lock"):
        if dataset.chain.head(HEAD) != head:
            return
        try:
            content = read_head_signature(dataset.folder)
        except StoreError:  # something else has its place; it is replaced
            content = b""
        here = check_head(
            content, dataset_id, head, number, block_at=lambda n: dataset.chain.hash_at(n, head)
        )
        best = better(here, found, now)
        path = dataset.folder / HEAD_SIGNATURE_KEY
        if best is None and content is not None:
            fsio.remove_file(path)
        elif best is not None and content != best:
            fsio.replace_file(path, best)


def signed_last(dataset: StoredDataset, dataset_id: DatasetId) -> SignedHead | None:
    """The head of a local dataset that its owner has signed last, as far as that is known here."""
    try:
        signer, signed = read_head((read_head_signature(dataset.folder) or b"")[:-1])
    except (SignatureError, StoreError):
        return None
    return signed if signer == signed.dataset_id == dataset_id else None


def better(one: HeadSignature, other: HeadSignature, now: Timestamp) -> bytes | None:
    """The file of the signature that says more of the same head: the newer block, then the later time.

    A time that has not come is worse than any that has: else nobody could make good what a wrong clock did.
    """
    found = [
        (s.signed.sequence_number, _of_the_future(s.signed, now) is None, s.signed.time.epoch_ns, s.text)
        for s in (other, one)
        if s.status is not SignatureStatus.INVALID and s.signed is not None and s.text is not None
    ]
    return max(found)[-1].encode() + b"\n" if found else None


def chain_at(dataset: StoredDataset, head: Multihash) -> BlockAt:
    """The hashes of a local chain by number."""
    known = dataset.chain.names(head)
    return lambda number: known[number] if number < len(known) else None


def read_lines_of(peer: StatementReader, key: str) -> tuple[bytes | None, str | None]:
    """A peer's file of signed lines, and why it could not be read; nothing is raised for that."""
    try:
        return peer.signed(SignedFile(key)), None
    except TransferError as error:
        return None, one_line(error.message, 800)


def keep_lines(
    file: LineFile[T],
    received: bytes,
    dataset: StoredDataset,
    dataset_id: DatasetId,
    head: Multihash,
    trusted: Collection[Did],
) -> Merged:
    """The valid lines about blocks of this chain are here, too."""
    accept = file.of_chain(chain_at(dataset, head))
    return file.merge(dataset.folder, dataset_id, received, accept=accept, trusted=trusted)
