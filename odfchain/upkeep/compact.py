"""Hard compaction: the history of a dataset is written anew with fewer, larger slices.

    1. neighbouring transactions become one (`batches`); merged slices are written in staging
    2. slices, then blocks get their names; nothing refers to them yet
    3. the old head is kept by `refs/overwritten-…`
    4. one compare-and-swap moves the head

Killed before 4 the dataset is as it was, and has some files that nothing refers to. Blocks before the first
merged one stay as they are; the blocks after it get new hashes, and keep the system times of the blocks they
replace: when something was recorded does not change because it is stored in another way. The hashes do, so
readers of the old blocks have to start over: `CompactPlan` names them. Blocks that branches forked
from, or were merged with, are not replaced: their merges could not be computed again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from odfchain import errors
from odfchain.chain.chain import EncodedBlock, HashedBlock, link_blocks
from odfchain.chain.index import DATA_EVENTS, ReplayHistory
from odfchain.chain.rules import check_append
from odfchain.lazy import pa
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import DatasetKey, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.schema import ExtraAttributes
from odfchain.odf.times import Timestamp
from odfchain.odf.yaml import dump_yaml
from odfchain.progress import SILENT, Progress
from odfchain.slices.reader import first_gap, hash_parquet, open_parquet
from odfchain.storage import fsio
from odfchain.storage.local import HEAD
from odfchain.text import one_line
from odfchain.transfer.signed_statements import Seen
from odfchain.upkeep import garbage
from odfchain.upkeep.reset import Dependent, Remote, Rewriting
from odfchain.workspace.commit import StagedFile, keep_staged
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.declared_constraints import ConstraintsFile
from odfchain.workspace.merge_record import is_merge_state, understood_record
from odfchain.workspace.points import branch_names, keep_reachable
from odfchain.workspace.read_slices import KeptFooters

# Batches of neighbouring transactions of a root dataset, as a pure function over its events.
# AddData events are merged if nothing else is between them, as long as records and bytes stay below the
# limits. The result has the dataset's state after the last of them:
#
# - the watermark and the checkpoint are those of the last one;
# - a watermark set by hand, which only a block without data may carry ahead of the data, stays apart from
#   data;
# - a merge stays as it is, because computing it again compares its slice (RFC-036); blocks that only
#   carry its record on are like any other;
# - a batch has one source: where the next event continues another source, or none, a new batch begins.
#
# Source: specification "AddData" (`newSourceState`), "Watermark".


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How large a merged slice may become."""

    bytes: int = 300_000_000
    """Sum of the sizes of what is merged [bytes]."""
    records: int = 10_000
    """Records [count]; the reference implementation's default."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Blocks that become one: neighbouring AddData, or a single block of any kind."""

    blocks: tuple[ev.MetadataBlock, ...]

    @property
    def merges(self) -> bool:
        """True if it is more than one block."""
        return len(self.blocks) > 1

    @property
    def slices(self) -> list[ev.DataSlice]:
        """The slices, oldest first."""
        return [e.new_data for e in self._events if e.new_data is not None]

    @property
    def _events(self) -> list[ev.AddData]:
        return [b.event for b in self.blocks if isinstance(b.event, ev.AddData)]

    def event(self, data: ev.DataSlice | None, previous: ev.AddData | None) -> ev.AddData:
        """The event that says what those of the batch said; `previous` is the AddData before it."""
        events = self._events
        states = [e.new_source_state for e in events if e.new_source_state is not None]
        checkpoint = previous.new_checkpoint if previous is not None else None
        return ev.AddData(
            prev_checkpoint=checkpoint.physical_hash if checkpoint is not None else None,
            prev_offset=events[0].prev_offset,
            new_data=data,
            new_checkpoint=events[-1].new_checkpoint,
            new_watermark=events[-1].new_watermark,
            new_source_state=states[-1] if states else None,
            extra=events[0].extra,
        )


