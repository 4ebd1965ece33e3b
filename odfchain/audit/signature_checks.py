"""Checks 16, 20 and 21: what is signed about a dataset.

The owner's word on a snapshot is held against him: what the dataset does not give is a fault. Anybody may add
a line, so another signer's wrong word is noted, and his name with it. An invalid signature of the head is a
fault; an unsigned head is a note, unless one is required. Source: RFC-043.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from odfchain import errors
from odfchain.audit.chain_checks import Run, StoredBlock
from odfchain.audit.report import (
    INVALID,
    MANIFESTS,
    PROFILES,
    SIGNATURE,
    Checking,
    Fault,
    Finding,
    LeftOut,
    ListedAttestation,
    Looked,
    Note,
    SignatureLine,
    Skipped,
    fault,
)
from odfchain.chain import checkpoints, signed_heads
from odfchain.chain.chain import MetadataChain
from odfchain.chain.index import ReplayHistory
from odfchain.chain.key_statements import BEFORE, KeyHistory, Scope, key_history, keys_content, read_lines
from odfchain.chain.signed_heads import SignatureStatus
from odfchain.chain.signed_lines import AUDITS, SNAPSHOTS, LineFile, SignedLine, SnapshotKind, SnapshotLine
from odfchain.chain.statements import read_bounded
from odfchain.chain.transparency_log import tree_root
from odfchain.limits import ATTEST
from odfchain.odf.canonical_json import canonical_bytes
from odfchain.odf.events import AddData, DatasetVocabulary, ExecuteTransform, SetVocab
from odfchain.odf.identity import Multihash
from odfchain.odf.names import is_branch_name
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.profiles.manifests import SnapshotFacts, file_document, snapshot_document
from odfchain.profiles.published import object_of, store_of_kind
from odfchain.profiles.reader import DESCRIPTIVE, library, read_profile
from odfchain.progress import Progress
from odfchain.slices.footers import FileStats, file_stats
from odfchain.storage.local import HEAD, LocalObjectStore, LocalRefStore
from odfchain.storage.public_layout import SignedFile, signature_key
from odfchain.text import one_line
from odfchain.transfer.witnesses import known_witnesses
from odfchain.workspace.config import TrustConfig
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.options import ProfileOptions

if TYPE_CHECKING:
    from odfchain.profiles.totals import Totals

T = TypeVar("T")

UNBELIEVED = "not all that the chain says can be believed"
"""The reason for making nothing again from a faulty chain."""
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class SignedStatements:
    """The statements about the dataset of a verification."""

    run: Run
    there: bool = True
    """False of a dataset elsewhere: nothing shows that what a revoked key signed was there before."""

    # --- 16: the signature of the head, and what auditors attested ---------------------------------------

    def check_head(self, *, required: bool) -> Checking[None]:
        """The owner's signature of the head; an unsigned one is a fault only where it is `required`."""
        dataset, chain, dataset_id = self.run.dataset, self.run.chain, self.run.dataset_id
        path = dataset.folder / signature_key(dataset.ref)
        if dataset_id is None or not chain.blocks:
            yield Skipped(
                [SIGNATURE], "the dataset's id is not known: its chain cannot be followed to its Seed"
            )
            return
        if dataset.ref != HEAD and not is_branch_name(dataset.ref):
            reason = "it was verified as of an earlier block: the newest one is what is signed"
            yield from self.leave_out_head(reason, required=required)
            return
        head = chain.blocks.newest
        lines, wrong = read_lines(keys_content(dataset.folder))
        keys = KeyHistory.of(dataset_id, lines, None if self.there else ())
        for message in (*wrong, *keys.problems):
            yield fault(SIGNATURE, dataset.folder / SignedFile.KEYS.value, message)
        try:
            content = signed_heads.read_head_signature(dataset.folder, dataset.ref)
        except errors.StoreError as error:
            yield fault(SIGNATURE, path, error.message)
            yield SignatureLine(INVALID, message=error.message)
            return
        if dataset.ref == HEAD:
            found = signed_heads.check_head(
                content,
                dataset_id,
                head.name,
                head.number,
                block_at=lambda number: (
                    chain.hash_at(number)
                    if chain.newest is None or number >= chain.newest
                    else dataset.chain.hash_at(number, head.name)
                ),
                keys=keys,
                there=lambda _: self.there,
            )
        else:
            found = signed_heads.check_branch(content, dataset_id, dataset.ref, head.name, keys)
        moved = found.status is not SignatureStatus.SIGNED and dataset.chain.head() != head.name
        # a writer was faster, and has signed his own block
        if moved and (found := dataset.head_signature()).status is not SignatureStatus.INVALID:
            reason = "the head has moved meanwhile, and with it the signature"
            yield from self.leave_out_head(reason, required=required)
            return
        yield SignatureLine(
            str(found.status),
            str(found.signer) if found.signer is not None else None,
            str(found.signed.time) if found.signed is not None else None,
            found.message,
        )
        problem, unsigned = found.message or "the head is not signed", SignatureStatus.UNSIGNED
        if found.status is not unsigned:
            yield Looked(SIGNATURE)
        if found.status is SignatureStatus.INVALID or (required and found.status is unsigned):
            yield fault(SIGNATURE, path, problem)
        elif found.status is unsigned:
            yield Skipped([SIGNATURE], problem)
            yield Note(problem)

    def check_note(self, trust: TrustConfig) -> Checking[None]:
        """The checkpoint beside the head: of this chain, by its owner, and cosigned as the settings want.

        How old cosignatures are is not asked: that is for pulls.
        """
        run, dataset, chain = self.run, self.run.dataset, self.run.chain
        if run.dataset_id is None or not chain.follows or chain.newest is not None or dataset.ref != HEAD:
            return
        path, note = dataset.folder / SignedFile.CHECKPOINT.value, None
        wanted = dataclasses.replace(trust.witnesses, max_age=None)
        try:
            if (data := read_bounded(path, ATTEST.note_bytes)) is not None:
                shown = BEFORE if self.there else None
                signers = key_history(dataset.folder, run.dataset_id).signers(Scope.CHECKPOINTS, shown)
                note = checkpoints.read_note(data, run.dataset_id, signers)
                one = note.checkpoint
                blocks = [
                    name for at in range(min(one.size, len(chain.blocks))) if (name := chain.hash_at(at))
                ]
                if len(blocks) != one.size or blocks[-1] != one.head or tree_root(blocks) != one.root:
                    if dataset.chain.head() != chain.head:
                        return  # a writer was faster, and it is the checkpoint of his block
                    yield fault(SIGNATURE, path, "the checkpoint is of another history than this chain")
                    return
                for key, time in note.times(known_witnesses(trust)).items():
                    yield Note(f"block {one.sequence_number:,} was cosigned by witness {key.name}, {time}")
            newest = note if note is not None and note.checkpoint.head == chain.head else None
            wanted.check(newest, Timestamp.now())
        except (errors.SignatureError, errors.StoreError) as error:
            yield fault(SIGNATURE, path, error.message)

    def leave_out_head(self, reason: str, *, required: bool) -> Checking[None]:
        """Why the signature of the head is not known; where it is `required`, that is not clean."""
        yield SignatureLine(message=reason)
        yield LeftOut(reason, check=SIGNATURE) if required else Skipped([SIGNATURE], reason)

    def check_attestations(self, trusted: Collection[str]) -> Checking[None]:
        """What auditors attested of the dataset: damaged lines are faults, those of other chains notes."""
        if self.run.dataset_id is not None:
            for line, item, in_chain in (yield from self._lines(AUDITS, SIGNATURE, lambda _: "attested")):
                yield ListedAttestation(line, in_chain, item.is_by(trusted))

    def _lines(
        self, file: LineFile[T], check: int, did: Callable[[T], str]
    ) -> Checking[list[tuple[SignedLine[T], T, bool]]]:
        """The valid lines of a file, each with its statement and whether that is about a block of the chain.

        What is no line is a fault of the file; one about a block that is not in the chain is a note.
        """
        dataset, chain, dataset_id = self.run.dataset, self.run.chain, self.run.dataset_id
        path = dataset.folder / file.key
        try:
            content = file.content(dataset.folder)
        except errors.OdfchainError as error:
            yield fault(check, path, error.message)
            return []
        found: list[tuple[SignedLine[T], T, bool]] = []
        for line in file.lines_of(content, dataset_id) if dataset_id is not None else ():
            if (item := line.statement) is None:
                yield fault(check, path, f"line {line.number}: {line.message}")
                continue
            about = file.about(item)
            number = about.sequence_number
            before = chain.newest is not None and number < chain.newest
            in_chain = not before and chain.hash_at(number) == about.block
            if not in_chain and not before:
                where = f"block {number} with the hash {about.block}, which is not in this chain"
                yield Note(f"{about.signer} {did(item)} {where}")
            found.append((line, item, in_chain))
        return found

    # --- lines about snapshots ---------------------------------------------------------------------------

    def check_snapshots(self, hashed: Collection[int], *, profiles: bool) -> Checking[None]:
        """Every line about a snapshot; `hashed` are the blocks whose slices have the recorded bytes."""
        lines = yield from self._signed_lines()
        manifests = [line for line in lines if line.kind is SnapshotKind.MANIFEST]
        yield from self._check_manifests(manifests, hashed)
        signed = [line for line in lines if line.kind is SnapshotKind.PROFILE]
        if signed and profiles:
            yield from self._check_profiles(signed)
        elif signed:
            yield Skipped([PROFILES], "it was not asked for (--profiles)")

    def _signed_lines(self) -> Checking[list[SnapshotLine]]:
        """The valid lines about blocks `(after, upto]` of this chain, oldest first."""
        lines = yield from self._lines(SNAPSHOTS, MANIFESTS, lambda item: f"signed a {item.kind} of")
        found = [item for _, item, in_chain in lines if in_chain]
        found = [item for item in found if self.run.after < item.sequence_number <= self.run.upto]
        return sorted(found, key=lambda item: item.sequence_number)

    def _stored_document(self, line: SnapshotLine, check: int) -> bytes | Fault | None:
        """The document that a line names; damage is a fault of the copy, None where there is no file."""
        try:
            return object_of(self.run.dataset, line)
        except errors.ObjectNotFoundError:
            return None
        except errors.OdfchainError as error:
            place = store_of_kind(self.run.dataset, line.kind).locate(line.object)
            return fault(check, place, error.message, line.sequence_number)

    def _disagree(self, line: SnapshotLine, check: int, what: str) -> Finding:
        """A line names something else than the dataset gives."""
        block = line.sequence_number
        if line.by_owner(key_history(self.run.dataset.folder, line.dataset_id)):
            message = f"the {line.kind} {line.object} that the owner signed: {what}"
            return fault(check, self.run.dataset.folder / SNAPSHOTS.key, message, block)
        message = f"the {line.kind} of block {block} that {line.signer} signed ({line.object}): {what}"
        return Note(one_line(message, 800))

    # Check 20: signed manifests, byte for byte.
    # A manifest is made again from the blocks and from the footers of hashed slices; the document itself need
    # not be here, since its hash is in the line. Source: RFC-043.

    def _check_manifests(self, lines: Sequence[SnapshotLine], hashed: Collection[int]) -> Checking[None]:
        if not lines:
            return
        if self.run.chain.newest is not None:
            yield Skipped([MANIFESTS], "the newest blocks alone were read")
            return
        if not self.run.chain.follows:
            yield Skipped([MANIFESTS], UNBELIEVED)
            return
        wanted: dict[int, list[SnapshotLine]] = {}
        for line in lines:
            wanted.setdefault(line.sequence_number, []).append(line)
        files: list[tuple[FileStats, bytes]] = []
        history, last = ReplayHistory(), max(wanted)
        for stored in self.run.chain.blocks:
            if stored.number > last:
                return
            history.add(stored.block)
            if stored.block.new_data is not None:
                made = self._file(SliceRef(stored.name, stored.number, stored.block.new_data), hashed)
                if isinstance(made, Skipped):
                    yield made
                    return
                files.append(made)
            for line in wanted.get(stored.number, ()):
                yield Looked(MANIFESTS)
                yield from self._check(line, _text(_facts(line, stored, history), files))

    def _file(self, ref: SliceRef, hashed: Collection[int]) -> tuple[FileStats, bytes] | Skipped:
        # a footer of unverified bytes proves nothing
        if ref.sequence_number not in hashed:
            return Skipped(
                [MANIFESTS], "not all slices were found as they are recorded, so footers are missing"
            )
        try:
            stats = file_stats(self.run.dataset.data.path(ref.slice.physical_hash))
            return stats, canonical_bytes(file_document(ref, stats))
        except errors.OdfchainError as error:  # the slice has a fault of its own
            return Skipped([MANIFESTS], error.message)

    def _check(self, line: SnapshotLine, made: bytes) -> Checking[None]:
        signed = self._stored_document(line, MANIFESTS)
        if isinstance(signed, Fault):
            yield signed
        name = hash_bytes(made)
        if (name, len(made)) == (line.object, line.size):
            return
        where = None
        if isinstance(signed, bytes):
            try:
                where = document_difference(json.loads(signed), json.loads(made))
            except (ValueError, RecursionError):
                where = "it is no manifest"
        what = where or f"chain and footers give {name} ({len(made):,} bytes)"
        yield self._disagree(line, MANIFESTS, what)

    # Check 21: signed profiles, byte for byte, by profiling the rows again.
    # The publisher's words and hidden columns come from the document. Languages rest on a library's floats:
    # with the same version of it, 0.005 more or less are accepted. Source: RFC-043.

    def _check_profiles(self, lines: Sequence[SnapshotLine]) -> Checking[None]:
        if not self.run.chain.follows:
            yield LeftOut(UNBELIEVED, check=PROFILES)
            return
        rows = _Rows(self.run.dataset, self.run.progress)
        for line in lines:
            if (data := self._stored_document(line, PROFILES)) is None:
                yield LeftOut(f"the profile {line.object} is not here", line.sequence_number, PROFILES)
                continue
            if isinstance(data, Fault):
                yield data
                continue
            try:
                document = _document(data, line)
                difference = document if isinstance(document, str) else rows.difference(document, data, line)
            except (errors.OdfchainError, MemoryError) as error:
                said = (
                    error.message if isinstance(error, errors.OdfchainError) else "there is not enough memory"
                )
                reason = f"the profile {line.object} was not computed again: {said}"
                yield LeftOut(reason, line.sequence_number, PROFILES)
                continue
            yield Looked(PROFILES)
            if difference is not None:
                yield self._disagree(line, PROFILES, difference)


