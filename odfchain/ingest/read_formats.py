"""Inputs to frames: which reader, with which options, over which file; preprocessed, and made to fit.

Defaults are those of the specification's read steps; what a manifest declares is checked here, with the
path in the manifest in the message.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import BadInputError, EngineError, OdfchainError, SchemaError, UsageError
from odfchain.ingest import read_csv
from odfchain.lazy import F, pa, pc
from odfchain.odf import schema as ds
from odfchain.odf import sources as src
from odfchain.odf.arrow_schema import slice_schema
from odfchain.odf.engine_messages import INPUT_TABLE, RawQueryRequest
from odfchain.odf.enums import TimeUnit
from odfchain.odf.events import DatasetVocabulary
from odfchain.odf.schema import parse_ddl
from odfchain.odf.times import RFC3339, java_format
from odfchain.progress import SILENT, Progress
from odfchain.spark.executor_files import Handover, files_of, text_ranges
from odfchain.spark.input_frames import FINER, ROW_ID, CsvTexts, InputFrame, first_bad_row, parquet_input
from odfchain.spark.jobs import Steps, explain, run_job
from odfchain.spark.plans import is_remote, jvm_of
from odfchain.spark.text_values import TextRules
from odfchain.spark.types import check_columns, col, result_schema
from odfchain.storage.fsio import storage_errors
from odfchain.text import printable
from odfchain.transform.engines import TransformEngine, is_named_datafusion

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from odfchain.ingest.history import WriterState
    from odfchain.spark.documents import LineFile, RecordSource


INPUT_FORMATS: dict[str, type[src.ReadStep]] = {
    "csv": src.ReadStepCsv,
    "json": src.ReadStepJson,
    "ndjson": src.ReadStepNdJson,
    "geojson": src.ReadStepGeoJson,
    "ndgeojson": src.ReadStepNdGeoJson,
    "shapefile": src.ReadStepEsriShapefile,
    "parquet": src.ReadStepParquet,
}
"""Names of `--input-format` and the read steps they stand for."""

HEADER_CHARACTERS = 2_000
"""The names of columns that a message lists [characters]."""

_EXTENSIONS = {
    ".csv": "csv",
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".geojson": "geojson",
    ".ndgeojson": "ndgeojson",
    ".shp.zip": "shapefile",
    ".zip": "shapefile",
    ".shp": "shapefile",  # on its own it is no input: the reader says what to do
    ".parquet": "parquet",
}


def declared_schema(read: src.ReadStep) -> ds.DataSchema | None:
    """The schema that a read step declares, as DDL or in the ODF form."""
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


def extension_of(path: Path) -> str | None:
    """The end of a file's name that says its format, None where none does."""
    return next((e for e in _EXTENSIONS if path.name.lower().endswith(e)), None)


def read_step_for(path: Path, input_format: str | None, declared: src.ReadStep | None) -> src.ReadStep:
    """The read step to use: the declared one, or another format with the declared schema."""
    if input_format is None and declared is not None:
        return declared
    name = input_format or _EXTENSIONS.get(extension_of(path) or "")
    if name is None and path.suffix == ".gz":
        raise read_csv.gzipped(path)
    if name is None or name not in INPUT_FORMATS:
        hint = f"say which it is: --input-format {'|'.join(INPUT_FORMATS)}"
        raise UsageError(f"{path}: the format of this file is not known", hint=hint)
    cls = INPUT_FORMATS[name]
    if declared is not None and isinstance(declared, cls):
        return declared
    if declared is None:
        # nothing is declared, so a CSV file has to name its columns itself
        return src.ReadStepCsv(header=True, infer_schema=True) if cls is src.ReadStepCsv else cls()
    return cls(ddl_schema=declared.ddl_schema, schema=declared.schema)


def open_input(
    session: Callable[[], SparkSession],
    path: Path,
    read: src.ReadStep,
    *,
    scratch: Path,
    progress: Callable[[int], None] | None = None,
    note: Callable[[str], None] = SILENT.note,
    resources: contextlib.ExitStack | None = None,
) -> InputFrame | None:
    """Check a file and plan how it is read; None for an empty file without a declared schema.

    The session is started only after the checks; `note` is told what the reader has decided. What workers
    read is in `scratch`, or in the store of the workspace until `resources` are closed.
    """
    if not path.is_file():
        raise BadInputError("no such file", file=str(path))
    schema = declared_schema(read)
    if schema is not None:
        check_columns(schema.names, str(path))
    workers = Handover(session, resources or contextlib.ExitStack())
    opening = _Opening(workers, path, schema, scratch, progress, note)
    match read:
        case src.ReadStepCsv():
            return opening.csv(read)
        case src.ReadStepNdJson() | src.ReadStepNdGeoJson():
            return opening.lines(read)
        case src.ReadStepParquet():
            return opening.parquet()
        case _:
            return opening.document(read)


