"""Files of the driver as workers reach them: by the folder that both see, or by a store.

The driver checks every byte of an input, so it has the file. Where executors see its folders they are told
the path. Elsewhere it is put once into the store of the workspace, below `staging/`, and workers read ranges
of it that begin and end with records: which ones is found out here, in the file, by a few reads for each.
A small file goes within the plan instead, which costs no request.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import io
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from odfchain.spark.executor_files import (
    CarriedFile,
    ExecutorFiles,
    ReadableFiles,
    StoreFolder,
    files_of,
    staged,
    telling,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

RANGE_BYTES = 8 << 20
"""About how much of a text file a worker reads at a time."""

RANGES_OF_A_TASK = 16
"""Most that one task reads, where each core has a task."""

CARRIED_BYTES = 256 << 10
"""A file of at most this size is sent within the plan: it is put, listed and removed for nothing."""

_BATCH_RECORDS = 65_536
_ID_BITS = 33
"""A range holds fewer records than this many bits can count."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file of the driver, and how workers come to it; a small value that is sent to them."""

    path: Path
    """Where the driver has it; workers as well where there are no `files`."""
    files: ReadableFiles | None = None
    key: str = ""

    def here(self) -> Path:
        """The whole file on the machine of the worker that asks."""
        return self.path if self.files is None else self.files.bring(self.key)

    @contextlib.contextmanager
    def parts(self) -> Iterator[Callable[[int, int], bytes]]:
        """What gives a worker the bytes from one place up to, not with, another."""
        if self.files is not None:
            yield functools.partial(self.files.read, self.key)
            return
        with self.path.open("rb") as stream:

            def read(start: int, end: int) -> bytes:
                stream.seek(start)
                return stream.read(end - start)

            yield read


class Handover:
    """Hands files over to workers; what it put into a store is gone with `resources`."""

    def __init__(
        self, session: Callable[[], SparkSession], scratch: Path, resources: contextlib.ExitStack
    ) -> None:
        self.session = session
        self._scratch, self._resources = scratch, resources
        self._below, self._put = "", 0

    def give(self, path: Path, *, for_spark: bool = True, known: InputFile | None = None) -> InputFile:
        """The file, for workers of the session, which is started now if need be, or for Spark's own readers.

        `known` is what it is in the store in any case: a small file goes within the plan all the same.
        """
        files = files_of(self.session())
        if files is None and not for_spark:
            return InputFile(path.resolve())
        if files is None:
            # under a plain name: Spark skips `_names` and `.names` and unpacks by the extension
            link = self._scratch / f"input-{uuid.uuid4().hex}"
            link.symlink_to(path.resolve())
            return InputFile(link)
        with path.open("rb") as stream:
            content = stream.read(CARRIED_BYTES + 1)
        if len(content) <= CARRIED_BYTES:
            return InputFile(path, CarriedFile(content))
        if known is not None:
            return known
        self._put += 1
        key = f"{self.staging(files).key}/input-{self._put}"
        files.put(path, key)
        return InputFile(path, files, key)

    def staging(self, files: ExecutorFiles) -> StoreFolder:
        """Where files of the store are that are gone with `resources`."""
        self._below = self._below or self._resources.enter_context(staged(files))
        return StoreFolder(files, self._below)


# --- where records begin -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TextRanges:
    """A text file of a store in ranges that begin and end with records."""

    file: InputFile
    cuts: tuple[int, ...]
    """Where ranges begin, and where the last one ends."""
    quote: bytes = b""
    """What a field with line feeds stands in; nothing where each line is a record."""

    def records(self, number: int) -> list[bytes]:
        """The records of a range, without the line breaks at their ends."""
        start, end = self.cuts[number], self.cuts[number + 1]
        with self.file.parts() as read:
            data = read(start, end)
        return data.splitlines() if not self.quote else _quoted_records(data, self.quote)


