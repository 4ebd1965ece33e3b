"""Verifying a dataset: the chain, the rules, and every byte and row of every slice.

Numbered checks, each with its section of the specification. Faults are collected, not stopped at; every
fault names the file. Nothing derived (such as the chain index) is trusted.

     1  the head is a reference to a stored block                        "Metadata Chain"
     2  every block's bytes hash to its name and decode                  "Metadata Block Hashing"
     3  previous hashes and sequence numbers link the blocks to a Seed   "MetadataBlock"
     4  every block may follow the blocks before it                      "Metadata Reference"
     5  every slice and checkpoint is there, with its declared size      "DataSlice", "Checkpoint"
     6  its bytes hash to the physical hash                              "Physical and Logical Hashes"
     7  its records hash to the logical hash                             "Physical and Logical Hashes"
     8  its rows are as many as its offsets, which have no gaps          "Offset"
     9  system columns: names, types, order, operations, system time     "Common Data Schema"
    10  -C is followed by its +C; what is taken back was in force        "Representation of Retractions …"
    11  columns are as they are declared                                 "SetDataSchema"
    12  watermarks never go back and are not ahead of the data           "Watermark"
    13  a state checkpoint is the state                                  "Checkpoint"; RFC-018
    14  inputs are what executions say of them                           "ExecuteTransformInput"
    15  transactions computed again give what is recorded (replay.py)    "Dataset Validation"
    16  the owner signed the head                                        "Metadata Chain"
    17  merges are what their two sides merge into (merge_check.py)      "AddData"; RFC-036
    18  what rows refer to by foreign keys is there                      "SetAttachments"; RFC-037
    19  what footers report is true of the rows (slice_checks.py)        "DataSlice"; RFC-043
    20  signed manifests are what chain and footers give                 RFC-043
    21  signed profiles are what the rows give (where it is asked for)   RFC-043

A check that cannot run says why, and never passes. The reading of files is spread over threads: hashing and
decoding release the interpreter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.audit.chain_checks import (
    BlockName,
    Run,
    StoredBlock,
    StoredBlocks,
    StoredChain,
    check_rules,
    count_slices,
    hash_at,
    read_chain,
)
from odfchain.audit.report import (
    CHECKS,
    FOREIGN_KEYS,
    INVALID,
    MERGES,
    REPLAY,
    SIGNATURE,
    STATISTICS,
    AttestationLine,
    BlockLine,
    Report,
    SignatureLine,
)
from odfchain.chain import signed_heads
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import MERGE, ROW_BYTES, ChainIndex
from odfchain.chain.signed_heads import SignatureStatus
from odfchain.chain.signed_lines import AUDITS, read_attestations
from odfchain.chain.statements import Did, parse_did
from odfchain.errors import OdfchainError, StoreError, UsageError
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import AddData, ExecuteTransform
from odfchain.odf.identity import Multihash
from odfchain.odf.names import is_branch_name
from odfchain.progress import SILENT, Progress
from odfchain.storage.local import HEAD
from odfchain.storage.public_layout import signature_key
from odfchain.text import one_line
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import MergeMode, MergeRecord, first_records
from odfchain.workspace.options import VerifyOptions

if TYPE_CHECKING:
    from odfchain.audit.input_claims import Find

_UNFOLLOWED = "the chain cannot be followed: what is below was not reached"


_DEFAULTS = VerifyOptions()


def verify_dataset(dataset: DatasetFiles, progress: Progress = SILENT, *, jobs: int = 2) -> Report:
    """Run all checks but the replay on a dataset by itself; `jobs` slices are read side by side.

    Never raises for what is wrong with the dataset: that is in the report.
    """
    return examine(dataset, VerifyOptions(jobs=jobs), progress=progress).report


def examine(
    dataset: DatasetFiles,
    options: VerifyOptions = _DEFAULTS,
    find: Find = lambda _: None,
    progress: Progress = SILENT,
    *,
    trusted: Collection[str] = (),
    signature_unread: str | None = None,
) -> Run:
    """Run all checks but the replay; `find` finds the inputs, `trusted` are auditors.

    `signature_unread` is the reason for an unknown signature of the head; None where it can be read.
    """
    report = Report("unknown", dataset.label, None)
    chain = read_chain(dataset, report, progress, last=options.last)
    if not chain.blocks:
        report.skip((n for n in CHECKS if n > 1), "there is no chain that could be read")
        report.sort()
        return Run(dataset, chain, -1, -1, report, progress)
    after, upto = _resolve_range(dataset, chain, options)
    report.after = hash_at(chain, after) if options.after is not None or chain.newest is not None else None
    report.upto = hash_at(chain, upto) if options.upto is not None else None
    run = Run(dataset, chain, after, upto, report, progress)
    _describe_blocks(run)
    check_rules(run)
    _check_data(run, options, find)
    if not chain.complete:
        report.skip([*range(3, REPLAY), MERGES, FOREIGN_KEYS, STATISTICS], _UNFOLLOWED)
    if report.kind is not DatasetKind.ROOT:
        report.skip([REPLAY], "it was not asked for (--replay)")
    if signature_unread is None:
        _check_signature(run, required=options.require_signature)
    else:
        _leave_out_signature(run, signature_unread, required=options.require_signature)
    _read_attestations(run, trusted)
    _note_index(run)
    report.sort()
    return run


def _check_data(run: Run, options: VerifyOptions, find: Find) -> None:
    # Loaded here: reading slices needs Arrow, and following the chain does not.
    from odfchain.audit import slice_checks, state_checks
    from odfchain.audit.input_claims import InputChains, check_inputs
    from odfchain.audit.merge_check import check_merges
    from odfchain.audit.snapshot_checks import check_snapshots

    report, chain = run.report, run.chain
    jobs = slice_checks.check_objects(run)
    outcomes = slice_checks.read_slices(run, jobs, options.jobs)
    report.faults += slice_checks.check_system_times(run.dataset.data, jobs, outcomes)
    inputs = InputChains(find)
    if report.kind is not DatasetKind.ROOT:
        check_inputs(run, inputs, wanted=options.replay or options.recursive)
    state_checks.check_watermarks(run, outcomes, inputs.watermarks)
    readable = state_checks.readable_slices(run.dataset, jobs, outcomes)
    complete = chain.follows and chain.newest is None and len(readable) == count_slices(chain, run.upto)
    in_force = not state_checks.has_several_keys(chain)
    state_checks.check_corrections(readable, report, complete=complete, in_force=in_force)
    state_checks.check_states(run, readable, complete=complete)
    state_checks.check_foreign_keys(run, readable, find, complete=complete)
    check_merges(run, outcomes, find, jobs=options.jobs)
    hashed = {number for number, outcome in outcomes.items() if outcome.as_recorded}
    check_snapshots(run, hashed, profiles=options.profiles)


def _resolve_range(dataset: DatasetFiles, chain: StoredChain, options: VerifyOptions) -> tuple[int, int]:
    """Sequence numbers `(after, upto]` of the range."""
    last = chain.blocks.newest.number if chain.blocks else -1
    if options.last is not None:
        return (chain.newest - 1 if chain.newest is not None else -1), last
    after = -1 if options.after is None else _number(dataset, chain, options.after)
    upto = last if options.upto is None else _number(dataset, chain, options.upto)
    if after > upto:
        raise UsageError(
            f"{dataset.alias}: the range begins after block {after} and ends with block {upto}",
            hint="a range is (from, to]: the older block first",
        )
    return after, upto


def _number(dataset: DatasetFiles, chain: StoredChain, name: BlockName) -> int:
    for row in chain.blocks.rows():
        if name in (row.name, row.number):
            return row.number
    raise UsageError(f"{dataset.alias}: block {name} is not in its chain")


def _describe_blocks(run: Run) -> None:
    """One line of the report for each block of the range."""
    carrying = (HashedBlock(stored.name, stored.block) for stored in run.chain.blocks.newest_first(MERGE))
    merged = {item.block.hash: item.record for item in first_records(carrying)}
    run.report.lines = _BlockLines(run.chain.blocks, run.after, run.upto, merged)


class _BlockLines:
    """The lines of a report about the blocks of a range, made when they are asked for."""

    def __init__(
        self, blocks: StoredBlocks, after: int, upto: int, merged: Mapping[Multihash, MergeRecord]
    ) -> None:
        self._blocks, self._after, self._upto, self._merged = blocks, after, upto, merged

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BlockLines | list) and all(
            one == another for one, another in zip_longest(self, other)
        )

    __hash__ = None  # type: ignore[assignment] # as of a list

    def __iter__(self) -> Iterator[BlockLine]:
        for stored in self._blocks:
            if self._after < stored.number <= self._upto:
                yield _line(stored, self._merged.get(stored.name))


def _line(stored: StoredBlock, record: MergeRecord | None) -> BlockLine:
    event, count, mark = stored.block.event, 0, None
    if isinstance(event, AddData | ExecuteTransform) and stored.sound:
        count = event.new_data.offset_interval.count if event.new_data is not None else 0
        mark = event.new_watermark
    branch = one_line(record.source_ref) if record and record.mode is MergeMode.MERGE else None
    return BlockLine(stored.number, stored.name, stored.block.system_time, event.KIND, count, mark, branch)


# The chain's index against the chain: it is derived, so errors in it are notes, not faults.

_AHEAD_BYTES = 4_096 * ROW_BYTES


def _note_index(run: Run) -> None:
    """An index that says something else than the chain is noted: it is only a cache, and heals itself."""
    path = run.dataset.index_path
    try:
        size = path.stat().st_size
    except OSError:
        return
    index = ChainIndex(_ReadAhead(path), lambda _: iter(()))
    for stored in run.chain.blocks.rows():
        if (stored.number + 1) * ROW_BYTES > size:
            break  # blocks that it does not know yet
        row = index.row(stored.number)
        if stored.sound and (row is None or (row.hash, row.kind) != (stored.name, stored.event_kind)):
            run.report.notes.append(
                f"{path}: the index of the chain is damaged or old; it is made anew when used"
            )
            return
    if size % ROW_BYTES:
        run.report.notes.append(f"{path}: the index of the chain is cut; it is made anew when used")


class _ReadAhead:
    """A file that is read in order, many rows at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = 0
        self._data = b""

    def read(self, start: int, count: int) -> bytes:
        if not self._start <= start <= start + count <= self._start + len(self._data):
            try:
                with self._path.open("rb", buffering=0) as stream:
                    stream.seek(start)
                    self._start, self._data = start, stream.read(max(count, _AHEAD_BYTES))
            except OSError:
                # an unreadable file reads as empty
                self._data = b""
        at = start - self._start
        return self._data[at : at + count]

    def write(self, start: int, data: bytes) -> None:
        """Nothing: verification changes nothing."""


