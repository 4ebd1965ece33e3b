"""What is found out about records in the same pass in which they are written, or read."""

from __future__ import annotations

import abc
from concurrent.futures import Executor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.digest.logical import LogicalDigest
from odfchain.digest.sha3 import sha3_256
from odfchain.ids.multihash import Multihash
from odfchain.model.events import DatasetVocabulary


class SliceObserver(abc.ABC):
    """Sees everything that goes into a slice, once.

    `batch` is given all rows in their final form and order, system columns included, with the schema of the
    file. They are cut anywhere, and no batch is empty: what an observer says must not depend on the cuts.
    Batches are shared, so nobody may change them. Who keeps one keeps its rows in memory: what is kept must
    be bounded by something else than the number of rows.

    `data` is given the bytes of the file in order; the view is valid during the call only. Calls of `batch`
    come one after the other, on whatever thread, and so do calls of `data`; one of each may run at the same
    time. What either raises ends the slice, which is removed.

    `finish` is called once, when all rows and bytes were seen; what was found is known from then on. It is
    not called for a slice that is given up.
    """

    def batch(self, rows: pa.RecordBatch) -> None:  # noqa: B027 - who looks at bytes has no use for rows
        """See the next rows."""

    def data(self, view: memoryview) -> None:  # noqa: B027 - and the other way round
        """See the next bytes of the file."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Know what was to be found."""


class PhysicalHash(SliceObserver):
    """The hash and the size of the file."""

    def __init__(self) -> None:
        self.hash: Multihash
        self.size = 0
        """Bytes seen so far."""
        self._hasher = sha3_256()

    def data(self, view: memoryview) -> None:
        """Hash the next bytes."""
        self._hasher.update(view)
        self.size += len(view)

    def finish(self) -> None:
        """Know the hash."""
        self.hash = Multihash.sha3_256(self._hasher.digest())


class LogicalHash(SliceObserver):
    """The hash of the records, its leaves side by side where there is an executor.

    Raises (at construction):
        SchemaError: a column type without a defined hash.
    """

    def __init__(self, schema: pa.Schema, executor: Executor | None = None) -> None:
        self.hash: Multihash
        self._digest = LogicalDigest(schema, executor=executor)

    def batch(self, rows: pa.RecordBatch) -> None:
        """Hash the next rows."""
        self._digest.update(rows)

    def finish(self) -> None:
        """Know the hash."""
        self.hash = self._digest.finish()


class RowTotals(SliceObserver):
    """How many rows there are of each operation, and the latest event time."""

    def __init__(self, vocabulary: DatasetVocabulary) -> None:
        self.ops: dict[str, int] = {}
        """Rows for each operation code (as text, for JSON)."""
        self.latest_ms: int | None = None
        """The latest event time [ms since 1970]; None when there is none."""
        self._names = vocabulary
        self._counts = np.zeros(256, dtype=np.int64)

    def batch(self, rows: pa.RecordBatch) -> None:
        """Count the next rows."""
        operations = rows.column(self._names.operation_type_column).to_numpy(zero_copy_only=False)
        self._counts += np.bincount(operations, minlength=256)[:256]
        latest = pc.max(_as_ms(rows.column(self._names.event_time_column))).as_py()
        if latest is not None and (self.latest_ms is None or latest > self.latest_ms):
            self.latest_ms = latest

    def finish(self) -> None:
        """Know the counts."""
        self.ops = {str(code): int(count) for code, count in enumerate(self._counts) if count}

    @property
    def rows(self) -> int:
        """All rows so far."""
        return int(self._counts.sum())


def _as_ms(event_time: pa.Array) -> pa.Array:
    """Event times as milliseconds since the epoch; a date counts as its midnight UTC."""
    if pa.types.is_date(event_time.type):
        event_time = event_time.cast(pa.timestamp("ms"))
    return event_time.cast(pa.timestamp("ms", event_time.type.tz), safe=False).cast(pa.int64())
