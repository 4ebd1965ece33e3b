"""A node whose datasets are in a store takes pushes: judged by the head that the store has, committed once there."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from socket import SHUT_RDWR
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from odfchain.errors import (
    DatasetNotFoundError,
    NameCollisionError,
    OdfchainError,
    RefConflictError,
    TransferError,
)
from odfchain.ids.names import DatasetAlias
from odfchain.repo.workspace_files import WorkspaceFiles
from odfchain.serve import shared_copy
from odfchain.serve.server import RepositoryServer
from odfchain.serve.token_file import TokenFile
from odfchain.smart.block_batch import packed
from odfchain.transfer.object_space import STORE_LIMITS
from odfchain.transfer.public_layout import PeerUrl
from odfchain.transfer.shared_workspace import SharedWorkspace
from odfchain.trust.signed_head import SignatureStatus
from tests.kit import shared_store as kit
from tests.kit.scenario import Chain, chain_of, extend, install
from tests.kit.served_workspace import ask
from tests.kit.shared_store import machine, objects
from tests.kit.signed_heads import head_of, line, owned
from tests.kit.small_s3 import RESET, Fault, SmallS3
from tests.kit.smart_site import CITIES, Site, asked_for_objects, blocks, closed, raw, say, started

QUICK = replace(STORE_LIMITS, retries=0, first_wait=0.001)
LABELS = ["seed", "schema", "d1", "x", "d2"]
COMPLETE = json.dumps({"details": "Complete"})


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SmallS3]:
    kit.environment(monkeypatch, tmp_path / "home")
    # readers ask the store once, so what they see afterwards is what pushes have brought
    monkeypatch.setattr(shared_copy, "_SECONDS", float("inf"))
    with SmallS3() as store:
        yield store


def opened(folder: Path, limits: Any = QUICK) -> WorkspaceFiles:
    """The workspace of a machine as another process sees it."""
    return WorkspaceFiles.find(folder, lambda root, url: SharedWorkspace(root, PeerUrl.parse(url), limits))


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
        """Nothing happens in between any more."""
        self.store.before = self.store.after = lambda *_: None

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


@pytest.fixture
def hub(store: SmallS3, tmp_path: Path, idle: threading.Event) -> Iterator[Hub]:
    with node_of(store, tmp_path, "node", idle) as (site, problems):
        yield Hub(store, tmp_path, site, problems)


def longer(*labels: str) -> Chain:
    return chain_of([*LABELS, *labels])


# --- what is pushed --------------------------------------------------------------------------------------


def test_a_new_dataset_then_more_blocks_then_nothing(hub: Hub) -> None:
    """Counted: each object is sent once, and readers of the node see the head though the store is gone by then."""
    site, token, chain = hub.site, hub.site.token(), chain_of(LABELS)
    dataset = install(site.ours, "cities", chain)
    assert hub.shown() == "not found\n"
    hub.asked()
    assert site.push("cities", token).num_blocks == len(LABELS)
    assert Counter(hub.asked()) == Counter(
        {
            "GET names": 1, "GET names/cities": 2, "GET refs/head": 1, "GET refs/head.jws": 1, "PUT names/cities": 1,
            "PUT data": 2, "HEAD checkpoints": 2, "PUT checkpoints": 2, "PUT blocks": 5, "PUT hints/chain": 1,
            "PUT refs/head": 1,
        }
    )  # fmt: skip
    assert hub.seen() == chain.head
    more = [
        "GET names",
        "GET refs/head",
        "PUT data",
        "HEAD checkpoints",
        "PUT checkpoints",
        "PUT blocks",
        "PUT refs/head",
    ]
    for label, new in (("d3", ["GET names/cities"]), ("d4", [])):  # a name is read once
        chain.add_data(label)
        extend(dataset, chain)
        hub.asked()
        assert site.push("cities", token).num_blocks == 1
        assert Counter(hub.asked()) == Counter([*more, *new])
    assert site.push("cities", token).up_to_date
    assert hub.asked() == []
    assert hub.seen() == chain.head
    hub.store.before = lambda *_: 503
    assert hub.shown() == str(chain.head)
    assert json.loads(ask(site.url, "/datasets.json").body)["datasets"][0]["blocks"] == 7
    assert {key.rpartition("/")[2] for key in objects(hub.store, "/data/")} == {
        str(key.name) for key in chain.files if key.kind.value == "data"
    }
    assert hub.problems == []


def test_the_signature_is_there_for_all_machines(hub: Hub) -> None:
    chain, token = owned(LABELS[2:]), hub.site.token()
    dataset = install(hub.site.ours, "cities", chain)
    for label in ("", "d3"):
        if label:
            chain.add_data(label)
            extend(dataset, chain)
        signature = line(head_of(chain))
        (dataset.folder / "refs" / "head.jws").write_bytes(signature)
        assert hub.site.push("cities", token).signature is SignatureStatus.SIGNED
        assert list(objects(hub.store, "head.jws").values()) == [signature]


# --- other machines --------------------------------------------------------------------------------------


def test_a_head_that_another_machine_moved_before_the_push(hub: Hub) -> None:
    """The node has not seen it, and does when the push begins."""
    old, token = chain_of(LABELS), hub.site.token()
    install(hub.site.node, "cities", old)
    assert hub.shown() == str(old.head)
    theirs, mine = longer("y"), longer("z")
    hub.commit(theirs)
    with hub.site.socket(token) as socket:
        heads = {"actual_head": str(old.head), "expected_head": str(theirs.head)}
        assert say(socket, started(mine, old.head, len(LABELS))) == {"Err": {"InvalidHead": heads}}
    assert hub.shown() == str(theirs.head)


def test_a_head_that_another_machine_moves_during_the_push(hub: Hub) -> None:
    """At the last moment: the store refuses, and the client learns of the other head by the protocol's reason."""
    old, token = chain_of(LABELS), hub.site.token()
    install(hub.site.node, "cities", old)
    theirs, mine = longer("d3"), longer("d4")
    with hub.site.socket(token) as socket:
        assert say(socket, started(mine, old.head, len(LABELS))) == {"Ok": {}}
        assert say(socket, blocks(packed(raw(mine)[len(LABELS) :]))) == {"Ok": {}}
        files = [key for key in mine.files if key not in old.files]
        named = {
            "object_files": [
                {"object_type": kind, "physical_hash": str(key.name), "size": len(mine.objects[key])}
                for kind, key in zip(("DataSlice", "Checkpoint"), files, strict=True)
            ],
            "is_truncated": False,
        }
        assert "Ok" in say(socket, named)
        for key in files:
            assert hub.site.put(str(key), mine.objects[key], token) == 201
        fired = hub.once("PUT", "refs/head", lambda: hub.commit(theirs))
        socket.send(COMPLETE)
        socket.send("{}")
        code, reason = closed(socket)
    assert fired
    assert (code, json.loads(reason)) == (1011, {"Err": {"InvalidHead": {"expected_head": str(theirs.head)}}})
    assert hub.seen() == theirs.head
    assert hub.shown() == str(theirs.head)


