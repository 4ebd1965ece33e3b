"""Verifying a dataset: the chain, the rules, and every byte of every slice.

Numbered checks, each with its section of the specification. Faults are collected, not stopped at; every
fault names the file. Nothing derived (such as the chain index) is trusted.

    1  the head is a reference to a stored block                       "Metadata Chain"
    2  every block's bytes hash to its name and decode                 "Metadata Block Hashing"
    3  previous hashes and sequence numbers link the blocks to a Seed  "MetadataBlock"
    4  every block may follow the blocks before it (append rules)      "Metadata Reference"
    5  every slice and checkpoint is there, with its declared size     "DataSlice", "Checkpoint"
    6  its bytes hash to the physical hash                             "Data Hashing"
    7  its records hash to the logical hash, and fill the offsets      "Data Hashing", "Offset"
    8  transactions computed again give what is recorded (replay.py)   "Dataset Validation"

Slices and checkpoints that are missing from a partial copy are no fault: the report says that they were not
checked.

The bytes of a derivative slice are one of many ways to write its records. Where they are not the recorded
ones, the records decide: the same records written anew are a note, others are a fault.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from odfchain.audit.report import CHECKS, Fault, Report
from odfchain.chain.history import ReplayHistory
from odfchain.chain.rules import check_append
from odfchain.dataset.files import DatasetFiles
from odfchain.digest.physical import hash_bytes, hash_file
from odfchain.errors import AppendError, CodecError, OdfchainError, StoreError
from odfchain.ids.multihash import Multihash
from odfchain.metadata.block import MetadataBlock
from odfchain.metadata.blocks import decode_block
from odfchain.metadata.events import AddData, DataSlice, ExecuteTransform, Seed
from odfchain.progress import SILENT, Progress
from odfchain.share.partial import is_partial
from odfchain.store.base import HEAD
from odfchain.store.local import LocalObjectStore

__all__ = ["CHECKS", "Fault", "Report", "verify_dataset"]


@dataclass(frozen=True, slots=True)
class _SliceJob:
    sequence_number: int
    slice: DataSlice
    derivative: bool


@dataclass(frozen=True, slots=True)
class _Found:
    """What one slice brought to the report."""

    faults: tuple[Fault, ...] = ()
    notes: tuple[str, ...] = ()


def verify_dataset(dataset: DatasetFiles, progress: Progress = SILENT, *, jobs: int = 2) -> Report:
    """Run the checks 1 to 7 on a dataset; `jobs` slices are hashed side by side.

    Never raises for what is wrong with the dataset: that is in the report.
    """
    report = Report("unknown", str(dataset.alias), None)
    blocks = _read_chain(dataset, report, progress)
    _replay(dataset, blocks, report)
    slices = _check_objects(dataset, blocks, report)
    progress.phase(f"Hashing slices of {dataset.alias}", sum(job.slice.size for job in slices))
    with ThreadPoolExecutor(max_workers=max(1, jobs)) as pool:
        for job, found in zip(
            slices, pool.map(lambda j: _check_slice(dataset.data, j, progress), slices), strict=True
        ):
            report.slices += 1
            report.records += job.slice.offset_interval.count
            report.data_bytes += job.slice.size
            report.faults += found.faults
            report.notes += found.notes
    report.sort()
    return report


# --- 1 to 4: the chain -----------------------------------------------------------------------------


def _read_chain(
    dataset: DatasetFiles, report: Report, progress: Progress
) -> list[tuple[Multihash, MetadataBlock]]:
    """Blocks that could be read, oldest first; what could not be is reported."""
    try:
        head = dataset.chain.head()
    except StoreError as error:
        report.faults.append(Fault(1, str(dataset.folder / "refs" / HEAD), str(error)))
        return []
    if head is None:
        report.faults.append(Fault(1, str(dataset.folder / "refs" / HEAD), "the dataset has no head"))
        return []
    report.head = str(head)
    progress.phase(f"Reading the chain of {dataset.alias}")
    found: list[tuple[Multihash, MetadataBlock]] = []
    seen: set[Multihash] = set()
    current: Multihash | None = head
    expected: int | None = None
    while current is not None and current not in seen:
        seen.add(current)
        path = dataset.folder / "blocks" / str(current)
        block = _read_block(path, current, expected, report)
        if block is None:
            break
        report.blocks += 1
        progress.advance()
        _check_link(path, block, expected, report)
        found.append((current, block))
        expected = block.sequence_number - 1
        current = block.prev_block_hash
    found.reverse()
    if found and isinstance(found[0][1].event, Seed):
        seed = found[0][1].event
        report.dataset_id, report.kind = str(seed.dataset_id), seed.dataset_kind
    return found


def _read_block(path: Path, name: Multihash, expected: int | None, report: Report) -> MetadataBlock | None:
    """The block in a file; a damaged one that still decodes is reported and walked through."""
    try:
        data = path.read_bytes()
    except OSError as error:
        report.faults.append(Fault(2, str(path), f"the block cannot be read: {error.strerror}", expected))
        return None
    actual = hash_bytes(data)
    if actual != name:
        report.faults.append(Fault(2, str(path), f"the block's bytes hash to {actual}", expected))
    try:
        return decode_block(data)
    except CodecError as error:
        report.faults.append(Fault(2, str(path), f"the block cannot be decoded: {error}", expected))
        return None


def _check_link(path: Path, block: MetadataBlock, expected: int | None, report: Report) -> None:
    number = block.sequence_number
    if expected is not None and number != expected:
        report.faults.append(
            Fault(3, str(path), f"sequence number {number} where {expected} is expected", expected)
        )
    if block.prev_block_hash is None and number != 0:
        report.faults.append(Fault(3, str(path), f"block {number} has no predecessor", number))


def _replay(dataset: DatasetFiles, blocks: list[tuple[Multihash, MetadataBlock]], report: Report) -> None:
    history = ReplayHistory()
    complete = bool(blocks) and blocks[0][1].prev_block_hash is None
    for index, (name, block) in enumerate(blocks):
        if complete:
            try:
                check_append(block, history if index else None)
            except AppendError as error:
                path = str(dataset.folder / "blocks" / str(name))
                report.faults.append(
                    Fault(4, path, f"{error.message} (rule {error.rule})", block.sequence_number)
                )
        history.add(block)
    if blocks and not complete:
        report.notes.append("append rules were not checked: the chain cannot be followed to its Seed")


# --- 5 to 7: slices and checkpoints ----------------------------------------------------------------


def _check_objects(
    dataset: DatasetFiles, blocks: list[tuple[Multihash, MetadataBlock]], report: Report
) -> list[_SliceJob]:
    """Checks presence and size; returns the slices whose bytes are worth hashing."""
    slices, partial = [], is_partial(dataset)
    for _, block in blocks:
        event = block.event
        if not isinstance(event, AddData | ExecuteTransform):
            continue
        number = block.sequence_number
        if event.new_data is not None:
            job = _SliceJob(number, event.new_data, isinstance(event, ExecuteTransform))
            name, size = event.new_data.physical_hash, event.new_data.size
            fault = _check_size(dataset.data, name, size, "slice", number, any_size=job.derivative)
            if fault is None:
                slices.append(job)
            elif partial and _is_missing(dataset.data, name):
                report.leave_out(_NOT_HERE.format("slice", dataset.alias), number)
            else:
                report.faults.append(fault)
                report.slices += 1
        if event.new_checkpoint is not None:
            name = event.new_checkpoint.physical_hash
            if partial and _is_missing(dataset.checkpoints, name):
                report.leave_out(_NOT_HERE.format("checkpoint", dataset.alias), number)
            else:
                _check_checkpoint(dataset, event, number, report)
    return slices


_NOT_HERE = "the {} is not in this partial copy; `odfchain fetch {}` brings it"


def _is_missing(store: LocalObjectStore, name: Multihash) -> bool:
    """Whether there is nothing of this name; what cannot be looked at is not missing."""
    try:
        return not store.contains(name)
    except StoreError:
        return False


def _check_size(
    store: LocalObjectStore, name: Multihash, size: int, what: str, number: int, *, any_size: bool = False
) -> Fault | None:
    try:
        actual = store.size(name)
    except OdfchainError as error:
        return Fault(5, _locate(store, name), f"the {what} is missing: {error.message}", number)
    if actual == size or any_size:
        return None
    return Fault(5, store.locate(name), _other_size(what, actual, size), number)


def _other_size(what: str, actual: int, declared: int) -> str:
    return f"SizeMismatch: the {what} has {actual:,} bytes, its block says {declared:,}"


def _locate(store: LocalObjectStore, name: Multihash) -> str:
    try:
        return store.locate(name)
    except StoreError:
        return str(name)


def _check_checkpoint(
    dataset: DatasetFiles, event: AddData | ExecuteTransform, number: int, report: Report
) -> None:
    checkpoint = event.new_checkpoint
    assert checkpoint is not None  # noqa: S101 - checked by the caller
    # A checkpoint that did not change is named again; its bytes were hashed at the block that made it.
    store = dataset.checkpoints
    fault = _check_size(store, checkpoint.physical_hash, checkpoint.size, "checkpoint", number)
    if fault is not None:
        report.faults.append(fault)
        return
    try:
        store.verified_path(checkpoint.physical_hash)
    except OdfchainError as error:
        file = store.locate(checkpoint.physical_hash)
        report.faults.append(
            Fault(6, file, f"PhysicalHashMismatch: the checkpoint is damaged: {error.message}", number)
        )


def _check_slice(store: LocalObjectStore, job: _SliceJob, progress: Progress) -> _Found:
    """Physical hash, then records; a root's file with wrong bytes is not decoded."""
    path = Path(store.locate(job.slice.physical_hash))
    number = job.sequence_number
    try:
        actual, size = hash_file(path, progress.advance)
    except OSError as error:
        return _Found((Fault(6, str(path), f"the slice cannot be read: {error.strerror}", number),))
    if actual == job.slice.physical_hash:
        return _check_records(path, job)
    if job.derivative:
        return _check_written_anew(path, job, size)
    message = f"PhysicalHashMismatch: the slice's bytes hash to {actual}"
    return _Found((Fault(6, str(path), message, number),))


