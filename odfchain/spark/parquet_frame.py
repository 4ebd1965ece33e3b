"""Rows of Parquet files that executors bring themselves: one task for each, in the order of the files."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from odfchain.spark.executor_files import ReadableFiles, telling

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def parquet_frame(
    session: SparkSession, files: ReadableFiles, struct: StructType, keys: Sequence[str]
) -> DataFrame:
    """The rows of the files under these keys, in the columns and types of `struct`.

    As Spark's own reader gives them under that schema: everything may be null, a column that a file does not
    have is, and unsigned integers are of the next larger type. Nothing is read yet.

    What a task raises then is raised by `odfchain.spark.failure.explain`:
        ObjectNotFoundError, ObjectCorruptedError, AccessError, TransferError: as `ReadableFiles.bring`.
        BadInputError: a file is not readable, becomes more than the limits allow, or has other types.
    """
    from pyspark.sql import types as t
    from pyspark.sql.pandas.types import to_arrow_schema

    if not keys:
        return session.createDataFrame([], struct)
    # by position: names with dots and backticks are syntax where columns are named
    nullable = _nullable(struct)
    numbered = t.StructType(
        [t.StructField(f"c{i}", f.dataType, True, f.metadata) for i, f in enumerate(nullable.fields)]
    )
    schema = to_arrow_schema(numbered, timezone="UTC").serialize().to_pybytes()
    read = functools.partial(_read, files=files, keys=tuple(keys), names=tuple(struct.names), schema=schema)
    numbers = session.range(0, len(keys), 1, len(keys))
    return numbers.mapInArrow(read, numbered).toDF(*struct.names)


def _nullable(kind: Any) -> Any:
    """A type in which every value, key of a map apart, may be null."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType):
        return t.StructType([t.StructField(f.name, _nullable(f.dataType), True, f.metadata) for f in kind])
    if isinstance(kind, t.ArrayType):
        return t.ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, t.MapType):
        return t.MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def _read(
    batches: Iterator[pa.RecordBatch],
    files: ReadableFiles,
    keys: tuple[str, ...],
    names: tuple[str, ...],
    schema: bytes,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # imported on the worker

    target = pa.ipc.read_schema(pa.py_buffer(schema))
    with telling():
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _rows(files, keys[number], names, target)


def _rows(
    files: ReadableFiles, key: str, names: tuple[str, ...], target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from odfchain.errors import BadInputError
    from odfchain.slices.reader import open_parquet
    from odfchain.text import first_line

    path = files.bring(key)
    try:
        with open_parquet(path) as source:
            present = set(source.schema_arrow.names)
            for batch in source.batches([name for name in names if name in present]):
                columns = [
                    _as_physical(batch.column(name), field.type)
                    if name in present
                    else pa.nulls(batch.num_rows, field.type)
                    for name, field in zip(names, target, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=target)
    except BadInputError as error:
        raise type(error)(error.message, file=key, hint=error.hint) from None
    except (pa.ArrowException, ValueError) as error:
        raise BadInputError(f"not in the types of its dataset: {first_line(error)}", file=key) from None


def _as_physical(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column as the type that carries it through Spark."""
    from odfchain.codec.uuids import castable

    return column if column.type == kind else column.cast(castable(column.type)).cast(kind)
