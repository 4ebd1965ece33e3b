"""What programs ask a node: queries, answers to be checked, newest records, metadata, changes as they come.

Each operation is declared: its parameters and the fields of its body are checked by that, and the document
of the interface is made of it. Forms, words and errors are those of the reference node; numbers keep their
text. What is not known is refused, never passed over.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from odfchain import errors
from odfchain.lazy import pa
from odfchain.node.parts import NodeParts
from odfchain.node.visit import (
    Refused,
    Visit,
    attended,
    body_of,
    not_found,
    refusal,
    refused_document,
    visit_of,
)
from odfchain.odf import events as ev
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.physical_hash import sha3_256
from odfchain.odf.tree import to_tree
from odfchain.query.answers import FILE_BYTES, FORMATS, SCHEMA_FORMAT, Number, output_of, read, written
from odfchain.query.embedded import DIALECT
from odfchain.query.row_streams import stream_of
from odfchain.text import one_line
from odfchain.workspace.options import ProofOptions

SCHEMA_FORMATS = (SCHEMA_FORMAT, "OdfJson", "OdfYaml")
INCLUDED = ("Input", "Proof", "Schema")
METADATA = ("attachments", "info", "license", "refs", "schema", "seed", "vocab")
MOST_ROWS = 10_000
"""Rows of one answer [count]."""
MOST_SECONDS = 60
"""How long changes are waited for [s]."""
_QUERY_BYTES = 256 << 10
_JSON = "application/json"
_ROWS = {"ndjson": "application/x-ndjson", "arrow": "application/vnd.apache.arrow.stream"}
_NO_ACCOUNT = "local"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the address, or a field of a body."""

    name: str
    summary: str
    kind: str = "string"
    """`string`, `integer`, or `array` (in an address: words with commas)."""
    default: Any = None
    choices: Sequence[str] = ()
    """What it may be, in any case, and with hyphens."""
    most: int = 10**18 - 1
    required: bool = False
    also: str = ""
    """Another name of it."""
    items: str = "string"
    """Of an array: `string` or `object`."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one address."""

    method: str
    path: str
    summary: str
    endpoint: Callable[[Visit, dict[str, Any]], Any]
    """Gets the parameters and fields by name; a bare body is `body`."""
    parameters: Sequence[Parameter] = ()
    body: Sequence[Parameter] | None = None
    """The fields of a JSON body; () is a document that the endpoint reads by itself."""
    takes: Sequence[str] = ()
    """Media types of a body that the endpoint takes from the request as it comes."""
    fields: Sequence[Parameter] = ()
    """Fields of the request's head that it looks at."""
    body_bytes: int = _QUERY_BYTES
    responses: Mapping[int, str] = field(default_factory=dict)
    media_types: Sequence[str] = (_JSON,)
    """Of the answer."""
    needs_sql: bool = False


# --- what is asked -------------------------------------------------------------------------------------


def routes(node: NodeParts, operations: Sequence[Operation]) -> list[BaseRoute]:
    """The routes of those of the operations that this node has."""
    return [
        Route(each.path, _answer(node, each), methods=[each.method])
        for each in operations
        if node.queries is not None or not each.needs_sql
    ]


def _answer(node: NodeParts, operation: Operation) -> Any:
    async def answer(request: Request) -> Response:
        try:
            visit = visit_of(node, request, heavy=operation.needs_sql)
            values = _values(operation.parameters, _in_address(request, operation.parameters))
            if operation.body is not None:
                values |= _in_body(operation, await _json_body(request, operation.body_bytes))
            if inspect.iscoroutinefunction(operation.endpoint):
                found = await operation.endpoint(visit, values)
            else:
                work = partial(operation.endpoint, visit, values)
                found = await attended(visit, work, heavy=operation.needs_sql)
        except Exception as error:  # noqa: BLE001 - every end is an answer
            found = refused_document(refusal(error, node, request.state.number))
        assert isinstance(found, Response)  # noqa: S101 - what endpoints give
        return found

    return answer


async def _json_body(request: Request, most: int) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _JSON:
        raise Refused(415, f"the body is {one_line(kind, 80) or 'of no type'}; it has to be {_JSON}")
    return await body_of(request, most)


def _in_address(request: Request, known: Sequence[Parameter]) -> dict[str, Any]:
    names = {each.also: each.name for each in known if each.also} | {each.name: each.name for each in known}
    lists = {each.name for each in known if each.kind == "array"}
    found: dict[str, Any] = {}
    for text, value in request.query_params.multi_items():
        name = names.get(text)
        if name is None:
            raise Refused(400, f"unknown parameter {one_line(text, 40)!r}", hint=_known(known))
        if name in found:
            raise Refused(400, f"the parameter {name} is given twice")
        found[name] = [part for part in value.split(",") if part] if name in lists else value
    return found


