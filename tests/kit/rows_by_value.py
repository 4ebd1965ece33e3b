"""Oracle: rows compared by a hash made of one value after the other, as `odfchain` once did."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.odf.enums import TAKES_BACK
from odfchain.slices.state import SliceFile, rows_of

Numbers = np.ndarray[Any, Any]
PAIR = np.dtype([("high", "<u8"), ("low", "<u8")])

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3}
_INTEGERS = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}


def hash_rows(batch: pa.RecordBatch, leave_out: Collection[str], *, exact: bool = False) -> Numbers:
    """The hash of each row as a `PAIR`, by all columns but those left out."""
    total = np.zeros((batch.num_rows, 2), dtype=np.uint64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in leave_out:
            total += _hash_column(name, column, exact)
    return total.view(PAIR).reshape(-1)


def _hash_column(name: str, column: pa.Array, exact: bool) -> Numbers:
    if t.is_dictionary(column.type):
        column = column.dictionary_decode()
    found = _fixed(name, column, exact)
    if found is None:
        words = np.array([_digest(name, canonical(value, exact)) for value in column], dtype=np.uint64)
        found = words.reshape(-1, 2)
    if column.null_count:
        found = np.where(column.is_valid().to_numpy(zero_copy_only=False)[:, None], found, np.uint64(0))
    return found


def _fixed(name: str, column: pa.Array, exact: bool) -> Numbers | None:
    data_type = column.type
    if t.is_null(data_type):
        return np.zeros((len(column), 2), dtype=np.uint64)
    if t.is_boolean(data_type):
        column = column.cast(pa.uint8())
    elif not (t.is_integer(data_type) or t.is_floating(data_type) or t.is_temporal(data_type)):
        return None
    elif t.is_integer(data_type):
        column = column.cast(pa.int64() if t.is_signed_integer(data_type) else pa.uint64())
    elif t.is_floating(data_type):
        column = column.cast(pa.float64()) if exact else same_floats(column)
    column = column.view(_INTEGERS[column.type.bit_width // 8])
    values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
    high, low = (np.uint64(word) for word in _digest(name, "key of the column"))
    return np.stack((_mixed(values ^ high, low), _mixed(values ^ low, high)), axis=1)


def _mixed(values: Numbers, key: np.uint64) -> Numbers:
    for _ in range(2):
        values = (values ^ (values >> np.uint64(30))) * _MIX[0]
        values = (values ^ (values >> np.uint64(27))) * _MIX[1]
        values = (values ^ (values >> np.uint64(31))) + key
    return values


def _digest(name: str, value: object) -> tuple[int, int]:
    data = value if isinstance(value, bytes) else repr(value).encode(errors="surrogatepass")
    encoded = name.encode(errors="surrogatepass")
    head = len(encoded).to_bytes(8, "big") + encoded + (b"b" if isinstance(value, bytes) else b"v")
    found = hashlib.blake2b(head + data, digest_size=16, key=b"oracle").digest()
    return int.from_bytes(found[:8], "big"), int.from_bytes(found[8:], "big")


def same_floats(column: pa.Array) -> pa.Array:
    """Numbers as doubles that have the same bits where they are equal: -0.0 is 0.0, and NaN is NaN."""
    number = pc.add(column.cast(pa.float64()), 0.0)
    return pc.if_else(pc.is_nan(number), pa.scalar(float("nan")), number)


def canonical(value: pa.Scalar, exact: bool = False) -> Any:
    """A value that is equal to another one, and written alike, where the cells are; it can be hashed."""
    if not value.is_valid:
        return None
    kind, same = value.type, functools.partial(canonical, exact=exact)
    if t.is_map(kind):
        return tuple(sorted((tuple(map(same, entry.values())) for entry in value.values), key=repr))
    if t.is_struct(kind):
        return tuple(zip(kind.names, map(same, value.values()), strict=True))
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return tuple(map(same, value.values))
    if t.is_floating(kind):
        number = value.as_py()
        return "NaN" if number != number else number if exact else number + 0.0  # noqa: PLR0124
    if t.is_temporal(kind):
        return value.value * _NANOSECONDS.get(getattr(kind, "unit", ""), 1)
    return value.as_py()


# --- the state without a key, row after row ------------------------------------------------------------------


def _rows(slices: Sequence[SliceFile], upto: int | None) -> Iterator[tuple[int, bool, bytes]]:
    for item in slices:
        for batch, offsets, operations in rows_of(item, None, upto):
            hashes = hash_rows(batch, set(item.vocabulary.columns[:3]))
            for offset, operation, pair in zip(offsets, operations, hashes, strict=True):
                yield int(offset), int(operation) in TAKES_BACK, pair.tobytes()


def in_force(slices: Sequence[SliceFile], upto: int | None = None, *, net: bool = False) -> list[int]:
    """The offsets of the rows in force, without a key."""
    kept: dict[bytes, list[int]] = {}
    owed: dict[bytes, int] = {}
    for offset, back, pair in _rows(slices, upto):
        rows = kept.setdefault(pair, [])
        if not back:
            rows.append(offset)
        elif net:
            owed[pair] = owed.get(pair, 0) + 1
        elif rows:
            del rows[0]
    return sorted(offset for pair, rows in kept.items() for offset in rows[owed.get(pair, 0) :])


def taken_back_in_vain(
    slices: Sequence[SliceFile], asked: Sequence[SliceFile], *, in_force: bool
) -> list[int]:
    """Offsets of the rows of `asked` that take back what is not in force, or was never there."""
    there: dict[bytes, int] = {}
    wrong = []
    for offset, back, pair in _rows(slices, None):
        count = there.get(pair, 0)
        if not back:
            there[pair] = count + 1
        elif not count:
            wrong.append(offset)
        elif in_force:
            there[pair] = count - 1
    return [o for o in wrong if any(i.interval.start <= o <= i.interval.end for i in asked)]


def first_other_row(state: SliceFile, slices: Sequence[SliceFile], offsets: Numbers) -> int:
    """The place of the first of these offsets whose row a state lacks, or has otherwise."""

    def rows(items: Sequence[SliceFile]) -> Iterator[tuple[int, int, bytes]]:
        for item in items:
            for batch, numbers, operations in rows_of(item, None, None):
                hashes = hash_rows(batch, set(item.vocabulary.columns[:3]), exact=True)
                for offset, operation, pair in zip(numbers, operations, hashes, strict=True):
                    yield int(offset), int(operation), pair.tobytes()

    actual, wanted = sorted(rows([state])), [row for row in rows(slices) if row[0] in offsets]
    differ = (place for place, (one, other) in enumerate(zip(actual, wanted, strict=True)) if one != other)
    return next(differ, len(wanted))
