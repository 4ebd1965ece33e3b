"""What a server has of datasets in a store: heads are asked for now and then, slices when they are read.

What was brought is published as in any workspace. Where the store cannot be reached, what is here is shown,
and the problem is told. Whoever asks for a slice that is nowhere costs the store one request; few do at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from odfchain.errors import OdfchainError
from odfchain.limits import SHARING
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.transfer.public_layout import ObjectKey, ObjectKind

_SECONDS = 5.0
"""How old what is known of heads may be [s]."""
_PATIENCE = 5.0
"""How long a reader waits for a store that does not answer before he sees what is here [s]."""


class SharedCopy:
    """The copy of one workspace; for one event loop."""

    def __init__(
        self, workspace: WorkspaceFiles, problem: Callable[[str], None], *, branches: bool = False
    ) -> None:
        self._workspace = workspace
        self._problem = problem
        self._branches = branches
        self._asked: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._began = 0.0
        self._bringing = asyncio.Semaphore(SHARING.parallel)

    async def renew(self) -> None:
        """The datasets are here as they were in the store a few seconds ago, their blocks checked."""
        now = time.monotonic()
        if self._asking is None:
            if self._asked is not None and now - self._asked < _SECONDS:
                return
            self._began = now
            self._asking = asyncio.create_task(self._ask())
        await asyncio.wait({self._asking}, timeout=max(0.0, self._began + _PATIENCE - now))

    def expire(self) -> None:
        """What is known of heads may be older than what somebody has just been told: it is asked again."""
        self._asked = None

    async def _ask(self) -> None:
        self._asked = self._began
        try:
            await asyncio.to_thread(self._open)
        except OdfchainError as error:
            self._problem(str(error))
        finally:
            self._asking = None
            if self._asked is not None:
                self._asked = time.monotonic()

    def _open(self) -> None:
        self._workspace.shared.renew()
        for dataset in self._workspace.datasets():
            if self._branches:
                dataset.shared.branches(dataset.folder)

    async def bring(self, dataset: DatasetFiles, key: ObjectKey) -> None:
        """A slice or checkpoint is here, if the store has it."""
        folder = dataset.folder / key.kind.value
        if key.kind not in (ObjectKind.DATA, ObjectKind.CHECKPOINT) or (folder / str(key.name)).exists():
            return
        async with self._bringing:
            await asyncio.to_thread(self._workspace.shared.objects(folder).contains, key.name)
