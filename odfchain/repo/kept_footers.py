"""What footers of slices report, kept: one line for each slice in `info/file-stats`.

    <CRC-32, 8 hex digits> <physical hash> <the statistics, `odfchain.slices.footer_lines`>

A line is written only where the bytes were verified: of a slice that was written here, from the memory of its
writer; of one that came from elsewhere, from the footer of a file that was hashed here and is the slice. It
says something of bytes with that hash, so nothing that happens to a file makes it wrong. The file is private
and disposable: a line that is damaged or missing is made anew when the slice is read; commits only append.
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, InvalidIdError, StoreError
from odfchain.ids.multihash import Multihash
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import SliceRef
from odfchain.repo.read_slices import unreadable, verified_slice
from odfchain.store import fsio

if TYPE_CHECKING:
    from odfchain.slices.footers import FileStats

_DATASETS = 16
"""Files whose lines stay in memory [count]."""
_CRC = 8


class KeptFooters:
    """What is kept of the slices of a dataset; what is found out here is kept from then on."""

    def __init__(self, dataset: DatasetFiles) -> None:
        self._dataset = dataset
        self._lines: _Lines | None = None

    def known(self, name: Multihash) -> FileStats | None:
        """What a slice's footer reports, where that was verified before; the slice need not be here."""
        if self._lines is None:
            self._lines = _lines_of(_path(self._dataset))
        return self._lines.get(name)

    def stats(self, ref: SliceRef, locate: Callable[[SliceRef], Path] | None = None) -> FileStats:
        """What a slice's footer reports; where nothing is known, its file is hashed first.

        `locate` gives files that hash to their names. That it cannot be kept costs time only.

        Raises:
            SliceNotFoundError, ObjectCorruptedError: the slice is not here, or damaged, or no Parquet file.
            OversizedInputError: its footer is larger than the limits allow.
        """
        name = ref.slice.physical_hash
        found = self.known(name)
        if found is None:
            from odfchain.slices.footer_lines import stats_text  # noqa: PLC0415 - they load Arrow
            from odfchain.slices.footers import file_stats  # noqa: PLC0415

            path = locate(ref) if locate is not None else verified_slice(self._dataset, ref)
            try:
                found = file_stats(path)
            except BadInputError as error:
                raise unreadable(path, error.message) from None
            keep_footers(self._dataset, [(name, stats_text(found))])
        return found


def kept_stats(dataset: DatasetFiles, ref: SliceRef) -> FileStats:
    """What the footer of one slice reports; errors as `KeptFooters.stats`."""
    return KeptFooters(dataset).stats(ref)


def keep_footers(dataset: DatasetFiles, found: Iterable[tuple[Multihash, str | None]]) -> None:
    """Remember what footers of verified slices report; without effect where that cannot be written."""
    data = b"".join(_line(name, text) for name, text in found if text is not None)
    if not data:
        return
    path = _path(dataset)
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":  # another writer was interrupted
                data = b"\n" + data
            os.write(fd, data)
        finally:
            os.close(fd)


def drop_footers(dataset: DatasetFiles, keep: Callable[[Multihash], bool]) -> None:
    """Forget what is kept of slices but those that `keep` names, damaged lines, and what is there twice."""
    path = _path(dataset)
    lines = _lines_of(path)
    names = lines.names()
    wanted = [name for name in names if keep(name)]
    data = b"".join(lines.raw(name) + b"\n" for name in wanted)
    with contextlib.suppress(StoreError, OSError):
        if path.exists() and path.stat().st_size != len(data):
            fsio.replace_file(path, data, mode=0o600)


def footers_path(dataset: DatasetFiles) -> Path:
    """Where they are kept; the file may be removed."""
    return _path(dataset)


def _path(dataset: DatasetFiles) -> Path:
    return dataset.folder / "info" / "file-stats"


def _line(name: Multihash, text: str) -> bytes:
    body = f"{name} {text}".encode()
    return b"%08x %b\n" % (zlib.crc32(body), body)


class _Lines:
    """The lines of one file, read as far as it has grown; what one says is found when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file = (0, 0)
        self._size = 0
        self._known: dict[str, bytes | FileStats] = {}

    def get(self, name: Multihash) -> FileStats | None:
        """What a good line says."""
        key = str(name)
        found = self._known.get(key)
        if isinstance(found, bytes):
            from odfchain.slices.footer_lines import stats_of_text  # noqa: PLC0415 - it loads Arrow

            try:
                found = self._known[key] = stats_of_text(found[_CRC + len(key) + 2 :])
            except ValueError:
                del self._known[key]
                return None
        return found

    def grown(self) -> _Lines:
        """The same, with what was appended meanwhile."""
        with self._lock, contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
            with os.fdopen(fd, "rb") as stream:
                stat = os.fstat(fd)
                if (stat.st_dev, stat.st_ino) != self._file or stat.st_size < self._size:
                    self._known, self._size = {}, 0
                    self._file = (stat.st_dev, stat.st_ino)
                stream.seek(self._size)
                for line in stream:
                    if not line.endswith(b"\n"):
                        break  # somebody is writing it
                    self._size += len(line)
                    self._add(line[:-1])
        return self

    def _add(self, line: bytes) -> None:
        crc, _, body = line.partition(b" ")
        name, _, _ = body.partition(b" ")
        if crc == b"%08x" % zlib.crc32(body):
            self._known[name.decode("ascii", "replace")] = line

    def names(self) -> list[Multihash]:
        """The slices with a line."""
        found = []
        for key in self._known:
            with contextlib.suppress(InvalidIdError):
                found.append(Multihash.parse(key))
        return found

    def raw(self, name: Multihash) -> bytes:
        """The line of a slice, as it stands."""
        found = self._known[str(name)]
        if isinstance(found, bytes):
            return found
        from odfchain.slices.footer_lines import stats_text  # noqa: PLC0415 - it loads Arrow

        text = stats_text(found)
        assert text is not None  # noqa: S101 - it came from one
        return _line(name, text)[:-1]


_READ: OrderedDict[Path, _Lines] = OrderedDict()
_READ_LOCK = threading.Lock()


def _lines_of(path: Path) -> _Lines:
    with _READ_LOCK:
        lines = _READ.pop(path, None) or _Lines(path)
        _READ[path] = lines
        while len(_READ) > _DATASETS:
            _READ.popitem(last=False)
    return lines.grown()
