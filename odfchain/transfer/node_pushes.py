"""Pushes over the smart transfer protocol: `/{alias}/push`, a WebSocket, and the files that go with it.

Writing needs a token with a right for the dataset; it is checked again with every message and every piece of
a file, so that a revoked one is of no use from then on. A file is written under a name of its
own, and takes its place once it is complete, hashed and durable. Source: RFC-050.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from odfchain import errors
from odfchain.chain.checkpoints import note_in
from odfchain.chain.signed_heads import SignatureStatus
from odfchain.limits import SMART
from odfchain.odf.block_codec import decode_block, decode_header
from odfchain.odf.events import Seed
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_file
from odfchain.progress import SILENT
from odfchain.storage import fsio
from odfchain.storage.fsio import FileState
from odfchain.storage.http_rules import Deadline, Pieces
from odfchain.storage.public_layout import HEAD_KEY, ObjectKey, ObjectKind, SignedFile
from odfchain.storage.store import AbsentError, Incoming, Opened, RawBlock, Store, Transport
from odfchain.transfer import access_tokens
from odfchain.transfer import smart_messages as msg
from odfchain.transfer.block_batch import unpacked
from odfchain.transfer.node_pulls import (
    EXPECT,
    REVOKED,
    SILENT_SECONDS,
    TOO_SILENT,
    Closing,
    FlowError,
    Message,
    Receive,
    Send,
    Serving,
    Turn,
    end,
    failed,
    fields_of,
    heard,
    refuse_upgrade,
    say,
)
from odfchain.transfer.pulling import SyncOptions, arrival_folder, begin_pull, pull_dataset
from odfchain.transfer.signed_statements import NO_POLICY, read_offer
from odfchain.transfer.slice_files import DataObject, arriving
from odfchain.transfer.store_commit import UnknownOutcomeError
from odfchain.workspace.workspace_files import WorkspaceFiles

# The dataset of one push, validated and published as a pull is.
# Blocks wait in the folder of a pull, with objects next to them, so an interrupted push can be continued
# for a day. With datasets in a store, a push opens the workspace as a command does.
#
#     <area>/objects/         what is complete, hashed, and never written again
#     <area>/uploads/         a folder for each push that is going on; it marks the area as one of pushes

_UPLOADS = "uploads"
_STORE_FAILS = "The store of this node fails."
_SAID: Mapping[type[errors.OdfchainError], str] = {
    UnknownOutcomeError: "It is not known whether this was committed.",
    errors.SetBackError: "The history in this node's store was rewound.",
}


class PushedTransport(Transport):
    """A push as a source of a pull; objects wait where pulls look."""

    def __init__(
        self,
        where: str,
        head: Multihash,
        blocks: Sequence[RawBlock] = (),
        signed: Mapping[str, bytes] | None = None,
        has_hashed: Callable[[ObjectKey, FileState], bool] = lambda *_: False,
    ) -> None:
        """The pushed blocks; `has_hashed` says which files are known to hash to the names of objects."""
        super().__init__(where)
        self._has_hashed, self._blocks = has_hashed, blocks
        self._files = {str(ObjectKey(ObjectKind.BLOCK, block.hash)): block.data for block in blocks}
        self._files[HEAD_KEY] = str(head).encode()
        self._files |= signed or {}

    @contextmanager
    def open(self, key: str, start: int, cap: int, deadline: Deadline, /) -> Iterator[Opened]:  # noqa: ARG002 - as `Transport`
        if (data := self._files.get(key)) is None:
            raise AbsentError(f"{self.where}{key}: it was not sent")
        yield Opened(f"{self.where}{key}", Pieces(iter([data[start:]])), len(data), start=start)

    def batch(self, after: Multihash | None, count: int) -> Iterator[RawBlock]:  # noqa: ARG002 - as `Transport`
        """All of them."""
        return iter(self._blocks)

    def has_hashed(self, key: ObjectKey, state: FileState) -> bool:
        return self._has_hashed(key, state)


@dataclass
class PushServing(Serving):
    """The node's side of a push; the dataset changes by its commit alone, one swap of its head."""

    side = "Push"
    workspace: WorkspaceFiles
    sessions: access_tokens.PushSessions
    session: access_tokens.PushSession
    base: str
    """The URL of the dataset."""
    authorization: str
    """The caller's header `Authorization`; his uploads need the same."""
    problem: Callable[[str], object] = lambda _: None
    """Reports faults of the store, which are hidden from the client."""
    is_done: bool = field(default=False, init=False)
    """True if all is committed: only the end of the connection follows."""
    _truncated: bool = field(default=False, init=False)
    _request: msg.PushRequest = field(init=False)
    # The newest block that was sent.
    _head: Multihash = field(init=False)
    # Of the seed that was sent.
    _new_id: DatasetId | None = field(default=None, init=False)
    # Why a new dataset cannot be here; it is said where nodes say it, when objects are named.
    _collision: msg.Reason | None = field(default=None, init=False)
    _objects: dict[ObjectKey, DataObject] = field(default_factory=dict, init=False)
    # How often each may still be named: as often as blocks do.
    _unnamed: Counter[ObjectKey] = field(default_factory=Counter, init=False)
    # Of those that were named.
    _strategies: dict[ObjectKey, msg.PushStrategy] = field(default_factory=dict, init=False)

    @property
    def asks_for_progress(self) -> bool:
        """True while the client uploads: it gets an `Empty` now and then to report its progress."""
        return self.phase is msg.Phase.OBJECTS_UPLOAD_PROGRESS

    def _answer(self, text: str) -> Turn:
        if self.is_done:
            return Turn(closing=Closing(msg.NORMAL))
        match self.phase:
            case msg.Phase.INITIAL_REQUEST:
                refusal = self.begin(msg.message_of(msg.PushRequest, text))
                return self._accepted(refusal, msg.Phase.METADATA_REQUEST)
            case msg.Phase.METADATA_REQUEST:
                pushed: msg.PushedBlocks = msg.message_of(msg.PushedBlocks, text)
                return self._accepted(self.take_blocks(pushed.new_blocks), msg.Phase.OBJECTS_REQUEST)
            case msg.Phase.OBJECTS_REQUEST:
                named: msg.PushObjects = msg.message_of(msg.PushObjects, text)
                if named.is_truncated and not named.object_files:
                    raise errors.CorruptedPeerError("no object is named, and more are to come")
                strategies = self.take_objects(named.object_files)
                self._truncated, self.phase = named.is_truncated, msg.Phase.OBJECTS_UPLOAD_PROGRESS
                return Turn(strategies)
            case msg.Phase.OBJECTS_UPLOAD_PROGRESS:
                progress: msg.UploadProgress = msg.message_of(msg.UploadProgress, text)
                if progress.uploaded_objects_count is None:
                    more = self._truncated
                    self.phase = msg.Phase.OBJECTS_REQUEST if more else msg.Phase.COMPLETE_REQUEST
                return Turn()
            case _:
                msg.message_of(msg.Empty, text)
                self.commit()
                self.is_done = True
                return Turn(msg.Empty())

    def _accepted(self, refusal: msg.Refusal | None, then: msg.Phase) -> Turn:
        if refusal is not None:
            return Turn(refusal)
        self.phase = then
        return Turn(msg.Accepted())

    @property
    def _where(self) -> str:
        return f"what is pushed to {self.session.alias}: "

    @property
    def _name_taken(self) -> msg.Reason:
        return msg.NameCollision(dataset_alias=str(self.session.alias))

    def begin(self, request: msg.PushRequest) -> msg.Refusal | None:
        """Check that the push may follow the head."""
        if request.force_update_if_diverged and not self.session.token.may(
            access_tokens.Right.FORCE, self.session.alias
        ):
            raise FlowError(self.refusal(msg.MAY_NOT_OVERWRITE))
        if not 0 < request.transfer_plan.num_blocks <= SMART.blocks:
            raise FlowError(self.refusal(f"A push has 1 to {SMART.blocks} blocks."))
        self._request = request
        with self._asking():
            head = self._present_head()
        return None if head == request.current_head else self._moved(head)

    def take_blocks(self, batch: msg.BlocksBatch) -> msg.Refusal | None:
        """Validate the blocks and keep them in private."""
        if batch.num_blocks != self._request.transfer_plan.num_blocks:
            raise errors.CorruptedPeerError(f"{self._where}other blocks than the plan says")
        blocks = unpacked(batch)
        _refuse_disorder(self._where, blocks)
        with self._asking():
            return self._judge(blocks)

    def _judge(self, blocks: list[RawBlock]) -> msg.Refusal | None:
        if (refusal := self._other_seed(blocks[0])) is not None:
            return refusal
        self._head = blocks[-1].hash
        if self._collision is None:
            self._make_room(sum(len(block.data) for block in blocks))
            peer = Store(PushedTransport(self._where, self._head, blocks))
            try:
                with begin_pull(self.workspace, peer, self.session.alias, self._options) as pull:
                    found = pull.plan().objects
            except errors.RefConflictError:
                return self._overtaken()
            self._objects = {item.key: item for item in found}
            self._unnamed = Counter(item.key for item in found)
        return None

    def _make_room(self, size: int) -> None:
        uploads = arrival_folder(self.workspace, self.session.alias) / _UPLOADS
        # the folder is gone, and with it all that was reserved in it
        if not uploads.is_dir():
            self.sessions.release(self.session)
        fsio.make_folder(uploads)
        fsio.mark_used(uploads)
        if not self.sessions.reserve(self.session, "blocks", size, shutil.disk_usage(uploads).free):
            raise FlowError(self.refusal("Insufficient storage."))

    def _present_head(self) -> Multihash | None:
        here = self.workspace.present(self.session.alias)
        return here.chain.head() if here is not None else None

    def _moved(self, head: Multihash | None) -> msg.Refusal:
        # the names are the reference node's: its own head is the expected one
        return msg.Refusal(msg.InvalidHead(actual_head=self._request.current_head, expected_head=head))

    def _overtaken(self) -> msg.Refusal:
        # the answer names the head that the other writer has set
        self.workspace.shared.renew()
        return self._moved(self._present_head())

    @property
    def _options(self) -> SyncOptions:
        head = self._request.current_head
        return SyncOptions(force=self._request.force_update_if_diverged and head is not None, onto=head)

    def _other_seed(self, first: RawBlock) -> msg.Refusal | None:
        event = decode_block(first.data).event
        if not isinstance(event, Seed):
            return None
        self._new_id = event.dataset_id
        if (here := self.workspace.present(self.session.alias)) is not None:
            seed = here.seed
            if (seed.dataset_id, seed.dataset_kind) == (event.dataset_id, event.dataset_kind):
                return None
            if self._request.current_head is not None:
                return msg.Refusal(msg.SeedBlockOverwriteRestricted())
            self._collision = self._name_taken
            return None
        self.workspace.shared.sync_heads(event.dataset_id)  # it may be there under another name
        if self.workspace.has_key(event.dataset_id):
            raise FlowError(self.refusal("This dataset is written here."))
        try:
            self.workspace.check_new(event.dataset_id, self.session.alias)
        except errors.NameCollisionError:
            self._collision = msg.RefCollision(dataset_id=str(event.dataset_id))
        return None

    def take_objects(self, files: tuple[msg.ObjectFile, ...]) -> msg.PushStrategies:
        """The upload strategy of each object."""
        with self._asking():
            self._refuse_collision()
            area = arrival_folder(self.workspace, self.session.alias)
        if self.session.uploads is None:
            self.session.uploads = area / _UPLOADS / fsio.unique_name()
        self.session.folder = area / "objects"
        fsio.make_folder(self.session.uploads)
        fsio.make_folder(self.session.folder)
        return msg.PushStrategies(object_transfer_strategies=tuple(self._strategy(file) for file in files))

    def _refuse_collision(self) -> None:
        here = self.workspace.present(self.session.alias)
        # checked at every step: another dataset may take the name during the push
        is_new = self._request.current_head is None
        if is_new and here is not None and here.id != self._new_id:
            self._collision = self._name_taken
        if self._collision is not None:
            raise FlowError(msg.Refusal(self._collision))

    def _strategy(self, file: msg.ObjectFile) -> msg.PushStrategy:
        key = msg.key_of(file)
        if (item := self._objects.get(key)) is None or item.size != file.size:
            raise FlowError(self.refusal("No block names this object."))
        if self._unnamed[key] < 1:
            raise FlowError(self.refusal("This object is named more often than blocks do."))
        self._unnamed[key] -= 1
        if (found := self._strategies.get(key)) is None:
            method, upload = msg.PushMethod.SKIP_UPLOAD, None
            if not self._is_here(item):
                self.session.wanted[key] = item.size
                method = msg.PushMethod.HTTP_UPLOAD
                upload = msg.address_here(self.base, key, self.authorization)
            found = msg.PushStrategy(object_file=file, push_strategy=method, upload_to=upload)
            self._strategies[key] = found
        return found

    def _is_here(self, item: DataObject) -> bool:
        assert self.session.folder is not None  # noqa: S101 - objects are named
        if self._is_at(arriving(self.session.folder, item.key), item):
            return True
        here = self.workspace.present(self.session.alias)
        # only the folder is looked at: a store would be asked for each object, and what it has is sent here
        return here is not None and self._is_at(here.folder / str(item.key), item)

    def _is_at(self, path: Path, item: DataObject) -> bool:
        if not path.is_file() or (found := path.stat()).st_size != item.size:
            return False
        state = fsio.file_state(found)
        # one hash per state of the file, whichever push asks
        if not self.sessions.has_hashed(item.key, state):
            if hash_file(path)[0] != item.key.name:
                return False
            self.sessions.remember(item.key, state)
        return True

    def commit(self) -> None:
        """Publish blocks whose objects are all there."""
        with self._asking():
            self._refuse_collision()
            self.sessions.close(self.session)
            # the blocks lie where they were put when they were judged
            peer = Store(PushedTransport(self._where, self._head, has_hashed=self.sessions.has_hashed))
            try:
                outcome = pull_dataset(self.workspace, peer, self.session.alias, self._options)
            except errors.NameCollisionError:
                raise FlowError(msg.Refusal(self._name_taken)) from None
            except errors.RefConflictError:
                raise FlowError(self._overtaken()) from None
            self.sessions.committed(self.session, outcome.new)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except errors.OdfchainError as error:
            where = self.workspace.shared.where
            # the client learns that the store fails, but not its address
            if where is None or where not in error.message:
                raise
            self.problem(f"{error.message} ({error.hint})" if error.hint else error.message)
            said = next((text for kind, text in _SAID.items() if isinstance(error, kind)), _STORE_FAILS)
            raise FlowError(self.refusal(said)) from None