def test_our_client_is_told_that_it_lost(hub: Hub) -> None:
    old, token = chain_of(LABELS), hub.site.token()
    install(hub.site.node, "cities", old)
    install(hub.site.ours, "cities", longer("d4"))
    fired = hub.once("PUT", "refs/head", lambda: hub.commit(longer("d3")))
    with pytest.raises(RefConflictError, match=str(longer("d3").head)):
        hub.site.push("cities", token)
    assert fired
    assert hub.seen() == longer("d3").head


def test_a_name_that_another_machine_takes_during_the_push(hub: Hub) -> None:
    mine, theirs = chain_of(LABELS), chain_of(["seed 2", "schema"])
    install(hub.site.ours, "cities", mine)

    def take() -> None:
        install(hub.other(), "Cities", theirs)

    fired = hub.once("PUT", f"data/{mine.files[0].name}", take)
    with pytest.raises(NameCollisionError, match="another dataset has that name"):
        hub.site.push("cities", hub.site.token())
    assert fired
    assert hub.seen() == theirs.head
    assert len(objects(hub.store, "refs/head")) == 1, "nothing is left of what nobody can name"
    hub.site.push("cities", hub.site.token(name="again"), to="mine")
    assert hub.seen("mine") == mine.head


def test_an_id_that_is_there_under_another_name(hub: Hub) -> None:
    """Case 27, of a dataset that only the store has."""
    hub.shown()
    install(hub.other(), "towns", chain_of(LABELS))
    install(hub.site.ours, "cities", chain_of(LABELS))
    with pytest.raises(NameCollisionError, match="under another name"):
        hub.site.push("cities", hub.site.token())
    assert list(objects(hub.store, "names/")) == ["names/towns"]


