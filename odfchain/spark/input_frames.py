"""Files to DataFrames: CSV, newline-delimited JSON and Parquet, with the read options of the specification.

Texts become values in the workers that read them (`odfchain.spark.text_values`), so that CSV and JSON follow
the same strict rules. Every row carries an id that orders rows as they stand in the file. When a job fails,
`first_bad_row` finds the row that is to blame: the driver reads the same texts again, in order.
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, OdfchainError
from odfchain.lazy import F, pa, pc, t
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow, mapped, nullable
from odfchain.odf.enums import TimeUnit
from odfchain.odf.schema import type_name
from odfchain.spark import text_values
from odfchain.spark.executor_files import (
    RANGES_OF_A_TASK,
    InputFile,
    ReadableFiles,
    TextRanges,
    numbered_frame,
)
from odfchain.spark.java_formats import REFUSED, as_rfc3339
from odfchain.spark.jobs import task_results
from odfchain.spark.plans import map_in_arrow
from odfchain.spark.text_values import DEFAULT_RULES, TextRules, TextValueError, has_times
from odfchain.spark.types import RESERVED, as_physical, check_columns, col, physical_struct
from odfchain.text import first_line, marker

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession
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


_BATCH_ROWS = 65_536
_UNREADABLE = "not a readable Parquet file: "

ROW_ID, FINER = f"{RESERVED}row", f"{RESERVED}finer_"
"""The column that orders the rows of an input as they stand in the file, and the beginning of the names of
those that say how many times of a row were finer than a column."""


@dataclass(frozen=True, slots=True)
class InputFrame:
    """Rows of an input, and their logical schema; where there is nothing that has them, there are none."""

    session: SparkSession
    schema: ds.DataSchema
    file: str
    texts: TextRows | None = None
    """The texts or other values that the rows are made of."""
    made: DataFrame | None = None
    """The rows as a query has made them, as `frame` gives them."""
    malformed: Callable[[], OdfchainError | None] | None = None
    """Finds a fault of the file other than values, after a failure."""
    rows: int | None = None
    """About how many, where that is known before they are read; for progress alone."""
    short: bool = False
    """No row holds more than a few KiB."""
    size: int | None = None
    """Of its text, or of the values of a Parquet file [bytes], where it was looked at."""
    large: bool = False
    """It is larger than one slice may be."""
    counted: Callable[[], dict[str, int]] | None = None
    """How many times of each column were cut before the queries that made these rows."""

    @property
    def frame(self) -> DataFrame:
        """`ROW_ID` and the data columns as physical types; planning costs calls of Java for each."""
        if self.texts is not None:
            return self.texts.frame(self.session)
        if self.made is not None:
            return self.made
        fields = [t.StructField(ROW_ID, t.LongType()), *physical_struct(self.schema.fields).fields]
        return self.session.createDataFrame([], t.StructType(fields))

    @property
    def reader(self) -> Callable[[], Iterator[pa.RecordBatch]] | None:
        """Gives a worker the columns of `frame` but `ROW_ID`, in the order of the file; None: Spark reads."""
        if self.texts is not None:
            return None if self.texts.has_formats else functools.partial(_data_columns, self.texts)
        return None if self.made is not None else functools.partial(iter, ())

    @property
    def finer(self) -> tuple[str, ...]:
        """The columns of which the frame says how many times of a row were finer than they keep."""
        return () if self.texts is None else tuple(f.name for f in self.texts.fields if has_times(f.type))


def spark_path(path: Path) -> str:
    """A path as Spark's readers take it literally: they expand `*`, `?`, `[…]` and `{…}` otherwise."""
    return re.sub(r"([\\{}\[\]*?,])", r"\\\1", str(path))


