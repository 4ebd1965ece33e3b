"""From the chains of a derivative dataset and of its inputs to the next step, or to the recorded ones.

A step takes blocks `(prev, new]` and records `(prev_offset, new_offset]` of every input, in the order of the
transform, also of inputs that did not move. The backlog is cut where an input changes its schema or
vocabulary, so the records that one step reads of an input all have one form. Schemas, vocabularies and the
query are those valid at the blocks of the step, not those valid now. Planning reads chains, no data.
Source: specification "Derivative Transformations", "ExecuteTransform", "ExecuteTransformInput".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from odfchain.chain.chain import HashedBlock, MetadataChain
from odfchain.chain.index import DATA_EVENTS
from odfchain.errors import DivergedInputError, ObjectNotFoundError, TransformError
from odfchain.odf import events as ev
from odfchain.odf.engine_messages import Watermark
from odfchain.odf.events import AddData, DataSlice, ExecuteTransform, OffsetInterval
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.schema import DataSchema
from odfchain.odf.times import Timestamp
from odfchain.odf.transform_options import with_own_name
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.points import reference_of

# The blocks of an input between two others: data, schemas and vocabularies, found by the chain's index
# (specification "ExecuteTransformInput", "Schema Evolution").

_KINDS = (*DATA_EVENTS, "SetDataSchema", "SetVocab")


@dataclass(frozen=True, slots=True)
class Backlog:
    """The blocks `(prev, last]` of an input; `blocks` are those that matter, oldest first."""

    prev: Multihash | None
    last: Multihash
    blocks: tuple[HashedBlock, ...]

    @property
    def slices(self) -> tuple[DataSlice, ...]:
        """The data, oldest first."""
        return tuple(data for _, block in self.blocks if (data := block.new_data) is not None)

    @property
    def interval(self) -> OffsetInterval | None:
        """Offsets of the records; None when there are none."""
        slices = self.slices
        if not slices:
            return None
        return OffsetInterval(start=slices[0].offset_interval.start, end=slices[-1].offset_interval.end)

    @property
    def watermarks(self) -> tuple[Watermark, ...]:
        """Those of the data blocks, oldest first."""
        return tuple(mark for found in self.blocks if (mark := _watermark(found)) is not None)

    def cut(self, chain: MetadataChain) -> tuple[Backlog, Backlog]:
        """The blocks for one step, and the rest; records of a step have one schema and vocabulary."""
        # only after records: a change before them is in force for all of them, and a piece without records
        # would be an empty step
        filled = False
        for index, (_, block) in enumerate(self.blocks):
            if block.event.KIND in DATA_EVENTS:
                filled = filled or block.new_data is not None
            elif filled and _changes_form(chain, self.blocks[index]):
                before = block.prev_block_hash
                assert before is not None  # noqa: S101 - records come before it
                first = Backlog(self.prev, before, self.blocks[:index])
                return first, Backlog(before, self.last, self.blocks[index:])
        return self, Backlog(self.last, self.last, ())


def _changes_form(chain: MetadataChain, block: HashedBlock) -> bool:
    # repeating the same schema or vocabulary changes nothing
    before = DatasetState.read(chain, block.block.prev_block_hash)
    after = DatasetState.read(chain, block.hash)
    return (before.schema, before.vocabulary) != (after.schema, after.vocabulary)


def read_backlog(chain: MetadataChain, prev: Multihash | None, last: Multihash) -> Backlog | None:
    """The blocks `(prev, last]`, or None when `prev` is no ancestor of `last`."""
    if prev == last:
        return Backlog(prev, last, ())
    if prev is None:
        return Backlog(None, last, tuple(chain.nearest_all(*_KINDS, head=last))[::-1])
    try:
        end = chain.get(prev)
    except ObjectNotFoundError:
        return None
    blocks: list[HashedBlock] = []
    # Asked for its kind as well, the walk comes by `prev` itself if, and only if, that is an ancestor.
    for item in chain.nearest_all(*_KINDS, end.event.KIND, head=last):
        if item.block.sequence_number <= end.sequence_number:
            return Backlog(prev, last, tuple(blocks[::-1])) if item.hash == prev else None
        if item.block.event.KIND in _KINDS:
            blocks.append(item)
    return None


def watermark_at(chain: MetadataChain, head: Multihash | None) -> Watermark | None:
    """The watermark in force at a block: that of the last data block, because watermarks are kept."""
    found = chain.nearest(*DATA_EVENTS, head=head) if head is not None else None
    return _watermark(found) if found is not None else None


def _watermark(block: HashedBlock) -> Watermark | None:
    event = block.block.event
    if not isinstance(event, AddData | ExecuteTransform) or event.new_watermark is None:
        return None
    return Watermark(system_time=block.block.system_time, event_time=event.new_watermark)


def diverged(
    dataset: DatasetFiles,
    item: DatasetFiles,
    dataset_id: DatasetId,
    read_to: Multihash | None,
    head: Multihash | None,
    *,
    where: str | None = None,
) -> DivergedInputError:
    """The error of an input that was rewritten after it had been read."""
    by = f"{where} of {dataset.alias}" if where is not None else str(dataset.alias)
    return DivergedInputError(
        f"{by}: its input {item.alias} ({dataset_id}) was rewritten: it was read up to block "
        f"{read_to or 'none'}, which is not in its chain any more (its head is {head or 'missing'})",
        hint="--reset-derivatives-on-diverged-input computes the dataset anew from the input as it is now; "
        "to keep its history, restore the input's earlier chain",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInput(Backlog):
    """One input of a step, with the blocks of it that the step reads."""

    dataset: DatasetFiles
    alias: str
    """The name by which the query knows the input."""
    event: ev.ExecuteTransformInput
    """The input's part of the step's event."""
    known_watermark: Watermark | None
    """The one that was in force before: an idle input goes on holding the output back."""
    schema: DataSchema
    """The input's schema at the last block of the step."""
    vocabulary: ev.DatasetVocabulary
    """The input's vocabulary at the last block of the step."""

    @property
    def brings_news(self) -> bool:
        """True if there are new records, or a watermark beyond the one known."""
        return bool(self.slices) or _is_later(self.watermarks, self.known_watermark)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One execution of a transform."""

    transform: ev.SetTransform
    vocabulary: ev.DatasetVocabulary
    schema: DataSchema | None
    """The output's schema; None before the first run."""
    inputs: tuple[PlannedInput, ...]
    prev_offset: int | None
    prev_checkpoint: ev.Checkpoint | None
    prev_watermark: Timestamp | None
    more: bool = False
    """True if another step follows at once, because the backlog was cut."""
    executed_before: ev.SetTransform | None = None
    output: tuple[ev.DataSlice, ...] | None = None
    """For a step that computes everything anew: the whole output so far; `inputs` read from the beginning."""

    @property
    def read_checkpoint(self) -> ev.Checkpoint | None:
        """The checkpoint that the engine begins with: not that of another one, none to compute everything."""
        before = self.executed_before
        if self.output is not None or before is None:
            return None
        # an engine can read what it left itself, under either of its names
        one, other = (with_own_name(t).engine for t in (before.transform, self.transform.transform))
        return self.prev_checkpoint if one.lower() == other.lower() else None

    @property
    def next_offset(self) -> int:
        """Offset of the first record that the step may produce."""
        return 0 if self.prev_offset is None else self.prev_offset + 1

    def cut_after(self, dataset: DatasetFiles, ends: Sequence[Multihash]) -> list[PlannedStep]:
        """The step as several: up to each of these blocks of its only input, and one for the rest of it."""
        # the results of earlier steps are not known yet, so all have the offset, checkpoint and watermark
        # before the first
        (item,) = self.inputs
        found: list[PlannedStep] = []
        before = dataclasses.replace(item.event, new_block_hash=None, new_offset=None)
        for end in (*ends, item.event.last_block_hash):
            assert end is not None  # noqa: S101 - the step was planned with these blocks
            backlog = read_backlog(item.dataset.chain, before.last_block_hash, end)
            assert backlog is not None  # noqa: S101 - as above
            event = _event(item.event.dataset_id, before, backlog)
            reads = _planned(dataset, item.dataset, item.alias, event, backlog)
            assert reads is not None  # noqa: S101 - records have a schema
            executed = self.transform if found else self.executed_before
            found.append(dataclasses.replace(self, inputs=(reads,), executed_before=executed))
            before = event
        return found


