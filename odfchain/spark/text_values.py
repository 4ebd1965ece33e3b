"""Texts to typed columns by one strict rule: a text means exactly one value of its type, or the row is bad.

Arrow's casts read whole columns. A column is given to one only if it holds nothing that the cast takes more
freely than the rule does (hexadecimal digits, exponents of decimals, times without seconds but with a zone):
a look at its characters and lengths tells. Every other column is read value by value by the exact rule, which
alone says what is wrong. Defaults are those of the specification's read steps: RFC 3339 dates and times,
naive times are UTC. Digits of a second that the declared unit does not keep are cut off and counted
(RFC-010).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np

from odfchain.errors import SchemaError
from odfchain.lazy import pa, pc
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow_type
from odfchain.odf.enums import TimeUnit
from odfchain.odf.schema import type_name
from odfchain.odf.times import RFC3339
from odfchain.spark.types import as_physical, carried_type

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TextRules:
    """How values are written: formats of dates and times, and whether a bare integer is a time in ms."""

    date_format: str = RFC3339
    timestamp_format: str = RFC3339
    integer_timestamps: bool = False

    def _as_text(self, data_type: ds.DataType) -> ds.DataType | None:
        if isinstance(data_type, ds.DataTypeDate) and self.date_format != RFC3339:
            return ds.DataTypeString()
        if isinstance(data_type, ds.DataTypeTimestamp) and self.timestamp_format != RFC3339:
            return ds.DataTypeString()
        return None

    @property
    def without_formats(self) -> TextRules:
        """The same rules for texts that are RFC 3339 by now."""
        return TextRules(integer_timestamps=self.integer_timestamps)

    def formats(self, data_type: ds.DataType) -> bool:
        """True if a type holds dates or times of a declared format, which Java reads (RFC-010)."""
        return any(self._as_text(found) is not None for found in ds.types_within(data_type))

    def carried(self, data_type: ds.DataType) -> pa.DataType:
        """The type in which values travel (`carried_type`); dates and times of a format are texts still."""
        return carried_type(ds.with_types(data_type, self._as_text))


_FRACTION = (
    "the column has whole numbers only: write DOUBLE in the manifest (`import` made manifests/NAME.yaml), "
    "then `odfchain delete NAME`, `odfchain add` the manifest, and ingest all files again"
)


class TextValueError(ValueError):
    """A text means no value of its column; `row` counts from 0, `column` is the number of the column."""

    def __init__(self, row: int, column: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.row, self.column, self.message, self.hint = row, column, message, hint


@dataclass(frozen=True, slots=True)
class Values:
    """Values in the type in which they travel (`carried_type`)."""

    values: pa.Array
    bad: NDArray[np.bool_] | None = None
    """The rows that mean no value of the type; None where every one does."""
    finer: NDArray[np.int32] | None = None
    """How many times of a row lost digits; None where none did."""


DEFAULT_RULES = TextRules()


def check_type(data_type: ds.DataType) -> None:
    """Refuse a type that cannot be read from text, at any depth, with `SchemaError`."""
    for found in ds.types_within(data_type):
        if not isinstance(found, ds.DataTypeOption | ds.DataTypeList | ds.DataTypeMap | ds.DataTypeStruct):
            _rule_of(found, DEFAULT_RULES)


def has_times(data_type: ds.DataType) -> bool:
    """True if a type is or holds times, whose digits may be cut."""
    times = ds.DataTypeTimestamp | ds.DataTypeTime
    return any(isinstance(found, times) for found in ds.types_within(data_type))


def read_batch(
    texts: Sequence[pa.Array],
    fields: Sequence[ds.DataField],
    rules: TextRules,
    required: frozenset[str] = frozenset(),
) -> tuple[list[pa.Array], list[NDArray[np.int32] | None]]:
    """The columns of some rows as `read_texts` makes them, and which of their times lost digits.

    `required` are columns that may not be null though their field says they may.

    Raises:
        TextValueError: a text means no value, or is missing in a required column; of the first row, and in it
            of the first column.
    """
    made = [read_texts(array, f.type, rules) for array, f in zip(texts, fields, strict=True)]
    first: tuple[int, int] | None = None
    for index, (array, f) in enumerate(zip(texts, fields, strict=True)):
        bad = made[index].bad
        if array.null_count and (not f.optional or f.name in required):
            missing = array.is_null().to_numpy(zero_copy_only=False)
            bad = missing if bad is None else bad | missing
        if bad is not None and bad.any():
            row = int(bad.argmax())
            first = min(first or (row, index), (row, index))
    if first is not None:
        row, index = first
        if _finer_than_micros(texts[index].slice(row, 1)):
            message = f"column `{fields[index].name}`: a time is finer than a microsecond"
            raise TextValueError(
                row, index, message, "cut it before: times are kept to the microsecond at most"
            )
        written, whole = _written(texts[index][row]), type_name(fields[index].type) in ("INT", "BIGINT")
        fraction = whole and isinstance(written, str) and re.fullmatch(r"[+-]?\d*\.\d+", written.strip())
        raise TextValueError(row, index, fault_of(written, fields[index]), _FRACTION if fraction else None)
    return [each.values for each in made], [each.finer for each in made]


def fault_of(written: object, field: ds.DataField) -> str:
    """Why this text, or list or struct of texts, or null cannot be in a column."""
    if written is None:
        return (
            f"Column `{field.name}` contains 1 null values while none were expected (the column is required)"
        )
    text = written if isinstance(written, str | list) else str(written)
    shown = text if len(str(text)) <= 60 else str(text)[:57] + "…"
    return f"column `{field.name}`: {shown!r} is not a valid {type_name(field.type, field.extra)}"


def read_texts(texts: pa.Array, data_type: ds.DataType, rules: TextRules) -> Values:
    """Values of texts (null for none), lists, maps or structs of texts; or of other types as meant."""
    kind = texts.type
    if pa.types.is_dictionary(kind):
        texts = texts.dictionary_decode()
    if isinstance(from_arrow_type(kind), ds.DataTypeString):
        texts = texts.cast(pa.string())
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return read_texts(texts, inner, rules)
        case ds.DataTypeTimestamp(unit=unit) if pa.types.is_timestamp(kind):
            return _moments(texts, unit)
        case _ if texts.type == rules.carried(data_type) and not (
            pa.types.is_nested(kind) and has_times(data_type)
        ):
            return Values(texts)  # they are values already, or texts that stay
        case ds.DataTypeList() | ds.DataTypeMap() | ds.DataTypeStruct() if pa.types.is_nested(kind):
            return _nested(texts, data_type, rules)
        case _ if not pa.types.is_string(texts.type):
            return _converted(texts, data_type)
    value_of = _rule_of(data_type, rules)
    if texts.null_count == len(texts):
        return Values(pa.nulls(len(texts), carried_type(data_type)))
    try:
        found = _column(texts, data_type)
    except (pa.ArrowInvalid, _UnsureError):
        found = None
    if found is not None:
        return Values(found, finer=_finer(texts, data_type))
    # a value that a cast would take more freely, or that means nothing: one by one
    return _one_by_one(texts, value_of, carried_type(data_type), _finer(texts, data_type))


def _one_by_one(
    given: pa.Array, value_of: Callable[[Any], Any], kind: pa.DataType, finer: NDArray[np.int32] | None = None
) -> Values:
    values = pa.array([None if each is None else value_of(each) for each in given.to_pylist()], kind)
    bad = None
    if values.null_count != given.null_count:
        bad = (pc.and_not(values.is_null(), given.is_null())).to_numpy(zero_copy_only=False)
    return Values(values, bad, finer)


@dataclass(frozen=True, slots=True)
class Possible:
    """The types as which all texts of a column can be read, of those that are inferred."""

    types: tuple[ds.DataType, ...] = (
        ds.DataTypeInt64(),
        ds.DataTypeDecimal(precision=38, scale=0),
        ds.DataTypeFloat64(),
        ds.DataTypeDate(),
        ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC"),
        ds.DataTypeBool(),
    )
    texts: int = 0
    longest: int = 0
    """Of the texts, without signs and zeros in front [characters]."""

    def narrowed(self, column: pa.Array) -> Possible:
        """What is possible with further texts; nulls and empty ones say nothing."""
        column, types = column.filter(pc.greater(pc.binary_length(column), 0)), self.types
        # a few texts show what most columns cannot be
        for part in (column.slice(0, 64), column) if len(column) else ():
            bad = [read_texts(part, kind, DEFAULT_RULES).bad for kind in types]
            types = tuple(k for k, wrong in zip(types, bad, strict=True) if wrong is None or not wrong.any())
        longest = pc.max(pc.binary_length(pc.utf8_ltrim(column, "+-0"))).as_py() or 0
        return Possible(types, self.texts + len(column), max(self.longest, longest))


def type_of(parts: Sequence[Possible]) -> ds.DataType:
    """The first type that is possible for all parts of a column; text where there is none."""
    common = [kind for kind in Possible().types if all(kind in part.types for part in parts)]
    if not common or not sum(part.texts for part in parts):
        return ds.DataTypeString()
    if isinstance(common[0], ds.DataTypeDecimal):
        # whole numbers beyond 64 bits, as Spark puts them together
        return ds.DataTypeDecimal(precision=max(20, *(part.longest for part in parts)), scale=0)
    return common[0]


# --- nested ----------------------------------------------------------------------------------------


def _nested(texts: pa.Array, data_type: ds.DataType, rules: TextRules) -> Values:
    if isinstance(data_type, ds.DataTypeStruct):
        pairs = zip(texts.flatten(), data_type.fields, strict=True)
        made = [read_texts(member, f.type, rules) for member, f in pairs]
        fields = [pa.field(f.name, each.values.type) for f, each in zip(data_type.fields, made, strict=True)]
        values = pa.StructArray.from_arrays([m.values for m in made], fields=fields, mask=texts.is_null())
        bads = [each.bad for each in made if each.bad is not None]
        finer = [each.finer for each in made if each.finer is not None]
        return Values(
            values, np.logical_or.reduce(bads) if bads else None, np.add.reduce(finer) if finer else None
        )
    lengths = pc.fill_null(pc.list_value_length(texts), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    rows = np.repeat(np.arange(len(texts)), lengths)
    if isinstance(data_type, ds.DataTypeMap):
        # the entries of a slice of a map, without those of nulls
        entries = texts.cast(
            pa.list_(pa.struct([("key", texts.type.key_type), ("value", texts.type.item_type)]))
        )
        keys, items = entries.flatten().flatten()
        parts = [read_texts(keys, data_type.key_type, rules), read_texts(items, data_type.value_type, rules)]
        values = pa.MapArray.from_arrays(offsets, parts[0].values, parts[1].values, mask=texts.is_null())
    else:
        assert isinstance(data_type, ds.DataTypeList)  # noqa: S101 - the only other one
        parts = [read_texts(texts.flatten(), data_type.item_type, rules)]
        kind = pa.list_(pa.field("element", parts[0].values.type))
        values = pa.ListArray.from_arrays(offsets, parts[0].values, kind, mask=texts.is_null())
    bad = [np.bincount(rows[each.bad], minlength=len(texts)) > 0 for each in parts if each.bad is not None]
    finer = [
        np.bincount(rows, weights=each.finer, minlength=len(texts)).astype(np.int32)
        for each in parts
        if each.finer is not None
    ]
    return Values(values, np.logical_or.reduce(bad) if bad else None, np.add.reduce(finer) if finer else None)


# --- whole columns ---------------------------------------------------------------------------------


class _UnsureError(Exception):
    """A cast might take a text of the column more freely than the rule."""


_DIGITS = b"0123456789"


def _column(texts: pa.Array, data_type: ds.DataType) -> pa.Array:
    """The column by Arrow's casts alone."""
    target = carried_type(data_type)
    match data_type:
        case ds.DataTypeBool():
            lower = pc.ascii_lower(texts)
            true = pc.equal(lower, "true")
            if not pc.all(pc.or_(true, pc.equal(lower, "false"))).as_py():
                raise _UnsureError
            return true
        case ds.DataTypeInt8() | ds.DataTypeInt16() | ds.DataTypeInt32() | ds.DataTypeInt64():
            _only(texts, _DIGITS + b"-")
            return texts.cast(target)
        case ds.DataTypeUInt8() | ds.DataTypeUInt16() | ds.DataTypeUInt32() | ds.DataTypeUInt64():
            _only(texts, _DIGITS)
            return texts.cast(getattr(pa, type(data_type).__name__.removeprefix("DataType").lower())()).cast(
                target
            )
        case ds.DataTypeFloat16() | ds.DataTypeFloat32() | ds.DataTypeFloat64():
            _only(texts, _DIGITS + b"+-.eE")
            values = texts.cast(target)
            magnitude = pc.abs(values)
            largest = _FLOAT16_MAX if isinstance(data_type, ds.DataTypeFloat16) else float("inf")
            out = pc.greater(magnitude, largest) if largest == _FLOAT16_MAX else pc.equal(magnitude, largest)
            # what became zero, or infinite, is looked at by itself
            zero = pc.equal(magnitude, 0.0)
            vanished = pc.match_substring_regex(texts.filter(zero), "^[^eE]*[1-9]")
            if pc.any(out).as_py() or pc.any(vanished).as_py():
                raise _UnsureError
            return values
        case ds.DataTypeDecimal():
            _only(texts, _DIGITS + b"+-.")
            return texts.cast(target)
        case ds.DataTypeDate():
            _of_lengths(texts, 10, 10)
            return _in_years(texts.cast(target), FIRST_DAY, LAST_DAY, pa.int32())
        case ds.DataTypeTimestamp(unit=unit):
            return _timestamps(texts, unit)
        case ds.DataTypeTime(unit=unit):
            _of_lengths(texts, 5, 18)
            _only(texts, _DIGITS + b":.")
            day = (
                pc.binary_join_element_wise("1970-01-01T", texts, "")
                .cast(pa.timestamp("ns"))
                .cast(pa.int64())
            )
            return pc.divide(day, 1_000_000_000 // _per_second(unit))
        case ds.DataTypeBinary(fixed_length=16):
            _of_lengths(texts, 36, 36)
            if not pc.all(pc.match_substring_regex(texts, f"^{_UUID}$")).as_py():
                raise _UnsureError
            digits = pc.fill_null(pc.replace_substring(texts, "-", ""), "0" * 32)
            content = bytes.fromhex("".join(digits.to_pylist()))
            made = pa.Array.from_buffers(pa.binary(16), len(texts), [None, pa.py_buffer(content)])
            return pc.if_else(texts.is_valid(), made.cast(pa.binary()), None)
    raise SchemaError(f"type {data_type.KIND} cannot be read from text")


def _only(texts: pa.Array, characters: bytes) -> None:
    _, offsets, data = texts.buffers()
    if data is None:
        return
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    if memoryview(data)[int(ends[0]) : int(ends[-1])].tobytes().translate(None, characters):
        if not texts.null_count:
            raise _UnsureError
        # what stands for a null may have left its characters
        _only(texts.drop_null(), characters)


def _of_lengths(texts: pa.Array, least: int, most: int) -> None:
    found = pc.min_max(pc.binary_length(texts)).as_py()
    if found["min"] < least or found["max"] > most:
        raise _UnsureError


def _in_years(values: pa.Array, first: int, last: int, kind: pa.DataType) -> pa.Array:
    found = pc.min_max(values.cast(kind)).as_py()
    if found["min"] < first or found["max"] > last:
        raise _UnsureError
    return values


_ZONED = r"[T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-](0[0-9]|1[0-7]):[0-5][0-9])$"
_MOST_DIGITS = r"(\.[0-9]{6})[0-9]+"


def _timestamps(texts: pa.Array, unit: TimeUnit | None) -> pa.Array:
    """RFC 3339 times, all with a zone or all without one."""
    _only(texts, _DIGITS + b"-:T .Z+")
    in_utc = pc.ends_with(texts, "Z")
    if pc.all(in_utc).as_py() and pc.min(pc.binary_length(texts)).as_py() >= len("2020-01-01T00:00:00Z"):
        zone = "UTC"
    elif not pc.any(in_utc).as_py() and not pc.any(pc.match_substring_regex(texts, ":.*[+-]")).as_py():
        zone = None
    elif pc.all(pc.match_substring_regex(texts, _ZONED)).as_py():
        zone = "UTC"
    else:
        raise _UnsureError
    kind = pa.timestamp("us", zone)
    try:
        values = texts.cast(kind)
    except pa.ArrowInvalid:
        # with more digits than a microsecond has
        values = pc.replace_substring_regex(texts, _MOST_DIGITS, r"\1").cast(kind)
    values = _in_years(values.cast(pa.timestamp("us", "UTC")), FIRST_MICRO, LAST_MICRO, pa.int64())
    return values if unit is TimeUnit.MICROSECOND else pc.floor_temporal(values, 1, "millisecond")


def _finer(texts: pa.Array, data_type: ds.DataType) -> NDArray[np.int32] | None:
    """How many digits of a second are lost: one or none for each text."""
    if not isinstance(data_type, ds.DataTypeTimestamp | ds.DataTypeTime):
        return None
    digits = len(str(_per_second(data_type.unit))) - 1
    if isinstance(data_type, ds.DataTypeTimestamp):
        digits = min(max(digits, 3), 6)
    # most times have no fraction
    if not pc.any(pc.match_substring(texts, ".")).as_py():
        return None
    found = pc.match_substring_regex(texts, rf":[0-9]{{2}}\.[0-9]{{{digits}}}[0-9]*[1-9]")
    counts: NDArray[np.int32] = pc.fill_null(found, False).to_numpy(zero_copy_only=False).astype(np.int32)
    return counts if counts.any() else None


# --- value by value --------------------------------------------------------------------------------

_FLOAT16_MAX = 65_504.0
_PER_SECOND = {
    TimeUnit.SECOND: 1_000,  # recorded as milliseconds
    TimeUnit.MILLISECOND: 1_000,
    TimeUnit.MICROSECOND: 1_000_000,
    TimeUnit.NANOSECOND: 1_000_000_000,
}
_EPOCH = dt.date(1970, 1, 1)
FIRST_DAY, LAST_DAY = (dt.date.min - _EPOCH).days, (dt.date.max - _EPOCH).days
# the years 1 to 9999, which is all that RFC 3339 can write
FIRST_MICRO, LAST_MICRO = FIRST_DAY * 86_400_000_000, (LAST_DAY + 1) * 86_400_000_000 - 1
_EXACT = Context(prec=100)

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NATURAL = re.compile(r"\+?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DECIMAL = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_CLOCK = re.compile(r"([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,9}))?)?")
_UUID = "[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_MOMENT = re.compile(
    r"([0-9]{4}-[0-9]{2})-([0-9]{1,2})"
    r"(?:[T ]([0-9]{1,2})(?::([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]*))?([^0-9.].*)?)?)?)?"
)
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?|:([0-9]))?")
_WHOLE_MS = re.compile(r"-?[0-9]{1,18}")
_ENDLESS = {
    "inf": "inf", "+inf": "inf", "infinity": "inf", "+infinity": "inf",
    "-inf": "-inf", "-infinity": "-inf", "nan": "nan",
}  # fmt: skip


