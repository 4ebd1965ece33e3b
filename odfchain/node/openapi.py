"""The document of a node's interface (OpenAPI 3.1), made of the routes that it has, and a page of it.

What is declared once answers requests, is checked by it, and is described here: operations of programs by
their parameters, pages by the dataclass of their facts. The addresses of files are those of the protocol.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from odfchain.node.downloads import TYPES
from odfchain.node.pages import Page
from odfchain.node.parts import NodeParts
from odfchain.node.rest import Operation, Parameter
from odfchain.node.visit import Visit
from odfchain.odf.tree import properties_of

_PLAIN: Mapping[Any, dict[str, Any]] = {
    str: {"type": "string"}, int: {"type": "integer"}, float: {"type": "number"}, bool: {"type": "boolean"},
    type(None): {"type": "null"}, bytes: {"type": "string", "contentEncoding": "base64"}, Any: {},
}  # fmt: skip
_REFUSAL = {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]}
_MEDIA = TYPES | {"json": "application/json", "csv": "text/csv", "yaml": "application/yaml"}
_FILES = (
    ("/info", "Whether every dataset has an account"),
    ("/datasets.json", "The index of the datasets"),
    ("/accounts/me", "The account of the token that is shown"),
    ("/platform/token/validate", "Whether the token that is shown is in force"),
    ("/{ds}/refs/{ref}", "The hash that a reference has"),
    ("/{ds}/blocks/{hash}", "A metadata block"),
    ("/{ds}/data/{hash}", "A slice"),
    ("/{ds}/checkpoints/{hash}", "A checkpoint"),
    ("/{ds}/manifests/{hash}", "The manifest of a snapshot"),
    ("/{ds}/profiles/{hash}", "The profile of a snapshot"),
    ("/{ds}/hints/{name}", "Hashes of blocks, or names of references"),
    ("/{ds}/attestations/{name}", "Signed statements about the dataset"),
    ("/{ds}/-/attachments/{path}", "A file that is attached to the dataset"),
    *((f"/{{ds}}/-/data.{form}", "The records, or the rows in force, as a file") for form in TYPES),
)
"""The addresses of the protocol that a node has always, and what they give."""


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON Schema of what `to_tree` makes of a value of this type."""
    if not isinstance(kind, range) and kind in _PLAIN:
        return dict(_PLAIN[kind])
    base, inner = get_origin(kind), get_args(kind)
    if base in (Union, types.UnionType):
        return {"anyOf": [schema_of(each) for each in inner]}
    if base is tuple and inner[-1] is ...:
        return {"type": "array", "items": schema_of(inner[0])}
    if base is tuple:
        return {"type": "array", "prefixItems": [schema_of(each) for each in inner], "items": False}
    if base in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if dataclasses.is_dataclass(kind):
        known = properties_of(kind if isinstance(kind, type) else type(kind))
        members = {key: schema_of(hint) for key, (_, hint, _) in known.items()}
        needed = [key for key, (_, _, optional) in known.items() if not optional]  # what is None is left out
        return {"type": "object", "properties": members, "required": needed, "additionalProperties": False}
    if isinstance(kind, range):
        return {"type": "integer", "minimum": kind.start, "maximum": kind.stop - 1}
    return {"type": "string"}


def document_of(
    operations: Iterable[Operation], pages: Iterable[Page], about: Mapping[str, Any]
) -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for path, summary in _FILES:
        answers = {200: "the file", 401: "the token is not in force", 404: "it is not here"}
        paths[path] = {"get": _described(path, summary, answers, ("*/*",))}
    for path, summary, kind in (
        ("/-/health", "Whether the node can read its datasets", _MEDIA["json"]),
        ("/-/metrics", "Figures in the text format of Prometheus", "text/plain"),
        ("/-/openapi.json", "This document", _MEDIA["json"]),
    ):
        paths[path] = {"get": _described(path, summary, {200: "the answer", 503: "not now"}, (kind,))}
    for each in operations:
        paths.setdefault(_plain(each.path), {})[each.method.lower()] = _operation(each)
    for page in pages:
        # one without a template is a download, in that form alone
        for ending in (None, "json", *page.formats) if page.template or page.made_by else (None,):
            path = _plain(page.address(ending))
            for method in page.methods:
                if method != "HEAD":
                    form = ending or ("html" if page.template or page.made_by else path.rpartition(".")[2])
                    paths.setdefault(path, {})[method.lower()] = _page(page, path, form)
    return {
        "openapi": "3.1.0",
        "info": {"title": "odfchain node", "version": str(about["version"])},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"token": []}],
    }


