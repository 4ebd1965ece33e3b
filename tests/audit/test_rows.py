"""Checks 8 to 13: what rows may not say, each in a slice whose hashes are right."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.limits import AUDIT
from odfchain.odf import events as ev
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.sources import MergeStrategySnapshot, ReadStepNdJson
from odfchain.odf.times import Timestamp
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import METADATA_KEY, describe
from tests.kit.commits import make_seeded
from tests.kit.recorded_dataset import SCHEMA, add, schema_event
from tests.kit.root_rows import slice_of
from tests.kit.verified import verify_dataset

BLOCK_TIME = Timestamp.parse("2000-01-01T00:00:00Z").epoch_ms
A, R, CF, CT = range(4)


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetFiles:
    return make_seeded(tmp_path / "dataset", schema_event())


def rows(start: int, *cities: str | None, op: list[int] | None = None, **columns: Any) -> pa.Table:
    """Rows of the cities, or columns of one's own."""
    count = len(cities)
    own: dict[str, Any] = {
        "offset": list(range(start, start + count)),
        "op": op or [A] * count,
        "system_time": [BLOCK_TIME] * count,
        "event_time": [1_000] * count,
        "city": list(cities),
    }
    return pa.table({n: pa.array(v, SCHEMA.field(n).type) for n, v in (own | columns).items()})


def put(dataset: DatasetFiles, table: pa.Table, **changes: Any) -> Path:
    """Append a slice with right hashes whatever its rows say; returns its file."""
    state = DatasetState.read(dataset.chain)
    path = dataset.folder / "staging" / "slice"
    pq.write_table(table, path)
    new = slice_of(path, 0 if state.last_offset is None else state.last_offset + 1)
    dataset.data.put_file(path, new.physical_hash)
    checkpoint = state.checkpoint.physical_hash if state.checkpoint else None
    event = ev.AddData(
        prev_offset=state.last_offset,
        prev_checkpoint=checkpoint,
        new_checkpoint=state.checkpoint,
        new_data=new,
        new_watermark=state.watermark,
    )
    add(dataset, dataclasses.replace(event, **changes), unchecked=True)
    return Path(dataset.data.locate(new.physical_hash))


def told(dataset: DatasetFiles) -> list[tuple[int, str]]:
    return [(fault.check, fault.message) for fault in verify_dataset(dataset).faults]


def fault_of(dataset: DatasetFiles, table: pa.Table, **changes: Any) -> tuple[int, str]:
    """The only fault of a dataset with this slice, which names it."""
    path = put(dataset, table, **changes)
    (fault,) = verify_dataset(dataset).faults
    assert fault.file == str(path)
    assert "\n" not in fault.message
    return fault.check, fault.message


# --- 8, 9 and 11: offsets, system columns and declared columns ---------------------------------------

