"""Dates and times in declared formats: what `DateTimeFormatter` of Java reads, written as all others are.

A format is recorded in the chain in the notation of Java or strftime (`odfchain.odf.times`), and nothing but
Java reads every letter of it as Spark always has, names of time zones above all. So Spark's expressions turn
such texts into RFC 3339, and `odfchain.spark.text_values` reads those (RFC-010).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.lazy import F
from odfchain.odf import schema as ds
from odfchain.spark.text_values import FIRST_DAY, FIRST_MICRO, LAST_DAY, LAST_MICRO, TextRules

if TYPE_CHECKING:
    from pyspark.sql import Column


def to_milliseconds(value: Column) -> Column:
    """A timestamp without what is finer than a millisecond (rounded towards the past)."""
    return F.timestamp_millis(F.unix_millis(value))


REFUSED = "\0"
"""The beginning of a text that its format does not read; no text with it means a date or time."""


def as_rfc3339(raw: Column, data_type: ds.DataType, rules: TextRules) -> Column:
    """Texts in a declared format as RFC 3339, where one means a time; other columns as they are."""
    if not rules.formats(data_type):
        return raw
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return as_rfc3339(raw, inner, rules)
        case ds.DataTypeList(item_type=item):
            return F.transform(raw, lambda x: as_rfc3339(x, item, rules))
        case ds.DataTypeMap(key_type=key, value_type=value):
            entry = F.transform(
                F.map_entries(raw),
                lambda e: F.struct(
                    as_rfc3339(e["key"], key, rules).alias("key"),
                    as_rfc3339(e["value"], value, rules).alias("value"),
                ),
            )
            return F.map_from_entries(entry)
        case ds.DataTypeStruct(fields=fields):
            members = [as_rfc3339(raw.getField(f.name), f.type, rules).alias(f.name) for f in fields]
            return F.when(raw.isNotNull(), F.struct(*members))
        case ds.DataTypeDate():
            day = F.try_to_date(raw, rules.date_format)
            # other years than 1 to 9999 are written differently
            text = F.when(F.unix_date(day).between(FIRST_DAY, LAST_DAY), F.date_format(day, "yyyy-MM-dd"))
            return F.coalesce(text, F.concat(F.lit(REFUSED), raw))
    moment = F.try_to_timestamp(raw, F.lit(rules.timestamp_format))
    text = F.date_format(moment, "yyyy-MM-dd'T'HH:mm:ss.SSSSSS")
    if "SSSSSSS" in rules.timestamp_format:
        # Spark's times end at the microsecond: what is finer is seen in the text alone
        finer = F.when(raw.rlike("[^0-9][0-9]{6}[0-9]*[1-9]"), "1").otherwise("")
        text = F.concat(text, finer)
    text = F.when(F.unix_micros(moment).between(FIRST_MICRO, LAST_MICRO), text)
    if rules.integer_timestamps:
        text = F.coalesce(text, F.when(raw.rlike(r"\A-?[0-9]{1,18}\z"), raw))
    return F.coalesce(text, F.concat(F.lit(REFUSED), raw))
