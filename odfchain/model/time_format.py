"""Formats of dates and times in read steps: which there are, and their form for Java.

    rfc3339                what the specification requires; the default
    yyyy-MM-dd HH:mm       Java's DateTimeFormatter, as Spark reads it
    %Y-%m-%d %H:%M         strftime, as Rust and Python programs write it: whatever has a percent sign

The specification leaves all but the first to implementations. A format is recorded as it was written; only
who reads with it translates it. What has no exact counterpart is refused. Source: specification
"ReadStep::Csv"; RFC-010.
"""

from __future__ import annotations

import re

from odfchain.errors import SchemaError

RFC3339 = "rfc3339"
_MAX = 200
_LITERAL = re.compile(r"[A-Za-z\[\]{}#']+")
_STRFTIME = re.compile(r"%(-?)(:?[A-Za-z%]|\.?[369]?f)|([^%]+)|(%.?)", re.DOTALL)
_COMPOUND = {
    "F": "%Y-%m-%d",
    "T": "%H:%M:%S",
    "R": "%H:%M",
    "D": "%m/%d/%y",
    "r": "%I:%M:%S %p",
}
# the letter for digits of any number, and how many there are where digits follow
_NUMBERS = {
    "m": ("M", 2), "d": ("d", 2), "H": ("H", 2), "I": ("h", 2), "M": ("m", 2), "S": ("s", 2), "j": ("D", 3),
}  # fmt: skip
_FIXED = {
    "Y": "yyyy", "y": "yy", "b": "MMM", "h": "MMM", "B": "MMMM", "p": "a",
    "z": "XX", ":z": "XXX",
    "f": "SSSSSSSSS", "3f": "SSS", "6f": "SSSSSS", "9f": "SSSSSSSSS",
    ".f": ".SSSSSSSSS", ".3f": ".SSS", ".6f": ".SSSSSS", ".9f": ".SSSSSSSSS",
    "%": "%",
}  # fmt: skip
_JAVA = re.compile(r"'(?:[^']|'')*'|([A-Za-z])\1*|[^A-Za-z']")
# how often a letter may stand in a row; others can only be printed, or count weeks, which are no dates
_JAVA_LETTERS = {
    "G": 4, "y": 6, "M": 4, "L": 4, "d": 2, "D": 3, "a": 1, "h": 2, "H": 2, "k": 2, "K": 2, "m": 2, "s": 2,
    "S": 9, "V": 2, "z": 4, "O": 4, "X": 5, "x": 5, "Z": 5,
}  # fmt: skip
_PARTS = ("year", "month", "day", "hour", "minute", "second", "fraction")
_READS = {
    "y": ("year",), "M": ("month",), "L": ("month",), "d": ("day",), "D": ("month", "day"),
    "h": ("hour",), "H": ("hour",), "k": ("hour",), "K": ("hour",),
    "m": ("minute",), "s": ("second",), "S": ("fraction",),
}  # fmt: skip
_HINTS = {
    "strftime": "%m is the month, %M the minute",
    "java": "M is the month, m the minute; d is the day, H the hour",
}
_MISTAKEN = {"Y": "y is the year", "D": "d is the day of the month"}


def java_format(text: str) -> str:
    """The format in the notation of Java's DateTimeFormatter; `rfc3339` stays as it is.

    Raises:
        SchemaError: a letter that has no meaning, or none that Java can read.
    """
    if len(text) > _MAX:
        raise SchemaError(f"a time format has at most {_MAX} characters, not {len(text):,}")
    if text == RFC3339:
        return text
    if not text:
        raise SchemaError(f"a time format is empty (the default is {RFC3339})")
    return _from_strftime(text) if "%" in text else _checked(text)


