"""The one way to read Parquet: bounded before it is decoded, one error for all that may be wrong with it."""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import io
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types as t

from odfchain.errors import BadInputError, OversizedInputError
from odfchain.limits import PARQUET
from odfchain.odf.arrow_schema import UUID_MARK, mapped
from odfchain.odf.identity import Multihash
from odfchain.odf.logical_hash import LogicalDigest, NullRule
from odfchain.storage.fsio import shortage
from odfchain.text import first_line, one_line, printable

_Item = TypeVar("_Item")
_Rows = TypeVar("_Rows")

# Values of a slice as Python has them; a file may hold others.

_EPOCH = dt.date(1970, 1, 1)
_FIRST_DAY, _LAST_DAY = (dt.date.min - _EPOCH).days, (dt.date.max - _EPOCH).days
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Parts of a second in each of Arrow's units."""

# Arrow's errors for values that Python cannot hold: a year after 9999, bytes that are no text, an unknown
# time zone.
_IMPOSSIBLE = (ValueError, OverflowError, KeyError, pa.ArrowException)


def check_values(column: pa.Array, name: str) -> None:
    """Refuse values not of their type: text that is not UTF-8, times outside the years 1 to 9999."""
    try:
        # Parquet and Spark hand on any bytes as text and any number as a time; other readers refuse the file
        # full validation looks at every value: UTF-8, and digits of decimals
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        wrong = "a text is not UTF-8" if "UTF8" in str(error) else one_line(str(error))
        raise ValueError(f"column `{one_line(name)}`: {wrong}") from None
    for leaf in leaves_of(column):
        bounds = _bounds(leaf.type)
        if bounds is None or leaf.null_count == len(leaf):
            continue
        range_ = pc.min_max(leaf.cast(pa.int32()) if leaf.type.bit_width == 32 else leaf.cast(pa.int64()))
        for wrong in (range_["min"].as_py(), range_["max"].as_py()):
            if not bounds[0] <= wrong <= bounds[1]:
                message = f"column `{one_line(name)}`: {wrong} is no {leaf.type} of the years 1 to 9999"
                raise ValueError(message)


def leaves_of(column: pa.Array) -> Iterator[pa.Array]:
    """The arrays without members that a column consists of, without the values below a null."""
    if t.is_struct(column.type):
        for member in column.flatten():
            yield from leaves_of(member)
    elif t.is_map(column.type):
        yield from leaves_of(column.keys)
        yield from leaves_of(column.items)
    elif t.is_list(column.type) or t.is_large_list(column.type) or t.is_fixed_size_list(column.type):
        yield from leaves_of(column.flatten())
    else:
        yield column


def _bounds(data_type: pa.DataType) -> tuple[int, int] | None:
    """The smallest and the largest number of a day or time; None for other types."""
    if t.is_date32(data_type):
        return _FIRST_DAY, _LAST_DAY
    if t.is_date64(data_type):
        return _FIRST_DAY * 86_400_000, (_LAST_DAY + 1) * 86_400_000 - 1
    if t.is_timestamp(data_type):
        parts = PER_SECOND[data_type.unit]
        return _FIRST_DAY * 86_400 * parts, (_LAST_DAY + 1) * 86_400 * parts - 1
    return None


def first_gap(offsets: pa.Array, expected: int) -> int | None:
    """The place of the first offset that does not follow the one before it; None when all do."""
    values = offsets.fill_null(0).to_numpy(zero_copy_only=False)
    values = values if values.dtype.kind in "iu" else values.astype(np.uint64)
    # a block may say any offset: numbers do not begin again behind the largest of the column's type
    room = min(len(values), int(np.iinfo(values.dtype).max) + 1 - expected)
    if offsets.null_count or room <= 0:
        return 0
    wrong = np.flatnonzero(values[:room] != values.dtype.type(expected) + np.arange(room, dtype=values.dtype))
    return int(wrong[0]) if len(wrong) else room if room < len(offsets) else None


