"""The folder `.odfchain`: datasets by id, their aliases, their private keys, and settings.

    .odfchain/config.yaml               settings, mode 0600: values of variables may be secrets
    .odfchain/datasets/fed01…/          one folder for each dataset, named by its id
    .odfchain/keys/fed01….pem           private keys, mode 0600, never shared
    .odfchain/reports/fed01….json       the last report of a verification, for pages
    .odfchain/run/                      logs and temporary files
    .odfchain/lock                      guards creating, renaming and deleting
    .odfchain/store                     the URL of the store that the datasets are in, where they are in one

A dataset appears and disappears by one rename, so a crash leaves no half of one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import grp
import os
import pwd
import shlex
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain import errors
from odfchain.chain.chain import link_blocks
from odfchain.chain.key_statements import Delegate, KeyHistory, Revocation, keep_keys, keys_content
from odfchain.chain.signed_heads import HeadSigner
from odfchain.chain.statements import SignedHead, read_key_file
from odfchain.limits import ATTEST
from odfchain.odf import names
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import AddPushSource, DatasetSnapshot, MetadataEvent, Seed, SetPollingSource
from odfchain.odf.identity import DatasetId, DatasetKey, DidKey, Multihash, encode_base16
from odfchain.odf.times import Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.progress import SILENT
from odfchain.storage import fsio
from odfchain.storage.local import HEAD
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState, SystemColumns
from odfchain.workspace.shared_store import ONLY_HERE, STORE_FILE, SharedStore

if TYPE_CHECKING:
    from odfchain.workspace.config import DatasetConfig, WorkspaceConfig
    from odfchain.workspace.constraint_rules import Columns


# Trust: a workspace's settings run programs, so that of another user is refused by default (RFC-053).
#
# What decides is who may write `.odfchain` and what lies in it directly: the user, root, or (for root, by
# sudo) the user who asked. Folders above are not asked: who may write there can only put a workspace of his
# own in the place, and that is seen.

_UID_DIGITS = 10
_ACL = "system.posix_acl_access"


def check_owner(root: Path) -> None:
    """Only the user and root could have written the settings of a workspace, or the user trusts it.

    Raises:
        WorkspaceError: others could; it says which path, whose it is, and the commands that mend it.
    """
    trusted = trusted_users()
    for path in _decisive(root):
        if (why := _why_not(path, trusted)) is None:
            continue
        # loaded here: most workspaces are the user's own, and reading manifests is slow to load
        from odfchain.workspace.config import OF_USER, user_folder

        if OF_USER.load(user_folder()).trusts(root):
            return
        trust = f"if you trust it: odfchain config --global safe.workspace {shlex.quote(str(root.parent))}"
        mend = "" if why.startswith("belongs") else f"chmod go-w {shlex.quote(str(path))}, or "
        message = f"{path} {why}, and a workspace runs programs as you, {_name(os.geteuid())}"
        raise errors.WorkspaceError(message, hint=mend + trust)


def owner_of(found: os.stat_result) -> int:
    """The user to whom a file belongs."""
    return found.st_uid


def trusted_users() -> frozenset[int]:
    """The user, root, and for root also the user who called sudo."""
    user, asked = os.geteuid(), os.environ.get("SUDO_UID", "")
    by_sudo = user == 0 and asked.isascii() and asked.isdecimal() and len(asked) <= _UID_DIGITS
    return frozenset({0, user, *([int(asked)] if by_sudo else ())})


def _decisive(root: Path) -> Iterator[Path]:
    yield root
    with fsio.storage_errors(root), os.scandir(root) as entries:
        yield from sorted(Path(entry.path) for entry in entries)


def _why_not(path: Path, trusted: frozenset[int]) -> str | None:
    """Reason why another user could have made or changed a path; None without one."""
    try:
        named = found = path.lstat()
        if stat.S_ISLNK(named.st_mode):
            found = path.stat()
    except OSError:  # it leads nowhere; what the path is in was looked at before
        return None
    for each in (named, found):
        if owner_of(each) not in trusted:
            return f"belongs to {_name(owner_of(each))}"
    if found.st_mode & stat.S_IWOTH:
        return f"of {_name(found.st_uid)} can be written by everybody"
    if found.st_mode & stat.S_IWGRP and (others := _others_in(path, found.st_gid, trusted)):
        return f"of {_name(found.st_uid)} can be written by {others}"
    return None


def _others_in(path: Path, gid: int, trusted: frozenset[int]) -> str | None:
    if hasattr(os, "getxattr"):
        try:
            os.getxattr(path, _ACL)
        except OSError:
            pass
        else:
            return "those whom its access list (ACL) names"
    try:
        group = grp.getgrgid(gid)
    except KeyError:
        return f"the group {gid}"
    users = pwd.getpwall()
    members = {*group.gr_mem, *(user.pw_name for user in users if user.pw_gid == gid)}
    # the user's private group, without other members
    if members and members <= {user.pw_name for user in users if user.pw_uid in trusted}:
        return None
    return f"the group {group.gr_name} ({gid})"


def _name(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


FOLDER = ".odfchain"

Connect = Callable[[Path, str], SharedStore]
"""Reaches the store of a workspace, by its folder and the URL in it."""
_URL_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class WorkspaceFiles:
    """An opened workspace; `root` is the `.odfchain` folder, `shared` the store that its datasets are in."""

    root: Path
    shared: SharedStore = field(default=ONLY_HERE, repr=False, compare=False)
    note: Callable[[str], None] = field(default=SILENT.note, repr=False, compare=False)
    """Hears the names of datasets that get a block here, but not the key."""
    only: frozenset[str] | None = field(default=None, repr=False, compare=False)
    """The folders of the datasets that there are for whoever asks; None is all."""

    # --- finding and making ------------------------------------------------------------------------

    @classmethod
    def init(
        cls,
        parent: Path,
        *,
        exists_ok: bool = False,
        store: str | None = None,
        connect: Connect | None = None,
    ) -> WorkspaceFiles:
        """Make a workspace in `parent`, with its datasets in a `store` if one is given."""
        root = parent.resolve() / FOLDER
        if root.is_dir():
            if exists_ok:
                if store is not None and (kept := _store_of(root)) != store:
                    raise errors.NameCollisionError(
                        f"{root} is already a workspace, {f'of {kept}' if kept else 'without a store'}",
                        hint="make another one in an empty folder; `odfchain push` brings datasets there",
                    )
                return cls._of(root, connect)
            message = f"{root} is already a workspace"
            raise errors.NameCollisionError(message, hint="use --exists-ok to accept that")
        if store is not None:  # first: without it the rest would be a workspace of its own
            fsio.make_folder(root)
            fsio.create_file(root / STORE_FILE, store.encode())
        for name in ("datasets", "run", "trash"):
            fsio.make_folder(root / name)
        fsio.make_folder(root / "keys", mode=0o700)
        from odfchain.workspace.config import OF_WORKSPACE

        fsio.create_file(root / "config.yaml", OF_WORKSPACE.text.encode(), mode=0o600)
        return cls._of(root, connect)

    @classmethod
    def _of(cls, root: Path, connect: Connect | None) -> WorkspaceFiles:
        check_owner(root)
        if (url := _store_of(root)) is None:
            return cls(root)
        if connect is None:
            raise errors.WorkspaceError(
                f"the datasets of {root} are in a store, {url}, and this works on folders only",
                hint="`odfchain pull` brings them into a workspace without a store",
            )
        return cls(root, connect(root, url))

    @classmethod
    def find(cls, start: Path, connect: Connect | None = None) -> WorkspaceFiles:
        """The workspace of `start` or of the nearest folder above it, or `NotAWorkspaceError`."""
        here = start.resolve()
        if not here.is_dir():
            message = f"{here}: no such folder"
            raise errors.NotAWorkspaceError(message, hint="-w names the folder of a workspace")
        for folder in (here, *here.parents):
            if _is_workspace(folder):
                return cls._of(folder / FOLDER, connect)
        message = f"{here} is not inside a workspace"
        raise errors.NotAWorkspaceError(message, hint="make one with `odfchain init`")

    @property
    def config(self) -> WorkspaceConfig:
        """The settings; read anew at each call."""
        # Loaded here: most commands do not need the settings, and reading manifests is slow to load.
        from odfchain.workspace.config import OF_WORKSPACE

        check_owner(self.root)  # who may write above could have put another folder there meanwhile
        config: WorkspaceConfig = OF_WORKSPACE.load(self.root)
        return config

    def reopened(self) -> WorkspaceFiles:
        """The same as a command finds it that begins now: what a store has is asked again."""
        return dataclasses.replace(self, shared=self.shared.fresh())

    @property
    def run_folder(self) -> Path:
        """Where logs and temporary files go."""
        fsio.make_folder(self.root / "run")
        return self.root / "run"

    # --- datasets ----------------------------------------------------------------------------------

    def datasets(self) -> Iterator[DatasetFiles]:
        """Every dataset, ordered by alias. Folders that cannot be opened are passed over."""
        self.shared.sync_heads(None)
        yield from self.local_datasets()

    def local_datasets(self) -> Iterator[DatasetFiles]:
        """Every dataset as it is on this machine; a store is not asked, and no lock is taken."""
        for _, folder in sorted(self._aliases(), key=lambda found: found[0]):
            yield self._open(folder)

    def _aliases(self) -> Iterator[tuple[names.DatasetAlias, Path]]:
        for folder in (self.root / "datasets").iterdir():
            if self.only is None or folder.name in self.only:
                with contextlib.suppress(errors.OdfchainError):
                    yield DatasetFiles.alias_in(folder), folder

    def _folder(self, dataset_id: DatasetId) -> Path:
        return self.root / "datasets" / encode_base16(dataset_id.to_bytes())

    def key_of(self, path: Path) -> str | None:
        """The key of a slice or checkpoint in `executor_files`; None for other files."""
        kind = path.parent
        if kind.name not in ("data", "checkpoints") or kind.parent.parent != self.root / "datasets":
            return None
        return path.relative_to(self.root).as_posix()

    def _open(self, folder: Path) -> DatasetFiles:
        signer = HeadSigner(folder, lambda: self._key_beside(folder), note=self.note)
        return DatasetFiles.open(folder, signer, shared=self.shared)

    def dataset(self, ref: str | names.DatasetRef) -> DatasetFiles:
        """The dataset that a reference names; `DatasetNotFoundError` suggests similar names."""
        parsed = names.parse_ref(ref) if isinstance(ref, str) else ref
        self.shared.sync_heads(parsed)
        if isinstance(parsed, DatasetId):
            folder = self._folder(parsed)
            if folder.is_dir() and (self.only is None or folder.name in self.only):
                return self._open(folder)
            raise errors.DatasetNotFoundError(f"no dataset has the id {parsed}")
        aliases = []
        for alias, folder in self._aliases():
            if alias == parsed:
                return self._open(folder)
            aliases.append(str(alias))
        message = f"no dataset is called {str(parsed)!r}"
        raise errors.DatasetNotFoundError(message, hint=_similar(str(parsed), aliases))

    def present(self, ref: names.DatasetRef) -> DatasetFiles | None:
        """The dataset that a reference names; None where it is not here."""
        try:
            return self.dataset(ref)
        except errors.DatasetNotFoundError:
            return None

    def damaged_or_not(self, ref: str | names.DatasetRef) -> DatasetFiles:
        """Open a dataset, also where the store has something else that cannot be taken over."""
        try:
            return self.dataset(ref)
        except (errors.StoreError, errors.CorruptedPeerError):
            return self._open(dataclasses.replace(self, shared=ONLY_HERE).dataset(ref).folder)

    def matching(self, text: str) -> list[DatasetFiles]:
        """Every dataset that a reference or a `%` pattern names, at least one."""
        if "%" not in text:
            return [self.dataset(text)]
        pattern = names.DatasetPattern.parse(text)
        if not (datasets := [d for d in self.datasets() if pattern.matches(d.alias)]):
            raise errors.DatasetNotFoundError(
                f"no dataset matches {text!r}", hint="`odfchain list` shows the datasets of this workspace"
            )
        return datasets

    def resolve(self, ref: names.DatasetRefAny) -> DatasetId | None:
        """The id of the local dataset that a reference means, None when there is none."""
        if isinstance(ref, names.RemoteDatasetId):
            return ref.id if ref.repo is None or self._folder(ref.id).is_dir() else None
        if (alias := names.local_alias(ref)) is None:
            return None
        self.shared.sync_heads(alias)
        return next((self._open(folder).id for other, folder in self._aliases() if other == alias), None)

    def columns_of(self, dataset_id: DatasetId) -> Columns | None:
        """The known columns of a dataset; None where it is not here."""
        from odfchain.workspace.constraint_rules import Columns

        dataset = self.present(dataset_id)
        return None if dataset is None else Columns.of(DatasetState.read(dataset.chain), str(dataset.alias))

    def create(
        self,
        snapshot: DatasetSnapshot,
        *,
        system_time: Timestamp | None = None,
        alias: names.DatasetAlias | None = None,
        system_columns: SystemColumns | None = None,
        check: Callable[[Sequence[MetadataEvent]], None] = lambda _: None,
    ) -> DatasetFiles:
        """Make a dataset with a new key pair from a snapshot; it appears complete or not at all.

        `system_columns` goes before the workspace's setting when its first schema is written. `check` is
        given the events before they are recorded.
        """
        # loaded here: most commands create nothing
        from odfchain.workspace.config import change_config
        from odfchain.workspace.constraint_rules import check_declared
        from odfchain.workspace.creation import events_of, referenced, resolve_own_name

        alias = alias or snapshot.name
        for ref in referenced(snapshot):  # before the lock, under which nothing can come in
            self.shared.sync_heads(ref)
        here = dataclasses.replace(self, shared=ONLY_HERE)
        with fsio.locked(self.root / "lock"):
            # only what was interrupted is left there, because datasets are built under the lock
            for folder in (self.root / "trash").glob("*"):
                shutil.rmtree(folder, ignore_errors=True)
            self._check_free(alias)
            key = DatasetKey.generate()
            resolve = resolve_own_name(here.resolve, (alias, snapshot.name), key.dataset_id)
            events = events_of(snapshot, resolve)
            check(events)
            check_declared(events, str(alias), here.columns_of, key.dataset_id)
            seed = Seed(dataset_id=key.dataset_id, dataset_kind=snapshot.kind)
            staged = self.root / "trash" / fsio.unique_name()
            try:
                time = system_time or Timestamp.now()
                built = self.build(staged, alias, key, lambda _: [seed, *events], time)
                self.set_watermarks(built, snapshot)
                if system_columns is not None:
                    chosen = system_columns
                    change_config(built, lambda config: dataclasses.replace(config, system_columns=chosen))
                self.store_key(key, built)
                self.shared.publish(staged)
                folder = self._folder(key.dataset_id)
                fsio.move_folder(staged, folder)
            except BaseException:
                shutil.rmtree(staged, ignore_errors=True)
                raise
        return self._open(folder)

    def build(
        self,
        folder: Path,
        alias: names.DatasetAlias,
        key: DatasetKey,
        events: Callable[[DatasetFiles], Sequence[MetadataEvent]],
        system_time: Timestamp,
    ) -> DatasetFiles:
        """A dataset in a new folder, with the `events` of it, which may put files into it before."""
        DatasetFiles.create_folders(folder, alias)
        dataset = DatasetFiles.open(folder, HeadSigner(folder, lambda: key))
        blocks = link_blocks(events(dataset), prev=None, next_sequence_number=0, system_time=system_time)
        dataset.chain.check_all(blocks, expected_head=None)
        dataset.chain.publish(blocks, expected_head=None)
        return dataset

    def set_watermarks(self, dataset: DatasetFiles, snapshot: DatasetSnapshot) -> bool:
        """Keep what a definition says of its sources and blocks do not carry; False when already kept."""
        # loaded here: most commands make no datasets, and reading manifests is slow to load
        from odfchain.workspace.config import change_config

        defined = {
            event.source_name if isinstance(event, AddPushSource) else POLLING_SOURCE
            for event in snapshot.metadata
            if isinstance(event, SetPollingSource | AddPushSource)
        }

        def change(config: DatasetConfig) -> DatasetConfig:
            kept = {name: rule for name, rule in config.watermarks.items() if name not in defined}
            return dataclasses.replace(config, watermarks=kept | dict(snapshot.watermarks))

        return bool(defined) and change_config(dataset, change)

    def _check_free(self, alias: names.DatasetAlias) -> None:
        for dataset in self.local_datasets():
            if dataset.alias == alias:
                raise errors.NameCollisionError(
                    f"a dataset called {str(dataset.alias)!r} already exists",
                    hint="choose another name, or delete or rename the existing dataset",
                )

    def check_new(self, dataset_id: DatasetId, alias: names.DatasetAlias) -> None:
        """A dataset of this id may appear under this alias, or `NameCollisionError`."""
        folder = self._folder(dataset_id)
        if folder.is_dir():
            present = DatasetFiles.open(folder).alias
            raise errors.NameCollisionError(
                f"the dataset {dataset_id} is here already, as {str(present)!r}",
                hint=f"update that one, or rename it to {str(alias)!r} first",
            )
        self._check_free(alias)

    def adopt(self, built: DatasetFiles) -> DatasetFiles:
        """Take over a complete dataset that was built in a hidden folder here; it appears at once."""
        dataset_id = built.id
        folder = self._folder(dataset_id)
        self.check_new(dataset_id, built.alias)
        # the store first: what is here and not there would be lost to others
        self.shared.publish(built.folder)
        with fsio.locked(self.root / "lock"):
            # another command may have fetched it from the store since
            if self.shared.where is None or not folder.is_dir():
                self.check_new(dataset_id, built.alias)
                fsio.move_folder(built.folder, folder)
        return self._open(folder)

    def rename(self, dataset: DatasetFiles, alias: names.DatasetAlias) -> None:
        """Give a dataset another local alias; its id stays."""
        with fsio.locked(self.root / "lock"):
            if dataset.alias != alias:
                self._check_free(alias)
            self.shared.rename(self._id_of(dataset), dataset.alias, alias)
            fsio.replace_file(dataset.folder / "info" / "alias", str(alias).encode())

    def delete(self, dataset: DatasetFiles, *, with_key: bool = False) -> None:
        """Remove a dataset from the workspace; its private key is kept, unless it was never published."""
        key = self._key_path(dataset.id) if with_key else None
        self.shared.rename(self._id_of(dataset), dataset.alias, None)
        with fsio.locked(self.root / "lock"):
            # moved first, which is atomic; removing the files takes longer and may be interrupted
            doomed = self.root / "trash" / fsio.unique_name()
            fsio.make_folder(doomed.parent)
            fsio.move_folder(dataset.folder, doomed)
        shutil.rmtree(doomed, ignore_errors=True)
        fsio.remove_quietly(self.root / "reports" / f"{dataset.folder.name}.json")
        if key is not None:
            fsio.remove_quietly(key)

    @staticmethod
    def _id_of(dataset: DatasetFiles) -> DatasetId:
        # the chain may be damaged, the folder is named by the id
        return DatasetId.from_multibase(dataset.folder.name)

    # --- inputs, and everything upstream of them -----------------------------------------------------

    def is_copy(self, dataset: DatasetFiles) -> bool:
        """True if a plain pull brings the dataset from a peer, not from its source or its inputs.

        It does so when the dataset was pulled from there, and was not created here or has nothing else to be
        pulled from: extending a copy leaves the chain of its owner.
        """
        # Reading manifests is slow to load.
        from odfchain.workspace.config import read_config

        if not read_config(dataset).pull_aliases:
            return False
        if not self.has_key(dataset.id):
            return True
        return dataset.kind is DatasetKind.ROOT and DatasetState.read(dataset.chain).polling_source is None

    def check_is_no_copy(self, dataset: DatasetFiles, hint: str) -> None:
        """Nothing where a reference may be written to: a copy's head moves by `pull` only, but for its owner.

        Raises:
            UsageError: it is the head of a copy, and its key is not here.
        """
        if dataset.ref == HEAD and not self.has_key(dataset.id) and self.is_copy(dataset):
            raise errors.UsageError(f"{dataset.alias} is a copy: its head moves by `pull` only", hint=hint)

    def inputs_of(self, dataset: DatasetFiles) -> list[DatasetFiles]:
        """The inputs of a derivative dataset in the order of its transform; none of a root dataset.

        On a branch these are its inputs on the branch of that name, or on their head where they have none.
        """
        transform = DatasetState.read(dataset.chain).transform
        inputs = []
        for item in transform.inputs if transform is not None else ():
            target = item.id or item.dataset_ref
            try:
                inputs.append(self.dataset(str(target)).on_or_head(dataset.ref))
            except errors.DatasetNotFoundError:
                # the transform may name an input that was deleted or never pulled
                raise errors.DatasetNotFoundError(
                    f"{dataset.alias}: its input {item.alias or target} ({target}) is not in this workspace"
                ) from None
        return inputs

    def with_upstream(
        self, datasets: Iterable[DatasetFiles], ends: Callable[[DatasetFiles], bool] = lambda _: False
    ) -> list[DatasetFiles]:
        """The datasets and all they come from, each once, inputs first; `ends` says whose do not matter."""
        known: dict[str, DatasetFiles] = {}
        graph: TopologicalSorter[str] = TopologicalSorter()
        waiting = list(datasets)
        while waiting:
            dataset = waiting.pop()
            name = _name_of(dataset)
            if name in known:
                continue
            known[name] = dataset
            inputs = [] if ends(dataset) else self.inputs_of(dataset)
            graph.add(name, *map(_name_of, inputs))
            waiting += inputs
        try:
            return [known[name] for name in graph.static_order()]
        except CycleError as error:
            cycle = " ← ".join(str(known[name].alias) for name in error.args[1])
            raise errors.WorkspaceError(f"datasets come from each other in a circle: {cycle}") from None

    # --- keys --------------------------------------------------------------------------------------

    def _key_path(self, dataset_id: DatasetId) -> Path:
        return self.root / "keys" / f"{encode_base16(dataset_id.to_bytes())}.pem"

    def store_key(self, key: DatasetKey, built: DatasetFiles | None = None) -> None:
        """Durably keep the private key of a dataset that is `built` here; none is replaced.

        Where the settings keep such keys away from here, a delegate's key is made, which signs here.
        """
        path, away = self._key_path(key.dataset_id), self.config.datasets.offline_keys
        if away and built is not None:
            _create_key(Path(away) / path.name, key)
            identity, key = key, DatasetKey.generate()
            now, seconds = Timestamp.now(), ATTEST.delegate_days * 86_400
            self.say_keys(built, identity, delegates=(Delegate.of(key.dataset_id, now, seconds),))
        fsio.make_folder(path.parent, mode=0o700)
        _create_key(path, key)

    def new_key(self, dataset: DatasetFiles) -> DidKey:
        """A new key, whose private half is durably here, to be made a delegate of a dataset."""
        key = DatasetKey.generate()
        fsio.make_folder(self._key_path(dataset.id).parent, mode=0o700)
        _create_key(self._key_path(dataset.id), key)
        return DidKey(key.dataset_id.public_key)

    def _key_beside(self, folder: Path) -> DatasetKey | None:
        """The key of the dataset in a folder of its id's name, None when it is not here."""
        if not (self.root / "keys" / f"{folder.name}.pem").is_file():
            return None
        return self.key(DatasetId.from_multibase(folder.name))

    def has_key(self, dataset_id: DatasetId) -> bool:
        """True if a dataset was created here: its private key is in this workspace."""
        return self._key_path(dataset_id).is_file()

    def key(self, dataset_id: DatasetId) -> DatasetKey:
        """The private key that signs a dataset here, which may be a delegate's where there are statements.

        Raises:
            WorkspaceError: it is not here, or others may read it.
        """
        path = self._key_path(dataset_id)
        if not path.exists():
            raise errors.WorkspaceError(f"the private key of {dataset_id} is not in this workspace")
        key = read_key_file(path)  # a key that others may have read is no proof of anything
        if key.dataset_id != dataset_id and keys_content(self._folder(dataset_id)) is None:
            raise errors.WorkspaceError(f"{path}: the key belongs to {key.dataset_id}")
        return key

    def say_keys(
        self, dataset: DatasetFiles, key: DatasetKey | None = None,
        delegates: Sequence[Delegate] = (), revoked: Sequence[Revocation] = (),
        successor: Multihash | None = None,
    ) -> KeyHistory:  # fmt: skip
        """Durably add a keys statement by a key, or the one here; the head is signed anew, and names it."""
        from odfchain.workspace.points import lock_path

        key = key or self.key(dataset.id)
        with fsio.locked(lock_path(dataset)):
            said = dataset.keys_history().with_statement(
                key, Timestamp.now(), tuple(delegates), tuple(revoked), successor
            )
            keep_keys(self.root, dataset.folder, said)
        self.sign_head(dataset, key)
        return said

    def sign_head(self, dataset: DatasetFiles, key: DatasetKey | None = None) -> SignedHead:
        """Durably sign the head of a dataset, or its branch, anew with the time of now; what was signed."""
        key = key or self.key(dataset.id)
        head, ref = dataset.chain.head(), dataset.ref
        if head is None:
            raise errors.ChainError(f"{dataset.folder / 'refs' / ref}: the dataset has no head")
        signer = HeadSigner(dataset.folder, lambda: key)
        signed = signer.sign(key, head, dataset.chain.get(head).sequence_number, ref)
        if signed is None:
            message = f"{dataset.alias}: the head moved while it was signed"
            raise errors.RefConflictError(message, expected=str(head), actual=None)
        return signed


def _create_key(path: Path, key: DatasetKey) -> None:
    # never replaced: a lost private key cannot be had again
    if not fsio.create_file(path, key.to_pem(), mode=0o600):
        raise errors.StoreError(f"{path}: a key is there already", hint="move it to where it is safe")


def _is_workspace(folder: Path) -> bool:
    try:
        return (folder / FOLDER / "datasets").is_dir()
    except PermissionError:  # whose it is, is said when it is opened
        return True


def _store_of(root: Path) -> str | None:
    data = fsio.read_start(root / STORE_FILE, _URL_BYTES)
    return None if data is None else data.decode("utf-8", "replace").strip()


def _similar(name: str, known: list[str]) -> str:
    close = [each for each in known if each.lower().endswith(f".{name.lower()}")][:3]
    close = close or difflib.get_close_matches(name, known, n=3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return "`odfchain list` shows the datasets of this workspace"


def _name_of(dataset: DatasetFiles) -> str:
    return f"{dataset.folder.name}@{dataset.ref}"
