"""The logical hash against a plain, row-by-row reading of the algorithm, and the promises it makes."""

from __future__ import annotations

import hashlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.errors import BadInputError, SchemaError
from odfchain.odf.identity import Multicodec
from odfchain.odf.logical_hash import LogicalDigest
from odfchain.slices.reader import hash_parquet
from tests.kit.logical_hash import U16, U64, hash_table, oracle, tables


@given(tables())
def test_agrees_with_the_algorithm_read_row_by_row(table: pa.Table) -> None:
    found = hash_table(table)
    assert found.codec is Multicodec.ARROW0_SHA3_256
    assert found.digest == oracle(table)


@given(tables(), st.lists(st.integers(1, 5), max_size=8))
def test_same_however_rows_are_cut(table: pa.Table, cuts: list[int]) -> None:
    digest, start = LogicalDigest(table.schema), 0
    for length in [*cuts, max(1, len(table))]:
        for batch in table.slice(start, length).to_batches():
            digest.update(batch)
        start += length
    assert digest.finish() == hash_table(table)


@given(tables())
def test_same_whatever_the_nullability_flags(table: pa.Table) -> None:
    strict = pa.schema(
        [f.with_nullable(f.type == pa.null() or table[f.name].null_count > 0) for f in table.schema]
    )
    assert hash_table(pa.table(table.columns, schema=strict)) == hash_table(table)


def plain_and_kin() -> list[Any]:
    text = pa.array(["a", None, "", "žluť", "a"])
    numbers = pa.array([[1, None], None, [], [3]], pa.list_(pa.int32()))
    fixed = pa.array([b"abc", None, b"xyz"], pa.binary(3))
    pairs = pa.array([[1, 2], None, [None, 4]], pa.list_(pa.int8(), 2))
    return [
        pytest.param(text, text.dictionary_encode(), id="dictionary"),
        pytest.param(text, pa.compute.run_end_encode(text), id="run ends"),
        pytest.param(fixed.cast(pa.binary()), fixed, id="fixed binary"),
        pytest.param(numbers, pa.array(numbers.to_pylist(), pa.list_view(pa.int32())), id="list view"),
        pytest.param(pa.array(pairs.to_pylist(), pa.list_(pa.int8())), pairs, id="fixed list"),
    ]  # fmt: skip


@pytest.mark.parametrize(("plain", "kin"), plain_and_kin())
def test_encodings_hash_like_their_plain_kin(plain: pa.Array, kin: pa.Array) -> None:
    assert hash_table(pa.table({"c": kin})) == hash_table(pa.table({"c": plain}))
    assert hash_table(pa.table({"c": kin.slice(1, 2)})) == hash_table(pa.table({"c": plain.slice(1, 2)}))


def test_what_must_make_a_difference_does() -> None:
    base = pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", "y"]})
    others = [
        base.rename_columns(["a", "c"]),
        base.select(["b", "a"]),
        base.slice(0, 1),
        base.take([1, 0]),
        base.set_column(0, "a", pa.array([1, 2], pa.int64())),
        base.set_column(0, "a", pa.array([1, 2], pa.uint32())),
        base.set_column(0, "a", pa.array([1, None], pa.int32())),
        base.set_column(1, "b", [["x", "yz"]]),
        pa.table({"a": pa.array([{"a": 1}, {"a": 2}]), "b": ["x", "y"]}),
    ]
    hashes = [hash_table(t).digest for t in [base, *others]]
    assert len(set(hashes)) == len(hashes)


def test_values_cannot_slide_between_rows_or_lists() -> None:
    assert hash_table(pa.table({"a": ["ab", "c"]})) != hash_table(pa.table({"a": ["a", "bc"]}))
    one, two = pa.array([[1], [2, 3]]), pa.array([[1, 2], [3]])
    assert hash_table(pa.table({"a": one})) != hash_table(pa.table({"a": two}))


def test_an_empty_table_has_the_hash_of_its_schema() -> None:
    schema = pa.schema([("a", pa.int32())])
    assert hash_table(schema.empty_table()).digest == oracle(schema.empty_table())
    assert hash_table(schema.empty_table()) != hash_table(pa.schema([("a", pa.int64())]).empty_table())


