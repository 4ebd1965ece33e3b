"""Files to DataFrames: CSV, newline-delimited JSON and Parquet, with the read options of the specification.

Texts become values in the workers that read them (`odfchain.spark.text_values`), so that CSV and JSON follow
the same strict rules. Every row carries an id that orders rows as they stand in the file. When a job fails,
`first_bad_row` finds the row that is to blame: the driver reads the same texts again, in order.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError
from odfchain.lazy import F, pa, pc, t
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import castable, from_arrow, nullable
from odfchain.odf.enums import TimeUnit
from odfchain.odf.schema import type_name
from odfchain.spark import java_formats, text_values
from odfchain.spark.executor_files import (
    ID_BITS,
    RANGES_OF_A_TASK,
    InputFile,
    ReadableFiles,
    TextRanges,
    numbered_frame,
    text_batches,
    text_ranges,
)
from odfchain.spark.java_formats import has_microseconds, or_fail, to_milliseconds
from odfchain.spark.plans import map_in_arrow
from odfchain.spark.text_values import DEFAULT_RULES, TextRules, TextValueError, has_times
from odfchain.spark.types import RESERVED, check_columns, col, from_spark_type, physical_struct, physical_type
from odfchain.text import first_line, marker

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation, SparkSession
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
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    if not keys:
        return session.createDataFrame([], struct)
    # by position: names with dots and backticks are syntax where columns are named
    numbered = pa.schema(
        [f.with_name(f"c{i}") for i, f in enumerate(nullable(to_arrow_schema(struct, timezone="UTC")))]
    )
    schema = numbered.serialize().to_pybytes()
    read = functools.partial(_rows, files=files, keys=tuple(keys), names=tuple(struct.names), schema=schema)
    frame = numbered_frame(session, len(keys), read, from_arrow_schema(numbered), most=1)
    return frame.toDF(*struct.names)


def _rows(
    numbers: Iterator[int], files: ReadableFiles, keys: tuple[str, ...], names: tuple[str, ...], schema: bytes
) -> Iterator[pa.RecordBatch]:
    target = pa.ipc.read_schema(pa.py_buffer(schema))
    for number in numbers:
        yield from rows_of_file(files.bring(keys[number]), keys[number], names, target)


def rows_of_file(path: Path, key: str, names: Sequence[str], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Some columns of a Parquet file in the types of `target`; `key` is what messages call it."""
    from odfchain.slices.reader import open_parquet

    try:
        with open_parquet(path) as source:
            present = set(source.schema_arrow.names)
            for batch in source.batches([name for name in names if name in present]):
                columns = [
                    as_physical(batch.column(name), field.type)
                    if name in present
                    else pa.nulls(batch.num_rows, field.type)
                    for name, field in zip(names, target, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=target)
    except BadInputError as error:
        raise type(error)(error.message, file=key, hint=error.hint) from None
    except (pa.ArrowException, ValueError) as error:
        raise BadInputError(f"not in the types of its dataset: {first_line(error)}", file=key) from None


def as_physical(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column in the type as which it travels through Spark."""
    return column if column.type == kind else column.cast(castable(column.type)).cast(kind)


_SMALL_BATCH = 1_024
_BATCH_ROWS = 65_536
_READ = f"{RESERVED}read_"
_UNREADABLE = "not a readable Parquet file: "

ROW_ID, FINER, _BAD = f"{RESERVED}row", f"{RESERVED}finer_", f"{RESERVED}bad"
"""The column that orders the rows of an input as they stand in the file, and the beginning of the names of
those that say how many times of a row were finer than a column."""


@dataclass(frozen=True, slots=True)
class FinerTimes:
    """Counts values that are cut to the unit of their column, by column, while the rows are read."""

    observation: Observation
    numbers: Mapping[str, Column]
    """How many times of a row are cut, by column."""

    @property
    def sums(self) -> list[Column]:
        """The columns for the observation."""
        return [F.sum(number).alias(f"finer {i}") for i, number in enumerate(self.numbers.values())]

    def counts(self) -> dict[str, int]:
        """How many values each column lost digits of, where any did; after the rows were read."""
        if not self.numbers:
            return {}
        seen = self.observation.get
        sums = {name: int(seen.get(f"finer {i}") or 0) for i, name in enumerate(self.numbers)}
        return {name: number for name, number in sums.items() if number}


@dataclass(frozen=True, slots=True)
class InputFrame:
    """Rows of an input: `ROW_ID` and the data columns as physical types, and their logical schema."""

    frame: DataFrame
    schema: ds.DataSchema
    file: str
    texts: TextRows | None = None
    """The texts that the rows were made of (text formats), for finding a bad one."""
    reader: Callable[[], Iterator[pa.RecordBatch]] | None = None
    """Gives a worker the columns of `frame` but `ROW_ID`, in the order of the file; None: Spark reads."""
    known_empty: bool = False
    """There are no rows, and that is known without reading."""
    short: bool = False
    """No row holds more than a few KiB."""
    size: int | None = None
    """Of its text, or of the values of a Parquet file [bytes], where it was looked at."""
    large: bool = False
    """It is larger than one slice may be."""
    finer: Mapping[str, Column] = field(default_factory=dict)
    """How many times of a row were finer than their column, by column, as columns of the frame."""
    counted: FinerTimes | None = None
    """Has counted such times before the queries that made these rows."""


def spark_path(path: Path) -> str:
    """A path as Spark's readers take it literally: they expand `*`, `?`, `[…]` and `{…}` otherwise."""
    return re.sub(r"([\\{}\[\]*?,])", r"\\\1", str(path))


# --- texts -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextRows:
    """The texts of an input's rows and the values that they mean; sent to workers."""

    count: int
    """Pieces of the input."""
    texts: Callable[[Iterable[int]], Iterator[pa.RecordBatch]]
    """Row ids, and the text of each column, or its list or struct of texts, of pieces by their numbers."""
    fields: tuple[ds.DataField, ...]
    rules: TextRules
    file: str
    """What messages call the input."""
    most: int = 1
    """Pieces that one task reads, at most, where each core has a task."""

    def frame(self, session: SparkSession) -> InputFrame:
        """The rows, typed; a text that means no value stops the job."""
        for f in self.fields:
            text_values.check_type(f.type)
        frame = self.numbered(session)
        columns, formatted = [col("row_id").alias(ROW_ID)], False
        finer: dict[str, Column] = {}
        for i, f in enumerate(self.fields):
            value = col(f"c{i}")
            if has_times(f.type):
                lost = col(f"f{i}") + java_formats.too_fine(value, f.type, self.rules)
                columns.append(lost.alias(f"{FINER}{f.name}"))
                finer[f.name] = col(f"{FINER}{f.name}")
            if self.rules.formats(f.type):
                formatted, value = True, java_formats.value_or_fail(value, f, self.rules)
            columns.append(value.alias(f.name))
        reader = None if formatted else functools.partial(_data_columns, self)
        typed = ds.DataSchema(fields=self.fields)
        return InputFrame(frame.select(*columns), typed, self.file, self, reader, finer=finer)

    def numbered(self, session: SparkSession) -> DataFrame:
        """The rows as `batches` gives them."""
        from pyspark.sql.pandas.types import from_arrow_schema

        # by position: names with dots and backticks are syntax where columns are named
        return numbered_frame(
            session, self.count, self.batches, from_arrow_schema(self._schema()), most=self.most
        )

    def _schema(self) -> pa.Schema:
        types = [text_values.carried_type(f.type, self.rules) for f in self.fields]
        finer = [(f"f{i}", pa.int32()) for i, f in enumerate(self.fields) if has_times(f.type)]
        return pa.schema([("row_id", pa.int64()), *[(f"c{i}", kind) for i, kind in enumerate(types)], *finer])

    def batches(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """`row_id`, the columns as `c0`, …, and for those with times `f0`, …: how many lost digits."""
        schema = self._schema()
        for batch in self.texts(numbers):
            try:
                values, finer = text_values.read_batch(batch.columns[1:], self.fields, self.rules)
            except TextValueError as error:
                name = self.fields[error.column].name
                raise RuntimeError(marker("bad-value", column=name, message=error.message)) from None
            counts = [
                pa.repeat(pa.scalar(0, pa.int32()), len(batch)) if lost is None else pa.array(lost)
                for lost, f in zip(finer, self.fields, strict=True)
                if has_times(f.type)
            ]
            yield pa.RecordBatch.from_arrays([batch.column(0), *values, *counts], schema=schema)

    def first_bad(self, required: frozenset[str]) -> BadInputError | None:
        """The first row that cannot be read, as an error; `required` are further columns without nulls."""
        row = 0
        for batch in self.texts(range(self.count)):
            columns = batch.columns[1:]
            try:
                text_values.read_batch(columns, self.fields, self.rules, required)
            except TextValueError as error:
                return BadInputError(error.message, file=self.file, row=row + error.row + 1)
            row += len(batch)
        return None


def _data_columns(rows: TextRows) -> Iterator[pa.RecordBatch]:
    finer = [f"{FINER}{f.name}" for f in rows.fields if has_times(f.type)]
    names = ["row_id", *(f.name for f in rows.fields), *finer]
    for batch in rows.batches(range(rows.count)):
        yield batch.rename_columns(names).drop_columns(["row_id"])


def with_values(frame: DataFrame, wanted: Mapping[str, tuple[str, ds.DataType]]) -> DataFrame:
    """The frame with further columns: of texts of a column the values of a type, null where there is none."""
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    if not wanted:
        return frame
    numbered = frame.toDF(*[f"c{i}" for i in range(len(frame.columns))])
    places = [(frame.columns.index(name), data_type) for name, data_type in wanted.values()]
    given = to_arrow_schema(numbered.schema, timezone="UTC")
    made = [pa.field(f"v{i}", text_values.carried_type(kind)) for i, (_, kind) in enumerate(places)]
    schema = pa.schema([*given, *made])

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            read = [text_values.read_texts(batch.column(at), kind, DEFAULT_RULES) for at, kind in places]
            values = [each.values for each in read]
            yield pa.RecordBatch.from_arrays([*batch.columns, *values], schema=schema)

    return map_in_arrow(numbered, add, from_arrow_schema(schema)).toDF(*frame.columns, *wanted)


# --- CSV -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CsvTexts:
    """The texts of columns of a CSV file in UTF-8 whose quotes are escaped by doubling; sent to workers."""

    ranges: TextRanges
    columns: tuple[str, ...]
    """Of its records, in this order."""
    wanted: tuple[str, ...]
    separator: str
    quote: str
    null_value: str

    def __call__(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        from pyarrow import csv

        parse = csv.ParseOptions(
            delimiter=self.separator,
            quote_char=self.quote or False,
            escape_char=False,
            newlines_in_values=bool(self.ranges.quote),
        )
        # an empty field is null; a quoted one where no other text means null
        convert = csv.ConvertOptions(
            column_types=dict.fromkeys(self.columns, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=not self.null_value,
            include_columns=list(self.wanted),
        )
        for number in numbers:
            data = self.ranges.bytes_of(number)
            if not data.strip(b"\r\n"):
                continue
            if data.startswith(codecs.BOM_UTF8):  # of the first field's text: Arrow would leave it out
                data = b"\n" + data
            if not data.endswith((b"\n", b"\r")):  # Arrow would take an empty last field for a quoted one
                data += b"\n"
            read = csv.ReadOptions(column_names=list(self.columns), block_size=len(data) + 1)
            try:
                table = csv.read_csv(pa.BufferReader(data), read, parse, convert)
            except pa.ArrowInvalid as error:
                raise RuntimeError(marker("bad-record", message=first_line(error))) from None
            yield from self._batches(table.combine_chunks(), number << ID_BITS)

    def _batches(self, table: pa.Table, first: int) -> Iterator[pa.RecordBatch]:
        import numpy as np

        for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
            ids = pa.array(np.arange(first, first + len(batch), dtype=np.int64))
            first += len(batch)
            columns = batch.columns
            if self.null_value:
                columns = [pc.if_else(pc.equal(c, self.null_value), None, c) for c in columns]
            yield pa.RecordBatch.from_arrays([ids, *columns], names=["row_id", *self.wanted])


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
        ranges = self._ranges()
        texts = CsvTexts(
            ranges, tuple(self.columns), schema.names, self.separator, self.quote, self.null_value
        )
        rows = TextRows(len(ranges.cuts) - 1, texts, schema.fields, rules, file, RANGES_OF_A_TASK)
        return rows.frame(self.session)

    def _ranges(self) -> TextRanges:
        return text_ranges(self.source, quote=self.quote if self.multiline else "", header=self.header)

    def infer(self) -> ds.DataSchema:
        """The types that all values agree on; every column may be null."""
        ranges = self._ranges()

        def read(numbers: Iterator[int]) -> Iterator[pa.RecordBatch]:
            return (made.select(["value"]) for made in text_batches(ranges, numbers))

        # in partitions that follow each other as in the file
        records = numbered_frame(self.session, len(ranges.cuts) - 1, read, "value string")
        inferred = self.session.read.options(
            inferSchema=True,
            maxColumns=len(self.columns) + 1,
            maxCharsPerColumn=-1,
            header=False,
            sep=self.separator,
            quote=self.quote,
            escape=self.quote,
            nullValue=self.null_value,
            multiLine=self.multiline,
            **({"lineSep": "\n"} if self.multiline else {}),
        ).csv(records)  # since Spark 4.2
        kinds = [f.dataType for f in inferred.schema.fields]
        if not kinds:  # no record, and the header is none
            kinds = [t.StringType() for _ in self.columns]
        fields = [
            ds.DataField(name=name, type=ds.optional(from_spark_type(found)))
            for name, found in zip(self.columns, kinds, strict=True)
        ]
        return ds.DataSchema(fields=tuple(fields))


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
        raw = _with_read_texts(
            parquet_rows(self.session, self.stored, physical_struct(own.fields)), own, target
        )
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
        reader = None
        if all(_is_kept(own.field(f.name), f) for f in target.fields):
            types = [(f.name, text_values.carried_type(f.type)) for f in target.fields]
            schema_ = pa.schema(types).serialize().to_pybytes()
            reader = functools.partial(_data_of_file, self.stored, file, schema_)
        return InputFrame(frame, target, file, reader=reader, finer=finer)

    def first_bad(self) -> BadInputError | None:
        """Why the file cannot be read to its end and as its schema says, as an error; None when it can.

        Called only after a job has failed.
        """
        from odfchain.slices.reader import open_parquet

        session, stored, schema, file = self.session, self.stored, self.schema, self.file
        path = stored.path
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
                reason = error.message.removeprefix(_UNREADABLE)
            return BadInputError(f"{_UNREADABLE}{reason}", file=file)
        if schema is None:
            return None
        frame = _with_read_texts(parquet_rows(session, stored, struct), own, schema)
        frame = frame.withColumn(ROW_ID, F.monotonically_increasing_id())
        flags = []
        for f in schema.fields:
            found = own.field(f.name)
            value = col(f.name) if found is None else _fitting(col(f.name), found.type, f)
            flags.append(value.isNull() & (F.lit(not f.optional) | col(f.name).isNotNull()))
        return _first_marked(frame, flags, schema, file)


def _is_kept(own: ds.DataField | None, target: ds.DataField) -> bool:
    # every value of the file is one of the declared type
    if own is None or ds.optional(own.type) != ds.optional(target.type):
        return False
    return target.optional or not isinstance(own.type, ds.DataTypeOption)


def _data_of_file(stored: InputFile, file: str, schema: bytes) -> Iterator[pa.RecordBatch]:
    target = pa.ipc.read_schema(pa.py_buffer(schema))
    try:
        yield from rows_of_file(stored.here(), file, tuple(target.names), target)
    except BadInputError as error:
        # the file can be read, but a value in it is none of its type
        of_value = error.message.removeprefix(_UNREADABLE)
        message = of_value if of_value.startswith("column `") else error.message
        raise BadInputError(message, file=file, hint=error.hint) from None


def _with_read_texts(frame: DataFrame, own: ds.DataSchema, target: ds.DataSchema) -> DataFrame:
    # further columns: the values of texts that are declared as something else
    wanted = {
        _READ + f.name: (f.name, f.type)
        for f in target.fields
        if (found := own.field(f.name)) is not None
        and isinstance(found.value_type, ds.DataTypeString)
        and not isinstance(f.value_type, ds.DataTypeString)
    }
    return with_values(frame, wanted)


def _hidden(numbers: Mapping[str, Column]) -> tuple[list[Column], dict[str, Column]]:
    names = {name: f"{FINER}{name}" for name in numbers}
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
        return col(_READ + target.name)
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

# --- common ----------------------------------------------------------------------------------------


def first_bad_row(source: InputFrame, required: frozenset[str]) -> BadInputError | None:
    """The first row of a text input that cannot be read, as an error; None when every row can.

    `required` are further columns that may not be null. Called only after a job has failed.
    """
    rows = source.texts
    if rows is None:
        return None
    if (found := rows.first_bad(required)) is not None:
        return found
    if not any(rows.rules.formats(f.type) for f in rows.fields):
        return None
    frame = rows.numbered(source.frame.sparkSession).select(
        col("row_id").alias(ROW_ID), *[col(f"c{i}").alias(f.name) for i, f in enumerate(rows.fields)]
    )
    flags = [
        java_formats.is_bad(col(f.name), f.type, rows.rules, required=not f.optional or f.name in required)
        for f in rows.fields
    ]
    return _first_marked(frame, flags, ds.DataSchema(fields=rows.fields), source.file)


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
