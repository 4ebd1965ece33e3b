"""Event time from the name of a file or the path of a URL.

The expression comes from a manifest, perhaps an untrusted publisher's, and runs over names that others
choose. So it is matched by RE2 (from Arrow), whose time is linear in the text, whatever the expression: there
is nothing to hang. Its syntax is that of the reference implementation's engine; lookaround and
back-references, which Java has, are refused. Source: specification "EventTimeSource::FromPath".
"""

from __future__ import annotations

import datetime as dt
import re

from odfchain.errors import FetchError, InvalidIdError
from odfchain.ingest.fetch import java_time
from odfchain.model.timestamp import Timestamp
from odfchain.text import one_line

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

    Raises:
        FetchError: a wrong pattern or format, no match, or a match that is not a time.
    """
    found = _find(pattern, text)
    try:
        if timestamp_format is None:
            return _iso(found)
        if "%" in timestamp_format:
            return _strftime(timestamp_format, found)
        return java_time.parse(timestamp_format, found)
    except FetchError as error:
        raise FetchError(
            f"event time of {one_line(text)!r} by the pattern {one_line(pattern)!r}: {error}", hint=error.hint
        ) from None


def check_pattern(pattern: str) -> None:
    """A text can be looked through by this pattern.

    Raises:
        FetchError: it is no regular expression.
    """
    _match(pattern, "")


def _find(pattern: str, text: str) -> str:
    match = _match(pattern, text)
    if match is None:
        raise FetchError(f"event time pattern {one_line(pattern)!r} does not match {one_line(text)!r}")
    return match.get("g1", match["g0"])


def _match(pattern: str, text: str) -> dict[str, str] | None:
    import pyarrow as pa
    import pyarrow.compute as pc

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
    """The pattern with every group named: `g0` is the whole match, then `g1`, `g2`, …"""
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
        raise FetchError(
            f"{text!r} is not an ISO 8601 date or time", hint="say how it is written with `timestampFormat`"
        ) from None


def _strftime(pattern: str, text: str) -> Timestamp:
    try:
        return Timestamp.from_datetime(dt.datetime.strptime(text, pattern))  # noqa: DTZ007 - naive is UTC
    except (ValueError, LookupError, TypeError, OverflowError, re.error) as error:
        raise FetchError(f"{text!r} does not have the form {pattern!r}: {one_line(str(error))}") from None
