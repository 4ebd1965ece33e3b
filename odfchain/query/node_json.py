"""JSON as the reference node hashes and writes it: numbers keep their text.

It is not the canonical form of attestations (`odfchain.trust.canonical`, RFC 8785): what is not ASCII is
escaped, and doubles are written as their shortest digits, plain from 1e-5 to below 1e16.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, NoReturn

DEPTH = 64
"""Lists and objects within each other [levels]; answers of nodes have some five."""
VALUES = 5_000_000
"""Values of one document [count], by its commas and brackets."""

_SURROGATE = re.compile("[\ud800-\udfff]")


class Number(str):
    """A number as it is written."""

    __slots__ = ()


def canonical(value: Any) -> bytes:
    """The one text that is hashed and signed: members by name, no blanks, ASCII."""
    return _text(value, sorts=True, quoted=encode_basestring_ascii).encode("ascii")


def written(value: Any) -> str:
    """The text that is sent and kept: members in their own order, characters as they are."""
    return _text(value, sorts=False, quoted=encode_basestring)


def _text(value: Any, *, sorts: bool, quoted: Callable[[str], str]) -> str:
    parts: list[str] = []
    put = parts.append

    def text(found: str) -> str:
        if not found.isascii() and _SURROGATE.search(found):
            raise ValueError("a text with half a character")
        return quoted(found)

    def write(found: Any, left: int) -> None:
        kind = type(found)
        if kind is str:
            put(text(found))
        elif kind is Number:
            put(found)
        elif found is None or kind is bool:
            put("null" if found is None else "true" if found else "false")
        elif kind is int:
            put(int.__repr__(found))
        elif not left:
            raise ValueError(f"lists and objects lie more than {DEPTH} levels deep")
        elif kind is dict:
            opening = "{"
            for name in sorted(found) if sorts else found:
                put(f"{opening}{text(name)}:")
                write(found[name], left - 1)
                opening = ","
            put("}" if found else "{}")
        elif kind in (list, tuple):
            put("[")
            for number, item in enumerate(found):
                if number:
                    put(",")
                write(item, left - 1)
            put("]")
        else:
            raise ValueError(f"JSON has no {kind.__name__}")

    write(value, DEPTH)
    return "".join(parts)


def read(data: bytes) -> Any:
    """The value of a document that somebody sent; numbers are `Number`s.

    Raises:
        ValueError: it is not strict JSON, names a member twice, or has too many values.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") > VALUES:
        raise ValueError(f"it has more than {VALUES:,} values")
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_float=Number,
            parse_int=Number,
            parse_constant=_no_number,
        )
    except RecursionError:
        raise ValueError(f"lists and objects lie more than {DEPTH} levels deep") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a member is there twice")
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number in JSON")


# --- numbers --------------------------------------------------------------------------------------------


def double(value: float) -> Number | None:
    """A double by its shortest digits; None where it is not finite."""
    if not math.isfinite(value):
        return None
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(digits)
    return _number(value, digits.rstrip("0"), len(whole) - 1 - leading + int(exponent or 0), -5, 15)


def single(value: float) -> Number | None:
    """A single, given as the double of the same value, by its own shortest digits; None as `double`."""
    if not math.isfinite(value):
        return None
    digits, exponent = _shortest_single(abs(value)) if value else ("", 0)
    return _number(value, digits, exponent, -6, 12)


def _number(value: float, digits: str, exponent: int, least: int, most: int) -> Number:
    """`digits` with a point after the first, times ten to `exponent`; plain between `least` and `most`."""
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if not digits:
        return Number(f"{sign}0.0")
    if not least <= exponent <= most:
        point = "." if len(digits) > 1 else ""
        return Number(f"{sign}{digits[0]}{point}{digits[1:]}e{exponent:+d}")
    if exponent < 0:
        return Number(f"{sign}0.{'0' * (-exponent - 1)}{digits}")
    padded = digits.ljust(exponent + 1, "0")
    return Number(f"{sign}{padded[: exponent + 1]}.{padded[exponent + 1 :] or '0'}")


def _shortest_single(value: float) -> tuple[str, int]:
    """(digits, exponent of the first): of the shortest decimals that are read as this single, the nearest."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    fraction, biased = bits & 0x7FFFFF, bits >> 23
    mantissa, power = (fraction | 0x800000, biased - 150) if biased else (fraction, -149)
    # in quarters of the last place: the value, and halfway to its neighbours
    below = 1 if biased > 1 and not fraction else 2
    low, at, high, even = 4 * mantissa - below, 4 * mantissa, 4 * mantissa + 2, mantissa % 2 == 0
    up, down = (1 << max(power - 2, 0)), (1 << max(2 - power, 0))
    exponent = int(f"{value:.8e}".partition("e")[2])
    for count in range(6 if biased else 1, 10):
        shift = count - 1 - exponent
        times, over = 10 ** max(shift, 0) * up, 10 ** max(-shift, 0) * down
        least = at * times // over
        near = [
            (abs(n * over - at * times), n % 2, n)
            for n in (least, least + 1)
            if low * times < n * over < high * times or (even and n * over in (low * times, high * times))
        ]
        if near:
            found = str(min(near)[2])
            return found.rstrip("0"), exponent + len(found) - count
    raise AssertionError("nine digits name every single")
