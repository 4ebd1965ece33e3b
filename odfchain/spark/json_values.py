"""JSON values as they were written, strictly: one text or one value to what a column takes. Runs on a worker.

Numbers keep their digits, since they may end up in a text or decimal column. What JSON leaves open, and what
readers settle in different ways, is refused: a key twice in one object, half of a surrogate pair, NaN, a
second value. Sources: RFC 8259, RFC 7493 (I-JSON), RFC-010.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any, TypeAlias

from odfchain.limits import INPUT
from odfchain.model import data_schema as ds
from odfchain.text import cut

if TYPE_CHECKING:
    import pyarrow as pa

quoted = encode_basestring
"""A text as a JSON string."""


class Number(str):
    """A number with the digits that it was written with."""

    __slots__ = ()


Value: TypeAlias = Any
"""None, a boolean, a text, a `Number`, a list of values, or a dictionary of them."""

Record: TypeAlias = dict[str, Value]
"""The members of one JSON object."""

_BLANK = " \t\r\n"
_EMPTY_OBJECT = re.compile(r"\{[ \t\r\n]*\}")
_SHOWN = 40


class RecordError(Exception):
    """A record, or the document around it, is not what was declared.

    `row` counts records from 1; it is None while it is not known, and 0 when the fault has no row.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.row = row


def shown(text: str, most: int = _SHOWN) -> str:
    """The beginning of a text from a file, for a message."""
    return repr(cut(text, most))


def number(text: str) -> Number:
    """A number as JSON writes it.

    Raises:
        RecordError: too many digits.
    """
    if len(text) > INPUT.number_characters:
        raise RecordError(f"a number of more than {INPUT.number_characters:,} digits")
    return Number(text)


def unique(pairs: Iterable[tuple[str, Value]]) -> Record:
    """The members of an object.

    Raises:
        RecordError: a key occurs twice.
    """
    members: Record = {}
    for key, value in pairs:
        if key in members:
            raise RecordError(f"key {shown(key)} occurs twice in one object")
        members[key] = value
    return members


def _no_constant(text: str) -> Value:
    raise RecordError(f"not valid JSON: {text} is not a JSON number")


_DECODER = json.JSONDecoder(
    object_pairs_hook=unique, parse_int=number, parse_float=number, parse_constant=_no_constant
)


def parse_object(text: str) -> Record:
    """The members of the one JSON object that a text holds.

    Raises:
        RecordError: it is not exactly one JSON object, or what it holds is refused.
    """
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise RecordError(_fault(text, error)) from None
    except RecursionError:
        raise too_deep() from None
    if "\\u" in text or text.count("[") + text.count("{") > INPUT.json_depth:
        check_value(value)
    if not isinstance(value, dict):
        raise RecordError("not a JSON object")
    return value


@dataclass(frozen=True, slots=True)
class ObjectLine:
    """A line of newline-delimited JSON: one object."""

    def record(self, line: str) -> Record:
        """The object."""
        return parse_object(line)


def _fault(text: str, error: json.JSONDecodeError) -> str:
    if error.msg == "Extra data":
        rest = text[error.pos :].rstrip(_BLANK)
        return f"something follows the JSON value, at column {error.pos + 1:,}: {shown(rest)}"
    return f"not valid JSON: {error.msg.removesuffix(' at')} at column {error.pos + 1:,}"


def too_deep() -> RecordError:
    """The error for a value that is nested too deeply."""
    return RecordError(f"nested more than {INPUT.json_depth} levels deep")


def check_depth(record: Record, most: int) -> None:
    """Refuse values of more levels than a type may have.

    Raises:
        RecordError: there is one; it names the column.
    """
    for name, value in record.items():
        level, depth = [value], 0
        while level := [v for v in level if isinstance(v, list | dict)]:
            depth += 1
            if depth > most:
                raise RecordError(
                    f"column {shown(name)}: nested more than {most} levels deep, too deep for a type; "
                    "declare the column as STRING to take its values as text"
                )
            level = [item for v in level for item in (v.values() if isinstance(v, dict) else v)]


def check_value(value: Value, depth: int = 0) -> None:
    """Refuse half surrogate pairs, which no encoding can carry, and too much nesting.

    Raises:
        RecordError: one of them was met.
    """
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise lone_surrogate(ord(value[error.start])) from None
        return
    if not isinstance(value, list | dict):
        return
    if depth >= INPUT.json_depth:
        raise too_deep()
    if isinstance(value, dict):
        for key in value:
            check_value(key)
    for item in value.values() if isinstance(value, dict) else value:
        check_value(item, depth + 1)


def lone_surrogate(code: int) -> RecordError:
    """The error for half of a character."""
    return RecordError(f"not valid JSON: \\u{code:04x} is half of a surrogate pair, without the other half")


# --- values for columns ----------------------------------------------------------------------------


