"""Check 17: a merge is what its two sides merge into.

A merge block says from which blocks it was made. Where those are here, the merge is made again: its bases are
looked up, the blocks that it took changes from are verified (checks 2 to 11), and its rows, schema and
watermark are computed. A revert is checked in the same way: it merges the state before a block into the
present one, with that block as base. Where the source is elsewhere, or was never fetched, nothing is said
either way. A record counts where it first appears: other tools may carry it on. Source: RFC-036.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from odfchain import errors
from odfchain.audit.chain_checks import Run, StoredChain, check_rules, read_chain
from odfchain.audit.input_claims import Find
from odfchain.audit.report import (
    CORRECTIONS,
    MERGES,
    Checking,
    Fault,
    Finding,
    Looked,
    Note,
    Report,
    Skipped,
    fault,
)
from odfchain.audit.row_checks import shown
from odfchain.audit.slice_checks import UNREADABLE, SliceOutcome, SliceReading, check_objects
from odfchain.audit.state_checks import CheckedRows, ReadableSlice, has_several_keys, readable_slices
from odfchain.branches import row_diff
from odfchain.branches.branches import BlockGraph
from odfchain.branches.conflict_file import Resolution, resolve
from odfchain.branches.foreign_keys import ForeignKeys, Rows
from odfchain.branches.intervals import Interval, MergedColumns, parquet_bytes, read_rows
from odfchain.branches.merging import Sides
from odfchain.branches.row_diff import Conflicts, MergedTables, MergeInput, ThreeWay
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import DataEvent
from odfchain.limits import AUDIT
from odfchain.odf.arrow_schema import slice_schema
from odfchain.odf.events import AddData
from odfchain.odf.identity import Multihash
from odfchain.odf.logical_hash import LogicalDigest
from odfchain.odf.row_hash import Numbers, same_cells
from odfchain.progress import SILENT, Progress
from odfchain.slices.reader import BATCH_ROWS
from odfchain.slices.state import codes_of, takes_back
from odfchain.slices.writer import SliceInputError, SliceSpec, finish_batch
from odfchain.text import counted, one_line
from odfchain.workspace import merge_record
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import Granularity, MergeMode, MergeRecord, RecordedMerge
from odfchain.workspace.points import opened_at

# The rows of a merge block against the same merge computed again.
# Automatic merges and those decided for one side have one outcome, compared by logical hash; only on a
# mismatch are rows compared. Decisions for single conflicts are in the slice itself: all other keys must be
# as merged, and each conflict is reported with the side taken, or as edited by hand. So no file of
# decisions has to travel with the chain.

# Conflicts that are listed one by one.
_SHOWN = 100


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
        sides = Sides.of(graph, asked)
        return cls(dataset, merge, sides, sides.intervals(lambda *_: True))

    def compare(self) -> Iterator[str | Note]:
        """Compare the slice of the block with its computed rows: what is wrong with it, and notes."""
        if not self.sides.key:
            yield from self._compare_with(self.sides.appended(self.intervals).rows())
            return
        tables = [read_rows(interval, self.sides.columns, self.sides.key) for interval in self.intervals]
        record, event_time = self.merge.record, self.sides.columns.names.event_time_column
        by_row = record.granularity is Granularity.ROW
        tables = tables or [self.sides.columns.rows.empty_table()]
        again = MergedTables(tables, self.sides.asked, self.sides.key, event_time).merged(by_row=by_row)
        if again.conflicts.count != record.conflicts:
            yield (
                f"it records {counted(record.conflicts, 'decided conflict')}, and the merge has "
                f"{again.conflicts.count:,}"
            )
        match record.resolution:
            case merge_record.Resolution.NONE:
                yield from self._compare_changes(again.changes)
            case merge_record.Resolution.ROWS:
                yield from self._compare_decided(again)
            case side:
                yield from self._compare_changes(resolve(again, Resolution.of_side(side.value)).changes)

    # --- what has one outcome ----------------------------------------------------------------------------

    def _compare_changes(self, changes: row_diff.RowDiff) -> Iterator[str]:
        if not self._is_written(row_diff.rows_of_changes(changes, self.sides.columns.names)):
            net = yield from self._net()
            if net is not None:
                yield from _differences(net, changes)

    def _compare_with(self, rows: pa.Table) -> Iterator[str]:
        if self._is_written(rows):
            return
        written = self._written()
        if not _equal(written, rows):
            yield (
                f"its {counted(written.num_rows, 'row')} are not the {rows.num_rows:,} that the source added "
                f"since the base, in their order: {_first_row(written, rows)}"
            )

    def _is_written(self, rows: pa.Table) -> bool:
        block = self.merge.block
        if (written := block.block.new_data) is None or not rows.num_rows:
            return written is None and not rows.num_rows
        state = DatasetState.read(self.dataset.chain, block.hash)
        if state.schema is None:
            return False
        start, time = written.offset_interval.start, block.block.system_time.epoch_ms
        spec = SliceSpec.of(state.schema, state.vocabulary, start, time, self.dataset.folder)
        # hashed as the writer would have written the slice
        schema = slice_schema(state.schema)
        renamed = dict(zip(self.sides.columns.names.columns, state.vocabulary.columns, strict=True))
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
        interval = Interval(self.dataset, self.sides.target.head, self.merge.block.hash)
        rows = read_rows(interval, self.sides.columns)
        return rows.select(range(1, rows.num_columns))

    def _net(self) -> Generator[str, None, row_diff.RowDiff | None]:
        rows = self._written()
        data = rows.select(range(1, rows.num_columns))
        try:
            net = row_diff.net_of(rows.column(0).to_numpy(), data, self.sides.key)
        except errors.ChainError as error:
            yield error.message
            return None
        # a merge writes one change for each key, in a fixed order
        if not _equal(rows, row_diff.rows_of_changes(net, self.sides.columns.names)):
            yield "its rows are not one change of each key, in the order of keys and then of operations"
        return net

    # --- what was decided one by one ---------------------------------------------------------------------

    def _compare_decided(self, again: ThreeWay) -> Iterator[str | Note]:
        conflicts = again.conflicts
        net = yield from self._net()
        if net is None:
            return
        # conflicts are judged by what was decided, not by the automatic merge
        yield from _differences(net.without(conflicts.ours), again.changes)
        if not len(conflicts):
            return
        result = _decided(net, conflicts)
        keys = conflicts.rows_of_keys()
        taken: list[str] = []
        for row in range(len(conflicts)):
            name = row_diff.key_text(keys, row)
            for column, what in self._taken(conflicts, result, row):
                if column is None:
                    yield f"{name} {what}"
                else:
                    taken.append(f"{name}{column and f', {one_line(column, 60)}'}: {what}")
        where = f"block {self.merge.block.block.sequence_number}, conflict decided: "
        yield from (Note(where + text) for text in taken[:_SHOWN])
        if len(taken) > _SHOWN:
            yield Note(f"{where}and {len(taken) - _SHOWN:,} more")

    def _taken(
        self, conflicts: Conflicts, result: row_diff.RowDiff, row: int
    ) -> Iterator[tuple[str | None, str]]:
        sides = (("ours", conflicts.ours), ("theirs", conflicts.theirs), ("base", conflicts.base))
        cells = [name for name, mask in conflicts.cells.items() if mask[row]]
        data = [name for name in result.schema.names if name not in self.sides.key]
        after = result.after.slice(row, 1)

        def side_with(columns: Sequence[str]) -> str | None:
            # a value may equal those of several sides: ours counts first
            there = ((name, side.after.slice(row, 1)) for name, side in sides if side.has[row])
            return next((name for name, rows in there if row_diff.same_rows(after, rows, columns)[0]), None)

        if not result.has[row]:
            absent = [name for name, side in sides[:2] if not side.has[row]]
            yield "", absent[0] if absent and not cells else "deleted"
            return
        for column in cells:
            by_hand = f"edited by hand: {one_line(str(after.column(column)[0]), 60)}"
            yield column, side_with([column]) or by_hand
        if not cells:
            yield "", side_with(data) or "edited by hand"
            return
        for column in data:
            if column not in cells:
                found = _cell(column, after.column(column), conflicts.merged.column(column).slice(row, 1))
                if found is not None:
                    name = one_line(column, 60)
                    yield None, f"is not as it merges in {name}, which is in no conflict: {found}"


def _differences(net: row_diff.RowDiff, expected: row_diff.RowDiff) -> Iterator[str]:
    _, at, at_expected = row_diff.aligned(net, expected)
    extra, lacking = at[at_expected < 0], at_expected[at < 0]
    both = (at >= 0) & (at_expected >= 0)
    mine, other = net.only(at[both]), expected.only(at_expected[both])
    wrong = (mine.has != other.has) | (mine.had != other.had)
    for one, two in ((mine.before, other.before), (mine.after, other.after)):
        wrong |= ~row_diff.same_rows(one, two, one.column_names)
    more_rows, fewer_rows = net.only(extra), expected.only(lacking)
    for recorded, computed, message in (
        (more_rows, more_rows.unmoved(), "is changed, which the merge does not change"),
        (fewer_rows.unmoved(), fewer_rows, "is not changed as the merge changes it: it has no rows"),
        (mine.only(wrong), other.only(wrong), "is not what the merge makes of it"),
    ):
        if count := len(recorded):
            more = f" ({count:,} such keys)" if count > 1 else ""
            named = recorded if recorded.has[0] or recorded.had[0] else computed
            found_at = _first_cell(recorded, computed)
            yield f"{row_diff.key_text(named.rows_of_keys())} {message}{more}: {found_at}"


def _first_cell(recorded: row_diff.RowDiff, computed: row_diff.RowDiff) -> str:
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
    if same_cells(recorded, computed)[0]:
        return None
    return f"column `{one_line(column, 60)}`, {_both(shown(recorded[0]), shown(computed[0]))}"


def _both(recorded: str, computed: str) -> str:
    return f"recorded {recorded}, computed {computed}"


def _equal(rows: pa.Table, others: pa.Table) -> bool:
    if rows.num_rows != others.num_rows:
        return False
    data = rows.column_names[1:]
    same = rows.column(0).to_numpy() == others.column(0).to_numpy()
    return bool((same & row_diff.same_rows(rows, others, data)).all())


def _first_row(written: pa.Table, rows: pa.Table) -> str:
    both = min(written.num_rows, rows.num_rows)
    one, two = written.slice(0, both), rows.slice(0, both)
    differs = ~row_diff.same_rows(one, two, one.column_names)
    row = int(differs.argmax()) if differs.any() else both
    where = f"row {row + 1:,} of the block"
    if row == both:
        return f"{where}, {_both(*('a row' if row < t.num_rows else 'no row' for t in (written, rows)))}"
    one, two = one.slice(row, 1), two.slice(row, 1)
    cells = (_cell(name, one.column(name), two.column(name)) for name in one.column_names)
    return f"{where}, {next(filter(None, cells))}"


def _decided(net: row_diff.RowDiff, conflicts: Conflicts) -> row_diff.RowDiff:
    ours = conflicts.ours
    _, at_net, at_ours = row_diff.aligned(net, ours)
    both = (at_net >= 0) & (at_ours >= 0)
    place = np.full(len(ours), -1)
    place[at_ours[both]] = at_net[both]
    whole = row_diff.RowDiff.joined([ours, net])
    return whole.only(np.where(place < 0, np.arange(len(ours)), len(ours) + place))


# The source blocks of merges, verified as the dataset's own are (checks 2 to 11).
# They are on other chains of the same dataset, such as deleted branches. A fault in them is a fault of the
# merge.


@dataclass(frozen=True, slots=True)
class _SideChain:
    dataset: DatasetFiles
    chain: StoredChain
    places: dict[Multihash, int]
    # The findings of reading it.
    report: Report
    # Its newest block that is on the dataset's own chain.
    parting: int
    checked: dict[tuple[int, int], Report] = field(default_factory=dict)


@dataclass(slots=True)
class MergedSources:
    """The side chains of a dataset, each read once, and what was found of their blocks."""

    dataset: DatasetFiles
    own: frozenset[Multihash]
    """The blocks of the chain that is verified itself."""
    jobs: int
    progress: Progress = SILENT
    _chains: list[_SideChain] = field(default_factory=list)

    def verify(self, after: Multihash, upto: Multihash) -> Report:
        """Verify the blocks after one, up to another, but for the dataset's own."""
        if upto in self.own:
            return self._report()
        if (side := next((item for item in self._chains if upto in item.places), None)) is None:
            side = self._read(upto)
            self._chains.append(side)
        if side.report.faults:
            return side.report
        ends = max(side.places.get(after, -1), side.parting), side.places[upto]
        if ends not in side.checked:
            side.checked[ends] = self._checked(side, *ends)
        return side.checked[ends]

    def _report(self) -> Report:
        return Report("unknown", str(self.dataset.alias), None)

    def _read(self, head: Multihash) -> _SideChain:
        report, opened = self._report(), opened_at(self.dataset, head)
        chain = report.take(read_chain(opened, SILENT))
        places = {row.name: row.number for row in chain.blocks.rows()}
        parting = max((number for name, number in places.items() if name in self.own), default=-1)
        return _SideChain(opened, chain, places, report, parting)

    def _checked(self, side: _SideChain, after: int, upto: int) -> Report:
        report, run = self._report(), Run(side.dataset, side.chain, after, upto, self.progress)
        report.take(check_rules(run))
        readable = readable_slices(report.take(SliceReading.of(run, self.jobs)))
        if report.faults or not any(item.takes_back for item in readable):
            return report
        state = DatasetState.read(side.dataset.chain, side.chain.hash_at(readable[-1].job.number))
        # without one primary key for the whole chain, rows are compared as a whole
        if after < 0 or has_several_keys(side.chain) or not side.chain.follows or not state.primary_key:
            rows = CheckedRows.of(run, [*self._earlier(side, after), *readable])
            report.take(rows.check_corrections())
        else:
            report.take(self._check_by_key(side, after, state, readable))
        return report

    def _check_by_key(
        self, side: _SideChain, after: int, state: DatasetState, slices: Sequence[ReadableSlice]
    ) -> Checking[None]:
        before = side.chain.hash_at(after)
        assert before is not None  # noqa: S101 - the chain follows
        interval = Interval(side.dataset, before, state.head, believed=False)
        rows = read_rows(interval, MergedColumns.of(state), state.primary_key)
        yield Looked(CORRECTIONS)
        # only the touched values are looked up, not the whole state
        wrong = taken_back_in_vain_by_key(rows, state.primary_key)
        for item in slices:
            if (found := item.in_vain(wrong, "in force")) is not None:
                yield found

    def _earlier(self, side: _SideChain, upto: int) -> list[ReadableSlice]:
        # a scratch report: these slices are looked into, not judged
        jobs = self._report().take(check_objects(Run(side.dataset, side.chain, -1, upto)))
        store = side.dataset.data
        return [
            ReadableSlice(job, file, (0, 0, 0, 0))
            for job in jobs
            if (file := job.file(Path(store.locate(job.slice.physical_hash))))
        ]