A_RED_NAME = "\x1b[31m\nred"
UNPAIRED = "row at offset 1: a -C without the +C after it"
BAD: dict[str, tuple[pa.Table, int, str]] = {
    "a gap": (rows(0, "A", "B", "C", offset=[0, 1, 3]), 8, "row at offset 2 has offset 3; offsets have no gaps"),
    "offsets from elsewhere": (rows(7, "A", "B"), 8, "row at offset 0 has offset 7; offsets have no gaps"),
    "an unknown operation": (
        rows(0, "A", "B", op=[A, 4]), 9, "row at offset 1 has operation 4; known are 0 to 3",
    ),
    "a null offset": (
        rows(0, "A", "B", offset=[0, None]), 9, "the offset column has nulls, the first at offset 1",
    ),
    "system time after the block": (
        rows(0, "A", system_time=[BLOCK_TIME + 1]), 9,
        "row at offset 0: the system time is after that of the block, 2000-01-01T00:00:00Z",
    ),
    "system time that goes back": (
        rows(0, "A", "B", "C", system_time=[5, 6, 5]), 9, "row at offset 2: the system time goes back",
    ),
    "a -C at the end": (rows(0, "A", "A", op=[A, CF]), 10, UNPAIRED),
    "a -C that another row follows": (rows(0, "A", "A", "B", op=[A, CF, A]), 10, UNPAIRED),
    "a lone +C": (rows(0, "A", "B", op=[A, CT]), 10, "row at offset 1: a +C without the -C before it"),
    "control characters in a name": (
        rows(0, "A").append_column(A_RED_NAME, pa.array([1])), 11,
        "the slice has a column `\\x1b[31m red` that is not declared",
    ),
    "another type than declared": (
        rows(0, "A").set_column(4, "city", pa.array([1], pa.int32())), 11,
        "column `city` is declared as String, and the slice has Int32",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_rows_that_may_not_be(dataset: DatasetFiles, what: str) -> None:
    table, *expected = BAD[what]
    assert [*fault_of(dataset, table)] == expected


def test_offsets_begin_with_zero(dataset: DatasetFiles) -> None:
    """The first block with data cannot claim that there were records before it."""
    path = put(dataset, rows(8, "A"))
    event = DatasetState.read(dataset.chain).head_block.event
    claimed = dataclasses.replace(event.new_data, offset_interval=ev.OffsetInterval(start=8, end=8))
    other = make_seeded(dataset.folder.parent / "other", schema_event())
    other.data.put_file(path, claimed.physical_hash)
    add(other, dataclasses.replace(event, prev_offset=7, new_data=claimed))
    (fault,) = verify_dataset(other).faults
    assert (fault.check, Path(fault.file).name) == (8, str(other.chain.head()))
    assert fault.message == "prevOffset is 7, and there are no records before this block"


def test_a_partner_is_looked_for_across_batches(dataset: DatasetFiles) -> None:
    count = 65_536
    for start, then, faults in (
        (0, CT, []),
        (count + 1, A, [(10, f"row at offset {2 * count:,}: a -C without the +C after it")]),
    ):
        put(dataset, rows(start, *["A"] * (count + 1), op=[A] * (count - 1) + [CF, then]))
        assert told(dataset) == faults


def test_rows_of_several_system_times_are_noted(dataset: DatasetFiles) -> None:
    path = put(dataset, rows(0, "A", "B", system_time=[5, 6]))
    report = verify_dataset(dataset)
    assert report.ok
    assert f"{path}: rows of several system times, as in a slice that was compacted" in report.notes


def test_no_row_says_that_it_was_recorded_before_those_of_earlier_slices(dataset: DatasetFiles) -> None:
    put(dataset, rows(0, "A", system_time=[BLOCK_TIME - 5]))
    put(dataset, rows(1, "B", system_time=[BLOCK_TIME - 5]))
    backdated = put(dataset, rows(2, "C", "D", system_time=[BLOCK_TIME - 9, BLOCK_TIME]))
    put(dataset, rows(4, "E"))
    (fault,) = verify_dataset(dataset).faults
    assert (fault.check, fault.file, fault.sequence_number) == (9, str(backdated), 4)
    assert fault.message == "row at offset 2: the system time is before that of the slices before it"


@pytest.mark.parametrize("declared", [SCHEMA.names, [*SCHEMA.names, "city"]])
def test_a_column_that_is_there_twice(tmp_path: Path, declared: list[str]) -> None:
    """Readers take the one or the other, so rows would mean what the reader happens to take."""
    schema = pa.schema([SCHEMA.field(name) for name in declared])
    dataset = make_seeded(tmp_path / "dataset", schema_event(schema))
    table = rows(0, "A").append_column("city", pa.array(["B"]))
    assert fault_of(dataset, table) == (11, "the slice has more than one column `city`")


def test_a_schema_that_cannot_be_read_leaves_the_result_incomplete(tmp_path: Path) -> None:
    """Everything else is still checked; it is never clean."""
    dataset = make_seeded(tmp_path / "dataset", ev.SetDataSchema(raw_arrow_schema=b"no schema"))
    put(dataset, rows(0, "A"))
    report = verify_dataset(dataset)
    (item,) = report.unchecked
    assert (report.verdict, item.check, item.blocks) == ("incomplete", 11, (2,))
    assert item.message.startswith("the declared schema cannot be read: ")
    assert [report.state(check) for check in (8, 9, 11)] == ["passed", "passed", "notChecked"]
    assert fault_of(dataset, rows(1, "B", op=[4]))[0] == 9


ORDER = ["op", "offset", "system_time", "event_time", "city"]


@pytest.mark.parametrize(
    ("table", "system", "declared"),
    [
        (rows(0, "A").drop_columns(["op"]), "there is no column `op`",
         "column `op` is declared, and the slice does not have it"),
        (rows(0, "A").select(ORDER),
         f"the system columns do not come first and in their order, but {', '.join(ORDER[:4])}",
         "the columns of the slice are not in the declared order"),
    ],
    ids=["missing", "in another order"],
)  # fmt: skip
def test_system_columns(dataset: DatasetFiles, table: pa.Table, system: str, declared: str) -> None:
    put(dataset, table)
    assert told(dataset) == [(9, system), (11, declared)]


def test_a_null_in_a_column_that_is_declared_required(tmp_path: Path) -> None:
    schema = SCHEMA.set(4, pa.field("city", pa.string(), nullable=False))
    dataset = make_seeded(tmp_path / "dataset", schema_event(schema))
    put(dataset, rows(0, "A"))
    assert told(dataset) == []
    message = "column `city` is declared required and has nulls, the first at offset 2"
    assert fault_of(dataset, rows(1, "B", None)) == (11, message)


def test_system_columns_of_the_reference_are_as_declared(dataset: DatasetFiles, tmp_path: Path) -> None:
    schema = SCHEMA.set(0, pa.field("offset", pa.int64(), nullable=False))
    schema = schema.set(1, pa.field("op", pa.int32(), nullable=False))
    table = rows(0, "A", "B").cast(schema)
    put(dataset, table)
    assert [check for check, _ in told(dataset)] == [9, 9, 11, 11], "they are not declared so"
    dataset = make_seeded(tmp_path / "declared", schema_event(schema))
    put(dataset, table)
    report = verify_dataset(dataset)
    assert report.faults == []
    assert "column `op` is int32 instead of uint8, as the declared schema has it" in report.notes


def test_names_of_the_vocabulary_in_force(dataset: DatasetFiles) -> None:
    """Names that are changed when there is data are a fault; what follows is still read by them."""
    put(dataset, rows(0, "A"))
    add(dataset, ev.SetVocab(offset_column="nr"), unchecked=True)
    schema = SCHEMA.set(0, SCHEMA.field(0).with_name("nr"))
    add(dataset, schema_event(schema), unchecked=True)
    put(dataset, rows(1, "B").rename_columns(schema.names))
    assert [check for check, _ in told(dataset)] == [4, 4]
    put(dataset, rows(2, "C", offset=[5]).rename_columns(schema.names))
    assert (8, "row at offset 2 has offset 5; offsets have no gaps") in told(dataset)


# --- 10: what is taken back ------------------------------------------------------------------------


def test_what_is_taken_back_was_in_force(dataset: DatasetFiles) -> None:
    put(dataset, rows(0, "A", "B", None))
    put(dataset, rows(3, "A", "C", None, op=[CF, CT, R], system_time=[BLOCK_TIME] * 3))
    report = verify_dataset(dataset)
    assert (report.faults, report.state(10)) == ([], "passed")
    message = "row at offset 6 takes back values that no row in force has"
    assert fault_of(dataset, rows(6, "A", op=[R])) == (10, message)


@pytest.mark.parametrize(
    ("city", "time"), [("B", 1_001), ("b", 1_000), (None, 1_000)], ids=["time", "text", "null"]
)
def test_what_is_taken_back_equals_a_whole_row(dataset: DatasetFiles, city: str | None, time: int) -> None:
    put(dataset, rows(0, "A", "B"))
    check, _ = fault_of(dataset, rows(2, city, op=[R], event_time=[time]))
    assert check == 10


def test_a_row_is_taken_back_once(dataset: DatasetFiles) -> None:
    put(dataset, rows(0, "A", "A", "B"))
    put(dataset, rows(3, "A", "A", op=[R, R]))
    assert told(dataset) == []
    put(dataset, rows(5, "A", "A", "B", op=[R, R, R]))
    assert told(dataset) == [(10, "row at offset 5 takes back values that no row in force has (2 such rows)")]


def test_where_sources_have_several_keys_a_row_may_be_taken_back_by_each(dataset: DatasetFiles) -> None:
    for name, key in (("one", "city"), ("other", "event_time")):
        merge = MergeStrategySnapshot(primary_key=(key,))
        add(dataset, ev.AddPushSource(source_name=name, read=ReadStepNdJson(), merge=merge))
    put(dataset, rows(0, "A", "B"))
    put(dataset, rows(2, "A", "A", op=[R, R]))
    assert told(dataset) == []
    message = "row at offset 4 takes back values that no row before has"
    assert fault_of(dataset, rows(4, "C", op=[R])) == (10, message)


def test_rows_from_before_a_column_was_added_can_be_taken_back(dataset: DatasetFiles) -> None:
    put(dataset, rows(0, "A"))
    schema = SCHEMA.append(pa.field("size", pa.int64()))
    add(dataset, schema_event(schema))
    taken = rows(1, "A", op=[R]).append_column("size", pa.array([None], pa.int64()))
    put(dataset, taken)
    assert told(dataset) == []
    other = rows(2, "A", op=[R]).append_column("size", pa.array([0], pa.int64()))
    assert fault_of(dataset, other)[0] == 10


def test_what_is_taken_back_is_not_judged_without_all_slices(dataset: DatasetFiles) -> None:
    first = put(dataset, rows(0, "A"))
    put(dataset, rows(1, "A", op=[R]))
    first.unlink()
    report = verify_dataset(dataset)
    assert [fault.check for fault in report.faults] == [5]
    assert report.state(10) == "notChecked"


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1.5, float("nan")]),
        pa.array([True, False]),
        pa.array([b"\0", b"\xff"]),
        pa.array([[1, 2], []], pa.list_(pa.int64())),
        pa.array([{"x": 1}, {"x": None}]),
        pa.array([1, 2], pa.date32()),
        pa.array(["1.10", "2.20"]).cast(pa.decimal128(10, 2)),
    ],
    ids=lambda values: str(values.type),
)
def test_values_of_every_type_are_compared(dataset: DatasetFiles, values: pa.Array) -> None:
    schema = SCHEMA.append(pa.field("v", values.type))
    add(dataset, schema_event(schema))
    put(dataset, rows(0, "A", "B").append_column("v", values))
    put(dataset, rows(2, "A", "B", op=[R, R]).append_column("v", values))
    assert told(dataset) == []
    put(dataset, rows(4, "A", "B").append_column("v", values))
    swapped = values.take(pa.array([1, 0]))
    put(dataset, rows(6, "A", "B", op=[R, R]).append_column("v", swapped))
    (fault,) = verify_dataset(dataset).faults
    assert (fault.check, "2 such rows" in fault.message) == (10, True)


