"""One request to a node: who asks, what may be seen, and how the answer is written.

What a client may not see is answered like what is not there. Messages of errors lose the workspace's paths,
and what is no fault of the client is one sentence with the request's number, which the log has, too.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import JSONResponse, Response

from odfchain import errors
from odfchain.api.dataset import Dataset
from odfchain.node.clients import Client
from odfchain.node.parts import NodeParts
from odfchain.odf.names import parse_ref
from odfchain.odf.tree import to_tree
from odfchain.storage.locations import HOST_AND_PORT
from odfchain.text import one_line
from odfchain.transfer.access_tokens import Reader, Right
from odfchain.transfer.server_app import UNKNOWN
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.points import OnBranch, parse_point

if TYPE_CHECKING:
    from starlette.requests import Request

    from odfchain.api.view import Readable
    from odfchain.workspace.workspace_files import WorkspaceFiles

T = TypeVar("T")
_STATUS: Mapping[int, tuple[type[errors.OdfchainError], ...]] = {
    404: (errors.DatasetNotFoundError, errors.PointNotFoundError),
    422: (errors.KeyReusedError,),
    500: (errors.FetchError,),
    400: (errors.IngestError, errors.UsageError, errors.InvalidIdError, errors.SchemaError,
          errors.QueryLimitError),
    403: (errors.AccessError,),
    503: (errors.BusyError, errors.RefConflictError),
    507: (errors.StorageFullError,),
}  # fmt: skip
"""The errors that the client can do something about, the special ones first; all others are the node's."""
_NEAR, _RETRY_SECONDS, _WORK_SECONDS = 3, 5, 20.0
_WORKING = futures.ThreadPoolExecutor(2, thread_name_prefix="odfchain-working")


