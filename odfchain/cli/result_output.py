"""The rows of a query, printed or written as they are computed.

Text formats, Arrow and Parquet hold a batch at a time; a table is for people and ends after some rows. CSV is
that of RFC 4180 with a header, lines that end in LF, nothing where there is no value, and `""` for a text of
no characters.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from odfchain.cli.context import say
from odfchain.cli.output import cell_text, count_of, numeric_columns, plain, python_values
from odfchain.cli.screen import echo_table, standard_output
from odfchain.errors import QueryError, UsageError
from odfchain.storage.fsio import replaced, storage_errors
from odfchain.text import escaped_json, first_line, one_line, printable

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.results import QueryResult


RESULT_FORMATS = ("table", "json", "ndjson", "csv", "arrow", "parquet")
TABLE_ROWS = 1_000
"""Rows of a table, unless a limit is given: people read no more."""
_BINARY = ("arrow", "parquet")
_BY_NAME = (*_BINARY, "csv", "json", "ndjson")
_ROW_GROUP_ROWS, _ROW_GROUP_BYTES = 131_072, 64 << 20
# Types of which Arrow's library for Python has no arrays.
_NO_ARRAYS = re.compile(r"\b(month|day_time)_interval\b(?!:)")
_QUOTED = re.compile('[",\r\n]')
# Intervals for checking if the reader has left, and for passing that on to native code [s].
_LOOKED_AT, _UNTIL_TOLD = 0.2, 0.5


class Counted:
    """The batches of a result, and how many rows have come.

    Raises (at construction):
        QueryError: a column is an interval of a kind that Python has no arrays of.
    """

    def __init__(self, result: QueryResult) -> None:
        self.schema: pa.Schema = result.schema
        for column in self.schema:
            if _NO_ARRAYS.search(str(column.type)):
                raise QueryError(
                    f"column {one_line(column.name)!r} is of type {one_line(str(column.type))}, which cannot "
                    "be shown or written",
                    hint="cast it to text: CAST(column AS VARCHAR)",
                )
        self.rows = 0
        self._result = result

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._result.batches():
            self.rows += batch.num_rows
            yield batch


def format_of(output: str | None, path: Path | None) -> str:
    """The format that is asked for, or that the end of a file's name says; else a table.

    Raises:
        UsageError: a terminal would get bytes.
    """
    found = output or named_format(path) or RESULT_FORMATS[0]
    if found in _BINARY and path is None and sys.stdout.isatty():
        raise UsageError(f"{found} is not for a terminal", hint="write it with --output FILE, or pipe it on")
    return found


def named_format(path: Path | None) -> str | None:
    """The format that the end of a file's name says; None if it says none."""
    suffix = path.suffix.lower().removeprefix(".") if path else ""
    return suffix if suffix in _BY_NAME else None


def check_writable(path: Path) -> None:
    """Before anything is computed: a file can be written there.

    Raises:
        UsageError: it cannot.
    """
    if path.is_dir():
        raise UsageError(f"{path}: is a folder")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent}: no such folder")


def print_result(rows: Counted, output: str, *, most: int = TABLE_ROWS) -> int:
    """Print the rows; returns how many of them a table does not show."""
    with reader_stays():
        if output == "table":
            return _print_table(rows, most)
        stream = standard_output()
        write_rows(rows.schema, rows, output, stream, shown=sys.stdout.isatty())
        stream.flush()
    return 0


def save_result(rows: Counted, output: str, path: Path) -> None:
    """Write the rows into a file, which is there whole or as it was before."""
    with storage_errors(path):
        real = path.resolve()
        if real.exists() and not real.is_file():  # a device or a pipe
            with real.open("wb") as stream:
                write_rows(rows.schema, rows, output, stream)
            return
    with replaced(real) as stream:
        write_rows(rows.schema, rows, output, stream)


def write_rows(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    output: str,
    stream: BinaryIO,
    *,
    shown: bool = False,
) -> None:
    """Write rows; `shown` is for a terminal, where no character may act."""
    if output in ("json", "ndjson", "parquet"):
        _check_names(schema)
    if output == "arrow":
        _write_arrow(schema, batches, stream)
    elif output == "parquet":
        _write_parquet(schema, batches, stream)
    else:
        pieces = {"json": _json, "ndjson": _ndjson, "csv": _csv, "table": _plain_table}[output]
        for piece in pieces(schema, batches, shown):
            stream.write(piece.encode())
            stream.flush()


@contextlib.contextmanager
def reader_stays() -> Iterator[None]:
    """Inside, a reader of standard output that goes away ends what is computed, also before it has a row.

    Raises:
        BrokenPipeError: it went away.
    """
    try:
        number = standard_output().fileno()
        mine = threading.current_thread() is threading.main_thread()
    except (OSError, ValueError):
        mine = False
    if not mine:
        yield
        return
    done = threading.Event()

    def watch() -> None:
        poll = select.poll()
        poll.register(number, 0)
        while not done.wait(_LOOKED_AT):
            if any(happened & (select.POLLERR | select.POLLHUP) for _, happened in poll.poll(0)):
                # what is being written fails by itself; again, because native code may lose one
                while not done.wait(_UNTIL_TOLD):
                    signal.pthread_kill(main, signal.SIGUSR1)

    def gone(*_: Any) -> None:
        raise BrokenPipeError

    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, gone)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, before)


