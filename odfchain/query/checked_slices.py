"""Slices that were hashed before are not hashed again until their file changes.

A gigabyte takes two seconds to hash, and a second query asks for the same files. What a file looked like when
it was checked (device, inode, size, times of change) is kept in the workspace; a file that was touched is
hashed anew. Proofs and verification do not use this memory.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

from odfchain.branch.state_cache import StateCache
from odfchain.errors import ObjectNotFoundError, SliceNotFoundError, StoreError
from odfchain.ids.multihash import Multihash
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState, SliceRef
from odfchain.store import fsio

_HEADS = 256
"""Blocks whose slices are remembered in this process [count]."""
_MOST = 200_000
"""Slices that are remembered [count]: 40 MB; the rest is hashed each time."""


class CheckedSlices:
    """The memory of one workspace; `file` None remembers nothing beyond this process."""

    def __init__(self, file: Path | None = None, *, state_bytes: int = 0) -> None:
        """`state_bytes` is what states that are kept of a dataset may take."""
        self._file = file
        self._state_bytes = state_bytes
        self._known: dict[str, list[int]] | None = None
        self._changed = False
        self._slices: dict[Multihash, list[SliceRef]] = {}

    @property
    def remembers(self) -> bool:
        """Whether what was found out before may be believed; proofs are made without it."""
        return self._file is not None

    @property
    def kept_in(self) -> tuple[Path | None, int]:
        """The file of the memory, and what states may take: so that another process remembers the same."""
        return self._file, self._state_bytes

    def states(self, dataset: DatasetFiles) -> StateCache:
        """The states that are kept of a dataset."""
        return StateCache.of(dataset, self._state_bytes)

    def located(self, dataset: DatasetFiles) -> Callable[[SliceRef], Path]:
        """The files of a dataset's slices, as `path` gives them."""
        return lambda ref: self.path(dataset, ref.slice.physical_hash)

    def slices(self, state: DatasetState) -> list[SliceRef]:
        """The slices as of a block, oldest first; a chain is walked once for each of its blocks."""
        if state.head not in self._slices:
            if len(self._slices) > _HEADS:
                self._slices.clear()
            self._slices[state.head] = state.slices()
        return self._slices[state.head]

    def path(self, dataset: DatasetFiles, name: Multihash, *, verify: bool = True) -> Path:
        """The file of a slice, which hashes to `name` (unless `verify` is off) and may be decoded.

        Raises:
            SliceNotFoundError, ObjectCorruptedError, BadInputError, OversizedInputError: naming the file.
        """
        path = dataset.data.path(name)
        if self._read().get(str(path)) == (seen := _stamp(path)) and seen:
            return path
        from odfchain.slices.reader import check_parquet

        try:
            if verify:
                dataset.data.verified_path(name)
            else:
                dataset.data.size(name)
        except ObjectNotFoundError:
            raise SliceNotFoundError.of(dataset.alias, path) from None
        check_parquet(path)
        if not verify:
            return path
        # what was seen before it was hashed: a change meanwhile shows at the next look
        if len(self._read()) < _MOST:
            self._read()[str(path)] = seen
            self._changed = True
        return path

    def keep(self) -> None:
        """Remember for other processes; without effect where that cannot be written."""
        if self._file is None or not self._changed:
            return
        with contextlib.suppress(StoreError):
            fsio.replace_file(self._file, json.dumps(self._known).encode(), mode=0o600)
            self._changed = False

    def _read(self) -> dict[str, list[int]]:
        if self._known is None:
            self._known = {}
            if self._file is not None:
                with contextlib.suppress(OSError, ValueError):
                    found = json.loads(self._file.read_bytes())
                    self._known = found if isinstance(found, dict) else {}
        return self._known


def _stamp(path: Path) -> list[int]:
    try:
        found = path.lstat()
    except OSError:
        return []
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
