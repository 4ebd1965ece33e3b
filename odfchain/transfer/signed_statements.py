"""Signed statements in transfer: read with the head, checked against the chain, kept with the copy's head.

A copy's `refs/head.jws` is the owner's word on the copy's own chain, or it is not there: what a peer has is
stored only if it is that. Without a policy an unsigned or wrongly signed head is said and not refused.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from odfchain import errors
from odfchain.chain.checkpoints import WitnessPolicy, note_in, read_note
from odfchain.chain.equivocation import Claim, EvidenceStore, evidence_of_keys
from odfchain.chain.key_statements import KeyHistory, Scope, join_keys, keep_keys, keys_content, seen_keys
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
from odfchain.chain.statements import Did, Problem, SignedHead, parse_did, read_bounded, read_head
from odfchain.limits import ATTEST
from odfchain.odf.identity import DatasetId, Multihash, encode_base16
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.storage.local import HEAD
from odfchain.storage.public_layout import SignedFile
from odfchain.storage.store import Store
from odfchain.text import length, one_line
from odfchain.transfer.witnesses import Witnessed
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles

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
            raise errors.UsageError(f"a signature cannot be younger than {self.max_age} seconds")

    @property
    def required(self) -> bool:
        """True if a head without a valid signature is refused."""
        return self.require or self.max_age is not None

    def __str__(self) -> str:
        if self.max_age is not None:
            return f"required, at most {length(self.max_age)} old"
        return "required" if self.require else "not required"

    def as_fields(self) -> dict[str, Any]:
        """The fields of a manifest that hold the policy; nothing is written where nothing is wanted."""
        return {"require_signature": self.required or None, "max_signature_age_seconds": self.max_age}

    @classmethod
    def from_fields(cls, require: bool | None, max_age: int | None) -> SignaturePolicy:
        """The policy that a manifest's fields hold."""
        return cls(require=bool(require), max_age=max_age)

    def and_also(self, other: SignaturePolicy) -> SignaturePolicy:
        """The stricter of both policies; the clock is this one's."""
        ages = [age for age in (self.max_age, other.max_age) if age is not None]
        required, youngest = self.required or other.required, min(ages, default=None)
        return SignaturePolicy(require=required, max_age=youngest, now=self.now)


NO_POLICY = SignaturePolicy()


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
        except errors.SignatureError:
            return None

    @property
    def fits(self) -> bool:
        """True if it is a valid signature of this head, by whomever."""
        return self.signed == self.head


