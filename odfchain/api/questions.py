"""What is asked of a workspace in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from odfchain.api.options import QueryKeywords, as_time, refuse_unknown
from odfchain.errors import UsageError
from odfchain.query import local_queries
from odfchain.query.checked_slices import CheckedSlices
from odfchain.query.embedded import Embedded
from odfchain.query.local_queries import Local
from odfchain.query.pins import Pins
from odfchain.query.query_result import QueryResult

if TYPE_CHECKING:
    from odfchain.api.workspace import Workspace
    from odfchain.query.on_spark import OnSpark

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
    """A process starts for the query that comes, beside what is loaded here until then."""
    local_queries.begin()


def _engine(workspace: Workspace, options: QueryKeywords) -> Local | OnSpark:
    refuse_unknown(options, QueryKeywords)
    engine, memory = options.get("engine", ENGINES[0]), options.get("memory")
    if engine not in ENGINES:
        raise UsageError(f"there is no engine {engine!r}", hint=f"engines are {' and '.join(ENGINES)}")
    if engine == ENGINES[0]:
        return embedded(workspace, memory)
    if memory is not None:
        raise UsageError("`memory` is for the embedded engine", hint="Spark has what spark.driverMemory says")
    return on_spark(workspace)


def _pins(workspace: Workspace, options: QueryKeywords) -> Pins:
    at = options.get("as_at")
    return Pins(workspace._files, as_at=None if at is None else as_time(at))


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
    """What was hashed before, by whichever command of the workspace."""
    if workspace._checked is None:
        files = workspace._files
        most = files.config.branches.cache_bytes
        workspace._checked = CheckedSlices(files.run_folder / "checked-slices", state_bytes=most)
    return workspace._checked
