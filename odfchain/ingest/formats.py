"""Read steps to input frames: which reader, with which options, over which file.

Defaults are those of the specification's read steps; what a manifest declares is checked here, with the
path in the manifest in the message.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, SchemaError, UsageError
from odfchain.ingest.preflight import (
    TextTraits,
    codec_name,
    read_header,
    rewrite_quotes,
    scan_text,
    transcode,
)
from odfchain.metadata import data_schema as ds
from odfchain.metadata.ddl import parse_ddl
from odfchain.metadata.sources import (
    ReadStep,
    ReadStepCsv,
    ReadStepEsriShapefile,
    ReadStepGeoJson,
    ReadStepJson,
    ReadStepNdGeoJson,
    ReadStepNdJson,
    ReadStepParquet,
)
from odfchain.spark.parse import RFC3339, TextRules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from odfchain.spark.documents import RecordSource
    from odfchain.spark.read import InputFrame

INPUT_FORMATS: dict[str, type[ReadStep]] = {
    "csv": ReadStepCsv,
    "json": ReadStepJson,
    "ndjson": ReadStepNdJson,
    "geojson": ReadStepGeoJson,
    "ndgeojson": ReadStepNdGeoJson,
    "shapefile": ReadStepEsriShapefile,
    "parquet": ReadStepParquet,
}
"""Names of `--input-format` and the read steps they stand for."""

_EXTENSIONS = {
    ".csv": "csv",
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".geojson": "geojson",
    ".ndgeojson": "ndgeojson",
    ".shp.zip": "shapefile",
    ".shp": "shapefile",  # on its own it is no input: the reader says what to do
    ".parquet": "parquet",
}


@dataclass(frozen=True, slots=True)
class OpenedInput:
    """An input that is ready to be merged; `frame` is None for an empty file without a declared schema."""

    frame: InputFrame | None
    notes: tuple[str, ...] = ()
    """What the reader decided and the user should know."""
    malformed: Callable[[], BadInputError | None] | None = None
    """Finds a record with the wrong number of fields, after a failure."""


def declared_schema(read: ReadStep) -> ds.DataSchema | None:
    """The schema that a read step declares, as DDL or in the ODF form.

    Raises:
        SchemaError: both forms, or malformed DDL.
    """
    if read.ddl_schema is not None and read.schema is not None:
        raise SchemaError("read: give a DDL schema or an ODF schema, not both")
    if read.schema is not None:
        return read.schema
    if read.ddl_schema is None:
        return None
    try:
        return parse_ddl(read.ddl_schema)
    except SchemaError as error:
        raise SchemaError(f"read.schema: {error}", hint=error.hint) from None


def read_step_for(path: Path, input_format: str | None, declared: ReadStep | None) -> ReadStep:
    """The read step to use: the declared one, or another format with the declared schema.

    Raises:
        UsageError: the format is unknown, or cannot be told from the file's name.
    """
    if input_format is None and declared is not None:
        return declared
    name = input_format or next((f for e, f in _EXTENSIONS.items() if path.name.lower().endswith(e)), None)
    if name is None or name not in INPUT_FORMATS:
        raise UsageError(
            f"{path}: the format of this file is not known",
            hint=f"say which it is: --input-format {'|'.join(INPUT_FORMATS)}",
        )
    cls = INPUT_FORMATS[name]
    if declared is not None and isinstance(declared, cls):
        return declared
    if declared is None:
        return ReadStepCsv(header=True, infer_schema=True) if cls is ReadStepCsv else cls()
    return cls(ddl_schema=declared.ddl_schema, schema=declared.schema)


def open_input(
    session: Callable[[], SparkSession],
    path: Path,
    read: ReadStep,
    *,
    scratch: Path,
    progress: Callable[[int], None] | None = None,
) -> OpenedInput:
    """Check a file and plan how Spark reads it; the session is started only after the checks.

    Raises:
        BadInputError: the file breaks the declared form.
        SchemaError: the declared schema is malformed.
    """
    if not path.is_file():
        raise BadInputError("no such file", file=str(path))
    schema = declared_schema(read)
    match read:
        case ReadStepCsv():
            return _open_csv(session, path, read, schema, scratch, progress)
        case ReadStepNdJson():
            return _open_ndjson(session, path, read, schema, scratch, progress)
        case ReadStepParquet():
            from odfchain.spark.read import read_parquet

            if path.stat().st_size == 0:
                return _empty(session, path, schema)
            _check_parquet(path)
            return OpenedInput(read_parquet(session(), _linked(path, scratch), schema, str(path)))
        case _:
            return _open_document(session, path, read, schema, scratch)


def _linked(path: Path, scratch: Path) -> Path:
    """The file under a plain name: Spark skips `_names` and `.names` and unpacks by the extension."""
    link = scratch / f"input-{uuid.uuid4().hex}"
    link.symlink_to(path.resolve())
    return link


def _check_parquet(path: Path) -> None:
    with path.open("rb") as stream:
        if stream.read(4) != b"PAR1":
            raise BadInputError("not a Parquet file", file=str(path))


def _empty(session: Callable[[], SparkSession], path: Path, schema: ds.DataSchema | None) -> OpenedInput:
    """An empty file: no rows where the columns are known, nothing at all where they are not."""
    from odfchain.spark.read import empty_input

    return OpenedInput(empty_input(session(), schema, str(path)) if schema is not None else None)


# --- CSV -------------------------------------------------------------------------------------------


def _one_character(value: str | None, default: str, what: str, *, may_be_empty: bool) -> str:
    if value is None:
        return default
    if (value == "" and may_be_empty) or len(value) == 1:
        return value
    allowed = "a single character" + (" or empty" if may_be_empty else "")
    raise SchemaError(f"read.{what}: must be {allowed}, not {value!r}")


def _open_csv(
    session: Callable[[], SparkSession],
    path: Path,
    read: ReadStepCsv,
    schema: ds.DataSchema | None,
    scratch: Path,
    progress: Callable[[int], None] | None,
) -> OpenedInput:
    separator = _one_character(read.separator, ",", "separator", may_be_empty=False)
    quote = _one_character(read.quote, '"', "quote", may_be_empty=True)
    escape = _one_character(read.escape, "\\", "escape", may_be_empty=True)
    encoding = codec_name(read.encoding)
    traits = scan_text(path, encoding=encoding, quote=quote or None, separator=separator, progress=progress)
    if traits.size == 0:
        return _empty(session, path, schema)
    # The header comes from the file as it is, before quotes may have to be rewritten.
    header = read_header(path, encoding=encoding, separator=separator, quote=quote, escape=escape)
    path_read, encoding_read, escape_read = _settle_quotes(
        _linked(path, scratch), traits, scratch,
        encoding=encoding, separator=separator, quote=quote, escape=escape,
    )  # fmt: skip
    from odfchain.spark.read import (
        CsvOptions,
        first_malformed_csv_row,
        infer_csv,
        read_csv,
    )

    options = CsvOptions(
        header=bool(read.header),
        separator=separator,
        quote=quote,
        escape=escape_read,
        encoding=encoding_read,
        null_value=read.null_value or "",
        multiline=traits.multiline or traits.bom or encoding_read not in ("utf-8", "ascii"),
    )
    columns, notes = _csv_columns(path, header, schema, has_header=options.header)
    if schema is None and read.infer_schema:
        schema = infer_csv(session(), path_read, columns, options)
    elif schema is None:
        schema = _all_text(columns)
    rules = dataclasses.replace(_text_rules(read), plain=traits.plain)
    frame = read_csv(session(), path_read, columns, schema, options, rules, str(path))
    return OpenedInput(
        dataclasses.replace(frame, short=not (traits.long_lines or options.multiline)),
        tuple(notes),
        lambda: first_malformed_csv_row(session(), path_read, columns, options, str(path)),
    )


def _settle_quotes(
    path: Path,
    traits: TextTraits,
    scratch: Path,
    *,
    encoding: str,
    separator: str,
    quote: str,
    escape: str,
) -> tuple[Path, str, str]:
    """(file to read, its encoding, the one way in which its quotes are escaped)."""
    if not quote:
        return path, encoding, ""
    if escape == quote or not escape or (escape == "\\" and not traits.backslash_quotes):
        return path, encoding, quote
    if not traits.doubled_quotes:
        return path, encoding, escape
    rewritten = scratch / f"requoted-{uuid.uuid4().hex}"
    rewrite_quotes(path, rewritten, encoding=encoding, separator=separator, quote=quote, escape=escape)
    return rewritten, "utf-8", quote


def _all_text(columns: list[str]) -> ds.DataSchema:
    text = ds.optional(ds.DataTypeString())
    return ds.DataSchema(fields=tuple(ds.DataField(name=name, type=text) for name in columns))


def _csv_columns(
    path: Path, header: list[str], schema: ds.DataSchema | None, *, has_header: bool
) -> tuple[list[str], list[str]]:
    """(column names in the order of the file, notes).

    Raises:
        BadInputError: the header does not fit the schema.
    """
    if not has_header:
        if schema is None:
            return [f"column_{i}" for i in range(1, len(header) + 1)], []
        return list(schema.names), []
    if len(set(header)) != len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise BadInputError(f"the header names column {twice!r} twice", file=str(path))
    if schema is None or header == list(schema.names):
        return header, []
    return _match_header(path, header, list(schema.names))


def _match_header(path: Path, header: list[str], names: list[str]) -> tuple[list[str], list[str]]:
    """A header that differs from the schema: reordered, renamed in place, or wrong (RFC-010)."""
    if sorted(header) == sorted(names):
        return header, [f"columns are in another order than the schema; matched by name: {', '.join(header)}"]
    missing = [n for n in names if n not in header]
    extra = [n for n in header if n not in names]
    if len(header) == len(names) and all(
        h == n or h not in names for h, n in zip(header, names, strict=True)
    ):
        renamed = [f"{h!r} as {n!r}" for h, n in zip(header, names, strict=True) if h != n]
        return names, [f"header names differ from the schema; read by position: {', '.join(renamed)}"]
    parts = []
    if missing:
        parts.append(f"missing {', '.join(repr(n) for n in missing)}")
    if extra:
        parts.append(f"unexpected {', '.join(repr(n) for n in extra)}")
    raise BadInputError(
        f"the header does not fit the schema: {'; '.join(parts)} "
        f"(header: {', '.join(header)}; schema: {', '.join(names)})",
        file=str(path),
    )


def _text_rules(read: ReadStepCsv | ReadStepNdJson | ReadStepJson) -> TextRules:
    return TextRules(
        date_format=read.date_format or RFC3339,
        timestamp_format=read.timestamp_format or RFC3339,
        integer_timestamps=not isinstance(read, ReadStepCsv),
    )


# --- JSON ------------------------------------------------------------------------------------------


def _open_ndjson(
    session: Callable[[], SparkSession],
    path: Path,
    read: ReadStepNdJson,
    schema: ds.DataSchema | None,
    scratch: Path,
    progress: Callable[[int], None] | None,
) -> OpenedInput:
    encoding = codec_name(read.encoding)
    traits = scan_text(path, encoding=encoding, progress=progress)
    if traits.size == 0:
        return _empty(session, path, schema)
    from odfchain.spark.read import bad_json_line, infer_ndjson, read_ndjson

    # Spark hands over numbers as they are written only when it is not told an encoding.
    plain = _linked(path, scratch)
    if encoding not in ("utf-8", "ascii"):
        plain = scratch / f"transcoded-{uuid.uuid4().hex}"
        transcode(path, plain, encoding)
    if schema is None:
        schema = infer_ndjson(session(), plain, str(path))
    return OpenedInput(
        read_ndjson(session(), plain, schema, _text_rules(read), str(path)),
        malformed=lambda: bad_json_line(plain, str(path)),
    )


# --- documents that Spark cannot read --------------------------------------------------------------


def _open_document(
    session: Callable[[], SparkSession],
    path: Path,
    read: ReadStepJson | ReadStepGeoJson | ReadStepNdGeoJson | ReadStepEsriShapefile,
    schema: ds.DataSchema | None,
    scratch: Path,
) -> OpenedInput:
    if path.stat().st_size == 0:
        return _empty(session, path, schema)
    source, notes = _record_source(path, read, scratch)
    from odfchain.spark.documents import bad_record, infer_records, read_records

    file = str(path)
    if schema is None:
        schema = infer_records(session(), source, file)
    if schema is None:
        return OpenedInput(None, notes)
    columns = schema
    rules = _text_rules(read) if isinstance(read, ReadStepJson) else TextRules(integer_timestamps=True)
    return OpenedInput(
        read_records(session(), source, columns, rules, file),
        notes,
        lambda: bad_record(session(), source, columns, file),
    )


def _record_source(
    path: Path,
    read: ReadStepJson | ReadStepGeoJson | ReadStepNdGeoJson | ReadStepEsriShapefile,
    scratch: Path,
) -> tuple[RecordSource, tuple[str, ...]]:
    """How a worker finds the records in the file, and notes.

    Raises:
        BadInputError: the archive of a shapefile is not what it should be.
        SchemaError: the encoding is not known.
    """
    real = str(path.resolve())
    match read:
        case ReadStepJson():
            from odfchain.spark.json_records import JsonArray

            return JsonArray(real, codec_name(read.encoding), read.sub_path or ""), ()
        case ReadStepGeoJson():
            from odfchain.spark.geo import FeatureCollection

            return FeatureCollection(real), ()
        case ReadStepNdGeoJson():
            from odfchain.spark.geo import FeatureLines

            return FeatureLines(real), ()
        case ReadStepEsriShapefile():
            from odfchain.spark.shapefile import find_layer

            return find_layer(path, read.sub_path, scratch)
