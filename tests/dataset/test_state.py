"""What a chain says about the present, and records read back without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from odfchain.chain.chain import link_blocks
from odfchain.errors import ChainError, ObjectCorruptedError, ObjectNotFoundError, SchemaError
from odfchain.odf import events as ev
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import encode_raw_arrow
from odfchain.odf.enums import DatasetKind
from odfchain.odf.times import Timestamp
from odfchain.storage.fsio import MemoryScratch
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import read_all, read_tail
from tests.kit.commits import T, make_dataset, make_seeded
from tests.kit.root_rows import append_all
from tests.kit.support import ChainBuilder, memory_chain, polling, push, seeded_id


@pytest.fixture(params=[True, False], ids=["indexed", "walked"])
def builder(request: pytest.FixtureRequest) -> ChainBuilder:
    return ChainBuilder(memory_chain(scratch=MemoryScratch() if request.param else None))


def state(builder: ChainBuilder) -> DatasetState:
    return DatasetState.read(builder.chain)


def test_a_chain_without_head() -> None:
    with pytest.raises(ChainError, match="no head"):
        DatasetState.read(memory_chain())


def test_a_seed_alone(builder: ChainBuilder) -> None:
    builder.seed()
    found = state(builder)
    assert found.seed.dataset_id == seeded_id("test")
    assert found.seed.dataset_kind is DatasetKind.ROOT
    assert found.vocabulary.columns == ("offset", "op", "system_time", "event_time")
    nothing = (found.schema, found.last_data, found.last_offset, found.watermark, found.source_state)
    assert nothing == (None,) * 5
    assert (found.transform, found.polling_source, found.checkpoint) == (None,) * 3
    assert (found.record_count, found.push_sources, found.slices()) == (0, {}, [])


def test_the_newest_of_each_kind_counts(builder: ChainBuilder) -> None:
    builder.seed()
    builder.append(ev.SetVocab(event_time_column="date"))
    builder.append(push("a"))
    builder.append(push("b"))
    builder.append(ev.SetVocab(event_time_column="day", offset_column="n"))
    found = state(builder)
    assert found.vocabulary.columns == ("n", "op", "system_time", "day")
    assert set(found.push_sources) == {"a", "b"}


def test_disabled_sources_are_not_in_force() -> None:
    """A chain that was pulled may hold events that this version does not append."""
    seed = ev.Seed(dataset_id=seeded_id("test"), dataset_kind=DatasetKind.ROOT)
    for events, sources, polled in (
        ([push("a"), push("b"), ev.DisablePushSource(source_name="a")], {"b"}, False),
        ([push("a"), ev.DisablePushSource(source_name="a"), push("a")], {"a"}, False),
        ([polling()], set(), True),
        ([polling(), ev.DisablePollingSource()], set(), False),
        ([polling(), ev.DisablePollingSource(), polling()], set(), True),
    ):
        chain = memory_chain(scratch=MemoryScratch())
        blocks = link_blocks([seed, *events], prev=None, next_sequence_number=0, system_time=T)
        chain.publish(blocks, expected_head=None)
        found = DatasetState.read(chain)
        assert set(found.push_sources) == sources
        assert (found.polling_source is not None) == polled


def test_watermark_offset_and_source_state_come_from_the_last_data_event(builder: ChainBuilder) -> None:
    source = ev.SourceState(source_name="default", kind="odf/etag", value="1")
    builder.seed()
    builder.append(ev.AddData(new_watermark=T, new_source_state=source))
    builder.append(ev.SetInfo(description="later"))
    found = state(builder)
    assert (found.watermark, found.source_state, found.last_offset) == (T, source, None)
    later = Timestamp.parse("2021-01-01T00:00:00Z")
    builder.append(ev.AddData(new_watermark=later))
    assert (state(builder).watermark, state(builder).source_state) == (later, None)
    earlier = DatasetState.read(builder.chain, found.head)
    assert earlier.watermark == T, "the state at an earlier block"


# --- records ---------------------------------------------------------------------------------------

FIELDS = {"offset": ds.DataTypeUInt64(), "op": ds.DataTypeUInt8(), "city": ds.optional(ds.DataTypeString())}


def set_schema(dataset: DatasetFiles, *names: str) -> None:
    fields = tuple(ds.DataField(name=n, type=FIELDS.get(n, ds.optional(ds.DataTypeInt32()))) for n in names)
    event = ev.SetDataSchema(raw_arrow_schema=encode_raw_arrow(ds.DataSchema(fields=fields)))
    commit(dataset, DatasetState.read(dataset.chain), [event], [], system_time=T)


@pytest.fixture
def filled(tmp_path: Path) -> DatasetFiles:
    """Slices of 3, 2 and 4 records."""
    dataset = make_seeded(tmp_path / "d")
    set_schema(dataset, "offset", "op", "city")
    offsets, ops = pa.array(range(9), pa.uint64()), pa.array([0] * 9, pa.uint8())
    rows = pa.table({"offset": offsets, "op": ops, "city": [f"c{n}" for n in range(9)]})
    append_all(dataset, [rows.slice(0, 3), rows.slice(3, 2), rows.slice(5)], at=T)
    return dataset


def test_all_records(filled: DatasetFiles) -> None:
    table = read_all(filled, DatasetState.read(filled.chain))
    assert table["offset"].to_pylist() == list(range(9))
    assert table["city"].to_pylist() == [f"c{n}" for n in range(9)]
    assert table.schema.field("offset").type == pa.uint64()
    assert read_all(filled, DatasetState.read(filled.chain), ["city"]).schema.names == ["city"]


@pytest.mark.parametrize("count", [0, 1, 4, 5, 9, 20])
@pytest.mark.parametrize("skip", [0, 1, 4, 8, 9, 30])
def test_the_newest_records(filled: DatasetFiles, count: int, skip: int) -> None:
    table = read_tail(filled, DatasetState.read(filled.chain), count, skip=skip)
    end = max(0, 9 - skip)
    assert table["offset"].to_pylist() == list(range(9))[max(0, end - count) : end]


def test_the_newest_records_read_only_the_slices_that_hold_them(filled: DatasetFiles) -> None:
    oldest = DatasetState.read(filled.chain).slices()[0]
    Path(filled.data.locate(oldest.slice.physical_hash)).write_bytes(b"damaged")
    assert read_tail(filled, DatasetState.read(filled.chain), 6).num_rows == 6
    with pytest.raises(ObjectCorruptedError, match=str(oldest.slice.physical_hash)):
        read_tail(filled, DatasetState.read(filled.chain), 7)
    Path(filled.data.locate(oldest.slice.physical_hash)).unlink()
    with pytest.raises(ObjectNotFoundError, match=str(oldest.slice.physical_hash)):
        read_all(filled, DatasetState.read(filled.chain))


def test_a_column_that_older_slices_lack_is_null_there(filled: DatasetFiles) -> None:
    set_schema(filled, "offset", "op", "city", "population")
    table = read_all(filled, DatasetState.read(filled.chain))
    assert table["population"].to_pylist() == [None] * 9
    assert table.schema.field("population").type == pa.int32()


def test_an_unknown_column(filled: DatasetFiles) -> None:
    with pytest.raises(SchemaError, match=r"no column 'town' \(the dataset has offset, op, city\)"):
        read_all(filled, DatasetState.read(filled.chain), ["town"])


def test_a_slice_that_does_not_fit_the_declared_schema(tmp_path: Path) -> None:
    dataset = make_seeded(tmp_path / "d")
    set_schema(dataset, "offset", "op", "population")
    offset, op = pa.array([0], pa.uint64()), pa.array([0], pa.uint8())
    append_all(dataset, [pa.table({"offset": offset, "op": op, "population": ["many"]})], at=T)
    with pytest.raises(ObjectCorruptedError, match="does not fit the declared schema"):
        read_all(dataset, DatasetState.read(dataset.chain))


def test_a_dataset_without_data(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "d")
    assert read_all(dataset, DatasetState.read(dataset.chain)).num_rows == 0
    assert read_tail(dataset, DatasetState.read(dataset.chain), 5).num_rows == 0
