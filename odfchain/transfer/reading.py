"""A dataset that is only read, wherever it is: no copy of it becomes part of a workspace.

Its chain is pulled into a private folder, walked and checked as by every pull; its slices stay where they are
when that is a folder, else they come when they are asked for. Nothing is believed that does not hash to its
name. `Origin` is all that another process needs to know to do the same (RFC-034).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.errors import InvalidIdError, UsageError
from odfchain.odf.events import DatasetSnapshot, SetTransform, TransformInput
from odfchain.odf.identity import DatasetId
from odfchain.odf.names import AmbiguousAlias, DatasetAlias, DatasetRefAny, RemoteDatasetId
from odfchain.progress import SILENT, Progress
from odfchain.spark.session_client import temporary_folder
from odfchain.storage import fsio
from odfchain.storage.local import LocalObjectStore
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.storage.store import Store
from odfchain.transfer.credentials import Credentials
from odfchain.transfer.object_workspace import connect
from odfchain.transfer.open_peer import PeerOptions, open_peer
from odfchain.transfer.pulling import SyncOptions, pull_dataset
from odfchain.transfer.signed_statements import SignaturePolicy
from odfchain.transfer.slice_files import DataObject, absent
from odfchain.transfer.sync import Download
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState
from odfchain.workspace.workspace_files import FOLDER, WorkspaceFiles

_PARALLEL = 10


@dataclass(frozen=True, slots=True)
class Origin:
    """The place of a dataset; small, and the same in every process."""

    url: str
    """The peer; empty for a dataset of a workspace, whose chain is read in place."""
    folder: str | None = None
    """The folder whose slices are read in place; None where they have to be brought."""
    token: str | None = field(default=None, repr=False)
    cache: str | None = None
    """The folder in which slices stay that were brought, by name."""

    @classmethod
    def of(
        cls, place: str, dataset: str | None = None, *, token: str | None = None, cache: str | None = None
    ) -> Origin:
        """Parse a URL or path: a dataset's folder, or with `dataset` the workspace that has it.

        One of a workspace whose datasets are in a store is read there.
        """
        is_url = "://" in place or place.lower().startswith("file:")
        if dataset is not None:
            if is_url:
                raise UsageError(
                    f"{PeerUrl(place)}: a dataset is named in a workspace's folder, not in a URL",
                    hint="append its name to the URL",
                )
            workspace = WorkspaceFiles.find(Path(place), connect)
            folder = workspace.dataset(dataset).folder
            there = workspace.shared.place(folder)
            return cls("", str(folder)) if there is None else cls(there, None, None, cache)
        if not is_url:
            path = Path(place).expanduser().resolve()
            if (path / FOLDER).is_dir():
                raise UsageError(f"{path} is a workspace", hint="say which dataset of it: dataset=NAME")
            place = path.as_uri()
        url = PeerUrl.parse(place)
        local = url.path if url.scheme == "file" else None
        return cls(url.text, local, token, cache if local is None else None)

    def chain(self, private: Path, *, require_signature: bool = False) -> DatasetFiles:
        """The dataset with all of its chain and as yet none of its slices; again: with what is new.

        `private` is a folder of the caller's, the same each time.
        """
        if not self.url:
            found = DatasetFiles.open(Path(self.folder or ""))
            if require_signature:
                found.head_signature().require(str(found.alias))
            return found
        workspace = WorkspaceFiles.init(private, exists_ok=True)
        alias = self._alias()
        policy = SignaturePolicy(require=require_signature)
        # `force`: a rewritten history replaces the copy, and the caller compares its block
        options = SyncOptions(force=True, metadata_only=True, signature=policy)
        with closing(self._peer()) as peer:
            pull_dataset(workspace, peer, alias, options)
        return self._with_slices(workspace.dataset(alias))

    def without_chain(self, private: Path) -> DatasetFiles:
        """The dataset without its chain, for a reader that knows its slices by name."""
        if not self.url:
            return DatasetFiles.open(Path(self.folder or ""))
        DatasetFiles.create_folders(private, self._alias())
        return self._with_slices(DatasetFiles.open(private))

    def bring(
        self,
        dataset: DatasetFiles,
        slices: Sequence[DataObject],
        *,
        verify: bool = True,
        progress: Progress = SILENT,
    ) -> None:
        """The slices are in the dataset's folder of data, as far as they can be brought there.

        What was brought before is hashed, unless `verify` is off, and brought again if it is damaged.
        """
        if self.folder is not None:
            return
        lacking = absent(dataset, slices)
        if verify:
            present = [item for item in slices if item not in lacking]
            lacking += [item for item in present if not dataset.data.is_intact(item.key.name)]
        if not lacking:
            return
        # on the slices' file system, so that a rename makes them appear
        base = Path(self.cache) / "incoming" if self.cache is not None else dataset.folder / "staging"
        fsio.make_folder(base)
        with fsio.private_folder(base) as folder, closing(self._peer()) as peer:
            Download(peer, folder, _PARALLEL, progress).receive(dataset, lacking)

    def _with_slices(self, dataset: DatasetFiles) -> DatasetFiles:
        if self.folder is None and self.cache is None:
            return dataset
        folder = Path(self.folder if self.folder is not None else self.cache or "") / "data"
        if self.cache is not None:
            fsio.make_folder(folder)
        return dataclasses.replace(dataset, data=LocalObjectStore(folder))

    def _alias(self) -> DatasetAlias:
        try:
            return DatasetAlias(None, PeerUrl(self.url).name())
        except InvalidIdError:
            return DatasetAlias.parse("dataset")  # only messages say it

    def _peer(self) -> Store:
        options = PeerOptions(token=self.token, credentials=Credentials.of_user())
        return open_peer(PeerUrl(self.url), options)


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder among the user's temporary files that is gone afterwards; so is what killed processes left."""
    base = temporary_folder() / "read"
    fsio.make_folder(base, mode=0o700)
    with fsio.private_folder(base) as folder:
        yield folder


