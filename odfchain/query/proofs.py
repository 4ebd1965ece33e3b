"""Signed answers: what may be signed, computed so that anybody computes the same.

What a query may not name is taken out of the engine: functions that give another value each time, or tell
about this machine. One task works on batches of one size, in memory, over slices that are hashed anew: so
rows, their order and the last digit of a sum depend on the blocks and on the engine's version alone.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain import errors
from odfchain.chain.statements import read_key_file
from odfchain.limits import ASKED, SHARING, FetchLimits
from odfchain.odf.identity import DatasetKey
from odfchain.query import answers
from odfchain.query.embedded import DIALECT, Embedded
from odfchain.query.processes import Local
from odfchain.query.resolved_tables import Pins
from odfchain.query.sql_text import Query
from odfchain.query.walled import Worker
from odfchain.storage import fsio
from odfchain.storage.http_client import HttpPool, request_headers
from odfchain.storage.http_rules import Deadline, Timing, with_retries
from odfchain.storage.locations import parse_target
from odfchain.text import counted, one_line
from odfchain.workspace.config import QueryConfig
from odfchain.workspace.options import ProofOptions
from odfchain.workspace.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.query.results import QueryResult
    from odfchain.storage.http_connection import Response


VOLATILE = frozenset(
    {"now", "random", "rand", "uuid", "today", "current_date", "current_time", "current_timestamp"}
    | {"input_file_name", "file_row_index", "version"}
)
"""Names of the engine's volatile functions, which no signed answer may use, aliases included."""

_UNKNOWN = re.compile(r"there is no (?:function|column) \"?(\w+)")


def engine_version() -> str:
    """The engine and its version, as answers name it."""
    return f"datafusion {version('datafusion')}"


def repeatable(memory: int | None = None) -> Embedded:
    """The engine as signed answers are computed; nothing is spilled, because that changes orders."""
    engine = Embedded(partitions=1, batch_size=8192, without=VOLATILE)
    return engine if memory is None else replace(engine, memory=memory)


PROVED_ROWS = 100
"""Rows of an answer unless more are asked for [count]; what nodes answer with."""


Run = Callable[[Query], "QueryResult"]
"""How a query is computed."""


@dataclass(frozen=True, slots=True)
class Draft:
    """An answer that nobody has signed yet."""

    asked: dict[str, Any]
    """The query and its blocks, as they are signed."""
    output: dict[str, Any]
    result: QueryResult | None
    """The rows with their types."""
    notes: tuple[str, ...]

    def signed(self, key: DatasetKey) -> answers.Answer:
        """The answer with a signature."""
        about: dict[str, Any] = {"notes": self.notes, "result": self.result}
        return answers.Answer.signed(self.asked, self.output, key, engine=engine_version(), **about)


def prove(options: ProofOptions, pins: Pins) -> answers.Answer:
    """The answer to a query, signed with the workspace's key."""
    return draft(options, pins, Local(repeatable(options.memory)).run).signed(node_key(pins.workspace))


def draft(
    options: ProofOptions, pins: Pins, run: Run, *, include: Sequence[str] = ("Input", "Proof")
) -> Draft:
    """The answer to a query that somebody may sign, if `run` is by the engine that is `repeatable`.

    `include` is what is asked for beside the rows; a schema format adds one.
    """
    if options.engine != "datafusion":
        raise errors.UsageError("signed answers are computed by datafusion", hint="leave the engine out")
    if options.params:
        raise errors.UsageError("a signed answer has no parameters", hint="write the values into the query")
    data_format, schema_format = options.data_format or answers.FORMATS[0], options.schema_format
    if data_format not in answers.FORMATS:
        raise errors.UsageError(
            f"unknown format {data_format!r}", hint=f"formats are {', '.join(answers.FORMATS)}"
        )
    if schema_format not in (None, answers.SCHEMA_FORMAT):
        message = f"unknown schema format {schema_format!r}"
        raise errors.UsageError(message, hint=f"the schema format is {answers.SCHEMA_FORMAT}")
    query, skip = options.query, options.skip or 0
    limit = PROVED_ROWS if options.limit is None else options.limit
    # lone surrogates have no UTF-8, and must not raise here
    if (size := len(query.encode("utf-8", "surrogatepass"))) > answers.QUERY_BYTES:
        raise errors.QueryError(f"the query has {size:,} bytes; at most {answers.QUERY_BYTES:,} are signed")
    if skip < 0 or limit < 0 or max(skip, limit) >= 10**18:
        raise errors.UsageError("`skip` and `limit` are numbers of rows")
    with volatile_refused():
        result = run(Query(query, pins, limit=limit, skip=skip, seconds=options.seconds))
        table = result.to_arrow()
    schema = {} if schema_format is None else {"schemaFormat": schema_format}
    asked: dict[str, Any] = {"query": query, "queryDialect": DIALECT, "dataFormat": data_format}
    asked["include"] = [*include, *(["Schema"] if schema else [])]
    asked |= schema
    asked["datasets"] = [
        {"id": str(pin.id), "alias": pin.name, "blockHash": str(pin.block_hash)} for pin in pins.named
    ]
    asked |= {"skip": skip, "limit": limit}
    output = answers.output_of(table, data_format, schema=schema_format is not None)
    return Draft(asked, output, result, tuple(_notes(query, table, limit)))


