"""Append rules of data schemas: only additions of optional columns keep old readers working.

Source: specification "Schema Evolution". The raw Arrow form (0.34.1) is not checked, as in the reference
implementation; a first ODF schema after a raw one may also change optionality.
"""

from __future__ import annotations

from odfchain.chain.history import History
from odfchain.errors import AppendError, CodecError
from odfchain.metadata import data_schema as ds
from odfchain.metadata import events as ev
from odfchain.metadata.enums import TimeUnit
from odfchain.metadata.raw_arrow import schema_of_event


def check_set_data_schema(event: ev.SetDataSchema, history: History) -> None:
    """An ODF schema differs from the one in force and is compatible with it.

    Raises:
        AppendError: NoOpEvent or InvalidEvent.
    """
    if event.schema is None:
        return
    block = history.nearest("SetDataSchema")
    if block is None:
        return
    assert isinstance(block.event, ev.SetDataSchema)  # noqa: S101 - asked for this kind
    legacy = block.event.schema is None
    try:
        old = schema_of_event(block.event.raw_arrow_schema, block.event.schema)
    except CodecError as error:
        raise AppendError(
            "InvalidEvent", "schema-compatible", f"the schema in force cannot be read: {error}"
        ) from None
    if not legacy and old == event.schema:
        raise AppendError("NoOpEvent", "schema-not-identical", "the schema is already like this")
    problem = _incompatibility(old.fields, event.schema.fields, "", ignore_optionality=legacy)
    if problem is not None:
        raise AppendError("InvalidEvent", "schema-compatible", problem)


def _incompatibility(
    old: tuple[ds.DataField, ...], new: tuple[ds.DataField, ...], where: str, *, ignore_optionality: bool
) -> str | None:
    """Why `new` cannot replace `old`, or None; order and attributes do not matter."""
    new_by_name = {f.name: f for f in new}
    for f in old:
        path = f"{where}{f.name}"
        match = new_by_name.pop(f.name, None)
        if match is None:
            return f"column {path!r} was removed or renamed"
        problem = _type_change(f.type, match.type, path, ignore_optionality=ignore_optionality)
        if problem is not None:
            return problem
    for f in new_by_name.values():
        if not f.optional:
            return f"new column {where + f.name!r} must be optional"
    return None


def _type_change(old: ds.DataType, new: ds.DataType, path: str, *, ignore_optionality: bool) -> str | None:
    old_optional, new_optional = isinstance(old, ds.DataTypeOption), isinstance(new, ds.DataTypeOption)
    if old_optional != new_optional and not ignore_optionality:
        return f"column {path!r} changed from {'optional' if old_optional else 'required'} to the opposite"
    a = old.inner if isinstance(old, ds.DataTypeOption) else old
    b = new.inner if isinstance(new, ds.DataTypeOption) else new
    match a, b:
        case ds.DataTypeStruct(), ds.DataTypeStruct():
            return _incompatibility(a.fields, b.fields, f"{path}.", ignore_optionality=ignore_optionality)
        case ds.DataTypeList(), ds.DataTypeList() if a.fixed_length == b.fixed_length:
            return _type_change(a.item_type, b.item_type, f"{path}[]", ignore_optionality=ignore_optionality)
    if canonical(a) != canonical(b):
        return f"column {path!r} changed its type"
    return None


def canonical(data_type: ds.DataType) -> ds.DataType:
    """The type with its defaults written out, so that equal meanings compare equal."""
    milliseconds = TimeUnit.MILLISECOND
    match data_type:
        case ds.DataTypeTimestamp(unit=unit, timezone=zone):
            return ds.DataTypeTimestamp(unit=unit or milliseconds, timezone="UTC" if zone is None else zone)
        case ds.DataTypeTime(unit=unit):
            return ds.DataTypeTime(unit=unit or milliseconds)
        case ds.DataTypeDuration(unit=unit):
            return ds.DataTypeDuration(unit=unit or milliseconds)
        case ds.DataTypeOption(inner=inner):
            return ds.DataTypeOption(inner=canonical(inner))
        case ds.DataTypeMap(key_type=key, value_type=value, keys_sorted=keys_sorted):
            return ds.DataTypeMap(
                key_type=canonical(key), value_type=canonical(value), keys_sorted=bool(keys_sorted)
            )
        case ds.DataTypeList(item_type=item, fixed_length=length):
            return ds.DataTypeList(item_type=canonical(item), fixed_length=length)
        case ds.DataTypeStruct(fields=fields):
            return ds.DataTypeStruct(
                fields=tuple(ds.DataField(name=f.name, type=canonical(f.type)) for f in fields)
            )
    return data_type
