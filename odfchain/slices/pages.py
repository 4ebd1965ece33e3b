"""The page headers of a Parquet file, read without decoding a page: what each would become.

The footer may say what it likes; Arrow allocates what the page headers say. They are Thrift structs in the
compact protocol. Source: https://github.com/apache/parquet-format (parquet.thrift, `PageHeader`),
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from odfchain.limits import PARQUET

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
    """The pages of the column chunk at the bytes `[start; end)`.

    Raises:
        ValueError: the headers are damaged, or lead out of the chunk.
    """
    at = start
    while at < end:
        header = _Header(stream, at)
        fields = header.struct()
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


class _Header:
    """A struct in the compact protocol; numbers and structs are kept, everything else is passed over."""

    def __init__(self, stream: BinaryIO, at: int) -> None:
        self.position = 0
        self._stream = stream
        stream.seek(at)
        self._data = stream.read(_READ_BYTES)

    def struct(self, depth: int = 0) -> dict[int, object]:
        if depth > _DEPTH:
            raise ValueError("a page header is nested too deeply")
        fields: dict[int, object] = {}
        last = 0
        while (head := self._byte()) != 0:
            last = last + (head >> 4) if head >> 4 else self._signed()
            fields[last] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> object:
        match kind:
            case 1 | 2:
                return kind == 1
            case 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._signed()
            case 7:
                self._skip(8)
            case 8:
                self._skip(self._unsigned())
            case 9 | 10:
                head = self._byte()
                count = head >> 4 if head >> 4 < 15 else self._unsigned()
                for _ in range(min(count, PARQUET.page_header_bytes)):
                    self._value(head & 15, depth + 1)
            case 12:
                return self.struct(depth + 1)
            case _:
                raise ValueError("a page header has a field of unknown type")
        return None

    def _byte(self) -> int:
        self._need(1)
        self.position += 1
        return self._data[self.position - 1]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a page header has a number of more than 64 bits")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, count: int) -> None:
        self._need(count)
        self.position += count

    def _need(self, count: int) -> None:
        wanted = self.position + count
        if wanted > PARQUET.page_header_bytes:
            raise ValueError(f"a page header has more than {PARQUET.page_header_bytes:,} bytes")
        while len(self._data) < wanted:
            more = self._stream.read(max(_READ_BYTES, wanted - len(self._data)))
            if not more:
                raise ValueError("the file ends inside a page header")
            self._data += more
