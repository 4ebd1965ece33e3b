"""The next step: what is new in the inputs, in pieces of one form, and found again in the recorded chain."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfchain.chain.chain import MetadataChain, link_blocks
from odfchain.errors import AppendError, ChainError, DivergedInputError, TransformError
from odfchain.odf import events as ev
from odfchain.odf.engine_messages import Watermark
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.storage.fsio import MemoryScratch
from odfchain.transform.catch_up import reset_to_metadata
from odfchain.transform.planner import (
    PlannedInput,
    PlannedStep,
    RecordedStep,
    UpToDate,
    plan_next,
    plan_recorded,
)
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.derivation import Derived, Grown, Root, at, in_memory, on_disk, schema_of, transform_of
from tests.kit.memory_stores import MemoryObjectStore, MemoryRefStore
from tests.kit.support import conformance


def root(name: str = "numbers", *, schema: bool = True) -> Root:
    made = Root(name)
    if schema:
        made.schema()
    return made


def marks(item: PlannedInput) -> list[Any]:
    return [mark.event_time for mark in item.watermarks]


def grown(**data: Any) -> tuple[Root, Derived]:
    numbers = root()
    numbers.data(**data)
    return numbers, Derived(numbers)


def taken(source: Grown, **fields: Any) -> ev.ExecuteTransformInput:
    return ev.ExecuteTransformInput(dataset_id=source.files.id, **fields)


def recorded(derived: Derived, **span: Any) -> list[RecordedStep]:
    return list(plan_recorded(derived.files, [item.files for item in derived.inputs], **span))


def test_plan_first_run() -> None:
    numbers = root()
    numbers.data(10, watermark=5)
    block = numbers.head
    derived = Derived(numbers)
    step = derived.step()
    (item,) = step.inputs
    assert item.event == taken(numbers, new_block_hash=block, new_offset=9)
    assert item.slices == tuple(numbers.slices)
    assert item.interval == ev.OffsetInterval(start=0, end=9)
    assert item.watermarks == (Watermark(system_time=at(2), event_time=at(5)),)
    assert (item.known_watermark, item.alias, item.dataset) == (None, "in0", numbers.files)
    assert (item.schema, item.vocabulary) == (schema_of(0), ev.DatasetVocabulary())
    assert step.transform == derived.state.transform
    assert (step.prev_offset, step.prev_checkpoint, step.prev_watermark) == (None, None, None)
    assert (step.next_offset, step.schema, step.more) == (0, None, False)


def test_plan_up_to_date_no_blocks() -> None:
    derived = Derived(root())
    derived.schema()
    assert derived.plan() == UpToDate()


def test_plan_schema_only_run() -> None:
    numbers, more = root(), root("more")
    derived = Derived(numbers, more)
    step = derived.step()
    assert [(i.slices, i.interval, i.watermarks) for i in step.inputs] == [((), None, ())] * 2
    assert [i.schema for i in step.inputs] == [schema_of(0)] * 2
    assert not step.more
    derived.schema()  # all that such a run commits when the engine brings neither checkpoint nor watermark
    assert derived.plan() == UpToDate()
    numbers.data()
    assert derived.step().inputs[0].event.prev_block_hash is None


def test_plan_second_run() -> None:
    numbers, derived = grown(count=100)
    derived.run()
    first = numbers.head
    numbers.info()
    numbers.data(10)
    step = derived.step()
    assert step.inputs[0].event == taken(
        numbers, prev_block_hash=first, new_block_hash=numbers.head, prev_offset=99, new_offset=109
    )
    assert step.inputs[0].slices == (numbers.slices[1],)
    assert step.inputs[0].interval == ev.OffsetInterval(start=100, end=109)
    assert (step.prev_offset, step.next_offset) == (99, 100)
    assert step.prev_checkpoint == derived.state.last_execution.new_checkpoint
    assert step.schema == schema_of(0)


def test_plan_idle_input() -> None:
    busy, idle = root("busy"), root("idle")
    busy.data(watermark=3)
    idle.data(2, watermark=4)
    derived = Derived(busy, idle)
    derived.run()
    busy.data(watermark=9)
    derived.run()
    busy.data(watermark=10)
    step = derived.step()
    assert step.inputs[1].event == taken(idle, prev_block_hash=idle.head, prev_offset=1)
    assert (step.inputs[1].slices, step.inputs[1].interval, step.inputs[1].watermarks) == ((), None, ())
    assert step.inputs[1].known_watermark == Watermark(system_time=at(2), event_time=at(4))
    assert step.inputs[0].known_watermark == Watermark(system_time=at(3), event_time=at(9))
    assert step.prev_watermark == at(4)
    derived.commit(step)
    assert derived.plan() == UpToDate()


def test_plan_metadata_only_block() -> None:
    numbers, derived = grown()
    derived.run()
    read_to = numbers.head
    numbers.info()
    numbers.schema(1)
    assert derived.plan() == UpToDate()
    numbers.data()
    event = derived.step().inputs[0].event
    assert (event.prev_block_hash, event.new_block_hash) == (read_to, numbers.head)


def diverge(numbers: Root) -> None:
    """Another history of the same length and form on the same Seed."""
    length = numbers.builder.sequence
    numbers.files.chain.set_ref("head", numbers.seed, expected=numbers.head)
    numbers.resume()
    numbers.last = numbers.mark = None
    numbers.schema()
    while numbers.builder.sequence < length:
        numbers.data(3)


@pytest.mark.parametrize("more", [-1, 0, 2], ids=["shorter", "as long", "longer"])
def test_plan_diverged_input(more: int) -> None:
    numbers, other = root(), root("other")
    derived = Derived(other, numbers)
    for _ in range(3):
        numbers.data()
    derived.run()
    read_to = numbers.head
    diverge(numbers)
    if more < 0:
        before = numbers.files.chain.get(numbers.head).prev_block_hash
        numbers.files.chain.set_ref("head", before, expected=numbers.head)
    else:
        for _ in range(more):
            numbers.data()
    with pytest.raises(DivergedInputError) as caught:
        derived.plan()
    for part in ("derived: ", "numbers", numbers.files.id, read_to, numbers.head):
        assert str(part) in str(caught.value)
    assert "--reset-derivatives-on-diverged-input" in str(caught.value.hint)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 5
    reset_to_metadata(derived.files)
    derived.resume()
    step = derived.step()
    assert (step.schema, step.prev_offset, step.prev_checkpoint) == (None, None, None)
    last = DatasetState.read(numbers.files.chain).last_offset
    assert step.inputs[1].event == taken(numbers, new_block_hash=numbers.head, new_offset=last)


def test_plan_first_record_only() -> None:
    _, derived = grown(count=1)
    derived.schema()
    (step,) = derived.run()
    assert step.inputs[0].event.new_offset == 0
    assert step.inputs[0].interval == ev.OffsetInterval(start=0, end=0)


def test_commit_prev_mismatch() -> None:
    numbers, derived = grown(count=5)
    derived.run()
    numbers.data(5)
    step = derived.step()
    for wrong in ({"prev_block_hash": numbers.seed}, {"prev_offset": 3}):
        item = dataclasses.replace(step.inputs[0], event=dataclasses.replace(step.inputs[0].event, **wrong))
        with pytest.raises(AppendError, match="taken in"):
            derived.append(derived.event_of(dataclasses.replace(step, inputs=(item,))))
    derived.commit(step)


def test_commit_watermark_backwards() -> None:
    numbers, derived = grown(count=5, watermark=7)
    derived.run()
    numbers.data(5)
    step = derived.step()
    assert step.prev_watermark == at(7), "what the answer of an engine is held against"
    for worse in (at(6), None):
        with pytest.raises(AppendError, match="watermark"):
            derived.append(dataclasses.replace(derived.event_of(step), new_watermark=worse))
    derived.append(derived.event_of(step))


def test_every_case_of_the_shared_ones_has_its_test() -> None:
    named = {f"test_{case['id']}" for case in conformance("transform_cases")["planner_cases"]}
    assert named == {name for name in globals() if name.startswith(("test_plan_", "test_commit_"))}


def repeat(numbers: Root) -> None:
    """A block whose watermark is the one in force."""
    state = ev.SourceState(source_name="s", kind="odf/etag", value=str(numbers.builder.sequence))
    numbers.append(
        ev.AddData(prev_offset=numbers.last, new_watermark=at(numbers.mark), new_source_state=state)
    )


def test_only_a_later_watermark_is_news() -> None:
    numbers, derived = grown(watermark=5)
    derived.run()
    repeat(numbers)
    assert derived.plan() == UpToDate()
    numbers.watermark(6)
    step = derived.step()
    assert marks(step.inputs[0]) == [at(5), at(6)]
    assert (step.inputs[0].slices, step.inputs[0].event.new_offset) == ((), None)
    assert step.inputs[0].event.new_block_hash == numbers.head
    derived.commit(step)
    assert derived.plan() == UpToDate()


def test_a_first_watermark_without_records_is_news() -> None:
    numbers = root()
    derived = Derived(numbers)
    derived.schema()
    numbers.watermark(1)
    assert marks(derived.step().inputs[0]) == [at(1)]


def test_every_watermark_is_passed_on_repeated_or_not() -> None:
    numbers = root()
    numbers.data(watermark=1)
    numbers.data()
    numbers.watermark(4)
    found = [(m.system_time, m.event_time) for m in Derived(numbers).step().inputs[0].watermarks]
    assert found == [(at(2), at(1)), (at(3), at(1)), (at(4), at(4))]


def test_an_input_that_was_never_pulled_is_the_reason_for_waiting() -> None:
    numbers, empty, other = root(), root("empty", schema=False), root("other", schema=False)
    numbers.data()
    derived = Derived(numbers, empty)
    assert derived.plan() == UpToDate("no data was ever pulled into its input in1 (empty)")
    both = UpToDate("no data was ever pulled into inputs in0 (empty), in1 (other)")
    assert Derived(empty, other).plan() == both
    empty.schema()
    assert isinstance(derived.plan(), PlannedStep)


def test_a_derivative_dataset_is_an_input_like_others() -> None:
    numbers = root()
    numbers.data(4, watermark=2)
    middle = Derived(numbers)
    last = Derived(middle, files=in_memory("last"))
    assert last.plan() == UpToDate("no data was ever pulled into its input in0 (derived)")
    middle.run()
    (step,) = last.run()
    assert step.inputs[0].interval == ev.OffsetInterval(start=0, end=3)
    assert marks(step.inputs[0]) == [at(2)]


def test_the_latest_transform_counts() -> None:
    numbers, derived = grown()
    derived.append(transform_of(numbers, query="SELECT 2"))
    derived.run()
    derived.append(transform_of(numbers, query="SELECT 3"))
    assert derived.plan() == UpToDate(), "a new query alone brings nothing new"
    numbers.data()
    derived.run()
    steps = [step.step.transform.transform.queries[0].query for step in recorded(derived)]
    assert steps == ["SELECT 2", "SELECT 3"]


@pytest.mark.parametrize("changed", [(1, 0), (0,), (0, 1, 2), (0, 2)])
def test_inputs_cannot_change_midway(changed: Sequence[int]) -> None:
    inputs = [root("a"), root("b"), root("c")]
    derived = Derived(*inputs[:2])
    derived.inputs = tuple(inputs)
    derived.append(transform_of(*inputs[:2][::-1]))
    derived.append(transform_of(*inputs[:2]))  # before the first execution everything may change
    derived.run()
    derived.append(transform_of(*[inputs[i] for i in changed]))
    with pytest.raises(TransformError, match="derived: its transform now has the inputs in0") as caught:
        derived.plan()
    assert "reset" in str(caught.value.hint)
    assert caught.value.exit_code == 3
    reset_to_metadata(derived.files)
    derived.resume()
    assert [item.event.dataset_id for item in derived.step().inputs] == [inputs[i].files.id for i in changed]


def test_a_dataset_without_a_transform() -> None:
    numbers = root()
    with pytest.raises(TransformError, match="numbers: the dataset has no transform"):
        plan_next(numbers.files, DatasetState.read(numbers.files.chain), [])


def test_inputs_are_found_by_identity_not_by_their_place() -> None:
    derived = Derived(root("a"), root("b"))
    found = plan_next(derived.files, derived.state, [item.files for item in derived.inputs[::-1]])
    assert isinstance(found, PlannedStep)
    assert [str(item.dataset.alias) for item in found.inputs] == ["a", "b"]
    with pytest.raises(TransformError, match=r"derived: its input in1 \(did:odf:.*\) is not at hand"):
        plan_next(derived.files, derived.state, [derived.inputs[0].files])


def widths(step: PlannedStep) -> list[tuple[int, int | None]]:
    return [(len(item.schema.fields), item.event.new_offset) for item in step.inputs]


def test_changes_before_any_record_of_the_backlog_do_not_cut() -> None:
    numbers = root()
    numbers.watermark(1)
    numbers.schema(1)
    numbers.data(3)
    derived = Derived(numbers)
    assert [(widths(s), s.more) for s in derived.run()] == [([(2, 2)], False)]
    numbers.schema(2)
    numbers.info()
    numbers.schema(3)
    numbers.data(1)
    assert [(widths(s), s.more) for s in derived.run()] == [([(4, 3)], False)]


def test_to_declare_the_same_again_does_not_cut() -> None:
    numbers = root()
    numbers.data()
    numbers.schema(0)
    numbers.vocab("event_time")
    numbers.data()
    assert [(widths(s), s.more) for s in Derived(numbers).run()] == [([(1, 1)], False)]


def test_a_change_of_vocabulary_cuts_too() -> None:
    numbers = root()
    numbers.data()
    numbers.vocab("observed_at")
    numbers.schema(1)
    numbers.data()
    steps = Derived(numbers).run()
    names = [step.inputs[0].vocabulary.event_time_column for step in steps]
    assert (names, [*map(widths, steps)]) == (["event_time", "observed_at"], [[(1, 0)], [(2, 1)]])


def test_more_is_said_only_when_more_follows() -> None:
    numbers = root()
    numbers.data(watermark=1)
    numbers.schema(1)
    derived = Derived(numbers)
    assert [s.more for s in derived.run()] == [False]
    numbers.data()
    numbers.schema(2)
    numbers.watermark(2)
    assert [(s.more, marks(s.inputs[0])) for s in derived.run()] == [(True, [at(1)]), (False, [at(2)])]


def test_several_inputs_are_cut_each_at_its_own_change() -> None:
    one, two, steady = root("one"), root("two"), root("steady")
    for item in (one, two):
        item.data()
    steady.data(7)
    for version in (1, 2):
        one.schema(version)
        one.data()
    two.schema(1)
    two.data()
    steps = Derived(one, two, steady).run()
    assert [widths(s) for s in steps] == [
        [(1, 0), (1, 0), (1, 6)],
        [(2, 1), (2, 1), (1, None)],
        [(3, 2), (2, None), (1, None)],
    ]
    assert [s.more for s in steps] == [True, True, False]


def twice() -> tuple[Root, Derived]:
    """A dataset that was executed twice, with different queries and on different schemas."""
    numbers, derived = grown(count=2, watermark=3)
    derived.run()
    numbers.vocab("seen_at")
    numbers.schema(1)
    numbers.data(2, watermark=4)
    derived.vocab("counted_at")
    derived.append(transform_of(numbers, query="SELECT 2"))
    derived.run()
    return numbers, derived


def test_recorded_steps_are_read_as_of_their_blocks() -> None:
    numbers, derived = twice()
    derived.append(transform_of(numbers, query="SELECT 3"))
    numbers.schema(2)
    first, second = recorded(derived)
    assert [len(s.step.inputs[0].schema.fields) for s in (first, second)] == [1, 2]
    read = [s.step.inputs[0].vocabulary.event_time_column for s in (first, second)]
    assert read == ["event_time", "seen_at"]
    assert [s.step.vocabulary.event_time_column for s in (first, second)] == ["event_time", "counted_at"]
    assert [s.step.transform.transform.queries[0].query for s in (first, second)] == ["SELECT 1", "SELECT 2"]
    assert [s.step.prev_checkpoint for s in (first, second)] == [None, first.event.new_checkpoint]
    assert [s.step.prev_watermark for s in (first, second)] == [None, at(3)]
    for step in (first, second):
        block = derived.files.chain.get(step.block_hash)
        found = (step.event, step.sequence_number, step.system_time)
        assert found == (block.event, block.sequence_number, block.system_time)
        assert tuple(i.event for i in step.step.inputs) == step.event.query_inputs


def test_a_range_of_recorded_steps() -> None:
    _, derived = twice()
    first, second = recorded(derived)
    assert recorded(derived, tail=first.block_hash) == [second]
    assert recorded(derived, head=first.block_hash) == [first]
    assert recorded(derived, tail=derived.seed, head=derived.head) == [first, second]
    assert recorded(derived, tail=derived.head) == []
    with pytest.raises(ChainError, match="not an ancestor"):
        recorded(derived, tail=second.block_hash, head=first.block_hash)


def test_recorded_steps_of_an_input_that_grew_or_was_rewritten() -> None:
    """The blocks that a step names are enough, as long as they are there."""
    numbers, derived = twice()
    before = recorded(derived)
    numbers.data(5)
    diverge(numbers)
    assert recorded(derived) == before
    named = before[1].event.query_inputs[0].last_block_hash
    del numbers.files.chain._blocks.objects[named]
    numbers.files.chain._decoded.cache_clear()
    with pytest.raises(DivergedInputError, match="block 6 of derived: its input numbers") as caught:
        recorded(derived)
    assert str(named) in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [{"new_offset": 2}, {"new_offset": 7}, {"new_offset": None}, {"prev_offset": 0}, {"prev_offset": None}],
    ids=str,
)
def test_a_step_that_records_other_records_than_its_blocks_bring(wrong: dict[str, Any]) -> None:
    numbers, derived = grown(count=2)
    read_to = numbers.head
    numbers.data(2)
    step = derived.step()
    event = dataclasses.replace(step.inputs[0].event, prev_block_hash=read_to, prev_offset=1)
    derived.schema()

    def with_event(event: ev.ExecuteTransformInput) -> ev.ExecuteTransform:
        return dataclasses.replace(derived.event_of(step), query_inputs=(event,))

    good = Derived(numbers)
    good.schema()
    good.append(with_event(event))
    assert len(recorded(good)) == 1
    derived.append(with_event(dataclasses.replace(event, **wrong)))
    with pytest.raises(TransformError, match=r"derived: its input in0 .* was read from offset"):
        recorded(derived)


def test_a_recorded_interval_that_goes_backwards() -> None:
    numbers, derived = grown()
    step = derived.step()
    event = dataclasses.replace(
        step.inputs[0].event, prev_block_hash=numbers.head, new_block_hash=numbers.seed
    )
    derived.schema()
    derived.append(dataclasses.replace(derived.event_of(step), query_inputs=(event,)))
    with pytest.raises(DivergedInputError, match=str(numbers.head)):
        recorded(derived)


def forced(dataset: Grown, *events: ev.MetadataEvent) -> None:
    """Publish events as a peer might send them, without asking the append rules."""
    state = DatasetState.read(dataset.files.chain)
    blocks = link_blocks(
        events, prev=state.head, next_sequence_number=state.head_block.sequence_number + 1, system_time=at(50)
    )
    dataset.files.chain.publish(blocks, expected_head=state.head)


def test_steps_that_cannot_have_been_executed() -> None:
    numbers, other, bare = root(), root("other"), root("bare", schema=False)
    numbers.data()
    execution = Derived(numbers).event_of(Derived(numbers).step())

    derived = Derived(numbers)
    forced(derived, dataclasses.replace(execution, query_inputs=(taken(numbers),)))
    with pytest.raises(TransformError, match="derived: block 2 names no block of its input in0"):
        recorded(derived)

    derived = Derived(other)
    forced(derived, execution)
    with pytest.raises(TransformError, match="derived: block 2 has other inputs than the transform before"):
        recorded(derived)

    derived = Derived(bare)
    event = taken(bare, new_block_hash=bare.head)
    forced(derived, dataclasses.replace(execution, query_inputs=(event,)))
    with pytest.raises(TransformError, match=r"block 2 read in0 .* before it had a schema"):
        recorded(derived)

    lone = Grown(in_memory("lone"), DatasetKind.DERIVATIVE)
    lone.append(ev.SetInfo(description="no transform"))
    forced(lone, execution)
    with pytest.raises(TransformError, match="lone: no transform before block 2"):
        list(plan_recorded(lone.files, [numbers.files]))

    _, twice_executed = twice()
    with pytest.raises(TransformError, match=r"derived: its input in0 \(did:odf:.*\) is not at hand"):
        list(plan_recorded(twice_executed.files, []))


def test_a_recorded_offset_that_the_input_does_not_have_stops_the_next_step() -> None:
    """What was planned wrongly once is not continued: here with a gap."""
    numbers, derived = grown(count=2)
    step = derived.step()
    event = dataclasses.replace(step.inputs[0].event, new_offset=0)
    derived.schema()
    derived.append(dataclasses.replace(derived.event_of(step), query_inputs=(event,)))
    with pytest.raises(TransformError, match="derived: its input in0"):
        derived.plan()
    numbers.data(2)
    with pytest.raises(TransformError, match="bring the offsets 2 to 3 and end at 3"):
        derived.plan()


def test_a_step_without_a_checkpoint_leaves_none_to_the_next() -> None:
    numbers = root()
    derived = Derived(numbers)
    for kept in (True, False, True):
        numbers.data()
        event = derived.event_of(step := derived.step())
        if step.schema is None:
            derived.schema()
        derived.append(event if kept else dataclasses.replace(event, new_checkpoint=None))
    numbers.data()
    derived.run()
    steps = recorded(derived)
    assert [s.step.prev_checkpoint for s in steps] == [None, *[s.event.new_checkpoint for s in steps[:-1]]]
    assert steps[2].step.prev_checkpoint is None


class CountingStore(MemoryObjectStore):
    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def get(self, name: Multihash) -> bytes:
        self.reads += 1
        return super().get(name)


def test_planning_costs_what_is_new() -> None:
    store, refs, scratch = CountingStore(), MemoryRefStore(), MemoryScratch()
    paper = in_memory("numbers")
    numbers = Root(files=dataclasses.replace(paper, chain=MetadataChain(store, refs, scratch)))
    numbers.schema()
    for _ in range(200):
        numbers.data(watermark=1)
        numbers.info()
    derived = Derived(numbers)
    derived.run()
    for _ in range(5):
        numbers.info()
    numbers.data(watermark=2)
    assert DatasetState.read(numbers.files.chain).schema is not None  # the index knows the new blocks
    fresh = dataclasses.replace(paper, chain=MetadataChain(store, refs, scratch))
    store.reads = 0
    step = plan_next(derived.files, derived.state, [fresh])
    assert isinstance(step, PlannedStep)
    assert step.inputs[0].event.record_count == 1
    assert store.reads < 15, "of more than 400 blocks six are new"
    derived.commit(step)
    fresh = dataclasses.replace(paper, chain=MetadataChain(store, refs, scratch))
    store.reads = 0
    assert plan_next(derived.files, derived.state, [fresh]) == UpToDate()
    assert store.reads < 8


def test_chains_on_disk_are_planned_alike(tmp_path: Path) -> None:
    def grow(files: DatasetFiles, derived: DatasetFiles) -> list[Any]:
        numbers = Root(files=files)
        numbers.schema()
        numbers.data(3, watermark=1)
        numbers.schema(1)
        numbers.data(3, watermark=2)
        return [[i.event for i in s.inputs] for s in Derived(numbers, files=derived).run()]

    on_paper = grow(in_memory("numbers"), in_memory("derived"))
    assert grow(on_disk(tmp_path, "numbers"), on_disk(tmp_path, "derived")) == on_paper
    assert len(on_paper) == 2


OPERATIONS = ("data", "data", "data", "watermark", "repeat", "info", "schema", "vocab")


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[tuple[str, int, int]]]:
    """A number of inputs, and (operation, input, amount) in turn; the input of `run` says nothing."""
    inputs = draw(st.integers(1, 3))
    kinds = st.sampled_from((*OPERATIONS, "run", "run"))
    operation = st.tuples(kinds, st.integers(0, inputs - 1), st.integers(1, 4))
    return inputs, draw(st.lists(operation, max_size=30))


class Form:
    """The form that an input's records had when they were added."""

    def __init__(self, name: str) -> None:
        self.root = Root(name)
        self.version: int | None = None
        self.name = "event_time"
        self.of: dict[Multihash, tuple[int, str]] = {}

    def apply(self, operation: str, amount: int) -> None:
        match operation:
            case "schema":
                self.version = amount
                self.root.schema(amount)
            case "vocab":
                self.name = f"time{amount}"
                self.root.vocab(self.name)
            case "info":
                self.root.info()
            case "watermark":
                self.root.watermark((self.root.mark or 0) + amount)
            case "repeat" if self.root.mark is not None:
                repeat(self.root)
                self.root.marks.append(self.root.mark)
            case "data" if self.version is not None:
                self.root.data(amount)
                self.of[self.root.slices[-1].physical_hash] = self.version, self.name


