"""A dataset of a workspace in an object store: how it is followed, and committed by one conditional write.

Slices go up first, then blocks, oldest first, then the head. Objects that were there already may be about to
be removed, so they are looked at again under a lease. A head that does not continue the one before is sent as
any other, from the newest block on that both have.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from odfchain import errors
from odfchain.chain.chain import HashedBlock
from odfchain.chain.index import DATA_EVENTS, MERGE
from odfchain.chain.signed_heads import warn
from odfchain.limits import SHARING, FetchLimits
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import DatasetAlias, is_branch_name
from odfchain.progress import SILENT
from odfchain.storage import fsio
from odfchain.storage.bucket_store import (
    BucketTransport,
    ConditionsUnknownError,
    Version,
    WriteRefusedError,
    bucket_at,
)
from odfchain.storage.local import HEAD, LocalRefStore, check_object_name, conflict
from odfchain.storage.public_layout import ObjectKey, ObjectKind, SignedFile
from odfchain.storage.store import Store
from odfchain.transfer.branch_fetch import bring_merged, fetching, unknown_sources
from odfchain.transfer.pulling import SyncOptions, SyncStatus, pull_branch_from, pull_dataset
from odfchain.transfer.slice_files import objects_of, store_of
from odfchain.transfer.store_garbage import LIFE, Leases
from odfchain.transfer.sync import Sync, with_answers
from odfchain.workspace import points
from odfchain.workspace.commit import on_the_newest_head
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import FetchedBranches, merged_names
from odfchain.workspace.workspace_files import WorkspaceFiles

# A dataset in a store that machines share.
#
#     refs/NAME           as a push of a branch writes it; empty once the branch was deleted
#     refs/NAME.jws       the owner's signature of that
#
# Branches are fetched when named or listed, not at each opening. Those of other machines are verified before
# a merge, as those of any peer. Merged blocks come without slices. Source: RFC-048, RFC-038.
#
# A store whose head was rewound is an error until the user names the head to follow.
#
#     info/replacing      `<a head> <another>`, while this machine replaces the one by the other
#
# A reset by another writer and an attack look the same. Only a replacement that this machine has begun is
# completed without the user: that is what the note is for. It is void once the head here is another one.

_NOTE_BYTES = 256
# Blocks after which the hint for clones is written anew [count]; of long chains a hundredth to a tenth of
# their length, for it has a line for each block. Nothing depends on its end.
_HINT_EVERY = 100
# Of a pull, while other commands of this machine move the head [count].
_RETRIES = 20


class StoredDataset:
    """One dataset of a workspace in a store; `folder` is its copy here."""

    def __init__(self, space: BucketTransport, url: str, limits: FetchLimits, folder: Path) -> None:
        self.folder = folder
        self.known: dict[str, tuple[Multihash | None, Version | None]] = {}
        """References in the store as they were seen last."""
        self.is_open = False
        self.followed: set[str] = set()
        """Branches that are here as in the store; the head: all that were listed."""
        self.sent: dict[ObjectKey, float] = {}
        """What executors have put there, and when."""
        self._space = space
        self._url = f"{url}datasets/{folder.name}/"
        self._limits = limits

    @property
    def dataset_id(self) -> DatasetId:
        """The id, which names the folder."""
        return DatasetId.from_multibase(self.folder.name)

    @property
    def leases(self) -> Leases:
        """The leases on it."""
        return Leases(self._space, self.folder.name)

    def on(self, ref: str = HEAD) -> DatasetFiles:
        """The copy here, without the store behind it."""
        return DatasetFiles.open(self.folder, ref=ref)

    @property
    def bucket(self) -> BucketTransport:
        """The dataset in the store, for conditional writes."""
        return bucket_at(self._url, self._limits)

    def peer(self, ref: str = HEAD) -> Store:
        """The dataset in the store, on its head or on a branch."""
        return Store(self.bucket, ref)

    def look(self, ref: str = HEAD) -> Multihash | None:
        """The present head, or branch, in the store."""
        self.known[ref] = found = self.bucket.versioned(ref)
        return found[0]

    @property
    def local_head(self) -> Multihash | None:
        """The head here; None where the dataset is not."""
        return LocalRefStore(self.folder).get(HEAD)

    # --- the head ------------------------------------------------------------------------------------

    def bring(self, alias: DatasetAlias, attempts: int = 3) -> None:
        """The head here is that in the store, also where that gives another answer at first."""
        options = SyncOptions(on_demand=True, dataset_id=self.dataset_id)
        try:
            self.pull(alias, options)
        except errors.ChainsDifferError as error:
            there = Multihash.parse(error.source_head)
            if self._is_own_replacement(there):  # which this machine began, and completes
                self.pull(alias, dataclasses.replace(options, force=True, only=there))
            elif attempts > 1 and self.look() != there:
                self.bring(alias, attempts - 1)  # another command here has moved it since it was read
            else:
                raise self._rewound(alias, error) from error

    def pull(self, alias: DatasetAlias, options: SyncOptions) -> None:
        """Pull the head; warnings are shown."""
        try:
            here = WorkspaceFiles(self.folder.parent.parent)
            # other commands here move the head as well
            outcome = on_the_newest_head(
                lambda: pull_dataset(here, self.peer(), alias, options), _RETRIES, SILENT
            )
        except errors.NameCollisionError:
            if self.local_head is None:  # else another process has just brought it
                raise
            return
        for text in outcome.warnings:
            warn(text)

    def bring_blocks(self, head: Multihash) -> None:
        """The blocks up to a head in the store are here, checked; no reference leads to them."""
        dataset = self.on()
        fetched = fetching(dataset, self.peer(), SHARING.parallel, SILENT)
        with fsio.locked(points.lock_path(dataset)), fetched as fetch:
            fetch.read(head)
            fetch.store()
        self.is_open = True  # a look at all datasets need not pull it

    def follow_reset(self, here: Multihash, there: Multihash) -> None:
        """The head, which is `here`, is `there` as in the store, though it does not continue what was seen.

        What is given up stays under a reference, and the memory of heads gives way. Nothing is written there.
        """
        options = SyncOptions(force=True, on_demand=True, dataset_id=self.dataset_id, onto=here, only=there)
        self.pull(self.on().alias, options)
        self.is_open = True

    def follow(self, ref: str) -> None:
        """After a conflict: fetch the other writer's blocks."""
        dataset = self.on(ref)
        with fsio.try_locked(points.lock_path(dataset)) as free:
            pass
        # the lock's holder commits, meets the conflict and retries by itself
        if not free:
            return
        head = self.look(ref)
        if ref != HEAD:
            self._follow_branch(ref, head)
        elif head is not None:
            self.bring(dataset.alias)

    def is_committed(self, ref: str, expected: Multihash | None, new: Multihash, head: Multihash) -> bool:
        """True if a head in the store is `new`, which followed `expected`, or goes on from it."""
        if head == new:
            return True
        chain = self.on(ref).chain
        ours = {*chain.hashes(new), *(chain.hashes(expected) if expected is not None else ())}
        at: Multihash | None = head
        # a head that goes on from `expected`, or was rewound further, reaches another of these blocks first
        while at is not None and at not in ours:
            at = self.peer(ref).decoded(at).prev_block_hash
        return at == new

    def _is_own_replacement(self, there: Multihash) -> bool:
        note = fsio.read_start(self.folder / _NOTE, _NOTE_BYTES) or b""
        try:
            expected, new = map(Multihash.parse, note.decode("ascii", "replace").split(" "))
        except (errors.InvalidIdError, ValueError):
            return False
        return self.local_head == expected and self.is_committed(HEAD, expected, new, there)

    def _rewound(self, alias: DatasetAlias, error: errors.ChainsDifferError) -> errors.SetBackError:
        folder = self.folder
        if folder.is_dir():
            hint = (
                "it was rewound or compacted on another machine: if that is known to be right, "
                f"`odfchain reset {alias} {error.source_head}` follows; what is here is in {folder}, from "
                "where `odfchain pull` brings it into another workspace"
            )
        else:
            memory = folder.parent.parent / "seen" / folder.name
            hint = f"it was rewound: if that is known to be right, remove {memory} and run the command again"
        return errors.SetBackError(
            f"{self.peer().where}: the history there does not continue what was seen here: {error.message}",
            head=error.source_head,
            hint=hint,
        )

    # --- branches ------------------------------------------------------------------------------------

    def listed_branches(self) -> list[str]:
        """The names of branches in the store, and of those that are here: a listing may lag."""
        listed = self._space.listed(f"datasets/{self.folder.name}/refs", SHARING.shared_names)
        return sorted(
            {each.key for each in listed if is_branch_name(each.key)} | {*points.branch_names(self.on())}
        )

    def follow_branches(self, names: Sequence[str]) -> dict[str, errors.OdfchainError]:
        """Branches are here as the store has them; returns those that are damaged."""
        problems: dict[str, errors.OdfchainError] = {}

        def head_of(name: str) -> Multihash | None:
            try:
                return self.look(name)
            except errors.CorruptedPeerError as error:
                problems[name] = error
                return None

        heads = with_answers(head_of, names)
        # those that are gone come last: another one may have their blocks now
        for name, head in sorted(heads, key=lambda pair: pair[1] is None):
            if name not in problems:
                try:
                    self._follow_branch(name, head)
                except (errors.CorruptedPeerError, errors.ChainsDifferError, errors.StoreError) as error:
                    problems[name] = error
        self.followed |= {*names} - problems.keys()
        return problems

    def follow_merged(self, names: Sequence[str] = ()) -> None:
        """Blocks that were merged into the head and branches are here, to compute merges again."""
        for ref in (HEAD, *names):
            dataset = self.on(ref)
            head = dataset.chain.head()
            if head is not None and any(True for _ in unknown_sources(dataset, head)):
                bring_merged(dataset, self.peer(ref), on_demand=True)

    def _follow_branch(self, ref: str, there: Multihash | None) -> None:
        branch, peer = self.on(ref), self.peer(ref)
        here = branch.chain.head()
        if here == there:
            return
        if there is not None:
            known = FetchedBranches(branch).find(ref)
            where = peer.where if known is None else known.where
            # a branch may have been deleted and made anew, or rewound; its old head keeps a reference
            outcome = pull_branch_from(branch, peer, where, SyncOptions(on_demand=True, force=True))
            for text in outcome.warnings:
                warn(text)
            if here is None or outcome.status is not SyncStatus.OVERWRITTEN or _is_needed(branch, here):
                return
            kept = f"which stays under refs/{points.overwritten_name(here)}"
            at = f"{branch.label}: the branch in {peer.where}"
            warn(f"{at} does not continue what was seen here, {kept}")
            return
        with fsio.locked(points.lock_path(branch)):
            if (here := branch.chain.head()) is not None:
                if not _is_needed(branch, here):
                    points.keep_reachable(branch, here)
                points.remove_branch(branch, here)
                FetchedBranches(branch).rename(ref, None)

    # --- commits -------------------------------------------------------------------------------------

    def plan_commit(
        self, dataset: DatasetFiles, expected: Multihash | None, version: Version | None, new: Multihash
    ) -> CommitPlan:
        """The blocks up to `new` that `expected` does not lead to; None: that the dataset's head does not."""
        chain, base = dataset.chain, dataset.chain.head() if expected is None else expected
        assert base is not None  # noqa: S101 - the first head is not sent by this
        newest_first = itertools.takewhile(
            lambda found: chain.hash_at(found.block.sequence_number, base) != found.hash, chain.walk(new)
        )
        blocks = list(newest_first)[::-1]
        common = blocks[0].block.prev_block_hash if blocks else new
        return CommitPlan(version, blocks, common, expected is not None and common != expected)

    def refuse_conflict(self, ref: str, expected: Multihash | None, actual: Multihash | None) -> NoReturn:
        """A lost compare-and-swap; the other writer's blocks are fetched."""
        self.follow(ref)
        raise conflict(ref, expected, actual)


