"""Which types a slice can hold, and as what its Parquet file gives them back.

The logical hash is made over what the file gives back, so that it is the same for all who have the file.
Source: specification "Schema Format", "Physical and Logical Hashes"; RFC-012.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from odfchain.errors import SchemaError
from odfchain.model import data_schema as ds
from odfchain.model.ddl import type_name
from odfchain.model.enums import TimeUnit
from odfchain.text import one_line

_NO_HASH = "no logical hash is defined for type"
_UNREAD = "Spark does not read it from Parquet files"


def stored(data_type: ds.DataType, *, extras: bool = False) -> ds.DataType:
    """The type as which Parquet gives values back.

    It has no seconds but milliseconds, no zone but UTC, and no lists of a fixed length. Members of structs
    keep their attributes with `extras`.
    """

    def change(part: ds.DataType) -> ds.DataType | None:
        match part:
            case ds.DataTypeTimestamp(unit=unit, timezone=zone):
                return ds.DataTypeTimestamp(unit=_kept(unit), timezone="" if zone == "" else "UTC")
            case ds.DataTypeTime(unit=unit):
                return ds.DataTypeTime(unit=_kept(unit))
            case ds.DataTypeList(item_type=item, fixed_length=int()):
                return ds.DataTypeList(item_type=stored(item, extras=extras))
        return None

    return ds.with_types(data_type, change, extras=extras)


def recorded(data_type: ds.DataType) -> ds.DataType:
    """The type as which new values are recorded: as `stored`, and a time without a zone is in UTC."""

    def change(part: ds.DataType) -> ds.DataType | None:
        return replace(part, timezone="UTC") if isinstance(part, ds.DataTypeTimestamp) else None

    return ds.with_types(stored(data_type, extras=True), change, extras=True)


def _kept(unit: TimeUnit | None) -> TimeUnit:
    return TimeUnit.MILLISECOND if unit is None or unit is TimeUnit.SECOND else unit


def check_recordable(fields: Iterable[ds.DataField]) -> None:
    """Rows with these columns can be recorded, and verified.

    Raises:
        SchemaError: a column cannot; says which one and why.
    """
    for f in fields:
        for part in ds.types_within(f.type):
            why = _problem(part)
            if why is not None:
                raise SchemaError(
                    f"column `{one_line(f.name)}`: {type_name(part)} cannot be recorded: {why}",
                    hint="leave the column out, or declare another type: a preprocess query can convert it",
                )


def _problem(data_type: ds.DataType) -> str | None:
    match data_type:
        case ds.DataTypeMap():
            return f"{_NO_HASH} map"
        case ds.DataTypeDuration():
            return f"{_NO_HASH} duration"
        case ds.DataTypeList(item_type=item) if any(
            isinstance(part, ds.DataTypeStruct) for part in ds.types_within(item)
        ):
            return f"{_NO_HASH} struct in a list"
        case ds.DataTypeNull() | ds.DataTypeFloat16():
            return _UNREAD
        case ds.DataTypeTimestamp(unit=TimeUnit.NANOSECOND):
            return "times are kept to the microsecond at most"
        case ds.DataTypeDecimal(precision=precision, scale=scale) if not (
            1 <= precision <= 38 and 0 <= scale <= precision
        ):
            return "precision is 1 to 38, and scale 0 to that"
        case ds.DataTypeBinary(fixed_length=0) | ds.DataTypeList(fixed_length=0):
            return "its length is 0"
        case ds.DataTypeStruct(fields=()):
            return "it has no members"
    return None
