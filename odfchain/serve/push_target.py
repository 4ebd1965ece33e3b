"""The dataset of one push: judged and published by what pulls are judged and published by.

Blocks wait in the folder where a pull would have left them, objects beside them. So what is committed is a
pull of what was sent, and an interrupted push leaves what the next one need not send again, for a day. Where
datasets are in a store, a push opens the workspace as a command does: what it judges by is what the store has
then.

    <area>/objects/         what is complete, hashed, and never written again
    <area>/uploads/         a folder for each push that is going on; it marks the area as one of pushes
"""

from __future__ import annotations

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.codec.blocks import decode_block
from odfchain.digest.physical import hash_file
from odfchain.errors import (
    CorruptedPeerError,
    DatasetNotFoundError,
    NameCollisionError,
    OdfchainError,
    OutcomeUnknownError,
    RefConflictError,
    SetBackError,
)
from odfchain.ids.did import DatasetId
from odfchain.ids.multihash import Multihash
from odfchain.limits import SMART
from odfchain.model.events import Seed
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.serve.access_tokens import Right
from odfchain.serve.push_sessions import PushSession, PushSessions
from odfchain.smart.block_batch import RawBlock, unpacked
from odfchain.smart.server_flow import FlowError
from odfchain.smart.smart_messages import (
    BlocksBatch,
    Internal,
    InvalidHead,
    NameCollision,
    ObjectFile,
    Phase,
    PushMethod,
    PushRequest,
    PushStrategies,
    PushStrategy,
    Reason,
    RefCollision,
    Refusal,
    SeedBlockOverwriteRestricted,
)
from odfchain.store import fsio
from odfchain.transfer.public_layout import ObjectKey
from odfchain.transfer.pulling import arrival_folder, judge_pull, pull_dataset
from odfchain.transfer.pushed_peer import PushedPeer, refuse_disorder
from odfchain.transfer.slice_files import DataObject, arriving
from odfchain.transfer.smart_objects import address_here, key_of
from odfchain.transfer.sync import SyncOptions

_UPLOADS = "uploads"
_STORE_FAILS = "The store of this node fails."
_SAID: Mapping[type[OdfchainError], str] = {
    OutcomeUnknownError: "It is not known whether this was committed.",
    SetBackError: "The history in this node's store was set back.",
}


