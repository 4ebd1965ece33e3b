"""Merging one branch into another: planned as a value, committed as one transaction, or refused as a whole.

    [events that are taken over] [SetDataSchema] AddData [AddData]

The first AddData has the net changes and the merge record; without changes it has the record alone, so that
the next base is later. The second one is there where the state of a polling source has to be in force again,
or the source's watermark is later (RFC-036). Nothing is stored before everything is computed and decided; a
target that moved meanwhile is merged into anew.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from odfchain.branch.appended_rows import appended_batches, appended_rows
from odfchain.branch.block_graph import BlockGraph
from odfchain.branch.computed_merge import ComputedMerge, Sides, compute_merge
from odfchain.branch.conflict_file import read_resolution
from odfchain.branch.diffing import changes_of, rows_changed
from odfchain.branch.foreign_keys import referenced_first, references_of
from odfchain.branch.judged_rows import Rows
from odfchain.branch.merge_bases import MergeInput
from odfchain.branch.merge_notes import notes_on
from odfchain.branch.merge_values import MergeMeans, MergeOutcome, MergePlan, MergeRequest, MergeStatus
from odfchain.branch.other_events import listed, other_events, refuse_changed
from odfchain.branch.recording import stage_changes, write_batches
from odfchain.branch.resolving import UNDECIDED, Decided, Resolution, check_decided, lines_schema
from odfchain.branch.row_diff import net_of
from odfchain.errors import IngestError, UsageError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.model.enums import OperationType
from odfchain.model.events import MetadataEvent, SourceState
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.repo.commit import StagedFile, both, on_the_newest_head
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.merge_record import Granularity, MergeRecord
from odfchain.repo.points import OnBranch, opened_at
from odfchain.slices.rows_in_force import SliceFile
from odfchain.slices.writer import SliceFacts


def merge_all(
    requests: Sequence[MergeRequest], means: MergeMeans, *, dry_run: bool = False, progress: Progress = SILENT
) -> list[MergeOutcome]:
    """Merge into several datasets, those first that others refer to.

    All are computed and decided before one is committed, each by itself.
    """
    with ExitStack() as stack:

        def prepared(request: MergeRequest) -> _Prepared:
            return _prepare(request, means, stack.enter_context(request.target.staging()))

        progress.phase("Merging")
        first = referenced_first([request.target for request in requests])
        ready = [prepared(request) for request in sorted(requests, key=lambda r: first.index(r.target))]
        pending: dict[DatasetId, Rows] = {}
        if len(ready) > 1:
            # each commits by itself, but what they refer to in each other is judged as all will be
            pending.update((merge.request.target.id, merge.rows) for merge in ready)
            means = dataclasses.replace(means, check=dataclasses.replace(means.check, pending=pending))
            means.check.settle_together()
        done = []
        for merge in ready:
            done.append(_finished(merge, prepared, means, dry_run, progress))
            if not dry_run:
                pending.pop(merge.request.target.id, None)
        return done


def _finished(
    first: _Prepared,
    prepared: Callable[[MergeRequest], _Prepared],
    means: MergeMeans,
    dry_run: bool,
    progress: Progress,
) -> MergeOutcome:
    waiting = [first]

    def attempt() -> MergeOutcome:
        merge = waiting.pop() if waiting else prepared(first.request)
        return merge.finish(means, dry_run=dry_run)

    return on_the_newest_head(attempt, means.retries, progress)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A merge that is computed and decided; `sides` is None where nothing has to be recorded for it."""

    request: MergeRequest
    outcome: MergeOutcome
    target: DatasetState
    folder: Path
    sides: Sides | None = None
    facts: SliceFacts | None = None
    decided: Decided | None = None
    events: tuple[MetadataEvent, ...] = ()
    resume: SourceState | None = None
    time: Timestamp | None = None
    """System time of the rows that are written."""

    @property
    def rows(self) -> Rows:
        """The rows of the target as they will be."""
        dataset, target = self.request.target, self.target
        if self.outcome.status is MergeStatus.FAST_FORWARDED:
            there = DatasetState.read(opened_at(dataset, self.outcome.source).chain)
            return Rows.after(dataset, target, there)
        rows = Rows.committed(dataset, target, self.events, ())
        if self.sides is None or self.facts is None:
            return rows
        interval = self.facts.slice_at(target.record_count).offset_interval
        item = SliceFile(Path(self.facts.path), rows.columns.vocabulary, interval)
        return rows.with_slice(item, self.sides.columns.declared)

    def finish(self, means: MergeMeans, *, dry_run: bool) -> MergeOutcome:
        """Commit it, or see what would stop that."""
        if self.outcome.status is MergeStatus.FAST_FORWARDED:
            return self._fast_forward(means, dry_run=dry_run)
        if self.sides is None or self.decided is None:
            return self.outcome
        dataset, asked = self.request.target, self.sides.asked
        references = references_of(means.check.find, dataset, self.target)
        how, conflicts = self.decided.recorded
        record = MergeRecord(
            base=asked.bases,
            source=asked.source,
            source_ref=self.request.source_ref,
            target=asked.target,
            resolution=how,
            granularity=Granularity.ROW if self.request.by_row else Granularity.CELL,
            conflicts=conflicts,
            references=references,
            message=self.request.message,
        )
        time = self.target.next_system_time(self.time)
        recorded = stage_changes(
            dataset, self.target, self.facts, staging=self.folder, system_time=time,
            schema=self.sides.columns.declared, record=record, resume=self.resume,
            source_watermark=self.sides.source.watermark, bound=means.bound(time),
        ).after(*self.events)  # fmt: skip
        check = both(dataclasses.replace(means.check, references=references), means.guard)
        if dry_run:
            check(dataset, self.target, recorded.events, recorded.slices)
            return self.outcome
        *_, head = recorded.commit(dataset, self.target, time, check)
        return dataclasses.replace(self.outcome, head=head, number=dataset.chain.get(head).sequence_number)

    def _fast_forward(self, means: MergeMeans, *, dry_run: bool) -> MergeOutcome:
        dataset, source = self.request.target, self.outcome.source
        there = DatasetState.read(opened_at(dataset, source).chain)
        means.check.settle(self.rows)
        means.guard(dataset, self.target, *_published_after(dataset, self.target, there))
        if not dry_run:
            dataset.set_head(source, expected=self.target.head)
        number = there.head_block.sequence_number
        return dataclasses.replace(self.outcome, head=source, number=number)


