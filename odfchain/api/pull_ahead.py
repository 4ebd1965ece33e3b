"""Sources of several datasets are fetched side by side; what is new is recorded one after the other."""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from odfchain.api.pull_targets import PullResult, PullTarget, Way, pull, pull_options
from odfchain.progress import Progress

if TYPE_CHECKING:
    from odfchain.api.dataset import Dataset
    from odfchain.api.workspace import Workspace
    from odfchain.ingest.news import FetchAhead

_AT_ONCE = 4
"""Sources that are fetched, or wait for their turn with what was fetched: so much is on the disk at most."""


class _Ahead:
    def __init__(self, workspace: Workspace, targets: Iterable[PullTarget], given: Mapping[str, Any]) -> None:
        self._workspace = workspace
        self._given = given
        self._waiting = deque(target for target in targets if target.way is Way.SOURCE)
        self._begun: dict[Dataset, FetchAhead] = {}
        self._taken: FetchAhead | None = None

    def of(self, target: PullTarget) -> FetchAhead | None:
        """The fetch for a target whose turn has come; those of the next ones go on meanwhile."""
        from odfchain.ingest.news import FetchAhead

        while self._waiting and len(self._begun) < _AT_ONCE:
            dataset = self._waiting.popleft().dataset
            assert dataset is not None  # noqa: S101 - sources are of datasets that are here
            options = functools.partial(pull_options, dataset, self._given)
            begin = self._workspace._engines.begin
            self._begun[dataset] = FetchAhead(dataset._files, options, begin)
        self.end()
        self._taken = None if target.dataset is None else self._begun.pop(target.dataset, None)
        return self._taken

    def end(self) -> None:
        """The last one that was taken is not used any more."""
        if self._taken is not None:
            self._taken.close()
            self._taken = None

    def close(self) -> None:
        """What was not taken is given up."""
        self.end()
        for ahead in self._begun.values():
            ahead.stop()
        for ahead in self._begun.values():
            ahead.close()


@contextlib.contextmanager
def pulling(
    workspace: Workspace,
    targets: list[PullTarget],
    name: str | None,
    token: str | None,
    given: Mapping[str, Any],
) -> Iterator[Callable[[PullTarget, Progress], PullResult]]:
    """Gives what pulls one target, as `Workspace.pull`; to be called for each of them, in their order."""
    several = targets if sum(target.way is Way.SOURCE for target in targets) > 1 else []
    with contextlib.closing(_Ahead(workspace, several, given)) as ahead:
        yield lambda target, progress: pull(workspace, target, name, given, token, progress, ahead.of(target))
