"""Messages as texts and back: what is written is what the reference node writes.

What a node adds to a document is passed over; what is missing, or is no such value, is refused, and where in
the document that is, is said.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn

from odfchain.errors import CorruptedPeerError, InvalidIdError
from odfchain.ids.multihash import Multihash
from odfchain.limits import SMART
from odfchain.model.timestamp import Timestamp
from odfchain.smart.number_lists import parsed, without_payload, written
from odfchain.smart.smart_messages import (
    BlocksBatch,
    Internal,
    Message,
    Phase,
    PulledBlocks,
    PullStrategies,
    PushedBlocks,
    PushStrategies,
    Reason,
    Refusal,
    UploadProgress,
)
from odfchain.text import one_line

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_LARGEST: dict[type[Message], int] = {
    PulledBlocks: SMART.message_bytes,
    PushedBlocks: SMART.message_bytes,
    PullStrategies: SMART.answer_bytes,
    PushStrategies: SMART.answer_bytes,
}
"""What a message of a kind may have where it is more than `SMART.request_bytes` [bytes]."""
_AROUND_CHARACTERS = 512
"""What a message has beside the numbers of its batch, and more."""
_REASONS: dict[str, Any] = {kind.__name__: kind for kind in typing.get_args(Reason)}


def text_of(message: Message) -> str:
    """The frame of a message."""
    aside: list[bytes] = []

    def put_aside(data: bytes) -> list[int]:
        aside.append(data)
        return []

    text = json.dumps(document_of(message, put_aside), separators=(",", ":"))
    if not aside:
        return text
    before, name, after = text.rpartition('"payload":[')
    return "".join((before, name, *written(aside[0]), after))


def fits_message(batch: BlocksBatch, message_bytes: int) -> bool:
    """Whether a message of this size has room for a batch; each byte takes two to four characters."""
    room = message_bytes - _AROUND_CHARACTERS
    return 4 * len(batch.payload) <= room or sum(map(len, written(batch.payload))) <= room


def document_of(message: Message, numbers: Callable[[bytes], list[int]] = list) -> dict[str, Any]:
    """Its document; `numbers` says what bytes are in it."""
    match message:
        case Refusal(Internal() as reason):
            phase = {reason.side: reason.phase.value}
            return {"Err": {"Internal": {"phase": phase, "error_message": reason.error_message}}}
        case Refusal(reason):
            return {"Err": {type(reason).__name__: _plain(reason, numbers)}}
        case UploadProgress(uploaded_objects_count=None):
            return {"details": "Complete"}
        case UploadProgress():
            return {"details": {"Running": _plain(message, numbers)}}
    plain: dict[str, Any] = _plain(message, numbers)
    return {"Ok": plain} if message.IS_RESULT else plain


def _plain(value: Any, numbers: Callable[[bytes], list[int]]) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, (Multihash, Timestamp)):
        return {f.name: _plain(getattr(value, f.name), numbers) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item, numbers) for item in value]
    if isinstance(value, bytes):
        return numbers(value)
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, (Multihash, Timestamp)) else value


# --- reading -----------------------------------------------------------------------------------------


def message_of(kind: type[Message], text: str) -> Any:
    """The message of a kind that a frame holds; where the kind is a result, a `Refusal` may come instead."""
    tree = _tree(text, _LARGEST.get(kind, SMART.request_bytes))
    if kind is UploadProgress:
        return _progress(tree)
    if kind is Refusal or (kind.IS_RESULT and isinstance(tree, dict) and "Err" in tree):
        return _refusal(_member(tree, "Err", ""))
    return _read(kind, _member(tree, "Ok", "") if kind.IS_RESULT else tree, "Ok" if kind.IS_RESULT else "")


def refusal_of(text: str) -> Refusal | None:
    """The refusal that a text is, such as the reason of a closed connection; None where it is none."""
    try:
        found = message_of(Refusal, text)
    except CorruptedPeerError:
        return None
    return found if isinstance(found, Refusal) else None


def _tree(text: str, most: int) -> Any:
    if len(text) > most:
        _refuse("", f"{len(text):,} characters; {most:,} are allowed")
    text, payload = without_payload(text)
    # beside its bytes a message of blocks has next to nothing
    values = (SMART.request_bytes if most == SMART.message_bytes else most) // SMART.value_bytes
    if text.count(",") > values:
        _refuse("", f"more than {values:,} values")
    depth = 0
    for number, token in enumerate(_TOKENS.finditer(text)):
        if number > values:
            _refuse("", f"more than {values:,} values")
        sign = text[token.start()]
        depth += (sign in "[{") - (sign in "]}")
        if depth > SMART.depth:
            _refuse("", f"lists and objects lie more than {SMART.depth} levels deep")
    try:
        return parsed(text, payload)
    except ValueError as error:
        _refuse("", f"not JSON: {error}")


def _progress(tree: Any) -> UploadProgress:
    details = _member(tree, "details", "")
    if details == "Complete":
        return UploadProgress()
    running = _member(details, "Running", "details")
    count = _read(int, _member(running, "uploaded_objects_count", "details.Running"), "details.Running")
    return UploadProgress(uploaded_objects_count=count)


def _refusal(tree: Any) -> Refusal:
    if not isinstance(tree, dict) or len(tree) != 1:
        _refuse("Err", "not one reason")
    ((name, value),) = tree.items()
    if name == "Internal":
        phase = _member(value, "phase", "Err.Internal")
        side, where = next(iter(phase.items())) if isinstance(phase, dict) and len(phase) == 1 else ("", "")
        message = _read(str, _member(value, "error_message", "Err.Internal"), "Err.Internal.error_message")
        at = _read(Phase, where, "Err.Internal.phase")
        return Refusal(Internal(side=one_line(str(side)), phase=at, error_message=message))
    if name not in _REASONS:
        _refuse("Err", f"no reason is called {one_line(str(name))!r}")
    return Refusal(_read(_REASONS[name], value, f"Err.{name}"))


def _member(tree: Any, name: str, where: str) -> Any:
    if not isinstance(tree, dict):
        _refuse(where, "not an object")
    if name not in tree:
        _refuse(where, f"{name!r} is missing")
    return tree[name]


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _read(hint: Any, value: Any, where: str) -> Any:
    if isinstance(hint, types.UnionType):
        (inner,) = (each for each in typing.get_args(hint) if each is not type(None))
        return None if value is None else _read(inner, value, where)
    if typing.get_origin(hint) is tuple:
        return _items(typing.get_args(hint)[0], value, where)
    if hint is bytes:
        return _bytes(value, where)
    if hint is bool:
        return value if isinstance(value, bool) else _refuse(where, "neither true nor false")
    if hint is int:
        is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64
        return value if is_count else _refuse(where, "no count")
    if hint is str or hint is Multihash or hint is Timestamp or issubclass(hint, Enum):
        return _text(hint, value, where)
    return hint(
        **{
            name: _read(inner, _of(value, name, inner, where), f"{where}.{name}".removeprefix("."))
            for name, inner in _hints(hint).items()
        }
    )


def _of(tree: Any, name: str, hint: Any, where: str) -> Any:
    """A member; one that may be null may be left out as well."""
    if isinstance(hint, types.UnionType) and isinstance(tree, dict):
        return tree.get(name)
    return _member(tree, name, where)


def _items(hint: Any, value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        _refuse(where, "not a list")
    if len(value) > SMART.items:
        _refuse(where, f"{len(value):,} items; {SMART.items:,} are allowed")
    return tuple(_read(hint, item, f"{where}[{number}]") for number, item in enumerate(value))


def _bytes(value: Any, where: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, list):
        _refuse(where, "not a list of bytes")
    if not set(map(type, value)) <= {int}:
        _refuse(where, "holds what is no number")
    try:
        return bytes(value)
    except ValueError:
        _refuse(where, "holds a number that is no byte")


def _text(hint: Any, value: Any, where: str) -> Any:
    if not isinstance(value, str):
        _refuse(where, "no text")
    if len(value) > SMART.text_characters:
        _refuse(where, f"a text of {len(value):,} characters")
    try:
        if hint is str:
            return value
        return hint(value) if issubclass(hint, Enum) else hint.parse(value)
    except (InvalidIdError, ValueError):
        _refuse(where, f"{one_line(value, 100)!r} is not what belongs there")


def _refuse(where: str, what: str) -> NoReturn:
    raise CorruptedPeerError(f"a message of the smart protocol: {f'{where}: ' if where else ''}{what}")
