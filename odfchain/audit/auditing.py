"""Auditing as a user asks for it: datasets here and elsewhere, and verdicts that are signed and kept."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odfchain.audit.checks import CHECKS
from odfchain.audit.dataset_checks import Scope, examine
from odfchain.audit.heads import is_trusted
from odfchain.audit.remote import remote_copy
from odfchain.audit.report import FAULTY, Report
from odfchain.audit.upstream import inputs_tree
from odfchain.audit.verification import EnginesFor, VerifyOptions, finder, trusted_auditors, verify_datasets
from odfchain.errors import BrokenChainError, UsageError
from odfchain.ids.did import DatasetId, DidKey
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.transfer.sharing import Sharing
from odfchain.trust.attestation_lines import AttestationLine, add_attestation, read_attestations
from odfchain.trust.canonical import report_digest
from odfchain.trust.signed_statements import Attestation, EngineUsed, Verdict, sign_attestation
from odfchain.trust.signing_keys import Did, parse_did, read_key_file
from odfchain.versions import __version__


@dataclass(frozen=True, slots=True)
class NewAttestation:
    """What was attested: the report, the document that the statement sums up, and the signed line."""

    report: Report
    document: dict[str, Any]
    attestation: Attestation
    text: str

    def __repr__(self) -> str:
        return f"<{self.report.alias} attested as {self.report.verdict} by {self.attestation.auditor}>"


@dataclass(frozen=True, slots=True)
class ListedAttestation:
    """One line of a dataset's attestations; `in_chain` if its block is in the dataset's chain."""

    line: AttestationLine
    in_chain: bool
    trusted: bool

    def __repr__(self) -> str:
        item = self.line.statement
        if item is None:
            return f"<no attestation: {self.line.message}>"
        return f"<{item.verdict} at block {item.sequence_number:,} by {item.auditor}>"


def verify_remote(
    workspace: WorkspaceFiles,
    source: str,
    options: VerifyOptions | None = None,
    *,
    token: str | None = None,
    progress: Progress = SILENT,
) -> Report:
    """The report of a dataset elsewhere, which does not become one of this workspace.

    Its transactions are not computed again. `source` is a URL or `repo/name`.

    Raises:
        UsageError: a replay or inputs are asked for, or the range is not one of the chain.
    """
    options = options or VerifyOptions()
    if options.replay or options.recursive:
        raise UsageError(
            "what is elsewhere is verified without a replay and without its inputs",
            hint="pull the datasets, then verify them here",
        )
    sharing = Sharing(workspace)
    url = sharing.place_of(source, token)
    alias = DatasetAlias.parse(str(url.name()))
    with (
        closing(sharing.open(str(url.text), token)) as peer,
        remote_copy(
            peer,
            alias,
            workspace.run_folder / "verify",
            progress,
            parallel=sharing.config.parallel,
            require_signature=options.require_signature,
            profiles=options.profiles,
        ) as copy,
    ):
        scope = Scope(
            span=options.span,
            jobs=options.jobs,
            require_signature=options.require_signature,
            profiles=options.profiles,
            signature_unread=copy.unsigned,
            trusted=trusted_auditors(workspace, options),
        )
        report = examine(copy.dataset, scope, finder(workspace), progress).report
        report.inputs = inputs_tree(workspace, copy.dataset)
        copy.relate(report)
        return report


def attest(
    workspace: WorkspaceFiles,
    dataset: DatasetFiles,
    engines: EnginesFor,
    key_file: Path,
    options: VerifyOptions | None = None,
    *,
    faulty: bool = False,
    progress: Progress = SILENT,
    now: Timestamp | None = None,
) -> NewAttestation:
    """Verify a dataset and sign the outcome with an auditor's key; the statement is kept beside it.

    What is faulty is attested only with `faulty`: a signed accusation is not to be made by accident.

    Raises:
        UsageError: the dataset is faulty, or only a part of its chain was asked for.
        BrokenChainError: there is no head that could be attested.
    """
    options = options or VerifyOptions()
    if options.ranged:
        raise UsageError("an attestation is about the whole chain up to the head, not about a range")
    key = read_key_file(key_file)
    (report,) = [
        found
        for found in verify_datasets(workspace, [dataset], engines, options, progress)
        if found.alias == dataset.label
    ]
    if report.verdict == FAULTY and not faulty:
        raise UsageError(
            f"{dataset.alias}: {len(report.faults):,} faults were found; nothing was signed",
            hint="`odfchain verify` lists them; --faulty signs that the dataset is faulty",
        )
    if report.head is None or report.sequence_number is None or report.kind is None:
        raise BrokenChainError(f"{dataset.alias}: the chain cannot be followed, so no head can be attested")
    document = report.to_document()
    done = tuple(n for n in CHECKS if report.state(n) in {"passed", "failed", "notApplicable"})
    attestation = Attestation(
        auditor=DidKey(key.dataset_id.public_key),
        dataset_id=DatasetId.parse(report.dataset_id),
        head=Multihash.parse(report.head),
        sequence_number=report.sequence_number,
        time=now or report.time,
        verdict=Verdict(report.verdict),
        report=report_digest(document),
        checks=done,
        not_checked=tuple(n for n in CHECKS if n not in done),
        engines=tuple(EngineUsed(e["name"], e["version"]) for e in document["engines"]),
        tool=f"odfchain {__version__}",
    )
    text = sign_attestation(key, attestation)
    add_attestation(dataset.folder, attestation.dataset_id, text, trusted=_trusted(workspace))
    return NewAttestation(report, document, attestation, text)


def attestations(workspace: WorkspaceFiles, dataset: DatasetFiles) -> list[ListedAttestation]:
    """Each line of a dataset's attestations, valid or not."""
    trusted = workspace.config.audit.trusted_auditors
    names = {block.hash: block.block.sequence_number for block in dataset.chain.walk()}
    return [
        ListedAttestation(
            line,
            in_chain=item is not None and names.get(item.head) == item.sequence_number,
            trusted=item is not None and is_trusted(item.auditor, trusted),
        )
        for line in read_attestations(dataset.folder, dataset.id)
        for item in (line.statement,)
    ]


def add_statement(workspace: WorkspaceFiles, dataset: DatasetFiles, text: str) -> None:
    """Keep an attestation that someone handed over, if it is valid and of a block of this dataset.

    Raises:
        UsageError: its block is not in the chain.
    """
    from odfchain.trust.signed_statements import read_attestation  # noqa: PLC0415 - only here

    line = text.strip()
    item = read_attestation(line.encode())
    if item.dataset_id == dataset.id and not _in_chain(dataset, item):
        raise UsageError(
            f"{dataset.alias}: block {item.sequence_number} ({item.head}) is not in its chain",
            hint="pull first: the attestation may be of a later block",
        )
    add_attestation(dataset.folder, dataset.id, line, trusted=_trusted(workspace))


def _trusted(workspace: WorkspaceFiles) -> list[Did]:
    return [parse_did(text) for text in workspace.config.audit.trusted_auditors]


def _in_chain(dataset: DatasetFiles, item: Attestation) -> bool:
    return any(
        found.hash == item.head and found.block.sequence_number == item.sequence_number
        for found in dataset.chain.walk()
    )
