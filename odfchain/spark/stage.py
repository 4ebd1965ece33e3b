"""The Arrow stage: ordered rows of a DataFrame into one file, without passing through the driver."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from odfchain.slices.writer import SliceFacts, SliceSpec, write_slice
from odfchain.spark.executor_files import StoreFolder, translate_errors, worker_folder
from odfchain.spark.jobs import RowCounter, explain, run_job
from odfchain.spark.plans import map_in_arrow
from odfchain.spark.types import col

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def write_ordered(
    frame: DataFrame,
    order: list[Column] | None,
    names: list[str],
    write: Callable[[Iterator[pa.RecordBatch]], Any],
    *,
    on_workers: Callable[[], Callable[[Iterator[pa.RecordBatch]], Any]] | None = None,
    few: int = 0,
) -> dict[str, Any] | None:
    """Write rows in order on one worker; returns the result of `write`, None where that is None.

    Without an order the rows come as they are, partition by partition. Up to `few` rows are written by this
    process instead of a worker, which is faster for so few; they come in the same batches.

    `write` takes the columns `names`, gives a dataclass of what JSON can hold, and is sent to the worker, or
    what `on_workers` returns, which is called once a worker is needed.
    """
    counter = RowCounter.of(frame.sparkSession)
    whole = frame.coalesce(1) if order is None else frame.repartition(1)
    if order is not None:
        whole = whole.sortWithinPartitions(*order)
    # mapInArrow takes dots and backticks in names for syntax, so the columns go through it by position
    numbered = whole.select(*[col(name).alias(f"c{index}") for index, name in enumerate(names)])

    def on_worker() -> dict[str, Any] | None:
        there = write if on_workers is None else on_workers()

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            facts = there(batch.rename_columns(names) for batch in counter.counted(batches))
            if facts is not None:
                yield pa.RecordBatch.from_pydict({"facts": [json.dumps(asdict(facts))]})

        rows = map_in_arrow(numbered, run, "facts string").collect()
        facts: dict[str, Any] | None = json.loads(rows[0]["facts"]) if rows else None
        return facts

    def here_or_there() -> dict[str, Any] | None:
        # one row more than `few` shows whether there are more
        table = numbered.limit(few + 1).toArrow()
        if table.num_rows > few:
            return on_worker()
        facts = write(batch.rename_columns(names) for batch in table.to_batches())
        return None if facts is None else asdict(facts)

    try:
        return run_job(frame.sparkSession, here_or_there if few else on_worker)
    except Exception as error:
        raise explain(error) from error


@dataclass(slots=True)
class _ByRows:
    """How many threads need a session's setting at the moment, and its value before them."""

    before: str | None
    users: int = 0


_by_rows: weakref.WeakKeyDictionary[SparkSession, _ByRows] = weakref.WeakKeyDictionary()
_by_rows_lock = threading.Lock()


@contextlib.contextmanager
def batches_by_rows(session: SparkSession) -> Iterator[None]:
    """Arrow batches are cut by rows alone: measuring their bytes after every row takes half of the time."""
    key = "spark.sql.execution.arrow.maxBytesPerBatch"
    with _by_rows_lock:
        if session not in _by_rows:
            _by_rows[session] = _ByRows(session.conf.get(key, None))
            # so large that Spark never cuts by bytes
            session.conf.set(key, str(2**31 - 1))
        _by_rows[session].users += 1
    try:
        yield
    finally:
        with _by_rows_lock:
            _by_rows[session].users -= 1
            # the setting is the session's, so the last of several threads takes it back
            if not _by_rows[session].users:
                before = _by_rows.pop(session).before
                if before is None:
                    session.conf.unset(key)
                else:
                    session.conf.set(key, before)


def given_columns(spec: SliceSpec) -> list[str]:
    """The columns that the writer of a slice is given, in order: all but offset and system time."""
    made = {spec.vocabulary.offset_column, spec.vocabulary.system_time_column}
    return [name for name in pa.ipc.read_schema(pa.py_buffer(spec.schema)).names if name not in made]


def write_into_store(
    batches: Iterator[pa.RecordBatch],
    write: Callable[[Iterator[pa.RecordBatch], Any], Any],
    spec: Any,
    place: StoreFolder | None,
) -> Any:
    """What `write` gives for `spec`; with a `place` the file is put into the store, and has no path."""
    if place is None:
        return write(batches, spec)
    # the worker's own folder is removed in any case
    with translate_errors(), worker_folder() as folder:
        facts = write(batches, replace(spec, folder=str(folder)))
        if facts is None:
            return None
        place.files.put(Path(facts.path), f"{place.key}/{facts.physical_hash}")
        return replace(facts, path="")


def write_frame(
    frame: DataFrame,
    spec: SliceSpec,
    *,
    short: bool = False,
    few: int = 0,
    place: Callable[[], StoreFolder] | None = None,
) -> SliceFacts | None:
    """Write the rows as they come as one slice, and return its facts; None when there are no rows.

    `frame` has every column of the target schema except offset and system time, as physical types. `short`:
    no row holds more than a few KiB; `few` as in `write_ordered`. A worker puts the slice into what `place`
    returns, if that is given; this process, which writes few rows, leaves it in the folder of `spec`.
    """
    names = given_columns(spec)
    write = functools.partial(write_slice, spec=spec)
    put = functools.partial(write_into_store, write=write_slice, spec=spec)
    there = None if place is None else lambda: functools.partial(put, place=place())
    with batches_by_rows(frame.sparkSession) if short else contextlib.nullcontext():
        facts = write_ordered(frame, None, names, write, on_workers=there, few=few)
    return None if facts is None else SliceFacts(**facts)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """Facts about a written file."""

    path: str
    """Empty where a worker has put it into the store, under its physical hash."""
    rows: int
    size: int = 0
    physical_hash: str = ""
    """Empty, and no size, of rows that are not in the store."""
