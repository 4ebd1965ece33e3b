"""Merging one branch into another: planned as a value, committed as one transaction, or refused as a whole.

    [events that are taken over] [SetDataSchema] AddData [AddData]

The first AddData has the net changes and the merge record; without changes it has the record alone, so that
the next base is later. The second one is there where the state of a polling source has to be in force again,
or the source's watermark is later (RFC-036). Nothing is stored before everything is computed and decided; a
target that moved meanwhile is merged into anew.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pyarrow as pa

from odfchain.branches.branches import BlockGraph
from odfchain.branches.conflict_file import (
    UNDECIDED,
    Decided,
    Resolution,
    check_decided,
    lines_schema,
    read_resolution,
    resolve,
)
from odfchain.branches.diff import Trust, changes_of, common_key, intervals_of, rows_changed
from odfchain.branches.foreign_keys import ForeignKeys, Rows, references_of
from odfchain.branches.intervals import (
    Computed,
    Engine,
    Interval,
    KeyResult,
    MergedColumns,
    compute,
    interval_batches,
)
from odfchain.branches.recording import described, stage_changes, write_batches
from odfchain.branches.row_diff import MergedState, MergedTables, MergeInput, net_of, rows_of_changes
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import MERGE
from odfchain.errors import IngestError, UsageError
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind, OperationType
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.row_hash import PAIR, Numbers, hash_rows, numbered
from odfchain.odf.sources import MergeStrategySnapshot
from odfchain.odf.times import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.slices.state import SliceFile, last_of_each, takes_back
from odfchain.slices.writer import SliceFacts
from odfchain.text import counted, one_line
from odfchain.workspace.commit import CommitCheck, Proposed, StagedFile, both, on_the_newest_head
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.merge_record import (
    Granularity,
    MergeMode,
    MergeRecord,
    is_merge_state,
    understood_record,
)
from odfchain.workspace.options import MergeOptions
from odfchain.workspace.points import OnBranch, opened_at

# Requests, plans and results of merges.


class MergeStatus(Enum):
    """Status of a merge."""

    MERGED = "merged"
    FAST_FORWARDED = "fast-forwarded"
    ALREADY_MERGED = "already merged"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRequest:
    """A requested merge."""

    target: DatasetFiles
    """The dataset on the reference that is merged into."""
    source_ref: str
    source: Multihash | None = None
    """A block of that reference; default is the newest one."""
    options: MergeOptions

    def plan(self, means: MergeMeans) -> MergePlan:
        """Dry run of the merge; conflicts are part of the result, not an error."""
        return _Merge(self).plan(means)


@dataclass(frozen=True, slots=True)
class MergeMeans:
    """Dependencies of merges, given by the caller."""

    engine: Engine
    trusted: Trust
    verified: Callable[[DatasetFiles, Multihash], None]
    """Raises where a fetched block is not to be relied on."""
    check: ForeignKeys
    """Of the workspace; each merge is checked against its own references."""
    guard: CommitCheck
    """An additional check of the rows."""
    bound: Callable[[Timestamp], Timestamp | None]
    """The latest event time that is believed at a system time."""
    retries: int | None = None

    def merge(
        self, requests: Sequence[MergeRequest], *, dry_run: bool = False, progress: Progress = SILENT
    ) -> list[MergeOutcome]:
        """Merge into several datasets, those first that others refer to."""
        means = self
        # all are computed and decided before the first is committed, so a conflict in one stops all
        with ExitStack() as stack:

            def prepared(request: MergeRequest) -> _Merge:
                merge = _Merge(request)
                merge.prepare(means, stack.enter_context(request.target.staging()))
                return merge

            def finished(first: _Merge) -> MergeOutcome:
                waiting = [first]

                def attempt() -> MergeOutcome:
                    merge = waiting.pop() if waiting else prepared(first.request)
                    return merge.finish(means, dry_run=dry_run)

                return on_the_newest_head(attempt, means.retries, progress)

            progress.phase("Merging")
            first = _referenced_first([request.target for request in requests])
            ready = [prepared(request) for request in sorted(requests, key=lambda r: first.index(r.target))]
            pending: dict[DatasetId, Rows] = {}
            if len(ready) > 1:
                # each commits by itself, but what they refer to in each other is judged as all will be
                pending.update((merge.request.target.id, merge.rows) for merge in ready)
                means = dataclasses.replace(means, check=dataclasses.replace(means.check, pending=pending))
                means.check.settle_together()
            done = []
            for merge in ready:
                done.append(finished(merge))
                if not dry_run:
                    pending.pop(merge.request.target.id, None)
            return done


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeOutcome:
    """Result of a merge; `head` is the old one where nothing was recorded."""

    status: MergeStatus
    dataset: str
    into: str
    source_ref: str
    source: Multihash
    old_head: Multihash
    head: Multihash
    number: int
    """The sequence number of `head`."""
    operations: Mapping[str, int]
    """Rows written for each operation (`+A`, `-R`, `-C`, `+C`)."""
    conflicts: Mapping[str, int]
    """Conflicts by what was taken (`ours`, `theirs`, `base`, `delete`, `value`)."""
    notes: tuple[str, ...] = ()

    def described(self, *, dry_run: bool = False, named: bool = False) -> str:
        """The result in a sentence; `named` includes the dataset's name."""
        from_where, into = f"{self.source_ref} ({str(self.source)[:7]}…)", self.into
        about = f"{self.dataset}: " if named else ""
        if self.status is MergeStatus.ALREADY_MERGED:
            return f"{about}{into} has merged {from_where} already"
        if self.status is MergeStatus.FAST_FORWARDED:
            moved = "would move" if dry_run else "moved"
            return f"{about}{moved} {into} forward to {from_where}: it is block {self.number:,}"
        taken = ", ".join(f"{count:,} {take}" for take, count in sorted(self.conflicts.items()))
        said = f"{counted(sum(self.conflicts.values()), 'conflict')} ({taken})" if taken else "no conflicts"
        brought = f"{from_where} into {into}: {described(self.operations)}, {said}"
        if dry_run:
            return f"{about}would merge {brought}"
        return f"{about}merged {brought}; {into} is block {self.number:,}"

    def __repr__(self) -> str:
        return f"<{self.described(named=True)}>"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MergePlan:
    """Result of a dry run of a merge, for the two heads as they were."""

    dataset: str
    into: str
    """The reference that is merged into."""
    target: Multihash
    """Its head."""
    source_ref: str
    source: Multihash
    bases: tuple[Multihash, ...]
    """The best common ancestors, in order of sequence number and hash."""
    key: tuple[str, ...]
    by_row: bool
    changes: pa.Table
    """Changes of our rows, as `Diff.changes`, without those in conflict."""
    conflicts: pa.Table
    """A line for each conflict (`odfchain.branches.conflict_file.lines_schema`)."""
    events: tuple[ev.MetadataEvent, ...]
    """Metadata events of the source, which are merged only on request."""
    notes: tuple[str, ...]
    is_merged: bool
    """True if there is nothing to do."""


