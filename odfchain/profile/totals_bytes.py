"""Totals as bytes and back, for parts that are kept and for parts that are computed elsewhere.

One row of Arrow: lists of what is counted and of the sampled rows, and scalars as JSON beside them. Private
and disposable: bytes that are not understood are no totals. Source: RFC-040.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pyarrow as pa

from odfchain.errors import CodecError
from odfchain.profile.column_totals import ColumnTotals, Lengths, keys_of, values_of
from odfchain.profile.exact_numbers import ExactSums
from odfchain.profile.sketches import Hll, Kmv
from odfchain.profile.totals import Totals
from odfchain.text import first_line

_VERSION = 1
_KEY = b"odfchain.totals"


def to_bytes(totals: Totals) -> bytes:
    """The totals as one Arrow stream."""
    arrays: dict[str, pa.Array] = {
        "kmv": pa.array([totals.kmv.hashes], pa.list_(pa.uint64())),
        "kmv counts": pa.array([totals.kmv.counts], pa.list_(pa.int64())),
        "hll": pa.array([totals.hll.to_bytes()], pa.binary()),
        "sample offsets": pa.array([totals.sample_offsets], pa.list_(pa.uint64())),
    }
    for number, column in enumerate(totals.columns):
        sample = totals.sample.column(number).combine_chunks()
        arrays[f"sample {number}"] = _as_list(sample)
        counts = column.counts or Counter()
        arrays[f"values {number}"] = _as_list(values_of(list(counts), column.type))
        arrays[f"counts {number}"] = pa.array([list(counts.values())], pa.list_(pa.int64()))
        arrays[f"hll {number}"] = pa.array([column.hll.to_bytes() if column.hll else None], pa.binary())
    scalars = {"version": _VERSION, "rows": totals.rows, "columns": [_scalars(c) for c in totals.columns]}
    schema = totals.schema.serialize().to_pybytes().hex()
    metadata = {_KEY: json.dumps({**scalars, "schema": schema}).encode()}
    table = pa.table(arrays).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def from_bytes(data: bytes, schema: pa.Schema) -> Totals:
    """The totals of rows with the columns of a schema; columns that they lack were null.

    Raises:
        CodecError: the bytes are none, or of other columns.
    """
    try:
        return _read(data, schema)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise CodecError(f"not the totals of a slice: {first_line(error)}") from None


def _read(data: bytes, schema: pa.Schema) -> Totals:
    table = pa.ipc.open_stream(data).read_all()
    scalars = json.loads(table.schema.metadata[_KEY])
    own = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(scalars["schema"])))
    if scalars["version"] != _VERSION or own != schema:
        raise ValueError("another version, or other columns")
    found = Totals(schema)
    found.rows = scalars["rows"]
    hashes, counts = (table.column(name)[0].values.to_numpy() for name in ("kmv", "kmv counts"))
    found.kmv = Kmv(hashes, counts)
    found.hll = Hll.from_bytes(table.column("hll")[0].as_py())
    found.sample_offsets = table.column("sample offsets")[0].values.to_numpy()
    samples = [table.column(f"sample {number}")[0].values for number in range(len(schema))]
    found.sample = pa.Table.from_arrays(samples, schema=schema)
    for number, (column, given) in enumerate(zip(found.columns, scalars["columns"], strict=True)):
        _restore(column, given)
        sketch = table.column(f"hll {number}")[0].as_py()
        if sketch is not None:
            column.counts, column.hll = None, Hll.from_bytes(sketch)
            continue
        values = table.column(f"values {number}")[0].values
        numbers = table.column(f"counts {number}")[0].values.to_pylist()
        column.counts = Counter(dict(zip(keys_of(values), numbers, strict=True)))
    return found


def _as_list(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    whole = pa.concat_arrays(values.chunks) if isinstance(values, pa.ChunkedArray) else values
    return pa.LargeListArray.from_arrays(pa.array([0, len(whole)], pa.int64()), whole)


def _scalars(column: ColumnTotals) -> dict[str, Any]:
    sums = column.sums
    return {
        "rows": column.rows, "nulls": column.nulls, "nonFinite": column.non_finite,
        "sums": [sums.count, str(sums.total), str(sums.squares)],
        "low": _bound(column.low), "high": _bound(column.high),
        "characters": _lengths(column.characters), "tokens": _lengths(column.tokens),
    }  # fmt: skip


def _bound(value: Any) -> list[str] | None:
    match value:
        case None:
            return None
        case Fraction():
            return ["fraction", str(value)]
        case float():
            return ["float", value.hex()]
    return ["int", str(value)]


def _lengths(value: Lengths) -> list[int | None]:
    return [value.total, value.least, value.largest]


_BOUNDS: dict[str, Callable[[str], Any]] = {"fraction": Fraction, "float": float.fromhex, "int": int}


def _restore(column: ColumnTotals, given: dict[str, Any]) -> None:
    column.rows, column.nulls, column.non_finite = given["rows"], given["nulls"], given["nonFinite"]
    count, total, squares = given["sums"]
    column.sums = ExactSums(count, Fraction(total), Fraction(squares))
    for name in ("low", "high"):
        if given[name] is not None:
            kind, text = given[name]
            setattr(column, name, _BOUNDS[kind](text))
    column.characters, column.tokens = Lengths(*given["characters"]), Lengths(*given["tokens"])
