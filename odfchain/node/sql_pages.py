"""The pages of SQL and of signed answers: the query is in the address, and what is shown can be signed."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import URL
from starlette.responses import RedirectResponse, Response

from odfchain import errors
from odfchain.node.downloads import TYPES, Streamed, asked_rows
from odfchain.node.overview import download
from odfchain.node.pages import Page
from odfchain.node.queries import Queries
from odfchain.node.visit import Refused, Visit, is_foreign, refusal
from odfchain.query.answers import FILE_BYTES, Answer, Number, read_answer, written
from odfchain.query.proofs import OUTPUT_MISMATCH, ProofVerdict, draft, node_key
from odfchain.query.resolved_tables import Pins
from odfchain.query.row_formats import numeric_columns
from odfchain.query.sql_text import Query, pinned_text
from odfchain.transform.closed_sql import quoted_name
from odfchain.workspace.options import ProofOptions, maybe_time

SHOWN, LISTED, IN_ADDRESS = 100, 50, 2_000
"""Rows on the page and datasets beside it [count], and a query that is in the address [characters]."""


# --- SQL -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """The rows of an answer, as texts."""

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    rows: tuple[tuple[str | None, ...], ...]
    seconds: float
    inputs: tuple[str, ...]
    notes: tuple[str, ...]
    permalink: str | None
    """The same query over the same blocks."""
    signs: tuple[str, str] | None
    """By what it can be signed, for ten minutes: hashes of the question and of the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlPage:
    """A query, and its answer or what is wrong with it."""

    query: str
    as_at: str
    datasets: tuple[tuple[str, str], ...]
    """Names, and a query over each."""
    answer: Rows | None = None
    formats: tuple[tuple[str, str], ...] = ()
    command: str = "odfchain sql"
    error: str | None = None
    hint: str | None = None
    excerpt: tuple[str, ...] = ()
    """The line of the query that is wrong, and a caret below the place."""
    status: int = 200


def _queries(visit: Visit) -> Queries:
    assert visit.node.queries is not None  # noqa: S101 - these pages are there with queries only
    return visit.node.queries


def sql(visit: Visit) -> SqlPage | Response:
    """The page of SQL: asked, answered or refused."""
    text, as_at, filled = visit.asked("q") or "", visit.asked("as_at") or "", visit.asked("fill")
    asked = {"q": text} | ({"as_at": as_at} if as_at else {})
    address = f"{visit.root}-/sql"
    seen = [str(each.alias) for each in visit.node.published.datasets() if visit.reader.sees(each.alias)]
    command = ["odfchain", "sql", "-c", text, *(["--as-at", as_at] if as_at else [])]
    facts: dict[str, Any] = {
        "query": filled or text,
        "as_at": as_at,
        "datasets": tuple((each, " ".join(("select * from", quoted_name(each)))) for each in seen[:LISTED]),
        "command": shlex.join(command) if text else "odfchain sql",
    }
    if not text:
        return SqlPage(**facts)
    if is_foreign(visit.request):
        sentence = "another site has sent this query: read it, and run it yourself"
        return SqlPage(**facts, error=sentence, status=403)
    form = visit.request.url.path.removeprefix(f"{address}.")
    if form in TYPES:
        return Streamed(visit, form, "answer", asked_rows(visit, Query(text, _pins(visit, as_at))))
    if visit.form and len(text) <= IN_ADDRESS and visit.request.url.path == address:
        return RedirectResponse(_with(address, **asked), 303)
    try:
        answer = _answered(visit, text, _pins(visit, as_at))
    except Exception as error:  # noqa: BLE001 - the page says what is wrong, beside the query
        found = refusal(error, visit.node, visit.number)
        excerpt = error.excerpt if isinstance(error, errors.QueryError) else ()
        status = 400 if found.status == 404 else found.status  # the page is there
        return SqlPage(**facts, error=found.message, hint=found.hint, excerpt=excerpt, status=status)
    words = {each: each.capitalize() if each in ("arrow", "parquet") else each.upper() for each in TYPES}
    forms = (words | {"json": "JSON"}).items()
    formats = tuple((word, _with(f"{address}.{form}", **asked)) for form, word in forms)
    return SqlPage(**facts, answer=answer, formats=formats if len(text) <= IN_ADDRESS else ())


def _with(address: str, **asked: str) -> str:
    return str(URL(address).include_query_params(**asked))


def _pins(visit: Visit, as_at: str) -> Pins:
    return Pins(visit.to_ask, as_at=maybe_time(as_at or None))


