"""Text of unknown origin, made safe to show: on a terminal, in a message, on a page.

A dataset's names, descriptions and values come from its publisher, error texts from servers and libraries.
Any of them may hold characters that act instead of being seen: a terminal obeys ESC, a line break fakes rows,
bidi controls show `exe.pdf` as `fdp.exe`, tag characters hide a message. In text that is shown, none acts
(RFC-008).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

TEXT_CHARACTERS = 200
"""A text that is quoted in a message [characters]."""

SECRET = re.compile(
    r"(?i)secret|password|passphrase|token|credential|(access|account|private)[._-]?key|://[^/@\s]*:[^/@\s]*@"
)
"""In the name or the value of a setting: it is not shown, neither by us nor on the pages of Spark.

Java reads it too."""

# Characters of a line of SQL that are shown.
_SQL_WIDTH = 100

# All controls and format characters but those that scripts and emoji need to look as they are meant:
# U+200C, U+200D, the separator of Mongolian, the joiners of hieroglyphs, the signs before Arabic numbers.
_ACTING = (
    "\x00-\x1f\x7f-\x9f"  # Cc: C0 and C1
    "\xad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # Zl, Zp, bidi, invisible
    "\ud800-\udfff"  # lone surrogates, which no encoding can write
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # controls of shorthand and of music
    "\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"  # tags, and what is reserved for more of their kind
)

# England, Scotland, Wales: the only sequences of tags that Unicode recommends for interchange.
_FLAGS = "|".join(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(c)) for c in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)

_LINE = re.compile(f"({_FLAGS})|[{_ACTING}]")
_JSON = re.compile(f"({_FLAGS})|[{_ACTING}]".replace("\x00-\x1f", "\x00-\x09\x0b-\x1f"))
_PAGE = re.compile(_JSON.pattern.replace("\x00-\x09\x0b", "\x00-\x08\x0b\x0c\x0e"))
_LAYOUT = re.compile("[ \t\r\n]+")
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, limit: int | None = None) -> str:
    """The text as one line in which no character acts: such characters are seen as `\\x1b`, `\\u202e`, `\\n`.

    What is longer than `limit` [characters] is cut, and ends in `…`. To do it twice changes nothing more.
    """
    line = _LINE.sub(_escape, text if limit is None else text[: limit + 1])
    return line if limit is None else cut(line, limit)


def with_marks(text: str) -> str:
    """A text of several lines for a page: a character that acts is seen as its number, `U+202E`."""
    return _PAGE.sub(lambda match: match[1] or f"U+{ord(match[0]):04X}", text)


def one_line(text: str, limit: int = TEXT_CHARACTERS) -> str:
    """`printable` for messages of other programs: line breaks and indentation become single spaces."""
    return printable(_LAYOUT.sub(" ", text).strip(" "), limit)


def cut(text: str, most: int) -> str:
    """The text; what is longer than `most` characters ends in `…` there."""
    return text if len(text) <= most else text[: most - 1] + "…"


def table_html(titles: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table; every text in it is shown as it is, and none acts."""
    from html import escape  # noqa: PLC0415 - notebooks alone need it

    def row(cells: Iterable[object], kind: str) -> str:
        return "".join(f"<{kind}>{escape(one_line(str(cell)))}</{kind}>" for cell in cells)

    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in rows)
    top = f"<caption>{escape(one_line(caption))}</caption>" if caption else ""
    return f"<table>{top}<thead><tr>{row(titles, 'th')}</tr></thead><tbody>{body}</tbody></table>"


def percent(fraction: float, digits: int = 1) -> str:
    """A fraction for people: `12.5 %`."""
    return f"{fraction * 100:.{digits}f} %"


