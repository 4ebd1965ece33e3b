"""Parquet files with nanoseconds: rewritten with microseconds, which is what Spark's times have (RFC-001).

A value that is finer than a microsecond is refused: it would be another one afterwards.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.codec.uuids import mapped
from odfchain.errors import BadInputError

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.slices.reader import ParquetSource


def in_microseconds(path: Path, scratch: Path) -> tuple[Path, tuple[str, ...]]:
    """(the file, or a copy of it in `scratch` whose timestamps have microseconds; notes for the user)."""
    from pyarrow.parquet import ParquetWriter

    from odfchain.slices.reader import open_parquet

    with open_parquet(path) as source:
        schema = source.schema_arrow
        target = schema_in_microseconds(schema)
        columns = [f.name for f, to in zip(schema, target, strict=True) if to.type != f.type]
        if not columns:
            return path, ()
        copy = scratch / f"microseconds-{uuid.uuid4().hex}"
        with ParquetWriter(copy, target) as sink:
            for batch in _batches(source, target, str(path)):
                sink.write_batch(batch)
    names = ", ".join(f"`{name}`" for name in columns)
    return copy, (f"nanoseconds are read as microseconds, without loss: {names}",)


def schema_in_microseconds(schema: pa.Schema) -> pa.Schema:
    """The schema with microseconds for nanoseconds, at any depth."""
    import pyarrow as pa
    from pyarrow import types as t

    def change(f: pa.Field) -> pa.Field:
        fine = t.is_timestamp(f.type) and f.type.unit == "ns"
        return f.with_type(pa.timestamp("us", f.type.tz)) if fine else f

    return mapped(schema, change)


def _batches(source: ParquetSource, target: pa.Schema, file: str) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    row = 0
    for batch in source.batches():
        columns = []
        for column, field in zip(batch.columns, target, strict=True):
            try:
                columns.append(column.cast(field.type))
            except pa.ArrowInvalid:
                at = row + _first_finer(column, field.type)
                raise BadInputError(
                    f"column `{field.name}`: a time is finer than a microsecond",
                    file=file,
                    row=at + 1,
                    hint="cut it before: times are kept to the microsecond at most",
                ) from None
        yield pa.RecordBatch.from_arrays(columns, schema=target)
        row += batch.num_rows


def _first_finer(column: pa.Array, target: pa.DataType) -> int:
    """The first place in a column that does not fit. Called only after a cast has failed."""
    import pyarrow as pa

    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            # taken, not sliced: a cast of a slice looks at all items of a list
            column.take(pa.array(range(low, middle))).cast(target)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low
