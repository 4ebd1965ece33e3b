"""Schemas in SQL DDL: `city STRING NOT NULL, population BIGINT`.

The types are those of the specification's "Schema Format" and the spellings that existing ODF manifests use;
a colon between name and type is accepted as Spark does. Every column may be null unless it says NOT NULL.
Timestamps are UTC: milliseconds up to `TIMESTAMP(3)`, which is what `TIMESTAMP` means, microseconds up to
`TIMESTAMP(6)`. Finer ones are refused, because no engine here computes with them (RFC-001). `TIME` has the
same units, and nanoseconds as `TIME(9)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from odfchain.errors import SchemaError
from odfchain.model import data_schema as ds
from odfchain.model.enums import TimeUnit

_TIMESTAMP = ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone="UTC")

_SIMPLE: dict[str, ds.DataType] = {
    "BOOL": ds.DataTypeBool(),
    "BOOLEAN": ds.DataTypeBool(),
    "TINYINT": ds.DataTypeInt8(),
    "INT8": ds.DataTypeInt8(),
    "SMALLINT": ds.DataTypeInt16(),
    "INT16": ds.DataTypeInt16(),
    "INT": ds.DataTypeInt32(),
    "INTEGER": ds.DataTypeInt32(),
    "SIGNED": ds.DataTypeInt32(),
    "INT32": ds.DataTypeInt32(),
    "BIGINT": ds.DataTypeInt64(),
    "LONG": ds.DataTypeInt64(),
    "INT64": ds.DataTypeInt64(),
    "UNSIGNED": ds.DataTypeUInt32(),
    "UINT8": ds.DataTypeUInt8(),
    "UINT16": ds.DataTypeUInt16(),
    "UINT32": ds.DataTypeUInt32(),
    "UINT64": ds.DataTypeUInt64(),
    "FLOAT": ds.DataTypeFloat32(),
    "FLOAT32": ds.DataTypeFloat32(),
    "REAL": ds.DataTypeFloat32(),
    "DOUBLE": ds.DataTypeFloat64(),
    "FLOAT64": ds.DataTypeFloat64(),
    "DATE": ds.DataTypeDate(),
    "STRING": ds.DataTypeString(),
    "VARCHAR": ds.DataTypeString(),
    "TEXT": ds.DataTypeString(),
    "TINYTEXT": ds.DataTypeString(),
    "MEDIUMTEXT": ds.DataTypeString(),
    "LONGTEXT": ds.DataTypeString(),
    "FIXEDSTRING": ds.DataTypeString(),
    "CHAR": ds.DataTypeString(),
    "BINARY": ds.DataTypeBinary(),
    "TIMESTAMP": _TIMESTAMP,
    "TIMESTAMP_LTZ": _TIMESTAMP,
    "TIMESTAMP_NTZ": _TIMESTAMP,
}
_UNSIGNED: dict[str, ds.DataType] = {
    "TINYINT": ds.DataTypeUInt8(),
    "SMALLINT": ds.DataTypeUInt16(),
    "INT": ds.DataTypeUInt32(),
    "INTEGER": ds.DataTypeUInt32(),
    "BIGINT": ds.DataTypeUInt64(),
}
_TOKEN = re.compile(r"""\s*(?:(`[^`]+`|"[^"]+")|([^\W\d]\w*(?:[.-]\w+)*|\d+)|([(),<>:]))""")
_MAX_DECIMAL = 38
_MILLISECONDS, _MICROSECONDS, _NANOSECONDS = 3, 6, 9
"""Digits of a second."""


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
        if not token.isdecimal():
            raise SchemaError(f"expected a number in the schema but found {token!r}")
        return int(token)

    # --- grammar -----------------------------------------------------------------------------------

    def columns(self, end: str = "") -> tuple[ds.DataField, ...]:
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

    def column(self) -> ds.DataField:
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
            data_type = ds.optional(data_type)
        return ds.DataField(name=name, type=data_type, extra=ds.UUID if is_uuid else None)

    def type(self) -> ds.DataType:
        name = self.take().upper()
        match name:
            case "DECIMAL" | "NUMERIC" | "DEC":
                return self._decimal(name)
            case "TIME":
                return self._time()
            case "UUID":
                return ds.DataTypeBinary(fixed_length=16)
            case "BINARY" if self.accept("("):
                length = self.number()
                self.expect(")")
                return ds.DataTypeBinary(fixed_length=length)
            case "ARRAY":
                self.expect("<")
                item = self.type()
                self.expect(">")
                return ds.DataTypeList(item_type=item)
            case "MAP":
                self.expect("<")
                key = self.type()
                self.expect(",")
                value = self.type()
                self.expect(">")
                return ds.DataTypeMap(key_type=key, value_type=value)
            case "STRUCT":
                self.expect("<")
                fields = self.columns(">")
                self.expect(">")
                return ds.DataTypeStruct(fields=fields)
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
        if isinstance(simple, ds.DataTypeString) and self.accept("("):
            self.number()
            self.expect(")")
        if isinstance(simple, ds.DataTypeTimestamp) and self.accept("("):
            simple = _timestamp(name, self.number())
            self.expect(")")
        if name == "TIMESTAMP" and self.accept("WITH", "WITHOUT"):
            self.accept("LOCAL")
            self.expect("TIME")
            self.expect("ZONE")
        return simple

    def _decimal(self, name: str) -> ds.DataType:
        if not self.accept("("):
            raise SchemaError(f"{name} needs its precision and scale, like DECIMAL(10,2)")
        precision, scale = self.number(), 0
        if self.accept(","):
            scale = self.number()
        self.expect(")")
        if not 1 <= precision <= _MAX_DECIMAL or scale > precision:
            raise SchemaError(
                f"DECIMAL({precision},{scale}): precision is 1 to {_MAX_DECIMAL} and scale at most that"
            )
        return ds.DataTypeDecimal(precision=precision, scale=scale)

    def _time(self) -> ds.DataType:
        digits = 3
        if self.accept("("):
            digits = self.number()
            self.expect(")")
        finer = {_MICROSECONDS: TimeUnit.MICROSECOND, _NANOSECONDS: TimeUnit.NANOSECOND}
        if digits > _MILLISECONDS and digits not in finer:
            raise SchemaError(f"TIME({digits}): precision is 0 to 3, 6 or 9")
        return ds.DataTypeTime(unit=finer.get(digits, TimeUnit.MILLISECOND))


def _timestamp(name: str, digits: int) -> ds.DataType:
    if digits > _MICROSECONDS:
        raise SchemaError(
            f"{name}({digits}): times are kept to the microsecond at most", hint=f"declare {name}(6)"
        )
    unit = TimeUnit.MILLISECOND if digits <= _MILLISECONDS else TimeUnit.MICROSECOND
    return ds.DataTypeTimestamp(unit=unit, timezone="UTC")


def parse_ddl(columns: Iterable[str]) -> ds.DataSchema:
    """The schema that a list of DDL column definitions declares.

    Raises:
        SchemaError: unknown type or syntax, or a column declared twice.
    """
    text = ", ".join(item.strip().rstrip(",") for item in columns)
    if not text.strip():
        raise SchemaError("the schema is empty")
    return ds.DataSchema(fields=_Parser(text).columns())


_NAMES: dict[type[ds.DataType], str] = {
    ds.DataTypeBool: "BOOLEAN",
    ds.DataTypeInt8: "TINYINT",
    ds.DataTypeInt16: "SMALLINT",
    ds.DataTypeInt32: "INT",
    ds.DataTypeInt64: "BIGINT",
    ds.DataTypeUInt8: "TINYINT UNSIGNED",
    ds.DataTypeUInt16: "SMALLINT UNSIGNED",
    ds.DataTypeUInt32: "INT UNSIGNED",
    ds.DataTypeUInt64: "BIGINT UNSIGNED",
    ds.DataTypeFloat32: "FLOAT",
    ds.DataTypeFloat64: "DOUBLE",
    ds.DataTypeDate: "DATE",
    ds.DataTypeString: "STRING",
}
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TIME_DIGITS = {TimeUnit.SECOND: 0, TimeUnit.MILLISECOND: 3, TimeUnit.MICROSECOND: 6, TimeUnit.NANOSECOND: 9}


def format_ddl(schema: ds.DataSchema) -> list[str]:
    """One DDL column definition for each column; `parse_ddl` reads them back."""
    return [_format_field(f) for f in schema.fields]


def _format_field(f: ds.DataField) -> str:
    name = f.name if _PLAIN_NAME.fullmatch(f.name) else f"`{f.name}`"
    return f"{name} {format_type(f.value_type, f.extra)}{'' if f.optional else ' NOT NULL'}"


def format_type(data_type: ds.DataType, extra: ds.ExtraAttributes | None = None) -> str:
    """The DDL name of a type.

    Raises:
        SchemaError: a type that DDL cannot name.
    """
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return format_type(inner, extra)
        case ds.DataTypeBinary() if ds.is_uuid(data_type, extra):
            return "UUID"
        case ds.DataTypeBinary(fixed_length=length):
            return "BINARY" if length is None else f"BINARY({length})"
        case ds.DataTypeDecimal(precision=precision, scale=scale):
            return f"DECIMAL({precision},{scale})"
        case ds.DataTypeTimestamp(unit=unit):
            return f"TIMESTAMP({_TIME_DIGITS[unit or TimeUnit.MILLISECOND]})"
        case ds.DataTypeTime(unit=unit):
            return f"TIME({_TIME_DIGITS[unit or TimeUnit.MILLISECOND]})"
        case ds.DataTypeList(item_type=item):
            return f"ARRAY<{format_type(item)}>"
        case ds.DataTypeMap(key_type=key, value_type=value):
            return f"MAP<{format_type(key)}, {format_type(value)}>"
        case ds.DataTypeStruct(fields=fields):
            return f"STRUCT<{', '.join(_format_field(f) for f in fields)}>"
    name = _NAMES.get(type(data_type))
    if name is None:
        raise SchemaError(f"type {data_type.KIND} has no DDL name")
    return name


def type_name(data_type: ds.DataType, extra: ds.ExtraAttributes | None = None) -> str:
    """The name of a type for messages: as in DDL, or its kind where DDL has no name."""
    inner = data_type.inner if isinstance(data_type, ds.DataTypeOption) else data_type
    try:
        return format_type(inner, extra)
    except SchemaError:
        return inner.KIND
