"""Random tables of all types for profiles, and what profiles say of them in plain Python: slow, and easily read."""

from __future__ import annotations

import datetime as dt
import math
import random
import struct
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from pyarrow import types as t

from odfchain.odf.times import Timestamp
from odfchain.profiles.sketches import EncodedColumn

TINY, HUGE = 5e-324, 1.7976931348623157e308
WORDS = (
    "a", "b b", "", " ", "ÄÖ ß", "ss", "x\u2003y\u0085z", "\U0001f600", "long " * 60, "e\u0301", "\x1c q", "A",
)  # fmt: skip
FLOATS = (
    0.0, -0.0, math.nan, math.inf, -math.inf, 0.1, 0.2, 1e16, -1e16, 1.0, TINY, -TINY, HUGE, -HUGE, 2.5, 3.0,
)  # fmt: skip
_ITEM = pa.field("item", pa.int32())
TYPES: tuple[pa.DataType, ...] = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.binary(), pa.binary(3),
    pa.decimal128(9, 2), pa.decimal128(38, 10), pa.decimal256(60, 5), pa.timestamp("s"), pa.timestamp("ms", "UTC"),
    pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us"),
    pa.duration("ms"), pa.list_(_ITEM), pa.struct([("x", pa.int32()), ("y", pa.string())]),
    pa.list_(pa.list_(pa.string())),
)  # fmt: skip
DAY = 86_400


def value(rng: random.Random, kind: pa.DataType) -> Any:
    """A value that `pa.array` takes for a type; times as numbers of their unit, dates as days."""
    if t.is_boolean(kind):
        return rng.random() < 0.5
    if t.is_integer(kind):
        signed, bits = t.is_signed_integer(kind), kind.bit_width
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return rng.choice([low, high, rng.randint(low, high), rng.randint(0, 5), rng.randint(100, 110)])
    if t.is_floating(kind):
        chosen = rng.choice([*FLOATS, rng.uniform(-5, 5), rng.random() * 10.0 ** rng.randint(-300, 300)])
        with np.errstate(over="ignore"):
            return float({16: np.float16, 32: np.float32}.get(kind.bit_width, np.float64)(chosen))
    if t.is_string(kind) or t.is_large_string(kind):
        return rng.choice([*WORDS, f"id {rng.random()}", "w " * rng.randint(0, 700)])
    if t.is_fixed_size_binary(kind):
        return rng.randbytes(3)
    if t.is_binary(kind):
        return rng.choice([b"", b"\xff", rng.randbytes(rng.randint(0, 9))])
    if t.is_decimal(kind):
        digits = rng.choice([1, 3, kind.precision])
        number = rng.randint(-(10**digits) + 1, 10**digits - 1)
        with localcontext(prec=100):
            return Decimal(number).scaleb(-kind.scale)
    if t.is_date(kind) or t.is_timestamp(kind):
        days = rng.choice([0, -1, 19_000, rng.randint(-30_000, 60_000)])
        unit = 1 if t.is_date(kind) else DAY * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
        return days * unit + (0 if t.is_date(kind) else rng.choice([0, 1, 999]))
    if t.is_time(kind) or t.is_duration(kind):
        return rng.choice([0, 1, 86_399_999])
    if t.is_struct(kind):
        return {field.name: rng.choice([None, value(rng, field.type)]) for field in kind}
    return [rng.choice([None, value(rng, kind.value_type)]) for _ in range(rng.randint(0, 3))]


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    if t.is_temporal(kind):
        if t.is_date64(kind):
            return pa.array(values, pa.int32()).cast(pa.date32()).cast(kind)
        return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    if t.is_float16(kind):
        return pa.array([None if v is None else np.float16(v) for v in values], kind)
    return pa.array(values, kind)


def column(rng: random.Random, kind: pa.DataType, rows: int) -> list[Any]:
    """Values of a column: few or many different ones, with nulls, or nulls alone."""
    pool = [value(rng, kind) for _ in range(rng.choice([1, 3, rows + 1]))]
    nulls = rng.choice([0, 0, 0.1, 0.7, 1])
    return [None if rng.random() < nulls else rng.choice(pool) for _ in range(rows)]


def distinct_rows(columns: list[list[Any]], kinds: list[pa.DataType]) -> int:
    """How many different rows there are; of times microseconds count."""

    def same(v: Any, kind: pa.DataType) -> Any:
        if v is not None and t.is_timestamp(kind) and kind.unit == "ns":
            return math.trunc(Fraction(v, 1000))
        return _same(v, kind)

    return len({tuple(map(same, row, kinds)) for row in zip(*columns, strict=True)})


# --- what a profile says ---------------------------------------------------------------------------------


def _same(found: Any, kind: pa.DataType) -> Any:
    """A value that is equal where a profile takes values for equal."""
    if isinstance(found, float):
        return "NaN" if math.isnan(found) else found + 0.0
    return _fed(found, kind) if isinstance(found, dict | list) else found


