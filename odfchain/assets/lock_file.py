"""Locks as they are read: once, a batch in memory at a time, every row judged.

That no pair stands twice is seen from neighbours where rows are sorted, so nothing of them is kept; of
others, which no command of ours writes, 8 bytes a row. Source: RFC-047.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.assets.lock_rules import PIECE, RowFault, row_faults, schema_fault
from odfchain.assets.lock_table import KEY, SCHEMA, SCHEMA_WITH_CHECKSUM, AssetRow, Facts, schema_like
from odfchain.digest.row_hash import Numbers, hash_rows
from odfchain.errors import AssetError, BadInputError, DamagedLockError, OversizedInputError
from odfchain.limits import ASSETS
from odfchain.slices.reader import ParquetSource, open_parquet
from odfchain.store.locations import Location
from odfchain.text import counted

_READ = 16_384
"""Rows that are read at a time [count]: more are judged no faster."""
_BUFFER = 1 << 16
"""Bytes of a column that are read at a time: a row group of somebody else's may be as large as its file."""


class LockFile:
    """A lock file as it is read: once, a batch in memory at a time, and every row is judged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._order = _Order()
        self.schema = SCHEMA
        """Once it was opened, its columns."""

    @property
    def rows(self) -> int:
        """Those that have been read."""
        return self._order.rows

    @property
    def is_sorted(self) -> bool:
        """Whether the rows that have been read come in the order of a lock."""
        return self._order.is_sorted

    def faults(self) -> Iterator[RowFault]:
        """What is wrong with its rows; nothing: it is in order. Errors as `batches`."""
        for _, faults in self.batches():
            yield from faults
        yield from self.repeated()

    def batches(self) -> Iterator[tuple[pa.RecordBatch, list[RowFault]]]:
        """Batches, each with what is wrong with its rows; `repeated` says what is seen of all rows only."""
        with self._open() as file:
            for batch in file.batches(most_rows=_READ):
                yield batch, self._order.faults_in(batch)

    def repeated(self) -> Iterator[RowFault]:
        """A fault for each row whose item and asset stand in an earlier one that is not its neighbour.

        Sorted rows have none. Of others a hash is kept, and of those that may be repeated one that nobody
        can forge (some 100 bytes each).
        """
        if self.is_sorted:
            return
        hashes = np.concatenate([found["high"] for found, _ in self._hashed()])
        hashes.sort()
        several = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        del hashes
        seen, number, last = set[bytes](), 0, b""
        for found, batch in self._hashed() if len(several) else ():
            for index in map(int, np.flatnonzero(np.isin(found["high"], several))):
                pair, before = found[index].tobytes(), found[index - 1].tobytes() if index else last
                if pair in seen and pair != before:
                    yield _twice(batch, index, number)
                seen.add(pair)
            number, last = number + batch.num_rows, found[-1].tobytes()

    @contextlib.contextmanager
    def _open(self) -> Iterator[ParquetSource]:
        try:
            with open_parquet(self._path, pre_buffer=False, buffer_size=_BUFFER) as file:
                self.schema = file.schema_arrow
                message = schema_fault(self.schema)
                if message is not None:
                    raise DamagedLockError(f"{self._path}: not an asset lock: {message}")
                if file.metadata.num_rows > ASSETS.rows:
                    raise AssetError(f"{self._path}: more than {ASSETS.rows:,} rows")
                yield file
        except OversizedInputError:
            raise
        except BadInputError as error:
            raise DamagedLockError(
                f"{self._path}: {error.message}", hint="get the lock again, or derive it anew"
            ) from None

    def _hashed(self) -> Iterator[tuple[Numbers, pa.RecordBatch]]:
        with self._open() as file:
            for batch in file.batches(list(KEY), most_rows=_READ):
                yield hash_rows(batch, ()), batch


class SortedLock:
    """A table in the order of a lock, whose rows are judged."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self.rows = table.num_rows

    def faults(self) -> Iterator[RowFault]:
        """What is wrong with its rows; nothing: it is in order."""
        order = _Order()
        for batch in self._table.to_batches(max_chunksize=_READ):
            yield from order.faults_in(batch)