@dataclass(frozen=True, slots=True)
class TextRows:
    """The texts of an input's rows and the values that they mean; sent to workers."""

    count: int
    """Pieces of the input."""
    texts: Callable[[Iterable[int]], Iterator[pa.RecordBatch]]
    """The text of each column, or its list or struct of texts, of pieces by their numbers."""
    fields: tuple[ds.DataField, ...]
    rules: TextRules
    file: str
    """What messages call the input."""
    most: int = 1
    """Pieces that one task reads, at most, where each core has a task."""
    read_as: tuple[ds.DataField, ...] = ()
    """As what the columns were read first, where their values become those of `fields` afterwards."""

    def input(self, session: SparkSession) -> InputFrame:
        """The rows, typed; a text that means no value stops the job."""
        return InputFrame(session, ds.DataSchema(fields=self.fields), self.file, self)

    def frame(self, session: SparkSession) -> DataFrame:
        """The same as rows of Spark."""
        from pyspark.sql.pandas.types import from_arrow_schema

        frame = self._in_rfc3339(session)
        if self.has_formats:
            plain = self._schema(self.rules.without_formats)
            frame = map_in_arrow(frame, self.of_formats, from_arrow_schema(plain))
        columns = [col(f"c{i}").alias(f.name) for i, f in enumerate(self.fields)]
        timed = {f"f{i}": f.name for i, f in enumerate(self.fields) if has_times(f.type)}
        columns += [col(number).alias(f"{FINER}{name}") for number, name in timed.items()]
        # pieces follow each other in tasks, and rows in pieces
        return frame.select(F.monotonically_increasing_id().alias(ROW_ID), *columns)

    def _schema(self, rules: TextRules) -> pa.Schema:
        types = [rules.carried(f.type) for f in self.fields]
        finer = [(f"f{i}", pa.int32()) for i, f in enumerate(self.fields) if has_times(f.type)]
        return pa.schema([*[(f"c{i}", kind) for i, kind in enumerate(types)], *finer])

    @property
    def has_formats(self) -> bool:
        """True if Java reads dates or times of declared formats."""
        declared = self.rules != self.rules.without_formats
        return declared and any(self.rules.formats(f.type) for f in self.fields)

    def _in_rfc3339(self, session: SparkSession) -> DataFrame:
        """Rows as `batches` gives them, with texts of a declared format as all others are."""
        from pyspark.sql.pandas.types import from_arrow_schema

        # by position: names with dots and backticks are syntax where columns are named
        schema = from_arrow_schema(self._schema(self.rules))
        frame = numbered_frame(session, self.count, self.batches, schema, most=self.most)
        if not self.has_formats:
            return frame
        texts = {f"c{i}": as_rfc3339(col(f"c{i}"), f.type, self.rules) for i, f in enumerate(self.fields)}
        return frame.withColumns(texts)

    def batches(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        """The columns as `c0`, …, and for those with times `f0`, …: how many lost digits."""
        for batch in self.texts(numbers):
            yield self._typed(batch, self.rules, self.read_as)

    def of_formats(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same of rows whose dates and times were texts of a declared format."""
        for batch in batches:
            yield self._typed(batch, self.rules.without_formats)

    def _typed(
        self, batch: pa.RecordBatch, rules: TextRules, read_as: tuple[ds.DataField, ...] = ()
    ) -> pa.RecordBatch:
        count = len(self.fields)
        try:
            values, finer = _read(batch.columns[:count], self.fields, rules, read_as)
        except TextValueError as error:
            name = self.fields[error.column].name
            raise RuntimeError(marker("bad-value", column=name, message=error.message)) from None
        none = pa.repeat(pa.scalar(0, pa.int32()), len(batch))
        by_field = zip(finer, self.fields, strict=True)
        counts = [none if lost is None else pa.array(lost) for lost, f in by_field if has_times(f.type)]
        before = batch.columns[count:] or [none] * len(counts)
        sums = list(map(pc.add, before, counts))
        if not self.fields:
            return batch
        return pa.RecordBatch.from_arrays([*values, *sums], schema=self._schema(rules))

    def first_bad(self, required: frozenset[str]) -> BadInputError | None:
        """The first row that cannot be read, as an error; `required` are further columns without nulls."""
        row = 0
        for batch in self.texts(range(self.count)):
            try:
                _read(batch.columns, self.fields, self.rules, self.read_as, required)
            except TextValueError as error:
                place = row + error.row + 1
                return BadInputError(error.message, file=self.file, row=place, hint=error.hint)
            row += len(batch)
        return None

    def first_of_no_format(self, session: SparkSession) -> BadInputError | None:
        """The first row with a text that its declared format does not read, as an error."""
        if not self.has_formats:
            return None
        fields, rules = self.fields, self.rules.without_formats

        def faults(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                try:
                    text_values.read_batch(batch.columns[1 : len(fields) + 1], fields, rules)
                except TextValueError as error:
                    yield pa.RecordBatch.from_pydict(
                        {"row_id": [batch[0][error.row].as_py()], "said": [error.message]}
                    )

        texts = self._in_rfc3339(session)
        frame = texts.select(F.monotonically_increasing_id().alias("row_id"), *texts.columns)
        bad = map_in_arrow(frame, faults, "row_id long, said string")
        found = bad.orderBy("row_id").limit(1).collect()
        if not found:
            return None
        message = found[0]["said"].replace(repr(REFUSED)[1:-1], "")
        row = frame.where(col("row_id") < found[0]["row_id"]).count() + 1
        return BadInputError(message, file=self.file, row=row)


def _read(
    columns: Sequence[pa.Array],
    fields: tuple[ds.DataField, ...],
    rules: TextRules,
    read_as: tuple[ds.DataField, ...],
    required: frozenset[str] = frozenset(),
) -> tuple[list[pa.Array], list[NDArray[np.int32] | None]]:
    if read_as:
        columns, _ = text_values.read_batch(columns, read_as, rules)
        rules = dataclasses.replace(rules, integer_timestamps=False)
    return text_values.read_batch(columns, fields, rules, required)


def _data_columns(rows: TextRows) -> Iterator[pa.RecordBatch]:
    from odfchain.slices.reader import read_ahead

    finer = [f"{FINER}{f.name}" for f in rows.fields if has_times(f.type)]
    names = [*(f.name for f in rows.fields), *finer]
    for batch in read_ahead(lambda number: rows.batches([number]), range(rows.count)):
        yield batch.rename_columns(names)


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

    def input(self, session: SparkSession, schema: ds.DataSchema, rules: TextRules, file: str) -> InputFrame:
        """The columns of `schema` by name; `file` is what messages call the input."""
        for f in schema.fields:
            text_values.check_type(f.type)
        texts = dataclasses.replace(self, wanted=tuple(schema.names))
        count = len(self.ranges.cuts) - 1
        return TextRows(count, texts, schema.fields, rules, file, RANGES_OF_A_TASK).input(session)

    def infer(self, session: SparkSession) -> ds.DataSchema:
        """The types that all values agree on, text where there are none; every column may be null."""
        count, look = len(self.ranges.cuts) - 1, functools.partial(_possible_types, self)
        # one range is looked at here: a job takes longer
        found = task_results(session, look, count) if count > 1 else list(map(look, range(count)))
        kinds = [text_values.type_of([part[i] for part in found]) for i in range(len(self.wanted))]
        pairs = zip(self.wanted, kinds, strict=True)
        return ds.DataSchema(fields=tuple(ds.DataField(name=n, type=ds.optional(kind)) for n, kind in pairs))

    def __call__(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        from pyarrow import csv

        parse = csv.ParseOptions(
            delimiter=self.separator,
            quote_char=self.quote or False,
            escape_char=False,
            newlines_in_values=bool(self.ranges.quote),
        )
        # an empty field is null; a quoted one where no other text means null
        conversions = [
            csv.ConvertOptions(
                column_types=dict.fromkeys(self.columns, pa.string()),
                null_values=nulls,
                strings_can_be_null=True,
                quoted_strings_can_be_null=not self.null_value,
                include_columns=list(self.wanted),
            )
            for nulls in (["", self.null_value], [""])
        ]
        for number in numbers:
            data = self.ranges.bytes_of(number)
            if not data.strip(b"\r\n"):
                continue
            if data.startswith(codecs.BOM_UTF8):  # of the first field's text: Arrow would leave it out
                data = b"\n" + data
            if not data.endswith((b"\n", b"\r")):  # Arrow would take an empty last field for a quoted one
                data += b"\n"
            quoted = bool(self.quote) and self.quote.encode() in data
            read = csv.ReadOptions(column_names=list(self.columns), block_size=len(data) + 1)
            try:
                table = csv.read_csv(pa.BufferReader(data), read, parse, conversions[quoted])
            except pa.ArrowInvalid as error:
                raise RuntimeError(marker("bad-record", message=first_line(error))) from None
            # Arrow tells quoted texts from others, the rule does not where they mean null
            null_value = self.null_value if quoted else ""
            for batch in table.combine_chunks().to_batches(max_chunksize=_BATCH_ROWS):
                columns = batch.columns
                if null_value:
                    columns = [pc.if_else(pc.equal(c, null_value), None, c) for c in columns]
                yield pa.RecordBatch.from_arrays(columns, names=self.wanted)


def _possible_types(texts: CsvTexts, number: int) -> list[text_values.Possible]:
    found = [text_values.Possible()] * len(texts.wanted)
    for batch in texts([number]):
        found = [known.narrowed(column) for known, column in zip(found, batch.columns, strict=True)]
    return found


def parquet_rows(session: SparkSession, source: InputFile, struct: StructType) -> DataFrame:
    """The rows of a file, as Spark reads them under this schema."""
    if source.files is not None:
        return parquet_frame(session, source.files, struct, [source.key])
    return session.read.schema(struct).parquet(spark_path(source.path))


@dataclass(frozen=True, slots=True)
class ParquetValues:
    """Columns of a Parquet file, by row groups that follow each other; sent to workers."""

    stored: InputFile
    names: tuple[str, ...]
    file: str
    """What messages call it."""

    def __call__(self, numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
        from odfchain.slices.reader import open_parquet

        try:
            with open_parquet(self.stored.here()) as source:
                for batch in source.batches(list(self.names), groups=list(numbers)):
                    yield batch.select(list(self.names))
        except BadInputError as error:
            # the file can be read, but a value in it is none of its type
            of_value = error.message.removeprefix(_UNREADABLE)
            message = of_value if of_value.startswith("column `") else error.message
            raise BadInputError(message, file=self.file, hint=error.hint) from None


def parquet_input(
    session: SparkSession,
    stored: InputFile,
    schema: ds.DataSchema | None,
    file: str,
    note: Callable[[str], None],
) -> InputFrame:
    """The rows of a Parquet file; with a schema its columns by name and converted.

    Texts are read like those of CSV. A value that its declared type cannot hold stops the job.

    Raises:
        BadInputError: not a Parquet file, a column of the schema is missing, or no values of its type can be
            of the declared one.
    """
    from odfchain.slices.reader import check_parquet, open_parquet

    try:
        with open_parquet(stored.path) as source:
            found, footer = source.schema_arrow, source.metadata
        own = from_arrow(schema_in_microseconds(found))
        check_parquet(stored.path)
    except BadInputError as error:
        raise type(error)(error.message, file=file, hint=error.hint) from None
    check_columns(own.names, file)
    target = schema or own
    given = {f.name: f for f in own.fields}
    missing = [f.name for f in target.fields if f.name not in given]
    if missing:
        raise BadInputError(
            f"column{'s' if len(missing) > 1 else ''} {', '.join(missing)} of the schema not in the file "
            f"(it has {', '.join(own.names)})",
            file=file,
        )
    for f in target.fields:
        if not text_values.can_be_read(given[f.name].type, f.type):
            raise BadInputError(
                f"column `{f.name}` is {type_name(given[f.name].type, given[f.name].extra)}, which cannot be "
                f"read as {type_name(f.type, f.extra)}",
                file=file,
            )
    pairs = zip(found, schema_in_microseconds(found), strict=True)
    fine = [f"`{f.name}`" for f, to in pairs if f.type != to.type]
    if fine:
        note(f"nanoseconds are read as microseconds, without loss: {', '.join(fine)}")
    values = ParquetValues(stored, target.names, file)
    rows = TextRows(footer.num_row_groups, values, target.fields, DEFAULT_RULES, file, RANGES_OF_A_TASK)
    return dataclasses.replace(rows.input(session), rows=footer.num_rows)


def schema_in_microseconds(schema: pa.Schema) -> pa.Schema:
    """The schema with microseconds, Spark's resolution, for nanoseconds, at any depth (RFC-001)."""
    from pyarrow import types as t

    def change(f: pa.Field) -> pa.Field:
        fine = t.is_timestamp(f.type) and f.type.unit == "ns"
        return f.with_type(pa.timestamp("us", f.type.tz)) if fine else f

    return mapped(schema, change)


def is_milliseconds(data_type: ds.DataType) -> bool:
    """True if a type is a timestamp that ends at the millisecond."""
    unit = data_type.unit if isinstance(data_type, ds.DataTypeTimestamp) else TimeUnit.MICROSECOND
    return unit in (None, TimeUnit.SECOND, TimeUnit.MILLISECOND)


def first_bad_row(source: InputFrame, required: frozenset[str]) -> OdfchainError | None:
    """After a failed job the first fault of an input as an error, if any; `required` ones may not be null."""
    if source.malformed is not None and (fault := source.malformed()) is not None:
        return fault
    rows = source.texts
    if rows is None:
        return None
    try:
        return rows.first_bad(required) or rows.first_of_no_format(source.session)
    except BadInputError as error:  # a file of which no row can be read there
        return error