@dataclass(frozen=True, slots=True)
class UpToDate:
    """There is no step to execute; `reason` says why where that is not obvious."""

    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """A step as a block of the chain records it."""

    step: PlannedStep
    block_hash: Multihash
    sequence_number: int
    system_time: Timestamp
    event: ev.ExecuteTransform


def plan_next(
    dataset: DatasetFiles, state: DatasetState, inputs: Sequence[DatasetFiles]
) -> PlannedStep | UpToDate:
    """The step that follows on `state`: what is new in the inputs up to their heads, or up to a cut.

    New are records, and watermarks that say more than before; other blocks go along with the next such
    step. The cost is that of the new blocks, not of the length of the chains.

    Raises:
        TransformError: the dataset has no transform, its list of inputs changed after it was executed, or the
            last execution records other records of an input than the blocks that it names bring.
        DivergedInputError: an input was rewritten since.
        ChainError, StoreError, CodecError: a chain cannot be read.
    """
    transform = state.transform
    if transform is None:
        raise TransformError(f"{dataset.alias}: the dataset has no transform to execute")
    last = state.last_execution
    if last is not None:
        _check_same_inputs(dataset, transform, last)
    known = {item.id: item for item in inputs}
    planned: list[PlannedInput] = []
    missing: list[str] = []
    more = False
    for index, (dataset_id, alias) in enumerate(_inputs_of(transform)):
        item = _find(dataset, known, dataset_id, alias)
        earlier = last.query_inputs[index] if last is not None else None
        prev = earlier.last_block_hash if earlier is not None else None
        head = item.chain.head()
        backlog = read_backlog(item.chain, prev, head) if head is not None else None
        if backlog is None:
            raise diverged(dataset, item, dataset_id, prev, head)
        now, rest = backlog.cut(item.chain)
        reads = _planned(dataset, item, alias, _event(dataset_id, earlier, now), now)
        if reads is None:
            missing.append(f"{alias} ({item.alias})" if alias != str(item.alias) else alias)
            continue
        planned.append(reads)
        last_known = reads.watermarks[-1] if reads.watermarks else reads.known_watermark
        more = more or bool(rest.slices) or _is_later(rest.watermarks, last_known)
    if missing:
        names = ", ".join(missing)
        message = f"no data was ever pulled into {'its input' if len(missing) == 1 else 'inputs'} {names}"
        return UpToDate(message)
    known_form = state.schema is not None or last is not None
    # a dataset that was never executed is executed even without new records, to learn its schema
    if known_form and not state.awaits_rebuild and not any(item.brings_news for item in planned):
        return UpToDate()
    return dataclasses.replace(_step(state, transform, planned, state.last_offset), more=more)


