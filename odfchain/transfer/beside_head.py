"""Blocks of a peer that come in beside the head of a dataset: of a branch, or of what was merged.

They are read back to one of the dataset's own chains, so they have its Seed, and keep the append rules. They
are stored oldest first, after all slices and checkpoints that they name. Source: RFC-021, RFC-038.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from odfchain.chain.compare import Descent
from odfchain.errors import ChainsDifferError, CorruptedPeerError, DatasetsDivergedError
from odfchain.ids.multihash import Multihash
from odfchain.progress import Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store import fsio
from odfchain.store.interfaces import HEAD
from odfchain.store.local import LocalObjectStore
from odfchain.transfer.arrival import Arrival
from odfchain.transfer.differences import shortened
from odfchain.transfer.partial import incoming_folder
from odfchain.transfer.peer import Peer
from odfchain.transfer.peer_links import Spool
from odfchain.transfer.slice_files import DataObject, Selection


class Beside:
    """The blocks up to one that a peer has, and the newest of them that the dataset's chains have.

    Those are the chain of the head, and that of the branch that the dataset is opened on.
    """

    def __init__(self, dataset: DatasetFiles, arrival: Arrival) -> None:
        self.arrival = arrival
        self.new: Sequence[Multihash] = ()
        """The blocks that the chains do not have, newest first."""
        self._dataset = dataset
        self._store = LocalObjectStore(dataset.folder / "blocks")
        self._spool = Spool(arrival.area / "blocks")
        self._objects: list[DataObject] = []
        chains = [dataset.on(ref) for ref in dict.fromkeys((HEAD, dataset.ref))]
        self._own = [(on, top) for on in chains if (top := on.chain.head()) is not None]
        self._common = self._own[0][1]
        self._number = -1

    def read(self, head: Multihash) -> None:
        """The blocks up to `head` are received and checked.

        Raises:
            DatasetsDivergedError: it is a block of another dataset.
            CorruptedPeerError, AccessError, TransferError: from the peer.
            StorageFullError, StoreError, BrokenChainError: what came cannot be kept, or what is here be read.
        """
        fsio.make_folder(self._spool.folder)
        with self.arrival.links(self._spool, self._store) as links:
            descent = Descent(links, head)
            while descent.at is not None and not self._is_own(descent.number, descent.at):
                descent.step()
            if descent.at is None:
                raise self._other_dataset(head, len(descent.passed))
            self.new, self._common, self._number = descent.passed, descent.at, descent.number
            base = self._dataset.chain.history(descent.at)
            self._objects = self.arrival.check(links, self.new, base).objects if self.new else []

    def has(self, block: Multihash) -> bool:
        """Whether a block is stored, and one of the chain that was read."""
        if not self._dataset.chain.contains(block):
            return False
        number = self._dataset.chain.get(block).sequence_number
        if number <= self._number:
            return self._dataset.chain.hash_at(number, self._common) == block
        place = self._number + len(self.new) - number
        return place >= 0 and self.new[place] == block

    def newest_of(self, head: Multihash) -> Multihash:
        """The newest block of another chain of the dataset, up to `head`, that is one of the chain."""
        return next(name for name, _ in self._dataset.chain.walk(head) if self.has(name))

    def bring(self, selection: Selection) -> None:
        """The slices and checkpoints of the new blocks are here; errors as `slice_files.bring`."""
        self.arrival.bring(self._dataset, selection.of(self._objects))

    def store(self) -> int:
        """The new blocks are stored; returns how many of them were not here."""
        count = 0
        self.arrival.progress.phase("Publishing", len(self.new))
        for name in reversed(self.new):
            if self._spool.contains(name):
                self._store.put_file(self._spool.path(name), name)
                count += 1
            self.arrival.progress.advance()
        return count

    def _is_own(self, number: int, name: Multihash) -> bool:
        return any(on.chain.hash_at(number, top) == name for on, top in self._own)

    def _other_dataset(self, head: Multihash, count: int) -> DatasetsDivergedError:
        here = self._own[0][1]
        return DatasetsDivergedError(
            f"{self.arrival.peer.where}: block {shortened(head)} is of another dataset than "
            f"{self._dataset.alias}: they have no block in common",
            source_head=str(head),
            destination_head=str(here),
            source_blocks=count,
            destination_blocks=self._dataset.chain.get(here).sequence_number + 1,
            common=None,
            hint="check the URL",
        )


@contextmanager
def arriving(dataset: DatasetFiles, peer: Peer, parallel: int, progress: Progress) -> Iterator[Beside]:
    """What came is gone afterwards, unless it is of use to the next attempt.

    Whoever calls holds the lock for what arrives.
    """
    area = incoming_folder(dataset) / f"beside-{dataset.ref}"
    try:
        yield Beside(dataset, Arrival(peer, area, parallel, progress))
    except (CorruptedPeerError, ChainsDifferError):
        shutil.rmtree(area, ignore_errors=True)
        raise
    shutil.rmtree(area, ignore_errors=True)