def batches(blocks: Iterable[ev.MetadataBlock], limits: BatchLimits) -> Iterator[Batch]:
    """All blocks in their order, neighbours that may become one together."""
    waiting: list[ev.MetadataBlock] = []
    joined = _BatchDraft()
    watermark: Timestamp | None = None
    merged: set[str] = set()
    for block in blocks:
        if isinstance(block.event, ev.AddData) and not _is_new_merge(block.event, merged):
            by_hand = block.event.new_data is None and block.event.new_watermark != watermark
            watermark = block.event.new_watermark
            longer = joined.with_(block.event, by_hand=by_hand)
            if waiting and (longer is None or not longer.within(limits)):
                yield Batch(tuple(waiting))
                waiting, longer = [], _BatchDraft().with_(block.event, by_hand=by_hand)
            waiting.append(block)
            joined = longer or _BatchDraft()
            continue
        if waiting:
            yield Batch(tuple(waiting))
        waiting, joined = [], _BatchDraft()
        watermark = block.event.new_watermark if isinstance(block.event, ev.AddData) else watermark
        yield Batch((block,))
    if waiting:
        yield Batch(tuple(waiting))


def _is_new_merge(event: ev.AddData, known: set[str]) -> bool:
    state = event.new_source_state
    if state is None or not is_merge_state(state) or state.value in known:
        return False
    # later blocks carry the same record on
    known.add(state.value)
    return True


@dataclass(frozen=True, slots=True)
class _BatchDraft:
    """A batch in the making."""

    bytes: int = 0
    records: int = 0
    slices: int = 0
    # The source it speaks of.
    source: str | None = None
    # True if `source` counts: blocks without data and state fit to every source.
    decided: bool = False
    extra: ExtraAttributes | None = None
    empty: bool = True
    # True if it sets a watermark without data.
    by_hand: bool = False

    def with_(self, event: ev.AddData, *, by_hand: bool) -> _BatchDraft | None:
        state = event.new_source_state
        source = state.source_name if state is not None else None
        decides = state is not None or event.new_data is not None
        # a batch has one source
        if self.decided and decides and source != self.source:
            return None
        if (self.by_hand and event.new_data is not None) or (by_hand and self.slices):
            return None
        if not self.empty and event.extra != self.extra:
            return None
        size = event.new_data.size if event.new_data is not None else 0
        records = event.new_data.offset_interval.count if event.new_data is not None else 0
        return _BatchDraft(
            self.bytes + size,
            self.records + records,
            self.slices + (event.new_data is not None),
            source if decides else self.source,
            self.decided or decides,
            event.extra,
            empty=False,
            by_hand=self.by_hand or by_hand,
        )

    def within(self, limits: BatchLimits) -> bool:
        # one slice alone may have any size
        return self.slices < 2 or (self.bytes <= limits.bytes and self.records <= limits.records)


# Several slices into one, without Spark: the same records in the same order, under one logical hash. The
# file has the settings of every slice ("Common Data Schema"), and is read again and hashed before it is
# used.


def _same_columns(dataset: DatasetFiles, slices: Sequence[ev.DataSlice]) -> bool:
    # of the same types and in the same order
    first, *others = (_schema(dataset, found) for found in slices)
    return all(first.equals(other) for other in others)