def _published_after(
    dataset: DatasetFiles, state: DatasetState, head: DatasetState
) -> tuple[list[MetadataEvent], list[StagedFile]]:
    """What other blocks have recorded after a state, as if it were to be committed."""
    events = [block.event for _, block in head.chain.walk(head.head, tail=state.head)][::-1]
    number = state.head_block.sequence_number
    names = [ref.slice.physical_hash for ref in head.slices() if ref.sequence_number > number]
    return events, [StagedFile(dataset.data.path(name), name) for name in names]


@dataclass(frozen=True, slots=True)
class _Scene:
    """The two heads of a merge, before anything is read of their rows."""

    request: MergeRequest
    graph: BlockGraph
    target: DatasetState
    source: Multihash
    notes: tuple[str, ...]

    @classmethod
    def of(cls, request: MergeRequest) -> _Scene:
        dataset = request.target
        if request.source_ref == dataset.ref:
            raise UsageError(f"{dataset.alias}: {dataset.ref} cannot be merged into itself")
        target = DatasetState.read(dataset.chain)
        newest = opened_at(dataset, OnBranch(request.source_ref))
        source = request.source or DatasetState.read(newest.chain).head
        graph = BlockGraph(dataset, [request.source_ref])
        return cls(request, graph, target, source, notes_on(graph, target, source))

    @property
    def is_merged(self) -> bool:
        return self.graph.is_ancestor(self.source, self.target.head)

    def outcome(self) -> MergeOutcome:
        return MergeOutcome(
            status=MergeStatus.ALREADY_MERGED,
            dataset=str(self.request.target.alias),
            into=self.request.target.ref,
            source_ref=self.request.source_ref,
            source=self.source,
            old_head=self.target.head,
            head=self.target.head,
            number=self.target.head_block.sequence_number,
            operations={},
            conflicts={},
            notes=self.notes,
        )

    def sides(self) -> Sides:
        asked = MergeInput.of(self.graph, self.target.head, self.source)
        return Sides.of(self.graph, self.target.head, self.source, asked)

    def bases(self, sides: Sides) -> list[DatasetState]:
        return [DatasetState.read(self.graph.files_of(base).chain, base) for base in sides.asked.bases]

    def others(self, sides: Sides, bases: Sequence[DatasetState]) -> list[MetadataEvent]:
        after = self.graph.fork(bases[0].head, self.source)
        return other_events(self.target, sides.source, after, bases)


def plan_merge(request: MergeRequest, means: MergeMeans) -> MergePlan:
    """What a merge would do; nothing is changed. Errors as `merge_all`, but for conflicts, which are told."""
    scene = _Scene.of(request)
    sides = scene.sides()
    bases = scene.bases(sides)
    notes = scene.notes
    changes, lines = _no_changes(sides), lines_schema(sides.key).empty_table()
    others: list[MetadataEvent] = []
    if not scene.is_merged:
        means.verified(request.target, scene.source)
        others = scene.others(sides, bases)
        with request.target.staging() as folder:
            changes, lines = _changes(request, sides, means, folder)
    return MergePlan(
        dataset=str(request.target.alias),
        into=request.target.ref,
        target=scene.target.head,
        source_ref=request.source_ref,
        source=scene.source,
        bases=sides.asked.bases,
        key=sides.key,
        by_row=request.by_row,
        changes=changes,
        conflicts=lines,
        events=tuple(others),
        notes=notes,
        is_merged=scene.is_merged,
    )


