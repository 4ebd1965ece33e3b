"""What is added up of the rows of a state, part by part: parts merge, so the next profile reads new slices.

A profile is a function of the multiset of rows. What is held is bounded whatever the rows are: totals and
at most 16,384 counted values of each column, sketches of whole rows, and a sample of 16,384 rows. Source:
RFC-040.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from odfchain.digest.row_hash import Numbers
from odfchain.profile.column_totals import ColumnTotals
from odfchain.profile.sketches import SAMPLE_ROWS, Hll, Kmv, sampled
from odfchain.profile.value_hashes import Hashes, row_hashes, splitmix64

_NONE = np.zeros(0, dtype=np.uint64)


class Totals:
    """The totals of some rows, by the data columns of a schema; `update` and `merge` in any order."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self.rows = 0
        self.columns = [ColumnTotals(field.name, field.type) for field in schema]
        self.kmv = Kmv(_NONE, np.zeros(0, dtype=np.int64))
        self.hll = Hll()
        self.sample = schema.empty_table()
        """The rows of the sample, those with the smallest hash of their offset first."""
        self.sample_offsets: Hashes = _NONE

    def update(self, rows: pa.RecordBatch, offsets: Hashes) -> None:
        """Add rows with the columns of the schema, and their offsets."""
        if not rows.num_rows:
            return
        self.rows += rows.num_rows
        for totals, column in zip(self.columns, rows.columns, strict=True):
            totals.update(column)
        hashes = row_hashes(rows)
        self.kmv += Kmv.of(hashes)
        self.hll.update(hashes)
        nearer = self._may_be_sampled(offsets)
        if nearer.any():
            chosen = rows if nearer.all() else rows.filter(pa.array(nearer))
            self._sample(pa.Table.from_batches([chosen], self.schema), offsets[nearer])

    def _may_be_sampled(self, offsets: Hashes) -> Numbers:
        if len(self.sample_offsets) < SAMPLE_ROWS:
            return np.ones(len(offsets), dtype=bool)
        furthest = splitmix64(self.sample_offsets[-1:].astype(np.uint64))
        return splitmix64(offsets.astype(np.uint64)) < furthest

    def _sample(self, rows: pa.Table, offsets: Hashes) -> None:
        both = pa.concat_tables([self.sample, rows])
        together = np.concatenate((self.sample_offsets, offsets.astype(np.uint64)))
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
        if other.sample.num_rows:
            self._sample(other.sample, other.sample_offsets)


def totals_of(schema: pa.Schema, batches: Iterable[tuple[pa.RecordBatch, Hashes]]) -> Totals:
    """The totals of (rows, offsets), batch by batch."""
    found = Totals(schema)
    for rows, offsets in batches:
        found.update(rows, offsets)
    return found
