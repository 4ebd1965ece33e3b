"""Which slices have to be read for a condition: all but those whose footers say that no row can match."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from odfchain.slices.skipping import Condition, may_match, understood
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
