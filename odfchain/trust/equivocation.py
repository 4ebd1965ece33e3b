"""Two histories by one owner: noticed when a signed head meets what was signed before, and kept as proof.

What was signed before is what this workspace remembers (`odfchain.trust.seen`) and the signature beside the
local head. The proof is kept whatever becomes of the pull.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from odfchain.chain.compare import ChainLinks, Descent
from odfchain.errors import OdfchainError, SignatureError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.model.timestamp import Timestamp
from odfchain.text import one_line
from odfchain.trust.parties import StoredDataset
from odfchain.trust.proof_store import EvidenceStore
from odfchain.trust.seen import Seen
from odfchain.trust.signed_head import BlockAt, HeadSignature, read_head_signature
from odfchain.trust.signed_statements import read_head
from odfchain.trust.two_histories import Claim, prove

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
            except (OdfchainError, UnicodeError):  # it is judged by whoever reads it for its own sake
                texts.append(None)
        claims = []
        for text in dict.fromkeys(texts):
            claim = self._claim(text, lambda _: None, _absent)
            if claim is not None:
                claims.append(self._at_hand(claim))
        return claims

    def _claim(self, text: str | None, block_at: BlockAt, read: Callable[[Multihash], bytes]) -> Claim | None:
        """What the owner signed with a text; None where it is not the owner's word on this dataset."""
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
