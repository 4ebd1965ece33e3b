"""Rows that clients send: `POST {ds}/ingest`, answered when they are committed.

A body goes to a file, never into memory. Files wait in a queue of their dataset, and what waits there
together is recorded in one run, each file as its own transaction. Runs are made by `odfchain.node.recorder`,
a process of its own; if it dies, files of its runs are answered with 503, and may be sent anew with keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.responses import Response

from odfchain import errors
from odfchain.limits import SHARING, UPLOADS
from odfchain.node.pages import DATASET
from odfchain.node.parts import NodeParts
from odfchain.node.recorder import RUNS
from odfchain.node.rest import Operation, Parameter
from odfchain.node.visit import Refused, Visit
from odfchain.odf.times import Timestamp
from odfchain.storage.fsio import private_folder, storage_errors
from odfchain.text import one_line
from odfchain.transfer.access_tokens import Right
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

MEDIA_TYPES = {
    "text/csv": "csv",
    "application/json": "json",
    "application/x-ndjson": "ndjson",
    "application/geo+json": "geojson",
    "application/x-ndgeojson": "ndgeojson",
    "application/vnd.apache.parquet": "parquet",
}
"""The media types of bodies, and the formats that they are."""
_ENDING_SECONDS = 30
_UNKNOWN = "what was sent may be recorded or not; send it again, with the same Idempotency-Key"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request that may be taken; `run` is what has to be equal for a run together."""

    visit: Visit
    dataset: DatasetFiles
    run: dict[str, Any]
    key: str | None


@dataclass(slots=True, eq=False)
class _Sent:
    """A body on the disk that waits for its run."""

    path: Path
    run: dict[str, Any]
    key: tuple[str, str] | None
    answer: asyncio.Future[str]

    def refuse(self, error: Exception) -> None:
        if not self.answer.done():  # the server stops
            self.answer.set_exception(error)


