"""Large JSON documents as pieces that tasks read side by side, each made values by C in one call.

A first pass guesses where records end. Nothing rests on the guess: where each piece is a list of objects by
itself, with a comma before it, and what surrounds them is a document with one object in their place, there
the whole is that document with those records. What is not sure is read by the exact parser
(`json_values`), which alone says what is wrong.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from odfchain.lazy import pa, pc
from odfchain.limits import INPUT
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import to_arrow_type
from odfchain.spark import json_values
from odfchain.spark.text_values import carried_type
from odfchain.startup import no_search_for_circles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


SMALL = 2 << 20
"""Documents up to this size are read as a whole [bytes]."""
PIECE = 1 << 20
"""A piece ends with the first record that ends behind so much [bytes]; a worker holds one piece at a time."""
MARK = "\x7f"
"""Marks both ends of values that are held as texts and are none; the piece has no such character then."""
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

TRIES = 2
"""As often a piece may fail before a task tries no further one: they are likely of one kind."""
# Records that tell of which types the keys are that are no columns.
_SAMPLE = 200
# Of values in a piece: objects times keys, most of which are missing where keys differ.
_MOST_PLACES = 20_000_000
_BETWEEN = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
# A break would end a block for Arrow's reader; a tab is as much a blank, and within a text as wrong.
_BREAKS_AS_TABS = bytes.maketrans(b"\r\n", b"\t\t")
_PRECISE = Context(prec=38)
_EXPONENT = re.compile(rb"[0-9][eE]")
# Matches numbers that may be zero only as a float of so many bits, or a zero that loses its sign.
_TINY = {
    32: re.compile(rb"-0(?![.0-9])|[eE]-[0-9]{2}"),
    64: re.compile(rb"-0(?![.0-9])|[eE]-[0-9]{3}"),
}


class UnsureError(Exception):
    """The quick way does not know; another one has to look."""


@contextlib.contextmanager
def _unsure() -> Iterator[None]:
    try:
        yield
    except (json_values.RecordError, ValueError, ArithmeticError, RecursionError):
        raise UnsureError from None


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


def _split(document: json_values.JsonArray, stream: BinaryIO, size: int) -> SplitDocument:
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
    return SplitDocument(document, pieces)


def _first_record(head: bytes, keys: tuple[str, ...]) -> int:
    places, depth = _Brackets().feed(head)
    for place in places[depth == len(keys) + 1].tolist():
        before = head[:place].rstrip(_BLANK)
        if head[place : place + 1] == b"[" and (
            not keys or before[:-1].rstrip(_BLANK).endswith(json_values.quoted(keys[-1]).encode())
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


def _members(pairs: list[tuple[str, json_values.Value]]) -> json_values.Record:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise UnsureError
    return members


def _constant(_: str) -> json_values.Value:
    raise UnsureError


def _float(text: str) -> str:
    return (
        text if "e" not in text and "E" not in text else str.__str__(json_values.number_value(Decimal(text)))
    )


def _marked(text: str) -> str:
    return f"{MARK}{'0' if text == '-0' else _float(text)}{MARK}"


def _decoder(integer: Callable[[str], str], other: Callable[[str], str]) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=_members, parse_int=integer, parse_float=other, parse_constant=_constant
    )


def _marked_as_written(text: str) -> str:
    return f"{MARK}{text}{MARK}"


# without and with marks
_SPELLED = _decoder(str, _float), _decoder(_marked, _marked)
_AS_WRITTEN = _decoder(str, str), _decoder(_marked_as_written, _marked_as_written)
_TEXTS = json.JSONDecoder(parse_int=str, parse_float=str)
_WRITTEN, _SORTED = (
    json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":"), sort_keys=s)
    for s in (False, True)
)


def _coordinates_as_texts(text: str, *, spelled: bool) -> str:
    """Members of a list, whose lists of coordinates are marked as numbers are and stay as written."""
    found: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        listed = match[2].rstrip(_BEHIND)
        if not listed.endswith("]"):
            return match[0]
        found.append(listed)
        written = listed.replace(" ", "").translate(_NO_BREAKS)
        if spelled and ("e" in written or "E" in written):
            written = _EXPONENTIAL.sub(lambda number: _float(number[0]), written)
        return f'{match[1]}"{MARK}{written}{MARK}"{match[2][len(listed) :]}'

    changed = _COORDINATES.sub(replaced, text)
    # each is one list: a text is put between them, which could not be in one of them
    together = '"",'.join([f"{t}," for t in found])
    if spelled and _MINUS_ZERO.search(together):
        return text
    values = _TEXTS.decode(f'[{together}""]')
    if len(values) != 2 * len(found) + (not found) or values[1::2] != [""] * len(found):
        raise UnsureError
    return changed


def _json(value: json_values.Value, encoder: json.JSONEncoder = _WRITTEN) -> str:
    return encoder.encode(value).replace(f'"{MARK}', "").replace(f'{MARK}"', "")


@dataclass(frozen=True, slots=True)
class _Columns:
    """Makes columns of values; each value as `column_value` makes it."""

    marked: bool
    """Numbers have marks, which texts do not have."""

    def column(self, values: list[json_values.Value], kind: ds.DataType) -> pa.Array:
        import numpy as np

        match kind:
            case ds.DataTypeOption(inner=inner):
                return self.column(values, inner)
            case ds.DataTypeList(item_type=item):
                _only(values, list)
                items = self.column(list(itertools.chain.from_iterable(v for v in values if v)), item)
                ends = np.cumsum([0, *[len(v) if v else 0 for v in values]], dtype=np.int32)
                nulls = pa.array([v is None for v in values], pa.bool_())
                return pa.ListArray.from_arrays(
                    pa.array(ends), items, json_values.text_type(kind), mask=nulls
                )
            case ds.DataTypeStruct(fields=fields):
                _only(values, dict)
                nulls = pa.array([v is None for v in values], pa.bool_())
                columns = self.columns([v or {} for v in values], fields)
                return pa.StructArray.from_arrays(
                    columns, fields=list(json_values.text_type(kind)), mask=nulls
                )
            case ds.DataTypeMap():
                raise UnsureError
        return self.texts(values)

    def columns(self, records: list[json_values.Record], fields: tuple[ds.DataField, ...]) -> list[pa.Array]:
        try:
            json_values.check_case(set().union(*records), fields)
        except json_values.RecordError:
            raise UnsureError from None
        return [self.column([r.get(f.name) for r in records], f.type) for f in fields]

    def texts(self, values: list[json_values.Value]) -> pa.Array:
        try:
            array = pa.array(values, pa.string())
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            if {type(v) for v in values} <= {bool, type(None)}:
                return pa.array(values, pa.bool_()).cast(pa.string())
            array = pa.array([self._text(v) for v in values], pa.string())
        return pc.replace_substring(array, MARK, "") if self.marked else array

    def _text(self, value: json_values.Value) -> str | None:
        if value is None or isinstance(value, str):
            return value
        if not self.marked and not isinstance(value, bool):
            raise UnsureError
        return _json(value)

    def records(self, records: list[json_values.Record]) -> pa.Array:
        """Records as JSON for inference, as `record_batches` makes it."""
        if any(len(r) > INPUT.columns for r in records):
            raise UnsureError
        texts = []
        for record in records:
            text = _json(record)
            if '"":' in text:
                json_values.check_named(record)
            texts.append(_json(json_values.without_empty(record)) if "{}" in text else text)
        return pa.array(texts, pa.string())


def _only(values: list[json_values.Value], kind: type) -> None:
    if not {type(v) for v in values} <= {kind, type(None)}:
        raise UnsureError


def _geometry(geometry: json_values.Record) -> str:
    kind, coordinates = geometry.get("type"), geometry.get("coordinates")
    if len(geometry) > 2 or not (isinstance(kind, str) and isinstance(coordinates, str)):
        return _json(geometry, _SORTED)
    if not (kind.isalpha() and coordinates.startswith(MARK)):
        return _json(geometry, _SORTED)
    return f'{{"coordinates":{coordinates[1:-1]},"type":"{kind}"}}'  # six times as fast


def _features(values: list[json_values.Record], *, wanted: bool) -> list[json_values.Record]:
    """Features with marked numbers as `feature_record` makes them; their geometry only where it is wanted."""
    records = []
    for value in values:
        properties, geometry = value.get("properties"), value.get(json_values.GEOMETRY)
        if value.get("type") != "Feature" or not isinstance(properties, dict | None):
            raise UnsureError
        if not isinstance(geometry, dict | None):
            raise UnsureError
        record = {} if properties is None else properties
        record[json_values.GEOMETRY] = _geometry(geometry) if wanted and geometry is not None else None
        records.append(record)
    return records


# A piece as typed columns by Arrow's reader in one pass, where that gives what the strict rules give.
#
# The reader keeps to the grammar, refuses keys that occur twice at any depth and numbers that a column
# cannot hold, and guesses nothing where every key has a type. What it lets pass otherwise (NaN, numbers that
# become zero, forms of times that the rules do not know) is looked for here. Features are not read so: most
# of them is coordinates, which stay text (1.2 times as fast, where other records are 1.7 times; RFC-010).


def _exact_type(data_type: ds.DataType) -> pa.DataType | None:
    """The type that a value is read as which needs no further look at its text; None where there is none."""
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return _exact_type(inner)
        case ds.DataTypeString() | ds.DataTypeBool() | ds.DataTypeFloat32() | ds.DataTypeFloat64():
            return to_arrow_type(data_type)
        case ds.DataTypeInt8() | ds.DataTypeInt16() | ds.DataTypeInt32() | ds.DataTypeInt64():
            return to_arrow_type(data_type)
        case ds.DataTypeDecimal(precision=precision, scale=scale) if 0 <= scale <= precision <= 38:
            return to_arrow_type(data_type)
        case ds.DataTypeList(item_type=item):
            inside = _exact_type(item)
            return None if inside is None else pa.list_(pa.field("element", inside))
        case ds.DataTypeStruct(fields=fields):
            types = [_exact_type(f.type) for f in fields]
            if None in types:
                return None
            return pa.struct([pa.field(f.name, t) for f, t in zip(fields, types, strict=True)])
    return None


@dataclass(frozen=True, slots=True)
class TypedColumn:
    """How a column is read at once."""

    field: ds.DataField
    read: pa.DataType
    """As Arrow's reader gives it."""
    text: bool = False
    """It is read as text, of which values are made as of all texts."""

    @classmethod
    def of(cls, field: ds.DataField) -> TypedColumn | None:
        """How this column is read; None where it cannot be."""
        texts = (
            ds.DataTypeString, ds.DataTypeTime, ds.DataTypeBinary, ds.DataTypeTimestamp, ds.DataTypeDate,
        )  # fmt: skip
        if isinstance(field.value_type, texts):
            return cls(field, pa.string(), text=True)
        exact = _exact_type(field.type)
        return None if exact is None else cls(field, exact)


