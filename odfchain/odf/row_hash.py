"""A hash of 128 bits for each row, by the values of its data columns: for telling whether rows are equal.

It is the sum of one hash for each value, so the order of columns does not matter, and a null adds nothing:
rows from before a column was added are equal to later ones without a value in it. Values are compared as
Spark compares them, at any depth: there is one zero and one NaN, and a map has no order. The hash is keyed
with random bytes of this process, so that collisions cannot be prepared. It is never stored.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

Numbers = np.ndarray[Any, Any]

PAIR = np.dtype([("high", "<u8"), ("low", "<u8")])
"""The hash of a row as one value."""

_KEY = secrets.token_bytes(32)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3}
_INTEGERS = {1: pa.uint8(), 4: pa.uint32(), 8: pa.uint64()}


def own_key() -> bytes:
    """The key of this process, for processes that work for it."""
    return _KEY


def use_key(key: bytes) -> None:
    """Hash as the process that this one works for."""
    global _KEY  # noqa: PLW0603 - the key is the process's
    _KEY = key


def hash_rows(batch: pa.RecordBatch, leave_out: Collection[str], *, exact: bool = False) -> Numbers:
    """The hash of each row as a `PAIR`, by all columns but those left out.

    `exact` ones tell zeros apart, and the NaN of different bits.
    """
    total = np.zeros((batch.num_rows, 2), dtype=np.uint64)
    for name, column in _leaves(batch, leave_out):
        total += _hash_column(name, column, exact)  # modulo 2**64, both halves
    return total.view(PAIR).reshape(-1)


def _leaves(batch: pa.RecordBatch, leave_out: Collection[str]) -> Iterator[tuple[str, pa.Array]]:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in leave_out:
            yield name, column


def _hash_column(name: str, column: pa.Array, exact: bool) -> Numbers:
    if t.is_dictionary(column.type):
        column = column.dictionary_decode()
    found = _fixed(name, column, exact)
    if found is None:
        encoded = column.dictionary_encode() if _has_dictionary(column.type) else None
        if encoded is not None:
            words = np.array([_digest(name, v) for v in encoded.dictionary.to_pylist()], dtype=np.uint64)
            indices = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
            found = words.reshape(-1, 2)[indices] if len(words) else np.zeros((len(column), 2), np.uint64)
        else:
            words = np.array([_digest(name, canonical(value, exact)) for value in column], dtype=np.uint64)
            found = words.reshape(-1, 2)
    if column.null_count:
        found = np.where(column.is_valid().to_numpy(zero_copy_only=False)[:, None], found, np.uint64(0))
    return found


def _has_dictionary(data_type: pa.DataType) -> bool:
    return bool(
        t.is_string(data_type)
        or t.is_large_string(data_type)
        or t.is_binary(data_type)
        or t.is_large_binary(data_type)
        or t.is_fixed_size_binary(data_type)
        or t.is_decimal(data_type)
    )


def _fixed(name: str, column: pa.Array, exact: bool) -> Numbers | None:
    """Hashes of values of a fixed size, without a loop; None for other types."""
    data_type = column.type
    if t.is_null(data_type):
        return np.zeros((len(column), 2), dtype=np.uint64)
    if t.is_boolean(data_type):
        column = column.cast(pa.uint8())
    elif not (t.is_integer(data_type) or t.is_floating(data_type) or t.is_temporal(data_type)):
        return None
    elif t.is_integer(data_type):  # a wider type of the same sign holds the same values
        column = column.cast(pa.int64() if t.is_signed_integer(data_type) else pa.uint64())
    elif t.is_floating(data_type):
        column = column.cast(pa.float64()) if exact else same_floats(column)
    column = column.view(_INTEGERS[column.type.bit_width // 8])
    values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
    high, low = (np.uint64(word) for word in _digest(name, "key of the column"))
    return np.stack((_mixed(values ^ high, low), _mixed(values ^ low, high)), axis=1)


def _mixed(values: Numbers, key: np.uint64) -> Numbers:
    # a bijection that spreads each bit over all: the finalizer of splitmix64, twice, with a key
    for _ in range(2):
        values = (values ^ (values >> np.uint64(30))) * _MIX[0]
        values = (values ^ (values >> np.uint64(27))) * _MIX[1]
        values = (values ^ (values >> np.uint64(31))) + key
    return values


def _digest(name: str, value: object) -> tuple[int, int]:
    data = value if isinstance(value, bytes) else repr(value).encode(errors="surrogatepass")
    kind = b"b" if isinstance(value, bytes) else b"v"
    encoded = name.encode(errors="surrogatepass")
    head = len(encoded).to_bytes(8, "big") + encoded + kind
    found = hashlib.blake2b(head + data, digest_size=16, key=_KEY).digest()
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
    if t.is_temporal(kind):  # nanoseconds are more than the language holds
        return value.value * _NANOSECONDS.get(getattr(kind, "unit", ""), 1)
    return value.as_py()
