"""SQL queries of a workspace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from odfchain.api.known_errors import with_own_errors
from odfchain.api.options import ProofKeywords, QueryKeywords, maybe_time, refuse_unknown
from odfchain.errors import UsageError
from odfchain.query import processes
from odfchain.query.embedded import Embedded
from odfchain.query.processes import Local
from odfchain.query.resolved_tables import CheckedSlices, Pin, Pins, Relation, StateOf
from odfchain.query.results import QueryResult
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.read_slices import read_all

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.api.scan import Scan
    from odfchain.api.workspace import Workspace
    from odfchain.branches.row_history import RowChange
    from odfchain.query.answers import Answer
    from odfchain.query.on_spark import OnSpark
    from odfchain.query.proofs import ProofVerdict
    from odfchain.workspace.dataset_files import DatasetFiles


ENGINES = ("datafusion", "spark")


def ask(workspace: Workspace, query: str, options: QueryKeywords) -> QueryResult:
    """The answer to `Workspace.sql`.

    Raises:
        UsageError: there is no such option or engine.
        And the errors that are named there.
    """
    return _engine(workspace, options).run(
        query,
        _pins(workspace, options),
        params=options.get("params"),
        limit=options.get("limit"),
        seconds=options.get("seconds"),
    )


def explained(workspace: Workspace, query: str, options: QueryKeywords) -> str:
    """How the engine would answer, as text; nothing is computed. Errors as `ask`."""
    engine = _engine(workspace, options)
    return engine.explain(query, _pins(workspace, options), params=options.get("params"))


def begin() -> None:
    """Start the process of the next query in the background."""
    processes.begin()


def _engine(workspace: Workspace, options: QueryKeywords) -> Local | OnSpark:
    refuse_unknown(options, QueryKeywords)
    engine, memory = options.get("engine", ENGINES[0]), options.get("memory")
    if engine not in ENGINES:
        raise UsageError(f"unknown engine {engine!r}", hint=f"engines are {' and '.join(ENGINES)}")
    if engine == ENGINES[0]:
        return embedded(workspace, memory)
    if memory is not None:
        raise UsageError("`memory` is for the embedded engine", hint="Spark has what spark.driverMemory says")
    return on_spark(workspace)


def _pins(workspace: Workspace, options: QueryKeywords) -> Pins:
    at = options.get("as_at")
    return Pins(workspace._files, as_at=maybe_time(at))


def embedded(workspace: Workspace, memory: int | None = None, **options: Any) -> Local:
    """The embedded engine, as the person who sits before it has it; `options` are more of `Embedded`'s."""
    if memory is not None:
        options["memory"] = memory
    run = workspace._files.run_folder
    return Local(Embedded(spill=run, checked=checked_slices(workspace), **options))


def on_spark(workspace: Workspace) -> OnSpark:
    """Spark, in the workspace's session."""
    from odfchain.query.on_spark import OnSpark

    return OnSpark(workspace.session(), checked_slices(workspace))


def checked_slices(workspace: Workspace) -> CheckedSlices:
    """The cache of hashed slices that all commands of the workspace share."""
    if workspace._checked is None:
        files = workspace._files
        most = files.config.branches.cache_bytes
        workspace._checked = CheckedSlices(files.run_folder / "checked-slices", state_bytes=most)
    return workspace._checked


# States and histories of a dataset, from what was computed and hashed before where that is here.


def state_of(scan: Scan) -> pa.Table:
    """The rows in force that a scan asks for, in order of offset; errors as `Scan.to_arrow`."""
    if scan.summary.schema is None:  # before the first data no row is in force, whatever the key
        return read_all(scan.dataset._files, scan.summary, scan.columns)
    checked = checked_slices(scan.dataset._workspace)
    relation = Relation(_pin(scan), StateOf(scan.event_time, scan.key))
    found = relation.state(checked, scan.columns)
    checked.keep()
    return found


def history_of_row(
    workspace: Workspace, dataset: DatasetFiles, key: Mapping[str, Any], limit: int | None
) -> list[RowChange]:
    """The changes of one row, newest first; errors as `Dataset.history`."""
    from odfchain.branches.row_history import history_of

    checked = checked_slices(workspace)
    state = DatasetState.read(dataset.chain)
    found = history_of(dataset, state, key, limit=limit, locate=checked.located(dataset))
    checked.keep()
    return found


def _pin(scan: Scan) -> Pin:
    return Pin(scan.dataset.label, scan.dataset._files, scan.summary)


# Signed answers to queries, and whether they are true.

PROVED_ROWS = 100
"""Rows of an answer unless more are asked for [count]; what nodes answer with."""


def prove(workspace: Workspace, query: str, options: ProofKeywords) -> Answer:
    """The answer to `Workspace.prove`.

    Raises:
        UsageError: there is no such option, engine or format.
        And the errors that are named there.
    """
    from odfchain.query import proofs
    from odfchain.query.answers import FORMATS, SCHEMA_FORMAT

    refuse_unknown(options, ProofKeywords)
    if options.get("engine", "datafusion") != "datafusion":
        raise UsageError("signed answers are computed by datafusion", hint="leave the engine out")
    if options.get("params"):
        raise UsageError("a signed answer has no parameters", hint="write the values into the query")
    data_format = options.get("data_format") or FORMATS[0]
    if data_format not in FORMATS:
        raise UsageError(f"unknown format {data_format!r}", hint=f"formats are {', '.join(FORMATS)}")
    schema = options.get("schema_format")
    if schema not in (None, SCHEMA_FORMAT):
        raise UsageError(f"unknown schema format {schema!r}", hint=f"the schema format is {SCHEMA_FORMAT}")
    at, limit = options.get("as_at"), options.get("limit")
    return proofs.prove(
        workspace._files,
        query,
        Pins(workspace._files, as_at=maybe_time(at)),
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
    from odfchain.query.answers import Answer

    return proof if isinstance(proof, Answer) else Answer.of_file(proof)


def described(answer: Answer) -> str:
    """A signed answer and the faults of its file: JSON whose numbers keep their text."""
    from odfchain.query.answers import written

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
    """Check a signed answer: hashes, signature, its blocks, and the query computed once more.

    `proof` is an answer or its file; `seconds` is how long computing it may take.

    Raises:
        StoreError: the file cannot be read, or a dataset is damaged here.
        SignatureError: it is no signed answer.
    """
    from odfchain.query.proofs import verify

    return verify(read_proof(proof), workspace._files, seconds=seconds)


def ask_node(proof: str | os.PathLike[str] | Answer, url: str, *, token: str | None = None) -> ProofVerdict:
    """Ask the node at `url` to check a signed answer.

    Raises:
        StoreError, SignatureError: as `read_proof`.
        TransferError: the node cannot be reached, refuses, or is none.
    """
    from odfchain.query.proofs import verdict_of_node
    from odfchain.transfer.peer import as_transfer_errors

    with as_transfer_errors():
        return verdict_of_node(read_proof(proof), url, token=token)
