"""Records that workers find with Python and make typed, in one Arrow stage.

A document that cannot be split is streamed by one worker with a library; lines of JSON are parsed by all
of them. Either way every value is found as it is written, a list or an object as a list or struct of texts,
and made typed as texts of CSV are (`odfchain.spark.text_values`). Spark's own JSON parser takes no part in
reading values: it drops what follows the first value, takes the last of two equal keys, and passes numbers
through a double. The driver sees no data, and nothing is written in between. What is wrong travels as a
marker in the worker's exception.
"""

from __future__ import annotations

import errno
import functools
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from odfchain.errors import BadInputError, OdfchainError
from odfchain.lazy import F, pa
from odfchain.odf import schema as ds
from odfchain.spark import json_values
from odfchain.spark.executor_files import RANGES_OF_A_TASK, InputFile, TextRanges, numbered_frame, text_ranges
from odfchain.spark.input_frames import InputFrame, TextRows
from odfchain.spark.jobs import explain, run_job
from odfchain.spark.json_pieces import Form, PieceReader, SplitDocument, TypedColumn, line_pieces
from odfchain.spark.text_values import TextRules, check_type
from odfchain.spark.types import check_columns, from_spark_type
from odfchain.text import find_marker, marker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.spark.json_values import Fields, JsonArray
    from odfchain.spark.shapefile import ShapefileLayer

    RecordSource: TypeAlias = JsonArray | SplitDocument | ShapefileLayer
    """A file and how records are found in it; a small value that is sent to the worker that reads it."""

BATCH_ROWS = 4_096
BATCH_CHARACTERS = 4 << 20
"""Size of one Arrow batch: whichever of the two is reached first."""

PIECES_OF_A_TASK = 64
"""Most of them, where each core has a task: a worker tidies up between two, for the time of ten pieces."""

_KIND = "bad-document"
_BLANK = b" \t\r\n"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DocumentInputError(Exception):
    """A file is not of the declared form; the message is a marker."""


def record_batches(
    records: Iterable[json_values.Record], fields: Fields = None, first: int = 0
) -> Iterator[pa.RecordBatch]:
    """The records, whole or these columns of them, in batches of bounded size."""
    held: list[json_values.Record] = []
    size = 0
    try:
        try:
            for record in records:
                held.append(record)
                size += _size(record)
                if len(held) >= BATCH_ROWS or size >= BATCH_CHARACTERS:
                    yield json_values.record_batch(held, first, fields)
                    first += len(held)
                    held, size = [], 0
        finally:
            # also where reading failed: what is wrong in a record before comes first
            rest = json_values.record_batch(held, first, fields)
    except json_values.RecordError as error:
        raise DocumentInputError(marker(_KIND, message=error.message, row=error.row or 0)) from None
    except OSError as error:
        # a full disk is no fault of the document
        if error.errno in _FULL:
            raise
        message = f"cannot be read: {error.strerror or error}"
        raise DocumentInputError(marker(_KIND, message=message, row=0)) from None
    if held:
        yield rest


