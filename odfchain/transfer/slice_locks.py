"""Locks of a dataset's own slices and checkpoints: the table of assets says where our bytes lie, too.

`item_id` is the dataset's DID, `asset_key` like `data/f1620…`, and `file_checksum` that name without its `f`:
a multihash in hex is exactly what STAC's `file:checksum` is. Hashes decide what is read from such places, so
they need no trust. Source: RFC-047.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from odfchain.assets.hrefs import public_href
from odfchain.assets.lock_table import AssetRow, Facts
from odfchain.assets.objects import Stores, pieces
from odfchain.errors import AccessError, OdfchainError, TransferError, UsageError
from odfchain.odf.identity import DatasetId
from odfchain.progress import SILENT, Progress
from odfchain.storage.http_connection import Pieces
from odfchain.storage.http_rules import Deadline
from odfchain.storage.locations import Location
from odfchain.transfer.peer import AbsentError, Opened, Peer
from odfchain.transfer.slice_files import FetchOutcome, data_objects, fetch_missing
from odfchain.workspace.dataset_files import DatasetFiles


def slice_rows(dataset: DatasetFiles, at: Location) -> list[AssetRow]:
    """A row for each slice and checkpoint of a dataset, as if they lay below a place."""
    found = dict[str, AssetRow]()
    for item in data_objects(dataset):
        facts = Facts(item.size, file_checksum=str(item.key.name).removeprefix("f"))
        found[str(item.key)] = AssetRow(str(dataset.id), str(item.key), at.below(str(item.key)), facts)
    return list(found.values())


def places_of(rows: Iterable[AssetRow], dataset_id: DatasetId) -> dict[str, list[Location]]:
    """Locations of a dataset's objects in locks, by their keys; rows of other datasets are ignored."""
    found = dict[str, list[Location]]()
    for row in rows:
        if row.item_id == str(dataset_id):
            found.setdefault(row.asset_key, []).append(row.location)
    return found


def fetch_from_places(
    dataset: DatasetFiles,
    places: Mapping[str, Sequence[Location]],
    stores: Stores,
    *,
    parallel: int = 10,
    progress: Progress = SILENT,
) -> FetchOutcome:
    """The missing slices and checkpoints come from places of locks, each from one that has it unchanged."""
    if not places:
        raise UsageError(
            f"{dataset.alias}: no row of the lock is of this dataset",
            hint="`odfchain assets derive --slices` makes a lock of a dataset's slices",
        )
    for turn in range(1, max(map(len, places.values()))):
        with contextlib.suppress(TransferError):  # what came whole stays for the next turn
            peer = LockPeer(places, stores, turn - 1)
            return fetch_missing(dataset, peer, parallel=parallel, progress=progress)
    return fetch_missing(dataset, LockPeer(places, stores, -1), parallel=parallel, progress=progress)


class LockPeer(Peer):
    """The objects that rows of locks name: the first place of each that answers, from the `turn`-th on.

    It is read-only, and has neither a head nor blocks.
    """

    def __init__(self, places: Mapping[str, Sequence[Location]], stores: Stores, turn: int = 0) -> None:
        super().__init__("the places of locks, ")
        self._places = places
        self._stores = stores
        self._turn = turn

    @contextlib.contextmanager
    def open(self, key: str, start: int, cap: int, deadline: Deadline, /) -> Iterator[Opened]:  # noqa: ARG002
        """As `Peer`; always from the beginning."""
        found = list(self._places.get(key, ()))
        turn = self._turn % len(found) if found else 0
        problems = list[OdfchainError]()
        for place in found[turn:] + found[:turn]:
            deadline.check()
            content = pieces(place, self._stores)
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

    def close(self) -> None:
        """Nothing stays open."""