def _in_body(operation: Operation, data: bytes) -> dict[str, Any]:
    if not operation.body:
        return {"body": data}
    try:
        found = read(data)
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {one_line(str(error))}") from None
    if type(found) is not dict:
        raise Refused(400, "the body is not an object")
    for name in found:
        if name not in {each.name for each in operation.body}:
            raise Refused(400, f"unknown field {one_line(name, 40)!r}", hint=_known(operation.body))
    return _values(operation.body, {name: value for name, value in found.items() if value is not None})


def _known(known: Sequence[Parameter]) -> str:
    return f"there are {', '.join(each.name for each in known)}" if known else "there are none"


def _values(known: Sequence[Parameter], given: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: _value(each, given.get(each.name)) for each in known}


def _value(parameter: Parameter, given: Any) -> Any:
    name, kind = parameter.name, parameter.kind
    if given is None and parameter.required:
        raise Refused(400, f"{name} is missing: {parameter.summary}")
    if given is None:
        return parameter.default
    if kind == "integer":
        text = str(given)
        right = type(given) in (str, Number) and re.fullmatch("[0-9]{1,18}", text, re.ASCII)
        if not right or int(text) > parameter.most:
            raise Refused(400, f"{name}: {one_line(text, 40)} is not a number from 0 to {parameter.most:,}")
        return int(text)
    if kind == "array":
        wanted = dict if parameter.items == "object" else str
        if type(given) is not list or any(type(each) is not wanted for each in given):
            raise Refused(400, f"{name} is not a list of {wanted.__name__} values")
        return [_spelled(parameter, each) for each in given] if parameter.choices else given
    if type(given) is not str:
        raise Refused(400, f"{name} is not a text")
    return _spelled(parameter, given) if parameter.choices else given


def _spelled(parameter: Parameter, text: str) -> str:
    plain = text.replace("-", "").lower()
    found = next((each for each in parameter.choices if each.lower() == plain), None)
    if found is None:
        message = f"{parameter.name}: {one_line(text, 40)!r} is not known here"
        raise Refused(400, message, hint=f"it is one of {', '.join(parameter.choices)}")
    return found


