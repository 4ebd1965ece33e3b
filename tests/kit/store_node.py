"""A node whose datasets are in a little S3, and another machine of the same store."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from odfchain.errors import DatasetNotFoundError
from odfchain.odf.names import DatasetAlias
from odfchain.transfer.access_tokens import TokenFile
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.scenario import Chain, chain_of, extend
from tests.kit.served_workspace import ask
from tests.kit.shared_store import calm, machine, opened
from tests.kit.small_s3 import Fault, SmallS3
from tests.kit.smart_site import Site

LABELS = ["seed", "schema", "d1", "x", "d2"]


def longer(*labels: str) -> Chain:
    return chain_of([*LABELS, *labels])


@dataclass
class Hub:
    """A node and another machine of one store."""

    store: SmallS3
    folder: Path
    site: Site
    problems: list[str]

    def other(self, name: str = "other") -> WorkspaceFiles:
        """Another machine, as it is now."""
        if not (self.folder / name).exists():
            machine(self.store, self.folder / name)
        return opened(self.folder / name)

    def seen(self, name: str = "cities") -> Any:
        """The head that another machine sees; None where there is no such dataset."""
        with contextlib.suppress(DatasetNotFoundError):
            return self.other().dataset(DatasetAlias.parse(name)).chain.head()
        return None

    def shown(self, name: str = "cities") -> str:
        """The head that readers of the node see."""
        return ask(self.site.url, f"/{name}/refs/head").body.decode()

    def commit(self, chain: Chain, name: str = "cities") -> None:
        """The other machine commits what a chain has more."""
        extend(self.other().dataset(DatasetAlias.parse(name)), chain)

    def once(
        self, method: str, key: str, do: Callable[[], int | Fault | None], *, after: bool = False
    ) -> list[str]:
        """`do` something at the first request for a key that ends so; it is in the list when that came."""
        fired: list[str] = []

        def hook(used: str, path: str) -> int | Fault | None:
            if fired or used != method or not path.endswith(key):
                return None
            fired.append(path)
            return do()

        setattr(self.store, "after" if after else "before", hook)
        return fired

    def calm(self) -> None:
        calm(self.store)

    def asked(self) -> list[str]:
        """What was asked of the store since it was forgotten, without hashes of objects."""
        found = []
        for method, path, _ in self.store.requests:
            key = path.partition("team/")[2] or "names"
            kept = [part for part in key.split("/") if not part.startswith(("datasets", "fed01", "f1620"))]
            found.append(f"{method} {'/'.join(kept)}")
        self.store.requests.clear()
        return found


@contextlib.contextmanager
def node_of(
    store: SmallS3, folder: Path, name: str, idle: threading.Event
) -> Iterator[tuple[Site, list[str]]]:
    machine(store, folder / name)
    node, problems = opened(folder / name), list[str]()
    ours = WorkspaceFiles.init(folder / f"ours of {name}")
    with RepositoryServer(node, write=True, on_problem=problems.append) as server:
        yield Site(node, ours, server.url, TokenFile(node.root), idle), problems
