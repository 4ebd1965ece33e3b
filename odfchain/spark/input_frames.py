"""Files to DataFrames: CSV, newline-delimited JSON and Parquet, with the read options of the specification.

Text columns are read as text and made typed by `parse`, so that CSV and JSON follow the same strict rules.
Every row carries an id that orders rows as they stand in the file. When a job fails, `first_bad_row` finds
the row that is to blame.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from odfchain.errors import BadInputError
from odfchain.lazy import F, pa, t
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import castable, from_arrow
from odfchain.odf.enums import TimeUnit
from odfchain.odf.schema import type_name
from odfchain.spark.executor_files import (
    InputFile,
    ReadableFiles,
    TextRanges,
    numbers_in,
    range_numbers,
    text_batches,
    text_ranges,
    translate_errors,
)
from odfchain.spark.parse import (
    DEFAULT_RULES,
    TextRules,
    has_microseconds,
    is_bad,
    or_fail,
    parse_text,
    to_milliseconds,
    too_fine,
    value_or_fail,
)
from odfchain.spark.types import RESERVED, check_columns, col, from_spark_type, physical_struct, physical_type
from odfchain.text import first_line

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, Observation, SparkSession
    from pyspark.sql.types import DataType as SparkType
    from pyspark.sql.types import StructType


# Rows of Parquet files that executors bring themselves: one task for each, in the order of the files.


def parquet_frame(
    session: SparkSession, files: ReadableFiles, struct: StructType, keys: Sequence[str]
) -> DataFrame:
    """The rows of the files under these keys, in the columns and types of `struct`.

    As Spark's own reader gives them under that schema: everything may be null, a column that a file does not
    have is, and unsigned integers are of the next larger type. Nothing is read yet.

    What a task raises then is raised by `odfchain.spark.jobs.explain`:
        ObjectNotFoundError, ObjectCorruptedError, AccessError, TransferError: as `ReadableFiles.bring`.
        BadInputError: a file is not readable, becomes more than the limits allow, or has other types.
    """
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
    target = pa.ipc.read_schema(pa.py_buffer(schema))
    with translate_errors():
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _rows(files, keys[number], names, target)


def _rows(
    files: ReadableFiles, key: str, names: tuple[str, ...], target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    from odfchain.slices.reader import open_parquet

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
    return column if column.type == kind else column.cast(castable(column.type)).cast(kind)


_SMALL_BATCH = 1_024

ROW_ID, _BAD, _FINER = f"{RESERVED}row", f"{RESERVED}bad", f"{RESERVED}finer_"
"""Column that orders the rows of an input as they stand in the file."""


@dataclass(frozen=True, slots=True)
class FinerTimes:
    """Counts values that are cut to the unit of their column, by column, while the rows are read."""

    observation: Observation
    numbers: Mapping[str, Column]
    """How many times of a row are cut, by column."""
    name: str = "finer"
    """A prefix that separates these sums from others of the observation."""

    @property
    def sums(self) -> list[Column]:
        """The columns for the observation."""
        return [F.sum(number).alias(f"{self.name} {i}") for i, number in enumerate(self.numbers.values())]

    def counts(self) -> dict[str, int]:
        """How many values each column lost digits of, where any did; after the rows were read."""
        if not self.numbers:
            return {}
        seen = self.observation.get
        sums = {name: int(seen.get(f"{self.name} {i}") or 0) for i, name in enumerate(self.numbers)}
        return {name: number for name, number in sums.items() if number}


@dataclass(frozen=True, slots=True)
class InputFrame:
    """Rows of an input: `ROW_ID` and the data columns as physical types, and their logical schema."""

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
    size: int | None = None
    """Of the file [bytes], where it was looked at."""
    few: bool = False
    """There are few rows, and their session is one for few rows (`odfchain.spark.plans`)."""
    large: bool = False
    """It is larger than one slice may be."""
    finer: Mapping[str, Column] = field(default_factory=dict)
    """How many times of a row were finer than their column, by column, as columns of the frame."""
    counted: FinerTimes | None = None
    """Has counted such times before the queries that made these rows."""


def spark_path(path: Path) -> str:
    """A path as Spark's readers take it literally: they expand `*`, `?`, `[…]` and `{…}` otherwise."""
    return re.sub(r"([\\{}\[\]*?,])", r"\\\1", str(path))


