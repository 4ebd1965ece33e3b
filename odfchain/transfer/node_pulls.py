"""Pulls over the smart transfer protocol: `/{alias}/pull`, a WebSocket in the same application.

What is handed out is what the simple protocol hands out, blocks in one piece; the objects are where that
protocol has them. Source: RFC-050.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from odfchain.chain.chain import MetadataChain
from odfchain.errors import ChainError, ObjectNotFoundError, OdfchainError, UsageError
from odfchain.limits import SHARING, SMART
from odfchain.odf.block_codec import decode_block
from odfchain.odf.identity import Multihash
from odfchain.text import one_line
from odfchain.transfer.block_batch import RawBlock, packed
from odfchain.transfer.message_text import fits_message
from odfchain.transfer.node_peer import address_here, key_of
from odfchain.transfer.public_layout import ObjectKey, ObjectKind, host_of, is_this_machine
from odfchain.transfer.publishing import Reader
from odfchain.transfer.slice_files import BRING_OBJECTS, objects_of
from odfchain.transfer.smart_flows import FAILED, Closing, FlowError, PullServing
from odfchain.transfer.smart_messages import (
    TOO_MANY_BLOCKS,
    VERSION,
    BlocksBatch,
    Internal,
    InvalidInterval,
    ObjectFile,
    Phase,
    PullMethod,
    PullPlan,
    PullRequest,
    PullStrategies,
    PullStrategy,
    Refusal,
    TransferPlan,
)
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.workspace_files import WorkspaceFiles

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_HOST_SMART_PULLS = re.compile(r"[A-Za-z0-9.-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?", re.ASCII)
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*", re.ASCII)
# The blocks of one batch, which lies in memory several times [bytes]; longer chains are walked.
_BLOCK_BYTES = 64 << 20
# A client that says nothing for so long has gone [s]; those that download answer pings meanwhile.
_SILENT_SECONDS = 60.0
REVOKED = Closing(FAILED, "The token was revoked.")

EXPECT = "odfchain.expect"
"""The extension of a WebSocket that says how large the next message may be [bytes]."""


@dataclass(slots=True)
class DatasetSource:
    """The dataset of one pull: a `PullSource`. Its chain is asked under a lock that others wait for."""

    dataset: DatasetFiles
    lock: threading.Lock
    base: str
    """The URL of the dataset."""
    authorization: str | None
    """The caller's header `Authorization`; his requests for objects need the same."""
    # The head of the plan, and where it begins. Its blocks are read again: who has asked may never come.
    _planned: tuple[Multihash, Multihash | None] | None = field(default=None, init=False)

    def plan(self, request: PullRequest) -> PullPlan | Refusal:
        """As `PullSource`."""
        with self.lock:
            chain = self.dataset.chain
            head = request.stop_at or chain.head()
            if head is None:
                return _too_much("The dataset is empty.")
            try:
                return self._plan(chain, head, request)
            except (ChainError, ObjectNotFoundError):
                tail = request.begin_after
                if tail is None:
                    raise
                return Refusal(InvalidInterval(head=head, tail=tail))

    def _plan(self, chain: MetadataChain, head: Multihash, request: PullRequest) -> PullPlan | Refusal:
        blocks = objects = records = block_bytes = object_bytes = 0
        tail = request.begin_after
        if tail is not None and request.force_update_if_diverged and not chain.contains(tail):
            tail = None
        for _, header, data in chain.walk_files(head, tail=tail):
            blocks += 1
            block_bytes += len(data)
            if blocks > SMART.blocks or block_bytes > _BLOCK_BYTES:
                return _too_much(TOO_MANY_BLOCKS)
            for item in objects_of(decode_block(data)) if header.event_kind in BRING_OBJECTS else ():
                objects += 1
                object_bytes += item.size
                if item.offsets is not None:
                    records += item.offsets.end - item.offsets.start + 1
        self._planned = head, tail
        plan = TransferPlan(
            num_blocks=blocks,
            num_objects=objects,
            num_records=records,
            bytes_in_raw_blocks=block_bytes,
            bytes_in_raw_objects=object_bytes,
        )
        return PullPlan(transfer_plan=plan)

    def blocks(self) -> BlocksBatch:
        """As `PullSource`."""
        with self.lock:
            assert self._planned is not None  # noqa: S101 - a plan comes first
            head, tail = self._planned
            files = [RawBlock(name, data) for name, _, data in self.dataset.chain.walk_files(head, tail=tail)]
            batch = packed(files.pop() for _ in range(len(files)))  # oldest first, and let go
        if not fits_message(batch, SMART.message_bytes):
            raise FlowError(_too_much(TOO_MANY_BLOCKS, Phase.METADATA_REQUEST))
        return batch

    def strategies(self, files: tuple[ObjectFile, ...]) -> PullStrategies:
        """As `PullSource`."""
        return PullStrategies(
            object_transfer_strategies=tuple(
                PullStrategy(
                    object_file=file,
                    pull_strategy=PullMethod.HTTP_DOWNLOAD,
                    download_from=address_here(self.base, key_of(file), self.authorization),
                )
                for file in files
            )
        )


