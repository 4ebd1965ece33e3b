"""Who vouches for which description of which block: `attestations/snapshots.jws`, one signed line for each.

A line names a manifest or a profile, an object of the dataset, by its hash and size. The documents follow
from the dataset: a line of its owner saves a reader the walk along the chain, and that of anybody else is a
second opinion. Source: RFC-042.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from odfchain.errors import SignatureError, UsageError
from odfchain.ids.did import DatasetId
from odfchain.ids.keys import DatasetKey
from odfchain.ids.multihash import Multihash
from odfchain.limits import ATTEST
from odfchain.model.timestamp import Timestamp
from odfchain.trust.jws import StatementType, read_statement, sign_statement
from odfchain.trust.signed_lines import About, LineFile
from odfchain.trust.signing_keys import Did
from odfchain.trust.statement_members import Members, malformed


class SnapshotKind(StrEnum):
    """The kinds of documents that describe a snapshot."""

    MANIFEST = "manifest"
    PROFILE = "profile"

    @property
    def folder(self) -> str:
        """Where a dataset has such objects."""
        return f"{self.value}s"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SnapshotLine:
    """A signer's word that an object is the manifest, or a profile, of a block."""

    signer: Did
    dataset_id: DatasetId
    block: Multihash
    sequence_number: int
    kind: SnapshotKind
    object: Multihash
    size: int
    time: Timestamp
    tool: str

    @property
    def by_owner(self) -> bool:
        """Whether the dataset's own key signed it."""
        return self.signer.public_key == self.dataset_id.public_key

    def __repr__(self) -> str:
        return f"<{self.kind} of block {self.sequence_number:,} by {self.signer}: {self.object}>"

    def to_json(self) -> dict[str, Any]:
        """The members that are signed; the signer stands in the header."""
        return {
            "block": str(self.block),
            "datasetId": str(self.dataset_id),
            "kind": str(self.kind),
            "object": str(self.object),
            "sequenceNumber": self.sequence_number,
            "size": self.size,
            "time": str(self.time),
            "tool": self.tool,
        }


_MEMBERS = {"block", "datasetId", "kind", "object", "sequenceNumber", "size", "time", "tool"}


def sign_snapshot(key: DatasetKey, line: SnapshotLine) -> str:
    """The signed text of a line, without its end.

    Raises:
        UsageError: the key is not the signer's, or the line could not be read again.
    """
    text = sign_statement(key, line.signer, StatementType.SNAPSHOT, line.to_json())
    try:
        read_snapshot(text.encode())
    except SignatureError as error:
        raise UsageError(f"a line about a snapshot that nobody could read: {error}") from None
    return text


def read_snapshot(text: bytes, *, verified: bool = True) -> SnapshotLine:
    """The line that was signed; without `verified`, what has the form of one.

    Raises:
        SignatureError: the text is not the signed form of one.
    """
    found = read_statement(text, StatementType.SNAPSHOT, verified=verified)
    members = Members(found.payload, _MEMBERS)
    try:
        kind = SnapshotKind(members.text("kind"))
    except ValueError:
        raise malformed("its kind is unknown") from None
    return SnapshotLine(
        signer=found.signer,
        dataset_id=members.id("datasetId"),
        block=members.hash("block"),
        sequence_number=members.number("sequenceNumber"),
        kind=kind,
        object=members.hash("object"),
        size=members.number("size", ATTEST.snapshot_bytes),
        time=members.time("time"),
        tool=members.text("tool"),
    )


def _about(line: SnapshotLine) -> About:
    return About(line.dataset_id, line.signer, line.block, line.sequence_number, line.time, str(line.kind))


SNAPSHOTS = LineFile(
    key="attestations/snapshots.jws",
    one="a line about a snapshot",
    many="lines about snapshots",
    # one command reads the lines of the same dataset several times
    read=functools.lru_cache(maxsize=8192)(read_snapshot),
    unverified=functools.lru_cache(maxsize=8192)(functools.partial(read_snapshot, verified=False)),
    about=_about,
    most_bytes=lambda: ATTEST.snapshot_lines_bytes,
    per_subject=lambda: ATTEST.snapshot_signers,
    newest_first=True,
)
"""A signer has one word on each kind of document of a block."""

SNAPSHOTS_KEY = SNAPSHOTS.key
