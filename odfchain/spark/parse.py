"""Text to typed columns, strictly: one set of rules for CSV and JSON, as Spark expressions.

Spark's own parsers accept more than a ledger should: a time of day becomes today's date, a decimal is
rounded, spaces are trimmed away. Here a value either means exactly one thing or stops the run. Defaults are
those of the specification's read steps: RFC 3339 dates and times, naive times are UTC. What is finer than the
declared unit is cut off, and `too_fine` counts it.
"""

from __future__ import annotations

import datetime as dt
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from odfchain.errors import SchemaError
from odfchain.lazy import F
from odfchain.odf import schema as ds
from odfchain.odf.enums import TimeUnit
from odfchain.odf.times import RFC3339
from odfchain.spark.types import any_of, physical_type
from odfchain.text import marker

if TYPE_CHECKING:
    from pyspark.sql import Column


_UNSIGNED_MAX: dict[type[ds.DataType], int] = {
    ds.DataTypeUInt8: 2**8 - 1,
    ds.DataTypeUInt16: 2**16 - 1,
    ds.DataTypeUInt32: 2**32 - 1,
    ds.DataTypeUInt64: 2**64 - 1,
}
_FLOAT16_MAX = 65_504.0
_PER_SECOND = {
    TimeUnit.SECOND: 1_000,  # recorded as milliseconds
    TimeUnit.MILLISECOND: 1_000,
    TimeUnit.MICROSECOND: 1_000_000,
    TimeUnit.NANOSECOND: 1_000_000_000,
}


@dataclass(frozen=True, slots=True)
class TextRules:
    """How values are written: formats of dates and times, and whether a bare integer is a time in ms."""

    date_format: str = RFC3339
    timestamp_format: str = RFC3339
    integer_timestamps: bool = False
    plain: bool = False
    """No value holds a control character, so that only blanks can be trimmed away (which is cheap to see)."""


DEFAULT_RULES = TextRules()

_EPOCH = dt.date(1970, 1, 1)
_WHOLE_SECONDS = r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z\z"
_FIRST_DAY, _LAST_DAY = (dt.date.min - _EPOCH).days, (dt.date.max - _EPOCH).days
# The years 1 to 9999, which is all that RFC 3339 can write.
_FIRST_MICRO, _LAST_MICRO = _FIRST_DAY * 86_400_000_000, (_LAST_DAY + 1) * 86_400_000_000 - 1


def parse_text(text: Column, data_type: ds.DataType, rules: TextRules) -> Column:
    """The typed value of a text column: null where the text is null or does not mean a value of the type.

    Raises:
        SchemaError: the type cannot be read from text.
    """
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return parse_text(text, inner, rules)
        case ds.DataTypeString():
            return text
        case ds.DataTypeBool():
            lower = F.lower(text)
            return F.when(lower == "true", F.lit(True)).when(lower == "false", F.lit(False))
        case ds.DataTypeInt8() | ds.DataTypeInt16() | ds.DataTypeInt32() | ds.DataTypeInt64():
            return F.when(_untrimmed(text, rules), text.try_cast(physical_type(data_type)))
        case ds.DataTypeUInt8() | ds.DataTypeUInt16() | ds.DataTypeUInt32() | ds.DataTypeUInt64():
            number = text.try_cast("decimal(20,0)")
            largest = F.lit(str(_UNSIGNED_MAX[type(data_type)])).cast("decimal(20,0)")
            fits = text.rlike(r"\A\+?[0-9]+\z") & (number <= largest)
            return F.when(fits, number.cast(physical_type(data_type)))
        case ds.DataTypeFloat16() | ds.DataTypeFloat32() | ds.DataTypeFloat64():
            # Java also reads `1d`, `1f` and `0x1p3`; what is rarely true comes first, what is costly last
            suffixed = any_of(text.endswith(c) for c in "dDfF") & ~F.lower(text).isin("inf", "+inf", "-inf")
            hexadecimal = F.contains(text, F.lit("x")) | F.contains(text, F.lit("X"))
            ours = ~suffixed & ~hexadecimal & _untrimmed(text, rules)
            return _in_range(text, F.when(ours, text.try_cast(physical_type(data_type))), data_type)
        case ds.DataTypeDecimal(precision=precision, scale=scale):
            exact = text.rlike(rf"\A[+-]?[0-9]*(\.[0-9]{{0,{scale}}}0*)?\z")
            return F.when(exact, text.try_cast(f"decimal({precision},{scale})"))
        case ds.DataTypeDate():
            return _date(text, rules)
        case ds.DataTypeTimestamp(unit=unit):
            value = _timestamp(text, rules)
            return value if unit is TimeUnit.MICROSECOND else to_milliseconds(value)
        case ds.DataTypeTime(unit=unit):
            return _time(text, unit or TimeUnit.MILLISECOND)
        case ds.DataTypeBinary(fixed_length=16):
            uuid = text.rlike(r"\A[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\z")
            return F.when(uuid, F.unhex(F.replace(text, F.lit("-"), F.lit(""))))
    raise SchemaError(f"type {data_type.KIND} cannot be read from text")


