"""Verifying long chains: blocks in files are what blocks in memory are, and the newest cost what they cost alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import odfchain
from odfchain import Workspace
from odfchain.audit import chain_checks
from odfchain.audit.dataset_checks import examine
from odfchain.audit.report import CHECKS
from odfchain.errors import UsageError
from odfchain.odf import events as ev
from odfchain.odf.times import Timestamp
from odfchain.results import Report
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import VerifyOptions
from tests.kit.commits import make_seeded
from tests.kit.long_chains import long_chain
from tests.kit.recorded_dataset import SCHEMA as COLUMNS
from tests.kit.recorded_dataset import add, add_slice, schema_event

COUNT = 120


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


def _document(dataset: DatasetFiles, span: VerifyOptions) -> dict[str, Any]:
    document = examine(dataset, span).report.to_document()
    return document | {"time": None}


@pytest.mark.parametrize("span", [VerifyOptions(), VerifyOptions(after=80, upto=100)], ids=["all", "range"])
@pytest.mark.parametrize("damage", [_sound, _another_text, _no_block, _missing, _missing_slices, _wrong_head])
def test_blocks_in_files_are_reported_as_blocks_in_memory(
    damage: Callable[[DatasetFiles], None],
    span: VerifyOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = long_chain(tmp_path, "long", COUNT)
    damage(dataset)
    expected = _document(dataset, span)
    assert len(expected["blocks"]) in (0, 20, 59, 60, COUNT)
    for decoded, memory, rows in ((0, 1, 7), (0, 1_000, 1_024), (50, 1_000, 1)):
        monkeypatch.setattr(chain_checks, "DECODED_BLOCKS", decoded)
        monkeypatch.setattr(chain_checks, "_IN_MEMORY", memory)
        monkeypatch.setattr(chain_checks, "_ROWS_AT_ONCE", rows)
        assert _document(dataset, span) == expected


def test_a_block_that_changes_after_it_was_hashed_is_still_what_was_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chain_checks, "DECODED_BLOCKS", 0)
    dataset = long_chain(tmp_path, "long", COUNT)
    report = examine(dataset).report
    for path in (dataset.folder / "blocks").iterdir():
        path.write_bytes(b"damaged since")
    assert [line.sequence_number for line in report.lines] == list(range(COUNT))


_PEAK = """
import resource, sys, odfchain
from odfchain.audit import chain_checks as stored_blocks
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


@pytest.fixture
def recorded(tmp_path: Path) -> DatasetFiles:
    """A schema at block 1, and slices at blocks 2 to 7."""
    dataset = make_seeded(tmp_path / "dataset", schema_event())
    for number in range(6):
        add_slice(dataset, [f"city {number}"])
    return dataset


def _newest(dataset: DatasetFiles, last: int) -> Report:
    return examine(dataset, VerifyOptions(last=last)).report


def _faults(report: Report) -> list[Any]:
    return [(fault.check, Path(fault.file).name, fault.message) for fault in report.faults]


def test_the_newest_blocks_are_checked_by_what_was_in_force_before_them(recorded: DatasetFiles) -> None:
    report = _newest(recorded, 2)
    assert (report.verdict, report.blocks, report.records) == ("clean", 2, 2)
    assert [line.sequence_number for line in report.lines] == [6, 7]
    assert report.after == recorded.chain.hash_at(5, _head(recorded))
    assert {n for n in CHECKS if report.state(n) == "passed"} == {1, 5, 6, 7, 8, 19}
    for check in (2, 3, 4, 9, 11):
        assert "the chain was read down to block 6" in report.reasons[check]


@pytest.mark.parametrize("last", [1, 3])
def test_faults_of_the_newest_blocks_are_those_of_a_range(recorded: DatasetFiles, last: int) -> None:
    add_slice(recorded, ["another"], offset_interval=ev.OffsetInterval(start=9, end=9))
    add(recorded, schema_event(COLUMNS.append(pa.field("x", pa.int8(), nullable=False))), unchecked=True)
    add(recorded, ev.Seed(dataset_id=recorded.id, dataset_kind=recorded.kind), unchecked=True)
    ranged = examine(recorded, VerifyOptions(after=10 - last)).report
    assert _faults(_newest(recorded, last)) == _faults(ranged) != []


def test_a_chain_that_is_no_longer_is_verified_whole(recorded: DatasetFiles) -> None:
    whole = examine(recorded).report
    for last in (8, 9, 1_000):
        assert _newest(recorded, last).to_document() | {"time": None} == whole.to_document() | {"time": None}


def test_an_earlier_block_that_is_damaged_is_told_where_it_is_needed(recorded: DatasetFiles) -> None:
    schema = _file(recorded, 1)
    schema.write_bytes(b"damaged")
    report = _newest(DatasetFiles.open(recorded.folder), 2)
    assert (report.faults, report.verdict) == ([], "incomplete")
    assert schema.name in report.unchecked[0].message
    schema.unlink()
    assert _newest(DatasetFiles.open(recorded.folder), 2).verdict == "incomplete"


def test_words_about_blocks_that_were_not_read_are_no_faults(tmp_path: Path) -> None:
    """A signature of an earlier block is what it is for the whole chain: the newest blocks are unsigned."""
    workspace = Workspace.init(tmp_path)
    text = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: mine, kind: Root, metadata: []}\n"
    (dataset,) = workspace.add(text)
    signed = (dataset.path / "refs" / "head.jws").read_bytes()
    for number in range(5):
        state = DatasetState.read(dataset._files.chain)
        commit(dataset._files, state, [ev.SetInfo(description=f"{number}")], [], system_time=Timestamp.now())
    (dataset.path / "refs" / "head.jws").write_bytes(signed)
    newest, whole = dataset.verify(last=2), dataset.verify()
    assert newest.signature == whole.signature
    assert (newest.faults, newest.verdict, newest.blocks) == ([], "clean", 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"last": 0}, "at least 1"),
        ({"last": 5, "after": 2}, "without another one"),
        ({"last": 5, "replay": True}, "reads the whole chain"),
    ],
)
def test_newest_blocks_that_cannot_be_meant(options: Any, message: str, tmp_path: Path) -> None:
    long_chain(tmp_path, "long", 10)
    with pytest.raises(UsageError, match=message):
        odfchain.open(tmp_path)["long"].verify(**options)
