"""Pushes over the smart transfer protocol: `/{alias}/push`, a WebSocket, and the files that go with it.

Who writes shows a token with a right for the dataset; it is looked at again with every message and every
piece of a file, so that one that was revoked is of no use from then on. A file is written under a name of its
own, and takes its place once it is complete, hashed and durable. Source: RFC-050.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from odfchain.errors import CorruptedPeerError, OdfchainError, StorageFullError
from odfchain.ids.names import DatasetAlias
from odfchain.limits import SMART
from odfchain.progress import SILENT
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.serve.access_tokens import AccessToken, Right, holder
from odfchain.serve.push_sessions import LEFT_SECONDS, PushSession, PushSessions
from odfchain.serve.push_target import DatasetTarget, remove_left
from odfchain.serve.smart_pulls import (
    EXPECT,
    REVOKED,
    Message,
    Receive,
    Send,
    base_of,
    fields_of,
    is_this_version,
    refuse_upgrade,
)
from odfchain.serve.token_file import TokenFile
from odfchain.smart.client_flow import FAILED
from odfchain.smart.message_text import text_of
from odfchain.smart.server_flow import Closing, PushServing, Turn, failed
from odfchain.smart.smart_messages import Empty, Internal, Phase, Refusal
from odfchain.transfer.incoming import Incoming
from odfchain.transfer.public_layout import ObjectKey
from odfchain.transfer.pulling import pull_dataset
from odfchain.transfer.pushed_peer import PushedPeer
from odfchain.transfer.slice_files import arriving
from odfchain.transfer.sync import SyncOptions
from odfchain.trust.offered import read_offer
from odfchain.trust.parties import SignedFile
from odfchain.trust.signature_policy import NO_POLICY
from odfchain.trust.signed_head import SignatureStatus

READ_ONLY = "datasets here can only be read"

_SILENT_SECONDS = 60.0
"""A client that says nothing, and of which no byte comes, for so long has gone [s]."""
_PING_SECONDS = 10.0
"""How often a client that uploads is asked how far it is [s]."""
_REFUSED_SECONDS = 10.0
"""How long a client that was refused has to close [s]."""
_FIRST_SECONDS = 20.0
"""How long the first answer may take, for which clients wait 30 s [s]."""
_LOOK_SECONDS = 3_600.0
"""How often it is looked for what was pushed and never committed [s]."""
_PIECE_BYTES = 1 << 20
_THREADS = 8
"""For pushes, of which there are no more at a time [count]."""

Status = tuple[int, str]
"""An answer to a request: its status, and a line of text."""

_UNKNOWN: Status = (401, "this needs a token")
_FORBIDDEN: Status = (403, "this token is not for that")
_UNNAMED: Status = (404, "no push here wants this file")
_FULL: Status = (507, "there is no space for it")
_BUSY = Closing(FAILED, "Busy.")
_SILENT = Closing(FAILED, "Nothing was said for too long.")

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(slots=True)
class Writing:
    """What a server that may be written to has beside one that may not."""

    workspace: WorkspaceFiles
    behind_proxy: bool = False
    problem: Callable[[str], None] = lambda _: None
    refused: Callable[[], None] = lambda: None
    """Is called when a push was refused: what is known here of heads in a store may be the reason."""
    tokens: TokenFile = field(init=False)
    sessions: PushSessions = field(default_factory=PushSessions, init=False)
    threads: ThreadPoolExecutor = field(init=False)
    """For what pushes wait for: a store that is slow must not hold up those who read."""
    _looks_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.tokens = TokenFile(self.workspace.root)
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pushes")

    def may_push(self, authorization: str | None, alias: DatasetAlias) -> AccessToken | Status:
        """The token that a request shows, if it is for pushing to this dataset."""
        token = holder(authorization, self.tokens.tokens())
        if token is None:
            return _UNKNOWN
        return token if token.may(Right.PUSH, alias) else _FORBIDDEN

    def still(self, token: AccessToken) -> bool:
        """Whether a token has not been revoked."""
        return token in self.tokens.tokens()

    def look_for_left(self) -> None:
        """What was pushed and not committed for a day is removed, beside what else is done."""
        if (now := self.sessions.now()) >= self._looks_at:
            self._looks_at = now + _LOOK_SECONDS
            self.threads.submit(self._remove_left, asyncio.get_running_loop())

    def _remove_left(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            remove_left(self.workspace, int((time.time() - LEFT_SECONDS) * 1e9))
        except OdfchainError as error:
            loop.call_soon_threadsafe(self.problem, str(error))


async def answer_push(
    writing: Writing | None,
    alias: DatasetAlias | None,
    *,
    own: bool,
    scope: Message,
    receive: Receive,
    send: Send,
) -> None:
    """Hold the conversation of one push over a WebSocket that has not been accepted yet.

    `own` says that the dataset is written here, and thus not from elsewhere.
    """
    fields = fields_of(scope)
    if not is_this_version(fields):
        await refuse_upgrade(send, 400, "Incompatible client version")
        return
    if writing is None:
        await refuse_upgrade(send, 403, READ_ONLY)
        return
    base = base_of(scope, fields, "push", behind_proxy=writing.behind_proxy)
    if alias is None or base is None:
        await refuse_upgrade(send, 404, "Dataset not found")
        return
    authorization = fields.get("authorization")
    token = writing.may_push(authorization, alias)
    if not isinstance(token, AccessToken):
        await refuse_upgrade(send, *token)
        return
    if own:
        await refuse_upgrade(send, 403, "this dataset is written here")
        return
    loop = asyncio.get_running_loop()
    session: PushSession | None = None
    await send({"type": "websocket.accept"})
    closing: Closing | None = _BUSY
    if writing.sessions.attend(token):
        try:
            # that there is no room is said at once
            first = await _first(receive) if writing.sessions.has_room(alias, token) else ""
            if not isinstance(first, str):
                closing = first
            elif (session := writing.sessions.begin(alias, token)) is not None:
                target = DatasetTarget(
                    writing.workspace.reopened(),
                    writing.sessions,
                    session,
                    base,
                    authorization or "",
                    lambda text: loop.call_soon_threadsafe(writing.problem, text),
                )
                expect = scope.get("extensions", {}).get(EXPECT, lambda _: None)
                closing = await _converse(writing, PushServing(target), session, first, receive, send, expect)
        finally:
            writing.sessions.leave(token)
            if session is not None:
                writing.sessions.end(session)
    if closing is not None:
        await send({"type": "websocket.close", "code": closing.code, "reason": closing.reason})


async def _first(receive: Receive) -> str | Closing | None:
    """What a client says first, or how its connection ends: who says nothing is not in the way of others."""
    try:
        async with asyncio.timeout(_SILENT_SECONDS):
            return await _said(receive)
    except TimeoutError:
        return _SILENT


async def _said(receive: Receive) -> str | Closing | None:
    """What a client says; how the connection is to be ended where that is no text, None when it has ended."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return None
        if message["type"] == "websocket.receive":
            text: str | None = message.get("text")
            return Closing(FAILED, "Messages are text.") if text is None else text