# The computation of a merge: a pure function over the rows of the intervals, the same for merging and for
# verifying a recorded merge, run by either executor (RFC-036).


@dataclass(frozen=True, slots=True)
class Sides:
    """Two heads of a dataset that are merged, and in which columns and by which key."""

    graph: BlockGraph
    asked: MergeInput
    target: DatasetState
    source: DatasetState
    key: tuple[str, ...]
    """Nothing where rows have no primary key: then what the source added is appended."""
    columns: MergedColumns

    @classmethod
    def of(cls, graph: BlockGraph, asked: MergeInput) -> Sides:
        """Both sides of a merge, before rows are read.

        Raises:
            UsageError: the dataset is a derivative, whose data are computed.
        """
        ours, theirs = (_state_at(graph, block) for block in (asked.target, asked.source))
        if ours.seed.dataset_kind is not DatasetKind.ROOT:
            raise UsageError(
                "a derivative dataset is computed, never merged",
                hint="publish a branch of it with --ff, or delete the branch and pull",
            )
        return cls(graph, asked, ours, theirs, common_key([ours, theirs]), MergedColumns.of(ours, theirs))

    def intervals(self, trusted: Trust) -> list[Interval]:
        """The intervals to be read."""
        return intervals_of(self.graph, self.asked.intervals, trusted)

    def decided(
        self, resolve: str | Path | None, means: MergeMeans, folder: Path, time: Timestamp, *, by_row: bool
    ) -> tuple[Decided, SliceFacts | None]:
        """The decisions on all conflicts, and the rows that come next as a slice in a folder, if any do."""
        resolution = read_resolution(resolve, self.columns.data, self.key) if self.key else UNDECIDED
        computed, lines = compute_merge(self, resolution, means, folder, by_row=by_row)
        decided = check_decided(lines, resolution, self.key)
        return decided, write_batches(self.target, computed.batches(), self.columns.declared, time, folder)

    # Without a primary key the source's new rows are appended in order; there are no conflicts. Of equal rows
    # only so many are appended as the source has more than the base (RFC-036).

    def appended(self, intervals: Sequence[Interval]) -> Computed:
        """The rows that a merge appends: operation and data columns."""
        operation = pa.field(self.columns.names.operation_type_column, pa.int32())
        schema = pa.schema([operation, *self.columns.data])
        return Computed(schema, (), functools.partial(self._appended, intervals))

    def _appended(self, intervals: Sequence[Interval]) -> Iterator[pa.RecordBatch]:
        asked, columns = self.asked, self.columns
        _, place = asked.ways[asked.base.block, asked.source]
        if place is None:
            return
        _refuse_doubling(asked, intervals)
        taken = None
        # where the source's chain goes on from the base, all it added since is new
        if asked.base.more or asked.ways[asked.base.block, asked.source][0] is not None:
            taken = taken_rows(asked, [_hashed(interval, columns) for interval in intervals])
        start = 0
        for batch in interval_batches(intervals[place], columns):
            if takes_back(batch.column(1).to_numpy()).any():
                raise IngestError(
                    "the source takes rows back, and without a primary key nothing says which of ours they "
                    "are",
                    hint="declare a primary key, or record on the target what is to be taken back",
                )
            rows = batch if taken is None else batch.filter(pa.array(taken[start : start + batch.num_rows]))
            start += batch.num_rows
            added = pa.array(np.full(rows.num_rows, OperationType.APPEND.code, dtype=np.int32))
            yield pa.RecordBatch.from_arrays(
                [added, *rows.columns[2:]], [columns.names.operation_type_column, *rows.schema.names[2:]]
            )


