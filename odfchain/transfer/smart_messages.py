"""The messages of the smart transfer protocol, version 1: one JSON document in each text frame.

The fields of a class are the members of its document, in this order; those that are None are `null`. Results
of a request are `{"Ok": …}` or `{"Err": {NAME: …}}`; two answers of a pull are bare, as the reference node
writes them. Unknown members are ignored; missing or invalid ones are refused, with their place in the
document. Source: the protocol as kamu 0.265 speaks it; RFC-050.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt
from websockets.exceptions import ProtocolError
from websockets.frames import Frame
from websockets.protocol import Protocol

from odfchain.errors import CorruptedPeerError, ManifestError, UnsupportedPeerError, child_path
from odfchain.limits import SMART
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import Form, from_tree
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.text import one_line

VERSION = ("x-odf-smtp-version", "1")
"""The header that every request for a transfer has."""

NORMAL, FAILED = 1000, 1011
"""Codes that connections are closed with."""

MEDIA_TYPE, ENCODING = "application/tar+gzip", "raw"


class ObjectType(Enum):
    """The kinds of files that blocks name."""

    DATA_SLICE = "DataSlice"
    CHECKPOINT = "Checkpoint"


class Visibility(Enum):
    """Visibility of a dataset that a push makes."""

    PRIVATE = "Private"
    PUBLIC = "Public"


class Phase(Enum):
    """The node's phase at a failure."""

    INITIAL_REQUEST = "InitialRequest"
    METADATA_REQUEST = "MetadataRequest"
    OBJECTS_REQUEST = "ObjectsRequest"
    ENSURING_TARGET_EXISTS = "EnsuringTargetExists"
    OBJECTS_UPLOAD_PROGRESS = "ObjectsUploadProgress"
    COMPLETE_REQUEST = "CompleteRequest"


class PullMethod(Enum):
    """How an object is to be had."""

    HTTP_DOWNLOAD = "HttpDownload"


class PushMethod(Enum):
    """Upload strategies of an object."""

    SKIP_UPLOAD = "SkipUpload"
    HTTP_UPLOAD = "HttpUpload"


