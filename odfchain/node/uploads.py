"""Rows that clients send: `POST {ds}/ingest`, answered when they are committed.

A body goes to a file, never into memory. Files wait in a queue of their dataset, and what waits there
together is recorded in one run, each file as its own transaction. Runs are made by processes of their own
(`odfchain.node.recorder`); what one that dies was recording may be sent again with its key.
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
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from starlette.responses import Response

from odfchain import errors
from odfchain.limits import SHARING, UPLOADS
from odfchain.node.pages import DATASET
from odfchain.node.parts import NodeParts
from odfchain.node.rest import Operation, Parameter
from odfchain.node.visit import Refused, Visit
from odfchain.odf.times import Timestamp
from odfchain.storage.fsio import private_folder, storage_errors
from odfchain.text import json_object
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
# Processes that record [count], each for another dataset.
_RECORDERS = 2
_ENDING_SECONDS = 30


@dataclass(slots=True, eq=False)
class _Upload:
    """A body that may be taken; what has equal `options` can be recorded together."""

    visit: Visit
    dataset: DatasetFiles
    options: dict[str, Any]
    key: str | None
    path: Path
    head: asyncio.Future[str]
    sha256: str = ""

    def end(self, outcome: dict[str, Any]) -> None:
        if self.head.done():  # the server has stopped waiting for it
            return
        status, node = outcome.get("status"), self.visit.node
        if "head" in outcome:
            self.head.set_result(outcome["head"])
        elif status is None:
            text = "it is not known whether the rows are recorded; send them again, with the same key"
            self.head.set_exception(Refused(503, text, retry_after="1"))
        elif status == HTTPStatus.INTERNAL_SERVER_ERROR:
            self.head.set_exception(errors.EngineError(outcome["message"]))  # for the log
        else:
            hint = node.public(outcome["hint"] or "") or None
            self.head.set_exception(Refused(status, node.public(outcome["message"]), hint=hint))


@dataclass(slots=True)
class _Recorder:
    """A process that records; begun at the first run, and anew after its death."""

    folder: Path
    _process: subprocess.Popen[str] | None = None

    def run(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The outcome of a run; empty where it is not known."""
        words = [sys.executable, "-P", "-m", "odfchain.node.recorder", str(self.folder)]
        found: dict[str, Any] = {}
        with contextlib.suppress(OSError):
            if (process := self._process) is None:
                pipe, none = subprocess.PIPE, subprocess.DEVNULL
                process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=none, text=True)
                self._process = process
            timer = threading.Timer(UPLOADS.run_seconds, process.kill)
            timer.start()
            try:
                print(json.dumps(asked), file=process.stdin, flush=True)
                found = json_object(process.stdout.readline())  # type: ignore[union-attr]
            finally:
                timer.cancel()
        if not found or found.get("dead"):
            self.close()
        return found

    def close(self) -> None:
        """End it."""
        if (process := self._process) is not None:
            self._process = None
            try:
                process.communicate(timeout=_ENDING_SECONDS)
            except (subprocess.TimeoutExpired, OSError):
                process.kill()
                process.wait()