@dataclass(frozen=True, slots=True)
class _Opening:
    """A file that is checked and planned."""

    workers: Handover
    path: Path
    schema: ds.DataSchema | None
    scratch: Path
    progress: Callable[[int], None] | None
    note: Callable[[str], None]

    def _empty(self) -> InputFrame | None:
        # no rows where the columns are known, nothing at all where they are not
        if self.schema is None:
            return None
        return InputFrame(self.workers.session(), self.schema, str(self.path))

    def parquet(self) -> InputFrame | None:
        if self.path.stat().st_size == 0:
            return self._empty()
        file, session, schema = str(self.path), self.workers.session, self.schema
        with self.path.open("rb") as stream:
            if stream.read(4) != b"PAR1":
                raise BadInputError("not a Parquet file", file=file)
        return parquet_input(session(), self.workers.give(self.path), schema, file, self.note)

    def csv(self, read: src.ReadStepCsv) -> InputFrame | None:
        path, file, schema, session = self.path, str(self.path), self.schema, self.workers.session
        dialect = dialect_of(read)
        traits = read_csv.scan_text(path, encoding=dialect.encoding, csv=dialect, progress=self.progress)
        if traits.size == 0:
            return self._empty()
        header = read_csv.header_of(path, dialect, file)
        plain, plain_dialect, multiline = path, dialect, traits.multiline
        if traits.irregular:
            # the copy is in the default dialect, whatever the file is in
            plain, plain_dialect = self.scratch / f"rewritten-{uuid.uuid4().hex}", read_csv.CsvDialect()
            multiline = read_csv.CsvRecords(path, dialect, file).rewrite(plain)
        has_header = bool(read.header)
        if has_header:
            columns = self._csv_columns(header)
        elif schema is not None:
            columns = list(schema.names)
        else:
            columns = [f"column_{i}" for i in range(1, len(header) + 1)]
        check_columns(columns, file)

        def malformed() -> BadInputError | None:
            return read_csv.first_misfit(path, dialect, columns, header=has_header, file=file)

        ranges = text_ranges(
            self.workers.give(plain), quote=plain_dialect.quote if multiline else "", header=has_header
        )
        names, separator, quote = tuple(columns), plain_dialect.separator, plain_dialect.quote
        texts = CsvTexts(ranges, names, names, separator, quote, read.null_value or "")
        if schema is None and read.infer_schema:
            try:
                schema = texts.infer(session())
            except Exception as error:
                # the file is read again: which record is wrong, Spark does not say
                raise malformed() or explain(error, file=file) from error
        elif schema is None:
            text = ds.optional(ds.DataTypeString())
            schema = ds.DataSchema(fields=tuple(ds.DataField(name=name, type=text) for name in columns))
        return dataclasses.replace(
            texts.input(session(), schema, _text_rules(read), file),
            short=not (traits.long_lines or multiline),
            malformed=malformed,
            # where quoted fields hold line breaks, lines are not records
            rows=None if traits.multiline or traits.lines is None else traits.lines - has_header,
        )

    def _csv_columns(self, header: list[str]) -> list[str]:
        """The names of columns in the order of the file: reordered, renamed in place, or wrong (RFC-010)."""
        names, file = header if self.schema is None else list(self.schema.names), str(self.path)
        if len(set(header)) != len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise BadInputError(f"the header names column {twice!r} twice", file=file)
        if header == names:
            return header
        if sorted(header) == sorted(names):
            self.note(f"columns are in another order than the schema; matched by name: {_listed(header)}")
            return header
        missing = [n for n in names if n not in header]
        extra = [n for n in header if n not in names]
        # a name that the schema has at another place is no renaming: columns would be swapped
        if len(header) == len(names) and all(
            h == n or h not in names for h, n in zip(header, names, strict=True)
        ):
            renamed = [f"{h!r} as {n!r}" for h, n in zip(header, names, strict=True) if h != n]
            self.note(f"header names differ from the schema; read by position: {_listed(renamed)}")
            return names
        parts = [f"missing {_listed(map(repr, missing))}"] if missing else []
        parts += [f"unexpected {_listed(map(repr, extra))}"] if extra else []
        raise BadInputError(
            f"the header does not fit the schema: {'; '.join(parts)} "
            f"(header: {_listed(header)}; schema: {_listed(names)})",
            file=file,
        )

    def lines(self, read: src.ReadStepNdJson | src.ReadStepNdGeoJson) -> InputFrame | None:
        encoding = read_csv.codec_name(read.encoding) if isinstance(read, src.ReadStepNdJson) else "utf-8"
        traits = read_csv.scan_text(self.path, encoding=encoding, progress=self.progress)
        if traits.size == 0:
            return self._empty()
        from odfchain.spark.documents import LineFile
        from odfchain.spark.json_values import parse_feature, parse_object

        plain = self.path
        if encoding not in ("utf-8", "ascii"):
            plain = self.scratch / f"transcoded-{uuid.uuid4().hex}"
            with (
                storage_errors(plain),
                self.path.open("r", encoding=encoding, newline="") as stream,
                plain.open("x", encoding="utf-8", newline="") as out,
            ):
                shutil.copyfileobj(stream, out, 4 << 20)
        form = parse_object if isinstance(read, src.ReadStepNdJson) else parse_feature
        return self._records(read, LineFile(plain, form), plain, traits.lines)

    def document(
        self, read: src.ReadStepJson | src.ReadStepGeoJson | src.ReadStepEsriShapefile
    ) -> InputFrame | None:
        if self.path.stat().st_size == 0:
            return self._empty()
        source, notes = record_source(self.path, read, self.schema, self.scratch)
        for note in notes:
            self.note(note)
        from odfchain.spark.json_pieces import SplitDocument
        from odfchain.spark.json_values import JsonArray

        if isinstance(source, JsonArray):
            source = SplitDocument.of(source)
        return self._records(read, source, self.path)

    def _records(
        self, read: src.ReadStep, source: RecordSource | LineFile, plain: Path, rows: int | None = None
    ) -> InputFrame | None:
        from odfchain.spark.documents import RecordsInput

        given = self.workers.give(plain)
        found = RecordsInput(self.workers.session(), source, given, str(self.path))
        schema = found.infer() if self.schema is None else self.schema
        if schema is None:
            return None
        fields, rules = schema.fields, TextRules(integer_timestamps=True)
        if isinstance(read, src.ReadStepJson | src.ReadStepNdJson):
            rules = _text_rules(read)
        frame = found.read(schema, rules)
        return dataclasses.replace(frame, rows=rows, malformed=lambda: found.bad_record(fields))


