"""Check 20: signed manifests are what chain and footers give, byte for byte.

A manifest is made again from the blocks that were read and from the footers of slices that were hashed, so
nothing derived is trusted, and the document itself need not be here: its hash is in the line.
Source: RFC-043.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

from odfchain.audit.checks import MANIFESTS
from odfchain.audit.report import Report
from odfchain.audit.signed_snapshots import UNBELIEVED, disagree, first_difference, stored_document
from odfchain.audit.walk import StoredChain
from odfchain.digest.physical import hash_bytes
from odfchain.errors import OdfchainError
from odfchain.ids.did import DatasetId
from odfchain.manifest.snapshot_manifest import ManifestFile, SnapshotFacts, file_text, text_of
from odfchain.model.events import AddData, DatasetVocabulary, ExecuteTransform, SetVocab
from odfchain.model.timestamp import Timestamp
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import SliceRef
from odfchain.slices.footers import FileStats, file_stats
from odfchain.trust.snapshot_lines import SnapshotLine


def check_manifests(
    dataset: DatasetFiles,
    chain: StoredChain,
    lines: Sequence[SnapshotLine],
    hashed: Collection[int],
    report: Report,
) -> None:
    """Every line about a manifest; `hashed` are the blocks whose slices have the recorded bytes."""
    if not lines:
        return
    if chain.newest is not None:
        report.skip([MANIFESTS], "the newest blocks alone were read")
        return
    if not chain.follows:
        report.skip([MANIFESTS], UNBELIEVED)
        return
    wanted: dict[int, list[SnapshotLine]] = {}
    for line in lines:
        wanted.setdefault(line.sequence_number, []).append(line)
    files: list[tuple[FileStats, bytes]] = []
    for facts, ref in _snapshots(chain, lines[0].dataset_id, max(wanted)):
        if ref is not None:
            made = _file(dataset, ref, hashed, report)
            if made is None:
                return
            files.append(made)
        for line in wanted.get(facts.block.sequence_number, ()):
            report.count(MANIFESTS)
            _check(dataset, line, text_of(facts, files), report)


def _snapshots(
    chain: StoredChain, dataset_id: DatasetId, last: int
) -> Iterator[tuple[SnapshotFacts, SliceRef | None]]:
    """What the chain says at each block, and the slice that the block adds."""
    vocabulary, records = DatasetVocabulary(), 0
    watermark: Timestamp | None = None
    for stored in chain.blocks:
        if stored.number > last:
            return
        event, ref = stored.block.event, None
        if isinstance(event, SetVocab):
            vocabulary = DatasetVocabulary.from_event(event)
        elif isinstance(event, AddData | ExecuteTransform):
            records = 0 if event.last_offset is None else event.last_offset + 1
            watermark = event.new_watermark
            if event.new_data is not None:
                ref = SliceRef(stored.name, stored.number, event.new_data)
        facts = SnapshotFacts(
            dataset_id=dataset_id,
            head=stored.name,
            block=stored.block,
            record_count=records,
            watermark=watermark,
            vocabulary=vocabulary,
        )
        yield facts, ref


def _file(
    dataset: DatasetFiles, ref: SliceRef, hashed: Collection[int], report: Report
) -> tuple[FileStats, bytes] | None:
    """A slice as manifests have it; None where that cannot be known here."""
    if ref.sequence_number not in hashed:
        report.skip([MANIFESTS], "not all slices were found as they are recorded, so footers are missing")
        return None
    try:
        stats = file_stats(dataset.data.path(ref.slice.physical_hash))
        return stats, file_text(ManifestFile(ref, stats))
    except OdfchainError as error:  # the slice has a fault of its own
        report.skip([MANIFESTS], error.message)
        return None


def _check(dataset: DatasetFiles, line: SnapshotLine, made: bytes, report: Report) -> None:
    signed, _ = stored_document(dataset, line, MANIFESTS, report)
    name = hash_bytes(made)
    if (name, len(made)) == (line.object, line.size):
        return
    where = None
    if signed is not None:
        try:
            where = first_difference(json.loads(signed), json.loads(made))
        except (ValueError, RecursionError):
            where = "it is no manifest"
    what = where or f"chain and footers give {name} ({len(made):,} bytes)"
    disagree(dataset, line, MANIFESTS, what, report)
