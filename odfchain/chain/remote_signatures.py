"""Signed statements in transfer: read with the head, checked against the chain, kept with the copy's head.

A copy's `refs/head.jws` is the owner's word on the copy's own chain, or it is not there: what a peer has is
stored only if it is that. Without a policy an unsigned or wrongly signed head is said and not refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from odfchain.chain.signed_heads import (
    HEAD_SIGNATURE_KEY,
    BlockAt,
    HeadSignature,
    SignatureStatus,
    check_branch,
    check_head,
    read_head_signature,
)
from odfchain.chain.signed_lines import AUDITS, SNAPSHOTS, LineFile, Merged, T, content_of
from odfchain.chain.signing import SignedFile, StatementReader, StatementWriter, StoredDataset
from odfchain.chain.statements import Did, Problem, SignedHead, read_head
from odfchain.errors import ManifestError, SignatureError, StoreError, TransferError, UsageError
from odfchain.limits import ATTEST
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.storage.local import HEAD
from odfchain.text import one_line

# What a copy wants of the signature of its peer's head: nothing, a valid one, or a young one.
#
# A policy comes from the command line, from what is set for a dataset (`info/config`), and from the
# repositories that it is pulled from (`repos/NAME`). They add up; only the command line takes away.


@dataclass(frozen=True, slots=True, kw_only=True)
class SignaturePolicy:
    """A signature that is wanted must be the owner's, of the very head, and not of the future."""

    require: bool = False
    """True if a head without a valid signature is refused; a longest age wants that, too."""
    max_age: int | None = None
    """How long ago the signature may have been made [s]: a peer that withholds new blocks cannot renew it."""
    now: Callable[[], Timestamp] = field(default=Timestamp.now, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_age is not None and self.max_age < 1:
            raise UsageError(f"a signature cannot be younger than {self.max_age} seconds")

    @property
    def required(self) -> bool:
        """True if a head without a valid signature is refused."""
        return self.require or self.max_age is not None

    def __str__(self) -> str:
        if self.max_age is not None:
            return f"required, at most {length(self.max_age)} old"
        return "required" if self.require else "not required"

    def and_also(self, other: SignaturePolicy) -> SignaturePolicy:
        """The stricter of both policies; the clock is this one's."""
        ages = [age for age in (self.max_age, other.max_age) if age is not None]
        return SignaturePolicy(
            require=self.required or other.required, max_age=min(ages, default=None), now=self.now
        )


NO_POLICY = SignaturePolicy()


def length(seconds: int) -> str:
    """A length of time for people, rounded down."""
    for unit, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds // unit:,} {name}"
    return f"{seconds:,} seconds"


def as_fields(policy: SignaturePolicy) -> dict[str, Any]:
    """The fields of a manifest that hold a policy; nothing is written where nothing is wanted."""
    return {
        "require_signature": True if policy.required else None,
        "max_signature_age_seconds": policy.max_age,
    }


def from_fields(require: bool | None, max_age: int | None, *, source: str) -> SignaturePolicy:
    """The policy that a manifest's fields hold.

    Raises:
        ManifestError: the age is none.
    """
    try:
        return SignaturePolicy(require=bool(require), max_age=max_age)
    except UsageError as error:
        raise ManifestError(str(error), path="maxSignatureAgeSeconds", source=source) from None


_NS = 1_000_000_000
# How long a signature is waited for that follows its head [s]: about as long as a push takes for it.
_PAUSES = (0.02, 0.1)


@dataclass(frozen=True, slots=True)
class Offer:
    """The head that a peer names, and what it has as its signature; `unread` says why that is not known."""

    head: Multihash
    content: bytes | None
    unread: str | None = None

    @property
    def signed(self) -> Multihash | None:
        """The head under a valid signature by any signer, this one or another."""
        try:
            return None if self.content is None else read_head(self.content[:-1])[1].head
        except SignatureError:
            return None

    @property
    def fits(self) -> bool:
        """True if it is a valid signature of this head, by whomever."""
        return self.signed == self.head


def read_offer(
    peer: StatementReader, policy: SignaturePolicy, pause: Callable[[float], None] = time.sleep
) -> Offer | None:
    """The peer's head and signature, read once more when they do not fit: its owner may just have committed.

    None: there is no such dataset.
    """
    offer = _read(peer)
    if offer is None or offer.fits or (offer.content is None and not policy.required):
        return offer
    offer = _read(peer)
    # the owner may have committed and not yet signed: worth a moment's wait where a signature is required
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
    """The status of an offer's signature; `block_at` knows the peer's chain."""
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
    """Warnings about a signature that was not refused; `known` was signed when last seen."""
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
    """Durably keep the better of the peer's signature and the one that is here; a wrong one is removed."""
    number = dataset.chain.get(head).sequence_number
    with fsio.locked(dataset.folder / "info" / "lock"):
        # the head has moved on meanwhile, so neither signature is of the newest block
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
    """The file of the signature that says more of the same head: the newer block, then the later time."""
    # a future time is worse than any past one: else a signature made with a wrong clock could not be replaced
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


# Signed statements are pushed after the head, so that no signed block is missing at the destination.
#
# What the destination has is not lost: the better signature of the head stays, and attestations are joined.
# Two pushes at the same moment may each write what they know; the next one joins them.


@dataclass(frozen=True, slots=True)
class Statements:
    """The destination's signed statements now; `problem` says which could not be written."""

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
        # the push itself is done by now: what fails here must not fail it
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
    """A node's signed statements, after it was offered the owner's signature of its head, if that is here."""
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
    try:
        return peer.signed(file)
    except TransferError:
        # what cannot be read there is worse than any signature of ours, so it is replaced
        return b""
