"""One sync for everybody: a reference and all that it leads to go from a source to a target, in one order.

    1. plan         heads are compared, blocks that the target lacks are read, rules and signatures asked
    2. objects      slices and checkpoints, side by side; of a push also manifests and profiles
    3. blocks       those of merges first, each chain oldest first
    4. reference    by one compare-and-swap
    5. statements   what is signed; of a pull also the manifests and profiles that signed lines name

Readers of the target see what it had until 4, and all of the new chain from then on. A pull
(`odfchain.transfer.pulling`) has a store as its source and a workspace as its target, a push (`pushing`) the
other way round; a fetch brings what is named, and moves none; a workspace in a store is pulled from on
opening, and pushed to by each commit (`store_commit`); a node takes a push as a pull of what it was sent.

What all pulls share is here, too: blocks and objects arrive, are validated, and wait in a private folder,
where an interruption leaves them for the next pull. Source: specification "Dataset Sharing"; RFC-021.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar, final

from odfchain import errors
from odfchain.chain.compare import Ahead, Behind, Comparison, Descent, Diverged, Equal
from odfchain.chain.index import ReplayHistory, link_kind
from odfchain.chain.rules import check_append
from odfchain.limits import LIMITS, SHARING
from odfchain.odf.block_codec import decode_block, decode_header
from odfchain.odf.events import BlockHeader, MetadataBlock, Seed
from odfchain.odf.identity import HashList, Multihash
from odfchain.odf.physical_hash import hash_bytes, hash_file
from odfchain.progress import SILENT, DeferredProgress, Progress
from odfchain.storage import fsio
from odfchain.storage.local import LocalObjectStore, check_object_name
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.storage.store import Store
from odfchain.text import counted, one_line
from odfchain.transfer.slice_files import DataObject, absent, arriving, objects_of, store_of
from odfchain.workspace.dataset_files import DatasetFiles


class Plan(Protocol):
    """What a sync is going to do."""

    @property
    def up_to_date(self) -> bool:
        """True if the target has the source's chain."""


PlanT = TypeVar("PlanT", bound=Plan)
OutcomeT = TypeVar("OutcomeT")


class Sync(ABC, Generic[PlanT, OutcomeT]):
    """One sync; its source, target, reference and policy are the instance's own."""

    @abstractmethod
    def plan(self) -> PlanT:
        """Compare and judge; nothing of the target is changed."""

    @abstractmethod
    def carry_objects(self, plan: PlanT) -> None:
        """The target has the objects of the plan's blocks."""

    def carry_blocks(self, plan: PlanT) -> None:
        """The target has the plan's blocks; no reference leads to them."""

    def move(self, plan: PlanT) -> None:
        """The reference points at the source's head, if it is where it was planned from."""

    @abstractmethod
    def finish(self, plan: PlanT) -> OutcomeT:
        """What is signed is kept or sent; the outcome."""

    @final
    def run(self) -> OutcomeT:
        """The target has all of the source's chain, or its readers see what it had."""
        plan = self.plan()
        if not plan.up_to_date:
            self.carry_objects(plan)
            self.carry_blocks(plan)
            self.move(plan)
        return self.finish(plan)


# Chains that are not one line (RFC-021).

_T = TypeVar("_T")
_Answer = TypeVar("_Answer")


def shortened(name: Multihash) -> str:
    """The first digits of a hash, for messages; the errors carry all of them."""
    return f"{str(name)[:17]}…"


def differ(
    chains: tuple[Multihash, Multihash, Behind | Diverged], message: str, hint: str
) -> errors.ChainsDifferError:
    """The error for chains that are not one line: heads of source and target, and their comparison."""
    source, target, found = chains
    if isinstance(found, Behind):
        found = Diverged(0, len(found.blocks), source)
    return errors.ChainsDifferError(
        message,
        source_head=str(source),
        destination_head=str(target),
        source_blocks=found.source_blocks,
        destination_blocks=found.destination_blocks,
        common=str(found.common) if found.common else None,
        hint=hint,
    )


