"""Append rules of data schemas: only additions of optional columns keep old readers working.

Both forms of `SetDataSchema`, raw Arrow (0.34.1) and ODF (0.37), are turned into one schema type and follow
one rule. The first ODF schema of a chain may change optionality, because writers of raw schemas often did not
know it. Source: specification "Schema Evolution"; RFC-015.
"""

from __future__ import annotations

from dataclasses import replace

from odfchain.chain.earlier_blocks import DATA_EVENTS, DataEvent, History, is_odf_schema
from odfchain.codec.raw_arrow import DATE_UNIT, schema_of_event
from odfchain.errors import AppendError, CodecError
from odfchain.model import data_schema as ds
from odfchain.model import events as ev
from odfchain.model.ddl import type_name
from odfchain.model.enums import TimeUnit

_HINT = (
    "a schema only gains columns that may be null (those that runs have added belong in a manifest's schema, "
    "too); make another dataset for anything else"
)


def check_set_data_schema(event: ev.SetDataSchema, history: History) -> None:
    """A schema that replaces another names no column twice, is new and is compatible with it.

    The first one is accepted as it is, even if it cannot be read here (0.34.1 takes any Arrow type); one that
    cannot be read is never replaced.

    Raises:
        AppendError: NoOpEvent or InvalidEvent.
    """
    block = history.nearest("SetDataSchema")
    try:
        new = schema_of_event(event.raw_arrow_schema, event.schema)
    except CodecError as error:
        if block is None:
            return
        raise AppendError("InvalidEvent", "schema-readable", f"the schema cannot be read: {error}") from None
    old = _schema_in_force(history)
    if block is None or old is None:
        return
    twice = _named_twice(new.fields)
    if twice is not None:
        raise AppendError("InvalidEvent", "schema-names-unique", f"column {twice!r} is declared twice")
    # a raw schema again is accepted: it changes nothing, and old chains have it
    if is_odf_schema(event) and is_odf_schema(block.event) and old == new:
        raise AppendError("NoOpEvent", "schema-not-identical", "the schema is already like this")
    first_odf = event.schema is not None and not history.has_odf_schema()
    problem = incompatibility(old, new, ignore_optionality=first_odf)
    if problem is not None:
        raise AppendError("InvalidEvent", "schema-compatible", problem, hint=_HINT)


def incompatibility(
    old: ds.DataSchema, new: ds.DataSchema, *, ignore_optionality: bool = False
) -> str | None:
    """Why `new` cannot replace `old`, or None; the order of columns and attributes do not matter."""
    return _fields_change(old.fields, new.fields, "", ignore_optionality=ignore_optionality)


def check_set_vocab(event: ev.SetVocab, history: History) -> None:
    """The system columns have four different names, and those keep what is recorded readable.

    Raises:
        AppendError: InvalidEvent.
    """
    vocabulary = ev.DatasetVocabulary.from_event(event)
    if len(set(vocabulary.columns)) < len(vocabulary.columns):
        twice = next(name for name in vocabulary.columns if vocabulary.columns.count(name) > 1)
        raise AppendError(
            "InvalidEvent", "vocab-names-unique", f"two system columns would be called {twice!r}"
        )
    if vocabulary == _vocabulary(history):
        return
    data = history.nearest(*DATA_EVENTS)
    if data is not None and isinstance(data.event, DataEvent) and data.event.last_offset is not None:
        raise AppendError(
            "InvalidEvent",
            "vocab-before-data",
            "the system columns cannot get other names: records have those in force",
            hint="make another dataset",
        )
    schema = _schema_in_force(history)
    missing = [name for name in vocabulary.columns if schema is not None and schema.field(name) is None]
    if missing:
        raise AppendError(
            "InvalidEvent",
            "vocab-before-data",
            f"the declared schema has no column {missing[0]!r}, which the vocabulary names",
            hint="name the system columns before the schema is declared",
        )


def _vocabulary(history: History) -> ev.DatasetVocabulary:
    block = history.nearest("SetVocab")
    event = block.event if block is not None else None
    return ev.DatasetVocabulary.from_event(event if isinstance(event, ev.SetVocab) else None)


def _schema_in_force(history: History) -> ds.DataSchema | None:
    block = history.nearest("SetDataSchema")
    if block is None:
        return None
    assert isinstance(block.event, ev.SetDataSchema)  # noqa: S101 - asked for this kind
    try:
        return schema_of_event(block.event.raw_arrow_schema, block.event.schema)
    except CodecError as error:
        raise AppendError(
            "InvalidEvent", "schema-compatible", f"the schema in force cannot be read: {error}"
        ) from None


