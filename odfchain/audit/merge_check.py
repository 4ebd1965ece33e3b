"""Check 17: a merge is what its two sides merge into.

A merge block says from which blocks it was made. Where those are here, the merge is made again: its bases are
looked up, the blocks that it took changes from are verified (checks 2 to 11), and its rows, schema and
watermark are computed. A revert is checked in the same way: it merges the state before a block into the
present one, with that block as base. Where the source is elsewhere, or was never fetched, nothing is said
either way. A record counts where it first appears: other tools may carry it on. Source: RFC-036.
"""

from __future__ import annotations

from pathlib import Path

from odfchain.audit.checks import MERGES
from odfchain.audit.input_claims import Find
from odfchain.audit.merged_rows import MergeAgain
from odfchain.audit.report import Report
from odfchain.audit.side_chains import MergedSources
from odfchain.audit.slice_checks import UNREADABLE, SliceOutcome
from odfchain.audit.walk import StoredChain
from odfchain.audit.watermarks import Outcomes
from odfchain.branch.block_graph import BlockGraph
from odfchain.branch.foreign_keys import ForeignKeys
from odfchain.branch.judged_rows import Rows
from odfchain.branch.merge_bases import MergeInput
from odfchain.chain.chain import HashedBlock
from odfchain.chain.earlier_blocks import DataEvent
from odfchain.chain.index import MERGE
from odfchain.errors import IngestError, ObjectNotFoundError, OdfchainError, SchemaError, UsageError
from odfchain.ids.multihash import Multihash
from odfchain.limits import AUDIT
from odfchain.model.events import AddData
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.merge_record import MergeMode, MergeRecord, RecordedMerge, first_records
from odfchain.text import one_line


def check_merges(
    dataset: DatasetFiles,
    chain: StoredChain,
    after: int,
    upto: int,
    outcomes: Outcomes,
    find: Find,
    report: Report,
    *,
    jobs: int = 2,
    progress: Progress = SILENT,
) -> None:
    """The merges of the blocks `(after, upto]`, each where its record first appears."""
    carrying = (HashedBlock(item.name, item.block) for item in chain.blocks.newest_first(MERGE))
    damaged: list[tuple[HashedBlock, OdfchainError]] = []
    merges = first_records(carrying, damaged)
    for block, error in damaged:
        if after < block.block.sequence_number <= upto:
            report.fault(MERGES, _path(dataset, block.hash), error.message, block.block.sequence_number)
    asked = [merge for merge in merges if after < merge.block.block.sequence_number <= upto]
    if not asked:
        return
    if chain.newest is not None:
        report.skip([MERGES], "the newest blocks alone were read")
        return
    if not chain.follows:
        report.skip([MERGES], "the chain is damaged, so what it merged cannot be found")
        return
    checking = _Checking(dataset, chain, outcomes, find, report, jobs, progress)
    for merge in reversed(asked):  # the newest source is read first, and has most of the others in its chain
        checking.check(merge)


def _path(dataset: DatasetFiles, block: Multihash) -> Path:
    return dataset.folder / "blocks" / str(block)


