"""What another place is to this one: somewhere to read a dataset from, perhaps to write one to.

Whoever reads believes nothing: blocks and objects are hashed as they arrive, and what does not hash to its
name is never handed on. `tests/share/test_peer_contract.py` runs one suite over all kinds of peers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from odfchain.ids.multihash import Multihash
from odfchain.progress import Progress
from odfchain.transfer.public_layout import ObjectKey, SignedFile


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

    def signed(self, file: SignedFile) -> bytes | None:
        """A file of signed statements, of which nothing is checked but its size; None when it is not there.

        A peer that hands out the head and refuses this file is taken to have none: many static hosts answer
        so for what is absent.
        """

    def hint(self, limit: int) -> Sequence[Multihash] | None:
        """Hashes of the blocks, seed first, as the peer says; at most `limit`. None when it says nothing.

        Nothing depends on its truth: it only saves time.
        """

    def close(self) -> None:
        """Let go of connections."""


class BlockPipeline(Protocol):
    """Blocks that are asked for ahead and received in the same order. For one thread."""

    def ask(self, names: Sequence[Multihash]) -> None:
        """Ask for blocks; nothing is waited for, and nothing is raised."""

    def receive(self) -> bytes | None:
        """The bytes of the next block in the order of asking, which hash to its name.

        None: no more will come this way, for whatever reason; asking for the block alone says which.
        """

    def close(self) -> None:
        """Forget what was asked for and has not come."""


@runtime_checkable
class PipeliningPeer(Peer, Protocol):
    """A peer that may be asked for many blocks without waiting for each."""

    def pipeline(self) -> BlockPipeline | None:
        """A way to do that; None when it is not known to work now."""


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

    def put_signed(self, file: SignedFile, data: bytes | None) -> None:
        """Durably replace a file of signed statements; None removes it."""

    @property
    def caveat(self) -> str | None:
        """What the user should know of how the head is swapped; None for a true compare-and-swap."""
