"""The cases of the node's guides: input and expectation of each are in its file."""

from __future__ import annotations

from typing import Any

import yaml

from tests.kit.support import ROOT

CASES = ROOT / "fixtures" / "node" / "cases"


def case(number: int) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CASES / f"{number:02d}.yaml").read_text(encoding="utf-8"))
    assert found["case"] == number
    return found