def _rule_of(data_type: ds.DataType, rules: TextRules) -> Callable[[str], Any]:
    """The exact rule: a text to its value, or None."""
    match data_type:
        case ds.DataTypeString():
            return lambda text: text
        case ds.DataTypeBool():
            return lambda text: {"true": True, "false": False}.get(text.lower())
        case ds.DataTypeInt8() | ds.DataTypeInt16() | ds.DataTypeInt32() | ds.DataTypeInt64():
            bits = carried_type(data_type).bit_width
            return lambda text: _whole(text, _INTEGER, -(1 << bits - 1), (1 << bits - 1) - 1)
        case ds.DataTypeUInt8() | ds.DataTypeUInt16() | ds.DataTypeUInt32():
            bits = carried_type(data_type).bit_width // 2
            return lambda text: _whole(text, _NATURAL, 0, (1 << bits) - 1)
        case ds.DataTypeUInt64():
            return lambda text: None if (n := _whole(text, _NATURAL, 0, 2**64 - 1)) is None else Decimal(n)
        case ds.DataTypeFloat16() | ds.DataTypeFloat32() | ds.DataTypeFloat64():
            return lambda text: _float(text, data_type)
        case ds.DataTypeDecimal(precision=precision, scale=scale):
            return lambda text: _decimal(text, precision, scale)
        case ds.DataTypeDate():
            return _date
        case ds.DataTypeTimestamp(unit=unit):
            step = 1 if unit is TimeUnit.MICROSECOND else 1_000
            return lambda text: _floored(_micros(text, integers=rules.integer_timestamps), step)
        case ds.DataTypeTime(unit=unit):
            return lambda text: _time(text, _per_second(unit))
        case ds.DataTypeBinary(fixed_length=16):
            return lambda text: bytes.fromhex(text.replace("-", "")) if re.fullmatch(_UUID, text) else None
    raise SchemaError(f"type {data_type.KIND} cannot be read from text")


