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
from odfchain.node.pages import answer
from odfchain.node.parts import NodeParts
from odfchain.node.uploads import INGEST

OPERATIONS = (*rest.OPERATIONS, INGEST)
"""What programs ask for."""
_PAGES = (
    *dataset_list.PAGES,
    *sql_pages.PAGES,
    *about.PAGES,
    *overview.PAGES,
    *history_pages.PAGES,
    *schema_page.PAGES,
    *records.PAGES,
    *lineage_pages.PAGES,
    *audit_page.PAGES,
    *branch_pages.PAGES,
    *description_pages.PAGES,
    *operator_pages.PAGES,
)
PAGES = (*_PAGES, openapi.page_of(OPERATIONS, _PAGES))


_FOR_EVER = {"cache-control": "public, max-age=31536000, immutable"}


def own_routes(node: NodeParts) -> list[BaseRoute]:
    """The routes that are no pages, those that are asked first."""
    downloads = [Route(each.path, answer(node, each)) for each in (overview.ATTACHMENTS, *records.FILES)]
    described = openapi.routes(node, OPERATIONS, PAGES if node.options.pages else ())
    return [*_files_of_pages(), *described, *rest.routes(node, OPERATIONS), *downloads]


def _files_of_pages() -> list[BaseRoute]:
    from odfchain.profiles.pages import icon, stylesheet

    name, content = stylesheet()

    async def style(_: Request) -> Response:
        return Response(content, headers=_FOR_EVER, media_type="text/css")

    async def mark(_: Request) -> Response:
        return Response(
            icon(), headers={"cache-control": "public, max-age=86400"}, media_type="image/svg+xml"
        )

    return [Route(f"/-/{name}", style), Route("/-/icon.svg", mark)]
