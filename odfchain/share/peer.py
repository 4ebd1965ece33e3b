"""What another place is to this one: somewhere to read a dataset from, perhaps to write one to.

Whoever reads believes nothing: blocks and objects are hashed as they arrive, and what does not hash to its
name is never handed on. `tests/share/test_peer_contract.py` runs one suite over all kinds of peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from odfchain.ids.multihash import Multihash
from odfchain.progress import Progress
from odfchain.share.layout import ObjectKey


class Peer(Protocol):
    """A dataset somewhere else. Methods may be called from several threads.

    Raises, all of them:
        CorruptedPeerError: what was sent is not what was asked for; the message names object and peer.
        AccessError: the peer refuses.
        TransferError: it cannot be reached, is too slow, or sends too much.
    """

    @property
    def where(self) -> str:
        """The URL, for messages; without credentials."""

    def head(self) -> Multihash | None:
        """The newest block; None when there is no such dataset."""

    def block(self, name: Multihash) -> bytes:
        """The bytes of a block, which hash to its name; at most `LIMITS.block_bytes`."""

    def fetch(self, key: ObjectKey, size: int, target: Path, progress: Progress) -> None:
        """Bring an object of exactly `size` bytes, which hashes to its name, into a file.

        What a broken run left at `target` is continued where the peer can do that. After an error about the
        content nothing is left there. `progress` advances by bytes.
        """

    def hint(self, limit: int) -> Sequence[Multihash] | None:
        """Hashes of the blocks, seed first, as the peer says; at most `limit`. None when it says nothing.

        Nothing depends on its truth: it only saves time.
        """

    def close(self) -> None:
        """Let go of connections."""


class WritablePeer(Peer, Protocol):
    """A dataset somewhere else that may be written to."""

    def contains(self, key: ObjectKey) -> bool:
        """Whether an object is there (its bytes are not read)."""

    def put(self, key: ObjectKey, source: Path, progress: Progress) -> None:
        """Durably store a file that hashes to the key's name; storing it again changes nothing."""

    def swap_head(self, expected: Multihash | None, new: Multihash) -> None:
        """Point the head at `new` if it points at `expected` now (None: there is none).

        Raises:
            RefConflictError: it points elsewhere; nothing is changed.
        """

    def put_hint(self, hashes: Sequence[Multihash]) -> None:
        """Say what the chain's blocks are, seed first."""

    @property
    def caveat(self) -> str | None:
        """What the user should know of how the head is swapped; None for a true compare-and-swap."""