def _answered(visit: Visit, text: str, pins: Pins) -> Rows:
    queries, signs, began = _queries(visit), None, time.monotonic()
    options = ProofOptions(text, limit=SHOWN, data_format="JsonAoA")
    try:
        made = draft(options, pins, queries.run_again_for(visit.client))
        signs = queries.keep(visit.reader, made)
    except errors.QueryError as error:
        if not error.refused:
            raise
        # it is no answer to be checked, but it is one
        made = draft(options, pins, queries.run_for(visit.client))
    seconds = time.monotonic() - began
    assert made.result is not None  # noqa: S101 - it was just computed
    schema, right = made.result.schema, numeric_columns(made.result.schema)
    pinned = pinned_text(text, {each.name: str(each.block_hash) for each in pins.named})
    return Rows(
        columns=tuple(schema.names), numeric=tuple(place in right for place in range(len(schema))),
        rows=tuple(tuple(_cell(value) for value in row) for row in made.output["data"]),
        seconds=round(seconds, 2), inputs=tuple(map(str, made.result.inputs)), notes=made.notes,
        permalink=None if pinned is None else _with(f"{visit.root}-/sql", q=pinned), signs=signs,
    )  # fmt: skip


def _cell(value: Any) -> str | None:
    return value if value is None or type(value) in (str, Number) else written(value)


def sign(visit: Visit) -> Response:
    """The answer that was shown, signed, as a file."""
    found = _queries(visit).kept(visit.reader, visit.asked("asked") or "", visit.asked("rows") or "")
    if found is None:
        raise Refused(410, "this answer is not kept any more", hint="run the query again, and sign that")
    text = found.signed(node_key(visit.node.files)).to_json() + "\n"
    return Response(text, headers=download("answer.json"), media_type="application/json")


# --- signed answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that is checked: `ok`, `faulty` or `unchecked`."""

    name: str
    state: str
    word: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofPage:
    """A signed answer and how it was checked."""

    text: str = ""
    query: str | None = None
    signer: str | None = None
    engine: str | None = None
    inputs: tuple[tuple[str, str, str, str], ...] = ()
    """Name, id, block, and whether it is here."""
    steps: tuple[Step, ...] = ()
    verdict: str | None = None
    state: str = "unchecked"
    error: str | None = None
    computes: bool = False
    status: int = 200


_HASHED = {"inputHash": "question", "outputHash": "output", "subQueriesHash": "answers of others"}


def proof(visit: Visit) -> ProofPage:
    """The check of the answer that was sent."""
    text = visit.asked("file") or visit.form.get("text", "")
    if not text.strip():
        return ProofPage()
    try:
        answer = read_answer(text.encode("utf-8", "surrogatepass"), "this")
    except errors.SignatureError as error:
        return ProofPage(text=text, error=error.message, status=400)
    steps = [_hashed(answer, name, part) for name, part in _HASHED.items()]
    try:
        answer.check_signature()
        steps.append(Step("signature", "ok", "of the key that it names"))
    except errors.SignatureError as error:
        steps.append(Step("signature", "faulty", error.message))
    queries = visit.node.queries
    inputs = tuple(_input(visit, answer, name) for name in answer.datasets)
    if visit.asked("compute") and queries is not None:
        run = queries.run_again_for(visit.client)
        steps.append(_computed(ProofVerdict.of(answer, visit.to_ask, run=run)))
    wrong = next((each for each in steps if each.state == "faulty"), None)
    part = "output" if wrong is not None and wrong.name == "computed again" else wrong and wrong.name
    return ProofPage(
        text=text, query=answer.query, signer=answer.signer, engine=answer.engine, inputs=inputs,
        steps=tuple(steps), verdict=f"falsified: {part}" if wrong else "valid",
        state="faulty" if wrong else "ok", computes=queries is not None,
    )  # fmt: skip


def _hashed(answer: Answer, name: str, part: str) -> Step:
    if name == "outputHash" and answer.output is None:
        return Step(part, "unchecked", "it is not in the file")
    same = answer.hash_of(name) == answer.commitment[name]
    return Step(part, "ok" if same else "faulty", "as signed" if same else "changed after it was signed")


def _input(visit: Visit, answer: Answer, name: str) -> tuple[str, str, str, str]:
    dataset_id, block = answer.datasets[name]
    found = visit.node.published.dataset(dataset_id)
    here = "not here"
    if found is not None and visit.reader.sees(found.alias):
        try:
            here = f"here, block {Pins(visit.node.files, given=answer.datasets).pin(name).sequence_number}"
        except errors.OdfchainError:
            here = "here, without this block"
    return name, str(dataset_id), str(block), here


def _computed(verdict: ProofVerdict) -> Step:
    faulty = verdict.kind == OUTPUT_MISMATCH and not verdict.incomplete
    state = "ok" if verdict.ok else "faulty" if faulty else "unchecked"
    return Step("computed again", state, verdict.message)


def _refused(_: Visit, view: SqlPage) -> Response:
    raise Refused(400 if view.error is None else view.status, view.error or "there is no query to answer")


_METHODS = ("GET", "HEAD", "POST")
PAGES = (
    Page("/-/sql", "sql", sql, dict.fromkeys(TYPES, _refused), needs_sql=True, methods=_METHODS),
    Page("/-/sql/sign", "sql", sign, needs_sql=True, methods=("POST",)),
    Page("/-/proof", "proof", proof, methods=_METHODS, form_bytes=2 * FILE_BYTES),
)