def _merged(
    dataset: DatasetFiles, slices: Sequence[ev.DataSlice], vocabulary: ev.DatasetVocabulary, folder: Path
) -> tuple[ev.DataSlice, StagedFile]:
    # one file in the folder, which goes with the run, of slices that have the same columns
    from odfchain.slices.writer import LogicalHash, ObservedParquet, PhysicalHash  # noqa: PLC0415

    path = folder / f"merged-{uuid.uuid4().hex}.parquet"
    schema = _schema(dataset, slices[0])
    physical, logical = PhysicalHash(), LogicalHash(schema)
    interval = ev.OffsetInterval(start=slices[0].offset_interval.start, end=slices[-1].offset_interval.end)
    with fsio.storage_errors(path):
        with ObservedParquet(path, schema, vocabulary, [physical, logical]) as file:
            for found in slices:
                for batch in _rows(dataset, found, vocabulary):
                    file.write(batch)
        if hash_parquet(path) != (logical.hash, interval.count):
            message = f"{path}: what was written is not what was to be written; nothing was changed"
            raise errors.StoreError(message)
    merged = ev.DataSlice(
        logical_hash=logical.hash, physical_hash=physical.hash, offset_interval=interval, size=physical.size
    )
    return merged, StagedFile(path, physical.hash, file.footer)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, KeyError, ValueError, errors.BadInputError) as error:
        reason = error.message if isinstance(error, errors.BadInputError) else one_line(str(error))
        raise errors.ObjectCorruptedError(
            f"{path}: not a slice that can be read: {reason}", hint="`odfchain verify` says more"
        ) from None


def _schema(dataset: DatasetFiles, found: ev.DataSlice) -> pa.Schema:
    path = dataset.data.verified_path(found.physical_hash)
    with _readable(path), open_parquet(path) as file:
        return file.schema_arrow.remove_metadata()


def _rows(dataset: DatasetFiles, data: ev.DataSlice, names: ev.DatasetVocabulary) -> Iterator[pa.RecordBatch]:
    path = dataset.data.verified_path(data.physical_hash)
    at, end = data.offset_interval.start, data.offset_interval.end
    with _readable(path), open_parquet(path) as file:
        for batch in file.batches():
            if first_gap(batch.column(names.offset_column), at) is not None:
                raise _other_offsets(path, data)
            at += batch.num_rows
            yield pa.RecordBatch.from_arrays(batch.columns, schema=batch.schema.remove_metadata())
    if at != end + 1:
        raise _other_offsets(path, data)


