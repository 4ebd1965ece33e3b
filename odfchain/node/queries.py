"""SQL of others: a few queries at a time, each in a process behind walls, over what they may ask.

An answer that a page shows is kept for a while, so that what is signed is that answer and not another one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module

from odfchain.node.clients import Client
from odfchain.profiles.pages import compile_template
from odfchain.progress import Silent
from odfchain.query.answers import canonical, hash_of
from odfchain.query.embedded import Embedded
from odfchain.query.proofs import Draft, Run, repeatable
from odfchain.query.results import QueryResult
from odfchain.query.slots import RUNNING, WAITING, Slots
from odfchain.query.sql_text import Query
from odfchain.query.walled import Worker
from odfchain.transfer.access_tokens import Reader
from odfchain.workspace.workspace_files import WorkspaceFiles

# How long an answer can be signed [s], and what all of them may take [bytes].
_KEPT_SECONDS, _KEPT_BYTES = 600.0, 64 << 20


@dataclass(frozen=True)
class _Notes(Silent):
    said: Callable[[str], None]

    def note(self, text: str) -> None:
        self.said(text)


@dataclass(frozen=True, slots=True)
class _Kept:
    draft: Draft
    size: int
    until: float


class Queries:
    """What answers the SQL of all clients of a node. May be called from several threads."""

    def __init__(self, files: WorkspaceFiles, problem: Callable[[str], None], *, walled: bool) -> None:
        """Where they are `walled`, there is no such thing without walls: `EngineError`."""
        if walled:
            from odfchain.transform.sandbox import require_sandbox

            require_sandbox(otherwise="; or answer without walls: --sql alone")
        self._files = files
        self._worker = Worker(sandbox="require" if walled else "prefer", progress=_Notes(problem))
        # those that wait for a process hold a thread each, and pages have others
        self.threads = ThreadPoolExecutor(RUNNING + WAITING + 4, thread_name_prefix="odfchain-asked")
        self._kept: dict[tuple[str, str, str], _Kept] = {}
        self._lock = threading.Lock()

    @cached_property
    def slots(self) -> Slots:
        """The processes; the first one is started with the node."""
        return Slots(self._worker, self._files)

    def load(self) -> None:
        """Return when the first answer, and its page, will be as quick as the next."""
        for name in ("sqlglot.dialects.postgres", "odfchain.query.answers", "pyarrow.compute"):
            import_module(name)
        compile_template("sql")
        self.slots.wait_until_loaded()

    def close(self) -> None:
        """Answer nothing any more."""
        self.slots.close()
        self.threads.shutdown(cancel_futures=True)

    def run_for(self, client: Client, engine: Embedded | None = None) -> Run:
        """What answers a query as a whole, for a client that may go away."""

        def run(query: Query) -> QueryResult:
            with self.rows(query, client, engine, pieces=False) as result:
                result.to_arrow()
                return result

        return run

    def run_again_for(self, client: Client) -> Run:
        """As `run_for`, by the engine of signed answers."""
        return self.run_for(client, repeatable())

    @contextlib.contextmanager
    def rows(
        self, query: Query, client: Client, engine: Embedded | None = None, *, pieces: bool = True
    ) -> Iterator[QueryResult]:
        """The rows of a query, any number of them where they come in `pieces`.

        Raises:
            BusyError: too many queries wait already.
            QueryError, EngineError, DatasetNotFoundError, PointNotFoundError: as workers say.
        """
        worker = self._worker if engine is None else replace(self._worker, engine=engine, anew=True)
        request = worker.request(query, pieces=pieces)
        slots = self.slots
        with (
            client.ending(slots.wake),
            slots.process(query.pins, lambda: client.is_gone) as process,
            client.ending(process.kill),
        ):
            yield process.answer(request, query.pins)

    # --- answers that can be signed --------------------------------------------------------------------

    def keep(self, reader: Reader, draft: Draft) -> tuple[str, str]:
        """Keep the answer for this reader; what it is kept by: the hashes of the question and of the rows."""
        now, key = time.monotonic(), (hash_of(draft.asked), hash_of(draft.output))
        kept = _Kept(replace(draft, result=None), len(canonical(draft.output)), now + _KEPT_SECONDS)
        with self._lock:
            self._kept.pop((_whose(reader), *key), None)
            self._kept[_whose(reader), *key] = kept
            size = sum(each.size for each in self._kept.values())
            for old, each in list(self._kept.items()):  # the oldest first
                if size > _KEPT_BYTES or each.until < now:
                    size -= self._kept.pop(old).size
        return key

    def kept(self, reader: Reader, asked: str, rows: str) -> Draft | None:
        """The answer with these hashes that this reader was shown; None where it is not kept any more."""
        with self._lock:
            found = self._kept.get((_whose(reader), asked, rows))
        return found.draft if found is not None and found.until > time.monotonic() else None


def _whose(reader: Reader) -> str:
    return reader.token.sha3 if reader.token is not None else ""