def _columns(batch: pa.RecordBatch, *, nan: bool = True) -> list[list[Any]]:
    return [python_values(column, nan=nan) for column in batch.columns]


def _texts(batch: pa.RecordBatch) -> list[list[str | None]]:
    return [[None if v is None else cell_text(v) for v in values] for values in _columns(batch)]


def _rows(columns: Sequence[Sequence[Any]], count: int) -> Iterable[tuple[Any, ...]]:
    return zip(*columns, strict=True) if columns else [()] * count


def _csv(schema: pa.Schema, batches: Iterable[pa.RecordBatch], shown: bool) -> Iterator[str]:
    def field(text: str | None) -> str:
        if text is None:
            return ""
        safe = printable(text) if shown else text
        return f'"{safe.replace(chr(34), chr(34) * 2)}"' if not safe or _QUOTED.search(safe) else safe

    yield ",".join(map(field, schema.names)) + "\n"
    for batch in batches:
        columns = [list(map(field, texts)) for texts in _texts(batch)]
        yield "".join(f"{','.join(row)}\n" for row in _rows(columns, batch.num_rows))


def _documents(schema: pa.Schema, batch: pa.RecordBatch, shown: bool, indent: int | None) -> Iterator[str]:
    encode = json.JSONEncoder(ensure_ascii=False, default=plain, indent=indent).encode
    for row in _rows(_columns(batch, nan=False), batch.num_rows):
        text = encode(dict(zip(schema.names, row, strict=True)))
        yield escaped_json(text) if shown else text


def _ndjson(schema: pa.Schema, batches: Iterable[pa.RecordBatch], shown: bool) -> Iterator[str]:
    for batch in batches:
        yield "".join(f"{text}\n" for text in _documents(schema, batch, shown, None))


def _json(schema: pa.Schema, batches: Iterable[pa.RecordBatch], shown: bool) -> Iterator[str]:
    start = "[\n  "
    for batch in batches:
        if batch.num_rows:
            texts = (text.replace("\n", "\n  ") for text in _documents(schema, batch, shown, 2))
            yield start + ",\n  ".join(texts)
            start = ",\n  "
    yield "[]\n" if start[0] == "[" else "\n]\n"


def _table_cells(batch: pa.RecordBatch) -> list[list[str]]:
    return [[text or "" for text in row] for row in _rows(_texts(batch), batch.num_rows)]


def _print_table(rows: Counted, most: int) -> int:
    cells: list[list[str]] = []
    for batch in rows:
        if len(cells) < most:
            cells += _table_cells(batch.slice(0, most - len(cells)))
    if rows.schema.names:
        echo_table(rows.schema.names, cells, right=_numeric(rows.schema))
    return rows.rows - len(cells)


def _plain_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch], shown: bool) -> Iterator[str]:
    del shown
    cells = [list(map(printable, row)) for batch in batches for row in _table_cells(batch)]
    lines = [list(map(printable, schema.names)), *cells]
    # the widest value of each column needs all rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = _numeric(schema)
    for line in lines:
        padded = [
            text.rjust(width) if place in right else text.ljust(width)
            for place, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(padded).rstrip() + "\n"


def _numeric(schema: pa.Schema) -> set[int]:
    return {place for place, field in enumerate(schema) if field.name in numeric_columns(schema)}


def _check_names(schema: pa.Schema) -> None:
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise QueryError(
            f"two columns of the result are called `{one_line(twice)}`",
            hint='give one of them another name: … AS "another name"',
        )


def _write_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch], stream: BinaryIO) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(stream, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            stream.flush()


def _write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], stream: BinaryIO) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        writer = pq.ParquetWriter(stream, schema, compression="zstd")
    except pa.ArrowException as error:
        raise QueryError(
            f"Parquet cannot hold the result: {first_line(error)}", hint="cast the column to another type"
        ) from None
    waiting: list[pa.RecordBatch] = []
    with writer:

        def write() -> None:
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting, schema))
            waiting.clear()

        rows = size = 0
        for batch in batches:
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _ROW_GROUP_ROWS or size >= _ROW_GROUP_BYTES:
                write()
                rows = size = 0
        write()


# The answer to a query: its rows where they are wanted, and on standard error what they were read from.


def show_answer(
    result: QueryResult, output: str, file: Path | None, *, began: float, most: int, timed: bool = True
) -> None:
    """Print or write the rows, then say which blocks were read, how many rows came, and how long it took.

    `began` is when the question was asked, by `time.perf_counter`; `most` are the rows that a table shows.
    """
    rows = Counted(result)
    left = 0
    if file is not None:
        save_result(rows, output, file)
    else:
        left = print_result(rows, output, most=most)
    count = count_of(rows.rows, "row") + (f" ({left:,} of them not shown)" if left else "")
    say_read(result, count, began if timed else None)


def say_read(result: QueryResult, rows: str, began: float | None) -> None:
    """Say what was read, and since when; `airports @ 9 (f16201b9…c037), 1 of 4 slices, 205 rows, 0.4 s`."""
    took = [] if began is None else [f"{time.perf_counter() - began:.1f} s"]
    found = result.slices
    slices = [f"{found.read:,} of {count_of(found.there, 'slice')}"] if found.skipped else []
    say(", ".join([*map(str, result.inputs), *slices, rows, *took]))