def document_difference(signed: Any, made: Any, path: str = "") -> str | None:
    """The first difference of two documents with its path; None where they are equal."""
    if isinstance(signed, Mapping) and isinstance(made, Mapping):
        for name in sorted({*signed, *made}):
            inner = f"{path}.{name}" if path else str(name)
            if name not in signed or name not in made:
                return f"{one_line(inner, 200)} is {'missing' if name in made else 'too much'}"
            if (found := document_difference(signed[name], made[name], inner)) is not None:
                return found
        return None
    if isinstance(signed, Sequence) and isinstance(made, Sequence) and not isinstance(signed, str):
        for index, (one, other) in enumerate(zip(signed, made, strict=False)):
            if (found := document_difference(one, other, f"{path}[{index}]")) is not None:
                return found
        if len(signed) != len(made):
            return f"{one_line(path, 200)} has {len(signed):,} items, there are {len(made):,}"
        return None
    if type(signed) is type(made) and signed == made:
        return None
    one, other = (one_line(str(value), _SHOWN) for value in (signed, made))
    return f"{one_line(path, 200)} says {one}, it is {other}"


def _text(facts: SnapshotFacts, files: Sequence[tuple[FileStats, bytes]]) -> bytes:
    # the texts of files are made once for all manifests that repeat them
    whole = canonical_bytes(snapshot_document(facts, [stats for stats, _ in files]) | {"files": []})
    # names are sorted: before this one there are no texts of others
    return whole.replace(b'"files":[]', b'"files":[' + b",".join(text for _, text in files) + b"]", 1)


