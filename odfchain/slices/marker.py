"""Markers: how a worker says, inside any other text, what was wrong with the rows that it was given.

The message of a failed task goes from a Python worker or an expression through the JVM to the driver, each of
which wraps it in texts of its own.
"""

from __future__ import annotations

import json
import re

_MARKER = re.compile(r"odfchain\{(.*?)\}odfchain", re.DOTALL)


def marker(kind: str, **fields: str | int) -> str:
    """A message that `find_marker` recognises inside any other text."""
    body = json.dumps({"kind": kind, **fields}, ensure_ascii=True)
    return f"odfchain{body}odfchain"


def find_marker(text: str) -> dict[str, str | int] | None:
    """The first marker in a message."""
    match = _MARKER.search(text)
    if match is None:
        return None
    try:
        found: dict[str, str | int] = json.loads("{" + match.group(1) + "}")
    except ValueError:
        return None
    return found