def _per_second(unit: TimeUnit | None) -> int:
    return _PER_SECOND[unit or TimeUnit.MILLISECOND]


def _whole(text: str, form: re.Pattern[str], least: int, most: int) -> int | None:
    if form.fullmatch(text) is None:
        return None
    # longer texts have more digits than any of the types, or leading zeros
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > 20:
        return None
    number = int(digits or "0") * (-1 if text.startswith("-") else 1)
    return number if least <= number <= most else None


def _float(text: str, data_type: ds.DataType) -> float | None:
    if _NUMBER.fullmatch(text) is None:
        if text.lstrip("+-") in ("NaN", "Infinity") and len(text) - len(text.lstrip("+-")) < 2:
            return float(text)
        named = _ENDLESS.get(text.lower())
        return None if named is None else float(named)
    # rounded once, to the type that it travels in
    value: float = pa.scalar(text).cast(carried_type(data_type)).as_py()
    largest = _FLOAT16_MAX if isinstance(data_type, ds.DataTypeFloat16) else float("inf")
    if abs(value) > _FLOAT16_MAX == largest or abs(value) == float("inf"):
        return None
    vanished = value == 0 and re.match("[^eE]*[1-9]", text)
    return None if vanished else value


def _decimal(text: str, precision: int, scale: int) -> Decimal | None:
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction = match[1], match[2], match[3] or ""
    kept = fraction.rstrip("0")
    if not whole + fraction or len(kept) > scale or len(whole.lstrip("0")) > precision - scale:
        return None
    return Decimal(sign + (whole.lstrip("0") or "0") + kept.ljust(scale, "0")).scaleb(-scale, _EXACT)


