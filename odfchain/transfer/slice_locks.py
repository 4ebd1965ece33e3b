"""The slices and checkpoints of a dataset where locks of assets say that they lie.

Hashes decide what is read from such places, so they need no trust. Source: RFC-047.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from odfchain.assets.hrefs import public_href
from odfchain.assets.locks import AssetLock
from odfchain.assets.objects import StoreOptions
from odfchain.errors import AccessError, OdfchainError, TransferError, UsageError
from odfchain.progress import SILENT, Progress
from odfchain.storage.http_rules import Deadline, Pieces
from odfchain.storage.locations import Location
from odfchain.storage.store import AbsentError, Opened, Store, Transport
from odfchain.transfer.pulling import FetchOutcome, fetch_missing
from odfchain.workspace.dataset_files import DatasetFiles


class LockTransport(Transport):
    """The objects of a dataset that rows of locks name, each from the first place that has it unchanged.

    It is read-only, and has neither a head nor blocks.
    """

    def __init__(self, locks: Sequence[AssetLock], dataset: DatasetFiles, options: StoreOptions) -> None:
        super().__init__("the places of locks, ")
        # relative paths are meaningful in the folder of their lock only, and judged as its own
        self._dataset, self._stores, self._turn = dataset, options.stores(Path.cwd(), ours=True), 0
        self._places: dict[str, list[Location]] = {}
        for lock in locks:
            own = lock.stores(options)
            for row in lock.rows:
                if row.item_id == str(dataset.id):
                    place = row.location
                    if place.store == "file":
                        place = replace(place, key=str(own.file_of(place)))
                    self._places.setdefault(row.asset_key, []).append(place)

    def bring(self, *, parallel: int = 10, progress: Progress = SILENT) -> FetchOutcome:
        """What is missing is here, each from a place that has it."""
        if not self._places:
            raise UsageError(
                f"{self._dataset.alias}: no row of the lock is of this dataset",
                hint="`odfchain assets derive --slices` makes a lock of a dataset's slices",
            )
        for turn in range(max(map(len, self._places.values())) - 1):
            self._turn = turn
            with contextlib.suppress(TransferError):  # what came whole stays for the next turn
                return fetch_missing(self._dataset, Store(self), parallel=parallel, progress=progress)
        self._turn = -1
        return fetch_missing(self._dataset, Store(self), parallel=parallel, progress=progress)

    @contextlib.contextmanager
    def open(self, key: str, start: int, cap: int, deadline: Deadline, /) -> Iterator[Opened]:  # noqa: ARG002
        """As `Transport`; always from the beginning."""
        found = list(self._places.get(key, ()))
        turn = self._turn % len(found) if found else 0
        problems = list[OdfchainError]()
        for place in found[turn:] + found[:turn]:
            deadline.check()
            content = self._stores.pieces(place)
            try:
                first = next(content, memoryview(b""))
            except OdfchainError as error:
                problems.append(error)
                continue
            yield Opened(public_href(place.href()), Pieces(chain([first], content)), None)
            return
        if not problems:
            raise AbsentError(f"{key}: no lock names it")
        said = "; ".join(map(str, problems))
        kind = AccessError if all(isinstance(error, AccessError) for error in problems) else TransferError
        raise kind(f"{key}: {said}")
