"""The request: files that were hashed, schemas as empty files, and everything filled in."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from odfchain.errors import ObjectCorruptedError, ObjectNotFoundError, SchemaError, StoreError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import to_arrow
from odfchain.odf.engine_messages import TransformRequest
from odfchain.odf.sources import SqlQueryStep, TransformSql
from odfchain.progress import SILENT
from odfchain.transform.execute import StepRun, normalized, write_empty_parquet
from odfchain.transform.planner import PlannedStep
from tests.kit.derivation import Derived, Root, at, on_disk, schema_of


@pytest.fixture
def numbers(tmp_path: Path) -> Root:
    made = Root(files=on_disk(tmp_path, "numbers"))
    made.schema(2)
    return made


@pytest.fixture
def derived(tmp_path: Path, numbers: Root) -> Derived:
    """Made of two inputs, of which the second never moves."""
    other = Root(files=on_disk(tmp_path, "other"))
    other.schema(1)
    other.watermark(4)
    return Derived(numbers, other, files=on_disk(tmp_path, "derived"))


def request_of(derived: Derived, step: PlannedStep, folder: Path) -> TransformRequest:
    engine: Any = None
    return StepRun(derived.files, engine, folder, at(99), SILENT).request(step)


def test_a_request_names_the_files_of_the_step(numbers: Root, derived: Derived, staging: Path) -> None:
    numbers.data(2, watermark=1, content=b"one")
    numbers.data(3, watermark=2, content=b"two")
    request = request_of(derived, derived.step(), staging)
    assert (request.dataset_id, request.dataset_alias) == (derived.files.id, derived.files.alias)
    assert (request.system_time, request.next_offset, request.prev_checkpoint_path) == (at(99), 0, None)
    files = [str(staging / name) for name in ("data", "checkpoint")]
    assert [request.new_data_path, request.new_checkpoint_path] == files
    assert request.vocab == ev.DatasetVocabulary()
    first, second = request.query_inputs
    assert [Path(path).read_bytes() for path in first.data_paths] == [b"one", b"two"]
    assert (first.dataset_id, first.query_alias) == (numbers.files.id, "in0")
    assert first.offset_interval == ev.OffsetInterval(start=0, end=4)
    assert [m.event_time for m in first.explicit_watermarks] == [at(1), at(2)]
    assert (second.data_paths, second.offset_interval, second.query_alias) == ((), None, "in1")
    for found, version in ((first, 2), (second, 1)):
        table = pq.read_table(found.schema_file)
        assert (table.schema, table.num_rows) == (to_arrow(schema_of(version)), 0)
        assert Path(found.schema_file).parent == staging


def test_the_watermark_known_before_comes_first(numbers: Root, derived: Derived, staging: Path) -> None:
    numbers.data(1, watermark=1, content=b"one")
    step = derived.step()
    checkpoint = ev.Checkpoint(physical_hash=derived.files.checkpoints.put(b"state"), size=5)
    derived.schema()
    derived.append(dataclasses.replace(derived.event_of(step), new_checkpoint=checkpoint))
    numbers.data(1, watermark=9, content=b"two")
    request = request_of(derived, derived.step(), staging)
    first, second = request.query_inputs
    marks = [[(m.system_time, m.event_time) for m in each.explicit_watermarks] for each in (first, second)]
    assert marks == [[(at(2), at(1)), (at(3), at(9))], [(at(2), at(4))]]
    assert Path(request.prev_checkpoint_path).read_bytes() == b"state"
    assert request.next_offset == 1
    Path(request.prev_checkpoint_path).write_bytes(b"other")
    with pytest.raises(ObjectCorruptedError):
        request_of(derived, derived.step(), staging)


@pytest.mark.parametrize("damage", [None, b"ONE"])
def test_a_slice_is_hashed_before_it_is_named(
    numbers: Root, derived: Derived, staging: Path, damage: bytes | None
) -> None:
    numbers.data(2, content=b"one")
    path = Path(numbers.files.data.locate(numbers.slices[0].physical_hash))
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    with pytest.raises(ObjectCorruptedError if damage else ObjectNotFoundError, match=str(path)):
        request_of(derived, derived.step(), staging)


def test_vocabularies_have_their_defaults(numbers: Root, derived: Derived, staging: Path) -> None:
    numbers.vocab("seen_at")
    derived.unruled(ev.SetVocab(offset_column="nr"))
    request = request_of(derived, derived.step(), staging)
    assert request.vocab.columns == ("nr", "op", "system_time", "event_time")
    assert [i.vocab.event_time_column for i in request.query_inputs] == ["seen_at", "event_time"]


def test_the_short_form_of_a_query_is_written_out() -> None:
    step = SqlQueryStep(query="SELECT 1")
    long = TransformSql(engine="spark", queries=(step,))
    assert normalized(TransformSql(engine="spark", query="SELECT 1")) == long
    assert normalized(long) is long


def test_a_schema_that_parquet_cannot_hold(staging: Path) -> None:
    empty = ds.DataSchema(fields=(ds.DataField(name="s", type=ds.DataTypeStruct(fields=())),))
    with pytest.raises(SchemaError, match="cannot be written as Parquet") as caught:
        write_empty_parquet(empty, staging / "schema")
    assert isinstance(caught.value.__cause__, pa.ArrowException)
    assert "\n" not in str(caught.value)


def test_a_schema_file_that_cannot_be_written(derived: Derived, staging: Path) -> None:
    with pytest.raises(StoreError, match="missing"):
        request_of(derived, derived.step(), staging / "missing")
