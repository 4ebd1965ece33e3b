"""Verification as it is asked for: which datasets and blocks, with a replay or not, and whose word counts."""

from __future__ import annotations

import contextlib
import functools
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from odfchain import errors
from odfchain.audit.input_claims import Find, missing_input
from odfchain.audit.report import (
    CHECKS,
    CLEAN,
    FAULTY,
    PHYSICAL,
    PRESENT,
    REPLAY,
    Fault,
    LeftOut,
    ListedAttestation,
    Note,
    Replay,
    Report,
    Skipped,
    keep_report,
)
from odfchain.chain import statements
from odfchain.chain.signed_lines import AUDITS, SnapshotKind, read_attestations
from odfchain.limits import LIMITS, LINEAGE
from odfchain.odf.block_codec import decode_block
from odfchain.odf.canonical_json import canonical_json
from odfchain.odf.identity import DatasetId, DidKey, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.sources import Transform
from odfchain.progress import Progress
from odfchain.storage import fsio
from odfchain.storage.local import HEAD
from odfchain.storage.public_layout import HEAD_KEY, ObjectKey, ObjectKind, SignedFile
from odfchain.text import counted, one_line
from odfchain.transfer.slice_files import DataObject, objects_of
from odfchain.versions import __version__
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import Attest, VerifyOptions, VerifyRemote, maybe_time
from odfchain.workspace.private_notes import VERIFIED, Reminder, keep, last_verified
from odfchain.workspace.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.audit.dataset_checks import Examined
    from odfchain.storage.store import Store
    from odfchain.transform.engines import TransformEngine
    from odfchain.transform.execute import Engines


T = TypeVar("T")

EnginesFor: TypeAlias = "Callable[[DatasetFiles, Progress], AbstractContextManager[Engines]]"
"""Opens the engines that may execute the transforms of a dataset."""


def vouched_for(
    attestations: Collection[statements.Attestation], trusted: Collection[str], least: int, check: int
) -> tuple[int, Multihash, tuple[str, ...]] | None:
    """(number, hash, auditors) of the newest block whose `check` at least `least` trusted auditors attest."""
    words = [
        item
        for item in attestations
        # one key is one auditor, under any method of its DID
        if item.verdict is statements.Verdict.CLEAN and check in item.checks and item.is_by(trusted)
    ]
    for word in sorted(words, key=lambda item: -item.sequence_number):
        # who vouched for a later block vouched for this one, too
        names = {
            w.auditor.public_key: str(w.auditor) for w in words if w.sequence_number >= word.sequence_number
        }
        if len(names) >= least:
            return word.sequence_number, word.head, tuple(sorted(names.values()))
    return None


# Verifying a remote dataset without making it a dataset here.
# A private folder is filled with the peer's files and verified. Missing or wrong files do not stop the
# rest; faults have the peer's message and name the object there. The folder is removed afterwards.

_STATEMENTS = {
    SignedFile.CHECKPOINT: "the checkpoint",
    SignedFile.AUDITS: "the attestations of auditors",
    SignedFile.SNAPSHOTS: "the signed lines about snapshots",
    SignedFile.KEYS: "the keys statements",
}


