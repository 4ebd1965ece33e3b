"""The logical hash as the text of its algorithm reads, one value at a time, and random tables for it."""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
from decimal import Context
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from odfchain.odf.identity import Multihash
from odfchain.odf.logical_hash import LogicalDigest, NullRule

U16, U64 = struct.Struct("<H").pack, struct.Struct("<Q").pack
EXACT = Context(prec=80)
UNITS = {"s": 0, "ms": 1, "us": 2, "ns": 3}
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

# --- an oracle that follows the text of the algorithm, one value at a time ----------------------------


def header(t: pa.DataType) -> bytes:
    if pa.types.is_null(t):
        return U16(0)
    if pa.types.is_integer(t):
        return U16(1) + bytes([pa.types.is_signed_integer(t)]) + U64(t.bit_width)
    if pa.types.is_floating(t):
        return U16(2) + U64(t.bit_width)
    if pa.types.is_binary(t) or pa.types.is_fixed_size_binary(t):
        return U16(3)
    if pa.types.is_string(t):
        return U16(4)
    if pa.types.is_boolean(t):
        return U16(5)
    if pa.types.is_decimal(t):
        return U16(6) + U64(t.bit_width) + U64(t.precision) + U64(t.scale)
    if pa.types.is_date32(t):
        return U16(7) + U64(32) + U16(0)
    if pa.types.is_date64(t):
        return U16(7) + U64(64) + U16(1)
    if pa.types.is_time(t):
        return U16(8) + U64(t.bit_width) + U16(UNITS[t.unit])
    if pa.types.is_timestamp(t):
        zone = b"\0" if t.tz is None else U64(len(t.tz)) + t.tz.encode()
        return U16(9) + U16(UNITS[t.unit]) + zone
    if pa.types.is_list(t) or pa.types.is_fixed_size_list(t):
        return U16(11) + header(t.value_type)
    raise AssertionError(t)


def value(v: Any, t: pa.DataType) -> bytes:
    if v is None:
        return b"\0"
    if pa.types.is_boolean(t):
        return bytes([1 + v])
    if pa.types.is_integer(t):
        return int(v).to_bytes(t.bit_width // 8, "little", signed=pa.types.is_signed_integer(t))
    if pa.types.is_floating(t):
        return struct.pack({16: "<e", 32: "<f", 64: "<d"}[t.bit_width], v)
    if pa.types.is_string(t):
        return U64(len(v.encode())) + v.encode()
    if pa.types.is_binary(t) or pa.types.is_fixed_size_binary(t):
        return U64(len(v)) + v
    if pa.types.is_decimal(t):
        return int(v.scaleb(t.scale, EXACT)).to_bytes(t.bit_width // 8, "little", signed=True)
    if pa.types.is_date(t):
        days = (v - dt.date(1970, 1, 1)).days
        return struct.pack("<i", days) if t.bit_width == 32 else struct.pack("<q", days * 86_400_000)
    if pa.types.is_time(t):
        micros = ((v.hour * 60 + v.minute) * 60 + v.second) * 1_000_000 + v.microsecond
        number = micros // {"s": 1_000_000, "ms": 1_000, "us": 1}[t.unit]
        return number.to_bytes(t.bit_width // 8, "little")
    if pa.types.is_timestamp(t):
        aware = v if v.tzinfo else v.replace(tzinfo=dt.UTC)
        return struct.pack(
            "<q",
            (aware - EPOCH)
            // dt.timedelta(**{{"s": "seconds", "ms": "milliseconds", "us": "microseconds"}[t.unit]: 1}),
        )
    return U64(len(v)) + b"".join(value(item, t.value_type) for item in v)


def oracle(table: pa.Table) -> bytes:
    schema_part, leaves = b"", []

    def walk(fields: list[pa.Field], columns: list[list[Any]], level: int) -> None:
        nonlocal schema_part
        for field, items in zip(fields, columns, strict=True):
            name = field.name.encode()
            schema_part += U64(len(name)) + name + U64(level)
            if pa.types.is_struct(field.type):
                children = [field.type.field(i) for i in range(field.type.num_fields)]
                below = [[None if item is None else item[c.name] for item in items] for c in children]
                walk(children, below, level + 1)
            else:
                leaf = hashlib.sha3_256(header(field.type))
                for item in items:
                    leaf.update(value(item, field.type))
                leaves.append(leaf.digest())

    walk(list(table.schema), [c.to_pylist() for c in table.columns], 0)
    return hashlib.sha3_256(schema_part + b"".join(leaves)).digest()


# --- random tables -----------------------------------------------------------------------------------

DAYS = st.dates(dt.date(1900, 1, 1), dt.date(2100, 1, 1))
MILLIS = st.integers(-(10**12), 10**13).map(lambda ms: EPOCH + dt.timedelta(milliseconds=ms))
SCALARS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    *[(t, st.integers(-(2 ** (t.bit_width - 1)), 2 ** (t.bit_width - 1) - 1)) for t in (pa.int8(), pa.int16(), pa.int32(), pa.int64())],
    *[(t, st.integers(0, 2**t.bit_width - 1)) for t in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())],
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=6)),
    (pa.binary(), st.binary(max_size=6)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.decimal128(12, 3), st.decimals(-(10**8), 10**8, places=3)),
    (pa.decimal256(50, 2), st.decimals(-(10**30), 10**30, places=2, allow_nan=False)),
    (pa.date32(), DAYS),
    (pa.date64(), DAYS),
    (pa.time32("s"), st.times().map(lambda t: t.replace(microsecond=0))),
    (pa.time64("us"), st.times()),
    (pa.timestamp("ms", "UTC"), MILLIS),
    (pa.timestamp("us"), MILLIS.map(lambda d: d.replace(tzinfo=None))),
    (pa.null(), st.none()),
]  # fmt: skip


def lists(of: tuple[pa.DataType, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    t, items = of
    return st.sampled_from(
        [
            (pa.list_(t), st.lists(st.none() | items, max_size=3)),
            (pa.list_(t, 2), st.lists(st.none() | items, min_size=2, max_size=2)),
        ]
    )


LEAVES = st.sampled_from(SCALARS)
KINDS = st.one_of(LEAVES, LEAVES.flatmap(lists), LEAVES.flatmap(lists).flatmap(lists))


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(0, 12))
    columns, fields = [], []
    for index in range(draw(st.integers(1, 3))):
        kind, items = draw(KINDS)
        data = draw(st.lists(st.none() | items, min_size=rows, max_size=rows))
        array = pa.array(data, kind)
        if draw(st.booleans()):
            other = pa.array(
                draw(st.lists(st.none() | st.integers(0, 9), min_size=rows, max_size=rows)), pa.int32()
            )
            mask = pa.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), pa.bool_())
            array = pa.StructArray.from_arrays([array, other], names=["x", "ý"], mask=mask)
        columns.append(array)
        fields.append(f"c{index}")
    return pa.table(columns, names=fields)


def hash_table(table: pa.Table, *, null_rule: NullRule = "correct") -> Multihash:
    """The logical hash of a table in memory."""
    digest = LogicalDigest(table.schema, null_rule=null_rule)
    for batch in table.to_batches():
        digest.update(batch)
    return digest.finish()
