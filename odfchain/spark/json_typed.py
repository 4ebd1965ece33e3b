"""Pieces of JSON as typed columns by Arrow's reader in one pass, where that gives what the strict rules give.

Arrow's reader keeps to the grammar, refuses keys that occur twice at any depth and numbers that a column
cannot hold, and guesses nothing where every key has a type. What it lets pass otherwise (NaN, numbers that
become zero, forms of times that the rules do not know) is looked for here. Every doubt is an `UnsureError`:
then the piece is read in another way, which also says what is wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TYPE_CHECKING

from odfchain.odf import schema as ds
from odfchain.odf.enums import TimeUnit
from odfchain.odf.times import RFC3339
from odfchain.spark.json_values import GEOMETRY, Record, RecordError, Value, check_case
from odfchain.spark.parse import TextRules

if TYPE_CHECKING:
    import pyarrow as pa


MARK = "\x7f"
"""Marks both ends of values that are held as texts and are none; the piece has no such character then."""
TRIES = 2
"""As often a piece may fail before a task tries no further one: they are likely of one kind."""
# Records that tell of which types the keys are that are no columns.
_SAMPLE = 200
# Of values in a piece: objects times keys, most of which are missing where keys differ.
_MOST_PLACES = 20_000_000
_LEVELS = 32
_BETWEEN = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
# A break would end a block for Arrow's reader; a tab is as much a blank, and within a text as wrong.
_NO_BREAKS = bytes.maketrans(b"\r\n", b"\t\t")
_DIGITS = Context(prec=38)
_EXPONENT = re.compile(rb"[0-9][eE]")
# Matches numbers that may be zero only as a float of so many bits, or a zero that loses its sign.
_TINY = {
    32: re.compile(rb"-0(?![.0-9])|[eE]-[0-9]{2}"),
    64: re.compile(rb"-0(?![.0-9])|[eE]-[0-9]{3}"),
}
_DAY = "[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}"
_TIME = "T[0-9]{2}:[0-9]{2}:[0-9]{2}"
_FIRST_LIST = re.compile(r'("coordinates" *: *)\[[-0-9.,\[\] ]*\]( *\}| *, *")')


def _lists(item: str, *, levels: int) -> str:
    found: list[str] = []
    for _ in range(levels):
        item = rf"\[ *(?:{item} *(?:, *{item} *)*)?\]"
        found.append(item)
    return rf"\A{MARK}(?:{'|'.join(found)}){MARK}\z"


_NUMBER = r"(?:-?[1-9][0-9]*(?:\.[0-9]+)?|-?0\.[0-9]+|0)"
# Lists of coordinates between marks, as usual geometries have them: without exponents and `-0`.
_LISTS = _lists(_NUMBER, levels=4)
_KINDS = {"Point", "LineString", "Polygon", "MultiPoint", "MultiLineString", "MultiPolygon"}


class UnsureError(Exception):
    """The quick way does not know; another one has to look."""


# --- types -----------------------------------------------------------------------------------------


def _exact_type(data_type: ds.DataType) -> pa.DataType | None:
    """The type that a value is read as which needs no further look at its text; None where there is none."""
    import pyarrow as pa

    match data_type:
        case ds.DataTypeOption(inner=inner):
            return _exact_type(inner)
        case ds.DataTypeString():
            return pa.string()
        case ds.DataTypeBool():
            return pa.bool_()
        case ds.DataTypeInt8():
            return pa.int8()
        case ds.DataTypeInt16():
            return pa.int16()
        case ds.DataTypeInt32():
            return pa.int32()
        case ds.DataTypeInt64():
            return pa.int64()
        case ds.DataTypeFloat32():
            return pa.float32()
        case ds.DataTypeFloat64():
            return pa.float64()
        case ds.DataTypeDecimal(precision=precision, scale=scale) if 0 <= scale <= precision <= 38:
            return pa.decimal128(precision, scale)
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
    typed: pa.DataType | None
    """As Spark takes it; None for a text that Spark has to parse, or that is the value."""
    form: str = ""
    """The pattern of texts that mean a value of the type without any doubt."""


def typed_columns(fields: tuple[ds.DataField, ...], rules: TextRules) -> tuple[TypedColumn, ...] | None:
    """How these columns are read; None where one of them cannot be."""
    found = [_typed_column(f, rules) for f in fields]
    return tuple(c for c in found if c is not None) if None not in found else None


def typed_places(columns: tuple[TypedColumn, ...] | None) -> dict[int, pa.DataType]:
    """The types of typed values, by the number of their column."""
    return {i: c.typed for i, c in enumerate(columns or ()) if c.typed is not None}


def _typed_column(field: ds.DataField, rules: TextRules) -> TypedColumn | None:
    import pyarrow as pa

    match field.value_type:
        case ds.DataTypeString() | ds.DataTypeTime() | ds.DataTypeBinary():
            return TypedColumn(field, pa.string(), None)
        case ds.DataTypeTimestamp(unit=unit):
            if rules.timestamp_format != RFC3339:
                return TypedColumn(field, pa.string(), None)
            digits = 6 if unit in (TimeUnit.MICROSECOND, TimeUnit.NANOSECOND) else 3
            form = rf"\A{_DAY}{_TIME}(\.[0-9]{{1,{digits}}})?Z\z"
            return TypedColumn(field, pa.string(), pa.timestamp("us", "UTC"), form)
        case ds.DataTypeDate():
            typed = pa.date32() if rules.date_format == RFC3339 else None
            return TypedColumn(field, pa.string(), typed, rf"\A{_DAY}\z")
    exact = _exact_type(field.type)
    return None if exact is None else TypedColumn(field, exact, exact)


def _kind_of(values: Sequence[Value], depth: int = 0) -> pa.DataType:
    """A type for values of a key that is no column; other values are read by the exact parser."""
    import pyarrow as pa

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


def _with_others(known: pa.DataType, values: Sequence[Value], depth: int = 0) -> pa.DataType:
    """A type together with the keys of these values that it does not have, or has no type for."""
    import pyarrow as pa

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
            check_case([f.name for f in found], fields)
            for f in fields:
                _check_case(found.field(f.name).type, f.type)


def first_records(text: str, most: int) -> list[Record]:
    """The first records of a piece, as far as they can be read; numbers are floats."""
    decoder = json.JSONDecoder(parse_int=float)
    found: list[Record] = []
    at = 0
    try:
        while len(found) < most:
            at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr] # it matches nothing as well
            value, at = decoder.raw_decode(text, at)
            found.append(value)
    except (ValueError, RecursionError):
        pass
    return found


# --- reading ---------------------------------------------------------------------------------------


class TypedReader:
    """Reads pieces by columns; learns from the first one which other keys there are."""

    def __init__(self, columns: tuple[TypedColumn, ...], *, features: bool) -> None:
        self._columns = columns
        self._features = features
        self._element: pa.DataType | None = None
        self.tries = TRIES
        """How often a piece may still fail."""

    def columns(
        self, text: str, rows: int, *, checked: bool = False
    ) -> list[tuple[pa.Array | None, pa.Array | None]]:
        """Each column as (texts, typed values), of which one is None; the text has no number of 40 digits.

        Lists of coordinates are marked texts, which are looked at where they were not `checked`.

        Raises:
            UnsureError: they may not be what they should be, or not in this way.
        """
        import pyarrow as pa

        if not rows or "\0" in text:
            raise UnsureError
        try:
            members = text.encode().translate(_NO_BREAKS)
            records = self._records(text, members, rows)
            self._check_numbers(records, members)
            if self._features:
                records, geometries = _of_features(records, text.count(MARK), checked=checked)
            names = [c.field.name for c in self._columns]
            arrays = _members(records, names)
            if self._features and GEOMETRY in names:
                arrays[names.index(GEOMETRY)] = _geometry_texts(geometries)
            return [_column(array, c) for array, c in zip(arrays, self._columns, strict=True)]
        except (pa.ArrowException, RecordError, UnicodeEncodeError):
            raise UnsureError from None

    def _records(self, text: str, members: bytes, rows: int) -> pa.Array:
        import pyarrow as pa

        if self._element is None:
            self._element = self._learned(self._own(), first_records(text, _SAMPLE))
        try:
            return _elements(members, self._element, rows)
        except pa.ArrowException:
            # it may have keys that the first records did not have
            more = self._learned(self._element, first_records(text, rows))
            if more == self._element:
                raise
            self._element = more
            return _elements(members, more, rows)

    def _own(self) -> pa.DataType:
        import pyarrow as pa

        own = pa.struct([(c.field.name, c.read) for c in self._columns])
        if not self._features:
            return own
        geometry = pa.struct([("type", pa.string()), ("coordinates", pa.string())])
        return pa.struct([("type", pa.string()), ("properties", own), (GEOMETRY, geometry)])

    def _learned(self, known: pa.DataType, values: list[Record]) -> pa.DataType:
        element = _with_others(known, values)
        record = element.field("properties").type if self._features else element
        fields = tuple(c.field for c in self._columns)
        check_case([*(f.name for f in record), *([GEOMETRY] if self._features else [])], fields)
        for f in fields:
            _check_case(record.field(f.name).type, f.type)
        return element

    def _check_numbers(self, records: pa.Array, members: bytes) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        tiny: dict[int, bool] = {}
        for leaf in _leaves(records):
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
    import pyarrow as pa
    import pyarrow.compute as pc

    # Arrow's JSON reader does not hold decimals to the digits of their type
    wide = pa.decimal128(38, array.type.scale)
    values = pa.Array.from_buffers(wide, len(array), array.buffers(), offset=array.offset)
    largest = Decimal(10**array.type.precision - 1).scaleb(-array.type.scale, _DIGITS)
    return pc.all(pc.less_equal(pc.abs(values), pa.scalar(largest, wide))).as_py() is not False


def _elements(members: bytes, element: pa.DataType, rows: int) -> pa.Array:
    """The elements of the list with these members, `rows` objects of bounded size."""
    import pyarrow as pa
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
    if len(elements) != rows or elements.null_count:
        raise UnsureError
    return elements


def _members(array: pa.Array, names: Iterable[str]) -> list[pa.Array]:
    flat = array.flatten()
    return [flat[array.type.get_field_index(name)] for name in names]


def _leaf_count(data_type: pa.DataType) -> int:
    import pyarrow as pa

    if pa.types.is_struct(data_type):
        return sum(_leaf_count(f.type) for f in data_type)
    return _leaf_count(data_type.value_type) if pa.types.is_list(data_type) else 1


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    import pyarrow as pa

    if pa.types.is_struct(array.type):
        for index in range(array.type.num_fields):
            yield from _leaves(array.field(index))
    elif pa.types.is_list(array.type):
        yield from _leaves(array.values)
    else:
        yield array


def _column(array: pa.Array, column: TypedColumn) -> tuple[pa.Array | None, pa.Array | None]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.typed is None:
        return array, None
    if not column.form:
        return None, array if array.type == column.typed else _without_others(array, column.typed)
    if pc.all(pc.match_substring_regex(array, column.form)).as_py() is not False:
        try:
            return None, array.cast(column.typed)
        except pa.ArrowInvalid:  # there is no such day
            pass
    return array, None


def _without_others(array: pa.Array, target: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if array.type == target:
        return array
    if pa.types.is_list(target):
        items = _without_others(array.values, target.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, target, mask=array.is_null())
    members = [
        _without_others(member, f.type)
        for member, f in zip(_members(array, [f.name for f in target]), target, strict=True)
    ]
    return pa.StructArray.from_arrays(members, fields=list(target), mask=array.is_null())


# --- features --------------------------------------------------------------------------------------


def coordinates_marked(text: str) -> str:
    """The text of features where their lists of coordinates seem to be texts with a mark on either side.

    That they were, and were lists, has to be seen in what is read.

    Raises:
        UnsureError: they cannot be recognised in a quick way.
    """
    first = _FIRST_LIST.search(text)
    if first is None:
        return text
    before, behind = first[1], first[2]
    if text.count(f"{before}[") != text.count(f"]{behind}"):
        raise UnsureError
    text = text.replace(f"]{behind}", f']{MARK}"{behind}')
    return text.replace(f"{before}[", f'{before}"{MARK}[')


def _of_features(array: pa.Array, marks: int, *, checked: bool) -> tuple[pa.Array, pa.Array]:
    # one with unusual members, or with marks elsewhere than around coordinates, goes to the exact parser
    import pyarrow.compute as pc

    kinds, properties, geometries = _members(array, ("type", "properties", GEOMETRY))
    if kinds.null_count or pc.unique(kinds).to_pylist() != ["Feature"] or geometries.type.num_fields > 2:
        raise UnsureError
    kinds, coordinates = _members(geometries, ("type", "coordinates"))
    if (
        not kinds.null_count == coordinates.null_count == geometries.null_count
        or not set(pc.unique(kinds).to_pylist()) <= {*_KINDS, None}
        or marks != 2 * (len(coordinates) - coordinates.null_count)
        or pc.all(
            pc.starts_with(coordinates, MARK) if checked else pc.match_substring_regex(coordinates, _LISTS)
        ).as_py()
        is False
    ):
        raise UnsureError
    return properties, geometries


def _geometry_texts(array: pa.Array) -> pa.Array:
    """Geometries as JSON with sorted keys and without blanks."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kinds, coordinates = _members(array, ("type", "coordinates"))
    texts = pc.binary_join_element_wise(
        *[pa.scalar('{"coordinates":'), coordinates, pa.scalar(',"type":"'), kinds, pa.scalar('"}'), ""]
    )
    return _without(texts, f" {MARK}".encode())


def _without(array: pa.Array, characters: bytes) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    valid, places, data = array.buffers()
    offsets = np.frombuffer(places, np.int32)[: len(array) + 1]
    text = data.to_pybytes()[: offsets[-1]]
    table = np.frombuffer(bytes(c in characters for c in range(256)), np.uint8)
    gone = np.zeros(len(text) + 1, np.int32)
    np.cumsum(table[np.frombuffer(text, np.uint8)], out=gone[1:])
    left = pa.py_buffer(text.translate(None, characters))
    return pa.StringArray.from_buffers(len(array), pa.py_buffer(offsets - gone[offsets]), left, valid)
