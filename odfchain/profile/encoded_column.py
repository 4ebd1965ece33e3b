"""A column of some rows with the hashes of its values, each computed once where telling them apart is cheap.

Whole numbers that lie near each other are told apart by their place from the least on, texts, binaries and
decimals by Arrow's dictionaries. Other numbers are faster hashed one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from pyarrow import types as t

from odfchain.digest.row_hash import Numbers
from odfchain.profile.value_hashes import Hashes, distinct_hashes, has_words, hashes_of_words, words_of

_NEAR = 4
"""Whole numbers are near each other where so many could lie between any two of as many rows [multiple]."""


@dataclass(frozen=True, eq=False)
class EncodedColumn:
    """A column without its nulls; made by `encoded`."""

    type: pa.DataType
    rows: int
    valid: Numbers | None
    """Which rows are not null; None where all are."""
    numbers: Numbers | None
    """Values as numbers of 64 bits: floats as doubles with one zero and one NaN, times in their unit."""
    distinct: pa.Array | None
    """Other values, each once; None for nested ones."""
    least: int | None
    """The first of whole numbers that are near each other."""
    codes: Numbers | None
    """The place of each value among the distinct ones, or from the least on."""
    words: Hashes
    """The hash of each of those, or of each value."""

    @cached_property
    def values(self) -> int:
        """How many are not null."""
        return self.rows if self.valid is None else int(self.valid.sum())

    @cached_property
    def hashes(self) -> Hashes:
        """The hash of each row; 0 where it is null."""
        given = self.words if self.codes is None else self.words[self.codes]
        if self.valid is None:
            return given
        found = np.zeros(self.rows, dtype=np.uint64)
        found[self.valid] = given
        return found

    @cached_property
    def counts(self) -> Numbers:
        """How often each of the distinct values occurs."""
        assert self.codes is not None  # noqa: S101 - asked by the caller
        return np.bincount(self.codes, minlength=len(self.words))


def encoded(column: pa.Array, seed: int) -> EncodedColumn:
    """The values of a column, with their hashes by the column's seed."""
    kind = column.type
    if t.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    rows, given = len(column), column.drop_null()
    if t.is_nested(kind) or t.is_null(kind):
        return EncodedColumn(kind, rows, valid, None, None, None, None, distinct_hashes(given, seed))
    if not has_words(kind):
        of_all = given.dictionary_encode()
        words = distinct_hashes(of_all.dictionary, seed)
        codes = of_all.indices.to_numpy(zero_copy_only=False)
        return EncodedColumn(kind, rows, valid, None, of_all.dictionary, None, codes, words)
    bits = words_of(given)
    numbers = _numbers(given, bits)
    least = _least_of_near(numbers, kind)
    if least is None:
        return EncodedColumn(kind, rows, valid, numbers, None, None, None, hashes_of_words(bits, seed))
    codes = (numbers - numbers.dtype.type(least)).astype(np.intp)
    all_near = np.arange(int(codes.max()) + 1, dtype=np.uint64) + np.uint64(least % 2**64)
    return EncodedColumn(kind, rows, valid, numbers, None, least, codes, hashes_of_words(all_near, seed))


def _numbers(given: pa.Array, bits: Hashes) -> Numbers:
    kind = given.type
    if t.is_floating(kind):
        return bits.view(np.float64)
    if t.is_temporal(kind) and not t.is_date(kind):  # their hashes are of microseconds
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        times: Numbers = given.cast(width).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        return times
    return bits if t.is_boolean(kind) or t.is_unsigned_integer(kind) else bits.view(np.int64)


def _least_of_near(numbers: Numbers, kind: pa.DataType) -> int | None:
    if not len(numbers) or not (t.is_integer(kind) or t.is_boolean(kind) or t.is_date(kind)):
        return None
    least = int(numbers.min())
    return least if int(numbers.max()) - least < _NEAR * len(numbers) else None
