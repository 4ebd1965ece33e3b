"""A workspace in an object store: the store has the truth, the folder on this machine what one works with.

    workspace.json          says that there is one, and its version; made by `odfchain init --store URL`
    names/                  what the datasets are called (`odfchain.transfer.object_workspace`)
    datasets/fed01…/        one dataset, as every ODF node can read it (the simple transfer protocol)

Opening a dataset asks for its head; blocks that are new are brought as a pull brings them, and nothing of it
is believed that a pull would not believe. Slices come when they are read. Source: RFC-048.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odfchain import errors
from odfchain.chain.checkpoints import note_in
from odfchain.chain.signed_heads import read_head_signature, warn
from odfchain.chain.statements import read_branch, read_head
from odfchain.limits import SHARING, FetchLimits
from odfchain.odf.identity import DatasetId, Multihash, encode_base16
from odfchain.odf.names import DatasetAlias
from odfchain.progress import SILENT
from odfchain.storage import bucket_store, fsio
from odfchain.storage.local import HEAD, BroughtObjectStore, LocalObjectStore
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKey, ObjectKind, SignedFile
from odfchain.text import json_object
from odfchain.transfer.open_peer import NamedStores
from odfchain.transfer.signed_statements import push_statements
from odfchain.transfer.snapshot_objects import send_objects
from odfchain.transfer.store_commit import CommitPlan, SharedRefStore, StoredDataset, StoreSync
from odfchain.transfer.store_files import StoreFiles
from odfchain.transfer.store_garbage import Garbage, Removal
from odfchain.transfer.sync import with_answers
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.shared_store import STORE_FILE, SharedStore

# Names of datasets in a store: one small object for each, so that no name is taken twice.
#
#     names/<alias in lower case>     `did:odf:… <the alias as it was written>`; empty when it was given up
#
# Names are taken and given up by conditional writes: stores have no conditional delete. A listing shows the
# names in use (not empty) and, by their entity tags, the unknown ones.

_FOLDER = "names"
_BYTES = 1_024
_CACHE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Name:
    """A dataset and what it is called."""

    dataset_id: DatasetId
    alias: DatasetAlias

    @classmethod
    def parse(cls, key: str, data: bytes) -> Name | None:
        """The name in an object; None for one that was given up, or that means nothing."""
        words = data.decode("utf-8", "replace").split(" ")
        try:
            found = cls(DatasetId.parse(words[0]), DatasetAlias.parse(words[-1]))
        except errors.InvalidIdError:
            return None
        return found if len(words) == 2 and found.alias.key == key else None

    def to_bytes(self) -> bytes:
        """The object's content."""
        return f"{self.dataset_id} {self.alias}".encode()


@dataclass(frozen=True, slots=True)
class SharedNames:
    """The names in a store; `cache` is a file with those that were read before."""

    space: bucket_store.BucketTransport
    cache: Path

    def all(self) -> list[Name]:
        """Every name in use, by one listing and one request for each that is new or has changed."""
        listed = [each for each in self.space.listed(_FOLDER, SHARING.shared_names) if each.size]
        # without an entity tag a listing tells nothing about content, so it is not cached
        tags = {each.key: f"{each.key} {each.tag}" for each in listed if each.tag}
        plain = {each.key: (each.tag or "").strip('"') for each in listed}
        known: dict[str, Any] = {}
        with contextlib.suppress(errors.StoreError):
            known = json_object(fsio.read_start(self.cache, _CACHE_BYTES) or b"")
        cached = {key: known.get(tag) for key, tag in tags.items()}
        texts = {key: text for key, text in cached.items() if text and isinstance(text, str)}
        new, count = [each.key for each in listed if each.key not in texts], len(texts)
        # an answer that is no name, or of another version than the listed one, is not kept under its tag
        doubted = set[str]()
        for key, (data, version) in with_answers(self._read, new):
            texts[key] = data.decode("utf-8", "replace")
            if Name.parse(key, data) is None or plain[key] != ((version or ("",))[0] or "").strip('"'):
                doubted.add(key)
        if new or len(known) != count:
            kept = {tag: texts[key] for key, tag in tags.items() if key not in doubted}
            fsio.replace_file(self.cache, json.dumps(kept).encode())
        return [name for key, text in texts.items() if (name := Name.parse(key, text.encode()))]

    def get(self, alias: DatasetAlias) -> Name | None:
        """The present meaning of a name in the store."""
        return Name.parse(alias.key, self._read(alias.key)[0])

    def claim(self, name: Name) -> None:
        """The name means this dataset from now on."""
        key, wanted = name.alias.key, name.to_bytes()
        data, version = self._read(key)
        held = Name.parse(key, data)
        if data != wanted and (held is None or held.dataset_id == name.dataset_id):
            data = self._write(key, wanted, version)
        if data == wanted:
            return
        raise errors.NameCollisionError(
            f"a dataset called {str(name.alias)!r} already exists in {self.space.where}",
            hint="choose another name, or delete or rename the existing dataset",
        )

    def give_up(self, name: Name) -> None:
        """The name is free, unless it means another dataset."""
        data, version = self._read(name.alias.key)
        held = Name.parse(name.alias.key, data)
        if held is None or held.dataset_id != name.dataset_id:
            return
        held = Name.parse(name.alias.key, self._write(name.alias.key, b"", version))
        if held is not None and held.dataset_id == name.dataset_id:
            raise errors.TransferError(
                f"{self.space.where}{_FOLDER}/{name.alias.key}: another writer changes it",
                hint="run the command again",
            )

    def _read(self, key: str) -> tuple[bytes, bucket_store.Version | None]:
        return self.space.find(f"{_FOLDER}/{key}", _BYTES)

    def _write(self, key: str, data: bytes, version: bucket_store.Version | None) -> bytes:
        return self.space.settle(f"{_FOLDER}/{key}", data, version, _BYTES)