def _is_needed(branch: DatasetFiles, block: Multihash) -> bool:
    for on in [branch.on(ref) for ref in (HEAD, *points.branch_names(branch)) if ref != branch.ref]:
        head = on.chain.head()
        merges = on.chain.nearest_all(MERGE)
        if head is not None and (
            points.is_referenced(on, block, head=head)
            or any(block in merged_names(merge.block.event)[:1] for merge in merges)
        ):
            return True
    return False


_NOTE = Path("info", "replacing")


@contextlib.contextmanager
def _replacing(folder: Path, expected: Multihash, new: Multihash) -> Iterator[None]:
    # noted durably, unless it is known to have failed
    note = folder / _NOTE
    fsio.replace_file(note, f"{expected} {new}".encode())
    try:
        yield
    except errors.RefConflictError:
        fsio.remove_quietly(note)
        raise
    fsio.remove_quietly(note)


# The head of a dataset in a store: its objects first, then one conditional write (`odfchain.transfer.sync`).
#
# A crash before the write leaves unreferenced objects; after it the commit is done, and the next opening
# moves the head in the folder. After a lost answer the head in the store decides: the commit is done if that
# is this head or continues it. A head that does not continue the one before (a reset, a compaction) moves in
# the same way; its intention is noted in the folder before, or this machine would take it for a rewound
# store after a crash.


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """The blocks that a store is to have, oldest first, and the version of the reference that is to move."""

    version: Version | None
    blocks: Sequence[HashedBlock]
    common: Multihash | None = None
    """The newest block that the store has already."""
    replaces: bool = False
    """True if the new head does not continue the one before."""
    up_to_date: bool = False


