"""What a query reads of a dataset, as a DataFrame: native Parquet over slices that were checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.errors import QueryError, SchemaError
from odfchain.query.checked_slices import CheckedSlices
from odfchain.query.pins import Pin
from odfchain.query.relations import Relation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_EVERY_ROW = {
    "parquet.filter.stats.enabled": "false",
    "parquet.filter.columnindex.enabled": "false",
    "parquet.filter.dictionary.enabled": "false",
}
"""Statistics leave NaN out: no row group is skipped by them, whatever the session's settings are."""


def rows_on_spark(session: SparkSession, relation: Relation, checked: CheckedSlices) -> DataFrame:
    """The records, or the rows of the state, as physical types; nothing is computed yet.

    Of a state at an event time, and of one without a key, the offsets are computed now.

    Raises:
        QueryError: a type that Spark cannot carry, or as `Relation.key`.
        SliceNotFoundError, ObjectCorruptedError, BadInputError, OversizedInputError: naming the file.
    """
    found = _records(session, relation, checked)
    if relation.projection is None or relation.pin.state.schema is None:
        return found
    names = relation.pin.state.vocabulary
    if relation.key and relation.projection.event_time is None:
        from odfchain.spark.latest_rows import latest_rows

        return latest_rows(found, relation.key, names)
    import pyarrow as pa

    offset = names.offset_column
    kept = relation.rows(checked, [offset]).select([offset]).cast(pa.schema([(offset, pa.int64())]))
    return found.join(session.createDataFrame(kept), offset, "left_semi")


def with_plain_offset(frame: DataFrame, pin: Pin) -> DataFrame:
    """The same rows with offsets as `bigint`; other unsigned columns stay as they are carried."""
    from odfchain.spark.columns import col

    offset = pin.state.vocabulary.offset_column
    return frame.withColumn(offset, col(offset).cast("bigint")) if offset in frame.columns else frame


def asked_struct(pin: Pin) -> StructType:
    """The columns as queries on Spark see them.

    Raises:
        QueryError: a type that Spark cannot carry.
    """
    from pyspark.sql import types as t

    offset = pin.state.vocabulary.offset_column
    fields = _physical(pin).fields
    return t.StructType([t.StructField(f.name, t.LongType()) if f.name == offset else f for f in fields])


def _records(session: SparkSession, relation: Relation, checked: CheckedSlices) -> DataFrame:
    from odfchain.spark.input_frames import spark_path

    struct = _physical(relation.pin)
    paths = relation.paths(checked)
    if not paths:
        return session.createDataFrame([], struct)
    reader = session.read.schema(struct)
    if relation.has_floats:
        reader = reader.options(**_EVERY_ROW)
    return reader.parquet(*map(spark_path, paths))


def _physical(pin: Pin) -> StructType:
    from odfchain.spark.types import physical_struct

    declared = pin.state.schema
    try:
        return physical_struct(declared.fields if declared else ())
    except SchemaError as error:
        raise QueryError(
            f"{pin.alias}: {error.message}", hint="the embedded engine (datafusion) has all types"
        ) from None