def _kind_of(values: Sequence[json_values.Value], depth: int = 0) -> pa.DataType:
    """A type for values of a key that is no column; other values are read by the exact parser."""
    values = [v for v in values if v is not None]
    kinds = {float if type(v) is int else type(v) for v in values}
    if not kinds:
        return pa.null()
    if len(kinds) > 1 or depth > _LEVELS:
        raise UnsureError
    (kind,) = kinds
    if kind is dict:
        return _with_others(pa.struct([]), values, depth + 1)
    if kind is list:
        return pa.list_(_kind_of([item for v in values for item in v], depth + 1))
    return {bool: pa.bool_(), float: pa.float64(), str: pa.string()}[kind]


def _with_others(known: pa.DataType, values: Sequence[json_values.Value], depth: int = 0) -> pa.DataType:
    """A type together with the keys of these values that it does not have, or has no type for."""
    if pa.types.is_null(known):
        return _kind_of(values, depth)
    if pa.types.is_list(known):
        items = [item for v in values if isinstance(v, list) for item in v]
        return pa.list_(known.value_field.with_type(_with_others(known.value_type, items, depth + 1)))
    if not pa.types.is_struct(known):
        return known
    values = [v for v in values if isinstance(v, dict)]
    fields = [
        pa.field(f.name, _with_others(f.type, [v.get(f.name) for v in values], depth + 1)) for f in known
    ]
    names = {f.name for f in fields}
    others = dict.fromkeys(key for v in values for key in v if key not in names)
    fields += [pa.field(key, _kind_of([v.get(key) for v in values], depth + 1)) for key in others]
    return pa.struct(fields)


