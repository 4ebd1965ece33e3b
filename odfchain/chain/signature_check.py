"""The signed statements of one pull: the head's signature is judged, compared with what is known, kept."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from odfchain.chain.compare import ChainLinks, Descent
from odfchain.chain.equivocation import Claim, EvidenceStore, prove
from odfchain.chain.remote_signatures import (
    Offer,
    SignaturePolicy,
    judge,
    keep_lines,
    keep_signature,
    read_lines_of,
    refuse_unsigned,
    signed_last,
    warnings,
)
from odfchain.chain.signed_heads import BlockAt, HeadSignature, SignatureStatus, read_head_signature
from odfchain.chain.signed_lines import AUDITS, SNAPSHOTS, LineFile, Merged, T
from odfchain.chain.signing import KeyHolder, StatementReader, StoredDataset
from odfchain.chain.statements import Did, SignedHead, parse_did, read_head
from odfchain.errors import ChainsDifferError, NameCollisionError, OdfchainError, SignatureError, StoreError
from odfchain.limits import ATTEST
from odfchain.odf.identity import DatasetId, Multihash, encode_base16
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.text import one_line

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
        """The newest block seen of a dataset, None when it was never seen.

        Raises:
            StoreError: the file cannot be read, or is damaged.
        """
        path = self._path(dataset_id)
        data = fsio.read_start(path, _READ_BYTES)
        if data is None:
            return None
        found = _TEXT.fullmatch(data.decode("ascii", "replace"))
        if found is None:
            raise self._damaged(dataset_id)
        return Seen(int(found[1]), Multihash.parse(found[2]), found[3])

    def signed(self, dataset_id: DatasetId, seen: Seen | None) -> SignedHead | None:
        """The owner's signed head that was seen, verified anew; None when it was never signed.

        Raises:
            StoreError: the signature in the memory is damaged.
        """
        if seen is None or seen.signature is None:
            return None
        try:
            signer, signed = read_head(seen.signature.encode())
        except SignatureError:
            raise self._damaged(dataset_id) from None
        if not signer == signed.dataset_id == dataset_id:
            raise self._damaged(dataset_id)
        return signed

    def _damaged(self, dataset_id: DatasetId) -> StoreError:
        path = self._path(dataset_id)
        return StoreError(
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
# What was signed before is what this workspace remembers (`odfchain.chain.signature_check`) and the
# signature of the local head. The proof is kept whatever becomes of the pull.

EVIDENCE_HINT = "its owner has signed two histories, and the proof is kept: `odfchain evidence`"


@dataclass(frozen=True, slots=True)
class EquivocationDetector:
    """Compares what is offered with what was signed before, for one dataset; `dataset` is its copy here."""

    store: EvidenceStore
    dataset_id: DatasetId
    dataset: StoredDataset | None
    seen: Seen | None

    def examine(
        self,
        found: HeadSignature,
        number: int,
        block_at: BlockAt,
        read: Callable[[Multihash], bytes],
        *,
        where: str,
        now: Timestamp,
    ) -> list[str]:
        """Keep the proof if the peer's signature conflicts with one that is known; returns what to say.

        `block_at` and `read` know the peer's chain up to block `number`, whatever its signature is of.
        """
        offered = self._claim(found.text, block_at, read)
        if offered is None:
            return []
        signed = offered.signed
        if signed.sequence_number > number or block_at(signed.sequence_number) != signed.head:
            # the signed block is not in the chain that came with it: of its history nothing is known
            offered = Claim(offered.statement, signed, lambda _: None, read)
        said = []
        for known in self._known():
            owner = f"{where}: the owner of {self.dataset_id}"
            try:
                evidence = prove(known, offered)
            except OdfchainError as error:
                why = one_line(error.message, 300)
                said.append(f"{owner} may have signed two histories, but the proof is not kept: {why}")
                continue
            if evidence is not None:
                self.store.keep(evidence, where, now)
                one, other = evidence.hashes
                said.append(
                    f"{owner} has signed two blocks {evidence.sequence_number}, {one} and {other}: "
                    "`odfchain evidence` has the proof"
                )
        return list(dict.fromkeys(said))

    def _known(self) -> list[Claim]:
        texts = [self.seen.signature if self.seen is not None else None]
        if self.dataset is not None:
            try:
                texts.append((read_head_signature(self.dataset.folder) or b"").decode("ascii").rstrip("\n"))
            except (OdfchainError, UnicodeError):  # a fault of the file itself is reported where it is read
                texts.append(None)
        claims = []
        for text in dict.fromkeys(texts):
            claim = self._claim(text, lambda _: None, _absent)
            if claim is not None:
                claims.append(self._at_hand(claim))
        return claims

    def _claim(self, text: str | None, block_at: BlockAt, read: Callable[[Multihash], bytes]) -> Claim | None:
        """The claim that a signed text makes; None where the text is not of this dataset's owner."""
        try:
            signer, signed = read_head((text or "").encode())
        except SignatureError:
            return None
        if not signer == signed.dataset_id == self.dataset_id:
            return None
        return Claim(text or "", signed, block_at, read)

    def _at_hand(self, claim: Claim) -> Claim:
        """The claim with its history, if its head is among the blocks that are stored here."""
        if self.dataset is None or not self.dataset.chain.contains(claim.signed.head):
            return claim
        chain, head = self.dataset.chain, claim.signed.head

        def block_at(number: int) -> Multihash | None:
            return Descent(ChainLinks(chain), head).down_to(number)

        return Claim(claim.statement, claim.signed, block_at, chain.get_bytes)


