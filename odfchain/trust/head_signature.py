"""The signature of a dataset's head, or branch, as it stands in the dataset's folder, judged by its chain."""

from __future__ import annotations

from odfchain.errors import BrokenChainError
from odfchain.ids.multihash import Multihash
from odfchain.store.interfaces import HEAD
from odfchain.trust.parties import StoredDataset
from odfchain.trust.signed_branch import check_branch
from odfchain.trust.signed_head import HeadSignature, SignatureStatus, check_head, read_head_signature

_READS = 5


def head_signature(dataset: StoredDataset) -> HeadSignature:
    """What the signature in the folder is worth for the head, or the branch, that the dataset is opened on.

    A head that moves meanwhile is looked at again. Where the signature is of an earlier block, that block is
    looked up in the chain.

    Raises:
        BrokenChainError: the dataset has no head.
    """
    for _ in range(_READS):
        head = dataset.chain.head()
        if head is None:
            raise BrokenChainError(f"{dataset.folder / 'refs' / dataset.chain.ref}: the dataset has no head")
        content = read_head_signature(dataset.folder, dataset.chain.ref)
        signature = _judge(dataset, head, content)
        if signature.status is SignatureStatus.SIGNED or dataset.chain.head() == head:
            break
    return signature


def _judge(dataset: StoredDataset, head: Multihash, content: bytes | None) -> HeadSignature:
    if dataset.chain.ref != HEAD:
        return check_branch(content, dataset.id, dataset.chain.ref, head)
    number = dataset.chain.get(head).sequence_number

    return check_head(
        content, dataset.id, head, number, block_at=lambda wanted: dataset.chain.hash_at(wanted, head)
    )
