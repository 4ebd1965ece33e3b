"""What the text of a query may be, measured in one pass before anything plans it."""

from __future__ import annotations

import re

from odfchain.errors import QueryError
from odfchain.limits import ASKED, AskedLimits

_PART = re.compile(
    r"""'[^']*+'? | "[^"]*+"? | --[^\n]*+ | /\*(?s:.)*?(?:\*/|\Z)
    | (?P<open>[(\[]) | (?P<close>[)\]])
    | (?P<operator> ::|<=|>=|<>|!=|==|\|\||&&|<<|>>|->>?|[=]> | [-+*/%<>=!~^&|@\#]
      | \b(?:and|or|xor|not|is|in|i?like|similar|between|case|when|union|intersect|except|join|div|collate)\b)
    """,
    re.VERBOSE | re.IGNORECASE,
)
"""What counts in a query, beside texts, quoted names and comments, in which nothing does."""


def check_text(sql: str, limits: AskedLimits = ASKED) -> None:
    """The text is none that is known to hurt the planner; measured in one pass, whatever it says.

    Raises:
        QueryError: it is too long, has too many brackets or operators, or is no text.
    """
    size = len(sql.encode("utf-8", "surrogatepass"))
    if size > limits.text_bytes:
        raise QueryError(f"the query has {size:,} bytes; at most {limits.text_bytes:,} are read")
    if re.search("[\0\ud800-\udfff]", sql):
        raise QueryError("the query has characters that are no text")
    depth = operators = 0
    for part in _PART.finditer(sql):
        depth = max(0, depth + bool(part["open"]) - bool(part["close"]))
        operators += part["operator"] is not None or part["open"] == "["
        if depth > limits.brackets:
            raise QueryError(f"the query has more than {limits.brackets} brackets within brackets")
    if operators > limits.operators:
        raise QueryError(
            f"the query has {operators:,} operators; at most {limits.operators:,} are planned",
            hint="many values are given as a list: x IN (…)",
        )
