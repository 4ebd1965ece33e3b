"""Checks 8 to 11, what the rows of a slice say: offsets, operations, times and nulls, batch by batch.

No loop runs over rows. A kind of fault is said once for each slice, with the first place where it shows. The
first -C or +C without its partner is found across batches.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.audit.chain_checks import StoredBlock
from odfchain.audit.report import CORRECTIONS, OFFSETS, SCHEMA, SYSTEM
from odfchain.errors import OdfchainError
from odfchain.odf import schema as ds
from odfchain.odf.arrow_schema import from_arrow, schema_of_event, to_arrow
from odfchain.odf.events import DatasetVocabulary, OffsetInterval, SetDataSchema, SetVocab
from odfchain.odf.schema import DataSchema, stored
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import PER_SECOND, plain_value
from odfchain.text import one_line

# Checks 9 and 11: names, order and types of a slice's columns.
# System columns have the types of the "Common Data Schema". Where the declared schema itself has a related
# type (the reference implementation wrote `offset` as int64 and `op` as int32), that is a note. Types are
# compared as far as Parquet has them: it lacks seconds, fixed-size lists and sorted maps.


@dataclass(frozen=True, slots=True)
class SliceFinding:
    """A finding of one check in a slice."""

    check: int
    message: str


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


_APPEND, _RETRACT, _FROM, _TO = range(4)
_SHOWN_CHARACTERS = 80
_MS_PER_DAY = 86_400_000

Numbers = np.ndarray[Any, Any]


class RowChecks:
    """Fed the batches of one slice in order; then `findings`, `operations` and `latest_ms` are complete."""

    def __init__(
        self, schema: pa.Schema, expected: ExpectedSchema, interval: OffsetInterval, time: Timestamp
    ) -> None:
        names = expected.vocabulary
        self.findings: dict[tuple[int, str], SliceFinding] = {}
        # How many rows of each operation there are.
        self.operations = [0, 0, 0, 0]
        # The largest event time [ms].
        self.latest_ms: int | None = None
        # 1 if all rows have one system time, 2 if there are several.
        self.system_times = 1
        self._offset = _index(schema, names.offset_column, t.is_integer)
        self._op = _index(schema, names.operation_type_column, t.is_integer)
        self._system = _index(schema, names.system_time_column, t.is_timestamp)
        self._event = _index(schema, names.event_time_column, lambda d: t.is_timestamp(d) or t.is_date(d))
        self._required = [
            (i, f.name)
            for i, f in enumerate(schema)
            if f.name in expected.required and f.nullable and f.name not in names.columns[:3]
        ]
        self._start = interval.start
        self._time = time
        self._position = 0
        # True if the row before was a -C.
        self._open = False
        # The system times of the first and the last row [ns since the epoch]; None where not known.
        self.system_span: tuple[int, int] | None = None
        self._last_system: int | None = None

    def update(self, batch: pa.RecordBatch) -> None:
        """Look at the next rows."""
        if not batch.num_rows:
            return
        if self._offset is not None:
            self._check_offsets(batch.column(self._offset))
        if self._op is not None:
            self._check_operations(batch.column(self._op))
        if self._system is not None:
            self._check_system_time(batch.column(self._system))
        if self._event is not None:
            self._note_event_time(batch.column(self._event))
        for index, name in self._required:
            if batch.column(index).null_count:
                self._say(
                    SCHEMA, "null", f"column `{one_line(name)}` is declared required and has nulls", name
                )
        self._position += batch.num_rows

    def finish(self) -> None:
        """There are no more rows."""
        if self._open:
            self._say(CORRECTIONS, "pair", f"row {self._row(-1)}: a -C without the +C after it")

    def _say(self, check: int, kind: str, message: str, detail: str = "") -> None:
        self.findings.setdefault((check, kind + detail), SliceFinding(check, message))

    def _row(self, index: int) -> str:
        return f"at offset {self._start + self._position + index:,}"

    def _values(self, column: pa.Array, what: str) -> Numbers | None:
        if column.null_count:
            self._say(SYSTEM, f"null {what}", f"the {what} column has nulls")
            return None
        if t.is_timestamp(column.type):
            column = column.view(pa.int64())
        values: Numbers = column.to_numpy(zero_copy_only=False)
        return values

    def _check_offsets(self, column: pa.Array) -> None:
        values = self._values(column, "offset")
        if values is None:
            return
        first = self._start + self._position
        last = first + len(values) - 1
        limits = np.iinfo(values.dtype)
        fits = last <= limits.max
        if fits and np.array_equal(values, np.arange(first, last + 1, dtype=values.dtype)):
            return
        wrong = 0
        if fits:
            wrong = int(np.argmax(values != np.arange(first, last + 1, dtype=values.dtype)))
        self._say(
            OFFSETS,
            "dense",
            f"row {self._row(wrong)} has offset {int(values[wrong]):,}; offsets have no gaps",
        )

    def _check_operations(self, column: pa.Array) -> None:
        values = self._values(column, "operation")
        if values is None:
            return
        low, high = int(values.min()), int(values.max())
        if low < _APPEND or high > _TO:
            wrong = int(np.argmax((values < _APPEND) | (values > _TO)))
            self._say(
                SYSTEM, "op", f"row {self._row(wrong)} has operation {int(values[wrong])}; known are 0 to 3"
            )
            return
        if high == _APPEND and not self._open:
            self.operations[_APPEND] += len(values)
            return
        for code, count in enumerate(np.bincount(values.astype(np.int64), minlength=4)[:4]):
            self.operations[code] += int(count)
        self._check_pairs(values)

    def _check_pairs(self, values: Numbers) -> None:
        # a pair may be split over two batches: `_open` carries on
        before = np.concatenate(([self._open], values[:-1] == _FROM))
        wrong = before != (values == _TO)
        if wrong.any():
            at = int(np.argmax(wrong))
            if values[at] == _TO:
                message = f"row {self._row(at)}: a +C without the -C before it"
            else:
                message = f"row {self._row(at - 1)}: a -C without the +C after it"
            self._say(CORRECTIONS, "pair", message)
        self._open = bool(values[-1] == _FROM) if len(values) else self._open

    def _check_system_time(self, column: pa.Array) -> None:
        values = self._values(column, "system time")
        if values is None:
            return
        first = int(values[0]) if self._last_system is None else self._last_system
        if not (values == first).all():
            self.system_times = 2
            back = values < np.concatenate(([first], values[:-1]))
            if back.any():
                wrong = int(np.argmax(back))
                self._say(SYSTEM, "back", f"row {self._row(wrong)}: the system time goes back")
        self._last_system = int(values[-1])
        factor = 1_000_000_000 // PER_SECOND[column.type.unit]
        began = int(values[0]) * factor if self.system_span is None else self.system_span[0]
        self.system_span = (began, self._last_system * factor)
        if int(values.max()) * factor > self._time.epoch_ns:
            wrong = int(np.argmax(values == values.max()))
            self._say(
                SYSTEM,
                "late",
                f"row {self._row(wrong)}: the system time is after that of the block, {self._time}",
            )

    def _note_event_time(self, column: pa.Array) -> None:
        days = t.is_date32(column.type)
        unit = "s" if days else "ms" if t.is_date64(column.type) else column.type.unit
        number = column.view(pa.int32() if days else pa.int64())
        latest = pc.max(number).as_py()
        if latest is None:
            return
        per_ms = PER_SECOND[unit] // 1_000
        # part of a millisecond counts as a whole one: writers differ in how they cut it off
        in_ms = latest * _MS_PER_DAY if days else -(-latest // per_ms) if per_ms else latest * 1_000
        if self.latest_ms is None or in_ms > self.latest_ms:
            self.latest_ms = in_ms


def _index(schema: pa.Schema, name: str, fits: Any) -> int | None:
    places = schema.get_all_field_indices(name)
    # a wrong column is reported elsewhere, and skipped here
    return places[0] if len(places) == 1 and fits(schema.field(places[0]).type) else None


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
