"""States that need not be read from all slices: from the state checkpoint of a block, or one kept here.

A state is a pure function of (data block, key), so what was computed once is never wrong, only let go:
`info/states` has files as RFC-018 has them, but in order of offset, each named

    DATA BLOCK "." SHA3-256 OF THE KEY "." SHA3-256 OF THE FILE

and hashed before it is used. One that is damaged, or gone, is computed anew. Those that were used least
recently go first. Verification never looks at them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import BadInputError, CodecError, ObjectCorruptedError, ObjectNotFoundError, StoreError
from odfchain.lazy import pa, pq
from odfchain.odf.canonical_json import canonical_json
from odfchain.odf.events import OffsetInterval
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes, hash_file
from odfchain.storage import fsio
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SliceRef
from odfchain.workspace.read_slices import (
    METADATA_KEY,
    StateCheckpoint,
    columns_of,
    describe,
    read_description,
    read_state,
    verified_slice,
)

CACHE_BYTES = 1 << 30
"""Default limit for the states of one dataset [bytes]."""
WORTH_KEEPING = 50_000
"""Rows that had to be read [count]; a state that needed no more is read again."""

_NAME = re.compile(r"(f1620[0-9a-f]{64})\.([0-9a-f]{64})\.(f1620[0-9a-f]{64})")
_Stamp = tuple[int, int, int, int]
_VERIFIED: dict[Path, _Stamp] = {}
"""Files that this process has hashed, as they were then."""

Locate = Callable[[SliceRef], Path]


@dataclass(frozen=True, slots=True)
class StateCache:
    """The states that are kept of one dataset."""

    folder: Path
    most_bytes: int = CACHE_BYTES
    """0 keeps nothing, and looks for nothing."""

    @classmethod
    def of(cls, dataset: DatasetFiles, most_bytes: int = CACHE_BYTES) -> StateCache:
        """The folder of a dataset's states."""
        return cls(states_folder(dataset), most_bytes)

    def found(self, key: Sequence[str]) -> dict[Multihash, Path]:
        """The states by this key, by data block; none of them has been looked into."""
        own = _digest(key)
        return {block: path for block, digest, path in self._files() if digest == own}

    def verified(self, path: Path) -> bool:
        """True if a state's digest is right; a damaged file is removed."""
        try:
            known = _VERIFIED.get(path) == _stamp(path)
            if not known and str(hash_file(path)[0]) != path.name.rpartition(".")[2]:
                self.discard(path)
                return False
            with contextlib.suppress(PermissionError):  # when it was last used; another's stays as it is
                os.utime(path)
            _VERIFIED[path] = _stamp(path)
        except OSError:
            return False
        return True

    def discard(self, path: Path) -> None:
        """Forget a state."""
        _VERIFIED.pop(path, None)
        with contextlib.suppress(OSError):
            path.unlink()

    def keep(self, block: Multihash, key: Sequence[str], rows: pa.Table, last_offset: int) -> None:
        """Keep a state with all its columns, if that can be, and let go of others if there are too many."""
        with contextlib.suppress(OSError, StoreError, pa.ArrowException):
            self.folder.mkdir(exist_ok=True)
            made = fsio.temp_path(self.folder)
            try:
                said = rows.replace_schema_metadata({METADATA_KEY: describe(tuple(key), last_offset)})
                # what is written for this machine alone is written and read as fast as can be
                pq.write_table(said, made, compression="lz4", write_statistics=False)
                name, size = hash_file(made)
                if size <= self.most_bytes:
                    made.replace(self.folder / f"{block}.{_digest(key)}.{name}")
            finally:
                made.unlink(missing_ok=True)
            self._evict()

    def _evict(self) -> None:
        known = sorted(((path.stat(), path) for _, _, path in self._files()), key=lambda f: -f[0].st_mtime_ns)
        size = 0
        for found, path in known:
            size += found.st_size
            if size > self.most_bytes:
                self.discard(path)

    def _files(self) -> Iterator[tuple[Multihash, str, Path]]:
        try:
            paths = list(self.folder.iterdir()) if self.most_bytes else []
        except OSError:
            return
        for path in paths:
            if (parts := _NAME.fullmatch(path.name)) is not None:
                yield Multihash.parse(parts[1]), parts[2], path


def states_folder(dataset: DatasetFiles) -> Path:
    """The folder of states; its content may be removed at any time."""
    return dataset.folder / "info" / "states"


