"""The rows of a query, printed or written as they are computed.

Text formats, Arrow and Parquet hold a batch at a time; a table is for people and ends after some rows. CSV is
that of RFC 4180 with a header, lines that end in LF, nothing where there is no value, and `""` for a text of
no characters.
"""

from __future__ import annotations

import contextlib
import json
import math
import operator
import re
import select
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from odfchain.cli.screen import aligned, cell_text, echo_table, is_wide, plain, standard_output
from odfchain.errors import QueryError
from odfchain.lazy import pa, pc, pq
from odfchain.odf.enums import OperationType
from odfchain.progress import reported
from odfchain.storage.fsio import replaced, storage_errors
from odfchain.text import escaped_json, first_line, one_line, printable

if TYPE_CHECKING:
    from odfchain.cli.progress_bar import TerminalProgress
    from odfchain.results import DatasetState, QueryResult


TABLE_ROWS = 1_000
"""Rows of a table, unless a limit is given: people read no more."""
OPERATIONS = {str(each.code): each.value for each in OperationType}
"""The name of each operation, by the text of its code; people read names."""
_ROW_GROUP_ROWS, _ROW_GROUP_BYTES = 131_072, 64 << 20
# Types of which Arrow's library for Python has no arrays.
_NO_ARRAYS = re.compile(r"\b(month|day_time)_interval\b(?!:)")
_QUOTED = re.compile('[",\r\n]')
# Intervals for checking if the reader has left, and for passing that on to native code [s].
_POLLED, _SIGNALLED = 0.2, 0.5


class Counted:
    """The batches of a result, and how many rows have come.

    Raises (at construction):
        QueryError: a column is an interval of a kind that Python has no arrays of.
    """

    def __init__(self, result: QueryResult, progress: TerminalProgress, total: int | None = None) -> None:
        """With how many rows there will be, if that is known."""
        self.schema: pa.Schema = result.schema
        for column in self.schema:
            if _NO_ARRAYS.search(str(column.type)):
                raise QueryError(
                    f"column {one_line(column.name)!r} is of type {one_line(str(column.type))}, which cannot "
                    "be shown or written",
                    hint="cast it to text: CAST(column AS VARCHAR)",
                )
        self.rows = 0
        self.result, self.progress, self._total = result, progress, total

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in reported(
            self.result.batches(), self.progress, self.progress.step,
            rows=operator.attrgetter("num_rows"), total_rows=self._total,
        ):  # fmt: skip
            self.rows += batch.num_rows
            yield batch
        self.progress.stop()

    def show(self, output: str, *, most: int) -> int:
        """Print the rows; returns how many of them a table does not show."""
        with reader_stays():
            if output == "table":
                print_rows(self.schema, self, [pin.state for pin in self.result.inputs], most)
                return max(0, self.rows - most)
            stream, rows = standard_output(), iter(self)
            if sys.stdout.isatty():
                # nothing is written beside the line
                rows = chain(list(islice(rows, 1)), rows)
                self.progress.stop()
            write_rows(self.schema, rows, output, stream, shown=sys.stdout.isatty())
            stream.flush()
        return 0

    def save(self, output: str, path: Path) -> None:
        """Write the rows into a file, which is there whole or as it was before."""
        with storage_errors(path):
            real = path.resolve()
            if real.exists() and not real.is_file():  # a device or a pipe
                with real.open("wb") as stream:
                    write_rows(self.schema, self, output, stream)
                return
        with replaced(real) as stream:
            write_rows(self.schema, self, output, stream)


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
        while not done.wait(_POLLED):
            if any(happened & (select.POLLERR | select.POLLHUP) for _, happened in poll.poll(0)):
                # what is being written fails by itself; again, because native code may lose one
                while not done.wait(_SIGNALLED):
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


def print_rows(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], states: Iterable[DatasetState], most: int | None
) -> None:
    """Print at most so many rows as a table; `states` are of the datasets that they may be records of.

    Unless tables are shown whole, the four system columns are one, `record`, and those of the key are next.
    """
    cells: list[list[str]] = []
    for batch in batches:
        # all of them are asked for, so that they are counted
        cells += _table_cells(batch.slice(0, None if most is None else most - len(cells)))
    names, right, uncut, keys = schema.names, numeric_columns(schema), set[int](), 1
    for state in () if is_wide() else states:
        system = state.vocabulary.columns
        if all(names.count(name) == 1 for name in system):
            offset, op, _, event = map(names.index, system)
            key = [names.index(name) for name in state.primary_key if name in names]
            rest = [place for place, name in enumerate(names) if name not in system and place not in key]
            places, keys = [*key, *rest], 1 + len(key)
            for row in cells:
                row[:] = [_record(row[offset], row[op], row[event]), *(row[place] for place in places)]
            right = {1 + number for number, place in enumerate(places) if place in right}
            names, uncut = ["record", *(names[place] for place in places)], {0}
            break
    if names:
        echo_table(names, cells, right=right, uncut=uncut, keys=keys)