def _facts(line: SnapshotLine, stored: StoredBlock, history: ReplayHistory) -> SnapshotFacts:
    data = history.nearest_event(AddData, ExecuteTransform)
    last = data if isinstance(data, AddData | ExecuteTransform) else None
    offset = last.last_offset if last is not None else None
    return SnapshotFacts(
        dataset_id=line.dataset_id,
        head=stored.name,
        block=stored.block,
        # offsets begin at 0, so the last one counts the records
        record_count=0 if offset is None else offset + 1,
        watermark=last.new_watermark if last is not None else None,
        vocabulary=DatasetVocabulary.from_event(history.nearest_event(SetVocab)),
    )


LANGUAGES_WITHIN = 0.005 + 1e-9
"""The second part is for the rounding of the difference."""
_LANGUAGES = "detected_languages"


def _document(data: bytes, line: SnapshotLine) -> Mapping[str, Any] | str:
    try:
        document = read_profile(data)
    except errors.UnsupportedVersionError:
        raise
    except errors.CodecError as error:
        return error.message
    own = document["odf"]
    for found, wanted in ((document["snapshot_id"], line.block), (own["dataset_id"], line.dataset_id)):
        if found != str(wanted):
            return f"it is of {found}, not of {wanted}"
    # another version of the library may detect other languages
    if (used := own["languages"]) not in (None, library()):
        message = f"languages detected by {used}, here is {library() or 'no such library'}"
        raise errors.UnsupportedVersionError(message)
    return document