class _Order:
    """Judges rows as they come; of those that went by it keeps the last."""

    def __init__(self) -> None:
        self.rows = 0
        self.is_sorted = True
        self._last: dict[str, pa.Array] = {}

    def faults_in(self, batch: pa.RecordBatch) -> list[RowFault]:
        """What is wrong with the rows of the next batch, which is not empty."""
        faults = [*row_faults(batch, self.rows), *self._neighbours(batch)]
        self.rows += batch.num_rows
        return sorted(faults, key=lambda fault: fault.number)

    def _neighbours(self, batch: pa.RecordBatch) -> Iterator[RowFault]:
        """A fault for each row that names what the one before it names; sees whether rows are sorted."""
        rises, same = list[Numbers](), list[Numbers]()
        for name in KEY:
            column = batch.column(name)
            before = pa.concat_arrays([self._last.get(name, column[:1]), column[:-1]])
            for found, compare in ((rises, pc.less), (same, pc.equal)):
                found.append(pc.fill_null(compare(before, column), False).to_numpy(zero_copy_only=False))
        twice = same[0] & same[1]
        self.is_sorted = self.is_sorted and bool((rises[0] | (same[0] & rises[1]) | twice).all())
        if not self._last:  # the first row was compared with itself
            twice[0] = False
        # a copy: a window would keep the whole batch in memory
        self._last = {name: batch.column(name).take([batch.num_rows - 1]) for name in KEY}
        for index in map(int, np.flatnonzero(twice)):
            yield _twice(batch, index, self.rows)


def read_lock(path: Path) -> pa.Table:
    """The rows of a lock file, read and judged once, and sorted.

    Raises: as `LockFile.batches`, and
        DamagedLockError: rows are faulty; the message lists the first of them.
    """
    file, kept, shown, number = LockFile(path), list[pa.RecordBatch](), list[RowFault](), 0
    for batch, faults in file.batches():
        kept.append(batch)
        number += len(faults)
        shown += faults[: _SHOWN - len(shown)]
        if number:
            kept.clear()
    for fault in file.repeated():
        number += 1
        shown += [fault] if len(shown) < _SHOWN else []
    if number:
        said = "; ".join(map(str, shown))
        more = f"; and {number - len(shown):,} more" if number > len(shown) else ""
        raise DamagedLockError(
            f"{path}: {number:,} of {counted(file.rows, 'row')} faulty: {said}{more}",
            hint="`odfchain assets check LOCK --offline` lists all of them",
        )
    columns = pa.Table.from_batches(kept, file.schema).columns
    table = pa.Table.from_arrays(columns, schema=schema_like(file.schema))
    return table if file.is_sorted else table.sort_by([(name, "ascending") for name in KEY])


_SHOWN = 20


def _twice(batch: pa.RecordBatch, index: int, first: int) -> RowFault:
    item, asset = (batch.column(name)[index].as_py() for name in KEY)
    return RowFault(first + index, item, asset, "named twice")


def rows_of(table: pa.RecordBatch | pa.Table, *, judged: bool = False) -> Iterator[AssetRow]:
    """The rows as values, a few thousand of them in memory at a time.

    Raises:
        DamagedLockError: a row is faulty, unless all were `judged` before.
    """
    number = 0
    for batch in _pieces(table):
        if not judged:
            for fault in row_faults(batch, number):
                raise DamagedLockError(str(fault))
        names = SCHEMA_WITH_CHECKSUM.names
        columns = [
            batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows
            for name in names
        ]
        for item, asset, store, container, endpoint, key, size, checksum, etag, time in zip(
            *columns, strict=True
        ):
            location = Location(store, container, endpoint, key)
            yield AssetRow(item, asset, location, Facts(size, etag, time, checksum))
        number += batch.num_rows


def _pieces(table: pa.RecordBatch | pa.Table) -> Iterator[pa.RecordBatch]:
    whole = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    yield from whole.to_batches(max_chunksize=PIECE)
