"""The rows of a merge block against the same merge computed again.

What merges by itself, and what was decided for one side, has exactly one outcome: its logical hash says
whether the slice is it, and only where it is not are rows compared. What was decided one by one is in the
slice: every other key is as it merges, and for each conflict it is said which side's value was taken, or that
somebody wrote another. So no file of decisions has to travel with the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from odfchain.audit.slice_difference import shown
from odfchain.branch.appended_rows import appended_rows
from odfchain.branch.block_graph import BlockGraph
from odfchain.branch.cells import same_cells
from odfchain.branch.computed_merge import Sides
from odfchain.branch.intervals import Interval, MergedColumns, parquet_bytes, read_rows
from odfchain.branch.merge_bases import MergeInput, merge_tables
from odfchain.branch.resolving import Resolution, resolve
from odfchain.branch.row_diff import RowDiff, aligned, key_text, net_of, same_rows
from odfchain.branch.three_way import Conflicts, ThreeWay
from odfchain.branch.written_rows import rows_of_changes
from odfchain.codec.arrow import slice_schema
from odfchain.digest.logical import LogicalDigest
from odfchain.digest.row_hash import Numbers
from odfchain.errors import ChainError
from odfchain.model.events import AddData
from odfchain.repo import merge_record
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.merge_record import Granularity, RecordedMerge
from odfchain.slices.bounds import BATCH_ROWS
from odfchain.slices.writer import SliceInputError, SliceSpec, finish_batch
from odfchain.text import counted, one_line

_SHOWN = 100
"""Conflicts that are listed one by one."""


@dataclass(slots=True)
class MergedRows:
    """What is wrong with the rows of a merge block, and what is to be known of them."""

    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MergeAgain:
    """A recorded merge, and what it was made from, as the chains say."""

    dataset: DatasetFiles
    merge: RecordedMerge
    sides: Sides
    intervals: Sequence[Interval]

    @classmethod
    def of(
        cls, dataset: DatasetFiles, merge: RecordedMerge, graph: BlockGraph, asked: MergeInput
    ) -> MergeAgain:
        """The merge that a block records, whose sources were verified."""
        sides = Sides.of(graph, asked.target, asked.source, asked)
        return cls(dataset, merge, sides, sides.intervals(lambda *_: True))

    @property
    def bytes(self) -> int:
        """How much Parquet is read."""
        return parquet_bytes(self.intervals)

    @property
    def view(self) -> MergedColumns:
        """The columns after it."""
        return self.sides.columns

    @property
    def key(self) -> tuple[str, ...]:
        """The primary key; nothing where rows have none."""
        return self.sides.key

    def compare(self) -> MergedRows:
        """What the slice of the block has against what it should have."""
        found = MergedRows()
        if not self.key:
            self._compare_with(appended_rows(self.sides.asked, self.intervals, self.view), found)
            return found
        tables = [read_rows(interval, self.view, self.key) for interval in self.intervals]
        record, event_time = self.merge.record, self.view.names.event_time_column
        by_row = record.granularity is Granularity.ROW
        tables = tables or [self.view.rows.empty_table()]
        again = merge_tables(tables, self.sides.asked, self.key, event_time, by_row=by_row)
        if again.conflicts.count != record.conflicts:
            found.faults.append(
                f"it records {counted(record.conflicts, 'decided conflict')}, and the merge has "
                f"{again.conflicts.count:,}"
            )
        match record.resolution:
            case merge_record.Resolution.NONE:
                self._compare_changes(again.changes, found)
            case merge_record.Resolution.ROWS:
                self._compare_decided(again, found)
            case side:
                changes = resolve(again, Resolution.of_side(side.value)).changes
                self._compare_changes(changes, found)
        return found

    # --- what has one outcome ----------------------------------------------------------------------------

    def _compare_changes(self, changes: RowDiff, found: MergedRows) -> None:
        if not self._is_written(rows_of_changes(changes, self.view.names)):
            found.faults += self._differences(changes, found)

    def _compare_with(self, rows: pa.Table, found: MergedRows) -> None:
        if self._is_written(rows):
            return
        written = self._written()
        if not _equal(written, rows):
            found.faults.append(
                f"its {counted(written.num_rows, 'row')} are not the {rows.num_rows:,} that the source added "
                f"since the base, in their order: {_first_row(written, rows)}"
            )

    def _is_written(self, rows: pa.Table) -> bool:
        """Whether these are the rows of the block, by the logical hash that it records."""
        block = self.merge.block
        event = block.block.event
        written = event.new_data if isinstance(event, AddData) else None
        if written is None or not rows.num_rows:
            return written is None and not rows.num_rows
        state = DatasetState.read(self.dataset.chain, block.hash)
        if state.schema is None:
            return False
        start, time = written.offset_interval.start, block.block.system_time.epoch_ms
        spec = SliceSpec.of(state.schema, state.vocabulary, start, time, self.dataset.folder)
        schema = slice_schema(state.schema)
        renamed = dict(zip(self.view.names.columns, state.vocabulary.columns, strict=True))
        rows = rows.rename_columns([renamed.get(name, name) for name in rows.column_names])
        digest, offset = LogicalDigest(schema), start
        try:
            for batch in rows.combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
                digest.update(finish_batch(batch, schema, spec, offset))
                offset += batch.num_rows
        except (SliceInputError, KeyError):  # columns that the block's schema lacks
            return False
        return digest.finish() == written.logical_hash

    def _written(self) -> pa.Table:
        """The rows of the block: operation, then the data."""
        rows = read_rows(Interval(self.dataset, self.sides.target.head, self.merge.block.hash), self.view)
        return rows.select(range(1, rows.num_columns))

    def _net(self, found: MergedRows) -> RowDiff | None:
        """What the rows of the block do to each key."""
        rows = self._written()
        data = rows.select(range(1, rows.num_columns))
        try:
            net = net_of(rows.column(0).to_numpy(), data, self.key)
        except ChainError as error:
            found.faults.append(error.message)
            return None
        if not _equal(rows, rows_of_changes(net, self.view.names)):
            found.faults.append(
                "its rows are not one change of each key, in the order of keys and then of operations"
            )
        return net

    def _differences(
        self, expected: RowDiff, found: MergedRows, but: Conflicts | None = None
    ) -> Iterator[str]:
        """What is wrong with the changes of keys, all but those of conflicts."""
        net = self._net(found)
        if net is None:
            return
        if but is not None:
            net = net.only(~_is_in(net, _unchanged(but)))
        _, at, at_expected = aligned(net, expected)
        extra, lacking = at[at_expected < 0], at_expected[at < 0]
        both = (at >= 0) & (at_expected >= 0)
        mine, other = net.only(at[both]), expected.only(at_expected[both])
        wrong = (mine.has != other.has) | (mine.had != other.had)
        for one, two in ((mine.before, other.before), (mine.after, other.after)):
            wrong |= ~same_rows(one, two, one.column_names)
        more_rows, fewer_rows = net.only(extra), expected.only(lacking)
        for recorded, computed, message in (
            (more_rows, _unmoved(more_rows), "is changed, which the merge does not change"),
            (_unmoved(fewer_rows), fewer_rows, "is not changed as the merge changes it: it has no rows"),
            (mine.only(wrong), other.only(wrong), "is not what the merge makes of it"),
        ):
            if count := len(recorded):
                more = f" ({count:,} such keys)" if count > 1 else ""
                named = recorded if recorded.has[0] or recorded.had[0] else computed
                found_at = _first_cell(recorded, computed)
                yield f"{key_text(named.rows_of_keys())} {message}{more}: {found_at}"

    # --- what was decided one by one ---------------------------------------------------------------------

    def _compare_decided(self, again: ThreeWay, found: MergedRows) -> None:
        conflicts = again.conflicts
        found.faults += self._differences(again.changes, found, conflicts)
        net = self._net(MergedRows())
        if net is None or not len(conflicts):
            return
        result = _decided(net, conflicts)
        keys = conflicts.rows_of_keys()
        taken: list[str] = []
        for row in range(len(conflicts)):
            name = key_text(keys, row)
            for column, what in self._taken(conflicts, result, row):
                if column is None:
                    found.faults.append(f"{name} {what}")
                else:
                    taken.append(f"{name}{column and f', {one_line(column, 60)}'}: {what}")
        where = f"block {self.merge.block.block.sequence_number}, conflict decided: "
        found.notes += [where + text for text in taken[:_SHOWN]]
        if len(taken) > _SHOWN:
            found.notes.append(f"{where}and {len(taken) - _SHOWN:,} more")

    def _taken(self, conflicts: Conflicts, result: RowDiff, row: int) -> Iterator[tuple[str | None, str]]:
        """(column in conflict, what was taken of it); no column: what is wrong with the row."""
        sides = (("ours", conflicts.ours), ("theirs", conflicts.theirs), ("base", conflicts.base))
        cells = [name for name, mask in conflicts.cells.items() if mask[row]]
        one = slice(row, row + 1)
        if not result.has[row]:
            absent = [name for name, side in sides[:2] if not side.there[row]]
            yield "", absent[0] if absent and not cells else "deleted"
            return
        for column in cells:
            value = result.after.column(column)[one]
            names = [
                name
                for name, side in sides
                if side.there[row] and same_cells(value, side.rows.column(column)[one])[0]
            ]
            yield column, names[0] if names else f"edited by hand: {one_line(str(value[0]), 60)}"
        data = [name for name in result.schema.names if name not in self.key]
        if not cells:
            after = result.after.slice(row, 1)
            names = [
                name
                for name, side in sides
                if side.there[row] and same_rows(after, side.rows.slice(row, 1), data)[0]
            ]
            yield "", names[0] if names else "edited by hand"
            return
        for column in data:
            if column not in cells:
                found = _cell(column, result.after.column(column)[one], conflicts.merged.column(column)[one])
                if found is not None:
                    name = one_line(column, 60)
                    yield None, f"is not as it merges in {name}, which is in no conflict: {found}"


def _unmoved(diff: RowDiff) -> RowDiff:
    """The same keys, each left as it was."""
    return RowDiff(diff.key, diff.before, diff.had, diff.before, diff.had, diff.keys)


def _first_cell(recorded: RowDiff, computed: RowDiff) -> str:
    """The first cell in which the first of two changes of the same keys differ."""
    for when, one, two, is_there in (
        ("after", recorded.after, computed.after, (recorded.has[0], computed.has[0])),
        ("before", recorded.before, computed.before, (recorded.had[0], computed.had[0])),
    ):
        if is_there[0] != is_there[1]:
            return f"{when} it, {_both(*('a row' if there else 'no row' for there in is_there))}"
        for name in one.column_names:
            if found := _cell(name, one.column(name)[:1], two.column(name)[:1]):
                return found if when == "after" else f"{when} it, {found}"
    raise AssertionError("changes that are compared differ")  # pragma: no cover


def _cell(column: str, recorded: pa.ChunkedArray, computed: pa.ChunkedArray) -> str | None:
    """Column and values where one cell is not the other."""
    if same_cells(recorded, computed)[0]:
        return None
    return f"column `{one_line(column, 60)}`, {_both(shown(recorded[0]), shown(computed[0]))}"


def _both(recorded: str, computed: str) -> str:
    return f"recorded {recorded}, computed {computed}"


def _equal(rows: pa.Table, others: pa.Table) -> bool:
    """Whether these are the same operations and data in the same order."""
    if rows.num_rows != others.num_rows:
        return False
    data = rows.column_names[1:]
    same = rows.column(0).to_numpy() == others.column(0).to_numpy()
    return bool((same & same_rows(rows, others, data)).all())


def _first_row(written: pa.Table, rows: pa.Table) -> str:
    """The first row, and the first cell of it, in which two tables differ."""
    both = min(written.num_rows, rows.num_rows)
    one, two = written.slice(0, both), rows.slice(0, both)
    differs = ~same_rows(one, two, one.column_names)
    row = int(differs.argmax()) if differs.any() else both
    where = f"row {row + 1:,} of the block"
    if row == both:
        return f"{where}, {_both(*('a row' if row < t.num_rows else 'no row' for t in (written, rows)))}"
    one, two = one.slice(row, 1), two.slice(row, 1)
    cells = (_cell(name, one.column(name), two.column(name)) for name in one.column_names)
    return f"{where}, {next(filter(None, cells))}"


def _is_in(diff: RowDiff, other: RowDiff) -> Numbers:
    """Which keys of a diff another one has, too."""
    _, at, at_other = aligned(diff, other)
    found = np.zeros(len(diff), dtype=bool)
    found[at[(at >= 0) & (at_other >= 0)]] = True
    return found


def _unchanged(conflicts: Conflicts) -> RowDiff:
    """The keys of conflicts with our rows."""
    rows, there = conflicts.ours.rows, conflicts.ours.there
    return RowDiff(conflicts.key, rows, there, rows, there, conflicts.keys)


def _decided(net: RowDiff, conflicts: Conflicts) -> RowDiff:
    """The rows that the keys of the conflicts have after the block, in the order of the conflicts."""
    ours = _unchanged(conflicts)
    _, at_net, at_ours = aligned(net, ours)
    both = (at_net >= 0) & (at_ours >= 0)
    place = np.full(len(ours), -1)
    place[at_ours[both]] = at_net[both]
    whole = RowDiff.joined([ours, net])
    return whole.only(np.where(place < 0, np.arange(len(ours)), len(ours) + place))
