"""Verification: a clean dataset passes; whatever is damaged is found, named, and does not hide the rest."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.audit.chain_checks import StoredBlock
from odfchain.audit.report import CHECKS, STATISTICS, Report
from odfchain.audit.row_checks import SchemaInForce
from odfchain.chain.chain import link_blocks
from odfchain.errors import ObjectCorruptedError
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.identity import Multihash
from odfchain.odf.names import RemoteDatasetId
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import hash_parquet
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.commits import make_seeded
from tests.kit.recorded_dataset import SCHEMA, add, add_slice, schema_event
from tests.kit.support import execute, hash_of, seeded_id, set_transform
from tests.kit.verified import verify_dataset

T = Timestamp.parse("2000-01-01T00:00:00Z")
CHECKPOINT = b"a checkpoint"
BY_HAND = "block 4 sets the watermark 2000-01-01T00:00:00Z by hand"
UNSIGNED = "unsigned commits since block 0: there is no signature, or it was stripped"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seed, schema, two slices, a checkpoint, a third slice."""
    folder = tmp_path_factory.mktemp("template") / "dataset"
    dataset = make_seeded(folder, schema_event())
    add_slice(dataset, ["A", "B"])
    add_slice(dataset, ["C"])
    state = DatasetState.read(dataset.chain)
    checkpoint = ev.Checkpoint(physical_hash=dataset.checkpoints.put(CHECKPOINT), size=len(CHECKPOINT))
    add(dataset, ev.AddData(prev_offset=state.last_offset, new_checkpoint=checkpoint, new_watermark=T))
    add_slice(dataset, ["D"])
    return folder


@pytest.fixture
def dataset(template: Path, tmp_path: Path) -> DatasetFiles:
    shutil.copytree(template, tmp_path / "dataset")
    return DatasetFiles.open(tmp_path / "dataset")


def found(report: Report) -> list[tuple[int, str]]:
    """Checks that failed, and the files they name."""
    return [(fault.check, Path(fault.file).name) for fault in report.faults]


def block_at(dataset: DatasetFiles, number: int) -> Path:
    (name,) = [str(b.hash) for b in dataset.chain.walk() if b.block.sequence_number == number]
    return dataset.folder / "blocks" / name


def slice_at(dataset: DatasetFiles, index: int) -> Path:
    slices = DatasetState.read(dataset.chain).slices()
    return dataset.folder / "data" / str(slices[index].slice.physical_hash)


def checkpoint_of(dataset: DatasetFiles) -> Path:
    return next((dataset.folder / "checkpoints").iterdir())