# Check 16: the owner's signature of the head, and what other auditors attested. The result says signed,
# unsigned or invalid. An invalid signature is a fault; an unsigned head is a note, unless one is required.


def _check_signature(run: Run, *, required: bool) -> None:
    path, dataset_id = run.dataset.folder / signature_key(run.dataset.ref), run.dataset_id
    if dataset_id is None or not run.chain.blocks:
        run.report.skip(
            [SIGNATURE], "the dataset's id is not known: its chain cannot be followed to its Seed"
        )
        return
    if run.dataset.ref != HEAD and not is_branch_name(run.dataset.ref):
        reason = "it was verified as of an earlier block: the newest one is what is signed"
        _leave_out_signature(run, reason, required=required)
        return
    head = run.chain.blocks.newest
    try:
        content = signed_heads.read_head_signature(run.dataset.folder, run.dataset.ref)
    except StoreError as error:
        run.report.fault(SIGNATURE, path, error.message)
        run.report.signature = SignatureLine(INVALID, message=error.message)
        return
    if run.dataset.ref == HEAD:
        found = signed_heads.check_head(
            content,
            dataset_id,
            head.name,
            head.number,
            block_at=lambda number: (
                hash_at(run.chain, number)
                if run.chain.newest is None or number >= run.chain.newest
                else run.dataset.chain.hash_at(number, head.name)
            ),
        )
    else:
        found = signed_heads.check_branch(content, dataset_id, run.dataset.ref, head.name)
    run.report.signature = SignatureLine(
        str(found.status),
        str(found.signer) if found.signer is not None else None,
        str(found.signed.time) if found.signed is not None else None,
        found.message,
    )
    if found.status is not SignatureStatus.UNSIGNED:
        run.report.count(SIGNATURE)
    if found.status is SignatureStatus.INVALID or (required and found.status is SignatureStatus.UNSIGNED):
        run.report.fault(SIGNATURE, path, found.message or "the head is not signed")
    elif found.status is SignatureStatus.UNSIGNED:
        run.report.skip([SIGNATURE], found.message or "the head is not signed")
        run.report.notes.append(found.message or "the head is not signed")