@contextlib.contextmanager
def volatile_refused() -> Iterator[None]:
    """A function that is not there because it is volatile is refused as that."""
    try:
        yield
    except errors.QueryError as error:
        found = _UNKNOWN.search(error.message)
        if found is None or found.group(1).lower() not in VOLATILE:
            raise
        message = f"{found.group(1)} gives another value each time, so an answer with it cannot be checked"
        hint = "write the value into the query, or ask without a proof"
        raise errors.QueryError(message, hint=hint, excerpt=error.excerpt, refused=True) from None


def _notes(query: str, table: pa.Table, limit: int) -> list[str]:
    notes = []
    if len(table) > 1 and not _is_ordered(query):
        notes.append("the query has no ORDER BY: another engine may give its rows in another order")
    if len(table) == limit:
        notes.append(f"the answer ends at its limit of {limit:,} rows; there may be more")
    return notes


def _is_ordered(query: str) -> bool:
    from sqlglot.dialects.postgres import Postgres
    from sqlglot.errors import SqlglotError
    from sqlglot.tokenizer_core import TokenType

    depth = 0
    try:
        for token in Postgres().tokenize(query):
            # an ORDER BY within brackets orders a subquery only
            depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            if token.token_type is TokenType.ORDER_BY and not depth:
                return True
    except SqlglotError:
        # what sqlglot cannot read the engine may; at worst a note is given that is not needed
        pass
    return False


def node_key(workspace: WorkspaceFiles) -> DatasetKey:
    """The key that signs answers; made at the first one, unless the settings name another."""
    named = workspace.config.query.signing_key
    path = workspace.root / Path(named).expanduser()
    if named == QueryConfig().signing_key and not path.exists():
        key = DatasetKey.generate()
        if fsio.create_file(path, key.to_pem(), mode=0o600):
            return key
    # also where another process has made the key meanwhile: that one is the node's
    return read_key_file(path)


# Checking a signed answer: hashes, signature, its blocks, and the query once more.

# A check may take longer than an answer to a client.
_VERDICT_LIMITS = replace(
    ASKED, seconds=60.0, memory=2 << 30, rows=1_000_000, answer_bytes=4 * answers.FILE_BYTES
)