def _fed(found: Any, kind: pa.DataType) -> bytes:
    """What the logical hash feeds for a nested value: null and nothing may look alike in it."""
    if t.is_struct(kind):
        return b"".join(_fed(found[member.name], member.type) for member in kind)
    if found is None:
        return b"\0"
    if isinstance(found, list):
        return struct.pack("<Q", len(found)) + b"".join(_fed(each, kind.value_type) for each in found)
    if isinstance(found, int):
        return found.to_bytes(kind.bit_width // 8, "little", signed=t.is_signed_integer(kind))
    text = found.encode()
    return struct.pack("<Q", len(text)) + bytes(text)


def _root(exact: Fraction) -> float:
    with localcontext(prec=1_700):  # half of the smallest double is as long, squared
        return float((Decimal(exact.numerator) / Decimal(exact.denominator)).sqrt())


def _float(exact: Fraction) -> float:
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.copysign(math.inf, exact)


def expected(values: list[Any], kind: pa.DataType) -> dict[str, Any]:
    """The statistics of a column with at most 16,384 different values."""
    given = [v for v in values if v is not None]
    found: dict[str, Any] = {
        "null_count": len(values) - len(given),
        "null_fraction": (len(values) - len(given)) / len(values) if values else 0,
        "num_unique": len({_same(v, kind) for v in given}),
    }
    if t.is_boolean(kind):
        return found | {"kind": "boolean"} | _top(["true" if v else "false" for v in given])
    if t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind):
        return found | {"kind": "numeric"} | _numbers(given, kind)
    if t.is_string(kind) or t.is_large_string(kind):
        return found | {"kind": "string"} | _top([_shown(v) for v in given]) | _texts(given)
    if t.is_date(kind) or t.is_timestamp(kind):
        return found | {"kind": "datetime"} | _times(given, kind)
    return found | {"kind": "other"}


def _numbers(given: list[Any], kind: pa.DataType) -> dict[str, Any]:
    exact = sorted(Fraction(v) for v in given if math.isfinite(v))
    found: dict[str, Any] = {
        "mean": None, "std": None, "min": None, "max": None, "percentiles": {}, "quantiles": [],
        "histogram": {"bin_edges": [], "counts": []},
    }  # fmt: skip
    if t.is_floating(kind):
        found["non_finite_count"] = len(given) - len(exact)
    if not exact:
        return found
    mean = sum(exact) / len(exact)
    found["mean"] = _float(mean)
    found["std"] = _root(sum((v - mean) ** 2 for v in exact) / len(exact))
    whole = t.is_integer(kind)
    found["min"], found["max"] = ((int(v) if whole else _float(v)) for v in (exact[0], exact[-1]))

    def quantile(percent: int) -> float:
        rank = Fraction(percent * (len(exact) - 1), 100)
        low = exact[math.floor(rank)]
        return _float(low + (rank - math.floor(rank)) * (exact[math.ceil(rank)] - low))

    found["percentiles"] = {f"p{p}": quantile(p) for p in (5, 25, 50, 75, 95, 99)}
    found["quantiles"] = [quantile(p) for p in range(101)]
    bins = 1 if exact[0] == exact[-1] else 50
    edges = [_float(exact[0] + (exact[-1] - exact[0]) * i / bins) for i in range(bins + 1)]
    counts = [0] * bins
    for each in exact:
        counts[max([i for i in range(bins) if edges[i] <= each], default=0)] += 1
    found["histogram"] = {"bin_edges": edges, "counts": counts}
    return found


def _shown(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}…#{xxhash.xxh64_hexdigest(text.encode())}"


def _top(given: list[str]) -> dict[str, Any]:
    listed = sorted(Counter(given).items(), key=lambda item: (-item[1], item[0].encode()))[:50]
    return {
        "top_values": dict(listed),
        "top_values_coverage": sum(n for _, n in listed) / len(given) if given else 0,
    }


def _texts(given: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, sizes in (
        ("char_length", [len(v) for v in given]),
        ("token_count", [len(v.split()) for v in given]),
    ):
        found[f"avg_{name}"] = sum(sizes) / len(sizes) if sizes else None
        found[f"min_{name}"], found[f"max_{name}"] = min(sizes, default=None), max(sizes, default=None)
    return found


def _times(given: list[int], kind: pa.DataType) -> dict[str, Any]:
    if not given:
        return {"min": None, "max": None, "range_days": None}
    parts = 1 if t.is_date(kind) else DAY * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    low, high = min(given), max(given)
    shown = []
    for moment in (low, high):
        days, rest = divmod(moment, parts)
        date = dt.date(1970, 1, 1) + dt.timedelta(days=days)
        shown.append(Timestamp.parse(f"{date}T00:00:00Z").epoch_ns + rest * (DAY * 10**9 // parts))
    return {"min": shown[0], "max": shown[1], "range_days": (high - low) / parts}


def tokens(rows: pa.RecordBatch, row: int, field: pa.Field, seed_of: Callable[[str], int]) -> set[int]:
    """The tokens that a row has by one of its columns."""
    value = rows.column(field.name)[row]
    if not value.is_valid:
        return set()
    seed = seed_of(field.name)
    if t.is_string(field.type) or t.is_large_string(field.type):
        return {xxhash.xxh64_intdigest(word.encode(), seed) for word in value.as_py().casefold().split()}
    return {int(EncodedColumn.of(rows.column(field.name).slice(row, 1), seed).hashes[0])}