def _plain(path: str) -> str:
    return re.sub(r":\w+}", "}", path)


def _described(path: str, summary: str, answers: Mapping[int, str], media: Sequence[str]) -> dict[str, Any]:
    known = {
        str(status): {"description": text, "content": {kind: {} for kind in media}}
        if status < 400
        else {"description": text, "content": {_MEDIA["json"]: {"schema": _REFUSAL}}}
        for status, text in answers.items()
    }
    names = re.findall(r"{(\w+)}", path)
    given = [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in names]
    return {"summary": summary, "parameters": given, "responses": known}


def _operation(each: Operation) -> dict[str, Any]:
    found = _described(_plain(each.path), each.summary, each.responses, each.media_types)
    found["parameters"] += [
        {
            "name": name, "in": "query", "description": parameter.summary, "required": parameter.required,
            "schema": _field(parameter), "style": "form", "explode": False,
        }
        for parameter in each.parameters
        for name in filter(None, (parameter.name, parameter.also))
    ]  # fmt: skip
    found["parameters"] += [
        {"name": one.name, "in": "header", "description": one.summary, "schema": _field(one)}
        for one in each.fields
    ]
    if each.takes:
        found["requestBody"] = {"required": True, "content": {kind: {} for kind in each.takes}}
    if each.body is not None:
        members = {parameter.name: _field(parameter) for parameter in each.body}
        shape: dict[str, Any] = {"type": "object"}
        if members:
            needed = [parameter.name for parameter in each.body if parameter.required]
            shape |= {"properties": members, "required": needed, "additionalProperties": False}
        found["requestBody"] = {"required": True, "content": {_MEDIA["json"]: {"schema": shape}}}
    return found


def _field(parameter: Parameter) -> dict[str, Any]:
    made: dict[str, Any] = {"type": parameter.kind}
    if parameter.kind == "integer":
        made |= {"minimum": 0, "maximum": parameter.most}
    if parameter.kind == "array":
        made["items"] = {"type": parameter.items} | (
            {"enum": list(parameter.choices)} if parameter.choices else {}
        )
    elif parameter.choices:
        made["enum"] = list(parameter.choices)
    if parameter.default is not None:
        made["default"] = parameter.default
    return made


def _page(page: Page, path: str, ending: str) -> dict[str, Any]:
    media = {"html": "text/html"}.get(ending) or _MEDIA.get(ending, "application/octet-stream")
    found = _described(
        path, page.template or "all rows", {200: "the page", 400: "wrong", 404: "it is not here"}, (media,)
    )
    if ending == "json":
        facts = get_type_hints(page.view).get("return", Any)
        found["responses"]["200"]["content"][media] = {"schema": schema_of(facts)}
    return found


# --- its addresses -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Interface:
    """All operations, for the page: method, address and summary of each."""

    operations: tuple[tuple[str, str, str], ...]


def routes(node: NodeParts, operations: Sequence[Operation], pages: Sequence[Page]) -> list[BaseRoute]:
    """The address of the document."""
    document = document_of(operations, pages, node.about)

    async def answer(_: Request) -> Response:
        return JSONResponse(document)

    return [Route("/-/openapi.json", answer)]


def page_of(operations: Sequence[Operation], pages: Sequence[Page]) -> Page:
    """The page of the document; programs read `/-/openapi.json`."""

    def interface(visit: Visit) -> Interface:
        found = document_of(operations, pages, visit.node.about)["paths"]
        return Interface(
            tuple(
                (method.upper(), path, each["summary"])
                for path, methods in found.items()
                for method, each in methods.items()
            )
        )

    return Page("/-/interface", "interface", interface)