def piece_batches(
    document: SplitDocument,
    numbers: Iterable[int],
    fields: Fields = None,
    typed: tuple[TypedColumn, ...] | None = None,
    file: InputFile | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of these pieces, as `record_batches` gives them; `file` says where the document is."""
    reader = PieceReader(document.form, fields, typed)
    with (file or InputFile(Path(document.whole.path))).parts() as read:
        for number in numbers:
            piece = document.pieces[number]
            try:
                members = document.members(read(piece.start, piece.end), piece)
            except json_values.RecordError as error:
                raise DocumentInputError(marker(_KIND, message=error.message, row=0)) from None
            found = reader.batch(members, piece.rows)
            if found is not None:
                yield found
            else:
                yield from record_batches(document.exact(members, piece.rows), fields, piece.row)


def _size(record: json_values.Record) -> int:
    # roughly, in characters: batches are to be bounded, not equal
    return sum(
        len(value)
        if isinstance(value, str)
        else 16
        if not isinstance(value, dict | list)
        else len(str(value))
        for value in record.values()
    )


def line_batches(
    ranges: TextRanges,
    numbers: Iterable[int],
    form: Callable[[str], json_values.Record],
    fields: Fields = None,
    typed: tuple[TypedColumn, ...] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The records of the lines of these ranges; lines of blanks hold none."""
    reader = PieceReader(Form(form is json_values.parse_feature, lines=True), fields, typed)
    for number in numbers:
        for lines in line_pieces(ranges.bytes_of(number)):
            found = reader.batch(lines, lines.count(b"\n") + 1)
            if found is not None:
                yield found
            else:
                yield from record_batches(_exact_lines(lines, form), fields)


def _exact_lines(lines: bytes, form: Callable[[str], json_values.Record]) -> Iterator[json_values.Record]:
    try:
        for line in lines.split(b"\n"):
            yield form(line.decode())
    except json_values.RecordError as error:
        # the driver reads the file again for the number of the line
        raise DocumentInputError(marker(_KIND, message=error.message, row=0)) from None


@dataclass(frozen=True, slots=True)
class LineFile:
    """A text file in UTF-8 of which every line is a record, but for lines of blanks."""

    path: Path
    form: Callable[[str], json_values.Record]

    def _lines(self, given: BinaryIO | None = None) -> Iterator[tuple[int, str]]:
        with io.TextIOWrapper(given or self.path.open("rb"), "utf-8-sig") as stream:
            for number, line in enumerate(stream, start=1):
                if line.strip(_BLANK.decode()):
                    yield number, line

    def records(self, given: BinaryIO | None = None) -> Iterator[tuple[int, json_values.Record]]:
        """The records with the numbers of their lines; of the file as it was opened, if it is given."""
        for number, line in self._lines(given):
            yield number, self.form(line)

    def first_bad(self, fields: Fields, file: str) -> BadInputError | None:
        """The first line that is not of its form, as an error; None when every line is."""
        for number, line in self._lines():
            try:
                json_values.record_batch([self.form(line)], 0, fields)
            except json_values.RecordError as error:
                return BadInputError(f"line {number:,}: {error.message}", file=file)
        return None


def document_error(error: Exception, file: str) -> OdfchainError:
    """The project's error for a failed job over records: what the worker found wrong, with its row."""
    fault = find_marker(str(error))
    if fault is None or fault["kind"] != _KIND:
        return explain(error, file=file)
    return BadInputError(str(fault["message"]), file=file, row=int(fault["row"]) or None)


def _differ_by_case(fields: tuple[ds.DataField, ...]) -> bool:
    # Spark compares names without case, so such columns would be one
    if len({f.name.casefold() for f in fields}) < len(fields):
        return True
    for f in fields:
        inner = f.value_type
        while isinstance(inner, ds.DataTypeList):
            inner = (
                inner.item_type.inner if isinstance(inner.item_type, ds.DataTypeOption) else inner.item_type
            )
        if isinstance(inner, ds.DataTypeStruct) and _differ_by_case(inner.fields):
            return True
    return False


@dataclass(frozen=True, slots=True)
class RecordsInput:
    """A file of records, for a session of Spark's."""

    session: SparkSession
    source: RecordSource | LineFile
    stored: InputFile
    """How workers come to the file."""
    file: str
    """What messages call it."""

    def infer(self) -> ds.DataSchema | None:
        """The types that all records agree on, columns in alphabetical order, all optional; None without any.

        Raises:
            BadInputError: the file is not of the declared form, its records have no columns or too many, or
                columns that differ only by case.
            EngineError: anything else that Spark reports.
        """
        session, source, file = self.session, self.source, self.file
        count, texts, most = self._texts(None, None)
        records = numbered_frame(session, count, texts, "c0 string", most=most)
        try:
            # since Spark 4.2, in the classic client and in Connect's
            reader, given = session.read.options(mode="FAILFAST"), records.select(F.col("c0"))
            columns = run_job(session, lambda: reader.json(given)).schema.fields
            none = not columns and run_job(session, records.isEmpty)
        except Exception as error:
            found = self.bad_record(None) if isinstance(source, LineFile | SplitDocument) else None
            raise found or document_error(error, file) from error
        if none:
            return None
        if not columns:
            raise BadInputError("the objects have no properties, so there are no columns", file=file)
        ordered = sorted(columns, key=lambda f: f.name)
        types = [(f.name, ds.optional(from_spark_type(f.dataType))) for f in ordered]
        schema = ds.DataSchema(fields=tuple(ds.DataField(name=name, type=kind) for name, kind in types))
        check_columns(schema.names, file)
        if _differ_by_case(schema.fields):
            raise self._first_spelling()
        return schema

    def read(self, schema: ds.DataSchema, rules: TextRules) -> InputFrame:
        """The records, columns by name; properties that the schema lacks are ignored."""
        for f in schema.fields:
            check_type(f.type)
        typed = [TypedColumn.of(f) for f in schema.fields]
        columns = tuple(c for c in typed if c is not None) if None not in typed else None
        count, texts, most = self._texts(schema.fields, columns)
        return TextRows(count, texts, schema.fields, rules, self.file, most).input(self.session)

    def bad_record(self, fields: Fields) -> BadInputError | None:
        """The error in the form of the file, None when there is none; called only after a job has failed."""
        if isinstance(self.source, LineFile):
            return self.source.first_bad(fields, self.file)
        whole = self.source.whole if isinstance(self.source, SplitDocument) else self.source
        try:
            deque(record_batches(whole.records(), fields), maxlen=0)
        except Exception as failure:
            error = document_error(failure, self.file)
            if isinstance(error, BadInputError):
                return error
            raise error from failure
        return None

    def _first_spelling(self) -> BadInputError:
        """The first key that differs from an earlier one only by case, as an error; there is one."""
        known, source = json_values.Spellings(), self.source
        lines = isinstance(source, LineFile)
        for number, record in (
            source.records() if isinstance(source, LineFile) else enumerate(source.records(), 1)
        ):
            try:
                known.add(record)
            except json_values.RecordError as error:
                return BadInputError(
                    f"line {number:,}: {error.message}" if lines else error.message,
                    file=self.file,
                    row=None if lines else number,
                    hint="rename one of them, or declare a schema that has both",
                )
        raise AssertionError("unreachable")

    def _texts(
        self, fields: Fields, typed: tuple[TypedColumn, ...] | None
    ) -> tuple[int, Callable[[Iterable[int]], Iterator[pa.RecordBatch]], int]:
        """(pieces, what gives a worker the texts of some numbers, most numbers for one task)."""
        # workers get these, and no session
        source, file = self.source, self.stored
        if isinstance(source, SplitDocument):
            document = source
            pieces = functools.partial(piece_batches, document, fields=fields, typed=typed, file=file)
            return len(document.pieces), pieces, PIECES_OF_A_TASK
        if isinstance(source, LineFile):
            ranges, form = text_ranges(file), source.form
            lines = functools.partial(line_batches, ranges, form=form, fields=fields, typed=typed)
            return len(ranges.cuts) - 1, lines, RANGES_OF_A_TASK

        def read(numbers: Iterable[int]) -> Iterator[pa.RecordBatch]:
            for _ in numbers:
                here = source if file.files is None else source.moved(str(file.here()))
                yield from record_batches(here.records(), fields)

        # one number: the document is read once, by one worker
        return 1, read, 1