def _check_written_anew(path: Path, job: _SliceJob, size: int) -> _Found:
    """A derivative's file that has other bytes: the same records are as good."""
    records = _check_records(path, job)
    if not records.faults:
        note = (
            f"{path}: the slice was written anew, with the same records (its bytes are not the recorded ones)"
        )
        return _Found(notes=(note, *records.notes))
    if size == job.slice.size:
        return records
    resized = _other_size("slice", size, job.slice.size)
    message = "; ".join((resized, *(fault.message for fault in records.faults)))
    return _Found((Fault(5, str(path), message, job.sequence_number),))


def _check_records(path: Path, job: _SliceJob) -> _Found:
    import pyarrow as pa  # noqa: PLC0415

    from odfchain.digest.parquet import hash_parquet  # noqa: PLC0415 - loads pyarrow

    number, declared = job.sequence_number, job.slice
    faults: list[Fault] = []
    notes: list[str] = []
    try:
        logical, rows = hash_parquet(path)
        if logical != declared.logical_hash:
            other, _ = hash_parquet(path, null_rule="reference")
            if other == declared.logical_hash:
                notes.append(
                    f"{path}: the logical hash follows the reference implementation's rule for null structs"
                )
            else:
                message = (
                    f"LogicalHashMismatch: the records differ from the recorded ones: "
                    f"they hash to {logical}, the block says {declared.logical_hash}"
                )
                faults.append(Fault(7, str(path), message, number))
    except (OdfchainError, pa.ArrowException, UnicodeDecodeError) as error:
        reason = error.message if isinstance(error, OdfchainError) else str(error).splitlines()[0]
        return _Found((Fault(7, str(path), f"the records cannot be hashed: {reason}", number),))
    expected = declared.offset_interval.count
    if rows != expected:
        faults.append(
            Fault(7, str(path), f"the slice has {rows:,} records, its offsets say {expected:,}", number)
        )
    return _Found(tuple(faults), tuple(notes))
