"""Files to DataFrames: CSV, newline-delimited JSON and Parquet, with the read options of the specification.

Text columns are read as text and made typed by `parse`, so that CSV and JSON follow the same strict rules.
Every row carries an id that orders rows as they stand in the file. When a job fails, `first_bad_row` finds
the row that is to blame.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError
from odfchain.metadata import data_schema as ds
from odfchain.metadata.arrow import from_arrow
from odfchain.metadata.ddl import type_name
from odfchain.spark.columns import col
from odfchain.spark.job import run_job
from odfchain.spark.parse import DEFAULT_RULES, TextRules, is_bad, or_fail, parse_text, to_milliseconds
from odfchain.spark.types import carrier_struct, carrier_type, from_spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField, StructType

ROW_ID = "__odfchain_row"
"""Column that orders the rows of an input as they stand in the file."""

CORRUPT = "__odfchain_corrupt"
"""Column in which Spark puts the text of a record that it cannot parse."""

_NESTED = (ds.DataTypeList, ds.DataTypeStruct, ds.DataTypeMap)


@dataclass(frozen=True, slots=True)
class CsvOptions:
    """How a CSV file is laid out."""

    header: bool = False
    separator: str = ","
    quote: str = '"'
    escape: str = '"'
    encoding: str = "utf-8"
    null_value: str = ""
    multiline: bool = False


@dataclass(frozen=True, slots=True)
class InputFrame:
    """Rows of an input: `ROW_ID` and the data columns as carriers, and their logical schema."""

    frame: DataFrame
    schema: ds.DataSchema
    file: str
    text: DataFrame | None = None
    """The same rows before parsing (text formats), for finding a bad one."""
    rules: TextRules = DEFAULT_RULES
    known_empty: bool = False
    """There are no rows, and that is known without reading."""
    short: bool = False
    """No row holds more than a few KiB."""


def spark_path(path: Path) -> str:
    """A path as Spark's readers take it literally: they expand `*`, `?`, `[…]` and `{…}` otherwise."""
    return re.sub(r"([\\{}\[\]*?,])", r"\\\1", str(path))


def _java_charset(encoding: str) -> str:
    return {"utf-8": "UTF-8", "latin-1": "ISO-8859-1", "iso8859-1": "ISO-8859-1", "ascii": "US-ASCII"}.get(
        encoding, encoding.replace("cp125", "windows-125")
    )


# --- CSV -------------------------------------------------------------------------------------------


def _layout(options: CsvOptions) -> dict[str, str | bool]:
    """Spark's names for the layout of a file."""
    return {
        "header": options.header,
        "sep": options.separator,
        "quote": options.quote,
        "escape": options.escape or options.quote,
        "encoding": _java_charset(options.encoding),
        "nullValue": options.null_value,
        "multiLine": options.multiline,
    }


def _csv_text(
    session: SparkSession, path: Path, names: list[str], options: CsvOptions, mode: str
) -> DataFrame:
    from pyspark.sql import types as t

    fields = [t.StructField(name, t.StringType()) for name in names]
    if mode == "PERMISSIVE":
        fields.append(t.StructField(CORRUPT, t.StringType()))
    reader = session.read.schema(t.StructType(fields)).options(
        **_layout(options),
        emptyValue="",
        mode=mode,
        enforceSchema=True,
        columnPruning=False,
        columnNameOfCorruptRecord=CORRUPT,
        maxCharsPerColumn=-1,
        maxColumns=max(20_480, len(names) + 1),
        ignoreLeadingWhiteSpace=False,
        ignoreTrailingWhiteSpace=False,
    )
    return reader.csv(spark_path(path))


def read_csv(
    session: SparkSession,
    path: Path,
    columns: list[str],
    schema: ds.DataSchema,
    options: CsvOptions,
    rules: TextRules,
    file: str,
) -> InputFrame:
    """A CSV file whose records hold `columns` in this order, as the columns of `schema` by name.

    `file` is what messages call the input, here and below.

    Raises:
        SchemaError: a type that cannot be read from text.
    """
    from pyspark.sql import functions as F

    text = _csv_text(session, path, columns, options, "FAILFAST")
    text = text.select(F.monotonically_increasing_id().alias(ROW_ID), *[col(f.name) for f in schema.fields])
    return parsed(text, schema, rules, file)


