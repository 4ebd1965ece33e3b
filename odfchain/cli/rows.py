"""The rows of a query, printed or written as they come; a table is for people and ends after some rows."""

from __future__ import annotations

import contextlib
import operator
import re
import select
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from odfchain.cli.screen import aligned, echo_table, is_wide, standard_output
from odfchain.errors import QueryError
from odfchain.lazy import pa
from odfchain.progress import reported
from odfchain.query.row_formats import OPERATIONS, numeric_columns, texts_of, write_rows
from odfchain.storage.fsio import replaced, storage_errors
from odfchain.text import one_line, printable

if TYPE_CHECKING:
    from odfchain.cli.progress_bar import TerminalProgress
    from odfchain.results import DatasetState, QueryResult


TABLE_ROWS = 1_000
"""Rows of a table, unless a limit is given: people read no more."""
# Types of which Arrow's library for Python has no arrays.
_NO_ARRAYS = re.compile(r"\b(month|day_time)_interval\b(?!:)")
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
            _write(self.schema, rows, output, stream, shown=sys.stdout.isatty())
            stream.flush()
        return 0

    def save(self, output: str, path: Path) -> None:
        """Write the rows into a file, which is there whole or as it was before."""
        with storage_errors(path):
            real = path.resolve()
            if real.exists() and not real.is_file():  # a device or a pipe
                with real.open("wb") as stream:
                    _write(self.schema, self, output, stream)
                return
        with replaced(real) as stream:
            _write(self.schema, self, output, stream)


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


def _table_cells(batch: pa.RecordBatch) -> list[list[str]]:
    columns = texts_of(batch)
    rows = zip(*columns, strict=True) if columns else [()] * batch.num_rows
    return [[text or "" for text in row] for row in rows]


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


def _write(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], output: str, stream: BinaryIO, *,
    shown: bool = False,
) -> None:  # fmt: skip
    if output != "table":
        write_rows(schema, batches, output, stream, shown=shown)
        return
    rows = (row for batch in batches for row in _table_cells(batch))
    lines = (list(map(printable, row)) for row in (schema.names, *rows))
    stream.writelines(f"{line}\n".encode() for line in aligned(lines, right=numeric_columns(schema)))