def _step(
    state: DatasetState, transform: ev.SetTransform, inputs: Iterable[PlannedInput], prev_offset: int | None
) -> PlannedStep:
    # the step that follows on a state
    last, rebuild = state.last_execution, state.awaits_rebuild
    return PlannedStep(
        transform=transform,
        vocabulary=state.vocabulary,
        schema=state.schema,
        inputs=tuple(map(_from_the_beginning, inputs) if rebuild else inputs),
        prev_offset=prev_offset,
        prev_checkpoint=last.new_checkpoint if last is not None else None,
        prev_watermark=state.watermark,
        executed_before=state.executed_transform,
        output=tuple(ref.slice for ref in state.slices()) if rebuild else None,
    )


def _from_the_beginning(item: PlannedInput) -> PlannedInput:
    # everything recorded up to the last block of the step
    end = item.event.last_block_hash
    everything = read_backlog(item.dataset.chain, None, end) if end is not None else None
    if everything is None:
        return item
    return dataclasses.replace(
        item, prev=everything.prev, last=everything.last, blocks=everything.blocks, known_watermark=None
    )


def _inputs_of(transform: ev.SetTransform) -> list[tuple[DatasetId, str]]:
    # the append rules admit no other references
    return [(item.id, item.alias or str(item.id)) for item in transform.inputs if item.id is not None]


def _check_same_inputs(dataset: DatasetFiles, transform: ev.SetTransform, last: ev.ExecuteTransform) -> None:
    # executions continue their inputs by position, so no input can join, leave or move
    now = _inputs_of(transform)
    if [item.dataset_id for item in last.query_inputs] != [dataset_id for dataset_id, _ in now]:
        raise TransformError(
            f"{dataset.alias}: its transform now has the inputs {', '.join(alias for _, alias in now)}, "
            f"which are not those that it was executed on so far (or not in their order)",
            hint="inputs cannot change midway: reset the dataset to its metadata, then it is computed anew",
        )


def _find(
    dataset: DatasetFiles, known: dict[DatasetId, DatasetFiles], dataset_id: DatasetId, alias: str
) -> DatasetFiles:
    at_hand = known.get(dataset_id)
    if at_hand is None:
        hint = "pull the input into this workspace first"
        raise TransformError(f"{dataset.alias}: its input {alias} ({dataset_id}) is not at hand", hint=hint)
    return at_hand


def _event(
    dataset_id: DatasetId, earlier: ev.ExecuteTransformInput | None, now: Backlog
) -> ev.ExecuteTransformInput:
    return ev.ExecuteTransformInput(
        dataset_id=dataset_id,
        prev_block_hash=now.prev,
        new_block_hash=now.last if now.last != now.prev else None,
        prev_offset=earlier.last_offset if earlier is not None else None,
        new_offset=now.slices[-1].offset_interval.end if now.slices else None,
    )


