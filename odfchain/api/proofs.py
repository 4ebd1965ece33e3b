"""Signed answers to queries, and whether they are true."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from odfchain.api.known_errors import with_own_errors
from odfchain.api.options import ProofKeywords, as_time, refuse_unknown
from odfchain.errors import UsageError

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.query.answer import Answer
    from odfchain.query.answer_verdicts import ProofVerdict

PROVED_ROWS = 100
"""Rows of an answer unless more are asked for [count]; what nodes answer with."""


def prove(workspace: Workspace, query: str, options: ProofKeywords) -> Answer:
    """The answer to `Workspace.prove`.

    Raises:
        UsageError: there is no such option, engine or format.
        And the errors that are named there.
    """
    from odfchain.query import proving
    from odfchain.query.answer_values import FORMATS
    from odfchain.query.arrow_json import SCHEMA_FORMAT
    from odfchain.query.pins import Pins

    refuse_unknown(options, ProofKeywords)
    if options.get("engine", "datafusion") != "datafusion":
        raise UsageError("signed answers are computed by datafusion", hint="leave the engine out")
    if options.get("params"):
        raise UsageError("a signed answer has no parameters", hint="write the values into the query")
    data_format = options.get("data_format") or FORMATS[0]
    if data_format not in FORMATS:
        raise UsageError(f"there is no format {data_format!r}", hint=f"formats are {', '.join(FORMATS)}")
    schema = options.get("schema_format")
    if schema not in (None, SCHEMA_FORMAT):
        raise UsageError(f"there is no schema format {schema!r}", hint=f"it is {SCHEMA_FORMAT}")
    at, limit = options.get("as_at"), options.get("limit")
    return proving.prove(
        workspace._files,
        query,
        Pins(workspace._files, as_at=None if at is None else as_time(at)),
        skip=options.get("skip") or 0,
        limit=PROVED_ROWS if limit is None else limit,
        data_format=data_format,
        schema=schema is not None,
        seconds=options.get("seconds"),
        memory=options.get("memory"),
    )


def read_proof(proof: str | os.PathLike[str] | Answer) -> Answer:
    """A signed answer from its file; nothing in it is believed yet.

    Raises:
        StoreError: the file cannot be read.
        SignatureError: it is no signed answer.
    """
    from odfchain.query.answer import Answer, read_file

    return proof if isinstance(proof, Answer) else read_file(proof)


def described(answer: Answer) -> str:
    """What a signed answer says, and what is wrong with its file: JSON whose numbers keep their text."""
    from odfchain.query.node_json import written

    parts = {
        "query": answer.query,
        "datasets": answer.input["datasets"],
        "output": answer.output,
        "commitment": answer.commitment,
        "signer": answer.signer,
        "engine": answer.engine,
        "problem": answer.problem(),
    }
    return written(parts)


@with_own_errors
def verify_proof(
    proof: str | os.PathLike[str] | Answer, workspace: Workspace, *, seconds: float | None = None
) -> ProofVerdict:
    """Whether a signed answer is true: hashes, signature, its blocks, and the query computed once more.

    `proof` is an answer or its file; `seconds` is how long computing it may take.

    Raises:
        StoreError: the file cannot be read, or a dataset is damaged here.
        SignatureError: it is no signed answer.
    """
    from odfchain.query.answer_verdicts import verify

    return verify(read_proof(proof), workspace._files, seconds=seconds)


def ask_node(proof: str | os.PathLike[str] | Answer, url: str, *, token: str | None = None) -> ProofVerdict:
    """What the node at `url` says of a signed answer.

    Raises:
        StoreError, SignatureError: as `read_proof`.
        TransferError: the node cannot be reached, refuses, or is none.
    """
    from odfchain.query.remote_verdict import verdict_of_node
    from odfchain.transfer.peer import as_transfer_errors

    with as_transfer_errors():
        return verdict_of_node(read_proof(proof), url, token=token)
