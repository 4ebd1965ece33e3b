"""Check 19, whether what the footer of a slice reports is true of its rows: engines skip rows by it.

Every row group is looked at by itself, because it is skipped by itself. Bounds hold where no value is beyond
them: writers may cut texts, and need not report anything. Counts of nulls are exact. NaN is within no bounds,
and what stands in lists and maps is reported by element and skipped by nobody. Source: RFC-043.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as t

from odfchain.audit.checks import STATISTICS
from odfchain.audit.expected_schema import SliceFinding
from odfchain.slices.footers import bounds_of, leaves, nanoseconds_per_unit, shown
from odfchain.text import counted, one_line

_FEW = 64
"""So many values are compared by Python sooner than Arrow is called."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column as footers have it, and how its bounds and its values are compared."""

    name: str
    kind: pa.DataType
    bounds: Callable[[pq.Statistics, pa.DataType], tuple[Any, Any]]
    view: pa.DataType | None
    """The type of numbers that values of this type are compared by."""


class _Claim:
    """What a row group reports of a column, and what its rows have had so far."""

    __slots__ = ("bounded", "found", "found_nulls", "high", "leaf", "low", "nulls")

    def __init__(self, leaf: _Leaf, stats: pq.Statistics) -> None:
        self.leaf = leaf
        self.nulls: int | None = stats.null_count if stats.has_null_count else None
        bounds: tuple[Any, Any] = leaf.bounds(stats, leaf.kind) if stats.has_min_max else (None, None)
        self.low, self.high = bounds
        self.bounded = None not in bounds
        self.found_nulls = 0
        self.found: tuple[Any, Any] | None = None

    def update(self, column: pa.Array) -> None:
        """Look at the next values."""
        nulls = column.null_count
        self.found_nulls += nulls
        if not self.bounded or nulls == len(column):
            return
        try:
            low, high = _range_of(column if self.leaf.view is None else column.view(self.leaf.view))
        except pa.ArrowNotImplementedError:  # values that have no order here
            self.bounded = False
            return
        if low is not None and low == low:  # noqa: PLR0124 - not NaN
            known = (low, high) if self.found is None else self.found
            self.found = (min(low, known[0]), max(high, known[1]))

    def lies(self) -> Iterator[tuple[str, str]]:
        """(what about, message) of what is not true."""
        if self.nulls is not None and self.nulls != self.found_nulls:
            said, found = counted(self.nulls, "null"), counted(self.found_nulls, "null")
            yield "nulls", self._message(said, found)
        if self.found is not None:
            low, high = map(_bytes, self.found) if isinstance(self.found[0], str) else self.found
            if low < self.low or high > self.high:
                yield "bounds", self._message(self._shown(self.low, self.high), self._shown(low, high))

    def _message(self, said: str, found: str) -> str:
        return f"column `{one_line(self.leaf.name)}`: the footer says {said}, the rows have {found}"

    def _shown(self, low: Any, high: Any) -> str:
        return f"{_text(low, self.leaf.kind)} … {_text(high, self.leaf.kind)}"


class FooterCheck:
    """Fed the batches of one slice in order; then `finish` says what the footer claims wrongly."""

    def __init__(self, footer: pq.FileMetaData, schema: pa.Schema) -> None:
        self._footer = footer
        self._leaves, self._flat = _plan(schema)
        self._findings: dict[tuple[str, str], SliceFinding] = {}
        self._groups = footer.num_row_groups
        self._group = -1
        self._left = 0
        self._claims: list[tuple[int, _Claim]] = []
        self._next_group()

    def update(self, batch: pa.RecordBatch) -> None:
        """Look at the next rows."""
        position = 0
        while position < batch.num_rows and self._group < self._groups:
            count = min(self._left, batch.num_rows - position)
            part = batch if count == batch.num_rows else batch.slice(position, count)
            columns = part.columns if self._flat else list(_leaf_arrays(part))
            for index, claim in self._claims:
                claim.update(columns[index])
            position += count
            self._left -= count
            if not self._left:
                self._next_group()

    def finish(self) -> list[SliceFinding]:
        """There are no more rows: one finding for each column, the first row group where it shows."""
        return list(self._findings.values())

    def _next_group(self) -> None:
        """Judge what was claimed of the rows so far, and begin with the next rows that there are."""
        while not self._left:
            for _, claim in self._claims:
                for what, message in claim.lies():
                    where = f" (row group {self._group + 1} of {self._groups})" if self._groups > 1 else ""
                    finding = SliceFinding(STATISTICS, message + where)
                    self._findings.setdefault((what, claim.leaf.name), finding)
            self._group, self._claims = self._group + 1, []
            if self._group >= self._groups:
                return
            group = self._footer.row_group(self._group)
            self._left = group.num_rows
            for index, leaf in enumerate(self._leaves):
                stats = group.column(index).statistics if leaf is not None else None
                if leaf is not None and stats is not None:
                    self._claims.append((index, _Claim(leaf, stats)))