def _planned(
    dataset: DatasetFiles, item: DatasetFiles, alias: str, event: ev.ExecuteTransformInput, backlog: Backlog
) -> PlannedInput | None:
    # None while the input has no schema
    at_end = DatasetState.read(item.chain, backlog.last)
    interval = (
        ev.OffsetInterval(start=event.new_offset - event.record_count + 1, end=event.new_offset)
        if event.new_offset is not None
        else None
    )
    brought = backlog.interval
    if interval != brought or event.last_offset != at_end.last_offset:
        first = 0 if event.prev_offset is None else event.prev_offset + 1
        shown = f"{brought.start} to {brought.end}" if brought else "none"
        raise TransformError(
            f"{dataset.alias}: its input {alias} ({event.dataset_id}) was read from offset "
            f"{first} to {_shown(event.last_offset)}, but its blocks after "
            f"{event.prev_block_hash or 'the start'} up to {backlog.last} bring the offsets "
            f"{shown} and end at {_shown(at_end.last_offset)}"
        )
    schema = at_end.schema
    if schema is None:
        return None
    return PlannedInput(
        dataset=item,
        alias=alias,
        event=event,
        prev=backlog.prev,
        last=backlog.last,
        blocks=backlog.blocks,
        known_watermark=watermark_at(item.chain, backlog.prev),
        schema=schema,
        vocabulary=at_end.vocabulary,
    )


def _shown(offset: int | None) -> str:
    return "nothing" if offset is None else str(offset)


def _is_later(watermarks: Sequence[Watermark], known: Watermark | None) -> bool:
    return any(known is None or mark.event_time > known.event_time for mark in watermarks)


def plan_recorded(
    dataset: DatasetFiles,
    inputs: Sequence[DatasetFiles],
    *,
    tail: Multihash | None = None,
    head: Multihash | None = None,
) -> Iterator[RecordedStep]:
    """Every executed step in the blocks `(tail, head]`, oldest first, as it was when it was executed.

    Raises:
        ChainError: `tail` is no ancestor of `head`.
        TransformError: a block records what its inputs do not have, or an input is not at hand.
    """
    # the chain is walked block by block, so that no derived index can hide a step; the records that a step
    # names must be exactly those of its blocks
    known, chain = {item.id: item for item in inputs}, dataset.chain
    walked = chain.walk(head, tail=tail)
    blocks = [item for item in walked if isinstance(item.block.event, ev.ExecuteTransform)]
    for name, block in reversed(blocks):
        event = block.event
        assert isinstance(event, ev.ExecuteTransform)  # noqa: S101 - chosen above
        state, where = DatasetState.read(chain, block.prev_block_hash), f"block {block.sequence_number}"
        if state.transform is None:
            raise TransformError(f"{dataset.alias}: no transform before {where}")
        read = _recorded_inputs(dataset, state.transform, event, known, where)
        yield RecordedStep(
            step=_step(state, state.transform, read, event.prev_offset),
            block_hash=name,
            sequence_number=block.sequence_number,
            system_time=block.system_time,
            event=event,
        )


def _recorded_inputs(
    dataset: DatasetFiles,
    transform: ev.SetTransform,
    event: ev.ExecuteTransform,
    known: dict[DatasetId, DatasetFiles],
    where: str,
) -> tuple[PlannedInput, ...]:
    named = _inputs_of(transform)
    if [item.dataset_id for item in event.query_inputs] != [dataset_id for dataset_id, _ in named]:
        raise TransformError(f"{dataset.alias}: {where} has other inputs than the transform before it")
    inputs = []
    for (dataset_id, alias), recorded in zip(named, event.query_inputs, strict=True):
        item = _find(dataset, known, dataset_id, alias)
        prev, end = recorded.prev_block_hash, recorded.last_block_hash
        if end is None:
            message = f"{dataset.alias}: {where} names no block of its input {alias} ({dataset_id})"
            raise TransformError(message)
        stored = item.chain.contains(end)
        if stored and (ref := reference_of(item, end)) not in (None, item.ref):
            item = known[dataset_id] = item.on(ref)  # the next step probably goes on there
        backlog = read_backlog(item.chain, prev, end) if stored else None
        if backlog is None:
            lost = prev if stored else end
            raise diverged(dataset, item, dataset_id, lost, item.chain.head(), where=where)
        planned = _planned(dataset, item, alias, recorded, backlog)
        if planned is None:
            message = f"{dataset.alias}: {where} read {alias} ({dataset_id}) before it had a schema"
            raise TransformError(message)
        inputs.append(planned)
    return tuple(inputs)