class _Rows:
    """The rows of a dataset, profiled anew: no index and nothing that is kept of slices is used."""

    def __init__(self, dataset: DatasetFiles, progress: Progress) -> None:
        folder = dataset.folder
        chain = MetadataChain(LocalObjectStore(folder / "blocks"), LocalRefStore(folder), ref=dataset.ref)
        self._dataset = dataclasses.replace(dataset, chain=chain)
        self._progress = progress
        self._known: tuple[Multihash, bool, Totals] | None = None

    def difference(self, document: Mapping[str, Any], data: bytes, line: SnapshotLine) -> str | None:
        from odfchain.profiles.document import facts_of, profile_document
        from odfchain.profiles.state_totals import state_totals

        state = DatasetState.read(self._dataset.chain, line.block)
        own = document["odf"]
        options = ProfileOptions(hide=own["hidden"], languages=own["languages"] is not None)
        facts = facts_of(self._dataset, state, options)
        words = {name: document[name] for name in DESCRIPTIVE}
        near = document["near_duplicate_estimate"] is not None
        if self._known is None or self._known[:2] != (state.head, near):
            totals = state_totals(self._dataset, state, self._progress, keep=False, near_duplicates=near)
            self._known = (state.head, near, totals)
        made = profile_document(self._known[2], dataclasses.replace(facts, descriptive=words))
        _accept_languages(document, made["column_stats"])
        try:
            text = canonical_bytes(made)
        except errors.CodecError as error:  # the publisher's words are no JSON
            return error.message
        if text == data:
            return None
        where = document_difference(document, json.loads(text))
        return where or "it is not in the one text that profiles have"


def _accept_languages(document: Mapping[str, Any], made: Mapping[str, dict[str, Any]]) -> None:
    for name, stats in made.items():
        signed = document["column_stats"].get(name, {}).get(_LANGUAGES)
        found = stats.get(_LANGUAGES)
        if signed is None or found is None:
            continue
        # the detection library computes with floats: small differences are no fault
        if all(abs(signed.get(n, 0) - found.get(n, 0)) <= LANGUAGES_WITHIN for n in {*signed, *found}):
            stats[_LANGUAGES] = dict(signed)