@dataclass(slots=True)
class _RemoteCopy:
    """A dataset as received from a peer, and the errors of missing objects by key."""

    dataset: DatasetFiles
    peer: Store
    progress: Progress
    # Objects that are not there or not what they should be.
    wrong: dict[str, str] = field(default_factory=dict)
    # Objects that could not be asked for: that proves nothing.
    unreached: dict[str, str] = field(default_factory=dict)
    # The reason for an unknown signature of the head.
    unsigned: str | None = None
    notes: list[str] = field(default_factory=list)

    def receive(self, options: VerifyOptions, parallel: int) -> None:
        # published documents are no part of it, but profiles, whose words are needed to compute them again
        objects = self._receive_chain(self._receive_head(required=options.require_signature))
        total = sum(item.size for item in objects)
        self._check_space(total)
        self.progress.phase(f"Receiving {len(objects):,} objects", total)
        with ThreadPoolExecutor(parallel, thread_name_prefix="objects") as pool:
            # all of them, so that errors are raised
            list(pool.map(lambda item: self._receive(item.key, item.size), objects))
        if options.profiles:
            self._receive_profiles()

    def _receive_head(self, *, required: bool) -> Multihash | None:
        from odfchain.transfer.signed_statements import SignaturePolicy, read_offer

        folder = self.dataset.folder
        try:
            # a missing signature that is required is asked for twice: its owner may just be publishing
            offer = read_offer(self.peer, SignaturePolicy(require=required))
        except errors.CorruptedPeerError as error:
            self.wrong[HEAD_KEY] = error.message
            return None
        if offer is None:
            return None
        fsio.create_file(folder / HEAD_KEY, str(offer.head).encode("ascii"))
        if offer.unread is not None:
            # the chain is verified all the same
            self.unsigned = f"the signature of the head cannot be read: {offer.unread}"
        if offer.content is not None:
            fsio.create_file(folder / SignedFile.HEAD.value, offer.content)
        for file, what in _STATEMENTS.items():
            try:
                content = self.peer.signed(file)
            except errors.TransferError as error:
                self.notes.append(f"{what} cannot be read: {one_line(error.message, 800)}")
                continue
            if content is not None:
                target = folder / file.value
                fsio.make_folder(target.parent)
                fsio.create_file(target, content)
        return offer.head

    def _receive_profiles(self) -> None:
        from odfchain.profiles.published import published

        try:
            lines = published(self.dataset, SnapshotKind.PROFILE)
        except errors.OdfchainError:
            return  # the chain, or the file of lines: verification says so
        sizes = {line.object: line.size for line in lines}
        self._check_space(sum(sizes.values()))
        fsio.make_folder(self.dataset.folder / ObjectKind.PROFILE.value)
        for name, size in sizes.items():
            self._receive(ObjectKey(ObjectKind.PROFILE, name), size)

    def _receive_chain(self, head: Multihash | None) -> list[DataObject]:
        self.progress.phase("Receiving blocks")
        objects: dict[tuple[ObjectKey, int], DataObject] = {}
        current: Multihash | None = head
        # bounded: a peer could send an endless chain
        for _ in range(LIMITS.chain_blocks):
            if current is None:
                break
            key = ObjectKey(ObjectKind.BLOCK, current)
            if (data := self._asked(key, functools.partial(self.peer.block, current))) is None:
                break
            fsio.create_file(self.dataset.folder / str(key), data)
            self.progress.advance()
            try:
                block = decode_block(data)
            except errors.CodecError:
                break  # verification says so
            for item in objects_of(block):
                objects.setdefault((item.key, item.size), item)
            current = block.prev_block_hash
        return list(objects.values())

    def _check_space(self, total: int) -> None:
        folder = self.dataset.folder
        with fsio.storage_errors(folder):
            free = shutil.disk_usage(folder).free
        # the peer states these sizes: refused before the disk is full
        if total > free:
            raise errors.StorageFullError(
                f"{folder}: {total:,} bytes of objects of {self.peer.where} do not fit into the {free:,} "
                "that are free",
                hint="make room, or pull a part of it (--last, --metadata-only) and verify that",
            )

    def _receive(self, key: ObjectKey, size: int) -> None:
        target = self.dataset.folder / str(key)
        self._asked(key, lambda: self.peer.fetch(key, size, target, self.progress))

    def _asked(self, key: ObjectKey, ask: Callable[[], T]) -> T | None:
        try:
            return ask()
        except errors.CorruptedPeerError as error:
            self.wrong[str(key)] = error.message
        except errors.TransferError as error:
            self.unreached[str(key)] = error.message
        return None

    def relate(self, report: Report) -> None:
        # places are keys at the peer, reasons are the peer's words
        faults: list[Fault] = []
        for fault in report.faults:
            path, folder = Path(fault.file), self.dataset.folder
            key = str(path.relative_to(folder)) if path.is_relative_to(folder) else fault.file
            if key in self.unreached:
                report.add(LeftOut(self.unreached[key], fault.sequence_number, fault.check))
                continue
            message = self.wrong.get(key, self._text(fault.message)).removeprefix(f"{self.peer.where}{key}: ")
            check = PHYSICAL if fault.check == PRESENT and "hashes to" in message else fault.check
            faults.append(replace(fault, file=f"{self.peer.where}{key}", message=message, check=check))
        report.faults = faults
        report.notes = [self._text(note) for note in report.notes] + self.notes

    def _text(self, text: str) -> str:
        return text.replace(f"{self.dataset.folder}/", self.peer.where)


