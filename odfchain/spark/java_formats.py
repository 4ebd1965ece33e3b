"""Dates and times in declared formats: what `DateTimeFormatter` of Java reads, as expressions of Spark's.

A format is recorded in the chain in the notation of Java or strftime (`odfchain.odf.times`), and nothing but
Java reads every letter of it as Spark always has. All other texts are read by `odfchain.spark.text_values`,
which leaves these as they are; years are 1 to 9999 here as there (RFC-010).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.lazy import F
from odfchain.odf import schema as ds
from odfchain.odf.enums import TimeUnit
from odfchain.odf.times import RFC3339
from odfchain.spark.text_values import FIRST_DAY, FIRST_MICRO, LAST_DAY, LAST_MICRO, TextRules
from odfchain.spark.types import any_of
from odfchain.text import marker

if TYPE_CHECKING:
    from pyspark.sql import Column


def to_milliseconds(value: Column) -> Column:
    """A timestamp without what is finer than a millisecond (rounded towards the past)."""
    return F.timestamp_millis(F.unix_millis(value))


def has_microseconds(value: Column) -> Column:
    """True if a timestamp is finer than a millisecond."""
    return F.pmod(F.unix_micros(value), F.lit(1_000)) != 0


def or_fail(text: Column, value: Column, name: str, *, required: bool) -> Column:
    """`value`, or a failed task where the text is not a value (or is missing in a required column)."""
    failure = F.raise_error(F.lit(marker("bad-value", column=name)))
    return F.coalesce(value, failure if required else F.when(text.isNotNull(), failure))


def value_or_fail(raw: Column, field: ds.DataField, rules: TextRules) -> Column:
    """The value of a column that holds dates or times of a declared format; else a failed task."""
    failure = F.raise_error(F.lit(marker("bad-value", column=field.name)))
    return F.when(is_bad(raw, field.type, rules, required=not field.optional), failure).otherwise(
        typed(raw, field.type, rules)
    )


def is_bad(raw: Column, data_type: ds.DataType, rules: TextRules, *, required: bool = False) -> Column:
    """True if `value_or_fail` fails; for finding the row afterwards."""
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
        case _ if rules.formats(data_type):
            bad = raw.isNotNull() & typed(raw, data_type, rules).isNull()
        case _:
            bad = F.lit(False)
    return F.coalesce(bad, F.lit(False)) | (raw.isNull() if required else F.lit(False))


def typed(raw: Column, data_type: ds.DataType, rules: TextRules) -> Column:
    """The values of texts in a declared format, null where one means nothing; other columns as they are."""
    if not rules.formats(data_type):
        return raw
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return typed(raw, inner, rules)
        case ds.DataTypeList(item_type=item):
            return F.transform(raw, lambda x: typed(x, item, rules))
        case ds.DataTypeMap(key_type=key, value_type=value):
            entry = F.transform(
                F.map_entries(raw),
                lambda e: F.struct(
                    typed(e["key"], key, rules).alias("key"), typed(e["value"], value, rules).alias("value")
                ),
            )
            return F.map_from_entries(entry)
        case ds.DataTypeStruct(fields=fields):
            members = [typed(raw.getField(f.name), f.type, rules).alias(f.name) for f in fields]
            return F.when(raw.isNotNull(), F.struct(*members))
        case ds.DataTypeDate():
            day = F.try_to_date(raw, rules.date_format)
            return F.when(F.unix_date(day).between(FIRST_DAY, LAST_DAY), day)
    assert isinstance(data_type, ds.DataTypeTimestamp)  # noqa: S101 - nothing else has a format
    moment = F.try_to_timestamp(raw, F.lit(rules.timestamp_format))
    if rules.integer_timestamps:
        number = F.when(raw.rlike(r"\A-?[0-9]{1,18}\z"), raw.try_cast("bigint"))
        moment = F.coalesce(moment, F.timestamp_millis(number))
    moment = F.when(F.unix_micros(moment).between(FIRST_MICRO, LAST_MICRO), moment)
    return moment if data_type.unit is TimeUnit.MICROSECOND else to_milliseconds(moment)


def too_fine(raw: Column, data_type: ds.DataType, rules: TextRules) -> Column:
    """How many times in a text, or a list, map or struct of texts, have digits that their type does not keep.

    Times that have no declared format are not among them.
    """

    def total(items: Column, item: ds.DataType) -> Column:
        return F.aggregate(items, F.lit(0), lambda so_far, x: so_far + too_fine(x, item, rules))

    match data_type:
        case ds.DataTypeOption(inner=inner):
            return too_fine(raw, inner, rules)
        case ds.DataTypeTimestamp(unit=unit) if rules.timestamp_format != RFC3339:
            number = _cut(raw, rules.timestamp_format, unit).cast("int")
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


def _cut(text: Column, pattern: str, unit: TimeUnit | None) -> Column:
    # Spark's times end at the microsecond: what is finer is seen in the text alone
    found = text.rlike("[^0-9][0-9]{6}[0-9]*[1-9]") if "SSSSSSS" in pattern else F.lit(False)
    if unit is not TimeUnit.MICROSECOND and "SSSS" in pattern:
        found = found | has_microseconds(F.try_to_timestamp(text, F.lit(pattern)))
    return found
