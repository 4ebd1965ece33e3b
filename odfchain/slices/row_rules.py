"""The rules of a slice's rows: offsets, operations, times and nulls, batch by batch.

The same for what `verify` reads and for what an engine made. No loop runs over rows. A kind of fault is said
once for each slice, with the first place where it shows. The first -C or +C without its partner is found
across batches. Source: specification "Common Data Schema", "Representation of Retractions and Corrections".
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as t

from odfchain.odf.events import DatasetVocabulary, OffsetInterval
from odfchain.odf.row_hash import Numbers
from odfchain.odf.times import Timestamp
from odfchain.slices.reader import PER_SECOND, first_gap
from odfchain.text import one_line

_APPEND, _RETRACT, _FROM, _TO = range(4)
_MS_PER_DAY = 86_400_000


CHECKS = OFFSETS, SYSTEM, CORRECTIONS, SCHEMA = 8, 9, 10, 11
"""Numbers of the checks of `verify` that judge columns and rows."""


@dataclass(frozen=True, slots=True)
class SliceFinding:
    """A finding of one check in a slice."""

    check: int
    message: str


class RowChecks:
    """Fed the batches of one slice in order; then `findings`, `operations` and `latest_ms` are complete."""

    def __init__(
        self,
        schema: pa.Schema,
        names: DatasetVocabulary,
        required: Collection[str],
        interval: OffsetInterval,
        time: Timestamp,
        *,
        same_time: bool = False,
    ) -> None:
        """`required` columns have no nulls; rows are of the system `time`, or before unless `same_time`."""
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
            if f.name in required and f.nullable and f.name not in names.columns[:3]
        ]
        self._start = interval.start
        self._time, self._same_time = time, same_time
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
                where = self._first_null(batch.column(index))
                message = f"column `{one_line(name)}` is declared required and has nulls, the first {where}"
                self._say(SCHEMA, "null", message, name)
        self._position += batch.num_rows

    def finish(self) -> None:
        """There are no more rows."""
        if self._open:
            self._say(CORRECTIONS, "pair", f"row {self._row(-1)}: a -C without the +C after it")

    @property
    def rows(self) -> int:
        """All rows so far."""
        return self._position

    def _say(self, check: int, kind: str, message: str, detail: str = "") -> None:
        self.findings.setdefault((check, kind + detail), SliceFinding(check, message))

    def _first_null(self, column: pa.Array) -> str:
        return self._row(pc.index(column.is_null(), pa.scalar(True)).as_py())

    def _row(self, index: int) -> str:
        return f"at offset {self._start + self._position + index:,}"

    def _values(self, column: pa.Array, what: str) -> Numbers | None:
        if column.null_count:
            message = f"the {what} column has nulls, the first {self._first_null(column)}"
            self._say(SYSTEM, f"null {what}", message)
            return None
        if t.is_timestamp(column.type):
            column = column.view(pa.int64())
        values: Numbers = column.to_numpy(zero_copy_only=False)
        return values

    def _check_offsets(self, column: pa.Array) -> None:
        values = self._values(column, "offset")
        if values is None:
            return
        wrong = first_gap(column, self._start + self._position)
        if wrong is not None:
            message = f"row {self._row(wrong)} has offset {int(values[wrong]):,}; offsets have no gaps"
            self._say(OFFSETS, "dense", message)

    def _check_operations(self, column: pa.Array) -> None:
        values = self._values(column, "operation")
        if values is None:
            return
        low, high = int(values.min()), int(values.max())
        if low < _APPEND or high > _TO:
            wrong = int(np.argmax((values < _APPEND) | (values > _TO)))
            unknown = f"row {self._row(wrong)} has operation {int(values[wrong])}; known are 0 to 3"
            self._say(SYSTEM, "op", unknown)
            return
        if high == _APPEND and not self._open:
            self.operations[_APPEND] += len(values)
            return
        for code, count in enumerate(np.bincount(values.astype(np.int64), minlength=4)[:4]):
            self.operations[code] += int(count)
        self._check_pairs(values)

    def _check_pairs(self, values: Numbers) -> None:
        # a pair may be split over two batches: `_open` carries on
        wrong = np.concatenate(([self._open], values[:-1] == _FROM)) != (values == _TO)
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
        if self._same_time and (other := values * factor != self._time.epoch_ns).any():
            row = self._row(int(np.argmax(other)))
            self._say(SYSTEM, "other", f"row {row}: the system time is not {self._time}")
        elif int(values.max()) * factor > self._time.epoch_ns:
            wrong = int(np.argmax(values == values.max()))
            late = f"row {self._row(wrong)}: the system time is after that of the block, {self._time}"
            self._say(SYSTEM, "late", late)

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