@dataclass
class StoreSync(Sync[CommitPlan, None]):
    """A dataset in a folder is the source, the store of its workspace the target, on the head or a branch."""

    stored: StoredDataset
    dataset: DatasetFiles
    ref: str
    new: Multihash

    def __post_init__(self) -> None:
        self.peer = self.stored.peer(self.ref)
        self._began = 0.0
        # Objects, and whether they were in the store before: then they may be about to be removed.
        self._sent: list[tuple[ObjectKey, bool]] = []

    def carry_objects(self, plan: CommitPlan) -> None:
        self._began = time.monotonic()
        # executors have just put the others, and hashed them; within half of a lease's life no gc can be
        # about to remove them
        just_sent = {key for key, since in self.stored.sent.items() if since > self._began - LIFE / 2}
        named = dict.fromkeys(item.key for hashed in plan.blocks for item in objects_of(hashed.block))
        self._sent = with_answers(self._put, [key for key in named if key not in just_sent])

    def carry_blocks(self, plan: CommitPlan) -> None:
        # in turn, so that a block that is there has all before it
        for hashed in plan.blocks:
            key = ObjectKey(ObjectKind.BLOCK, hashed.hash)
            self._sent.append((key, self._put(key)))
        if time.monotonic() - self._began > LIFE / 2:
            self._sent = [(key, True) for key, _ in self._sent]
        if self.ref == HEAD and (plan.blocks or plan.replaces) and self._is_hint_due(plan):
            self.peer.put_hint(self.dataset.chain.hashes(self.new))

    def _is_hint_due(self, plan: CommitPlan) -> bool:
        newest = self.dataset.chain.get(self.new).sequence_number
        every = max(_HINT_EVERY, 10 ** (len(str(newest)) - 2))
        is_due = plan.replaces or newest // every != (newest - len(plan.blocks)) // every
        return is_due and newest < SHARING.hinted_blocks

    def _put(self, key: ObjectKey) -> bool:
        store, peer = store_of(self.dataset, key.kind), self.peer
        here = store.contains(key.name)
        if (key.kind is ObjectKind.CHECKPOINT or not here) and peer.contains(key):
            return True
        if not here:
            raise errors.ObjectNotFoundError(
                f"{store.locate(key.name)}: missing, and not in {peer.where} either; nothing was committed",
                hint="a dataset in a store is whole: bring its slices first",
            )
        return peer.put(key, store.verified_path(key.name), SILENT)

    @contextlib.contextmanager
    def relying(self, common: Multihash | None = None) -> Iterator[None]:
        """Protect objects that were there before until the head is, but for those that `common` names."""
        reused = [key for key, was_there in self._sent if was_there]
        before = self.dataset.chain.nearest(*DATA_EVENTS, head=common) if reused and common else None
        if before is not None:
            named = {item.key for item in objects_of(before.block)}
            reused = [key for key in reused if key not in named]  # an old checkpoint is named again
        if not reused:
            yield
            return
        with self.stored.leases.relying():
            for key, is_there in with_answers(self.peer.contains, reused):
                if not is_there:
                    self._put(key)
            yield