def plain_value(scalar: pa.Scalar) -> Any:
    """The value; of one that Python cannot hold, a text that says so."""
    try:
        return scalar.as_py()
    except _IMPOSSIBLE:
        number = getattr(scalar, "value", None)
        return f"{number if isinstance(number, int) else 'a value'} that is no {scalar.type}"


Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def without_extensions(schema: pa.Schema) -> pa.Schema:
    """The schema in which UUIDs are 16 bytes, and marked; other extensions are their storage."""
    return mapped(schema, _without_extension)


def _without_extension(f: pa.Field) -> pa.Field:
    if not isinstance(f.type, pa.BaseExtensionType):
        return f
    mark = UUID_MARK if isinstance(f.type, pa.UuidType) else {}
    return f.with_type(f.type.storage_type).with_metadata({**(f.metadata or {}), **mark})


class ParquetSource:
    """An open Parquet file; its footer is within bounds, its rows are examined before they are decoded."""

    def __init__(self, path: Path, file: pq.ParquetFile) -> None:
        self._path = path
        self._file = file
        self._schema = without_extensions(file.schema_arrow)
        self._plain = file.schema_arrow.types == self._schema.types

    @property
    def schema_arrow(self) -> pa.Schema:
        """The columns as Arrow reads them; UUIDs are 16 bytes, and their fields are marked."""
        return self._schema

    @property
    def metadata(self) -> pq.FileMetaData:
        """The footer."""
        return self._file.metadata

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        groups: Sequence[int] | None = None,
        most_rows: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows (of some row groups), a bounded number of bytes at a time; none is empty."""
        with _readable(self._path):
            rows = rows_at_a_time(self._path, groups)
            chosen = {"columns": None if columns is None else list(columns)}
            found = self._file.iter_batches(min(rows, most_rows or rows), row_groups=groups, **chosen)
        while True:
            with _readable(self._path):
                batch = next(found, None)
                if batch is None:
                    return
                for name, column in zip(batch.schema.names, batch.columns, strict=True):
                    check_values(column, name)
            if batch.num_rows:
                yield batch if self._plain else self._without_extensions(batch)

    def _without_extensions(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        with _readable(self._path):
            return batch.cast(without_extensions(batch.schema))

    def groups_of(self, first: int, last: int) -> tuple[list[int], int]:
        """(the row groups that hold the rows `[first; last]`, the rows before them)."""
        groups, before, position = [], 0, 0
        for index in range(self.metadata.num_row_groups):
            count = self.metadata.row_group(index).num_rows
            if position + count <= first:
                before += count
            elif position <= last:
                groups.append(index)
            position += count
        return groups, before

    def rows_between(self, first: int, last: int, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows `[first; last]`, counted from 0; only the row groups that hold them are decoded."""
        groups, position = self.groups_of(first, last)
        kept: list[pa.RecordBatch] = []
        if groups:
            for batch in self.batches(columns, groups=groups):
                low, high = max(first - position, 0), min(last + 1 - position, batch.num_rows)
                if low < high:
                    # a copy: a window would keep the whole batch in memory
                    kept.append(batch.take(_numbers(low, high)) if high - low < batch.num_rows else batch)
                position += batch.num_rows
                if position > last:
                    break
        if kept:
            return pa.Table.from_batches(kept)
        return pa.schema([f for f in self.schema_arrow if columns is None or f.name in columns]).empty_table()


def _numbers(low: int, high: int) -> pa.Array:
    # `pa.array` would load pandas, for half a second
    values = np.arange(low, high, dtype=np.int64)
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


@contextlib.contextmanager
def open_parquet(path: Path, **options: Any) -> Iterator[ParquetSource]:
    """A Parquet file of anybody."""
    with _readable(path):
        file = open_checked(path, **options)
    with file:
        with _readable(path):  # types that Arrow cannot express are found here
            source = ParquetSource(path, file)
        yield source


def read_footer(path: Path) -> tuple[pq.FileMetaData, pa.Schema]:
    """(the footer of a Parquet file, its columns as Arrow reads them); errors as `open_parquet`."""
    with _readable(path), open_checked(path) as file:
        return file.metadata, file.schema_arrow