INPUT_HASH = "InvalidRequest::InputHash"
SUB_QUERIES_HASH = "InvalidRequest::SubQueriesHash"
BAD_SIGNATURE = "InvalidRequest::BadSignature"
OUTPUT_MISMATCH = "VerificationFailed::OutputMismatch"
DATASET_NOT_FOUND = "VerificationFailed::DatasetNotFound"
BLOCK_NOT_FOUND = "VerificationFailed::DatasetBlockNotFound"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofVerdict:
    """The verdict of a check of a signed answer."""

    ok: bool
    """True if the answer is as signed: the same blocks give the same rows."""
    message: str
    kind: str | None = None
    """The kind of fault, in the node's words; None where it is right, or cannot be checked here."""
    incomplete: bool = False
    """Not false, as far as can be said here."""
    signer: str
    engine: str | None = None
    """The version of the engine that computed the answer, as stated in it."""
    datasets: tuple[str, ...] = ()
    """The blocks that it reads, where they are here."""
    rows: int | None = None
    """Rows that were computed anew [count]."""
    details: Mapping[str, str] = field(default_factory=dict)
    """More of what is wrong."""

    @property
    def exit_code(self) -> int:
        """0 right, 6 false, 7 cannot be checked here."""
        return 0 if self.ok else 7 if self.incomplete else 6

    def to_json(self) -> dict[str, Any]:
        """The verdict as nodes send it."""
        if self.ok:
            return {"ok": True}
        return {"ok": False, "error": {"kind": self.kind, **self.details, "message": self.message}}

    @classmethod
    def of(
        cls, answer: answers.Answer, workspace: WorkspaceFiles, *, seconds: float | None = None,
        run: Run | None = None,
    ) -> ProofVerdict:  # fmt: skip
        """Check an answer against the datasets here; `run` computes it anew, by the repeatable engine."""

        def verdict(message: str, **more: Any) -> ProofVerdict:
            more = {"ok": False} | more
            return cls(message=message, signer=answer.signer, engine=answer.engine, **more)

        for name, kind in (("inputHash", INPUT_HASH), ("subQueriesHash", SUB_QUERIES_HASH)):
            if answer.commitment[name] != answer.hash_of(name):
                part = "what was asked" if kind == INPUT_HASH else "the answers of others"
                return verdict(
                    f"{part} was changed: it does not hash to the {name} that was signed", kind=kind
                )
        try:
            answer.check_signature()
        except errors.SignatureError as error:
            return verdict(error.message, kind=BAD_SIGNATURE)
        signed = answer.commitment["outputHash"]
        if answer.output is not None and (found := answer.hash_of("outputHash")) != signed:
            details = {"expected_hash": signed, "actual_hash": found}
            message = "the rows were changed: they do not hash to the outputHash that was signed"
            return verdict(message, kind=OUTPUT_MISMATCH, details=details)
        if why := _unknown_form(answer):
            return verdict(why, incomplete=True)
        try:
            pins = Pins(workspace, given=answer.datasets)
            names, absent = _pinned(answer, workspace, pins)
            if absent is not None:
                return verdict(**absent, incomplete=True)
            table, output = _computed_again(answer, pins, run or _worker(seconds).answer)
        except errors.BusyError:
            raise
        except (errors.QueryError, errors.EngineError, errors.SliceNotFoundError) as error:
            return verdict(f"it cannot be computed again here: {error.message}", incomplete=True)
        found = answers.hash_of(output)
        about = {"datasets": names, "rows": table}
        if found == signed:
            return verdict(f"recomputed: the same {counted(table, 'row')}", ok=True, **about)
        details = {"expected_hash": signed, "actual_hash": found}
        ours = engine_version()
        if answer.engine == ours:
            return verdict("recomputed: another answer", kind=OUTPUT_MISMATCH, details=details, **about)
        theirs = one_line(answer.engine, 40) if answer.engine else "an engine that it does not name"
        message = f"recomputed by {ours}: another answer, and it was computed by {theirs}"
        return verdict(message, kind=OUTPUT_MISMATCH, details=details, incomplete=True, **about)

    @classmethod
    def of_node(cls, answer: answers.Answer, url: str, *, token: str | None = None) -> ProofVerdict:
        """The verdict of the node at `url` (its `POST /verify`); nothing is checked here."""
        name = one_line(url.partition("?")[0].rpartition("@")[2], 200)
        base = parse_target(url, name=name)
        target = replace(base, path=base.path.rstrip(b"/") + b"/verify")
        credentials = f"Bearer {token}" if token is not None else base.user
        given = [("Content-Type", "application/json"), ("Accept", "application/json")]
        if credentials is not None:
            given.append(("Authorization", credentials))
        body = answer.to_json(engine=False).encode()
        timing = Timing()
        deadline = Deadline(_LIMITS.deadline, timing, name=name)

        def attempt() -> ProofVerdict:
            with contextlib.closing(HttpPool(_LIMITS)) as pool:
                route = pool.route(target, name)
                headers = request_headers(route, given)
                with pool.exchange(route, headers, deadline=deadline, name=name, body=body) as response:
                    return _read(response, answer, name)

        return with_retries(attempt, name=name, limits=_LIMITS, timing=timing, deadline=deadline)