def _refuse_disorder(where: str, blocks: Sequence[RawBlock]) -> None:
    before: Multihash | None = None
    for block in blocks:
        try:
            previous = decode_header(block.data).prev_block_hash
        except errors.CodecError as error:
            raise errors.CorruptedPeerError(f"{where}: {block.hash}: {error}") from None
        if before is not None and previous != before:
            raise errors.CorruptedPeerError(f"{where}: {block.hash} does not follow the block before it")
        before = block.hash


def remove_left(workspace: WorkspaceFiles, before_ns: int) -> None:
    """Remove uncommitted pushes that were not used since a time [ns since the epoch]."""
    new, present = workspace.root / "incoming", workspace.root / "datasets"
    found = [(uploads.parent, new / f".lock-{uploads.parent.name}") for uploads in new.glob(f"*/{_UPLOADS}")]
    there = present.glob(f"*/info/incoming/{_UPLOADS}")
    found += [(uploads.parent, uploads.parent.with_suffix(".lock")) for uploads in there]
    # only areas with uploads, those of pushes; a push at work holds the lock
    for area, lock in found:
        with fsio.try_locked(lock) as is_free:
            if is_free and fsio.is_unused_since(area, before_ns):
                fsio.remove_tree(area)


# How often a client that uploads is asked how far it is [s].
_PING_SECONDS = 10.0
# How long a client that was refused has to close [s].
_REFUSED_SECONDS = 10.0
# How long the first answer may take, for which clients wait 30 s [s].
_FIRST_SECONDS = 20.0
# How often uncommitted pushes are looked for [s].
_LOOK_SECONDS = 3_600.0
_PIECE_BYTES = 1 << 20
# For pushes, of which there are no more at a time [count].
_THREADS = 8

