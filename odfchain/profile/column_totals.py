"""What is added up of one column: exact, in bounded memory, the same for any cut and order of its values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.profile.exact_numbers import ExactSums, sums_of_doubles, sums_of_fractions, sums_of_integers
from odfchain.profile.sketches import Hll
from odfchain.profile.value_hashes import column_seed, value_hashes

MOST_VALUES = 16_384
"""So many distinct values are counted one by one; beyond that there are estimates."""


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
        self.rows = self.nulls = self.non_finite = 0
        self.sums = ExactSums()
        self.low: Any = None
        """The least finite value; times as numbers of their unit."""
        self.high: Any = None
        self.characters, self.tokens = Lengths(), Lengths()
        self.counts: Counter[Hashable] | None = Counter()
        """How often each value occurs; None beyond `MOST_VALUES`."""
        self.hll: Hll | None = None
        self._seed = column_seed(name)

    @property
    def values(self) -> int:
        """Rows that are not null."""
        return self.rows - self.nulls

    @property
    def distinct(self) -> int:
        """How many different values there are, null left aside; estimated where they are not counted."""
        if self.counts is not None:
            return len(self.counts)
        assert self.hll is not None  # noqa: S101 - one of the two is there
        return round(self.hll.estimate)

    def update(self, column: pa.Array) -> None:
        """Add values."""
        self.rows += len(column)
        self.nulls += column.null_count
        given = column.drop_null()
        if not len(given):
            return
        if t.is_floating(given.type):
            given = pc.add(given.cast(pa.float64()), 0.0)
        encoded = given if t.is_dictionary(given.type) else _encoded(given)
        counts = np.bincount(
            encoded.indices.to_numpy(zero_copy_only=False), minlength=len(encoded.dictionary)
        )
        present = encoded.dictionary
        self._add_kind(given, present, counts)
        self._count(present, counts)

    def _add_kind(self, given: pa.Array, present: pa.Array, counts: np.ndarray[Any, Any]) -> None:
        match self.kind:
            case ColumnKind.NUMERIC:
                self._add_numbers(given, present, counts)
            case ColumnKind.STRING:
                self.characters += _lengths(pc.utf8_length(present), counts)
                self.tokens += _lengths(_tokens(present), counts)
            case ColumnKind.DATETIME:
                bounds = pc.min_max(present)
                self._bound(_number(bounds["min"]), _number(bounds["max"]))

    def _add_numbers(self, given: pa.Array, present: pa.Array, counts: np.ndarray[Any, Any]) -> None:
        if t.is_decimal(present.type):
            values = [Fraction(value) for value in present.to_pylist()]
            self.sums += sums_of_fractions(values, counts.tolist())
            self._bound(min(values), max(values))
            return
        numbers = given.to_numpy(zero_copy_only=False)
        if t.is_floating(given.type):
            finite = np.isfinite(numbers)
            self.non_finite += int(len(numbers) - finite.sum())
            numbers = numbers[finite]
            self.sums += sums_of_doubles(numbers)
        else:
            self.sums += sums_of_integers(numbers)
        if len(numbers):
            self._bound(numbers.min().item(), numbers.max().item())

    def _bound(self, low: Any, high: Any) -> None:
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)

    def _count(self, present: pa.Array, counts: np.ndarray[Any, Any]) -> None:
        if self.counts is not None:
            for value, count in zip(keys_of(present), counts.tolist(), strict=True):
                if count:
                    self.counts[value] += count
            if len(self.counts) > MOST_VALUES:
                self._estimate()
        if self.hll is not None:
            self.hll.update(value_hashes(present.filter(pa.array(counts > 0)), self._seed))

    def _estimate(self) -> None:
        """Values are not counted any more: a sketch goes on from those that were."""
        assert self.counts is not None  # noqa: S101 - asked by the caller
        self.hll = Hll()
        self.hll.update(value_hashes(values_of(list(self.counts), self.type), self._seed))
        self.counts = None

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
        if self.counts is not None and other.counts is not None:
            self.counts.update(other.counts)
            if len(self.counts) > MOST_VALUES:
                self._estimate()
            return
        if self.counts is not None:
            self._estimate()
        assert self.hll is not None  # noqa: S101 - made if it was not there
        if other.hll is not None:
            self.hll.merge(other.hll)
        elif other.counts:
            self.hll.update(value_hashes(values_of(list(other.counts), other.type), self._seed))


def _encoded(column: pa.Array) -> pa.DictionaryArray:
    if t.is_nested(column.type):
        hashes = value_hashes(column, 0)
        found, places = np.unique(hashes, return_inverse=True)
        return pa.DictionaryArray.from_arrays(pa.array(places), pa.array(found))
    if t.is_floating(column.type):  # NaNs of all kinds are one value
        column = pc.if_else(pc.is_nan(column), pa.scalar(float("nan")), column)
    return column.dictionary_encode()


def keys_of(present: pa.Array) -> Iterator[Hashable]:
    """Values as they are counted: times as numbers of their unit, and one NaN."""
    if t.is_floating(present.type):
        return ("NaN" if math.isnan(value) else value for value in present.to_pylist())
    if t.is_temporal(present.type):
        return iter(_integers(present).to_pylist())
    return iter(present.to_pylist())


def values_of(keys: list[Hashable], kind: pa.DataType) -> pa.Array:
    """Counted values as Arrow has them."""
    if t.is_dictionary(kind):
        kind = kind.value_type
    if t.is_nested(kind):
        return pa.array(keys, pa.uint64())
    if t.is_floating(kind):
        return pa.array([math.nan if key == "NaN" else key for key in keys], pa.float64())
    if t.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(keys, width).cast(kind)
    return pa.array(keys, kind)


def _integers(column: pa.Array) -> pa.Array:
    width = pa.int32() if column.type.bit_width == 32 else pa.int64()
    return column.cast(width)


def _number(value: pa.Scalar) -> int:
    return int(_integers(pa.array([value], value.type))[0].as_py())


def _tokens(texts: pa.Array) -> pa.Array:
    trimmed = pc.utf8_trim_whitespace(texts)
    parts = pc.list_value_length(pc.utf8_split_whitespace(trimmed))
    return pc.if_else(pc.equal(pc.binary_length(trimmed), 0), 0, parts)


def _lengths(lengths: pa.Array, counts: np.ndarray[Any, Any]) -> Lengths:
    numbers = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    used = numbers[counts > 0]
    if not len(used):
        return Lengths()
    return Lengths(int(numbers @ counts), int(used.min()), int(used.max()))


def exact_value(key: Hashable) -> Fraction:
    """A counted number as a fraction."""
    return Fraction(key) if isinstance(key, int | float | Decimal | Fraction) else Fraction(str(key))