def text_ranges(
    file: InputFile, *, quote: str = "", header: bool = False, size: int = RANGE_BYTES
) -> TextRanges:
    """The ranges of a UTF-8 text of about `size` bytes each, without a byte order mark and the header.

    With `quote`, line breaks are those outside of it, and line feeds alone; records then have no others.
    """
    mark = quote.encode()
    with file.path.open("rb") as stream:
        total = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        begin = len(codecs.BOM_UTF8) if stream.read(3) == codecs.BOM_UTF8 else 0
        cuts = [_behind_header(stream, begin, total, mark) if header else begin]
        while cuts[-1] < total:
            cuts.append(_next_cut(stream, cuts[-1], min(cuts[-1] + size, total), total, mark))
    return TextRanges(file, tuple(cuts), mark)


def _behind_header(stream: BinaryIO, begin: int, total: int, quote: bytes) -> int:
    """Where the first record that holds anything ends."""
    while begin < total:
        end = _next_cut(stream, begin, begin, total, quote)
        stream.seek(begin)
        line = stream.read(end - begin)
        for record in [line] if quote else line.splitlines(keepends=True):
            begin += len(record)
            if record.strip(b"\r\n"):
                return begin
    return total


def _next_cut(stream: BinaryIO, begin: int, at: int, total: int, quote: bytes) -> int:
    """Where the first record ends that ends behind `at`; at `begin`, before it, another one begins."""
    quotes = 0
    if quote:
        stream.seek(begin)
        for start in range(begin, at, _CHUNK):
            quotes += stream.read(min(_CHUNK, at - start)).count(quote)
    stream.seek(at)
    while chunk := stream.read(_CHUNK):
        seen = 0
        while (feed := chunk.find(b"\n", seen)) >= 0:
            quotes += chunk.count(quote, seen, feed) if quote else 0
            if quotes % 2 == 0:
                return at + feed + 1
            seen = feed + 1
        quotes += chunk.count(quote, seen) if quote else 0
        at += len(chunk)
    return total


def _quoted_records(data: bytes, quote: bytes) -> list[bytes]:
    """The records of a text whose quoted fields may hold line feeds."""
    records: list[bytes] = []
    begun: list[bytes] = []
    quotes = 0
    for line in data.split(b"\n"):
        begun.append(line)
        quotes += line.count(quote)
        if quotes % 2 == 0:
            records.append(b"\n".join(begun))
            begun, quotes = [], 0
    if begun:
        records.append(b"\n".join(begun))
    if records and not records[-1]:  # behind the last line feed
        del records[-1]
    return records


# --- on workers ----------------------------------------------------------------------------------------


def text_batches(ranges: TextRanges, numbers: Iterator[int]) -> Iterator[pa.RecordBatch]:
    """`row_id`, in the order of the file, and `value`: the records of these ranges that hold anything."""
    import numpy as np
    import pyarrow as pa

    for number in numbers:
        records = [record for record in ranges.records(number) if record]
        for start in range(0, len(records), _BATCH_RECORDS):
            values = pa.array(records[start : start + _BATCH_RECORDS], pa.string())
            ids = np.arange(len(values), dtype=np.int64) + (number << _ID_BITS) + start
            yield pa.RecordBatch.from_arrays([pa.array(ids), values], names=["row_id", "value"])


def numbers_in(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    """The numbers that a task is given."""
    for batch in batches:
        yield from batch.column(0).to_pylist()


def range_numbers(session: SparkSession, count: int, most: int = RANGES_OF_A_TASK) -> DataFrame:
    """The numbers from 0, in order, so that each core has a task, and a task at most so many of them."""
    return session.range(0, count, 1, max(-(-count // most), min(count, _cores(session)), 1))


def text_frame(session: SparkSession, ranges: TextRanges) -> DataFrame:
    """`value`: the records that hold anything, in partitions that follow each other as in the file."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with telling():
            for made in text_batches(ranges, numbers_in(batches)):
                yield made.select(["value"])

    return range_numbers(session, len(ranges.cuts) - 1).mapInArrow(read, "value string")


def _cores(session: SparkSession) -> int:
    """How many tasks run at once, where the session knows."""
    try:
        return int(session.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - over Spark Connect, which has no context
        return 2
