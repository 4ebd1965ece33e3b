"""The profile of the rows in force where one is here already: for views that must not take long."""

from __future__ import annotations

import contextlib
from typing import Any

from odfchain.errors import CodecError, StoreError
from odfchain.ids.multihash import Multihash
from odfchain.profile.kept_profiles import kept_profile
from odfchain.profile.profile_reader import read_profile
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState


def known_profile(dataset: DatasetFiles, state: DatasetState) -> dict[str, Any] | None:
    """What was computed here, or published by the owner, of a state's rows; None where neither is here.

    It may be of the last block that has rows: blocks after it have the same.
    """
    last = next(state.slices_newest_first(), None)
    for block in [state.head] if last is None else [state.head, last.block_hash]:
        if (found := kept_profile(dataset, block) or owners_profile(dataset, block)) is not None:
            return found
    return None


def owners_profile(dataset: DatasetFiles, block: Multihash) -> dict[str, Any] | None:
    """What the owner has signed of a block, where it is here and whole; None where it is not."""
    from odfchain.manifest.published_objects import object_of, published  # noqa: PLC0415 - who compares files
    from odfchain.trust.snapshot_lines import SnapshotKind  # noqa: PLC0415 - reads no lines

    for line in published(dataset, SnapshotKind.PROFILE):
        if line.by_owner and line.block == block:
            with contextlib.suppress(StoreError, CodecError):
                return read_profile(object_of(dataset, line))
    return None