def not_ahead(
    chains: tuple[Multihash, Multihash, Behind | Diverged], source: str, target: str, *, pull: bool, hint: str
) -> errors.ChainsDifferError:
    """The error for a source that is not ahead of its target; of a pull the target is here."""
    source_head, target_head, found = chains
    there, here = (source_head, target_head) if pull else (target_head, source_head)
    heads = f"the head is {shortened(there)} there, {shortened(here)} here"
    if isinstance(found, Behind):
        more = counted(len(found.blocks), "block")
        message = f"{target} has {more} that {source} has not: {heads}"
        return differ(chains, message, hint)
    common = f"after block {shortened(found.common)}" if found.common else "and have no block in common"
    theirs, ours = counted(found.source_blocks, "block"), counted(found.destination_blocks, "block")
    ours, theirs = (ours, theirs) if pull else (theirs, ours)
    message = f"{target if pull else source} and {source if pull else target} diverged {common}: "
    return differ(chains, f"{message}{ours} only here, {theirs} only there; {heads}", hint)


def refuse_another(
    chains: tuple[Multihash, Multihash, Behind | Diverged],
    where: str,
    theirs: Seed,
    name: str,
    ours: Seed,
    *,
    force: bool,
    hint: str,
) -> None:
    """The place holds the dataset of that name, on another history; not even `force` replaces another one."""
    if (theirs.dataset_id, theirs.dataset_kind) == (ours.dataset_id, ours.dataset_kind):
        return
    raise differ(
        chains,
        f"{'OverwriteSeedBlock: ' if force else ''}{where} holds the dataset {theirs.dataset_id} "
        f"({theirs.dataset_kind.value}), not {name} ({ours.dataset_id}, {ours.dataset_kind.value}); "
        "nothing was overwritten",
        hint,
    )


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

    Blocks that are `local` are not asked for. `close` ends what was asked for ahead.
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
        self._peer, self._spool, self._local, self._progress = peer, spool, local, progress
        self._prefetch: Prefetch | None = None
        # Blocks that arrived whole and were not read so far.
        self._unread: set[Multihash] = set()
        self._first: Multihash | None = None

    def close(self) -> None:
        """End what was asked for ahead."""
        if self._prefetch is not None:
            self._prefetch.close()

    def prepare(self, head: Multihash, known: int, after: Multihash | None) -> None:
        """Ask for what saves time.

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
            # it only saves time; what is wrong shows without it
            with contextlib.suppress(errors.OdfchainError):
                if hint := self._peer.hint(number + 1):
                    here = self._spool.names()
                    self._prefetch = Prefetch(
                        _below(hint, number + 1, head),
                        here=lambda name: str(name) in here,
                        local=self.local,
                        fetch=self.fetch,
                    )
        self._progress.phase("Receiving blocks", max(0, number - known - 1))

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
            raise self._bad(name, error) from error
        if header.prev_block_hash is None:
            self._first = name
        return header

    def seed(self) -> Seed:
        """The first event of a chain of which all blocks were read."""
        assert self._first is not None  # noqa: S101 - by then its first block was read
        event = self.block(self._first).event
        if not isinstance(event, Seed):
            raise self.broken(f"its first block {self._first} is {event.KIND}, not Seed")
        return event

    def block(self, name: Multihash) -> MetadataBlock:
        """A block, decoded."""
        try:
            return decode_block(self.bytes_of(name))
        except errors.CodecError as error:
            raise self._bad(name, error) from error

    def broken(self, problem: str) -> errors.OdfchainError:
        """The error for a peer's broken chain."""
        return errors.CorruptedPeerError(f"the chain of {self._peer.where} is broken: {problem}")

    def _bad(self, name: Multihash, error: Exception) -> errors.CorruptedPeerError:
        newer = isinstance(error, errors.UnsupportedVersionError)
        return errors.CorruptedPeerError(
            f"{ObjectKey(ObjectKind.BLOCK, name)} of {self._peer.where}: {error}",
            hint="a newer version of odfchain may be able to read it" if newer else None,
        )

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

    @property
    def folder(self) -> Path:
        """Where objects wait until all of them are complete, on the dataset's file system."""
        return self.area / "objects"

    def bring(self, dataset: DatasetFiles, wanted: Sequence[DataObject]) -> None:
        """The objects are in the dataset."""
        self.receive(dataset, absent(dataset, wanted, self.folder))

    def receive(self, dataset: DatasetFiles, objects: Sequence[DataObject]) -> None:
        """Store all these objects in the dataset, none before all were received."""
        # so a peer that lies about the last one has not changed the dataset
        if not objects:
            return
        _check_sizes(self.peer, objects)
        fsio.make_folder(self.folder)
        _check_space(self.peer, self.folder, objects)
        # objects of an earlier attempt are in the folder, and are continued
        self.peer.transport.announce([(item.key, item.size) for item in objects])
        size = sum(item.size for item in objects)
        self.progress.phase(f"Receiving {len(objects):,} objects", size)
        together = _Together(self.progress)

        def receive(item: DataObject) -> None:
            _receive(self.peer, item, arriving(self.folder, item.key), together)

        def store(item: DataObject) -> None:
            store_of(dataset, item.key.kind).put_file(arriving(self.folder, item.key), item.key.name)

        try:
            in_parallel(receive, objects, self.parallel, together.fail)
        except BaseException as error:  # noqa: BLE001 - the first of all failures is raised
            raise together.failure or error  # noqa: B904 - as above
        in_parallel(store, objects, self.parallel)  # each waits for the disk
        self.bytes += size
        self.objects += len(objects)