def _in_range(text: Column, value: Column, data_type: ds.DataType) -> Column:
    # a cast makes infinity or zero of what is out of range: null, so that it is found
    magnitude = F.abs(value)
    largest = F.lit(_FLOAT16_MAX) if isinstance(data_type, ds.DataTypeFloat16) else F.lit(sys.float_info.max)
    lost = (magnitude > largest) & ~F.isnan(value) & text.rlike(r"[0-9]")
    vanished = (magnitude == 0) & text.rlike(r"\A[^eE]*[1-9]")
    return F.when(~(lost | vanished), value)


def _untrimmed(text: Column, rules: TextRules) -> Column:
    # Spark's casts drop blanks and control characters around a text
    if rules.plain:
        return F.octet_length(F.trim(text)) == F.octet_length(text)
    return F.ascii(text).between(33, 126) & F.ascii(F.right(text, F.lit(1))).between(33, 126)


def _timestamp(text: Column, rules: TextRules) -> Column:
    if rules.timestamp_format != RFC3339:
        value = F.try_to_timestamp(text, F.lit(rules.timestamp_format))
    else:
        dashes = (F.substring(text, 5, 1) == "-") & (F.substring(text, 8, 1) == "-")
        plain = (F.length(text) >= 10) & dashes & _untrimmed(text, rules)
        # looking at a zone takes Spark longer than at all the rest, and most times are of this form
        utc = F.when(text.rlike(_WHOLE_SECONDS), F.substring(text, 1, 19).try_cast("timestamp"))
        value = utc.when(plain, text.try_cast("timestamp"))
    if rules.integer_timestamps:
        number = F.when(text.rlike(r"\A-?[0-9]{1,18}\z"), text.try_cast("bigint"))
        value = F.coalesce(value, F.timestamp_millis(number))
    micros = F.unix_micros(value)
    return F.when((micros >= _FIRST_MICRO) & (micros <= _LAST_MICRO), value)


def _date(text: Column, rules: TextRules) -> Column:
    if rules.date_format != RFC3339:
        value = F.try_to_date(text, rules.date_format)
    else:
        value = F.when((F.length(text) == 10) & _untrimmed(text, rules), text.try_cast("date"))
    day = F.unix_date(value)
    return F.when((day >= _FIRST_DAY) & (day <= _LAST_DAY), value)


def too_fine(raw: Column, data_type: ds.DataType, rules: TextRules) -> Column | None:
    """How many times have digits that their type does not keep; None for types without times.

    `raw` is a text, or a list, map or struct of texts.
    """
    return _too_fine(raw, data_type, rules) if _has_times(data_type) else None


def _has_times(data_type: ds.DataType) -> bool:
    times = ds.DataTypeTimestamp | ds.DataTypeTime
    return any(isinstance(found, times) for found in ds.types_within(data_type))


def _too_fine(raw: Column, data_type: ds.DataType, rules: TextRules) -> Column:
    def total(items: Column, item: ds.DataType) -> Column:
        return F.aggregate(items, F.lit(0), lambda so_far, x: so_far + _too_fine(x, item, rules))

    match data_type:
        case ds.DataTypeOption(inner=inner):
            return _too_fine(raw, inner, rules)
        case ds.DataTypeTimestamp(unit=unit) if rules.timestamp_format != RFC3339:
            number = _too_fine_by_format(raw, rules.timestamp_format, unit).cast("int")
        case ds.DataTypeTimestamp(unit=unit) | ds.DataTypeTime(unit=unit):
            digits = len(str(_PER_SECOND[unit or TimeUnit.MILLISECOND])) - 1
            if isinstance(data_type, ds.DataTypeTimestamp):
                digits = min(max(digits, 3), 6)
            # most times have no fraction, and looking for its sign is cheaper than a pattern
            fraction = raw.contains(".") | raw.contains(",")
            number = (fraction & raw.rlike(rf":[0-9]{{2}}[.,][0-9]{{{digits}}}[0-9]*[1-9]")).cast("int")
        case ds.DataTypeList(item_type=item):
            number = total(raw, item)
        case ds.DataTypeMap(key_type=key, value_type=value):
            number = total(F.map_keys(raw), key) + total(F.map_values(raw), value)
        case ds.DataTypeStruct(fields=fields):
            number = F.lit(0)
            for f in fields:
                if _has_times(f.type):
                    number = number + _too_fine(raw.getField(f.name), f.type, rules)
        case _:
            return F.lit(0)
    return F.coalesce(number, F.lit(0))