def _other_offsets(path: Path, found: ev.DataSlice) -> errors.OdfchainError:
    interval = found.offset_interval
    return errors.ObjectCorruptedError(
        f"{path}: the records do not have the offsets {interval.start} to {interval.end} that its block says",
        hint="`odfchain verify` says more",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactPlan:
    """The plan of a hard compaction; nothing is changed yet."""

    dataset: str
    old_head: Multihash
    blocks_before: int
    blocks_after: int
    slices_before: int
    slices_after: int
    records: int
    """Records before; they are the same after, or none without data."""
    kept: tuple[HashedBlock, ...]
    """Blocks that stay, oldest first."""
    batches: tuple[Batch, ...]
    """The batches after them."""
    replaced: tuple[Multihash, ...]
    """Blocks that are not part of the new history, newest first."""
    metadata_only: bool
    dependents: tuple[Dependent, ...] = ()
    """Derivatives here that have read replaced blocks."""
    referrers: tuple[str, ...] = ()
    """Datasets whose rows name changes of replaced blocks."""
    places: tuple[Remote, ...] = ()
    """Remote places of the dataset; all of them have the old history or nothing."""

    @property
    def nothing(self) -> bool:
        """True if there is nothing to merge."""
        return not self.replaced

    def __repr__(self) -> str:
        blocks, slices = (self.blocks_before, self.blocks_after), (self.slices_before, self.slices_after)
        sizes = f"{blocks[0]:,} to {blocks[1]:,} blocks, {slices[0]:,} to {slices[1]:,} slices"
        return f"<compaction of {self.dataset}: {'nothing to do' if self.nothing else sizes}>"


def _without_data(chain: Sequence[HashedBlock], kind: DatasetKind) -> tuple[list[HashedBlock], list[Batch]]:
    # the schema of a derivative is computed, too
    computed = (*DATA_EVENTS, "SetDataSchema") if kind is DatasetKind.DERIVATIVE else DATA_EVENTS
    rest = [Batch((b.block,)) for b in chain[1:] if b.block.event.KIND not in computed]
    if len(rest) == len(chain) - 1:
        return list(chain), []
    return list(chain[:1]), rest


def _retargeted(event: ev.MetadataEvent, renamed: dict[Multihash | None, Multihash]) -> ev.MetadataEvent:
    if (record := understood_record(event)) is None or not isinstance(event, ev.AddData):
        return event
    # the merge's target has a new hash
    target = renamed.get(record.target, record.target)
    return dataclasses.replace(event, new_source_state=dataclasses.replace(record, target=target).to_state())


def _says_nothing(event: ev.AddData, previous: ev.AddData | None) -> bool:
    if event.new_data is not None:
        return False
    before = previous or ev.AddData()
    said = (before.new_checkpoint, before.new_watermark, before.new_source_state)
    return said == (event.new_checkpoint, event.new_watermark, event.new_source_state)


# Soft compaction: a new root dataset with the records of an old one in few slices; the old one stays.
#
#     incoming/<alias>/dataset    the new dataset while it is made; it appears by one rename
#
# The new dataset has its own identity, and its attachment `PROVENANCE.yaml` names the old one with its
# block. It keeps the records with their offsets and system times, schemas, vocabulary, watermarks,
# description, license and attachments. Sources stay with the old dataset: two with one source would both
# seem to be the one to follow.

PROVENANCE = "PROVENANCE.yaml"
"""The attachment that says where the records come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftPlan:
    """The plan of a soft compaction."""

    dataset: str
    head: Multihash
    alias: DatasetAlias
    """Name of the new dataset."""
    blocks_before: int
    slices_before: int
    slices_after: int
    records: int
    metadata: tuple[ev.MetadataEvent, ...]
    batches: tuple[Batch, ...]

    def __repr__(self) -> str:
        sizes = f"{self.slices_before:,} to {self.slices_after:,} slices, {self.records:,} records"
        return f"<{self.alias} made of {self.dataset}: {sizes}>"


def _carried(chain: list[HashedBlock]) -> Iterator[ev.MetadataBlock]:
    for _, block in chain:
        event = block.event
        if isinstance(event, ev.SetDataSchema | ev.SetVocab):
            yield block
        elif isinstance(event, ev.AddData):
            # sources and checkpoints stay with the old dataset
            own = dataclasses.replace(event, prev_checkpoint=None, new_checkpoint=None, new_source_state=None)
            yield dataclasses.replace(block, event=own)


def _copy(dataset: DatasetFiles, name: Multihash, made: DatasetFiles, staging: Path) -> None:
    target = staging / str(name)
    with fsio.storage_errors(target):
        # a copy, no link: damage to one dataset must not reach the other
        shutil.copyfile(dataset.data.verified_path(name), target)
    made.data.put_file(target, name)
    try:
        made.data.verified_path(name)
    except errors.StoreError:
        fsio.remove_quietly(made.folder / "data" / str(name))
        raise


@dataclass(frozen=True, slots=True)
class Compaction(Rewriting):
    """A dataset whose slices are merged into fewer, larger ones, in its own history or in a new dataset."""

    def plan(self, limits: BatchLimits | None = None, *, metadata_only: bool = False) -> CompactPlan:
        """Plan a compaction: the batches, and the datasets and branches that it breaks.

        Raises:
            UsageError: the dataset is derivative: its transactions are what its query gave, step by step. Or
                a branch needs the blocks that would be replaced.
        """
        garbage.bring_branches(self.workspace)
        state = DatasetState.read(self.dataset.chain)
        if state.seed.dataset_kind is DatasetKind.DERIVATIVE and not metadata_only:
            raise errors.UsageError(
                f"{self.dataset.alias}: the slices of a derivative dataset cannot be merged, because each is "
                "the result of one execution and is verified as such",
                hint="--keep-metadata-only gives up its data, and the next run computes it anew in one step",
            )
        chain = list(self.dataset.chain.walk(state.head))[::-1]
        if metadata_only:
            kept, after = _without_data(chain, state.seed.dataset_kind)
        else:
            found = self._mergeable((b.block for b in chain), limits or BatchLimits())
            first = next((i for i, batch in enumerate(found) if batch.merges), len(found))
            kept, after = chain[:first], found[first:]
        replaced = tuple(found.hash for found in chain[len(kept) :][::-1])
        before = sum(b.block.new_data is not None for b in chain)
        merged_away = sum(max(0, len(batch.slices) - 1) for batch in after)
        plan = CompactPlan(
            dataset=str(self.dataset.alias),
            old_head=state.head,
            blocks_before=len(chain),
            blocks_after=len(kept) + len(after),
            slices_before=before,
            slices_after=0 if metadata_only else before - merged_away,
            records=state.record_count,
            kept=tuple(kept),
            batches=tuple(after),
            replaced=replaced,
            metadata_only=metadata_only,
        )
        if plan.nothing:
            return plan
        self._check_forks(chain, plan)
        merges = [] if plan.metadata_only else [found.block for found in chain]
        merged = [name for block in merges for name in garbage.merged_blocks(self.dataset, block)]
        stays = functools.partial(garbage.still_reached, self.dataset, kept[-1].hash, *merged)
        return dataclasses.replace(
            plan,
            dependents=tuple(self.dependents(replaced)),
            referrers=tuple(garbage.Referrers(self.workspace).of_changes(self.dataset, stays)[0]),
            places=tuple(self.places_with(state.head, replaced)),
        )

    def _check_forks(self, chain: Sequence[HashedBlock], plan: CompactPlan) -> None:
        needing = self._branches_on(chain, frozenset(plan.replaced), merges=not plan.metadata_only)
        if needing:
            raise errors.UsageError(
                f"{self.dataset.alias}: blocks that would be replaced are those that {', '.join(needing[:8])}"
                f"{' and others' if len(needing) > 8 else ''} forked from, or merged",
                hint="`odfchain branch delete` gives up branches; `compact --soft` makes a new dataset and "
                "leaves this one as it is",
            )

    def _branches_on(
        self, chain: Sequence[HashedBlock], blocks: Collection[Multihash], *, merges: bool
    ) -> list[str]:
        # the branches, also merged ones that are gone, that forked from one of these blocks of the chain, or
        # merged one: rewriting changes hashes, and they would lose their base; without `merges` the chain's
        # own do not count
        own = {found.hash for found in chain}
        refs = [ref for ref in (HEAD, *branch_names(self.dataset)) if ref != self.dataset.ref]
        heads = [(self.dataset.chain.head(ref), ref) for ref in refs]
        waiting = [(head, ref) for head, ref in heads if head is not None]
        for found in chain if merges else ():
            if (record := understood_record(found.block.event)) is not None:
                names = garbage.merged_blocks(self.dataset, found.block)
                waiting += [(name, record.source_ref) for name in names]
        needing: set[str] = set()
        seen: set[tuple[Multihash, str]] = set()
        while waiting:
            name, branch = waiting.pop()
            current: Multihash | None = name
            # down to the first block of the own chain, where the branch forked
            while current is not None and current not in own and (current, branch) not in seen:
                seen.add((current, branch))
                block = self.dataset.chain.get(current)
                waiting += [(merged, branch) for merged in garbage.merged_blocks(self.dataset, block)]
                current = block.prev_block_hash
            if current is not None and current in own and current in blocks:
                needing.add(branch)
        return sorted(needing)

    def _mergeable(self, blocks: Iterable[ev.MetadataBlock], limits: BatchLimits) -> list[Batch]:
        # those whose files do not have the same columns are left block by block
        made: list[Batch] = []
        for batch in batches(blocks, limits):
            same = len(batch.slices) < 2 or _same_columns(self.dataset, batch.slices)
            made += [batch] if same else [Batch((block,)) for block in batch.blocks]
        return made

    def run(
        self,
        plan: CompactPlan,
        *,
        force: bool = False,
        break_references: bool = False,
        progress: Progress = SILENT,
    ) -> Multihash:
        """The dataset has the planned history with the same records; or it is as it was. Returns its head."""
        if plan.nothing:
            return plan.old_head
        if not break_references:
            garbage.refuse(f"what {plan.dataset} would replace", plan.referrers)
        if plan.metadata_only and not force:
            self._check_saved(plan)
        with self.dataset.staging() as staging:
            progress.phase(f"Merging slices of {self.dataset.alias}", plan.slices_before)
            made: list[EncodedBlock] = []
            files: list[StagedFile] = []
            history = ReplayHistory()
            for _, block in plan.kept:
                history.add(block)
            # without data all blocks are new, so that a copy is not taken for one that lags behind
            at = DatasetState.read(self.dataset.chain, plan.old_head)
            now = at.next_system_time() if plan.metadata_only else None
            renamed: dict[Multihash | None, Multihash] = {}
            for event, file, batch in self._rewritten(plan.batches, staging, plan.kept, progress):
                newest, previous = history.previous(), made[-1].hash if made else plan.kept[-1].hash
                renamed[batch.blocks[0].prev_block_hash] = previous
                (encoded,) = link_blocks(
                    [_retargeted(event, renamed)],
                    prev=previous,
                    next_sequence_number=newest.sequence_number + 1,
                    system_time=now or batch.blocks[-1].system_time,
                )
                check_append(encoded.block, history)
                history.add(encoded.block)
                made.append(encoded)
                files += [file] if file is not None else []
            return self._publish(plan, made, files)

    def _rewritten(
        self,
        planned: Iterable[Batch],
        staging: Path,
        before: Sequence[HashedBlock] = (),
        progress: Progress = SILENT,
    ) -> Iterator[tuple[ev.MetadataEvent, StagedFile | None, Batch]]:
        """The events that batches become after the blocks `before`, their new files, and the batches."""
        events = [block.event for _, block in before]
        vocabulary = next((e for e in reversed(events) if isinstance(e, ev.SetVocab)), None)
        previous = next((e for e in reversed(events) if isinstance(e, ev.AddData)), None)
        for batch in planned:
            event: ev.MetadataEvent = batch.blocks[-1].event
            file = None
            if isinstance(event, ev.SetVocab):
                vocabulary = event
            if isinstance(event, ev.AddData):
                data = batch.slices[0] if batch.slices else None
                if len(batch.slices) > 1:
                    names = ev.DatasetVocabulary.from_event(vocabulary)
                    data, file = _merged(self.dataset, batch.slices, names, staging)
                progress.advance(len(batch.slices))
                event = batch.event(data, previous)
                if _says_nothing(event, previous):
                    continue
                previous = event
            yield event, file, batch

    def _publish(self, plan: CompactPlan, made: list[EncodedBlock], staged: list[StagedFile]) -> Multihash:
        for file in staged:
            keep_staged(self.dataset.data, file)
        KeptFooters(self.dataset).keep((file.physical_hash, file.footer) for file in staged)
        keep_reachable(self.dataset, plan.old_head)
        if made:
            now = Seen(made[-1].block.sequence_number, made[-1].hash)
            self.dataset.withdraw(now.sequence_number, plan.old_head)
            self.dataset.chain.publish(made, expected_head=plan.old_head)
        else:
            self.dataset.set_head(plan.kept[-1].hash, expected=plan.old_head)
            now = Seen(plan.kept[-1].block.sequence_number, plan.kept[-1].hash)
        self.rewrite_memory(plan.replaced, now)
        return now.head

    def _check_saved(self, plan: CompactPlan) -> None:
        if self.dataset.kind is DatasetKind.DERIVATIVE:
            return  # its data can be computed again
        saved = frozenset[Multihash]().union(*(place.has for place in plan.places))
        if lacking := [name for name in plan.replaced if name not in saved]:
            raise errors.WorkspaceError(
                f"{plan.dataset}: the data of {len(lacking):,} blocks would be given up and may be nowhere "
                "else",
                hint="push the dataset first (`odfchain push`), or give them up with --force",
                exit_code=5,
            )

    def plan_soft(self, alias: DatasetAlias, limits: BatchLimits | None = None) -> SoftPlan:
        """Plan the new dataset."""
        state = DatasetState.read(self.dataset.chain)
        if state.seed.dataset_kind is DatasetKind.DERIVATIVE:
            raise errors.UsageError(
                f"{self.dataset.alias}: records of a derivative dataset in a root dataset could not be "
                "verified by its query any more"
            )
        self.workspace.check_new(DatasetKey.generate().dataset_id, alias)
        chain = list(self.dataset.chain.walk(state.head))[::-1]
        found = self._mergeable(_carried(chain), limits or BatchLimits())
        before = sum(block.new_data is not None for _, block in chain)
        return SoftPlan(
            dataset=str(self.dataset.alias),
            head=state.head,
            alias=alias,
            blocks_before=len(chain),
            slices_before=before,
            slices_after=sum(bool(batch.slices) for batch in found),
            records=state.record_count,
            metadata=tuple(self._metadata(state, chain)),
            batches=tuple(found),
        )

    def _metadata(self, state: DatasetState, chain: list[HashedBlock]) -> Iterator[ev.MetadataEvent]:
        for kind in (ev.SetInfo, ev.SetLicense):
            if (block := self.dataset.chain.nearest(kind.KIND, head=state.head)) is not None:
                yield block.block.event
        attached = self.dataset.chain.nearest_event(ev.SetAttachments, head=state.head)
        items = attached.attachments.items if attached is not None else ()
        document = {
            "compactedFrom": {
                "id": str(state.seed.dataset_id),
                "alias": str(self.dataset.alias),
                "head": str(state.head),
                "blocks": len(chain),
                "records": state.record_count,
                "systemTime": str(state.head_block.system_time),
            }
        }
        own = ev.AttachmentEmbedded(path=PROVENANCE, content=dump_yaml(document))
        kept = tuple(item for item in items if item.path != PROVENANCE)
        yield ev.SetAttachments(attachments=ev.AttachmentsEmbedded(items=(*kept, own)))

    def run_soft(self, plan: SoftPlan, progress: Progress = SILENT) -> DatasetFiles:
        """The new dataset, complete; or there is none. The old one is not touched."""
        incoming = self.workspace.root / "incoming"
        fsio.make_folder(incoming)
        name = plan.alias.key.replace("/", "+")
        with fsio.locked(incoming / f".lock-{name}"):
            area = incoming / name
            fsio.remove_tree(area)  # of a run that died
            try:
                key = DatasetKey.generate()
                built = self._build(plan, key, area / "dataset", progress)
                self.workspace.store_key(key)
                return self.workspace.adopt(built)
            finally:
                shutil.rmtree(area, ignore_errors=True)

    def _build(self, plan: SoftPlan, key: DatasetKey, folder: Path, progress: Progress) -> DatasetFiles:
        def events(made: DatasetFiles) -> list[ev.MetadataEvent]:
            progress.phase(f"Merging slices of {self.dataset.alias}", plan.slices_before)
            found: list[ev.MetadataEvent] = [
                ev.Seed(dataset_id=key.dataset_id, dataset_kind=DatasetKind.ROOT),
                *(
                    ConstraintsFile(event).moved(self.dataset.id, key.dataset_id)
                    if isinstance(event, ev.SetAttachments)
                    else event
                    for event in plan.metadata
                ),
            ]
            with made.staging() as staging:
                for event, file, _ in self._rewritten(plan.batches, staging, (), progress):
                    if file is not None:
                        keep_staged(made.data, file)
                    elif isinstance(event, ev.AddData) and event.new_data is not None:
                        _copy(self.dataset, event.new_data.physical_hash, made, staging)
                    found.append(event)
            return found

        return self.workspace.build(folder, plan.alias, key, events, Timestamp.now().truncated_to_ms())
