"""SQL queries of a workspace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from odfchain.errors import UsageError
from odfchain.query.answers import Answer
from odfchain.query.embedded import Embedded
from odfchain.query.processes import Local
from odfchain.query.resolved_tables import CheckedSlices, Pins
from odfchain.query.sql_text import Query
from odfchain.spark.known_errors import with_own_errors
from odfchain.workspace.options import QueryOptions, maybe_time

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.query.on_spark import OnSpark
    from odfchain.query.proofs import ProofVerdict


ENGINES = ("datafusion", "spark")


def explained(workspace: Workspace, query: str, options: Mapping[str, Any]) -> str:
    """How the engine would answer, as text; nothing is computed."""
    asked = QueryOptions(query, **options)
    return engine(workspace, asked).explain(query_of(workspace, asked))


def engine(workspace: Workspace, options: QueryOptions) -> Local | OnSpark:
    """The engine that the options name."""
    name, memory = options.engine, options.memory
    if name not in ENGINES:
        raise UsageError(f"unknown engine {name!r}", hint=f"engines are {' and '.join(ENGINES)}")
    if name == ENGINES[0]:
        return embedded(workspace, memory)
    if memory is not None:
        raise UsageError("`memory` is for the embedded engine", hint="Spark has what spark.driverMemory says")
    from odfchain.query.on_spark import OnSpark

    return OnSpark(workspace.session(), checked_slices(workspace))


def query_of(workspace: Workspace, options: QueryOptions) -> Query:
    """The query that is asked of an engine."""
    named = pins(workspace, options)
    return Query(options.query, named, params=options.params, limit=options.limit, seconds=options.seconds)


def pins(workspace: Workspace, options: QueryOptions) -> Pins:
    """What names without a point mean."""
    return Pins(workspace._files, as_at=maybe_time(options.as_at))


def embedded(workspace: Workspace, memory: int | None = None, **options: Any) -> Local:
    """The embedded engine, as the person who sits before it has it; `options` are more of `Embedded`'s."""
    if memory is not None:
        options["memory"] = memory
    run = workspace._files.run_folder
    return Local(Embedded(spill=run, checked=checked_slices(workspace), **options))


def checked_slices(workspace: Workspace) -> CheckedSlices:
    """The cache of hashed slices that all commands of the workspace share."""
    if workspace._checked is None:
        files = workspace._files
        most = files.config.branches.cache_bytes
        workspace._checked = CheckedSlices(files.run_folder / "checked-slices", state_bytes=most)
    return workspace._checked


# Whether signed answers to queries are true.


@with_own_errors
def verify_proof(
    proof: str | os.PathLike[str] | Answer, workspace: Workspace, *, seconds: float | None = None
) -> ProofVerdict:
    """Check a signed answer: hashes, signature, its blocks, and the query computed once more.

    `proof` is an answer or its file; `seconds` is how long computing it may take.
    """
    from odfchain.query.proofs import ProofVerdict

    answer = proof if isinstance(proof, Answer) else Answer.of_file(proof)
    return ProofVerdict.of(answer, workspace._files, seconds=seconds)


if __name__ == "__main__":  # the process that answers its user's queries; what is below knows no stores
    from odfchain.api.workspace import connect
    from odfchain.query.processes import serve

    serve(connect)
