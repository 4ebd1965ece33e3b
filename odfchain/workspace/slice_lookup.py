"""Which slices have to be read for a condition: all but those whose footers say that no row can match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from odfchain.odf.events import AddPushSource, MetadataEvent, SetPollingSource
from odfchain.odf.row_hash import Numbers
from odfchain.slices.skipping import Condition, may_match, understood
from odfchain.slices.state import SliceFile, Walk, hashed_rows, takes_back
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import SliceRef
from odfchain.workspace.read_slices import KeptFooters


def needed_slices(
    dataset: DatasetFiles,
    refs: Sequence[SliceRef],
    condition: Condition,
    *,
    locate: Callable[[SliceRef], Path] | None = None,
    signed_nan: bool = False,
) -> list[SliceRef]:
    """The slices that may hold a row of which a condition is true, in their order.

    What is known of verified bytes is believed, and such a slice need not be here; others are hashed first.
    `locate` gives files that hash to their names, and `signed_nan` is as in `may_match`.
    """
    if not understood(condition):
        return list(refs)
    kept = KeptFooters(dataset)
    return [ref for ref in refs if may_match(kept.stats(ref, locate), condition, signed_nan=signed_nan)]


# What is taken back was there: a retraction, or the old half of a correction, equals a row that is in
# force.
#
# What is in force without a key says `odfchain.slices.state`. Commits of what an engine or a changelog
# brought and check 10 of verification use this one rule. Slices are decoded once more for it, and what is
# kept are hashes of the rows that are taken back and of the rows that look like them, so memory follows the
# number of retractions. Source: specification "Retractions and Corrections".

SOURCES = AddPushSource.KIND, SetPollingSource.KIND


def are_of_several_keys(events: Iterable[MetadataEvent]) -> bool:
    """True if the sources that these events define tell records apart by different keys."""
    keys = {e.merge.primary_key for e in events if isinstance(e, AddPushSource | SetPollingSource)}
    # with several keys, what one source took back another may take back again
    return len(keys) > 1


def taken_back_in_vain(
    slices: Sequence[SliceFile], asked: Sequence[SliceFile], *, in_force: bool = True
) -> Numbers:
    """Offsets of the rows of `asked` that take back what is not in force, in order.

    `slices` are all of the dataset, oldest first, `asked` some of them. Without `in_force` the row that is
    taken back may have been taken back before.
    """
    taken = []
    for item in asked:
        for offsets, operations, hashes in hashed_rows(item):
            if (back := takes_back(operations)).any():
                taken.append((offsets[back], hashes[back]))
    if not taken:
        return np.zeros(0, dtype=np.uint64)
    wanted = np.unique(np.concatenate([hashes for _, hashes in taken]))
    alike: list[tuple[Numbers, Numbers, Numbers]] = []
    last = max(int(offsets[-1]) for offsets, _ in taken)
    for item in slices:
        if item.interval.start > last:
            break
        for offsets, operations, pairs in hashed_rows(item):
            # one half first: most rows are taken back by nothing
            like = np.isin(pairs["low"], wanted["low"])
            if like.any():
                like[like] = np.isin(pairs[like], wanted)
                alike.append((offsets[like], takes_back(operations[like]), pairs[like]))
    every, backs, pairs = (np.concatenate(parts) for parts in zip(*alike, strict=True))
    walk = Walk.of(every, backs, pairs)
    wrong = np.sort(every[walk.unmatched if in_force else walk.never_there])
    within = np.zeros(len(wrong), dtype=bool)
    for item in asked:
        within |= (wrong >= item.interval.start) & (wrong <= item.interval.end)
    found: Numbers = wrong[within]
    return found