def _state_at(graph: BlockGraph, block: Multihash) -> DatasetState:
    return DatasetState.read(graph.files_of(block).chain, block)


def compute_merge(
    sides: Sides, resolution: Resolution, means: MergeMeans, folder: Path, *, by_row: bool = False
) -> tuple[Computed, pa.Table]:
    """(the rows of a merge of two sides, its conflicts by `lines_schema`)."""
    nothing, intervals = lines_schema(sides.key).empty_table(), sides.intervals(means.trusted)
    if not sides.key:
        return sides.appended(intervals), nothing
    work = functools.partial(
        _merge_part,
        asked=sides.asked,
        key=sides.key,
        names=sides.columns.names,
        resolution=resolution,
        by_row=by_row,
    )
    computed = compute(intervals, sides.columns, sides.key, work, engine=means.engine, private=lambda: folder)
    return computed, pa.concat_tables([nothing, *computed.notes])


def _merge_part(
    tables: Sequence[pa.Table],
    *,
    asked: MergeInput,
    key: tuple[str, ...],
    names: ev.DatasetVocabulary,
    resolution: Resolution,
    by_row: bool,
) -> KeyResult:
    # the rows to be written for some keys, and the conflicts
    three_way = MergedTables(tables, asked, key, names.event_time_column).merged(by_row=by_row)
    resolved = resolve(three_way, resolution)
    return KeyResult(rows_of_changes(resolved.changes, names), resolved.lines)


# Warnings: changes that were reverted before, and corrections that the next poll will undo.