# --- CSV -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CsvInput:
    """A CSV file in UTF-8 whose quotes are escaped by doubling; its records hold `columns` in this order."""

    session: SparkSession
    source: InputFile
    columns: list[str]
    header: bool = False
    separator: str = ","
    quote: str = '"'
    null_value: str = ""
    multiline: bool = False
    """A quoted field holds a line feed; then there is no carriage return in the file."""

    def read(self, schema: ds.DataSchema, rules: TextRules, file: str) -> InputFrame:
        """The columns of `schema` by name; `file` is what messages call the input."""
        fields = [t.StructField(name, t.StringType()) for name in self.columns]
        reader = self.session.read.schema(t.StructType(fields)).options(
            emptyValue="",
            mode="FAILFAST",
            enforceSchema=True,
            columnPruning=False,
            maxCharsPerColumn=-1,
            maxColumns=len(self.columns) + 1,
            ignoreLeadingWhiteSpace=False,
            ignoreTrailingWhiteSpace=False,
        )
        columns = [F.monotonically_increasing_id().alias(ROW_ID), *[col(f.name) for f in schema.fields]]
        return parsed(self._read(reader).select(*columns), schema, rules, file)

    def infer(self) -> ds.DataSchema:
        """The types that all values agree on; every column may be null."""
        most = len(self.columns) + 1
        reader = self.session.read.options(inferSchema=True, maxColumns=most, maxCharsPerColumn=-1)
        inferred = [f.dataType for f in self._read(reader).schema.fields]
        if self.source.files is not None and not inferred:  # no record, and the header is none
            inferred = [t.StringType() for _ in self.columns]
        fields = [
            ds.DataField(name=name, type=ds.optional(from_spark_type(found)))
            for name, found in zip(self.columns, inferred, strict=True)
        ]
        return ds.DataSchema(fields=tuple(fields))

    def _read(self, reader: DataFrameReader) -> DataFrame:
        layout: dict[str, str | bool] = {
            "header": self.header,
            "sep": self.separator,
            "quote": self.quote,
            "escape": self.quote,
            "nullValue": self.null_value,
            "multiLine": self.multiline,
        }
        # Spark would guess, and make line feeds of other line breaks inside of quotes
        reader = reader.options(**(layout | {"lineSep": "\n"} if self.multiline else layout))
        if self.source.files is None:
            return reader.csv(spark_path(self.source.path))
        quote = self.quote if self.multiline else ""
        records = _text_frame(self.session, text_ranges(self.source, quote=quote, header=self.header))
        # of records, Spark would leave out all that are as the header
        return reader.option("header", False).csv(records)  # since Spark 4.2