async def _converse(
    writing: Writing,
    serving: PushServing,
    session: PushSession,
    text: str,
    receive: Receive,
    send: Send,
    expect: Callable[[int], None],
) -> Closing | None:
    """How the connection is to be ended after a first message; None when the client has ended it."""
    sessions = writing.sessions
    while True:
        if not writing.still(session.token):
            return REVOKED
        began = sessions.now()
        turn = await _answered(writing, serving, text)
        session.touched = sessions.now()
        session.until += session.touched - began
        refused = isinstance(turn.message, Refusal)
        if refused or turn.closing is not None:
            writing.refused()
        if refused or serving.is_done:
            sessions.end(session)  # who hears of it may push again at once
        if (said := await asyncio.to_thread(_text, turn)) is not None:
            await send({"type": "websocket.send", "text": said})
        if turn.closing is not None:
            return turn.closing
        blocks = serving.phase is Phase.METADATA_REQUEST and not refused
        expect(SMART.message_bytes if blocks else SMART.request_bytes)
        found = await _next(sessions, serving, session, receive, send, refused=refused)
        if not isinstance(found, str):
            return found
        if refused:
            return Closing(FAILED, "This push was refused.")
        session.touched, text = sessions.now(), found


async def _next(
    sessions: PushSessions,
    serving: PushServing,
    session: PushSession,
    receive: Receive,
    send: Send,
    *,
    refused: bool,
) -> str | Closing | None:
    """As `_said`; a client that uploads is asked now and then how far it is, and no push lasts for ever."""
    uploads = serving.asks_for_progress
    while (left := session.until - sessions.now()) > 0:
        seconds = _REFUSED_SECONDS if refused else _PING_SECONDS if uploads else _SILENT_SECONDS
        try:
            async with asyncio.timeout(min(seconds, left)):
                return await _said(receive)
        except TimeoutError:
            if not uploads or sessions.now() - session.touched >= _SILENT_SECONDS:
                return _SILENT
            await send({"type": "websocket.send", "text": text_of(Empty())})
    return Closing(FAILED, "This push took too long.")


async def _answered(writing: Writing, serving: PushServing, text: str) -> Turn:
    """The next turn; a client does not wait for the first one as long as for a store that is silent."""
    asks_store = writing.workspace.shared.where is not None and serving.phase is Phase.INITIAL_REQUEST
    seconds = _FIRST_SECONDS if asks_store else None
    answer = asyncio.get_running_loop().run_in_executor(writing.threads, serving.answer, text)
    try:
        return await asyncio.wait_for(asyncio.shield(answer), seconds)
    except TimeoutError:
        said = "The store of this node does not answer."
        return failed(Refusal(Internal(side="Push", phase=Phase.INITIAL_REQUEST, error_message=said)))


def _text(turn: Turn) -> str | None:
    return turn.text