class UnknownOutcomeError(errors.TransferError):
    """Whether a commit was made is not known."""


@dataclass
class _Commit(StoreSync):
    """A head or a branch moves in the store, then here."""

    refs: SharedRefStore
    expected: Multihash | None

    def plan(self) -> CommitPlan:
        stored, ref, expected = self.stored, self.ref, self.expected
        actual = self.refs.get(ref)
        if actual != expected:
            raise conflict(ref, expected, actual)
        if expected is None and ref != HEAD:
            self._check_head()
        head, version = stored.known.get(ref, (None, None))
        if head is None or head != expected:
            head, version = stored.known[ref] = stored.bucket.versioned(ref)
        if head != expected:
            stored.refuse_conflict(ref, expected, head)
        return stored.plan_commit(self.dataset, expected, version, self.new)

    def _check_head(self) -> None:
        """The head in the store has all blocks of the head here, from which a branch is to begin."""
        here, there = self.refs.get(HEAD), self.stored.peer().head()
        # if another machine has rewound the head, the branch's blocks may be garbage in the store
        known = there is not None and here is not None and self.stored.is_committed(HEAD, None, here, there)
        if here is not None and not known:
            self.stored.refuse_conflict(HEAD, here, there)

    def move(self, plan: CommitPlan) -> None:
        with contextlib.ExitStack() as stack:
            if plan.replaces and self.ref == HEAD and self.expected is not None:
                stack.enter_context(_replacing(self.stored.folder, self.expected, self.new))
            with self.relying(plan.common):
                self._swap(plan.version)
            # an opening of the dataset may have moved it at least as far
            with contextlib.suppress(errors.RefConflictError):
                self.refs.move_here(self.ref, self.expected, self.new)

    def finish(self, plan: CommitPlan) -> None:
        if plan.replaces:
            with contextlib.suppress(errors.TransferError):  # it is of a block that the chain lacks now
                self.peer.put_signed(SignedFile.HEAD, None)

    def _swap(self, version: Version | None) -> None:
        problem: errors.TransferError | None = None
        try:
            self.stored.known[self.ref] = self.new, self.stored.bucket.replace(self.ref, version, self.new)
        except ConditionsUnknownError:
            raise errors.TransferError(
                f"{self.peer.where}: the store has no conditional writes any more"
            ) from None
        except WriteRefusedError:
            pass
        except errors.TransferError as error:  # whether it was written is not known
            problem = error
        else:
            return
        head, is_made = self._look(problem)
        if is_made:
            return
        if head != self.expected or problem is None:
            self.stored.refuse_conflict(self.ref, self.expected, head)
        raise problem

    def _look(self, problem: errors.TransferError | None) -> tuple[Multihash | None, bool]:
        stored, ref = self.stored, self.ref
        try:
            head = stored.look(ref)
            return head, head is not None and stored.is_committed(ref, self.expected, self.new, head)
        except errors.TransferError as error:
            stored.known.pop(ref, None)
            raise UnknownOutcomeError(
                f"{(problem or error).message}: whether block {self.new} was committed is not known",
                hint="see with `odfchain log` whether it is there before the command is run again",
            ) from error