@pytest.mark.parametrize(
    "data_type",
    [pa.map_(pa.string(), pa.int8()), pa.duration("s"), pa.month_day_nano_interval(),
     pa.list_(pa.struct([("a", pa.int8())])), pa.dense_union([pa.field("a", pa.int8())])],
    ids=str,
)  # fmt: skip
def test_types_without_a_defined_hash_are_refused(data_type: pa.DataType) -> None:
    with pytest.raises(SchemaError, match="'col'"):
        LogicalDigest(pa.schema([("col", data_type)]))


# --- null structs (RFC-006) --------------------------------------------------------------------------


def struct_with(child: list[Any], parents: list[bool], *, child_bitmap: bool) -> pa.Table:
    array = pa.array(child, pa.int32())
    if child_bitmap and array.buffers()[0] is None:
        bitmap = pa.py_buffer(np.packbits([1] * len(child), bitorder="little").tobytes())
        array = pa.Array.from_buffers(pa.int32(), len(child), [bitmap, array.buffers()[1]])
    mask = pa.array([not p for p in parents])
    return pa.table({"s": pa.StructArray.from_arrays([array], names=["x"], mask=mask)})


def test_the_reference_rule_is_the_parents_alone_without_a_leaf_bitmap() -> None:
    table = struct_with([1, 2, 3], [True, False, True], child_bitmap=False)
    assert hash_table(table, null_rule="reference") == hash_table(table)


def test_the_reference_rule_ors_when_both_have_nulls() -> None:
    table = struct_with([1, None, 3, None], [True, True, False, False], child_bitmap=True)
    # row 1: leaf null, parent valid -> the reference feeds what lies under the null; row 3: both null -> null
    memory = np.frombuffer(table["s"].chunk(0).field("x").buffers()[1], dtype=np.int32)[:4].tolist()
    expected = struct_with([1, memory[1], 3, None], [True, True, True, True], child_bitmap=True)
    assert hash_table(table, null_rule="reference").digest == oracle(expected)
    assert hash_table(table, null_rule="reference") != hash_table(table)


def test_the_reference_rule_loses_nulls_when_only_one_side_has_them() -> None:
    table = struct_with([1, 2, 3], [True, False, True], child_bitmap=True)
    # both carry bitmaps, only the parent has nulls: the reference applies neither
    expected = struct_with([1, 2, 3], [True, True, True], child_bitmap=False)
    assert hash_table(table, null_rule="reference").digest == oracle(expected)


# --- files -------------------------------------------------------------------------------------------


@given(tables())
def test_a_parquet_file_hashes_like_its_table(table: pa.Table) -> None:
    if not len(table):
        return
    sink = pa.BufferOutputStream()
    try:
        pq.write_table(table, sink, row_group_size=5)
    except pa.ArrowNotImplementedError:
        return
    read_back = pq.read_table(pa.BufferReader(sink.getvalue()))
    if read_back.schema.types == table.schema.types:
        assert hash_table(read_back) == hash_table(table)


def test_hash_parquet_streams_row_groups(tmp_path: Path) -> None:
    table = pa.table({"a": range(1_000), "b": [str(i) for i in range(1_000)]})
    pq.write_table(table, tmp_path / "f", row_group_size=100)
    assert hash_parquet(tmp_path / "f") == (hash_table(table), 1_000)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"not parquet at all" * 10])
def test_what_is_not_parquet_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(BadInputError, match="not a readable Parquet file"):
        hash_parquet(tmp_path / "f")


def test_decimal_negative_scale() -> None:
    table = pa.table({"d": pa.array([Decimal(1200)], pa.decimal128(5, -2))})
    leaf = hashlib.sha3_256(U16(6) + U64(128) + U64(5) + U64((1 << 64) - 2) + (12).to_bytes(16, "little"))
    expected = hashlib.sha3_256(U64(1) + b"d" + U64(0) + leaf.digest()).digest()
    assert hash_table(table).digest == expected
