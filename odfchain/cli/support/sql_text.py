"""Where statements end in SQL that is being typed, and what its words may become."""

from __future__ import annotations

import re
from collections.abc import Collection

from odfchain.text import printable

_PIECE = re.compile(
    r"""'(?:[^']|'')*(?:'|\Z) | "(?:[^"]|"")*(?:"|\Z) | --[^\n]*(?:\n|\Z) | /\* | \$\$.*?(?:\$\$|\Z) | ;""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(r"/\*|\*/")
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
KEYWORDS = (
    "select", "from", "where", "group by", "order by", "having", "limit", "offset", "join", "left join",
    "inner join", "cross join", "using", "on", "and", "or", "not", "in", "is null", "is not null", "like",
    "between", "case", "when", "then", "else", "end", "cast", "distinct", "count", "sum", "avg", "min", "max",
    "with", "as", "union all", "union", "except", "intersect", "exists", "asc", "desc", "state(", "over",
    "partition by", "values", "true", "false", "null", "interval", "date", "timestamp", "extract",
)  # fmt: skip


def statements(text: str) -> tuple[list[str], str]:
    """The statements that have ended with `;`, without it, and the rest: empty if it says nothing yet.

    A semicolon in a text, a quoted name or a comment ends nothing.
    """
    found: list[str] = []
    start = position = 0
    while match := _PIECE.search(text, position):
        position = match.end()
        if match[0] == "/*":
            position = _comment_end(text, position)
        elif match[0] == ";":
            if text[start : match.start()].strip():
                found.append(text[start : match.start()].strip())
            start = position
    rest = text[start:]
    return found, rest if rest.strip() else ""


def _comment_end(text: str, position: int) -> int:
    depth = 1
    while depth:
        match = _COMMENT.search(text, position)
        if match is None:
            return len(text)
        depth += 1 if match[0] == "/*" else -1
        position = match.end()
    return position


def names_for(word: str, before: str, datasets: Collection[str], columns: Collection[str]) -> list[str]:
    """What a word may become: datasets, columns and words of SQL; names are quoted where they have to be.

    Inside of quotes readline adds the last one. What would act on a terminal is not offered.
    """
    quote = before[-1:] if before[-1:] in ("'", '"') else ""
    if quote and before.count(quote) % 2 == 0:
        quote = ""
    safe = [name for name in (*datasets, *columns) if printable(name) == name and '"' not in name]
    if quote:
        return sorted(name for name in safe if name.lower().startswith(word.lower()))
    names = [
        name if _PLAIN.fullmatch(name) else f'"{name}"'
        for name in safe
        if name.lower().startswith(word.lower())
    ]
    if word.isupper():
        return sorted(names) + [each.upper() for each in KEYWORDS if each.upper().startswith(word)]
    return sorted(names) + [each for each in KEYWORDS if each.startswith(word.lower())]
