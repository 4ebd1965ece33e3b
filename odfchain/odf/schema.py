"""The logical data schema of ODF 0.37 and later, and the form in which odfchain thinks about schemas.

A 0.34.1 `SetDataSchema` carries a raw Arrow schema; it is turned into a `DataSchema` when it is read
(`odfchain.odf.arrow_schema`), so that one type serves DDL, Arrow, Spark and the metadata blocks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias

from odfchain.errors import SchemaError
from odfchain.odf.enums import TimeUnit
from odfchain.text import one_line

_UNIONS = re.compile(
    # the first alternative that fits is taken, so `TransformResponse` is before `Transform`
    "DataType|ReadStep|MergeStrategy|EventTimeSource|SourceCaching|FetchStep|PrepStep|TransformResponse|"
    "Transform|Attachments|RawQueryResponse"
)


class Variant:
    """A member of a union; its `kind` in documents is the name of its table without that of the union."""

    __slots__ = ()
    KIND: ClassVar[str]

    def __init_subclass__(cls) -> None:
        union = _UNIONS.match(cls.__name__)
        cls.KIND = cls.__name__[union.end() :] if union is not None else cls.__name__


@dataclass(frozen=True, slots=True)
class ExtraAttributes:
    """A free-form map of attributes, `{reverse-domain/name: JSON value}`."""

    entries: Mapping[str, Any] = field(default_factory=dict)

    def __hash__(self) -> int:
        # values are JSON, which has no hash; equal attributes have equal names
        return hash(frozenset(self.entries))


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeBinary(Variant):
    """Bytes, of a fixed length when `fixed_length` [bytes] is given."""

    fixed_length: int | None = None


@dataclass(frozen=True, slots=True)
class DataTypeBool(Variant):
    """True or false."""


@dataclass(frozen=True, slots=True)
class DataTypeDate(Variant):
    """A calendar day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeDecimal(Variant):
    """An exact decimal of `precision` digits, `scale` of them after the point."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeDuration(Variant):
    """A length of time; absent `unit` means milliseconds."""

    unit: TimeUnit | None = None


@dataclass(frozen=True, slots=True)
class DataTypeFloat16(Variant):
    """IEEE 754 half precision."""


@dataclass(frozen=True, slots=True)
class DataTypeFloat32(Variant):
    """IEEE 754 single precision."""


@dataclass(frozen=True, slots=True)
class DataTypeFloat64(Variant):
    """IEEE 754 double precision."""


@dataclass(frozen=True, slots=True)
class DataTypeInt8(Variant):
    """Signed 8-bit integer."""


@dataclass(frozen=True, slots=True)
class DataTypeInt16(Variant):
    """Signed 16-bit integer."""


@dataclass(frozen=True, slots=True)
class DataTypeInt32(Variant):
    """Signed 32-bit integer."""


@dataclass(frozen=True, slots=True)
class DataTypeInt64(Variant):
    """Signed 64-bit integer."""


@dataclass(frozen=True, slots=True)
class DataTypeUInt8(Variant):
    """Unsigned 8-bit integer."""


@dataclass(frozen=True, slots=True)
class DataTypeUInt16(Variant):
    """Unsigned 16-bit integer."""


@dataclass(frozen=True, slots=True)
class DataTypeUInt32(Variant):
    """Unsigned 32-bit integer."""


@dataclass(frozen=True, slots=True)
class DataTypeUInt64(Variant):
    """Unsigned 64-bit integer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeList(Variant):
    """A list of `item_type`, of a fixed length when `fixed_length` [items] is given."""

    item_type: DataType
    fixed_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeMap(Variant):
    """A map from `key_type` to `value_type`."""

    key_type: DataType
    value_type: DataType
    keys_sorted: bool | None = None