def _check_case(found: pa.DataType, data_type: ds.DataType) -> None:
    match data_type:
        case ds.DataTypeOption(inner=inner):
            _check_case(found, inner)
        case ds.DataTypeList(item_type=item):
            _check_case(found.value_type, item)
        case ds.DataTypeStruct(fields=fields):
            json_values.check_case([f.name for f in found], fields)
            for f in fields:
                _check_case(found.field(f.name).type, f.type)


def _first_records(text: str, most: int) -> list[json_values.Value]:
    """The first members of a piece, as far as they can be read; numbers are floats."""
    decoder = json.JSONDecoder(parse_int=float)
    found: list[json_values.Value] = []
    at = 0
    try:
        while len(found) < most:
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr] # it matches nothing as well
            value, at = decoder.raw_decode(text, at)
            found.append(value)
    except (ValueError, RecursionError):
        pass
    return found


class TypedReader:
    """Reads pieces by columns; learns from the first one which other keys there are."""

    def __init__(self, columns: tuple[TypedColumn, ...], between: str = "") -> None:
        self._columns, self._between = columns, between
        self._element: pa.DataType | None = None
        self.tries = TRIES
        """How often a piece may still fail."""

    def columns(self, text: str, rows: int) -> list[pa.Array]:
        """The values of each column, or its texts; the text has no number of 40 digits."""
        if not rows or "\0" in text:
            raise UnsureError
        try:
            members = text.encode().translate(_BREAKS_AS_TABS)
            records = self._records(text, members, rows)
            self._check_numbers(records, members)
            arrays = _members_of(records, [c.field.name for c in self._columns])
            return [_read_column(array, c) for array, c in zip(arrays, self._columns, strict=True)]
        except (pa.ArrowException, json_values.RecordError, UnicodeEncodeError):
            raise UnsureError from None

    def _records(self, text: str, members: bytes, rows: int) -> pa.Array:
        if self._element is None:
            others = [(self._between, pa.bool_())] * bool(self._between)
            own = pa.struct([*[(c.field.name, c.read) for c in self._columns], *others])
            self._element = self._learned(own, _first_records(text, _SAMPLE))
        try:
            return _elements(members, self._element, rows, self._between)
        except pa.ArrowException:
            # it may have keys that the first records did not have
            more = self._learned(self._element, _first_records(text, rows))
            if more == self._element:
                raise
            self._element = more
            return _elements(members, more, rows, self._between)

    def _learned(self, known: pa.DataType, values: list[json_values.Value]) -> pa.DataType:
        element = _with_others(known, values)
        fields = tuple(c.field for c in self._columns)
        json_values.check_case([f.name for f in element], fields)
        for f in fields:
            _check_case(element.field(f.name).type, f.type)
        return element

    def _check_numbers(self, records: pa.Array, members: bytes) -> None:
        from odfchain.slices.reader import leaves_of

        tiny: dict[int, bool] = {}
        for leaf in leaves_of(records):
            if pa.types.is_decimal(leaf.type):
                if _EXPONENT.search(members) or not _fits(leaf):
                    raise UnsureError
            elif pa.types.is_floating(leaf.type):
                bits = leaf.type.bit_width
                if pc.all(pc.is_finite(leaf)).as_py() is False:
                    raise UnsureError
                if pc.any(pc.equal(leaf, pa.scalar(0, leaf.type))).as_py():
                    if bits not in tiny:
                        tiny[bits] = _TINY[bits].search(members) is not None
                    if tiny[bits]:
                        raise UnsureError


