"""What is added up of the rows of a state, part by part: parts merge, so the next profile reads new slices.

A profile is a function of the multiset of rows. What is held is bounded whatever the rows are: totals and
at most 16,384 counted values of each column, sketches of whole rows, and a sample of 16,384 rows, of which
numbers and the first 1,000 characters of texts are kept. Source: RFC-040.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from odfchain.profile.column_totals import ColumnKind, ColumnTotals
from odfchain.profile.encoded_column import encoded
from odfchain.profile.hyperloglog import Hll
from odfchain.profile.near_duplicates import BandKeys, band_keys
from odfchain.profile.sketches import SAMPLE_ROWS, Kmv, sampled
from odfchain.profile.value_counts import sampled_texts
from odfchain.profile.value_hashes import Hashes, splitmix64

_NONE = np.zeros(0, dtype=np.uint64)
_SAMPLED = (ColumnKind.NUMERIC, ColumnKind.STRING)


class Totals:
    """The totals of some rows, by the data columns of a schema; `update` and `merge` in any order."""

    def __init__(self, schema: pa.Schema, *, near_duplicates: bool = False) -> None:
        self.schema = schema
        self.rows = 0
        self.columns = [ColumnTotals(field.name, field.type) for field in schema]
        self.kmv = Kmv(_NONE, np.zeros(0, dtype=np.int64))
        self.hll = Hll()
        self.bands = BandKeys() if near_duplicates else None
        """By what rows nearly repeat others; None where that is not asked."""
        self._chosen = [n for n, column in enumerate(self.columns) if column.kind in _SAMPLED]
        self.sample = pa.schema([schema.field(n) for n in self._chosen]).empty_table()
        """Numbers and texts of the rows of the sample, those with the smallest hash of their offset first."""
        self.sample_offsets: Hashes = _NONE

    def sampled_values(self, column: ColumnTotals) -> pa.ChunkedArray:
        """The values of a column in the sample, nearest first; none of columns that need none."""
        if column.kind in _SAMPLED:
            return self.sample.column(self._chosen.index(self.columns.index(column)))
        return pa.chunked_array([], column.type)

    @property
    def near_duplicates(self) -> float | None:
        """The share of rows that nearly repeat another one; None where that was not asked."""
        return None if self.bands is None else self.bands.share

    def update(self, rows: pa.RecordBatch, offsets: Hashes) -> None:
        """Add rows with the columns of the schema, and their offsets."""
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        columns = [encoded(values, own.seed) for values, own in zip(rows.columns, self.columns, strict=True)]
        hashes = np.zeros(rows.num_rows, dtype=np.uint64)
        for totals, column in zip(self.columns, columns, strict=True):
            totals.update(column)
            hashes ^= column.hashes
        self.kmv = self.kmv.with_rows(hashes)
        self.hll.update(hashes)
        if self.bands is not None:
            self.bands.add(*band_keys(columns, [own.seed for own in self.columns]))
        self._look_at(rows.select(self._chosen), offsets.astype(np.uint64, copy=False))

    def _look_at(self, rows: pa.RecordBatch, offsets: Hashes) -> None:
        """Take rows into the sample, if they belong there."""
        if len(self.sample_offsets) == SAMPLE_ROWS:
            near = np.flatnonzero(splitmix64(offsets) < splitmix64(self.sample_offsets[-1:]))
        else:
            near = sampled(offsets)
        if len(near):
            kept = rows.take(pa.array(near))
            texts = [self.columns[n].kind is ColumnKind.STRING for n in self._chosen]
            values = [
                sampled_texts(c) if is_text else c for c, is_text in zip(kept.columns, texts, strict=True)
            ]
            self._sample(pa.Table.from_arrays(values, schema=self.sample.schema), offsets[near])

    def _sample(self, rows: pa.Table, offsets: Hashes) -> None:
        both = pa.concat_tables([self.sample, rows])
        together = np.concatenate((self.sample_offsets, offsets))
        at = sampled(together)
        # a copy: what is left out must not stay in memory
        self.sample = both.take(pa.array(at)).combine_chunks()
        self.sample_offsets = together[at]

    def merge(self, other: Totals) -> None:
        """Add what another part of the rows has."""
        self.rows += other.rows
        for totals, more in zip(self.columns, other.columns, strict=True):
            totals.merge(more)
        self.kmv += other.kmv
        self.hll.merge(other.hll)
        if self.bands is not None:
            assert other.bands is not None  # noqa: S101 - parts are asked alike
            self.bands.merge(other.bands)
        if other.sample.num_rows:
            self._sample(other.sample, other.sample_offsets)


def totals_of(schema: pa.Schema, batches: Iterable[tuple[pa.RecordBatch, Hashes]]) -> Totals:
    """The totals of (rows, offsets), batch by batch."""
    found = Totals(schema)
    for rows, offsets in batches:
        found.update(rows, offsets)
    return found