def taken_back_in_vain_by_key(rows: pa.Table, key: Sequence[str]) -> Numbers:
    """The offsets of rows that take back what their key does not have.

    `rows` (`odfchain.branches.intervals.read_rows`) have a row in front for each key, which says what it had.
    """
    codes, _ = codes_of(rows, key)
    order = np.argsort(codes, kind="stable")
    rows, codes = rows.take(pa.array(order)), codes[order]
    operations = rows.column(1).to_numpy()
    first = np.concatenate([[True], codes[1:] != codes[:-1]])[: len(operations)]
    # the row in front takes back what is there, so that later rows find it; else it adds nothing
    present = np.where(first, takes_back(operations), ~takes_back(operations))
    data = rows.column_names[2:]
    same = row_diff.same_rows(rows.slice(1), rows.slice(0, len(operations) - 1), data)
    sound = np.concatenate([[True], present[:-1] & same])[: len(operations)]
    wrong: Numbers = rows.column(0).to_numpy()[takes_back(operations) & ~first & ~sound]
    return np.sort(wrong)


class MergeCheck:
    """The merges of the blocks `(after, upto]`, each where its record first appears."""

    def __init__(self, checked: SliceReading, find: Find, jobs: int) -> None:
        run = checked.run
        self._run, self._outcomes, self._find = run, checked.outcomes, find
        self._dataset, self._blocks = run.dataset, run.chain.blocks
        self._own = {row.name: row.number for row in run.chain.blocks.rows()}
        self._graph = BlockGraph(run.dataset)
        self._sources = MergedSources(run.dataset, frozenset(self._own), jobs, run.progress)

    def check(self) -> Checking[None]:
        """What is wrong with them."""
        run = self._run
        damaged: list[tuple[HashedBlock, errors.OdfchainError]] = []
        merges = run.chain.merges(damaged)
        for block, error in damaged:
            number = block.block.sequence_number
            if run.after < number <= run.upto:
                yield fault(MERGES, run.block_file(block.hash), error.message, number)
        asked = [merge for merge in merges if run.after < merge.block.block.sequence_number <= run.upto]
        if not asked:
            return
        if run.chain.newest is not None:
            yield _skip("the newest blocks alone were read")
        elif not run.chain.follows:
            yield _skip("the chain is damaged, so what it merged cannot be found")
        else:
            for merge in reversed(asked):  # the newest source is read first, and has most others in its chain
                yield from self._check(merge)

    def _check(self, merge: RecordedMerge) -> Checking[None]:
        record, number = merge.record, merge.block.block.sequence_number
        missing = [name for name in (record.source, *record.base) if not self._dataset.chain.contains(name)]
        if missing:
            yield _skip(
                f"block {number} merged {one_line(record.source_ref, 80)}, and block {missing[0]} of that "
                f"is not here: `odfchain fetch {self._dataset.alias} --merged` brings it"
            )
            return
        yield Looked(MERGES)
        try:
            asked = self._input(merge)
            if isinstance(asked, str):
                yield self._fault(merge, asked)
            elif (unsound := self._unsound(merge, asked)) is not None:
                yield unsound
            else:
                yield from self._check_outcome(merge, asked)
        except errors.ObjectNotFoundError as error:
            yield _skip(f"block {number} cannot be merged again: {error.message}")
        except (errors.SchemaError, errors.IngestError, errors.UsageError) as error:
            yield self._fault(merge, f"the two sides cannot be merged: {error.message}")
        except MemoryError:
            yield _skip("there is not enough memory to merge again")
        except UNREADABLE as error:
            reason = error.message if isinstance(error, errors.OdfchainError) else str(error)
            yield self._fault(merge, f"it cannot be merged again: {one_line(reason)}")

    def _fault(self, merge: RecordedMerge, message: str, file: object = None) -> Fault:
        path = file or self._run.block_file(merge.block.hash)
        return fault(MERGES, path, message, merge.block.block.sequence_number)

    # --- what it was made from ---------------------------------------------------------------------------

    def _is_from_there(self, merge: RecordedMerge) -> bool:
        target = self._own.get(merge.record.target)
        number = merge.block.block.sequence_number
        # only metadata of the same transaction may lie between
        between = range(target + 1 if target is not None else 0, number)
        return target is not None and target < number and all(self._is_before_it(merge, n) for n in between)

    def _is_before_it(self, merge: RecordedMerge, number: int) -> bool:
        stored = self._blocks.numbered(number)
        assert stored is not None  # noqa: S101 - the chain follows
        block = stored.block
        # one transaction shares one system time, and only its last block has data
        return not isinstance(block.event, DataEvent) and block.system_time == merge.block.block.system_time

    def _input(self, merge: RecordedMerge) -> MergeInput | str:
        # what is merged again, or what is wrong with the record
        record = merge.record
        if not self._is_from_there(merge):
            return f"the target that it records, {record.target}, is not the block before it"
        if record.mode is MergeMode.REVERT:
            return self._reverted_wrongly(record) or MergeInput.between(
                self._graph, record.base, record.target, record.source
            )
        # the base is computed from the graph, not taken from the record
        asked = MergeInput.of(self._graph, record.target, record.source)
        if asked.bases == record.base:
            return asked
        recorded, found = (", ".join(map(str, blocks)) for blocks in (record.base, asked.bases))
        return f"the base that it records is {recorded}; that of its two sides is {found}"

    def _reverted_wrongly(self, record: MergeRecord) -> str | None:
        number = self._own.get(record.base[0]) if len(record.base) == 1 else None
        base = self._blocks.numbered(number) if number is not None else None
        if base is None or base.number > self._own[record.target]:
            return "it reverts what is not one block before it"
        if base.block.prev_block_hash != record.source:
            return "its source is not the block before the one that it reverts"
        return None

    def _unsound(self, merge: RecordedMerge, asked: MergeInput) -> Finding | None:
        for after, upto in asked.intervals:
            found = self._sources.verify(after, upto)
            if found.faults:
                first, more = found.faults[0], len(found.faults) - 1
                others = f" (and {more:,} more faults)" if more else ""
                message = f"what it merged is not sound, by check {first.check}: {first.message}{others}"
                return self._fault(merge, message, first.file)
            if found.reasons:
                reason = next(iter(found.reasons.values()))
                return _skip(f"what was merged could not be verified: {reason}")
        return None

    # --- what came of it ---------------------------------------------------------------------------------

    def _check_outcome(self, merge: RecordedMerge, asked: MergeInput) -> Checking[None]:
        again = MergeAgain.of(self._dataset, merge, self._graph, asked)
        number = merge.block.block.sequence_number
        if parquet_bytes(again.intervals) > AUDIT.merged_bytes:
            yield _skip(f"merges of more than {AUDIT.merged_bytes:,} bytes of slices are not computed anew")
            return
        state = DatasetState.read(self._dataset.chain, merge.block.hash)
        if again.sides.columns.declared is not None and state.schema != again.sides.columns.declared:
            yield self._fault(
                merge, "the schema after it is not that of its target, with the source's new columns"
            )
        outcome = self._outcomes.get(number)
        yield from self._check_watermark(merge, outcome)
        if outcome is not None and outcome.operations is None:
            return  # what is wrong with the slice is said elsewhere
        slice_ = merge.block.block.new_data
        where = self._dataset.data.locate(slice_.physical_hash) if slice_ is not None else None
        # as a whole: what cannot be computed again says nothing of a part
        found = list(again.compare())
        wrong = [text for text in found if isinstance(text, str)]
        yield from (self._fault(merge, f"not what its two sides merge into: {text}", where) for text in wrong)
        yield from (item for item in found if isinstance(item, Note))
        if not wrong:
            yield from self._check_references(merge, state)

    def _check_references(self, merge: RecordedMerge, state: DatasetState) -> Checking[None]:
        before = DatasetState.read(self._dataset.chain, merge.record.target)
        rows = Rows.after(self._dataset, before, state)
        # the dataset itself, and those whose blocks the record names
        known = {self._dataset.seed.dataset_id, *merge.record.references}
        unknown: list[str] = []
        check = ForeignKeys(self._find, note=unknown.append, references=merge.record.references)
        for key in rows.constraints.foreign_keys if rows.new else ():
            if key.dataset not in known and not key.changes:
                yield _skip(f"a merge does not say against what its foreign key {key} was checked")
                continue
            broken = check.holds(key, rows)
            yield from map(_skip, unknown)
            unknown.clear()
            if broken is not None and broken.refused:
                yield self._fault(merge, f"it brought rows that break a foreign key: {broken.message}")

    def _check_watermark(self, merge: RecordedMerge, outcome: SliceOutcome | None) -> Checking[None]:
        event = merge.block.block.event
        assert isinstance(event, AddData)  # noqa: S101 - only those have records
        before = DatasetState.read(self._dataset.chain, merge.record.target).watermark
        if (mark := event.new_watermark) is None or mark == before:
            return
        if event.new_data is not None and (outcome is None or outcome.operations is None):
            return
        latest = outcome.latest_ms if outcome is not None else None
        # it may only grow, up to the latest event time of the merged rows
        if (before is None or mark > before) and (latest is None or mark.epoch_ms > latest):
            message = f"its watermark, {mark}, is later than its target's and than all of its rows"
            yield self._fault(merge, message)


def _skip(reason: str) -> Skipped:
    return Skipped([MERGES], reason)
