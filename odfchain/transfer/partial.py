"""Partial copies: datasets of which slices may be missing on purpose.

    info/partial            JSON: which objects later pulls bring; the dataset is partial while this is there

The chain is always complete, so what is missing is known by hash and size, and any peer may supply it:
neither its head nor its blocks are asked for (RFC-021).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odfchain.errors import OdfchainError, StoreError
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.references import branch_names, lock_path
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD
from odfchain.transfer.peer import Peer
from odfchain.transfer.slice_files import EVERYTHING, DataObject, Selection, absent, bring, objects_of

if TYPE_CHECKING:
    from odfchain.manifest.where import Where

_READ_BYTES = 4096
_FIELDS = {"metadataOnly", "since", "last"}


@dataclass(frozen=True, slots=True)
class FetchOutcome:
    """What was brought, and how many slices are still missing."""

    objects: int
    bytes: int
    missing_slices: int
    skipped: int = 0
    """Missing slices that have no row of which the condition is true."""
    unknown: int = 0
    """Slices that were brought because nobody who is believed says what is in them."""
    understood: bool = True
    """Whether any of the condition can leave a slice out."""


def mark_path(dataset: DatasetFiles) -> Path:
    """The file that marks a partial copy."""
    return dataset.folder / "info" / "partial"


def is_partial(dataset: DatasetFiles) -> bool:
    """Whether slices of the dataset may be missing on purpose."""
    return mark_path(dataset).is_file()


def selection_of(dataset: DatasetFiles) -> Selection:
    """What later pulls bring: everything, unless the dataset is partial.

    Raises:
        StoreError: the mark cannot be read, or is damaged.
    """
    path = mark_path(dataset)
    data = fsio.read_start(path, _READ_BYTES)
    if data is None:
        return EVERYTHING
    try:
        return _parse(json.loads(data))
    except (ValueError, RecursionError, OdfchainError):
        raise StoreError(
            f"{path}: the mark of a partial copy is damaged",
            hint=f"remove {path}, then run `odfchain fetch {dataset.alias}` or pull with the options again",
        ) from None


def _parse(found: Any) -> Selection:
    if not isinstance(found, dict) or not found.keys() <= _FIELDS:
        raise ValueError
    only, since, last = found.get("metadataOnly", False), found.get("since"), found.get("last")
    if not isinstance(only, bool) or not isinstance(since, str | None) or not isinstance(last, int | None):
        raise ValueError  # noqa: TRY004 - one kind of damage
    return Selection(only, Timestamp.parse(since) if since is not None else None, last)


def set_selection(dataset: DatasetFiles, selection: Selection) -> None:
    """Durably mark the dataset as a partial copy with this selection."""
    found = {
        "metadataOnly": selection.metadata_only,
        "since": None if selection.since is None else str(selection.since),
        "last": selection.last,
    }
    fsio.replace_file(mark_path(dataset), json.dumps(found).encode())


def data_objects(dataset: DatasetFiles) -> list[DataObject]:
    """Every slice and checkpoint that the chain names, oldest first."""
    blocks = DatasetState.read(dataset.chain).data_blocks()
    newest_first = [found for hashed in blocks for found in reversed(list(objects_of(hashed.block)))]
    return newest_first[::-1]


def missing_objects(dataset: DatasetFiles) -> list[DataObject]:
    """Slices and checkpoints that the chain names and no file of their size is there for, oldest first."""
    return absent(dataset, data_objects(dataset))


def fetch_missing(
    dataset: DatasetFiles,
    peer: Peer,
    *,
    since: Timestamp | None = None,
    last: int | None = None,
    where: Where | None = None,
    parallel: int = 10,
    progress: Progress = SILENT,
) -> FetchOutcome:
    """The missing slices and checkpoints (with `since`, `last`: those of the newest blocks) come from a peer.

    With `where` slices alone come, and none that has no row of which it is true, by what was found in its
    verified bytes here, or the owner signed (`trusted_stats`).

    None is stored before all were received. When nothing is missing any more, on branches neither, the copy
    is whole, and later pulls keep it so.
    """
    selection = Selection(since=since, last=last)
    with fsio.locked(lock_path(dataset)):
        wanted, skipped, unknown = absent(dataset, selection.of(data_objects(dataset))), 0, 0
        if where is not None:
            wanted, skipped, unknown = _that_may_match(dataset, peer, wanted, where)
        folder = incoming_folder(dataset)
        size = bring(dataset, peer, wanted, folder / "objects", parallel=parallel, progress=progress)
        shutil.rmtree(folder / "objects", ignore_errors=True)
        rest = missing_objects(dataset)
        others = [dataset.on(ref) for ref in (HEAD, *branch_names(dataset)) if ref != dataset.ref]
        if not rest and not any(missing_objects(other) for other in others):
            unmark(dataset)
    left = sum(found.offsets is not None for found in rest)
    understood = where is None or where.understood
    return FetchOutcome(len(wanted), size, left, skipped, unknown, understood)


def _that_may_match(
    dataset: DatasetFiles, peer: Peer, objects: Sequence[DataObject], where: Where
) -> tuple[list[DataObject], int, int]:
    """(the slices that may hold a row, how many others there are, of how many nothing is known)."""
    from odfchain.manifest.owner_stats import trusted_stats  # noqa: PLC0415 - few commands need it
    from odfchain.slices.skipping import may_match  # noqa: PLC0415
    from odfchain.transfer.snapshot_objects import object_from  # noqa: PLC0415

    state = DatasetState.read(dataset.chain)
    stats = trusted_stats(dataset, state, lambda line: object_from(dataset, peer, line))
    slices = [(item, stats.get(item.key.name)) for item in objects if item.offsets is not None]
    wanted = [item for item, its in slices if its is None or may_match(its, where.condition)]
    return wanted, len(slices) - len(wanted), sum(its is None for _, its in slices)


def unmark(dataset: DatasetFiles) -> None:
    """The dataset is not a partial copy any more."""
    path = mark_path(dataset)
    with fsio.storage_errors(path):
        path.unlink(missing_ok=True)


def incoming_folder(dataset: DatasetFiles) -> Path:
    """Where things for a dataset that is already here arrive; it outlives an interruption."""
    return dataset.folder / "info" / "incoming"
