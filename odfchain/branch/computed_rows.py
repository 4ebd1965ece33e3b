"""What is computed from the rows of some keys, and all of it together, in order of key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from odfchain.slices.writer import SliceFacts, SliceSpec, write_slice

_ROWS_AT_ONCE = 65_536


@dataclass(frozen=True, slots=True)
class KeyResult:
    """What a function makes of all rows of some keys."""

    rows: pa.Table
    """In order of key."""
    notes: Any = None
    """What is needed whole, whatever it is; it can be pickled, and is small."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers that add up."""


Function = Callable[[Sequence[pa.Table]], KeyResult]
"""From a table for each interval (`read_rows`); it can be pickled and depends on nothing else."""


@dataclass(frozen=True, slots=True)
class Computed:
    """The parts of a result, in order of key."""

    schema: pa.Schema
    notes: tuple[Any, ...]
    """Those of all parts that have any."""
    counts: Mapping[str, int]
    batches: Callable[[], Iterator[pa.RecordBatch]]
    """The rows, a bounded number at a time."""

    @classmethod
    def of(cls, part: KeyResult) -> Computed:
        """A result of one part."""
        notes = () if part.notes is None else (part.notes,)
        return cls(part.rows.schema, notes, part.counts, lambda: iter(part.rows.to_batches()))

    def rows(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def write(self, spec: SliceSpec) -> SliceFacts | None:
        """The rows as a new slice, without ever having all of them in memory; errors as `write_slice`.

        Its bytes do not depend on the number of parts.
        """
        return write_slice(_even(self.batches()), spec)


def _even(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, as many at a time whatever number they came in."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        rest = batch
        while sum(each.num_rows for each in held) + rest.num_rows >= _ROWS_AT_ONCE:
            count = _ROWS_AT_ONCE - sum(each.num_rows for each in held)
            yield from _joined([*held, rest.slice(0, count)])
            held, rest = [], rest.slice(count)
        held.append(rest)
    yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