def _date(text: str) -> dt.date | None:
    try:
        return dt.date.fromisoformat(text) if _DAY.fullmatch(text) else None
    except ValueError:
        return None


def _time(text: str, per_second: int) -> int | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    hour, minute, second = int(match[1]), int(match[2]), int(match[3] or 0)
    if hour > 23 or minute > 59 or second > 59:
        return None
    nanos = int((match[4] or "").ljust(9, "0"))
    return (hour * 3600 + minute * 60 + second) * per_second + nanos * per_second // 1_000_000_000


def _floored(micros: int | None, step: int) -> int | None:
    return None if micros is None or not FIRST_MICRO <= micros <= LAST_MICRO else micros // step * step


def _micros(text: str, *, integers: bool) -> int | None:
    """The microseconds since the epoch: RFC 3339, with fewer digits, without a time, or with a named zone."""
    match = _MOMENT.fullmatch(text) if len(text) >= len("2020-01-01") else None
    if match is None:
        return int(text) * 1_000 if integers and _WHOLE_MS.fullmatch(text) else None
    month, day, hour, minute, second, fraction, zone = match.groups()
    try:
        clock = int(hour or 0), int(minute or 0), int(second or 0)
        local = dt.datetime(int(month[:4]), int(month[5:]), int(day), *clock)  # noqa: DTZ001 - of any zone
        offset = 0 if zone is None else _offset(zone.strip(), local)
    except (ValueError, OverflowError):
        return None
    seconds = (local - dt.datetime(1970, 1, 1)) // dt.timedelta(seconds=1) - offset  # noqa: DTZ001 - UTC
    return seconds * 1_000_000 + int((fraction or "")[:6].ljust(6, "0"))


