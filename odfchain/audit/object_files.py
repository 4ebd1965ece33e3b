"""Checks 5 and 6 of the files that blocks name: they are there, with their sizes; checkpoints are hashed.

Slices and checkpoints that are missing from a partial copy are no fault: the report says that they were not
checked.
"""

from __future__ import annotations

from odfchain.audit.checks import OF_ROWS, OFFSETS, PHYSICAL, PRESENT, SCHEMA
from odfchain.audit.expected_schema import SchemaInForce
from odfchain.audit.report import Report
from odfchain.audit.slice_checks import SliceJob, other_size
from odfchain.audit.stored_blocks import StoredBlock
from odfchain.audit.walk import StoredChain
from odfchain.chain.earlier_blocks import DATA_EVENTS
from odfchain.errors import OdfchainError, StoreError
from odfchain.ids.multihash import Multihash
from odfchain.model.events import AddData, Checkpoint, ExecuteTransform, SetDataSchema, SetVocab
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store.local import LocalObjectStore
from odfchain.text import one_line
from odfchain.transfer.partial import is_partial

_NOT_HERE = "the {} is not in this partial copy; `odfchain fetch {}` brings it"


def check_objects(
    dataset: DatasetFiles, chain: StoredChain, after: int, upto: int, report: Report
) -> list[SliceJob]:
    """Presence, sizes, and bytes of checkpoints; returns the slices whose bytes are worth hashing."""
    slices: list[SliceJob] = []
    partial = is_partial(dataset)
    in_force = SchemaInForce(believed=chain.complete)
    beginning = chain.complete
    for stored in chain.blocks.of(*DATA_EVENTS, SetDataSchema.KIND, SetVocab.KIND):
        in_force.add(stored)
        event = stored.block.event
        inside = after < stored.number <= upto and stored.sound
        begins = beginning and isinstance(event, AddData | ExecuteTransform)
        beginning = beginning and stored.sound and not begins
        if not inside or not isinstance(event, AddData | ExecuteTransform):
            continue
        if begins and event.prev_offset is not None:
            # no append rule says so of the first one, because there is none before it to compare with
            message = f"prevOffset is {event.prev_offset}, and there are no records before this block"
            report.fault(OFFSETS, dataset.folder / "blocks" / str(stored.name), message, stored.number)
        if event.new_data is not None:
            expected = in_force.expected
            job = SliceJob(
                stored.number,
                stored.block.system_time,
                event.new_data,
                isinstance(event, ExecuteTransform),
                expected,
            )
            if in_force.problem is not None:
                message = f"the declared schema cannot be read: {one_line(in_force.problem)}"
                report.leave_out(message, stored.number, check=SCHEMA)
            if expected is None:
                report.skip(OF_ROWS[2:], "the chain before it is damaged, so the form of rows is not known")
            if _check_slice_file(dataset, job, report, partial=partial):
                slices.append(job)
        if event.new_checkpoint is not None:
            _check_checkpoint(dataset, stored, event.new_checkpoint, report, partial=partial)
    return slices


def _check_slice_file(dataset: DatasetFiles, job: SliceJob, report: Report, *, partial: bool) -> bool:
    """Whether the slice's bytes are worth hashing."""
    store, name = dataset.data, job.slice.physical_hash
    if partial and _is_missing(store, name):
        message = _NOT_HERE.format("slice", dataset.alias)
        report.leave_out(message, job.number, check=PRESENT, also=(PHYSICAL, *OF_ROWS))
        return False
    report.count(PRESENT)
    if _check_size(store, name, job.slice.size, "slice", job.number, report, any_size=job.derivative):
        return True
    report.slices += 1
    report.skip((PHYSICAL, *OF_ROWS), "a slice is missing or has another size")
    return False


def _check_checkpoint(
    dataset: DatasetFiles, stored: StoredBlock, checkpoint: Checkpoint, report: Report, *, partial: bool
) -> None:
    # A checkpoint that did not change is named again; its bytes were hashed at the block that made it.
    store, name = dataset.checkpoints, checkpoint.physical_hash
    if partial and _is_missing(store, name):
        message = _NOT_HERE.format("checkpoint", dataset.alias)
        report.leave_out(message, stored.number, check=PRESENT, also=(PHYSICAL,))
        return
    report.count(PRESENT)
    if not _check_size(store, name, checkpoint.size, "checkpoint", stored.number, report):
        return
    report.count(PHYSICAL)
    try:
        store.verified_path(name)
    except OdfchainError as error:
        place = store.locate(name)
        reason = error.message.removeprefix(f"{place}: ")
        message = f"PhysicalHashMismatch: the checkpoint is damaged: {reason}"
        report.fault(PHYSICAL, place, message, stored.number)


def _is_missing(store: LocalObjectStore, name: Multihash) -> bool:
    """Whether there is nothing of this name; what cannot be looked at is not missing."""
    try:
        return not store.contains(name)
    except StoreError:
        return False


def _check_size(
    store: LocalObjectStore,
    name: Multihash,
    size: int,
    what: str,
    number: int,
    report: Report,
    *,
    any_size: bool = False,
) -> bool:
    try:
        actual = store.size(name)
    except OdfchainError as error:
        place = _locate(store, name)
        message = f"the {what} is missing: {error.message.removeprefix(f'{place}: ')}"
        report.fault(PRESENT, place, message, number)
        return False
    if not store.contains(name):
        report.fault(PRESENT, store.locate(name), f"the {what} is not an ordinary file", number)
        return False
    if actual == size or any_size:
        return True
    report.fault(PRESENT, store.locate(name), other_size(what, actual, size), number)
    return False


def _locate(store: LocalObjectStore, name: Multihash) -> str:
    try:
        return store.locate(name)
    except StoreError:
        return str(name)
