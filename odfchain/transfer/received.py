"""The append rules over blocks that a peer sent, before anything that they refer to is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from odfchain.chain.chain import HashedBlock
from odfchain.chain.earlier_blocks import History, ReplayHistory, sources_in_force
from odfchain.chain.index import ChainIndex, Link
from odfchain.chain.rules import check_append
from odfchain.codec.blocks import decode_block
from odfchain.errors import AppendError, CodecError, CorruptedPeerError
from odfchain.ids.multihash import Multihash
from odfchain.model import events as ev
from odfchain.model.metadata_block import MetadataBlock
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.store.scratch import LocalScratch
from odfchain.text import one_line
from odfchain.transfer.peer import Peer
from odfchain.transfer.peer_links import PeerLinks, bad_block


class ContinuedHistory:
    """Answers from received blocks, then from the local chain that they continue; holds no list of blocks."""

    def __init__(self, base: History) -> None:
        self._base = base
        self._new = ReplayHistory()
        self._empty = True
        self._changes: dict[str, ev.AddPushSource | ev.DisablePushSource] = {}

    def add(self, block: MetadataBlock) -> None:
        """The next received block."""
        self._empty = False
        self._new.add(block)
        if isinstance(block.event, ev.AddPushSource | ev.DisablePushSource):
            self._changes.pop(block.event.source_name, None)
            self._changes[block.event.source_name] = block.event

    def previous(self) -> MetadataBlock:
        """The newest block so far."""
        return self._base.previous() if self._empty else self._new.previous()

    def nearest(self, *kinds: str) -> MetadataBlock | None:
        """The newest block of one of these kinds."""
        return self._new.nearest(*kinds) or self._base.nearest(*kinds)

    def push_sources(self) -> Mapping[str, ev.AddPushSource]:
        """The push sources in force, the most recently defined first."""
        return sources_in_force([*reversed(self._changes.values()), *self._base.push_sources().values()])

    def has_odf_schema(self) -> bool:
        """Whether any block before the next one declares a schema in the ODF form."""
        return self._new.has_odf_schema() or self._base.has_odf_schema()


def index_chain(dataset: DatasetFiles, newest_first: Sequence[Multihash], kinds: Sequence[str]) -> None:
    """Let a new dataset's index know all blocks that were checked, so that none is read again for it.

    `kinds` are those of the blocks' events (`link_kind`), oldest first. The index is a cache: if it is wrong
    or cannot be written, whoever needs it builds it from the blocks.
    """
    top = len(newest_first) - 1
    links = (Link(name, top - n, kinds[top - n]) for n, name in enumerate(newest_first))
    scratch = LocalScratch(dataset.index_path)
    ChainIndex(scratch, lambda _: links).sync(Link(newest_first[0], top, kinds[top]))


def checked_blocks(
    peer: Peer, links: PeerLinks, newest_first: Sequence[Multihash], base: History | None
) -> Iterator[HashedBlock]:
    """The blocks of a chain, oldest first, each after it was found to keep all append rules.

    `base` answers for the local chain before them; None when they start with the seed.

    Raises:
        CorruptedPeerError: a block is malformed or breaks a rule; the message names both.
        AccessError, TransferError: a block had to be asked for again, in vain.
        StorageFullError, StoreError: what was received cannot be read.
    """
    history = ContinuedHistory(base) if base is not None else ReplayHistory()
    first = base is None
    for name in reversed(newest_first):
        try:
            block = decode_block(links.bytes_of(name))
        except CodecError as error:
            raise bad_block(peer, name, error) from error
        try:
            check_append(block, None if first else history)
        except AppendError as error:
            raise CorruptedPeerError(
                f"block {block.sequence_number} ({str(name)[:17]}…) of {peer.where} breaks the rule "
                f"{error.rule}: {one_line(str(error))}"
            ) from error
        history.add(block)
        first = False
        yield HashedBlock(name, block)