class _Part:
    __slots__ = ()
    FORM: ClassVar = Form(snake_case=True, others=True, nulls=True, whole=True, omits=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan(_Part):
    """Totals of the blocks of a transfer."""

    num_blocks: int
    num_objects: int
    num_records: int
    bytes_in_raw_blocks: int
    bytes_in_raw_objects: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlocksBatch(_Part):
    """Blocks in one piece (`odfchain.transfer.block_batch`)."""

    num_blocks: int
    media_type: str = MEDIA_TYPE
    encoding: str = ENCODING
    payload: bytes

    def __post_init__(self) -> None:
        """Refuse what cannot be unpacked."""
        if (self.media_type, self.encoding) != (MEDIA_TYPE, ENCODING):
            raise UnsupportedPeerError(
                f"blocks come as {one_line(self.media_type)!r}, encoded as {one_line(self.encoding)!r}; "
                f"only {MEDIA_TYPE!r}, encoded as {ENCODING!r}, is understood here"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFile(_Part):
    """A slice or a checkpoint that a block names; its size in bytes."""

    object_type: ObjectType
    physical_hash: Multihash
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(_Part):
    """A header field."""

    name: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferUrl(_Part):
    """URL and headers for reading or writing an object."""

    url: str
    headers: tuple[Header, ...]
    expires_at: Timestamp | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullStrategy(_Part):
    """How one object is to be had."""

    object_file: ObjectFile
    pull_strategy: PullMethod
    download_from: TransferUrl


@dataclass(frozen=True, slots=True, kw_only=True)
class PushStrategy(_Part):
    """The strategy of one object."""

    object_file: ObjectFile
    push_strategy: PushMethod
    upload_to: TransferUrl | None


@dataclass(frozen=True, slots=True)
class Message(_Part):
    """One frame. `IS_RESULT` says whether its document is the value of `Ok`."""

    IS_RESULT: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Empty(Message):
    """`{}`: the client asks for blocks, or to commit; the server asks how far it is, or confirms."""


@dataclass(frozen=True, slots=True)
class Accepted(Message):
    """`{"Ok": {}}`: go on."""

    IS_RESULT: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest(Message):
    """The first message of a pull: which blocks are wanted."""

    begin_after: Multihash | None
    stop_at: Multihash | None = None
    force_update_if_diverged: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPlan(Message):
    """Its answer."""

    IS_RESULT: ClassVar[bool] = True
    transfer_plan: TransferPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PulledBlocks(Message):
    """The blocks, oldest first."""

    blocks: BlocksBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PullObjects(Message):
    """The objects that the client lacks."""

    object_files: tuple[ObjectFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullStrategies(Message):
    """Their download URLs."""

    object_transfer_strategies: tuple[PullStrategy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest(Message):
    """The first message of a push: what is coming, on top of what."""

    current_head: Multihash | None
    transfer_plan: TransferPlan
    force_update_if_diverged: bool = False
    visibility_for_created_dataset: Visibility = Visibility.PRIVATE


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedBlocks(Message):
    """The blocks, oldest first."""

    new_blocks: BlocksBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PushObjects(Message):
    """Objects that the blocks name; more of them come where the list `is_truncated`."""

    object_files: tuple[ObjectFile, ...]
    is_truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PushStrategies(Message):
    """The strategies of the named objects."""

    IS_RESULT: ClassVar[bool] = True
    object_transfer_strategies: tuple[PushStrategy, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadProgress(Message):
    """How many objects have been uploaded so far; None: all that are needed."""

    uploaded_objects_count: int | None = None


# --- refusals ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidInterval(_Part):
    """The block to begin after is not below the head."""

    head: Multihash
    tail: Multihash


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidHead(_Part):
    """The head is not where the client takes it to be: `expected_head` is the server's, as nodes write it."""

    actual_head: Multihash | None
    expected_head: Multihash | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedBlockOverwriteRestricted(_Part):
    """The other chain is another dataset's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefCollision(_Part):
    """The dataset is there under another name; its id, or what the node says."""

    dataset_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NameCollision(_Part):
    """The name is another dataset's."""

    dataset_alias: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Internal:
    """The node failed, or refuses without a name for it; `side` and `phase` of the transfer."""

    side: str
    phase: Phase
    error_message: str


TOO_MANY_BLOCKS = "Too many blocks."
"""The internal error where blocks do not fit into one message; the simple protocol has them."""
BUSY = "Busy."
MAY_NOT_OVERWRITE = "This token may not overwrite history."

Reason = (
    InvalidInterval | InvalidHead | SeedBlockOverwriteRestricted | RefCollision | NameCollision | Internal
)


@dataclass(frozen=True, slots=True)
class Refusal(Message):
    """`{"Err": …}`: the transfer ends here."""

    reason: Reason


# Slices and checkpoints as the smart protocol names them, with our keys.

_OBJECT_TYPES = {ObjectKind.DATA: ObjectType.DATA_SLICE, ObjectKind.CHECKPOINT: ObjectType.CHECKPOINT}
_OBJECT_KINDS = {name: kind for kind, name in _OBJECT_TYPES.items()}


def object_file(key: ObjectKey, size: int) -> ObjectFile:
    """The smart protocol's name of a slice or checkpoint of this size [bytes]."""
    return ObjectFile(object_type=_OBJECT_TYPES[key.kind], physical_hash=key.name, size=size)


def key_of(file: ObjectFile) -> ObjectKey:
    """The key of an object that a message names."""
    return ObjectKey(_OBJECT_KINDS[file.object_type], file.physical_hash)


def address_here(base: str, key: ObjectKey, authorization: str | None) -> TransferUrl:
    """The URL of an object of the dataset at `base`, for authorized reads and uploads."""
    headers = [Header(name=VERSION[0], value=VERSION[1])]
    if authorization is not None:
        headers.append(Header(name="authorization", value=authorization))
    return TransferUrl(url=f"{base}{key}", headers=tuple(headers), expires_at=None)


# Bytes as JSON lists of integers, which is how nodes write blocks: millions of numbers in a message.
# The JSON library makes an object of each, and takes seconds; numpy arrays do not. Unusual spellings are
# left to the library.

# Size of the pieces that are converted [bytes]; their arrays take about ten times as much.
_PIECE_BYTES = 1 << 18

# Each byte as it is written, with a comma.
_TEXTS: npt.NDArray[np.uint32] = np.frombuffer(
    b"".join((b"%d," % n).ljust(4, b"\0") for n in range(256)), np.uint32
)

# Quotes within a text are escaped, so this is no piece of one.
_PAYLOAD = re.compile(r'"payload"[ \t\r\n]*:[ \t\r\n]*(\[[0-9, \t\r\n]+\])')
_BLANK = b" \t\r\n"
# Two numbers without a comma, which are not to become one.
_PARTED = re.compile(rf"[0-9][{_BLANK.decode()}]+[0-9]")


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
    if (found := _PAYLOAD.search(text)) is None or _PARTED.search(text, *found.span(1)):
        return text, None
    data = _read_numbers(found[1].encode("ascii").translate(None, _BLANK)[1:-1])
    return (text, None) if data is None else (f"{text[: found.start(1)]}NaN{text[found.end() :]}", data)


def parsed(text: str, payload: bytes | None) -> Any:
    """The document of a text that `without_payload` gave, with these bytes where it had them."""
    left = [] if payload is None else [payload]

    def constant(name: str) -> bytes:
        if name != "NaN" or not left:
            raise ValueError(f"{name} is not a number")
        return left.pop()

    return json.loads(text, parse_constant=constant)


def _read_numbers(text: bytes) -> bytes | None:
    if b",," in text or text.startswith(b",") or text.endswith(b","):
        return None
    data, start = bytearray(), 0
    while start < len(text):
        stop = len(text)
        if stop - start > _PIECE_BYTES and (stop := text.rfind(b",", start, start + _PIECE_BYTES)) < 0:
            return None
        piece = text[start:stop].decode("ascii")
        part = np.fromstring(piece, np.int64, sep=",").astype(np.uint8).tobytes()
        # JSON has no numbers with a zero in front, and bytes none above 255
        if "".join(written(part)) != piece:
            return None
        data += part
        start = stop + 1
    return bytes(data) if data else None


_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
# Size limits of message kinds that exceed `SMART.request_bytes` [bytes].
_LARGEST: dict[type[Message], int] = {
    PulledBlocks: SMART.message_bytes,
    PushedBlocks: SMART.message_bytes,
    PullStrategies: SMART.answer_bytes,
    PushStrategies: SMART.answer_bytes,
}
# Upper bound of a message without the numbers of its batch.
_AROUND_CHARACTERS = 512
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
    """True if a message of this size has room for a batch; each byte takes two to four characters."""
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
    # apart from its bytes a message of blocks has next to nothing
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
    _member(running, "uploaded_objects_count", "details.Running")
    progress: UploadProgress = _read(UploadProgress, running, "details.Running")
    return progress


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
        _refuse("Err", f"unknown reason {one_line(str(name))!r}")
    return Refusal(_read(_REASONS[name], value, f"Err.{name}"))


def _member(tree: Any, name: str, where: str) -> Any:
    if not isinstance(tree, dict):
        _refuse(where, "not an object")
    if name not in tree:
        _refuse(where, f"{name!r} is missing")
    return tree[name]


def _read(hint: Any, value: Any, where: str) -> Any:
    try:
        return from_tree(hint, _bounded(value, where), where)
    except ManifestError as error:
        raise CorruptedPeerError(f"a message of the smart protocol: {one_line(str(error))}") from None


def _bounded(value: Any, where: str) -> Any:
    # the tree with bytes for lists of them, in which no text and no list is too long
    match value:
        case dict():
            return {
                name: (_bytes if name == "payload" else _bounded)(item, child_path(where, name))
                for name, item in value.items()
            }
        case list() if len(value) > SMART.items:
            _refuse(where, f"{len(value):,} items; {SMART.items:,} are allowed")
        case list():
            return [_bounded(item, child_path(where, number)) for number, item in enumerate(value)]
        case str() if len(value) > SMART.text_characters:
            _refuse(where, f"a text of {len(value):,} characters")
    return value


def _bytes(value: Any, where: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, list):
        _refuse(where, "not a list of bytes")
    if not set(map(type, value)) <= {int}:
        _refuse(where, "holds an item that is not a number")
    try:
        return bytes(value)
    except ValueError:
        _refuse(where, "holds a number that is not a byte")


def _refuse(where: str, what: str) -> NoReturn:
    raise CorruptedPeerError(f"a message of the smart protocol: {f'{where}: ' if where else ''}{what}")


# Limits on the number of WebSocket frames: each is an object, however few bytes it has.


class FewFrames(Protocol):
    """Either side of a connection; one whose other side sends too many small frames fails with code 1002."""

    _allowed, _since = float(SMART.small_frames), 0.0

    def recv_frame(self, frame: Frame) -> None:
        """Take a frame that has come: a message, a piece of one, a ping or the end."""
        if len(frame.data) < SMART.small_frame_bytes:
            now = time.monotonic()
            self._allowed = min(SMART.small_frames, self._allowed + now - self._since) - 1
            self._since = now
            if self._allowed < 0:
                raise ProtocolError("more small frames than a transfer has")
        super().recv_frame(frame)
