"""Intervals of months, and of days and milliseconds, of which Arrow's library for Python has no arrays.

Their memory can be had as numbers. Intervals of months, days and nanoseconds, which are those of SQL, need
nothing of this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.codec.uuids import mapped

if TYPE_CHECKING:
    import pyarrow as pa


def number_schema(schema: pa.Schema) -> pa.Schema:
    """The schema with numbers for such intervals, at any depth."""
    import pyarrow as pa

    kinds = {"month_interval": pa.int32(), "day_time_interval": pa.int64()}
    return mapped(schema, lambda f: f.with_type(kinds.get(str(f.type), f.type)))


def reread(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The memory of a batch under another schema, which must be of the same widths."""
    import pyarrow as pa

    return batch if batch.schema.types == schema.types else pa.record_batch(_Memory(batch, schema))


class _Memory:
    """What Arrow's C interface hands over."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]
