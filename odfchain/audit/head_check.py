"""Check 16: the owner's signature of the head, and what other auditors attested.

The result says signed, unsigned or invalid. An invalid signature is a fault; an unsigned head is a note,
unless a signature is required.
"""

from __future__ import annotations

from collections.abc import Collection

from odfchain.audit.chain_checks import StoredChain, hash_at
from odfchain.audit.report import INVALID, SIGNATURE, AttestationLine, Report, SignatureLine
from odfchain.chain.signed_heads import (
    SignatureStatus,
    check_branch,
    check_head,
    read_head_signature,
    signature_key,
)
from odfchain.chain.signed_lines import AUDITS, read_attestations
from odfchain.chain.statements import Attestation, Did, Verdict, parse_did
from odfchain.errors import OdfchainError, StoreError
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import is_branch_name
from odfchain.storage.local import HEAD
from odfchain.workspace.dataset_files import DatasetFiles


def check_signature(
    dataset: DatasetFiles, chain: StoredChain, dataset_id: DatasetId | None, report: Report, *, required: bool
) -> None:
    """Check the signature of the head, or of the branch."""
    path = dataset.folder / signature_key(dataset.ref)
    if dataset_id is None or not chain.blocks:
        report.skip([SIGNATURE], "the dataset's id is not known: its chain cannot be followed to its Seed")
        return
    if dataset.ref != HEAD and not is_branch_name(dataset.ref):
        reason = "it was verified as of an earlier block: the newest one is what is signed"
        leave_out_signature(reason, report, required=required)
        return
    head = chain.blocks.newest
    try:
        content = read_head_signature(dataset.folder, dataset.ref)
    except StoreError as error:
        report.fault(SIGNATURE, path, error.message)
        report.signature = SignatureLine(INVALID, message=error.message)
        return
    if dataset.ref == HEAD:
        found = check_head(
            content,
            dataset_id,
            head.name,
            head.number,
            block_at=lambda number: (
                hash_at(chain, number)
                if chain.newest is None or number >= chain.newest
                else dataset.chain.hash_at(number, head.name)
            ),
        )
    else:
        found = check_branch(content, dataset_id, dataset.ref, head.name)
    report.signature = SignatureLine(
        str(found.status),
        str(found.signer) if found.signer is not None else None,
        str(found.signed.time) if found.signed is not None else None,
        found.message,
    )
    if found.status is not SignatureStatus.UNSIGNED:
        report.count(SIGNATURE)
    if found.status is SignatureStatus.INVALID or (required and found.status is SignatureStatus.UNSIGNED):
        report.fault(SIGNATURE, path, found.message or "the head is not signed")
    elif found.status is SignatureStatus.UNSIGNED:
        report.skip([SIGNATURE], found.message or "the head is not signed")
        report.notes.append(found.message or "the head is not signed")


def leave_out_signature(reason: str, report: Report, *, required: bool) -> None:
    """Say that it is not known whether the head is signed; if that is required, it is not clean."""
    report.signature = SignatureLine(message=reason)
    if required:
        report.leave_out(reason, check=SIGNATURE)
    else:
        report.skip([SIGNATURE], reason)


def attested(
    dataset: DatasetFiles,
    chain: StoredChain,
    dataset_id: DatasetId | None,
    trusted: Collection[str],
    report: Report,
) -> list[Attestation]:
    """The valid attestations of blocks of this chain; damaged ones and others' are faults and notes."""
    if dataset_id is None:
        return []
    path = dataset.folder / AUDITS.key
    try:
        lines = read_attestations(dataset.folder, dataset_id)
    except OdfchainError as error:
        report.fault(SIGNATURE, path, error.message)
        return []
    found: list[Attestation] = []
    for line in lines:
        # attestations are third parties' words: those of other chains are notes, an altered line is a fault
        if line.statement is None:
            report.fault(SIGNATURE, path, f"line {line.number}: {line.message}")
            continue
        item = line.statement
        report.attestations.append(
            AttestationLine(
                str(item.auditor),
                str(item.head),
                item.sequence_number,
                str(item.time),
                str(item.verdict),
                is_trusted(item.auditor, trusted),
            )
        )
        if chain.newest is not None and item.sequence_number < chain.newest:
            continue
        if hash_at(chain, item.sequence_number) == item.head:
            found.append(item)
        else:
            report.notes.append(
                f"{item.auditor} attested block {item.sequence_number} with the hash {item.head}, "
                "which is not in this chain"
            )
    return found


def is_trusted(auditor: Did, trusted: Collection[str]) -> bool:
    """True if an auditor is trusted: the key counts, not the method of its DID."""
    return any(parse_did(text).public_key == auditor.public_key for text in trusted)


def vouched_for(
    attestations: Collection[Attestation], trusted: Collection[str], least: int, check: int
) -> tuple[int, Multihash, tuple[str, ...]] | None:
    """(number, hash, auditors) of the newest block whose `check` at least `least` trusted auditors attest."""
    words = [
        item
        for item in attestations
        # one key is one auditor, whatever the method of its DID
        if item.verdict is Verdict.CLEAN and check in item.checks and is_trusted(item.auditor, trusted)
    ]
    for word in sorted(words, key=lambda item: -item.sequence_number):
        # who vouched for a later block vouched for this one, too
        names = {
            w.auditor.public_key: str(w.auditor) for w in words if w.sequence_number >= word.sequence_number
        }
        if len(names) >= least:
            return word.sequence_number, word.head, tuple(sorted(names.values()))
    return None
