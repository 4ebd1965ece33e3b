"""The pages of a node: an address, the facts that it shows, and how they are written.

Each page is also a document: `{address}.json` has the same facts, and `formats` names more. What costs an
engine or much time is `heavy`: other sites cannot have it asked by a browser.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from odfchain.errors import OdfchainError
from odfchain.node.parts import NodeParts
from odfchain.node.visit import (
    Refused,
    Visit,
    attended,
    document,
    form_of,
    not_found,
    refusal,
    refused_document,
    visit_of,
)
from odfchain.profiles.pages import site_page

Writer = Callable[[Visit, Any], Response]
DATASET = "/{ds:dataset}"
# A smaller answer is one packet anyway.
_PACKED_BYTES = 1_400


@dataclass(frozen=True, slots=True)
class Page:
    """One page: `view` gets the facts, in a thread; they are a frozen dataclass, or a whole response."""

    path: str
    """Below the root; a dataset's begin with `DATASET`."""
    template: str
    """A file of `node/templates`, without `.html.j2`."""
    view: Callable[[Visit], Any]
    formats: Mapping[str, Writer] = field(default_factory=dict)
    """More forms than JSON, by the ending of the address."""
    heavy: bool = False
    heavy_with: tuple[str, str] | None = None
    """A parameter and its value with which the page is heavy."""
    needs_sql: bool = False
    methods: tuple[str, ...] = ("GET", "HEAD")
    made_by: Callable[[Visit, Any], str] | None = None
    """Makes a page that is one of `-o html`, too; None: the template does."""
    form_bytes: int = 256 << 10
    """What is read of a form."""

    def address(self, ending: str | None) -> str:
        """The address of a form, None for the page itself: `index` where the page's own ends in a slash."""
        if ending is None:
            return self.path
        return f"{self.path}-/index.{ending}" if self.path.endswith("/") else f"{self.path}.{ending}"


def routes(node: NodeParts, pages: Iterable[Page]) -> list[BaseRoute]:
    """The routes of these pages and of their other forms."""
    found, pages = list[BaseRoute](), [p for p in pages if node.queries is not None or not p.needs_sql]
    overview = next((page for page in pages if page.path == f"{DATASET}/"), None)
    for page in pages:
        instead = overview if page.path.startswith(DATASET) else None
        # the page itself last: a name at the end of its path would take the endings for its own
        for form in ("json", *page.formats, None):
            answering = answer(node, page, form, instead)
            found.append(Route(page.address(form), answering, methods=list(page.methods)))
    return [*found, Route(DATASET, answer(node, Page(DATASET, "", _with_slash)))]


def answer(node: NodeParts, page: Page, ending: str | None = None, overview: Page | None = None) -> Any:
    """What answers a request for one form of a page: None is the page itself.

    Where the chain of its dataset cannot be read, the overview is shown, which says so.
    """

    async def answering(request: Request) -> Response:
        try:
            heavy = page.heavy or page.heavy_with in request.query_params.multi_items()
            visit = visit_of(node, request, heavy=heavy)
            if request.method == "POST":
                visit = replace(visit, form=await form_of(request, page.form_bytes))
            waits = heavy or page.needs_sql or request.method == "POST"
            work = partial(_written, visit, page, ending, overview)
            return await attended(
                visit, lambda: _packed(request, _unless_known(request, work())), heavy=waits
            )
        except Exception as error:  # noqa: BLE001 - every end is an answer
            found = refusal(error, node, request.state.number)
            return refused_document(found) if ending is not None else error_page(node, request, found)

    return answering


def _unless_known(request: Request, answer: Response) -> Response:
    """The answer with its entity tag; 304 where the client has it already."""
    if answer.status_code != 200 or isinstance(answer, StreamingResponse):
        return answer
    tag = f'"{hashlib.sha256(answer.body).hexdigest()[:32]}"'
    known = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
    if known & {tag, "*"}:
        return Response(status_code=304, headers={"etag": tag})
    answer.headers["etag"] = tag
    return answer


def _packed(request: Request, answer: Response) -> Response:
    """The answer as gzip, where the client takes that and it is worth it."""
    texts = ("text/", "application/json")
    if isinstance(answer, StreamingResponse) or not answer.headers.get("content-type", "").startswith(texts):
        return answer
    answer.headers["vary"] = "accept-encoding"
    takes = {each.strip() for each in request.headers.get("accept-encoding", "").split(",")}
    if "gzip" in takes and len(answer.body) > _PACKED_BYTES:
        answer.body = gzip.compress(bytes(answer.body), 4, mtime=0)
        answer.headers.update({"content-encoding": "gzip", "content-length": str(len(answer.body))})
        if "etag" in answer.headers:
            answer.headers["etag"] = f"W/{answer.headers['etag']}"
    return answer


def _damaged(visit: Visit, overview: Page | None) -> Response | None:
    """What a page of a dataset shows in its place when the chain cannot be read."""
    if overview is None:
        return None
    view = overview.view(visit)
    if view.dataset.head is not None:
        return None
    return html(visit.node, visit.root, overview.template, view=view, path=visit.request.url.path)


def _written(visit: Visit, page: Page, ending: str | None, overview: Page | None) -> Response:
    try:
        view = page.view(visit)
    except OdfchainError:
        if ending is not None or (shown := _damaged(visit, overview)) is None:
            raise
        return shown
    if isinstance(view, Response):
        return view
    status = getattr(view, "status", 200)
    if ending == "json":
        return document(view, status)
    if ending is not None:
        return page.formats[ending](visit, view)
    if page.made_by is not None:
        return HTMLResponse(page.made_by(visit, view))
    return html(visit.node, visit.root, page.template, status=status, view=view, path=visit.request.url.path)


def html(node: NodeParts, root: str, template: str, *, status: int = 200, **values: Any) -> Response:
    """A page of the node."""
    return HTMLResponse(site_page(template, root=root, site=node.about, **values), status)


def error_page(node: NodeParts, request: Request, found: Refused) -> Response:
    """The refusal for people."""
    root = getattr(request.state, "root", "/")
    made = html(node, root, "error", status=found.status, view=found, path=request.url.path)
    made.headers.update(found.headers)
    return made


def _with_slash(visit: Visit) -> Response:
    query = f"?{visit.request.url.query}".rstrip("?")
    return RedirectResponse(f"{visit.root}{visit.files.alias}/{query}", 308)


def missing(node: NodeParts) -> Any:
    """The application for addresses that are of nothing."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        found = not_found()
        try:
            visit_of(node, request)
        except Refused as error:
            found = error
        for_people = "text/html" in request.headers.get("accept", "")
        answer = error_page(node, request, found) if for_people else refused_document(found)
        await answer(scope, receive, send)

    return application
