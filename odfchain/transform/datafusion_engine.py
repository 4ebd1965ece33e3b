"""The engine on DataFusion: one request, the files that it names, nothing kept and no Java.

Each input is a view over the interval that is asked for, in the order of its offsets; each step of the query
is a view over those before it, and the last one is the result. All runs in one partition, so that rows come
in one order on every machine. Where two parts of a plan would race, a UNION ALL below something else, it is
refused: such a union is a step of its own. Source: specification "Engine Contract"; RFC-062.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odfchain.errors import EngineError, QueryError, QueryLimitError, SchemaError
from odfchain.lazy import pa, pc, pq
from odfchain.limits import QUERY, AskedLimits
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow, slice_schema
from odfchain.odf.engine_messages import INPUT_TABLE
from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.schema import check_recordable, recorded
from odfchain.odf.sources import Transform
from odfchain.slices.footers import footer_stats
from odfchain.slices.footers import quoted as quoted_column
from odfchain.slices.reader import check_parquet, read_footer
from odfchain.slices.writer import (
    ROW_GROUP_ROWS,
    SliceInputError,
    cast_column,
    count_finer,
    notes_on_cut_times,
    parquet_writer,
)
from odfchain.spark.query_refusals import QueryStep
from odfchain.text import find_marker, one_line
from odfchain.transform.closed_sql import (
    GivenTables,
    check_text,
    closed_context,
    linked,
    no_rows,
    plain_schema,
    query_plan,
    quoted,
    translate_errors,
    view_schema,
)
from odfchain.transform.engines import Executed, check_columns, datafusion_version
from odfchain.workspace.dataset_state import SystemColumns

if TYPE_CHECKING:
    import datafusion as df

    from odfchain.odf.engine_messages import RawQueryRequest, TransformRequest, TransformRequestInput
    from odfchain.odf.times import Timestamp
    from odfchain.progress import Progress

FORBIDDEN = frozenset({
    "current_date", "current_time", "current_timestamp", "file_row_index", "input_file_name", "now", "rand",
    "random", "today", "uuid", "version",
})  # fmt: skip
"""Functions whose result depends on more than their arguments: the clock, chance, files, the machine."""

MEMORY_MIB = 2_048
_TEXT = AskedLimits(text_bytes=QUERY.text_bytes, brackets=QUERY.brackets)
_GROUP_ROWS, _GROUP_BYTES = ROW_GROUP_ROWS // 2, 64 << 20
_INTEGERS = re.compile(r"U?Int(8|16|32|64)")


class DataFusionEngine:
    """Executes queries row by row or over the new rows of each step; fulfils `TransformEngine`."""

    def __init__(self, *, memory_mib: int = MEMORY_MIB) -> None:
        """Rows of one query take at most `memory_mib`; what needs more fails and is not spilled."""
        self._memory = memory_mib << 20

    @property
    def version(self) -> str:
        """The version that transforms get."""
        return datafusion_version()

    def execute(
        self, request: TransformRequest, *, schema: ds.DataSchema | None, progress: Progress
    ) -> Executed:
        """The next step of a transformation; the slice is in the types of the specification."""
        del schema
        transform, vocabulary = request.transform, request.vocab
        progress.phase("Planning")
        with _Run(self._memory) as run, _explained(transform):
            for given in request.query_inputs:
                run.add_input(given)
            frame = run.result(transform)
            target = result_schema(from_arrow(plain_schema(frame.schema())), vocabulary)
            progress.phase("Computing")
            rows = _written(run.rows(frame), target, request, progress)
        interval = None
        if rows:
            interval = OffsetInterval(start=request.next_offset, end=request.next_offset + rows - 1)
        return Executed(offset_interval=interval, watermark=_watermark(request.query_inputs))

    def query(self, request: RawQueryRequest, *, progress: Progress) -> int:
        """Write what a query makes of Parquet files, the table `input`; the number of records."""
        progress.phase("Computing")
        with _Run(self._memory) as run, _explained(request.transform):
            if request.input_data_paths:
                run.add_files(INPUT_TABLE, [Path(path) for path in request.input_data_paths])
            frame = run.result(request.transform)
            schema = pa.schema([_in_utc(field) for field in plain_schema(frame.schema())])
            count, finer = 0, dict[str, int]()
            with pq.ParquetWriter(request.output_data_path, schema) as writer:
                for table in _grouped(run.rows(frame)):
                    columns = [_column(c, f) for c, f in zip(table.columns, schema, strict=True)]
                    finished = pa.Table.from_arrays(columns, schema=schema)
                    writer.write_table(finished)
                    count_finer(table, finished, finer)
                    count += len(table)
                    progress.advance()
        for note in notes_on_cut_times(finer):
            progress.note(note)
        return count


class _Run(contextlib.ExitStack):
    """A context for one request, its tables, and the folders of links that it reads."""

    def __init__(self, memory: int) -> None:
        super().__init__()
        self._tables = GivenTables()
        # statistics are off for all: what they hide of NaN may reach a result by a join as well
        self._context = closed_context(
            self._tables, memory=memory, partitions=1, inexact=True, exact_names=True
        )
        for name in FORBIDDEN:
            self._context.deregister_udf(name)

    def add_input(self, given: TransformRequestInput) -> None:
        """The view of an input: the records of its interval in the order of their offsets."""
        _, read = read_footer(Path(given.schema_file))
        schema = slice_schema(from_arrow(read.remove_metadata()))
        interval = given.offset_interval
        paths = [Path(path) for path in given.data_paths] if interval is not None else []
        frame = self._frame(schema, paths)
        if interval is not None and paths and not _are_all(paths, given.vocab.offset_column, interval):
            offset = import_module("datafusion").col(quoted(given.vocab.offset_column))
            frame = frame.filter((offset >= interval.start) & (offset <= interval.end))
            if (count := frame.count()) != interval.count:
                what = f"its files have {count:,} of the {interval.count:,} records that are asked for"
                raise EngineError(f"input {one_line(given.query_alias)}: {what}")
        self._given(given.query_alias, frame)

    def add_files(self, alias: str, paths: Sequence[Path]) -> None:
        """The table of Parquet files that have one schema."""
        schema = plain_schema(read_footer(paths[0])[1].remove_metadata())
        self._given(alias, self._frame(schema, paths))

    def result(self, transform: Transform) -> df.DataFrame:
        """The rows of the last step, each step planned over the inputs and the steps before it."""
        steps = QueryStep.all_of(transform) or [QueryStep("query", "")]
        if transform.temporal_tables:
            hint = "join with the latest rows instead, or write the query for odfchain-spark"
            raise QueryError("DataFusion has no temporal tables", hint=hint, refused=True)
        if len(steps) > QUERY.steps:
            message = f"the transform has {len(steps):,} steps; at most {QUERY.steps} are planned"
            raise QueryError(message, refused=True)
        *before, last = steps
        if last.alias is not None or any(step.alias is None for step in before):
            raise QueryError("the last step, and no other, is the result and has no alias")
        for step in before:
            frame = self._planned(step)
            assert step.alias is not None  # noqa: S101 - checked above
            if frame.execution_plan().partition_count > 1:
                # the parts of a union one after the other; read in place, they would race
                rows = list(self.rows(frame)) or [no_rows(frame.schema())]
                frame = self._context.create_dataframe([rows])
            self._given(step.alias, frame)
        return self._planned(last)

    def rows(self, frame: df.DataFrame) -> Iterator[pa.RecordBatch]:
        """The rows in their order, those of a UNION ALL part by part."""
        for stream in frame.execute_stream_partitioned():
            for batch in stream:
                yield batch.to_pyarrow()

    def _planned(self, step: QueryStep) -> df.DataFrame:
        sql = step.sql.rstrip().rstrip(";").rstrip()
        with _refused(step), translate_errors(sql):
            check_text(sql, _TEXT)
            if _IGNORED.search(_SKIPPED.sub(" ", sql)):
                hint = "leave it out: DataFusion would read all rows without a word"
                raise QueryError("TABLESAMPLE is not allowed", hint=hint, refused=True)
            # before it is optimized, a plan has types that its rows do not have
            read = query_plan(self._context, sql).optimized_logical_plan()
            frame = self._context.create_dataframe_from_logical_plan(read)
            plan = frame.execution_plan().display_indent()
            if plan.count("\n") > QUERY.nodes:
                raise QueryError(f"the query has more than {QUERY.nodes:,} plans")
            if any(line.lstrip().startswith("CoalescePartitionsExec") for line in plan.split("\n")):
                hint = "make the UNION ALL a step of its own: queries: [{alias: u, query: … UNION ALL …}, …]"
                message = "the order of rows is not settled: a UNION is below something that depends on it"
                raise QueryError(message, hint=hint)
            return frame

    def _frame(self, schema: pa.Schema, paths: Sequence[Path]) -> df.DataFrame:
        schema = view_schema(schema)
        if not paths:
            return self._context.create_dataframe([[no_rows(schema)]])
        for path in paths:
            check_parquet(path)
        return self._context.read_parquet(linked(paths, self), schema=schema, parquet_pruning=False)

    def _given(self, alias: str, frame: df.DataFrame) -> None:
        if alias in self._tables.given:
            raise QueryError(f"two tables are called `{one_line(alias)}`", hint="give one another alias")
        self._tables.given[alias] = frame.into_view()


def result_schema(found: ds.DataSchema, vocabulary: DatasetVocabulary) -> ds.DataSchema:
    """The schema of slices with a query's columns: system columns, event time, the rest (the contract, 5)."""
    chosen = found.field(vocabulary.operation_type_column)
    kind = "Int32" if chosen is None else chosen.value_type.KIND
    check_columns(found.names, vocabulary, None if _INTEGERS.fullmatch(kind) else kind)
    fields = [_field(field) for field in found.fields]
    check_recordable(fields)
    event_time = _event_time(found, vocabulary.event_time_column)
    return SystemColumns.SPECIFICATION.before(fields, event_time, vocabulary)