def _reverted(graph: BlockGraph, target: DatasetState, source: Multihash) -> Iterator[str]:
    # newest first
    # what the source has and the target merged came after their fork
    oldest = graph.number(graph.fork(target.head, source))
    reverted: dict[Multihash, int] = {}
    for block in target.chain.nearest_all(MERGE, head=target.head):
        number = block.block.sequence_number
        if number <= oldest:
            return
        if (record := understood_record(block.block.event)) is None:
            continue
        if record.mode is MergeMode.REVERT:
            reverted[record.base[0]] = number
            continue
        merged = block.hash in reverted and target.chain.contains(record.source)
        if merged and graph.is_ancestor(record.source, source):
            yield (
                f"block {number:,}, which merged {one_line(record.source_ref)}, was reverted by block "
                f"{reverted[block.hash]:,}: its changes do not come again, unless that block is reverted"
            )


def _polled(target: DatasetState) -> Iterator[str]:
    source = target.polling_source
    if source is not None and isinstance(source.merge, MergeStrategySnapshot) and _polls_itself(target):
        yield (
            f"{target.chain.ref} polls a Snapshot itself: its next pull takes back what is not like that "
            "upstream; poll on a branch, and merge that one"
        )


def _polls_itself(target: DatasetState) -> bool:
    # true if the state came by a poll on this branch, not with the merge of a branch that polls
    if (state := target.source_state) is None:
        return False
    first: HashedBlock | None = None
    for block in target.chain.nearest_all("AddData", head=target.head):
        event = block.block.event
        given = event.new_source_state if isinstance(event, ev.AddData) else None
        if is_merge_state(given):
            continue
        if given != state:
            break
        first = block
    before = first.block.prev_block_hash if first is not None else None
    return before is None or understood_record(target.chain.get(before).event) is None


# Metadata events of the source are listed, and merged only on request and where the target has not changed
# the same thing: an untrusted branch could carry a command that runs (RFC-036).

_SINGLE = (ev.SetInfo, ev.SetLicense, ev.SetAttachments, ev.SetVocab, ev.SetTransform)
_POLLING = (ev.SetPollingSource, ev.DisablePollingSource)
_PUSH = (ev.AddPushSource, ev.DisablePushSource)
_KINDS = tuple(kind.KIND for kind in (*_SINGLE, *_POLLING, *_PUSH))

_Subject = tuple[str, str]
"""Subject of an event: of two events about one subject, the later one counts."""


def other_events(
    target: DatasetState, source: DatasetState, after: Multihash, bases: Sequence[DatasetState]
) -> list[ev.MetadataEvent]:
    """Metadata events of the source after a block that neither a base nor the target has, oldest first."""
    # of several events about one subject the last one counts
    found: dict[_Subject, ev.MetadataEvent] = {}
    oldest = source.chain.get(after).sequence_number
    for block in source.chain.nearest_all(*_KINDS, head=source.head):
        if block.block.sequence_number <= oldest:
            break
        found.setdefault(_subject(block.block.event), block.block.event)
    return [
        event
        for subject, event in reversed(found.items())
        if _in_force(source, subject) not in [_in_force(state, subject) for state in (target, *bases)]
    ]


def refuse_changed(
    events: Sequence[ev.MetadataEvent], target: DatasetState, bases: Sequence[DatasetState]
) -> None:
    """Refuse events about subjects that the target has changed."""
    changed = [
        event
        for event in events
        for subject in [_subject(event)]
        if _in_force(target, subject) not in [_in_force(state, subject) for state in bases]
    ]
    if changed:
        raise IngestError(
            f"both sides changed what these events say: {listed(changed)}",
            hint="record on the target what is to be in force, then merge without --with-metadata",
        )


def listed(events: Sequence[ev.MetadataEvent]) -> str:
    """Events for people, each by its kind and what it is about."""
    return ", ".join(
        f"{event.KIND} {one_line(event.source_name)!r}"
        if isinstance(event, ev.AddPushSource | ev.DisablePushSource)
        else event.KIND
        for event in events
    )


