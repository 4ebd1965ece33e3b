"""The logical data schema of ODF 0.37 and later, and the form in which odfchain thinks about schemas.

A 0.34.1 `SetDataSchema` carries a raw Arrow schema; it is turned into a `DataSchema` when it is read
(`odfchain.codec.raw_arrow`), so that one type serves DDL, Arrow, Spark and the metadata blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from odfchain.model.enums import TimeUnit


@dataclass(frozen=True, slots=True)
class ExtraAttributes:
    """A free-form map of attributes, `{reverse-domain/name: JSON value}`."""

    entries: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        # values are JSON, which has no hash; equal attributes have equal names
        return hash(frozenset(self.entries))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeBinary:
    """Bytes, of a fixed length when `fixed_length` [bytes] is given."""

    KIND: ClassVar[str] = "Binary"
    fixed_length: int | None = None


@dataclass(frozen=True, slots=True)
class DataTypeBool:
    """True or false."""

    KIND: ClassVar[str] = "Bool"


@dataclass(frozen=True, slots=True)
class DataTypeDate:
    """A calendar day."""

    KIND: ClassVar[str] = "Date"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeDecimal:
    """An exact decimal of `precision` digits, `scale` of them after the point."""

    KIND: ClassVar[str] = "Decimal"
    precision: int
    scale: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeDuration:
    """A length of time; absent `unit` means milliseconds."""

    KIND: ClassVar[str] = "Duration"
    unit: TimeUnit | None = None


@dataclass(frozen=True, slots=True)
class DataTypeFloat16:
    """IEEE 754 half precision."""

    KIND: ClassVar[str] = "Float16"


@dataclass(frozen=True, slots=True)
class DataTypeFloat32:
    """IEEE 754 single precision."""

    KIND: ClassVar[str] = "Float32"


@dataclass(frozen=True, slots=True)
class DataTypeFloat64:
    """IEEE 754 double precision."""

    KIND: ClassVar[str] = "Float64"


@dataclass(frozen=True, slots=True)
class DataTypeInt8:
    """Signed 8-bit integer."""

    KIND: ClassVar[str] = "Int8"


@dataclass(frozen=True, slots=True)
class DataTypeInt16:
    """Signed 16-bit integer."""

    KIND: ClassVar[str] = "Int16"


@dataclass(frozen=True, slots=True)
class DataTypeInt32:
    """Signed 32-bit integer."""

    KIND: ClassVar[str] = "Int32"


@dataclass(frozen=True, slots=True)
class DataTypeInt64:
    """Signed 64-bit integer."""

    KIND: ClassVar[str] = "Int64"


@dataclass(frozen=True, slots=True)
class DataTypeUInt8:
    """Unsigned 8-bit integer."""

    KIND: ClassVar[str] = "UInt8"


@dataclass(frozen=True, slots=True)
class DataTypeUInt16:
    """Unsigned 16-bit integer."""

    KIND: ClassVar[str] = "UInt16"


@dataclass(frozen=True, slots=True)
class DataTypeUInt32:
    """Unsigned 32-bit integer."""

    KIND: ClassVar[str] = "UInt32"


@dataclass(frozen=True, slots=True)
class DataTypeUInt64:
    """Unsigned 64-bit integer."""

    KIND: ClassVar[str] = "UInt64"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeList:
    """A list of `item_type`, of a fixed length when `fixed_length` [items] is given."""

    KIND: ClassVar[str] = "List"
    item_type: DataType
    fixed_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeMap:
    """A map from `key_type` to `value_type`."""

    KIND: ClassVar[str] = "Map"
    key_type: DataType
    value_type: DataType
    keys_sorted: bool | None = None


@dataclass(frozen=True, slots=True)
class DataTypeNull:
    """Only nulls."""

    KIND: ClassVar[str] = "Null"


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeOption:
    """`inner` or null; every other type is required."""

    KIND: ClassVar[str] = "Option"
    inner: DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeStruct:
    """Named fields."""

    KIND: ClassVar[str] = "Struct"
    fields: tuple[DataField, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeTime:
    """A time of day; absent `unit` means milliseconds."""

    KIND: ClassVar[str] = "Time"
    unit: TimeUnit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeTimestamp:
    """A point in time; absent `unit` means milliseconds, absent `timezone` means UTC (ODF 0.38)."""

    KIND: ClassVar[str] = "Timestamp"
    unit: TimeUnit | None = None
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class DataTypeString:
    """UTF-8 text."""

    KIND: ClassVar[str] = "String"


DataType: TypeAlias = (
    DataTypeBinary
    | DataTypeBool
    | DataTypeDate
    | DataTypeDecimal
    | DataTypeDuration
    | DataTypeFloat16
    | DataTypeFloat32
    | DataTypeFloat64
    | DataTypeInt8
    | DataTypeInt16
    | DataTypeInt32
    | DataTypeInt64
    | DataTypeUInt8
    | DataTypeUInt16
    | DataTypeUInt32
    | DataTypeUInt64
    | DataTypeList
    | DataTypeMap
    | DataTypeNull
    | DataTypeOption
    | DataTypeStruct
    | DataTypeTime
    | DataTypeTimestamp
    | DataTypeString
)
"""Any logical type; nullability is the type `DataTypeOption`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataField:
    """A column or a member of a struct."""

    name: str
    type: DataType
    extra: ExtraAttributes | None = None

    @property
    def optional(self) -> bool:
        """Whether nulls may occur."""
        return isinstance(self.type, DataTypeOption)

    @property
    def value_type(self) -> DataType:
        """The type of the values that are not null."""
        return self.type.inner if isinstance(self.type, DataTypeOption) else self.type


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSchema:
    """The columns of a dataset, system columns included, in order."""

    fields: tuple[DataField, ...]
    extra: ExtraAttributes | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return tuple(f.name for f in self.fields)

    def field(self, name: str) -> DataField | None:
        """The column with exactly this name, if any."""
        return next((f for f in self.fields if f.name == name), None)


