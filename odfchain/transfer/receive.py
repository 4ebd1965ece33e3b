"""Common parts of all pulls: blocks and objects arrive, are validated, and wait in a private folder.

An interruption leaves them there for the next pull. Nothing of the dataset is changed by blocks that arrive;
objects are stored in it once all of them are here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from odfchain import errors
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import History, ReplayHistory, link_kind
from odfchain.chain.rules import check_append
from odfchain.limits import LIMITS, SHARING
from odfchain.odf.block_codec import decode_block, decode_header
from odfchain.odf.events import BlockHeader, Seed
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.progress import SILENT, Progress
from odfchain.storage import fsio
from odfchain.storage.local import LocalObjectStore, check_object_name
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.storage.store import Store
from odfchain.text import one_line
from odfchain.transfer.slice_files import DataObject, absent, bring, objects_of
from odfchain.workspace.dataset_files import DatasetFiles

# Blocks on their way in: read from a peer, kept for the next attempt after an interruption.
# Known blocks are not requested. A received block is an unsynced file in a private folder that is hashed at
# each read, so a torn one only counts as missing.

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
# From how many unknown blocks on it is worth asking for a hint.
_HINT_FROM = 16
# How much of what was received is kept at hand until it is read the second time [bytes].
_MEMORY_BYTES = 64 << 20
# Overhead of a kept block [bytes], roughly.
_ENTRY_BYTES = 400


class BlockSpool:
    """Received blocks in a private folder, one file each; threads may add different blocks at once.

    Bytes of blocks that were added are kept in memory, too, up to a bound and until they are taken.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._folder_text = str(folder)  # joining paths costs as much as writing a small file
        self._room = _MEMORY_BYTES
        self._at_hand: dict[Multihash, bytes] = {}

    def path(self, name: Multihash) -> Path:
        """The path of a block, if it were there."""
        return self.folder / str(name)

    def contains(self, name: Multihash) -> bool:
        """True if there is a file of this name; it may be torn."""
        return self.path(name).is_file()

    def names(self) -> frozenset[str]:
        """The names of all files."""
        with fsio.storage_errors(self.folder):
            return frozenset(path.name for path in self.folder.iterdir())

    def get(self, name: Multihash) -> bytes | None:
        """The bytes of a block; None when it is not here, or what is here does not hash to its name."""
        if (at_hand := self._at_hand.pop(name, None)) is not None:
            self._room += len(at_hand) + _ENTRY_BYTES
            return at_hand
        data = fsio.read_start(self.path(name), LIMITS.block_bytes + 1)
        return data if data is not None and hash_bytes(data) == name else None

    def at_hand(self, name: Multihash) -> bytes | None:
        """The bytes of a block, if they are in memory; they stay there until they are taken."""
        return self._at_hand.get(name)

    def add(self, name: Multihash, data: bytes) -> None:
        """Keep the bytes of a block, which hash to its name."""
        path = f"{self._folder_text}/{name}"
        try:
            fd = os.open(path, _NEW_FILE, 0o644)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
            finally:
                os.close(fd)
        except OSError as error:
            fsio.remove_quietly(Path(path))
            raise fsio.storage_error(error, path) from error
        needed = len(data) + _ENTRY_BYTES
        if needed <= self._room:
            self._room -= needed  # not exact when threads add at the same time, which does no harm
            self._at_hand[name] = data

    def keep_only(self, names: Sequence[Multihash]) -> None:
        """Remove every other file."""
        with fsio.storage_errors(self.folder):
            files = list(self.folder.iterdir())
            if len(files) > len(names):
                wanted = {str(name) for name in names}
                for path in files:
                    if path.name not in wanted:
                        path.unlink()