def _text_frame(session: SparkSession, ranges: TextRanges) -> DataFrame:
    """`value`: the records that hold anything, in partitions that follow each other as in the file."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with translate_errors():
            for made in text_batches(ranges, numbers_in(batches)):
                yield made.select(["value"])

    return range_numbers(session, len(ranges.cuts) - 1).mapInArrow(read, "value string")


# --- JSON ------------------------------------------------------------------------------------------


def text_struct(fields: tuple[ds.DataField, ...]) -> StructType:
    """The Spark struct of columns before parsing: texts, and lists, maps and structs of texts."""
    return t.StructType([t.StructField(f.name, _text_type(f.type)) for f in fields])


def _text_type(data_type: ds.DataType) -> SparkType:
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return _text_type(inner)
        case ds.DataTypeList(item_type=item):
            return t.ArrayType(_text_type(item))
        case ds.DataTypeMap(value_type=value):
            return t.MapType(t.StringType(), _text_type(value))
        case ds.DataTypeStruct(fields=fields):
            return text_struct(fields)
    return t.StringType()


# --- Parquet ---------------------------------------------------------------------------------------


def parquet_rows(session: SparkSession, source: InputFile, struct: StructType) -> DataFrame:
    """The rows of a file, as Spark reads them under this schema."""
    if source.files is not None:
        return parquet_frame(session, source.files, struct, [source.key])
    return session.read.schema(struct).parquet(spark_path(source.path))


@dataclass(frozen=True, slots=True)
class ParquetInput:
    """A Parquet file, in the columns of a schema where one is declared."""

    session: SparkSession
    stored: InputFile
    schema: ds.DataSchema | None
    file: str
    """What messages call it."""

    def read(self) -> InputFrame:
        """The rows; with a schema its columns are picked by name and converted, where nothing is lost.

        Texts are read like those of CSV. A value that its declared type cannot hold stops the job.

        Raises:
            BadInputError: not a Parquet file, a column of the schema is missing, or no values of its type can
                be of the declared one.
            SchemaError: a type without a logical counterpart.
        """
        from odfchain.slices.reader import check_parquet, open_parquet

        path, schema, file = self.stored.path, self.schema, self.file
        try:
            with open_parquet(path) as source:
                own = from_arrow(source.schema_arrow)
            check_parquet(path)
        except BadInputError as error:
            raise type(error)(error.message, file=file, hint=error.hint) from None
        check_columns(own.names, file)
        target = schema or own
        missing = [f.name for f in target.fields if own.field(f.name) is None]
        if missing:
            raise BadInputError(
                f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)} of the schema not in the file "
                f"(it has {', '.join(own.names)})",
                file=file,
            )
        raw = parquet_rows(self.session, self.stored, physical_struct(own.fields))
        numbers = {
            f.name: has_microseconds(col(f.name).cast("timestamp")).cast("int")
            for f, found in zip(target.fields, (own.field(f.name) for f in target.fields), strict=True)
            if is_milliseconds(f.value_type) and found is not None and not is_milliseconds(found.value_type)
        }
        columns = []
        for f in target.fields:
            found = own.field(f.name)
            assert found is not None  # noqa: S101 - missing ones were refused
            columns.append(_converted(col(f.name), found.type, f).alias(f.name))
            _check_conversion(raw, columns[-1], found, f, file)
        hidden, finer = _hidden(numbers)
        frame = raw.select(F.monotonically_increasing_id().alias(ROW_ID), *columns, *hidden)
        return InputFrame(frame, target, file, finer=finer)

    def first_bad(self) -> BadInputError | None:
        """Why the file cannot be read to its end and as its schema says, as an error; None when it can.

        Called only after a job has failed.
        """
        from odfchain.slices.reader import open_parquet

        session, stored, schema, file = self.session, self.stored, self.schema, self.file
        path, unreadable = stored.path, "not a readable Parquet file: "
        try:
            with open_parquet(path) as source:
                own = from_arrow(source.schema_arrow)
                struct = physical_struct(own.fields)
            parquet_rows(session, stored, struct).write.format("noop").mode("overwrite").save()
        except Exception:  # noqa: BLE001 - Spark says where it was, not what it met
            reason = "its pages cannot be decoded"
            try:
                with open_parquet(path) as source:
                    for _ in source.batches(most_rows=_SMALL_BATCH):
                        pass
            except BadInputError as error:
                reason = error.message.removeprefix(unreadable)
            return BadInputError(f"{unreadable}{reason}", file=file)
        if schema is None:
            return None
        frame = parquet_rows(session, stored, struct)
        frame = frame.withColumn(ROW_ID, F.monotonically_increasing_id())
        flags = []
        for f in schema.fields:
            found = own.field(f.name)
            value = col(f.name) if found is None else _fitting(col(f.name), found.type, f)
            flags.append(value.isNull() & (F.lit(not f.optional) | col(f.name).isNotNull()))
        return _first_marked(frame, flags, schema, file)


def _hidden(numbers: Mapping[str, Column]) -> tuple[list[Column], dict[str, Column]]:
    names = {name: f"{_FINER}{i}" for i, name in enumerate(numbers)}
    return [number.alias(names[name]) for name, number in numbers.items()], {
        name: col(hidden) for name, hidden in names.items()
    }


def _check_conversion(
    raw: DataFrame, value: Column, found: ds.DataField, target: ds.DataField, file: str
) -> None:
    from pyspark.errors import AnalysisException

    try:
        raw.select(value)
    except AnalysisException:
        raise BadInputError(
            f"column `{target.name}` is {type_name(found.type, found.extra)}, which cannot be read as "
            f"{type_name(target.type, target.extra)}",
            file=file,
        ) from None


def is_milliseconds(data_type: ds.DataType) -> bool:
    """True if a type is a timestamp that ends at the millisecond."""
    unit = data_type.unit if isinstance(data_type, ds.DataTypeTimestamp) else TimeUnit.MICROSECOND
    return unit in (None, TimeUnit.SECOND, TimeUnit.MILLISECOND)


def _converted(column: Column, own: ds.DataType, target: ds.DataField) -> Column:

    value = _fitting(column, own, target)
    required = not target.optional and isinstance(own, ds.DataTypeOption)
    if value is not column or required:
        value = or_fail(column, value, target.name, required=required)
    return to_milliseconds(value) if is_milliseconds(target.value_type) else value


def _fitting(column: Column, own: ds.DataType, target: ds.DataField) -> Column:
    """The value as one of the target's type; null where that would be another value."""
    if ds.optional(own) == ds.optional(target.type):
        return column
    given = own.inner if isinstance(own, ds.DataTypeOption) else own
    if isinstance(given, ds.DataTypeString):
        return parse_text(column, target.type, DEFAULT_RULES)
    value = column.try_cast(physical_type(target.type))
    if isinstance(given, ds.DataTypeFloat64) and isinstance(target.value_type, ds.DataTypeFloat32):
        # a float that is declared keeps what it can of the digits, but not of the size
        return F.when((F.abs(value) != float("inf")) | (F.abs(column) == float("inf")), value)
    return F.when(value.try_cast(physical_type(own)).eqNullSafe(column), value)


