"""Verifying long chains: blocks in files are what blocks in memory are, and the newest cost what they cost alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfchain.audit import stored_blocks
from odfchain.audit.dataset_checks import Scope, examine
from odfchain.audit.walk import Range
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from tests.kit.long_chains import long_chain

BLOCKS = 120


def _sound(dataset: DatasetFiles) -> None:
    pass


def _another_text(dataset: DatasetFiles) -> None:
    """A block that can be decoded, and is not what its name says."""
    path = _file(dataset, 60)
    path.write_bytes(path.read_bytes().replace(b"as of block 60", b"as of block 99"))


def _no_block(dataset: DatasetFiles) -> None:
    _file(dataset, 60).write_bytes(b"no block")


def _missing(dataset: DatasetFiles) -> None:
    _file(dataset, 60).unlink()


def _missing_slices(dataset: DatasetFiles) -> None:
    (dataset.folder / "info" / "partial").unlink()


def _wrong_head(dataset: DatasetFiles) -> None:
    (dataset.folder / "refs" / "head").write_text("f1620" + 64 * "a")


def _file(dataset: DatasetFiles, number: int) -> Path:
    return dataset.folder / "blocks" / str(dataset.chain.hash_at(number, _head(dataset)))


def _head(dataset: DatasetFiles) -> Any:
    return DatasetState.read(dataset.chain).head


def _document(dataset: DatasetFiles, span: Range) -> dict[str, Any]:
    document = examine(dataset, Scope(span=span)).report.to_document()
    return document | {"time": None}


@pytest.mark.parametrize("span", [Range(), Range(after=80, upto=100)], ids=["all", "range"])
@pytest.mark.parametrize("damage", [_sound, _another_text, _no_block, _missing, _missing_slices, _wrong_head])
def test_blocks_in_files_are_reported_as_blocks_in_memory(
    damage: Callable[[DatasetFiles], None], span: Range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = long_chain(tmp_path, "long", BLOCKS)
    damage(dataset)
    expected = _document(dataset, span)
    assert len(expected["blocks"]) in (0, 20, 59, 60, BLOCKS)
    for decoded, memory, rows in ((0, 1, 7), (0, 1_000, 1_024), (50, 1_000, 1)):
        monkeypatch.setattr(stored_blocks, "DECODED_BLOCKS", decoded)
        monkeypatch.setattr(stored_blocks, "_IN_MEMORY", memory)
        monkeypatch.setattr(stored_blocks, "_ROWS_AT_ONCE", rows)
        assert _document(dataset, span) == expected


def test_a_block_that_changes_after_it_was_hashed_is_still_what_was_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_blocks, "DECODED_BLOCKS", 0)
    dataset = long_chain(tmp_path, "long", BLOCKS)
    report = examine(dataset).report
    for path in (dataset.folder / "blocks").iterdir():
        path.write_bytes(b"damaged since")
    assert [line.sequence_number for line in report.lines] == list(range(BLOCKS))


_PEAK = """
import resource, sys, odfchain
from odfchain.audit import stored_blocks
stored_blocks.DECODED_BLOCKS = 1_000
for folder in sys.argv[1:]:
    report = odfchain.open(folder)["long"].verify()
    assert not report.faults, report.faults[0]
    print(report.blocks, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)
"""


@pytest.mark.soak
def test_ten_times_as_many_blocks_take_no_more_memory(tmp_path: Path) -> None:
    """100,000 blocks would take 80 MiB more than 10,000 if they stayed in memory."""
    for blocks in (10_000, 100_000):
        long_chain(tmp_path / f"{blocks}", "long", blocks)
    command = [sys.executable, "-c", _PEAK, str(tmp_path / "10000"), str(tmp_path / "100000")]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert (text[0], text[2]) == ("10000", "100000")
    assert int(text[3]) - int(text[1]) < 20
