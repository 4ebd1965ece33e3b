"""Checks 9 and 11, what the columns of a slice say: their names, order and types.

The system columns have the types of the "Common Data Schema". Where the declared schema itself says a kin of
them (the reference implementation wrote `offset` as int64 and `op` as int32), it is as declared: a note.
Types are compared as Parquet can tell them: it has no seconds, fixed-size lists or sorted maps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyarrow import types as t

from odfchain.audit.checks import SCHEMA, SYSTEM
from odfchain.audit.stored_blocks import StoredBlock
from odfchain.codec.arrow import from_arrow, to_arrow
from odfchain.codec.raw_arrow import schema_of_event
from odfchain.errors import OdfchainError
from odfchain.model import data_schema as ds
from odfchain.model.data_schema import DataSchema
from odfchain.model.events import DatasetVocabulary, SetDataSchema, SetVocab
from odfchain.model.recordable import stored
from odfchain.text import one_line


@dataclass(frozen=True, slots=True)
class ExpectedSchema:
    """What slices are to look like at a block."""

    vocabulary: DatasetVocabulary
    schema: DataSchema | None = None

    @property
    def required(self) -> frozenset[str]:
        """Columns that are declared to have no nulls."""
        fields = self.schema.fields if self.schema is not None else ()
        return frozenset(f.name for f in fields if not f.optional)


@dataclass(frozen=True, slots=True)
class SliceFinding:
    """What one check says of a slice."""

    check: int
    message: str


class SchemaInForce:
    """Follows a chain, oldest block first, and knows the schema in force; schemas are read when asked for."""

    def __init__(self, *, believed: bool) -> None:
        self._believed = believed
        self._vocabulary = DatasetVocabulary()
        self._declared: SetDataSchema | None = None
        self._expected: ExpectedSchema | None = None
        self._problem: str | None = None
        self._known = False

    def add(self, stored: StoredBlock) -> None:
        """The next block; nothing is believed behind one that is damaged."""
        self._believed = self._believed and stored.sound
        match stored.block.event:
            case SetVocab() as event:
                self._vocabulary = DatasetVocabulary.from_event(event)
                self._known = False
            case SetDataSchema() as event:
                self._declared = event
                self._known = False

    @property
    def expected(self) -> ExpectedSchema | None:
        """What is expected, without a schema where that cannot be read; None behind damage."""
        self._read()
        return self._expected if self._believed else None

    @property
    def problem(self) -> str | None:
        """Why the schema in force cannot be read; None when it can."""
        self._read()
        return self._problem if self._believed else None

    def _read(self) -> None:
        if self._known:
            return
        schema, self._problem, self._known = None, None, True
        if self._declared is not None:
            try:
                schema = schema_of_event(self._declared.raw_arrow_schema, self._declared.schema)
            except OdfchainError as error:
                self._problem = error.message
        self._expected = ExpectedSchema(self._vocabulary, schema)


def check_columns(schema: pa.Schema, expected: ExpectedSchema) -> tuple[list[SliceFinding], list[str]]:
    """(faults, notes) about the columns of a slice."""
    faults: list[SliceFinding] = []
    notes: list[str] = []
    declared = _as_declared(expected)
    for finding, kin in _system_columns(schema, expected.vocabulary):
        same = kin is not None and declared is not None and kin in declared.names
        if same and declared is not None and declared.field(kin).type == schema.field(kin).type:
            notes.append(f"{finding.message}, as the declared schema has it")
        else:
            faults.append(finding)
    faults += _against_declared(schema, expected)
    return faults, notes


def _as_declared(expected: ExpectedSchema) -> pa.Schema | None:
    if expected.schema is None:
        return None
    try:
        return to_arrow(expected.schema)
    except OdfchainError:
        return None


def _system_columns(
    schema: pa.Schema, vocabulary: DatasetVocabulary
) -> Iterator[tuple[SliceFinding, str | None]]:
    """What is wrong with them; beside it the column, where the declared schema may excuse its type."""
    present = [name for name in vocabulary.columns if schema.get_all_field_indices(name)]
    for name in vocabulary.columns:
        places = schema.get_all_field_indices(name)
        if len(places) != 1:
            count = "no" if not places else "more than one"
            yield SliceFinding(SYSTEM, f"there is {count} column `{one_line(name)}`"), None
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


# --- the declared schema ---------------------------------------------------------------------------


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
    """The type without what a Parquet file cannot tell, and without nullability."""

    def change(found: ds.DataType) -> ds.DataType | None:
        match found:
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
