"""Files to DataFrames: CSV, newline-delimited JSON and Parquet, with the read options of the specification.

Text columns are read as text and made typed here, so that CSV and JSON follow the same strict rules.
Every row carries an id that orders rows as they stand in the file. When a job fails, `first_bad_row` finds
the row that is to blame.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, SchemaError
from odfchain.lazy import F, pa, t
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import castable, from_arrow, nullable
from odfchain.odf.enums import TimeUnit
from odfchain.odf.schema import type_name
from odfchain.odf.times import RFC3339
from odfchain.spark.executor_files import (
    InputFile,
    ReadableFiles,
    numbered_frame,
    text_batches,
    text_ranges,
)
from odfchain.spark.types import (
    RESERVED,
    any_of,
    check_columns,
    col,
    from_spark_type,
    physical_struct,
    physical_type,
)
from odfchain.text import first_line, marker

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, Observation, SparkSession
    from pyspark.sql.types import StructType


# Text to typed columns, strictly: one set of rules for CSV and JSON, as Spark expressions.
#
# Spark's own parsers accept more than a ledger should: a time of day becomes today's date, a decimal is
# rounded, spaces are trimmed away. Here a value either means exactly one thing or stops the run. Defaults are
# those of the specification's read steps: RFC 3339 dates and times, naive times are UTC. What is finer than
# the declared unit is cut off, and `_too_fine` counts it.


_UNSIGNED_MAX: dict[type[ds.DataType], int] = {
    ds.DataTypeUInt8: 2**8 - 1,
    ds.DataTypeUInt16: 2**16 - 1,
    ds.DataTypeUInt32: 2**32 - 1,
    ds.DataTypeUInt64: 2**64 - 1,
}
_FLOAT16_MAX = 65_504.0
_PER_SECOND = {
    TimeUnit.SECOND: 1_000,  # recorded as milliseconds
    TimeUnit.MILLISECOND: 1_000,
    TimeUnit.MICROSECOND: 1_000_000,
    TimeUnit.NANOSECOND: 1_000_000_000,
}


@dataclass(frozen=True, slots=True)
class TextRules:
    """How values are written: formats of dates and times, and whether a bare integer is a time in ms."""

    date_format: str = RFC3339
    timestamp_format: str = RFC3339
    integer_timestamps: bool = False
    plain: bool = False
    """No value holds a control character, so that only blanks can be trimmed away (which is cheap to see)."""


DEFAULT_RULES = TextRules()

_EPOCH = dt.date(1970, 1, 1)
_WHOLE_SECONDS = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\z"
_FIRST_DAY, _LAST_DAY = (dt.date.min - _EPOCH).days, (dt.date.max - _EPOCH).days
# The years 1 to 9999, which is all that RFC 3339 can write.
_FIRST_MICRO, _LAST_MICRO = _FIRST_DAY * 86_400_000_000, (_LAST_DAY + 1) * 86_400_000_000 - 1


def parse_text(text: Column, data_type: ds.DataType, rules: TextRules) -> Column:
    """The typed value of a text column: null where the text is null or does not mean a value of the type.

    Raises:
        SchemaError: the type cannot be read from text.
    """
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return parse_text(text, inner, rules)
        case ds.DataTypeString():
            return text
        case ds.DataTypeBool():
            lower = F.lower(text)
            return F.when(lower == "true", F.lit(True)).when(lower == "false", F.lit(False))
        case ds.DataTypeInt8() | ds.DataTypeInt16() | ds.DataTypeInt32() | ds.DataTypeInt64():
            return F.when(_untrimmed(text, rules), text.try_cast(physical_type(data_type)))
        case ds.DataTypeUInt8() | ds.DataTypeUInt16() | ds.DataTypeUInt32() | ds.DataTypeUInt64():
            number = text.try_cast("decimal(20,0)")
            largest = F.lit(str(_UNSIGNED_MAX[type(data_type)])).cast("decimal(20,0)")
            fits = text.rlike(r"\A\+?[0-9]+\z") & (number <= largest)
            return F.when(fits, number.cast(physical_type(data_type)))
        case ds.DataTypeFloat16() | ds.DataTypeFloat32() | ds.DataTypeFloat64():
            # Java also reads `1d`, `1f` and `0x1p3`; what is rarely true comes first, what is costly last
            suffixed = any_of(text.endswith(c) for c in "dDfF") & ~F.lower(text).isin("inf", "+inf", "-inf")
            hexadecimal = F.contains(text, F.lit("x")) | F.contains(text, F.lit("X"))
            ours = ~suffixed & ~hexadecimal & _untrimmed(text, rules)
            return _in_range(text, F.when(ours, text.try_cast(physical_type(data_type))), data_type)
        case ds.DataTypeDecimal(precision=precision, scale=scale):
            exact = text.rlike(rf"\A[+-]?[0-9]*(\.[0-9]{{0,{scale}}}0*)?\z")
            return F.when(exact, text.try_cast(f"decimal({precision},{scale})"))
        case ds.DataTypeDate():
            return _date(text, rules)
        case ds.DataTypeTimestamp(unit=unit):
            value = _timestamp(text, rules)
            return value if unit is TimeUnit.MICROSECOND else to_milliseconds(value)
        case ds.DataTypeTime(unit=unit):
            return _time(text, unit or TimeUnit.MILLISECOND)
        case ds.DataTypeBinary(fixed_length=16):
            uuid = text.rlike(r"\A[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\z")
            return F.when(uuid, F.unhex(F.replace(text, F.lit("-"), F.lit(""))))
    raise SchemaError(f"type {data_type.KIND} cannot be read from text")


def _in_range(text: Column, value: Column, data_type: ds.DataType) -> Column:
    # a cast makes infinity or zero of what is out of range: null, so that it is found
    magnitude = F.abs(value)
    largest = F.lit(_FLOAT16_MAX) if isinstance(data_type, ds.DataTypeFloat16) else F.lit(sys.float_info.max)
    lost = (magnitude > largest) & ~F.isnan(value) & text.rlike(r"[0-9]")
    vanished = (magnitude == 0) & text.rlike(r"\A[^eE]*[1-9]")
    return F.when(~(lost | vanished), value)


def _untrimmed(text: Column, rules: TextRules) -> Column:
    # Spark's casts drop blanks and control characters around a text
    if rules.plain:
        return F.octet_length(F.trim(text)) == F.octet_length(text)
    return F.ascii(text).between(33, 126) & F.ascii(F.right(text, F.lit(1))).between(33, 126)


def _timestamp(text: Column, rules: TextRules) -> Column:
    if rules.timestamp_format != RFC3339:
        value = F.try_to_timestamp(text, F.lit(rules.timestamp_format))
    else:
        dashes = (F.substring(text, 5, 1) == "-") & (F.substring(text, 8, 1) == "-")
        plain = (F.length(text) >= 10) & dashes & _untrimmed(text, rules)
        # looking at a zone takes Spark longer than at all the rest, and most times are of this form
        utc = F.when(text.rlike(_WHOLE_SECONDS), F.substring(text, 1, 19).try_cast("timestamp"))
        value = utc.when(plain, text.try_cast("timestamp"))
    if rules.integer_timestamps:
        number = F.when(text.rlike(r"\A-?[0-9]{1,18}\z"), text.try_cast("bigint"))
        value = F.coalesce(value, F.timestamp_millis(number))
    micros = F.unix_micros(value)
    return F.when((micros >= _FIRST_MICRO) & (micros <= _LAST_MICRO), value)


def _date(text: Column, rules: TextRules) -> Column:
    if rules.date_format != RFC3339:
        value = F.try_to_date(text, rules.date_format)
    else:
        value = F.when((F.length(text) == 10) & _untrimmed(text, rules), text.try_cast("date"))
    day = F.unix_date(value)
    return F.when((day >= _FIRST_DAY) & (day <= _LAST_DAY), value)


def _has_times(data_type: ds.DataType) -> bool:
    times = ds.DataTypeTimestamp | ds.DataTypeTime
    return any(isinstance(found, times) for found in ds.types_within(data_type))


def _too_fine(raw: Column, data_type: ds.DataType, rules: TextRules) -> Column:
    # how many times in a text, or a list, map or struct of texts, have digits that their type does not keep
    def total(items: Column, item: ds.DataType) -> Column:
        return F.aggregate(items, F.lit(0), lambda so_far, x: so_far + _too_fine(x, item, rules))

    match data_type:
        case ds.DataTypeOption(inner=inner):
            return _too_fine(raw, inner, rules)
        case ds.DataTypeTimestamp(unit=unit) if rules.timestamp_format != RFC3339:
            number = _too_fine_by_format(raw, rules.timestamp_format, unit).cast("int")
        case ds.DataTypeTimestamp(unit=unit) | ds.DataTypeTime(unit=unit):
            digits = len(str(_PER_SECOND[unit or TimeUnit.MILLISECOND])) - 1
            if isinstance(data_type, ds.DataTypeTimestamp):
                digits = min(max(digits, 3), 6)
            # most times have no fraction, and looking for its sign is cheaper than a pattern
            fraction = raw.contains(".") | raw.contains(",")
            number = (fraction & raw.rlike(rf":[0-9]{{2}}[.,][0-9]{{{digits}}}[0-9]*[1-9]")).cast("int")
        case ds.DataTypeList(item_type=item):
            number = total(raw, item)
        case ds.DataTypeMap(key_type=key, value_type=value):
            number = total(F.map_keys(raw), key) + total(F.map_values(raw), value)
        case ds.DataTypeStruct(fields=fields):
            number = F.lit(0)
            for f in fields:
                if _has_times(f.type):
                    number = number + _too_fine(raw.getField(f.name), f.type, rules)
        case _:
            return F.lit(0)
    return F.coalesce(number, F.lit(0))


def _too_fine_by_format(text: Column, pattern: str, unit: TimeUnit | None) -> Column:
    """True for a time in another form than RFC 3339 with digits that its unit does not keep."""
    # Spark's times end at the microsecond: what is finer is seen in the text alone
    found = text.rlike("[^0-9][0-9]{6}[0-9]*[1-9]") if "SSSSSSS" in pattern else F.lit(False)
    if unit is not TimeUnit.MICROSECOND and "SSSS" in pattern:
        found = found | has_microseconds(F.try_to_timestamp(text, F.lit(pattern)))
    return found


def to_milliseconds(value: Column) -> Column:
    """A timestamp without what is finer than a millisecond (rounded towards the past)."""
    return F.timestamp_millis(F.unix_millis(value))


def has_microseconds(value: Column) -> Column:
    """True if a timestamp is finer than a millisecond."""
    return F.pmod(F.unix_micros(value), F.lit(1_000)) != 0


def _time(text: Column, unit: TimeUnit) -> Column:
    shape = text.rlike(r"\A[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?\z")
    moment = F.concat(F.lit("1970-01-01T"), text).try_cast("timestamp")
    micros = F.unix_micros(moment)
    per_second = _PER_SECOND[unit]
    if per_second <= 1_000_000:
        number = F.floor(micros / F.lit(1_000_000 // per_second)).cast("bigint")
    else:
        # Spark's times end at the microsecond
        rest = F.regexp_extract(text, r"\.[0-9]{6}([0-9]{1,3})\z", 1)
        rest = F.when(rest != "", F.rpad(rest, 3, "0").cast("bigint")).otherwise(F.lit(0))
        number = micros * F.lit(per_second // 1_000_000) + rest
    return F.when(shape, number)


def or_fail(text: Column, value: Column, name: str, *, required: bool) -> Column:
    """`value`, or a failed task where the text is not a value (or is missing in a required column)."""
    failure = F.raise_error(F.lit(marker("bad-value", column=name)))
    return F.coalesce(value, failure if required else F.when(text.isNotNull(), failure))


def _value_or_fail(
    raw: Column, data_type: ds.DataType, name: str, rules: TextRules, *, required: bool
) -> Column:
    """The typed value of a column of texts, or of lists, maps or structs of texts; else a failed task."""
    if not _nested(data_type):
        return or_fail(raw, parse_text(raw, data_type, rules), name, required=required)
    failure = F.raise_error(F.lit(marker("bad-value", column=name)))
    return F.when(is_bad(raw, data_type, rules, required=required), failure).otherwise(
        _typed(raw, data_type, rules)
    )


def is_bad(raw: Column, data_type: ds.DataType, rules: TextRules, *, required: bool = False) -> Column:
    """True if `_value_or_fail` would fail; for finding the row afterwards."""
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return is_bad(raw, inner, rules, required=required)
        case ds.DataTypeList(item_type=item):
            bad = F.exists(raw, lambda x: is_bad(x, item, rules))
        case ds.DataTypeMap(key_type=key, value_type=value):
            entries = F.map_entries(raw)
            bad = F.exists(entries, lambda e: is_bad(e["key"], key, rules) | is_bad(e["value"], value, rules))
        case ds.DataTypeStruct(fields=fields):
            bad = any_of(is_bad(raw.getField(f.name), f.type, rules) for f in fields)
        case _:
            parsed = parse_text(raw, data_type, rules)
            return parsed.isNull() if required else raw.isNotNull() & parsed.isNull()
    return F.coalesce(bad, F.lit(required))


def _nested(data_type: ds.DataType) -> bool:
    inner = data_type.inner if isinstance(data_type, ds.DataTypeOption) else data_type
    return isinstance(inner, ds.DataTypeList | ds.DataTypeMap | ds.DataTypeStruct)


def _typed(raw: Column, data_type: ds.DataType, rules: TextRules) -> Column:
    """The value where every text in it means one; null where it is null."""
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return _typed(raw, inner, rules)
        case ds.DataTypeList(item_type=item):
            return F.transform(raw, lambda x: _typed(x, item, rules))
        case ds.DataTypeMap(key_type=key, value_type=value):
            entry = F.transform(
                F.map_entries(raw),
                lambda e: F.struct(
                    _typed(e["key"], key, rules).alias("key"), _typed(e["value"], value, rules).alias("value")
                ),
            )
            return F.map_from_entries(entry)
        case ds.DataTypeStruct(fields=fields):
            members = [_typed(raw.getField(f.name), f.type, rules).alias(f.name) for f in fields]
            return F.when(raw.isNotNull(), F.struct(*members))
    return parse_text(raw, data_type, rules)


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
        yield from _rows_of_file(files, keys[number], names, target)


def _rows_of_file(
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
        ranges = text_ranges(self.source, quote=quote, header=self.header)

        def read(numbers: Iterator[int]) -> Iterator[pa.RecordBatch]:
            return (made.select(["value"]) for made in text_batches(ranges, numbers))

        # in partitions that follow each other as in the file
        records = numbered_frame(self.session, len(ranges.cuts) - 1, read, "value string")
        # of records, Spark would leave out all that are as the header
        return reader.option("header", False).csv(records)  # since Spark 4.2


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
    counts = {f.name: _too_fine(col(f.name), f.type, rules) for f in schema.fields if _has_times(f.type)}
    hidden, finer = _hidden(counts)
    columns = []
    for f in schema.fields:
        value = _value_or_fail(col(f.name), f.type, f.name, rules, required=not f.optional)
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