def _subject(event: ev.MetadataEvent) -> _Subject:
    match event:
        case ev.AddPushSource() | ev.DisablePushSource():
            return "push source", event.source_name
        case ev.SetPollingSource() | ev.DisablePollingSource():
            return "polling source", ""
    return event.KIND, ""


def _in_force(state: DatasetState, subject: _Subject) -> ev.MetadataEvent | None:
    kind, name = subject
    if kind == "push source":
        return state.push_sources.get(name)
    if kind == "polling source":
        return state.polling_source
    latest = state.chain.nearest(kind, head=state.head)
    return latest.block.event if latest is not None else None


def _refuse_doubling(asked: MergeInput, intervals: Sequence[Interval]) -> None:
    sides = [asked.ways[asked.base.block, block][1] for block in (asked.target, asked.source)]
    taken_in = [_sources(intervals[place]) if place is not None else set() for place in sides]
    if both := sorted(set.intersection(*taken_in)):
        raise IngestError(
            f"both sides took in rows of the source {one_line(both[0])!r}: merged, they would be there twice",
            hint="take a source in on one branch only, and merge that one into the others",
        )


def _sources(interval: Interval) -> set[str]:
    before = DatasetState.read(interval.dataset.chain, interval.after).source_state
    found = set()
    for _, block in interval.blocks():
        event = block.event
        if isinstance(event, ev.AddData) and not is_merge_state(event.new_source_state):
            state = event.new_source_state
            if event.new_data is not None and state is not None and state != before:
                found.add(state.source_name)
            before = state
    return found


def taken_rows(asked: MergeInput, rows: Sequence[tuple[Numbers, Numbers]]) -> Numbers:
    """A mask of the rows of the source's interval that are not in the base.

    `rows` are the hashes of each interval's rows, and whether a row is added (1) or taken back (-1).
    """
    _, place = asked.ways[asked.base.block, asked.source]
    hashes, signs = zip(*rows, strict=True)
    code = numbered(np.concatenate(hashes))
    kinds = int(code.max()) + 1 if len(code) else 0
    codes = np.split(code, np.cumsum([len(part) for part in hashes])[:-1])
    nets = [
        np.bincount(part, weights=sign, minlength=kinds).astype(np.int64)
        for part, sign in zip(codes, signs, strict=True)
    ]
    nothing = np.zeros(kinds, dtype=np.int64)

    def way(one: Multihash, other: Multihash) -> Numbers:
        back, on = (nothing if p is None else nets[p] for p in asked.ways[one, other])
        found: Numbers = on - back
        return found

    def state(base: MergedState) -> Numbers:
        # how many of each row a base has more than its first block
        more = nothing
        for block, inner in base.more:
            more = more + np.maximum(way(inner.block, block) - state(inner), 0)
        return more

    wanted = np.maximum(way(asked.base.block, asked.source) - state(asked.base), 0)
    mine = codes[place] if place is not None else np.zeros(0, dtype=np.int64)
    # of equal rows the last ones: those before came from what is merged already
    return last_of_each(mine, wanted)


def _hashed(interval: Interval, columns: MergedColumns) -> tuple[Numbers, Numbers]:
    # the sign is 1 for an added row and -1 for one that is taken back
    found, signs = [np.zeros(0, PAIR)], [np.zeros(0, dtype=np.int64)]
    for batch in interval_batches(interval, columns):
        found.append(hash_rows(batch, set(batch.schema.names[:2])))
        signs.append(np.where(takes_back(batch.column(1).to_numpy()), -1, 1))
    return np.concatenate(found), np.concatenate(signs)


def _referenced_first(datasets: Sequence[DatasetFiles]) -> list[DatasetFiles]:
    # those that others refer to come first; otherwise the order stays
    refers = {}
    for dataset in datasets:
        constraints = DatasetState.read(dataset.chain).constraints
        refers[dataset.id] = {key.dataset for key in constraints.foreign_keys} - {dataset.id}
    waiting, ordered = list(datasets), list[DatasetFiles]()
    while waiting:
        names = {dataset.id for dataset in waiting}
        ready = [dataset for dataset in waiting if not refers[dataset.id] & names] or waiting
        ordered += ready
        waiting = [dataset for dataset in waiting if dataset not in ready]
    return ordered