def _fits(array: pa.Array) -> bool:
    # Arrow's JSON reader does not hold decimals to the digits of their type
    wide = pa.decimal128(38, array.type.scale)
    values = pa.Array.from_buffers(wide, len(array), array.buffers(), offset=array.offset)
    largest = Decimal(10**array.type.precision - 1).scaleb(-array.type.scale, _PRECISE)
    return pc.all(pc.less_equal(pc.abs(values), pa.scalar(largest, wide))).as_py() is not False


def _elements(members: bytes, element: pa.DataType, rows: int, between: str) -> pa.Array:
    """The elements of the list with these members: `rows` objects of bounded size; others `between` them."""
    import pyarrow.json as pj

    if members.count(b"{") * _leaf_count(element) > _MOST_PLACES:
        raise UnsureError
    text = b'{"r":[%s]}' % members
    found = pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema([("r", pa.list_(element))]), unexpected_field_behavior="error"
        ),
    )
    if found.num_rows != 1 or found.column_names != ["r"]:
        raise UnsureError
    elements = found.column(0).chunk(0).flatten()
    if between:
        if len(elements) != 2 * rows - 1:
            raise UnsureError
        marks = elements.field(between)
        if marks[::2].null_count != rows or (pc.sum(marks[1::2]).as_py() or 0) != rows - 1:
            raise UnsureError
        elements = elements[::2]
    if len(elements) != rows or elements.null_count:
        raise UnsureError
    return elements