# --- 12: watermarks --------------------------------------------------------------------------------


def mark(ms: int) -> Timestamp:
    return Timestamp.from_epoch_ms(ms)


def test_a_watermark_ahead_of_the_data(dataset: DatasetFiles) -> None:
    put(dataset, rows(0, "A", event_time=[5_000]), new_watermark=mark(4_000))
    put(dataset, rows(1, "B", event_time=[1_000]), new_watermark=mark(5_000))
    assert told(dataset) == []
    put(dataset, rows(2, "C", event_time=[5_500]), new_watermark=mark(5_501))
    (fault,) = verify_dataset(dataset).faults
    assert (fault.check, fault.sequence_number, Path(fault.file).parent.name) == (12, 4, "blocks")
    assert fault.message == (
        "the watermark 1970-01-01T00:00:05.501Z is ahead of the data, whose latest event time is "
        "1970-01-01T00:00:05.500Z"
    )


def test_a_watermark_that_goes_back(dataset: DatasetFiles) -> None:
    put(dataset, rows(0, "A"), new_watermark=mark(900))
    put(dataset, rows(1, "B"), new_watermark=mark(800))
    put(dataset, rows(2, "C"), new_watermark=None)
    report = verify_dataset(dataset)
    assert [(f.check, f.sequence_number) for f in report.faults] == [(4, 3), (12, 3), (4, 4), (12, 4)]
    assert report.faults[1].message.startswith(
        "the watermark goes back from 1970-01-01T00:00:00.900Z to 1970"
    )


