"""Datasets with branches and merges that are written by hand: no merge is computed for them."""

from __future__ import annotations

from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.storage.local import HEAD
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import MergeRecord
from tests.kit.recorded_dataset import add, add_slice, slice_of
from tests.kit.upkeep_scenes import head_of


def fork(dataset: DatasetFiles, name: str, at: Multihash | None = None) -> DatasetFiles:
    """The dataset on a new branch."""
    dataset.chain.set_ref(name, at or head_of(dataset), expected=None)
    return dataset.on(name)


def write(dataset: DatasetFiles, *cities: str) -> Multihash:
    """Records a slice; returns the new head."""
    add_slice(dataset, list(cities))
    return head_of(dataset)


def merge(
    target: DatasetFiles, source: DatasetFiles, base: Multihash, cities: tuple[str, ...] = ("merged",)
) -> Multihash:
    """Records a merge of a branch, with these rows; returns its block."""
    state = DatasetState.read(target.chain)
    prev = state.last_offset
    record = MergeRecord(
        base=(base,), source=head_of(source), source_ref=source.ref, target=state.head, message="m"
    )
    new = slice_of(target, 0 if prev is None else prev + 1, list(cities)) if cities else None
    add(
        target,
        ev.AddData(
            prev_offset=prev, new_data=new, new_watermark=state.watermark, new_source_state=record.to_state()
        ),
    )
    return head_of(target)


def delete_branch(dataset: DatasetFiles, name: str) -> None:
    """The reference is gone; nothing else is."""
    (dataset.folder / "refs" / name).unlink()


def blocks_of(dataset: DatasetFiles, *heads: Multihash) -> set[str]:
    """The files of the blocks and slices of some chains."""
    files = set()
    for head in heads:
        for name, block in dataset.on(HEAD).chain.walk(head):
            files.add(f"blocks/{name}")
            if block.new_data is not None:
                files.add(f"data/{block.new_data.physical_hash}")
    return files