def _members_of(array: pa.Array, names: Iterable[str]) -> list[pa.Array]:
    flat = array.flatten()
    return [flat[array.type.get_field_index(name)] for name in names]


def _leaf_count(data_type: pa.DataType) -> int:
    if pa.types.is_struct(data_type):
        return sum(_leaf_count(f.type) for f in data_type)
    return _leaf_count(data_type.value_type) if pa.types.is_list(data_type) else 1


def _read_column(array: pa.Array, column: TypedColumn) -> pa.Array:
    return array if column.text else _without_others(array, carried_type(column.field.type))


def _without_others(array: pa.Array, target: pa.DataType) -> pa.Array:
    if array.type == target:
        return array
    if pa.types.is_list(target):
        items = _without_others(array.values, target.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, target, mask=array.is_null())
    members = [
        _without_others(member, f.type)
        for member, f in zip(_members_of(array, [f.name for f in target]), target, strict=True)
    ]
    return pa.StructArray.from_arrays(members, fields=list(target), mask=array.is_null())


@dataclass(frozen=True, slots=True)
class Decoder:
    """Makes columns of records that are the members of a list."""

    features: bool
    """The records are features."""
    encoding: str = "utf-8"
    between: str = ""
    """The key of an object between two records, a secret: a line that is no whole record would take it in, or
    lack it."""

    def needs_marks(self, fields: tuple[ds.DataField, ...] | None) -> bool:
        """True if there are always values that are taken as texts and are none."""
        return fields is None or (self.features and any(f.name == json_values.GEOMETRY for f in fields))

    def typed(self, members: bytes, rows: int, reader: TypedReader) -> list[pa.Array]:
        """The columns of a piece's records as `TypedReader` gives them, just as by the exact parser."""
        with _unsure():
            return reader.columns(self._text(members, marked=False), rows)

    def _text(self, members: bytes, *, marked: bool) -> str:
        if self.between and _Brackets().feed(members)[1].max(initial=0) > _LEVELS:
            raise UnsureError  # of documents the depth is known
        # a run of 40 digits is nine of them where every fourth byte is looked at, which few texts have
        if _LONG[:9] in members[::4].translate(_DIGITS) and _LONG in members.translate(_DIGITS):
            raise UnsureError
        text = str(members, self.encoding)
        escaped = "\\" in text
        if escaped and ("\\ud" in text or "\\uD" in text):
            json_values.CharacterCheck().check(text, last=True)
        if marked and (MARK in text or (escaped and "\\u007" in text)):
            raise UnsureError
        return text

    def columns(
        self, members: bytes, rows: int, fields: tuple[ds.DataField, ...] | None, *, marked: bool
    ) -> list[pa.Array]:
        """These columns of a piece's records, or the whole as JSON, just as by the exact parser.

        With `marked` numbers, values that are no texts may be taken as texts.
        """
        with no_search_for_circles(), _unsure():
            text = self._text(members, marked=marked)
            spelled = not self.between  # lines have their numbers as they are written
            if spelled and not marked and _MINUS_ZERO.search(text):
                raise UnsureError
            if marked and self.features:
                text = _coordinates_as_texts(text, spelled=spelled)
            records = (_SPELLED if spelled else _AS_WRITTEN)[marked].decode(f"[{text}]")
            if self.between:
                if any(other != {self.between: True} for other in records[1::2]):
                    raise UnsureError
                records = records[::2]
            if len(records) != rows:
                raise UnsureError
            if not all(type(record) is dict for record in records):
                raise UnsureError
            if self.features:
                records = _features(records, wanted=self.needs_marks(fields))
            made = _Columns(marked)
            return [made.records(records)] if fields is None else made.columns(records, fields)


