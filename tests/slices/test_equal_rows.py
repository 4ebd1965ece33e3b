"""Rows that are equal, over all types: whole columns at once against one value after the other."""

from __future__ import annotations

import datetime as dt
import itertools
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from odfchain.odf import row_hash
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.row_hash import comparable, hash_rows, numbered, same_cells
from odfchain.slices import state
from odfchain.slices.state import KeptRows, SliceFile, codes_of, first_other_row, in_force, taken_back_in_vain
from tests.kit import rows_by_value as oracle
from tests.kit.run_length import scaled

EXAMPLES = scaled(80, 400, 4_000)

NAN, OTHER = (
    struct.unpack("<d", number.to_bytes(8, "little"))[0] for number in (0x7FF8 << 48, 0xFFF8BAD << 36)
)
DAYS = [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]
CLOCK = [dt.time(), dt.time(1), dt.time(23, 59, 59)]
TEXTS = ["", "a", "a\0", "aaaaaaaa", "aaaaaaab", "aaaaaaaa\0", "ä", "x" * 100, "x" * 99 + "y", "None", "NaN"]
DECIMALS = [Decimal("0.00"), Decimal("1.50"), Decimal("-1.50"), Decimal("12345.67")]
SOME: list[tuple[list[Any], list[pa.DataType]]] = [
    ([None], [pa.null()]),
    ([True, False], [pa.bool_()]),
    ([0, 1, -1, 127, -128], [pa.int8(), pa.int16(), pa.int32()]),
    ([0, 1, -1, 2**63 - 1, -(2**63)], [pa.int64()]),
    ([0, 1, 255], [pa.uint8(), pa.uint16(), pa.uint32()]),
    ([0, 1, 2**63 - 1, 2**63, 2**64 - 1], [pa.uint64()]),
    ([0.0, -0.0, NAN, OTHER, 1.5, float("inf"), 5e-324], [pa.float32(), pa.float64()]),
    ([np.float16(each) for each in (0.0, -0.0, NAN, 1.5)], [pa.float16()]),
    (TEXTS, [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]),
    ([text.encode() for text in TEXTS] + [b"\xff" * 9], [pa.binary(), pa.large_binary()]),
    ([b"\0\0\0\0", b"\0\0\0\1", b"abcd"], [pa.binary(4)]),
    (DECIMALS, [pa.decimal128(7, 2), pa.decimal128(38, 2), pa.decimal256(50, 2)]),
    (DAYS, [pa.date32(), pa.date64()]),
    (CLOCK, [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]),
    ([0, -1, 10**9], [pa.timestamp("s"), pa.timestamp("ms", "UTC"), pa.timestamp("us")]),
    ([1, -1, 2**62], [pa.timestamp("ns", "UTC")]),
    ([0, -1, 1], [pa.duration("ms")]),
]
VALUES = {kind: some for some, kinds in SOME for kind in kinds}
"""Some values of each type: equal ones that are written otherwise, and others that are nearly equal."""


@st.composite
def types(draw: st.DrawFn, depth: int = 2) -> pa.DataType:
    plain = st.sampled_from([kind for kind in VALUES if depth == 2 or not pa.types.is_dictionary(kind)])
    if not depth or draw(st.integers(0, 2)):
        return draw(plain)
    inner = types(depth - 1)
    kind = draw(st.sampled_from(["list", "large", "fixed", "struct", "map"]))
    if kind == "map":
        return pa.map_(draw(st.sampled_from([pa.string(), pa.int32(), pa.date32()])), draw(inner))
    if kind == "struct":
        return pa.struct([(name, draw(inner)) for name in "xy"[: draw(st.integers(1, 2))]])
    made = {"list": pa.list_, "large": pa.large_list, "fixed": lambda each: pa.list_(each, 2)}[kind]
    return made(draw(inner))