def _too_fine_by_format(text: Column, pattern: str, unit: TimeUnit | None) -> Column:
    """True for a time in another form than RFC 3339 with digits that its unit does not keep."""
    # Spark's times end at the microsecond: what is finer is seen in the text alone
    found = text.rlike("[^0-9][0-9]{6}[0-9]*[1-9]") if "SSSSSSS" in pattern else F.lit(False)
    if unit is not TimeUnit.MICROSECOND and "SSSS" in pattern:
        found = found | has_microseconds(F.try_to_timestamp(text, F.lit(pattern)))
    return found


def to_milliseconds(value: Column) -> Column:
    """A timestamp without what is finer than a millisecond (rounded towards the past)."""
    return F.timestamp_millis(F.unix_millis(value))


def has_microseconds(value: Column) -> Column:
    """True if a timestamp is finer than a millisecond."""
    return F.pmod(F.unix_micros(value), F.lit(1_000)) != 0


def _time(text: Column, unit: TimeUnit) -> Column:
    shape = text.rlike(r"\A[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?\z")
    moment = F.concat(F.lit("1970-01-01T"), text).try_cast("timestamp")
    micros = F.unix_micros(moment)
    per_second = _PER_SECOND[unit]
    if per_second <= 1_000_000:
        number = F.floor(micros / F.lit(1_000_000 // per_second)).cast("bigint")
    else:
        # Spark's times end at the microsecond
        rest = F.regexp_extract(text, r"\.[0-9]{6}([0-9]{1,3})\z", 1)
        rest = F.when(rest != "", F.rpad(rest, 3, "0").cast("bigint")).otherwise(F.lit(0))
        number = micros * F.lit(per_second // 1_000_000) + rest
    return F.when(shape, number)


def or_fail(text: Column, value: Column, name: str, *, required: bool) -> Column:
    """`value`, or a failed task where the text is not a value (or is missing in a required column)."""
    failure = F.raise_error(F.lit(marker("bad-value", column=name)))
    return F.coalesce(value, failure if required else F.when(text.isNotNull(), failure))


def value_or_fail(
    raw: Column, data_type: ds.DataType, name: str, rules: TextRules, *, required: bool
) -> Column:
    """The typed value of a column of texts, or of lists, maps or structs of texts; else a failed task."""
    if not _nested(data_type):
        return or_fail(raw, parse_text(raw, data_type, rules), name, required=required)
    failure = F.raise_error(F.lit(marker("bad-value", column=name)))
    return F.when(is_bad(raw, data_type, rules, required=required), failure).otherwise(
        _typed(raw, data_type, rules)
    )


def is_bad(raw: Column, data_type: ds.DataType, rules: TextRules, *, required: bool = False) -> Column:
    """True if `value_or_fail` would fail; for finding the row afterwards."""
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return is_bad(raw, inner, rules, required=required)
        case ds.DataTypeList(item_type=item):
            bad = F.exists(raw, lambda x: is_bad(x, item, rules))
        case ds.DataTypeMap(key_type=key, value_type=value):
            entries = F.map_entries(raw)
            bad = F.exists(entries, lambda e: is_bad(e["key"], key, rules) | is_bad(e["value"], value, rules))
        case ds.DataTypeStruct(fields=fields):
            bad = any_of(is_bad(raw.getField(f.name), f.type, rules) for f in fields)
        case _:
            parsed = parse_text(raw, data_type, rules)
            return parsed.isNull() if required else raw.isNotNull() & parsed.isNull()
    return F.coalesce(bad, F.lit(required))


def _nested(data_type: ds.DataType) -> bool:
    inner = data_type.inner if isinstance(data_type, ds.DataTypeOption) else data_type
    return isinstance(inner, ds.DataTypeList | ds.DataTypeMap | ds.DataTypeStruct)


def _typed(raw: Column, data_type: ds.DataType, rules: TextRules) -> Column:
    """The value where every text in it means one; null where it is null."""
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return _typed(raw, inner, rules)
        case ds.DataTypeList(item_type=item):
            return F.transform(raw, lambda x: _typed(x, item, rules))
        case ds.DataTypeMap(key_type=key, value_type=value):
            entry = F.transform(
                F.map_entries(raw),
                lambda e: F.struct(
                    _typed(e["key"], key, rules).alias("key"), _typed(e["value"], value, rules).alias("value")
                ),
            )
            return F.map_from_entries(entry)
        case ds.DataTypeStruct(fields=fields):
            members = [_typed(raw.getField(f.name), f.type, rules).alias(f.name) for f in fields]
            return F.when(raw.isNotNull(), F.struct(*members))
    return parse_text(raw, data_type, rules)