# names that are no regions, as Java reads them
_SHORT_ZONES = {
    "ACT": "Australia/Darwin", "AET": "Australia/Sydney", "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo", "AST": "America/Anchorage", "BET": "America/Sao_Paulo", "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare", "CNT": "America/St_Johns", "CST": "America/Chicago", "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa", "ECT": "Europe/Paris", "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata", "JST": "Asia/Tokyo", "MIT": "Pacific/Apia", "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland", "PLT": "Asia/Karachi", "PNT": "America/Phoenix", "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles", "SST": "Pacific/Guadalcanal", "VST": "Asia/Ho_Chi_Minh",
    "EST": "-05:00", "MST": "-07:00", "HST": "-10:00",
}  # fmt: skip


def _offset(zone: str, local: dt.datetime) -> int:
    """The seconds east of UTC; ValueError for a zone that is not known."""
    zone = _SHORT_ZONES.get(zone, zone)
    if zone in ("Z", "UTC", "GMT", "UT"):
        return 0
    match = _OFFSET.fullmatch(zone)
    if match is not None:
        sign, hours, minutes, seconds, minute = match.groups()
        parts = int(hours), int(minutes or minute or 0), int(seconds or 0)
        total = parts[0] * 3600 + parts[1] * 60 + parts[2]
        if max(parts[1:]) > 59 or total > 18 * 3600:
            raise ValueError
        return -total if sign == "-" else total
    import zoneinfo

    try:
        found = local.replace(tzinfo=zoneinfo.ZoneInfo(zone)).utcoffset()
    except (zoneinfo.ZoneInfoNotFoundError, OSError):
        raise ValueError from None
    if found is None:
        raise ValueError
    return int(found.total_seconds())


