"""How a dataset is to be pulled, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from odfchain.errors import UsageError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.model.timestamp import Timestamp
from odfchain.transfer.slice_files import Selection
from odfchain.trust.signature_policy import SignaturePolicy
from odfchain.trust.signed_head import HeadSignature


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """How to pull.

    Without a selection (`metadata_only`, `since`, `last`) a partial copy keeps the one it has.
    """

    force: bool = False
    """Overwrite a dataset that is ahead or diverged, and accept an older head than was seen before."""
    metadata_only: bool = False
    since: Timestamp | None = None
    last: int | None = None
    parallel: int = 10
    """Objects received at the same time."""
    signature: SignaturePolicy | None = None
    """What is wanted of the head's signature; None is nothing more than what is set elsewhere."""
    dataset_id: DatasetId | None = None
    """The dataset that has to come; None is whatever is there."""
    onto: Multihash | None = None
    """The head that a copy which is here has to have until then; None is whatever it has."""
    only: Multihash | None = None
    """The head that the peer has to have; None is whatever it has."""
    on_demand: bool = False
    """Slices come when they are read: none is brought, and the copy is not marked for that."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant.

        Raises:
            UsageError: no transfer at all, or a selection that contradicts itself.
        """
        if self.parallel < 1:
            raise UsageError(f"the number of parallel transfers is at least 1, not {self.parallel}")
        _ = self.selection

    @property
    def selection(self) -> Selection:
        """The objects that are asked for."""
        return Selection(self.metadata_only or self.on_demand, self.since, self.last)


DEFAULTS = SyncOptions()


class SyncStatus(Enum):
    """What a pull did."""

    UP_TO_DATE = "up-to-date"
    CREATED = "created"
    UPDATED = "updated"
    OVERWRITTEN = "overwritten"


@dataclass(frozen=True, slots=True)
class SyncOutcome:
    """What was done: the heads, the blocks written, and the objects and bytes (blocks' too) received."""

    status: SyncStatus
    old: Multihash | None
    new: Multihash
    blocks: int = 0
    objects: int = 0
    bytes: int = 0
    missing_slices: int = 0
    """Slices that are not here, because the copy is partial."""
    signature: HeadSignature | None = None
    """What the peer's signature of the head is worth."""
    attestations: int = 0
    """Attestations of auditors that came in."""
    snapshots: int = 0
    """Manifests and profiles that came in, beside the objects of the chain."""
    warnings: tuple[str, ...] = ()
    """What the user has to hear."""
