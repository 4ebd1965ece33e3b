"""A disk that is recorded, and every disk that may be there after a loss of power.

What a process does below a folder is recorded: its syncs, links, renames and removals by calls of `os`, and what
anything else writes (pyarrow, a JVM) from the moment it is seen, as content that is not synced. The model:

- a file has the content of its last fsync, or any content since: all of it, the part up to a multiple of 512
  bytes, single sectors, or zeros of its length;
- a name that was made, changed or removed since its folder was synced is so or is not, each by itself and in
  any order; both halves of a rename are one, but the new name alone is durable once its folder is synced;
- `sync` of a whole disk makes nothing durable, nor does fsync of a file make its name durable.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import re
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SECTOR = 512
CALLS = ("link", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "symlink")
WRITES = ("write", "pwrite", "ftruncate", "truncate")
SYNCS = ("fsync", "fdatasync")
_CUTS = 12
_RANDOM = re.compile(r"(?<=\.pending-)[0-9a-f]{32}|[0-9a-f]{64,76}|(?<![0-9a-z])[0-9a-f]{32}(?![0-9a-z])")

Entry = tuple[int, str]
"""A folder and a name in it."""


@dataclass(frozen=True, slots=True)
class Named:
    """Names that one call has changed: what each stands for now, None for nothing. Applied together or not."""

    changes: tuple[tuple[Entry, int | None], ...]


@dataclass(frozen=True, slots=True)
class Written:
    """A file has another content."""

    file: int
    content: bytes


@dataclass(frozen=True, slots=True)
class Synced:
    """The content of a file, or the names in a folder, are durable."""

    node: int


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A call has returned, and this is true from now on: its promise, and what each file has."""

    what: Any
    left: dict[str, bytes | None] = field(repr=False)
    at: int


Event = Named | Written | Synced | Acknowledged


@dataclass(frozen=True, slots=True)
class Disk:
    """What is there after a loss of power: contents by path, None for folders."""

    files: dict[str, bytes | None] = field(repr=False)
    acknowledged: tuple[Acknowledged, ...]
    after: int
    """How many events there were before the loss."""
    key: int


