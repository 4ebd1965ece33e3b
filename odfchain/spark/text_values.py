"""Texts to typed columns by one strict rule: a text means exactly one value of its type, or the row is bad.

Arrow's casts read whole columns. A column is given to one only if it holds nothing that the cast takes more
freely than the rule does (hexadecimal digits, exponents of decimals, times without seconds but with a zone):
a look at its characters and lengths tells. Every other column is read value by value by the exact rule, which
alone says what is wrong. Defaults are those of the specification's read steps: RFC 3339 dates and times,
naive times are UTC. Digits of a second that the declared unit does not keep are cut off and counted
(RFC-010).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

from odfchain.errors import SchemaError
from odfchain.lazy import pa, pc
from odfchain.odf import schema as ds
from odfchain.odf.enums import TimeUnit
from odfchain.odf.schema import type_name
from odfchain.odf.times import RFC3339

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TextRules:
    """How values are written: formats of dates and times, and whether a bare integer is a time in ms."""

    date_format: str = RFC3339
    timestamp_format: str = RFC3339
    integer_timestamps: bool = False

    def formats(self, data_type: ds.DataType) -> bool:
        """True if a type holds dates or times of a declared format, which Java reads (RFC-010)."""
        return any(
            (isinstance(found, ds.DataTypeDate) and self.date_format != RFC3339)
            or (isinstance(found, ds.DataTypeTimestamp) and self.timestamp_format != RFC3339)
            for found in ds.types_within(data_type)
        )


class TextValueError(ValueError):
    """A text means no value of its column; `row` counts from 0, `column` is the number of the column."""

    def __init__(self, row: int, column: int, message: str) -> None:
        super().__init__(message)
        self.row, self.column, self.message = row, column, message


@dataclass(frozen=True, slots=True)
class Values:
    """Values of texts, in the type in which they travel (`carried_type`)."""

    values: pa.Array
    bad: NDArray[np.bool_] | None = None
    """The rows whose text means no value; None where every text means one."""
    finer: NDArray[np.int32] | None = None
    """How many times of a row lost digits; None where none did."""


DEFAULT_RULES = TextRules()


def carried_type(data_type: ds.DataType, rules: TextRules = DEFAULT_RULES) -> pa.DataType:
    """The Arrow form of the type that carries a logical type through Spark (`odfchain.spark.types`).

    Dates and times of a declared format are texts still.
    """
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return carried_type(inner, rules)
        case ds.DataTypeDecimal(precision=precision, scale=scale):
            return pa.decimal128(precision, scale)
        case ds.DataTypeList(item_type=item):
            return pa.list_(pa.field("element", carried_type(item, rules)))
        case ds.DataTypeMap(key_type=key, value_type=value):
            return pa.map_(carried_type(key, rules), carried_type(value, rules))
        case ds.DataTypeStruct(fields=fields):
            return pa.struct([pa.field(f.name, carried_type(f.type, rules)) for f in fields])
        case ds.DataTypeDate() | ds.DataTypeTimestamp() if rules.formats(data_type):
            return pa.string()
        case ds.DataTypeTimestamp():
            return pa.timestamp("us", "UTC")
        case ds.DataTypeUInt64():
            return pa.decimal128(20, 0)
    made = _CARRIED.get(type(data_type))
    if made is None:
        raise SchemaError(f"type {data_type.KIND} cannot be processed by Spark")
    found: pa.DataType = getattr(pa, made)()
    return found


_CARRIED: dict[type[ds.DataType], str] = {
    ds.DataTypeBool: "bool_",
    ds.DataTypeInt8: "int8",
    ds.DataTypeInt16: "int16",
    ds.DataTypeInt32: "int32",
    ds.DataTypeInt64: "int64",
    ds.DataTypeUInt8: "int16",
    ds.DataTypeUInt16: "int32",
    ds.DataTypeUInt32: "int64",
    ds.DataTypeFloat16: "float32",
    ds.DataTypeFloat32: "float32",
    ds.DataTypeFloat64: "float64",
    ds.DataTypeDate: "date32",
    ds.DataTypeTime: "int64",
    ds.DataTypeDuration: "int64",
    ds.DataTypeString: "string",
    ds.DataTypeBinary: "binary",
}


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
        raise TextValueError(row, index, fault_of(texts[index][row].as_py(), fields[index]))
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
    """The values of texts, or of lists, maps or structs of texts; null where there is no text.

    What is in the type of the values passes as it is.

    Raises:
        SchemaError: the type cannot be read from text.
    """
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return read_texts(texts, inner, rules)
        case _ if texts.type == carried_type(data_type, rules):
            return Values(texts)  # they are values already, or texts that stay
        case ds.DataTypeList() | ds.DataTypeMap() | ds.DataTypeStruct():
            return _nested(texts, data_type, rules)
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
    parsed = [None if text is None else value_of(text) for text in texts.to_pylist()]
    values = pa.array(parsed, carried_type(data_type))
    bad = None
    if values.null_count != texts.null_count:
        bad = (pc.and_not(values.is_null(), texts.is_null())).to_numpy(zero_copy_only=False)
    return Values(values, bad, _finer(texts, data_type))


# --- nested ----------------------------------------------------------------------------------------


def _nested(texts: pa.Array, data_type: ds.DataType, rules: TextRules) -> Values:
    if isinstance(data_type, ds.DataTypeStruct):
        made = [
            read_texts(member, f.type, rules)
            for member, f in zip(texts.flatten(), data_type.fields, strict=True)
        ]
        fields = [pa.field(f.name, each.values.type) for f, each in zip(data_type.fields, made, strict=True)]
        values = pa.StructArray.from_arrays(
            [each.values for each in made], fields=fields, mask=texts.is_null()
        )
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
        values = pa.ListArray.from_arrays(
            offsets,
            parts[0].values,
            pa.list_(pa.field("element", parts[0].values.type)),
            mask=texts.is_null(),
        )
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
    """The column by Arrow's casts alone.

    Raises:
        _UnsureError, pa.ArrowInvalid: some text has to be looked at by itself.
    """
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
            if pc.any(out).as_py() or pc.any(_vanished(texts.filter(zero))).as_py():
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


def _vanished(texts: pa.Array) -> pa.Array:
    return pc.match_substring_regex(texts, "^[^eE]*[1-9]")


def _only(texts: pa.Array, characters: bytes) -> None:
    _, offsets, data = texts.buffers()
    if data is None:
        return
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    if memoryview(data)[int(ends[0]) : int(ends[-1])].tobytes().translate(None, characters):
        raise _UnsureError


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
            return lambda text: (
                None if (n := _whole(text, _NATURAL, 0, (1 << 64) - 1)) is None else Decimal(n)
            )
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
    if micros is None or not FIRST_MICRO <= micros <= LAST_MICRO:
        return None
    return micros // step * step


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
