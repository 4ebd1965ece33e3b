"""Every bit of every small file, many bits of the large ones, every length: what is damaged is found and named.

A case takes a few milliseconds: `make test` tries each so many-th of them, and `make soak` all.
"""

from __future__ import annotations

import functools
import io
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from odfchain.audit.report import Report
from odfchain.chain.chain import link_blocks
from odfchain.chain.index import ROW_BYTES
from odfchain.chain.signed_heads import HEAD_SIGNATURE_KEY, HeadSigner
from odfchain.chain.signed_lines import AUDITS
from odfchain.chain.statements import Attestation, Verdict
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import DatasetKey, DidKey
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.storage.fsio import LocalScratch
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.recorded_dataset import add, add_slice, schema_event
from tests.kit.run_length import scaled
from tests.kit.verified import verify_dataset

KEY = DatasetKey.generate()
AUDITOR = DatasetKey.generate()
T = Timestamp.parse("2000-01-01T00:00:00Z")
RANDOM_BITS = scaled(200, 2_000, 10_000)
EACH = scaled(7, 1, 1)
"""Each so many-th bit; no multiple of 8, so that all eight of a byte have their turn."""


CHECKPOINT = b"a checkpoint of some engine" * 20

Make = Callable[..., DatasetFiles]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes a dataset of a seed and these parts, each only once."""

    @functools.cache
    def made(*parts: str) -> DatasetFiles:
        folder = tmp_path_factory.mktemp("damage") / "dataset"
        DatasetFiles.create_folders(folder, DatasetAlias.parse("d"))
        signer = HeadSigner(folder, lambda: KEY, lambda: T) if "signature" in parts else None
        dataset = DatasetFiles.open(folder, signer)
        seed = ev.Seed(dataset_id=KEY.dataset_id, dataset_kind=DatasetKind.ROOT)
        first = [seed, schema_event()] if "schema" in parts else [seed]
        blocks = link_blocks(first, prev=None, next_sequence_number=0, system_time=T)
        dataset.chain.publish(blocks, expected_head=None)
        if "slice" in parts:
            add_slice(dataset, ["A", "B", None, "C"])  # type: ignore[list-item]
        if "watermark" in parts:
            checkpoint = None
            if "checkpoint" in parts:
                name = dataset.checkpoints.put(CHECKPOINT)
                checkpoint = ev.Checkpoint(physical_hash=name, size=len(CHECKPOINT))
            last = DatasetState.read(dataset.chain).last_offset
            add(dataset, ev.AddData(prev_offset=last, new_checkpoint=checkpoint, new_watermark=T))
        if "attestation" in parts:
            AUDITS.add(folder, KEY.dataset_id, attested(dataset))
        (folder / "info" / "chain-index").unlink(missing_ok=True)  # a test of its own damages it
        report = verify_dataset(dataset)
        assert report.ok, report
        assert report.signature.status == ("signed" if "signature" in parts else "unsigned")
        assert len(report.attestations) == ("attestation" in parts)
        return dataset

    return made


def attested(dataset: DatasetFiles) -> str:
    state = DatasetState.read(dataset.chain)
    attestation = Attestation(
        auditor=DidKey(AUDITOR.dataset_id.public_key),
        dataset_id=KEY.dataset_id,
        head=state.head,
        sequence_number=state.head_block.sequence_number,
        time=T,
        verdict=Verdict.CLEAN,
        report=hash_bytes(b"report"),
        checks=(1, 2, 3),
        tool="odfchain 0.1.0",
    )
    return attestation.sign(AUDITOR)


KINDS = {
    "blocks": ("blocks/*", "schema", "watermark"),
    "reference": ("refs/head", "schema"),
    "signature": (HEAD_SIGNATURE_KEY, "signature"),
    "attestations": (AUDITS.key, "attestation"),
    "data": ("data/*", "schema", "slice"),
    "checkpoints": ("checkpoints/*", "schema", "watermark", "checkpoint"),
}
"""Files of a kind, and what a dataset needs to have them; more would only take longer."""


def files_of(kind: str, make: Make) -> list[Path]:
    pattern, *parts = KINDS[kind]
    return sorted(path for path in make(*parts).folder.glob(pattern) if path.is_file())


Check = Callable[[Path, Report, bytes], None]


def is_named(path: Path, report: Report, content: bytes) -> None:
    """There are faults, and all of them name this file."""
    assert report.verdict == "faulty", content
    assert {fault.file for fault in report.faults} == {str(path)}, content


def names_other_head(path: Path, report: Report, content: bytes) -> None:
    """A reference to another block is named, and the block that is not there may be."""
    if report.verdict == "clean":  # the same block, spelled in another way
        assert [note for note in report.notes if note.startswith(f"{path}: ")], content
        return
    assert report.verdict == "faulty", content
    named = path.parents[1] / "blocks" / content.decode("ascii", "replace").strip().lower()
    found = {(fault.check, fault.file) for fault in report.faults}
    assert {(1, str(path))} <= found <= {(1, str(path)), (2, str(named))}, content


def damaged(path: Path, contents: Iterable[bytes], check: Check = is_named) -> int:
    """Verify the dataset of a file with each of these contents; how many they were."""
    dataset, count = DatasetFiles.open(path.parents[1]), 0
    whole = path.read_bytes()
    path.chmod(0o644)
    with path.open("r+b", buffering=0) as file:
        try:
            for content in contents:
                overwrite(file, content)
                check(path, verify_dataset(dataset, jobs=1), content)
                count += 1
        finally:
            overwrite(file, whole)
    assert verify_dataset(dataset).ok
    return count


def overwrite(file: io.FileIO, content: bytes) -> None:
    os.pwrite(file.fileno(), content, 0)
    os.ftruncate(file.fileno(), len(content))


def every_bit(data: bytes) -> Iterator[bytes]:
    for number in range(0, 8 * len(data), EACH):
        position, bit = divmod(number, 8)
        yield data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def some_bits(data: bytes, count: int) -> Iterator[bytes]:
    chooser = random.Random(6)
    for _ in range(count):
        position = chooser.randrange(len(data))
        yield data[:position] + bytes([data[position] ^ 1 << chooser.randrange(8)]) + data[position + 1 :]


def every_length(data: bytes) -> Iterator[bytes]:
    return (data[:length] for length in sorted({*range(0, len(data), scaled(7, 1, 1)), len(data) - 1}))


@pytest.mark.parametrize("kind", ["blocks", "reference", "signature", "attestations"])
def test_every_flipped_bit_is_found_and_its_file_named(
    make: Make, kind: str, record_property: Callable[[str, object], None]
) -> None:
    flipped = 0
    for path in files_of(kind, make):
        data = path.read_bytes()
        check = names_other_head if kind == "reference" else is_named
        flipped += damaged(path, every_bit(data), check)
    assert flipped >= 8 * sum(path.stat().st_size for path in files_of(kind, make)) / EACH > 0
    record_property("bits", flipped)


@pytest.mark.parametrize("kind", ["data", "checkpoints"])
def test_random_flipped_bits_are_found_and_their_file_named(
    make: Make, kind: str, record_property: Callable[[str, object], None]
) -> None:
    """200, 2,000 in `make soak`, and 10,000 in a long run."""
    (path,) = files_of(kind, make)
    assert damaged(path, some_bits(path.read_bytes(), RANDOM_BITS)) == RANDOM_BITS
    record_property("bits", RANDOM_BITS)


@pytest.mark.parametrize("kind", KINDS)
def test_every_length_is_found_and_its_file_named(
    make: Make, kind: str, record_property: Callable[[str, object], None]
) -> None:
    """Shorter ones down to nothing, and one byte more."""
    lengths = 0
    for path in files_of(kind, make):
        data = path.read_bytes()
        lengths += damaged(path, [*every_length(data), data + b"x"])
    assert lengths > sum(path.stat().st_size for path in files_of(kind, make)) / scaled(7, 1, 1) > 0
    record_property("lengths", lengths)


@pytest.mark.parametrize("kind", KINDS)
def test_garbage_and_zeros_are_found_and_their_file_named(
    make: Make, kind: str, record_property: Callable[[str, object], None]
) -> None:
    """1 to 64 bytes behind a file, of noise and of zeros; a file of zeros, and one whose end is zeros."""
    draw, contents = random.Random(5), 0
    for path in files_of(kind, make):
        data = path.read_bytes()
        counts = range(1, 65, scaled(9, 1, 1))
        behind = [data + tail for n in counts for tail in (draw.randbytes(n), bytes(n))]
        starts = {0, *range(len(data) % 512, len(data), 512)}
        zeros = [data[:start] + bytes(len(data) - start) for start in starts]
        given = [content for content in [*behind, *zeros] if content != data]
        check = names_other_head if kind == "reference" else is_named
        assert damaged(path, given, check) == len(given)
        contents += len(given)
    record_property("contents", contents)


def test_a_damaged_block_accuses_nothing_that_it_names(make: Make) -> None:
    """Not even if it still decodes: its slice may be another's, its schema was never declared."""
    dataset = make("schema", "slice", "watermark", "checkpoint")
    for path in (dataset.folder / "blocks").iterdir():
        data = path.read_bytes()
        count = scaled(15, 100, 1_000)
        assert damaged(path, [*some_bits(data, count), data + bytes(8)]) == count + 1


