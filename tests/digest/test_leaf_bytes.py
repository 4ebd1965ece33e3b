"""The logical hash of what is stored in many ways, cut into pieces anywhere: always that of the plain values."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.odf import logical_hash
from odfchain.odf.logical_hash import LogicalDigest
from tests.kit.logical_hash import KINDS, hash_table, oracle, tables

WORDS = st.sampled_from(["", "a", "ž", "word", "words", "x" * 31, "x" * 32, "y" * 33, "z" * 500]) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=20
)
TEXTS: st.SearchStrategy[Any] = st.sampled_from(
    [
        (pa.string(), WORDS),
        (pa.binary(), WORDS.map(str.encode)),
        (pa.string(), st.sampled_from(["EUR", "USD"])),
        (pa.list_(pa.string()), st.lists(st.none() | WORDS, max_size=3)),
    ]
)


def small_pieces() -> Any:
    """Everything that depends on sizes happens with a few rows."""
    sizes = {"_PIECE_ROWS": 5, "_FEWEST_ROWS": 2, "_PIECE_BYTES": 64, "_BLOCK": 4, "_LARGEST_BLOCK": 64}
    return mock.patch.multiple(logical_hash, _FEW=1, _POOLED=16, _WORD_ROWS=1, **sizes)


def with_remains(array: pa.Array, valid: list[bool]) -> pa.Array:
    """The array with nulls under which the values still lie."""
    bits = np.array(valid) & array.is_valid().to_numpy(zero_copy_only=False)
    bitmap = pa.py_buffer(np.packbits(bits, bitorder="little").tobytes())
    own = 1 if pa.types.is_fixed_size_list(array.type) else 2 if pa.types.is_list(array.type) else 3
    children = [array.values] if own < 3 else None
    return pa.Array.from_buffers(array.type, len(array), [bitmap, *array.buffers()[1:own]], children=children)


def kin(data_type: pa.DataType) -> list[pa.DataType]:
    """Types whose values hash like those of this one."""
    if pa.types.is_string(data_type):
        return [pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), data_type)]
    if pa.types.is_binary(data_type):
        return [pa.large_binary(), pa.binary_view()]
    if pa.types.is_list(data_type):
        return [pa.large_list(data_type.value_type)]
    return []


@st.composite
def columns(draw: st.DrawFn, rows: int) -> tuple[pa.Array, pa.Array]:
    """(plain, stored in some other way): the same values."""
    kind, items = draw(KINDS | TEXTS)
    some = items if draw(st.booleans()) else st.none() | items
    plain = pa.array(draw(st.lists(some, min_size=rows, max_size=rows)), kind)
    stored = plain
    if rows and draw(st.booleans()) and not pa.types.is_null(kind):
        valid = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
        plain = pa.array([v if ok else None for v, ok in zip(plain.to_pylist(), valid, strict=True)], kind)
        stored = with_remains(stored, valid)
    if (others := kin(kind)) and draw(st.booleans()):
        stored = stored.cast(draw(st.sampled_from(others)))
    for _ in range(draw(st.integers(0, 2))):
        mask = pa.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), pa.bool_())
        plain = pa.StructArray.from_arrays([plain, plain], names=["x", "y"], mask=mask)
        stored = pa.StructArray.from_arrays([stored, stored], names=["x", "y"], mask=mask)
    return plain, stored


@st.composite
def stored_tables(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """(plain, stored in some other way) tables that begin and end within their arrays, cut into chunks."""
    rows = draw(st.integers(0, 40))
    pairs = [draw(columns(rows)) for _ in range(draw(st.integers(1, 2)))]
    names = [f"c{i}" for i in range(len(pairs))]
    start, length = draw(st.integers(0, 9)), draw(st.integers(0, 40))
    plain = pa.table([p for p, _ in pairs], names=names).slice(start, length)
    stored = pa.table([s for _, s in pairs], names=names).slice(start, length)
    cut = draw(st.integers(0, 20))
    return plain, pa.concat_tables([stored.slice(0, cut), stored.slice(cut)])


@given(stored_tables())
def test_pieces_of_what_is_stored_otherwise_agree_with_the_algorithm(pair: tuple[pa.Table, pa.Table]) -> None:
    plain, stored = pair
    with small_pieces():
        assert hash_table(stored).digest == oracle(plain)
    assert hash_table(stored).digest == oracle(plain)


@given(tables(), st.integers(1, 3))
def test_pieces_on_threads_are_fed_in_order(table: pa.Table, threads: int) -> None:
    with small_pieces(), mock.patch.object(logical_hash, "_SMALL", 0), ThreadPoolExecutor(threads) as pool:
        digest = LogicalDigest(table.schema, executor=pool)
        for batch in table.to_batches():
            digest.update(batch)
        assert digest.finish().digest == oracle(table)


@pytest.fixture(scope="module")
def wide_rows() -> pa.Table:
    """More rows than a piece has; values of very different sizes."""
    rng = np.random.default_rng(11)
    rows = 17_000
    sizes = np.where(rng.random(rows) < 0.99, rng.integers(0, 20, rows), rng.integers(100, 400, rows))
    sizes[rng.integers(0, rows, 5)] = 30_000
    text = [
        None if hole else "abcde" * (n // 5) for n, hole in zip(sizes, rng.random(rows) < 0.1, strict=True)
    ]
    numbers = [None if n % 7 == 0 else int(n) for n in range(rows)]
    lists = [None if n % 11 == 0 else numbers[n : n + n % 9] for n in range(rows)]
    return pa.table(
        {
            "text": text,
            "code": [f"{n:08}" for n in range(rows)],
            "flag": pa.array([None if n % 3 == 0 else n % 2 == 0 for n in range(rows)]),
            "price": pa.array(
                [None if n is None else Decimal(n) / 100 for n in numbers], pa.decimal128(9, 2)
            ),
            "lists": pa.array(lists, pa.list_(pa.int16())),
            "deep": pa.array([[[n, None], []][: n % 3] for n in range(rows)], pa.list_(pa.list_(pa.int32()))),
            "words": pa.array([text[n : n + n % 4] for n in range(rows)], pa.list_(pa.string())),
        }
    )


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_many_rows_agree_with_the_algorithm(wide_rows: pa.Table, threads: int) -> None:
    expected = oracle(wide_rows)
    with ThreadPoolExecutor(max(1, threads)) as pool:
        digest = LogicalDigest(wide_rows.schema, executor=pool if threads else None)
        for batch in wide_rows.to_batches():
            digest.update(batch)
    assert digest.finish().digest == expected


def test_an_update_on_the_executor_waits_for_nobody(wide_rows: pa.Table) -> None:
    with ThreadPoolExecutor(1) as pool:
        digest = LogicalDigest(wide_rows.schema, executor=pool)
        for batch in wide_rows.to_batches():
            pool.submit(digest.update, batch).result(timeout=30)
    assert digest.finish() == hash_table(wide_rows)


def test_what_fails_on_a_thread_is_raised_by_update() -> None:
    table = pa.table({"a": ["x" * 100] * 1_000, "b": ["y" * 90] * 1_000})
    with (
        ThreadPoolExecutor(1) as pool,
        mock.patch.object(logical_hash, "_framed_alike", side_effect=MemoryError),
    ):
        digest = LogicalDigest(table.schema, executor=pool)
        with pytest.raises(MemoryError):
            digest.update(table.to_batches()[0])


def test_the_references_rule_for_null_structs_feeds_what_lies_under_them() -> None:
    words = with_remains(pa.array(["one", "two", "three", "four"]), [True, False, True, False])
    mask = pa.array([False, False, True, True])
    table = pa.table({"s": pa.StructArray.from_arrays([words], names=["x"], mask=mask)})
    # null where both are, and "two" is fed although it is null
    fed = pa.StructArray.from_arrays([pa.array(["one", "two", "three", None])], names=["x"])
    assert hash_table(table, null_rule="reference").digest == oracle(pa.table({"s": fed}))
    assert hash_table(table) == hash_table(
        pa.table({"s": pc.if_else(pa.array([True, False, False, False]), fed, None)})
    )