# --- files -------------------------------------------------------------------------------------------


async def take_file(
    writing: Writing, alias: DatasetAlias, key: str, scope: Message, receive: Receive
) -> Status:
    """What comes of a file that is PUT: it is taken if a push that is going on, or just was, names it."""
    fields = fields_of(scope)
    token = writing.may_push(fields.get("authorization"), alias)
    if not isinstance(token, AccessToken):
        return token
    length = fields.get("content-length", "")
    if not (length.isascii() and length.isdigit()) or "transfer-encoding" in fields:
        return 411, "the length has to be given"
    if key == SignedFile.HEAD.value:
        return await _take_signature(writing, alias, token, int(length), receive)
    name = ObjectKey.parse(key)
    session = writing.sessions.find(alias, token)
    size = session.wanted.get(name) if session is not None and name is not None else None
    if session is None or name is None or size is None or session.folder is None:
        return _UNNAMED
    if int(length) != size:
        return 400, f"the object has {size} bytes"
    if name in session.arriving:
        return 409, "it is on its way already"
    if not writing.sessions.reserve(session, name, size, shutil.disk_usage(session.folder).free):
        return _FULL
    session.arriving.add(name)
    status = _UNNAMED
    try:
        status = await _receive(writing, session, name, size, receive)
    finally:
        session.arriving.discard(name)
        if status[0] != 201:
            writing.sessions.release(session, name)
    return status


async def _receive(
    writing: Writing, session: PushSession, name: ObjectKey, size: int, receive: Receive
) -> Status:
    assert session.folder is not None and session.uploads is not None  # noqa: S101, PT018 - objects were named
    target = arriving(session.folder, name)

    def refusal() -> Status | None:
        if not writing.still(session.token):
            return _UNKNOWN
        return None if name in session.wanted else _UNNAMED

    try:
        with Incoming(
            name, size, arriving(session.uploads, name), name=str(name), progress=SILENT, resume=False
        ) as incoming:
            async for pieces in _pieces(receive, refusal):
                writing.sessions.received(session, sum(map(len, pieces)))
                await _whole(_append, incoming, pieces)
            if (refused := refusal()) is not None:
                return refused
            if not incoming.complete():
                raise incoming.refuse("it is shorter than was said")
            # now, while others arrive: the commit waits for the disk otherwise
            await _whole(incoming.sync)
            if (refused := refusal()) is not None:
                return refused
            taken = writing.sessions.take_over(session, name, lambda: incoming.publish(target))
            return (201, "stored") if taken else _UNNAMED
    except StorageFullError:
        return _FULL
    except (CorruptedPeerError, TimeoutError):
        return 400, "the content is not what the name says"
    except OdfchainError:
        if name in session.wanted:
            raise
        return _UNNAMED  # its folder went with the push


async def _whole(work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """As `asyncio.to_thread`; who is stopped waits for it, so that no file is closed that is written to."""
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise


def _append(incoming: Incoming, pieces: list[bytes]) -> None:
    for piece in pieces:
        if incoming.received + len(piece) > incoming.size:
            raise incoming.refuse("it is longer than was said")
        incoming.add(memoryview(piece))


async def _pieces(receive: Receive, refusal: Callable[[], Status | None]) -> AsyncIterator[list[bytes]]:
    """The body of a request, about a megabyte at a time.

    It ends early where the client goes away, or is refused meanwhile.
    """
    held: list[bytes] = []
    size, more = 0, True
    while more and refusal() is None:
        async with asyncio.timeout(_SILENT_SECONDS):
            message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)
        held.append(message.get("body", b""))
        size += len(held[-1])
        if size >= _PIECE_BYTES or not more:
            yield held
            held, size = [], 0


async def _take_signature(
    writing: Writing, alias: DatasetAlias, token: AccessToken, length: int, receive: Receive
) -> Status:
    head = writing.sessions.awaits(alias, token)
    if head is None:
        return _UNNAMED
    if length > SignedFile.HEAD.limit:
        return 400, "this is no signature"

    def refusal() -> Status | None:
        return None if writing.still(token) else _UNKNOWN

    try:
        data = b"".join([each async for pieces in _pieces(receive, refusal) for each in pieces])
    except TimeoutError:
        return 400, "this is no signature"
    if (refused := refusal()) is not None:
        return refused
    peer = PushedPeer(f"what is pushed to {alias}: ", head, signature=data)

    def judged() -> bool:
        offer = read_offer(peer, NO_POLICY)
        if offer is None or not offer.fits:
            return False  # a pull would keep the owner's word on an older block, too
        outcome = pull_dataset(writing.workspace.reopened(), peer, alias, SyncOptions(onto=head))
        return outcome.signature is not None and outcome.signature.status is SignatureStatus.SIGNED

    try:
        valid = await asyncio.to_thread(judged)
    except OdfchainError:
        valid = False
    return (201, "stored") if valid else (400, "this does not sign the head with the dataset's key")