def values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of a type, of which many are equal; one in five is null."""
    if pa.types.is_map(kind):
        entries = st.dictionaries(values_of(kind.key_type), values(kind.item_type), max_size=3)
        found: st.SearchStrategy[Any] = entries.flatmap(lambda each: st.permutations(list(each.items())))
    elif pa.types.is_struct(kind):
        found = st.fixed_dictionaries({field.name: values(field.type) for field in kind})
    elif pa.types.is_fixed_size_list(kind):
        found = st.lists(values(kind.value_type), min_size=2, max_size=2)
    elif pa.types.is_nested(kind):
        found = st.lists(values(kind.value_type), max_size=3)
    else:
        found = values_of(kind)
    return st.integers(0, 4).flatmap(lambda number: found if number else st.none())


def values_of(kind: pa.DataType) -> st.SearchStrategy[Any]:
    return st.sampled_from(VALUES[kind])


def column(kind: pa.DataType, given: list[Any]) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(given, kind.value_type).dictionary_encode()
    return pa.array(given, kind)


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """A column with rows before and behind those that count, which must not matter."""
    kind = draw(types())
    given = draw(st.lists(values(kind), min_size=1, max_size=12))
    whole = column(kind, given)
    first = draw(st.integers(0, len(given) - 1))
    return whole[first : draw(st.integers(first + 1, len(given)))]


def classes(found: Any) -> list[int]:
    """For each one the place of the first that is equal."""
    first: dict[Any, int] = {}
    return [first.setdefault(each, place) for place, each in enumerate(found)]


@settings(max_examples=EXAMPLES)
@given(columns())
def test_equal_values(given: pa.Array) -> None:
    """Each way to compare values finds the same ones equal."""
    for exact in (False, True):
        batch = pa.RecordBatch.from_arrays([given], ["c"])
        expected = classes(oracle.cells_of(batch, (), exact=exact))
        plain = comparable(given, exact=exact)
        assert len(plain) == len(given)
        assert plain.is_valid().equals(given.is_valid())
        assert classes(plain.to_pylist()) == expected
        assert comparable(plain).equals(plain), "what is comparable stays as it is"
        assert classes(hash_rows(batch, (), exact=exact).tolist()) == expected
        assert classes(numbered(hash_rows(batch, (), exact=exact)).tolist()) == expected
    table = pa.table({"c": given})
    expected = classes(oracle.cells_of(table.to_batches()[0], ()))
    assert classes(codes_of(table, ["c"])[0].tolist()) == expected
    for one in range(len(given)):
        others = pa.chunked_array([pa.concat_arrays([given[one : one + 1]] * len(given))])
        same = same_cells(others, pa.chunked_array([given]))
        assert same.tolist() == [expected[one] == each for each in expected]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 15, 16, 4_000])
def test_each_byte_of_a_value_counts(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where values are hashed in pieces."""
    whole = [bytes(size), bytes(size + 1), *(bytes(at) + b"\1" + bytes(size - 1 - at) for at in range(size))]
    batch = pa.RecordBatch.from_arrays([pa.array([*whole, None, b"\0" * size])], ["c"])
    found = hash_rows(batch, ())
    assert len(set(found.tolist())) == len(whole) + 1
    for words in (1, 3, 64):
        monkeypatch.setattr(row_hash, "_WORDS", words)
        assert (hash_rows(batch.slice(1, 40), ()) == found[1:41]).all()


def test_hashes_are_of_columns_in_any_order_and_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    one = pa.RecordBatch.from_pydict({"a": ["x", None], "b": [1, 2]})
    other = pa.RecordBatch.from_pydict({"b": [1, 2], "a": ["x", None], "c": pa.nulls(2, pa.float64())})
    found = hash_rows(one, ())
    assert (found == hash_rows(other, ())).all(), "neither order nor what is null counts"
    assert (found != hash_rows(one.rename_columns(["b", "a"]), ())).all()
    monkeypatch.setattr(row_hash, "_KEY", bytes(32))
    assert (found != hash_rows(one, ())).all()


# --- states of slices ----------------------------------------------------------------------------------------

NAMES = DatasetVocabulary()
SYSTEM = [("offset", pa.uint64()), ("op", pa.uint8()), ("system_time", pa.timestamp("ms", "UTC"))]


