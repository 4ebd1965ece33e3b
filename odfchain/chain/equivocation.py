"""Proof that the owner of a dataset signed two histories of it: it can be checked by anybody, offline.

    {"format": "odfchain-evidence/1", "dataset": did, "sequenceNumber": n, "blocks": [hash, hash],
     "heads": [{"statement": JWS, "blocks": [base64, …]}, {"statement": JWS, "blocks": [base64, …]}]}

Both statements are signed heads (`odfchain.chain.signed_heads`) by the key that the dataset's id is. The
first is of block `n`. The second is of a block with the same number, or of a later one: then its raw blocks,
from that head downwards, lead by their hashes to another block `n`. That is the whole proof; more blocks,
down to where the histories part, only show what was done. The file is canonical JSON and an end of line,
and everything in it follows from statements and blocks, so no bit of it can be changed unnoticed.

Two checkpoints (`odfchain.chain.checkpoints`) are one, too, of the format `odfchain-evidence/2`: `notes` in
the place of `heads`, each with its text. They are of one size and not the same; or the larger one has a
proof, by which its log has another block where the smaller one has its head.

So are two keys statements (`odfchain.chain.key_statements`) of one number, of the format
`odfchain-evidence/3`: `statements` are those that count, by which their signer could make them, then both;
`blocks` are the hashes of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from odfchain.chain.checkpoints import Checkpoint, Note, read_note
from odfchain.chain.key_statements import KeyHistory, Scope, read_line
from odfchain.chain.statements import Problem, SignedHead, read_bounded, read_head
from odfchain.chain.transparency_log import inclusion_proof, tree_root, verify_inclusion
from odfchain.errors import (
    CodecError,
    InvalidIdError,
    ManifestError,
    OdfchainError,
    SignatureError,
    StoreError,
)
from odfchain.limits import ATTEST
from odfchain.odf.block_codec import decode_header
from odfchain.odf.canonical_json import canonical_json
from odfchain.odf.identity import DatasetId, HashList, Multihash, encode_base16
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import Rule, read_json, to_tree
from odfchain.storage import fsio
from odfchain.text import one_line

FORMAT = "odfchain-evidence/1"
_OF_NOTES = "odfchain-evidence/2"
_OF_KEYS = "odfchain-evidence/3"
_NO_KEYS = "its owner's own key needs no keys statements"


@dataclass(frozen=True, slots=True)
class SignedBranch:
    """A signed head and blocks of its history from it downwards, as their raw bytes."""

    statement: Annotated[str, Rule("a signed text", str.isascii)]
    blocks: tuple[bytes, ...] = ()
    keys: tuple[str, ...] | None = None
    """The keys statements by which its signer is the owner's delegate."""


@dataclass(frozen=True, slots=True)
class ProvenNote:
    """A checkpoint, and the proof that its log has a block."""

    note: str
    proof: tuple[bytes, ...] = ()
    keys: tuple[str, ...] | None = None
    """As those of a branch."""


