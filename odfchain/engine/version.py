"""Versions of the engine: what a transform names, and which others give the same results.

A version names the rules of this engine and the Spark that computes, as in `odfchain_1-spark_4.3.0`. The
rules' number changes when the same query over the same rows would give other rows, another order or another
watermark. Patch releases of Spark are taken as the same; a different minor one only when it was declared
compatible. Source: specification "Engine Deprecation"; RFC-019.
"""

from __future__ import annotations

import re
from collections.abc import Collection

RULES = 1
"""The number of this engine's rules."""

_FORM = re.compile(r"odfchain_(\d+)-spark_(\d+)\.(\d+)(?:\.\S+)?")


def engine_version() -> str:
    """The version of the engine in this process."""
    from importlib.metadata import version

    return f"odfchain_{RULES}-spark_{version('pyspark')}"


def same_results(recorded: str | None, running: str, compatible: Collection[str] = ()) -> bool:
    """Whether the running version may stand in for the recorded one.

    A transform without a version asks for none. `compatible` are versions that were declared to give the same
    results as the running one.
    """
    if recorded is None or recorded == running or recorded in compatible:
        return True
    one, other = _FORM.fullmatch(recorded), _FORM.fullmatch(running)
    return one is not None and other is not None and one.groups() == other.groups()
