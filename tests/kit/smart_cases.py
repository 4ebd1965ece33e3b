"""The numbered cases of the smart protocol: `fixtures/smart/cases.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASES: dict[int, dict[str, Any]] = {
    case["id"]: case for case in json.loads(Path("fixtures/smart/cases.json").read_text())["cases"]
}


def rows(number: int) -> list[dict[str, Any]]:
    """What is given and expected in a case."""
    found: list[dict[str, Any]] = CASES[number]["rows"]
    assert found
    return found


def row(number: int, **given: Any) -> dict[str, Any]:
    """The one row of a case with these values."""
    (found,) = (each for each in rows(number) if given.items() <= each.items())
    return found
