"""What is signed: heads by a dataset's own key, verdicts by an auditor's.

Both are values with one signed text each. A signed head says "this block is the newest of this dataset at
this time"; only the owner can say so, because the dataset's id is the public key. An attestation says "I
examined the chain up to this block, with this result"; anyone can say so, and whom to believe is the reader's
choice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from odfchain.errors import SignatureError, UsageError
from odfchain.ids.branch_names import is_branch_name
from odfchain.ids.did import DatasetId
from odfchain.ids.keys import DatasetKey
from odfchain.ids.multihash import Multihash
from odfchain.model.timestamp import Timestamp
from odfchain.store.interfaces import HEAD
from odfchain.trust.jws import StatementType, read_statement, sign_statement
from odfchain.trust.signing_keys import Did
from odfchain.trust.statement_members import Members, malformed


class Verdict(StrEnum):
    """What an examination ended with."""

    CLEAN = "clean"
    FAULTY = "faulty"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class SignedHead:
    """The owner's word that a block is the newest of a dataset at a time."""

    dataset_id: DatasetId
    head: Multihash
    sequence_number: int
    time: Timestamp
    ref: str = HEAD
    """`head`, or a branch: then it is a statement of another type, with this as one more member."""

    def to_json(self) -> dict[str, Any]:
        """The members that are signed."""
        members = {
            "datasetId": str(self.dataset_id),
            "head": str(self.head),
            "sequenceNumber": self.sequence_number,
            "time": str(self.time),
        }
        return members if self.ref == HEAD else members | {"ref": self.ref}


@dataclass(frozen=True, slots=True)
class EngineUsed:
    """An engine that transformations were computed again with."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attestation:
    """An auditor's word on a dataset up to a block; `report` is the digest of the report it sums up."""

    auditor: Did
    dataset_id: DatasetId
    head: Multihash
    sequence_number: int
    time: Timestamp
    verdict: Verdict
    report: Multihash
    checks: tuple[int, ...]
    not_checked: tuple[int, ...] = ()
    engines: tuple[EngineUsed, ...] = ()
    tool: str

    def to_json(self) -> dict[str, Any]:
        """The members that are signed; the auditor is the signer, and stands in the header."""
        return {
            "checks": list(self.checks),
            "datasetId": str(self.dataset_id),
            "engines": [{"name": e.name, "version": e.version} for e in self.engines],
            "head": str(self.head),
            "notChecked": list(self.not_checked),
            "report": str(self.report),
            "sequenceNumber": self.sequence_number,
            "time": str(self.time),
            "tool": self.tool,
            "verdict": str(self.verdict),
        }


def sign_head(key: DatasetKey, head: SignedHead) -> str:
    """The signed text of a head, one line without its end."""
    kind = StatementType.HEAD if head.ref == HEAD else StatementType.REF
    return sign_statement(key, head.dataset_id, kind, head.to_json())


_HEAD = {"datasetId", "head", "sequenceNumber", "time"}


def read_head(text: bytes) -> tuple[Did, SignedHead]:
    """Who signed which head; the signer need not be the dataset's owner (`check_head` asks for that)."""
    found = read_statement(text, StatementType.HEAD)
    return found.signer, _signed_head(Members(found.payload, _HEAD))


def read_branch(text: bytes) -> tuple[Did, SignedHead]:
    """As `read_head`, of a branch.

    Raises:
        SignatureError: the text is not the signed form of a branch's newest block.
    """
    found = read_statement(text, StatementType.REF)
    members = Members(found.payload, _HEAD | {"ref"})
    ref = members.text("ref")
    if not is_branch_name(ref):
        raise malformed("'ref' cannot name a branch")
    return found.signer, _signed_head(members, ref)


def _signed_head(members: Members, ref: str = HEAD) -> SignedHead:
    return SignedHead(
        dataset_id=members.id("datasetId"),
        head=members.hash("head"),
        sequence_number=members.number("sequenceNumber"),
        time=members.time("time"),
        ref=ref,
    )


def sign_attestation(key: DatasetKey, attestation: Attestation) -> str:
    """The signed text of an attestation, one line without its end.

    Raises:
        UsageError: the key is not the auditor's, or the attestation could not be read again: numbers out of
            order, or a text or list that is too long.
    """
    text = sign_statement(key, attestation.auditor, StatementType.ATTESTATION, attestation.to_json())
    try:
        read_attestation(text.encode())
    except SignatureError as error:
        raise UsageError(f"an attestation that nobody could read: {error}") from None
    return text


def read_attestation(text: bytes, *, verified: bool = True) -> Attestation:
    """The attestation that was signed; without `verified`, what has the form of one.

    Raises:
        SignatureError: the text is not the signed form of an attestation.
    """
    found = read_statement(text, StatementType.ATTESTATION, verified=verified)
    members = Members(found.payload, _ATTESTATION)
    checks, not_checked = members.numbers("checks"), members.numbers("notChecked")
    if set(checks) & set(not_checked):
        raise malformed("a check is both done and not done")
    try:
        verdict = Verdict(members.text("verdict"))
    except ValueError:
        raise malformed("its verdict is unknown") from None
    return Attestation(
        auditor=found.signer,
        dataset_id=members.id("datasetId"),
        head=members.hash("head"),
        sequence_number=members.number("sequenceNumber"),
        time=members.time("time"),
        verdict=verdict,
        report=members.hash("report"),
        checks=checks,
        not_checked=not_checked,
        engines=tuple(_engine(item) for item in members.items("engines")),
        tool=members.text("tool"),
    )


_ATTESTATION = {
    "checks", "datasetId", "engines", "head", "notChecked",
    "report", "sequenceNumber", "time", "tool", "verdict",
}  # fmt: skip


def _engine(item: Any) -> EngineUsed:
    if not isinstance(item, dict):
        raise malformed("an engine is not an object")
    members = Members(item, {"name", "version"})
    return EngineUsed(members.text("name"), members.text("version"))
