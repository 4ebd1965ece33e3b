"""Signing heads where they move: at every commit, with the dataset's key, where it is here.

The commit comes first and is done by then, so a signature that cannot be made is said once and nothing fails.
The next commit, or `odfchain sign`, makes it good.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from odfchain.chain.chain import MetadataChain
from odfchain.chain.signed_heads import (
    HEAD_SIGNATURE_KEY,
    HeadSignature,
    SignatureStatus,
    check_branch,
    check_head,
    read_head_signature,
)
from odfchain.chain.signed_lines import AUDITS, SNAPSHOTS
from odfchain.errors import BrokenChainError, RefConflictError
from odfchain.limits import ATTEST
from odfchain.odf.identity import DatasetId, DatasetKey, Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.storage.local import HEAD, LocalRefStore
from odfchain.text import printable

if TYPE_CHECKING:
    from odfchain.chain.statements import SignedHead


LoadKey = Callable[[], "DatasetKey | None"]
"""Finds the private key of a dataset, None where it is not here."""


@functools.lru_cache(maxsize=256)
def warn(message: str) -> None:
    """Say it on standard error, once."""
    sys.stderr.write(f"warning: {printable(message)}\n")


@dataclass(frozen=True, slots=True)
class HeadSigner:
    """Signs the heads of the dataset in `folder`. The key is loaded when it is first needed, then kept."""

    folder: Path
    load_key: LoadKey
    now: Callable[[], Timestamp] = Timestamp.now
    report: Callable[[str], None] = warn
    _keys: list[DatasetKey] = field(default_factory=list, init=False, repr=False, compare=False)

    def head_moved(self, head: Multihash, sequence_number: int, ref: str = HEAD) -> None:
        """Sign a head that has just moved, where the key is here; whatever goes wrong is reported only.

        `ref` may be a branch: its newest block is signed in the same way, as a statement of another type.
        """
        try:
            key = self._key()
            if key is not None:
                self.sign(key, head, sequence_number, ref)
        except Exception as error:  # noqa: BLE001 - the commit is done and must not seem to have failed
            what = " ".join(str(error).split()) or type(error).__name__
            hint = getattr(error, "hint", None) or "`odfchain sign` makes it good"
            moved = "the new head" if ref == HEAD else f"branch {ref}"
            self.report(f"{self.folder}: {moved} is not signed: {what} ({hint})")

    def _key(self) -> DatasetKey | None:
        if not self._keys and (key := self.load_key()) is not None:
            self._keys.append(key)
        return self._keys[0] if self._keys else None

    def sign(
        self, key: DatasetKey, head: Multihash, sequence_number: int, ref: str = HEAD
    ) -> SignedHead | None:
        """Durably write the signature of a head; None when another writer has moved the head on by then."""
        # Loaded here: most commands that open a dataset never sign.
        from odfchain.chain.signed_heads import signature_key  # noqa: PLC0415
        from odfchain.chain.statements import SignedHead, sign_head  # noqa: PLC0415

        signed = SignedHead(key.dataset_id, head, sequence_number, self.now(), ref)
        line = sign_head(key, signed).encode() + b"\n"
        # Under the lock that heads move under: a slow writer does not replace a newer head's signature.
        lock = self.folder / "info" / "lock"
        with fsio.locked(lock):
            if LocalRefStore(self.folder / "refs", lock).get(ref) != head:
                return None
            fsio.replace_file(self.folder / signature_key(ref), line)
        return signed


def sign_head(workspace: KeyHolder, dataset: StoredDataset) -> SignedHead:
    """Durably sign the head of a dataset, or its branch, anew with the time of now; returns what was signed.

    Raises:
        RefConflictError: another writer has moved the head; the next run signs that one.
    """
    key = workspace.key(dataset.id)
    head, ref = dataset.chain.head(), dataset.chain.ref
    if head is None:
        raise BrokenChainError(f"{dataset.folder / 'refs' / ref}: the dataset has no head")
    signer = HeadSigner(dataset.folder, lambda: key)
    signed = signer.sign(key, head, dataset.chain.get(head).sequence_number, ref)
    if signed is None:
        raise RefConflictError(
            f"{dataset.alias}: the head moved while it was signed", expected=str(head), actual=None
        )
    return signed


# Protocols of the rooms above: a dataset that is here, a place that has one, the workspace's keys.
#
# Rooms above have these things and more; a change to how statements are judged, kept or carried ends here.


class SignedFile(Enum):
    """The files of signed statements: unlike objects they change, and nothing about them is known before."""

    HEAD = HEAD_SIGNATURE_KEY
    AUDITS = AUDITS.key
    SNAPSHOTS = SNAPSHOTS.key

    @property
    def limit(self) -> int:
        """The largest that is read [bytes]."""
        match self:
            case SignedFile.HEAD:
                return ATTEST.statement_bytes + 1
            case SignedFile.AUDITS:
                return ATTEST.attestations_bytes
            case SignedFile.SNAPSHOTS:
                return ATTEST.snapshot_lines_bytes


class StoredDataset(Protocol):
    """A dataset that is here."""

    @property
    def folder(self) -> Path:
        """Where its files are."""

    @property
    def alias(self) -> DatasetAlias:
        """The dataset's alias in this workspace."""

    @property
    def chain(self) -> MetadataChain:
        """Its blocks."""

    @property
    def id(self) -> DatasetId:
        """Who it is, and with which key its heads are signed."""


class KeyHolder(Protocol):
    """A workspace: those of its datasets' private keys that it has."""

    @property
    def root(self) -> Path:
        """The private folder, with the memory of heads and the evidence."""

    def has_key(self, dataset_id: DatasetId, /) -> bool:
        """True if the private key of a dataset is here."""

    def key(self, dataset_id: DatasetId, /) -> DatasetKey:
        """The private key of a dataset.

        Raises:
            WorkspaceError: it is not here, or others may read it.
        """


class StatementReader(Protocol):
    """Somewhere else, where a dataset may be; errors are `TransferError`s."""

    @property
    def where(self) -> str:
        """The peer's name in messages."""

    def head(self) -> Multihash | None:
        """The newest block; None when there is no dataset."""

    def signed(self, file: SignedFile, /) -> bytes | None:
        """One of the files of signed statements, None when it is not there."""


class StatementWriter(StatementReader, Protocol):
    """Somewhere else, where signed statements can be left."""

    def put_signed(self, file: SignedFile, data: bytes | None, /) -> None:
        """Replace one of the files, or remove it.

        Raises:
            TransferError, StoreError: it is not written.
        """


# The signature of a head or branch in the dataset's folder, checked against the chain.

_READS = 5


def head_signature(dataset: StoredDataset) -> HeadSignature:
    """The status of the signature in the folder for the head, or branch, that the dataset is opened on.

    Raises:
        BrokenChainError: the dataset has no head.
    """
    for _ in range(_READS):
        head = dataset.chain.head()
        if head is None:
            raise BrokenChainError(f"{dataset.folder / 'refs' / dataset.chain.ref}: the dataset has no head")
        # the head may move between the two reads: then both are read again
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
