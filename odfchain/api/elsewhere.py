"""What a workspace knows of other places: a part of a `Workspace`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.api.known_errors import OwnErrors
from odfchain.repo.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.transfer.catalog import RepositoryEntry
    from odfchain.transfer.public_layout import PeerUrl
    from odfchain.transfer.repositories import Repositories
    from odfchain.transfer.sharing import Sharing
    from odfchain.trust.proof_store import EvidenceStore


class Elsewhere(OwnErrors):
    """Repositories, and datasets elsewhere."""

    _files: WorkspaceFiles

    @property
    def _sharing(self) -> Sharing:
        """Datasets elsewhere; new at each call, because it holds nothing."""
        from odfchain.transfer.sharing import Sharing

        return Sharing(self._files)

    @property
    def repositories(self) -> Repositories:
        """The repositories that the workspace knows by name."""
        return self._sharing.repositories

    @property
    def evidence(self) -> EvidenceStore:
        """The proofs that owners of datasets signed two histories."""
        return self._sharing.evidence

    def is_remote(self, ref: str) -> bool:
        """Whether a text means a dataset elsewhere: a URL, or `repo/name` of a repository that is known.

        Raises:
            InvalidIdError: a URL without its beginning; the hint says how to write it.
        """
        return self._sharing.is_remote(ref)

    def url_of(self, ref: str) -> PeerUrl:
        """The URL that a reference to a dataset elsewhere stands for; errors as `pull`."""
        return self._sharing.url_of(ref)

    def repository_url(self, repository: str) -> PeerUrl:
        """Where a repository is that is named, or given by its URL.

        Raises:
            WorkspaceError, InvalidIdError, UnsupportedPeerError: there is none.
        """
        return self._sharing.repository_url(repository)

    def datasets_of(
        self, repository: str, text: str = "", *, token: str | None = None
    ) -> list[RepositoryEntry]:
        """What a repository has with this text in alias or id, ordered by alias; it is named, or a URL.

        Raises:
            WorkspaceError, InvalidIdError, TransferError: it cannot be read.
        """
        from odfchain.transfer.catalog import search

        return search(self._sharing.datasets_of(repository, token=token), text)