class Refused(Exception):  # noqa: N818 - an answer, not a fault
    """The request is not answered as it is; with a status and a sentence for the client."""

    def __init__(self, status: int, message: str, *, hint: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.hint = status, message, hint
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def not_found(what: str = "there is no such page", *, hint: str | None = None) -> Refused:
    """The refusal of what is not there, or not for this client."""
    return Refused(404, what, hint=hint)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request that may be answered, in a thread of its own."""

    node: NodeParts
    request: Request
    reader: Reader
    root: str
    """The path of the node as the client sees it; ends in a slash."""
    number: str
    """The request's number."""
    client: Client = field(default_factory=Client)
    form: Mapping[str, str] = field(default_factory=dict)
    """What was sent with POST."""

    def asked(self, name: str) -> str | None:
        """The value of a field of the form, or of a query parameter, None where it is absent or empty."""
        return self.form.get(name) or self.request.query_params.get(name) or None

    def count(self, name: str, default: int, most: int) -> int:
        """A number in the query, from 0 to `most`."""
        text = self.asked(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 19 and int(text) <= most):
            raise Refused(400, f"{name}: {one_line(text, 40)!r} is not a number from 0 to {most:,}")
        return int(text)

    @property
    def files(self) -> DatasetFiles:
        """The dataset that the path names, newly opened: what it caches is this request's alone."""
        text = str(self.request.path_params["ds"])
        try:
            ref = parse_ref(text)
        except errors.InvalidIdError:
            raise not_found(f"no dataset is called {one_line(text, 80)!r}") from None
        found = self.node.published.dataset(ref)
        if found is None or not self.reader.sees(found.alias):
            raise not_found(f"no dataset is called {one_line(text, 80)!r}", hint=self._near(text))
        return DatasetFiles.open(found.folder)

    def _near(self, text: str) -> str | None:
        known = [str(e.alias) for e in self.node.published.datasets() if self.reader.sees(e.alias)]
        near = difflib.get_close_matches(text, known, _NEAR)
        return f"near names: {', '.join(near)}" if near else None

    @property
    def dataset(self) -> Dataset:
        """The dataset that the path names."""
        return Dataset(self.node.workspace, self.files)

    def at(self, name: str = "at") -> Readable:
        """The dataset at the point that a query parameter names, at its head where there is none."""
        dataset, text = self.dataset, self.asked(name)
        if text is None:
            return dataset
        try:
            point = parse_point(text)
            if isinstance(point, OnBranch) and not self.node.shows_branch(point.branch):
                raise not_found(f"{dataset.alias} has no branch {one_line(point.branch, 80)!r}")
            return dataset.at(text)
        except errors.OdfchainError as error:
            raise not_found(self.node.public(str(error)), hint=error.hint) from None

    @property
    def to_ask(self) -> WorkspaceFiles:
        """The workspace as far as the client may ask it by SQL: what it may not is not there."""
        reader, files = self.reader, self.node.files
        if not reader.restricted:
            return files
        token = reader.token
        if token is None:
            raise Refused(401, "queries need a token here", www_authenticate="Bearer")
        datasets = self.node.published.datasets()
        only = frozenset(each.folder.name for each in datasets if token.may(Right.QUERY, each.alias))
        if not only:
            raise Refused(403, "the token does not allow queries (query:) of any dataset here")
        return replace(files, only=only)

    def may(self, right: Right, dataset: DatasetFiles) -> None:
        """The client's token has a right for a dataset; errors are those of HTTP: 401 and 403."""
        # looked up anew: it may have been revoked since the request began
        token = self.node.reader.shown(self.request.headers.get("authorization"))
        if token is None:
            hint = "the operator makes one: odfchain token create"
            raise Refused(401, "this needs a token", hint=hint, www_authenticate="Bearer")
        if not token.may(right, dataset.alias):
            raise Refused(403, f"the token does not allow {right.value}:{dataset.alias}")


# --- answers -------------------------------------------------------------------------------------------


def document(value: Any, status: int = 200) -> Response:
    """A value, or the tree of a dataclass, as JSON."""
    text = json.dumps(to_tree(value), ensure_ascii=False, allow_nan=False, default=str)
    return Response(text, status, media_type="application/json")


def status_of(error: errors.OdfchainError) -> int:
    """The status of the answer; 500 for what is the node's own fault."""
    return next((status for status, kinds in _STATUS.items() if isinstance(error, kinds)), 500)


def refusal(error: Exception, node: NodeParts, number: str) -> Refused:
    """An error as the client gets it; what is the node's own fault is noted with the request's number."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, errors.OdfchainError) and (status := status_of(error)) != 500:
        busy = {"retry_after": str(_RETRY_SECONDS)} if status == HTTPStatus.SERVICE_UNAVAILABLE else {}
        hint = error.hint and node.public(error.hint)
        return Refused(status, node.public(str(error)), hint=hint, **busy)
    node.problem(f"request {number}: {type(error).__name__}: {one_line(str(error))}")
    return Refused(500, f"this cannot be answered now; the node's log has more under request {number}")


def refused_document(found: Refused) -> Response:
    """The refusal for programs."""
    hint = {"hint": found.hint} if found.hint else {}
    return JSONResponse({"message": found.message} | hint, found.status, found.headers)


def visit_of(node: NodeParts, request: Request, *, heavy: bool = False) -> Visit:
    """The request, where it may be answered.

    `heavy` is work that other sites must not have a browser ask for; a form is always of this node.
    """
    origin, root = origin_of(request, behind_proxy=bool(node.options.behind_proxy))
    request.state.root = root
    fields, form = request.headers, request.method == "POST"
    if (heavy or form) and is_foreign(request):
        raise Refused(403, "another site has asked for this; open the address by itself")
    # a browser that tells nobody where it was says `null` here, but whether that is the same site beside it
    sent = fields.get("origin", origin).lower()
    if form and sent != origin and not (sent == "null" and fields.get("sec-fetch-site") == "same-origin"):
        raise Refused(403, "another site has sent this form; use the form of this node")
    reader = node.reader.showing(fields.get("authorization"))
    if reader is None:
        raise Refused(401, UNKNOWN, www_authenticate="Bearer")
    return Visit(node, request, reader, root, request.state.number)


def in_time(visit: Visit, work: Callable[[], T], command: str) -> T:
    """What work makes that few at a time may do, for a while; `command` does the same without limits."""
    asked = _WORKING.submit(work)
    try:
        return asked.result(_WORK_SECONDS)
    except futures.TimeoutError:
        asked.cancel()
        text = f"this takes longer than {_WORK_SECONDS:.0f} s; the command line has no limit"
        raise Refused(503, text, hint=command) from None
    except errors.OdfchainError as error:
        raise Refused(409, visit.node.public(str(error)), hint=command) from None


def is_foreign(request: Request) -> bool:
    """True if a browser was sent by another site."""
    return request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin")


async def attended(
    visit: Visit, work: Callable[[], T], *, heavy: bool = False, threads: futures.Executor | None = None
) -> T:
    """What a thread makes for a client, who is watched meanwhile: what it does not wait for ends.

    What is `heavy` may wait long for its turn, and keeps no other page waiting.
    """

    async def watch() -> None:
        while (await visit.request.receive())["type"] != "http.disconnect":
            pass
        visit.client.leave()

    if heavy and visit.node.queries is not None:
        threads = visit.node.queries.threads
    watching = asyncio.create_task(watch())
    try:
        return await asyncio.get_running_loop().run_in_executor(threads, work)
    finally:
        watching.cancel()


async def body_of(request: Request, most: int) -> bytes:
    """The body, which is not read further than it may be long."""
    length, parts, size = request.headers.get("content-length", "0"), list[bytes](), 0
    too_large = Refused(413, f"the body has more than {most:,} bytes, which is what is read of one")
    if not length.isdecimal() or len(length) > 18 or int(length) > most:
        raise too_large
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise too_large
        parts.append(part)
    return b"".join(parts)


async def form_of(request: Request, most: int) -> dict[str, str]:
    """The fields of a form; a file is a text, too."""
    from starlette.formparsers import MultiPartException

    request._body = await body_of(request, most)  # noqa: SLF001 - as `request.body()` leaves it
    try:
        form = await request.form(max_files=2, max_fields=20, max_part_size=most)
    except MultiPartException as error:
        raise Refused(400, one_line(error.message)) from None
    found: dict[str, str] = {}
    for name, value in form.multi_items():
        found[name] = value if isinstance(value, str) else (await value.read()).decode("utf-8", "replace")
    await form.close()
    return found


def origin_of(request: Request, *, behind_proxy: bool) -> tuple[str, str]:
    """The origin of the node and the path of its root, as the client sees them."""
    fields, url = request.headers, request.url
    scheme, host, prefix = url.scheme, fields.get("host", ""), ""
    # a client could send these headers itself: believed only behind a proxy
    if behind_proxy:
        scheme = "https" if fields.get("x-forwarded-proto", scheme).lower() == "https" else "http"
        host = fields.get("x-forwarded-host", host)
        prefix = fields.get("x-forwarded-prefix", "").strip("/")
    if not HOST_AND_PORT.fullmatch(host) or not all(c.isalnum() or c in "-._~/" for c in prefix):
        raise Refused(HTTPStatus.BAD_REQUEST, "the proxy in front names this node by no usable address")
    return f"{scheme}://{host.lower()}", f"/{prefix}/" if prefix else "/"