class PeerLinks:
    """The links of a peer's chain; blocks are spooled as they are read, where there is a spool.

    Blocks that are `local` are not asked for. Leave the block (`with`) to end what was asked for ahead.
    """

    def __init__(
        self,
        peer: Store,
        spool: BlockSpool | None,
        local: LocalObjectStore | None = None,
        progress: Progress = SILENT,
    ) -> None:
        # Bytes of blocks that came from the peer.
        self.received = 0
        self._peer = peer
        self._spool = spool
        self._local = local
        self._progress = progress
        self._prefetch: Prefetch | None = None
        # Blocks that arrived whole and were not read so far.
        self._unread: set[Multihash] = set()
        self._first: Multihash | None = None

    def __enter__(self) -> PeerLinks:
        return self

    def __exit__(self, *_: object) -> None:
        if self._prefetch is not None:
            self._prefetch.close()

    def prepare(self, head: Multihash, known: int, after: Multihash | None = None) -> int:
        """Ask for what saves time; returns the sequence number of the head.

        `after` is the newest local block, `known` its number. Either the blocks above it come in one piece,
        or the hint says which they are.
        """
        assert self._spool is not None  # noqa: S101 - what saves time is kept there
        number = self.link(head).sequence_number
        if number > known:
            for block in self._peer.batch(after, number - known):
                self._spool.add(block.hash, block.data)
                self._unread.add(block.hash)
        if not self._unread and known + _HINT_FROM < number < LIMITS.chain_blocks:
            with contextlib.suppress(
                errors.OdfchainError
            ):  # it only saves time; what is wrong shows without it
                hint = self._peer.hint(number + 1)
                if hint:
                    here = self._spool.names()
                    self._prefetch = Prefetch(
                        _below(hint, number + 1, head),
                        here=lambda name: str(name) in here,
                        local=self.local,
                        fetch=self.fetch,
                    )
        self._progress.phase("Receiving blocks", max(0, number - known - 1))
        return number

    def local(self, name: Multihash) -> bool:
        """True if a block is one of the local dataset."""
        return self._local is not None and self._local.contains(name)

    def link(self, name: Multihash) -> BlockHeader:
        """The number and the predecessor of a block."""
        data = self.bytes_of(name)
        try:
            header = decode_header(data)
            if header.prev_block_hash is not None:
                check_object_name(header.prev_block_hash)
        except (errors.CodecError, errors.StoreError) as error:
            raise bad_block(self._peer, name, error) from error
        if header.prev_block_hash is None:
            self._first = name
        return header

    def seed(self) -> Seed:
        """The first event of a chain of which all blocks were read."""
        assert self._first is not None  # noqa: S101 - by then its first block was read
        try:
            event = decode_block(self.bytes_of(self._first)).event
        except errors.CodecError as error:
            raise bad_block(self._peer, self._first, error) from error
        if not isinstance(event, Seed):
            raise self.broken(f"its first block {self._first} is {event.KIND}, not Seed")
        return event

    def broken(self, problem: str) -> errors.OdfchainError:
        """The error for a peer's broken chain."""
        return errors.CorruptedPeerError(f"the chain of {self._peer.where} is broken: {problem}")

    def bytes_of(self, name: Multihash) -> bytes:
        """A block's bytes, hashed."""
        # asked first, though the block may be spooled by now: taking one lets another be asked for
        data = self._prefetch.take(name) if self._prefetch is not None else None
        if name in self._unread and self._spool is not None:
            self._unread.discard(name)
            data = self._spool.at_hand(name)
        if data is None:
            if (known := self._known(name)) is not None:
                return known
            data = self.fetch(name)
        self.received += len(data)
        if self.received > SHARING.chain_bytes:
            raise self.broken(f"more than {SHARING.chain_bytes:,} bytes of blocks")
        self._progress.advance()
        return data

    def _known(self, name: Multihash) -> bytes | None:
        data = self._spool.get(name) if self._spool is not None else None
        if data is None and self._local is not None:
            # a damaged local block is requested like a missing one
            with contextlib.suppress(errors.ObjectNotFoundError, errors.ObjectCorruptedError):
                data = self._local.get(name)
        return data

    def fetch(self, name: Multihash) -> bytes:
        """A block from the peer, spooled."""
        data = self._peer.block(name)
        if self._spool is not None:
            self._spool.add(name, data)
        return data


def _below(hint: Sequence[Multihash], limit: int, head: Multihash) -> Iterator[Multihash]:
    count = min(limit, len(hint))
    # a stale hint does not have the head: then all of it is used
    end = next((i for i in range(count - 1, -1, -1) if hint[i] == head), count)
    return (hint[i] for i in range(end - 1, -1, -1))


def bad_block(peer: Store, name: Multihash, error: Exception) -> errors.CorruptedPeerError:
    """The error for a block that cannot be read as one."""
    newer = isinstance(error, errors.UnsupportedVersionError)
    return errors.CorruptedPeerError(
        f"{ObjectKey(ObjectKind.BLOCK, name)} of {peer.where}: {error}",
        hint="a newer version of odfchain may be able to read it" if newer else None,
    )


# The append rules over blocks that a peer sent, before anything that they refer to is asked for.


def checked_blocks(
    peer: Store, links: PeerLinks, newest_first: Sequence[Multihash], base: History | None
) -> Iterator[HashedBlock]:
    """The blocks of a chain, oldest first, each after it was found to keep all append rules.

    `base` answers for the local chain before them; None when they start with the seed.
    """
    history = ReplayHistory(base)
    first = base is None
    for name in reversed(newest_first):
        try:
            block = decode_block(links.bytes_of(name))
        except errors.CodecError as error:
            raise bad_block(peer, name, error) from error
        try:
            check_append(block, None if first else history)
        except errors.AppendError as error:
            raise errors.CorruptedPeerError(
                f"block {block.sequence_number} ({str(name)[:17]}…) of {peer.where} breaks the rule "
                f"{error.rule}: {one_line(str(error))}"
            ) from error
        history.add(block)
        first = False
        yield HashedBlock(name, block)