def data_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a Parquet file, a bounded number at a time."""
    with open_parquet(path) as file:
        yield from file.batches()


def fitted(rows: Rows, schema: pa.Schema) -> Rows:
    """The rows in the columns and types of a schema; a column that they do not have yet is null."""
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return type(rows).from_arrays(columns, schema=schema)


def read_own(path: Path, schema: pa.Schema) -> pa.Table:
    """All rows of a file that this workspace made for itself, and hashed; by a schema, as `fitted`."""
    with _readable(path):
        try:
            found = pq.read_table(path, columns=schema.names)
        except pa.ArrowInvalid:  # a column came later
            with pq.ParquetFile(path) as file:
                present = file.schema_arrow.names
            found = pq.read_table(path, columns=[name for name in schema.names if name in present])
        return found if found.schema.equals(schema) else fitted(found, schema)


def check_parquet(path: Path) -> None:
    """Nothing when all rows of a file may be decoded, by whichever reader."""
    with _readable(path):
        rows_at_a_time(path)


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        if shortage(error) is not None:
            raise MemoryError(first_line(error)) from None
        raise BadInputError(f"not a readable Parquet file: {first_line(error)}", file=str(path)) from None


# The logical hash of a Parquet file, a bounded number of bytes at a time.


def hash_parquet(
    path: Path, *, null_rule: NullRule = "correct", schema: pa.Schema | None = None
) -> tuple[Multihash, int]:
    """(logical hash, number of records) of a Parquet file of anybody; in a `schema`, if one is given."""
    with open_parquet(path) as file:
        digest = LogicalDigest(schema or file.schema_arrow, null_rule=null_rule)
        rows = 0
        for batch in file.batches():
            digest.update(batch if schema is None else batch.cast(schema))
            rows += batch.num_rows
    return digest.finish(), rows


# The page headers of a Parquet file, read without decoding a page: what each would become.
#
# The footer may say what it likes; Arrow allocates what the page headers say. They are Thrift structs in
# the compact protocol. Source: https://github.com/apache/parquet-format (parquet.thrift, `PageHeader`),
# https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.

_READ_BYTES = 4 << 10
_DATA, _DICTIONARY, _DATA_V2 = 0, 2, 3
_DELTA = 7
_DICTIONARY_CODED = (2, 8)
_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Page:
    """A page of values, or with `dictionary` one that others refer to."""

    dictionary: bool
    size: int
    """Uncompressed [bytes]."""
    values: int
    """Nulls included [count]."""
    coded: bool
    """Its values are numbers of those in the dictionary."""
    delta: bool
    """Its values share beginnings with the one before."""


def read_pages(stream: BinaryIO, start: int, end: int) -> Iterator[Page]:
    """The pages of the column chunk at the bytes `[start; end)`."""
    at = start
    while at < end:
        header = _Struct(stream, at)
        fields = header.read()
        size, stored = _number(fields, 2), _number(fields, 3)
        at += header.position + stored
        if at > end:
            raise ValueError("a page ends outside its column chunk")
        kind = _number(fields, 1)
        if kind == _DICTIONARY:
            yield Page(True, size, _number(_inner(fields, 7), 1), False, False)
        elif kind in (_DATA, _DATA_V2):
            inner = _inner(fields, 5 if kind == _DATA else 8)
            coding = _number(inner, 2 if kind == _DATA else 4)
            yield Page(False, size, _number(inner, 1), coding in _DICTIONARY_CODED, coding == _DELTA)


def _inner(fields: dict[int, object], key: int) -> dict[int, object]:
    found = fields.get(key)
    if not isinstance(found, dict):
        raise ValueError("a page header lacks what its kind must have")  # noqa: TRY004 - of the file, not of a call
    return found


def _number(fields: dict[int, object], key: int) -> int:
    found = fields.get(key)
    if not isinstance(found, int) or found < 0:
        raise ValueError("a page header has a negative or missing number")
    return found


class _Struct:
    """A struct in Thrift's compact protocol; numbers, lists and structs are kept, texts are passed over.

    With `kept` a struct is one of its fields, which one says its depth.
    """

    def __init__(
        self,
        stream: BinaryIO,
        at: int,
        most: int = PARQUET.page_header_bytes,
        kept: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.position = 0
        self._stream, self._most, self._kept = stream, most, kept
        stream.seek(at)
        self._data = stream.read(_READ_BYTES)

    def read(self, depth: int = 0) -> Any:
        if depth > _DEPTH:
            raise ValueError("a page header is nested too deeply")
        kept, fields = self._kept.get(depth), dict[int, Any]()
        last = 0
        while (head := self._byte()) != 0:
            last = last + (head >> 4) if head >> 4 else self._signed()
            found = self._value(head & 15, depth)
            if kept is None or kept == last:
                fields[last] = found
        return fields if kept is None else fields.get(kept)

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 4 | 5 | 6:
                return self._signed()
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 7:
                self._skip(8)
            case 8:
                self._skip(self._unsigned())
            case 9 | 10:
                head = self._byte()
                count = head >> 4 if head >> 4 < 15 else self._unsigned()
                kind = head & 15
                if depth > _DEPTH:
                    raise ValueError("a page header is nested too deeply")
                # within a list, a truth takes a byte
                return [self._byte() if kind < 3 else self._value(kind, depth + 1) for _ in range(count)]
            case 12:
                return self.read(depth + 1)
            case _:
                raise ValueError("a page header has a field of unknown type")
        return None

    def _byte(self) -> int:
        at = self.position
        if at >= len(self._data):
            self._need(1)
        self.position = at + 1
        return self._data[at]

    def _unsigned(self) -> int:
        value, shift = 0, 0
        while (byte := self._byte()) > 127:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a page header has a number of more than 64 bits")
        return value | byte << shift

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, count: int) -> None:
        self._need(count)
        self.position += count

    def _need(self, count: int) -> None:
        wanted = self.position + count
        if wanted > self._most:
            raise ValueError(f"a page header has more than {self._most:,} bytes")
        while len(self._data) < wanted:
            # never beyond the most that may be used
            more = self._stream.read(min(max(wanted, 2 * len(self._data)), self._most) - len(self._data))
            if not more:
                raise ValueError("the file ends inside a page header")
            self._data += more


# row_groups, columns and meta_data of a footer, and its encryption, by the depth of what they are in
_COLUMNS, _ENCRYPTION = {0: 4, 2: 1, 4: 3}, {0: 8}

_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")


@functools.lru_cache(maxsize=1_024)
def _check_columns(path: Path, footer: int, _: tuple[int, ...]) -> None:
    # of a file with this identity. Arrow ends the process where it is asked about a column chunk of another
    # type or with other levels than there are, and where it writes a footer that says it is encrypted, which
    # only the bytes say. Else looked at is what Arrow has read: two readers of the file could differ
    sink = io.BytesIO()
    with pq.ParquetFile(path) as file, path.open("rb") as stream:
        if (count := file.metadata.num_columns) > PARQUET.columns:
            raise _oversized(path, f"it has {count:,} columns, at most {PARQUET.columns:,} are read")
        file.metadata.created_by  # noqa: B018 - which may be no text
        raw = _Struct(stream, stream.seek(-8 - footer, 2), footer, _ENCRYPTION)
        try:
            encrypted = raw.read() is not None
        except ValueError:
            raise _damaged(path, "its footer ends too early, or is too deep") from None
        # both readers have read all of it, so that neither saw what the other did not
        if encrypted or not raw.position == footer == file.metadata.serialized_size:
            raise _damaged(path, "its footer is encrypted, or is not as long as it says")
        file.metadata.write_metadata_file(sink)
        leaves = [file.schema.column(index) for index in range(file.metadata.num_columns)]
    for group in _Struct(sink, 4, sink.tell(), _COLUMNS).read() or ():
        if len(group) != len(leaves):
            raise _damaged(path, "a row group has more or fewer columns than the file")
        for leaf, chunk in zip(leaves, group, strict=True):
            kind, sizes = leaf.physical_type, (chunk or {}).get(16, {})
            if chunk and chunk.get(1) != _TYPES.index(kind):
                raise _damaged(path, "a column has another type than the file says")
            if (
                len(sizes.get(2, ())) not in (0, leaf.max_repetition_level + 1)
                or len(sizes.get(3, ())) not in (0, leaf.max_definition_level + 1)
                or (1 in sizes and kind != "BYTE_ARRAY")
            ):
                raise _damaged(path, "a column counts levels that it has not")


# Bounds on the decoded size of a file, without decoding it.
#
# A text that is named 100,000 times by a dictionary, pages of zeros, a run of a billion nulls: a few
# kilobytes may stand for terabytes. Before rows are decoded, every page header is read, and where a
# dictionary or shared beginnings could make values larger than the page that holds them, the lengths alone
# are added up. What comes out are the rows that may be decoded at a time, or a refusal that names the column
# (RFC-003).


BATCH_ROWS = 65_536
"""Rows that are decoded at a time where they are short [count]."""

# Rows whose bytes are added up together [count].
_STEP = 16

_MOST_STEPS = 1 << 20

# A text that is null [bytes], for what so many of them cost.
_NULL_TEXT = 8

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}

Sizes = np.ndarray[Any, np.dtype[np.float64]]
"""Decoded bytes of every few rows of a row group."""


def _step_of(rows: int) -> int:
    # a bounded number of sums, however many rows a row group has
    step = _STEP
    while rows > step * _MOST_STEPS:
        step *= 2
    return step


def open_checked(path: Path, **options: Any) -> pq.ParquetFile:
    """A Parquet file whose footer is within bounds; no row of it has been looked at."""
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - 8))
        end = stream.read(8)
    footer = struct.unpack("<I", end[:4])[0] if len(end) == 8 else 0
    if end[4:] == b"PAR1" and PARQUET.footer_bytes < footer <= size:  # one that is longer is damage
        raise _oversized(path, f"its footer has {footer:,} bytes, at most {PARQUET.footer_bytes:,} are read")
    file = pq.ParquetFile(path, **options)
    try:
        _check_columns(path, footer, _identity(path))
    except BaseException:
        file.close()
        raise
    return file


def _identity(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A column of a row group."""

    index: int
    name: str
    kind: str
    width: int
    repeated: bool
    stored: int
    """In the file [bytes]."""
    pages: tuple[Page, ...]

    @property
    def dictionary(self) -> int:
        """The dictionary's size [bytes]; no value of it is longer."""
        return max((p.size for p in self.pages if p.dictionary), default=0)

    @property
    def values(self) -> int:
        return sum(p.values for p in self.pages if not p.dictionary)

    @property
    def plain(self) -> int:
        return sum(p.size for p in self.pages)

    @property
    def delta(self) -> bool:
        return any(p.delta for p in self.pages)

    @property
    def largest(self) -> int:
        """The largest page [bytes]; no value is longer."""
        return max((p.size for p in self.pages), default=0)

    @property
    def only_coded(self) -> bool:
        return all(p.dictionary or p.coded for p in self.pages)

    def most(self, longest: int) -> int:
        """No more bytes than these can come out, where no value of the dictionary is longer."""
        if self.kind != "BYTE_ARRAY":
            return self.values * self.width
        shared = sum(p.values for p in self.pages if p.coded) * longest
        shared += sum(p.values for p in self.pages if p.delta) * self.largest
        return self.plain + 4 * self.values + shared