def _named_twice(fields: tuple[ds.DataField, ...]) -> str | None:
    seen: set[str] = set()
    for f in fields:
        if f.name in seen:
            return f.name
        seen.add(f.name)
        inner = f.value_type
        if isinstance(inner, ds.DataTypeStruct) and (twice := _named_twice(inner.fields)) is not None:
            return f"{f.name}.{twice}"
    return None


def _fields_change(
    old: tuple[ds.DataField, ...], new: tuple[ds.DataField, ...], where: str, *, ignore_optionality: bool
) -> str | None:
    new_by_name = {f.name: f for f in new}
    for f in old:
        path = f"{where}{f.name}"
        match = new_by_name.pop(f.name, None)
        if match is None:
            return f"column {path!r} was removed or renamed"
        problem = _type_change(f.type, match.type, path, ignore_optionality=ignore_optionality)
        if problem is not None:
            return problem
        if _date_unit(f) != _date_unit(match):
            return f"column {path!r} changed its type: its days are counted in another unit"
    for f in new_by_name.values():
        if not f.optional:
            return f"new column {where + f.name!r} must be optional"
    return None


def _date_unit(f: ds.DataField) -> object:
    """The one attribute that is part of a type: Arrow tells dates in milliseconds from dates in days."""
    is_date = isinstance(f.value_type, ds.DataTypeDate)
    return f.extra.entries.get(DATE_UNIT) if is_date and f.extra is not None else None


def _type_change(old: ds.DataType, new: ds.DataType, path: str, *, ignore_optionality: bool) -> str | None:
    old_optional, new_optional = isinstance(old, ds.DataTypeOption), isinstance(new, ds.DataTypeOption)
    if old_optional != new_optional and not ignore_optionality:
        was, now = ("optional", "required") if old_optional else ("required", "optional")
        return f"column {path!r} was {was} and would be {now}"
    a = old.inner if isinstance(old, ds.DataTypeOption) else old
    b = new.inner if isinstance(new, ds.DataTypeOption) else new
    match a, b:
        case ds.DataTypeStruct(), ds.DataTypeStruct():
            return _fields_change(a.fields, b.fields, f"{path}.", ignore_optionality=ignore_optionality)
        case ds.DataTypeList(), ds.DataTypeList() if a.fixed_length == b.fixed_length:
            return _type_change(a.item_type, b.item_type, f"{path}[]", ignore_optionality=ignore_optionality)
        case ds.DataTypeMap(), ds.DataTypeMap() if bool(a.keys_sorted) == bool(b.keys_sorted):
            parts = ((a.key_type, b.key_type, "key"), (a.value_type, b.value_type, "value"))
            problems = (
                _type_change(x, y, f"{path}.{part}", ignore_optionality=ignore_optionality)
                for x, y, part in parts
            )
            return next((problem for problem in problems if problem is not None), None)
    if canonical(a) != canonical(b):
        was, now = type_name(a), type_name(b)
        return f"column {path!r} changed its type" + (f" from {was} to {now}" if was != now else "")
    return None


def canonical(data_type: ds.DataType) -> ds.DataType:
    """The type with its defaults written out, so that equal meanings compare equal."""

    def change(part: ds.DataType) -> ds.DataType | None:
        match part:
            case ds.DataTypeTimestamp(unit=unit, timezone=zone):
                zone = "UTC" if zone is None else zone
                return ds.DataTypeTimestamp(unit=unit or TimeUnit.MILLISECOND, timezone=zone)
            case ds.DataTypeTime(unit=None) | ds.DataTypeDuration(unit=None):
                return replace(part, unit=TimeUnit.MILLISECOND)
            case ds.DataTypeMap(keys_sorted=None):
                return canonical(replace(part, keys_sorted=False))
        return None

    return ds.with_types(data_type, change)


def without_units(data_type: ds.DataType) -> ds.DataType:
    """The type with all timestamps in milliseconds, for telling whether two types differ in more."""

    def change(part: ds.DataType) -> ds.DataType | None:
        match part:
            case ds.DataTypeTimestamp(timezone=zone):
                zone = "UTC" if zone is None else zone
                return ds.DataTypeTimestamp(unit=TimeUnit.MILLISECOND, timezone=zone)
            case ds.DataTypeMap():
                return part
        return None

    return ds.with_types(data_type, change)
