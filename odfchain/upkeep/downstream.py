"""Who else has blocks of a dataset, and who breaks when they are given up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from enum import Enum

from odfchain.chain.compare import Ahead, BlockLink, ChainLinks, Diverged, compare
from odfchain.codec.blocks import decode_header
from odfchain.errors import CodecError, CorruptedPeerError, OdfchainError
from odfchain.ids.multihash import Multihash
from odfchain.model.events import ExecuteTransform
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.references import branch_names
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.store.interfaces import HEAD
from odfchain.transfer.aliases import AliasKind, aliases, resolve_remote
from odfchain.transfer.open import PeerOptions, open_peer, options_of
from odfchain.transfer.peer import Peer
from odfchain.transfer.repositories import Repositories


class RemoteState(Enum):
    """What is known of a place."""

    REACHED = "reached"
    """It was asked, and its blocks were read."""
    NOTHING = "no dataset"
    """There is no such dataset."""
    UNKNOWN = "unknown"
    """It could not be asked, or not be believed."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Somewhere a dataset was pulled from or pushed to, and which of some blocks it has."""

    alias: str
    """As the user wrote it; a URL without its password."""
    kinds: tuple[str, ...]
    """`pull`, `push`."""
    answer: RemoteState
    has: frozenset[Multihash] = frozenset()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Dependent:
    """A derivative dataset of this workspace that has read blocks which are given up."""

    alias: str
    transactions: int
    """Its transactions that did."""


# --- places --------------------------------------------------------------------------------------------


def places_with(
    workspace: WorkspaceFiles, dataset: DatasetFiles, head: Multihash, blocks: Sequence[Multihash]
) -> list[Remote]:
    """Every place that the dataset was pulled from or pushed to, and which of these blocks it has.

    The blocks are of the chain of `head`. A place has a block when its chain contains it and it hands it out.
    """
    known: dict[str, list[str]] = {}
    for kind in AliasKind:
        for alias in aliases(dataset, kind):
            known.setdefault(alias, []).append(kind.value)
    config = workspace.config.share
    options = options_of(config)
    return [
        _ask(workspace, dataset, alias, tuple(kinds), options, head, blocks) for alias, kinds in known.items()
    ]


def _ask(
    workspace: WorkspaceFiles,
    dataset: DatasetFiles,
    alias: str,
    kinds: tuple[str, ...],
    options: PeerOptions,
    head: Multihash,
    blocks: Sequence[Multihash],
) -> Remote:
    shown = "a place that is not understood" if "://" in alias else alias
    try:
        url = resolve_remote(alias, Repositories(workspace.root))
        shown = str(url) if "://" in alias else alias
        with closing(open_peer(url, options)) as peer:
            theirs = peer.head(dataset.ref)
            if theirs is None and dataset.ref != HEAD:
                theirs = peer.head(HEAD)  # the blocks may have been merged there
            if theirs is None:
                return Remote(shown, kinds, RemoteState.NOTHING)
            return Remote(shown, kinds, RemoteState.REACHED, _held(dataset, peer, theirs, head, blocks))
    except OdfchainError as error:
        return Remote(shown, kinds, RemoteState.UNKNOWN, problem=str(error))


def _held(
    dataset: DatasetFiles, peer: Peer, theirs: Multihash, head: Multihash, blocks: Sequence[Multihash]
) -> frozenset[Multihash]:
    """Those of the blocks that the peer's chain contains and the peer hands out."""
    ours = ChainLinks(dataset.chain)
    comparison = compare(head, ours, theirs, _PeerChain(dataset, peer))
    lacking: set[Multihash] = set()
    if isinstance(comparison, Ahead):
        lacking.update(comparison.blocks)
    elif isinstance(comparison, Diverged):
        for name, _ in dataset.chain.walk(head):
            if name == comparison.common:
                break
            lacking.add(name)
    named = [name for name in blocks if name not in lacking]
    with ThreadPoolExecutor(8, thread_name_prefix="blocks") as pool:
        held = pool.map(lambda name: _hands_out(peer, name), named)
        return frozenset(name for name, there in zip(named, held, strict=True) if there)


def _hands_out(peer: Peer, name: Multihash) -> bool:
    try:
        peer.block(name)
    except CorruptedPeerError:
        return False
    return True


class _PeerChain:
    """The links of a peer's chain; a block that is here too is not asked for."""

    def __init__(self, dataset: DatasetFiles, peer: Peer) -> None:
        self._chain = dataset.chain
        self._peer = peer

    def link(self, name: Multihash) -> BlockLink:
        here = self._chain.contains(name)
        try:
            header = decode_header(self._chain.get_bytes(name) if here else self._peer.block(name))
        except CodecError as error:
            raise CorruptedPeerError(f"{self._peer.where}blocks/{name}: {error}") from error
        return BlockLink(header.sequence_number, header.prev_block_hash)

    def broken(self, problem: str) -> OdfchainError:
        return CorruptedPeerError(f"{self._peer.where}: the chain is broken: {problem}")


# --- derivatives ---------------------------------------------------------------------------------------


def dependents(
    workspace: WorkspaceFiles, dataset: DatasetFiles, blocks: Collection[Multihash]
) -> list[Dependent]:
    """The derivatives in the workspace, on whatever branch, that have read up to one of these blocks.

    A derivative whose chain cannot be read is not among them.
    """
    wanted, dataset_id = frozenset(blocks), dataset.id
    readers = []
    datasets = workspace.datasets()
    for other in (each.on(ref) for each in datasets for ref in (HEAD, *branch_names(each))):
        try:
            count = 0
            for hashed in DatasetState.read(other.chain).data_blocks():
                event = hashed.block.event
                if not isinstance(event, ExecuteTransform):
                    break
                read = [i.last_block_hash for i in event.query_inputs if i.dataset_id == dataset_id]
                if not wanted.intersection(name for name in read if name is not None):
                    break  # what it read before is older
                count += 1
        except OdfchainError:
            continue
        if count:
            readers.append(Dependent(other.label, count))
    return readers