def test_who_looks_into_the_store_while_a_dataset_appears(hub: Hub) -> None:
    """Another process on the node's machine brings it from there before the push has put it in its place."""
    install(hub.site.ours, "cities", chain_of(LABELS))

    def look() -> None:
        hub.calm()
        assert [dataset.alias for dataset in hub.site.node.reopened().datasets()] == [CITIES]

    fired = hub.once("PUT", "names/cities", look, after=True)
    hub.site.push("cities", hub.site.token())
    assert fired
    assert hub.seen() == chain_of(LABELS).head
    assert hub.shown() == str(chain_of(LABELS).head)


def test_two_nodes_of_one_store(hub: Hub, store: SmallS3, tmp_path: Path, idle: threading.Event) -> None:
    """Of two pushes at once to the same head, through two nodes, one is there and one is told."""
    old = chain_of(LABELS)
    install(hub.site.node, "cities", old)
    with node_of(store, tmp_path, "second", idle) as (second, _):
        sites, chains = (hub.site, second), (longer("d3"), longer("d4"))
        for site, chain in zip(sites, chains, strict=True):
            install(site.ours, "cities", chain)
        tokens = [site.token() for site in sites]
        both = threading.Barrier(2)

        def meet(method: str, path: str) -> None:
            if method == "PUT" and path.endswith("refs/head"):
                hub.calm() if both.wait(20) == 0 else None

        store.before = meet

        def push(number: int) -> OdfchainError | None:
            try:
                sites[number].push("cities", tokens[number])
            except OdfchainError as error:
                return error
            return None

        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(push, (0, 1)))
        (lost,) = (each for each in found if each is not None)
        won = chains[found.index(None)].head
    assert isinstance(lost, RefConflictError)
    assert hub.seen() == won


def test_several_datasets_at_once(hub: Hub) -> None:
    names, token = [f"cities.{n}" for n in range(3)], hub.site.token()
    chains = [chain_of([f"seed {n}", *LABELS[1:]]) for n in range(3)]
    for name, chain in zip(names, chains, strict=True):
        install(hub.site.ours, name, chain)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda name: hub.site.push(name, token, to=name), names))
    assert [hub.seen(name) for name in names] == [chain.head for chain in chains]
    assert [hub.shown(name) for name in names] == [str(chain.head) for chain in chains]


def test_a_history_is_not_overwritten(hub: Hub) -> None:
    install(hub.site.node, "cities", longer("d3"))
    install(hub.site.ours, "cities", longer("d4"))
    before = objects(hub.store)
    with pytest.raises(TransferError, match="Histories only grow in this node's store"):
        hub.site.push("cities", hub.site.token("push:%", "force:%"), force=True)
    assert objects(hub.store) == before


# --- faults ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [3, *(pytest.param(n, marks=pytest.mark.soak) for n in range(3))])
def test_a_client_that_dies_leaves_nothing_in_the_store(hub: Hub, step: int) -> None:
    chain, token, site = chain_of(LABELS), hub.site.token(), hub.site
    steps: list[Callable[[ClientConnection], Any]] = [
        lambda socket: say(socket, started(chain)),
        lambda socket: say(socket, blocks(packed(raw(chain)))),
        lambda socket: [site.put(str(key), chain.objects[key], token) for key in chain.files],
    ]
    hub.shown()
    before = objects(hub.store)
    with site.socket(token) as socket:
        for each in steps[: min(step, 2)]:
            each(socket)
        if step > 2:
            socket.socket.shutdown(SHUT_RDWR)
            assert site.idle.wait(20)
            with site.socket(token) as another:
                asked_for_objects(another, chain)
                assert steps[2](another) == [201] * len(chain.files)
                another.socket.shutdown(SHUT_RDWR)
        else:
            socket.socket.shutdown(SHUT_RDWR)
    assert site.idle.wait(20)
    assert objects(hub.store) == before
    install(site.ours, "cities", chain)
    site.push("cities", token)
    assert hub.seen() == chain.head


