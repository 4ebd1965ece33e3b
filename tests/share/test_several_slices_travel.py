"""A commit of several slices, wherever it goes: all of it or nothing, and each block for itself (RFC-049)."""

from __future__ import annotations

from pathlib import Path

import pytest

import odfchain as odf
from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from tests.kit.shared_store import add, append, append_slices, texts

SLICES = 5


@pytest.fixture
def owner(tmp_path: Path) -> Workspace:
    workspace = odf.init(tmp_path / "owner")
    append_slices(add(workspace), SLICES)
    return workspace


def rows(*numbers: int) -> list[str]:
    return [str(number) for number in numbers]


def check_at_each_block(dataset: Dataset) -> None:
    """Whoever stops at a block, or begins after one, finds nothing wrong."""
    blocks = [item.hash for item in dataset.log() if item.block.event.KIND == "AddData"]
    for block in blocks:
        assert [dataset.verify(upto=block).faults, dataset.verify(after=block).faults] == [[], []]


def test_it_is_pushed_and_pulled(owner: Workspace, tmp_path: Path) -> None:
    url = (tmp_path / "peer").as_uri()
    owner["cities"].push(url)
    reader = odf.init(tmp_path / "reader")
    reader.pull(url, name="cities")
    assert texts(reader) == rows(*range(SLICES))
    check_at_each_block(reader["cities"])
    partial = odf.init(tmp_path / "partial")
    partial.pull(url, name="cities", metadata_only=True)
    assert partial["cities"].fetch().objects == SLICES
    assert partial["cities"].verify().verdict == "clean"
    append_slices(owner["cities"]._files, SLICES)
    owner["cities"].push(url)
    assert reader.pull(url, name="cities").blocks == SLICES
    assert texts(reader) == rows(*range(2 * SLICES))
    assert reader["cities"].verify().faults == []


def test_whoever_was_put_back_to_its_middle_goes_on(owner: Workspace, tmp_path: Path) -> None:
    url = (tmp_path / "peer").as_uri()
    owner["cities"].push(url)
    reader = odf.init(tmp_path / "reader")
    reader.pull(url, name="cities")
    middle = list(reader["cities"].log())[2].hash
    reader["cities"].reset(middle, force=True)
    assert texts(reader) == rows(*range(SLICES - 2))
    assert reader.pull(url, name="cities").blocks == 2
    assert reader["cities"].head == owner["cities"].head
    owner["cities"].reset(middle, force=True)
    append(owner["cities"]._files, "x")
    assert texts(owner) == [*rows(*range(SLICES - 2)), "x"]
    assert owner["cities"].verify().faults == []


def test_a_slice_that_is_missing_is_the_fault_of_its_block(owner: Workspace) -> None:
    dataset = owner["cities"]
    item = list(dataset.log())[2]
    assert item.block.new_data is not None
    path = dataset.path / "data" / str(item.block.new_data.physical_hash)
    path.unlink()
    assert {fault.sequence_number for fault in dataset.verify().faults} == {item.block.sequence_number}
    before = list(dataset.log())[3].hash
    assert [dataset.verify(upto=before).faults, dataset.verify(after=item.hash).faults] == [[], []]


def test_it_is_in_a_store_as_a_whole(one: Workspace, other: Workspace) -> None:
    append_slices(add(one), SLICES)
    assert texts(other) == rows(*range(SLICES))
    check_at_each_block(other["cities"])
    append(other["cities"]._files, "x")
    append_slices(one["cities"]._files, 2)
    assert texts(one) == texts(other)
    assert other["cities"].verify().faults == []