class ChainFetch:
    """The blocks up to one that a peer has, and the newest of them that chains of the dataset have.

    Those are the chains of `refs`.
    """

    def __init__(
        self, dataset: DatasetFiles, download: Download, spool: BlockSpool, refs: Iterable[str]
    ) -> None:
        self.download, self.spool = download, spool
        self.new: Sequence[Multihash] = ()
        """The blocks that the chains do not have, newest first."""
        self.common: Multihash | None = None
        """The newest block that they have; None where they have none."""
        self.number = -1
        """The number of the head that was asked for."""
        self.seed: Seed | None = None
        """The first event, where it is new."""
        self.kinds: list[str] = []
        """The kinds of the new blocks' events, oldest first."""
        self.dataset = dataset
        self._tops = [top for ref in refs if (top := dataset.on(ref).chain.head()) is not None]

    @contextmanager
    def links(self) -> Iterator[PeerLinks]:
        """The links of the peer's chain."""
        download, local = self.download, self.dataset.blocks if self._tops else None
        fsio.make_folder(self.spool.folder)
        download.progress.phase("Receiving blocks")
        with closing(PeerLinks(download.peer, self.spool, local, download.progress)) as links:
            yield links
            download.bytes += links.received

    def descend(self, links: PeerLinks, head: Multihash, *, whole: bool = False) -> None:
        """Receive blocks from a head on, until the chains have one; with `whole` as if they had none."""
        own = [] if whole else [self.dataset.chain.by_number(top) for top in self._tops]
        descent = Descent(links, head)
        self.number = descent.number
        descent.to_known(*own)
        self.new, self.common = descent.passed, descent.at

    def check(self, links: PeerLinks) -> list[DataObject]:
        """Validate the new blocks by the append rules; returns what they refer to, oldest first."""
        objects = list[DataObject]()
        if not self.new:
            return objects
        base = None if self.common is None else self.dataset.chain.history(self.common)
        history, first = ReplayHistory(base), base is None
        self.download.progress.phase("Checking blocks", len(self.new))
        for name in reversed(self.new):
            block = links.block(name)
            try:
                check_append(block, None if first else history)
            except errors.AppendError as error:
                raise errors.CorruptedPeerError(
                    f"block {block.sequence_number} ({shortened(name)}) of {self.download.peer.where} breaks "
                    f"the rule {error.rule}: {one_line(str(error))}"
                ) from error
            history.add(block)
            first = False
            if isinstance(block.event, Seed):
                self.seed = block.event
            objects += objects_of(block)
            self.kinds.append(link_kind(block.event))
            self.download.progress.advance()
        return objects

    def at(self, number: int) -> Multihash | None:
        """The block of this number, of the chain up to the head; None where there is none."""
        above = self.number - number
        if number < 0 or above < 0:
            return None
        if above < len(self.new):
            return self.new[above]
        assert self.common is not None  # noqa: S101 - it has all blocks below the new ones
        return self.dataset.chain.hash_at(number, self.common)

    def has(self, block: Multihash) -> bool:
        """True if a block is stored, and one of the chain up to the head."""
        chain = self.dataset.chain
        return chain.contains(block) and self.at(chain.get(block).sequence_number) == block

    def newest_of(self, head: Multihash) -> Multihash | None:
        """The newest block of another chain of the dataset, up to `head`, that is one of the chain."""
        return next((name for name, _ in self.dataset.chain.walk(head) if self.has(name)), None)

    def compared(self, head: Multihash, other: Multihash) -> Comparison:
        """How the chain up to `head` lies to that up to another block of the dataset."""
        fork = self.newest_of(other)
        if fork == other:
            return Equal() if other == head else Ahead(self.new)
        only_here = HashList(name for name, _ in self.dataset.chain.walk(other, tail=fork))
        if fork == head:
            return Behind(only_here)
        common = -1 if fork is None else self.dataset.chain.get(fork).sequence_number
        return Diverged(self.number - common, len(only_here), fork)

    def store(self) -> int:
        """The new blocks are stored; returns how many of them were not here."""
        progress = self.download.progress
        progress.phase("Publishing", len(self.new))
        came = [(self.spool.path(name), name) for name in reversed(self.new) if self.spool.contains(name)]
        progress.advance(len(self.new) - len(came))
        for _ in self.dataset.blocks.put_files(came):
            progress.advance()
        return len(came)


