"""What signed statements need of others: a dataset that is here, a place that has one, the workspace's keys.

Rooms above have these things and more; a change to how statements are judged, kept or carried ends here.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Protocol

from odfchain.chain.chain import MetadataChain
from odfchain.ids.did import DatasetId
from odfchain.ids.keys import DatasetKey
from odfchain.ids.multihash import Multihash
from odfchain.ids.names import DatasetAlias
from odfchain.limits import ATTEST
from odfchain.trust.attestation_lines import ATTESTATIONS_KEY
from odfchain.trust.signed_head import HEAD_SIGNATURE_KEY
from odfchain.trust.snapshot_lines import SNAPSHOTS_KEY


class SignedFile(Enum):
    """The files of signed statements: unlike objects they change, and nothing about them is known before."""

    HEAD = HEAD_SIGNATURE_KEY
    AUDITS = ATTESTATIONS_KEY
    SNAPSHOTS = SNAPSHOTS_KEY

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
        """What this workspace calls it."""

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
        """Whether the private key of a dataset is here."""

    def key(self, dataset_id: DatasetId, /) -> DatasetKey:
        """The private key of a dataset.

        Raises:
            WorkspaceError: it is not here, or others may read it.
        """


class StatementReader(Protocol):
    """Somewhere else, where a dataset may be; errors are `TransferError`s."""

    @property
    def where(self) -> str:
        """What messages call it."""

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