def _absent(name: Multihash) -> bytes:
    raise OdfchainError(f"block {name} is not here")


@dataclass(slots=True)
class Examination:
    """The result of examining a peer's signed statements; `warnings` are for the user."""

    workspace: KeyHolder
    peer: StatementReader
    offer: Offer
    policy: SignaturePolicy
    force: bool
    trusted: Callable[[], Collection[str]]
    """The auditors whom this workspace believes."""
    signature: HeadSignature | None = field(default=None, init=False)
    attestations: int = field(default=0, init=False)
    believed: list[Did] = field(default_factory=list, init=False)
    """The owner and those auditors, once something of theirs was received."""
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
        return found.text if found is not None and found.status is not SignatureStatus.INVALID else None

    @property
    def snapshot_lines(self) -> bytes | None:
        """The peer's lines about snapshots."""
        return self._received.get(SNAPSHOTS.key)

    def examine(
        self,
        dataset_id: DatasetId,
        dataset: StoredDataset | None,
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
        except StoreError:
            if not self.force:
                raise
            seen = known = None
        self.forgets = self.force and (seen is None or theirs(seen.sequence_number) != seen.head)
        found = judge(self.offer, dataset_id, number, theirs)
        detector = EquivocationDetector(
            EvidenceStore(self.workspace.root / "evidence"), dataset_id, dataset, seen
        )
        self._proofs = detector.examine(found, number, theirs, read, where=where, now=now)
        refuse_unsigned(found, self.policy, name=name, where=where)
        self.signature = found
        about = f"{name} at {where}"
        self.warnings += [*self._proofs, *warnings(found, self.offer, now, known, about=about)]
        if dataset is not None and self.workspace.has_key(dataset_id):
            self._to_the_owner(dataset, dataset_id, theirs, about)
        for key, many in ((AUDITS.key, AUDITS.many), (SNAPSHOTS.key, SNAPSHOTS.many)):
            received, problem = read_lines_of(self.peer, key)
            if received is not None:
                self._received[key] = received
            self._not_taken(many, [problem] if problem else [])
        return None if self.force else seen

    def _to_the_owner(
        self, dataset: StoredDataset, dataset_id: DatasetId, theirs: BlockAt, about: str
    ) -> None:
        # the key's holder vouches for all blocks below the next one, and for what was signed before
        assert self.signature is not None  # noqa: S101 - it was judged before
        if self.signature.status is not SignatureStatus.SIGNED and dataset.chain.head() != self.offer.head:
            self.warnings.append(
                f"{about}: its newest blocks are not signed with the dataset's key, which is here: your next "
                "commit signs them, too"
            )
        signed = signed_last(dataset, dataset_id)
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
        except (ChainsDifferError, NameCollisionError, SignatureError) as error:
            if self._proofs:
                error.hint = f"{error.hint}; {EVIDENCE_HINT}" if error.hint else EVIDENCE_HINT
            raise

    def keep(self, dataset: StoredDataset, dataset_id: DatasetId) -> None:
        """Store the signature of the head that has moved, and the attestations of this chain."""
        assert self.signature is not None  # noqa: S101 - it was judged before
        keep_signature(dataset, dataset_id, self.offer.head, self.signature, self.policy.now())
        if self._received:
            self.believed = [dataset_id, *(parse_did(text) for text in self.trusted())]
            merged = self._keep(AUDITS, dataset, dataset_id, self.believed[1:])
            self.attestations = merged.added
            # lines that cannot be stored are a warning: the head has moved already
            self._not_taken(AUDITS.many, merged.refused)
            # that old lines give way to new ones, or were said better since, is no news
            merged = self._keep(SNAPSHOTS, dataset, dataset_id, self.believed)
            self._not_taken(SNAPSHOTS.many, merged.damaged)

    def _keep(
        self, file: LineFile[T], dataset: StoredDataset, dataset_id: DatasetId, believed: Sequence[Did]
    ) -> Merged:
        received = self._received.get(file.key)
        if received is None:
            return Merged(0)
        try:
            return keep_lines(file, received, dataset, dataset_id, self.offer.head, believed)
        except StoreError as error:  # the head has moved: that must not seem to have failed
            return Merged(0, (error.message,))
