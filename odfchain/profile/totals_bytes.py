"""Totals as bytes and back, for parts that are kept and for parts that are computed elsewhere.

One row of Arrow: lists of what is counted and of the sampled rows, and scalars as JSON beside them. Private
and disposable: bytes that are not understood are no totals. Source: RFC-040.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from odfchain.digest.row_hash import Numbers
from odfchain.errors import CodecError
from odfchain.profile.column_totals import ColumnTotals, Lengths
from odfchain.profile.exact_numbers import ExactSums
from odfchain.profile.near_duplicates import BANDS
from odfchain.profile.sketches import Kmv
from odfchain.profile.totals import Totals
from odfchain.text import first_line

_VERSION = 2
_KEY = b"odfchain.totals"


def to_bytes(totals: Totals) -> bytes:
    """The totals as one Arrow stream."""
    arrays: dict[str, pa.Array] = {
        "kmv": _numbers(totals.kmv.hashes),
        "kmv counts": _numbers(totals.kmv.counts),
        "hll": _numbers(totals.hll.hashes),
        "sample offsets": _numbers(totals.sample_offsets),
    }
    if totals.bands is not None and totals.bands.is_small:
        arrays["bands"] = _numbers(totals.bands.held.reshape(-1))
    for number, values in enumerate(totals.sample.columns):
        arrays[f"sample {number}"] = _as_list(values)
    for number, column in enumerate(totals.columns):
        arrays[f"hll {number}"] = _numbers(column.hll.hashes)
        if column.counts is not None:
            arrays[f"keys {number}"] = _as_list(column.counts.keys)
            arrays[f"counts {number}"] = _numbers(column.counts.numbers)
    scalars = {"version": _VERSION, "rows": totals.rows, "columns": [_scalars(c) for c in totals.columns]}
    schema = totals.schema.serialize().to_pybytes().hex()
    metadata = {_KEY: json.dumps({**scalars, "schema": schema}).encode()}
    table = pa.table(arrays).replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def from_bytes(data: bytes, schema: pa.Schema, *, near_duplicates: bool = False) -> Totals:
    """The totals of rows with these columns.

    Raises:
        CodecError: the bytes are none, of other columns, or say nothing of what is asked.
    """
    try:
        return _read(data, schema, near_duplicates=near_duplicates)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise CodecError(f"not the totals of a slice: {first_line(error)}") from None


def _read(data: bytes, schema: pa.Schema, *, near_duplicates: bool) -> Totals:
    table = pa.ipc.open_stream(data).read_all()
    scalars = json.loads(table.schema.metadata[_KEY])
    own = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(scalars["schema"])))
    if scalars["version"] != _VERSION or own != schema:
        raise ValueError("another version, or other columns")

    def listed(name: str) -> pa.Array:
        return table.column(name)[0].values

    found = Totals(schema, near_duplicates=near_duplicates)
    found.rows = scalars["rows"]
    found.kmv = Kmv(listed("kmv").to_numpy(), listed("kmv counts").to_numpy())
    found.hll.update(listed("hll").to_numpy())
    found.sample_offsets = listed("sample offsets").to_numpy()
    samples = [listed(f"sample {number}") for number in range(len(found.sample.schema))]
    found.sample = pa.Table.from_arrays(samples, schema=found.sample.schema)
    if found.bands is not None:
        keys = listed("bands").to_numpy().reshape(-1, BANDS)
        found.bands.add(keys, np.ones(len(keys), dtype=bool))
        found.bands.rows = found.rows
    present = set(table.column_names)
    for number, (column, given) in enumerate(zip(found.columns, scalars["columns"], strict=True)):
        _restore(column, given)
        column.hll.update(listed(f"hll {number}").to_numpy())
        counted = f"keys {number}" in present
        column.restore((listed(f"keys {number}"), listed(f"counts {number}").to_numpy()) if counted else None)
    return found


def _numbers(values: Numbers) -> pa.Array:
    return _as_list(pa.array(values))


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
