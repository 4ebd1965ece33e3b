"""A workspace as an ASGI application: its files as ever, and pages, queries and uploads beside them.

Requests for files and the smart protocol go to `odfchain.transfer.server_app` at once, which costs a look at
the path. Everything else is routed by Starlette. Each answer but a file's has the same security headers.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Self

from starlette.convertors import StringConvertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Router

from odfchain.api.workspace import Workspace
from odfchain.limits import HOST, PORT
from odfchain.node import operations
from odfchain.node.operations import Traffic
from odfchain.node.pages import error_page, missing, routes
from odfchain.node.parts import NodeParts
from odfchain.node.processes import reading_processes, serve_reader
from odfchain.node.schedule import FAILED, Planned, Schedule
from odfchain.node.site import PAGES, own_routes
from odfchain.node.uploads import Uploads
from odfchain.node.visit import Refused
from odfchain.transfer.node_pulls import Message, Receive, Send, refuse_upgrade
from odfchain.transfer.server import RepositoryServer
from odfchain.transfer.server_app import Repository
from odfchain.workspace.options import NodeOptions, ServeOptions

_FILES = {"refs", "blocks", "data", "checkpoints", "hints", "attestations", "manifests", "profiles"}
"""The folders of a dataset that are published; what follows is a file's name."""
_OWN_PATHS = {"info", "accounts/me", "datasets.json", "platform/login", "platform/token/validate"}
_SECURITY = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
# Escapes that hide where a name ends.
_HIDDEN = (b"%2f", b"%2e", b"%5c", b"%00")


class DatasetConvertor(StringConvertor):
    """An alias, with or without an account, or an id, as a part of a path."""

    regex = "(?!-/)[^/]+(?:/(?!-/)[^/]+)?"


register_url_convertor("dataset", DatasetConvertor())


class Node:
    """A running node: an ASGI 3 application for one event loop."""

    def __init__(self, parts: NodeParts) -> None:
        self.parts = parts
        self._running = contextlib.ExitStack()
        self._running.callback(parts.close)
        if parts.options.write:
            parts.uploads = Uploads(parts)
            self._running.callback(parts.uploads.close)
        self._repository = Repository(parts.files, parts.options)
        self._secret = parts.options.secret
        self._session = secrets.token_urlsafe(24)
        self.traffic = Traffic.of(parts)
        shown = routes(parts, PAGES) if parts.options.pages else []
        own = [*operations.routes(parts, self.traffic), *own_routes(parts)]
        self._router = Router([*own, *shown], default=missing(parts), redirect_slashes=False)

    def __enter__(self) -> Self:
        """Start what answers beside requests."""
        options, parts = self.parts.options, self.parts
        parts.start()
        if options.pull:
            self._running.enter_context(_pulling(parts))
        if options.flight is not None:
            from odfchain.node.flight import FlightServer

            slots = parts.queries.slots if parts.queries is not None else None
            server = FlightServer(parts, options.host or HOST, options.flight, slots=slots)
            parts.flight = self._running.enter_context(server).address
            parts.problem(f"Flight SQL is at {parts.flight}")
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request, or hold one conversation of the smart protocol."""
        if scope["type"] not in ("http", "websocket"):
            raise NotImplementedError(f"{scope['type']!r} is not spoken here")
        number, of_files = secrets.token_hex(6), scope["type"] == "websocket" or _is_of_files(scope)
        inner = {**scope, "state": {**(scope.get("state") or {}), "number": number, "of_files": of_files}}
        answer = self._repository if of_files else self._others
        if self._secret is not None and not self._is_known(scope):
            answer = self._welcome
        await self.traffic.watch(answer, inner, receive, send)

    async def _others(self, scope: Message, receive: Receive, send: Send) -> None:
        if any(hidden in (scope.get("raw_path") or b"").lower() for hidden in _HIDDEN):
            scope = {**scope, "path": "/-/"}
        await self._router(scope, receive, _guarded(send, scope["state"]["number"]))

    # --- a node of one user: `odfchain ui` --------------------------------------------------------

    def _is_known(self, scope: Message) -> bool:
        shown = Request(scope).cookies.get(_cookie(scope), "")
        return secrets.compare_digest(shown.encode(), self._session.encode())

    async def _welcome(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await refuse_upgrade(send, 403, "these pages are of the user who started them")
            return
        request = Request(scope, receive)
        shown, send = request.query_params.get("secret", ""), _guarded(send, "")
        if self._secret and secrets.compare_digest(shown.encode(), self._secret.encode()):
            self._secret = ""  # it opens the door once; the browser has a cookie from now on
            answer = RedirectResponse(str(request.url.path), 303)
            answer.set_cookie(_cookie(scope), self._session, httponly=True, samesite="strict", path="/")
            await answer(scope, receive, send)
            return
        refused = Refused(403, "these pages are of the user who started them", hint="run `odfchain ui` again")
        request.state.root = "/"
        await error_page(self.parts, request, refused)(scope, receive, send)


@contextlib.contextmanager
def _pulling(parts: NodeParts) -> Iterator[None]:
    """Datasets are pulled by their schedules meanwhile; the present commits end at the end."""

    def ended(planned: Planned) -> None:
        if planned.last is not None and planned.last.outcome == FAILED:
            parts.problem(f"pull of {planned.dataset} failed: {planned.last.message}")

    schedule, stop = Schedule(parts.files.root.parent, said=parts.problem, ended=ended), threading.Event()
    thread = threading.Thread(target=schedule.run_until, args=(stop,), name="odfchain-schedule")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _cookie(scope: Message) -> str:
    return f"odfchain-{(scope.get('server') or ('', 0))[1]}"


def application(workspace: Workspace, **asked: Any) -> Node:
    """A workspace as an ASGI 3 application for anybody's server; keywords are the fields of `NodeOptions`.

    As a context manager it starts what answers beside requests, and ends it.
    """
    return Node(NodeParts(workspace, NodeOptions(**asked)))


def serve(workspace: Workspace, **asked: Any) -> None:
    """Serve a workspace as a node until SIGTERM or Ctrl-C; keywords are the fields of `NodeOptions`."""
    options = NodeOptions(**asked)
    served = {each.name: getattr(options, each.name) for each in fields(ServeOptions)}
    served["port"] = PORT if options.port is None else options.port
    with reading_processes(workspace, options) as sockets, Node(NodeParts(workspace, options)) as node:
        server = RepositoryServer(node.parts.files, node, sockets=sockets, **served)
        node.parts.stopping = lambda: server.stopping
        node.traffic.sockets = lambda: server.connections
        if node.parts.queries is not None and options.secret is None:
            node.parts.queries.load()  # a browser of one user begins with another page
        server.run(options.listening)


def read() -> None:
    """The program of a process that reads: `odfchain.node.processes` starts it."""
    serve_reader(lambda path, options: Node(NodeParts(Workspace.open(path), options)))


def _is_of_files(scope: Message) -> bool:
    # the look at the path that every slice pays for
    path: str = scope["path"][1:]
    if path in _OWN_PATHS or scope["method"] == "PUT":
        return True
    parts = path.split("/")
    if not parts[-1] or "-" in parts:
        return False
    if parts[-1] in ("pull", "push"):
        return len(parts) in (2, 3)
    return len(parts) > 2 and (parts[1] in _FILES or parts[2] in _FILES)


def _guarded(send: Send, number: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {"headers": (), **message}
            headers = MutableHeaders(scope=message)
            for name, value in _SECURITY.items():
                headers.setdefault(name, value)
            if number:
                headers["odf-request"] = number
        await send(message)

    return sending