def _one_character(value: str | None, default: str, what: str, *, may_be_empty: bool) -> str:
    if value is None:
        return default
    if (value == "" and may_be_empty) or len(value) == 1:
        return value
    allowed = "a single character" + (" or empty" if may_be_empty else "")
    raise SchemaError(f"read.{what}: must be {allowed}, not {value!r}")


def dialect_of(read: src.ReadStepCsv) -> read_csv.CsvDialect:
    """The characters of a read step."""
    given = {
        "separator": _one_character(read.separator, ",", "separator", may_be_empty=False),
        "quote": _one_character(read.quote, '"', "quote", may_be_empty=True),
        "escape": _one_character(read.escape, "\\", "escape", may_be_empty=True),
    }
    for name, character in given.items():
        if character in ("\r", "\n", "\0"):
            raise SchemaError(f"read.{name}: must not be a line break or NUL, but is {character!r}")
    for name in ("quote", "escape"):
        if given[name] == given["separator"]:
            raise SchemaError(f"read.{name}: {given[name]!r} is the separator already")
    # a quote that escapes quotes is a doubled quote, which is always understood
    escape = "" if given["escape"] == given["quote"] or not given["quote"] else given["escape"]
    return read_csv.CsvDialect(given["separator"], given["quote"], escape, read_csv.codec_name(read.encoding))


def _listed(names: Iterable[str]) -> str:
    return printable(", ".join(names), HEADER_CHARACTERS)


