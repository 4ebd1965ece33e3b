"""From a file of data to the definition of a dataset; nothing is written but in the folder for scratch."""

from __future__ import annotations

import codecs
import dataclasses
import datetime as dt
import difflib
import functools
import math
import re
import shlex
import sys
import unicodedata
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from odfchain.errors import BadInputError, InvalidIdError, SchemaError, UsageError
from odfchain.ingest.read_csv import CsvDialect, CsvRecords, codec_name, first_misfit, header_of, scan_text
from odfchain.ingest.read_formats import dialect_of, extension_of, read_step_for, record_source
from odfchain.limits import LIMITS
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.enums import DatasetKind, TimeUnit
from odfchain.odf.events import AddPushSource, DatasetSnapshot, DatasetVocabulary, MetadataEvent, SetVocab
from odfchain.odf.manifests import read_snapshots, snapshot_document
from odfchain.odf.names import DatasetAlias
from odfchain.odf.schema import format_ddl, format_type, type_name
from odfchain.odf.yaml import dump_yaml
from odfchain.progress import SILENT, Progress, reported
from odfchain.spark.json_values import JsonArray, Number, Record, RecordError, Spellings, Value, column_text
from odfchain.spark.types import RESERVED, check_count
from odfchain.storage import fsio
from odfchain.text import printable

if TYPE_CHECKING:
    from odfchain.spark.documents import RecordSource

# Type inference over CSV texts and JSON values. A type is inferred only if every value can be read as it,
# strictly (RFC-010), without loss: `007`, `+41`, numbers with too many digits, and mixtures stay text. The
# reason is reported where at least half of a column's values have another type.

EXACT_DIGITS = 15
"""Decimal digits that a DOUBLE always keeps."""