def number(value: float | str | None) -> str:
    """A number for people; a text, such as a time, stays as it is."""
    if value is None or isinstance(value, str):
        return value or ""
    whole = isinstance(value, int) or 1e6 <= abs(value) < 1e15  # six digits say no more of it
    return f"{value:,.0f}" if whole else f"{value:,.6g}"


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """A number and what is counted: `1 block`, `2,000 blocks`."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def length(seconds: int) -> str:
    """A length of time for people, rounded down."""
    for unit, name in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if seconds >= 2 * unit:
            return f"{seconds // unit:,} {name}"
    return f"{seconds:,} seconds"


def human_size(size: float) -> str:
    """Bytes for people: `1.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def human_age(epoch_ns: int, now_ns: int) -> str:
    """A time for people: `3 hours ago`."""
    seconds = (now_ns - epoch_ns) // 1_000_000_000
    if seconds < 0:
        return "in the future"
    units = {31_536_000: "year", 2_592_000: "month", 86_400: "day", 3_600: "hour", 60: "minute"}
    for size, unit in units.items():
        if seconds >= size:
            return f"{counted(seconds // size, unit)} ago"
    return "just now"


def message_of(error: BaseException) -> str:
    """The message of a library's exception; PySpark's ask a JVM for it, which may be gone."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever goes wrong while it is asked, the first fault counts
        return str(getattr(error, "_desc", None) or "")


def first_line(error: BaseException, limit: int = TEXT_CHARACTERS) -> str:
    """The first line of the message of a library's exception, or else its name."""
    return one_line(message_of(error).strip().partition("\n")[0], limit) or type(error).__name__


def json_object(text: str | bytes) -> dict[str, Any]:
    """The object that a JSON text is; empty for every other text."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def escaped_json(document: str) -> str:
    """A JSON document of the same data in which no character acts, its own line breaks aside."""
    return _JSON.sub(_escape_json, document)


def _escape(match: re.Match[str]) -> str:
    if match[1]:
        return match[1]
    code = ord(match[0])
    return _SHORT.get(match[0]) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def _escape_json(match: re.Match[str]) -> str:
    if match[1]:
        return match[1]
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def place_in(text: str, index: int) -> tuple[int, int]:
    """(line, column) of a character; both count from 1."""
    before = text[:index]
    return before.count("\n") + 1, index - before.rfind("\n")


def excerpt(sql: str | None, line: int | None, column: int | None) -> tuple[str, ...]:
    """The line of the query, and a caret under the character that is meant; nothing where that is unknown."""
    if sql is None or line is None or column is None:
        return ()
    lines = sql.split("\n")
    if not 0 < line <= len(lines):
        return ()
    text = lines[line - 1].expandtabs(1).rstrip()
    at = min(column - 1, len(text))
    first = min(at, len(text) - len(text.lstrip()))
    if len(text) - first > _SQL_WIDTH:
        first = max(first, min(at - _SQL_WIDTH // 2, len(text) - _SQL_WIDTH))
    shown = [printable(c) for c in text[first : first + _SQL_WIDTH]]
    before = "…" if text[:first].strip() else ""
    after = "…" if first + _SQL_WIDTH < len(text) else ""
    pad = text_width(before + "".join(shown[: at - first]))
    return f"{before}{''.join(shown)}{after}", " " * pad + "^"


def text_width(text: str) -> int:
    """The columns of a terminal that a text takes; East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - most texts need none

    return cell_len(text)


# How a worker says, inside any other text, what was wrong with the rows that it was given: the message of a
# failed task goes through the JVM to the driver, each of which wraps it in texts of its own.

_MARKER = re.compile(r"odfchain\{(.*?)\}odfchain", re.DOTALL)


def marker(kind: str, **fields: str | int) -> str:
    """A message that `find_marker` recognises inside any other text."""
    body = json.dumps({"kind": kind, **fields}, ensure_ascii=True)
    return f"odfchain{body}odfchain"


def find_marker(text: str) -> dict[str, str | int] | None:
    """The first marker in a message."""
    match = _MARKER.search(text)
    try:
        return None if match is None else dict(json.loads("{" + match.group(1) + "}"))
    except ValueError:
        return None