def by_id(names: Iterable[Name]) -> dict[DatasetId, Name]:
    """The names of datasets; of two, which a renaming that was killed leaves, the last one."""
    return {name.dataset_id: name for name in names}


# Marking a place in a store as a workspace.
#
#     workspace.json          {"version": 1, "id": "…"}; made only if it is not there
#
# Some stores accept conditional writes and ignore the condition. So both conditions are tested when a
# workspace is made or joined: the object's own bytes are written over it, which must be refused.

_KEY = "workspace.json"
_MARKER_BYTES = 4_096
_VERSION = 1


def make_workspace_at(url: PeerUrl, limits: FetchLimits = bucket_store.STORE_LIMITS) -> bool:
    """The place is a workspace, and its store keeps conditions; says whether it was none before."""
    space = bucket_store.BucketTransport(url, limits)
    made = False
    try:
        data = check_workspace_at(space)
    except errors.ObjectNotFoundError:
        data = json.dumps({"version": _VERSION, "id": secrets.token_hex(16)}).encode()
        try:
            space.write_if(_KEY, data, None)
            made = True
        except bucket_store.ConditionsUnknownError:
            raise _without_conditions(space) from None
        except bucket_store.WriteRefusedError:  # another writer was faster, or our own request was repeated
            data = check_workspace_at(space)
    if space.conditions(_KEY, data) != bucket_store.Conditions():
        if made:
            space.delete(_KEY)
        raise _without_conditions(space)
    return made


def check_workspace_at(space: bucket_store.BucketTransport) -> bytes:
    """The marker of a supported workspace at this place."""
    data, _ = space.read(_KEY, _MARKER_BYTES)
    found = json_object(data)
    version = found.get("version") if isinstance(found.get("id"), str) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise errors.StoreError(
            f"{space.where}{_KEY}: not what a workspace has there", hint="choose another prefix"
        )
    if version != _VERSION:
        raise errors.StoreError(
            f"{space.where}: a workspace of version {version}, and {_VERSION} is understood here",
            hint="update odfchain",
        )
    return data


def _without_conditions(space: bucket_store.BucketTransport) -> errors.UnsupportedPeerError:
    return errors.UnsupportedPeerError(
        f"{space.where}: the store does not keep the conditions of conditional writes, so two writers would "
        "lose each other's commits",
        hint="use another store; `odfchain push` and `pull` work with this one",
    )


@dataclass
class _Publish(StoreSync):
    """A dataset that was built here gets its first head and its name in the store."""

    names: SharedNames

    @property
    def _name(self) -> Name:
        return Name(self.dataset.id, self.dataset.alias)

    def plan(self) -> CommitPlan:
        name = self._name
        if (held := self.names.get(name.alias)) is not None and held != name:
            self.names.claim(name)  # refuses, before anything is sent
        self._there = self.stored.look()
        blocks = list(self.dataset.chain.walk(self.new))[::-1]
        if self._there is not None:
            held = by_id(self.names.all()).get(name.dataset_id)
            # an attempt may have ended after writing the head and before writing the name
            is_left = held is None and any(self._there == hashed.hash for hashed in blocks)
            if not is_left and (held is None or held.alias != name.alias or self._there != self.new):
                raise errors.NameCollisionError(
                    f"{self.peer.where}: the dataset already exists in the store",
                    hint="`odfchain list` shows under which name",
                )
        return CommitPlan(self.stored.known[HEAD][1], blocks)

    def move(self, plan: CommitPlan) -> None:
        if self._there == self.new:
            return
        known = self.stored.known
        with self.relying():
            try:
                known[HEAD] = self.new, self.stored.bucket.replace(HEAD, plan.version, self.new)
            except bucket_store.WriteRefusedError:  # perhaps by our own request, repeated
                if self.stored.look() != self.new:
                    raise errors.NameCollisionError(
                        f"{self.peer.where}: the dataset was made meanwhile"
                    ) from None

    def finish(self, _plan: CommitPlan) -> None:
        push_statements(self.dataset, self.peer, self.new)
        try:
            self.names.claim(self._name)
        except errors.NameCollisionError:
            if self._there is None:
                self.stored.bucket.remove()  # no name leads to it
            raise