def _record(offset: str, op: str, event_time: str) -> str:
    """A record's number, operation and day: `#12 +C 2026-01-02`."""
    return f"#{offset} {OPERATIONS.get(op, op)} {event_time.partition('T')[0]}".rstrip()


def _plain_table(schema: pa.Schema, batches: Iterable[pa.RecordBatch], shown: bool) -> Iterator[str]:
    del shown
    rows = (row for batch in batches for row in _table_cells(batch))
    lines = (list(map(printable, row)) for row in (schema.names, *rows))
    yield from (f"{line}\n" for line in aligned(lines, right=numeric_columns(schema)))


def _check_names(schema: pa.Schema) -> None:
    twice = next((name for name in schema.names if schema.names.count(name) > 1), None)
    if twice is not None:
        raise QueryError(
            f"two columns of the result are called `{one_line(twice)}`",
            hint='give one of them another name: … AS "another name"',
        )


def _write_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch], stream: BinaryIO) -> None:
    with pa.ipc.new_stream(stream, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            stream.flush()


def _write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], stream: BinaryIO) -> None:
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


# Values of Arrow columns for printing: exact, of any type. Arrow's own conversion fails for nanoseconds and
# for years beyond Python's, and keeps NaN, which JSON lacks.

_SCALE = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def python_values(column: pa.Array, *, nan: bool = True) -> list[Any]:
    """The values of a column; times are texts already."""
    from pyarrow import types as t

    kind = column.type
    if t.is_floating(kind):
        values = (column.cast(pa.float32()) if t.is_float16(kind) else column).to_pylist()
        # JSON has no NaN: None there, as within lists and structs
        return values if nan else [None if v is None or not math.isfinite(v) else v for v in values]
    if t.is_timestamp(kind):
        utc = column.cast(pa.timestamp(kind.unit, "UTC")) if kind.tz else column
        return [v and _moment(v) for v in utc.cast(pa.string()).to_pylist()]
    if t.is_time(kind):
        return [v and _time(v) for v in column.cast(pa.string()).to_pylist()]
    if t.is_date(kind):
        return list(column.cast(pa.string()).to_pylist())
    if t.is_duration(kind):
        scale = _SCALE[kind.unit]
        return [None if v is None else v / scale for v in column.cast(pa.int64()).to_pylist()]
    if t.is_interval(kind):
        return [v and _interval(*v) for v in column.to_pylist()]
    if t.is_dictionary(kind):
        return python_values(column.dictionary_decode(), nan=nan)
    if t.is_struct(kind):
        return _structs(column)
    if t.is_map(kind):
        return [python_values(value.values, nan=False) if value.is_valid else None for value in column]
    if t.is_nested(kind) and not t.is_union(kind):
        return _lists(column)
    return list(column.to_pylist())


def _structs(column: pa.Array) -> list[Any]:
    kind = column.type
    names = [kind.field(i).name for i in range(kind.num_fields)]
    parts = [python_values(part, nan=False) for part in column.flatten()]
    rows = zip(*parts, strict=True) if parts else [()] * len(column)
    present = column.is_valid().to_pylist()
    return [
        dict(zip(names, row, strict=True)) if there else None
        for there, row in zip(present, rows, strict=True)
    ]


def _lists(column: pa.Array) -> list[Any]:
    items = iter(python_values(column.flatten(), nan=False))
    lengths = pc.list_value_length(column).to_pylist()
    return [None if length is None else list(islice(items, length)) for length in lengths]


def _moment(text: str) -> str:
    day, _, rest = text.partition(" ")
    zone = "Z" if rest.endswith("Z") else ""
    clock, _, fraction = rest.removesuffix("Z").partition(".")
    if not clock:
        return text
    # 0, 3, 6 or 9 digits, whichever loses nothing
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{day}T{clock}.{fraction}{zone}" if fraction else f"{day}T{clock}{zone}"


def _time(text: str) -> str:
    clock, _, fraction = text.partition(".")
    if not fraction.strip("0"):
        return clock
    return f"{clock}.{fraction[:6].ljust(6, '0')}{fraction[6:] if fraction[6:].strip('0') else ''}"


def _interval(months: int, days: int, nanoseconds: int) -> str:
    whole, part = divmod(abs(nanoseconds), 1_000_000_000)
    sign = "-" if nanoseconds < 0 else ""
    fraction = f".{part:09}".rstrip("0") if part else ""
    found = [f"{months}M"] * bool(months) + [f"{days}D"] * bool(days)
    # seconds may have another sign than days
    found += [f"T{sign}{whole}{fraction}S"] * bool(nanoseconds)
    return "P" + ("".join(found) or "T0S")


def numeric_columns(schema: pa.Schema) -> set[int]:
    """The places of the columns of numbers, which a table aligns right."""
    kinds = ("int", "uint", "float", "double", "dec")
    return {place for place, field in enumerate(schema) if str(field.type).startswith(kinds)}
