"""The JSON text that `ExtraAttributes` are stored as.

The text is part of what is hashed, so its form is fixed: no spaces, keys sorted at every level, non-ASCII
left as it is, floats in the shortest form the reference implementation's library prints.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from odfchain.errors import CodecError, DecodeError
from odfchain.limits import LIMITS


def dump_attributes(value: Mapping[str, Any]) -> str:
    """The canonical text of an attribute map."""
    return _dump(value, 0)


def _dump(value: Any, depth: int) -> str:
    if depth > LIMITS.manifest_depth:
        raise CodecError(f"attributes nest deeper than {LIMITS.manifest_depth}")
    match value:
        case None | bool() | str() | int():
            return json.dumps(value, ensure_ascii=False)
        case float():
            return _dump_float(value)
        case Mapping():
            items = (
                f"{json.dumps(k, ensure_ascii=False)}:{_dump(value[k], depth + 1)}" for k in sorted(value)
            )
            return "{" + ",".join(items) + "}"
        case list() | tuple():
            return "[" + ",".join(_dump(item, depth + 1) for item in value) + "]"
    raise CodecError(f"an attribute of type {type(value).__name__} is not JSON")


def _dump_float(value: float) -> str:
    """Shortest digits; plain notation while the decimal point is at most 16 digits right or 4 zeros left."""
    if not math.isfinite(value):
        raise CodecError(f"{value} is not JSON")
    if value == 0:
        return "-0.0" if math.copysign(1, value) < 0 else "0.0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    padded = whole + fraction
    digits = padded.lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(padded) - len(digits))  # digits before the decimal point
    digits = digits.rstrip("0")
    if len(digits) <= point <= 16:
        return f"{sign}{digits}{'0' * (point - len(digits))}.0"
    if 0 < point <= 16:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -5 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{point - 1}"


def load_attributes(text: str) -> dict[str, Any]:
    """The attribute map that a text holds.

    Raises:
        DecodeError: not a JSON object, nested too deep, or text that UTF-8 cannot hold.
    """

    def refuse(constant: str) -> NoReturn:
        raise DecodeError(f"attributes hold {constant}, which is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
        dump_attributes(value).encode()
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise DecodeError(f"attributes are not valid JSON: {error}") from None
    except CodecError as error:
        raise DecodeError(str(error)) from None
    if not isinstance(value, dict):
        raise DecodeError("attributes are not a JSON object")
    return value