@dataclass(slots=True)
class _Recorder:
    """The process that records; begun at the first run, and anew after its death."""

    folder: Path
    _process: subprocess.Popen[str] | None = None
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _asked: dict[int, tuple[subprocess.Popen[str], asyncio.Future[dict[str, Any]]]] = field(
        default_factory=dict
    )

    async def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The outcome of a run; ends with 503 where there is none."""
        number, process = next(self._numbers), self._process or self._begin()
        _, found = self._asked[number] = process, asyncio.get_running_loop().create_future()
        try:
            with contextlib.suppress(OSError):  # it has ended, which its listener notices
                print(json.dumps(asked | {"run": number}), file=process.stdin, flush=True)
            outcome: dict[str, Any] = await asyncio.wait_for(found, UPLOADS.run_seconds)
        except TimeoutError:
            process.kill()
            raise Refused(503, _UNKNOWN, retry_after="5") from None
        finally:
            del self._asked[number]
        if outcome.get("dead") and self._process is process:
            self._process = None  # the next run gets another one
            process.stdin.close()  # type: ignore[union-attr]
        return outcome

    def _begin(self) -> subprocess.Popen[str]:
        words = [sys.executable, "-P", "-m", "odfchain.node.recorder", str(self.folder)]
        pipe, none = subprocess.PIPE, subprocess.DEVNULL
        process = self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=none, text=True)
        loop = asyncio.get_running_loop()

        def listen() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                for line in process.stdout or ():
                    loop.call_soon_threadsafe(self._answered, json.loads(line))
                process.wait()
                loop.call_soon_threadsafe(self._ended, process)

        threading.Thread(target=listen, name="odfchain-recorder", daemon=True).start()
        return process

    def _answered(self, outcome: dict[str, Any]) -> None:
        if (waiting := self._asked.get(outcome["run"])) is not None and not waiting[1].done():
            waiting[1].set_result(outcome)

    def _ended(self, process: subprocess.Popen[str]) -> None:
        if self._process is process:
            self._process = None
        for asked, found in self._asked.values():
            if asked is process and not found.done():
                found.set_exception(Refused(503, _UNKNOWN, retry_after="1"))

    def close(self) -> None:
        """End it, after the commits that are going on."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            self._process.stdin.close()  # type: ignore[union-attr]
        try:
            self._process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Uploads:
    """What was sent to a node and is not recorded yet; for one event loop."""

    def __init__(self, node: NodeParts) -> None:
        self._node, self._numbers, self._receiving = node, itertools.count(), 0
        self._recorder = _Recorder(node.files.root)
        self._opened = contextlib.ExitStack()
        # what a node that was killed has left there is removed
        self._folder = self._opened.enter_context(private_folder(node.files.run_folder))
        self._waiting: dict[str, deque[_Sent]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def close(self) -> None:
        """End, after the commits that are going on; what was sent and is not recorded is removed."""
        with self._opened:
            self._recorder.close()

    async def take(self, visit: Visit, source: str | None) -> str:
        """Have the rows of a request recorded, and name the head that has them."""
        asked = await asyncio.to_thread(_admitted, visit, source)
        return await self._recorded(asked)

    async def _recorded(self, asked: _Asked) -> str:
        name = str(asked.dataset.id)
        self._check_room(name)
        path = self._folder / str(next(self._numbers))
        self._receiving += 1
        try:
            sha256 = await _received(asked, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        finally:
            self._receiving -= 1
        sent = _Sent(path, asked.run, None if asked.key is None else (asked.key, sha256), asyncio.Future())
        try:
            self._check_room(name)
        except Refused:
            path.unlink()
            raise
        self._waiting.setdefault(name, deque()).append(sent)
        self._begin_runs()
        return await sent.answer

    def _check_room(self, name: str) -> None:
        if self._node.stopping():
            raise Refused(503, "this node is stopping", retry_after="5")
        waiting = sum(map(len, self._waiting.values()))
        if len(self._waiting.get(name, ())) >= UPLOADS.waiting:
            raise Refused(429, f"{UPLOADS.waiting} others wait for this dataset", retry_after="1")
        if waiting + self._receiving >= UPLOADS.waiting_in_all:
            raise Refused(429, "too much is sent to this node now", retry_after="2")

    def _begin_runs(self) -> None:
        if self._node.stopping():
            for sent in itertools.chain(*self._waiting.values()):
                sent.path.unlink(missing_ok=True)
                sent.refuse(Refused(503, "this node is stopping", retry_after="5"))
            self._waiting.clear()
        for name in [name for name in self._waiting if name not in self._running][
            : RUNS - len(self._running)
        ]:
            # its turn comes again after all others
            queue, together = self._waiting.pop(name), list[_Sent]()
            while queue and (not together or queue[0].run == together[0].run):
                together.append(queue.popleft())
            if queue:
                self._waiting[name] = queue
            self._running[name] = asyncio.create_task(self._run(name, together))

    async def _run(self, name: str, together: list[_Sent]) -> None:
        try:
            if await self._record(name, together) or len(together) == 1:
                return
            # one of them is wrong, and none is recorded
            for sent in together:
                await self._record(name, [sent])
        finally:
            del self._running[name]
            for sent in together:
                sent.path.unlink(missing_ok=True)
                sent.refuse(Refused(503, _UNKNOWN, retry_after="1"))
            self._begin_runs()

    async def _record(self, name: str, together: list[_Sent]) -> bool:
        files = [{"path": str(sent.path), "key": sent.key} for sent in together]
        try:
            outcome = await self._recorder.run({**together[0].run, "dataset": name, "files": files})
        except Refused:
            return True  # it is not known which of them are recorded
        if (head := outcome.get("head")) is None and len(together) > 1:
            return False
        for sent in together:
            if head is None:
                sent.refuse(_refused(self._node, outcome))
            elif not sent.answer.done():
                sent.answer.set_result(head)
        return True


def _refused(node: NodeParts, outcome: dict[str, Any]) -> Exception:
    status, message, hint = outcome["status"], outcome["message"], outcome["hint"]
    if status == 500:
        return errors.EngineError(message)  # the client gets a number, the log gets this
    said = hint and node.public(hint).replace("--source", "?sourceName=NAME")
    return Refused(status, node.public(message), hint=said)


def _admitted(visit: Visit, source: str | None) -> _Asked:
    dataset, fields = visit.files, visit.request.headers
    visit.may(Right.INGEST, dataset)
    if not visit.node.files.has_key(dataset.id):
        raise Refused(403, f"{dataset.alias} is not written here: its key is where it was made")
    kind, _, rest = fields.get("content-type", "").partition(";")
    charset = rest.strip().lower().replace('"', "").removeprefix("charset=")
    form = MEDIA_TYPES.get(kind.strip().lower())
    if (
        form is None
        or charset not in ("", "utf-8")
        or fields.get("content-encoding", "identity") != "identity"
    ):
        known = ", ".join(MEDIA_TYPES)
        raise Refused(415, "the body is of no type that is read here", hint=f"plain UTF-8 of {known}")
    length = fields.get("content-length", "0")
    if len(length) > 18 or int(length) > UPLOADS.body_bytes:
        raise _too_large()
    key, time_text = fields.get("idempotency-key"), fields.get("odf-event-time")
    if key is not None and not (
        0 < len(key) <= UPLOADS.key_characters and key.isascii() and key.isprintable()
    ):
        raise Refused(400, f"Idempotency-Key: 1 to {UPLOADS.key_characters} printable ASCII characters")
    if time_text is not None:
        Timestamp.parse(one_line(time_text, 40))
    sources = DatasetState.read(dataset.chain).push_sources
    if source is None and len(sources) > 1:
        raise Refused(
            400,
            f"{dataset.alias} has several push sources: {', '.join(sources)}",
            hint="name one of them: ?sourceName=NAME",
        )
    run = {"source_name": source, "input_format": form, "event_time": time_text}
    return _Asked(visit, dataset, run, key)


def _too_large() -> Refused:
    return Refused(
        413, f"a body has at most {UPLOADS.body_bytes:,} bytes", hint="send it in several requests"
    )


def _too_slow() -> Refused:
    return Refused(408, "the body comes too slowly", connection="close")


async def _received(asked: _Asked, path: Path) -> str:
    """The sha256 of the body, which is in a new file."""
    digest, size, began, more = hashlib.sha256(), 0, time.monotonic(), True
    with storage_errors(path), path.open("xb") as out:
        while more:
            try:
                async with asyncio.timeout(UPLOADS.silent_seconds):
                    message = await asked.visit.request.receive()
            except TimeoutError:
                raise _too_slow() from None
            if message["type"] != "http.request":
                raise Refused(400, "the body ended early")
            data, more = message.get("body", b""), message.get("more_body", False)
            size += len(data)
            if size > UPLOADS.body_bytes:
                raise _too_large()
            if time.monotonic() - began > UPLOADS.silent_seconds + size / SHARING.bytes_per_second:
                raise _too_slow()
            # a token may be revoked meanwhile
            asked.visit.may(Right.INGEST, asked.dataset)
            digest.update(data)
            await asyncio.to_thread(out.write, data)
    return digest.hexdigest()


async def _ingest(visit: Visit, values: dict[str, Any]) -> Response:
    if visit.node.uploads is None:
        raise Refused(403, "this node takes no rows", hint="its operator starts it with --write")
    return Response(headers={"odf-head": await visit.node.uploads.take(visit, values["sourceName"])})


INGEST = Operation(
    method="POST",
    path=f"{DATASET}/ingest",
    summary="Send rows, and wait until they are committed",
    endpoint=_ingest,
    parameters=(Parameter("sourceName", "the push source, where there are several"),),
    takes=tuple(MEDIA_TYPES),
    fields=(
        Parameter("Idempotency-Key", "a text of the client's choice, with which it may send the same again"),
        Parameter("odf-event-time", "the event time of rows that have none"),
    ),
    body_bytes=UPLOADS.body_bytes,
    responses={
        200: "the rows are recorded, and `odf-head` is the block that has them",
        400: "the rows are wrong, or the request is",
        401: "no token, or one that is not in force",
        403: "the token is not for this, or the dataset is not written here",
        404: "no such dataset",
        408: "the body comes too slowly",
        413: "the body is too large",
        415: "the body is of no type that is read here",
        422: "the key was used for something else",
        429: "others wait, try again",
        503: "the node is stopping, or was; send it again with the same key",
        507: "no room on the disk",
    },
)