# --- values of other types -------------------------------------------------------------------------
#
# A Parquet file has types of its own. A value becomes one of the declared type where the way back leads to
# the same value (RFC-010); for nested types that holds for each of their items.

_PARTS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_READ_AS = {
    "bool": {"bool", "number", "string"},
    "number": {"bool", "number", "timestamp", "string"},
    "date32": {"date32", "timestamp", "string"},
    "timestamp": {"number", "date32", "timestamp", "string"},
    "binary": {"binary", "string"},
}


def can_be_read(own: ds.DataType, target: ds.DataType) -> bool:
    """True if values of a type may be such of another one."""
    given, wanted = ds.optional(own).inner, ds.optional(target).inner
    if given == wanted or isinstance(given, ds.DataTypeNull):
        return True
    match given, wanted:
        case ds.DataTypeList(item_type=item), ds.DataTypeList(item_type=as_item):
            return can_be_read(item, as_item)
        case ds.DataTypeStruct(fields=members), ds.DataTypeStruct(fields=fields):
            pairs = zip(members, fields, strict=False)
            return len(members) == len(fields) and all(can_be_read(m.type, f.type) for m, f in pairs)
        case ds.DataTypeString(), _:
            with contextlib.suppress(SchemaError):
                return _rule_of(wanted, DEFAULT_RULES) is not None
    return _group(wanted) in _READ_AS.get(_group(given), ())


