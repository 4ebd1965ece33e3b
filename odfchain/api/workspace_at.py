"""The workspace of a folder: opened, or made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.api.workspace import Workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open(  # noqa: A001 - as `gzip.open`: it is meant to be qualified
    path: str | Path = ".", *, spark: SparkSession | None = None
) -> Workspace:
    """The workspace of a folder or of the nearest folder above it; with `spark`, as `Workspace.open`.

    Raises:
        NotAWorkspaceError: there is none.
        UsageError: the session of Spark cannot be taken.
    """
    return Workspace.open(path, spark=spark)


def init(path: str | Path = ".", *, exists_ok: bool = False, store: str | None = None) -> Workspace:
    """Make a workspace in a folder, perhaps with its datasets in a store; errors as `Workspace.init`."""
    return Workspace.init(path, exists_ok=exists_ok, store=store)