@st.composite
def histories(draw: st.DrawFn) -> list[pa.Table]:
    """Slices in which rows come again, are taken back and corrected; a column may come later."""
    kinds = draw(st.lists(types().filter(is_stored), min_size=1, max_size=3))
    fields = [pa.field(f"c{place}", kind) for place, kind in enumerate(kinds)]
    few = draw(st.lists(st.tuples(*map(values, kinds)), min_size=1, max_size=4))
    rows = draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(few)), min_size=1, max_size=20))
    cuts = draw(st.sets(st.integers(0, len(rows)), max_size=3)) | {0, len(rows)}
    late = draw(st.integers(1, len(rows)))
    slices = []
    for start, end in itertools.pairwise(sorted(cuts)):
        part = rows[start:end]
        data = [column(each.type, [row[1][place] for row in part]) for place, each in enumerate(fields)]
        count = len(fields) - (end < late)
        system = [range(start, end), [row[0] for row in part], [0] * len(part)]
        arrays = [pa.array(each, kind) for each, (_, kind) in zip(system, SYSTEM, strict=True)]
        names = [*(name for name, _ in SYSTEM), *(each.name for each in fields[:count])]
        slices.append(
            pa.table(
                [*arrays, pa.nulls(len(part), pa.date32()), *data[:count]],
                [*names[:3], "event_time", *names[3:]],
            )
        )
    return slices


def is_stored(kind: pa.DataType) -> bool:
    """True if Parquet gives the type back."""
    if pa.types.is_nested(kind):
        return all(is_stored(kind.field(place).type) for place in range(kind.num_fields))
    return not (pa.types.is_float16(kind) or pa.types.is_null(kind) or pa.types.is_date64(kind))


def written(folder: Path, tables: list[pa.Table]) -> list[SliceFile]:
    """The files of some slices; the rows of every other one were read before."""
    slices = []
    for place, table in enumerate(tables):
        offsets = table["offset"].to_pylist()
        path = folder / f"{offsets[0]}.parquet"
        pq.write_table(table, path)
        kept = KeptRows((found := pq.read_table(path)).schema, found.to_batches(5))
        interval = OffsetInterval(start=offsets[0], end=offsets[-1])
        slices.append(SliceFile(path, NAMES, interval, kept if place % 2 else None))
    return slices


@settings(max_examples=EXAMPLES)
@given(tables=histories(), at_once=st.sampled_from([0, 100, 1 << 20]), take=st.integers(0, 3))
def test_states_and_what_is_taken_back(
    tmp_path_factory: pytest.TempPathFactory, tables: list[pa.Table], at_once: int, take: int
) -> None:
    """The same rows are in force, and the same are taken back in vain, however little is in memory."""
    slices = written(tmp_path_factory.mktemp("rows"), tables)
    asked = slices[take:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_AT_ONCE", at_once)
        upto = slices[-1].interval.end // 2
        for net in (False, True):
            assert in_force(slices, (), net=net).tolist() == oracle.in_force(slices, net=net)
            assert in_force(slices, (), upto=upto).tolist() == oracle.in_force(slices, upto)
            found = taken_back_in_vain(slices, asked, in_force=net)
            assert found.tolist() == oracle.taken_back_in_vain(slices, asked, in_force=net)


@settings(max_examples=EXAMPLES)
@given(tables=histories(), data=st.data(), at_once=st.sampled_from([0, 100, 1 << 20]))
def test_states_that_are_not_what_their_slices_leave(
    tmp_path_factory: pytest.TempPathFactory, tables: list[pa.Table], data: st.DataObject, at_once: int
) -> None:
    """The first row that a state lacks, or has otherwise, is found however little is in memory."""
    folder = tmp_path_factory.mktemp("state")
    slices, whole = written(folder, tables), pa.concat_tables(tables, promote_options="default")
    upto = slices[-1].interval.end
    offsets = in_force(slices, ())
    any_row = st.integers(0, upto)
    given_offsets = list(data.draw(st.permutations([int(each) for each in offsets])))
    rows = [data.draw(st.one_of(any_row, st.just(each), st.just(each))) for each in given_offsets]
    if data.draw(st.booleans()) and given_offsets:
        given_offsets[0] = data.draw(any_row.filter(lambda each: each not in given_offsets[1:]))
    table = whole.take(pa.array(rows, pa.int64())).set_column(
        0, "offset", pa.array(given_offsets, pa.uint64())
    )
    pq.write_table(table, folder / "state")
    kept = SliceFile(folder / "state", NAMES, OffsetInterval(start=0, end=upto))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_AT_ONCE", at_once)
        found = first_other_row(kept, slices, offsets, upto)
    assert found == (len(offsets), oracle.first_other_row(kept, slices, offsets))