@lru_cache(maxsize=32)
def _plan(schema: pa.Schema) -> tuple[tuple[_Leaf | None, ...], bool]:
    """(the leaves in the order of the file, None for what is repeated; whether they are the columns)."""
    found = [None if repeated else _leaf(name, kind) for name, kind, repeated in leaves(schema)]
    nested = any(t.is_nested(field.type) or t.is_dictionary(field.type) for field in schema)
    return tuple(found), not nested


def _leaf(name: str, kind: pa.DataType) -> _Leaf:
    if t.is_string(kind) or t.is_large_string(kind):
        return _Leaf(name, kind, _bytes_of, None)
    if t.is_date32(kind) or t.is_time32(kind):
        return _Leaf(name, kind, _raw_of, pa.int32())
    if t.is_timestamp(kind) or t.is_time64(kind):
        return _Leaf(name, kind, _raw_of, pa.int64())
    if t.is_signed_integer(kind):
        return _Leaf(name, kind, _raw_of, None)
    return _Leaf(name, kind, bounds_of, None)


def _raw_of(stats: pq.Statistics, _: pa.DataType) -> tuple[Any, Any]:
    low, high = stats.min_raw, stats.max_raw
    return (low, high) if isinstance(low, int) and isinstance(high, int) else (None, None)


def _bytes_of(stats: pq.Statistics, _: pa.DataType) -> tuple[Any, Any]:
    """Texts are compared by their bytes, also where a writer has cut them within a character."""
    low, high = stats.min_raw, stats.max_raw
    return (low, high) if isinstance(low, bytes) and isinstance(high, bytes) else (None, None)


def _bytes(text: str) -> bytes:
    return text.encode()


def _range_of(column: pa.Array) -> tuple[Any, Any]:
    """As Arrow finds it, but where Python or numpy is faster: a few values, and many floats."""
    if len(column) <= _FEW:
        values = [value for value in column.to_pylist() if value is not None and value == value]  # noqa: PLR0124
        return (min(values), max(values)) if values else (None, None)
    if t.is_float64(column.type) and not column.null_count:
        numbers = column.to_numpy()
        low, high = float(numbers.min()), float(numbers.max())
        if low == low:  # noqa: PLR0124 - with NaN, Arrow leaves it out
            return low, high
    found = pc.min_max(column)
    return found["min"].as_py(), found["max"].as_py()


def _leaf_arrays(batch: pa.RecordBatch) -> Iterator[pa.Array | None]:
    """The columns in the order of `leaves`; None for what is repeated."""

    def walk(column: pa.Array) -> Iterator[pa.Array | None]:
        if t.is_struct(column.type):
            for member in column.flatten():
                yield from walk(member)
        elif t.is_dictionary(column.type):
            yield column.dictionary_decode()
        elif t.is_nested(column.type):
            yield from (None for _ in leaves(pa.schema([("c", column.type)])))
        else:
            yield column

    for column in batch.columns:
        yield from walk(column)


def _text(value: Any, kind: pa.DataType) -> str:
    if isinstance(value, bytes) and (t.is_string(kind) or t.is_large_string(kind)):
        return repr(one_line(value.decode(errors="backslashreplace"), 60))
    if t.is_timestamp(kind) or t.is_time(kind):
        value *= nanoseconds_per_unit(kind)
    told = shown(value, kind)
    return one_line(str(value if told is None else told), 60)
