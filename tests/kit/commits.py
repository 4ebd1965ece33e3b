"""Datasets on paper, and transactions whose slices are any bytes."""

from __future__ import annotations

from pathlib import Path

from odfchain.chain.chain import link_blocks
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.workspace.commit import StagedFile, commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.support import RAW_SCHEMA, data_slice, seeded_id

T = Timestamp.parse("2000-01-01T00:00:00Z")


def make_seeded(folder: Path, *more: ev.MetadataEvent, kind: DatasetKind = DatasetKind.ROOT) -> DatasetFiles:
    """A dataset of a seed and these events, whatever the append rules say of them."""
    DatasetFiles.create_folders(folder, DatasetAlias.parse("d"))
    dataset = DatasetFiles.open(folder)
    seed = ev.Seed(dataset_id=seeded_id("d"), dataset_kind=kind)
    blocks = link_blocks([seed, *more], prev=None, next_sequence_number=0, system_time=T)
    dataset.chain.publish(blocks, expected_head=None)
    return dataset


def make_dataset(folder: Path) -> DatasetFiles:
    return make_seeded(folder, RAW_SCHEMA)


def transaction(
    staging: Path, state: DatasetState, content: bytes, *, after: int = 0
) -> tuple[ev.AddData, StagedFile]:
    """A block with one record, after so many that are committed with it."""
    start = after + (0 if state.last_offset is None else state.last_offset + 1)
    path = staging / f"slice-{start}"
    path.write_bytes(content)
    name = hash_bytes(content)
    new = data_slice(start, start, len(content), name=name)
    return ev.AddData(prev_offset=start - 1 if start else None, new_data=new), StagedFile(path, name)


def run(dataset: DatasetFiles, *contents: bytes) -> None:
    """One commit with a block, and its slice, of each content."""
    state = DatasetState.read(dataset.chain)
    with dataset.staging() as staging:
        made = [transaction(staging, state, content, after=n) for n, content in enumerate(contents)]
        commit(dataset, state, [event for event, _ in made], [staged for _, staged in made], system_time=T)