def _text_rules(read: src.ReadStepCsv | src.ReadStepNdJson | src.ReadStepJson) -> TextRules:
    return TextRules(
        date_format=_format(read.date_format, "dateFormat"),
        timestamp_format=_format(read.timestamp_format, "timestampFormat"),
        integer_timestamps=not isinstance(read, src.ReadStepCsv),
    )


def _format(declared: str | None, what: str) -> str:
    if declared is None:
        return RFC3339
    try:
        return java_format(declared)
    except SchemaError as error:
        raise SchemaError(f"read.{what}: {error.message}", hint=error.hint) from None


def record_source(
    path: Path,
    read: src.ReadStepJson | src.ReadStepGeoJson | src.ReadStepEsriShapefile,
    schema: ds.DataSchema | None,
    scratch: Path,
) -> tuple[RecordSource, tuple[str, ...]]:
    """An executor's reader of the file's records, and notes."""
    real = str(path.resolve())
    match read:
        case src.ReadStepJson():
            from odfchain.spark.json_values import JsonArray

            return JsonArray(real, read_csv.codec_name(read.encoding), read.sub_path or ""), ()
        case src.ReadStepGeoJson():
            from odfchain.spark.json_values import FeatureCollection

            return FeatureCollection(real), ()
        case src.ReadStepEsriShapefile():
            from odfchain.spark.shapefile import ShapefileLayer

            layer, notes = ShapefileLayer.find(path, read.sub_path, scratch)
            return dataclasses.replace(layer, columns=() if schema is None else schema.names), notes


# An input of a run: a file with what to make of it, read and preprocessed.