def rows_at_a_time(path: Path, groups: Sequence[int] | None = None) -> int:
    """How many rows of a file (or of some of its row groups) may be decoded at a time."""
    return _examined(path, _identity(path), None if groups is None else tuple(groups))


@functools.lru_cache(maxsize=1_024)
def _examined(path: Path, key: tuple[int, ...], groups: tuple[int, ...] | None) -> int:
    size, most = key[2], _most(path)
    with open_checked(path, pre_buffer=False) as file, path.open("rb") as stream:
        metadata = file.metadata
        rows, total, pages = BATCH_ROWS, 0.0, 0
        for group in range(metadata.num_row_groups) if groups is None else groups:
            chunks = list(_chunks(path, file, stream, group, size))
            pages += sum(len(chunk.pages) for chunk in chunks)
            if pages > PARQUET.pages:
                raise _oversized(path, f"it has more than {PARQUET.pages:,} pages")
            count = metadata.row_group(group).num_rows
            sizes = _sizes(path, file, group, chunks, count, most - total)
            total += float(sizes.sum())
            rows = min(rows, _fitting(path, sizes, _step_of(count), chunks))
    return rows


def _chunks(path: Path, file: pq.ParquetFile, stream: Any, group: int, size: int) -> Iterator[_Chunk]:
    metadata = file.metadata.row_group(group)
    for index in range(metadata.num_columns):
        column, leaf = metadata.column(index), file.schema.column(index)
        name = printable(leaf.path, 100)
        start = column.data_page_offset
        first = (column.dictionary_page_offset or 0) if column.has_dictionary_page else 0
        if first > 0 and (first < start or not start):  # a column without a row has no data page
            start = first
        end = start + column.total_compressed_size
        if not 0 <= start <= end <= size:
            raise _damaged(path, f"column `{name}`: its bytes lie outside the file")
        try:
            pages = tuple(read_pages(stream, start, end))
        except ValueError as error:
            raise _damaged(path, f"column `{name}`: {error}") from None
        largest = max((p.size for p in pages), default=0)
        if largest > PARQUET.page_bytes:
            what = f"a page becomes {largest:,} bytes, at most {PARQUET.page_bytes:,} are read"
            raise _oversized(path, f"column `{name}`: {what}")
        kind = leaf.physical_type
        width = leaf.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind, 0)
        repeated = leaf.max_repetition_level > 0
        yield _Chunk(index, name, kind, width, repeated, end - start, pages)


