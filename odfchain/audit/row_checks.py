"""Checks 9 and 11: names, order and types of a slice's columns, and the schema in force at a block.

System columns have the types of the "Common Data Schema". Where the declared schema itself has a related
type (the reference implementation wrote `offset` as int64 and `op` as int32), that is a note. Types are
compared as far as Parquet has them: it lacks seconds, fixed-size lists and sorted maps.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types as t

from odfchain.audit.chain_checks import StoredBlock
from odfchain.errors import OdfchainError
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow, schema_of_event, to_arrow
from odfchain.odf.events import DatasetVocabulary, SetDataSchema, SetVocab
from odfchain.odf.schema import DataSchema, stored
from odfchain.slices.reader import plain_value
from odfchain.slices.row_rules import SCHEMA, SYSTEM, SliceFinding
from odfchain.text import one_line


@dataclass(frozen=True, slots=True)
class ExpectedSchema:
    """The expected schema of slices at a block."""

    vocabulary: DatasetVocabulary
    schema: DataSchema | None = None

    @property
    def required(self) -> frozenset[str]:
        """Columns that are declared to have no nulls."""
        fields = self.schema.fields if self.schema is not None else ()
        return frozenset(f.name for f in fields if not f.optional)

    def check(self, schema: pa.Schema) -> tuple[list[SliceFinding], list[str]]:
        """(faults, notes) about the columns of a slice."""
        faults: list[SliceFinding] = []
        notes: list[str] = []
        declared = pa.schema([])
        if self.schema is not None:
            with contextlib.suppress(OdfchainError):
                declared = to_arrow(self.schema)
        for finding, kin in _system_columns(schema, self.vocabulary):
            if kin in declared.names and declared.field(kin).type == schema.field(kin).type:
                notes.append(f"{finding.message}, as the declared schema has it")
            else:
                faults.append(finding)
        faults += _against_declared(schema, self)
        return faults, notes


class SchemaInForce:
    """Follows a chain, oldest block first, and knows the schema in force; schemas are read when asked for."""

    def __init__(self, *, believed: bool) -> None:
        self._believed = believed
        self._vocabulary = DatasetVocabulary()
        self._declared: SetDataSchema | None = None
        self._read: tuple[ExpectedSchema, str | None] | None = None

    def add(self, stored: StoredBlock) -> None:
        """The next block; nothing is believed behind one that is damaged."""
        self._believed = self._believed and stored.sound
        match stored.block.event:
            case SetVocab() as event:
                self._vocabulary, self._read = DatasetVocabulary.from_event(event), None
            case SetDataSchema() as event:
                self._declared, self._read = event, None

    def expected(self) -> tuple[ExpectedSchema | None, str | None]:
        """(the expected schema, without columns where they cannot be read; why not); none behind damage."""
        if self._read is None:
            schema = problem = None
            try:
                if self._declared is not None:
                    schema = schema_of_event(self._declared.raw_arrow_schema, self._declared.schema)
            except OdfchainError as error:
                problem = error.message
            self._read = ExpectedSchema(self._vocabulary, schema), problem
        return self._read if self._believed else (None, None)


def _system_columns(
    schema: pa.Schema, vocabulary: DatasetVocabulary
) -> Iterator[tuple[SliceFinding, str | None]]:
    present = [name for name in vocabulary.columns if schema.get_all_field_indices(name)]
    for name in vocabulary.columns:
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            count = "no" if not places else "more than one"
            yield SliceFinding(SYSTEM, f"there is {count} column `{one_line(name)}`"), None
    # the declared columns follow the system columns
    if schema.names[: len(present)] != present:
        names = ", ".join(one_line(name) for name in schema.names[: len(present)])
        yield (
            SliceFinding(SYSTEM, f"the system columns do not come first and in their order, but {names}"),
            None,
        )
    wanted = {
        vocabulary.offset_column: ("uint64", pa.types.is_uint64, t.is_integer),
        vocabulary.operation_type_column: ("uint8", pa.types.is_uint8, t.is_integer),
        vocabulary.system_time_column: ("timestamp[ms, tz=UTC]", _is_time, _is_kin_time),
        vocabulary.event_time_column: ("timestamp[ms, tz=UTC] or a date", _is_time_or_date, _is_kin_time),
    }
    for name in present:
        if len(schema.get_all_field_indices(name)) != 1:
            continue
        data_type = schema.field(name).type
        text, right, kin = wanted[name]
        if not right(data_type):
            message = f"column `{one_line(name)}` is {one_line(str(data_type))} instead of {text}"
            yield SliceFinding(SYSTEM, message), name if kin(data_type) else None


def _is_time(data_type: pa.DataType) -> bool:
    return bool(data_type == pa.timestamp("ms", "UTC"))


def _is_time_or_date(data_type: pa.DataType) -> bool:
    return _is_time(data_type) or bool(t.is_date(data_type))


def _is_kin_time(data_type: pa.DataType) -> bool:
    return bool(t.is_timestamp(data_type))


def _against_declared(schema: pa.Schema, expected: ExpectedSchema) -> Iterator[SliceFinding]:
    system = expected.vocabulary.columns
    for name in dict.fromkeys(schema.names):
        if name not in system and len(schema.get_all_field_indices(name)) > 1:
            yield SliceFinding(SCHEMA, f"the slice has more than one column `{one_line(name)}`")
    if expected.schema is None:
        return
    try:
        actual = from_arrow(schema)
    except OdfchainError as error:
        yield SliceFinding(SCHEMA, f"the slice has a column of an unknown type: {error}")
        return
    wanted = {f.name: _as_parquet(f.value_type) for f in expected.schema.fields}
    held = {f.name: _as_parquet(f.value_type) for f in actual.fields}
    for name, data_type in wanted.items():
        if name not in held:
            yield SliceFinding(
                SCHEMA, f"column `{one_line(name)}` is declared, and the slice does not have it"
            )
        elif held[name] != data_type:
            yield SliceFinding(
                SCHEMA,
                f"column `{one_line(name)}` is declared as {one_line(_text(data_type))}, "
                f"and the slice has {one_line(_text(held[name]))}",
            )
    for name in held:
        if name not in wanted:
            yield SliceFinding(SCHEMA, f"the slice has a column `{one_line(name)}` that is not declared")
    if list(wanted) != list(held) and set(wanted) == set(held):
        yield SliceFinding(SCHEMA, "the columns of the slice are not in the declared order")


def _as_parquet(data_type: ds.DataType) -> ds.DataType:
    def change(found: ds.DataType) -> ds.DataType | None:
        match found:
            # nullability is no part of a type's identity here
            case ds.DataTypeOption(inner=inner):
                return _as_parquet(inner)
            case ds.DataTypeDuration():
                return ds.DataTypeInt64()
            case ds.DataTypeMap(key_type=key, value_type=value, keys_sorted=bool()):
                return _as_parquet(ds.DataTypeMap(key_type=key, value_type=value))
        return None

    return ds.with_types(stored(data_type), change)


def _text(data_type: ds.DataType) -> str:
    match data_type:
        case ds.DataTypeTimestamp(unit=unit, timezone=zone):
            return f"Timestamp({unit.value if unit else 'Millisecond'}{', ' + zone if zone else ''})"
        case ds.DataTypeTime(unit=unit):
            return f"Time({unit.value if unit else 'Millisecond'})"
        case ds.DataTypeDecimal(precision=precision, scale=scale):
            return f"Decimal({precision}, {scale})"
        case ds.DataTypeList(item_type=item):
            return f"List({_text(item)})"
        case ds.DataTypeMap(key_type=key, value_type=value):
            return f"Map({_text(key)}, {_text(value)})"
        case ds.DataTypeStruct(fields=fields):
            return f"Struct({', '.join(f'{f.name} {_text(f.type)}' for f in fields)})"
    return data_type.KIND


_SHOWN_CHARACTERS = 80


def shown(value: pa.Scalar) -> str:
    """A value on one line, shortened."""
    plain = plain_value(value)
    if isinstance(plain, str):
        return one_line(repr(plain[: 2 * _SHOWN_CHARACTERS]), _SHOWN_CHARACTERS)
    if isinstance(plain, bytes):
        return one_line("0x" + plain[:_SHOWN_CHARACTERS].hex(), _SHOWN_CHARACTERS)
    if isinstance(plain, dt.date | dt.time):
        return plain.isoformat()
    return "null" if plain is None else one_line(str(plain), _SHOWN_CHARACTERS)
