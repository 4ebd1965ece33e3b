"""A merge as it is computed: which rows it writes, and which lines somebody has to decide.

It is the same for whoever merges and for whoever checks a recorded merge: a pure function over the rows of
the intervals, called by either engine (`odfchain.branch.computing`). Source: RFC-036.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from odfchain.branch.block_graph import BlockGraph
from odfchain.branch.computing import Computed, Engine, KeyResult, compute
from odfchain.branch.diffing import Trust, common_key
from odfchain.branch.intervals import Interval, MergedColumns
from odfchain.branch.merge_bases import MergeInput, merge_tables
from odfchain.branch.resolving import UNDECIDED, Resolution, lines_schema, resolve
from odfchain.branch.written_rows import rows_of_changes
from odfchain.errors import UsageError
from odfchain.ids.multihash import Multihash
from odfchain.model.enums import DatasetKind
from odfchain.model.events import DatasetVocabulary
from odfchain.repo.dataset_state import DatasetState


@dataclass(frozen=True, slots=True)
class Sides:
    """Two heads of a dataset that are merged, and in which columns and by which key."""

    graph: BlockGraph
    target: DatasetState
    source: DatasetState
    asked: MergeInput
    key: tuple[str, ...]
    """Nothing where rows have no primary key: then what the source added is appended."""
    columns: MergedColumns

    @classmethod
    def of(cls, graph: BlockGraph, target: Multihash, source: Multihash, asked: MergeInput) -> Sides:
        """What there is to know of two blocks before rows are read.

        Raises:
            UsageError: the dataset is a derivative, whose data are computed.
        """
        ours, theirs = (DatasetState.read(graph.files_of(block).chain, block) for block in (target, source))
        if ours.seed.dataset_kind is not DatasetKind.ROOT:
            raise UsageError(
                "a derivative dataset is computed, never merged",
                hint="publish a branch of it with --ff, or delete the branch and pull",
            )
        key, columns = common_key([ours, theirs]), MergedColumns.of(ours, theirs)
        return cls(graph, ours, theirs, asked, key, columns)

    def intervals(self, trusted: Trust) -> list[Interval]:
        """What is to be read."""
        found = []
        for after, upto in self.asked.intervals:
            files = self.graph.files_of(upto)
            found.append(Interval.of(files, after, upto, trusted=trusted(files, after, upto)))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class MergeNotes:
    """What is needed whole of a merge."""

    lines: pa.Table
    """The conflicts, line by line (`odfchain.branch.resolving`)."""


@dataclass(frozen=True, slots=True, eq=False)
class ComputedMerge:
    """The rows of a merge and its conflicts."""

    computed: Computed
    notes: MergeNotes


def compute_merge(
    sides: Sides,
    *,
    trusted: Trust,
    engine: Engine,
    folder: Path,
    resolution: Resolution = UNDECIDED,
    by_row: bool = False,
) -> ComputedMerge:
    """Merge two sides that have a primary key."""
    function = functools.partial(
        merge_part,
        asked=sides.asked,
        key=sides.key,
        names=sides.columns.names,
        resolution=resolution,
        by_row=by_row,
    )
    computed = compute(
        sides.intervals(trusted), sides.columns, sides.key, function, engine=engine, folder=folder
    )
    lines = [note.lines for note in computed.notes if isinstance(note, MergeNotes)]
    return ComputedMerge(
        computed, MergeNotes(pa.concat_tables([lines_schema(sides.key).empty_table(), *lines]))
    )


def merge_part(
    tables: Sequence[pa.Table],
    *,
    asked: MergeInput,
    key: tuple[str, ...],
    names: DatasetVocabulary,
    resolution: Resolution,
    by_row: bool,
) -> KeyResult:
    """Merge all rows of some keys: the rows to be written, and what `MergeNotes` has."""
    three_way = merge_tables(tables, asked, key, names.event_time_column, by_row=by_row)
    resolved = resolve(three_way, resolution)
    return KeyResult(rows_of_changes(resolved.changes, names), MergeNotes(resolved.lines))