Status = tuple[int, str]
"""An answer to a request: its status, and a line of text."""

_UNKNOWN: Status = (401, "this needs a token")
_FORBIDDEN: Status = (403, "this token is not for that")
_UNNAMED: Status = (404, "no push here wants this file")
_FULL: Status = (507, "insufficient storage")
_BUSY = Closing(msg.FAILED, msg.BUSY)

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(slots=True)
class Writing:
    """The additional parts of a server that accepts pushes."""

    workspace: WorkspaceFiles
    problem: Callable[[str], None] = lambda _: None
    refused: Callable[[], None] = lambda: None
    """Is called when a push was refused: what is known here of heads in a store may be the reason."""
    tokens: access_tokens.TokenFile = field(init=False)
    sessions: access_tokens.PushSessions = field(default_factory=access_tokens.PushSessions, init=False)
    threads: ThreadPoolExecutor = field(init=False)
    """For what pushes wait for: a store that is slow must not hold up readers."""
    _looks_at: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.tokens = access_tokens.TokenFile(self.workspace.root)
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="pushes")

    def may_push(self, authorization: str | None, alias: DatasetAlias) -> access_tokens.AccessToken | Status:
        """The token that a request shows, if it is for pushing to this dataset."""
        if (token := access_tokens.holder(authorization, self.tokens.list())) is None:
            return _UNKNOWN
        return token if token.may(access_tokens.Right.PUSH, alias) else _FORBIDDEN

    def still(self, token: access_tokens.AccessToken) -> bool:
        """True if a token has not been revoked."""
        return token in self.tokens.list()

    def pushed_head(self, alias: DatasetAlias) -> Multihash | None:
        """The head of a dataset that is not written here: new words on it may come at any time."""
        here = self.workspace.reopened().present(alias)
        return here.chain.head() if here is not None and not self.workspace.has_key(here.id) else None

    def look_for_left(self) -> None:
        """Remove pushes that were not committed for a day, in the background."""
        if (now := self.sessions.now()) >= self._looks_at:
            self._looks_at = now + _LOOK_SECONDS
            self.threads.submit(self._remove_left, asyncio.get_running_loop())

    def _remove_left(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            remove_left(self.workspace, int((time.time() - access_tokens.LEFT_SECONDS) * 1e9))
        except errors.OdfchainError as error:
            loop.call_soon_threadsafe(self.problem, str(error))

    async def answer_push(
        self, alias: DatasetAlias, base: str, *, own: bool, scope: Message, receive: Receive, send: Send
    ) -> None:
        """Hold the conversation of one push over a WebSocket that has not been accepted yet.

        `base` is the URL of the dataset; `own` says that it is written here, and thus not from elsewhere.
        """
        authorization = fields_of(scope).get("authorization")
        token = self.may_push(authorization, alias)
        if not isinstance(token, access_tokens.AccessToken):
            await refuse_upgrade(send, *token)
            return
        if own:
            await refuse_upgrade(send, 403, "this dataset is written here")
            return
        soon: Callable[..., object] = asyncio.get_running_loop().call_soon_threadsafe
        report = functools.partial(soon, self.problem)
        session: access_tokens.PushSession | None = None
        await send({"type": "websocket.accept"})
        closing: Closing | None = _BUSY
        if self.sessions.attend(token):
            try:
                # a full server refuses at once
                first = await heard(receive, SILENT_SECONDS) if self.sessions.has_room(alias, token) else ""
                if not isinstance(first, str):
                    closing = first
                elif (session := self.sessions.begin(alias, token)) is not None:
                    workspace, shown = self.workspace.reopened(), authorization or ""
                    serving = PushServing(workspace, self.sessions, session, base, shown, report)
                    expect = scope.get("extensions", {}).get(EXPECT, lambda _: None)
                    talk = _Conversation(self, serving, session, receive, send, expect)
                    closing = await talk.hold(first)
            finally:
                self.sessions.leave(token)
                if session is not None:
                    self.sessions.end(session)
        await end(send, closing)

    async def take_file(self, alias: DatasetAlias, key: str, scope: Message, receive: Receive) -> Status:
        """Handle an upload (PUT): it is taken if an open or recent push names the file."""
        fields = fields_of(scope)
        token = self.may_push(fields.get("authorization"), alias)
        if not isinstance(token, access_tokens.AccessToken):
            return token
        length = fields.get("content-length", "")
        if not (length.isascii() and length.isdigit()) or "transfer-encoding" in fields:
            return 411, "the length has to be given"
        if key in (SignedFile.HEAD.value, SignedFile.CHECKPOINT.value, SignedFile.KEYS.value):
            return await _take_signature(self, alias, token, SignedFile(key), int(length), receive)
        name = ObjectKey.parse(key)
        session = self.sessions.find(alias, token)
        size = session.wanted.get(name) if session is not None and name is not None else None
        if session is None or name is None or size is None or session.folder is None:
            return _UNNAMED
        if int(length) != size:
            return 400, f"the object has {size} bytes"
        if name in session.arriving:
            return 409, "it is being uploaded already"
        if not self.sessions.reserve(session, name, size, shutil.disk_usage(session.folder).free):
            return _FULL
        session.arriving.add(name)
        status = _UNNAMED
        try:
            status = await _receive(self, session, name, size, receive)
        finally:
            session.arriving.discard(name)
            if status[0] != 201:
                self.sessions.release(session, name)
        return status


@dataclass(frozen=True, slots=True)
class _Conversation:
    """One push over its WebSocket; `expect` says how large the next message may be."""

    writing: Writing
    serving: PushServing
    session: access_tokens.PushSession
    receive: Receive
    send: Send
    expect: Callable[[int], None]

    async def hold(self, text: str) -> Closing | None:
        """Answer this first message, and all that follow; why the connection ends."""
        session, sessions, serving = self.session, self.writing.sessions, self.serving
        while True:
            # a token may be revoked between two messages
            if not self.writing.still(session.token):
                return REVOKED
            began = sessions.now()
            turn = await self._answered(text)
            session.touched = sessions.now()
            session.until += session.touched - began
            if (refused := isinstance(turn.message, msg.Refusal)) or turn.closing is not None:
                self.writing.refused()
            if refused or serving.is_done:
                sessions.end(session)  # the client may push again at once
            await say(self.send, turn.message)
            if turn.closing is not None:
                return turn.closing
            blocks = serving.phase is msg.Phase.METADATA_REQUEST and not refused
            self.expect(SMART.message_bytes if blocks else SMART.request_bytes)
            found = await self._next(refused=refused)
            if not isinstance(found, str):
                return found
            if refused:
                return Closing(msg.FAILED, "This push was refused.")
            session.touched, text = sessions.now(), found

    async def _next(self, *, refused: bool) -> str | Closing | None:
        session, sessions, uploads = self.session, self.writing.sessions, self.serving.asks_for_progress
        while (left := session.until - sessions.now()) > 0:
            seconds = _REFUSED_SECONDS if refused else _PING_SECONDS if uploads else SILENT_SECONDS
            found = await heard(self.receive, min(seconds, left))
            is_over = not uploads or sessions.now() - session.touched >= SILENT_SECONDS
            if found is not TOO_SILENT or is_over:
                return found
            # a client that uploads is pinged; session.until bounds the push as a whole
            await say(self.send, msg.Empty())
        return Closing(msg.FAILED, "This push took too long.")

    async def _answered(self, text: str) -> Turn:
        begins = self.serving.phase is msg.Phase.INITIAL_REQUEST
        # the first answer is not delayed by a store that does not respond
        seconds = _FIRST_SECONDS if begins and self.writing.workspace.shared.where is not None else None
        answer = asyncio.get_running_loop().run_in_executor(self.writing.threads, self.serving.answer, text)
        try:
            return await asyncio.wait_for(asyncio.shield(answer), seconds)
        except TimeoutError:
            return failed(self.serving.refusal("The store of this node does not answer."))


async def _receive(
    writing: Writing, push: access_tokens.PushSession, name: ObjectKey, size: int, receive: Receive
) -> Status:
    assert push.folder is not None and push.uploads is not None  # noqa: S101, PT018 - objects were named
    target = arriving(push.folder, name)

    def refusal() -> Status | None:
        if not writing.still(push.token):
            return _UNKNOWN
        return None if name in push.wanted else _UNNAMED

    try:
        with Incoming(
            name, size, arriving(push.uploads, name), name=str(name), progress=SILENT, resume=False
        ) as incoming:
            async for pieces in _pieces(receive, refusal):
                writing.sessions.received(push, sum(map(len, pieces)))
                await _whole(_append, incoming, pieces)
            if (refused := refusal()) is not None:
                return refused
            if not incoming.complete():
                raise incoming.refuse("it is shorter than was said")
            # now, while others arrive: the commit waits for the disk otherwise
            await _whole(incoming.sync)
            if (refused := refusal()) is not None:
                return refused
            taken = writing.sessions.take_over(push, name, lambda: incoming.publish(target))
            return (201, "stored") if taken else _UNNAMED
    except errors.StorageFullError:
        return _FULL
    except (errors.CorruptedPeerError, TimeoutError):
        return 400, "the content is not what the name says"
    except errors.OdfchainError:
        if name in push.wanted:
            raise
        return _UNNAMED  # its folder went with the push


async def _whole(work: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    running = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # a cancelled caller waits, because the thread still writes to open files
        await asyncio.wait({running})
        raise


def _append(incoming: Incoming, pieces: list[bytes]) -> None:
    for piece in pieces:
        if incoming.received + len(piece) > incoming.size:
            raise incoming.refuse("it is longer than was said")
        incoming.add(memoryview(piece))


async def _pieces(receive: Receive, refusal: Callable[[], Status | None]) -> AsyncIterator[list[bytes]]:
    held: list[bytes] = []
    size, more = 0, True
    # the body ends early when the client disconnects or its push is refused
    while more and refusal() is None:
        async with asyncio.timeout(SILENT_SECONDS):
            message = await receive()
        more = message["type"] == "http.request" and message.get("more_body", False)
        held.append(message.get("body", b""))
        size += len(held[-1])
        if size >= _PIECE_BYTES or not more:
            yield held
            held, size = [], 0


async def _take_signature(
    writing: Writing,
    alias: DatasetAlias,
    token: access_tokens.AccessToken,
    file: SignedFile,
    length: int,
    receive: Receive,
) -> Status:
    head = writing.sessions.awaits(alias, token) or await asyncio.to_thread(writing.pushed_head, alias)
    if head is None:
        return _UNNAMED
    if length > file.limit:
        return 400, "this is not a signature"

    def refusal() -> Status | None:
        return None if writing.still(token) else _UNKNOWN

    try:
        data = b"".join([each async for pieces in _pieces(receive, refusal) for each in pieces])
    except TimeoutError:
        return 400, "this is not a signature"
    if (refused := refusal()) is not None:
        return refused
    signed = {file.value: data}
    peer = Store(PushedTransport(f"what is pushed to {alias}: ", head, signed=signed))

    def judged() -> bool:
        if file is not SignedFile.HEAD:
            pull_dataset(writing.workspace.reopened(), peer, alias, SyncOptions(onto=head))
            here = writing.workspace.dataset(alias)
            if file is SignedFile.KEYS:
                return {line.text for line in here.keys_history().reached} >= set(data.splitlines())
            note = note_in(here.folder, here.id)
            return note is not None and data.startswith(note.checkpoint.body())
        if (offer := read_offer(peer, NO_POLICY)) is None or not offer.fits:
            return False  # a pull would keep the owner's word on an older block, too
        outcome = pull_dataset(writing.workspace.reopened(), peer, alias, SyncOptions(onto=head))
        return outcome.signature is not None and outcome.signature.status is SignatureStatus.SIGNED

    try:
        valid = await asyncio.to_thread(judged)
    except errors.OdfchainError:
        valid = False
    return (201, "stored") if valid else (400, "this does not sign the head with the dataset's key")
