"""Nodes of stores in processes of their own: killed at each request of a commit, and what they need of memory."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

import odfchain as odf
from odfchain.errors import DatasetNotFoundError, OdfchainError
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.odf.times import Timestamp
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import smart_site
from tests.kit.node_process import Node
from tests.kit.scenario import chain_of, extend, install
from tests.kit.shared_store import machine, objects
from tests.kit.small_s3 import RESET, SmallS3

MOST_MIB = 200
"""As of a node with a folder."""
OBJECT_BYTES = 256 << 20

pytestmark = pytest.mark.soak


def push(ours: WorkspaceFiles, name: str, node: Node, token: str) -> None:
    smart_site.push(ours.dataset(DatasetAlias.parse(name)), f"{node.url}{name}", token=token, retries=0)


def seen(folder: Path, name: str) -> Multihash | None:
    with contextlib.suppress(DatasetNotFoundError):
        return Multihash.parse(str(odf.open(folder)[name].head))
    return None


def test_a_node_that_is_killed_at_each_request_of_a_commit(store: SmallS3, tmp_path: Path) -> None:
    """Before and after each is carried out: the old state or the new one is there, and the next push completes."""
    machine(store, tmp_path / "node")
    machine(store, tmp_path / "other")
    ours = WorkspaceFiles.init(tmp_path / "ours")
    node = Node(tmp_path / "node")
    token = node.token.create("me", ["push:%"], Timestamp.now()).text
    killed: set[str] = set()

    def attempt(name: str, number: int, *, after: bool) -> bool:
        """Push, and kill the node at the request of this number that changes the store; whether there was one."""
        nonlocal node
        left, dying = number, node
        fired: list[str] = []

        def hook(method: str, path: str) -> int | None:
            nonlocal left
            if method != "PUT" or fired:
                return RESET if fired else None
            left -= 1
            if left >= 0:
                return None
            fired.append(re.sub("/f1620.*", "", path.partition("datasets/")[2].partition("/")[2] or "name"))
            dying.kill()
            return RESET

        setattr(store, "after" if after else "before", hook)
        try:
            with contextlib.suppress(OdfchainError):
                push(ours, name, node, token)
        finally:
            store.before = store.after = lambda *_: None
        if fired:
            killed.update(fired)
            node = Node(tmp_path / "node")
        return bool(fired)

    try:
        for after in (False, True):
            for number in range(40):
                name = f"cities.{int(after)}.{number}"
                old, new = (chain_of([f"seed {name}", "schema", *labels]) for labels in ([], ["d1"]))
                died = []
                for chain, before in ((old, None), (new, old.head)):
                    if before is None:
                        dataset = install(ours, name, chain)
                    else:
                        extend(dataset, chain)
                    died.append(attempt(name, number, after=after))
                    assert seen(tmp_path / "other", name) in (before, chain.head)
                    push(ours, name, node, token)
                    assert seen(tmp_path / "other", name) == chain.head
                    folder = odf.open(tmp_path / "other")[name]._files.folder.name
                    there = objects(store, f"{folder}/blocks/")
                    assert len(there) == len(chain.hashes)
                if not any(died):
                    break
    finally:
        node.kill()
    assert killed == {"data", "checkpoints", "blocks", "hints/chain", "refs/head", "name"}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_a_push_of_a_large_object(store: SmallS3, tmp_path: Path) -> None:
    """It goes to the store in parts, once."""
    machine(store, tmp_path / "node")
    ours = WorkspaceFiles.init(tmp_path / "ours")
    chain = chain_of(["seed", "schema"])
    chain.add_data("d1", size=OBJECT_BYTES)
    install(ours, "sent", chain)
    (large,) = (key for key in chain.files if len(chain.objects[key]) > OBJECT_BYTES)
    sent = 0

    def count(method: str, path: str) -> None:
        nonlocal sent
        sent += method == "PUT" and str(large.name) in path

    store.before, store.forgets = count, True
    node = Node(tmp_path / "node")
    try:
        push(ours, "sent", node, node.token.create("me", ["push:%"], Timestamp.now()).text)
        status = Path(f"/proc/{node.process.pid}/status").read_text(encoding="utf-8")
    finally:
        node.kill()
    found = re.search(r"VmHWM:\s*([0-9]+)", status)
    peak = int(found[1]) >> 10
    assert peak <= MOST_MIB, peak
    assert sent == -(-len(chain.objects[large]) // (8 << 20))
