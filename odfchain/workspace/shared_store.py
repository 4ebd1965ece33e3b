"""Where the truth of a workspace is: in its folder, or in a store that other machines have in common.

In the second case the folder is a copy to work on: keys, settings and caches are in it, and what was read.
Nothing else in this room, nor above it, knows the difference. Source: RFC-048.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.storage.local import LocalObjectStore, LocalRefStore

if TYPE_CHECKING:
    from odfchain.spark.executor_files import ExecutorFiles


STORE_FILE = "store"
"""The file in the folder of a workspace that has the URL of its store, if it has one."""


class SharedStore:
    """The store behind a workspace; folders are those of datasets, or of one being built.

    As it is here it has no store: the folder of the workspace is all there is, and nothing is to be done.

    Raises, all of them:
        AccessError, TransferError: the store cannot be reached, or refuses.
        CorruptedPeerError: what is there is damaged; what is here stays.
        StoreError: what is there is no workspace, or what came cannot be kept here.
    """

    where: str | None = None
    executor_files: ExecutorFiles | None = None
    """How machines that do not see the folder reach what is here."""

    def place(self, folder: Path) -> str | None:
        """Where the store has a dataset."""

    def renew(self) -> None:
        """Forget cached answers: they are asked again when needed next."""

    def fresh(self) -> SharedStore:
        """The same store, of which nothing is known yet: for another thread than that of this one."""
        return self

    def sync_heads(self, ref: DatasetId | DatasetAlias | None) -> None:
        """A dataset (None: every one) is here as it is in the store, its blocks checked, if it is there.

        The caller holds no lock of the workspace or the dataset.
        """

    def refs(self, folder: Path) -> LocalRefStore:
        """The references of a dataset; its head and its branches move in the store first."""
        return LocalRefStore(folder)

    def follow(self, folder: Path, ref: str | None = None) -> None:
        """A branch, or the head, is here as it is in the store, or is not, with what was merged into it.

        Without a name all branches are; one that is damaged stays as it is here, with a warning. The caller
        holds no lock of the dataset.
        """

    def objects(self, folder: Path) -> LocalObjectStore:
        """The slices or checkpoints of a dataset, `folder` being theirs; they come when they are read."""
        return LocalObjectStore(folder)

    def sent(self, folder: Path, kind: str, name: Multihash, since: float) -> None:
        """Executors have put a slice or checkpoint into the store, after a time [s, `time.monotonic`]."""

    def publish(self, folder: Path) -> None:
        """A dataset that was built in a folder is in the store, under its name, which must be free there."""

    def rename(self, dataset_id: DatasetId, old: DatasetAlias, new: DatasetAlias | None) -> None:
        """A dataset has another name in the store, which must be free there; with None it is removed."""

    def signed(self, folder: Path, ref: str) -> None:
        """The signature of the head, or of a branch, here is in the store; what goes wrong is said only."""

    def publish_statements(self, folder: Path) -> None:
        """All that is signed of a dataset here is in the store, with what it names; as `signed`."""


ONLY_HERE = SharedStore()
"""The folder is all there is."""