def test_a_watermark_that_was_set_by_hand_is_a_note(dataset: DatasetFiles) -> None:
    put(dataset, rows(0, "A"))
    last = DatasetState.read(dataset.chain).last_offset
    add(dataset, ev.AddData(prev_offset=last, new_watermark=mark(9_000)))
    put(dataset, rows(1, "B"))
    report = verify_dataset(dataset)
    assert report.ok
    assert "block 3 sets the watermark 1970-01-01T00:00:09Z by hand" in report.notes


# --- 13: state checkpoints -------------------------------------------------------------------------


def with_state(dataset: DatasetFiles, table: pa.Table, last: int, key: tuple[str, ...] = ("city",)) -> Path:
    """Append a block that names a state checkpoint with these rows."""
    path = dataset.folder / "staging" / "state"
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: describe(key, last)}), path)
    physical, size = hash_file(path)
    dataset.checkpoints.put_file(path, physical)
    state = DatasetState.read(dataset.chain)
    new = ev.Checkpoint(physical_hash=physical, size=size)
    add(dataset, ev.AddData(prev_offset=state.last_offset, new_checkpoint=new))
    return Path(dataset.checkpoints.locate(physical))


def kept(*cities: str, offset: list[int], op: list[int]) -> pa.Table:
    return rows(0, *cities, offset=offset, op=op).drop_columns(["system_time"])