def _prepare(request: MergeRequest, means: MergeMeans, folder: Path) -> _Prepared:
    scene = _Scene.of(request)
    target, outcome = scene.target, scene.outcome()
    if scene.is_merged:
        return _Prepared(request, outcome, target, folder)
    means.verified(request.target, scene.source)
    if request.fast_forward:
        return _fast_forwarded(scene, folder)
    sides = scene.sides()
    bases = scene.bases(sides)
    others, left_out = scene.others(sides, bases), list[str]()
    if request.with_metadata:
        refuse_changed(others, target, bases)
    elif others:
        left_out.append(
            f"{request.source_ref} says more than data, which is left out: {listed(others)} (--with-metadata)"
        )
    time = target.next_system_time()
    facts, decided = _computed(request, sides, means, target, time, folder)
    written = facts.ops if facts is not None else {}
    outcome = dataclasses.replace(
        outcome,
        status=MergeStatus.MERGED,
        operations={OperationType.from_code(int(code)).value: count for code, count in written.items()},
        conflicts=decided.taken,
        notes=(*outcome.notes, *left_out, *decided.notes),
    )
    return _Prepared(
        request, outcome, target, folder, sides, facts, decided,
        tuple(others) if request.with_metadata else (), _resumed(target, sides.source, bases), time,
    )  # fmt: skip


def _resumed(target: DatasetState, source: DatasetState, bases: Sequence[DatasetState]) -> SourceState | None:
    """The state of a source that is in force afterwards: the other side's, where ours stood still."""
    ours, theirs = target.source_state, source.source_state
    stood_still = ours in [base.source_state for base in bases]
    return theirs if stood_still and theirs is not None else ours


def _computed(
    request: MergeRequest,
    sides: Sides,
    means: MergeMeans,
    target: DatasetState,
    time: Timestamp,
    folder: Path,
) -> tuple[SliceFacts | None, Decided]:
    """The slice of a merge, and how its conflicts were decided."""
    schema = sides.columns.declared
    if not sides.key:
        batches = appended_batches(sides.asked, sides.intervals(means.trusted), sides.columns)
        facts = write_batches(target, batches, schema, time, folder)
        return facts, check_decided(lines_schema(()).empty_table(), UNDECIDED, ())
    resolution = read_resolution(request.resolve, sides.columns.data, sides.key)
    merged = _merged(request, sides, means, folder, resolution)
    decided = check_decided(merged.notes.lines, resolution, sides.key)
    return write_batches(target, merged.computed.batches(), schema, time, folder), decided


def _merged(
    request: MergeRequest, sides: Sides, means: MergeMeans, folder: Path, resolution: Resolution
) -> ComputedMerge:
    return compute_merge(
        sides, trusted=means.trusted, engine=means.engine, folder=folder, resolution=resolution,
        by_row=request.by_row,
    )  # fmt: skip


def _changes(
    request: MergeRequest, sides: Sides, means: MergeMeans, folder: Path
) -> tuple[pa.Table, pa.Table]:
    """What a plan shows: changed rows, and lines in conflict."""
    if not sides.key:
        rows = appended_rows(sides.asked, sides.intervals(means.trusted), sides.columns)
        gained = np.ones(rows.num_rows, dtype=bool)
        return rows_changed(rows.select(range(1, rows.num_columns)), gained), lines_schema(()).empty_table()
    merged = _merged(request, sides, means, folder, UNDECIDED)
    rows = merged.computed.rows()
    data = rows.select(range(1, rows.num_columns))
    return changes_of(net_of(rows.column(0).to_numpy(), data, sides.key)), merged.notes.lines


def _no_changes(sides: Sides) -> pa.Table:
    nothing = sides.columns.data.empty_table()
    return (
        changes_of(net_of(np.zeros(0, np.uint64), nothing, sides.key))
        if sides.key
        else rows_changed(nothing, np.zeros(0, bool))
    )


def _fast_forwarded(scene: _Scene, folder: Path) -> _Prepared:
    request, target, graph = scene.request, scene.target, scene.graph
    ref, into = request.source_ref, request.target.ref
    fork = graph.fork(target.head, scene.source)
    if fork != target.head:
        raise IngestError(
            f"{into} has blocks since block {graph.number(fork):,} that {ref} lacks, so it cannot be moved "
            "forward to it",
            hint="merge without --ff",
        )
    source = DatasetState.read(graph.files_of(scene.source).chain, scene.source)
    others = other_events(target, source, target.head, [target])
    if others and not request.with_metadata:
        raise IngestError(
            f"{ref} says more than data: {listed(others)}",
            hint="if that is to be in force, run again with --with-metadata; or merge without --ff",
        )
    outcome = dataclasses.replace(scene.outcome(), status=MergeStatus.FAST_FORWARDED)
    return _Prepared(request, outcome, target, folder)
