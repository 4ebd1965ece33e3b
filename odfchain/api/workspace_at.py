"""The workspace of a folder: opened, or made."""

from __future__ import annotations

from pathlib import Path

from odfchain.api.workspace import Workspace


def open(path: str | Path = ".") -> Workspace:  # noqa: A001 - as `gzip.open`: it is meant to be qualified
    """The workspace of a folder or of the nearest folder above it.

    Raises:
        NotAWorkspaceError: there is none.
    """
    return Workspace.open(path)


def init(path: str | Path = ".", *, exists_ok: bool = False, store: str | None = None) -> Workspace:
    """Make a workspace in a folder, perhaps with its datasets in a store; errors as `Workspace.init`."""
    return Workspace.init(path, exists_ok=exists_ok, store=store)
