"""Compaction: the same records in fewer slices, the same state, and who breaks is known before."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.chain.chain import MetadataChain
from odfchain.errors import (
    NameCollisionError,
    ObjectCorruptedError,
    RefConflictError,
    UsageError,
    WorkspaceError,
)
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import encode_raw_arrow, from_arrow
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import hash_parquet
from odfchain.slices.writer import ObservedParquet, PhysicalHash
from odfchain.upkeep.compact import PROVENANCE, BatchLimits, batches
from odfchain.upkeep.garbage import collect
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.options import GcOptions
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import root_rows
from tests.kit.recorded_dataset import SCHEMA, add, add_slice, slice_of
from tests.kit.sharing import Sharing
from tests.kit.support import (
    RAW_SCHEMA,
    ChainBuilder,
    Result,
    checkpoint,
    data_slice,
    memory_chain,
    unchanged,
)
from tests.kit.upkeep_scenes import (
    T0,
    everything,
    hashes,
    head_of,
    killed_everywhere,
    later,
    new_workspace,
    reader_of,
    records,
    root,
)
from tests.kit.verified import verify_dataset


def cities(workspace: WorkspaceFiles) -> Dataset:
    return Workspace(workspace)["cities"]


def compact(workspace: WorkspaceFiles, **options: Any) -> DatasetFiles:
    cities(workspace).compact(cities(workspace).plan_compact(**options))
    return cities(workspace)._files


def kinds(dataset: DatasetFiles) -> list[str]:
    return [found.block.event.KIND for found in dataset.chain.walk()][::-1]


def time(ms: int) -> Timestamp:
    return Timestamp.from_epoch_ms(946_684_800_000 + ms)


def add_data(dataset: DatasetFiles, *cities: str, **fields: Any) -> None:
    """A block of data (or none) with these fields."""
    state = DatasetState.read(dataset.chain)
    start = 0 if state.last_offset is None else state.last_offset + 1
    new = slice_of(dataset, start, list(cities)) if cities else None
    fields = {"prev_offset": state.last_offset, "new_data": new, "new_watermark": state.watermark} | fields
    add(dataset, ev.AddData(**fields))


def state_event(dataset: DatasetFiles, source: str, value: str, *cities: str) -> None:
    state = ev.SourceState(source_name=source, kind="odf/etag", value=value)
    add_data(dataset, *cities, new_source_state=state)


def watermark(dataset: DatasetFiles, ms: int) -> None:
    add_data(dataset, new_watermark=time(ms))


# --- hard: records and state -----------------------------------------------------------------------------


def test_the_records_are_the_same_in_one_slice(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace, slices=5)
    before = records(dataset)
    after = compact(workspace)
    assert records(after).equals(before)
    assert kinds(after) == ["Seed", "SetDataSchema", "AddData"]
    assert len(DatasetState.read(after.chain).slices()) == 1
    assert verify_dataset(after).faults == []
    assert after.id == dataset.id


def test_the_merged_file_is_the_one_that_a_single_write_makes(
    workspace: WorkspaceFiles, tmp_path: Path
) -> None:
    """Merging is no second way of writing: same settings, same bytes, same logical hash."""
    dataset = root(workspace)
    for city in ("A", "B", "C"):
        add_slice(dataset, [city])
    rows = records(dataset)
    (merged,) = DatasetState.read(compact(workspace).chain).slices()
    physical = PhysicalHash()
    with ObservedParquet(tmp_path / "at once.parquet", SCHEMA, ev.DatasetVocabulary(), [physical]) as file:
        for batch in rows.to_batches():
            file.write(batch)
    assert physical.hash == merged.slice.physical_hash
    made = dataset.data.verified_path(merged.slice.physical_hash)
    assert hash_parquet(made) == (merged.slice.logical_hash, 3)
    assert made.stat().st_size == merged.slice.size


def test_everything_that_is_not_data_stays_in_its_place(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace, slices=2)
    add(dataset, ev.SetInfo(description="first"))
    add_slice(dataset, ["C"])
    add(dataset, ev.SetLicense(short_name="x", name="X", website_url="https://example.com"))
    for city in ("D", "E"):
        add_slice(dataset, [city])
    before = records(dataset)
    after = compact(workspace)
    assert kinds(after) == [
        "Seed", "SetDataSchema", "AddData", "SetInfo", "AddData", "SetLicense", "AddData",
    ]  # fmt: skip
    assert records(after).equals(before)
    assert verify_dataset(after).faults == []


def test_watermarks_set_by_hand_are_not_lost_beside_a_single_slice(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace)
    watermark(dataset, 1)
    add_slice(dataset, ["A"])
    watermark(dataset, 7)
    add(dataset, ev.SetInfo(description="between"))
    watermark(dataset, 9)
    watermark(dataset, 12)
    after = compact(workspace)
    marks = [b.block.event.new_watermark for b in after.chain.walk() if isinstance(b.block.event, ev.AddData)]
    assert marks == [time(12), time(7), time(1), time(1)]
    assert verify_dataset(after).faults == []


def test_states_of_several_sources_are_what_they_were(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace)
    state_event(dataset, "a", "1", "A")
    state_event(dataset, "a", "2", "B")
    state_event(dataset, "b", "1", "C")
    watermark(dataset, 3)
    state_event(dataset, "b", "2", "D")
    after = compact(workspace)
    state = DatasetState.read(after.chain)
    found = {name: state.state_of_source(name) for name in "ab"}
    assert {name: s[0].value for name, s in found.items() if s} == {"a": "2", "b": "2"}
    assert kinds(after)[2:] == ["AddData"] * 4
    assert state.watermark == time(3)
    assert verify_dataset(after).faults == []


def test_states_without_data_join_the_slices_around_them(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace)
    state_event(dataset, "a", "1", "A")
    state_event(dataset, "a", "2")
    state_event(dataset, "a", "3", "B")
    state_event(dataset, "a", "4")
    after = compact(workspace)
    assert kinds(after)[2:] == ["AddData"]
    assert DatasetState.read(after.chain).state_of_source("a")[0].value == "4"


def test_checkpoints_go_on(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace)
    for index in range(4):
        last = DatasetState.read(dataset.chain).checkpoint
        made = ev.Checkpoint(physical_hash=dataset.checkpoints.put(b"state %d" % index), size=7)
        before = last.physical_hash if last else None
        add_data(dataset, f"{index}", prev_checkpoint=before, new_checkpoint=made)
    after = compact(workspace, limits=BatchLimits(records=2))
    assert len(kinds(after)) == 4
    assert DatasetState.read(after.chain).checkpoint == made
    assert verify_dataset(after).faults == []


def test_blocks_keep_their_times_and_those_before_the_first_merge_stay(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace, slices=1)
    add(dataset, ev.SetInfo(description="x"))
    add_slice(dataset, ["B"])
    add_slice(dataset, ["C"])
    before = hashes(dataset)
    plan = cities(workspace).plan_compact()
    assert plan.replaced == tuple(before[:3:-1])
    after = compact(workspace)
    assert hashes(after)[:4] == before[:4]
    assert {b.block.system_time for b in after.chain.walk()} == {T0}


@pytest.mark.parametrize(
    ("limits", "left"),
    [(BatchLimits(records=3), [3, 3, 4]), (BatchLimits(records=6), [6, 4]),
     (BatchLimits(records=10), [10]), (BatchLimits(bytes=1), [1, 2, 3, 4])],
)  # fmt: skip
def test_slices_are_merged_up_to_the_limits_and_larger_ones_stay(
    workspace: WorkspaceFiles, limits: BatchLimits, left: list[int]
) -> None:
    root(workspace, slices=4)
    after = compact(workspace, limits=limits)
    assert [s.slice.offset_interval.count for s in DatasetState.read(after.chain).slices()] == left


def test_slices_with_other_columns_are_not_merged(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace)
    add_slice(dataset, ["A"])
    state = DatasetState.read(dataset.chain)
    narrow = pq.read_table(dataset.data.verified_path(state.slices()[0].slice.physical_hash))
    path = dataset.folder / "staging" / "narrow"
    table = narrow.drop_columns(["city"])
    offsets = pa.array([1], pa.uint64())
    pq.write_table(table.set_column(0, table.schema.field("offset"), offsets), path)
    new = root_rows.slice_of(path, 1)
    dataset.data.put_file(path, new.physical_hash)
    add(dataset, ev.AddData(prev_offset=0, new_data=new))
    assert cities(workspace).plan_compact().nothing


# --- the batches, as a function --------------------------------------------------------------------------

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.sampled_from([None, "a", "b"]), st.integers(1, 4), st.booleans()),
        st.tuples(st.just("state"), st.sampled_from(["a", "b"]), st.just(0), st.booleans()),
        st.tuples(st.just("watermark"), st.none(), st.just(0), st.booleans()),
        st.tuples(st.just("info"), st.none(), st.just(0), st.booleans()),
    ),
    max_size=14,
)


def chain_of(plan: list[tuple[str, str | None, int, bool]]) -> MetadataChain:
    chain = memory_chain()
    builder = ChainBuilder(chain)
    builder.seed()
    builder.append(RAW_SCHEMA)
    last: ev.AddData = ev.AddData()
    for index, (kind, source, rows, flag) in enumerate(plan):
        if kind == "info":
            builder.append(ev.SetInfo(description=f"{index}"))
            continue
        start = 0 if last.last_offset is None else last.last_offset + 1
        made = ev.AddData(
            prev_offset=last.last_offset,
            prev_checkpoint=last.new_checkpoint.physical_hash if last.new_checkpoint else None,
            new_data=data_slice(start, start + rows - 1) if rows else None,
            new_checkpoint=checkpoint(f"{index}") if flag and kind == "data" else last.new_checkpoint,
            new_watermark=time(index) if flag or kind == "watermark" else last.new_watermark,
            new_source_state=(
                ev.SourceState(source_name=source, kind="k", value=f"{index}") if source else None
            ),
        )
        builder.append(made)
        last = made
    return chain


def meaning(state: DatasetState) -> dict[str, object]:
    states = {name: state.state_of_source(name) for name in "ab"}
    return {
        "watermark": state.watermark,
        "offset": state.last_offset,
        "checkpoint": state.checkpoint,
        "sources": {name: found[0] for name, found in states.items() if found},
    }


@given(EVENTS, st.integers(1, 9))
def test_after_every_other_event_the_state_is_what_it_was(
    plan: list[tuple[str, str | None, int, bool]], most: int
) -> None:
    before = chain_of(plan)
    blocks = [found.block for found in before.walk()][::-1]
    after = memory_chain()
    builder = ChainBuilder(after)
    previous: ev.AddData | None = None
    for batch in batches(blocks, BatchLimits(records=most)):
        event = batch.blocks[-1].event
        if isinstance(event, ev.AddData):
            merged = [s.offset_interval for s in batch.slices]
            new = data_slice(merged[0].start, merged[-1].end) if merged else None
            assert len(merged) < 2 or merged[-1].end - merged[0].start < most
            event = batch.event(new, previous)
            if previous is not None and event == dataclasses.replace(
                previous,
                new_data=None, prev_offset=previous.last_offset,
                prev_checkpoint=previous.new_checkpoint and previous.new_checkpoint.physical_hash,
            ):  # fmt: skip
                continue
            previous = event
        builder.append(event)
    assert meaning(DatasetState.read(after)) == meaning(DatasetState.read(before))
    marks = {
        b.block.event.description: meaning(DatasetState.read(before, b.hash))
        for b in before.walk() if isinstance(b.block.event, ev.SetInfo)
    }  # fmt: skip
    for found in after.walk():
        if isinstance(found.block.event, ev.SetInfo):
            assert meaning(DatasetState.read(after, found.hash)) == marks[found.block.event.description]


# --- hard: what it refuses, and who breaks ---------------------------------------------------------------


def test_there_may_be_nothing_to_do(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace, slices=1)
    plan = cities(workspace).plan_compact()
    with unchanged(dataset.folder):
        assert plan.nothing
        assert cities(workspace).compact(plan) == head_of(dataset)
    compact(workspace)
    assert cities(workspace).plan_compact().nothing


def test_who_breaks_is_known_before(workspace: WorkspaceFiles, tmp_path: Path) -> None:
    dataset = root(workspace, slices=3)
    chain = hashes(dataset)
    reader_of(workspace, dataset.id, [chain[1]], "safe")
    reader_of(workspace, dataset.id, [chain[2], chain[4]], "broken")
    Sharing(workspace).push("cities", (tmp_path / "copy").as_uri())
    plan = cities(workspace).plan_compact()
    assert [(d.alias, d.transactions) for d in plan.dependents] == [("broken", 2)]
    assert [len(p.has) for p in plan.places] == [3]


def test_a_derivative_is_not_merged_and_its_data_can_be_given_up(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace, slices=2)
    derived = reader_of(workspace, dataset.id, hashes(dataset)[-1:])
    with pytest.raises(UsageError, match="derivative"):
        Workspace(workspace)["derived"].plan_compact()
    before = hashes(derived)
    Workspace(workspace)["derived"].compact(Workspace(workspace)["derived"].plan_compact(metadata_only=True))
    assert kinds(derived) == ["Seed", "SetTransform"]
    assert hashes(derived)[1] not in before, "a copy sees another history, not one that lags behind"


def test_data_of_a_root_that_are_nowhere_else_are_not_given_up(
    workspace: WorkspaceFiles, tmp_path: Path
) -> None:
    dataset = root(workspace, slices=2)
    add(dataset, ev.SetInfo(description="stays"))
    with unchanged(dataset.folder), pytest.raises(WorkspaceError, match="nowhere else"):
        compact(workspace, metadata_only=True)
    Sharing(workspace).push("cities", (tmp_path / "copy").as_uri())
    after = compact(workspace, metadata_only=True)
    assert kinds(after) == ["Seed", "SetDataSchema", "SetInfo"]
    assert records(after).num_rows == 0


def test_the_old_history_is_kept_until_it_is_dropped(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace, slices=3)
    old, before = head_of(dataset), records(dataset)
    after = compact(workspace)
    collect(after, now=later)
    assert DatasetState.read(after.chain, old).record_count == before.num_rows
    assert everything(after)
    collect(after, GcOptions(drop_refs=True), now=later)
    assert not after.chain.contains(old)
    assert len(list(after.data.names())) == 1
    assert records(workspace.dataset("cities")).equals(before)


def test_a_head_that_moved_since_it_was_planned_is_left_there(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace, slices=3)
    plan = cities(workspace).plan_compact()
    add_slice(dataset, ["faster"])
    winner = head_of(dataset)
    with pytest.raises(RefConflictError):
        cities(workspace).compact(plan)
    assert head_of(dataset) == winner


@pytest.mark.parametrize("damage", ["bytes", "offsets"])
def test_a_slice_that_is_not_what_its_block_says_is_not_merged(
    workspace: WorkspaceFiles, damage: str
) -> None:
    dataset = root(workspace, slices=2)
    if damage == "bytes":
        path = next((dataset.folder / "data").iterdir())
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    else:
        add_slice(dataset, ["A", "B"], offset_interval=ev.OffsetInterval(start=3, end=3))
    head = head_of(dataset)
    with pytest.raises(ObjectCorruptedError):
        compact(workspace)
    assert head_of(dataset) == head
    assert [p for p in (dataset.folder / "staging").iterdir() if p.name != ".lock"] == []


def test_killed_at_any_moment_the_dataset_is_as_before_or_as_after(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    dataset = root(new_workspace(tmp_path / "template"), slices=3)
    old, before = head_of(dataset), records(dataset)
    heads = set()
    copies = killed_everywhere(tmp_path / "template", tmp_path / "killed", "hard", step=2)
    record_property("kills", len(copies))
    for killed in copies:
        found = killed.dataset("cities")
        assert records(found).equals(before)
        assert everything(found)
        heads.add(head_of(found) == old)
    assert heads == {True, False}


# --- soft ------------------------------------------------------------------------------------------------


def test_a_new_dataset_holds_the_same_records_and_says_where_they_are_from(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace, slices=2)
    add(dataset, ev.SetInfo(description="cities of the world", keywords=("geo",)))
    readme = ev.AttachmentEmbedded(path="README.md", content="# Cities")
    add(dataset, ev.SetAttachments(attachments=ev.AttachmentsEmbedded(items=(readme,))))
    watermark(dataset, 5)
    add_slice(dataset, ["last"])
    with unchanged(dataset.folder):
        made = cities(workspace).soft_compact("fewer")._files
    assert made.alias == DatasetAlias.parse("fewer")
    assert made.id != dataset.id
    assert records(made).equals(records(dataset))
    state = DatasetState.read(made.chain)
    assert [ref.slice.offset_interval.count for ref in state.slices()] == [3, 1]
    assert state.watermark == time(5)
    assert verify_dataset(made).faults == []
    found = made.chain.nearest("SetAttachments")
    assert isinstance(found.block.event, ev.SetAttachments)
    items = {item.path: item.content for item in found.block.event.attachments.items}
    assert items["README.md"] == "# Cities"
    for fact in (str(dataset.id), str(head_of(dataset)), "blocks: 8", "records: 4"):
        assert fact in items[PROVENANCE]


def test_schemas_stay_with_the_slices_they_describe(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace, slices=2)
    wider = from_arrow(SCHEMA.append(pa.field("size", pa.int64())))
    add(dataset, ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(wider)))
    add_slice(dataset, ["after"])
    made = cities(workspace).soft_compact("fewer")._files
    assert kinds(made) == ["Seed", "SetAttachments", "SetDataSchema", "AddData", "SetDataSchema", "AddData"]
    assert records(made).equals(records(dataset))


def test_a_taken_name_and_a_derivative_are_refused(workspace: WorkspaceFiles) -> None:
    dataset = root(workspace, slices=2)
    reader_of(workspace, dataset.id, hashes(dataset)[-1:])
    with pytest.raises(NameCollisionError):
        cities(workspace).plan_soft_compact("Derived")
    with pytest.raises(UsageError):
        Workspace(workspace)["derived"].plan_soft_compact("other")


def test_killed_at_any_moment_there_is_a_whole_new_dataset_or_none(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    dataset = root(new_workspace(tmp_path / "template"), slices=3)
    before = records(dataset)
    made = set()
    copies = killed_everywhere(tmp_path / "template", tmp_path / "killed", "soft", step=3)
    record_property("kills", len(copies))
    for killed in copies:
        assert records(killed.dataset("cities")).equals(before)
        names = {str(found.alias) for found in killed.datasets()}
        made.add("fewer" in names)
        if "fewer" in names:
            assert records(killed.dataset("fewer")).equals(before)
        else:
            Workspace(killed)["cities"].soft_compact(Workspace(killed)["cities"].plan_soft_compact("fewer"))
            assert records(killed.dataset("fewer")).equals(before)
    assert made == {True, False}


# --- the command -----------------------------------------------------------------------------------------


def test_the_command_lists_who_breaks_and_asks_before_it_starts(
    workspace: WorkspaceFiles, tmp_path: Path, run: Callable[..., Result]
) -> None:
    dataset = root(workspace, slices=3)
    reader_of(workspace, dataset.id, hashes(dataset)[-1:], "broken")
    at = ("-w", tmp_path / "w")
    with unchanged(dataset.folder):
        result = run(*at, "compact", "cities", "--hard", "--dry-run", "-o", "json")
        (row,) = result.rows
        assert (row["slicesBefore"], row["slices"], row["status"]) == (3, 1, "would be compacted")
        result = run(*at, "compact", "cities", "--hard")
        assert result.code == 2
        assert "breaks broken" in result.err
    result = run(*at, "-y", "compact", "cities", "--hard", "--verify", "-o", "json")
    assert (result.code, result.rows[0]["status"]) == (0, "compacted")
    assert result.rows[0]["head"] == str(head_of(dataset))


def test_the_command_verifies_first_when_it_is_told_to(
    workspace: WorkspaceFiles, tmp_path: Path, run: Callable[..., Result]
) -> None:
    dataset = root(workspace)
    add_slice(dataset, ["A"], logical_hash=data_slice(0, 0).logical_hash)
    add_slice(dataset, ["B"])
    head = head_of(dataset)
    result = run("-w", tmp_path / "w", "-y", "compact", "cities", "--hard", "--verify")
    assert result.code == 6
    assert "verification found 1 fault" in result.err
    assert head_of(dataset) == head


@pytest.mark.parametrize(
    "args", [(), ("--soft",), ("--hard", "--as", "x"), ("--soft", "--as", "x", "--keep-metadata-only")]
)
def test_the_command_wants_to_know_what_is_meant(
    workspace: WorkspaceFiles, tmp_path: Path, run: Callable[..., Result], args: tuple[str, ...]
) -> None:
    root(workspace, slices=2)
    assert run("-w", tmp_path / "w", "compact", "cities", *args).code == 2


def test_the_soft_command(workspace: WorkspaceFiles, tmp_path: Path, run: Callable[..., Result]) -> None:
    dataset = root(workspace, slices=3)
    at = ("-w", tmp_path / "w", "compact", "cities", "--soft", "--as", "fewer", "-o", "json")
    assert run(*at, "--dry-run").rows[0]["status"] == "would be made"
    assert len(list(workspace.datasets())) == 1
    (row,) = run(*at).rows
    assert row["id"] == str(workspace.dataset("fewer").id)
    assert (row["slicesBefore"], row["slices"], row["fromHead"]) == (3, 1, str(head_of(dataset)))