def infer_csv(session: SparkSession, path: Path, columns: list[str], options: CsvOptions) -> ds.DataSchema:
    """The types that all values of a CSV file agree on; every column may be null."""
    reader = session.read.options(**_layout(options), inferSchema=True)
    inferred = reader.csv(spark_path(path)).schema.fields
    fields = []
    for name, found in zip(columns, inferred, strict=True):
        fields.append(ds.DataField(name=name, type=ds.optional(from_spark_type(found.dataType))))
    return ds.DataSchema(fields=tuple(fields))


# --- JSON ------------------------------------------------------------------------------------------


def json_struct(schema: ds.DataSchema) -> StructType:
    """How Spark is to parse JSON: nested columns as they are declared, everything else as text.

    Raises:
        SchemaError: a type that Spark cannot carry.
    """
    from pyspark.sql import types as t

    return t.StructType(
        [
            t.StructField(
                f.name, carrier_type(f.type) if isinstance(f.value_type, _NESTED) else t.StringType()
            )
            for f in schema.fields
        ]
    )


def read_ndjson(
    session: SparkSession, path: Path, schema: ds.DataSchema, rules: TextRules, file: str
) -> InputFrame:
    """Newline-delimited JSON objects in UTF-8, columns by name; properties that the schema lacks are ignored.

    Raises:
        SchemaError: a type that cannot be read from JSON.
    """
    from pyspark.sql import functions as F

    reader = session.read.schema(json_struct(schema)).options(
        mode="FAILFAST", columnNameOfCorruptRecord=CORRUPT
    )
    text = reader.json(spark_path(path))
    text = text.select(F.monotonically_increasing_id().alias(ROW_ID), *[col(f.name) for f in schema.fields])
    return parsed(text, schema, rules, file)


def infer_ndjson(session: SparkSession, path: Path, file: str) -> ds.DataSchema:
    """The types that all objects of a file agree on, columns in alphabetical order, all optional.

    Raises:
        BadInputError: a line is not a JSON object.
    """
    reader = session.read.options(mode="FAILFAST")
    try:
        inferred = run_job(session, lambda: reader.json(spark_path(path))).schema.fields
    except Exception as error:
        bad = bad_json_line(path, file)
        if bad is None:
            raise
        raise bad from error
    return inferred_schema(inferred)


def inferred_schema(fields: list[StructField]) -> ds.DataSchema:
    """The schema that Spark inferred from JSON: columns in alphabetical order, all optional.

    Raises:
        SchemaError: a type without a logical counterpart.
    """
    return ds.DataSchema(
        fields=tuple(
            ds.DataField(name=f.name, type=ds.optional(from_spark_type(f.dataType)))
            for f in sorted(fields, key=lambda f: f.name)
        )
    )


# --- Parquet ---------------------------------------------------------------------------------------