@dataclass(slots=True)
class DatasetTarget:
    """A `PushTarget`: nothing of the dataset is changed before the commit, which is one swap of its head."""

    workspace: WorkspaceFiles
    sessions: PushSessions
    session: PushSession
    base: str
    """The URL of the dataset."""
    authorization: str
    """What the caller gives to show who he is; his uploads need the same."""
    problem: Callable[[str], object] = lambda _: None
    """Is told what is wrong with the store, which is nothing that the caller is told."""
    _request: PushRequest | None = field(default=None, init=False)
    _head: Multihash | None = field(default=None, init=False)
    """The newest block that was sent."""
    _new_id: DatasetId | None = field(default=None, init=False)
    """Of the seed that was sent."""
    _collision: Reason | None = field(default=None, init=False)
    """Why a new dataset cannot be here; it is said where nodes say it, when objects are named."""
    _objects: dict[ObjectKey, DataObject] = field(default_factory=dict, init=False)
    _unnamed: Counter[ObjectKey] = field(default_factory=Counter, init=False)
    """How often each may still be named: as often as blocks do."""
    _strategies: dict[ObjectKey, PushStrategy] = field(default_factory=dict, init=False)
    """Of those that were named."""

    @property
    def _where(self) -> str:
        return f"what is pushed to {self.session.alias}: "

    def _present(self) -> DatasetFiles | None:
        try:
            return self.workspace.dataset(self.session.alias)
        except DatasetNotFoundError:
            return None

    @property
    def _name_taken(self) -> Reason:
        return NameCollision(dataset_alias=str(self.session.alias))

    @property
    def _is_new(self) -> bool:
        """Whether the push makes a dataset."""
        return self._request is not None and self._request.current_head is None

    def begin(self, request: PushRequest) -> Refusal | None:
        """As `PushTarget`."""
        if request.force_update_if_diverged and not self.session.token.may(Right.FORCE, self.session.alias):
            raise _refused(Phase.INITIAL_REQUEST, "This token may not overwrite history.")
        if not 0 < request.transfer_plan.num_blocks <= SMART.blocks:
            raise _refused(Phase.INITIAL_REQUEST, f"A push has 1 to {SMART.blocks} blocks.")
        with self._asking(Phase.INITIAL_REQUEST):
            present = self._present()
        head = present.chain.head() if present is not None else None
        if head != request.current_head:
            # the names are the reference node's: its own head is the expected one
            return Refusal(InvalidHead(actual_head=request.current_head, expected_head=head))
        self._request = request
        return None

    def take_blocks(self, batch: BlocksBatch) -> Refusal | None:
        """As `PushTarget`."""
        assert self._request is not None  # noqa: S101 - it began
        if batch.num_blocks != self._request.transfer_plan.num_blocks:
            raise CorruptedPeerError(f"{self._where}other blocks than the plan says")
        blocks = unpacked(batch)
        refuse_disorder(self._where, blocks)
        with self._asking(Phase.METADATA_REQUEST):
            return self._judge(blocks)

    def _judge(self, blocks: list[RawBlock]) -> Refusal | None:
        if (refusal := self._other_seed(blocks[0])) is not None:
            return refusal
        self._head = blocks[-1].hash
        if self._collision is None:
            self._make_room(sum(len(block.data) for block in blocks))
            peer = PushedPeer(self._where, self._head, blocks)
            try:
                found = judge_pull(self.workspace, peer, self.session.alias, self._options)
            except RefConflictError:
                return self._moved()
            self._objects = {item.key: item for item in found}
            self._unnamed = Counter(item.key for item in found)
        return None

    def _make_room(self, size: int) -> None:
        """What comes has a place that is known to be one of pushes, and has not been used up."""
        uploads = arrival_folder(self.workspace, self.session.alias) / _UPLOADS
        if not uploads.is_dir():
            self.sessions.release(self.session)
        fsio.make_folder(uploads)
        fsio.mark_used(uploads)
        if not self.sessions.reserve(self.session, "blocks", size, shutil.disk_usage(uploads).free):
            raise _refused(Phase.METADATA_REQUEST, "There is no space for it.")

    def _moved(self) -> Refusal:
        """Another writer has moved the head since the push began; what he did is here now."""
        assert self._request is not None  # noqa: S101 - it began
        self.workspace.shared.renew()
        present = self._present()
        head = present.chain.head() if present is not None else None
        return Refusal(InvalidHead(actual_head=self._request.current_head, expected_head=head))

    @property
    def _options(self) -> SyncOptions:
        assert self._request is not None  # noqa: S101 - it began
        head = self._request.current_head
        return SyncOptions(force=self._request.force_update_if_diverged and head is not None, onto=head)

    def _other_seed(self, first: RawBlock) -> Refusal | None:
        event = decode_block(first.data).event
        if not isinstance(event, Seed):
            return None
        self._new_id = event.dataset_id
        present = self._present()
        if present is not None:
            seed = present.seed
            if (seed.dataset_id, seed.dataset_kind) == (event.dataset_id, event.dataset_kind):
                return None
            if not self._is_new:
                return Refusal(SeedBlockOverwriteRestricted())
            self._collision = self._name_taken
            return None
        self.workspace.shared.opening(event.dataset_id)  # it may be there under another name
        if self.workspace.has_key(event.dataset_id):
            raise _refused(Phase.METADATA_REQUEST, "This dataset is written here.")
        try:
            self.workspace.check_new(event.dataset_id, self.session.alias)
        except NameCollisionError:
            self._collision = RefCollision(dataset_id=str(event.dataset_id))
        return None

    def take_objects(self, files: tuple[ObjectFile, ...]) -> PushStrategies:
        """As `PushTarget`."""
        with self._asking(Phase.OBJECTS_REQUEST):
            self._refuse_collision()
            area = arrival_folder(self.workspace, self.session.alias)
        if self.session.uploads is None:
            self.session.uploads = area / _UPLOADS / uuid.uuid4().hex
        self.session.folder = area / "objects"
        fsio.make_folder(self.session.uploads)
        fsio.make_folder(self.session.folder)
        return PushStrategies(object_transfer_strategies=tuple(self._strategy(file) for file in files))

    def _refuse_collision(self) -> None:
        """A new dataset's name may be taken at every moment until it is there itself."""
        present = self._present()
        if self._is_new and present is not None and present.id != self._new_id:
            self._collision = self._name_taken
        if self._collision is not None:
            raise FlowError(Refusal(self._collision))

    def _strategy(self, file: ObjectFile) -> PushStrategy:
        key = key_of(file)
        item = self._objects.get(key)
        if item is None or item.size != file.size:
            raise _refused(Phase.OBJECTS_REQUEST, "No block names this object.")
        if self._unnamed[key] < 1:
            raise _refused(Phase.OBJECTS_REQUEST, "This object is named more often than blocks do.")
        self._unnamed[key] -= 1
        found = self._strategies.get(key)
        if found is None:
            method, upload = PushMethod.SKIP_UPLOAD, None
            if not self._is_here(item):
                self.session.wanted[key] = item.size
                method, upload = PushMethod.HTTP_UPLOAD, address_here(self.base, key, self.authorization)
            found = PushStrategy(object_file=file, push_strategy=method, upload_to=upload)
            self._strategies[key] = found
        return found

    def _is_here(self, item: DataObject) -> bool:
        assert self.session.folder is not None  # noqa: S101 - objects are named
        if self._is_at(arriving(self.session.folder, item.key), item):
            return True
        present = self._present()
        # only the folder is looked at: a store would be asked for each object, and what it has is sent here
        return present is not None and self._is_at(present.folder / str(item.key), item)

    def _is_at(self, path: Path, item: DataObject) -> bool:
        """Whether a file is the object; it is hashed once for each of its states, by whatever push."""
        if not path.is_file() or (found := path.stat()).st_size != item.size:
            return False
        state = fsio.file_state(found)
        if not self.sessions.has_hashed(item.key, state):
            if hash_file(path)[0] != item.key.name:
                return False
            self.sessions.remember(item.key, state)
        return True

    def commit(self) -> None:
        """As `PushTarget`."""
        with self._asking(Phase.COMPLETE_REQUEST):
            self._commit()

    def _commit(self) -> None:
        assert self._head is not None  # noqa: S101 - blocks were taken
        self._refuse_collision()
        self.sessions.close(self.session)
        # the blocks lie where they were put when they were judged
        peer = PushedPeer(self._where, self._head, has_hashed=self.sessions.has_hashed)
        try:
            outcome = pull_dataset(self.workspace, peer, self.session.alias, self._options)
        except NameCollisionError:
            raise FlowError(Refusal(self._name_taken)) from None
        except RefConflictError:
            raise FlowError(self._moved()) from None
        self.sessions.committed(self.session, outcome.new)

    @contextmanager
    def _asking(self, phase: Phase) -> Iterator[None]:
        """Where the store is at fault, the caller learns that it is, and nothing of where it is."""
        try:
            yield
        except OdfchainError as error:
            where = self.workspace.shared.where
            if where is None or where not in error.message:
                raise
            self.problem(f"{error.message} ({error.hint})" if error.hint else error.message)
            said = next((text for kind, text in _SAID.items() if isinstance(error, kind)), _STORE_FAILS)
            raise _refused(phase, said) from None


def remove_left(workspace: WorkspaceFiles, before_ns: int) -> None:
    """What was pushed, was not committed, and was not used since a time [ns since the epoch] is gone.

    What pulls have left, and what a push is at work with, stays.
    """
    new, present = workspace.root / "incoming", workspace.root / "datasets"
    found = [(uploads.parent, new / f".lock-{uploads.parent.name}") for uploads in new.glob(f"*/{_UPLOADS}")]
    there = present.glob(f"*/info/incoming/{_UPLOADS}")
    found += [(uploads.parent, uploads.parent.with_suffix(".lock")) for uploads in there]
    for area, lock in found:
        with fsio.try_locked(lock) as is_free:
            if is_free and fsio.is_unused_since(area, before_ns):
                fsio.remove_tree(area)


def _refused(phase: Phase, message: str) -> FlowError:
    return FlowError(Refusal(Internal(side="Push", phase=phase, error_message=message)))
