"""Texts to values as expressions of Spark's: the oracle for `odfchain.spark.text_values`.

This was how texts were read before workers did it; Spark's own casts, and what they take too freely left out.
"""

from __future__ import annotations

import datetime as dt
import functools
import operator
import sys
from typing import TYPE_CHECKING

from odfchain.errors import SchemaError
from odfchain.lazy import F
from odfchain.odf import schema as ds
from odfchain.odf.enums import TimeUnit
from odfchain.odf.times import RFC3339
from odfchain.spark.java_formats import to_milliseconds
from odfchain.spark.text_values import TextRules
from odfchain.spark.types import physical_type

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
            return F.when(_untrimmed(text), text.try_cast(physical_type(data_type)))
        case ds.DataTypeUInt8() | ds.DataTypeUInt16() | ds.DataTypeUInt32() | ds.DataTypeUInt64():
            number = text.try_cast("decimal(20,0)")
            largest = F.lit(str(_UNSIGNED_MAX[type(data_type)])).cast("decimal(20,0)")
            fits = text.rlike(r"\A\+?[0-9]+\z") & (number <= largest)
            return F.when(fits, number.cast(physical_type(data_type)))
        case ds.DataTypeFloat16() | ds.DataTypeFloat32() | ds.DataTypeFloat64():
            # Java also reads `1d`, `1f` and `0x1p3`; what is rarely true comes first, what is costly last
            suffixed = functools.reduce(operator.or_, [text.endswith(c) for c in "dDfF"]) & ~F.lower(
                text
            ).isin("inf", "+inf", "-inf")
            hexadecimal = F.contains(text, F.lit("x")) | F.contains(text, F.lit("X"))
            ours = ~suffixed & ~hexadecimal & _untrimmed(text)
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


def _untrimmed(text: Column) -> Column:
    # Spark's casts drop blanks and control characters around a text
    return F.ascii(text).between(33, 126) & F.ascii(F.right(text, F.lit(1))).between(33, 126)


def _timestamp(text: Column, rules: TextRules) -> Column:
    if rules.timestamp_format != RFC3339:
        value = F.try_to_timestamp(text, F.lit(rules.timestamp_format))
    else:
        dashes = (F.substring(text, 5, 1) == "-") & (F.substring(text, 8, 1) == "-")
        plain = (F.length(text) >= 10) & dashes & _untrimmed(text)
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
        value = F.when((F.length(text) == 10) & _untrimmed(text), text.try_cast("date"))
    day = F.unix_date(value)
    return F.when((day >= _FIRST_DAY) & (day <= _LAST_DAY), value)


def too_fine(raw: Column, data_type: ds.DataType, rules: TextRules) -> Column:
    # how many times in a text, or a list, map or struct of texts, have digits that their type does not keep
    def total(items: Column, item: ds.DataType) -> Column:
        return F.aggregate(items, F.lit(0), lambda so_far, x: so_far + too_fine(x, item, rules))

    match data_type:
        case ds.DataTypeOption(inner=inner):
            return too_fine(raw, inner, rules)
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
                number = number + too_fine(raw.getField(f.name), f.type, rules)
        case _:
            return F.lit(0)
    return F.coalesce(number, F.lit(0))


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


def kept(value: Column, own: ds.DataType, target: ds.DataType) -> Column:
    """A value as one of another type; null where the way back leads to another value."""
    made = value.try_cast(physical_type(target))
    if isinstance(own, ds.DataTypeFloat64) and isinstance(target, ds.DataTypeFloat32):
        return F.when((F.abs(made) != float("inf")) | (F.abs(value) == float("inf")), made)
    made = F.when(made.try_cast(physical_type(own)).eqNullSafe(value), made)
    coarse = isinstance(target, ds.DataTypeTimestamp) and target.unit is not TimeUnit.MICROSECOND
    return to_milliseconds(made) if coarse else made