def read_parquet(session: SparkSession, path: Path, schema: ds.DataSchema | None, file: str) -> InputFrame:
    """A Parquet file; with a schema its columns are picked by name and cast.

    Raises:
        BadInputError: not a Parquet file, or a column of the schema is missing.
        SchemaError: a type without a logical counterpart.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import functions as F

    try:
        own = from_arrow(pq.read_schema(path))
    except (pa.ArrowInvalid, OSError) as error:
        text = str(error).splitlines()[0]
        raise BadInputError(f"not a readable Parquet file: {text}", file=file) from None
    target = schema or own
    missing = [f.name for f in target.fields if own.field(f.name) is None]
    if missing:
        raise BadInputError(
            f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)} of the schema not in the file "
            f"(it has {', '.join(own.names)})",
            file=file,
        )
    raw = session.read.schema(carrier_struct(own.fields)).parquet(spark_path(path))
    columns = []
    for f in target.fields:
        found = own.field(f.name)
        assert found is not None  # noqa: S101 - missing ones were refused
        columns.append(_converted(col(f.name), found.type, f).alias(f.name))
    frame = raw.select(F.monotonically_increasing_id().alias(ROW_ID), *columns)
    return InputFrame(frame, target, file)


def _converted(column: Column, own: ds.DataType, target: ds.DataField) -> Column:
    from pyspark.sql import functions as F

    value = column
    if ds.optional(own) != ds.optional(target.type):
        value = value.cast(carrier_type(target.type))
    if isinstance(target.value_type, ds.DataTypeTimestamp):
        value = to_milliseconds(value)
    if not target.optional and isinstance(own, ds.DataTypeOption):
        value = or_fail(F.lit(None), value, target.name, required=True)
    return value


def empty_input(session: SparkSession, schema: ds.DataSchema, file: str) -> InputFrame:
    """An input of these columns that is known to have no rows.

    Raises:
        SchemaError: a type that Spark cannot carry.
    """
    from pyspark.sql import types as t

    fields = [t.StructField(ROW_ID, t.LongType()), *carrier_struct(schema.fields).fields]
    return InputFrame(session.createDataFrame([], t.StructType(fields)), schema, file, known_empty=True)


# --- common ----------------------------------------------------------------------------------------


def parsed(text: DataFrame, schema: ds.DataSchema, rules: TextRules, file: str) -> InputFrame:
    """Rows of `ROW_ID` and text columns, made typed; a text that means no value stops the job.

    Raises:
        SchemaError: a type that cannot be read from text.
    """
    columns = [col(ROW_ID)]
    for f in schema.fields:
        raw = col(f.name)
        value = raw if isinstance(f.value_type, _NESTED) else parse_text(raw, f.type, rules)
        columns.append(or_fail(raw, value, f.name, required=not f.optional).alias(f.name))
    return InputFrame(text.select(*columns), schema, file, text, rules)


def first_bad_row(source: InputFrame, required: frozenset[str]) -> BadInputError | None:
    """The first row of a text input that cannot be read, as an error; None when every row can.

    `required` are further columns that may not be null. Called only after a job has failed.
    """
    from pyspark.sql import functions as F

    if source.text is None:
        return None
    flags = []
    for f in source.schema.fields:
        raw = col(f.name)
        value = raw if isinstance(f.value_type, _NESTED) else parse_text(raw, f.type, source.rules)
        flags.append(is_bad(raw, value, required=not f.optional or f.name in required))
    bad_column = F.coalesce(*[F.when(flag, F.lit(index)) for index, flag in enumerate(flags)], F.lit(-1))
    marked = source.text.withColumn("__bad", bad_column).where("__bad >= 0")
    found = marked.orderBy(ROW_ID).limit(1).collect()
    if not found:
        return None
    row = found[0]
    field = source.schema.fields[row["__bad"]]
    number = source.text.where(F.col(ROW_ID) < row[ROW_ID]).count() + 1
    text = row[field.name]
    if text is None:
        message = (
            f"Column `{field.name}` contains 1 null values while none were expected (the column is required)"
        )
    else:
        shown = text if len(str(text)) <= 60 else str(text)[:57] + "…"
        message = f"column `{field.name}`: {shown!r} is not a valid {type_name(field.type)}"
    return BadInputError(message, file=source.file, row=number)


def first_malformed_csv_row(
    session: SparkSession, path: Path, columns: list[str], options: CsvOptions, file: str
) -> BadInputError | None:
    """The first record of a CSV file with too few or too many fields, as an error."""
    from pyspark.sql import functions as F

    text = _csv_text(session, path, columns, options, "PERMISSIVE").withColumn(
        ROW_ID, F.monotonically_increasing_id()
    )
    text = text.cache()
    try:
        found = text.where(F.col(CORRUPT).isNotNull()).orderBy(ROW_ID).limit(1).collect()
        if not found:
            return None
        number = text.where(F.col(ROW_ID) < found[0][ROW_ID]).count() + 1
    finally:
        text.unpersist()
    record = found[0][CORRUPT]
    shown = record if len(record) <= 60 else record[:57] + "…"
    return BadInputError(
        f"expected {len(columns)} fields ({', '.join(columns[:6])}{', …' if len(columns) > 6 else ''}) "
        f"but the record does not have that many: {shown!r}",
        file=file,
        row=number,
    )


def bad_json_line(path: Path, file: str) -> BadInputError | None:
    """The first line that is not a JSON object, as an error."""
    import json

    with path.open("r", encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except ValueError as error:
                return BadInputError(f"not valid JSON: {error}", file=file, row=number)
            if not isinstance(value, dict):
                return BadInputError("not a JSON object", file=file, row=number)
    return None
