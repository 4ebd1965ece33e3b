"""Pieces of JSON, of large documents or of lines, made columns at once where that is sure.

Of a document, a first pass guesses where records end. Nothing rests on the guess: where each piece is a list
of objects by itself, with a comma before it, and what surrounds them is a document with one object in their
place, there the whole is that document with those records.

A piece is read by Arrow's JSON reader with a type for every key; where that is not sure, by Python's C
scanner and column by column. What is not sure then either is read by the exact parser (`json_values`), which
alone says what is wrong.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from odfchain.lazy import pa, pc
from odfchain.limits import INPUT
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import to_arrow_type
from odfchain.spark import json_values
from odfchain.spark.json_values import GEOMETRY, Fields, Number
from odfchain.spark.types import carried_type
from odfchain.startup import no_search_for_circles

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


SMALL = 32 << 10
"""Documents up to this size are read as a whole by the exact parser, in a few ms [bytes]."""
PIECE = 1 << 20
"""A piece ends with the first record that ends behind so much [bytes]; a worker holds one piece at a time."""
_CHUNK = 4 << 20
# Most that may surround the records, on either side [bytes].
_AROUND = 1 << 18
# Nesting that every bound allows, that of types as well.
_LEVELS = 32
_BLANK = b" \t\r\n"
_TOKENS = bytes(c in b'"[]{}' for c in range(256))
_MINUS_ZERO = re.compile(rb"-0(?![.0-9])")

TRIES = 2
"""As often a piece may fail before a task tries no further one by columns: they are likely of one kind."""
# Of values in a piece: objects times keys, most of which are missing where keys differ.
_MOST_PLACES = 20_000_000
# A break would end a block for Arrow's reader; a tab is as much a blank, and within a text as wrong.
_BREAKS_AS_TABS = bytes.maketrans(b"\r\n", b"\t\t")
_PRECISE = Context(prec=38)
_EXPONENT = re.compile(rb"[0-9][eE]")
# Matches numbers that may be zero only as a float of so many bits, or a zero that loses its sign.
_TINY = {32: re.compile(rb"-0(?![.0-9])|[eE]-[0-9]{2}"), 64: re.compile(rb"-0(?![.0-9])|[eE]-[0-9]{3}")}


# A number with 40 digits in a row may have to be spelled in another way, or have too many of them: runs of
# 2, 4, 8, 16, 32 and 40 digits are two shorter ones, so far from each other.
_STEPS = (1, 2, 4, 8, 16, 8)
# An empty object, or key, in a record that is taken as it is written.
_EMPTY = re.compile(rb'\{[ \t]*+\}|""[ \t]*+:')


class UnsureError(Exception):
    """The quick way does not know; another one has to look."""


@contextlib.contextmanager
def _unsure() -> Iterator[None]:
    try:
        yield
    except (
        json_values.RecordError,
        pa.ArrowException,
        ValueError,
        ArithmeticError,
        RecursionError,
        StopIteration,
    ):
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
    pieces = tuple(_pieces(stream, _Brackets(len(head))))
    if not pieces or size - pieces[-1].end > _AROUND:
        raise UnsureError
    stream.seek(pieces[-1].end)
    token = secrets.token_hex(16)
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


# --- geometries ------------------------------------------------------------------------------------
#
# Most of a feature is coordinates, which stay text. They are taken out where they stand as usual, the rest is
# read as other records are, with an object in their place whose key is a random secret: it is found again as
# the geometry of a feature, or it was none.

_GEOMETRY = re.compile(
    rb'"geometry"B:B\{B(?:"type"B:B"([A-Za-z]++)"B,B"coordinates"B:B(L)B'
    rb'|"coordinates"B:B(L)B,B"type"B:B"([A-Za-z]++)"B)\}'.replace(b"B", rb"[ \t\r\n]*+").replace(
        b"L", rb"\[[-+0-9.eE,\[\] \t\r\n]*\]"
    )
)
_EXPONENTIAL = re.compile(rb"-?[0-9.]+[eE][-+]?[0-9]+")


def _lists(levels: int) -> str:
    """Matches a list of numbers, or of such lists down to so many levels; with the blanks behind it."""
    inside = rf"{_NUMBER}(?:,{_ANY_BLANK}{_NUMBER})*"
    if levels > 1:
        below = _lists(levels - 1)
        inside += f"|{below}(?:,{_ANY_BLANK}{below})*"
    return rf"\[{_ANY_BLANK}(?:{inside})?\]{_ANY_BLANK}"


_ANY_BLANK = r"[ \t\r\n]*"
_NUMBER = rf"-?(?:[1-9][0-9]*|0)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?{_ANY_BLANK}"
_COORDINATES = f"^{_lists(4)}$"


def _spelled(number: re.Match[bytes]) -> bytes:
    return json_values.number_value(Decimal(number[0].decode())).encode()


def without_geometries(members: bytes, mark: bytes, *, as_written: bool) -> tuple[bytes, pa.Array]:
    """The features with `mark` in place of usual geometries, and the texts of these as columns take them.

    Numbers of 40 digits are not among them; others are spelled as by the exact parser, or `as_written`.
    """
    parts = _GEOMETRY.split(members)
    kinds = [first or second for first, second in zip(parts[1::5], parts[4::5], strict=True)]
    found = [first or second for first, second in zip(parts[2::5], parts[3::5], strict=True)]
    lists = pa.array(found, pa.string())
    if not pc.all(pc.match_substring_regex(lists, _COORDINATES)).as_py():
        return members, lists[:0]
    together = b";".join(found).translate(None, _BLANK)
    if not as_written:
        if b"e" in together or b"E" in together:
            together = _EXPONENTIAL.sub(_spelled, together)
        together = together.replace(b"-0,", b"0,").replace(b"-0]", b"0]")
    lists = pa.array(together.split(b";") if found else [], pa.string())
    kinds = pa.array(kinds, pa.string())
    texts = pc.binary_join_element_wise('{"coordinates":', lists, ',"type":"', kinds, '"}', "")
    return (b'"geometry":%s' % mark).join(parts[::5]), texts


# --- by Arrow's reader -----------------------------------------------------------------------------
#
# The reader keeps to the grammar, refuses keys that occur twice at any depth and numbers that a column
# cannot hold, and guesses nothing where every key has a type. What it lets pass otherwise (NaN, numbers that
# become zero, forms of times that the rules do not know) is looked for here.


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
    found: dict[str, list[json_values.Value]] = {f.name: [] for f in known}
    for value in values:
        if isinstance(value, dict):
            for key, member in value.items():
                found.setdefault(key, []).append(member)
    fields = [pa.field(f.name, _with_others(f.type, found.pop(f.name), depth + 1)) for f in known]
    fields += [pa.field(key, _kind_of(members, depth + 1)) for key, members in found.items()]
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


_KINDS = json.JSONDecoder(parse_int=float)


@dataclass(frozen=True, slots=True)
class Form:
    """How the records stand in pieces."""

    features: bool = False
    lines: bool = False
    """One in each line; else they are the members of a list."""
    encoding: str = "utf-8"


class TypedReader:
    """Reads pieces by columns; learns which keys there are other than columns."""

    def __init__(self, columns: tuple[TypedColumn, ...], form: Form, secret: str) -> None:
        self._columns, self._form, self._secret = columns, form, secret
        own = [(c.field.name, c.read) for c in columns if not (form.features and c.field.name == GEOMETRY)]
        self._element = pa.struct(own)
        if form.features:
            geometry = pa.struct([(secret, pa.bool_())])
            self._element = pa.struct(
                [("type", pa.string()), ("properties", self._element), (GEOMETRY, geometry)]
            )
        self.tries = TRIES
        """How often a piece may still fail."""

    def columns(self, members: bytes, rows: int, geometries: pa.Array | None) -> list[pa.Array]:
        """The values of each column, or its texts; the text is UTF-8 and has no number of 40 digits."""
        if not rows or b"\0" in members:
            raise UnsureError
        if self._form.lines and not _one_by_one(members, rows):
            raise UnsureError
        if not self._form.lines:
            members = members.translate(_BREAKS_AS_TABS)
        with _unsure():
            records = self._records(members, rows)
        self._check_numbers(records, members)
        names = [c.field.name for c in self._columns]
        if geometries is None:
            found = _members_of(records, names)
        else:
            kinds, properties, marked = _members_of(records, ("type", "properties", GEOMETRY))
            if kinds.null_count or not pc.all(pc.equal(kinds, "Feature")).as_py():
                raise UnsureError
            texts = _at_marks(marked.field(self._secret), marked, geometries)
            found = [texts if n == GEOMETRY else _members_of(properties, [n])[0] for n in names]
        return [_read_column(array, c) for array, c in zip(found, self._columns, strict=True)]

    def _records(self, members: bytes, rows: int) -> pa.Array:
        known = self._element
        try:
            return _records_of(members, known, rows, lines=self._form.lines)
        except pa.ArrowException:
            # it may have keys that are not known
            self._learn(members)
            if known == self._element:
                raise
            return _records_of(members, self._element, rows, lines=self._form.lines)

    def _learn(self, members: bytes) -> None:
        members = members.replace(b"}\n{", b"},{")
        learned = _with_others(self._element, _KINDS.decode(f"[{members.decode()}]"))
        found = learned.field("properties").type if self._form.features else learned
        if len(found) > INPUT.columns:
            raise UnsureError
        fields = tuple(c.field for c in self._columns)
        json_values.check_case([f.name for f in found], fields)
        for f in fields:
            if not (self._form.features and f.name == GEOMETRY):
                _check_case(found.field(f.name).type, f.type)
        self._element = learned

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


def _one_by_one(lines: bytes, rows: int) -> bool:
    """True if each of these lines begins and ends as an object does.

    Then no value goes over the end of a line: between two of its tokens `}` and `{` a comma would stand. So
    where there are as many values as lines, each line is one.
    """
    import numpy as np

    if not (lines.startswith(b"{") and lines.endswith(b"}")):
        return False
    characters = np.frombuffer(lines, np.uint8)
    breaks = np.flatnonzero(characters == ord("\n"))
    closed, opened = characters[breaks - 1] == ord("}"), characters[breaks + 1] == ord("{")
    return len(breaks) == rows - 1 and bool(closed.all() and opened.all())


def _at_marks(marks: pa.Array, marked: pa.Array, texts: pa.Array) -> pa.Array:
    """The texts, each where its mark was found."""
    import numpy as np

    found = marked.is_valid().to_numpy(zero_copy_only=False)
    if not len(texts) == np.count_nonzero(found) == len(marks) - marks.null_count:
        raise UnsureError
    return texts if len(texts) == len(found) else texts.take(pa.array(np.cumsum(found) - 1, mask=~found))


def _fits(array: pa.Array) -> bool:
    # Arrow's JSON reader does not hold decimals to the digits of their type
    wide = pa.decimal128(38, array.type.scale)
    values = pa.Array.from_buffers(wide, len(array), array.buffers(), offset=array.offset)
    largest = Decimal(10**array.type.precision - 1).scaleb(-array.type.scale, _PRECISE)
    return pc.all(pc.less_equal(pc.abs(values), pa.scalar(largest, wide))).as_py() is not False


def _records_of(members: bytes, element: pa.DataType, rows: int, *, lines: bool) -> pa.Array:
    """The objects that are the members of a list, or the lines: `rows` objects of bounded size."""
    import pyarrow.json as pj

    leaves = _leaf_count(element)
    if len(members) * leaves > _MOST_PLACES < members.count(b"{") * leaves:
        raise UnsureError
    text = members if lines else b'{"r":[%s]}' % members
    schema = pa.schema(list(element) if lines else [("r", pa.list_(element))])
    found = pj.read_json(
        pa.BufferReader(text),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
    )
    if found.column_names != schema.names:
        raise UnsureError
    if lines:
        found = pa.StructArray.from_arrays([c.combine_chunks() for c in found.columns], fields=list(element))
    elif found.num_rows == 1:
        found = found.column(0).chunk(0).flatten()
    if len(found) != rows or found.null_count:
        raise UnsureError
    return found


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
    pairs = zip(_members_of(array, [f.name for f in target]), target, strict=True)
    members = [_without_others(member, f.type) for member, f in pairs]
    return pa.StructArray.from_arrays(members, fields=list(target), mask=array.is_null())


# --- pieces as batches -----------------------------------------------------------------------------


def _float(text: str) -> Number:
    return json_values.number_value(Decimal(text)) if "e" in text or "E" in text else Number(text)


# Numbers as documents have them, as lines do, and as they tell a type.
_SPELLED, _AS_WRITTEN, _INFERRED = (
    json_values.decoder(*made) for made in ((Number, _float), (Number, Number), (int, float))
)
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"))


def _long_number(text: bytes) -> bool:
    import numpy as np

    run = (np.frombuffer(text, np.uint8) - np.uint8(ord("0"))) < 10
    for step in _STEPS:
        run = run[:-step] & run[step:]
    return bool(run.any())


class PieceReader:
    """Makes batches of pieces of records, where that is sure; typed columns have values where Arrow reads."""

    def __init__(self, form: Form, fields: Fields, typed: tuple[TypedColumn, ...] | None) -> None:
        self._form, self._fields = form, fields
        self._secret = secrets.token_hex(8)
        if fields is None and form.lines and not form.features:
            typed = ()
        if typed and form.features and any(c.field.name == GEOMETRY and not c.text for c in typed):
            typed = None
        self._typed = None if typed is None else TypedReader(typed, form, self._secret)

    def batch(self, members: bytes, rows: int) -> pa.RecordBatch | None:
        """The columns of these records; None where only the exact parser knows."""
        with contextlib.suppress(UnsureError), no_search_for_circles(), _unsure():
            members, geometries = self._prepared(members)
            columns = self._values(members, rows, geometries)
            if columns is None:
                texts = None if geometries is None else geometries.to_pylist()
                columns = self._texts(members, rows, texts)
            return json_values.batch_of(columns, rows)
        return None

    def _prepared(self, members: bytes) -> tuple[bytes, pa.Array | None]:
        """A piece as UTF-8 without numbers of 40 digits, and of features what `without_geometries` gives."""
        if _long_number(members):
            raise UnsureError
        text = str(members, self._form.encoding)
        if "\\" in text and ("\\ud" in text or "\\uD" in text):
            json_values.CharacterCheck().check(text, last=True)
        if not self._form.features:
            return members, None
        mark = b'{"%s":true}' % self._secret.encode()
        return without_geometries(members, mark, as_written=self._form.lines)

    def _values(self, members: bytes, rows: int, geometries: pa.Array | None) -> list[pa.Array] | None:
        reader = self._typed
        if reader is None or not reader.tries:
            return None
        try:
            if self._fields is not None:
                return reader.columns(members, rows, geometries)
            if _EMPTY.search(members) is None:
                reader.columns(members, rows, geometries)
                return [pa.array(members.decode().split("\n"), pa.string())]
        except UnsureError:
            reader.tries -= 1
        return None

    def _texts(self, members: bytes, rows: int, geometries: list[str] | None) -> list[pa.Array]:
        """The columns as texts, just as by the exact parser; or the records as JSON, of the same types."""
        text = members.decode()
        decoder = _INFERRED if self._fields is None else _AS_WRITTEN if self._form.lines else _SPELLED
        if self._form.lines:
            if _Brackets().feed(members)[1].max(initial=0) > _LEVELS:
                raise UnsureError  # of documents the depth is known
            lines = text.split("\n")
            scan = decoder.scan_once  # type: ignore[attr-defined] # what `raw_decode` calls
            decoded = [scan(line, 0) for line in lines]
            records = [record for record, _ in decoded]
            if [end for _, end in decoded] != list(map(len, lines)):
                raise UnsureError
        else:
            if _MINUS_ZERO.search(members):
                raise UnsureError
            records = decoder.decode(f"[{text}]")
        if len(records) != rows or not all(type(record) is dict for record in records):
            raise UnsureError
        if geometries is not None:
            records = self._features(records, geometries)
        if self._fields is None:
            return [json_values.whole_texts(records, _ENCODER.encode)]
        return json_values.columns_of(records, self._fields)

    def _features(self, values: list[json_values.Record], geometries: list[str]) -> list[json_values.Record]:
        left, mark = iter(geometries), {self._secret: True}

        def text_of(geometry: json_values.Record) -> str:
            if geometry == mark:
                return next(left)
            # of which type it is, every text tells
            return json_values.geometry_text(geometry) if self._fields is not None else ""

        records = [json_values.feature_record(value, text_of) for value in values]
        if next(left, None) is not None:
            raise UnsureError  # it was not the geometry of a feature
        return records


def line_pieces(text: bytes) -> Iterator[bytes]:
    """Lines that hold anything, about `PIECE` bytes of them at a time, without blanks at the ends of all."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    start = 0
    while start < len(text):
        end = text.find(b"\n", start + PIECE)
        end = len(text) if end < 0 else end
        lines, start = text[start:end].strip(_BLANK), end
        if not _one_by_one(lines, lines.count(b"\n") + 1):
            lines = b"\n".join([line for part in lines.split(b"\n") if (line := part.strip(_BLANK))])
        if lines:
            yield lines


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
    def form(self) -> Form:
        """How records stand in its pieces."""
        return Form(isinstance(self.whole, json_values.FeatureCollection), encoding=self.whole.encoding)

    def records(self) -> Iterator[json_values.Record]:
        """The records in order, by the exact parser."""
        return self.whole.records()

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
            message = "not the records that were counted; the file changed while it was read"
            raise json_values.RecordError(message)
