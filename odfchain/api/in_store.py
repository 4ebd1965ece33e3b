"""Workspaces whose datasets are in an object store: making them, and reaching the store later."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.repo.workspace_files import FOLDER, WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.repo.shared_store import SharedStore


def connect(root: Path, url: str) -> SharedStore:
    """As `odfchain.transfer.shared_workspace.connect`, which is slow to load; errors as there."""
    from odfchain.transfer import shared_workspace

    return shared_workspace.connect(root, url)


def made(parent: Path, store: str | None, *, exists_ok: bool) -> WorkspaceFiles:
    """A workspace folder; the `store` is a workspace from now on, if it was none.

    Raises:
        As `Workspace.init`.
    """
    if store is None:
        return WorkspaceFiles.init(parent, exists_ok=exists_ok, connect=connect)
    from odfchain.transfer.named_stores import NamedStores
    from odfchain.transfer.object_space import place_of
    from odfchain.transfer.repositories import parse_peer_url
    from odfchain.transfer.workspace_marker import make_workspace_at

    url = parse_peer_url(store)
    place_of(url)
    if not (parent / FOLDER).is_dir():
        make_workspace_at(url)

    def named(root: Path, text: str) -> SharedStore:  # it is the one that was given, or there was an error
        NamedStores.of_user().add(url)
        return connect(root, text)

    return WorkspaceFiles.init(parent, exists_ok=exists_ok, store=url.text, connect=named)
