"""A hash of 128 bits for each row, by the values of its data columns: for telling whether rows are equal.

It is the sum of one hash for each value, so the order of columns does not matter, and a null adds nothing:
rows from before a column was added are equal to later ones without a value in it. The hash is keyed with
random bytes of this process, so that nobody can make two rows that look equal here. It is never stored.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types as t

Numbers = np.ndarray[Any, Any]

PAIR = np.dtype([("high", "<u8"), ("low", "<u8")])
"""The hash of a row as one value."""

_KEY = secrets.token_bytes(32)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_INTEGERS = {1: pa.uint8(), 4: pa.uint32(), 8: pa.uint64()}


def own_key() -> bytes:
    """The key of this process, for processes that work for it."""
    return _KEY


def use_key(key: bytes) -> None:
    """Hash as the process that this one works for."""
    global _KEY  # noqa: PLW0603 - the key is the process's
    _KEY = key


def hash_rows(batch: pa.RecordBatch, leave_out: Collection[str]) -> Numbers:
    """The hash of each row as a `PAIR`, by all columns but those left out."""
    total = np.zeros((batch.num_rows, 2), dtype=np.uint64)
    for name, column in _leaves(batch, leave_out):
        total += _hash_column(name, column)  # modulo 2**64, both halves
    return total.view(PAIR).reshape(-1)


def _leaves(batch: pa.RecordBatch, leave_out: Collection[str]) -> Iterator[tuple[str, pa.Array]]:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in leave_out:
            yield name, column


def _hash_column(name: str, column: pa.Array) -> Numbers:
    if t.is_dictionary(column.type):
        column = column.dictionary_decode()
    found = _fixed(name, column)
    if found is None:
        encoded = column.dictionary_encode() if _has_dictionary(column.type) else None
        if encoded is not None:
            words = np.array([_digest(name, v) for v in encoded.dictionary.to_pylist()], dtype=np.uint64)
            indices = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
            found = words.reshape(-1, 2)[indices] if len(words) else np.zeros((len(column), 2), np.uint64)
        else:
            values = [column[i] for i in range(len(column))]
            words = np.array([_digest(name, _plain(v)) for v in values], dtype=np.uint64)
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


def _fixed(name: str, column: pa.Array) -> Numbers | None:
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
        column = column.cast(pa.float64())
    column = column.view(_INTEGERS[column.type.bit_width // 8])
    values = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
    high, low = (np.uint64(word) for word in _digest(name, "key of the column"))
    return np.stack((_mixed(values ^ high, low), _mixed(values ^ low, high)), axis=1)


def _mixed(values: Numbers, key: np.uint64) -> Numbers:
    """A bijection that spreads each bit over all (the finalizer of splitmix64, twice, with a key)."""
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


def _plain(value: pa.Scalar) -> object:
    try:
        return value.as_py()
    except (ValueError, OverflowError, pa.ArrowException):  # beyond what the language can hold
        return str(value)
