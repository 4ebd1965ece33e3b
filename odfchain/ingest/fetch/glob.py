"""Local files that match a pattern, one file for each commit.

The state is the place of the last file that was read; files up to it are done. What the place is follows
from the step, so that the state is short, readable and the same on every machine:

- the base name of a file, if the pattern names files of one folder. This is what the reference
  implementation remembers, and its chains can be continued;
- the path below the fixed part of the pattern, with at least one `/` (`./a.csv`), if it names files of
  several folders. The reference compares base names there too and loses files of the same name. Where such a
  chain is continued, its state has no `/`, and base names are compared as before;
- `TIME PATH` if files are ordered by their time of modification.

Ordered by the event time in their names, files need no other state: the name tells the time.

Files that come late (before the place) or change are not read again, as in the reference: reading them
would append rows twice. But they are told, when the caller knows when the state was recorded. Whoever wants
them read orders the source `ByEventTime` with `FromMetadata`: a new or changed file is then the latest. With
`cache: Forever` a changed file is not read again in any order; new files always are.

Every file that is read advances the watermark, one without news as well (`Fetched.advances`).
Source: specification "FetchStep::FilesGlob".
"""

from __future__ import annotations

import glob
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import FetchError, InvalidIdError, SourceNotFoundError
from odfchain.ingest.fetch.event_time import from_path
from odfchain.ingest.fetch.fetcher import ETAG, UP_TO_DATE, FetchContext, Fetched, FetchResult, etag_state
from odfchain.ingest.fetch.remembered import previous_tag
from odfchain.model.enums import SourceOrdering
from odfchain.model.sources import (
    EventTimeSource,
    EventTimeSourceFromMetadata,
    EventTimeSourceFromPath,
    FetchStepFilesGlob,
)
from odfchain.model.timestamp import Timestamp
from odfchain.net.template import expand
from odfchain.text import one_line

_SHOWN = 5
_HOW = "FilesGlob takes a path like /data/*.csv: write it into the manifest, and run `odfchain add --update`"
_MILLISECOND = 1_000_000
_RUN_OF_FOLDERS = re.compile(r"(/\*\*)+(?=/|\Z)")
"""One `**` stands for any folders; the library visits each folder once more for every further one."""


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    below: str
    """Path below the fixed part of the pattern."""
    info: os.stat_result


@dataclass(frozen=True, slots=True, order=True)
class _Position:
    """Where a file stands in the order of the source."""

    time: int
    """Nanoseconds since the epoch; 0 in a source that is ordered by name."""
    name: bytes


def fetch_glob(
    step: FetchStepFilesGlob, context: FetchContext, *, recorded: Timestamp | None = None
) -> FetchResult:
    """The first matching file that was not read yet (the user's own, not a copy), or `UP_TO_DATE`.

    Only regular files count. With `recorded`, the system time at which the previous state was recorded, files
    that came late or changed since are told to the user.

    Raises:
        SourceNotFoundError: nothing matches, and nothing ever did.
        FetchError: the pattern is not absolute, a name without the time that is looked for, no permission.
    """
    pattern = expand(step.path, context.variables, where=one_line(step.path))
    what = one_line(step.path)
    if not pattern.startswith("/") or "\0" in pattern:
        raise FetchError(f"{what}: not an absolute path", hint=_HOW)
    pattern = _RUN_OF_FOLDERS.sub("/**", pattern)
    fixed, folders = _split(pattern)
    files = _files(pattern, fixed, what)
    previous = previous_tag(context)
    if not files and previous is None:
        raise SourceNotFoundError(f"{what}: no file matches")
    order = _Order(step, what, folders=folders, previous=previous)
    last = None if previous is None else order.of_state(previous, files)
    placed = sorted(((order.of_file(file), file) for file in files), key=lambda p: (p[0], p[1].below))
    read = order.names_read(context)
    new = [(p, f) for p, f in placed if (last is None or p > last) and p.name not in read]
    if recorded is not None:
        done = [f for p, f in placed if last is not None and (p <= last or p.name in read)]
        _tell_late_or_changed(done, recorded, context, what)
    if not new:
        return UP_TO_DATE
    place, file = new[0]
    _tell_same_names([other for p, other in new if p == place], context, what)
    if not os.access(file.path, os.R_OK):
        raise FetchError(f"{one_line(file.path)}: no permission to read it")
    return Fetched(
        path=Path(file.path),
        name=file.path,
        state=etag_state(order.state_of(file)),
        event_time=_event_time(step.event_time, file),
        has_more=new[-1][0] > place,
        advances=True,
    )


def _split(pattern: str) -> tuple[str, bool]:
    """(the folder above all wildcards, whether files of several folders can match)."""
    parts = pattern.split("/")
    wild = [n for n, part in enumerate(parts) if glob.escape(part) != part]
    first = min([*wild, len(parts) - 1])
    return "/".join(parts[:first]) or "/", first < len(parts) - 1