def _too_much(message: str, phase: Phase = Phase.INITIAL_REQUEST) -> Refusal:
    return Refusal(Internal(side="Pull", phase=phase, error_message=message))


def fields_of(scope: Message) -> dict[str, str]:
    """The header fields of a request, by their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def is_this_version(fields: Mapping[str, str]) -> bool:
    """True if a client speaks this version of the protocol."""
    return fields.get(VERSION[0]) == VERSION[1]


def base_of(scope: Message, fields: Mapping[str, str], last: str, *, behind_proxy: bool) -> str | None:
    """The URL of the dataset whose path goes on with `last`, as the client sees it; None if unknown."""
    host, prefix = fields.get("host", ""), ""
    scheme = "https" if scope["scheme"] == "wss" else "http"
    # a client could send these headers itself: believed only behind a proxy
    if behind_proxy:
        scheme = "https" if fields.get("x-forwarded-proto", scheme).lower() == "https" else "http"
        host = fields.get("x-forwarded-host", host)
        prefix = fields.get("x-forwarded-prefix", "").rstrip("/")
    if not _HOST_SMART_PULLS.fullmatch(host) or not _PREFIX.fullmatch(prefix):
        return None
    path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").removesuffix(last)
    return f"{scheme}://{host}{prefix}{path}"


async def answer_pull(
    found: tuple[DatasetFiles, Reader] | None,
    lock: threading.Lock,
    scope: Message,
    receive: Receive,
    send: Send,
    *,
    behind_proxy: bool = False,
) -> None:
    """Hold the conversation of one pull over a WebSocket that has not been accepted yet.

    `found` is the dataset, and who may read it.
    """
    fields = fields_of(scope)
    if not is_this_version(fields):
        await refuse_upgrade(send, 400, "Incompatible client version")
        return
    base = base_of(scope, fields, "pull", behind_proxy=behind_proxy)
    if found is None or base is None:
        await refuse_upgrade(send, 404, "Dataset not found")
        return
    dataset, reader = found
    source = DatasetSource(dataset, lock, base, fields.get("authorization"))
    await send({"type": "websocket.accept"})
    await _converse(PullServing(source), reader, receive, send)


async def _converse(serving: PullServing, reader: Reader, receive: Receive, send: Send) -> None:
    while True:
        try:
            async with asyncio.timeout(_SILENT_SECONDS):
                message = await receive()
        except TimeoutError:
            await send(
                {"type": "websocket.close", "code": FAILED, "reason": "Nothing was said for too long."}
            )
            return
        if message["type"] == "websocket.disconnect":
            return
        if message["type"] != "websocket.receive":
            continue
        text = message.get("text")
        if text is None:
            closing: Closing | None = Closing(FAILED, "Messages are text.")
        elif not reader.is_current():
            closing = REVOKED
        else:
            closing, said = await asyncio.to_thread(_said, serving, text)
            if said is not None:
                await send({"type": "websocket.send", "text": said})
        if closing is not None:
            await send({"type": "websocket.close", "code": closing.code, "reason": closing.reason})
            return


def _said(serving: PullServing, text: str) -> tuple[Closing | None, str | None]:
    turn = serving.answer(text)
    return turn.closing, turn.text


async def refuse_upgrade(send: Send, status: int, message: str) -> None:
    """Answer with a status in place of a connection."""
    body = json.dumps({"message": message}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


# Serving datasets of a store: heads are fetched now and then, slices when they are read.
# If the store cannot be reached, the local state is served and the problem reported. A request for an
# unknown slice costs one request to the store, and few run at once.

# How old what is known of heads may be [s].
_SECONDS = 5.0
# How long a reader waits for a store that does not answer before he sees what is here [s].
_PATIENCE = 5.0


class SharedCopy:
    """The copy of one workspace; for one event loop."""

    def __init__(
        self, workspace: WorkspaceFiles, problem: Callable[[str], None], *, branches: bool = False
    ) -> None:
        self._workspace = workspace
        self._problem = problem
        self._branches = branches
        self._asked: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._began = 0.0
        self._bringing = asyncio.Semaphore(SHARING.parallel)

    async def renew(self) -> None:
        """The datasets are here as they were in the store a few seconds ago, their blocks checked."""
        now = time.monotonic()
        if self._asking is None:
            if self._asked is not None and now - self._asked < _SECONDS:
                return
            self._began = now
            self._asking = asyncio.create_task(self._ask())
        await asyncio.wait({self._asking}, timeout=max(0.0, self._began + _PATIENCE - now))

    def expire(self) -> None:
        """Drop cached heads, which may be older than a notification: the store is asked again."""
        self._asked = None

    async def _ask(self) -> None:
        self._asked = self._began
        try:
            await asyncio.to_thread(self._open)
        except OdfchainError as error:
            self._problem(str(error))
        finally:
            self._asking = None
            if self._asked is not None:
                self._asked = time.monotonic()

    def _open(self) -> None:
        self._workspace.shared.renew()
        for dataset in self._workspace.datasets():
            if self._branches:
                dataset.shared.branches(dataset.folder)

    async def bring(self, dataset: DatasetFiles, key: ObjectKey) -> None:
        """A slice or checkpoint is here, if the store has it."""
        folder = dataset.folder / key.kind.value
        if key.kind not in (ObjectKind.DATA, ObjectKind.CHECKPOINT) or (folder / str(key.name)).exists():
            return
        async with self._bringing:
            await asyncio.to_thread(self._workspace.shared.objects(folder).contains, key.name)


# Names under which a server answers: those of its address, of this machine, and configured ones.
# Against DNS rebinding: a foreign page can resolve its own name to this machine, but the browser still
# sends that name. Source: RFC 9110, 7.2 and 15.5.20; RFC-021.

Application = Callable[[Message, Receive, Send], Awaitable[None]]

_HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?", re.ASCII)
_MISDIRECTED = "this server has another name: --allow-host, where it is started, gives it one more"


def admitted_hosts(listening: str, named: Iterable[str]) -> frozenset[str]:
    """All spellings of the names of a server that listens there, and of these names.

    Raises:
        UsageError: one of them is not the name of a host.
    """
    found = {host_of(listening)}
    for name in named:
        bare = name.removeprefix("[").removesuffix("]")
        if not _HOST.fullmatch(f"[{bare}]" if ":" in bare else host_of(bare)):
            raise UsageError(
                f"{one_line(name)!r} is not the name of a host", hint="write it like node.example, no port"
            )
        found.add(host_of(bare))
    return frozenset(found)


def is_admitted(scope: Message, hosts: frozenset[str]) -> bool:
    """True if a request names this server, whatever its port; HTTP/1.0 may name none."""
    asked = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    if not asked:
        return bool(scope["http_version"] == "1.0")
    match = _HOST.fullmatch(asked[0])
    if match is None or len(asked) > 1:
        return False
    host = host_of(match[1].strip("[]"))
    here = (scope.get("server") or ("",))[0]
    return host in hosts or host == host_of(here) or is_this_machine(host)


def for_hosts(application: Application, hosts: frozenset[str]) -> Application:
    """The application, for requests that name one of these hosts; all others are answered with 421."""

    async def judged(scope: Message, receive: Receive, send: Send) -> None:
        if is_admitted(scope, hosts):
            await application(scope, receive, send)
        elif scope["type"] == "websocket":
            await refuse_upgrade(send, 421, _MISDIRECTED)
        else:
            body = f"{_MISDIRECTED}\n".encode()
            headers: Any = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": 421, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    return judged