def _group(data_type: ds.DataType) -> str:
    kind = carried_type(data_type)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "number"
    return "timestamp" if pa.types.is_timestamp(kind) else str(kind).partition("[")[0]


def _finer_than_micros(rows: pa.Array) -> bool:
    from odfchain.slices.reader import leaves_of

    times = [leaf for leaf in leaves_of(rows) if getattr(leaf.type, "unit", "") == "ns"]
    return any((_numbers(leaf) % 1_000).any() for leaf in times if pa.types.is_timestamp(leaf.type))


def _written(value: pa.Scalar) -> object:
    return value.cast(pa.timestamp("us")).as_py() if pa.types.is_timestamp(value.type) else value.as_py()


def _numbers(values: pa.Array) -> NDArray[np.int64]:
    found: NDArray[np.int64] = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _moments(values: pa.Array, unit: TimeUnit | None) -> Values:
    """Times of any unit in microseconds, or in whole milliseconds."""
    numbers, parts = _numbers(values), _PARTS[values.type.unit]
    micros = numbers * 1_000_000 // parts if parts < 1_000_000 else numbers // (parts // 1_000_000)
    kept = micros if unit in (TimeUnit.MICROSECOND, TimeUnit.NANOSECOND) else micros // 1_000 * 1_000
    made = pa.array(kept, mask=np.asarray(values.is_null())).cast(pa.timestamp("us", "UTC"))
    bad = numbers % 1_000 != 0 if parts > 1_000_000 else None
    return Values(made, bad, None if kept is micros else (kept != micros).astype(np.int32))


