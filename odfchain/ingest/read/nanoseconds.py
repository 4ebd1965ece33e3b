"""Parquet files with nanoseconds: rewritten with microseconds, which is what Spark's times have (RFC-001).

A value that is finer than a microsecond is refused: it would be another one afterwards.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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
        columns = [f.name for f in schema if _converted(f.type) != f.type]
        if not columns:
            return path, ()
        target = schema_in_microseconds(schema)
        copy = scratch / f"microseconds-{uuid.uuid4().hex}"
        with ParquetWriter(copy, target) as sink:
            for batch in _batches(source, target, str(path)):
                sink.write_batch(batch)
    names = ", ".join(f"`{name}`" for name in columns)
    return copy, (f"nanoseconds are read as microseconds, without loss: {names}",)


def schema_in_microseconds(schema: pa.Schema) -> pa.Schema:
    """The schema with microseconds for nanoseconds."""
    import pyarrow as pa

    return pa.schema([f.with_type(_converted(f.type)) for f in schema])


def _converted(data_type: pa.DataType) -> pa.DataType:
    """The type with microseconds for nanoseconds, at any depth."""
    import pyarrow as pa
    from pyarrow import types as t

    if t.is_timestamp(data_type) and data_type.unit == "ns":
        return pa.timestamp("us", data_type.tz)
    if t.is_struct(data_type):
        members = [data_type.field(i) for i in range(data_type.num_fields)]
        return pa.struct([f.with_type(_converted(f.type)) for f in members])
    if t.is_list(data_type) or t.is_large_list(data_type):
        item = data_type.value_field
        return pa.list_(item.with_type(_converted(item.type)))
    return data_type


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