_SHOWN_VALUES = 24
_BIGINT = range(-(2**63), 2**63)
_WHOLE = re.compile(r"0|-?[1-9][0-9]*")
_NUMBER = re.compile(r"-?((?:0|[1-9][0-9]*)(?:\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_PADDED = re.compile(r"[+-]?0[0-9]+(?:\.[0-9]*)?")
_SIGNED = re.compile(r"\+[0-9]+(?:\.[0-9]*)?")
_COMMA = re.compile(r"[+-]?[0-9]+(?:[.' \xa0][0-9]{3})*,[0-9]+")
_DOTTED = re.compile(r"[0-3]?[0-9]\.[01]?[0-9]\.[0-9]{4}(?: .*)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2})"
    r"(?:(:[0-9]{2})(?:\.([0-9]{1,9}))?(Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?)?"
)
_BEGINNINGS = frozenset("0123456789+-.tTfF")
"""First characters of texts that may be anything but text."""


class ValueKind(Enum):
    """Kind of a value; the enum's value is the plural for messages."""

    TEXT = "text"
    BOOLEAN = "true or false"
    WHOLE = "whole numbers"
    LONG = f"whole numbers of more than {EXACT_DIGITS} digits"
    FRACTION = "numbers with a fraction"
    DATE = "dates"
    DOTTED = "dates as day.month.year"
    LOCAL = "times without a zone"
    LOCAL_FINE = "times without a zone in microseconds"
    ZONED = "times with a zone"
    ZONED_FINE = "times with a zone in microseconds"
    LIST = "lists"
    PADDED = "numbers with leading zeros"
    SIGNED = "numbers with a plus sign"
    COMMA = "numbers with a comma"
    HUGE = "numbers with more digits or a larger exponent than a number keeps"
    TOO_FINE = "times finer than a microsecond"
    NESTED = "objects, or lists that hold null, lists or objects"

    __hash__ = object.__hash__  # that of an Enum takes a fifth of the time of an inference


_LOCAL = frozenset({ValueKind.LOCAL, ValueKind.LOCAL_FINE})
_ZONED = frozenset({ValueKind.ZONED, ValueKind.ZONED_FINE})
_NAMING = frozenset({ValueKind.TEXT, ValueKind.WHOLE, ValueKind.LONG, ValueKind.PADDED, ValueKind.DATE})
_NAMING |= _LOCAL | _ZONED | {ValueKind.DOTTED}
"""Kinds of values that name records."""
_MOST_COMPARED = 1 << 21
"""Rows of a file of which it is seen whether a column names them: 8 bytes are kept of each."""
_TYPES: tuple[tuple[frozenset[ValueKind], ds.DataType], ...] = (
    (frozenset({ValueKind.BOOLEAN}), ds.DataTypeBool()),
    (frozenset({ValueKind.WHOLE, ValueKind.LONG}), ds.DataTypeInt64()),
    # without LONG: a DOUBLE would lose digits, so long numbers among fractions stay text
    (frozenset({ValueKind.WHOLE, ValueKind.FRACTION}), ds.DataTypeFloat64()),
    (frozenset({ValueKind.DATE}), ds.DataTypeDate()),
    (frozenset({ValueKind.LOCAL}), ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")),
    (frozenset({ValueKind.ZONED}), ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")),
    (_LOCAL, ds.DataTypeTimestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")),
    (_ZONED, ds.DataTypeTimestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")),
)
"""Types, and the kinds that values of them may have; the first that has all is the column's."""


def kind_of(text: str) -> ValueKind:
    """The kind of a text of a CSV file."""
    if text[:1] not in _BEGINNINGS:
        return ValueKind.TEXT
    if text[0] in "tTfF":
        return ValueKind.BOOLEAN if text.lower() in ("true", "false") else ValueKind.TEXT
    found = _kind_of_number(text, bare_exponent=False) or _kind_of_time(text)
    if found is ValueKind.TEXT and _DOTTED.fullmatch(text):
        return ValueKind.DOTTED
    return ValueKind.COMMA if found is ValueKind.TEXT and _COMMA.fullmatch(text) else found


def kind_of_json(value: Value) -> ValueKind:
    """The kind of a JSON value that is not null; a text is never a number or a boolean."""
    if isinstance(value, bool):
        return ValueKind.BOOLEAN
    if isinstance(value, Number):
        return _kind_of_number(value, bare_exponent=True) or ValueKind.HUGE
    if isinstance(value, str):
        return _kind_of_time(value)
    flat = isinstance(value, list) and not any(
        item is None or isinstance(item, list | dict) for item in value
    )
    return ValueKind.LIST if flat else ValueKind.NESTED


def _kind_of_number(text: str, *, bare_exponent: bool) -> ValueKind | None:
    if _WHOLE.fullmatch(text):
        if len(text) <= EXACT_DIGITS:
            return ValueKind.WHOLE
        # a BIGINT has 19 digits and a sign; `int` raises for texts of some thousand digits
        if len(text) > 20 or int(text) not in _BIGINT:
            return ValueKind.HUGE
        return ValueKind.LONG if len(text.lstrip("-")) > EXACT_DIGITS else ValueKind.WHOLE
    match = _NUMBER.fullmatch(text)
    if match is None:
        if _PADDED.fullmatch(text):
            return ValueKind.PADDED
        return ValueKind.SIGNED if _SIGNED.fullmatch(text) else None
    mantissa, exponent = match[1], match[2]
    if exponent and not (bare_exponent or "." in mantissa or exponent[1] in "+-"):
        return None  # such as 12E3, which is a code more often than a number
    digits = mantissa.replace(".", "").strip("0")
    found = float(text)
    # smaller numbers are subnormal, and keep fewer digits
    kept = not digits or sys.float_info.min < abs(found) < math.inf
    exact = kept and (len(digits) <= EXACT_DIGITS or Decimal(repr(found)) == Decimal(text))
    return ValueKind.FRACTION if exact else ValueKind.HUGE


def _kind_of_time(text: str) -> ValueKind:
    try:
        if _DATE.fullmatch(text):
            dt.date.fromisoformat(text)
            return ValueKind.DATE
        match = _TIME.fullmatch(text) if len(text) >= 16 else None
        if match is None:
            return ValueKind.TEXT
        minute, second, fraction, zone = match.groups(default="")
        # raises also where the moment in UTC is before the year 1 or after 9999
        dt.datetime.fromisoformat(minute + second + (zone or "Z")).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        return ValueKind.TEXT
    digits = len(fraction.rstrip("0"))
    if digits > 6:
        return ValueKind.TOO_FINE
    if not zone:
        return ValueKind.LOCAL if digits <= 3 else ValueKind.LOCAL_FINE
    return ValueKind.ZONED if digits <= 3 else ValueKind.ZONED_FINE


def _differ(hashes: array[int]) -> bool:
    ordered = np.sort(hashes)
    return bool((ordered[1:] != ordered[:-1]).all())


class ColumnValues:
    """Values of one column: how many of each kind, and the first of them."""

    def __init__(self) -> None:
        self.seen: dict[ValueKind, int] = {}
        self._first: dict[ValueKind, tuple[str, int]] = {}
        self._items: ColumnValues | None = None
        self._moved = False
        """True if a time has another zone than UTC."""
        self._hashes: array[int] | None = array("q")
        """Of the values; None as soon as one was seen to come again."""
        self._looked_at = 2

    def names_rows(self, rows: int) -> bool:
        """True if each of so many rows has a value, and each another one, of a kind that names records."""
        hashes = self._hashes
        return (
            hashes is not None and len(hashes) == rows > 1 and self.seen.keys() <= _NAMING and _differ(hashes)
        )

    @property
    def count(self) -> int:
        """Values that are not null."""
        return sum(self.seen.values())

    def add(self, text: str, row: int) -> None:
        """Take one more value of a CSV file; rows count from 1."""
        self._add(kind_of(text), text, row)

    def add_json(self, value: Value, row: int) -> None:
        """Take one more JSON value that is not null."""
        kind = kind_of_json(value)
        self._add(kind, value, row)
        if kind is ValueKind.LIST:
            if self._items is None:
                self._items = ColumnValues()
            for item in value:
                self._items.add_json(item, row)

    def _add(self, kind: ValueKind, value: Value, row: int) -> None:
        if kind in self.seen:
            self.seen[kind] += 1
        else:
            self.seen[kind] = 1
            self._first[kind] = (printable(column_text(value) or "", _SHOWN_VALUES), row)
        self._moved = self._moved or (kind in _ZONED and not value.endswith("Z"))
        if (hashes := self._hashes) is not None:
            hashes.append(hash(value) if isinstance(value, str) else 0)
            # looked at now and then, so that few columns are kept
            if len(hashes) == self._looked_at:
                self._looked_at *= 2
                self._hashes = hashes if len(hashes) < _MOST_COMPARED and _differ(hashes) else None

    def inferred(self) -> tuple[ds.DataType, str | None]:
        """The type that all values have, or text; and what the user should know about that."""
        kinds = frozenset(self.seen)
        if kinds == {ValueKind.LIST} and self._items is not None:
            item, note = self._items.inferred()
            return ds.DataTypeList(item_type=item), note
        found = next((data_type for allowed, data_type in _TYPES if kinds and kinds <= allowed), None)
        if found is None:
            return ds.DataTypeString(), self._doubt()
        if kinds <= _LOCAL:
            return found, "no zone is given: taken as UTC"
        return found, "recorded in UTC" if self._moved else None

    def _doubt(self) -> str | None:
        # only where most values look like another type
        if not self.seen:
            return "no values: kept as text"
        if 2 * self.seen.get(ValueKind.TEXT, 0) > self.count:
            return None
        ranked = sorted(self.seen, key=lambda kind: (-self.seen[kind], kind is ValueKind.TEXT))
        most, *others = ranked
        if not others:
            return f"{most.value}, such as {self._example(most)}: kept as text"
        other = f"{others[0].value}, such as {self._example(others[0])}"
        return f"mixed: {self.seen[most]:,} of {self.count:,} are {most.value}, others {other}: kept as text"

    def _example(self, kind: ValueKind) -> str:
        text, row = self._first[kind]
        return f"{text!r} in row {row:,}"


# Columns, types and rows of a file without a schema. Every value is read, so the inferred schema fits this
# file.

_SEPARATORS = ",;\t|"
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class InferredColumn:
    """One column: its type, how many rows have a value in it, and what the user should know."""

    field: ds.DataField
    values: int | None
    """None where they were not counted."""
    note: str | None = None
    names_rows: bool = False
    """True if it was seen to have another value in every row."""

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.field.name

    @property
    def type(self) -> str:
        """The type as DDL names it."""
        return type_name(self.field.type, self.field.extra)


@dataclass(frozen=True, slots=True)
class InferredFile:
    """A file of data as it can be read from now on."""

    read: src.ReadStep
    """Declares all columns."""
    columns: tuple[InferredColumn, ...]
    rows: int
    notes: tuple[str, ...] = ()

    def column(self, name: str) -> InferredColumn | None:
        """The column of a name."""
        return next((c for c in self.columns if c.name == name), None)


def infer_file(
    path: Path, scratch: Path, progress: Progress = SILENT, *, input_format: str | None = None,
    **csv: str | None,
) -> InferredFile:  # fmt: skip
    """The columns of a file, with the types that all of their values have; no name is a system column's.

    `csv` is a `separator` and an `encoding`, where they are known.
    """
    if not path.is_file():
        raise BadInputError("is a folder" if path.is_dir() else "no such file", file=str(path))
    read = read_step_for(path, input_format, None)
    if not isinstance(read, src.ReadStepCsv) and any(csv.values()):
        raise UsageError(f"--separator and --encoding are for CSV, and {path.name} is {read.KIND}")
    if path.stat().st_size == 0:
        raise _no_rows(path)
    step = f"Inferring the columns of {path.name}"
    progress.phase(step)
    counted = functools.partial(reported, progress=progress, step=step, size=path.stat().st_size)
    match read:
        case src.ReadStepCsv():
            inferred = _csv(path, counted, **csv)
        case src.ReadStepParquet():
            inferred = _parquet(path)
        case _:
            inferred = _records(path, read, scratch, counted)
    if inferred.rows == 0:
        raise _no_rows(path)
    return inferred


def _no_rows(path: Path) -> BadInputError:
    hint = "write a manifest yourself: odfchain new NAME --root"
    return BadInputError("no rows, so there is nothing to infer types from", file=str(path), hint=hint)


def check_names(names: Sequence[str], file: str) -> None:
    """Check that every name can be the name of a column."""
    check_count(names, file)
    taken, problems = set(names), []
    seen: set[str] = set()
    for number, name in enumerate(names, start=1):
        problem = _problem(name, again=name in seen)
        seen.add(name)
        if problem is None:
            continue
        clean = "".join(c for c in name if c.isprintable() and c != "`").strip().removeprefix(RESERVED)
        base = f"_{clean}" if name in SYSTEM_COLUMNS else clean or f"column_{number}"
        new = base
        while new in taken or new in SYSTEM_COLUMNS:
            new = f"{base}_{number}" if new == base else f"{new}_"
        taken.add(new)
        problems.append(f"column {number:,} {problem}: call it {printable(new)!r}")
    if problems:
        more = f"; and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
        message = f"names that columns cannot have: {'; '.join(problems[:_SHOWN])}{more}"
        raise BadInputError(message, file=file, hint="rename them in the file and import it again")


def _problem(name: str, *, again: bool) -> str | None:
    shown = repr(printable(name, 60))
    if not name.strip():
        return "has no name"
    if again:
        return f"is called {shown}, too"
    if name in SYSTEM_COLUMNS:
        return f"is called {shown} as a system column is"
    if name.startswith(RESERVED):
        return f"is called {shown}, and names that begin with {RESERVED} are reserved"
    if "`" in name or not name.isprintable():
        return f"has a backtick or a control character in its name {shown}"
    return None


def _declaring(read: src.ReadStep, columns: Sequence[InferredColumn]) -> src.ReadStep:
    schema = ds.DataSchema(fields=tuple(c.field for c in columns))
    return dataclasses.replace(read, ddl_schema=tuple(format_ddl(schema)))


def _file(
    read: src.ReadStep, found: dict[str, ColumnValues], rows: int, notes: Sequence[str] = ()
) -> InferredFile:
    columns = []
    for name, values in found.items():
        data_type, note = values.inferred()
        field = ds.DataField(name=name, type=ds.optional(data_type))
        columns.append(InferredColumn(field, values.count, note, values.names_rows(rows)))
    decimal, dotted = ({ValueKind.COMMA}, {ValueKind.COMMA, ValueKind.WHOLE}), ({ValueKind.DOTTED},)
    for kinds, made in ((decimal, "numbers of decimal commas"), (dotted, "dates of day.month.year")):
        if texts := ", ".join(printable(n, 60) for n, values in found.items() if values.seen.keys() in kinds):
            notes = [*notes, f"{texts}: a query of the manifest makes {made} (odfchain help start)"]
    return InferredFile(_declaring(read, columns) if rows else read, tuple(columns), rows, tuple(notes))


# --- CSV -------------------------------------------------------------------------------------------


def _csv(
    path: Path, counted: Callable[..., Iterator[Any]], separator: str | None = None,
    encoding: str | None = None,
) -> InferredFile:  # fmt: skip
    file, notes = str(path), list[str]()
    start = fsio.read_start(path, 4) or b""
    # without a mark, of two letters every other byte is zero
    seen = {start[1::2]: "utf-16-le", start[::2]: "utf-16-be"}.get(b"\0\0")
    seen = "utf-16" if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else seen
    if encoding is None and (encoding := seen) is not None:
        notes.append(f"the encoding is {encoding}, as its first bytes show")
    scan_text(path, encoding=codec_name(encoding), csv=CsvDialect())
    separator = {"tab": "\t", r"\t": "\t"}.get(separator or "", separator)
    read = src.ReadStepCsv(header=True, encoding=encoding, separator=separator)
    if separator is None:
        separator, names = _separator(path, read, file)
        if separator != ",":
            read = dataclasses.replace(read, separator=separator)
            notes.append(f"the separator is {separator!r}")
    else:
        names = header_of(path, dialect_of(read), file)
    check_names(names, file)
    dialect = dialect_of(read)
    columns = [ColumnValues() for _ in names]
    reader = CsvRecords(path, dialect, file)
    records = iter(reader)
    next(records, None)
    row = 0
    for row, record in enumerate(counted(records, read=reader.read), start=1):
        if len(record) != len(names):
            misfit = first_misfit(path, dialect, names, header=True, file=file)
            assert misfit is not None  # noqa: S101 - it was just seen
            raise misfit
        for column, text in zip(columns, record, strict=True):
            if text:  # a quoted empty field is null, too
                column.add(text, row)
    return _file(read, dict(zip(names, columns, strict=True)), row, notes)


def _separator(path: Path, read: src.ReadStepCsv, file: str) -> tuple[str, list[str]]:
    # the separator that gives most names; a comma where several do
    headers: dict[str, list[str]] = {}
    for separator in _SEPARATORS:
        try:
            dialect = dialect_of(dataclasses.replace(read, separator=separator))
            headers[separator] = header_of(path, dialect, file)
        except BadInputError:
            if separator == _SEPARATORS[-1] and not headers:
                raise
    best = max(headers, key=lambda separator: len(headers[separator]))
    return best, headers[best]


# --- records in JSON, GeoJSON and shapefiles -------------------------------------------------------


def _records(
    path: Path, read: src.ReadStep, scratch: Path, counted: Callable[..., Iterator[Any]]
) -> InferredFile:
    columns: dict[str, ColumnValues] = {}
    notes: list[str] = []
    row = 0
    with path.open("rb") as stream:
        each = _each(path, read, scratch, notes, stream)
        for row, record in enumerate(counted(each, read=stream.tell), start=1):
            for name, value in record.items():
                column = columns.get(name)
                if column is None:
                    column = columns[name] = ColumnValues()
                    # at once: objects with ever new names must not fill the memory
                    check_count(list(columns), str(path))
                if value is not None:
                    column.add_json(value, row)
    if row and not columns:
        raise BadInputError("the objects have no properties, so there are no columns", file=str(path))
    check_names(list(columns), str(path))
    try:
        Spellings().add(dict.fromkeys(columns))  # Spark compares names without case
    except RecordError as error:
        hint = "rename one of them, and import the file again"
        raise BadInputError(error.message, file=str(path), hint=hint) from None
    return _file(read, columns, row, notes)


_CRS = re.compile(rb'"crs"\s*:\s*{[^{}]*{[^{}]*"name"\s*:\s*"([^"\\]{1,120})"')


def _on_coordinates(source: RecordSource, path: Path) -> str:
    from odfchain.spark.shapefile import ShapefileLayer

    if isinstance(source, ShapefileLayer):
        return source.reference
    # GeoJSON has had no such member since 2016, but writers go on writing it, before the features
    found = _CRS.search((fsio.read_start(path, 1 << 16) or b"").partition(b'"features"')[0])
    said = "WGS 84, as always in GeoJSON" if found is None else repr(found[1].decode(errors="replace"))
    return f"coordinates are in {said}; they are kept as they are"


def _each(path: Path, read: src.ReadStep, folder: Path, notes: list[str], data: BinaryIO) -> Iterator[Record]:
    file = str(path)
    if not isinstance(read, src.ReadStepNdJson | src.ReadStepNdGeoJson):
        assert not isinstance(read, src.ReadStepCsv | src.ReadStepParquet)  # noqa: S101 - read elsewhere
        source, source_notes = record_source(path, read, None, folder)
        notes += source_notes
        if isinstance(read, src.ReadStepEsriShapefile | src.ReadStepGeoJson):
            notes += [said for said in [_on_coordinates(source, path)] if said not in notes]
        row = 0
        try:
            for record in source.records_of(data) if isinstance(source, JsonArray) else source.records():
                row += 1
                yield record
        except RecordError as error:
            if error.message.startswith("Sub-path"):
                hint = "in a manifest, `subPath` says where its rows are: odfchain new NAME --root"
                raise BadInputError("the document is no array of objects", file=file, hint=hint) from None
            at = row + 1 if error.row is None else error.row
            raise BadInputError(error.message, file=file, row=at or None) from None
        return
    from odfchain.spark.documents import LineFile
    from odfchain.spark.json_values import parse_feature, parse_object

    scan_text(path)
    lines = LineFile(path, parse_object if isinstance(read, src.ReadStepNdJson) else parse_feature)
    try:
        for _, record in lines.records(data):
            yield record
    except RecordError as error:
        raise lines.first_bad(None, file) or BadInputError(error.message, file=file) from None


# --- Parquet ---------------------------------------------------------------------------------------


def _parquet(path: Path) -> InferredFile:
    from odfchain.odf.arrow_schema import from_arrow
    from odfchain.slices.reader import open_parquet
    from odfchain.spark.input_frames import schema_in_microseconds

    with open_parquet(path) as source:
        schema = from_arrow(schema_in_microseconds(source.schema_arrow))
        rows = source.metadata.num_rows
    check_names(schema.names, str(path))
    for f in schema.fields:
        try:
            format_type(f.value_type, f.extra)
        except SchemaError as error:
            message = f"{path}: column {printable(f.name, 60)!r}: {error.message}"
            hint = "cast the column, or leave it out, and import the file again"
            raise SchemaError(message, hint=hint) from None
    columns = tuple(InferredColumn(f, None) for f in schema.fields)
    return InferredFile(_declaring(src.ReadStepParquet(), columns), columns, rows)


_KEYED = {"snapshot": src.MergeStrategySnapshot, "ledger": src.MergeStrategyLedger}
MERGES = (*_KEYED, "append")
"""Names of merge strategies for the rows of later files."""

_VOCABULARY = DatasetVocabulary()
SYSTEM_COLUMNS = frozenset(_VOCABULARY.columns) - {_VOCABULARY.event_time_column}
"""Names that no column of a file can have; one called like the event time is it."""


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The dataset that an import makes, and what was inferred for it."""

    file: InferredFile
    snapshot: DatasetSnapshot
    manifest: str
    """The definition as YAML."""
    merge: str
    """Of `MERGES`."""
    key: tuple[str, ...]
    event_time: str | None
    """The column of the event time; None where that is the time of ingestion."""
    notes: tuple[str, ...]
    """Notes for the user other than those of the columns."""

    @property
    def name(self) -> DatasetAlias:
        """The name of the dataset."""
        return self.snapshot.name


@dataclass(frozen=True, slots=True)
class FileImport:
    """A file that becomes a dataset, of which nothing is read yet."""

    path: Path
    name: DatasetAlias
    merge: str
    key: tuple[str, ...]
    is_usual: bool = False
    """True if nothing was said of the strategy."""

    @classmethod
    def of(
        cls, path: Path, name: str | None = None, key: Sequence[str] = (), merge: str | None = None
    ) -> FileImport:
        """The import of a file: without a `merge`, `snapshot` where a key is given, else `append`.

        Without a `name` one is made of the file's: `Größe (2).csv` becomes `Grosse-2`.
        """
        strategy = merge or ("snapshot" if key else "append")
        if strategy not in MERGES:
            hint = f"it is one of {', '.join(MERGES)}"
            raise UsageError(f"no merge strategy is called {strategy!r}", hint=hint)
        if strategy == "append" and key:
            hint = "leave the key out, or use ledger"
            raise UsageError("every row is new to append: it has no key", hint=hint)
        if strategy != "append" and not key:
            hint = "say them with --key"
            raise UsageError(f"merge {strategy} needs the columns that name a record", hint=hint)
        alias = _name_of(path) if name is None else DatasetAlias.parse(name)
        return cls(path, alias, strategy, tuple(key), merge is None)

    def plan(
        self, scratch: Path, progress: Progress, event_time: str | None = None, **read: str | None
    ) -> ImportPlan:
        """The dataset that holds the rows of the file, whose columns are inferred; `read` is as there."""
        path, key = self.path, self.key
        inferred = infer_file(path, scratch, progress, **read)
        for column in (*key, *([event_time] if event_time is not None else [])):
            _check_known(path, inferred, column)
        notes = list(inferred.notes)
        if event_time is None and inferred.column(_VOCABULARY.event_time_column) is not None:
            event_time = _VOCABULARY.event_time_column
        if event_time is not None:
            inferred = _with_event_time(path, inferred, event_time, notes)
        if self.merge == "append":
            notes += _on_keys(inferred, proposes=self.is_usual)
        events: list[MetadataEvent] = []
        if event_time not in (None, _VOCABULARY.event_time_column):
            events.append(SetVocab(event_time_column=event_time))
        keyed = _KEYED.get(self.merge)
        strategy = keyed(primary_key=key) if keyed is not None else src.MergeStrategyAppend()
        events.append(AddPushSource(read=inferred.read, merge=strategy))
        snapshot = DatasetSnapshot(name=self.name, kind=DatasetKind.ROOT, metadata=tuple(events))
        shown = printable(path.name)
        text = (
            f"# The columns are those of {shown}, of which `odfchain import` inferred the types.\n"
            f"# Later files are read as this says: odfchain ingest {self.name} FILE\n"
        ) + dump_yaml(snapshot_document(snapshot))
        # read back, so that the dataset is what its manifest says
        (read_back,) = read_snapshots(text)
        return ImportPlan(inferred, read_back, text, self.merge, key, event_time, tuple(notes))


def _on_keys(inferred: InferredFile, *, proposes: bool) -> Iterator[str]:
    name = next((c.name for c in inferred.columns if c.names_rows), None)
    if proposes and name is not None:
        yield (
            f"{printable(name, 60)} is unique and never empty: --key {printable(shlex.quote(name), 60)}? "
            "A later file is then the whole present state; with --merge ledger it brings new records"
        )
    yield (
        "without a key later files are appended: the same file brings nothing new, but rows that two files "
        "share are recorded twice"
    )


def _name_of(path: Path) -> DatasetAlias:
    extension = extension_of(path)
    stem = path.name[: -len(extension)] if extension else path.stem
    # NFKD does not take ß apart, and `ignore` would drop it
    ascii_only = unicodedata.normalize("NFKD", stem.replace("ß", "ss")).encode("ascii", "ignore").decode()
    words = [re.sub(r"[^A-Za-z0-9]+", "-", word).strip("-") for word in ascii_only.split(".")]
    made = ".".join(word for word in words if word)[: LIMITS.name_bytes].rstrip(".-")
    try:
        return DatasetAlias.parse(made)
    except InvalidIdError:
        message = f"no name of a dataset can be made of {printable(path.name, 60)!r}"
        raise UsageError(message, hint="say one: --as my.sales") from None


def _check_known(path: Path, inferred: InferredFile, name: str) -> None:
    if inferred.column(name) is not None:
        return
    names = [c.name for c in inferred.columns]
    close = difflib.get_close_matches(name, names, n=1)
    listed = printable(", ".join(names), 200)
    hint = f"did you mean {printable(close[0])!r}?" if close else f"it has {listed}"
    if "," in name and not set(name.split(",")) - set(names):
        hint = "give --key once for each column: " + " ".join(f"--key {each}" for each in name.split(","))
    raise UsageError(f"{path} has no column {printable(name, 60)!r}", hint=hint)


def _with_event_time(path: Path, inferred: InferredFile, name: str, notes: list[str]) -> InferredFile:
    column = inferred.column(name)
    assert column is not None  # noqa: S101 - known to be there
    data_type = column.field.value_type
    if not isinstance(data_type, ds.DataTypeDate | ds.DataTypeTimestamp):
        why = f" ({column.note})" if column.note else ""
        raise BadInputError(
            f"column {printable(name, 60)!r} cannot be the event time: it is {column.type}{why}",
            file=str(path),
            hint="event times are dates or times such as 2024-05-01 or 2024-05-01T12:00:00Z in every row; "
            "choose another column with --event-time, rename this one, or make times of it by a query of the "
            "manifest (odfchain help start)",
        )
    if isinstance(data_type, ds.DataTypeDate):
        notes.append("the event times are days: each counts as its midnight in UTC")
    if column.values is not None and column.values < inferred.rows:
        notes.append(
            f"rows without an event time: {inferred.rows - column.values:,}; they get the time of ingestion"
        )
    if not (isinstance(data_type, ds.DataTypeTimestamp) and data_type.unit is TimeUnit.MICROSECOND):
        return inferred
    notes.append("event times are kept to the millisecond: what is finer is cut off")
    kept = ds.optional(dataclasses.replace(data_type, unit=TimeUnit.MILLISECOND))
    changed = dataclasses.replace(column, field=ds.DataField(name=name, type=kept))
    columns = tuple(changed if c is column else c for c in inferred.columns)
    return dataclasses.replace(inferred, read=_declaring(inferred.read, columns), columns=columns)
