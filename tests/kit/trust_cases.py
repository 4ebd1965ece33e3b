"""The cases of witnessed heads and of keys that can be lost: input and expectation of each are in one file."""

from __future__ import annotations

import functools
from typing import Any

import yaml

from tests.kit.support import ROOT


@functools.cache
def _cases() -> dict[int, dict[str, Any]]:
    found = yaml.safe_load((ROOT / "fixtures" / "trust" / "cases.yaml").read_text(encoding="utf-8"))
    return {each["number"]: each for each in found}


def case(number: int) -> tuple[Any, Any]:
    """Input and expectation of a case."""
    return _cases()[number]["input"], _cases()[number]["expectation"]