def read_offer(
    peer: Store, policy: SignaturePolicy, pause: Callable[[float], None] = time.sleep
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


def _read(peer: Store) -> Offer | None:
    if (head := peer.head()) is None:
        return None
    try:
        return Offer(head, peer.signed(SignedFile.HEAD))
    except errors.TransferError as error:
        return Offer(head, None, one_line(error.message, 800))


def _judge(
    offer: Offer, keys: KeyHistory, number: int, block_at: BlockAt, known: SignedHead | None,
    shown: Callable[[Multihash], Timestamp | None],
) -> HeadSignature:  # fmt: skip
    """The status of an offer's signature; `block_at` knows the peer's chain, `known` was signed when seen.

    `shown` is when witnesses had seen a head.
    """

    def there(signed: SignedHead) -> bool | Timestamp:
        # a block that was taken without a signature may be the thief's
        at = known.sequence_number if known is not None else -1
        seen = known is not None and signed.sequence_number <= at and block_at(at) == known.head
        return seen or shown(signed.head) or False

    if offer.unread is not None:
        return HeadSignature(
            SignatureStatus.UNSIGNED, Problem.MISSING, f"the head's signature cannot be read: {offer.unread}"
        )
    return check_head(
        offer.content, keys.dataset_id, offer.head, number, block_at=block_at, keys=keys, there=there
    )


def refuse_unsigned(found: HeadSignature, policy: SignaturePolicy, *, name: str, where: str) -> None:
    """The signature is what the policy wants; else a `SignatureError` names dataset, peer and problem."""
    if not policy.required:
        return
    about = f"{name} at {where}"
    try:
        signed = found.require(about)
    except errors.SignatureError as error:
        raise errors.SignatureError(
            error.problem,
            f"{error.message}; a signature is required",
            hint="ask its owner for a signature (`odfchain sign`), or try another peer; "
            "--no-require-signature takes it as it is",
        ) from None
    now = policy.now()
    if (late := _of_the_future(signed, now)) is not None:
        raise errors.SignatureError(
            Problem.IN_FUTURE,
            f"{about}: {late}",
            hint="compare the clocks of both machines; the owner can sign anew: `odfchain sign`",
        )
    age = (now.epoch_ns - signed.time.epoch_ns) // _NS
    if policy.max_age is not None and age > policy.max_age:
        raise errors.SignatureError(
            Problem.TOO_OLD,
            f"{about}: the head's signature is of {signed.time}, {length(age)} ago (at most "
            f"{length(policy.max_age)} are accepted): the peer is frozen, newer blocks may be withheld",
            hint="try another peer, or ask the owner to sign the head anew: `odfchain sign`",
        )


def _warnings(
    found: HeadSignature, offer: Offer, now: Timestamp, known: SignedHead | None, *, about: str
) -> list[str]:
    """Warnings about a signature that was not refused; `known` was signed when last seen."""
    if found.status is SignatureStatus.INVALID:
        return [f"{about}: {found.message}; this signature is not kept"]
    if found.status is SignatureStatus.SIGNED and found.signed is not None:
        late = _of_the_future(found.signed, now)
        return [] if late is None else [f"{about}: {late}"]
    if offer.unread is not None:
        return [f"{about}: {found.message}"]
    # commits that their owner has not signed are no fault; a signature that is older than one seen is
    if known is not None and (found.signed is None or found.signed.sequence_number < known.sequence_number):
        said = f"block {known.sequence_number} was signed when it was last seen ({known.time})"
        return [f"{about}: {found.message}; but {said}: the signature was stripped, or blocks were added"]
    return []


def _of_the_future(signed: SignedHead, now: Timestamp) -> str | None:
    if signed.time.epoch_ns - now.epoch_ns <= ATTEST.clock_seconds * _NS:
        return None
    return f"the head's signature is of {signed.time}, which is in the future (it is {now} here)"


def _keep_signature(dataset: DatasetFiles, head: Multihash, found: HeadSignature, now: Timestamp) -> None:
    """Durably keep the better of the peer's signature and the one that is here; a wrong one is removed."""
    number = dataset.chain.get(head).sequence_number
    with fsio.locked(dataset.folder / "info" / "lock"):
        # the head has moved on meanwhile, so neither signature is of the newest block
        if dataset.chain.head(HEAD) != head:
            return
        try:
            data = read_head_signature(dataset.folder)
        except errors.StoreError:  # something else has its place; it is replaced
            data = b""
        at, keys = dataset.chain.by_number(head), dataset.keys_history()
        here = check_head(data, dataset.id, head, number, block_at=at, keys=keys)
        best = better(here, found, now)
        path = dataset.folder / HEAD_SIGNATURE_KEY
        if best is None and data is not None:
            fsio.remove_file(path)
        elif best is not None and data != best:
            fsio.replace_file(path, best)


def signed_last(dataset: DatasetFiles, dataset_id: DatasetId) -> SignedHead | None:
    """The head of a local dataset that its owner has signed last, as far as that is known here."""
    try:
        return _signed_head((read_head_signature(dataset.folder) or b"")[:-1], dataset_id)
    except errors.StoreError:
        return None


def _signed_head(text: bytes, dataset_id: DatasetId) -> SignedHead | None:
    """What a text that was judged before says of a dataset."""
    try:
        signed = read_head(text)[1]
    except errors.SignatureError:
        return None
    return signed if signed.dataset_id == dataset_id else None


def better(one: HeadSignature, other: HeadSignature, now: Timestamp) -> bytes | None:
    """The file of the signature that says more of the same head: the newer block, then the later time."""
    # a future time is worse than any past one: else a signature made with a wrong clock could not be replaced
    found = [
        (s.signed.sequence_number, _of_the_future(s.signed, now) is None, s.signed.time.epoch_ns, s.text)
        for s in (other, one)
        if s.status is not SignatureStatus.INVALID and s.signed is not None and s.text is not None
    ]
    return max(found)[-1].encode() + b"\n" if found else None


# Rollback guard: the newest block of every dataset that was ever pulled or pushed.
#
#     seen/fed01…             `<sequence number> <hash of the block>`, one file for each dataset id;
#                             a second line is the owner's signature of the newest head that came with one
#
# Hashes prove that a chain was not altered, not that it is the newest. So the highest block seen is
# remembered, also after the dataset was deleted here; a peer whose chain does not contain it is refused
# (RFC-021). The signature shows later that a dataset was signed once, and is one half of the proof if the
# owner ever signs another history.

_TEXT = re.compile(
    r"(0|[1-9][0-9]{0,19}) (f1620[0-9a-f]{64})(?:\n([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+))?",
    re.ASCII,
)
_READ_BYTES = 256 + ATTEST.statement_bytes


@dataclass(frozen=True, slots=True)
class Seen:
    """A block of a chain: its sequence number and its hash."""

    sequence_number: int
    head: Multihash
    signature: str | None = None
    """The owner's signed statement of this block, or of an earlier one of its chain."""


@dataclass(frozen=True, slots=True)
class SeenHeads:
    """The memory of one workspace; `folder` is its `seen` folder."""

    folder: Path

    def _path(self, dataset_id: DatasetId) -> Path:
        return self.folder / encode_base16(dataset_id.to_bytes())

    def get(self, dataset_id: DatasetId) -> Seen | None:
        """The newest block seen of a dataset, None when it was never seen; `StoreError` if damaged."""
        if (data := fsio.read_start(self._path(dataset_id), _READ_BYTES)) is None:
            return None
        if (found := _TEXT.fullmatch(data.decode("ascii", "replace"))) is None:
            raise self._damaged(dataset_id)
        return Seen(int(found[1]), Multihash.parse(found[2]), found[3])

    def signed(self, dataset_id: DatasetId, seen: Seen | None) -> SignedHead | None:
        """The owner's signed head that was seen, verified anew; None when it was never signed."""
        if seen is None or seen.signature is None:
            return None
        if (signed := _signed_head(seen.signature.encode(), dataset_id)) is None:
            raise self._damaged(dataset_id)
        return signed

    def _damaged(self, dataset_id: DatasetId) -> errors.StoreError:
        path = self._path(dataset_id)
        return errors.StoreError(
            f"{path}: the memory of the newest block seen is damaged",
            hint=f"if you trust the peer to have the newest block, remove {path} and pull again",
        )

    def remember(self, dataset_id: DatasetId, seen: Seen, *, lower: bool = False) -> None:
        """Durably remember a block unless a higher one is remembered; with `lower`, whatever is.

        A signature takes the place of one that is remembered if it is of the same block or a later one.
        """
        fsio.make_folder(self.folder)
        # two commands may remember blocks of one dataset at the same time
        with fsio.locked(self.folder / ".lock"):
            known = None if lower else self.get(dataset_id)
            new = seen if known is None else self._newer(dataset_id, known, seen)
            if new != known:
                text = f"{new.sequence_number} {new.head}" + (f"\n{new.signature}" if new.signature else "")
                fsio.replace_file(self._path(dataset_id), text.encode())

    def _newer(self, dataset_id: DatasetId, known: Seen, seen: Seen) -> Seen:
        new = seen if known.sequence_number < seen.sequence_number else known
        old, late = self.signed(dataset_id, known), self.signed(dataset_id, seen)
        keeps = late is None or (
            old is not None
            and (old.sequence_number, old.time.epoch_ns) >= (late.sequence_number, late.time.epoch_ns)
        )
        return replace(new, signature=known.signature if keeps else seen.signature)


# Two histories by one owner: noticed when a signed head meets what was signed before, and kept as proof.
#
# What was signed before is what this workspace remembers (`SeenHeads`) and the
# signature of the local head. The proof is kept whatever becomes of the pull.

EVIDENCE_HINT = "its owner has signed two histories, and the proof is kept: `odfchain evidence`"


def _claims(keys: KeyHistory, dataset: DatasetFiles | None, seen: Seen | None) -> list[Claim]:
    """What the owner is known to have signed before; `dataset` is the copy that is here."""
    texts = [seen.signature if seen is not None else None]
    if dataset is not None:
        # a fault of the file itself is reported where it is read
        with suppress(errors.OdfchainError, UnicodeError):
            texts.append((read_head_signature(dataset.folder) or b"").decode("ascii").rstrip("\n"))
    claims = [_claim(text, keys, lambda _: None, _absent) for text in dict.fromkeys(texts)]
    return [_at_hand(claim, dataset) for claim in claims if claim is not None]


def _claim(
    text: str | None, keys: KeyHistory, block_at: BlockAt, read: Callable[[Multihash], bytes]
) -> Claim | None:
    """The claim that a signed text makes; None where the text is not of this dataset's owner."""
    try:
        signer, signed = read_head((text or "").encode())
        delegate = keys.judge(signer, Scope.HEADS, signed.time)
    except errors.SignatureError:
        return None
    texts = keys.texts if delegate is not None else None
    return Claim(text or "", signed, block_at, read, texts) if signed.dataset_id == keys.dataset_id else None


def _at_hand(claim: Claim, dataset: DatasetFiles | None) -> Claim:
    """The claim with its history, if its head is among the blocks that are stored here."""
    if dataset is None or not dataset.chain.contains(claim.signed.head):
        return claim
    chain, head = dataset.chain, claim.signed.head
    return replace(claim, block_at=lambda number: chain.hash_at(number, head), read=chain.get_bytes)


def _absent(name: Multihash) -> bytes:
    raise errors.OdfchainError(f"block {name} is not here")


@dataclass(slots=True)
class Examination:
    """The result of examining a peer's signed statements; `warnings` are for the user."""

    workspace: WorkspaceFiles
    peer: Store
    offer: Offer
    policy: SignaturePolicy
    force: bool
    wanted: tuple[WitnessPolicy, ...] = ()
    """What is wanted of witnesses."""
    witnessed: Witnessed = field(init=False)

    accept_successor: bool = False
    keys: KeyHistory = field(init=False)
    signature: HeadSignature = field(init=False)
    attestations: int = field(default=0, init=False)
    believed: list[Did] = field(default_factory=list, init=False)
    """The owner and the auditors whom this workspace trusts, once something of theirs was received."""
    forgets: bool = field(default=False, init=False)
    """True if the memory gives way to the peer's chain: `force` was given, and it is another one."""
    warnings: list[str] = field(default_factory=list, init=False)
    _proofs: list[str] = field(default_factory=list, init=False)
    # Files of signed lines, by their keys.
    _received: dict[str, bytes] = field(default_factory=dict, init=False)

    @property
    def text(self) -> str | None:
        """The owner's statement on this chain, for the memory."""
        found = self.signature
        return found.text if found.status is not SignatureStatus.INVALID else None

    @property
    def snapshot_lines(self) -> bytes | None:
        """The peer's lines about snapshots."""
        return self._received.get(SNAPSHOTS.key)

    def examine(
        self,
        dataset_id: DatasetId,
        dataset: DatasetFiles | None,
        number: int,
        theirs: BlockAt,
        read: Callable[[Multihash], bytes],
        name: str,
    ) -> Seen | None:
        """Judge the signature of the peer's head, block `number`; a proof of two histories is kept.

        `dataset` is the copy that is here, `theirs` and `read` know the peer's chain. Returned is the newest
        block seen, unless `force` lets it be forgotten.
        """
        where, now = self.peer.where, self.policy.now()
        memory = SeenHeads(self.workspace.root / "seen")
        try:
            seen = memory.get(dataset_id)
            known = memory.signed(dataset_id, seen)
        except errors.StoreError:
            if not self.force:
                raise
            seen = known = None
        self.forgets = self.force and (seen is None or theirs(seen.sequence_number) != seen.head)
        self._join_keys(dataset_id, dataset)
        about, trust = f"{name} at {where}", self.workspace.config.trust
        self.witnessed = Witnessed(self.workspace, trust, self.wanted, self.warnings)
        note = self._signed(SignedFile.CHECKPOINT, "the checkpoint")
        shown = functools.partial(self.witnessed.shown, note, self.keys)
        found = _judge(self.offer, self.keys, number, theirs, known, shown)
        if (offered := _claim(found.text, self.keys, theirs, read)) is not None:
            signed = offered.signed
            if signed.sequence_number > number or theirs(signed.sequence_number) != signed.head:
                # the signed block is not in the chain that came with it: of its history nothing is known
                offered = replace(offered, block_at=lambda _: None)
            self._prove(offered, dataset_id, _claims(self.keys, dataset, seen), now)
        refuse_unsigned(found, self.policy, name=name, where=where)
        self.signature = found
        with_proof = any("has the proof" in text for text in self._proofs)
        self.witnessed.examine(note, self.keys, dataset, number, theirs, about, where, now, proven=with_proof)
        self.witnessed.require(dataset_id, about, now, self.policy.max_age, force=self.force)
        self.warnings += [*self._proofs, *_warnings(found, self.offer, now, known, about=about)]
        if dataset is not None and self.workspace.has_key(dataset_id):
            self._to_the_owner(dataset, theirs, about)
        for key, many in ((AUDITS.key, AUDITS.many), (SNAPSHOTS.key, SNAPSHOTS.many)):
            if (received := self._signed(SignedFile(key), many)) is not None:
                self._received[key] = received
        return None if self.force else seen

    def _signed(self, file: SignedFile, what: str) -> bytes | None:
        try:
            return self.peer.signed(file)
        except errors.TransferError as error:
            self._not_taken(what, [one_line(error.message, 800)])
        return None

    def _join_keys(self, dataset_id: DatasetId, dataset: DatasetFiles | None) -> None:
        """The keys statements that were seen before, and those of the peer."""
        seen = read_bounded(seen_keys(self.workspace.root, dataset_id), ATTEST.keys_bytes) or b""
        here = seen + ((dataset is not None and keys_content(dataset.folder)) or b"")
        there = self._signed(SignedFile.KEYS, "keys statements")
        self.keys = join_keys(dataset_id, here, there, accept=self.accept_successor)
        self.warnings += [f"{self.peer.where}: {said}" for said in self.keys.problems]
        if (proof := evidence_of_keys(self.keys)) is not None:
            store = EvidenceStore(self.workspace.root / "evidence")
            store.keep(proof, self.peer.where, self.policy.now())

    def _prove(self, offered: Claim, dataset_id: DatasetId, claims: Sequence[Claim], now: Timestamp) -> None:
        """Keep the proofs that what is offered conflicts with what was signed before."""
        said, owner = [], f"{self.peer.where}: the owner of {dataset_id}"
        for known in claims:
            try:
                evidence = known.prove(offered)
            except errors.OdfchainError as error:
                why = one_line(error.message, 300)
                said.append(f"{owner} may have signed two histories, but the proof is not kept: {why}")
                continue
            if evidence is not None:
                EvidenceStore(self.workspace.root / "evidence").keep(evidence, self.peer.where, now)
                one, other = evidence.hashes
                said.append(
                    f"{owner} has signed two blocks {evidence.sequence_number}, {one} and {other}: "
                    "`odfchain evidence` has the proof"
                )
        self._proofs = list(dict.fromkeys(said))

    def _to_the_owner(self, dataset: DatasetFiles, theirs: BlockAt, about: str) -> None:
        # the key's holder vouches for all blocks below the next one, and for what was signed before
        if self.signature.status is not SignatureStatus.SIGNED and dataset.chain.head() != self.offer.head:
            self.warnings.append(
                f"{about}: its newest blocks are not signed with the dataset's key, which is here: your next "
                "commit signs them, too"
            )
        signed = signed_last(dataset, dataset.id)
        if self.force and signed is not None and theirs(signed.sequence_number) != signed.head:
            self.warnings.append(
                f"{about}: block {signed.sequence_number} {signed.head} is given up, which is signed with "
                "the dataset's key: anyone who kept it can prove equivocation once you commit again"
            )

    def _not_taken(self, what: str, problems: Sequence[str]) -> None:
        if problems:
            more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
            self.warnings.append(f"{what} of {self.peer.where} were not taken: {problems[0]}{more}")

    @contextmanager
    def proving(self) -> Iterator[None]:
        """Errors within name the proof, where a second history was found."""
        try:
            yield
        except (errors.ChainsDifferError, errors.NameCollisionError, errors.SignatureError) as error:
            if self._proofs:
                error.hint = f"{error.hint}; {EVIDENCE_HINT}" if error.hint else EVIDENCE_HINT
                error.add_note(f"hint: {EVIDENCE_HINT}")
            raise

    def keep(self, dataset: DatasetFiles) -> None:
        """Store the signature of the head that has moved, and the attestations of this chain."""
        keep_keys(self.workspace.root, dataset.folder, self.keys)
        _keep_signature(dataset, self.offer.head, self.signature, self.policy.now())
        self.witnessed.keep(dataset, self.offer.head, lower=self.forgets)
        if self._received:
            trusted = tuple(map(parse_did, self.workspace.config.audit.trusted_auditors))
            self.believed = [*self.keys.signers(Scope.SNAPSHOTS), *trusted]
            merged = self._keep(AUDITS, dataset, trusted)
            self.attestations = merged.added
            # lines that cannot be stored are a warning: the head has moved already
            self._not_taken(AUDITS.many, merged.refused)
            # that old lines give way to new ones, or were said better since, is no news
            merged = self._keep(SNAPSHOTS, dataset, self.believed)
            self._not_taken(SNAPSHOTS.many, merged.damaged)

    def _keep(self, file: LineFile[T], dataset: DatasetFiles, believed: Sequence[Did]) -> Merged:
        if (received := self._received.get(file.key)) is None:
            return Merged(0)
        try:
            accept = file.of_chain(dataset.chain.by_number(self.offer.head))
            return file.merge(dataset.folder, dataset.id, received, accept=accept, trusted=believed)
        except errors.StoreError as error:  # the head has moved: that must not seem to have failed
            return Merged(0, (error.message,))


# Signed statements are pushed after the head, so that no signed block is missing at the destination.
#
# What the destination has is not lost: the better signature of the head stays, and attestations are joined.
# Two pushes at the same moment may each write what they know; the next one joins them.


def push_statements(
    dataset: DatasetFiles, peer: Store, head: Multihash, trusted: Sequence[Did] = (),
    cosigned: Callable[[], object] = lambda: None,
) -> tuple[SignatureStatus, str | None]:  # fmt: skip
    """The destination, whose head is `head`, has its signature and the attestations of this chain.

    The checkpoint is sent last, when `cosigned` returns. Returns the signature there, and which statements
    could not be written. Of a branch it has the signature; attestations go with the head. A failure there is
    no failure of the push, which is done by then; nor are local statements that cannot be read.
    """
    status = SignatureStatus.UNSIGNED
    block_at = dataset.chain.by_number(head)
    try:
        keys = _push_keys(dataset, peer)
        status = _push_signature(dataset, peer, head, block_at, keys)
        if dataset.chain.ref != HEAD:
            return status, None
        _push_lines(AUDITS, dataset, peer, block_at, trusted)
        # the owner is the first to be believed about his own dataset
        _push_lines(SNAPSHOTS, dataset, peer, block_at, (*keys.signers(Scope.SNAPSHOTS), *trusted))
        cosigned()
        push_note(dataset, peer, head, keys)
    except (errors.TransferError, errors.StoreError) as error:
        # the push itself is done by now: what fails here must not fail it
        return status, f"not all signed statements were written: {one_line(error.message, 800)}"
    return status, None


def _push_keys(dataset: DatasetFiles, peer: Store) -> KeyHistory:
    """The destination has the keys statements of both sides; what it alone has is not believed for that."""
    if not (keys := dataset.keys_history()).reached:
        return keys
    there = _there(peer, SignedFile.KEYS)
    if (content := join_keys(dataset.id, keys.content(), there).content()) and content != there:
        peer.put_signed(SignedFile.KEYS, content)
    return keys


def _push_signature(
    dataset: DatasetFiles, peer: Store, head: Multihash, at: BlockAt, keys: KeyHistory
) -> SignatureStatus:
    ref, number = dataset.chain.ref, dataset.chain.get(head).sequence_number
    here, there = read_head_signature(dataset.folder, ref), _there(peer, SignedFile.HEAD)

    def judged(content: bytes | None) -> HeadSignature:
        if ref != HEAD:
            return check_branch(content, dataset.id, ref, head, keys)
        ours = content == here
        return check_head(content, dataset.id, head, number, block_at=at, keys=keys, there=lambda _: ours)

    if ref == HEAD:
        best = better(judged(there), judged(here), Timestamp.now())
    else:  # one of before the branch has moved says nothing
        best = next((each for each in (here, there) if judged(each).status is SignatureStatus.SIGNED), None)
    if best != there and peer.head() == head:
        peer.put_signed(SignedFile.HEAD, best)
    return judged(best).status


def push_note(dataset: DatasetFiles, peer: Store, head: Multihash, keys: KeyHistory) -> None:
    """The destination has the checkpoint of its head, with the cosignatures of both sides."""
    if (note := note_in(dataset.folder, dataset.id)) is None or note.checkpoint.head != head:
        return
    if (there := _there(peer, SignedFile.CHECKPOINT)) is not None:
        with suppress(errors.SignatureError):  # what else is there gives way
            note = note.merged(read_note(there, dataset.id, keys.signers(Scope.CHECKPOINTS)), ())
    if note.data() != there and peer.head() == head:
        peer.put_signed(SignedFile.CHECKPOINT, note.data())


def push_to_node(dataset: DatasetFiles, peer: Store, head: Multihash, *, moved: bool) -> SignatureStatus:
    """A node was offered the keys statements that are here, and the owner's words on its head.

    Where the head has not `moved` by this push, it is offered only what differs.
    """
    number = dataset.chain.get(head).sequence_number
    here, keys = read_head_signature(dataset.folder), dataset.keys_history()
    files = {SignedFile.KEYS: keys.content()}
    if check_head(here, dataset.id, head, number, keys=keys).status is SignatureStatus.SIGNED and here:
        files[SignedFile.HEAD] = here
        if (note := note_in(dataset.folder, dataset.id)) is not None and note.checkpoint.head == head:
            files[SignedFile.CHECKPOINT] = note.data()
    for file, content in files.items():
        if content and (moved or _there(peer, file) != content):
            peer.put_signed(file, content)
    known = SignedFile.HEAD in files and _there(peer, SignedFile.HEAD) == here
    return SignatureStatus.SIGNED if known else SignatureStatus.UNSIGNED


def _push_lines(
    file: LineFile[T], dataset: DatasetFiles, peer: Store, block_at: BlockAt, trusted: Sequence[Did]
) -> None:
    wanted = file.of_chain(block_at)
    if not (ours := file.valid(file.content(dataset.folder), dataset.id, wanted)):
        return
    place = SignedFile(file.key)
    there = _there(peer, place)
    kept, _ = file.joined(file.valid(there, dataset.id, wanted), ours, trusted)
    content = content_of(kept)
    if content != there:
        peer.put_signed(place, content)


def _there(peer: Store, file: SignedFile) -> bytes | None:
    with suppress(errors.TransferError):
        return peer.signed(file)
    return b""  # what cannot be read there is worse than any signature of ours, so it is replaced
