"""The blocks of a chain as a verification found them, in memory that does not grow with the chain.

The blocks of a short chain stay decoded. Of a long one the bytes are in temporary files (`TMPDIR`), in the
order in which they were read, newest first, and are decoded again by each check that asks: what was hashed
once is what all checks see, whatever happens to the files of the dataset meanwhile. The files have no name,
so nothing is left behind.
"""

from __future__ import annotations

import os
import struct
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

from odfchain.chain.index import EVENT_KINDS, MERGE, link_kind
from odfchain.codec.blocks import decode_block
from odfchain.ids.multihash import Multihash
from odfchain.model.events import AddData, ExecuteTransform
from odfchain.model.metadata_block import MetadataBlock
from odfchain.store import fsio

DECODED_BLOCKS = 50_000
"""Chains of up to so many blocks stay decoded, where their bytes are not many."""
_DECODED_BYTES = 64 << 20
_IN_MEMORY = 8 << 20
"""Bytes of blocks that are in memory at once, before they are written and when they are read."""
_KINDS = (*EVENT_KINDS, MERGE)
_ROW = struct.Struct("<32sBBBxIQQ")
_ROWS_AT_ONCE = 1_024


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block as it was found; one that is not `sound` does not hash to its name."""

    name: Multihash
    block: MetadataBlock
    sound: bool
    number: int
    """Its sequence number; that of its place in the chain where it is not sound."""


class StoredRow(NamedTuple):
    """What is known of a block without decoding it again."""

    name: Multihash
    kind: str
    sound: bool
    has_data: bool
    number: int
    start: int
    size: int

    @property
    def event_kind(self) -> str:
        """What kind of event the block has."""
        return AddData.KIND if self.kind == MERGE else self.kind


class StoredBlocks:
    """Blocks that are added newest first, and asked for oldest first."""

    def __init__(self, decoded: int | None = None) -> None:
        self._limit = DECODED_BLOCKS if decoded is None else decoded
        self._decoded: list[StoredBlock] | None = []
        self._rows, self._data = bytearray(), bytearray()
        self._row_file: IO[bytes] | None = None
        self._data_file: IO[bytes] | None = None
        self._count = self._start = 0
        self.sound = True
        """Whether all blocks hash to their names."""
        self.has_checkpoints = False
        """Whether any of them names a checkpoint."""

    def __len__(self) -> int:
        return self._count

    def add(self, stored: StoredBlock, data: bytes) -> None:
        """The block before those that were added, and its bytes."""
        kind = _KINDS.index(link_kind(stored.block.event))
        has_data = stored.block.new_data is not None
        self._rows += _ROW.pack(
            stored.name.digest, kind, stored.sound, has_data, len(data), stored.number, self._start
        )
        self._data += data
        self._start += len(data)
        self._count += 1
        self.sound = self.sound and stored.sound
        event = stored.block.event
        if isinstance(event, AddData | ExecuteTransform) and event.new_checkpoint is not None:
            self.has_checkpoints = True
        if self._decoded is not None:
            self._decoded.append(stored)
            if self._count > self._limit or self._start > _DECODED_BYTES:
                self._decoded = None
        if len(self._data) >= _IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        folder = tempfile.gettempdir()
        with fsio.storage_errors(folder):
            if self._row_file is None or self._data_file is None:
                self._row_file, self._data_file = self._temporary(), self._temporary()
            _write(self._row_file, self._rows)
            _write(self._data_file, self._data)
        self._rows.clear()
        self._data.clear()

    def _temporary(self) -> IO[bytes]:
        stream = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - it lives as long as this object
        weakref.finalize(self, stream.close)
        return stream

    # --- reading -----------------------------------------------------------------------------------

    def rows(self) -> Iterator[StoredRow]:
        """What is known of each block, oldest first."""
        for end in range(self._count, 0, -_ROWS_AT_ONCE):
            yield from reversed(self._rows_between(max(0, end - _ROWS_AT_ONCE), end))

    def __iter__(self) -> Iterator[StoredBlock]:
        return self.of(*_KINDS)

    def of(self, *kinds: str) -> Iterator[StoredBlock]:
        """The blocks with these events, and those that are not sound, oldest first."""
        if self._decoded is not None:
            for stored in reversed(self._decoded):
                if not stored.sound or _is_of(link_kind(stored.block.event), kinds):
                    yield stored
            return
        for end in range(self._count, 0, -_ROWS_AT_ONCE):
            rows = self._rows_between(max(0, end - _ROWS_AT_ONCE), end)
            first, last = rows[0].start, rows[-1].start + rows[-1].size
            data = self._bytes(first, last) if last - first <= _IN_MEMORY else None
            for row in reversed(rows):
                if not row.sound or _is_of(row.kind, kinds):
                    yield (
                        self._again(row)
                        if data is None
                        else _decoded(row, data[row.start - first :][: row.size])
                    )

    def newest_first(self, *kinds: str) -> Iterator[StoredBlock]:
        """The sound blocks with these events, newest first."""
        for begin in range(0, self._count, _ROWS_AT_ONCE):
            for index, row in enumerate(self._rows_between(begin, begin + _ROWS_AT_ONCE), start=begin):
                if row.sound and _is_of(row.kind, kinds):
                    yield self._at(index, row)

    @property
    def newest(self) -> StoredBlock:
        """The block that was added first."""
        return self._at(0, self._rows_between(0, 1)[0])

    @property
    def oldest(self) -> StoredBlock:
        """The block that was added last."""
        return self._at(self._count - 1, self._rows_between(self._count - 1, self._count)[0])

    def numbered(self, number: int) -> StoredBlock | None:
        """The oldest block with a sequence number."""
        found = self._find(number)
        return None if found is None else self._at(*found)

    def name_of(self, number: int) -> Multihash | None:
        """The hash of the oldest block with a sequence number."""
        found = self._find(number)
        return None if found is None else found[1].name

    def _find(self, number: int) -> tuple[int, StoredRow] | None:
        """Where numbers count without gaps it is one look-up."""
        if not self._count:
            return None
        index = self._rows_between(0, 1)[0].number - number
        if 0 <= index < self._count:
            row = self._rows_between(index, index + 1)[0]
            older = self._rows_between(index + 1, index + 2)
            if row.number == number and (not older or older[0].number < number):
                return index, row
        return next(
            ((self._count - 1 - place, row) for place, row in enumerate(self.rows()) if row.number == number),
            None,
        )

    def _at(self, index: int, row: StoredRow) -> StoredBlock:
        if self._decoded is not None:
            return self._decoded[index]
        return self._again(row)

    def _again(self, row: StoredRow) -> StoredBlock:
        return _decoded(row, self._bytes(row.start, row.start + row.size))

    def _rows_between(self, begin: int, end: int) -> list[StoredRow]:
        begin, end = begin * _ROW.size, min(end, self._count) * _ROW.size
        return [
            StoredRow(Multihash.sha3_256(digest), _KINDS[kind], bool(sound), bool(data), number, start, size)
            for digest, kind, sound, data, size, number, start in _ROW.iter_unpack(
                _piece(self._row_file, self._rows, begin, end)
            )
        ]

    def _bytes(self, begin: int, end: int) -> bytes:
        return _piece(self._data_file, self._data, begin, end)


def _is_of(kind: str, kinds: tuple[str, ...]) -> bool:
    return kind in kinds or (kind == MERGE and AddData.KIND in kinds)


def _decoded(row: StoredRow, data: bytes) -> StoredBlock:
    return StoredBlock(row.name, decode_block(data), row.sound, row.number)


def _write(stream: IO[bytes], data: bytearray) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[stream.write(rest) :]
    rest.release()


def _piece(stream: IO[bytes] | None, rest: bytearray, begin: int, end: int) -> bytes:
    """Bytes of a file that goes on in memory."""
    if stream is None:
        return bytes(rest[begin:end])
    size = stream.tell()
    found = b""
    with fsio.storage_errors(tempfile.gettempdir()):
        while begin < min(end, size):
            read = os.pread(stream.fileno(), min(end, size) - begin, begin)
            found += read
            begin += len(read)
    return found + bytes(rest[max(0, begin - size) : max(0, end - size)])
