"""Nodes that are full, and pushes that meet: what is lost is said, what is there is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import OdfchainError, StorageFullError, TransferError
from odfchain.odf.identity import Multihash
from odfchain.odf.names import DatasetAlias
from odfchain.storage.store import Incoming
from odfchain.transfer import node_pushes
from odfchain.transfer.access_tokens import AccessToken, PushSession, PushSessions, TokenFile
from odfchain.transfer.node_pushes import PushServing
from odfchain.transfer.server import RepositoryServer
from odfchain.transfer.smart_messages import ObjectFile, PushStrategies
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import smart_site
from tests.kit.scenario import chain_of, install
from tests.kit.smart_cases import rows
from tests.kit.smart_site import Site

LABELS = ["seed", "schema", "d1"]


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def site(tmp_path: Path, idle: threading.Event, log: list[str]) -> Iterator[Site]:
    node, ours = WorkspaceFiles.init(tmp_path / "node"), WorkspaceFiles.init(tmp_path / "ours")
    with RepositoryServer(node, write=True, on_request=log.append) as server:
        yield Site(node, ours, server.url, TokenFile(node.root), idle)


def puts(log: list[str]) -> list[tuple[str, int]]:
    """The last name and the status of each file that was PUT."""
    found = [line.split() for line in log if line.split()[1] == "PUT"]
    return [(words[2].rpartition("/")[2], int(words[3])) for words in found]


@pytest.mark.parametrize("case", rows(23), ids=lambda case: case["when"])
def test_a_node_that_is_full(
    case: dict[str, Any], site: Site, log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 23: the push ends at once and says so; what has come is not sent again."""
    chain, token = chain_of(["seed", "schema"]), site.token()
    chain.add_data("d1", size=5 << 20)
    install(site.ours, "cities", chain)
    large = next(key for key in chain.files if len(chain.objects[key]) > 5 << 20)
    fired: list[str] = []
    with monkeypatch.context() as full:
        if case["when"] == "before":
            real = node_pushes.shutil.disk_usage(site.node.root)

            def usage(_: Any) -> Any:
                fired.append("asked for space")
                return real._replace(free=1 << 20)

            full.setattr(node_pushes.shutil, "disk_usage", usage)
        else:
            add = Incoming.add

            def added(incoming: Incoming, data: memoryview) -> None:
                if incoming.received > 1 << 20:
                    fired.append("wrote")
                    raise StorageFullError("no space left on device")
                add(incoming, data)

            full.setattr(Incoming, "add", added)
        with pytest.raises(TransferError, match=f"HTTP status {case['status']}") as refused:
            site.push("cities", token)
        assert site.idle.wait(20)
    assert fired
    assert refused.value.exit_code == case["exit"]
    assert "contact the node's operator" in (refused.value.hint or "")
    assert [line.split()[2] for line in log].count("/cities/push") == case["conversations"]
    assert (str(large.name), case["status"]) in puts(log)
    assert list(site.node.datasets()) == []
    site.push("cities", token)
    assert site.head() == chain.head
    stored = [name for name, status in puts(log) if status == 201]
    assert sorted(stored) == sorted(str(key.name) for key in chain.files), "each is stored once"


def test_two_pushes_at_once(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Case 25: of two that add to the same head one is told that the node is busy, or that the head moved."""
    old, token = chain_of(LABELS), site.token()
    install(site.node, "cities", old)
    mine, yours = chain_of([*LABELS, "d2"]), chain_of([*LABELS, "x"])
    other = WorkspaceFiles.init(tmp_path / "other")
    datasets = [install(site.ours, "cities", mine), install(other, "cities", yours)]
    busy, take, begin = threading.Event(), PushServing.take_objects, PushSessions.begin

    def begun(sessions: PushSessions, alias: DatasetAlias, token: AccessToken) -> PushSession | None:
        session = begin(sessions, alias, token)
        if session is None:
            busy.set()
        return session

    def waited(target: PushServing, files: tuple[ObjectFile, ...]) -> PushStrategies:
        assert busy.wait(20), "the other one never came"
        return take(target, files)

    monkeypatch.setattr(PushSessions, "begin", begun)
    monkeypatch.setattr(PushServing, "take_objects", waited)

    def push(number: int) -> Multihash | OdfchainError:
        try:
            return smart_site.push(datasets[number], f"{site.url}cities", token=token).plan.new_head
        except OdfchainError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(push, (0, 1)))
    (won,) = (each for each in found if isinstance(each, Multihash))
    (lost,) = (each for each in found if isinstance(each, OdfchainError))
    assert site.head() == won
    assert won in (mine.head, yours.head)
    assert lost.exit_code in (5, 8), lost