@dataclass(frozen=True, slots=True)
class Received:
    """Validated blocks, newest first; the seed if it was there; objects and kinds of events, oldest first."""

    blocks: Sequence[Multihash]
    seed: Seed | None
    objects: list[DataObject]
    kinds: list[str]


@dataclass(slots=True)
class Download:
    """What one pull receives from one peer; `area` is its folder."""

    peer: Store
    area: Path
    parallel: int
    progress: Progress
    objects: int = field(default=0, init=False)
    """Objects received [count]."""
    bytes: int = field(default=0, init=False)
    """Bytes received, blocks' too."""

    @contextmanager
    def links(self, spool: BlockSpool, local: LocalObjectStore | None) -> Iterator[PeerLinks]:
        """The links of the peer's chain; blocks that are local are not asked for."""
        self.progress.phase("Receiving blocks")
        with PeerLinks(self.peer, spool, local, self.progress) as links:
            yield links
            self.bytes += links.received

    def check(self, links: PeerLinks, blocks: Sequence[Multihash], base: History | None) -> Received:
        """Validate the blocks (newest first) against the append rules after `base`."""
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
        return Received(blocks, seed, objects, kinds)

    def publish(self, dataset: DatasetFiles, spool: BlockSpool, blocks: Sequence[Multihash]) -> int:
        """Received blocks (newest first) are stored; returns how many of them were not here."""
        self.progress.phase("Publishing", len(blocks))
        new = [(spool.path(name), name) for name in reversed(blocks) if spool.contains(name)]
        self.progress.advance(len(blocks) - len(new))
        for _ in dataset.blocks.put_files(new):
            self.progress.advance()
        return len(new)

    def bring(self, dataset: DatasetFiles, wanted: Sequence[DataObject]) -> None:
        """The objects are in the dataset."""
        folder = self.area / "objects"
        lacking = absent(dataset, wanted, folder)
        self.bytes += bring(
            dataset, self.peer, lacking, folder, parallel=self.parallel, progress=self.progress
        )
        self.objects += len(lacking)


# Prefetching blocks that a hint names, up to a fixed number ahead of the walk.
# A hint is never trusted: the walk follows the links and requests missing blocks itself. Errors here are
# ignored, since the walk meets them again. Source: RFC-021.

AHEAD = 128
"""How many blocks are asked for before the walk needs them."""

# More of them only wait for each other in one process; fewer wait for round trips.
_THREADS = 8
# How many blocks one thread asks for in one go.
_AT_ONCE = 16
# How many lines of a hint one step may pass over: the same one may be there a million times.
_LOOKED_AT = 2 * AHEAD


class Prefetch:
    """Asks for hinted blocks on threads, newest first, while the walk goes on."""

    def __init__(
        self,
        hinted: Iterator[Multihash],
        *,
        here: Callable[[Multihash], bool],
        local: Callable[[Multihash], bool],
        fetch: Callable[[Multihash], bytes],
    ) -> None:
        """Prepare to ask.

        `here` are blocks that were received before; below a `local` one all others are local, too. `fetch`
        asks for a block and keeps it, from any thread.
        """
        self._hinted = hinted
        self._here = here
        self._local = local
        self._fetch = fetch
        self._asked: dict[Multihash, Future[Mapping[Multihash, bytes]]] = {}
        self._ended = False
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="prefetch")

    def take(self, name: Multihash) -> bytes | None:
        """The block if it was asked for and has come; asks for more."""
        if len(self._asked) <= AHEAD - _AT_ONCE:
            self._ask(name)
        asked = self._asked.pop(name, None)
        return None if asked is None else asked.result().get(name)

    def _ask(self, name: Multihash) -> None:
        wanted: dict[Multihash, None] = {}
        for _ in range(_LOOKED_AT):
            if len(self._asked) + len(wanted) >= AHEAD:
                break
            following = next(self._hinted, None)
            # below a local block all others are local
            if following is None or self._local(following):
                self._hinted = iter(())
                break
            if following != name and following not in self._asked and not self._here(following):
                wanted[following] = None
        names = list(wanted)
        # several for each thread: handing over each one costs too much
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            self._asked |= dict.fromkeys(part, self._pool.submit(self._fetch_all, part))

    def _fetch_all(self, names: Sequence[Multihash]) -> Mapping[Multihash, bytes]:
        found = {}
        for name in names:
            if self._ended:
                break
            # a block that failed is requested again by the walk, which reports the error
            with contextlib.suppress(errors.OdfchainError):
                found[name] = self._fetch(name)
        return found

    def close(self) -> None:
        """Drop what was not needed; waits for the requests that were begun."""
        self._ended = True
        self._pool.shutdown(wait=True, cancel_futures=True)