@pytest.fixture
def changed(dataset: DatasetFiles) -> DatasetFiles:
    """A, B, C; B is taken back, C is corrected at another time."""
    put(dataset, rows(0, "A", "B", "C"))
    put(dataset, rows(3, "B", "C", "C", op=[R, CF, CT], event_time=[1_000, 1_000, 2_000]))
    return dataset


def test_a_state_that_follows_from_the_slices(changed: DatasetFiles) -> None:
    table = kept("A", "C", offset=[0, 5], op=[A, CT])
    with_state(changed, table.set_column(2, "event_time", pa.array([1_000, 2_000], SCHEMA.field(3).type)), 5)
    report = verify_dataset(changed)
    assert (report.faults, report.state(13), report.done[13]) == ([], "passed", 1)


STATES: dict[str, tuple[pa.Table, int, str]] = {
    "a row too few": (kept("A", offset=[0], op=[A]), 5, "the state has 1 rows, its slices leave 2 in force"),
    "a retracted row": (
        kept("A", "B", "C", offset=[0, 1, 2], op=[A, A, A]),
        5,
        "the state has 3 rows, its slices leave 2 in force",
    ),
    "an old value": (
        kept("A", "C", offset=[0, 5], op=[A, CT]),
        5,
        "the state does not have the row at offset 5 as it is recorded",
    ),
    "a row from later than it says": (
        kept("A", "B", "C", offset=[0, 1, 3], op=[A, A, A]),
        2,
        "the state cannot be read: it has offsets that its block does not name",
    ),
    "records that do not exist": (
        kept("A", offset=[0], op=[A]),
        6,
        "the state is said to be as of offset 6, which comes after block 4",
    ),
}


@pytest.mark.parametrize("what", STATES)
def test_a_state_that_does_not_follow_from_the_slices(changed: DatasetFiles, what: str) -> None:
    table, last, message = STATES[what]
    path = with_state(changed, table, last)
    (fault,) = verify_dataset(changed).faults
    assert (fault.check, fault.file, fault.sequence_number) == (13, str(path), 4)
    assert fault.message == message


def test_limits_leave_a_check_out_and_say_so(changed: DatasetFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    with_state(changed, kept("A", offset=[0], op=[A]), 5)
    small = dataclasses.replace(AUDIT, retractions=1, state_rows=5)
    monkeypatch.setattr("odfchain.audit.state_checks.AUDIT", small)
    report = verify_dataset(changed)
    assert (report.ok, report.state(10), report.state(13)) == (True, "notChecked", "notChecked")
    assert report.reasons[10] == "2 rows are taken back; no more than 1 are compared"
    assert report.reasons[13] == "states of more than 5 records are not computed anew"