class _Checking:
    def __init__(
        self,
        dataset: DatasetFiles,
        chain: StoredChain,
        outcomes: Outcomes,
        find: Find,
        report: Report,
        jobs: int,
        progress: Progress,
    ) -> None:
        self._dataset, self._outcomes, self._find, self._report = dataset, outcomes, find, report
        self._blocks = chain.blocks
        self._own = {row.name: row.number for row in chain.blocks.rows()}
        self._graph = BlockGraph(dataset)
        self._sources = MergedSources(dataset, frozenset(self._own), jobs, progress)

    def check(self, merge: RecordedMerge) -> None:
        """Everything that a merge says, as far as what it was made from is here."""
        record, number = merge.record, merge.block.block.sequence_number
        missing = [
            block for block in (record.source, *record.base) if not self._dataset.chain.contains(block)
        ]
        if missing:
            self._skip(
                f"block {number} merged {one_line(record.source_ref, 80)}, and block {missing[0]} of that "
                f"is not here: `odfchain fetch {self._dataset.alias} --merged` brings it"
            )
            return
        self._report.count(MERGES)
        try:
            asked = self._input(merge) if self._is_from_there(merge) else None
            if asked is not None and self._sources_are_sound(merge, asked):
                self._check_outcome(merge, asked)
        except ObjectNotFoundError as error:
            self._skip(f"block {number} cannot be merged again: {error.message}")
        except (SchemaError, IngestError, UsageError) as error:
            self._fault(merge, f"the two sides cannot be merged: {error.message}")
        except MemoryError:
            self._skip("there is not enough memory to merge again")
        except UNREADABLE as error:
            reason = error.message if isinstance(error, OdfchainError) else str(error)
            self._fault(merge, f"it cannot be merged again: {one_line(reason)}")

    def _skip(self, reason: str) -> None:
        self._report.skip([MERGES], reason)

    def _fault(self, merge: RecordedMerge, message: str, file: object = None) -> None:
        path = file or _path(self._dataset, merge.block.hash)
        self._report.fault(MERGES, path, message, merge.block.block.sequence_number)

    # --- what it was made from ---------------------------------------------------------------------------

    def _is_from_there(self, merge: RecordedMerge) -> bool:
        """Whether the target is the block before the transaction."""
        target = self._own.get(merge.record.target)
        number = merge.block.block.sequence_number
        between = range(target + 1 if target is not None else 0, number)
        if target is not None and target < number and all(self._is_before_it(merge, n) for n in between):
            return True
        self._fault(merge, f"the target that it records, {merge.record.target}, is not the block before it")
        return False

    def _is_before_it(self, merge: RecordedMerge, number: int) -> bool:
        """Whether a block may belong to the transaction of the merge."""
        stored = self._blocks.numbered(number)
        assert stored is not None  # noqa: S101 - the chain follows
        block = stored.block
        return not isinstance(block.event, DataEvent) and block.system_time == merge.block.block.system_time

    def _input(self, merge: RecordedMerge) -> MergeInput | None:
        """What the merge is computed from; None where that is not what it records."""
        record = merge.record
        if record.mode is MergeMode.REVERT:
            if problem := self._reverted_wrongly(record):
                self._fault(merge, problem)
                return None
            return MergeInput.between(self._graph, record.base, record.target, record.source)
        asked = MergeInput.of(self._graph, record.target, record.source)
        if asked.bases == record.base:
            return asked
        recorded, found = (", ".join(map(str, blocks)) for blocks in (record.base, asked.bases))
        self._fault(merge, f"the base that it records is {recorded}; that of its two sides is {found}")
        return None

    def _reverted_wrongly(self, record: MergeRecord) -> str | None:
        number = self._own.get(record.base[0]) if len(record.base) == 1 else None
        base = self._blocks.numbered(number) if number is not None else None
        if base is None or base.number > self._own[record.target]:
            return "it reverts what is not one block before it"
        if base.block.prev_block_hash != record.source:
            return "its source is not the block before the one that it reverts"
        return None

    def _sources_are_sound(self, merge: RecordedMerge, asked: MergeInput) -> bool:
        for after, upto in asked.intervals:
            found = self._sources.verify(after, upto)
            if found.faults:
                first, more = found.faults[0], len(found.faults) - 1
                others = f" (and {more:,} more faults)" if more else ""
                message = f"what it merged is not sound, by check {first.check}: {first.message}{others}"
                self._fault(merge, message, first.file)
                return False
            if found.reasons:
                self._skip(f"what was merged could not be verified: {next(iter(found.reasons.values()))}")
                return False
        return True

    # --- what came of it ---------------------------------------------------------------------------------

    def _check_outcome(self, merge: RecordedMerge, asked: MergeInput) -> None:
        again = MergeAgain.of(self._dataset, merge, self._graph, asked)
        number = merge.block.block.sequence_number
        if again.bytes > AUDIT.merged_bytes:
            self._skip(f"merges of more than {AUDIT.merged_bytes:,} bytes of slices are not computed anew")
            return
        state = DatasetState.read(self._dataset.chain, merge.block.hash)
        if again.view.declared is not None and state.schema != again.view.declared:
            self._fault(merge, "the schema after it is not that of its target, with the source's new columns")
        self._check_watermark(merge, self._outcomes.get(number))
        if number in self._outcomes and self._outcomes[number].operations is None:
            return  # what is wrong with the slice is said elsewhere
        found = again.compare()
        event = merge.block.block.event
        slice_ = event.new_data if isinstance(event, AddData) else None
        where = self._dataset.data.locate(slice_.physical_hash) if slice_ is not None else None
        for message in found.faults:
            self._fault(merge, f"not what its two sides merge into: {message}", where)
        self._report.notes += found.notes
        if not found.faults:
            self._check_references(merge, state)

    def _check_references(self, merge: RecordedMerge, state: DatasetState) -> None:
        """What the new rows refer to was there, in the blocks that the record names."""
        before = DatasetState.read(self._dataset.chain, merge.record.target)
        rows = Rows.after(self._dataset, before, state)
        known = {self._dataset.seed.dataset_id, *merge.record.references}
        check = ForeignKeys(self._find, note=self._skip, references=merge.record.references)
        for key in rows.constraints.foreign_keys if rows.new else ():
            if key.dataset not in known and not key.changes:
                self._skip(f"a merge does not say against what its foreign key {key} was checked")
                continue
            broken = check.holds(key, rows)
            if broken is not None and broken.refused:
                self._fault(merge, f"it brought rows that break a foreign key: {broken.message}")

    def _check_watermark(self, merge: RecordedMerge, outcome: SliceOutcome | None) -> None:
        """No later than the target's, or the latest event time of its rows."""
        event = merge.block.block.event
        assert isinstance(event, AddData)  # noqa: S101 - only those have records
        before = DatasetState.read(self._dataset.chain, merge.record.target).watermark
        mark = event.new_watermark
        if mark is None or mark == before:
            return
        if event.new_data is not None and (outcome is None or outcome.operations is None):
            return
        latest = outcome.latest_ms if outcome is not None else None
        if (before is None or mark > before) and (latest is None or mark.epoch_ms > latest):
            self._fault(merge, f"its watermark, {mark}, is later than its target's and than all of its rows")