@dataclass(frozen=True, slots=True)
class DataTypeNull(Variant):
    """Only nulls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeOption(Variant):
    """`inner` or null; every other type is required."""

    inner: DataType


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeStruct(Variant):
    """Named fields."""

    fields: tuple[DataField, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeTime(Variant):
    """A time of day; absent `unit` means milliseconds."""

    unit: TimeUnit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTypeTimestamp(Variant):
    """A point in time; absent `unit` means milliseconds, absent `timezone` means UTC (ODF 0.38)."""

    unit: TimeUnit | None = None
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class DataTypeString(Variant):
    """UTF-8 text."""


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
        """True if nulls may occur."""
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
    """True if a column is declared as UUID; items of lists and maps have no attributes, so they never are."""
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
    """The type as `change` makes it (None: with inner types so changed); `extras` keeps their attributes."""
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


# Schemas in SQL DDL: `city STRING NOT NULL, population BIGINT`.
#
# The types are those of the specification's "Schema Format" and the spellings that existing ODF manifests
# use; a colon between name and type is accepted as Spark does. Every column may be null unless it says NOT
# NULL. Timestamps are UTC: milliseconds up to `TIMESTAMP(3)`, which is what `TIMESTAMP` means, microseconds
# up to `TIMESTAMP(6)`. Finer ones are refused, because no engine here computes with them (RFC-001). `TIME`
# has the same units, and nanoseconds as `TIME(9)`.

MS_UTC = DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")
"""The type of system times, and of event times that are no dates."""

# Types and how they may be written; the first word is the one that is printed.
_WORDS: tuple[tuple[DataType, str], ...] = (
    (DataTypeBool(), "BOOLEAN BOOL"),
    (DataTypeInt8(), "TINYINT INT8"),
    (DataTypeInt16(), "SMALLINT INT16"),
    (DataTypeInt32(), "INT INTEGER SIGNED INT32"),
    (DataTypeInt64(), "BIGINT LONG INT64"),
    (DataTypeUInt8(), "UINT8"),
    (DataTypeUInt16(), "UINT16"),
    (DataTypeUInt32(), "UINT32 UNSIGNED"),
    (DataTypeUInt64(), "UINT64"),
    (DataTypeFloat32(), "FLOAT FLOAT32 REAL"),
    (DataTypeFloat64(), "DOUBLE FLOAT64"),
    (DataTypeDate(), "DATE"),
    (DataTypeString(), "STRING VARCHAR TEXT TINYTEXT MEDIUMTEXT LONGTEXT FIXEDSTRING CHAR"),
    (DataTypeBinary(), "BINARY"),
    (MS_UTC, "TIMESTAMP TIMESTAMP_LTZ TIMESTAMP_NTZ"),
)
_SIMPLE = {word: data_type for data_type, words in _WORDS for word in words.split()}
_UNSIGNED: dict[str, DataType] = {
    "TINYINT": DataTypeUInt8(),
    "SMALLINT": DataTypeUInt16(),
    "INTEGER": DataTypeUInt32(),
    "INT": DataTypeUInt32(),
    "BIGINT": DataTypeUInt64(),
}
_TOKEN = re.compile(r"""\s*(?:(`[^`]+`|"[^"]+")|([^\W\d]\w*(?:[.-]\w+)*|\d+)|([(),<>:]))""")
_MAX_DECIMAL = 38
# Digits of a second.
_MILLISECONDS, _MICROSECONDS, _NANOSECONDS = 3, 6, 9


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, bool]] = []
        pos = 0
        while pos < len(text.rstrip()):
            match = _TOKEN.match(text, pos)
            if match is None:
                raise SchemaError(f"cannot read the schema at {text[pos : pos + 20]!r}")
            quoted, word, symbol = match.groups()
            self._tokens.append((quoted[1:-1], True) if quoted else (word or symbol, False))
            pos = match.end()
        self._pos = 0

    def peek(self) -> str:
        """The next token in upper case ("" at the end, quoted names as they are)."""
        if self._pos >= len(self._tokens):
            return ""
        text, quoted = self._tokens[self._pos]
        return text if quoted else text.upper()

    def take(self) -> str:
        if self._pos >= len(self._tokens):
            raise SchemaError(f"the schema {self._text!r} ends in the middle of a column")
        self._pos += 1
        return self._tokens[self._pos - 1][0]

    def accept(self, *words: str) -> bool:
        if self.peek() in words:
            self._pos += 1
            return True
        return False

    def expect(self, word: str) -> None:
        if not self.accept(word):
            raise SchemaError(f"expected {word!r} in the schema but found {self.peek() or 'its end'!r}")

    def number(self) -> int:
        token = self.take()
        if not re.fullmatch("[0-9]{1,9}", token):
            raise SchemaError(f"expected a number in the schema but found {token[:40]!r}")
        return int(token)

    # --- grammar -----------------------------------------------------------------------------------

    def columns(self, end: str = "") -> tuple[DataField, ...]:
        fields = [self.column()]
        while self.accept(","):
            if self.peek() == end:  # a trailing comma, as in the specification's own example
                break
            fields.append(self.column())
        if self.peek() != end:
            raise SchemaError(f"unexpected {self.peek()!r} after column {fields[-1].name!r} in the schema")
        seen: set[str] = set()
        for f in fields:
            if f.name in seen:
                raise SchemaError(f"column {f.name!r} is declared twice")
            seen.add(f.name)
        return tuple(fields)

    def column(self) -> DataField:
        name = self.take()
        if name in "(),<>:":
            raise SchemaError(f"expected a column name in the schema but found {name!r}")
        self.accept(":")
        is_uuid = self.peek() == "UUID"
        data_type = self.type()
        if self.accept("NOT"):
            self.expect("NULL")
        else:
            self.accept("NULL")
            data_type = optional(data_type)
        return DataField(name=name, type=data_type, extra=UUID if is_uuid else None)

    def type(self) -> DataType:
        name = self.take().upper()
        match name:
            case "DECIMAL" | "NUMERIC" | "DEC":
                return self._decimal(name)
            case "TIME":
                return self._time()
            case "UUID":
                return DataTypeBinary(fixed_length=16)
            case "BINARY" if self.accept("("):
                length = self.number()
                self.expect(")")
                return DataTypeBinary(fixed_length=length)
            case "ARRAY":
                self.expect("<")
                item = self.type()
                self.expect(">")
                return DataTypeList(item_type=item)
            case "MAP":
                self.expect("<")
                key = self.type()
                self.expect(",")
                value = self.type()
                self.expect(">")
                return DataTypeMap(key_type=key, value_type=value)
            case "STRUCT":
                self.expect("<")
                fields = self.columns(">")
                self.expect(">")
                return DataTypeStruct(fields=fields)
        simple = _SIMPLE.get(name)
        if simple is None:
            raise SchemaError(
                f"type {name} is not supported",
                hint="supported: BOOLEAN INT BIGINT FLOAT DOUBLE DECIMAL(p,s) STRING DATE TIMESTAMP TIME "
                "UUID ARRAY<T>, and INT or BIGINT UNSIGNED",
            )
        if name in _UNSIGNED and self.accept("UNSIGNED"):
            return _UNSIGNED[name]
        if name == "DOUBLE":
            self.accept("PRECISION")
        if isinstance(simple, DataTypeString) and self.accept("("):
            self.number()
            self.expect(")")
        if isinstance(simple, DataTypeTimestamp) and self.accept("("):
            simple = _timestamp(name, self.number())
            self.expect(")")
        if name == "TIMESTAMP" and self.accept("WITH", "WITHOUT"):
            self.accept("LOCAL")
            self.expect("TIME")
            self.expect("ZONE")
        return simple

    def _decimal(self, name: str) -> DataType:
        if not self.accept("("):
            raise SchemaError(f"{name} needs its precision and scale, like DECIMAL(10,2)")
        precision, scale = self.number(), 0
        if self.accept(","):
            scale = self.number()
        self.expect(")")
        if not 1 <= precision <= _MAX_DECIMAL or scale > precision:
            message = f"DECIMAL({precision},{scale}): precision is 1 to {_MAX_DECIMAL} and scale at most that"
            raise SchemaError(message)
        return DataTypeDecimal(precision=precision, scale=scale)

    def _time(self) -> DataType:
        digits = 3
        if self.accept("("):
            digits = self.number()
            self.expect(")")
        finer = {_MICROSECONDS: TimeUnit.MICROSECOND, _NANOSECONDS: TimeUnit.NANOSECOND}
        if digits > _MILLISECONDS and digits not in finer:
            raise SchemaError(f"TIME({digits}): precision is 0 to 3, 6 or 9")
        return DataTypeTime(unit=finer.get(digits, TimeUnit.MILLISECOND))


def _timestamp(name: str, digits: int) -> DataType:
    if digits > _MICROSECONDS:
        hint = f"declare {name}(6)"
        raise SchemaError(f"{name}({digits}): times are kept to the microsecond at most", hint=hint)
    unit = TimeUnit.MILLISECOND if digits <= _MILLISECONDS else TimeUnit.MICROSECOND
    return DataTypeTimestamp(unit=unit, timezone="UTC")


def parse_ddl(columns: Iterable[str]) -> DataSchema:
    """The schema that DDL column definitions declare; `SchemaError` where they are not understood."""
    text = ", ".join(item.strip().rstrip(",") for item in columns)
    if not text.strip():
        raise SchemaError("the schema is empty")
    return DataSchema(fields=_Parser(text).columns())


_NAMES = {type(data_type): words.split()[0] for data_type, words in _WORDS}
_NAMES |= {type(data_type): f"{word} UNSIGNED" for word, data_type in _UNSIGNED.items()}
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TIME_DIGITS = {TimeUnit.SECOND: 0, TimeUnit.MILLISECOND: 3, TimeUnit.MICROSECOND: 6, TimeUnit.NANOSECOND: 9}


def format_ddl(schema: DataSchema) -> list[str]:
    """One DDL column definition for each column; `parse_ddl` reads them back."""
    return [_format_field(f) for f in schema.fields]


def _format_field(f: DataField) -> str:
    name = f.name if _PLAIN_NAME.fullmatch(f.name) else f"`{f.name}`"
    return f"{name} {format_type(f.value_type, f.extra)}{'' if f.optional else ' NOT NULL'}"


def format_type(data_type: DataType, extra: ExtraAttributes | None = None) -> str:
    """The DDL name of a type; `SchemaError` where it has none."""
    match data_type:
        case DataTypeOption(inner=inner):
            return format_type(inner, extra)
        case DataTypeBinary() if is_uuid(data_type, extra):
            return "UUID"
        case DataTypeBinary(fixed_length=length):
            return "BINARY" if length is None else f"BINARY({length})"
        case DataTypeDecimal(precision=precision, scale=scale):
            return f"DECIMAL({precision},{scale})"
        case DataTypeTimestamp(unit=unit):
            return f"TIMESTAMP({_TIME_DIGITS[unit or TimeUnit.MILLISECOND]})"
        case DataTypeTime(unit=unit):
            return f"TIME({_TIME_DIGITS[unit or TimeUnit.MILLISECOND]})"
        case DataTypeList(item_type=item):
            return f"ARRAY<{format_type(item)}>"
        case DataTypeMap(key_type=key, value_type=value):
            return f"MAP<{format_type(key)}, {format_type(value)}>"
        case DataTypeStruct(fields=fields):
            return f"STRUCT<{', '.join(_format_field(f) for f in fields)}>"
    name = _NAMES.get(type(data_type))
    if name is None:
        raise SchemaError(f"type {data_type.KIND} has no DDL name")
    return name


def type_name(data_type: DataType, extra: ExtraAttributes | None = None) -> str:
    """The name of a type for messages: as in DDL, or its kind where DDL has no name."""
    inner = data_type.inner if isinstance(data_type, DataTypeOption) else data_type
    try:
        return format_type(inner, extra)
    except SchemaError:
        return inner.KIND


# Types that a slice can hold, and the types that its Parquet file gives back.
#
# The logical hash is made over what the file gives back, so that it is the same for all who have the file.
# Source: specification "Schema Format", "Physical and Logical Hashes"; RFC-012.

_NO_HASH = "no logical hash is defined for type"
_UNREAD = "Spark does not read it from Parquet files"


def stored(data_type: DataType, *, extras: bool = False) -> DataType:
    """The type as which Parquet gives values back."""

    def change(part: DataType) -> DataType | None:
        # Parquet has no seconds but milliseconds, no zone but UTC, and no lists of a fixed length
        match part:
            case DataTypeTimestamp(unit=unit, timezone=zone):
                return DataTypeTimestamp(unit=_kept(unit), timezone="" if zone == "" else "UTC")
            case DataTypeTime(unit=unit):
                return DataTypeTime(unit=_kept(unit))
            case DataTypeList(item_type=item, fixed_length=int()):
                return DataTypeList(item_type=stored(item, extras=extras))
        return None

    return with_types(data_type, change, extras=extras)


def recorded(data_type: DataType) -> DataType:
    """The type as which new values are recorded: as `stored`, and a time without a zone is in UTC."""

    def change(part: DataType) -> DataType | None:
        return replace(part, timezone="UTC") if isinstance(part, DataTypeTimestamp) else None

    return with_types(stored(data_type, extras=True), change, extras=True)


def _kept(unit: TimeUnit | None) -> TimeUnit:
    return TimeUnit.MILLISECOND if unit is None or unit is TimeUnit.SECOND else unit


def check_recordable(fields: Iterable[DataField]) -> None:
    """Rows with these columns can be recorded and verified; else a `SchemaError` names the column."""
    for f in fields:
        for part in types_within(f.type):
            why = _problem(part)
            if why is not None:
                message = f"column `{one_line(f.name)}`: {type_name(part)} cannot be recorded: {why}"
                hint = "leave the column out, or declare another type: a preprocess query can convert it"
                raise SchemaError(message, hint=hint)


def _problem(data_type: DataType) -> str | None:
    match data_type:
        case DataTypeMap():
            return f"{_NO_HASH} map"
        case DataTypeDuration():
            return f"{_NO_HASH} duration"
        case DataTypeList(item_type=item) if any(
            isinstance(part, DataTypeStruct) for part in types_within(item)
        ):
            return f"{_NO_HASH} struct in a list"
        case DataTypeNull() | DataTypeFloat16():
            return _UNREAD
        case DataTypeTimestamp(unit=TimeUnit.NANOSECOND):
            return "times are kept to the microsecond at most"
        case DataTypeDecimal(precision=precision, scale=scale) if not (
            1 <= precision <= 38 and 0 <= scale <= precision
        ):
            return "precision is 1 to 38, and scale 0 to that"
        case DataTypeBinary(fixed_length=0) | DataTypeList(fixed_length=0):
            return "its length is 0"
        case DataTypeStruct(fields=()):
            return "it has no members"
    return None