def _remember(dataset: DatasetFiles, asked: VerifyOptions, report: Report) -> None:
    if dataset.ref != HEAD or report.head is None or report.sequence_number is None:
        return
    head, number = Multihash.parse(report.head), report.sequence_number
    # the newest blocks alone continue a verification that came so far
    gap = asked.last is not None and number + 1 - asked.last > last_verified(dataset, head)[0]
    whole = (asked.after, asked.upto, gap) == (None, None, False)
    if whole or report.verdict == FAULTY:  # a part that is clean says nothing of the rest
        keep_report(dataset, report)
    if report.verdict == FAULTY:
        failed = tuple(sorted({fault.check for fault in report.faults}))
        first = min((f.sequence_number for f in report.faults if f.sequence_number is not None), default=None)
        keep(dataset, VERIFIED, Reminder(report.time, head, number, failed, len(report.faults), first))
    elif report.verdict == CLEAN and whole:
        passed = tuple(check for check in CHECKS if report.state(check) == "passed")
        keep(dataset, VERIFIED, Reminder(report.time, head, number, passed))


@dataclass(frozen=True, slots=True)
class NewAttestation:
    """A new attestation: the report, the document that the statement sums up, and the signed line."""

    report: Report
    document: dict[str, Any]
    attestation: statements.Attestation
    text: str

    def __repr__(self) -> str:
        return f"<{self.report.alias} attested as {self.report.verdict} by {self.attestation.auditor}>"