@dataclass(frozen=True, slots=True)
class FileInput:
    """Bytes and what to make of them."""

    path: Path
    name: str
    """The input's name in messages."""
    read: src.ReadStep
    preprocess: src.Transform | None = None

    @contextlib.contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Messages name the source of the bytes, not the place of the file, and what fails in a query."""
        try:
            yield
        except OdfchainError as error:
            if self.preprocess is not None and isinstance(error, EngineError):
                from odfchain.spark.query_refusals import failed_query

                cause = error.__cause__
                if isinstance(cause, Exception):
                    fault = failed_query(cause, transform=self.preprocess)
                    if fault is not None:
                        fault.message = f"{self.name}: {fault.message}"
                        fault.hint = f"correct the value in the file; or, in the query, {fault.hint}"
                        raise fault from error
            error.message = error.message.replace(str(self.path), self.name)
            if isinstance(error, BadInputError) and error.file == str(self.path):
                error.file = self.name
            raise

    def open(
        self,
        session: Callable[[], SparkSession],
        engines: Callable[[src.Transform], TransformEngine],
        state: WriterState,
        slice_bytes: int,
        scratch: Path,
        progress: Progress,
        resources: contextlib.ExitStack,
    ) -> InputFrame | None:
        """The rows, as `open_input` gives them, preprocessed and fixed up."""
        query = self.preprocess
        if query is not None and not is_named_datafusion(query):
            session = functools.cache(functools.partial(_session_for_queries, session, resources))
        progress.phase(f"Checking {self.name}", self._size)
        amount = self._amount()
        large = bool(slice_bytes) and amount is not None and amount > slice_bytes
        frame = open_input(
            session, self.path, self.read, scratch=scratch, progress=progress.advance,
            note=lambda text: progress.note(f"{self.name}: {text}"), resources=resources,
        )  # fmt: skip
        if frame is None:
            return None
        if query is not None and is_named_datafusion(query):
            query = dataclasses.replace(query, version=None)  # an ingest is not replayed
            made, cut = _asked(engines(query), frame, query, scratch, progress)
            given = Handover(session, resources).give(made) if made else None
            frame = parquet_input(session(), given, None, self.name, lambda _: None) if given else None
            frame = frame and dataclasses.replace(frame, counted=lambda: +cut)
        elif query is not None:
            frame = _preprocessed(session(), frame, query, progress)
        elif declared_schema(self.read) is None:
            frame = fix_up(frame, state.vocabulary, operations=state.merge.TAKES_OPERATIONS)
        return frame and dataclasses.replace(frame, size=amount, large=large)

    @property
    def _size(self) -> int | None:
        return self.path.stat().st_size if self.path.is_file() else None

    def steps(self, state: WriterState, rows: int | None) -> Steps:
        """What progress says of reading, merging and writing it; `rows` is about how many it has."""
        # no figures where recorded rows are read as well, and no size of a Parquet file, of which parts are
        # read
        size = self._size
        if state.merge.LOOKS_BACK and state.next_offset:
            size = rows = None
        if isinstance(self.read, src.ReadStepParquet):
            size = None
        name = self.name.rstrip("/").rpartition("/")[2]
        return Steps(
            reading=f"Reading {name}", merging=f"Merging {name}", writing=f"Writing {name}",
            rows=rows, size=size,
        )  # fmt: skip

    def _amount(self) -> int | None:
        # bytes of values, of a Parquet file by its footer; None where the reader will report a fault
        from odfchain.slices.reader import open_parquet

        with contextlib.suppress(OSError, BadInputError):
            if not isinstance(self.read, src.ReadStepParquet):
                return self.path.stat().st_size
            with open_parquet(self.path) as file:
                footer = file.metadata
                groups = map(footer.row_group, range(footer.num_row_groups))
                return sum(int(group.total_byte_size) for group in groups)
        return None


def _session_for_queries(
    session: Callable[[], SparkSession], resources: contextlib.ExitStack
) -> SparkSession:
    from odfchain.spark.query import session_for_queries

    made = session()
    return resources.enter_context(session_for_queries(made)) if is_remote(made) else made


def _preprocessed(
    session: SparkSession, source: InputFrame, transform: src.Transform, progress: Progress
) -> InputFrame:
    from pyspark.sql import Observation

    from odfchain.spark.query import Queries

    sums = [F.sum(col(f"{FINER}{name}")).alias(f"finer {i}") for i, name in enumerate(source.finer)]
    seen = Observation()
    observed = source.frame.observe(seen, *sums) if sums else source.frame
    given = observed.select(*[col(name) for name in source.schema.names])
    queries, inputs = Queries(session, transform, progress.note), {INPUT_TABLE: given}
    result = queries.run_over_connect(inputs) if is_remote(session) else queries.run(inputs)
    schema = result_schema(result.schema, source.schema)
    numbered = result.select(F.monotonically_increasing_id().alias(ROW_ID), *[col(n) for n in schema.names])
    # what is wrong is looked for in the input as it was before its queries
    return InputFrame(
        session, schema, source.file, made=numbered, rows=source.rows,
        counted=lambda: {n: found for i, n in enumerate(source.finer) if (found := seen.get[f"finer {i}"])},
        malformed=lambda: first_bad_row(source, frozenset()),
    )  # fmt: skip


def _asked(
    engine: TransformEngine, source: InputFrame, query: src.Transform, scratch: Path, progress: Progress
) -> tuple[Path | None, Counter[str]]:
    # the file with the result, which some engines do not write without rows; times that were cut before
    cut, required = Counter[str](), frozenset(f.name for f in source.schema.fields if not f.optional)
    rows = pa.RecordBatchReader.from_batches(slice_schema(source.schema), _declared(source, scratch, cut))
    try:
        given = write_frame_file(rows, scratch)
    except Exception as error:
        raise first_bad_row(source, required) or explain(error, file=source.file) from error
    made = given.with_name(f"result-{given.name}")
    request = RawQueryRequest(input_data_paths=(str(given),), transform=query, output_data_path=str(made))
    engine.query(request, progress=progress)
    given.unlink()
    return made if made.exists() else None, cut


def _declared(source: InputFrame, folder: Path, cut: Counter[str]) -> Iterator[pa.RecordBatch]:
    # the rows in the types that are recorded, in the order of the file
    from odfchain.slices.reader import data_batches
    from odfchain.slices.writer import as_declared

    read, target = source.reader, slice_schema(source.schema)
    if read is None:  # Java reads dates and times of declared formats
        frame = source.frame.drop(ROW_ID)
        rows = write_frame_file(frame if files_of(source.session) is None else frame.toArrow(), folder)
        read = functools.partial(data_batches, rows)
    for batch in read():
        for name in source.finer:
            cut[name] += pc.sum(batch.column(f"{FINER}{name}")).as_py() or 0
        columns = [as_declared(batch.column(f.name), f) for f in target]
        yield pa.RecordBatch.from_arrays(columns, schema=target)


# Fixes for inputs without a declared schema: columns that collide with system columns get a leading
# underscore, and an event time of integers (seconds) or text becomes a timestamp. With a declared schema a
# collision or wrong type is an error. Facts in `fixtures/conformance/writer_cases.json` (`inference_…`).

US_UTC = ds.DataTypeTimestamp(unit=TimeUnit.MICROSECOND, timezone="UTC")
WHOLE = (
    ds.DataTypeInt16, ds.DataTypeInt32, ds.DataTypeInt64,
    ds.DataTypeUInt16, ds.DataTypeUInt32, ds.DataTypeUInt64,
)  # fmt: skip


def fix_up(source: InputFrame, vocabulary: DatasetVocabulary, *, operations: bool) -> InputFrame:
    """The input with colliding columns renamed and event time made a timestamp."""
    reserved = {vocabulary.offset_column, vocabulary.system_time_column}
    if not operations:
        reserved.add(vocabulary.operation_type_column)
    taken, fields = set(source.schema.names), []
    for f in source.schema.fields:
        name = f.name
        while name in reserved or (name != f.name and name in taken):
            name = f"_{name}"
        taken.add(name)
        if name == vocabulary.event_time_column and isinstance(f.value_type, (*WHOLE, ds.DataTypeString)):
            fields.append(ds.DataField(name=name, type=ds.optional(US_UTC)))
        else:
            fields.append(dataclasses.replace(f, name=name))
    rows = source.texts
    if tuple(fields) == source.schema.fields or rows is None:
        return source
    changed = dataclasses.replace(rows, fields=tuple(fields), read_as=rows.fields)
    return dataclasses.replace(source, schema=ds.DataSchema(fields=tuple(fields)), texts=changed)


# In-memory rows or a DataFrame as one Parquet file, in order.

FRAME = "the frame"
"""Its name in messages."""


def is_of_spark(frame: Any) -> bool:
    """True if it is a DataFrame of PySpark, classic or Connect."""
    return type(frame).__module__.partition(".")[0] == "pyspark"


def write_frame_file(frame: Any, folder: Path) -> Path:
    """The rows of a Spark DataFrame, or of what streams Arrow, with their types, as a file in `folder`."""
    path = folder / f"frame-{uuid.uuid4().hex}.parquet"
    if is_of_spark(frame):
        if not is_remote(frame.sparkSession):
            return _computed(frame, folder, path)
        frame = frame.toArrow()
    if not hasattr(frame, "__arrow_c_stream__"):
        hint = "give a Spark DataFrame, a pyarrow Table, or what streams Arrow, such as polars' frames"
        raise UsageError(f"expected a data frame, got {type(frame).__name__}", hint=hint)
    from pyarrow.parquet import ParquetWriter

    try:
        rows = frame if isinstance(frame, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(frame)
        with rows, ParquetWriter(path, rows.schema) as sink:
            for batch in rows:
                sink.write_batch(batch)
    except (pa.ArrowException, ValueError) as error:
        raise BadInputError(f"cannot be written as Parquet: {error}", file=FRAME) from error
    return path


def _computed(frame: DataFrame, folder: Path, path: Path) -> Path:
    # under the settings of the frame's own session, but for whole microseconds
    from pyspark.sql import DataFrame as Frame
    from pyspark.sql import SparkSession

    from odfchain.slices.reader import data_batches, read_footer
    from odfchain.spark.query_refusals import failed_query

    # a clone, so that the settings of the user's session stay as they are
    clone = frame._jdf.sparkSession().cloneSession()  # noqa: SLF001 - PySpark has no public way into the JVM
    clone.conf().set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    session = SparkSession(frame.sparkSession.sparkContext, clone)
    dataset = jvm_of(session).org.apache.spark.sql.classic.Dataset
    rows = Frame(dataset.ofRows(clone, frame._jdf.logicalPlan()), session)  # noqa: SLF001
    parts = folder / f"parts-{uuid.uuid4().hex}"
    try:
        run_job(session, lambda: rows.write.parquet(parts.as_uri()))
    except OdfchainError:
        raise
    except Exception as error:
        raise failed_query(error, FRAME) or explain(error, file=FRAME) from error
    first, *more = files = sorted(parts.glob("part-*.parquet"))
    if not more:
        return first.rename(path)
    batches = (batch for file in files for batch in data_batches(file))
    return write_frame_file(pa.RecordBatchReader.from_batches(read_footer(first)[1], batches), folder)
