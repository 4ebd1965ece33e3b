"""Formats that Spark cannot read, as records that it can: one Arrow stage streams them out of the file.

A worker opens the file, finds the records with a library, and hands each on as one JSON text; Spark parses
the text, and from there on the rules are those of newline-delimited JSON. Values of columns that are not
nested go as text, because Spark's parser would pass numbers through a double. The driver sees no data, and
nothing is written in between. What is wrong with the file travels as a marker in the worker's exception.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol, TypeAlias

from odfchain.errors import BadInputError, OdfchainError
from odfchain.metadata import data_schema as ds
from odfchain.spark.failure import explain, find_marker, marker
from odfchain.spark.job import run_job
from odfchain.spark.json_records import Record, RecordError, object_text, quoted
from odfchain.spark.parse import TextRules
from odfchain.spark.read import CORRUPT, ROW_ID, InputFrame, inferred_schema, json_struct, parsed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 4_096
BATCH_CHARACTERS = 4 << 20
"""Size of one Arrow batch: whichever of the two is reached first."""

Columns: TypeAlias = tuple[tuple[str, bool], ...]
"""Names of columns, and whether their values are to be text."""

_KIND = "bad-document"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RecordSource(Protocol):
    """A file and how records are found in it; a small value that is sent to the worker that reads it."""

    def records(self) -> Iterator[Record]:
        """The records in order.

        Raises:
            RecordError: the file is not of this form.
            OSError: the file cannot be read.
        """
        ...


class DocumentInputError(Exception):
    """A file is not of the declared form; the message is a marker."""


def record_batches(source: RecordSource, columns: Columns | None = None) -> Iterator[pa.RecordBatch]:
    """The records as JSON with their numbers from 0, whole or these columns, in batches of bounded size.

    Raises:
        DocumentInputError: the file is not of the declared form, or cannot be read.
    """
    import pyarrow as pa

    first, size = 0, 0
    texts: list[str] = []

    def batch() -> pa.RecordBatch:
        ids = pa.array(range(first, first + len(texts)), pa.int64())
        return pa.RecordBatch.from_pydict({"row_id": ids, "record": pa.array(texts, pa.string())})

    try:
        for record in source.records():
            text = object_text(record if columns is None else _picked(record, columns))
            texts.append(text)
            size += len(text)
            if len(texts) >= BATCH_ROWS or size >= BATCH_CHARACTERS:
                yield batch()
                first, texts, size = first + len(texts), [], 0
    except RecordError as error:
        raise DocumentInputError(marker(_KIND, message=error.message, row=error.row or 0)) from None
    except OSError as error:
        if error.errno in _FULL:
            raise
        message = f"cannot be read: {error.strerror or error}"
        raise DocumentInputError(marker(_KIND, message=message, row=0)) from None
    if texts:
        yield batch()


def _picked(record: Record, columns: Columns) -> Record:
    return {
        name: _as_text(record[name]) if as_text else record[name]
        for name, as_text in columns
        if name in record
    }


def _as_text(value: str) -> str:
    """A JSON value as a JSON text of how it is written; texts and null as they are."""
    return value if value[0] == '"' or value == "null" else quoted(value)


def _stage(
    source: RecordSource, columns: Columns | None
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function that `mapInArrow` runs on the one partition."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        yield from record_batches(source, columns)

    return run


def _records(session: SparkSession, source: RecordSource, schema: ds.DataSchema | None = None) -> DataFrame:
    """Whole records, or those columns of them that a schema names."""
    columns = None
    if schema is not None:
        struct = json_struct(schema)
        columns = tuple((f.name, f.dataType.typeName() == "string") for f in struct.fields)
    return session.range(0, 1, 1, 1).mapInArrow(_stage(source, columns), "row_id bigint, record string")


def document_error(error: Exception, file: str) -> OdfchainError:
    """The project's error for a failed job over records: what the worker found wrong, with its row."""
    found = find_marker(str(error))
    if found is None or found["kind"] != _KIND:
        return explain(error, file=file)
    return BadInputError(str(found["message"]), file=file, row=int(found["row"]) or None)


def infer_records(session: SparkSession, source: RecordSource, file: str) -> ds.DataSchema | None:
    """The types that all records agree on, columns in alphabetical order, all optional; None without any.

    Raises:
        BadInputError: the file is not of the declared form, or its records have no columns.
        EngineError: anything else that Spark reports.
    """
    records = _records(session, source)
    try:
        # since Spark 4.2, in the classic client and in Connect's
        reader, texts = session.read.options(mode="FAILFAST"), records.select("record")
        found = run_job(session, lambda: reader.json(texts)).schema.fields
        none = not found and run_job(session, records.isEmpty)
    except Exception as error:
        raise document_error(error, file) from error
    if none:
        return None
    if not found:
        raise BadInputError("the objects have no properties, so there are no columns", file=file)
    return inferred_schema(found)


def read_records(
    session: SparkSession, source: RecordSource, schema: ds.DataSchema, rules: TextRules, file: str
) -> InputFrame:
    """The records, columns by name; properties that the schema lacks are ignored.

    Raises:
        SchemaError: a type that cannot be read from JSON.
    """
    from pyspark.sql import functions as F

    record = F.from_json(F.col("record"), json_struct(schema), {"mode": "FAILFAST"})
    rows = _records(session, source, schema).select(F.col("row_id").alias(ROW_ID), record.alias("record"))
    columns = [F.col("record").getField(f.name).alias(f.name) for f in schema.fields]
    return parsed(rows.select(ROW_ID, *columns), schema, rules, file)


def bad_record(
    session: SparkSession, source: RecordSource, schema: ds.DataSchema, file: str
) -> BadInputError | None:
    """What is wrong with the file, or the first record that does not fit a nested column, as an error.

    Called only after a job has failed.

    Raises:
        EngineError: anything else that Spark reports.
    """
    from pyspark.sql import functions as F
    from pyspark.sql import types as t

    struct = t.StructType([*json_struct(schema).fields, t.StructField(CORRUPT, t.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}
    record = F.from_json(F.col("record"), struct, options)
    rows = _records(session, source, schema).select("row_id", record.getField(CORRUPT).alias("record"))
    try:
        found = rows.where(F.col("record").isNotNull()).orderBy("row_id").limit(1).collect()
    except Exception as failure:
        error = document_error(failure, file)
        if isinstance(error, BadInputError):
            return error
        raise error from failure
    if not found:
        return None
    text = found[0]["record"]
    shown = text if len(text) <= 60 else text[:57] + "…"
    return BadInputError(
        f"a value does not fit the nested type of its column: {shown!r}",
        file=file,
        row=found[0]["row_id"] + 1,
    )
