"""Signing as a user asks for it: heads of the workspace's own datasets, anew."""

from __future__ import annotations

from dataclasses import dataclass

from odfchain.errors import BrokenChainError, RefConflictError
from odfchain.ids.did import DatasetId
from odfchain.ids.names import DatasetAlias
from odfchain.repo.head_signature import head_signature
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.store.interfaces import HEAD
from odfchain.trust.signed_head import HeadSignature
from odfchain.trust.signer import HeadSigner
from odfchain.trust.statements import SignedHead

Ref = str | DatasetId | DatasetAlias
"""A dataset of this workspace."""


@dataclass(frozen=True, slots=True)
class Signing:
    """The signatures of a workspace's heads, and the keys that make them."""

    workspace: WorkspaceFiles

    def status(self, ref: Ref) -> HeadSignature:
        """What the signature of a dataset's head is worth.

        Raises:
            DatasetNotFoundError: there is no such dataset.
            StoreError, ChainError, CodecError: the signature or the chain cannot be read.
        """
        return head_signature(self.workspace.dataset(ref))

    def has_key(self, ref: Ref) -> bool:
        """Whether the private key of a dataset is in this workspace.

        Raises:
            DatasetNotFoundError: there is no such dataset.
        """
        return self.workspace.has_key(self.workspace.dataset(ref).id)

    def sign(self, ref: Ref) -> SignedHead:
        """Durably sign the head of a dataset anew, with the time of now; returns what was signed.

        Raises:
            DatasetNotFoundError: there is no such dataset.
            WorkspaceError: its private key is not here, or others may read it.
            RefConflictError: another writer has moved the head; the next run signs that one.
            StoreError, ChainError, CodecError: the head cannot be read, or the signature not be written.
        """
        dataset = self.workspace.dataset(ref)
        key = self.workspace.key(dataset.id)
        head = dataset.chain.head()
        if head is None:
            raise BrokenChainError(f"{dataset.folder / 'refs' / HEAD}: the dataset has no head")
        signer = HeadSigner(dataset.folder, lambda: key)
        signed = signer.sign(key, head, dataset.chain.get(head).sequence_number)
        if signed is None:
            raise RefConflictError(
                f"{dataset.alias}: the head moved while it was signed", expected=str(head), actual=None
            )
        return signed
