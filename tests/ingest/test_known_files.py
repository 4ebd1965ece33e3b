"""A file that was appended already brings nothing new, as long as its rows are in the chain."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.chain.chain import MetadataChain
from odfchain.errors import StoreError
from odfchain.progress import Silent
from tests.kit.pushed_files import push, put
from tests.kit.support import Run, manifest

FIRST, SECOND = "city,population\nA,1\nB,2\n", "city,population\nC,3\n"


@pytest.fixture
def dataset(workspace: Workspace) -> Dataset:
    """A dataset whose source appends, with the rows of `in.csv`."""
    (dataset,) = workspace.add(manifest())
    push(dataset, FIRST)
    return dataset


def record_of(dataset: Dataset) -> Path:
    return dataset.path / "info" / "ingested-files"


def test_the_command_passes_over_what_it_knows(
    dataset: Dataset, tmp_path: Path, run_cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, copy, second = (
        put(tmp_path, text, name) for text, name in ((FIRST, "a.csv"), (FIRST, "b.csv"), (SECOND, "c.csv"))
    )
    at = next(iter(dataset.log(1)))
    again = run_cli("-w", dataset.path, "ingest", "cities", first)
    assert again.code == 0
    number, time = at.block.sequence_number, at.block.system_time
    assert f"a.csv: nothing new: the same bytes were ingested at {time} with block {number}" in again.err
    assert "--again ingests it once more" in again.err
    assert "up to date" in again.err
    several = run_cli("-w", dataset.path, "ingest", "cities", first, second, copy, second, "-o", "json")
    assert (several.code, dataset.summary.record_count) == (0, 3)
    assert [row["+A"] for row in several.rows] == [0, 1, 0, 0]
    assert [row.get("ingestedWith") for row in several.rows] == [
        str(at.hash), None, str(at.hash), str(dataset.head)
    ]  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(SECOND.encode())))
    piped = run_cli("-w", dataset.path, "ingest", "cities", "--stdin")
    assert (piped.code, "note: stdin: nothing new" in piped.err) == (0, True)
    doubled = run_cli("-w", dataset.path, "ingest", "cities", second, second, "--again")
    assert (doubled.code, dataset.summary.record_count) == (0, 5)
    assert dataset.verify().ok


def test_two_empty_files_bring_nothing(dataset: Dataset, tmp_path: Path) -> None:
    empty = put(tmp_path, "city,population\n")
    outcome = dataset.ingest([empty, empty])
    assert outcome.up_to_date
    assert [item.ingested_with for item in outcome.inputs] == [None, None]


def test_it_takes_no_session(dataset: Dataset, tmp_path: Path) -> None:
    with Workspace.open(dataset.path) as other:
        known = other["cities"].ingest(put(tmp_path, FIRST))
        assert known.up_to_date
        assert "nothing new" in repr(known.inputs[0])
        assert other._engines.spark is None


def test_a_file_of_an_import_is_known_and_overlapping_ones_are_not(
    workspace: Workspace, tmp_path: Path
) -> None:
    file = put(tmp_path, FIRST, "shop.csv")
    shop = workspace.import_(file).dataset
    assert shop.ingest(file).up_to_date
    assert shop.ingest(put(tmp_path, FIRST + "C,3\n", "shop.csv")).inputs[0].rows == 3
    keyed = workspace.import_(file, name="keyed", key="city").dataset
    assert not record_of(keyed).exists(), "other merges know their rows"


def test_it_is_new_where_its_block_is_not_in_the_chain(dataset: Dataset) -> None:
    before = dataset.head
    push(dataset, SECOND)
    other = dataset.create_branch("other", at=before)
    assert push(other, SECOND).inputs[0].rows == 1
    assert push(other, SECOND).up_to_date
    assert push(other, FIRST).up_to_date
    dataset.reset(before, force=True)
    assert push(dataset, SECOND).inputs[0].rows == 1
    assert dataset.verify().ok


def test_no_fault_makes_a_file_known_or_fails_a_commit(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(MetadataChain, "publish", lambda *_, **__: (_ for _ in ()).throw(StoreError("full")))
        with pytest.raises(StoreError):
            push(dataset, SECOND)
    assert record_of(dataset).read_bytes().count(b" default\n") == 2, "it is written before the head moves"
    assert push(dataset, SECOND).inputs[0].rows == 1
    record_of(dataset).write_bytes(b"\xff\n" + record_of(dataset).read_bytes()[:-9])
    assert push(dataset, SECOND).inputs[0].rows == 1
    assert push(dataset, SECOND).up_to_date, "a new line is whole, whatever is before it"
    record_of(dataset).unlink()
    record_of(dataset).mkdir()
    assert push(dataset, SECOND).inputs[0].rows == 1
    assert push(dataset, SECOND).inputs[0].rows == 1


def test_a_file_that_grows_meanwhile_is_not_remembered(dataset: Dataset, tmp_path: Path) -> None:
    file = put(tmp_path, SECOND, "log.csv")

    class Growing(Silent):
        def phase(self, name: str, total: int | None = None) -> None:
            if name == "Committing":
                file.write_text(SECOND + "D,4\n")

    dataset.ingest(file, progress=Growing())
    assert push(dataset, SECOND).inputs[0].rows == 1
