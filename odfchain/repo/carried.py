"""Newer manifests in the form that events of 0.34.1 have; what that form cannot hold is refused by its path.

    read.schema: {fields: [...]}            DDL text for each column
    SetDataSchema.schema: {fields: [...]}   a raw Arrow schema

A reader of 0.34.1 passes over the newer form without a word and would read other columns. Nothing is dropped:
each column is written, read back and compared. Source: specification "Schema Format"; RFC-005.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from odfchain.chain.schema_rules import canonical
from odfchain.codec.raw_arrow import encode_raw_arrow, schema_of_event
from odfchain.errors import CodecError, ManifestError, SchemaError, child_path
from odfchain.model import data_schema as ds
from odfchain.model import events as ev
from odfchain.model.ddl import format_ddl, parse_ddl, type_name
from odfchain.model.recordable import check_recordable, recorded
from odfchain.model.sources import ReadStep, ReadStepParquet
from odfchain.model.time_format import check_date_format, check_timestamp_format

Source: TypeAlias = ev.AddPushSource | ev.SetPollingSource


def carried_source(event: Source, path: str) -> Source:
    """The source with its columns as DDL, which can be read, and recorded where no query prepares them."""
    prepared = event.preprocess is not None
    return dataclasses.replace(
        event, read=_read_step(event.read, child_path(path, "read"), prepared=prepared)
    )


def carried_schema(event: ev.SetDataSchema, path: str) -> ev.SetDataSchema:
    """The event with a raw Arrow schema.

    Raises:
        ManifestError: as `carried_source`, and when there is no schema, or there are two.
    """
    if (event.schema is None) == (event.raw_arrow_schema is None):
        raise ManifestError("give one of 'schema' and 'rawArrowSchema'", path=path)
    given, raw = event.schema, event.raw_arrow_schema
    where = child_path(path, "rawArrowSchema" if given is None else "schema")
    try:
        if given is not None:
            _check_attributes(given, where)
            raw = encode_raw_arrow(given)
        back = schema_of_event(raw, None)
        check_recordable(back.fields)
    except (SchemaError, CodecError) as error:
        raise ManifestError(error.message, path=where, hint=error.hint) from None
    kept = tuple(dataclasses.replace(f, type=recorded(f.type)) for f in back.fields)
    _check_fields(back.fields if given is None else given.fields, kept, where)
    return ev.SetDataSchema(raw_arrow_schema=raw)


def _read_step(read: ReadStep, path: str, *, prepared: bool) -> ReadStep:
    for key, name, check in (
        ("dateFormat", "date_format", check_date_format),
        ("timestampFormat", "timestamp_format", check_timestamp_format),
    ):
        text = getattr(read, name, None)
        if text is not None:
            _at(child_path(path, key), check, text)
    where = child_path(path, "schema")
    if read.schema is not None and read.ddl_schema is not None:
        raise ManifestError("'schema' and 'ddlSchema' say the same thing twice", path=path)
    if read.schema is not None:
        read = dataclasses.replace(read, ddl_schema=_as_ddl(read.schema, where), schema=None)
    if read.ddl_schema is not None:
        columns = _at(where, parse_ddl, read.ddl_schema).fields
        if not prepared:
            _at(where, check_recordable, columns)
        _check_readable(read, columns, where)
    return read


def _check_readable(read: ReadStep, columns: tuple[ds.DataField, ...], path: str) -> None:
    """The columns of a source can be read from files of its format."""
    for f in columns if not isinstance(read, ReadStepParquet) else ():
        for part in ds.types_within(f.type):
            if isinstance(part, ds.DataTypeBinary) and part.fixed_length != 16:
                raise ManifestError(
                    f"column `{f.name}`: {type_name(part)} cannot be read from text",
                    path=path,
                    hint="declare STRING, and convert it by a preprocess query: unhex(…), unbase64(…)",
                )


def _as_ddl(schema: ds.DataSchema, path: str) -> tuple[str, ...]:
    _check_attributes(schema, path)
    columns = []
    for index, column in enumerate(schema.fields):
        where = f"{path}.fields[{index}]"
        alone = ds.DataSchema(fields=(column,))
        text = _at(child_path(where, "type"), format_ddl, alone)
        _check_fields(alone.fields, _at(where, parse_ddl, text).fields, path, first=index)
        columns += text
    _at(path, parse_ddl, columns)  # there are columns, and no two of one name
    return tuple(columns)


_Written = TypeVar("_Written")
_Read = TypeVar("_Read")


def _at(path: str, make: Callable[[_Written], _Read], given: _Written) -> _Read:
    try:
        return make(given)
    except SchemaError as error:
        raise ManifestError(error.message, path=path, hint=error.hint) from None


def _check_attributes(schema: ds.DataSchema, path: str) -> None:
    if schema.extra is not None and schema.extra.entries:
        raise _attributes(schema.extra, path)


def _attributes(extra: ds.ExtraAttributes, path: str) -> ManifestError:
    names = ", ".join(sorted(extra.entries))
    return ManifestError(
        f"attributes cannot be recorded in ODF 0.34.1: {names}",
        path=child_path(path, "extra"),
        hint="leave them out; what they say can stand in an attachment (SetAttachments)",
    )


def _check_fields(
    given: tuple[ds.DataField, ...], back: tuple[ds.DataField, ...], path: str, *, first: int = 0
) -> None:
    """Both are the same columns.

    Raises:
        ManifestError: the path of the first difference.
    """
    for index, (one, other) in enumerate(zip(given, back, strict=True), start=first):
        where = f"{path}.fields[{index}]"
        if one.name != other.name:
            raise ManifestError(f"the name {one.name!r} cannot be recorded", path=child_path(where, "name"))
        if one.extra is not None and one.extra.entries and one.extra != other.extra:
            raise _attributes(one.extra, where)
        _check_type(one.type, other.type, child_path(where, "type"))


def _check_type(given: ds.DataType, back: ds.DataType, path: str) -> None:
    match given, back:
        case ds.DataTypeOption(inner=a), ds.DataTypeOption(inner=b):
            return _check_type(a, b, path)
        case ds.DataTypeStruct(fields=a), ds.DataTypeStruct(fields=b) if len(a) == len(b):
            return _check_fields(a, b, path)
        case ds.DataTypeList(), ds.DataTypeList() if given.fixed_length == back.fixed_length:
            return _check_type(given.item_type, back.item_type, child_path(path, "itemType"))
        case ds.DataTypeMap(key_type=a, value_type=b), ds.DataTypeMap(key_type=c, value_type=d):
            _check_type(a, c, child_path(path, "keyType"))
            _check_type(b, d, child_path(path, "valueType"))
    if canonical(given) != canonical(back):
        raise ManifestError(
            f"{_words(given)} cannot be recorded in ODF 0.34.1 (it would become {_words(back)})", path=path
        )
    return None


def _words(data_type: ds.DataType) -> str:
    """A type with what its DDL name leaves out."""
    match data_type:
        case ds.DataTypeOption(inner=inner):
            return f"optional {_words(inner)}"
        case ds.DataTypeTimestamp(timezone=zone) if zone is not None and zone != "UTC":
            return (
                f"{type_name(data_type)} in the time zone {zone!r}"
                if zone
                else f"{type_name(data_type)} without a time zone"
            )
        case ds.DataTypeList(fixed_length=length) if length is not None:
            return f"{type_name(data_type)} of {length} items"
        case ds.DataTypeMap(keys_sorted=True):
            return f"{type_name(data_type)} with sorted keys"
    return type_name(data_type)
