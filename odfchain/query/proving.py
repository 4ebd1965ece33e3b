"""Signed answers: what may be signed, computed so that anybody computes the same.

What a query may not name is taken out of the engine: functions that give another value each time, or tell
about this machine. One task works on batches of one size, in memory, over slices that are hashed anew: so
rows, their order and the last digit of a sum depend on the blocks and on the engine's version alone.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import QueryError, RefusedQueryError
from odfchain.ids.keys import DatasetKey
from odfchain.query.answer import QUERY_BYTES, Answer, asked_for
from odfchain.query.answer_values import json_rows
from odfchain.query.arrow_json import SCHEMA_FORMAT, arrow_json
from odfchain.query.embedded import DIALECT, Embedded, engine_version
from odfchain.query.local_queries import Local
from odfchain.query.pins import Pins
from odfchain.repo.workspace_config import QueryConfig
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.store import fsio
from odfchain.trust.signing_keys import read_key_file

if TYPE_CHECKING:
    import pyarrow as pa

VOLATILE = frozenset(
    {"now", "random", "rand", "uuid", "today", "current_date", "current_time", "current_timestamp"}
    | {"input_file_name", "file_row_index", "version"}
)
"""What the engine's functions are called that no signed answer may use, other names of them included."""

_UNKNOWN = re.compile(r"there is no (?:function|column) \"?(\w+)")


def repeatable(memory: int | None = None) -> Embedded:
    """The engine as signed answers are computed; nothing is spilled, because that changes orders."""
    engine = Embedded(partitions=1, batch_size=8192, without=VOLATILE)
    return engine if memory is None else replace(engine, memory=memory)


def prove(
    workspace: WorkspaceFiles,
    query: str,
    pins: Pins,
    *,
    skip: int,
    limit: int,
    data_format: str,
    schema: bool,
    seconds: float | None = None,
    memory: int | None = None,
) -> Answer:
    """The answer to a query, signed with the workspace's key.

    Raises:
        QueryError: it is wrong, or its rows have no form in JSON.
    """
    if (size := len(query.encode("utf-8", "surrogatepass"))) > QUERY_BYTES:
        raise QueryError(f"the query has {size:,} bytes; at most {QUERY_BYTES:,} are signed")
    asked = asked_for(
        query, [], dialect=DIALECT, data_format=data_format, schema=schema, skip=skip, limit=limit
    )
    with volatile_refused():
        result = Local(repeatable(memory)).run(query, pins, skip=skip, limit=limit, seconds=seconds)
        table = result.to_arrow()
    asked["datasets"] = [
        {"id": str(pin.id), "alias": pin.name, "blockHash": str(pin.block_hash)} for pin in pins.named
    ]
    output = output_of(table, data_format, schema=schema)
    return Answer.signed(
        asked,
        output,
        node_key(workspace),
        engine=engine_version(),
        notes=tuple(_notes(query, table, limit)),
        result=result,
    )


@contextlib.contextmanager
def volatile_refused() -> Iterator[None]:
    """A function that is not there because it is volatile is refused as that.

    Raises:
        RefusedQueryError: the query names one.
    """
    try:
        yield
    except QueryError as error:
        found = _UNKNOWN.search(error.message)
        if found is None or found.group(1).lower() not in VOLATILE:
            raise
        raise RefusedQueryError(
            f"{found.group(1)} gives another value each time, so an answer with it cannot be checked",
            hint="write the value into the query, or ask without a proof",
            excerpt=error.excerpt,
        ) from None


def output_of(table: pa.Table, data_format: str, *, schema: bool) -> dict[str, Any]:
    """The member `output` of an answer."""
    output: dict[str, Any] = {"data": json_rows(table, data_format), "dataFormat": data_format}
    if schema:
        output |= {"schema": arrow_json(table.schema), "schemaFormat": SCHEMA_FORMAT}
    return output


def _notes(query: str, table: pa.Table, limit: int) -> list[str]:
    notes = []
    if len(table) > 1 and not _is_ordered(query):
        notes.append("the query has no ORDER BY: another engine may give its rows in another order")
    if len(table) == limit:
        notes.append(f"the answer ends at its limit of {limit:,} rows; there may be more")
    return notes


def _is_ordered(query: str) -> bool:
    """Whether ORDER BY stands outside of all brackets; for the note only."""
    from sqlglot.dialects.postgres import Postgres
    from sqlglot.errors import SqlglotError
    from sqlglot.tokenizer_core import TokenType

    depth = 0
    try:
        for token in Postgres().tokenize(query):
            depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            if token.token_type is TokenType.ORDER_BY and not depth:
                return True
    except SqlglotError:
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
    return read_key_file(path)