class _Merge:
    """A merge of two heads; nothing is read of their rows before it is planned or prepared."""

    def __init__(self, request: MergeRequest) -> None:
        dataset = request.target
        if request.source_ref == dataset.ref:
            raise UsageError(f"{dataset.alias}: {dataset.ref} cannot be merged into itself")
        self.request = request
        self._target = target = DatasetState.read(dataset.chain)
        newest = opened_at(dataset, OnBranch(request.source_ref))
        self._source = request.source or DatasetState.read(newest.chain).head
        self._graph = BlockGraph(dataset, [request.source_ref])
        self._is_merged = self._graph.is_ancestor(self._source, target.head)
        self._outcome = MergeOutcome(
            status=MergeStatus.ALREADY_MERGED,
            dataset=str(dataset.alias),
            into=dataset.ref,
            source_ref=request.source_ref,
            source=self._source,
            old_head=target.head,
            head=target.head,
            number=target.head_block.sequence_number,
            operations={},
            conflicts={},
            notes=(*_reverted(self._graph, target, self._source), *_polled(target)),
        )
        self._folder: Path | None = None
        self._facts: SliceFacts | None = None
        self._decided: Decided | None = None
        """None where nothing has to be recorded."""
        self._events: tuple[ev.MetadataEvent, ...] = ()
        self._time: Timestamp | None = None
        """System time of the rows that are written."""

    @functools.cached_property
    def _sides(self) -> Sides:
        return Sides.of(self._graph, MergeInput.of(self._graph, self._target.head, self._source))

    @functools.cached_property
    def _bases(self) -> list[DatasetState]:
        return [_state_at(self._graph, base) for base in self._sides.asked.bases]

    def _others(self) -> list[ev.MetadataEvent]:
        after = self._graph.fork(self._bases[0].head, self._source)
        return other_events(self._target, self._sides.source, after, self._bases)

    def plan(self, means: MergeMeans) -> MergePlan:
        request, sides, others = self.request, self._sides, list[ev.MetadataEvent]()
        rows, lines = sides.appended([]).schema.empty_table(), lines_schema(sides.key).empty_table()
        if not self._is_merged:
            means.verified(request.target, self._source)
            others = self._others()
            with request.target.staging() as folder:
                by_row = request.options.by_row
                computed, lines = compute_merge(sides, UNDECIDED, means, folder, by_row=by_row)
                rows = computed.rows()
        data = rows.select(range(1, rows.num_columns))
        if sides.key:
            changes = changes_of(net_of(rows.column(0).to_numpy(), data, sides.key))
        else:
            changes = rows_changed(data, np.ones(rows.num_rows, dtype=bool))
        return MergePlan(
            dataset=str(request.target.alias),
            into=request.target.ref,
            target=self._target.head,
            source_ref=request.source_ref,
            source=self._source,
            bases=sides.asked.bases,
            key=sides.key,
            by_row=request.options.by_row,
            changes=changes,
            conflicts=lines,
            events=tuple(others),
            notes=self._outcome.notes,
            is_merged=self._is_merged,
        )

    def prepare(self, means: MergeMeans, folder: Path) -> None:
        request, target = self.request, self._target
        if self._is_merged:
            return
        means.verified(request.target, self._source)
        if request.options.fast_forward:
            self._check_fast_forward()
            self._outcome = dataclasses.replace(self._outcome, status=MergeStatus.FAST_FORWARDED)
            return
        others, left_out = self._others(), list[str]()
        if request.options.with_metadata:
            refuse_changed(others, target, self._bases)
            self._events = tuple(others)
        elif others:
            said = f"{request.source_ref} says more than data, which is left out"
            left_out.append(f"{said}: {listed(others)} (--with-metadata)")
        self._folder, self._time = folder, target.next_system_time()
        decided, self._facts = self._sides.decided(
            request.options.resolve, means, folder, self._time, by_row=request.options.by_row
        )
        self._decided = decided
        written = self._facts.ops if self._facts is not None else {}
        self._outcome = dataclasses.replace(
            self._outcome,
            status=MergeStatus.MERGED,
            operations={OperationType.from_code(int(code)).value: count for code, count in written.items()},
            conflicts=decided.taken,
            notes=(*self._outcome.notes, *left_out, *decided.notes),
        )

    def _check_fast_forward(self) -> None:
        request, target, graph = self.request, self._target, self._graph
        ref, into = request.source_ref, request.target.ref
        fork = graph.fork(target.head, self._source)
        if fork != target.head:
            raise IngestError(
                f"{into} has blocks since block {graph.number(fork):,} that {ref} lacks, so it cannot be "
                "moved forward to it",
                hint="merge without --ff",
            )
        others = other_events(target, _state_at(graph, self._source), target.head, [target])
        if others and not request.options.with_metadata:
            raise IngestError(
                f"{ref} says more than data: {listed(others)}",
                hint="if that is to be in force, run again with --with-metadata; or merge without --ff",
            )

    @property
    def rows(self) -> Rows:
        dataset, target = self.request.target, self._target
        if self._outcome.status is MergeStatus.FAST_FORWARDED:
            return Rows.after(dataset, target, DatasetState.read(opened_at(dataset, self._source).chain))
        rows = Rows.committed(Proposed(dataset, target, self._events))
        if self._facts is None:
            return rows
        interval = self._facts.slice_at(target.record_count).offset_interval
        item = SliceFile(Path(self._facts.path), rows.columns.vocabulary, interval)
        return rows.with_slice(item, self._sides.columns.declared)

    def finish(self, means: MergeMeans, *, dry_run: bool) -> MergeOutcome:
        if self._outcome.status is MergeStatus.FAST_FORWARDED:
            return self._fast_forward(means, dry_run=dry_run)
        if self._decided is None or self._folder is None:
            return self._outcome
        dataset, sides = self.request.target, self._sides
        # the other side's source state wins where ours has not changed since the base
        ours, theirs = self._target.source_state, sides.source.source_state
        is_theirs = theirs is not None and ours in [base.source_state for base in self._bases]
        references = references_of(means.check.find, dataset, self._target)
        how, conflicts = self._decided.recorded
        record = MergeRecord(
            base=sides.asked.bases,
            source=self._source,
            source_ref=self.request.source_ref,
            target=self._target.head,
            resolution=how,
            granularity=Granularity.ROW if self.request.options.by_row else Granularity.CELL,
            conflicts=conflicts,
            references=references,
            message=self.request.options.message,
        )
        time = self._target.next_system_time(self._time)
        recorded = stage_changes(
            dataset, self._target, self._facts, staging=self._folder, system_time=time,
            schema=sides.columns.declared, record=record, resume=theirs if is_theirs else ours,
            source_watermark=sides.source.watermark, bound=means.bound(time),
        ).after(*self._events)  # fmt: skip
        check = both(dataclasses.replace(means.check, references=references), means.guard)
        if dry_run:
            check(Proposed(dataset, self._target, recorded.events, recorded.slices))
            return self._outcome
        done = recorded.commit(dataset, self._target, time, check)
        return dataclasses.replace(self._outcome, head=done.head, number=done.number)

    def _fast_forward(self, means: MergeMeans, *, dry_run: bool) -> MergeOutcome:
        dataset, target, source = self.request.target, self._target, self._source
        there = DatasetState.read(opened_at(dataset, source).chain)
        means.check.settle(self.rows)
        # other blocks' events and files, as if they were to be committed now
        events = [block.event for _, block in there.chain.walk(there.head, tail=target.head)][::-1]
        known = target.head_block.sequence_number
        names = [ref.slice.physical_hash for ref in there.slices() if ref.sequence_number > known]
        staged = [StagedFile(dataset.data.path(name), name) for name in names]
        means.guard(Proposed(dataset, target, events, staged))
        if not dry_run:
            dataset.set_head(source, expected=target.head)
        number = there.head_block.sequence_number
        return dataclasses.replace(self._outcome, head=source, number=number)
