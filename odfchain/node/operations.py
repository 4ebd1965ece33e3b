"""What the operator of a node sees: its health, its figures, and a line for each request.

Figures name no dataset unless that is asked for. Those of several processes are added up by the library's
own files. Source: the text format of Prometheus; RFC-061.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from odfchain import errors
from odfchain.node.parts import NodeParts
from odfchain.node.visit import visit_of
from odfchain.odf.names import parse_ref
from odfchain.odf.times import Timestamp
from odfchain.storage.local import HEAD
from odfchain.text import one_line
from odfchain.transfer.node_pulls import Message, Receive, Send

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

SHARED_FIGURES = "PROMETHEUS_MULTIPROC_DIR"
"""The variable that names the folder in which several processes keep their figures."""
_SECONDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0)
_ENDINGS = frozenset({"pull", "push", "query", "verify", "ingest", "tail", "metadata", "changes"})
"""Requests that are counted by what they ask for; all others are of files or of pages."""


def kind_of(path: str, *, of_files: bool) -> str:
    """What a request is counted as."""
    last = path.rsplit("/", 1)[-1]
    if last in _ENDINGS and "/-/" not in path:
        return last
    return "file" if of_files else "page"


class Figures:
    """The counts of a node since its start."""

    def __init__(self, *, by_dataset: bool) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

        disable_created_metrics()  # type: ignore[no-untyped-call] # when a count began says nothing here
        self.by_dataset = by_dataset
        self.registry = CollectorRegistry()
        more = ["dataset"] if by_dataset else []

        def made(kind: Any, name: str, text: str, *labels: str, **how: Any) -> Any:
            return kind(f"odfchain_{name}", text, labels, registry=self.registry, **how)

        self.requests = made(
            Counter, "requests", "Requests that were answered, conversations of the smart protocol included.",
            "kind", "status", *more,
        )  # fmt: skip
        self.sent = made(Counter, "sent_bytes", "Bytes of bodies that were sent.", "kind")
        self.received = made(Counter, "received_bytes", "Bytes of bodies that came.", "kind")
        self.seconds = made(
            Histogram, "request_seconds", "From request to answer [s].", "kind", buckets=_SECONDS
        )
        self.running = made(Gauge, "running_requests", "Requests now.", multiprocess_mode="livesum")
        self.sockets = made(Gauge, "open_sockets", "Connections now.", multiprocess_mode="livesum")

        # looking a child up costs more than counting
        self._children: dict[tuple[str, int, str | None], tuple[Any, ...]] = {}

    def count(
        self, kind: str, status: int, dataset: str | None, *, seconds: float, sent: int, came: int
    ) -> None:
        """Take note of one request that has ended; `dataset` where names are shown."""
        key = (kind, status, dataset)
        if (known := self._children.get(key)) is None:
            more = [dataset or ""] if self.by_dataset else []
            known = self._children[key] = (
                self.requests.labels(kind, status, *more), self.seconds.labels(kind),
                self.sent.labels(kind), self.received.labels(kind),
            )  # fmt: skip
        requests, took, out, into = known
        requests.inc()
        took.observe(seconds)
        if sent:
            out.inc(sent)
        if came:
            into.inc(came)

    def text(self) -> bytes:
        """The figures in Prometheus' text format, of all processes of the node."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry: CollectorRegistry = self.registry
        if SHARED_FIGURES in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


@dataclass(slots=True)
class Traffic:
    """Counts each request, and writes its line where lines are asked for."""

    figures: Figures
    line: Callable[[str], None] | None = None
    sockets: Callable[[], int] = lambda: 0
    """The open connections [count]."""
    _names: Callable[[str], str | None] = field(default=lambda _: None)

    @classmethod
    def of(cls, parts: NodeParts) -> Traffic:
        """That of a node."""
        options = parts.options

        def name(path: str) -> str | None:
            first, _, rest = path[1:].partition("/")
            for text in (f"{first}/{rest.partition('/')[0]}", first):
                try:
                    found = parts.published.dataset(parse_ref(text))
                except errors.OdfchainError:
                    continue
                if found is not None:
                    return str(found.alias)
            return None

        line = (lambda text: print(text, file=sys.stderr, flush=True)) if options.log_json else None  # noqa: T201
        return cls(Figures(by_dataset=bool(options.metrics_by_dataset)), line, _names=name)

    async def watch(self, application: Any, scope: Message, receive: Receive, send: Send) -> None:
        """Have a request answered by an application."""
        began, status, sent, came = time.monotonic(), 0, 0, 0
        kind = kind_of(scope["path"], of_files=scope["state"]["of_files"])

        async def sending(message: Message) -> None:
            nonlocal status, sent
            status = message.get("status", status)
            sent += message.get("count") or len(message.get("body") or message.get("text") or b"")
            await send(message)

        async def receiving() -> Message:
            nonlocal came
            message = await receive()
            came += len(message.get("body") or message.get("text") or b"")
            return message

        figures = self.figures
        figures.running.inc()
        try:
            await application(scope, receiving, sending)
        finally:
            figures.running.dec()
            seconds = time.monotonic() - began
            ended = status or (101 if scope["type"] == "websocket" else 499)
            dataset = self._names(scope["path"]) if figures.by_dataset and ended < 400 else None
            figures.sockets.set(self.sockets())
            figures.count(kind, ended, dataset, seconds=seconds, sent=sent, came=came)
            if self.line is not None:
                self.line(_line(scope, ended, sent, came, seconds))


def _line(scope: Message, status: int, sent: int, came: int, seconds: float) -> str:
    # no query: it may have rows, SQL or a secret; no token either
    about = {
        "time": str(Timestamp.now()), "request": scope["state"]["number"],
        "client": (scope.get("client") or ("",))[0],
        "method": scope.get("method", "WEBSOCKET"), "path": one_line(scope["path"], 500), "status": status,
        "sent": sent, "received": came, "seconds": round(seconds, 4),
    }  # fmt: skip
    return json.dumps(about)


def routes(parts: NodeParts, traffic: Traffic) -> list[BaseRoute]:
    """Health and figures of a node."""

    async def health(_: Request) -> Response:
        try:
            for dataset in parts.published.datasets()[:1]:
                (dataset.folder / "refs" / HEAD).read_bytes()
        except (OSError, errors.OdfchainError) as error:
            parts.problem(f"not healthy: {one_line(str(error))}")
            return JSONResponse({"status": "failing", "message": "datasets cannot be read"}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(request: Request) -> Response:
        # names of datasets are for those alone who may read them
        if (
            traffic.figures.by_dataset
            and (reader := visit_of(parts, request).reader).restricted
            and not reader.token
        ):
            return JSONResponse({"message": "this needs a token"}, 401)
        return Response(traffic.figures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return [Route("/-/health", health), Route("/-/metrics", metrics)]
