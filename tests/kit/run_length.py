"""How often a test tries something: seconds of it in `make test`, minutes in `make soak`, an hour with `PROFILE=long`."""

from __future__ import annotations

import os


def scaled(short: int, soak: int, long: int) -> int:
    """The count that is meant for this run, by the profile of Hypothesis (`tests/conftest.py`)."""
    return {"soak": soak, "deep": long}.get(os.environ.get("HYPOTHESIS_PROFILE", "ci"), short)
