"""The tokens that a workspace gives to those who may read or write over its server: half of a `Workspace`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from odfchain.api.known_errors import OwnErrors
from odfchain.repo.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.serve.access_tokens import AccessToken, NewToken


class GivenTokens(OwnErrors):
    """Tokens for a server that publishes this workspace, and asks readers or writers who they are."""

    _files: WorkspaceFiles

    def create_token(self, name: str, allow: Iterable[str]) -> NewToken:
        """A new token with rights such as `read:%` and `push:org.%`; its text is nowhere else.

        Raises:
            UsageError: a name or a right is none, or there is no right.
            NameCollisionError: there is a token of this name.
            AccessError, StoreError: the file of tokens cannot be read, or written.
        """
        from odfchain.model.timestamp import Timestamp
        from odfchain.serve.token_file import TokenFile

        return TokenFile(self._files.root).create(name, allow, Timestamp.now())

    def tokens(self) -> tuple[AccessToken, ...]:
        """The tokens that are in force, ordered by name; their texts are not known.

        Raises:
            AccessError: the file of tokens cannot be read.
        """
        from odfchain.serve.token_file import TokenFile

        return TokenFile(self._files.root).tokens()

    def revoke_token(self, name: str) -> None:
        """End a token: from now on nobody gets in with it, also not into pushes that are going on.

        Raises:
            UsageError, WorkspaceError: there is no such token.
            AccessError, StoreError: as `create_token`.
        """
        from odfchain.serve.token_file import TokenFile

        TokenFile(self._files.root).revoke(name)