@dataclass(frozen=True, slots=True)
class Auditor:
    """Audits as a user asks for them: datasets here and elsewhere, and verdicts that are signed and kept."""

    workspace: WorkspaceFiles

    def verify(
        self, datasets: Sequence[DatasetFiles], engines: EnginesFor, options: VerifyOptions
    ) -> list[Report]:
        """The reports of the datasets, each once; without a replay no engine is opened.

        A range of blocks is for the one dataset that is named. With `recursive`, inputs that are not in the
        workspace are reported as unchecked.
        """
        from odfchain.audit.dataset_checks import examine

        # the newest block alone takes what is below as it is, the index too: it reads no whole chain
        walked = options.last is None
        named = {(item.folder, item.ref): item.reindexed() if walked else item for item in datasets}
        if (options.after is not None or options.upto is not None) and len(named) != 1:
            raise errors.UsageError(f"a range of blocks is for one dataset, these are {len(named)}")
        trusted = self._trusted_auditors(options)
        files = list(named.values())
        found, missing = self._upstream_at_hand(files) if options.recursive else (files, {})
        reports, find = [], functools.cache(functools.partial(self.find, walked=walked))
        for item in found:
            item.shared.follow(item.folder, HEAD)
            # a range of blocks is for the named dataset, not for its inputs
            whole = replace(options, after=None, upto=None, last=None)
            asked = options if (item.folder, item.ref) in named else whole
            examined = examine(item, asked, find, trusted=trusted, trust=self.workspace.config.trust)
            report = examined.report
            for message in missing.get(item.folder, ()):
                report.add(LeftOut(message))
            report.inputs = self._inputs(item, {item.folder})
            # a root dataset has nothing to replay
            if options.replay and not examined.run.chain.is_root:
                self._replay(examined, find, engines, options, trusted)
            _remember(item, asked, report)
            reports.append(report)
        return reports

    def verify_remote(self, options: VerifyRemote) -> Report:
        """The report of `Workspace.verify_remote`."""
        from odfchain.audit.dataset_checks import examine

        if options.replay or options.recursive:
            raise errors.UsageError(
                "what is elsewhere is verified without a replay and without its inputs",
                hint="pull the datasets, then verify them here",
            )
        from odfchain.transfer.sharing import Sharing

        sharing = Sharing(self.workspace)
        url = sharing.place_of(options.source, options.token)
        alias, base = DatasetAlias.parse(str(url.name())), self.workspace.run_folder / "verify"
        fsio.make_folder(base)
        with closing(sharing.open(str(url.text), options.token)) as peer, fsio.private_folder(base) as own:
            DatasetFiles.create_folders(own / "dataset", alias)
            copy = _RemoteCopy(DatasetFiles.open(own / "dataset"), peer, options.progress)
            copy.receive(options, sharing.config.parallel)
            trusted = self._trusted_auditors(options)
            report = examine(
                copy.dataset,
                options,
                self.find,
                trusted=trusted,
                signature_unread=copy.unsigned,
                elsewhere=True,
                trust=self.workspace.config.trust,
            ).report
            report.inputs = self._inputs(copy.dataset, {copy.dataset.folder})
            copy.relate(report)
            return report

    def attest(self, dataset: DatasetFiles, engines: EnginesFor, options: Attest) -> NewAttestation:
        """Verify a dataset and sign the outcome with an auditor's key; the statement is kept with it.

        Raises:
            UsageError: only a part of its chain was asked for.
            FaultyDatasetError: the dataset is faulty; with the report.
            ChainError: there is no head that could be attested.
        """
        if (options.after, options.upto, options.last) != (None, None, None):
            message = "an attestation is about the whole chain up to the head, not about a range"
            raise errors.UsageError(message)
        key = statements.read_key_file(Path(options.key_file))
        reports = self.verify([dataset], engines, options)
        (report,) = [found for found in reports if found.alias == dataset.label]
        # a signed accusation must not be made by accident
        if report.verdict == FAULTY and not options.faulty:
            found = counted(len(report.faults), "fault")
            raise errors.FaultyDatasetError(f"{report.alias}: {found} found; nothing was signed", report)
        if report.head is None or report.sequence_number is None or report.kind is None:
            message = f"{dataset.alias}: the chain cannot be followed, so no head can be attested"
            raise errors.ChainError(message)
        document = report.to_document()
        done = tuple(n for n in CHECKS if report.state(n) in {"passed", "failed", "notApplicable"})
        attestation = statements.Attestation(
            auditor=DidKey(key.dataset_id.public_key),
            dataset_id=DatasetId.parse(report.dataset_id),
            head=Multihash.parse(report.head),
            sequence_number=report.sequence_number,
            time=maybe_time(options.now) or report.time,
            verdict=statements.Verdict(report.verdict),
            report=hash_bytes(canonical_json(document)),
            checks=done,
            not_checked=tuple(n for n in CHECKS if n not in done),
            engines=tuple(statements.EngineUsed(e["name"], e["version"]) for e in document["engines"]),
            tool=f"odfchain {__version__}",
        )
        text = attestation.sign(key)
        AUDITS.add(dataset.folder, attestation.dataset_id, text, trusted=self._trusted())
        return NewAttestation(report, document, attestation, text)

    def attestations(self, dataset: DatasetFiles) -> list[ListedAttestation]:
        """Each line of a dataset's attestations, valid or not."""
        trusted = self.workspace.config.audit.trusted_auditors
        head = dataset.chain.head()
        at = dataset.chain.by_number(head) if head is not None else lambda _: None
        return [
            ListedAttestation(
                line,
                in_chain=item is not None and at(item.sequence_number) == item.head,
                trusted=item is not None and item.is_by(trusted),
            )
            for line in read_attestations(dataset.folder, dataset.id)
            for item in (line.statement,)
        ]

    def add_statement(self, dataset: DatasetFiles, text: str) -> None:
        """Keep an attestation that someone handed over, if it is valid and of a block of this dataset."""
        line = text.strip()
        item = statements.read_attestation(line.encode())
        if item.dataset_id == dataset.id and _numbers(dataset).get(item.head) != item.sequence_number:
            raise errors.UsageError(
                f"{dataset.alias}: block {item.sequence_number} ({item.head}) is not in its chain",
                hint="pull first: the attestation may be of a later block",
            )
        AUDITS.add(dataset.folder, dataset.id, line, trusted=self._trusted())

    def find(self, dataset_id: DatasetId, *, walked: bool = True) -> DatasetFiles | None:
        """A dataset by its id, without its index if it is `walked`; None where it cannot be opened."""
        try:
            found = self.workspace.dataset(dataset_id)
            return found.reindexed() if walked else found
        except (errors.DatasetNotFoundError, errors.StoreError):
            return None

    def _input(self, name: str, of: DatasetFiles) -> DatasetFiles:
        found = self.workspace.dataset(name)
        return found.reindexed() if of.chain.is_reindexed else found

    def _trusted(self) -> list[statements.Did]:
        return [statements.parse_did(text) for text in self.workspace.config.audit.trusted_auditors]

    def _trusted_auditors(self, options: VerifyOptions) -> tuple[str, ...]:
        if options.trusted_by and not options.replay:
            raise errors.UsageError(
                "the word of trusted auditors spares a replay, and none is asked for: everything else is "
                "checked anyway",
                hint="add --replay; or leave out --trusted-by, and `odfchain attestations` lists who said "
                "what",
            )
        trusted = tuple(dict.fromkeys(self.workspace.config.audit.trusted_auditors))
        if options.trusted_by > len(trusted):
            raise errors.UsageError(
                f"{counted(options.trusted_by, 'trusted auditor')} asked for, and the settings name "
                f"{len(trusted)}",
                hint="`odfchain config add audit.trustedAuditors DID` names one",
            )
        return trusted

    def _inputs(self, dataset: DatasetFiles, seen: set[Path], depth: int = 1) -> list[dict[str, Any]]:
        # nested, as reports show them; an input is expanded once, so cycles end
        try:
            transform = DatasetState.read(dataset.chain).transform
        except errors.OdfchainError:
            return []
        inputs = []
        for item in transform.inputs if transform is not None else ():
            target = str(item.id or item.dataset_ref)
            found: dict[str, Any] = {"id": target, "alias": item.alias, "kind": None}
            found |= {"missing": True, "inputs": []}
            with contextlib.suppress(errors.OdfchainError):  # it stays missing
                here = self._input(target, dataset)
                found |= {"alias": str(here.alias), "missing": False, "kind": here.kind.value.lower()}
                if here.folder not in seen and depth < LINEAGE.depth:
                    seen.add(here.folder)
                    found["inputs"] = self._inputs(here, seen, depth + 1)
            inputs.append(found)
        return inputs

    def _replay(
        self, done: Examined, find: Find, engines: EnginesFor, options: VerifyOptions, trusted: Sequence[str]
    ) -> None:
        from odfchain.audit.replay import Replaying

        run, report = done.run, done.report
        after, spared = run.after, None
        if options.trusted_by and run.chain.follows:
            # what trusted auditors have replayed is not replayed again
            words = [item.line.statement for item in report.attestations if item.in_chain]
            vouched = vouched_for([w for w in words if w], trusted, options.trusted_by, REPLAY)
            if vouched is not None and vouched[0] > after:
                after = min(vouched[0], run.upto)
                spared = (
                    f"blocks up to {after} were not computed again: {', '.join(vouched[2])} attested block "
                    f"{vouched[0]} ({vouched[1]})"
                )
        report.replay = Replay()
        report.reasons.pop(REPLAY, None)
        with contextlib.ExitStack() as resources:
            opened: list[Engines] = []

            def engine(transform: Transform) -> TransformEngine:
                if not opened:  # what cannot be replayed needs no engine
                    opened.append(resources.enter_context(engines(run.dataset, run.progress)))
                return opened[0](transform)

            known, config = tuple(report.faults), self.workspace.config.transform
            report.take(Replaying(run, find, engine, config, known).replay(after, jobs=options.jobs))
        report.sort()
        if spared is not None:
            report.add(Note(spared))
            report.add(Skipped([REPLAY], spared))

    def _upstream_at_hand(
        self, datasets: Iterable[DatasetFiles]
    ) -> tuple[list[DatasetFiles], dict[Path, list[str]]]:
        # unlike the lineage of a pull, this continues at missing inputs and damaged chains
        # (each dataset once, inputs first; by folder, what a dataset says of inputs that are not here)
        found: list[DatasetFiles] = []
        missing: dict[Path, list[str]] = {}
        entered: set[tuple[Path, str]] = set()
        stack = [(dataset, False) for dataset in reversed(list(datasets))]
        while stack:
            dataset, expanded = stack.pop()
            if expanded:
                found.append(dataset)
                continue
            if (dataset.folder, dataset.ref) in entered:
                continue
            entered.add((dataset.folder, dataset.ref))
            stack.append((dataset, True))
            try:
                # a chain that cannot be read has no inputs here; its own verification reports the damage
                transform = DatasetState.read(dataset.chain).transform
            except errors.OdfchainError:
                continue
            for item in reversed(transform.inputs if transform is not None else ()):
                target = item.id or item.dataset_ref
                try:
                    stack.append((self._input(str(target), dataset).on_or_head(dataset.ref), False))
                except (errors.DatasetNotFoundError, errors.StoreError):
                    missing.setdefault(dataset.folder, []).append(missing_input(item.alias, target))
        return found, missing


def _numbers(dataset: DatasetFiles) -> dict[Multihash, int]:
    return {name: block.sequence_number for name, block in dataset.chain.walk()}
