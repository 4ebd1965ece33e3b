"""Hashes of the keys of slices, as private files that are read and written a piece at a time (RFC-032)."""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from odfchain.digest.row_hash import Numbers
from odfchain.errors import StoreError
from odfchain.repo.recorded import RecordedSlice
from odfchain.store import fsio

if TYPE_CHECKING:
    import pyarrow as pa

PIECE_ROWS = 1 << 20
"""So many hashes are in memory at a time, and in order in a file."""

_HEAD = struct.Struct("<8sQ")
_MAGIC = b"odfkeys2"


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """The hashes of the keys of slices, as files of a folder."""

    folder: Path
    kind: str
    """Names the columns of the key and their types."""

    def _path(self, piece: RecordedSlice) -> Path:
        return self.folder / f"{piece.name}.{self.kind}"

    def holds_any(self, piece: RecordedSlice, wanted: Numbers) -> bool | None:
        """Whether the slice has one of these hashes; None where there is no whole file of all of its own."""
        found, sum_, rows = False, self._sum_before(piece), 0
        try:
            with self._path(piece).open("rb") as stream:
                head = stream.read(_HEAD.size)
                while len(known := np.fromfile(stream, dtype="<u8", count=PIECE_ROWS)):
                    rows, sum_ = rows + len(known), zlib.crc32(known.data, sum_)
                    if rows > piece.rows:
                        return None
                    found = found or _any_of(wanted, known)
        except OSError:
            return None
        return found if rows == piece.rows and head == _HEAD.pack(_MAGIC, sum_) else None

    def write(self, piece: RecordedSlice, hashes: Iterable[Numbers]) -> None:
        """Keep the hashes of a slice; a disk that takes no more only costs time."""
        sum_ = self._sum_before(piece)
        try:
            fsio.make_folder(self.folder)
            with fsio.replaced(self._path(piece)) as stream:
                stream.write(_HEAD.pack(_MAGIC, 0))
                for part in _pieces(hashes):
                    part.sort()
                    sum_ = zlib.crc32(part.data, sum_)
                    stream.write(part.data)
                stream.seek(0)
                stream.write(_HEAD.pack(_MAGIC, sum_))
        except StoreError:
            return

    def _sum_before(self, piece: RecordedSlice) -> int:
        """What the checksum begins with: the file of another slice or key has another one."""
        return zlib.crc32(self._path(piece).name.encode())

    def keep_only(self, slices: Sequence[RecordedSlice]) -> None:
        """Remove what belongs to no slice any more."""
        names = {str(piece.name) for piece in slices}
        for path in self.folder.glob("*.*") if self.folder.is_dir() else ():
            if path.name.partition(".")[0] not in names:
                fsio.remove_quietly(path)


def _pieces(hashes: Iterable[Numbers]) -> Iterator[Numbers]:
    """The same hashes, so many at a time; the last of them may be fewer."""
    held = np.empty(PIECE_ROWS, np.uint64)
    count = 0
    for part in hashes:
        while len(part):
            taken = min(len(part), PIECE_ROWS - count)
            held[count : count + taken] = part[:taken]
            count, part = count + taken, part[taken:]  # noqa: PLW2901 - what is left of it
            if count == PIECE_ROWS:
                yield held
                count = 0
    if count:
        yield held[:count]


def _any_of(wanted: Numbers, known: Numbers) -> bool:
    places = np.searchsorted(known, wanted)
    inside = places < len(known)
    return bool((known[places[inside]] == wanted[inside]).any())


# --- hashes that come from workers -----------------------------------------------------------------


def leave_hashes(
    batches: Iterator[pa.RecordBatch], ends: tuple[int, ...], folder: str
) -> Iterator[pa.RecordBatch]:
    """A task's rows of offset and hash, as a new file for each slice that has some; says which, and how many.

    `ends` are the last offsets of the slices, ascending. Whatever lies behind the last one is in none.
    """
    import pyarrow as pa  # imported on the worker

    paths: dict[int, Path] = {}
    rows: dict[int, int] = {}
    for batch in batches:
        offsets, hashes = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
        numbers = np.searchsorted(ends, offsets)
        for number in map(int, np.unique(numbers)):
            path = paths.setdefault(number, Path(folder) / f"keys-{uuid.uuid4().hex}")
            own = hashes[numbers == number]
            rows[number] = rows.get(number, 0) + len(own)
            with path.open("ab") as stream:
                own.astype("<i8").tofile(stream)
    for number, path in paths.items():
        yield pa.RecordBatch.from_pylist([{"slice": number, "path": str(path), "rows": rows[number]}])


def left_hashes(paths: Sequence[str]) -> Iterator[Numbers]:
    """The hashes that tasks have left in files, a piece at a time."""
    for path in paths:
        with Path(path).open("rb") as stream:
            while len(part := np.fromfile(stream, dtype="<u8", count=PIECE_ROWS)):
                yield part