def _files(pattern: str, fixed: str, what: str) -> list[_File]:
    """Regular files that match; links to them count, broken links do not."""

    def found() -> Iterator[_File]:
        for path in sorted(set(glob.iglob(pattern, recursive=True))):  # noqa: PTH207 - it takes absolute patterns
            try:
                info = Path(path).stat()
            except FileNotFoundError:
                continue  # a broken link, or removed since
            if stat.S_ISREG(info.st_mode):
                yield _File(path, os.path.relpath(path, fixed), info)

    try:
        if Path(fixed).is_dir():
            with os.scandir(fixed):
                pass  # the library takes a folder that it may not list for an empty one
        return list(found())
    except OSError as error:
        raise FetchError(f"{what}: {error.strerror or error}") from error


class _Order:
    """The places of files, and the text that remembers a place."""

    def __init__(self, step: FetchStepFilesGlob, what: str, *, folders: bool, previous: str | None) -> None:
        self._what = what
        self._by_time = step.order is SourceOrdering.BY_EVENT_TIME
        self._source = step.event_time
        self._by_change = self._by_time and isinstance(step.event_time, EventTimeSourceFromMetadata)
        if self._by_time and not isinstance(
            step.event_time, EventTimeSourceFromPath | EventTimeSourceFromMetadata
        ):
            raise FetchError(
                f"{what}: order ByEventTime needs an event time for each file",
                hint="say `eventTime: {kind: FromPath, pattern: …}` or `eventTime: {kind: FromMetadata}`",
            )
        self._by_folder = folders and (previous is None or "/" in previous)
        self._once = step.cache is not None

    def _name(self, below: str) -> str:
        if not self._by_folder:
            return below.rpartition("/")[2]
        return below if "/" in below else f"./{below}"

    def of_file(self, file: _File) -> _Position:
        """Where the file stands."""
        name = self._name(file.below)
        return _Position(self._time(name, lambda: file.info), os.fsencode(name))

    def _time(self, name: str, info: Callable[[], os.stat_result]) -> int:
        if not self._by_time:
            return 0
        if isinstance(self._source, EventTimeSourceFromPath):
            return _path_time(self._source, name).epoch_ns
        return info().st_mtime_ns

    def state_of(self, file: _File) -> str:
        """What remembers that everything up to this file is done."""
        name = self._name(file.below)
        try:
            name.encode()
        except UnicodeEncodeError:
            raise FetchError(
                f"{one_line(file.path)!r}: a file name that is not UTF-8 cannot be recorded"
            ) from None
        return f"{_change_time(file)} {name}" if self._by_change else name

    def names_read(self, context: FetchContext) -> frozenset[bytes]:
        """Names of files that must not be read again although they have changed (`cache: Forever`).

        Only where a change moves a file behind the last one: in every other order what was read stays before.
        """
        if not (self._once and self._by_change):
            return frozenset()
        states = (state for state in context.recorded() if state.kind == ETAG)
        return frozenset(os.fsencode(state.value.partition(" ")[2]) for state in states)

    def of_state(self, text: str, files: list[_File]) -> _Position:
        """The place that a state remembers."""
        time, _, name = text.partition(" ")
        if self._by_change:
            try:
                return _Position(Timestamp.parse(time).epoch_ns, os.fsencode(name))
            except InvalidIdError:
                pass  # recorded while the source was ordered otherwise

        def info() -> os.stat_result:
            for file in files:
                if self._name(file.below) == text:
                    return file.info
            raise FetchError(
                f"{self._what}: the last file that was read, {one_line(text)!r}, is gone, "
                "so its time is not known",
                hint="the order of this source was changed; change it back, or bring the file back",
            )

        return _Position(self._time(text, info), os.fsencode(text))


def _event_time(source: EventTimeSource | None, file: _File) -> Timestamp | None:
    if isinstance(source, EventTimeSourceFromPath):
        return _path_time(source, file.below)
    if isinstance(source, EventTimeSourceFromMetadata):
        return _change_time(file).truncated_to_ms()
    return None


def _path_time(source: EventTimeSourceFromPath, path: str) -> Timestamp:
    return from_path(source.pattern, source.timestamp_format, path.rpartition("/")[2])


def _change_time(file: _File) -> Timestamp:
    time = Timestamp(file.info.st_mtime_ns)
    try:
        return Timestamp.parse(str(time))
    except (ValueError, OverflowError, InvalidIdError):
        raise FetchError(f"{one_line(file.path)}: its time of modification is out of range") from None


def _tell_late_or_changed(done: list[_File], recorded: Timestamp, context: FetchContext, what: str) -> None:
    # the time of the last change of a file's entry: copying and moving can keep all other times
    since = recorded.epoch_ns + _MILLISECOND  # recorded times are whole milliseconds, rounded down
    found = [file.below for file in done if file.info.st_ctime_ns >= since]
    if found:
        context.progress.note(
            f"{what}: added or changed since the last file was read, but counted as read and not read again "
            f"({len(found):,}): {_listed(found)}"
        )


def _tell_same_names(same: list[_File], context: FetchContext, what: str) -> None:
    if len(same) > 1:
        context.progress.note(
            f"{what}: this dataset was begun by a program that tells files by their base names, so only the "
            f"first of these is read: {_listed([file.below for file in same])}"
        )


def _listed(names: list[str]) -> str:
    return ", ".join(repr(one_line(name)) for name in names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
