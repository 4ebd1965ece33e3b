"""Values of a slice as Python has them; a file may hold others."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

IMPOSSIBLE = (ValueError, OverflowError, KeyError, pa.ArrowException)
"""What Arrow raises for a value that Python cannot hold: a year after 9999, bytes that are no text, a time
zone that nobody knows."""


def plain_value(scalar: pa.Scalar) -> Any:
    """The value; of one that Python cannot hold, a text that says so."""
    try:
        return scalar.as_py()
    except IMPOSSIBLE:
        number = getattr(scalar, "value", None)
        return f"{number if isinstance(number, int) else 'a value'} that is no {scalar.type}"