# --- pieces ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SplitDocument:
    """A large document whose records are in pieces; what surrounds them was found to be right."""

    whole: json_values.JsonArray
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, document: json_values.JsonArray) -> json_values.JsonArray | SplitDocument:
        """The document in pieces, where it is large and nothing speaks against it; else as it is."""
        try:
            size = Path(document.path).stat().st_size
            if size > SMALL and document.encoding in ("utf-8", "ascii"):
                with open(document.path, "rb") as stream:  # noqa: PTH123 - a path as it came from the driver
                    return _split(document, stream, size)
        except (UnsureError, json_values.RecordError, OSError):
            pass
        return document

    @property
    def decoder(self) -> Decoder:
        """What makes columns of its pieces."""
        return Decoder(isinstance(self.whole, json_values.FeatureCollection), self.whole.encoding)

    def records(self) -> Iterator[json_values.Record]:
        """The records in order, by the exact parser."""
        return self.whole.records()

    def moved(self, path: str) -> SplitDocument:
        """The same of a copy of the file elsewhere."""
        return dataclasses.replace(self, whole=self.whole.moved(path))

    def members(self, text: bytes, piece: Piece) -> bytes:
        """The bytes of a piece as the members of a list, to be put into brackets."""
        if piece.row == 0 or piece.rows == 0:
            return text
        rest = text.lstrip(_BLANK)
        if not rest.startswith(b","):
            raise json_values.RecordError("not valid JSON: no comma")
        return rest[1:]

    def exact(self, members: bytes, rows: int) -> Iterator[json_values.Record]:
        """The records of a piece, by the exact parser."""
        elements = json_values.JsonArray(self.whole.path, self.whole.encoding).records_of(
            io.BytesIO(b"[%s]" % members)
        )
        found = 0
        for record in map(self.whole.record, elements):
            found += 1
            yield record
        if found != rows:
            raise json_values.RecordError(
                "not the records that were counted; the file changed while it was read"
            )