@pytest.mark.parametrize(
    "fault", [503, *(pytest.param(each, marks=pytest.mark.soak) for each in (RESET, 429, 500))]
)
@pytest.mark.parametrize(
    "key", ["refs/head", *(pytest.param(k, marks=pytest.mark.soak) for k in ("data", "blocks"))]
)
def test_an_answer_that_is_lost_is_no_second_commit(hub: Hub, fault: int, key: str) -> None:
    """What the store has carried out is there once, whether it could say so or not."""
    install(hub.site.node, "cities", chain_of(LABELS))
    chain = longer("d3")
    install(hub.site.ours, "cities", chain)
    fired: list[str] = []

    def lose(method: str, path: str) -> int | None:
        if fired or method != "PUT" or f"/{key}" not in path:
            return None
        fired.append(path)
        return fault

    hub.store.after = lose
    token = hub.site.token()
    with contextlib.suppress(TransferError):
        hub.site.push("cities", token)
    assert fired
    hub.calm()
    if key == "refs/head":
        assert hub.seen() == chain.head
    hub.site.push("cities", token)
    assert hub.seen() == chain.head
    assert len(objects(hub.store, "/blocks/")) == len(chain.hashes)


def test_a_store_that_is_gone_after_the_head_was_written(hub: Hub) -> None:
    """Nobody knows whether it was committed: that is said, and the next push finds that it was."""
    install(hub.site.node, "cities", chain_of(LABELS))
    chain, token = longer("d3"), hub.site.token()
    install(hub.site.ours, "cities", chain)

    def die() -> int:
        hub.store.before = lambda *_: 503
        return 503

    fired = hub.once("PUT", "refs/head", die, after=True)
    with pytest.raises(TransferError, match="not known whether this was committed"):
        hub.site.push("cities", token)
    assert fired
    assert any("was committed is not known" in problem for problem in hub.problems)
    hub.calm()
    hub.site.push("cities", token)
    assert hub.shown() == str(chain.head)
    assert hub.seen() == chain.head
    assert len(objects(hub.store, "/blocks/")) == len(chain.hashes)


def test_a_store_that_answers_again_tells_the_client_the_truth(hub: Hub) -> None:
    """The node could not ask it; the client asks the node, and that asks the store again."""
    install(hub.site.node, "cities", chain_of(LABELS))
    install(hub.site.ours, "cities", longer("d3"))
    down = iter([503] * 3)  # the head, and the look at it, as often as a connection is tried

    def die() -> int:
        hub.store.before = lambda *_: next(down, None)
        return 503

    fired = hub.once("PUT", "refs/head", die, after=True)
    assert hub.site.push("cities", hub.site.token()).num_blocks == 1
    assert fired
    assert hub.shown() == str(longer("d3").head)


def test_a_store_that_cannot_be_reached(hub: Hub) -> None:
    chain, token = chain_of(LABELS), hub.site.token()
    install(hub.site.node, "cities", chain)
    hub.shown()
    before = objects(hub.store)
    hub.store.before = lambda *_: 503
    with hub.site.socket(token) as socket:
        socket.send(json.dumps(started(longer("x"), chain.head, len(LABELS))))
        code, reason = closed(socket)
    said = json.loads(reason)["Err"]["Internal"]
    assert (code, said["phase"]) == (1011, {"Push": "InitialRequest"})
    assert said["error_message"] == "The store of this node fails."
    assert any(f":{hub.store.port}/" in problem for problem in hub.problems), "who runs the node reads where"
    assert hub.shown() == str(chain.head)
    hub.calm()
    assert objects(hub.store) == before
    install(hub.site.ours, "cities", longer("d3"))
    hub.site.push("cities", token)
    assert hub.seen() == longer("d3").head


def test_a_push_that_ended_before_the_dataset_had_its_name(hub: Hub) -> None:
    """Nothing is visible; the next one, which has more blocks by then, goes on from there."""
    chain, token = chain_of(LABELS), hub.site.token()
    dataset = install(hub.site.ours, "cities", chain)
    fired = hub.once("PUT", "names/cities", lambda: 403)
    with pytest.raises(TransferError, match="The store of this node fails"):
        hub.site.push("cities", token)
    assert fired
    assert hub.seen() is None
    assert hub.shown() == "not found\n"
    chain.add_data("d3")
    extend(dataset, chain)
    hub.calm()
    hub.site.push("cities", token)
    assert hub.seen() == chain.head


def test_readers_do_not_wait_for_a_store_that_is_silent(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(LABELS)
    install(hub.site.node, "cities", chain)
    monkeypatch.setattr(shared_copy, "_PATIENCE", 0.05)
    held = threading.Event()

    def wait(_method: str, _path: str) -> None:
        assert held.wait(20)

    hub.store.before = wait
    try:
        assert hub.shown() == str(chain.head)
    finally:
        held.set()
