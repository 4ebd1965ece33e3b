"""Changes named by `BLOCK#OFFSET`: the offset of the last row of a change, in a block of whatever branch."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from odfchain.digest.row_hash import Numbers
from odfchain.errors import SliceNotFoundError
from odfchain.ids.multihash import Multihash
from odfchain.model.enums import OperationType
from odfchain.model.events import AddData, DataSlice, ExecuteTransform
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.slices.reader import open_parquet

_CHANGE = re.compile(r"(f1620[0-9a-f]{64})#(0|[1-9]\d{0,18})", re.ASCII)
_OLD = OperationType.CORRECT_FROM.code


def block_named(text: str) -> Multihash | None:
    """The block of the change that a text names; None where it names none."""
    match = _CHANGE.fullmatch(text)
    return None if match is None else Multihash.parse(match[1])


def are_changes(dataset: DatasetFiles, texts: Iterable[str]) -> Numbers:
    """Whether each text names a change: its block is stored, and one ends at the offset.

    The old half of a correction ends none.
    """
    texts = list(texts)
    found = np.zeros(len(texts), bool)
    blocks: dict[str, list[tuple[int, int]]] = {}
    for place, text in enumerate(texts):
        if match := _CHANGE.fullmatch(text):
            blocks.setdefault(match[1], []).append((place, int(match[2])))
    for name, asked in blocks.items():
        new = _slice_of(dataset, Multihash.parse(name))
        if new is None:
            continue
        interval = new.offset_interval
        inside = [(place, offset) for place, offset in asked if interval.start <= offset <= interval.end]
        if inside:
            operations = _operations(dataset, Multihash.parse(name), new)
            for place, offset in inside:
                row = offset - interval.start
                found[place] = row < len(operations) and operations[row] != _OLD
    return found


def _slice_of(dataset: DatasetFiles, block: Multihash) -> DataSlice | None:
    if not dataset.chain.contains(block):
        return None
    event = dataset.chain.get(block).event
    return event.new_data if isinstance(event, AddData | ExecuteTransform) else None


def _operations(dataset: DatasetFiles, block: Multihash, new: DataSlice) -> Numbers:
    path = dataset.data.path(new.physical_hash)
    if not path.is_file():
        raise SliceNotFoundError.of(dataset.alias, path)
    column = DatasetState.read(dataset.chain, block).vocabulary.operation_type_column
    with open_parquet(path) as file:
        parts = [batch.column(0).to_numpy(zero_copy_only=False) for batch in file.batches([column])]
    found: Numbers = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    return found