def _written(document: Any, status: int = 200, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(written(document), status, named, _JSON)


# --- queries and signed answers ------------------------------------------------------------------------


def _query(visit: Visit, values: dict[str, Any]) -> Response:
    from odfchain.query.proofs import draft, engine_version, node_key
    from odfchain.query.resolved_tables import Pins

    queries = visit.node.queries
    assert queries is not None  # noqa: S101 - there is no such route without
    files, include = visit.to_ask, set(values["include"])
    schema = values["schemaFormat"] or (SCHEMA_FORMAT if "Schema" in include else None)
    signs = "Proof" in include
    if signs and schema not in (None, SCHEMA_FORMAT):
        raise Refused(400, f"a signed answer has its schema as {SCHEMA_FORMAT}, not as {schema}")
    given = values["datasets"]
    pins = Pins(files) if given is None else _given(files, given)
    options = ProofOptions(
        values["query"], skip=values["skip"], limit=values["limit"], data_format=values["dataFormat"],
        schema_format=schema and SCHEMA_FORMAT,
    )  # fmt: skip
    shown = sorted({*include, *(["Input"] if signs else [])} - {"Schema"})
    run = queries.run_again_for(visit.client) if signs else queries.run_for(visit.client)
    try:
        made = draft(options, pins, run, include=shown)
    except (errors.DatasetNotFoundError, errors.PointNotFoundError) as error:
        # what the SQL names is part of it, and wrong; what is given beside it is looked for
        raise errors.QueryError(error.message, hint=error.hint) from None
    if signs:
        text = made.signed(node_key(visit.node.files)).to_json()
        return Response(text, 200, {"odf-engine": engine_version()}, _JSON)
    assert made.result is not None  # noqa: S101 - it was just computed
    output = made.output | (_schema(made.result.schema, schema) if schema else {})
    return _written(({"input": made.asked} if "Input" in include else {}) | {"output": output})


def _given(files: Any, datasets: list[dict[str, Any]]) -> Any:
    from odfchain.query.resolved_tables import Pins

    given: dict[str, tuple[DatasetId, Multihash]] = {}
    for each in datasets:
        if set(each) - {"id", "alias", "blockHash"} or any(type(value) is not str for value in each.values()):
            raise Refused(400, "a dataset has the texts id, alias and blockHash, and nothing else")
        if "id" not in each or "alias" not in each:
            raise Refused(400, "a dataset needs its id, and its alias in the query")
        dataset = files.dataset(DatasetId.parse(each["id"]))
        head = dataset.chain.head()
        given[each["alias"]] = (
            dataset.id,
            Multihash.parse(each["blockHash"]) if "blockHash" in each else head,
        )
    pins = Pins(files, given=given)
    for name in given:
        pins.pin(name)
    return pins


def _verify(visit: Visit, values: dict[str, Any]) -> Response:
    from odfchain.query.answers import read_answer
    from odfchain.query.proofs import ProofVerdict

    queries = visit.node.queries
    assert queries is not None  # noqa: S101 - there is no such route without
    try:
        answer = read_answer(values["body"], "the body")
    except errors.SignatureError as error:
        raise Refused(400, error.message, hint=error.hint) from None
    if answer.sub_queries:
        raise Refused(501, "answers that are made of answers of other nodes are not checked here")
    run = queries.run_again_for(visit.client)
    verdict = ProofVerdict.of(answer, visit.to_ask, run=run)
    return _written(verdict.to_json(), 200 if verdict.ok else 400)


# --- datasets ------------------------------------------------------------------------------------------


def _tail(visit: Visit, values: dict[str, Any]) -> Response:
    table = visit.dataset.tail(values["limit"], skip=values["skip"])
    found = output_of(table, values["dataFormat"], schema=False, sorts=False)
    return _written(found | _schema(table.schema, values["schemaFormat"]))


def _schema(schema: pa.Schema, form: str | None) -> dict[str, Any]:
    from odfchain.odf.arrow_schema import from_arrow
    from odfchain.odf.yaml import dump_yaml

    if form is None:
        return {}
    if form == SCHEMA_FORMAT:
        found = output_of(schema.empty_table(), "JsonAoA", schema=True)["schema"]
    else:
        found = to_tree(from_arrow(schema))
    return {"schema": dump_yaml(found) if form == "OdfYaml" else found, "schemaFormat": form}


def _metadata(visit: Visit, values: dict[str, Any]) -> Response:
    from odfchain.workspace.dataset_state import DatasetState
    from odfchain.workspace.read_slices import columns_of

    files = visit.files
    state, include = DatasetState.read(files.chain), values["include"] or ["seed"]
    output: dict[str, Any] = {}
    events = {"attachments": ev.SetAttachments, "info": ev.SetInfo, "license": ev.SetLicense, "seed": ev.Seed}
    for name in sorted(include):
        if name in events:
            found = files.chain.nearest_event(events[name], head=state.head)
            output |= {} if found is None else {name: _without_kind(to_tree(found))}
        elif name == "refs":
            output[name] = [{"name": "head", "blockHash": str(state.head)}]
        elif name == "vocab":
            output[name] = _without_kind(to_tree(state.vocabulary))
        elif state.schema is not None:
            output |= _schema(columns_of(state, None), values["schemaFormat"])
    return _written({"output": output})


def _without_kind(tree: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in tree.items() if name != "kind"}


def _dataset(visit: Visit, _: dict[str, Any]) -> Response:
    text = visit.request.path_params["did"]
    try:
        found = visit.node.published.dataset(DatasetId.parse(text))
    except errors.InvalidIdError:
        raise not_found(f"{one_line(text, 120)!r} is not the id of a dataset") from None
    if found is None or not visit.reader.sees(found.alias):
        raise not_found(f"no dataset has the id {one_line(text, 120)}")
    account = str(found.alias.account or _NO_ACCOUNT)
    owner = {
        "accountName": account,
        "accountId": str(DatasetId(sha3_256(f"account {account}".encode()).digest())),
    }
    return _written({"id": str(found.id), "owner": owner, "datasetName": str(found.alias.name)})


async def _changes(visit: Visit, values: dict[str, Any]) -> Response:
    after, limit, loop = values["after"], values["limit"], asyncio.get_running_loop()
    until = loop.time() + values["wait"]
    files = await asyncio.to_thread(lambda: visit.files)
    async with visit.node.heads.watching(files.folder) as head:
        while True:
            # before it is read: what is committed meanwhile is seen then, or wakes
            seen = head.seen
            table, last = await asyncio.to_thread(_after, visit, after, limit)
            left = until - loop.time()
            if len(table) or left <= 0 or not await head.changed(seen, left, visit.request):
                break
    data = await asyncio.to_thread(_stream, table, values["dataFormat"])
    kind = _ROWS[values["dataFormat"]]
    return Response(data, headers={"odf-last-offset": last}, media_type=kind)


def _after(visit: Visit, after: int | None, limit: int) -> tuple[pa.Table, str]:
    dataset = visit.dataset
    newest, first = dataset.summary.last_offset, 0 if after is None else after + 1
    high = min(-1 if newest is None else newest, first + limit - 1)
    skip = 0 if newest is None else newest - high
    table = dataset.tail(max(0, high - first + 1), skip=skip)
    return table, str(high) if high >= first else "" if after is None else str(after)


def _stream(table: pa.Table, form: str) -> bytes:
    if form == "ndjson":
        rows = output_of(table, FORMATS[0], schema=False, sorts=False)["data"]
        return "".join(f"{written(row)}\n" for row in rows).encode()
    return stream_of(table.schema, table.to_batches())


# --- all of them ---------------------------------------------------------------------------------------

_DATA = Parameter("dataFormat", "how rows are written", choices=FORMATS, default=FORMATS[0], also="format")
_SCHEMA = Parameter("schemaFormat", "how the columns are described", choices=SCHEMA_FORMATS)
_SKIP = Parameter("skip", "rows that are left out before", "integer", 0)
_LIMIT = Parameter("limit", "the most rows", "integer", 100, most=MOST_ROWS)
_ASKED = (
    Parameter("query", "one query in SQL", required=True),
    Parameter("queryDialect", "the dialect of the query", choices=(DIALECT,), default=DIALECT),
    _DATA,
    _SCHEMA,
    Parameter("include", "what is answered beside the rows", "array", (), choices=INCLUDED),
    _SKIP,
    _LIMIT,
)
_PINNED = Parameter("datasets", "id, alias and blockHash of each name in the query", "array", items="object")
_REFUSED = {400: "it is wrong, or asks for too much", 401: "a token is needed", 403: "the token has no right"}
_UNKNOWN = {401: "a token is needed", 404: "there is no such dataset for this client"}
_OF_QUERY = {200: "the rows, and what was asked for beside them", **_REFUSED, 503: "too many queries at once"}

_VERIFIED = {200: "it is true", **_REFUSED, 501: "it is made of answers of others", 503: "too many queries"}
_GIVEN = _OF_QUERY | {404: "a dataset or a block that is given is not here", 413: "it is too long"}
_CHANGES = (
    Parameter("after", "the offset of the last record that the client has", "integer"),
    Parameter("wait", "how long to wait for a record [s]", "integer", 30, most=MOST_SECONDS),
    replace(_LIMIT, default=1_000),
    Parameter("dataFormat", "how they come", choices=tuple(_ROWS), default="ndjson"),
)
_INCLUDE = Parameter("include", "what is answered; seed by itself", "array", choices=METADATA)

OPERATIONS = (
    Operation(
        "GET", "/query", "Answer a query", lambda visit, values: _query(visit, values | {"datasets": None}),
        _ASKED, responses=_OF_QUERY, needs_sql=True,
    ),
    Operation(
        "POST", "/query", "Answer a query, at given blocks of datasets where it says so", _query,
        body=(*(replace(each, also="") for each in _ASKED), _PINNED), responses=_GIVEN, needs_sql=True,
    ),
    Operation(
        "POST", "/verify", "Check a signed answer, and compute it once more", _verify,
        body=(), body_bytes=FILE_BYTES, responses=_VERIFIED, needs_sql=True,
    ),
    Operation(
        "GET", "/{ds:dataset}/tail", "The newest records, in order of offset", _tail,
        (_SKIP, _LIMIT, _DATA, _SCHEMA), responses={200: "the records"} | _UNKNOWN,
    ),
    Operation(
        "GET", "/{ds:dataset}/metadata", "What is recorded about a dataset", _metadata,
        (_INCLUDE, replace(_SCHEMA, default=SCHEMA_FORMAT)), responses={200: "the metadata"} | _UNKNOWN,
    ),
    Operation(
        "GET", "/{ds:dataset}/changes", "Records after an offset, as soon as there are some", _changes,
        _CHANGES, media_types=tuple(_ROWS.values()),
        responses={200: "records, none where nothing came"} | _UNKNOWN | {503: "too many clients wait"},
    ),
    Operation(
        "GET", "/datasets/{did}", "The dataset with an id", _dataset,
        responses={200: "its id, name and owner"} | _UNKNOWN,
    ),
)  # fmt: skip