LOGICAL_TYPE = "opendatafabric.org/type"
"""Attribute of a column whose values mean more than their type says."""

UUID = ExtraAttributes({LOGICAL_TYPE: {"kind": "Uuid"}})
"""The attributes of a UUID column, which is a binary of 16 bytes."""


def is_uuid(data_type: DataType, extra: ExtraAttributes | None) -> bool:
    """Whether a column is declared as UUID; items of lists and maps have no attributes, so they never are."""
    kind = extra.entries.get(LOGICAL_TYPE) if extra is not None else None
    return data_type == DataTypeBinary(fixed_length=16) and kind == UUID.entries[LOGICAL_TYPE]


def types_within(data_type: DataType) -> Iterator[DataType]:
    """The type, and all types within it."""
    yield data_type
    match data_type:
        case DataTypeOption(inner=inner) | DataTypeList(item_type=inner):
            yield from types_within(inner)
        case DataTypeMap(key_type=key, value_type=value):
            yield from types_within(key)
            yield from types_within(value)
        case DataTypeStruct(fields=fields):
            for field in fields:
                yield from types_within(field.type)


def with_types(
    data_type: DataType, change: Callable[[DataType], DataType | None], *, extras: bool = False
) -> DataType:
    """What `change` makes of the type; where that is None, the type with what it makes of those within.

    Members of structs lose their attributes, unless `extras` are to stay.
    """
    made = change(data_type)
    if made is not None:
        return made

    def of(inner: DataType) -> DataType:
        return with_types(inner, change, extras=extras)

    match data_type:
        case DataTypeOption(inner=inner):
            return DataTypeOption(inner=of(inner))
        case DataTypeList(item_type=item):
            return replace(data_type, item_type=of(item))
        case DataTypeMap(key_type=key, value_type=value):
            return replace(data_type, key_type=of(key), value_type=of(value))
        case DataTypeStruct(fields=fields):
            return DataTypeStruct(
                fields=tuple(
                    DataField(name=f.name, type=of(f.type), extra=f.extra if extras else None) for f in fields
                )
            )
    return data_type


def optional(inner: DataType) -> DataTypeOption:
    """`inner` made nullable (once)."""
    return inner if isinstance(inner, DataTypeOption) else DataTypeOption(inner=inner)