def flip(path: Path, position: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_a_clean_dataset_passes(dataset: DatasetFiles) -> None:
    report = verify_dataset(dataset)
    assert (report.ok, report.faults, report.verdict) == (True, [], "clean")
    assert report.notes == [BY_HAND, UNSIGNED]
    assert [report.state(n) for n in CHECKS if n <= 16] == [
        *["passed"] * 9, "notApplicable", "passed", "passed", "notChecked", "notApplicable", "notApplicable", "notChecked",
    ]  # fmt: skip
    assert {n for n in CHECKS if n > 16 and report.state(n) != "notApplicable"} == {STATISTICS}
    assert report.state(STATISTICS) == "passed"
    assert report.reasons == {13: "checkpoints of engines are compared by a replay only", 16: UNSIGNED}
    assert (report.blocks, report.slices, report.records) == (6, 3, 4)
    assert report.data_bytes == sum(p.stat().st_size for p in (dataset.folder / "data").iterdir())
    assert report.head == str(dataset.chain.head())
    assert report.dataset_id == str(dataset.id)


PLACES: dict[str, tuple[Callable[[DatasetFiles], Path], int]] = {
    "first block": (lambda d: block_at(d, 0), 2),
    "block in the middle": (lambda d: block_at(d, 2), 2),
    "head block": (lambda d: block_at(d, 5), 2),
    "first slice": (lambda d: slice_at(d, 0), 6),
    "last slice": (lambda d: slice_at(d, 2), 6),
    "checkpoint": (checkpoint_of, 6),
}


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
@pytest.mark.parametrize("place", PLACES)
def test_a_damaged_file(dataset: DatasetFiles, place: str, damage: str) -> None:
    """`test_damage` has every bit and every length of them."""
    where, check = PLACES[place]
    path = where(dataset)
    if damage == "flipped":
        flip(path)
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    faults = found(verify_dataset(dataset))
    assert (check if damage == "flipped" or check == 2 else 5, path.name) in faults
    assert damage == "gone" or {name for _, name in faults} == {path.name}, "nothing else is accused"


@pytest.mark.parametrize(
    ("place", "make"), [("first slice", Path.mkdir), *((place, os.mkfifo) for place in PLACES)]
)
def test_what_is_no_file_is_a_fault(dataset: DatasetFiles, place: str, make: Callable[[Path], None]) -> None:
    where, check = PLACES[place]
    path = where(dataset)
    path.unlink()
    make(path)
    assert (2 if check == 2 else 5, path.name) in found(verify_dataset(dataset))


def test_a_block_file_of_any_size_is_not_read_into_memory(dataset: DatasetFiles) -> None:
    path = block_at(dataset, 2)
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.truncate(1 << 40)  # sparse
    (fault,) = verify_dataset(dataset).faults
    assert (fault.check, fault.file) == (2, str(path))
    assert fault.message == "the block cannot be read: it has more than 1,048,576 bytes"
    with pytest.raises(ObjectCorruptedError, match="a block has at most 1,048,576"):
        DatasetFiles.open(dataset.folder).chain.get(Multihash.parse(path.name))


BOMB = """
import resource, sys
from pathlib import Path
from odfchain.workspace.options import VerifyOptions
from odfchain.audit.dataset_checks import examine
from odfchain.workspace.dataset_files import DatasetFiles

dataset = DatasetFiles.open(Path(sys.argv[1]))
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (400 << 20), used + (400 << 20)))
report = examine(dataset, VerifyOptions(jobs=1)).report
print(report.verdict, [(item.check, item.blocks) for item in report.unchecked], report.faults)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits memory as Linux does")
def test_rows_for_which_memory_does_not_suffice_accuse_nobody(tmp_path: Path) -> None:
    """One long value, written once and named by every row: 20 GB from a file of a few kilobytes."""
    dataset = make_seeded(tmp_path / "dataset", schema_event())
    count, time = 100_000, pa.timestamp("ms", "UTC")
    same = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * 200_000]))
    zeros = pa.array([0] * count)
    columns = [
        pa.array(range(count), pa.uint64()),
        zeros.cast(pa.uint8()),
        zeros.cast(time),
        zeros.cast(time),
    ]
    table = pa.table([*columns, same], names=SCHEMA.names)
    path = dataset.folder / "staging" / "slice"
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30, store_schema=False)
    name, size = hash_file(path)
    dataset.data.put_file(path, name)
    offsets = ev.OffsetInterval(start=0, end=count - 1)
    new = ev.DataSlice(logical_hash=name, physical_hash=name, offset_interval=offsets, size=size)
    add(dataset, ev.AddData(new_data=new))
    command = [sys.executable, "-c", BOMB, str(dataset.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "incomplete [(7, (2,))] []\n"


@pytest.mark.parametrize("kind", DatasetKind)
def test_records_that_the_kind_of_dataset_does_not_have(tmp_path: Path, kind: DatasetKind) -> None:
    """A derivative's records follow from its query: what is added to them would never be replayed."""
    is_root = kind is DatasetKind.ROOT
    records = execute("x", new_watermark=T) if is_root else ev.AddData(new_watermark=T)
    dataset = make_seeded(tmp_path / "dataset", set_transform("x"), schema_event(), records, kind=kind)
    report = verify_dataset(dataset)
    assert found(report) == [(4, block_at(dataset, number).name) for number in ([1, 3] if is_root else [3])]
    assert f" is no event of a {kind.value.lower()} dataset: " in report.faults[0].message


def test_an_input_that_is_added_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    first = ev.ExecuteTransformInput(dataset_id=seeded_id("x"), new_block_hash=hash_of("1"), new_offset=4)
    then = dataclasses.replace(
        first, prev_block_hash=hash_of("1"), new_block_hash=hash_of("2"), prev_offset=4, new_offset=9
    )
    added = dataclasses.replace(then, dataset_id=seeded_id("y"))
    dataset = make_seeded(
        tmp_path / "dataset",
        set_transform("x"), ev.ExecuteTransform(query_inputs=(first,), new_watermark=T),
        set_transform("x", "y"), ev.ExecuteTransform(query_inputs=(then, added), new_watermark=T),
        kind=DatasetKind.DERIVATIVE,
    )  # fmt: skip
    (fault,) = verify_dataset(dataset).faults
    assert (fault.check, fault.sequence_number) == (14, 4)
    assert str(seeded_id("y")) in fault.message
    assert "read for the first time" in fault.message


def test_what_a_stranger_calls_an_input_cannot_add_lines_to_a_report(tmp_path: Path) -> None:
    alias = "x\x1b[31m\nok    other: 3 blocks"
    named = ev.TransformInput(dataset_ref=RemoteDatasetId(None, seeded_id("x")), alias=alias)
    transform = dataclasses.replace(set_transform("x"), inputs=(named,))
    records = execute("x", new_watermark=T)
    dataset = make_seeded(tmp_path / "dataset", transform, records, kind=DatasetKind.DERIVATIVE)
    reason = verify_dataset(dataset).reasons[14]
    assert reason.startswith("its input x\\x1b[31m ok other: 3 blocks (did:odf:")
    assert reason.isprintable()


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_all_faults_are_found_at_once_in_the_order_of_the_chain(dataset: DatasetFiles, jobs: int) -> None:
    add_slice(dataset, [f"{n} a larger slice {n}" for n in range(50)])
    add_slice(dataset, ["as it was"])
    first, second, third, large = (slice_at(dataset, index) for index in range(4))
    checkpoint = checkpoint_of(dataset)
    for path in (large, first, second, checkpoint):
        flip(path, position=9)
    third.unlink()
    report = verify_dataset(dataset, jobs=jobs)
    wrong = [(6, first), (6, second), (6, checkpoint), (5, third), (6, large)]
    assert found(report) == [(check, path.name) for check, path in wrong]
    assert [fault.sequence_number for fault in report.faults] == [2, 3, 4, 5, 6]
    assert (report.slices, report.done[6], report.done[7]) == (5, 5, 1)


@pytest.mark.parametrize("content", [None, b"", b"f1620", b"no hash\n", b"\xff" * 40, b"f1620" + b"0" * 300])
def test_a_damaged_reference(dataset: DatasetFiles, content: bytes | None) -> None:
    (dataset.folder / "refs" / "head").unlink()
    if content is not None:
        (dataset.folder / "refs" / "head").write_bytes(content)
    report = verify_dataset(dataset)
    assert found(report) == [(1, "head")]
    assert report.head is None


def test_a_reference_to_a_block_that_is_not_there(dataset: DatasetFiles) -> None:
    (dataset.folder / "refs" / "head").write_text(str(hash_of("nothing")))
    assert found(verify_dataset(dataset)) == [(1, "head"), (2, str(hash_of("nothing")))]


def test_a_block_that_cannot_be_read_is_said_to_hide_the_rules(dataset: DatasetFiles) -> None:
    block_at(dataset, 1).unlink()
    report = verify_dataset(dataset)
    assert report.reasons[4] == "append rules were not checked: the chain cannot be followed to its Seed"
    assert (report.state(4), report.verdict) == ("notChecked", "faulty")
    assert report.records == 4, "what can be reached is still checked"


@pytest.mark.parametrize(
    ("said", "check", "message"),
    [
        ({"size": 1}, 5, "its block says 1"),
        ({"logical_hash": hash_of("other records")}, 7, str(hash_of("other records"))),
        ({"offset_interval": ev.OffsetInterval(start=4, end=9)}, 8, "1 records, its offsets say 6"),
    ],
    ids=["size", "logical hash", "more offsets than records"],
)
def test_a_slice_of_which_its_block_says_what_is_wrong(
    dataset: DatasetFiles, said: dict[str, Any], check: int, message: str
) -> None:
    new = add_slice(dataset, ["E"], **said)
    report = verify_dataset(dataset)
    assert found(report) == [(check, str(new.physical_hash))]
    assert message in report.faults[0].message
    assert check != 7 or str(new.logical_hash) in report.faults[0].message


def test_a_gap_between_offsets_breaks_a_rule(dataset: DatasetFiles) -> None:
    add_slice(dataset, ["E"], offset_interval=ev.OffsetInterval(start=7, end=7))
    rule, rows = verify_dataset(dataset).faults
    assert (rule.check, rule.sequence_number) == (4, 6)
    assert "rule offset-interval-start" in rule.message
    assert (rows.check, rows.message) == (8, "row at offset 7 has offset 4; offsets have no gaps")


def test_slices_of_blocks_with_the_same_number_are_all_looked_at(dataset: DatasetFiles) -> None:
    slices = [slice_at(dataset, index) for index in (1, 2)]
    head = dataset.chain.head()
    newest = dataset.chain.get(head)
    event = dataset.chain.get(Multihash.parse(block_at(dataset, 3).name)).event
    (again,) = link_blocks(
        [event], prev=head, next_sequence_number=newest.sequence_number, system_time=newest.system_time
    )
    dataset.chain.publish([again], expected_head=head)
    for path in slices:
        flip(path, position=9)
    wrong = [fault for fault in verify_dataset(dataset).faults if fault.check == 6]
    assert {Path(fault.file) for fault in wrong if fault.sequence_number == 5} == set(slices)
    assert len(wrong) == 3


def test_a_schema_that_cannot_be_read_and_is_replaced_before_any_slice(dataset: DatasetFiles) -> None:
    """The append rules have their word on it; rows are held against the schema that is in force."""
    in_force = SchemaInForce(believed=True)
    head = hash_of("any block")

    def declare(event: ev.MetadataEvent) -> None:
        (item,) = link_blocks([event], prev=None, next_sequence_number=0, system_time=T)
        in_force.add(StoredBlock(head, item.block, True, 0))

    declare(ev.SetDataSchema(raw_arrow_schema=b"no schema"))
    expected, problem = in_force.expected()
    assert (expected.schema, problem is None) == (None, False)
    declare(schema_event())
    expected, problem = in_force.expected()
    assert problem is None
    assert [field.name for field in expected.schema.fields] == SCHEMA.names
    in_force.add(StoredBlock(head, dataset.chain.get(dataset.chain.head()), False, 0))
    declare(schema_event())
    assert in_force.expected() == (None, None), "nothing is believed behind damage"


def test_a_slice_that_is_no_parquet(dataset: DatasetFiles) -> None:
    name = dataset.data.put(b"not parquet")
    add_slice(dataset, ["E"], physical_hash=name, size=11)
    assert found(verify_dataset(dataset)) == [(7, str(name))]


def test_the_references_rule_for_null_structs_is_understood(dataset: DatasetFiles, tmp_path: Path) -> None:
    """RFC-006: a hash that the reference would have written passes, and the report says so."""
    inner = pa.StructArray.from_arrays(
        [pa.array([1, None, 3, 4])], names=["x"], mask=pa.array([False, False, True, False])
    )
    path = tmp_path / "slice"
    times = [pa.array([0] * 4, pa.timestamp("ms", "UTC"))] * 2
    columns = [pa.array([4, 5, 6, 7], pa.uint64()), pa.array([0] * 4, pa.uint8()), *times]
    schema = SCHEMA.append(pa.field("s", inner.type))
    table = pa.table([*columns, pa.array(["E"] * 4), inner], names=schema.names)
    add(dataset, schema_event(schema))
    pq.write_table(table, path)
    correct, _ = hash_parquet(path)
    reference, _ = hash_parquet(path, null_rule="reference")
    assert correct != reference
    physical, size = hash_file(path)
    dataset.data.put_file(path, physical)
    changes = {"physical_hash": physical, "size": size, "offset_interval": ev.OffsetInterval(start=4, end=7)}
    add_slice(dataset, ["E"], logical_hash=reference, **changes)
    report = verify_dataset(dataset)
    assert [note for note in report.notes if note not in (BY_HAND, UNSIGNED)] == [
        f"{dataset.folder}/data/{physical}: the logical hash follows the reference implementation's rule for null structs"
    ]
    assert report.ok


def test_checks_are_numbered_from_one() -> None:
    assert list(CHECKS) == [check.number for check in CHECKS.values()] == list(range(1, 22))
