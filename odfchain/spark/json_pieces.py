"""Large JSON documents as pieces that tasks read side by side, each made values by C in one call.

A first pass guesses where records end. Nothing rests on the guess: where each piece is a list of objects by
itself, with a comma before it, and what surrounds them is a document with one object in their place, there
the whole is that document with those records. Whatever is not sure is read by the exact parser
(`json_records`), which alone says what is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from odfchain.limits import INPUT
from odfchain.odf import schema as ds
from odfchain.spark.json_typed import MARK, TypedReader, UnsureError, coordinates_marked
from odfchain.spark.json_values import (
    GEOMETRY,
    FeatureCollection,
    JsonArray,
    Record,
    RecordError,
    Value,
    check_case,
    check_characters,
    check_named,
    number_value,
    quoted,
    text_type,
    without_empty,
)
from odfchain.startup import no_search_for_circles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


SMALL = 2 << 20
"""Documents up to this size are read as a whole [bytes]."""
PIECE = 1 << 20
"""A piece ends with the first record that ends behind so much [bytes]; a worker holds one piece at a time."""
_CHUNK = 4 << 20
# Most that may surround the records, on either side [bytes].
_AROUND = 1 << 18
# Nesting that every bound allows, that of types as well.
_LEVELS = 32
_BLANK = b" \t\r\n"
_TOKENS = bytes(c in b'"[]{}' for c in range(256))
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
# A number with so many digits in a row may have to be spelled in another way, or have too many of them.
_LONG = b"0" * 40
_MINUS_ZERO = re.compile(r"-0(?![.0-9])")
# A list of numbers, or of such lists, and the blanks and the comma behind it.
_COORDINATES = re.compile(r'("coordinates"[ \t\r\n]*:[ \t\r\n]*)(\[[-+0-9.eE,\[\] \t\r\n]*+)')
_BEHIND = " \t\r\n,"
_EXPONENTIAL = re.compile(r"-?[0-9.]+[eE][-+]?[0-9]+")
_NO_BREAKS = dict.fromkeys(map(ord, "\t\r\n"))

Document: TypeAlias = JsonArray | FeatureCollection


# --- where records end -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Piece:
    """Some records of a document: where they stand, the number of the first one from 0, how many they are."""

    start: int
    end: int
    row: int
    rows: int


@dataclass(slots=True)
class _Brackets:
    """Finds the brackets that are outside of texts, chunk by chunk."""

    at: int = 0
    """Where the next chunk begins."""
    plain: bool = True
    """There was no escape and no DEL so far: no text holds a control character, where it is JSON."""
    _depth: int = 0
    # 1 within a text.
    _inside: int = 0
    _kept: bytes = b""

    def feed(self, chunk: bytes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        import numpy as np

        data = self._kept + chunk
        whole = data.rstrip(b"\\") if data.endswith(b"\\") else data
        self._kept = data[len(whole) :]
        data = whole.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in whole else whole
        self.plain = self.plain and b"\\" not in chunk and b"\x7f" not in chunk
        places = np.flatnonzero(np.frombuffer(data.translate(_TOKENS), np.bool_))
        kinds = np.frombuffer(data, np.uint8)[places]
        quotes = kinds == ord('"')
        inside = (np.cumsum(quotes, dtype=np.uint8) + np.uint8(self._inside)) & 1
        if len(inside):
            self._inside = int(inside[-1])
        outside = ~(quotes | inside.view(np.bool_))
        places = places[outside] + self.at
        # opening brackets have the second bit, closing ones do not
        steps = (kinds[outside] & 2).view(np.int8) - np.int8(1)
        depth = np.cumsum(steps, dtype=np.int32) + np.int32(self._depth)
        if len(depth):
            self._depth = int(depth[-1])
        self.at += len(data)
        return places, depth


def split(document: Document) -> Document | SplitDocument:
    """The document in pieces, where it is large and nothing speaks against it; else as it is."""
    try:
        size = Path(document.path).stat().st_size
        if size > SMALL and document.encoding in ("utf-8", "ascii"):
            with open(document.path, "rb") as stream:  # noqa: PTH123 - a path as it came from the driver
                return _split(document, stream, size)
    except (UnsureError, RecordError, OSError):
        pass
    return document


def _split(document: Document, stream: BinaryIO, size: int) -> SplitDocument:
    head = stream.read(_AROUND)
    head = head[: _first_record(head, document.keys)]
    stream.seek(len(head))
    brackets = _Brackets(len(head))
    pieces = tuple(_pieces(stream, brackets))
    if not pieces or size - pieces[-1].end > _AROUND:
        raise UnsureError
    stream.seek(pieces[-1].end)
    token = uuid.uuid4().hex
    around = head + b'{"type":"Feature","properties":{"%s":0}}' % token.encode() + stream.read()
    found = list(document.records_of(io.BytesIO(around)))
    if len(found) != 1 or token not in str(found):
        raise UnsureError
    return SplitDocument(document, pieces, brackets.plain)


def _first_record(head: bytes, keys: tuple[str, ...]) -> int:
    places, depth = _Brackets().feed(head)
    for place in places[depth == len(keys) + 1].tolist():
        before = head[:place].rstrip(_BLANK)
        if head[place : place + 1] == b"[" and (
            not keys or before[:-1].rstrip(_BLANK).endswith(quoted(keys[-1]).encode())
        ):
            # the first place that may be meant
            return int(place) + 1
    raise UnsureError


def _pieces(stream: BinaryIO, brackets: _Brackets) -> Iterator[Piece]:
    import numpy as np

    start, row, rows = brackets.at, 0, 0
    while chunk := stream.read(_CHUNK):
        places, depth = brackets.feed(chunk)
        ended = np.flatnonzero(depth < 0)[:1]
        if len(ended):
            depth = depth[: ended[0]]
        if depth.max(initial=0) > _LEVELS or brackets.at - start > INPUT.record_bytes // 2:
            raise UnsureError
        ends = places[: len(depth)][depth == 0] + 1
        index = int(np.searchsorted(ends, start + PIECE))
        while index < len(ends):
            end, before = int(ends[index]), row
            row = rows + index + 1
            yield Piece(start, end, before, row - before)
            start = end
            index = int(np.searchsorted(ends, start + PIECE))
        rows += len(ends)
        if len(ended):
            yield Piece(start, int(places[ended[0]]), row, rows - row)
            return
    raise UnsureError


# --- values ----------------------------------------------------------------------------------------


def _members(pairs: list[tuple[str, Value]]) -> Record:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise UnsureError
    return members


def _constant(_: str) -> Value:
    raise UnsureError


def _float(text: str) -> str:
    return text if "e" not in text and "E" not in text else str.__str__(number_value(Decimal(text)))


def _marked(text: str) -> str:
    return f"{MARK}{'0' if text == '-0' else _float(text)}{MARK}"


def _decoder(integer: Callable[[str], str], other: Callable[[str], str]) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_members, parse_int=integer, parse_float=other, parse_constant=_constant
    )


_PLAIN, _MARKING = _decoder(str, _float), _decoder(_marked, _marked)
_TEXTS = json.JSONDecoder(parse_int=str, parse_float=str)
_WRITTEN, _SORTED = (
    json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), sort_keys=s)
    for s in (False, True)
)


def _coordinates_as_texts(text: str) -> str:
    """Members of a list, whose lists of coordinates are marked as numbers are and stay as written."""
    found: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        listed = match[2].rstrip(_BEHIND)
        if not listed.endswith("]"):
            return match[0]
        found.append(listed)
        written = listed.replace(" ", "").translate(_NO_BREAKS)
        if "e" in written or "E" in written:
            written = _EXPONENTIAL.sub(lambda number: _float(number[0]), written)
        return f'{match[1]}"{MARK}{written}{MARK}"{match[2][len(listed) :]}'

    changed = _COORDINATES.sub(replaced, text)
    # each is one list: a text is put between them, which could not be in one of them
    together = '"",'.join([f"{t}," for t in found])
    if _MINUS_ZERO.search(together):
        return text
    values = _TEXTS.decode(f'[{together}""]')
    if len(values) != 2 * len(found) + (not found) or values[1::2] != [""] * len(found):
        raise UnsureError
    return changed


def _json(value: Value, encoder: json.JSONEncoder = _WRITTEN) -> str:
    return encoder.encode(value).replace(f'"{MARK}', "").replace(f'{MARK}"', "")


@dataclass(frozen=True, slots=True)
class _Columns:
    """Makes columns of values; each value as `column_value` makes it."""

    marked: bool
    """Numbers have marks, which texts do not have."""

    def column(self, values: list[Value], kind: ds.DataType) -> pa.Array:
        import numpy as np
        import pyarrow as pa

        match kind:
            case ds.DataTypeOption(inner=inner):
                return self.column(values, inner)
            case ds.DataTypeList(item_type=item):
                _only(values, list)
                items = self.column(list(itertools.chain.from_iterable(v for v in values if v)), item)
                ends = np.cumsum([0, *[len(v) if v else 0 for v in values]], dtype=np.int32)
                nulls = pa.array([v is None for v in values], pa.bool_())
                return pa.ListArray.from_arrays(pa.array(ends), items, text_type(kind), mask=nulls)
            case ds.DataTypeStruct(fields=fields):
                _only(values, dict)
                nulls = pa.array([v is None for v in values], pa.bool_())
                columns = self.columns([v or {} for v in values], fields)
                return pa.StructArray.from_arrays(columns, fields=list(text_type(kind)), mask=nulls)
            case ds.DataTypeMap():
                raise UnsureError
        return self.texts(values)

    def columns(self, records: list[Record], fields: tuple[ds.DataField, ...]) -> list[pa.Array]:
        try:
            check_case(set().union(*records), fields)
        except RecordError:
            raise UnsureError from None
        return [self.column([r.get(f.name) for r in records], f.type) for f in fields]

    def texts(self, values: list[Value]) -> pa.Array:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            array = pa.array(values, pa.string())
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            if {type(v) for v in values} <= {bool, type(None)}:
                return pa.array(values, pa.bool_()).cast(pa.string())
            array = pa.array([self._text(v) for v in values], pa.string())
        return pc.replace_substring(array, MARK, "") if self.marked else array

    def _text(self, value: Value) -> str | None:
        if value is None or isinstance(value, str):
            return value
        if not self.marked and not isinstance(value, bool):
            raise UnsureError
        return _json(value)

    def records(self, records: list[Record]) -> pa.Array:
        """Records as JSON for inference, as `text_for_inference` makes it."""
        import pyarrow as pa

        if any(len(r) > INPUT.columns for r in records):
            raise UnsureError
        texts = []
        for record in records:
            text = _json(record)
            if '"":' in text:
                check_named(record)
            texts.append(_json(without_empty(record)) if "{}" in text else text)
        return pa.array(texts, pa.string())


def _only(values: list[Value], kind: type) -> None:
    if not {type(v) for v in values} <= {kind, type(None)}:
        raise UnsureError


def _has_geometry(fields: tuple[ds.DataField, ...]) -> bool:
    return any(f.name == GEOMETRY for f in fields)


def _geometry(geometry: Record) -> str:
    kind, coordinates = geometry.get("type"), geometry.get("coordinates")
    if len(geometry) > 2 or not (isinstance(kind, str) and isinstance(coordinates, str)):
        return _json(geometry, _SORTED)
    if not (kind.isalpha() and coordinates.startswith(MARK)):
        return _json(geometry, _SORTED)
    return f'{{"coordinates":{coordinates[1:-1]},"type":"{kind}"}}'  # six times as fast


def _features(values: list[Record], *, wanted: bool) -> list[Record]:
    """Features with marked numbers as `feature_record` makes them; their geometry only where it is wanted."""
    records = []
    for value in values:
        properties, geometry = value.get("properties"), value.get(GEOMETRY)
        if value.get("type") != "Feature" or not isinstance(properties, dict | None):
            raise UnsureError
        if not isinstance(geometry, dict | None):
            raise UnsureError
        record = {} if properties is None else properties
        record[GEOMETRY] = _geometry(geometry) if wanted and geometry is not None else None
        records.append(record)
    return records


# --- pieces ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitDocument:
    """A large document whose records are in pieces; what surrounds them was found to be right."""

    whole: Document
    pieces: tuple[Piece, ...]
    plain: bool
    """No value holds a control character."""

    @property
    def features(self) -> bool:
        """True if its records are features."""
        return isinstance(self.whole, FeatureCollection)

    def records(self) -> Iterator[Record]:
        """The records in order, by the exact parser."""
        return self.whole.records()

    def moved(self, path: str) -> SplitDocument:
        """The same of a copy of the file elsewhere."""
        return dataclasses.replace(self, whole=self.whole.moved(path))

    def members(self, text: bytes, piece: Piece) -> bytes:
        """The bytes of a piece as the members of a list, to be put into brackets.

        Raises:
            RecordError: no comma separates it from the piece before.
        """
        if piece.row == 0 or piece.rows == 0:
            return text
        rest = text.lstrip(_BLANK)
        if not rest.startswith(b","):
            raise RecordError("not valid JSON: no comma")
        return rest[1:]

    def exact(self, members: bytes) -> Iterator[Record]:
        """The records of a piece, by the exact parser."""
        elements = JsonArray(self.whole.path, self.whole.encoding).records_of(io.BytesIO(b"[%s]" % members))
        return map(self.whole.record, elements)

    def needs_marks(self, fields: tuple[ds.DataField, ...] | None) -> bool:
        """True if there are always values that are taken as texts and are none."""
        return fields is None or (self.features and _has_geometry(fields))

    def typed(
        self, members: bytes, rows: int, reader: TypedReader
    ) -> list[tuple[pa.Array | None, pa.Array | None]]:
        """The columns of a piece's records as `TypedReader` gives them, just as by the exact parser.

        Raises:
            UnsureError: they may not be what they should be, or not in this way.
        """
        try:
            text = self._text(members, marked=self.features)
            if not self.features:
                return reader.columns(text, rows)
            with contextlib.suppress(UnsureError):
                return reader.columns(coordinates_marked(text), rows)
            return reader.columns(_coordinates_as_texts(text), rows, checked=True)
        except (RecordError, ValueError, ArithmeticError, RecursionError):
            raise UnsureError from None

    def _text(self, members: bytes, *, marked: bool) -> str:
        # a run of 40 digits is nine of them where every fourth byte is looked at, which few texts have
        if _LONG[:9] in members[::4].translate(_DIGITS) and _LONG in members.translate(_DIGITS):
            raise UnsureError
        text = str(members, self.whole.encoding)
        escaped = "\\" in text
        if escaped and ("\\ud" in text or "\\uD" in text):
            check_characters(text)
        if marked and (MARK in text or (escaped and "\\u007" in text)):
            raise UnsureError
        return text

    def columns(
        self, members: bytes, rows: int, fields: tuple[ds.DataField, ...] | None, *, marked: bool
    ) -> list[pa.Array]:
        """These columns of a piece's records, or the whole as JSON, just as by the exact parser.

        With `marked` numbers, values that are no texts may be taken as texts.

        Raises:
            UnsureError: they may not be what they should be, or not in this way.
        """
        with no_search_for_circles():
            try:
                return self._arrays(members, rows, fields, marked=marked)
            except (RecordError, ValueError, ArithmeticError, RecursionError):
                raise UnsureError from None

    def _arrays(
        self, members: bytes, rows: int, fields: tuple[ds.DataField, ...] | None, *, marked: bool
    ) -> list[pa.Array]:
        text = self._text(members, marked=marked)
        if not marked and _MINUS_ZERO.search(text):
            raise UnsureError
        if marked and self.features:
            text = _coordinates_as_texts(text)
        records = (_MARKING if marked else _PLAIN).decode(f"[{text}]")
        if len(records) != rows:
            raise UnsureError
        _only(records, dict)
        if self.features:
            records = _features(records, wanted=self.needs_marks(fields))
        made = _Columns(marked)
        return [made.records(records)] if fields is None else made.columns(records, fields)