def _of_unit(values: pa.Array, own: TimeUnit | None, unit: TimeUnit | None, *, cut: bool) -> Values:
    """Times of day or durations in another unit; where digits may not be `cut`, losing some is a fault."""
    numbers, parts, wanted = _numbers(values), _per_second(own), _per_second(unit)
    made = numbers * (wanted // parts) if wanted > parts else numbers // (parts // wanted)
    lost = numbers % max(parts // wanted, 1) != 0
    kept = pa.array(made, mask=np.asarray(values.is_null()))
    return Values(kept, None if cut else lost, lost.astype(np.int32) if cut else None)


def _converted(values: pa.Array, data_type: ds.DataType) -> Values:
    """Values of one type, neither text nor nested, as such of another one."""
    own, kind = from_arrow_type(values.type), carried_type(data_type)
    if isinstance(own, ds.DataTypeNull):
        return Values(pa.nulls(len(values), kind))
    if isinstance(own, ds.DataTypeTimestamp):
        moments = _moments(values, TimeUnit.MICROSECOND)
        if moments.bad is not None and moments.bad.any():
            return Values(pa.nulls(len(values), kind), moments.bad)
        given = moments.values.cast(pa.timestamp("us"))
    else:
        given = as_physical(values, carried_type(own))
    match own, data_type:
        case ds.DataTypeTime(), ds.DataTypeTime():
            return _of_unit(given, own.unit, data_type.unit, cut=True)
        case ds.DataTypeDuration(), ds.DataTypeDuration():
            return _of_unit(given, own.unit, data_type.unit, cut=False)
    if given.type == kind:
        return Values(given)
    if pa.types.is_floating(given.type) and pa.types.is_floating(kind):
        # a float that is declared keeps what it can of the digits, but not of the size
        made = given.cast(kind)
        beyond = pc.and_not(pc.is_inf(made), pc.is_inf(given)).fill_null(False)
        return Values(made, np.asarray(beyond))
    if pa.types.is_integer(given.type) and isinstance(data_type, ds.DataTypeTimestamp):
        with contextlib.suppress(_UnsureError):
            seconds = given.cast(pa.int64())
            _in_years(seconds, FIRST_DAY * 86_400, LAST_DAY * 86_400, pa.int64())
            return _moments(seconds.cast(pa.timestamp("s")), data_type.unit)
    if _casts(given.type, kind):
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            made = given.cast(kind)
            if made.cast(given.type).equals(given):
                return Values(made)
    return _one_by_one(given, _change_of(given.type, data_type), kind)


def _casts(given: pa.DataType, kind: pa.DataType) -> bool:
    """True if Arrow's cast means what is meant wherever it can be undone."""
    t = pa.types
    if t.is_string(kind):
        return any((t.is_integer(given), t.is_boolean(given), t.is_date(given)))
    if t.is_timestamp(given) or t.is_timestamp(kind):
        return any((t.is_date(given), t.is_date(kind)))
    return not (t.is_floating(given) and t.is_decimal(kind))


def _change_of(given: pa.DataType, data_type: ds.DataType) -> Callable[[Any], Any]:
    """The exact rule: a value to the one of the type that means the same, or None."""
    kind = carried_type(data_type)
    of = np.float32 if pa.types.is_float32(given) else float
    match data_type:
        case ds.DataTypeString():
            return lambda value: _shown(of(value) if isinstance(value, float) else value)
        case ds.DataTypeBool():
            return lambda value: bool(value) if value in (0, 1) else None
        case ds.DataTypeDate():
            return lambda moment: moment.date() if moment.time() == dt.time() else None
        case ds.DataTypeTimestamp(unit=unit):
            step = 1 if unit is TimeUnit.MICROSECOND else 1_000
            return lambda seconds: _floored(_micros_of(seconds, of), step)
    if pa.types.is_floating(kind):
        wanted = np.float32 if pa.types.is_float32(kind) else float
        return lambda value: _as_float(value, wanted)
    if pa.types.is_decimal(kind):
        return lambda value: _as_decimal(value, kind, of)
    most = 1 << kind.bit_width - 1

    def whole(value: Any) -> int | None:
        number = _whole_number(Decimal(value) if isinstance(value, float) else _exact(value))
        return number if number is not None and -most <= number < most else None

    return whole


def _exact(value: Any) -> Decimal:
    if isinstance(value, dt.datetime):
        return Decimal((value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)).scaleb(-6)  # noqa: DTZ001 - UTC
    return (
        value if isinstance(value, Decimal) else Decimal(repr(value) if isinstance(value, float) else value)
    )


def _whole_number(value: Decimal) -> int | None:
    return int(value) if value.is_finite() and value == value.to_integral_value() else None


def _micros_of(seconds: Any, of: Callable[[float], Any]) -> int | None:
    if not isinstance(seconds, float):
        return _whole_number(_EXACT.scaleb(_exact(seconds), 6))
    micros = int(seconds * 1e6) if np.isfinite(seconds) else 0
    return micros if of(micros / 1e6) == seconds else None


def _as_float(value: Any, of: Callable[[float], Any]) -> float | None:
    number = _exact(value)
    made = float(of(float(number)))
    # decimals are those that a float is written as, whole numbers are what it is
    back = Decimal(made if isinstance(value, int) else repr(made)).quantize(number, ROUND_HALF_UP, _EXACT)
    return made if back == number else None


def _as_decimal(value: Any, kind: pa.DataType, of: Callable[[float], Any]) -> Decimal | None:
    number, last = _exact(value), Decimal(1).scaleb(-kind.scale)
    try:
        made = number.quantize(last, ROUND_HALF_UP, Context(prec=kind.precision))
    except InvalidOperation:
        return None
    same = float(of(float(made))) == value if isinstance(value, float) else made == number
    return made if same else None


def _shown(value: Any) -> str | None:
    """A value as Spark writes it."""
    match value:
        case bool():
            return str(value).lower()
        case np.floating() | float():
            size = abs(float(value))
            if not np.isfinite(value):
                return "NaN" if np.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            if size == 0 or 1e-3 <= size < 1e7:
                return np.format_float_positional(value, trim="0")
            digits, exponent = np.format_float_scientific(value, trim="0").split("e")
            return f"{digits}E{int(exponent)}"
        case dt.datetime():
            text = value.isoformat(" ")
            return text.rstrip("0") if "." in text else text
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                return None
    return format(value, "f") if isinstance(value, Decimal) else str(value)
