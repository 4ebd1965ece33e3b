r"""What of SQL depends on the Java at hand: its Unicode, time zones, charsets and texts of numbers.

A derivative is computed again by others, on another Java. Measured on Java 17, 21 and 25, over all code
points, two million numbers and all letters of patterns, these differ: `\b` beside letters that are not
ASCII, `\p{…}`, `\X`, `(?U)` and `(?u)` in patterns; `mask` and `%S`; `tanh` and `cbrt` in their last digit;
`F` in patterns of dates; texts of floating-point numbers beyond 2^53 (2^24 for `float`); the rules of named
time zones; and the charsets, of which small Javas have few. Where the argument that decides is a constant, it
is looked at; where it is not, the call is refused. Queries of roots are recorded once, and may use all of it.
Source: RFC-016.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from odfchain.sql.text_times import names_zone
from odfchain.text import one_line

OF_JAVA = frozenset({"cbrt", "mask", "tanh"})
"""Functions whose results differ between versions of Java."""

_FORMATS = {
    **dict.fromkeys(("date_format", "to_char", "to_varchar"), (1,)),
    **dict.fromkeys(("to_date", "to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz"), (1,)),
    **dict.fromkeys(("try_to_date", "try_to_timestamp", "from_unixtime"), (1,)),
    **dict.fromkeys(("to_unix_timestamp", "unix_timestamp"), (1,)),
}
_PATTERNS = {
    **dict.fromkeys(("regexp", "regexp_like", "rlike", "split"), (1,)),
    **dict.fromkeys(("regexp_count", "regexp_extract", "regexp_extract_all", "regexp_instr"), (1,)),
    **dict.fromkeys(("regexp_replace", "regexp_substr"), (1,)),
    "str_to_map": (1, 2),
}
_ZONES = {
    **dict.fromkeys(("from_utc_timestamp", "to_utc_timestamp"), (1,)),
    "convert_timezone": (0, 1),
}
_MADE_IN_ZONE = frozenset(
    {"make_timestamp", "make_timestamp_ltz", "try_make_timestamp", "try_make_timestamp_ltz"}
)
"""The zone comes last: after a date and a time of day, or after six numbers."""
_PRINTED = {"format_string": (0,), "printf": (0,)}
_CHARSETS = {"decode": (1,), "encode": (1,)}

OPTIONS_OF_JAVA = frozenset({"locale", "timezone", "enabledatetimeparsingfallback"})
"""Options of JSON and CSV, in lower case, that bring in Java's own data or its guesses."""

CHARSETS = frozenset({"US-ASCII", "ISO-8859-1", "UTF-8", "UTF-16", "UTF-16BE", "UTF-16LE", "UTF-32"})
"""Charsets that every Java has."""

_OF_UNICODE = re.compile(r"\\\\|\\[bBXNpP]|\(\?[a-zA-Z]*[uU]")
_OF_LOCALE = re.compile(r"%%|%[-#+ 0,(<]*(?:\d+\$)?[-#+ 0,(<\d.]*[SCtT]")
_QUOTED = re.compile(r"'[^']*'")
_FIXED_OFFSET = re.compile(r"Z|(?:UTC|GMT|UT)?(?:[+-]\d{1,2}(?::?\d{2}){0,2})?\Z", re.ASCII)


def deciding_arguments(function: str, arguments: int) -> tuple[int, ...]:
    """Which of so many arguments of a function decide whether its result is the same on every Java."""
    if function in _MADE_IN_ZONE:
        return (arguments - 1,) if arguments in (3, 7) else ()
    for table in (_FORMATS, _PATTERNS, _ZONES, _PRINTED, _CHARSETS):
        if function in table:
            return table[function]
    return ()


def java_dependence(function: str, arguments: int, text: str | None) -> tuple[str, str] | None:
    """(what is wrong, what to write instead) about a deciding argument; None when nothing is.

    `arguments` is how many there are, `text` is None for one that is not a constant text.
    """
    if function in _CHARSETS and arguments != 2:  # the other `decode` compares values
        return None
    if text is None:
        return (
            "is decided by the data, so that nobody can say whether every Java does the same",
            "write a constant",
        )
    if function in _FORMATS:
        return _format_dependence(text)
    if function in _PATTERNS:
        return pattern_dependence(text)
    zone = function in _ZONES or function in _MADE_IN_ZONE
    if zone and (not text or names_zone("10:00" + text) or not _FIXED_OFFSET.match(text)):
        return (
            "depends on the rules of a time zone, which differ between versions of Java",
            "take a fixed offset such as '+02:00', or convert where the data is ingested",
        )
    if function in _PRINTED and any(found != "%%" for found in _OF_LOCALE.findall(text)):
        return (
            "prints by rules that differ between versions of Java",
            "use upper, or date_format with numbers",
        )
    if function in _CHARSETS and text.upper() not in CHARSETS:
        return "names a charset that not every Java has", "one of " + ", ".join(sorted(CHARSETS))
    return None


def option_dependence(options: Mapping[str, str], *, formats: bool) -> tuple[str, str] | None:
    """As `java_dependence`, of the options with which JSON or CSV is read or written; `formats` too."""
    for name, text in options.items():
        if name.lower() in OPTIONS_OF_JAVA:
            return f"has the option {one_line(name, 40)}", "leave it out"
        if formats and name.lower().endswith("format") and (wrong := _format_dependence(text)) is not None:
            return wrong
    return None


def _format_dependence(text: str) -> tuple[str, str] | None:
    found = re.search("[FOVvz]", _QUOTED.sub("", text))
    if found is None:
        return None
    return (
        f"has `{found.group()}` in its pattern, which differs between versions of Java",
        "take numbers: yyyy-MM-dd HH:mm:ssXXX",
    )


def pattern_dependence(text: str | None) -> tuple[str, str] | None:
    r"""As `java_dependence`, of a regular expression: `\p{L}` is decided by Java's edition of Unicode."""
    if text is None:
        return (
            "takes its pattern from the data, and some patterns differ between versions of Java",
            "write a constant",
        )
    found = next((m.group() for m in _OF_UNICODE.finditer(text) if m.group() != "\\\\"), None)
    if found is None:
        return None
    return (
        f"has `{found}` in its pattern, which differs between versions of Java",
        "name the characters, as in [A-Za-z0-9_]",
    )
