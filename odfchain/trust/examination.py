"""The signed statements of one pull: the head's signature is judged, compared with what is known, kept."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from odfchain.errors import ChainsDifferError, NameCollisionError, SignatureError, StoreError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.trust.attestation_lines import AUDITS
from odfchain.trust.equivocation import EVIDENCE_HINT, EquivocationDetector
from odfchain.trust.offered import (
    Offer,
    judge,
    keep_lines,
    keep_signature,
    read_lines_of,
    refuse_unsigned,
    signed_last,
    warnings,
)
from odfchain.trust.parties import KeyHolder, StatementReader, StoredDataset
from odfchain.trust.proof_store import EvidenceStore
from odfchain.trust.seen import Seen, SeenHeads
from odfchain.trust.signature_policy import SignaturePolicy
from odfchain.trust.signed_head import BlockAt, HeadSignature, SignatureStatus
from odfchain.trust.signed_lines import LineFile, Merged, T
from odfchain.trust.signing_keys import Did, parse_did
from odfchain.trust.snapshot_lines import SNAPSHOTS


@dataclass(slots=True)
class Examination:
    """What came of the statements that a peer has beside its head; `warnings` are for the user."""

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
    """Whether the memory gives way to the peer's chain: `force` was given, and it is another one."""
    warnings: list[str] = field(default_factory=list, init=False)
    _proofs: list[str] = field(default_factory=list, init=False)
    _received: dict[str, bytes] = field(default_factory=dict, init=False)
    """Files of signed lines, by their keys."""

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
        """Who has the key answers for everything below the next block, and for what was signed before."""
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
                "the dataset's key: whoever has seen it has proof of two histories once you commit again"
            )

    def _not_taken(self, what: str, problems: Sequence[str]) -> None:
        if problems:
            more = f" (and {len(problems) - 1:,} more)" if len(problems) > 1 else ""
            self.warnings.append(f"{what} of {self.peer.where} were not taken: {problems[0]}{more}")

    @contextmanager
    def proving(self) -> Iterator[None]:
        """Who is refused after a second history was shown is told where the proof is."""
        try:
            yield
        except (ChainsDifferError, NameCollisionError, SignatureError) as error:
            if self._proofs:
                error.hint = f"{error.hint}; {EVIDENCE_HINT}" if error.hint else EVIDENCE_HINT
            raise

    def keep(self, dataset: StoredDataset, dataset_id: DatasetId) -> None:
        """The head has moved: its signature is beside it, and what auditors say of this chain is here.

        What is signed line by line and cannot be written is a warning.
        """
        assert self.signature is not None  # noqa: S101 - it was judged before
        keep_signature(dataset, dataset_id, self.offer.head, self.signature, self.policy.now())
        if self._received:
            self.believed = [dataset_id, *(parse_did(text) for text in self.trusted())]
            merged = self._keep(AUDITS, dataset, dataset_id, self.believed[1:])
            self.attestations = merged.added
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