@pytest.fixture
def index(make: Make, tmp_path: Path) -> Path:
    """The index of a dataset of two blocks, which is used and right."""
    dataset = make("schema")
    shutil.copytree(dataset.folder, tmp_path / "dataset")
    path = tmp_path / "dataset" / "info" / "chain-index"
    copy = DatasetFiles.open(tmp_path / "dataset")
    without = verify_dataset(copy)
    assert copy.chain.nearest("Seed") is not None
    clean = verify_dataset(copy)
    assert (path.stat().st_size, clean.verdict) == (2 * ROW, "clean")
    assert (clean.notes, clean.done, [*clean.lines]) == (without.notes, without.done, [*without.lines])
    return path


ROW = ROW_BYTES
"""Bytes of a row of the index."""


def test_the_index_is_not_read_by_a_verification(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another hand may have written it: rows with right checksums that lead past a block."""
    clean = verify_dataset(DatasetFiles.open(index.parents[1]))
    monkeypatch.setattr(LocalScratch, "read", lambda *_: pytest.fail("the index is read"))
    monkeypatch.setattr(LocalScratch, "write", lambda *_: pytest.fail("the index is written"))
    again = verify_dataset(DatasetFiles.open(index.parents[1]))
    assert (again.verdict, again.done, [*again.lines]) == ("clean", clean.done, [*clean.lines])


def test_a_damaged_index_is_made_anew_when_it_is_used(index: Path) -> None:
    whole = index.read_bytes()
    for content in some_bits(whole, scaled(30, 100, 1_000)):
        index.write_bytes(content)
        dataset = DatasetFiles.open(index.parents[1])
        head = dataset.chain.head()
        assert dataset.chain.hashes(head) == [line.hash for line in verify_dataset(dataset).lines]
