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
would append rows twice. But they are reported, when the caller knows when the state was recorded. Who wants
them read orders the source `ByEventTime` with `FromMetadata`: a new or changed file is then the latest. With
`cache: Forever` a changed file is not read again in any order; new files always are.

Every file that is read advances the watermark, one without news as well (`Fetched.advances`).
Source: specification "FetchStep::FilesGlob".
"""

from __future__ import annotations

import contextlib
import datetime as dt
import glob
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from odfchain.errors import FetchError, InvalidIdError, SourceNotFoundError
from odfchain.ingest import fetching
from odfchain.lazy import pa, pc
from odfchain.odf import sources as src
from odfchain.odf.enums import SourceOrdering
from odfchain.odf.times import Timestamp
from odfchain.storage.template import expand, names_in
from odfchain.text import one_line

# Times in the notation of `java.text.SimpleDateFormat` (specification "EventTimeSource::FromPath"): letters
# `y M d H h m s S a E z Z X`, quoted text, `''` for a quote. Stricter than Java, which rolls over (month 13),
# guesses, or uses the clock:
#
# - fields must be in range, the whole text must match, and a day of the week must be the date's;
# - `yy` is 1969 to 2068, as for `%y`. Java's window moves with the clock, so one file could get two event
#   times;
# - up to three `S` are milliseconds, as in Java; more are a fraction (Java reads 123456 as 123 seconds);
# - zones are offsets, `Z`, `UTC`, `GMT` and `UT`; names like `EST` are ambiguous.
#
# Missing fields are those of 1970-01-01T00:00:00Z.

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July",
    "August", "September", "October", "November", "December",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_NUMBERS = "yMdHhmsS"
_OFFSET = r"[+-]\d{2}:?\d{2}"
_ZONE = rf"(?:UTC|GMT|UT)(?:{_OFFSET})?|{_OFFSET}"
_ISO_ZONES = {1: r"Z|[+-]\d{2}", 2: r"Z|[+-]\d{4}", 3: r"Z|[+-]\d{2}:\d{2}"}
_RANGES = {"M": (1, 12), "d": (1, 31), "H": (0, 23), "h": (1, 12), "m": (0, 59), "s": (0, 59)}
_MAX_PATTERN = 1_000
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")


@dataclass(frozen=True, slots=True)
class _Field:
    letter: str
    count: int

    @property
    def is_number(self) -> bool:
        return self.letter in _NUMBERS and not (self.letter == "M" and self.count > 2)


def parse(pattern: str, text: str) -> Timestamp:
    """The time that `text` gives in the notation of `pattern`; UTC unless it has a zone."""
    parts = _tokens(pattern)
    match = re.fullmatch(_regex(parts), text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise FetchError(f"{text!r} does not have the form {pattern!r}")
    fields = [part for part in parts if isinstance(part, _Field)]
    found = {field: match[n + 1] for n, field in enumerate(fields)}
    try:
        return _time(found)
    except (ValueError, InvalidIdError) as error:
        raise FetchError(f"{text!r} is not a time in the form {pattern!r}: {error}") from None


def _tokens(pattern: str) -> list[_Field | str]:
    if len(pattern) > _MAX_PATTERN:
        raise FetchError(f"a time format has at most {_MAX_PATTERN:,} characters, not {len(pattern):,}")
    parts: list[_Field | str] = []
    position = 0
    while position < len(pattern):
        match = _TOKEN.match(pattern, position)
        if match is None:
            raise FetchError(f"time format {pattern!r}: the quote at position {position + 1} is not closed")
        letter = match[2]
        if letter is None:
            parts.append(match[0] if match[1] is None else match[1].replace("''", "'") or "'")
        elif letter not in "yMdHhmsSaEzZX" or (letter == "X" and len(match[0]) > 3):
            message = f"time format {pattern!r}: {match[0]!r} at position {position + 1} is not known"
            hint = "known are y M d H h m s S a E z Z X XX XXX; put literal text in single quotes"
            raise FetchError(message, hint=hint)
        else:
            parts.append(_Field(letter, len(match[0])))
        position = match.end()
    return parts


def _regex(parts: list[_Field | str]) -> str:
    out = []
    for n, part in enumerate(parts):
        if isinstance(part, str):
            out.append(re.escape(part))
            continue
        before, after = parts[n - 1] if n else "", parts[n + 1] if n + 1 < len(parts) else ""
        touches = isinstance(before, _Field) and before.is_number
        continues = isinstance(after, _Field) and after.is_number
        out.append(f"({_field_regex(part, touches=touches, continues=continues)})")
    return "".join(out)


def _field_regex(field: _Field, *, touches: bool, continues: bool) -> str:
    letter, count = field.letter, field.count
    if field.is_number:
        if continues or (letter == "S" and count > 3):
            return rf"\d{{{count}}}"  # where digits follow digits, only the width tells the fields apart
        if letter == "y" and count == 2:
            return r"\d{2}"
        return rf"\d{{{count if touches else 1},{max(count, 4)}}}"
    if letter == "M":
        return "|".join(f"{name}|{name[:3]}" for name in _MONTHS)
    if letter == "E":
        return "|".join(f"{name}|{name[:3]}" for name in _DAYS)
    if letter == "a":
        return "AM|PM"
    return _ISO_ZONES[count] if letter == "X" else _ZONE


def _time(found: dict[_Field, str]) -> Timestamp:
    values = {"y": 1970, "M": 1, "d": 1, "H": 0, "h": 0, "m": 0, "s": 0}
    nanos, offset, weekday, afternoon = 0, 0, None, False
    for field, text in found.items():
        letter = field.letter
        if letter == "S":
            nanos = int(text.ljust(9, "0")[:9]) if field.count > 3 else int(text) * 1_000_000
            if nanos > 999_999_999:
                raise ValueError(f"{text} milliseconds are more than a second")
        elif letter == "E":
            weekday = _index(_DAYS, text)
        elif letter == "a":
            afternoon = text.upper() == "PM"
        elif letter in "zZX":
            offset = _offset(text)
        elif not field.is_number:
            values[letter] = _index(_MONTHS, text) + 1
        else:
            values[letter] = _number(field, text)
    if not any(field.letter == "H" for field in found):
        values["H"] = values["h"] % 12 + (12 if afternoon else 0)
    date = dt.date(values["y"], values["M"], values["d"])
    if weekday is not None and date.weekday() != weekday:
        raise ValueError(f"{date} is a {_DAYS[date.weekday()]}")
    seconds = (values["H"] * 60 + values["m"]) * 60 + values["s"]
    time = Timestamp.from_parts(date.year, date.timetuple().tm_yday, seconds, nanos)
    shifted = Timestamp(time.epoch_ns - offset * 1_000_000_000)
    try:
        str(shifted)
    except (ValueError, OverflowError):
        raise ValueError("the years 1 to 9999 can be represented") from None
    return shifted


def _number(field: _Field, text: str) -> int:
    number = int(text)
    if field.letter == "y" and field.count == 2:
        return number + (1900 if number > 68 else 2000)
    low, high = _RANGES.get(field.letter, (0, number))
    if not low <= number <= high:
        raise ValueError(f"{number} is not from {low} to {high}")
    return number


def _index(names: tuple[str, ...], text: str) -> int:
    return [name[:3].lower() for name in names].index(text[:3].lower())


def _offset(text: str) -> int:
    digits = re.sub(r"[^0-9]", "", text)
    if not digits:
        return 0
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    if hours > 23 or minutes > 59:
        raise ValueError(f"{text} is not an offset")
    seconds = (hours * 60 + minutes) * 60
    return -seconds if "-" in text else seconds


# Event time from a file name or URL path. The expression comes from a manifest that may be untrusted, so it
# is matched by RE2 (from Arrow) in linear time. Its syntax is that of the reference implementation's engine;
# Java's lookaround and back-references are refused (specification "EventTimeSource::FromPath").

MAX_PATTERN = 1_000
MAX_TEXT = 4_096

# one alternative per way in which a parenthesis may not begin a group
_SYNTAX = re.compile(
    r"""(?P<keep> \\Q.*?(?:\\E|\Z) | \\. | \[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\] | \(\?(?!P?<[A-Za-z_]) )
      | (?P<group> \((?:\?P?<[A-Za-z_]\w*>)? )""",
    re.VERBOSE | re.DOTALL,
)


def from_path(pattern: str, timestamp_format: str | None, text: str) -> Timestamp:
    """The time that the first group of `pattern` (the whole match without groups) finds in `text`, in UTC.

    A format with `%` is one of strftime, any other one of Java's SimpleDateFormat; without a format the text
    is an ISO 8601 or RFC 3339 date or time. Times without a zone are in UTC.
    """
    match = match_pattern(pattern, text)
    if match is None:
        raise FetchError(f"event time pattern {one_line(pattern)!r} does not match {one_line(text)!r}")
    found = match.get("g1", match["g0"])
    try:
        if timestamp_format is None:
            return _iso(found)
        if "%" in timestamp_format:
            return _strftime(timestamp_format, found)
        return parse(timestamp_format, found)
    except FetchError as error:
        message = f"event time of {one_line(text)!r} by the pattern {one_line(pattern)!r}: {error}"
        raise FetchError(message, hint=error.hint) from None


def match_pattern(pattern: str, text: str) -> dict[str, str] | None:
    """What the groups of a pattern find in a text; None where it does not match."""
    what = f"event time pattern {one_line(pattern)!r}"
    if len(pattern) > MAX_PATTERN:
        raise FetchError(f"{what}: has more than {MAX_PATTERN:,} characters")
    if len(text) > MAX_TEXT:
        raise FetchError(f"{what}: the path {one_line(text, 60)!r} has more than {MAX_TEXT:,} characters")
    try:
        (match,) = pc.extract_regex(pa.array([text]), pattern=_with_names(pattern)).to_pylist()
    except (pa.ArrowException, UnicodeError, ValueError) as error:
        reason = one_line(str(error).removeprefix("Invalid regular expression: "))
        raise FetchError(f"{what} is not a regular expression: {reason}") from error
    found: dict[str, str] | None = match
    return found


def _with_names(pattern: str) -> str:
    # `g0` is the whole match, then `g1`, `g2`, …
    count = 0

    def named(match: re.Match[str]) -> str:
        nonlocal count
        if match["group"] is None:
            return match[0]
        count += 1
        return f"(?P<g{count}>"

    return f"(?P<g0>{_SYNTAX.sub(named, pattern)})"


def _iso(text: str) -> Timestamp:
    try:
        return Timestamp.parse(text)  # keeps nanoseconds
    except InvalidIdError:
        pass
    try:
        return Timestamp.from_datetime(dt.datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        hint = "say how it is written with `timestampFormat`"
        raise FetchError(f"{text!r} is not an ISO 8601 date or time", hint=hint) from None


def _strftime(pattern: str, text: str) -> Timestamp:
    try:
        return Timestamp.from_datetime(dt.datetime.strptime(text, pattern))  # noqa: DTZ007 - naive is UTC
    except (ValueError, LookupError, TypeError, OverflowError, re.error) as error:
        raise FetchError(f"{text!r} does not have the form {pattern!r}: {one_line(str(error))}") from None


_SHOWN = 5
_HOW = "FilesGlob takes a path like /data/*.csv: write it into the manifest, and run `odfchain add --update`"
_ABSOLUTE = 'the value of its variable has to make the path absolute, as in -e {0}="$PWD/inbox"'
_MILLISECOND = 1_000_000
_RUN_OF_FOLDERS = re.compile(r"(/\*\*)+(?=/|\Z)")
"""One `**` matches any folders; the library visits each folder once more for every further one."""


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    below: str
    """Path below the fixed part of the pattern."""
    info: os.stat_result


@dataclass(frozen=True, slots=True, order=True)
class _Position:
    """Place of a file in the order of the source."""

    time: int
    """Nanoseconds since the epoch; 0 in a source that is ordered by name."""
    name: bytes


def fetch_glob(step: src.FetchStepFilesGlob, context: fetching.FetchContext) -> fetching.FetchResult:
    """The first matching file that was not read yet (the user's own, not a copy), or `UP_TO_DATE`.

    Only regular files count. Files that came late or changed since the previous state are reported.

    Raises:
        SourceNotFoundError: the folder is not there, or nothing matches, and nothing ever did.
        FetchError: the pattern is not absolute, a name without the time that is looked for, no permission.
    """
    pattern = expand(step.path, context.variables, where=one_line(step.path))
    what = one_line(step.path)
    if not pattern.startswith("/") or "\0" in pattern:
        named = sorted(names_in([step.path]))
        raise FetchError(f"{what}: not an absolute path", hint=_ABSOLUTE.format(*named) if named else _HOW)
    pattern = _RUN_OF_FOLDERS.sub("/**", pattern)
    fixed, folders = _split(pattern)
    files = _files(pattern, fixed, what)
    previous = context.previous_tag
    if not files and previous is None:
        raise SourceNotFoundError(f"{what}: no file matches")
    order = _Order(step, what, folders=folders, before=previous)
    last = None if previous is None else order.of_state(previous, files)
    placed = sorted(((order.of_file(file), file) for file in files), key=lambda p: (p[0], p[1].below))
    read = order.names_read(context)
    new = [(p, f) for p, f in placed if (last is None or p > last) and p.name not in read]
    if context.previous_time is not None:
        done = [(p, f) for p, f in placed if last is not None and (p <= last or p.name in read)]
        # the time of the last change of a file's entry: copying and moving can keep all other times
        since = context.previous_time.epoch_ns + _MILLISECOND  # recorded times are whole ms, rounded down
        changed = {f.below for _, f in done if f.info.st_ctime_ns >= since}
        if len(new) < 2:  # once in a pull
            changed |= order.late(done, files, context)
        if found := [f.below for _, f in done if f.below in changed]:
            context.progress.note(
                f"{what}: added or changed too late, counted as read and not read again ({len(found):,}): "
                f"{_listed(found)}; to have one read, {order.way_on(done[-1][1])}"
            )
    if not new:
        return fetching.UP_TO_DATE
    place, file = new[0]
    same = [other.below for p, other in new if p == place]
    if len(same) > 1:
        context.progress.note(
            f"{what}: this dataset was begun by a program that tells files by their base names, so only the "
            f"first of these is read: {_listed(same)}"
        )
    if not os.access(file.path, os.R_OK):
        raise FetchError(f"{one_line(file.path)}: no permission to read it")
    return fetching.Fetched(
        path=Path(file.path),
        name=file.path,
        state=fetching.etag_state(order.state_of(file)),
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
    def found() -> Iterator[_File]:
        for path in sorted(set(glob.iglob(pattern, recursive=True))):  # noqa: PTH207 - it takes absolute patterns
            try:
                info = Path(path).stat()
            except FileNotFoundError:
                continue  # a broken link, or removed since
            if stat.S_ISREG(info.st_mode):
                yield _File(path, os.path.relpath(path, fixed), info)

    # links to regular files count, broken links do not
    try:
        if Path(fixed).is_dir():
            with os.scandir(fixed):
                pass  # the library takes a folder that it may not list for an empty one
        else:
            raise SourceNotFoundError(f"{what}: there is no folder {one_line(fixed)}")
        return list(found())
    except OSError as error:
        raise FetchError(f"{what}: {error.strerror or error}") from error


class _Order:
    """The places of files, and the text that remembers a place."""

    def __init__(self, step: src.FetchStepFilesGlob, what: str, *, folders: bool, before: str | None) -> None:
        self._what = what
        self._by_time = step.order is SourceOrdering.BY_EVENT_TIME
        self._source = step.event_time
        self._by_change = self._by_time and isinstance(step.event_time, src.EventTimeSourceFromMetadata)
        if self._by_time and not isinstance(
            step.event_time, src.EventTimeSourceFromPath | src.EventTimeSourceFromMetadata
        ):
            hint = "say `eventTime: {kind: FromPath, pattern: …}` or `eventTime: {kind: FromMetadata}`"
            raise FetchError(f"{what}: order ByEventTime needs an event time for each file", hint=hint)
        self._by_folder = folders and (before is None or "/" in before)
        self._once = step.cache is not None

    def _name(self, below: str) -> str:
        if not self._by_folder:
            return below.rpartition("/")[2]
        return below if "/" in below else f"./{below}"

    def of_file(self, file: _File) -> _Position:
        name = self._name(file.below)
        return _Position(self._time(name, lambda: file.info), os.fsencode(name))

    def _time(self, name: str, info: Callable[[], os.stat_result]) -> int:
        if not self._by_time:
            return 0
        if isinstance(self._source, src.EventTimeSourceFromPath):
            return _path_time(self._source, name).epoch_ns
        return info().st_mtime_ns

    def state_of(self, file: _File) -> str:
        name = self._name(file.below)
        try:
            name.encode()
        except UnicodeEncodeError:
            message = f"{one_line(file.path)!r}: a file name that is not UTF-8 cannot be recorded"
            raise FetchError(message) from None
        return f"{fetching.modified_time(file.info, one_line(file.path))} {name}" if self._by_change else name

    def names_read(self, context: fetching.FetchContext) -> frozenset[bytes]:
        # only where a change moves a file behind the last one: else what was read stays before
        if not (self._once and self._by_change):
            return frozenset()
        states = (state for state, _ in context.recorded() if state.kind == fetching.ETAG)
        return frozenset(os.fsencode(state.value.partition(" ")[2]) for state in states)

    def way_on(self, last: _File) -> str:
        """The step that makes a file one of those to come."""
        return "touch it" if self._by_change else f"rename it to come after {one_line(last.below)!r}"

    def late(
        self, done: list[tuple[_Position, _File]], files: list[_File], context: fetching.FetchContext
    ) -> set[str]:
        """The files that came when one after them was read already, and never were read themselves."""
        least = itertools.accumulate((file.info.st_ctime_ns for _, file in reversed(done)), min)
        back = zip(reversed(done), least, strict=True)
        suspects = [item for item, earliest in back if item[1].info.st_ctime_ns > earliest]
        if not suspects:
            return set()  # where files come in their order, no chain is walked
        read: dict[_Position, int] = {}
        for state, time in context.recorded():  # newest first
            with contextlib.suppress(FetchError):  # recorded while the source was ordered otherwise
                read[self.of_state(state.value, files)] = time.epoch_ns + _MILLISECOND
        names = {place.name for place in read}
        return {
            file.below
            for place, file in suspects
            if place.name not in names
            and any(p > place and file.info.st_ctime_ns >= since for p, since in read.items())
        }

    def of_state(self, text: str, files: list[_File]) -> _Position:
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


def _event_time(source: src.EventTimeSource | None, file: _File) -> Timestamp | None:
    if isinstance(source, src.EventTimeSourceFromPath):
        return _path_time(source, file.below)
    if isinstance(source, src.EventTimeSourceFromMetadata):
        return fetching.modified_time(file.info, one_line(file.path)).truncated_to_ms()
    return None


def _path_time(source: src.EventTimeSourceFromPath, path: str) -> Timestamp:
    return from_path(source.pattern, source.timestamp_format, path.rpartition("/")[2])


def _listed(names: list[str]) -> str:
    return ", ".join(repr(one_line(name)) for name in names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