class RecordedDisk:
    """The events below a folder, in their order."""

    def __init__(self, root: Path, ignored: Callable[[str], bool] = lambda _: False) -> None:
        self.root, self.log = root, list[Event]()
        self.texts: list[str] = []
        self._ignored = ignored
        self._lock = threading.RLock()
        self._ids: dict[tuple[int, int], int] = {}
        self._states: dict[int, tuple[int, ...]] = {}
        self._names: dict[Entry, int] = {}
        self._paths: dict[int, str] = {}
        self.folders: set[int] = set()
        self.contents: dict[int, bytes] = {}
        self.history: dict[str, list[tuple[int, bytes | None]]] = {}
        self._next = 0
        self._look()
        self.first = dict(self._names)
        self.first_contents = dict(self.contents)
        self.log.clear()
        self.texts.clear()
        self.history = {path: [(0, each[-1][1])] for path, each in self.history.items()}

    def acknowledge(self, what: Any) -> None:
        """Something is promised from now on, and so is every file that is there."""
        with self._lock:
            self._look()
            left = {path: each[-1][1] for path, each in self.history.items()}
            self.log.append(Acknowledged(what, left, len(self.log)))

    def may_have(self, promise: Acknowledged, path: str) -> set[bytes | None]:
        """What a file may have after a promise: what it had then, or got later."""
        return {promise.left[path], *(content for at, content in self.history[path] if at >= promise.at)}

    @property
    def operations(self) -> list[str]:
        """What was done, line by line, with random names and hashes left out; what threads did at once is sorted."""
        runs = itertools.groupby(self.texts, lambda text: text.partition(" ")[0])
        return [text for kind, run in runs for text in (sorted(run) if kind == "sync" else run)]

    # --- seeing ------------------------------------------------------------------------------------------

    def _node(self, found: os.stat_result) -> int:
        key = found.st_dev, found.st_ino
        if key not in self._ids:
            self._ids[key], self._next = self._next, self._next + 1
        return self._ids[key]

    def _look(self) -> None:
        """Whatever has changed is an event."""
        seen, kinds = dict[Entry, int](), dict[int, bool]()
        self._walk(self.root, self._node(self.root.stat()), "", seen, kinds)
        changes = [(entry, seen.get(entry)) for entry in self._names if seen.get(entry) != self._names[entry]]
        changes += [(entry, node) for entry, node in seen.items() if entry not in self._names]
        # a file that is at a new name only was renamed: both halves are one
        gone = {self._names[entry]: entry for entry, node in changes if entry in self._names}
        come = {node: entry for entry, node in changes if node is not None}
        renamed = gone.keys() & come.keys()
        for node in sorted(renamed, key=lambda each: self._text(come[each])):
            self._say(f"rename {self._text(gone[node])} -> {self._text(come[node])}")
            self.log.append(Named(((gone[node], seen.get(gone[node])), (come[node], node))))
        done = {gone[node] for node in renamed} | {come[node] for node in renamed}
        for entry, node in changes:
            if entry in done:
                continue
            others = [other for other, one in self._names.items() if one == node and other != entry]
            match node:
                case None:
                    self._say(f"remove {self._text(entry)}")
                case _ if kinds[node]:
                    self._say(f"mkdir {self._text(entry)}")
                case _ if others:
                    self._say(f"link {self._text(others[0])} -> {self._text(entry)}")
                case _:
                    self._say(f"create {self._text(entry)}")
            self.log.append(Named(((entry, node),)))
        self._names = seen
        for node in self._fresh:
            self.log.append(Written(node, self.contents[node]))
            self._say(f"write {self._paths[node]}")
        now = {self._text(entry): self.contents[node] for entry, node in seen.items() if not kinds[node]}
        for path in self.history.keys() | now.keys():
            known = self.history.setdefault(path, [])
            if not known or known[-1][1] is not now.get(path):
                known.append((len(self.log), now.get(path)))
        alive = set(seen.values()) | {self._node(self.root.stat())}
        for key in [key for key, node in self._ids.items() if node not in alive]:
            del self._ids[key]  # an inode number is used again

    def _walk(
        self, folder: Path, node: int, where: str, seen: dict[Entry, int], kinds: dict[int, bool]
    ) -> None:
        if not where:
            self._fresh = list[int]()
        self.folders.add(node)
        self._paths[node] = where or "."
        try:
            found = sorted(os.scandir(folder), key=lambda each: each.name)
        except FileNotFoundError:
            return
        for each in found:
            path = f"{where}/{each.name}" if where else each.name
            if self._ignored(path):
                continue
            try:
                state = each.stat(follow_symlinks=False)
                there = self._node(state)
                mark = state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
                if stat.S_ISREG(state.st_mode) and self._states.get(there) != mark:
                    content = Path(each.path).read_bytes()
                    if self.contents.get(there, b"") != content:
                        self._fresh.append(there)
                    self.contents[there], self._states[there] = content, mark
            except FileNotFoundError:
                continue
            if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
                continue
            kinds[there] = stat.S_ISDIR(state.st_mode)
            seen[node, each.name] = there
            self._paths[there] = path
            if kinds[there]:
                self._walk(Path(each.path), there, path, seen, kinds)

    def _text(self, entry: Entry) -> str:
        where = self._paths[entry[0]]
        return entry[1] if where == "." else f"{where}/{entry[1]}"

    def _say(self, text: str) -> None:
        self.texts.append(_RANDOM.sub("*", text))

    # --- calls -------------------------------------------------------------------------------------------

    def call(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """The call, and then what it has changed."""

        def recorded(*args: Any, **options: Any) -> Any:
            with self._lock:
                self._look()
                try:
                    return real(*args, **options)
                finally:
                    self._look()

        return recorded

    def write(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """The same for files; pipes and sockets change nothing here."""

        def recorded(target: Any, *args: Any, **options: Any) -> Any:
            done = real(target, *args, **options)
            with contextlib.suppress(OSError), self._lock:
                found = os.stat(target)  # noqa: PTH116 - or a descriptor
                if stat.S_ISREG(found.st_mode) and (found.st_dev, found.st_ino) in self._ids:
                    self._look()
            return done

        return recorded

    def sync(self, real: Callable[[int], None]) -> Callable[[int], None]:
        """What is there before the call is durable after it."""

        def recorded(fd: int) -> None:
            with self._lock:
                self._look()
                found = os.fstat(fd)
                if (node := self._ids.get((found.st_dev, found.st_ino))) is not None:
                    self.log.append(Synced(node))
                    self._say(f"sync {self._paths[node]}")
            real(fd)

        return recorded


@contextlib.contextmanager
def recording(root: Path, ignored: Callable[[str], bool] = lambda _: False) -> Iterator[RecordedDisk]:
    """What happens below a folder within the block is recorded, in every thread of this process."""
    disk = RecordedDisk(root, ignored)
    with pytest.MonkeyPatch.context() as patch:
        for names, wrap in ((CALLS, disk.call), (WRITES, disk.write), (SYNCS, disk.sync)):
            for name in names:
                patch.setattr(os, name, wrap(getattr(os, name)))
        yield disk
    with disk._lock:
        disk._look()


# --- losses ----------------------------------------------------------------------------------------------


class _State:
    """What is durable, and what is not yet, after some of the events."""

    def __init__(self, disk: RecordedDisk) -> None:
        self.names: dict[Entry, int | None] = dict(disk.first)
        self.pending = list[Named]()
        self.contents = dict(disk.first_contents)
        self.versions: dict[int, list[bytes]] = {}
        self.acknowledged: tuple[Acknowledged, ...] = ()
        self.folders = disk.folders

    def take(self, event: Event) -> None:
        match event:
            case Named():
                self.pending.append(event)
            case Written(file, content):
                self.versions.setdefault(file, []).append(content)
            case Acknowledged():
                self.acknowledged = (*self.acknowledged, event)
            case Synced(node) if node in self.folders:
                self._sync_folder(node)
            case Synced(node):
                if node in self.versions:
                    self.contents[node] = self.versions.pop(node)[-1]

    def _sync_folder(self, folder: int) -> None:
        left = list[Named]()
        for event in self.pending:
            durable = [change for change in event.changes if change[0][0] == folder]
            if len(durable) < len(event.changes) and all(node is None for _, node in durable):
                durable = []  # the old name is never gone for good before the new one is there for good
            self.names.update(durable)
            # what was changed before at the same names is past
            names = {entry for entry, _ in durable}
            left = [each for each in (_without(one, names) for one in left) if each.changes]
            if rest := tuple(change for change in event.changes if change not in durable):
                left.append(Named(rest))
        self.pending = left


def _without(event: Named, names: set[Entry]) -> Named:
    return Named(tuple(change for change in event.changes if change[0] not in names))


def contents_after(old: bytes, versions: list[bytes], rng: random.Random) -> list[bytes]:
    """Every content that a file may have: the newest first, the durable one second."""
    found = dict.fromkeys([versions[-1], old, *versions[:-1]])
    for before, new in itertools.pairwise([old, *versions]):
        size = len(new)
        common = len(os.path.commonprefix([before, new]))  # noqa: RUF071 - of bytes
        cuts = [cut for cut in range(SECTOR, size, SECTOR) if cut > common]
        for cut in cuts if len(cuts) <= _CUTS else sorted(rng.sample(cuts, _CUTS)):
            found[new[:cut]] = None  # as far as it was written
            found[new[:cut] + bytes(size - cut)] = None  # its length was written before it
            found[new[:cut] + before[cut:]] = None
        found[new[:common] + bytes(size - common)] = None
        found[bytes(size)] = None
        for _ in range(3 if size > SECTOR else 0):
            parts = (new if rng.random() < 0.5 else before.ljust(size, b"\0") for _ in range(0, size, SECTOR))
            found[
                b"".join(p[at : at + SECTOR] for p, at in zip(parts, range(0, size, SECTOR), strict=True))[
                    :size
                ]
            ] = None
    return list(found)


def disks_after_losses(
    disk: RecordedDisk, most: int, seed: int = 0, *, leave_out: int | None = None
) -> Iterator[Disk]:
    """Every different disk after a loss at each event, at most so many combinations of each, else drawn by seed.

    With `leave_out` the sync of that number did not happen.
    """
    state, seen, syncs = _State(disk), set[tuple[int, int]](), itertools.count()
    rng = random.Random(seed)
    log = [each for each in disk.log if not isinstance(each, Synced) or next(syncs) != leave_out]
    for after, event in enumerate([None, *log]):
        if event is not None:
            state.take(event)
        # a sync only leaves fewer possibilities, all of which were there before it
        if isinstance(event, Synced) and after < len(log):
            continue
        for names, contents in _choices(state, most, rng):
            files = _tree(disk, names, contents)
            key = hash(frozenset((path, content) for path, content in files.items()))
            if (key, len(state.acknowledged)) not in seen:
                seen.add((key, len(state.acknowledged)))
                yield Disk(files, state.acknowledged, after, key)


def _choices(
    state: _State, most: int, rng: random.Random
) -> Iterator[tuple[dict[Entry, int | None], dict[int, bytes]]]:
    pending = state.pending
    named = set(state.names.values()) | {node for e in pending for _, node in e.changes}
    files = [file for file in state.versions if file in named]
    options = [contents_after(state.contents.get(file, b""), state.versions[file], rng) for file in files]
    sizes = [2] * len(pending) + [len(each) for each in options]
    picks: Iterator[tuple[int, ...]]
    if math.prod(sizes) <= most:
        picks = itertools.product(*map(range, sizes))
    else:
        picks = itertools.islice(_drawn(sizes, len(pending), rng), most)
    for pick in picks:
        names = dict(state.names)
        for event, off in zip(pending, pick, strict=False):
            if not off:
                names.update(event.changes)
        contents = {
            file: each[at] for file, each, at in zip(files, options, pick[len(pending) :], strict=True)
        }
        yield names, state.contents | contents


def _drawn(sizes: list[int], switches: int, rng: random.Random) -> Iterator[tuple[int, ...]]:
    """All and nothing first, then each one by itself, then any."""
    none = [0] * len(sizes)
    yield tuple(none)
    yield (*[1] * switches, *none[switches:])
    yield (*none[:switches], *[size - 1 for size in sizes[switches:]])
    for at, size in enumerate(sizes):
        for value in range(1, size):
            yield (*none[:at], value, *none[at + 1 :])
            if at < switches:
                yield (*[1] * at, 0, *[1] * (switches - at - 1), *none[switches:])
    while True:
        chance = rng.random()
        yield tuple(rng.randrange(size) if rng.random() < chance else 0 for size in sizes)


def _tree(
    disk: RecordedDisk, names: dict[Entry, int | None], contents: dict[int, bytes]
) -> dict[str, bytes | None]:
    children: dict[int, list[tuple[str, int]]] = {}
    for (folder, name), node in names.items():
        if node is not None:
            children.setdefault(folder, []).append((name, node))
    files: dict[str, bytes | None] = {}
    waiting, entered = [(0, "")], set[int]()
    while waiting:
        folder, where = waiting.pop()
        if folder in entered:
            continue  # a folder at two names, of which one would be gone
        entered.add(folder)
        for name, node in children.get(folder, ()):
            path = f"{where}{name}"
            if node in disk.folders:
                files[path] = None
                waiting.append((node, f"{path}/"))
            else:
                files[path] = contents.get(node, b"")
    return files
