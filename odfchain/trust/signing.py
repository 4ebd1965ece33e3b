"""Signing heads of the workspace's own datasets anew."""

from __future__ import annotations

from odfchain.errors import BrokenChainError, RefConflictError
from odfchain.store.interfaces import HEAD
from odfchain.trust.parties import KeyHolder, StoredDataset
from odfchain.trust.signer import HeadSigner
from odfchain.trust.statements import SignedHead


def sign_head(workspace: KeyHolder, dataset: StoredDataset) -> SignedHead:
    """Durably sign the head of a dataset anew, with the time of now; returns what was signed.

    Raises:
        WorkspaceError: its private key is not here, or others may read it.
        RefConflictError: another writer has moved the head; the next run signs that one.
        StoreError, ChainError, CodecError: the head cannot be read, or the signature not be written.
    """
    key = workspace.key(dataset.id)
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