class SharedWorkspace(SharedStore):
    """The store behind one workspace folder."""

    def __init__(self, root: Path, url: PeerUrl, limits: FetchLimits = bucket_store.STORE_LIMITS) -> None:
        """Nothing is asked of the store yet."""
        self.where = str(url)
        self.executor_files = StoreFiles(url.text)
        self._root, self._url, self._limits = root, url, limits
        self._space = bucket_store.BucketTransport(url, limits)
        self._shared_names = SharedNames(self._space, root / "run" / "names.json")
        self._names: list[Name] | None = None
        self._datasets: dict[str, StoredDataset] = {}

    def stored(self, folder: Path) -> StoredDataset:
        """One dataset of the store, by the folder that is its copy here."""
        return self._named(folder.name)

    def _named(self, name: str) -> StoredDataset:
        folder = self._root / "datasets" / name
        made = self._datasets.get(name) or StoredDataset(self._space, self._url.text, self._limits, folder)
        return self._datasets.setdefault(name, made)

    # --- opening -----------------------------------------------------------------------------------

    def place(self, folder: Path) -> str | None:
        return f"{self._url.text}datasets/{folder.name}/"

    def renew(self) -> None:
        self._names = None
        for stored in list(self._datasets.values()):
            stored.is_open = False
            stored.followed.clear()

    def fresh(self) -> SharedWorkspace:
        return SharedWorkspace(self._root, self._url, self._limits)

    def sync_heads(self, ref: DatasetId | DatasetAlias | None) -> None:
        wanted = [
            (name, stored)
            for name in by_id(self._settled()).values()
            if ref is None or ref in (name.dataset_id, name.alias)
            if not (stored := self._named(_folder_name(name.dataset_id))).is_open
        ]
        for (name, stored), head in with_answers(lambda each: each[1].look(), wanted):
            try:
                if head is not None and head != stored.local_head:
                    stored.bring(name.alias)
            except (errors.CorruptedPeerError, errors.StoreError) as error:
                if ref is not None:
                    raise
                warn(f"{name.alias}: {error.message}")  # one that is damaged must not hide the others
            else:
                stored.is_open = True

    def _settled(self) -> list[Name]:
        if self._names is None:
            found = self._shared_names.all()
            names = by_id(found)
            # renames and removals here, one process at a time
            with fsio.locked(self._root / "lock"):
                for folder in sorted((self._root / "datasets").iterdir()):
                    try:
                        here = DatasetFiles.open(folder).alias
                    except errors.OdfchainError:
                        continue
                    dataset_id = DatasetId.from_multibase(folder.name)
                    if (name := names.get(dataset_id)) is None:
                        self._set_aside(folder, Name(dataset_id, here))
                    elif str(name.alias) != str(here):
                        fsio.replace_file(folder / "info" / "alias", str(name.alias).encode())
            self._names = found
        return self._names

    def _set_aside(self, folder: Path, name: Name) -> None:
        # a listing may be stale: name and head are requested before the folder is moved
        if self._shared_names.get(name.alias) == name or self.stored(folder).look() is not None:
            return
        check_workspace_at(self._space)  # the whole store may be gone
        target = self._root / "deleted" / f"{folder.name}-{fsio.unique_name()[:8]}"
        fsio.make_folder(target.parent)
        fsio.move_folder(folder, target)

    # --- one dataset -------------------------------------------------------------------------------

    def refs(self, folder: Path) -> SharedRefStore:
        return SharedRefStore(self.stored(folder))

    def follow(self, folder: Path, ref: str | None = None) -> None:
        stored = self.stored(folder)
        if ref == HEAD:
            self.sync_heads(stored.dataset_id)
        elif ref is None and HEAD in stored.followed:
            return
        listed = stored.listed_branches() if ref is None else [ref]
        names = [name for name in listed if name != HEAD and name not in stored.followed]
        problems = stored.follow_branches(names)
        for problem in problems.values() if ref is not None else ():
            raise problem
        stored.follow_merged(names)
        for name, problem in problems.items():
            warn(f"{name}: {problem.message}")
        if ref is None:
            stored.followed.add(HEAD)

    def objects(self, folder: Path) -> LocalObjectStore:
        kind = ObjectKind(folder.name)

        def bring(store: LocalObjectStore, name: Multihash) -> None:
            key, peer = ObjectKey(kind, name), self.stored(folder.parent).peer()
            if (size := peer.size(key)) is None:
                return
            with DatasetFiles.open(folder.parent).staging() as area:
                if size > shutil.disk_usage(area).free:
                    raise errors.StorageFullError(
                        f"{area}: no room for {key} of {peer.where}, {size:,} bytes"
                    )
                peer.fetch(key, size, area / str(name), SILENT)
                store.put_file(area / str(name), name)

        return BroughtObjectStore(folder, bring)

    def sent(self, folder: Path, kind: str, name: Multihash, since: float) -> None:
        self.stored(folder).sent[ObjectKey(ObjectKind(kind), name)] = since

    # --- making and changing -----------------------------------------------------------------------

    def publish(self, folder: Path) -> None:
        dataset = DatasetFiles.open(folder)
        head = dataset.chain.head()
        assert head is not None  # noqa: S101 - it was built
        stored = self._named(_folder_name(dataset.id))
        _Publish(stored, dataset, HEAD, head, self._shared_names).run()
        self._renamed(dataset.id, dataset.alias)
        stored.is_open = True

    def rename(self, dataset_id: DatasetId, old: DatasetAlias, new: DatasetAlias | None) -> None:
        if new is not None:
            self._shared_names.claim(Name(dataset_id, new))
        # a rename that was killed has left two names
        known = [name.alias for name in self._names or () if name.dataset_id == dataset_id]
        for alias in dict.fromkeys((old, *known)):
            if alias != new:
                self._shared_names.give_up(Name(dataset_id, alias))
        if new is None:
            stored = self._named(_folder_name(dataset_id))
            stored.bucket.remove()
            stored.known.clear()
        self._renamed(dataset_id, new)

    def _renamed(self, dataset_id: DatasetId, alias: DatasetAlias | None) -> None:
        if self._names is not None:
            others = [known for known in self._names if known.dataset_id != dataset_id]
            self._names = others if alias is None else [*others, Name(dataset_id, alias)]

    def signed(self, folder: Path, ref: str) -> None:
        peer, head = self.stored(folder).peer(ref), DatasetFiles.open(folder, ref=ref).chain.head()
        try:
            content = read_head_signature(folder, ref)
            read = read_head if ref == HEAD else read_branch
            if content is None or read(content[:-1])[1].head != head:
                return  # the key is on another machine
            if peer.head() == head:
                peer.put_signed(SignedFile.HEAD, content)
                note = note_in(folder, DatasetFiles.open(folder).id) if ref == HEAD else None
                if note is not None and note.checkpoint.head == head:
                    peer.put_signed(SignedFile.CHECKPOINT, note.data())
        except errors.OdfchainError as error:
            warn(f"{peer.where}: the signature of the head was not written: {error.message}")

    def publish_statements(self, folder: Path) -> None:
        dataset, peer = DatasetFiles.open(folder), self.stored(folder).peer()
        head = dataset.chain.head()
        assert head is not None  # noqa: S101 - something was said of it
        _, problems = send_objects(dataset, peer, parallel=SHARING.parallel)
        try:
            problems.append(push_statements(dataset, peer, head)[1] or "")
        except errors.OdfchainError as error:
            problems.append(error.message)
        for problem in filter(None, problems):
            warn(f"{peer.where}: {problem}")

    # --- removing ----------------------------------------------------------------------------------

    def collect(
        self, folder: Path, needed: Callable[[], frozenset[str]], *, grace: float, dry_run: bool
    ) -> list[Garbage]:
        """The store has nothing of a dataset that is not needed and is older than `grace` [s]; kinds of it.

        `needed` says which objects the dataset here needs (`data/f1620…`). The last kind is what is too
        young. With `dry_run` nothing is removed. The caller holds no lock of the dataset.
        """
        stored, removal = self.stored(folder), Removal(self._space, grace, dry_run)

        def needed_there() -> frozenset[str]:
            stored.is_open = False
            self.sync_heads(stored.dataset_id)
            stored.followed.clear()
            self.follow(folder)  # what was merged into any of them is needed, too
            return removal.with_other_references(stored.peer(), folder.name, needed())

        return removal.of_dataset(folder.name, needed_there)

    def collect_left(self, *, grace: float, dry_run: bool) -> list[Garbage]:
        """Remove files in the store that belong to no dataset, as `collect`; young ones are not listed."""
        names = {_folder_name(name.dataset_id) for name in self._shared_names.all()}
        return Removal(self._space, grace, dry_run).of_workspace(names)


def connect(root: Path, url: str) -> SharedWorkspace:
    """The store at a URL that a workspace folder names; nothing is asked of it yet."""
    place = PeerUrl.parse(url)
    NamedStores.of_user().check(place, root / STORE_FILE)
    return SharedWorkspace(root, place)


def _folder_name(dataset_id: DatasetId) -> str:
    return encode_base16(dataset_id.to_bytes())
