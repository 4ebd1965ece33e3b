"""A recorded merge computed once more, from the blocks that its record names (check 17).

Source: RFC-036.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from odfchain.branch.appended_rows import appended_rows
from odfchain.branch.block_graph import BlockGraph
from odfchain.branch.computed_merge import Sides, compute_merge
from odfchain.branch.computing import Engine
from odfchain.branch.diffing import Trust
from odfchain.branch.intervals import MergedColumns
from odfchain.branch.merge_bases import MergeInput
from odfchain.branch.resolving import UNDECIDED, Resolution, lines_schema
from odfchain.ids.multihash import Multihash
from odfchain.repo import merge_record
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.merge_record import Granularity, MergeMode, MergeRecord


@dataclass(frozen=True, slots=True, eq=False)
class ReplayedMerge:
    """What a merge block has to be like, by the two sides that it was made from."""

    bases: tuple[Multihash, ...]
    """The best common ancestors; of a reverted block, what its record says."""
    columns: MergedColumns
    """The schema after it."""
    key: tuple[str, ...]
    rows: pa.Table
    """Operation and data columns of the slice, in order: all rows, or where conflicts were decided one by one
    those of the other keys."""
    lines: pa.Table
    """The conflicts, line by line (`odfchain.branch.resolving`)."""
    merged: pa.Table
    """The rows of conflicting keys as they merge undecided, where both sides have one."""
    ours: pa.Table
    """Our rows of conflicting keys, where we had one."""


def replay(
    dataset: DatasetFiles,
    record: MergeRecord,
    *,
    engine: Engine,
    folder: Path,
    trusted: Trust = lambda *_: True,
) -> ReplayedMerge:
    """Compute a merge, or the revert of a block, once more; `folder` is a private one.

    Raises:
        ObjectNotFoundError: a block or a slice that it was made from is not here.
        ChainError: the two sides do not go together, or say different things of a row.
        SchemaError, IngestError, UsageError: they cannot be merged.
        ObjectCorruptedError, CodecError, EngineError: something cannot be read.
    """
    graph = BlockGraph(dataset)
    if record.mode is MergeMode.REVERT:
        asked = MergeInput.between(graph, record.base, record.target, record.source)
    else:
        asked = MergeInput.of(graph, record.target, record.source)
    sides = Sides.of(graph, record.target, record.source, asked)
    none = sides.columns.data.empty_table()
    if not sides.key:
        rows = appended_rows(sides.asked, sides.intervals(trusted), sides.columns)
        lines = lines_schema(()).empty_table()
        return ReplayedMerge(asked.bases, sides.columns, sides.key, rows, lines, none, none)
    found = compute_merge(
        sides,
        trusted=trusted,
        engine=engine,
        folder=folder,
        resolution=_resolution(record),
        by_row=record.granularity is Granularity.ROW,
        with_rows=True,
    )
    notes = found.notes
    return ReplayedMerge(
        asked.bases, sides.columns, sides.key, found.computed.rows(), notes.lines, notes.merged, notes.ours
    )


def _resolution(record: MergeRecord) -> Resolution:
    if record.resolution in (merge_record.Resolution.OURS, merge_record.Resolution.THEIRS):
        return Resolution.of_side(record.resolution.value)
    return UNDECIDED