def _unknown_form(answer: answers.Answer) -> str | None:
    asked = answer.input
    # checking those needs the datasets of other nodes
    if answer.sub_queries:
        return "it is made of answers of other nodes, which are not checked here"
    for value, known in (
        (asked["queryDialect"], (DIALECT,)),
        (asked["dataFormat"], answers.FORMATS),
        (asked.get("schemaFormat", answers.SCHEMA_FORMAT), (answers.SCHEMA_FORMAT,)),
    ):
        if value not in known:
            return f"it is in {one_line(value, 40)!r}; what is checked here is {', '.join(known)}"
    return None


def _pinned(
    answer: answers.Answer, workspace: WorkspaceFiles, pins: Pins
) -> tuple[tuple[str, ...], dict[str, Any] | None]:
    found = []
    for name, (dataset_id, block) in answer.datasets.items():
        shown, details = one_line(name, 80), {"dataset_id": str(dataset_id)}
        try:
            workspace.dataset(dataset_id)
        except errors.DatasetNotFoundError:
            message = f"the dataset {shown} ({dataset_id}) is not here"
            return (), {"message": message, "kind": DATASET_NOT_FOUND, "details": details}
        try:
            # the block must be part of the dataset's chain here
            pin = pins.pin(name)
        except errors.PointNotFoundError:
            message = f"block {block} is no part of {shown} ({dataset_id}) here"
            details["block_hash"] = str(block)
            return (), {"message": message, "kind": BLOCK_NOT_FOUND, "details": details}
        found.append(f"{pin.alias} @ {pin.sequence_number}")
    return tuple(found), None


def _worker(seconds: float | None) -> Worker:
    # the query was written by a third party: a sandboxed process runs it
    limits = _VERDICT_LIMITS if seconds is None else replace(_VERDICT_LIMITS, seconds=seconds)
    return Worker(limits, engine=repeatable())


def _computed_again(answer: answers.Answer, pins: Pins, run: Run) -> tuple[int, dict[str, Any]]:
    asked = answer.input
    with volatile_refused():
        query = Query(answer.query, pins, limit=int(asked["limit"]), skip=int(asked["skip"]))
        table = run(query).to_arrow()
    return len(table), answers.output_of(table, asked["dataFormat"], schema="schemaFormat" in asked)


# What another node says of a signed answer.

# A node computes before it answers.
_LIMITS = FetchLimits(
    deadline=SHARING.request_seconds + 60, connect_timeout=SHARING.connect_seconds, idle_timeout=60,
    redirects=0, retries=2, first_wait=SHARING.retry_seconds,
)  # fmt: skip
_BODY_BYTES = 1 << 20


def _read(response: Response, answer: answers.Answer, name: str) -> ProofVerdict:
    if passing := response.passing():
        raise passing
    found: Any = None
    data = response.read(_BODY_BYTES)
    with contextlib.suppress(ValueError):
        found = answers.read(data or b"")
    if not isinstance(found, dict):
        found = {}
    if response.status == 200 and found.get("ok") is True:
        return ProofVerdict(ok=True, message=f"{name} says that it is true", signer=answer.signer)
    error = found.get("error")
    if response.status == 400 and found.get("ok") is False and isinstance(error, dict):
        texts = {str(k): one_line(v) for k, v in error.items() if type(v) is str}
        kind, said = texts.pop("kind", None), texts.pop("message", "no reason")
        # which version of the engine it has, it does not say
        return ProofVerdict(
            ok=False, kind=kind, message=f"{name} says: {said}",
            incomplete=kind in (OUTPUT_MISMATCH, DATASET_NOT_FOUND, BLOCK_NOT_FOUND), signer=answer.signer,
            engine=answer.engine, details=texts,
        )  # fmt: skip
    said = found.get("message")
    why = f": {one_line(said)}" if type(said) is str else ""
    hint = "set ODFCHAIN_TOKEN to a token for it" if response.status in (401, 403) else None
    raise errors.FetchError(f"{name}: {response.what}{why}", hint=hint)