def _leave_out_signature(run: Run, reason: str, *, required: bool) -> None:
    # where a signature is required, not knowing is not clean
    run.report.signature = SignatureLine(message=reason)
    if required:
        run.report.leave_out(reason, check=SIGNATURE)
    else:
        run.report.skip([SIGNATURE], reason)


def _read_attestations(run: Run, trusted: Collection[str]) -> None:
    # damaged ones are faults, those of other chains notes
    dataset_id = run.dataset_id
    if dataset_id is None:
        return
    path = run.dataset.folder / AUDITS.key
    try:
        lines = read_attestations(run.dataset.folder, dataset_id)
    except OdfchainError as error:
        run.report.fault(SIGNATURE, path, error.message)
        return
    for line in lines:
        # attestations are third parties' words: those of other chains are notes, an altered line is a fault
        if line.statement is None:
            run.report.fault(SIGNATURE, path, f"line {line.number}: {line.message}")
            continue
        item = line.statement
        run.report.attestations.append(
            AttestationLine(
                str(item.auditor),
                str(item.head),
                item.sequence_number,
                str(item.time),
                str(item.verdict),
                is_trusted(item.auditor, trusted),
            )
        )
        if run.chain.newest is not None and item.sequence_number < run.chain.newest:
            continue
        if hash_at(run.chain, item.sequence_number) == item.head:
            run.attestations.append(item)
        else:
            run.report.notes.append(
                f"{item.auditor} attested block {item.sequence_number} with the hash {item.head}, "
                "which is not in this chain"
            )


def is_trusted(auditor: Did, trusted: Collection[str]) -> bool:
    """True if an auditor is trusted: the key counts, not the method of its DID."""
    return any(parse_did(text).public_key == auditor.public_key for text in trusted)
