"""What a query reads of a dataset, as a DataFrame: native Parquet over slices that were checked.

Executors that see no folder of the driver bring slices from the store and hash them; the driver has none.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from odfchain.errors import QueryError, SchemaError
from odfchain.query.change_relations import Changes
from odfchain.query.checked_slices import CheckedSlices
from odfchain.query.pins import Pin
from odfchain.query.relations import Relation
from odfchain.repo.kept_footers import KeptFooters, keep_footers
from odfchain.spark.executor_files import files_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from odfchain.manifest.where import Where
    from odfchain.spark.executor_files import ExecutorFiles

_EVERY_ROW = {
    "parquet.filter.stats.enabled": "false",
    "parquet.filter.columnindex.enabled": "false",
    "parquet.filter.dictionary.enabled": "false",
}
"""Statistics leave NaN out: no row group is skipped by them, whatever the session's settings are."""


def rows_on_spark(session: SparkSession, relation: Relation, checked: CheckedSlices) -> DataFrame:
    """The records, or the rows of the state, as physical types; nothing is computed yet.

    Of a state at an event time, and of one without a key, the offsets are computed now.
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


_UTC = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")


def matching_on_spark(
    session: SparkSession, relation: Relation, checked: CheckedSlices, where: Where
) -> DataFrame:
    """The records of which a condition is true, as `rows_on_spark`; slices without any are not read."""
    from odfchain.manifest.where import parse_where
    from odfchain.sql.messages import asking_spark

    if session.conf.get("spark.sql.session.timeZone") not in _UTC:
        where = parse_where(where.text, relation.schema, utc=False)
    needed = replace(relation, condition=where.condition)
    found = rows_on_spark(session, needed, checked)
    with asking_spark("the condition", sql=where.text):
        return found.where(f"({where.text}\n)")


def with_plain_offset(frame: DataFrame, pin: Pin) -> DataFrame:
    """The same rows with offsets as `bigint`; other unsigned columns stay as they are carried."""
    from odfchain.spark.columns import col

    offset = pin.state.vocabulary.offset_column
    return frame.withColumn(offset, col(offset).cast("bigint")) if offset in frame.columns else frame


def rows_asked(session: SparkSession, relation: Relation | Changes, checked: CheckedSlices) -> DataFrame:
    """What a query reads, with offsets as `bigint`; changes are computed now. Errors as `rows_on_spark`."""
    if isinstance(relation, Changes):
        rows = relation.rows(checked)
        return session.createDataFrame(rows.cast(_carried_columns(rows.schema)), asked_struct(relation))
    return with_plain_offset(rows_on_spark(session, relation, checked), relation.pin)


def asked_struct(relation: Relation | Changes) -> StructType:
    """The columns as queries on Spark see them."""
    from pyspark.sql import types as t

    pin = relation.pin
    if isinstance(relation, Changes):
        from pyspark.sql.pandas.types import from_arrow_schema

        for each in relation.pins:
            _physical(each)  # says what cannot be carried
        return from_arrow_schema(_carried_columns(relation.schema))
    offset = pin.state.vocabulary.offset_column
    fields = _physical(pin).fields
    return t.StructType([t.StructField(f.name, t.LongType()) if f.name == offset else f for f in fields])


def _carried_columns(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([pa.field(f.name, _carried(f.type)) for f in schema])


def _carried(kind: pa.DataType) -> pa.DataType:
    """The type as which Spark carries one, as `odfchain.spark.types` has it."""
    import pyarrow as pa
    from pyarrow import types as t

    larger = {
        pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0), pa.float16(): pa.float32(), pa.null(): pa.string(),
    }  # fmt: skip
    if t.is_struct(kind):
        return pa.struct([pa.field(f.name, _carried(f.type)) for f in kind])
    if t.is_map(kind):
        return pa.map_(_carried(kind.key_type), _carried(kind.item_type))
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return pa.list_(_carried(kind.value_type))
    if t.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    if t.is_time(kind) or t.is_duration(kind):
        return pa.int64()
    if t.is_fixed_size_binary(kind):
        return pa.binary()
    return larger.get(kind, kind)


def know_footers(session: SparkSession, relation: Relation, checked: CheckedSlices) -> None:
    """Footers are known of all slices that a condition may skip, as far as executors bring slices."""
    from odfchain.slices.skipping import understood

    files = files_of(session)
    if files is None or relation.condition is None or not understood(relation.condition):
        return
    from odfchain.spark.tasks import task_results

    dataset = relation.pin.dataset
    kept = KeptFooters(dataset)
    names = [ref.slice.physical_hash for ref in checked.slices(relation.pin.state)]
    unknown = [name for name in names if kept.known(name) is None]
    if unknown:
        keys = [dataset.key("data", name) for name in unknown]
        footer = functools.partial(_footer, files=files, keys=keys)
        keep_footers(dataset, zip(unknown, task_results(session, footer, len(keys)), strict=True))


def _footer(number: int, files: ExecutorFiles, keys: list[str]) -> str | None:
    """What the footer of a slice reports, as a worker says it."""
    from odfchain.slices.footer_lines import stats_text
    from odfchain.slices.footers import file_stats

    return stats_text(file_stats(files.bring(keys[number])))


def _records(session: SparkSession, relation: Relation, checked: CheckedSlices) -> DataFrame:
    from odfchain.spark.input_frames import spark_path

    struct = _physical(relation.pin)
    if (files := files_of(session)) is not None:
        from odfchain.spark.parquet_frame import parquet_frame

        know_footers(session, relation, checked)
        names = [ref.slice.physical_hash for ref in relation.slices(checked)]
        return parquet_frame(session, files, struct, [relation.pin.dataset.key("data", n) for n in names])
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