@given(histories())
@settings(max_examples=80)
def test_steps_take_every_record_once_in_order_and_in_one_form(
    history: tuple[int, list[tuple[str, int, int]]],
) -> None:
    count, operations = history
    forms = [Form(f"input{i}") for i in range(count)]
    derived = Derived(*[form.root for form in forms])
    steps: list[PlannedStep] = []
    for operation, index, amount in operations:
        if operation == "run":
            steps += run_and_check(derived, forms)
        else:
            forms[index].apply(operation, amount)
    for form in forms:
        if form.version is None:
            form.apply("schema", 0)
    steps += run_and_check(derived, forms)
    for index, form in enumerate(forms):
        taken = [step.inputs[index] for step in steps]
        assert [s for item in taken for s in item.slices] == form.root.slices
        bounds = [i.interval for i in taken if i.interval is not None]
        assert all(a.end + 1 == b.start for a, b in pairwise(bounds))
        assert not bounds or (bounds[0].start, bounds[-1].end) == (0, form.root.last)
        seen = [m.event_time for item in taken for m in item.watermarks]
        assert seen == [at(mark) for mark in form.root.marks][: len(seen)]
        assert not form.root.mark or seen[-1] == at(form.root.mark)
        for before, item in pairwise(taken):
            known = before.watermarks[-1] if before.watermarks else before.known_watermark
            assert item.known_watermark == known
        for item in taken:
            form_now = {form.of[s.physical_hash] for s in item.slices}
            assert form_now <= {(len(item.schema.fields) - 1, item.vocabulary.event_time_column)}
    again = recorded(derived)
    declared = [step.schema or derived.state.schema for step in steps]
    for found, step, schema in zip(again, steps, declared, strict=True):
        assert found.step == dataclasses.replace(step, more=False, schema=schema)
    assert [r.event.query_inputs for r in again] == [tuple(i.event for i in s.inputs) for s in steps]


def run_and_check(derived: Derived, forms: list[Form]) -> list[PlannedStep]:
    """Execute to the end; a step says there is more exactly when there is."""
    steps = derived.run()
    assert [step.more for step in steps] == [True] * (len(steps) - 1) + [False] * bool(steps)
    waiting = any(form.version is None for form in forms)
    plan = derived.plan()
    assert isinstance(plan, UpToDate)
    assert (plan.reason is not None) == waiting
    return steps


def test_no_engine_reads_the_checkpoint_of_another_one() -> None:
    """It is named, as the chain asks for, and read again only by the engine that left it."""
    numbers, derived = grown()
    derived.run()
    for engine in ("spark", "odfchain-spark", "datafusion", "DataFusion", "flink"):
        event = transform_of(numbers)
        of_engine = dataclasses.replace(event.transform, engine=engine)
        derived.append(dataclasses.replace(event, transform=of_engine))
        numbers.data()
        derived.run()
    steps = [item.step for item in recorded(derived)]
    assert [step.prev_checkpoint is not None for step in steps] == [False, *[True] * 5]
    assert [step.read_checkpoint is not None for step in steps] == [False, True, True, False, True, False]
    numbers.data()
    assert derived.step().read_checkpoint == derived.step().prev_checkpoint