def slice_objects(state: DatasetState) -> list[DataObject]:
    """The slices as of a block, oldest first, as they are asked for."""
    return [
        DataObject(
            ObjectKey(ObjectKind.DATA, ref.slice.physical_hash),
            ref.slice.size,
            ref.sequence_number,
            state.head_block.system_time,
            ref.slice.offset_interval,
        )
        for ref in state.slices()
    ]


# Inputs that a manifest names by their remote place: replaced by the copy in this workspace.
# `datasetRef` may be a URL, `repo/name` or `repo/did:odf:…`. No request is made: an input that was not
# pulled stays as written, and unresolved. Source: specification "DatasetRefAny".

Resolve = Callable[[DatasetRefAny], DatasetId | None]
Local = Callable[[DatasetRefAny], DatasetFiles | None]


def names_places(snapshot: DatasetSnapshot) -> bool:
    """True if an input is named by something else than a local alias or an id."""
    return any(
        not isinstance(item.dataset_ref, DatasetAlias)
        for event in snapshot.metadata
        if isinstance(event, SetTransform)
        for item in event.inputs
    )


def with_local_inputs(snapshot: DatasetSnapshot, resolve: Resolve, local: Local) -> DatasetSnapshot:
    """The definition with ids in place of such references, as far as `local` knows the datasets."""

    def localized(item: TransformInput) -> TransformInput:
        ref = item.dataset_ref
        if isinstance(ref, DatasetAlias) or (isinstance(ref, RemoteDatasetId) and ref.repo is None):
            return item
        # `a/b` is first of all a dataset of the account `a`
        if isinstance(ref, AmbiguousAlias) and resolve(ref) is not None:
            return item
        if (found := local(ref)) is None:
            return item
        alias = item.alias if item.alias is not None else str(ref)
        return TransformInput(dataset_ref=RemoteDatasetId(None, found.id), alias=alias)

    metadata = tuple(
        dataclasses.replace(event, inputs=tuple(localized(item) for item in event.inputs))
        if isinstance(event, SetTransform)
        else event
        for event in snapshot.metadata
    )
    return dataclasses.replace(snapshot, metadata=metadata)