def _event_time(found: ds.DataSchema, name: str) -> ds.DataField:
    time = found.field(name)
    assert time is not None  # noqa: S101 - `check_columns`
    match time.value_type:
        case ds.DataTypeDate():
            return time
        case ds.DataTypeTimestamp(timezone=zone) if zone in ("UTC", "+00:00", "Z"):
            return _field(time)
    message = f"the event time `{name}` is {ds.format_type(time.value_type)}, not a date or a UTC timestamp"
    raise QueryError(message, hint=f"arrow_cast({name}, 'Timestamp(Millisecond, Some(\"UTC\"))') AS {name}")


def _field(field: ds.DataField) -> ds.DataField:
    # times of columns are in ms and UTC, those within columns as they are recorded
    top = isinstance(field.value_type, ds.DataTypeTimestamp)
    kind = ds.MS_UTC if top else recorded(field.value_type)
    return ds.DataField(name=field.name, type=ds.optional(kind) if field.optional else kind)


def _in_utc(field: pa.Field) -> pa.Field:
    is_time, unit = pa.types.is_timestamp(field.type), getattr(field.type, "unit", "")
    return field.with_type(pa.timestamp("us" if unit == "ns" else unit, "UTC")) if is_time else field


def _are_all(paths: Sequence[Path], offset: str, interval: OffsetInterval) -> bool:
    # True if files have the records of the interval alone, in order, as their footers say
    rows = 0
    for path in paths:
        stats = footer_stats(*read_footer(path), columns={quoted_column(offset)})
        found = stats.column(quoted_column(offset))
        place = interval.start + rows
        if found is None or (found.low, found.high) != (place, place + stats.row_count - 1):
            return False
        rows += stats.row_count
    return rows == interval.count