def _sizes(
    path: Path, file: pq.ParquetFile, group: int, chunks: list[_Chunk], rows: int, most: float
) -> Sizes:
    """Decoded size of every few rows of a row group; `most` [bytes] is the bound for all of them."""
    fixed = sum(c.width for c in chunks if c.width and not c.repeated)
    if rows * sum(c.width or _NULL_TEXT for c in chunks if not c.repeated) > most or rows > most:
        raise _beyond(path, _largest(chunks), _most(path))
    step = _step_of(rows)
    steps = -(-rows // step)
    sizes: Sizes = np.full(steps, float(fixed * step))
    total = float(fixed * rows)
    for chunk in chunks:
        if chunk.width and not chunk.repeated:
            continue
        if chunk.repeated:
            allowed = max(PARQUET.nested_bytes, PARQUET.nested_ratio * chunk.stored)
            if chunk.values * max(4, chunk.width) > allowed:
                raise _beyond(path, chunk.name, allowed)
        own = _column_sizes(path, file, group, chunk, rows, most - total)
        if chunk.repeated and own.sum() > allowed:
            raise _beyond(path, chunk.name, allowed)
        total += float(own.sum())
        if total > most:
            raise _beyond(path, chunk.name, _most(path))
        sizes += own
    return sizes


def _column_sizes(
    path: Path, file: pq.ParquetFile, group: int, chunk: _Chunk, rows: int, most: float
) -> Sizes:
    # a bound is cheap and does where it is small; only else are values looked at
    size = chunk.most(chunk.dictionary)
    if size > PARQUET.unexamined_bytes and chunk.kind == "BYTE_ARRAY" and (chunk.dictionary or chunk.delta):
        longest = chunk.largest if chunk.delta else _longest(path, file, group, chunk)
        size = chunk.most(longest)
        if chunk.delta or longest > PARQUET.short_text_bytes or size > most:
            if not chunk.only_coded:
                longest = max(longest, chunk.largest)
            return _measured(path, file, group, chunk, rows, longest, most)
    steps = -(-rows // _step_of(rows))
    return np.full(steps, size / max(1, steps))


def _longest(path: Path, file: pq.ParquetFile, group: int, chunk: _Chunk) -> int:
    with _by_dictionary(path, file, chunk) as source:
        # one row is enough: the reader hands on the whole dictionary with it
        batches = source.reader.iter_batches(
            1, row_groups=[group], column_indices=[chunk.index], use_threads=False
        )
        found = _leaf(next(iter(batches)).column(0)) if chunk.values else None
    if found is None or not t.is_dictionary(found.type) or not len(found.dictionary):
        return chunk.dictionary
    return int(pc.max(pc.binary_length(found.dictionary)).as_py() or 0)


def _by_dictionary(path: Path, file: pq.ParquetFile, chunk: _Chunk) -> pq.ParquetFile:
    name = file.schema.column(chunk.index).path
    return pq.ParquetFile(path, metadata=file.metadata, read_dictionary=[name], pre_buffer=False)


def _measured(
    path: Path, file: pq.ParquetFile, group: int, chunk: _Chunk, rows: int, longest: int, most: float
) -> Sizes:
    step = _step_of(rows)
    sizes: Sizes = np.zeros(-(-rows // step))
    with contextlib.ExitStack() as stack:
        # values of a dictionary are not made: its lengths are looked up by code
        if chunk.only_coded:
            batch_rows, source = BATCH_ROWS, stack.enter_context(_by_dictionary(path, file, chunk))
        else:
            batch_rows, source = max(1, min(BATCH_ROWS, PARQUET.batch_bytes // 2 // max(1, longest))), file
        batches = source.reader.iter_batches(
            batch_rows, row_groups=[group], column_indices=[chunk.index], use_threads=False
        )
        at, total = 0, 0.0
        for batch in batches:
            lengths = _lengths(_leaf(batch.column(0)))
            total += float(lengths.sum())
            if total > most:
                raise _beyond(path, chunk.name, _most(path))
            if chunk.repeated:
                place = np.linspace(at, at + batch.num_rows, num=len(lengths), endpoint=False)
            else:
                place = np.arange(at, at + len(lengths))
            place = np.minimum(place.astype(np.int64) // step, len(sizes) - 1)
            first = min(at // step, len(sizes) - 1)
            added = np.bincount(place - first, weights=lengths)
            sizes[first : first + len(added)] += added
            at += batch.num_rows
    return sizes


def _leaf(array: pa.Array) -> pa.Array:
    while True:
        if t.is_struct(array.type):
            array = array.field(0)
        elif t.is_map(array.type):  # one of its two leaves was read
            array = array.items if array.keys.null_count == len(array.keys) else array.keys
        elif t.is_list(array.type) or t.is_large_list(array.type) or t.is_fixed_size_list(array.type):
            array = array.flatten()
        else:
            return array


def _lengths(array: pa.Array) -> Sizes:
    if t.is_dictionary(array.type):
        each = pc.binary_length(array.dictionary).cast(pa.int64()).to_numpy(zero_copy_only=False)
        numbers = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        lengths = each[numbers] if len(each) else np.zeros(len(array), dtype=np.int64)
    else:
        lengths = pc.binary_length(array).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(lengths, dtype=np.float64) + 4.0


def _fitting(path: Path, sizes: Sizes, step: int, chunks: list[_Chunk]) -> int:
    rows = BATCH_ROWS
    while rows >= step:
        starts = np.arange(0, len(sizes), rows // step)
        if not len(sizes) or np.add.reduceat(sizes, starts).max() <= PARQUET.batch_bytes:
            return rows
        rows //= 2
    if float(sizes.max()) <= step * PARQUET.page_bytes:
        return 1
    raise _beyond(path, _largest(chunks), PARQUET.batch_bytes)


def _largest(chunks: list[_Chunk]) -> str:
    return max(chunks, key=lambda c: c.most(c.dictionary)).name if chunks else ""


def read_ahead(read: Callable[[_Item], Iterable[_Rows]], items: Iterable[_Item]) -> Iterator[_Rows]:
    """What is read of each item, in their order; as many are read at a time as Arrow may use cores."""
    threads, waiting = pa.cpu_count(), deque[Future[list[_Rows]]]()
    with ThreadPoolExecutor(threads) as pool:
        for item in items:
            waiting.append(pool.submit(lambda item: list(read(item)), item))
            if len(waiting) > threads:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()


def _damaged(path: Path, what: str) -> BadInputError:
    return BadInputError(f"not a readable Parquet file: {what}", file=str(path))


def _most(path: Path) -> int:
    return max(PARQUET.decoded_bytes, PARQUET.decoded_ratio * path.stat().st_size)


def _beyond(path: Path, name: str, most: int) -> OversizedInputError:
    what = f"its rows become more than {most >> 20:,} MiB, which is all that is decoded"
    return _oversized(path, f"column `{name}`: {what}")


def _oversized(path: Path, what: str) -> OversizedInputError:
    message = f"{what} of a file of {path.stat().st_size:,} bytes"
    hint = "a file like this is made to exhaust memory; if it is not, write it in smaller pieces"
    return OversizedInputError(message, file=str(path), hint=hint)
