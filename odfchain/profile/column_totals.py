"""What is added up of one column: exact, in bounded memory, the same for any cut and order of its values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.digest.row_hash import Numbers
from odfchain.profile.encoded_column import EncodedColumn
from odfchain.profile.exact_numbers import (
    ExactSums,
    sums_of_decimals,
    sums_of_doubles,
    sums_of_integers,
    sums_of_near,
)
from odfchain.profile.hyperloglog import Hll
from odfchain.profile.value_counts import ValueCounts, shown
from odfchain.profile.value_hashes import Hashes, column_seed, distinct_hashes, hashes_of_words


class ColumnKind(Enum):
    """Which shape the statistics of a column have (ADR-0001)."""

    NUMERIC = "numeric"
    STRING = "string"
    DATETIME = "datetime"
    BOOLEAN = "boolean"
    OTHER = "other"

    @classmethod
    def of(cls, kind: pa.DataType) -> ColumnKind:
        """The shape for values of an Arrow type."""
        if t.is_dictionary(kind):
            kind = kind.value_type
        if t.is_boolean(kind):
            return cls.BOOLEAN
        if t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind):
            return cls.NUMERIC
        if t.is_string(kind) or t.is_large_string(kind):
            return cls.STRING
        return cls.DATETIME if t.is_timestamp(kind) or t.is_date(kind) else cls.OTHER


def key_type(kind: pa.DataType) -> pa.DataType:
    """As what values of a type are counted (`odfchain.profile.value_counts`)."""
    match ColumnKind.of(kind):
        case ColumnKind.STRING:
            return pa.string()
        case ColumnKind.DATETIME:
            return pa.int64()
        case ColumnKind.NUMERIC if t.is_floating(kind):
            return pa.float64()
        case ColumnKind.NUMERIC if t.is_decimal(kind):
            return kind
        case ColumnKind.NUMERIC if t.is_signed_integer(kind):
            return pa.int64()
    return pa.uint64()


@dataclass(frozen=True, slots=True)
class Lengths:
    """Sum, least and largest of some lengths; the sum counts each value as often as it occurs."""

    total: int = 0
    least: int | None = None
    largest: int | None = None

    def __add__(self, other: Lengths) -> Lengths:
        least = [n for n in (self.least, other.least) if n is not None]
        largest = [n for n in (self.largest, other.largest) if n is not None]
        return Lengths(self.total + other.total, min(least, default=None), max(largest, default=None))


class ColumnTotals:
    """The totals of one column; `update` and `merge` in any order end in the same."""

    def __init__(self, name: str, kind: pa.DataType) -> None:
        self.name, self.type = name, kind
        self.kind = ColumnKind.of(kind)
        self.seed = column_seed(name)
        self.rows = self.nulls = self.non_finite = 0
        self.sums = ExactSums()
        self.low: Any = None
        """The least finite value; times as numbers of their unit, dates as days."""
        self.high: Any = None
        self.characters, self.tokens = Lengths(), Lengths()
        self._counts: ValueCounts | None = ValueCounts(key_type(kind))
        self.hll = Hll()
        """Of texts all values; of others those that are not counted any more."""

    @property
    def values(self) -> int:
        """Rows that are not null."""
        return self.rows - self.nulls

    @property
    def counts(self) -> ValueCounts | None:
        """How often each value occurs; None where they are too many."""
        if self._counts is not None and self._counts.too_many:
            self._estimate(self._counts)
        return self._counts

    @property
    def distinct(self) -> int:
        """How many different values there are, null left aside; estimated where they are not counted."""
        counts = self.counts
        return round(self.hll.estimate) if counts is None else len(counts.keys)

    def update(self, column: EncodedColumn) -> None:
        """Add values."""
        self.rows += column.rows
        self.nulls += column.rows - column.values
        if not column.values:
            return
        match self.kind:
            case ColumnKind.NUMERIC:
                self._add_numbers(column)
            case ColumnKind.STRING:
                counts = column.counts
                self.characters += _lengths(pc.utf8_length(column.distinct), counts)
                self.tokens += _lengths(_tokens(column.distinct), counts)
                self.hll.update(column.words)
            case ColumnKind.DATETIME:
                assert column.numbers is not None  # noqa: S101 - of this kind
                self._bound(int(column.numbers.min()), int(column.numbers.max()))
        self._count(column)

    def _add_numbers(self, column: EncodedColumn) -> None:
        if column.numbers is None:
            assert column.distinct is not None  # noqa: S101 - decimals
            self.sums += sums_of_decimals(column.distinct, column.counts)
            bounds = pc.min_max(column.distinct)
            self._bound(Fraction(bounds["min"].as_py()), Fraction(bounds["max"].as_py()))
            return
        numbers = column.numbers
        if column.least is not None:
            self.sums += sums_of_near(column.least, column.counts)
        elif t.is_floating(self.type):
            finite = np.isfinite(numbers)
            if not finite.all():
                numbers = numbers[finite]
                self.non_finite += len(finite) - len(numbers)
            self.sums += sums_of_doubles(numbers)
        else:
            self.sums += sums_of_integers(numbers)
        if len(numbers):
            self._bound(numbers.min().item(), numbers.max().item())

    def _bound(self, low: Any, high: Any) -> None:
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    def _count(self, column: EncodedColumn) -> None:
        if self._counts is not None:
            self._counts.add(*_keys(column, self.kind))
            if self._counts.may_be_too_many and self._counts.too_many:
                self._estimate(self._counts)
        elif self.kind is not ColumnKind.STRING:
            self.hll.update(column.words)

    def _estimate(self, counts: ValueCounts) -> None:
        """Values are not counted any more: a sketch goes on from those that were."""
        self._see(counts)
        self._counts = None

    def _see(self, counts: ValueCounts) -> None:
        if self.kind is not ColumnKind.STRING:
            self.hll.update(self._hashes_of(counts.keys))

    def _hashes_of(self, keys: pa.Array) -> Hashes:
        if self.kind is ColumnKind.OTHER:
            found: Hashes = keys.to_numpy()
            return found
        if t.is_timestamp(self.type):
            return distinct_hashes(keys.cast(self.type), self.seed)
        if t.is_date(self.type):
            return hashes_of_words(keys.to_numpy().view(np.uint64), self.seed)
        return distinct_hashes(keys, self.seed)

    def merge(self, other: ColumnTotals) -> None:
        """Add what another part of the column has."""
        self.rows += other.rows
        self.nulls += other.nulls
        self.non_finite += other.non_finite
        self.sums += other.sums
        if other.low is not None:
            self._bound(other.low, other.high)
        self.characters += other.characters
        self.tokens += other.tokens
        self.hll.merge(other.hll)
        ours, theirs = self._counts, other._counts
        if ours is not None and theirs is not None:
            ours.add(theirs.keys, theirs.numbers)
            if ours.may_be_too_many and ours.too_many:
                self._estimate(ours)
        elif ours is not None:
            self._estimate(ours)
        elif theirs is not None:
            self._see(theirs)

    def restore(self, counts: tuple[pa.Array, Numbers] | None) -> None:
        """Take over the counts of totals that were written; without them there are estimates."""
        self._counts = None if counts is None else ValueCounts(key_type(self.type))
        if self._counts is not None and counts is not None:
            self._counts.add(*counts)


def _keys(column: EncodedColumn, kind: ColumnKind) -> tuple[pa.Array, Numbers]:
    """(keys that occur, how often), as they are counted."""
    if column.least is not None:
        counts = column.counts
        there = np.flatnonzero(counts)
        assert column.numbers is not None  # noqa: S101 - there are some
        width = column.numbers.dtype
        return pa.array(there.astype(width) + width.type(column.least)), counts[there]
    if kind is ColumnKind.OTHER or (column.numbers is None and column.distinct is None):
        words = column.words
        if column.codes is not None:
            return pa.array(words), column.counts
        found, numbers = np.unique(words, return_counts=True)
        return pa.array(found), numbers
    if column.numbers is not None:
        found = pa.array(column.numbers).dictionary_encode()
        return found.dictionary, np.bincount(found.indices.to_numpy(zero_copy_only=False))
    assert column.distinct is not None  # noqa: S101 - texts and decimals
    if kind is ColumnKind.STRING:
        return shown(column.distinct.cast(pa.string())), column.counts
    return column.distinct, column.counts


def _tokens(texts: pa.Array) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(texts)
    parts = pc.list_value_length(pc.utf8_split_whitespace(trimmed))
    return pc.if_else(pc.equal(pc.binary_length(trimmed), 0), 0, parts)


def _lengths(lengths: pa.Array, counts: Numbers) -> Lengths:
    numbers = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return Lengths(int(numbers @ counts), int(numbers.min()), int(numbers.max()))