class Uploads:
    """What was sent to a node and is not recorded yet; for one event loop."""

    def __init__(self, node: NodeParts) -> None:
        self._node, self._names, self._receiving = node, itertools.count(), 0
        self._idle = [_Recorder(node.files.root) for _ in range(_RECORDERS)]
        self._waiting: dict[str, list[_Upload]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._opened = contextlib.ExitStack()
        # what a node that was killed has left there is removed
        self._folder = self._opened.enter_context(private_folder(node.files.run_folder))
        for recorder in self._idle:
            self._opened.callback(recorder.close)

    def close(self) -> None:
        """End, after the commits that are going on; what was sent and is not recorded is removed."""
        self._opened.close()

    async def take(self, visit: Visit, source: str | None) -> str:
        """Have the rows of a request recorded, and name the head that has them."""
        path, head = self._folder / str(next(self._names)), asyncio.Future[str]()
        upload = await asyncio.to_thread(_admitted, visit, source, path, head)
        name = str(upload.dataset.id)
        self._check_room(name)
        try:
            self._receiving += 1
            try:
                await _receive(upload)
            finally:
                self._receiving -= 1
            self._check_room(name)
            self._waiting.setdefault(name, []).append(upload)
            self._begin_runs()
            return await head
        finally:
            path.unlink(missing_ok=True)

    def _check_room(self, name: str) -> None:
        if self._node.stopping():
            raise Refused(503, "this node is stopping", retry_after="5")
        if len(self._waiting.get(name, ())) >= UPLOADS.waiting:
            raise Refused(429, f"{UPLOADS.waiting} others wait for this dataset", retry_after="1")
        if sum(map(len, self._waiting.values())) + self._receiving >= UPLOADS.waiting_in_all:
            raise Refused(429, "too much is sent to this node now", retry_after="2")

    def _begin_runs(self) -> None:
        for name in list(self._waiting):
            if self._node.stopping():
                for each in self._waiting.pop(name):
                    each.end({"status": 503, "message": "this node is stopping", "hint": None})
            elif self._idle and name not in self._running:
                queue = self._waiting.pop(name)
                same = itertools.takewhile(lambda each: each.options == queue[0].options, queue)  # noqa: B023
                together = list(same)
                if rest := queue[len(together) :]:
                    self._waiting[name] = rest  # after all others
                run = self._run(self._idle.pop(), name, together)
                self._running[name] = asyncio.create_task(run)

    async def _run(self, recorder: _Recorder, name: str, together: list[_Upload]) -> None:
        runs = [together]
        while runs:
            run = runs.pop(0)
            files, options = [str(each.path) for each in run], run[0].options
            keys = [each.key and (each.key, each.sha256) for each in run]
            asked = {"dataset": name, "files": files, "keys": keys, "options": options}
            outcome = await asyncio.to_thread(recorder.run, asked)
            if "status" in outcome and len(run) > 1:
                runs = [[each] for each in run]  # one of them is wrong, and none is recorded
                continue
            for each in run:
                each.end(outcome)
        self._idle.append(recorder)
        del self._running[name]
        self._begin_runs()


def _admitted(visit: Visit, source: str | None, path: Path, head: asyncio.Future[str]) -> _Upload:
    dataset, fields = visit.files, visit.request.headers
    visit.may(Right.INGEST, dataset)
    if not visit.node.files.has_key(dataset.id):
        raise Refused(403, f"{dataset.alias} is not written here: its key is where it was made")
    kind, _, more = fields.get("content-type", "").lower().partition(";")
    form, length = MEDIA_TYPES.get(kind.strip()), fields.get("content-length", "0")
    plain = fields.get("content-encoding", "identity") == "identity"
    if form is None or not plain or more.strip().replace('"', "") not in ("", "charset=utf-8"):
        hint = f"plain UTF-8 of {', '.join(MEDIA_TYPES)}"
        raise Refused(415, "the body is of no type that is read here", hint=hint)
    if len(length) > 18 or int(length) > UPLOADS.body_bytes:
        raise _too_large()
    key, event_time = fields.get("idempotency-key"), fields.get("odf-event-time")
    if key is not None and not (key.isascii() and key.isprintable() and 0 < len(key) < 256):
        raise Refused(400, "Idempotency-Key: 1 to 255 printable ASCII characters")
    if event_time is not None:
        Timestamp.parse(event_time)
    sources = DatasetState.read(dataset.chain).push_sources
    if source is None and len(sources) > 1:
        text = f"{dataset.alias} has several push sources: {', '.join(sources)}"
        raise Refused(400, text, hint="name one of them: ?sourceName=NAME")
    options = {"source_name": source, "input_format": form, "event_time": event_time}
    return _Upload(visit, dataset, options, key, path, head)


def _too_large() -> Refused:
    text = f"a body has at most {UPLOADS.body_bytes:,} bytes"
    return Refused(413, text, hint="send it in several requests")


async def _receive(upload: _Upload) -> None:
    digest, size, more = hashlib.sha256(), 0, True
    until = time.monotonic() + UPLOADS.silent_seconds
    with storage_errors(upload.path), upload.path.open("xb") as out:
        while more:
            try:
                async with asyncio.timeout(UPLOADS.silent_seconds):
                    message = await upload.visit.request.receive()
            except TimeoutError:
                message = {"type": "silent"}
            if message["type"] == "silent" or time.monotonic() > until + size / SHARING.bytes_per_second:
                raise Refused(408, "the body comes too slowly", connection="close")
            if message["type"] != "http.request":
                raise Refused(400, "the body ended early")
            data, more = message.get("body", b""), message.get("more_body", False)
            size += len(data)
            if size > UPLOADS.body_bytes:
                raise _too_large()
            # a token may be revoked meanwhile
            upload.visit.may(Right.INGEST, upload.dataset)
            digest.update(data)
            await asyncio.to_thread(out.write, data)
    upload.sha256 = digest.hexdigest()


async def _ingest(visit: Visit, values: dict[str, Any]) -> Response:
    if visit.node.uploads is None:
        raise Refused(403, "this node takes no rows", hint="its operator starts it with --write")
    return Response(headers={"odf-head": await visit.node.uploads.take(visit, values["sourceName"])})


INGEST = Operation(
    method="POST", path=f"{DATASET}/ingest", endpoint=_ingest,
    summary="Send rows, and wait until they are committed",
    parameters=(Parameter("sourceName", "the push source, where there are several"),),
    takes=tuple(MEDIA_TYPES), body_bytes=UPLOADS.body_bytes,
    fields=(
        Parameter("Idempotency-Key", "a text of the client's choice, with which it may send the same again"),
        Parameter("odf-event-time", "the event time of rows that have none"),
    ),
    responses={200: "the rows are recorded; `odf-head` is the block that has them"}
    | {n: HTTPStatus(n).phrase for n in (400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 507)},
)  # fmt: skip
