"""One text for each JSON value, so that equal values have equal hashes and signatures.

UTF-8, members sorted by name, no white space, characters as they are unless JSON wants them escaped. Numbers
are integers. For such values it is the form of RFC 8785 (names here are ASCII, where its order is the same).
"""

from __future__ import annotations

import json
from typing import Any

from odfchain.digest.physical import hash_bytes
from odfchain.errors import UsageError
from odfchain.ids.multihash import Multihash


def canonical_json(value: Any) -> bytes:
    """The one text of a value made of objects, lists, texts, integers, booleans and null.

    Raises:
        UsageError: the value has something else in it, or text that is not Unicode.
    """
    _check(value)
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
        return text.encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"a value that JSON cannot hold: {error}") from None


def _check(value: Any) -> None:
    waiting = [value]
    while waiting:
        match waiting.pop():
            case dict() as found:
                if not all(isinstance(name, str) for name in found):
                    raise UsageError("members of a JSON object are named by text")
                waiting += found.values()
            case list() | tuple() as found:
                waiting += found
            case None | bool() | int() | str():
                pass
            case other:
                raise UsageError(f"canonical JSON has no {type(other).__name__}")


def report_digest(report: dict[str, Any]) -> Multihash:
    """The sha3-256 of a report's canonical JSON: what an auditor signs instead of the report."""
    return hash_bytes(canonical_json(report))