def read_cached_state(
    dataset: DatasetFiles,
    state: DatasetState,
    key: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    cache: StateCache | None = None,
    locate: Locate | None = None,
) -> pa.Table:
    """The rows in force at a head by a key, as `read_state`, reading as few rows as can be.

    `locate` gives the file of a slice, verified.
    """
    cache = cache or StateCache.of(dataset)
    locate = locate or (lambda ref: verified_slice(dataset, ref))
    # without a key a state cannot replace the slices (`odfchain.slices.state`)
    if not key:
        return read_state(dataset, state, key, columns, slices=_located(state.slices(), locate))
    start, later = _start(dataset, state, key, cache)
    if start is not None and start.kept and not later:
        from odfchain.slices.reader import read_own

        try:
            return read_own(start.path, columns_of(state, columns))
        except BadInputError:  # as good as damaged
            cache.discard(start.path)
            return read_cached_state(dataset, state, key, columns, cache=cache, locate=locate)
    names = columns_of(state, columns).names
    before = [] if start is None else [(start.path, OffsetInterval(start=0, end=start.last_offset))]
    slices, system = [*before, *_located(later, locate)], state.vocabulary
    lacks_times = start is not None and not start.kept and system.system_time_column in names
    wanted = list(dict.fromkeys([*names, system.offset_column])) if lacks_times else names
    found = read_state(dataset, state, key, wanted, slices=slices)
    if start is not None and lacks_times:
        found = _with_system_times(dataset, state, found, start, locate).select(names)
    read = sum(ref.slice.offset_interval.count for ref in later)
    read += start.rows if start is not None and not start.kept else 0
    if read > WORTH_KEEPING and found.schema.names == columns_of(state, None).names:
        newest = next(state.slices_newest_first())
        cache.keep(newest.block_hash, key, found, newest.slice.offset_interval.end)
    return found


@dataclass(frozen=True, slots=True)
class _Start:
    """A state that replaces the slices up to an offset."""

    path: Path
    last_offset: int
    rows: int
    kept: bool
    """True if it was kept here; else it is the chain's checkpoint."""


def _start(
    dataset: DatasetFiles, state: DatasetState, key: Sequence[str], cache: StateCache
) -> tuple[_Start | None, list[SliceRef]]:
    # the start with the fewest rows after it, and the slices after it, oldest first
    known, checkpoint = cache.found(key), _checkpoint(dataset, state, key)
    later: list[SliceRef] = []
    found = None
    for ref in state.slices_newest_first():
        end = ref.slice.offset_interval.end
        if (path := known.get(ref.block_hash)) is not None and cache.verified(path):
            found = _Start(path, end, 0, kept=True)
            break
        if checkpoint is not None and checkpoint.path is not None and end <= checkpoint.last_offset:
            found = _Start(checkpoint.path, checkpoint.last_offset, checkpoint.rows, kept=False)
            break
        later.append(ref)
    return found, later[::-1]


def _checkpoint(dataset: DatasetFiles, state: DatasetState, key: Sequence[str]) -> StateCheckpoint | None:
    # a checkpoint only saves time: one that is missing or by another key is ignored
    named, last = state.checkpoint, state.last_offset
    if named is None or last is None:
        return None
    try:
        found = read_description(dataset.checkpoints.verified_path(named.physical_hash))
    except (ObjectNotFoundError, ObjectCorruptedError, CodecError):
        return None
    usable = found is not None and set(found.key) == set(key) and found.last_offset <= last
    return found if usable else None


def _with_system_times(
    dataset: DatasetFiles, state: DatasetState, found: pa.Table, start: _Start, locate: Locate
) -> pa.Table:
    # checkpoints leave out system times, so they are read from the slices
    import numpy as np

    from odfchain.slices.state import SliceFile, rows_at

    names = state.vocabulary
    offsets = found.column(names.offset_column).to_numpy().astype(np.uint64)
    offsets = offsets[: np.searchsorted(offsets, start.last_offset, side="right")]
    refs = [ref for ref in state.slices() if ref.slice.offset_interval.start <= start.last_offset]
    files = [SliceFile(path, names, interval) for path, interval in _located(refs, locate)]
    schema = columns_of(state, [names.system_time_column])
    old = rows_at(files, offsets, schema)
    if len(old) != len(offsets):
        raise ObjectCorruptedError(
            f"{start.path}: the state checkpoint has rows that no slice has",
            hint=f"`odfchain verify {dataset.alias}` says what else is damaged",
        )
    new = found.select(schema.names).slice(len(offsets))
    place = found.schema.names.index(names.system_time_column)
    return found.set_column(place, schema.field(0), pa.concat_tables([old, new]).column(0))


def _located(refs: Sequence[SliceRef], locate: Locate) -> list[tuple[Path, OffsetInterval]]:
    return [(locate(ref), ref.slice.offset_interval) for ref in refs]


def _stamp(path: Path) -> _Stamp:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _digest(key: Sequence[str]) -> str:
    # the order of the columns does not matter: the same set distinguishes the same rows
    return str(hash_bytes(canonical_json(sorted(key))))[5:]