class SharedRefStore(LocalRefStore):
    """The references of a dataset in a store. Reading them makes no request (opening does)."""

    def __init__(self, stored: StoredDataset) -> None:
        """Those whose copies are in the folder of a dataset."""
        super().__init__(stored.folder)
        self.stored = stored

    def move_here(self, name: str, expected: Multihash | None, new: Multihash) -> None:
        """Move a reference in the folder only."""
        super().compare_and_swap(name, expected, new)

    def compare_and_swap(self, name: str, expected: Multihash | None, new: Multihash) -> None:
        """Move the head or a branch in the store, then here; other references stay in the folder."""
        check_object_name(new)
        if name != HEAD and not is_branch_name(name):
            self.move_here(name, expected, new)
            return
        # a branch begins with the blocks that the head does not have
        dataset = self.stored.on(HEAD if expected is None else name)
        _Commit(self.stored, dataset, name, new, self, expected).run()

    def remove(self, name: str, expected: Multihash) -> None:
        """A branch that points at `expected` now is none any more, in the store and then here."""
        known = self.stored.known
        head, version = known[name] = self.stored.bucket.versioned(name)
        if head is not None:
            if head != expected:
                self.stored.refuse_conflict(name, expected, head)
            try:
                known[name] = None, self.stored.bucket.replace(name, version, None)
            except WriteRefusedError:  # by another writer, or by our own request that was repeated
                if (head := self.stored.look(name)) is not None:
                    self.stored.refuse_conflict(name, expected, head)
            with contextlib.suppress(errors.TransferError):
                self.stored.peer(name).put_signed(SignedFile.HEAD, None)
        super().remove(name, expected)
