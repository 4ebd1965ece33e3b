"""A witness as a server: `POST /add-checkpoint` of C2SP's tlog-witness, for the datasets that it is for.

An id of a dataset is a public key, so no log has to be made known first. What arrives together is cosigned
together, in one write to the disk. Source: tlog-witness of C2SP; RFC-064.
"""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from odfchain import errors
from odfchain.api.workspace import Workspace
from odfchain.chain.checkpoints import read_note
from odfchain.chain.key_statements import Scope
from odfchain.odf.identity import DatasetId
from odfchain.text import one_line
from odfchain.transfer.node_pulls import Message, Receive, Send
from odfchain.transfer.server import RepositoryServer
from odfchain.transfer.witnesses import ADD, REQUEST_BYTES, NoteMemory, Request, WitnessLog, own_log
from odfchain.workspace.workspace_files import WorkspaceFiles

Answer = tuple[int, bytes]
_BODY_SECONDS = 10


class Witness:
    """An ASGI 3 application that cosigns checkpoints; `admits` says of which datasets.

    Those of a delegate are cosigned where his owner's keys statements were pulled: `memory`.
    """

    def __init__(self, log: WitnessLog, admits: Callable[[DatasetId], bool], memory: NoteMemory) -> None:
        self._log, self._admits, self._memory = log, admits, memory
        self._waiting: list[tuple[Request, asyncio.Future[Answer]]] = []
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise NotImplementedError(f"{scope['type']!r} is not spoken here")
        if scope["path"] != f"/{ADD}":
            answer: Answer = 404, b"only /add-checkpoint is here\n"
        elif scope["method"] != "POST":
            answer = 405, b"checkpoints are sent by POST\n"
        else:
            answer = await self._add(receive)
        kind = b"text/x.tlog.size" if answer[0] == 409 else b"text/plain; charset=utf-8"
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(answer[1]))]
        await send({"type": "http.response.start", "status": answer[0], "headers": headers})
        await send({"type": "http.response.body", "body": answer[1]})

    async def _add(self, receive: Receive) -> Answer:
        body, more = b"", True
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while more and len(body) <= REQUEST_BYTES:
                    message = await receive()
                    body += message.get("body", b"")
                    more = message["type"] == "http.request" and message.get("more_body", False)
            old, proof, text = Request.parse(body)
            origin = DatasetId.parse(text.partition(b"\n")[0].decode("ascii", "replace"))
        except (errors.SignatureError, TimeoutError):
            return 400, b"not a request to cosign\n"
        except errors.InvalidIdError:
            return 404, b"the origin is no dataset's: did:odf:...\n"
        if not self._admits(origin):
            return 404, b"this witness is not for that dataset\n"
        try:
            note = read_note(text, origin, self._memory.keys(origin).signers(Scope.CHECKPOINTS))
        except errors.SignatureError as error:
            known = error.problem in ("other-key", "not-verified", "weak-key")
            return 403 if known else 400, f"{one_line(error.message)}\n".encode()
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((Request(old, proof, note), future))
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._cosign())
        return await future

    async def _cosign(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            try:
                answers = await asyncio.to_thread(self._log.cosign, [asked for asked, _ in waiting])
            except Exception:  # noqa: BLE001 - a full disk, say: whoever asked is told, and asks again
                answers = [(503, b"nothing can be cosigned now\n")] * len(waiting)
            for (_, future), answer in zip(waiting, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def serve_witness(
    workspace: Workspace, patterns: Sequence[str], *, name: str | None = None,
    listening: Callable[[str, str], None], **asked: Any,
) -> None:  # fmt: skip
    """Cosign until SIGTERM or Ctrl-C; `listening` is called with the URL and the key of the witness."""
    files = workspace._files  # noqa: SLF001 - as of a node
    with closing(own_log(files, "witness", name)) as log:
        witness = Witness(log, admitted(files, patterns), NoteMemory(files.root / "seen"))
        RepositoryServer(files, witness, **asked).run(lambda url: listening(url, str(log.key)))


def admitted(workspace: WorkspaceFiles, patterns: Sequence[str]) -> Callable[[DatasetId], bool]:
    """True for a dataset whose id, or whose name here, fits a pattern; `%` is any text."""
    globs = [pattern.lower().replace("%", "*") for pattern in patterns]

    def admits(dataset_id: DatasetId) -> bool:
        here = workspace.present(dataset_id) if any(not g.startswith(("did:", "*")) for g in globs) else None
        names = [str(dataset_id), *([str(here.alias).lower()] if here is not None else [])]
        return any(fnmatch.fnmatchcase(each, glob) for each in names for glob in globs)

    return admits
