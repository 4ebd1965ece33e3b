"""What all requests to a node share: the workspace, its published datasets, and what answers beside them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from odfchain.api.workspace import Workspace
from odfchain.node.catalog import Catalog
from odfchain.node.heads import Heads
from odfchain.storage.local import HEAD
from odfchain.transfer.access_tokens import Reader, TokenFile
from odfchain.transfer.server_app import Published
from odfchain.versions import SPEC_VERSION, __version__
from odfchain.workspace.options import NodeOptions
from odfchain.workspace.workspace_files import WorkspaceFiles

if TYPE_CHECKING:
    from odfchain.node.queries import Queries

# Where a dataset's folder begins in a message.
_FOLDER = re.compile(r"datasets/[0-9a-f]{16,}/")


class NodeParts:
    """The parts of one running node."""

    def __init__(self, workspace: Workspace, options: NodeOptions) -> None:
        self.workspace = workspace
        self.options = options
        self.files: WorkspaceFiles = workspace._files  # noqa: SLF001 - a node is made of what a workspace is
        self.published = Published(self.files)
        self.catalog = Catalog(self.files)
        self.problem: Callable[[str], None] = options.on_problem or (lambda _: None)
        self.reader = Reader(TokenFile(self.files.root), bool(options.restrict_reading))
        self.stopping: Callable[[], bool] = lambda: False
        """True once nothing new is to be begun."""
        self._running = contextlib.ExitStack()
        self.heads = Heads()
        self.queries: Queries | None = None
        if options.sql or options.walled:
            from odfchain.node.queries import Queries

            self.queries = Queries(self.files, self.problem, walled=bool(options.walled))
            self._running.callback(self.queries.close)
        self.uploads: Any = None  # `Uploads`, which needs all of this
        self.flight: str | None = None
        """The address of Flight SQL, where it is answered."""

    def start(self) -> None:
        """Start what answers beside requests."""
        if self.queries is not None:
            self.queries.slots  # noqa: B018 - a process is loaded for the first query

    def close(self) -> None:
        """End what answers beside requests."""
        self.catalog.close()
        self._running.close()

    @cached_property
    def about(self) -> dict[str, Any]:
        """What every page says of the node."""
        return {"version": __version__, "spec": SPEC_VERSION, "sql": self.queries is not None}

    def shows_branch(self, name: str) -> bool:
        """True if a branch is for everybody who sees its dataset; a node of one user shows him all."""
        shown = self.options.branches or False
        return (
            name == HEAD
            or self.options.secret is not None
            or (shown if isinstance(shown, bool) else name in shown)
        )

    def public(self, text: str) -> str:
        """A message without the paths of this machine."""
        root = self.workspace.path
        shorter = text.replace(f"{root}/", "").replace(f"{root.parent}/", "")
        return _FOLDER.sub("", shorter.replace(str(root.parent), "the workspace"))