def _check_sizes(peer: Store, objects: Sequence[DataObject]) -> None:
    sizes: dict[ObjectKey, DataObject] = {}
    for item in objects:
        other = sizes.setdefault(item.key, item)
        if other.size != item.size:
            raise errors.CorruptedPeerError(
                f"{item.key} of {peer.where}: block {item.sequence_number} says that it has {item.size:,} "
                f"bytes, block {other.sequence_number} {other.size:,}"
            )


def _check_space(peer: Store, folder: Path, objects: Sequence[DataObject]) -> None:
    with fsio.storage_errors(folder):
        free = shutil.disk_usage(folder).free
        present = sum(path.stat().st_size for path in folder.iterdir())
    lacking = sum(item.size for item in objects) - present
    if lacking > free:
        largest = max(objects, key=lambda item: item.size)
        raise errors.StorageFullError(
            f"{folder}: {lacking:,} bytes of objects of {peer.where} do not fit into the {free:,} that are "
            f"free; the largest is {largest.key} of block {largest.sequence_number} with {largest.size:,}",
            hint="if the dataset is that large: make room, or pull a part of it (--last, --metadata-only)",
        )


def _receive(peer: Store, item: DataObject, target: Path, progress: Progress) -> None:
    progress.advance(0)
    with fsio.storage_errors(target):
        if target.exists() and (found := target.stat()).st_size >= item.size:
            if found.st_size == item.size and (
                peer.transport.has_hashed(item.key, fsio.file_state(found))
                or hash_file(target)[0] == item.key.name
            ):
                progress.advance(item.size)
                return
            target.unlink()
    peer.fetch(item.key, item.size, target, progress)


class _Together(DeferredProgress):
    """Progress of transfers that end together: after the first failure all others stop."""

    failure: BaseException | None = None

    def __init__(self, inner: Progress) -> None:
        super().__init__()
        self.show_on(inner)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.failure = self.failure or error

    def check(self) -> None:
        if self.failure is not None:
            raise errors.TransferError("stopped, because another object could not be received")


def in_parallel(
    work: Callable[[_T], None],
    items: Iterable[_T],
    workers: int,
    failed: Callable[[BaseException], None] = lambda _: None,
) -> None:
    """Do the work for each item on threads; the first error is raised, and told to `failed` at once."""

    def run(item: _T) -> None:
        try:
            work(item)
        except BaseException as error:
            failed(error)
            raise

    pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="odfchain-transfer")
    pending: deque[Future[None]] = deque()
    try:
        for item in items:
            # a bounded queue, so that no item starts after a failure
            if len(pending) >= 2 * workers:
                pending.popleft().result()
            pending.append(pool.submit(run, item))
        while pending:
            pending.popleft().result()
    except BaseException as error:
        failed(error)
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def with_answers(
    ask: Callable[[_T], _Answer], items: Iterable[_T], workers: int = SHARING.parallel
) -> list[tuple[_T, _Answer]]:
    """Each item with its answer, in their order; they are asked for on threads."""
    asked = list(items)
    with ThreadPoolExecutor(workers, thread_name_prefix="odfchain-transfer") as pool:
        return list(zip(asked, pool.map(ask, asked), strict=True))


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
        self._hinted, self._here, self._local, self._fetch = hinted, here, local, fetch
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
