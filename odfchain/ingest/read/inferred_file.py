"""What a file of data holds, without a schema and without an engine: its columns, their types, its rows.

Every value is looked at, so that the schema which is written down reads this very file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import BadInputError, SchemaError
from odfchain.ingest.read.csv_records import CsvDialect, CsvRecords, first_misfit, header_of
from odfchain.ingest.read.formats import dialect_of, read_step_for, record_source
from odfchain.ingest.read.preflight import scan_text
from odfchain.ingest.read.value_kinds import ColumnValues
from odfchain.model import data_schema as ds
from odfchain.model.ddl import format_ddl, format_type, type_name
from odfchain.model.sources import ReadStep, ReadStepCsv, ReadStepNdGeoJson, ReadStepNdJson, ReadStepParquet
from odfchain.spark.columns import RESERVED, check_count
from odfchain.spark.json_values import Record, RecordError
from odfchain.text import printable

_SEPARATORS = ",;\t|"
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class InferredColumn:
    """One column: its type, how many rows have a value in it, and what the user should know."""

    field: ds.DataField
    values: int | None
    """None where they were not counted."""
    note: str | None = None

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

    read: ReadStep
    """Declares all columns."""
    columns: tuple[InferredColumn, ...]
    rows: int
    notes: tuple[str, ...] = ()

    def column(self, name: str) -> InferredColumn | None:
        """The column of a name."""
        return next((c for c in self.columns if c.name == name), None)

    def with_column(self, changed: InferredColumn) -> InferredFile:
        """The same file with another type for one column."""
        columns = tuple(changed if c.name == changed.name else c for c in self.columns)
        return InferredFile(_declaring(self.read, columns), columns, self.rows, self.notes)


def infer_file(
    path: Path, scratch: Path, *, input_format: str | None = None, reserved: Collection[str] = ()
) -> InferredFile:
    """The columns of a file, with the types that all of their values have; none may be called as `reserved`.

    Raises:
        UsageError: the format is not known.
        BadInputError: the file breaks its form, has no rows, or has names that columns cannot have.
        SchemaError: a Parquet file has types that DDL cannot name.
    """
    read = read_step_for(path, input_format, None)
    if not path.is_file():
        raise BadInputError("is a folder" if path.is_dir() else "no such file", file=str(path))
    if path.stat().st_size == 0:
        raise _no_rows(path)
    match read:
        case ReadStepCsv():
            inferred = _csv(path, reserved)
        case ReadStepParquet():
            inferred = _parquet(path, reserved)
        case _:
            inferred = _records(path, read, scratch, reserved)
    if inferred.rows == 0:
        raise _no_rows(path)
    return inferred


def _no_rows(path: Path) -> BadInputError:
    return BadInputError(
        "no rows, so there is nothing to infer types from",
        file=str(path),
        hint="write a manifest yourself: odfchain new NAME --root",
    )


def check_names(names: Sequence[str], reserved: Collection[str], file: str) -> None:
    """Every name can be the one of a column.

    Raises:
        BadInputError: some cannot; with the names to give instead.
    """
    check_count(names, file)
    taken, problems = set(names), []
    seen: set[str] = set()
    for number, name in enumerate(names, start=1):
        problem = _problem(name, reserved, again=name in seen)
        seen.add(name)
        if problem is None:
            continue
        clean = "".join(c for c in name if c.isprintable() and c != "`").strip().removeprefix(RESERVED)
        base = f"_{clean}" if name in reserved else clean or f"column_{number}"
        new = base
        while new in taken or new in reserved:
            new = f"{base}_{number}" if new == base else f"{new}_"
        taken.add(new)
        problems.append(f"column {number:,} {problem}: call it {printable(new)!r}")
    if problems:
        more = f"; and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
        raise BadInputError(
            f"names that columns cannot have: {'; '.join(problems[:_SHOWN])}{more}",
            file=file,
            hint="rename them in the file and import it again",
        )


def _problem(name: str, reserved: Collection[str], *, again: bool) -> str | None:
    shown = repr(printable(name, 60))
    if not name.strip():
        return "has no name"
    if again:
        return f"is called {shown}, too"
    if name in reserved:
        return f"is called {shown} as a system column is"
    if name.startswith(RESERVED):
        return f"is called {shown}, and names that begin with {RESERVED} are reserved"
    if "`" in name or not name.isprintable():
        return f"has a backtick or a control character in its name {shown}"
    return None


def _declaring(read: ReadStep, columns: Sequence[InferredColumn]) -> ReadStep:
    schema = ds.DataSchema(fields=tuple(c.field for c in columns))
    return dataclasses.replace(read, ddl_schema=tuple(format_ddl(schema)))


def _file(
    read: ReadStep, found: dict[str, ColumnValues], rows: int, notes: Sequence[str] = ()
) -> InferredFile:
    columns = []
    for name, values in found.items():
        data_type, note = values.inferred()
        columns.append(
            InferredColumn(ds.DataField(name=name, type=ds.optional(data_type)), values.count, note)
        )
    return InferredFile(_declaring(read, columns) if rows else read, tuple(columns), rows, tuple(notes))


# --- CSV -------------------------------------------------------------------------------------------


def _csv(path: Path, reserved: Collection[str]) -> InferredFile:
    file = str(path)
    scan_text(path, csv=CsvDialect())
    read = ReadStepCsv(header=True)
    separator, names = _separator(path, file)
    if separator != ",":
        read = dataclasses.replace(read, separator=separator)
    check_names(names, reserved, file)
    dialect = dialect_of(read)
    columns = [ColumnValues() for _ in names]
    records = iter(CsvRecords(path, dialect, file))
    next(records, None)
    row = 0
    for row, record in enumerate(records, start=1):
        if len(record) != len(names):
            misfit = first_misfit(path, dialect, names, header=True, file=file)
            assert misfit is not None  # noqa: S101 - it was just seen
            raise misfit
        for column, text in zip(columns, record, strict=True):
            if text:  # a quoted empty field is null, too
                column.add(text, row)
    notes = [f"the separator is {separator!r}"] if separator != "," else []
    return _file(read, dict(zip(names, columns, strict=True)), row, notes)


def _separator(path: Path, file: str) -> tuple[str, list[str]]:
    """The separator that cuts the header into most names, and they; a comma where several do."""
    headers: dict[str, list[str]] = {}
    for separator in _SEPARATORS:
        try:
            headers[separator] = header_of(path, dialect_of(ReadStepCsv(separator=separator)), file)
        except BadInputError:
            if separator == _SEPARATORS[-1] and not headers:
                raise
    best = max(headers, key=lambda separator: len(headers[separator]))
    return best, headers[best]


# --- records in JSON, GeoJSON and shapefiles -------------------------------------------------------


def _records(path: Path, read: ReadStep, scratch: Path, reserved: Collection[str]) -> InferredFile:
    columns: dict[str, ColumnValues] = {}
    notes: list[str] = []
    row = 0
    for record in _each(path, read, scratch, notes):
        row += 1
        for name, value in record.items():
            column = columns.get(name)
            if column is None:
                column = columns[name] = ColumnValues()
                check_count(list(columns), str(path))
            if value is not None:
                column.add_json(value, row)
    if row and not columns:
        raise BadInputError("the objects have no properties, so there are no columns", file=str(path))
    check_names(list(columns), reserved, str(path))
    _check_case(list(columns), str(path))
    return _file(read, columns, row, notes)


def _check_case(names: list[str], file: str) -> None:
    folded: dict[str, str] = {}
    for name in names:
        other = folded.setdefault(name.casefold(), name)
        if other != name:
            raise BadInputError(
                f"the keys {printable(other, 60)!r} and {printable(name, 60)!r} differ only by case",
                file=file,
                hint="rename one of them, and import the file again",
            )


def _each(path: Path, read: ReadStep, scratch: Path, notes: list[str]) -> Iterator[Record]:
    file = str(path)
    if not isinstance(read, ReadStepNdJson | ReadStepNdGeoJson):
        assert not isinstance(read, ReadStepCsv | ReadStepParquet)  # noqa: S101 - read elsewhere
        source, source_notes = record_source(path, read, None, scratch)
        notes += source_notes
        row = 0
        try:
            for record in source.records():
                row += 1
                yield record
        except RecordError as error:
            at = row + 1 if error.row is None else error.row
            raise BadInputError(error.message, file=file, row=at or None) from None
        return
    from odfchain.spark.documents import LineFile
    from odfchain.spark.geo import FeatureLine
    from odfchain.spark.json_values import ObjectLine

    scan_text(path)
    lines = LineFile(path, ObjectLine() if isinstance(read, ReadStepNdJson) else FeatureLine())
    try:
        for _, record in lines.records():
            yield record
    except RecordError as error:
        raise lines.first_bad(None, file) or BadInputError(error.message, file=file) from None


# --- Parquet ---------------------------------------------------------------------------------------


def _parquet(path: Path, reserved: Collection[str]) -> InferredFile:
    from odfchain.codec.arrow import from_arrow
    from odfchain.ingest.read.nanoseconds import schema_in_microseconds
    from odfchain.slices.reader import open_parquet

    with open_parquet(path) as source:
        schema = from_arrow(schema_in_microseconds(source.schema_arrow))
        rows = source.metadata.num_rows
    check_names(schema.names, reserved, str(path))
    for f in schema.fields:
        try:
            format_type(f.value_type, f.extra)
        except SchemaError as error:
            raise SchemaError(
                f"{path}: column {printable(f.name, 60)!r}: {error.message}",
                hint="cast the column, or leave it out, and import the file again",
            ) from None
    columns = tuple(InferredColumn(f, None) for f in schema.fields)
    return InferredFile(_declaring(ReadStepParquet(), columns), columns, rows)
