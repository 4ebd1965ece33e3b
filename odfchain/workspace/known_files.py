"""Files that were ingested into a dataset, by the hashes of their bytes: private, never published (RFC-059).

    info/ingested-files     <sha256> <size> <block> <its number> <source>

A line is written before the head moves, and counts while its block is in the chain that is written to: one of
a commit that failed, or was reset, says nothing. A damaged or missing line means that a file is not known.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from odfchain.errors import OdfchainError, StoreError
from odfchain.odf.identity import Multihash
from odfchain.storage.fsio import FileState, file_state, sync_folder
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState


class GivenFiles:
    """The files of a run, and which of them were ingested from the same source before.

    A thread hashes them, and is waited for at the end, or where a file of the same size is known.
    """

    def __init__(self, dataset: DatasetFiles, paths: Sequence[Path]) -> None:
        self.paths = paths
        self._path = dataset.folder / "info" / "ingested-files"
        # before anything is read: a file that changes from now on is not remembered
        self._states = [_state(path) for path in paths]
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self._hashes, self._closed = list[Future[str]](), False

    def close(self) -> None:
        """Hash no more: a run that was stopped does not wait for it."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def known(self, state: DatasetState, source: str, *, again: bool) -> dict[int, Multihash | int]:
        """The files that are known, by their places: the block of their last rows, or an equal file before.

        From here on they are hashed; with `again` they are all new.
        """
        self._hashes = self._hashes or [self._pool.submit(self._hash, path) for path in self.paths]
        if again:
            return {}
        sizes = Counter(each[1] for each in self._states if each is not None)
        lines = [line for line in self._lines(source) if line[1] in sizes]
        sizes.update({size for _, size, _, _ in lines})
        found, first = dict[int, Multihash | int](), dict[str, int]()
        for index, each in enumerate(self._states):
            # a size that is there once is that of a new file
            if each is not None and sizes[each[1]] > 1 and (hashed := self._hashes[index].result()):
                blocks = (_in_chain(state, *line[2:]) for line in reversed(lines) if line[0] == hashed)
                if (same := next(filter(None, blocks), None) or first.get(hashed)) is not None:
                    found[index] = same
                first.setdefault(hashed, index)
        return found

    def remember(self, blocks: Mapping[int, tuple[Multihash, int]], source: str) -> None:
        """Write down which blocks have the last rows of files, by their places; no error if that fails."""
        with (
            contextlib.suppress(OSError, ValueError, StoreError),
            open(self._path, "a", encoding="utf-8", opener=_private) as out,
        ):
            for index, (block, number) in blocks.items():
                state, hashed = self._states[index], self._hashes[index].result()
                if hashed and state is not None and _state(self.paths[index]) == state:
                    # begun by a line break, since what is before it may be cut short
                    out.write(f"\n{hashed} {state[1]} {block} {number} {source}\n")
            out.flush()
            os.fsync(out.fileno())
            sync_folder(self._path.parent)

    def _hash(self, path: Path) -> str:
        found = hashlib.sha256()
        with contextlib.suppress(OSError), path.open("rb") as stream:
            while not self._closed and (chunk := stream.read(1 << 20)):
                found.update(chunk)
            return found.hexdigest()
        return ""

    def _lines(self, source: str) -> Iterator[tuple[str, int, str, int]]:
        with contextlib.suppress(OSError), self._path.open(encoding="utf-8", errors="replace") as stream:
            for line in stream:
                with contextlib.suppress(ValueError):
                    hashed, size, block, number, name = line.rstrip("\n").split(" ", 4)
                    if name == source:
                        yield hashed, int(size), block, int(number)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _in_chain(state: DatasetState, block: str, number: int) -> Multihash | None:
    with contextlib.suppress(OdfchainError):
        name = Multihash.parse(block)
        return name if state.chain.hash_at(number, state.head) == name else None
    return None


def _state(path: Path) -> FileState | None:
    with contextlib.suppress(OSError):
        return file_state(path.stat())
    return None