def _written(
    batches: Iterator[pa.RecordBatch], schema: ds.DataSchema, request: TransformRequest, progress: Progress
) -> int:
    """Write the slice, also of no rows; the number of rows."""
    names, arrow, rows, finer = request.vocab, slice_schema(schema), 0, dict[str, int]()
    now = pa.scalar(request.system_time.epoch_ms, pa.timestamp("ms", "UTC"))
    tables = _grouped(batches)
    first = list(itertools.islice(tables, 1))
    plain = [name for table in first for name in table.column_names if _is_diverse(table.column(name))]
    with (
        Path(request.new_data_path).open("xb") as sink,
        parquet_writer(sink, arrow, names, plain=plain) as writer,
        ThreadPoolExecutor(1) as pool,
    ):
        writing: Future[None] | None = None
        for table in itertools.chain(first, tables):
            start = request.next_offset + rows
            made = {
                names.offset_column: np.arange(start, start + len(table), dtype=np.uint64),
                names.system_time_column: pa.repeat(now, len(table)),
            }
            if names.operation_type_column not in table.schema.names:
                made[names.operation_type_column] = np.zeros(len(table), np.uint8)
            columns = [
                pa.array(made[field.name], field.type)
                if field.name in made
                else _column(table.column(field.name), field)
                for field in arrow
            ]
            _check_operations(columns[arrow.get_field_index(names.operation_type_column)], names)
            if writing is not None:
                writing.result()
            # the next rows are computed meanwhile
            finished = pa.Table.from_arrays(columns, schema=arrow).combine_chunks()
            count_finer(table, finished, finer)
            writing = pool.submit(writer.write_table, finished, ROW_GROUP_ROWS)
            rows += len(table)
            progress.advance()
        if writing is not None:
            writing.result()
    for note in notes_on_cut_times(finer):
        progress.note(note)
    return rows