def empty_input(session: SparkSession, schema: ds.DataSchema, file: str) -> InputFrame:
    """An input of these columns that is known to have no rows."""
    fields = [t.StructField(ROW_ID, t.LongType()), *physical_struct(schema.fields).fields]
    return InputFrame(session.createDataFrame([], t.StructType(fields)), schema, file, known_empty=True)


# --- common ----------------------------------------------------------------------------------------


def parsed(
    text: DataFrame,
    schema: ds.DataSchema,
    rules: TextRules,
    file: str,
    *,
    rows: DataFrame | None = None,
    values: Mapping[str, str] = MappingProxyType({}),
) -> InputFrame:
    """Rows of `ROW_ID` and text columns, made typed; a text that means no value stops the job.

    `rows` are the same rows where some values are typed already: they stand in the columns that `values`
    names, and their texts are null.
    """
    counts = {f.name: n for f in schema.fields if (n := too_fine(col(f.name), f.type, rules)) is not None}
    hidden, finer = _hidden(counts)
    columns = []
    for f in schema.fields:
        value = value_or_fail(col(f.name), f.type, f.name, rules, required=not f.optional)
        known = values.get(f.name)
        columns.append((value if known is None else F.coalesce(col(known), value)).alias(f.name))
    made = (text if rows is None else rows).select(col(ROW_ID), *columns, *hidden)
    return InputFrame(made, schema, file, text, rules, finer=finer)


def first_bad_row(source: InputFrame, required: frozenset[str]) -> BadInputError | None:
    """The first row of a text input that cannot be read, as an error; None when every row can.

    `required` are further columns that may not be null. Called only after a job has failed.
    """

    if source.text is None:
        return None
    flags = []
    for f in source.schema.fields:
        needed = not f.optional or f.name in required
        flags.append(is_bad(col(f.name), f.type, source.rules, required=needed))
    return _first_marked(source.text, flags, source.schema, source.file)


def _first_marked(
    frame: DataFrame, flags: list[Column], schema: ds.DataSchema, file: str
) -> BadInputError | None:
    """The first row with a flag that is true, one for each column of the schema, as an error."""
    bad_column = F.coalesce(*[F.when(flag, F.lit(index)) for index, flag in enumerate(flags)], F.lit(-1))
    found = frame.withColumn(_BAD, bad_column).where(col(_BAD) >= 0).orderBy(ROW_ID).limit(1).collect()
    if not found:
        return None
    row = found[0]
    field = schema.fields[row[_BAD]]
    number = frame.where(col(ROW_ID) < row[ROW_ID]).count() + 1
    text = row[field.name]
    if text is None:
        message = (
            f"Column `{field.name}` contains 1 null values while none were expected (the column is required)"
        )
    else:
        written = text if isinstance(text, str | list) else str(text)
        shown = written if len(str(written)) <= 60 else str(written)[:57] + "…"
        message = f"column `{field.name}`: {shown!r} is not a valid {type_name(field.type, field.extra)}"
    return BadInputError(message, file=file, row=number)
