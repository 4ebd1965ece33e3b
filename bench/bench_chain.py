"""Appending and reading the newest blocks, as the chain grows."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from figures import Figure

from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import MetadataBlock
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

LENGTHS = (100, 1_000, 10_000)
SAMPLE = 100
NEWEST = 10
T0 = Timestamp.parse("2026-01-01T00:00:00Z")


def fill(dataset: DatasetFiles, until: int) -> list[float]:
    """Append until the chain has this many blocks; returns the time of each append [s]."""
    head = dataset.chain.head()
    sequence = 0 if head is None else dataset.chain.get(head).sequence_number + 1
    found = []
    for number in range(sequence, until):
        event: ev.MetadataEvent = (
            ev.Seed(dataset_id=DatasetId(bytes(32)), dataset_kind=DatasetKind.ROOT)
            if number == 0
            else ev.AddData(new_watermark=Timestamp.from_epoch_ms(T0.epoch_ms + number))
        )
        block = MetadataBlock(system_time=T0, prev_block_hash=head, sequence_number=number, event=event)
        start = time.perf_counter()
        head = dataset.chain.append(block)
        found.append(time.perf_counter() - start)
    return found


def newest(folder: Path) -> float:
    """Time for the newest blocks and the present state, from a fresh start [s]."""
    start = time.perf_counter()
    dataset = DatasetFiles.open(folder)
    assert len(list(islice(dataset.chain.walk(), NEWEST))) == NEWEST
    assert DatasetState.read(dataset.chain).watermark is not None
    return time.perf_counter() - start


def two_syncs(folder: Path) -> float:
    """What the disk alone asks for one append: median time of writing and syncing two small files [s]."""
    found = []
    for number in range(SAMPLE):
        start = time.perf_counter()
        for name in ("a", "b"):
            with (folder / f"{name}{number}").open("wb") as stream:
                stream.write(bytes(256))
                stream.flush()
                os.fsync(stream.fileno())
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def bench_chain() -> Iterator[Figure]:
    """Medians at three lengths; the last as a multiple of the first."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "dataset"
        DatasetFiles.create_folders(folder, DatasetAlias.parse("bench"))
        dataset = DatasetFiles.open(folder)
        appends, reads = [], []
        for length in LENGTHS:
            appends.append(statistics.median(fill(dataset, length)[-SAMPLE:]) * 1e3)
            reads.append(statistics.median(newest(folder) for _ in range(SAMPLE)) * 1e3)
            yield Figure(f"append to a chain of {length:,} blocks", appends[-1], "ms")
            yield Figure(f"state and `log -n {NEWEST}` of a chain of {length:,} blocks", reads[-1], "ms")
        yield Figure("writing and syncing two small files, for comparison", two_syncs(Path(root)) * 1e3, "ms")
        yield Figure("append, longest ÷ shortest", appends[-1] / appends[0], "×", remark="1 is flat")
        yield Figure("state and log, longest ÷ shortest", reads[-1] / reads[0], "×", remark="1 is flat")
        start = time.perf_counter()
        count = sum(1 for _ in dataset.chain.walk())
        yield Figure("walking the whole chain", count / (time.perf_counter() - start), "blocks/s")