def _is_diverse(column: pa.ChunkedArray) -> bool:
    # True if a dictionary would outgrow its page and be given up: of 10,000 values nearly all differ
    if len(column) < 1 << 18 or not pa.types.is_primitive(column.type):
        return False
    sample = column.take(np.arange(0, len(column), len(column) // 10_000))
    return bool(pc.count_distinct(sample).as_py() > 0.97 * len(sample))


def _column(column: pa.ChunkedArray, field: pa.Field) -> Any:
    # what is nested is checked within one array
    nested = column.combine_chunks() if pa.types.is_nested(column.type) else column
    return cast_column(nested, field)


def _check_operations(column: pa.ChunkedArray, names: DatasetVocabulary) -> None:
    most = pc.max(column).as_py()
    if most > 3:
        hint = "0 appends, 1 retracts, 2 and 3 correct"
        message = f"the operation `{names.operation_type_column}` is {most} in some rows"
        raise QueryError(message, hint=hint)


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables that are worth a row group."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        waiting.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
            yield pa.Table.from_batches(waiting)
            waiting, rows, size = [], 0, 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _watermark(inputs: Sequence[TransformRequestInput]) -> Timestamp | None:
    # the least of the inputs; nothing can be said while one has none
    marks = [max((w.event_time for w in each.explicit_watermarks), default=None) for each in inputs]
    known = [mark for mark in marks if mark is not None]
    return min(known, default=None) if len(known) == len(marks) else None


_SKIPPED = re.compile(r"""'[^']*+'?|"[^"]*+"?|--[^\n]*+|/\*(?s:.)*?(?:\*/|\Z)""")
_IGNORED = re.compile(r"\btablesample\b", re.IGNORECASE)
_FAULTS = re.compile(r"(line \d+, column \d+: )?there is no (column|function|table) (\S+)")


@contextlib.contextmanager
def _refused(step: QueryStep) -> Iterator[None]:
    # what cannot be planned for a name that is none is a fault of the query, all else is not allowed here
    try:
        yield
    except QueryError as error:
        fault = _FAULTS.search(error.message)
        if fault is not None and fault[3].lower() in FORBIDDEN:
            what = f"{fault[1] or ''}{fault[3]} is not allowed"
            hint = "a result depends on the rows alone, so that others can compute it again"
            raise QueryError(f"{step.label}, {what}", hint=hint, refused=True) from error
        error.message = error.message.replace("the query", step.label, 1)
        raise


@contextlib.contextmanager
def _explained(transform: Transform) -> Iterator[None]:
    """Faults of the query are QueryErrors; what it may not do here is refused."""
    try:
        with translate_errors(transform.query or ""):
            try:
                yield
            except SliceInputError as error:
                found = find_marker(str(error))
                raise QueryError(
                    f"the result does not fit: {found['message'] if found else error}"
                ) from error
    except QueryLimitError as error:
        hint = "read fewer columns or rows at a time, or allow more: transform.isolatedMemoryMib"
        raise EngineError(error.message, hint=hint) from error
    except SchemaError as error:
        raise QueryError(f"the result does not fit: {error.message}", hint=error.hint) from error
