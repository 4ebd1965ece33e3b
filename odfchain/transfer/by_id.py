"""A dataset of a repository by its id: where it is below the repository's URL.

A server says so in its index. In folders and stores each dataset's seed is read: its hash is in the hint
beside the chain, else the chain is walked. A server without an index is asked under the id itself, as nodes
and `odfchain serve` have it. None of it is believed: who pulls checks the id of what comes.
"""

from __future__ import annotations

from contextlib import closing

from odfchain.codec.blocks import decode_block, decode_header
from odfchain.errors import DatasetNotFoundError, OdfchainError, UnsupportedPeerError
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.limits import SHARING
from odfchain.model.events import Seed
from odfchain.transfer.catalog import list_repository
from odfchain.transfer.open import DEFAULTS, PeerOptions, open_peer
from odfchain.transfer.peer import Peer
from odfchain.transfer.public_layout import PeerUrl


def find_by_id(repository: PeerUrl, dataset_id: DatasetId, options: PeerOptions = DEFAULTS) -> PeerUrl:
    """The URL of the dataset of this id in a repository.

    Raises:
        DatasetNotFoundError: the repository has none.
    """
    try:
        entries = list_repository(repository, options)
    except UnsupportedPeerError:
        return repository.dataset(str(dataset_id))
    for entry in entries:
        url = repository.dataset(str(entry.alias))
        if (entry.id or _id_at(url, entry.head, options)) == dataset_id:
            return url
    raise DatasetNotFoundError(
        f"{repository}: has no dataset with the id {dataset_id}",
        hint=f"`odfchain search --repo {repository}` lists what it has",
    )


def _id_at(url: PeerUrl, head: Multihash, options: PeerOptions) -> DatasetId | None:
    """The id in the seed of a dataset; None where it cannot be read."""
    try:
        with closing(open_peer(url, options)) as peer:
            return _seed_id(peer, head)
    except OdfchainError:
        return None


def _seed_id(peer: Peer, head: Multihash) -> DatasetId | None:
    hint = peer.hint(SHARING.hinted_blocks)
    name: Multihash | None = hint[0] if hint else head
    for _ in range(SHARING.hinted_blocks):
        assert name is not None  # noqa: S101 - what has no previous block ends the loop
        data = peer.block(name)
        name = decode_header(data).prev_block_hash
        if name is None:
            event = decode_block(data).event
            return event.dataset_id if isinstance(event, Seed) else None
    return None
