"""All addresses of a node that are not files: pages by topic, then what programs ask."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from odfchain.node import (
    about,
    audit_page,
    branch_pages,
    dataset_list,
    description_pages,
    history_pages,
    lineage_pages,
    openapi,
    operator_pages,
    overview,
    records,
    rest,
    schema_page,
    sql_pages,
)
from odfchain.node.pages import Page, answer
from odfchain.node.parts import NodeParts
from odfchain.node.uploads import INGEST
from odfchain.profiles.pages import icon, stylesheet

OPERATIONS = (*rest.OPERATIONS, INGEST)
"""What programs ask for."""
_TOPICS = (
    dataset_list, sql_pages, about, overview, history_pages, schema_page, records, lineage_pages, audit_page,
    branch_pages, description_pages, operator_pages,
)  # fmt: skip
_PAGES: tuple[Page, ...] = tuple(page for topic in _TOPICS for page in topic.PAGES)
PAGES = (*_PAGES, openapi.page_of(OPERATIONS, (*_PAGES, *records.FILES)))


def own_routes(node: NodeParts) -> list[BaseRoute]:
    """The routes that are no pages, those that are asked first."""
    downloads = [Route(each.path, answer(node, each)) for each in (overview.ATTACHMENTS, *records.FILES)]
    described = openapi.routes(node, OPERATIONS, (*records.FILES, *(PAGES if node.options.pages else ())))
    name, style = stylesheet()
    looks = [_file(name, style, "text/css", 31_536_000), _file("icon.svg", icon(), "image/svg+xml", 86_400)]
    return [*looks, *described, *rest.routes(node, OPERATIONS), *downloads]


def _file(name: str, content: str | bytes, kind: str, seconds: int) -> Route:
    # the name of a style sheet changes with it
    fresh = f"public, max-age={seconds}{', immutable' * (kind == 'text/css')}"

    async def answer(_: Request) -> Response:
        return Response(content, headers={"cache-control": fresh}, media_type=kind)

    return Route(f"/-/{name}", answer)
