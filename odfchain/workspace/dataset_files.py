"""The folder of one dataset (specification "Dataset Layout").

blocks/  data/  checkpoints/  refs/     what a peer may read; refs/head.jws is the owner's signature
attestations/                           the same: what auditors say, who vouches for which description, and
                                        which keys sign for the owner
manifests/  profiles/                   the same: what describes a block (RFC-042); these three are made with
                                        the first of their files
info/                                   private: alias, lock, chain index
staging/                                files of transactions that are not committed
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from odfchain.chain.chain import MetadataChain
from odfchain.chain.key_statements import KeyHistory, key_history
from odfchain.chain.signed_heads import (
    HeadSignature,
    HeadSigner,
    SignatureStatus,
    check_branch,
    check_head,
    read_head_signature,
)
from odfchain.errors import ChainError, StoreError
from odfchain.odf.enums import DatasetKind
from odfchain.odf.events import Seed
from odfchain.odf.identity import DatasetId, Multihash
from odfchain.odf.names import DatasetAlias, is_branch_name
from odfchain.storage import fsio
from odfchain.storage.fsio import LocalScratch
from odfchain.storage.local import HEAD, LocalObjectStore
from odfchain.workspace.shared_store import ONLY_HERE, SharedStore

# How often a head and its signature are read while the head moves [count].
_READS = 5

PUBLIC_FOLDERS = ("blocks", "data", "checkpoints", "refs")


@dataclass(frozen=True, slots=True)
class DatasetFiles:
    """An opened dataset: identity, chain and object stores. Opening reads one reference and no data.

    With a `signer` every head, or branch, that blocks made here become is signed, right after it has moved.
    """

    folder: Path
    alias: DatasetAlias
    chain: MetadataChain
    data: LocalObjectStore
    checkpoints: LocalObjectStore
    signer: HeadSigner | None = field(default=None, repr=False, compare=False)
    shared: SharedStore = field(default=ONLY_HERE, repr=False, compare=False)

    @classmethod
    def create_folders(cls, folder: Path, alias: DatasetAlias) -> None:
        """Make the empty layout of a dataset."""
        for name in (*PUBLIC_FOLDERS, "info", "staging"):
            fsio.make_folder(folder / name)
        fsio.replace_file(folder / "info" / "alias", str(alias).encode())

    @staticmethod
    def alias_in(folder: Path) -> DatasetAlias:
        """The local name of the dataset in a folder."""
        try:
            return DatasetAlias.parse((folder / "info" / "alias").read_text(encoding="utf-8").strip())
        except OSError as error:
            raise StoreError(f"{folder}: not a dataset folder ({error.strerror})") from None

    @classmethod
    def open(
        cls,
        folder: Path,
        signer: HeadSigner | None = None,
        *,
        ref: str = HEAD,
        shared: SharedStore = ONLY_HERE,
    ) -> DatasetFiles:
        """Open the dataset in a folder, on a reference; `signer` has its owner's key, if that is here."""
        alias = cls.alias_in(folder)
        chain = MetadataChain(
            LocalObjectStore(folder / "blocks"),
            shared.refs(folder),
            # the index of a new branch begins as the head's: what they share is not read again
            LocalScratch(_index_path(folder, ref), None if ref == HEAD else _index_path(folder, HEAD)),
            published=_signing(folder, signer, shared, ref, alias) if signer is not None else None,
            ref=ref,
        )
        data, checkpoints = shared.objects(folder / "data"), shared.objects(folder / "checkpoints")
        return cls(folder, alias, chain, data, checkpoints, signer, shared)

    def reindexed(self) -> DatasetFiles:
        """The same dataset, whose chain believes no index that is here."""
        known = self.chain.is_reindexed
        return self if known else dataclasses.replace(self, chain=self.chain.reindexed())

    @property
    def blocks(self) -> LocalObjectStore:
        """The blocks of all its chains."""
        return LocalObjectStore(self.folder / "blocks")

    @property
    def manifests(self) -> LocalObjectStore:
        """Manifests of its blocks, as far as they are here."""
        return LocalObjectStore(self.folder / "manifests")

    @property
    def profiles(self) -> LocalObjectStore:
        """Profiles of its blocks, as far as they are here."""
        return LocalObjectStore(self.folder / "profiles")

    def keys(self, kind: str) -> str:
        """The prefix of keys of slices (`data`) or checkpoints (`checkpoints`), for `executor_files`."""
        return f"datasets/{self.folder.name}/{kind}"

    def key(self, kind: str, name: Multihash) -> str:
        """The key of a slice (`data`) or checkpoint (`checkpoints`) in `SharedStore.executor_files`."""
        return f"{self.keys(kind)}/{name}"

    @property
    def ref(self) -> str:
        """The reference that it is opened on: `head`, or a branch."""
        return self.chain.ref

    @property
    def label(self) -> str:
        """The alias, with `@` and the reference where that is not the head."""
        return str(self.alias) if self.ref == HEAD else f"{self.alias}@{self.ref}"

    def on(self, ref: str) -> DatasetFiles:
        """The same dataset opened on another reference, which need not be there."""
        if ref == self.ref:
            return self
        there = DatasetFiles.open(self.folder, self.signer, ref=ref, shared=self.shared)
        return there.reindexed() if self.chain.is_reindexed else there

    def on_or_head(self, ref: str) -> DatasetFiles:
        """The same dataset on its branch of this name, or on its head where it has none."""
        if is_branch_name(ref):
            self.shared.follow(self.folder, ref)
            there = self.on(ref)
            if there.chain.head() is not None:
                return there
        return self.on(HEAD)

    @property
    def index_path(self) -> Path:
        """The file of the chain index of its reference: only a cache."""
        return _index_path(self.folder, self.ref)

    @property
    def seed(self) -> Seed:
        """The first event of the chain; `ChainError` where there is no head or no Seed."""
        if self.chain.head() is None:
            raise ChainError(f"{self.folder / 'refs' / self.ref}: the dataset has no head")
        if (seed := self.chain.nearest_event(Seed)) is None:
            raise ChainError(f"{self.folder}: the chain has no Seed")
        return seed

    @property
    def id(self) -> DatasetId:
        """The dataset's identity."""
        return self.seed.dataset_id

    @property
    def kind(self) -> DatasetKind:
        """Root or derivative."""
        return self.seed.dataset_kind

    def head_signature(self, *, verified: bool = True) -> HeadSignature:
        """The status of the signature in the folder for the head, or branch, that it is opened on.

        Without `verified` that of a head is believed.
        """
        for _ in range(_READS):
            if (head := self.chain.head()) is None:
                raise ChainError(f"{self.folder / 'refs' / self.ref}: the dataset has no head")
            # the head may move between the two reads: then both are read again
            signature = self._judged(head, read_head_signature(self.folder, self.ref), verified)
            if signature.status is SignatureStatus.SIGNED or self.chain.head() == head:
                break
        return signature

    def keys_history(self) -> KeyHistory:
        """Which keys may sign for its owner, by the statements in the folder."""
        return key_history(self.folder, self.on(HEAD).id)

    def _judged(self, head: Multihash, content: bytes | None, verified: bool) -> HeadSignature:
        if self.ref != HEAD:
            return check_branch(content, self.id, self.ref, head, self.keys_history())
        number = self.chain.get(head).sequence_number
        return check_head(
            content, self.id, head, number,
            block_at=lambda wanted: self.chain.hash_at(wanted, head), verified=verified,
            keys=self.keys_history(),
        )  # fmt: skip

    def set_head(self, target: Multihash, *, expected: Multihash | None) -> None:
        """Point the reference at a stored block of this dataset's owner, and sign it if his key is here."""
        number = self.chain.get(target).sequence_number
        # blocks of others are published by `chain.set_ref`: only own blocks are signed
        self.withdraw(number, expected)
        self.chain.set_ref(self.ref, target, expected=expected)
        if self.signer is not None:
            _signing(self.folder, self.signer, self.shared, self.ref)(target, number)

    def withdraw(self, number: int, expected: Multihash | None) -> None:
        """A head that is about to go back has no signature: who dies meanwhile leaves none of a newer one."""
        if self.signer is None or self.ref != HEAD or expected is None or self.chain.head() != expected:
            return
        if number <= self.chain.get(expected).sequence_number:
            self.signer.withdraw()

    def staging(self) -> AbstractContextManager[Path]:
        """A private folder on the dataset's file system that is gone afterwards, whatever happens."""
        return fsio.private_folder(self.folder / "staging")


def _signing(
    folder: Path, signer: HeadSigner, shared: SharedStore, ref: str, alias: DatasetAlias | None = None
) -> Callable[[Multihash, int], None]:
    def moved(head: Multihash, sequence_number: int) -> None:
        signer.head_moved(head, sequence_number, ref, committed=None if alias is None else str(alias))
        shared.signed(folder, ref)

    return moved


def _index_path(folder: Path, ref: str) -> Path:
    return folder / "info" / ("chain-index" if ref == HEAD else f"chain-index.{ref}")