def check_timestamp_format(text: str) -> None:
    """A format reads all that lies above the smallest thing that it reads: no hours without days.

    What is not read is the same in every value, so `yyyy-mm-dd` (minutes for months) would move all of them.

    Raises:
        SchemaError: something between is not read; or as `java_format`.
    """
    if text == RFC3339:
        return
    letters = _letters(text)
    read = {part for letter in letters for part in _READS.get(letter, ())}
    if not read:
        raise SchemaError(f"time format {text!r}: holds no field of a date or time")
    lacking = next((part for part in _PARTS[: max(map(_PARTS.index, read))] if part not in read), None)
    if lacking is not None:
        raise SchemaError(
            f"time format {text!r} does not read the {lacking}: it would be the same in every value",
            hint=_HINTS["strftime" if "%" in text else "java"],
        )
    if letters & {"h", "K"} and "a" not in letters:
        raise SchemaError(
            f"time format {text!r} reads hours of half a day and not which half",
            hint="write %H, or %I with %p" if "%" in text else "write HH, or hh with a",
        )


def check_date_format(text: str) -> None:
    """As `check_timestamp_format`, and no time zone is read: a date is a day wherever it was written.

    Raises:
        SchemaError: it does, or as `check_timestamp_format`.
    """
    check_timestamp_format(text)
    if text != RFC3339 and _letters(text) & set("VzOXxZ"):
        raise SchemaError(
            f"time format {text!r} reads a time zone: dates would become those of UTC",
            hint="declare the column as TIMESTAMP",
        )


def _letters(text: str) -> set[str]:
    return {match[1] for match in _JAVA.finditer(java_format(text)) if match[1] is not None}


def _from_strftime(text: str) -> str:
    tokens = _directives(text)
    parts = []
    for index, (directive, literal) in enumerate(tokens):
        if directive is None:
            parts.append(_LITERAL.sub(lambda m: "'" + m[0].replace("'", "''") + "'", literal))
        elif directive in _NUMBERS:
            letter, width = _NUMBERS[directive]
            follows = tokens[index + 1][0] if index + 1 < len(tokens) else None
            # digits that touch are told apart by their width alone
            touches = _is_digits(follows) or (index > 0 and _is_digits(tokens[index - 1][0]))
            parts.append(letter * (width if touches else 1))
        else:
            parts.append(_FIXED[directive])
    return "".join(parts)


def _is_digits(directive: str | None) -> bool:
    return directive is not None and (directive in _NUMBERS or _FIXED[directive][0] in "yS")


def _directives(text: str) -> list[tuple[str | None, str]]:
    """(directive or None, literal text) in order."""
    found: list[tuple[str | None, str]] = []
    for match in _STRFTIME.finditer(text):
        dash, directive, literal, broken = match.groups()
        if literal is not None:
            found.append((None, literal))
        elif directive in _COMPOUND and not dash:
            found += _directives(_COMPOUND[directive])
        elif directive in _NUMBERS or (directive in _FIXED and not dash):
            found.append((directive, ""))
        else:
            raise SchemaError(
                f"time format {text!r}: {broken or match[0]!r} is not known",
                hint="known are %Y %y %m %d %j %H %I %M %S %f %.f %p %b %B %z %:z %F %T %R %D %%",
            )
    return found


def _checked(text: str) -> str:
    position = 0
    letters = set()
    while position < len(text):
        match = _JAVA.match(text, position)
        if match is None:
            raise SchemaError(f"time format {text!r}: the quote at position {position + 1} is not closed")
        if match[1] is not None:
            letters.add(match[1])
            if len(match[0]) > _JAVA_LETTERS.get(match[1], 0):
                mistaken = _MISTAKEN.get(match[1])
                raise SchemaError(
                    f"time format {text!r}: {match[0]!r} at position {position + 1} is not known",
                    hint=f"{mistaken}; " * bool(mistaken)
                    + "known are y M d D a H h m s S z X; put literal text in single quotes",
                )
        position = match.end()
    if "D" in letters and letters & {"M", "L"}:
        raise SchemaError(f"time format {text!r}: D is the day of the year", hint=f"{_MISTAKEN['D']}")
    if not letters:
        raise SchemaError(f"time format {text!r}: holds no field of a date or time")
    return text
