"""What every pull does: blocks and objects come in, are checked, and wait in a private folder.

An interruption leaves them there for the next pull. Nothing of the dataset is changed by blocks that arrive;
objects are stored in it once all of them are here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.chain.earlier_blocks import History
from odfchain.chain.index import link_kind
from odfchain.ids.multihash import Multihash
from odfchain.model.events import Seed
from odfchain.progress import Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store.interfaces import ObjectStore
from odfchain.transfer.differences import Source
from odfchain.transfer.peer import Peer
from odfchain.transfer.peer_links import PeerLinks, Spool
from odfchain.transfer.received import checked_blocks
from odfchain.transfer.slice_files import DataObject, absent, bring, objects_of


@dataclass(frozen=True, slots=True)
class Received:
    """What was checked: the seed if it was there; objects and kinds of events, oldest first."""

    seed: Seed | None
    objects: list[DataObject]
    kinds: list[str]


@dataclass(slots=True)
class Arrival:
    """What comes from one peer in one pull; `area` is where it arrives."""

    peer: Peer
    area: Path
    parallel: int
    progress: Progress
    objects: int = field(default=0, init=False)
    """Objects received [count]."""
    bytes: int = field(default=0, init=False)
    """Bytes received, blocks' too."""

    @contextmanager
    def links(self, spool: Spool, local: ObjectStore | None) -> Iterator[PeerLinks]:
        """The links of the peer's chain; blocks that are local are not asked for."""
        self.progress.phase("Receiving blocks")
        with PeerLinks(self.peer, spool, local, self.progress) as links:
            yield links
            self.bytes += links.received

    def source(
        self, links: PeerLinks, head: Multihash, *, known: int, after: Multihash | None = None
    ) -> Source:
        """The peer as the source of a pull of `head`; `after` the newest local block, `known` its number."""
        number = links.prepare(head, known, after)
        self.progress.phase("Receiving blocks", max(0, number - known - 1))
        return Source(self.peer, head, number, links)

    def check(self, links: PeerLinks, blocks: Sequence[Multihash], base: History | None) -> Received:
        """What the blocks (newest first) bring; each keeps the append rules after `base`."""
        seed: Seed | None = None
        objects: list[DataObject] = []
        kinds: list[str] = []
        self.progress.phase("Checking blocks", len(blocks))
        for found in checked_blocks(self.peer, links, blocks, base):
            if isinstance(found.block.event, Seed):
                seed = found.block.event
            objects += objects_of(found.block)
            kinds.append(link_kind(found.block.event))
            self.progress.advance()
        return Received(seed, objects, kinds)

    def bring(self, dataset: DatasetFiles, wanted: Sequence[DataObject]) -> None:
        """The objects are in the dataset; errors as `slice_files.bring`."""
        folder = self.area / "objects"
        lacking = absent(dataset, wanted, folder)
        self.bytes += bring(
            dataset, self.peer, lacking, folder, parallel=self.parallel, progress=self.progress
        )
        self.objects += len(lacking)
