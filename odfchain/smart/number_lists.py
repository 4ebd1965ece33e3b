"""Bytes as JSON lists of integers, which is how nodes write blocks: a few million numbers in a message.

The JSON library makes an object of each of them, and takes seconds for the largest message; here arrays do.
What is not written in the one way in which every library writes it is left to that library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

_PIECE_BYTES = 1 << 18
"""What is turned into text, or back, at a time: arrays of it take about ten times as much [bytes]."""

_TEXTS: npt.NDArray[np.uint32] = np.frombuffer(
    b"".join((b"%d," % n).ljust(4, b"\0") for n in range(256)), np.uint32
)
"""Each byte as it is written, with a comma."""

_PAYLOAD = re.compile(r'"payload"[ \t\r\n]*:[ \t\r\n]*(\[[0-9, \t\r\n]+\])')
"""Quotes within a text are escaped, so this is no piece of one."""
_BLANK = b" \t\r\n"
_PARTED = re.compile(rf"[0-9][{_BLANK.decode()}]+[0-9]")
"""Two numbers without a comma, which are not to become one."""
_COMMA, _ZERO = ord(","), ord("0")


def written(data: bytes) -> Iterator[str]:
    """The text between the brackets of a list of these bytes, in pieces."""
    for start in range(0, len(data), _PIECE_BYTES):
        part = np.frombuffer(data, np.uint8, min(_PIECE_BYTES, len(data) - start), start)
        text = _TEXTS[part].tobytes().translate(None, b"\0")
        yield (text if start + len(part) < len(data) else text[:-1]).decode("ascii")


def without_payload(text: str) -> tuple[str, bytes | None]:
    """A document whose `payload` is `NaN` in place of a list of bytes, and these bytes.

    None where there is no such list, or one that is written in another way; then the text is what it was.
    """
    found = _PAYLOAD.search(text)
    if found is None or _PARTED.search(text, *found.span(1)):
        return text, None
    data = _read(found[1].encode("ascii").translate(None, _BLANK)[1:-1])
    return (text, None) if data is None else (f"{text[: found.start(1)]}NaN{text[found.end() :]}", data)


def parsed(text: str, payload: bytes | None) -> Any:
    """The document of a text that `without_payload` gave, with these bytes where it had them.

    Raises:
        ValueError: it is not JSON.
    """
    left = [] if payload is None else [payload]

    def constant(name: str) -> bytes:
        if name != "NaN" or not left:
            raise ValueError(f"{name} is no number")
        return left.pop()

    return json.loads(text, parse_constant=constant)


def _read(text: bytes) -> bytes | None:
    data, start, end = bytearray(), 0, len(text)
    while start < end:
        stop = end
        if end - start > _PIECE_BYTES:
            stop = text.rfind(b",", start, start + _PIECE_BYTES)
        part = _numbers(np.frombuffer(text[start:stop], np.uint8))
        if part is None:
            return None
        data += part
        start = stop + 1
    return bytes(data) if start == end + 1 else None


def _numbers(text: npt.NDArray[np.uint8]) -> bytes | None:
    """The bytes whose numbers a text lists; None where it is no list of bytes."""
    ends = np.append(np.flatnonzero(text == _COMMA), len(text))
    lengths = np.diff(ends, prepend=-1) - 1
    if lengths.min() < 1 or lengths.max() > 3:
        return None
    digits = text - np.uint8(_ZERO)
    if (digits[(ends - lengths)[lengths > 1]] == 0).any():
        return None  # JSON has no numbers with a zero in front
    values = digits[ends - 1].astype(np.uint16)
    values += np.where(lengths > 1, digits[np.maximum(ends - 2, 0)], 0) * np.uint16(10)
    values += np.where(lengths > 2, digits[np.maximum(ends - 3, 0)], 0) * np.uint16(100)
    return values.astype(np.uint8).tobytes() if values.max() <= 255 else None