def json_text(value: Value, *, sort_keys: bool = False) -> str:
    """A value as JSON without blanks."""
    if isinstance(value, dict):
        items = sorted(value.items()) if sort_keys else value.items()
        return "{" + ",".join([f"{quoted(k)}:{json_text(v, sort_keys=sort_keys)}" for k, v in items]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([json_text(v, sort_keys=sort_keys) for v in value]) + "]"
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, str):
        return str(quoted(value))
    return "null" if value is None else "true" if value else "false"


def column_text(value: Value) -> str | None:
    """A value as a column of text takes it: texts and numbers as they are written, the rest as JSON."""
    if value is None or isinstance(value, str):
        return value
    return json_text(value)


def column_value(value: Value, data_type: ds.DataType) -> Value:
    """A value as a column of this type takes it before parsing: lists and structs of texts."""
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return column_value(value, inner)
        case ds.DataTypeList(item_type=item):
            return [column_value(v, item) for v in _of_form(value, list)] if value is not None else None
        case ds.DataTypeMap(value_type=item):
            members = _of_form(value, dict).items() if value is not None else None
            return [(k, column_value(v, item)) for k, v in members] if members is not None else None
        case ds.DataTypeStruct(fields=fields):
            return picked(_of_form(value, dict), fields) if value is not None else None
    return column_text(value)


def text_type(data_type: ds.DataType) -> pa.DataType:
    """The Arrow type of a column before parsing: text in the form of the column."""
    import pyarrow as pa

    match data_type:
        case ds.DataTypeOption(inner=inner):
            return text_type(inner)
        case ds.DataTypeList(item_type=item):
            return pa.list_(pa.field("element", text_type(item)))
        case ds.DataTypeMap(value_type=value):
            return pa.map_(pa.string(), text_type(value))
        case ds.DataTypeStruct(fields=fields):
            return pa.struct([pa.field(f.name, text_type(f.type)) for f in fields])
    return pa.string()


def _of_form(value: Value, form: type) -> Any:
    if not isinstance(value, form):
        raise RecordError(
            f"a value does not fit the nested type of its column: {shown(column_text(value) or '')} "
            f"where {'a list' if form is list else 'an object'} was expected"
        )
    return value


def picked(members: Mapping[str, Value], fields: tuple[ds.DataField, ...]) -> Record:
    """The members that are columns, as `column_value` makes them; the other members are left out.

    Raises:
        RecordError: a value has another form than its column, or a key differs from a column only by case.
    """
    check_case(members, fields)
    found = {}
    for f in fields:
        try:
            found[f.name] = column_value(members.get(f.name), f.type)
        except RecordError as error:
            raise RecordError(f"column `{f.name}`: {error.message}") from None
    return found


def check_case(members: Iterable[str], fields: tuple[ds.DataField, ...]) -> None:
    """Refuse keys that differ from a column only by case: leaving them out would lose their values.

    Raises:
        RecordError: there is such a key.
    """
    names = {f.name for f in fields}
    if all(key in names for key in members):
        return
    folded = {name.casefold(): name for name in names}
    for key in members:
        if key not in names and (column := folded.get(key.casefold())) is not None:
            raise RecordError(f"key {shown(key)} differs from column {shown(column)} only by case")


class Spellings:
    """How keys are spelled, at each place of the records that were added."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Spellings]] = {}

    def add(self, record: Record) -> None:
        """Take one more record.

        Raises:
            RecordError: a key differs only by case from one at the same place.
        """
        for key, value in record.items():
            other, below = self._known.setdefault(key.casefold(), (key, Spellings()))
            if other != key:
                raise RecordError(f"the keys {shown(other)} and {shown(key)} differ only by case")
            items = [value]
            while items:
                item = items.pop()
                if isinstance(item, list):
                    items += reversed(item)
                elif isinstance(item, dict):
                    below.add(item)


def check_named(value: Value) -> None:
    """Refuse keys that are empty: no column can have such a name, and its values would be lost.

    Raises:
        RecordError: there is one.
    """
    items = [value]
    while items:
        item = items.pop()
        if isinstance(item, dict):
            if "" in item:
                raise RecordError("a key is empty, which no column can be; declare a schema to leave it out")
            items += item.values()
        elif isinstance(item, list):
            items += item


def text_for_inference(record: Record) -> str:
    """A record as JSON in which empty objects are null: a type without fields would drop its column."""
    text = json_text(record)
    return json_text(without_empty(record)) if _EMPTY_OBJECT.search(text) else text


def without_empty(value: Value) -> Value:
    """A value in which empty objects are null."""
    if isinstance(value, dict):
        return {k: without_empty(v) if v != {} else None for k, v in value.items()}
    if isinstance(value, list):
        return [without_empty(v) if v != {} else None for v in value]
    return value
