"""The chain's index against the chain: it is derived, so what is wrong with it is a note and no fault."""

from __future__ import annotations

from pathlib import Path

from odfchain.audit.report import Report
from odfchain.audit.walk import StoredChain
from odfchain.chain.index import ROW_BYTES, ChainIndex
from odfchain.repo.dataset_files import DatasetFiles

_AHEAD_BYTES = 4_096 * ROW_BYTES


def note_index(dataset: DatasetFiles, chain: StoredChain, report: Report) -> None:
    """An index that says something else than the chain is noted: it is only a cache, and heals itself."""
    path = dataset.index_path
    try:
        size = path.stat().st_size
    except OSError:
        return
    index = ChainIndex(_ReadAhead(path), lambda _: iter(()))
    for stored in chain.blocks.rows():
        if (stored.number + 1) * ROW_BYTES > size:
            break  # blocks that it does not know yet
        row = index.row(stored.number)
        if stored.sound and (row is None or (row.hash, row.kind) != (stored.name, stored.event_kind)):
            report.notes.append(
                f"{path}: the index of the chain is damaged or old; it is made anew when used"
            )
            return
    if size % ROW_BYTES:
        report.notes.append(f"{path}: the index of the chain is cut; it is made anew when used")


class _ReadAhead:
    """A file that is read in order, many rows at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = 0
        self._data = b""

    def read(self, start: int, count: int) -> bytes:
        """Up to `count` bytes from `start`; nothing when the file cannot be read."""
        if not self._start <= start <= start + count <= self._start + len(self._data):
            try:
                with self._path.open("rb", buffering=0) as stream:
                    stream.seek(start)
                    self._start, self._data = start, stream.read(max(count, _AHEAD_BYTES))
            except OSError:
                self._data = b""
        at = start - self._start
        return self._data[at : at + count]

    def write(self, start: int, data: bytes) -> None:
        """Nothing: verification changes nothing."""