_BOTH = Rule("two of them", lambda items: len(items) == 2)
_TEXTS = Rule("signed texts", lambda texts: all(map(str.isascii, texts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Proof:
    format: str
    dataset: DatasetId
    sequence_number: int
    blocks: Annotated[tuple[Multihash, ...], _BOTH]
    heads: Annotated[tuple[SignedBranch, ...], _BOTH] | None = None
    notes: Annotated[tuple[ProvenNote, ...], _BOTH] | None = None
    statements: Annotated[tuple[str, ...], _TEXTS] | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Two histories of a dataset that its owner signed; this module alone makes one."""

    dataset_id: DatasetId
    sequence_number: int
    hashes: tuple[Multihash, Multihash]
    """The two blocks with this number."""
    signed: tuple[SignedHead | Checkpoint, SignedHead | Checkpoint]
    branches: tuple[SignedBranch, ...]
    notes: tuple[ProvenNote, ...] = field(default=())
    """Of two checkpoints, which are in the place of heads."""
    statements: tuple[str, ...] = ()
    """Of two keys statements, whose hashes are in the place of heads."""

    @property
    def name(self) -> str:
        """The same for every proof that the same two heads were signed, whatever else is in it."""
        heads = b"".join(signed.head.digest for signed in self.signed)
        if self.notes:
            heads = b"".join(each.note.partition("\n\n")[0].encode() for each in self.notes)
        return f"{self.sequence_number}-{hash_bytes(heads).digest.hex()[:32]}"

    def to_bytes(self) -> bytes:
        """The file of this proof."""
        proof = _Proof(
            format=_OF_NOTES if self.notes else _OF_KEYS if self.statements else FORMAT,
            dataset=self.dataset_id, sequence_number=self.sequence_number, blocks=self.hashes,
            heads=self.branches or None, notes=self.notes or None, statements=self.statements or None,
        )  # fmt: skip
        return canonical_json(to_tree(proof)) + b"\n"


def evidence_of(one: SignedBranch, other: SignedBranch) -> Evidence:
    """The proof that two branches are, in any order; all is checked, or `SignatureError`."""
    found = [(_statement(branch), branch) for branch in (one, other)]
    # heads of one number are ordered by hash, so that two of them give one proof in any order
    (low, lower), (high, higher) = sorted(found, key=lambda f: (f[0].sequence_number, f[0].head.digest))
    if low.dataset_id != high.dataset_id:
        raise _refused(f"the heads are of two datasets, {low.dataset_id} and {high.dataset_id}")
    # the hashes are not needed, only that the blocks hash and link
    _hashes(low, lower.blocks)
    number = low.sequence_number
    there = _hashes(high, higher.blocks).get(number)
    if there is None:
        raise _refused(f"its blocks do not lead from block {high.sequence_number} to block {number}")
    if there == low.head:
        raise _refused(f"both heads are of one history: its block {number} is {there}")
    return Evidence(low.dataset_id, number, (low.head, there), (low, high), (lower, higher))


def read_evidence(data: bytes, source: str) -> Evidence:
    """The proof in a file: signatures, hashes, links and the conflict are checked, or `SignatureError`."""
    try:
        evidence = _read(data)
        # by bytes: other spaces, further members and another order of the heads are changes too
        if evidence.to_bytes() != data:
            raise _refused("it was changed, or not written in canonical form")
    except SignatureError as error:
        raise SignatureError(error.problem, f"{source}: not a proof of two histories: {error}") from None
    return evidence


def _evidence_of_notes(one: ProvenNote, other: ProvenNote, there: Multihash) -> Evidence:
    found = [(_checkpoint(each), each) for each in (one, other)]
    (low, lower), (high, higher) = sorted(found, key=lambda f: (f[0].size, f[0].body()))
    if low.dataset_id != high.dataset_id:
        raise _refused(f"the checkpoints are of two datasets, {low.dataset_id} and {high.dataset_id}")
    if low.size < high.size:
        verify_inclusion(there, low.sequence_number, high.size, higher.proof, high.root)
    elif higher.proof or there != high.head:
        raise _refused("checkpoints of one size need no proof")
    if lower.proof or low.body() == high.body() or (low.size < high.size and there == low.head):
        raise _refused("both checkpoints are of one history")
    hashes = low.head, there
    return Evidence(low.dataset_id, low.sequence_number, hashes, (low, high), (), (lower, higher))


def evidence_of_keys(keys: KeyHistory) -> Evidence | None:
    """The proof that a history has two statements of one number by one key, where it has."""
    if len({line.said.sequence for line in keys.conflict}) != 1:
        return None
    both = sorted(keys.conflict, key=lambda line: line.hash.digest)
    one, other = (SignedHead(keys.dataset_id, line.hash, line.said.sequence, line.said.time) for line in both)
    texts = (*keys.texts, *(line.text.decode() for line in both))
    number, hashes = one.sequence_number, (one.head, other.head)
    return Evidence(keys.dataset_id, number, hashes, (one, other), (), statements=texts)


def _checkpoint(said: ProvenNote) -> Checkpoint:
    keys = [read_line(text.encode()) for text in said.keys or ()]
    if not keys:
        return read_note(said.note.encode()).checkpoint
    history = KeyHistory.of(keys[0].said.dataset_id, keys)
    note = read_note(said.note.encode(), history.dataset_id, history.signers(Scope.CHECKPOINTS))
    if note.signer == history.dataset_id:
        raise _refused(_NO_KEYS)
    return note.checkpoint


@dataclass(frozen=True, slots=True)
class NoteClaim:
    """A checkpoint that the owner signed, and the blocks of its log where they are at hand."""

    note: Note
    at: Callable[[int], Multihash | None] = lambda _: None
    """The block with a number."""
    keys: tuple[str, ...] | None = None
    """The keys statements by which its signer, if it is a delegate, may sign."""

    def prove(self, other: NoteClaim) -> Evidence | None:
        """The proof that two checkpoints are of two histories; None for one, or if it is open."""
        low, high = sorted((self, other), key=lambda c: (c.note.checkpoint.size, c.note.checkpoint.body()))
        one, two = low.note.checkpoint, high.note.checkpoint
        there = two.head if one.size == two.size else high.at(one.sequence_number)
        if one == two or there is None or (one.size < two.size and there == one.head):
            return None
        proof = list[bytes]()
        if one.size < two.size:
            blocks = HashList(block for at in range(two.size) if (block := high.at(at)) is not None)
            if tree_root(blocks) != two.root:
                return None
            proof = inclusion_proof(blocks, one.sequence_number)
        # without cosignatures: that of a witness is no part of the proof
        texts = [replace(c.note, lines=c.note.lines[:1]).data().decode() for c in (low, high)]
        mine, theirs = (c.keys if c.note.signer != one.dataset_id else None for c in (low, high))
        lower, higher = ProvenNote(texts[0], (), mine), ProvenNote(texts[1], tuple(proof), theirs)
        return _evidence_of_notes(lower, higher, there)


def _read(data: bytes) -> Evidence:
    try:
        proof = read_json(_Proof, data, ATTEST.evidence_bytes)
    except ManifestError as error:
        raise _refused(f"it is not of the format {FORMAT}: {one_line(str(error))}") from None
    if proof.heads:
        return evidence_of(*proof.heads)
    if proof.notes:
        one, other = proof.notes
        return _evidence_of_notes(one, other, proof.blocks[1])
    lines = [read_line(text.encode()) for text in proof.statements or ()]
    if (found := evidence_of_keys(KeyHistory.of(proof.dataset, lines))) is None:
        raise _refused(f"it is not of the format {FORMAT}, or its keys statements are of one line")
    return found


def _statement(branch: SignedBranch) -> SignedHead:
    signer, signed = read_head(branch.statement.encode())
    keys = KeyHistory.of(signed.dataset_id, (read_line(text.encode()) for text in branch.keys or ()))
    if keys.judge(signer, Scope.HEADS, signed.time) is None and branch.keys:
        raise _refused(_NO_KEYS)
    return signed


def _hashes(signed: SignedHead, blocks: Sequence[bytes]) -> dict[int, Multihash]:
    """The hashes of a history by number, as far as the blocks lead; they hash and link, or it is refused."""
    if len(blocks) > ATTEST.evidence_blocks:
        raise _refused(f"more than {ATTEST.evidence_blocks:,} blocks of one history")
    expected: Multihash | None = signed.head
    number = signed.sequence_number
    found = {number: signed.head}
    for data in blocks:
        if expected is None or hash_bytes(data) != expected:
            raise _refused(f"block {number} of a signed history does not hash to its name")
        try:
            header = decode_header(data)
        except CodecError as error:
            raise _refused(f"block {number} of a signed history cannot be read: {error}") from None
        if header.sequence_number != number:
            raise _refused(f"block {number} of a signed history says that it is {header.sequence_number}")
        expected, number = header.prev_block_hash, number - 1
        if expected is not None:
            found[number] = expected
    return found


def _refused(why: str) -> SignatureError:
    return SignatureError(Problem.DAMAGED, why)


# --- making it -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """A head that the owner signed, and what is at hand of its history."""

    statement: str
    signed: SignedHead
    block_at: Callable[[int], Multihash | None]
    """The hash of its block with a number, None where its history is not at hand."""
    read: Callable[[Multihash], bytes]
    """A block of it.

    Raises:
        OdfchainError: it is not at hand.
    """
    keys: tuple[str, ...] | None = None
    """As those of a branch."""

    def prove(self, other: Claim) -> Evidence | None:
        """The proof, within the limits, that two claims are two histories; None for one, or if it is open."""
        low, high = sorted((self, other), key=lambda c: (c.signed.sequence_number, c.signed.head.digest))
        number = low.signed.sequence_number
        there = high.signed.head if high.signed.sequence_number == number else high.block_at(number)
        if there is None or there == low.signed.head:
            return None
        needed = high.signed.sequence_number - number
        if needed > ATTEST.evidence_blocks:
            raise StoreError(f"a proof of {needed:,} blocks (at most {ATTEST.evidence_blocks:,})")
        name, blocks = high.signed.head, list[bytes]()
        for _ in range(needed):
            blocks.append(high.read(name))
            # only a damaged history has no block here, and `evidence_of` refuses that
            name = decode_header(blocks[-1]).prev_block_hash or name
        lower, higher = _context(low, high, there)
        size = sum(map(len, (*blocks, *lower, *higher)))
        if size * 4 // 3 > ATTEST.evidence_bytes // 2:
            # what shows where they part goes first: the proof holds without it
            lower, higher = (), ()
            size = sum(map(len, blocks))
        if size * 4 // 3 > ATTEST.evidence_bytes // 2:
            raise StoreError(f"a proof of {size:,} bytes of blocks (at most {ATTEST.evidence_bytes:,})")
        return evidence_of(
            SignedBranch(low.statement, lower, low.keys),
            SignedBranch(high.statement, (*blocks, *higher), high.keys),
        )


def _context(low: Claim, high: Claim, there: Multihash) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    """The blocks of both from the number that they share down to where they part, if all are at hand."""
    ours, theirs = list[bytes](), list[bytes]()
    one: Multihash | None = low.signed.head
    other: Multihash | None = there
    try:
        while one is not None and other is not None and one != other:
            # the limit is for the blocks of both
            if 2 * len(ours) >= ATTEST.evidence_context:
                return (), ()
            ours.append(low.read(one))
            theirs.append(high.read(other))
            one, other = (decode_header(blocks[-1]).prev_block_hash for blocks in (ours, theirs))
    except OdfchainError:
        return (), ()
    return tuple(ours), tuple(theirs)


# Where a workspace keeps proofs of two histories, and when and where it met them.
#
# evidence/<dataset id>/<name>.json       the proof: `odfchain.chain.equivocation`; never changed
# evidence/<dataset id>/<name>.seen       one line for each place: `<time> <URL>`

_SEEN_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Sighting:
    """When a proof was met, and at which peer."""

    time: Timestamp
    where: str


@dataclass(frozen=True, slots=True)
class KeptEvidence:
    """A proof that is kept; None, and what is wrong, where its file is damaged."""

    path: Path
    evidence: Evidence | None
    sightings: tuple[Sighting, ...]
    problem: str | None = None


def read_evidence_file(path: Path) -> Evidence:
    """As `read_evidence`, of a file."""
    data = read_bounded(path, ATTEST.evidence_bytes)
    if data is None:
        raise fsio.no_file(path)
    return read_evidence(data, str(path))


@dataclass(frozen=True, slots=True)
class EvidenceStore:
    """The proofs of one workspace; `folder` is its `evidence` folder."""

    folder: Path

    def keep(self, evidence: Evidence, where: str, time: Timestamp) -> Path:
        """Durably keep a proof and where it was met; what is kept of the same heads already stays."""
        folder = self.folder / encode_base16(evidence.dataset_id.to_bytes())
        path = folder / f"{evidence.name}.json"
        fsio.make_folder(folder)
        with fsio.locked(self.folder / ".lock"):
            # the name is of the two heads alone: what is kept may have other blocks, and is as good
            if not fsio.create_file(path, evidence.to_bytes()) and _load(path).evidence is None:
                fsio.replace_file(path, evidence.to_bytes())
            known = _sightings(path)
            if where not in {s.where for s in known} and len(known) < ATTEST.evidence_sightings:
                lines = [f"{s.time} {s.where}\n" for s in (*known, Sighting(time, one_line(where, 500)))]
                fsio.replace_file(path.with_suffix(".seen"), "".join(lines).encode())
        return path

    def list(self, dataset_id: DatasetId | None = None) -> list[KeptEvidence]:
        """Every proof, or those of one dataset, ordered by file; damaged ones are among them."""
        wanted = "*" if dataset_id is None else encode_base16(dataset_id.to_bytes())
        with fsio.storage_errors(self.folder):
            return [_load(path) for path in sorted(self.folder.glob(f"{wanted}/[0-9]*.json"))]


def _load(path: Path) -> KeptEvidence:
    try:
        evidence = read_evidence_file(path)
    except OdfchainError as error:
        return KeptEvidence(path, None, _sightings(path), error.message)
    return KeptEvidence(path, evidence, _sightings(path))


def _sightings(path: Path) -> tuple[Sighting, ...]:
    try:
        data = read_bounded(path.with_suffix(".seen"), _SEEN_BYTES) or b""
    except StoreError:
        # nothing depends on this file: a damaged one is as good as none
        return ()
    found = []
    for line in data.decode("utf-8", "replace").splitlines():
        time, _, where = line.partition(" ")
        try:
            found.append(Sighting(Timestamp.parse(time), one_line(where, 500)))
        except InvalidIdError:
            continue
    return tuple(found)
