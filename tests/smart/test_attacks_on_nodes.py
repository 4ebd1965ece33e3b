"""Attacks on a real node under load: what is published hashes to its name, and one token stops nobody.

The figures are printed: counts and ratios, never seconds (`make soak`, or `-m soak -s` with this file).
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import WebSocketException

from odfchain.errors import OdfchainError, TransferError
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_bytes, hash_file
from odfchain.odf.times import Timestamp
from odfchain.storage.public_layout import ObjectKey
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import smart_site
from tests.kit.held_puts import PIECE, HeldPut, large, path_of, spoilt
from tests.kit.node_process import Node
from tests.kit.scenario import Chain, chain_of, install
from tests.kit.shared_store import machine
from tests.kit.shared_store import objects as stored
from tests.kit.small_s3 import SmallS3
from tests.kit.smart_site import (
    COMPLETE,
    OK,
    Site,
    ask_to_commit,
    asked_for_objects,
    begun,
    closed,
    objects,
    say,
    started,
)

pytestmark = pytest.mark.soak

PARTS = ("data", "checkpoints", "blocks")
ROUNDS, ROUNDS_OF_STORE = 30, 12
MOMENTS = 4
ATTACKERS = 3


def site_of(node: Node, ours: WorkspaceFiles) -> Site:
    """What is said to a node; its own workspace is for its process alone."""
    free = threading.Event()
    free.set()
    return Site(ours, ours, node.url, node.token, free)


def token(node: Node, name: str) -> str:
    return node.token.create(name, ["push:%"], Timestamp.now()).text


def push(ours: WorkspaceFiles, name: str, node: Node, shown: str) -> None:
    smart_site.push(ours.dataset(DatasetAlias.parse(name)), f"{node.url}{name}", token=shown, retries=0)


@contextlib.contextmanager
def gone() -> Iterator[None]:
    """A node that is busy, or was killed, is what such a client has to live with."""
    with contextlib.suppress(WebSocketException, HTTPException, KeyError, OSError, AssertionError):
        yield


def wrong(folder: Path, store: SmallS3 | None) -> tuple[int, int]:
    """How many objects all datasets of a node have, and how many of them do not hash to their names."""
    checked = bad = 0
    for part in PARTS:
        for path in (folder / ".odfchain" / "datasets").glob(f"*/{part}/f1620*"):
            checked, bad = checked + 1, bad + (str(hash_file(path)[0]) != path.name)
        for key, data in {} if store is None else stored(store, f"/{part}/").items():
            checked, bad = checked + 1, bad + (str(hash_bytes(data)) != key.rpartition("/")[2])
    return checked, bad


def stale_put(site: Site, name: str, shown: str, chain: Chain, key: ObjectKey, body: bytes) -> HeldPut | None:
    """A PUT whose push has ended; None where the dataset was busy."""
    with gone(), site.socket(shown, name, beside=True) as socket:
        asked_for_objects(socket, chain)
        found = HeldPut(site.url, path_of(key, name), shown, body)
        found.send(PIECE)
        return found
    return None


@pytest.fixture(params=["a folder", "a store"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, SmallS3 | None]:
    """Where a node has its datasets."""
    folder, store = tmp_path / "node", None
    if request.param == "a store":
        store = request.getfixturevalue("store")
        machine(store, folder)
    else:
        WorkspaceFiles.init(folder)
    return folder, store


def test_puts_that_outlive_their_pushes(place: tuple[Path, SmallS3 | None], tmp_path: Path) -> None:
    """By other tokens, by the same one, by revoked ones, on a node that is killed now and then, under load."""
    home, store = place
    rounds = ROUNDS if store is None else ROUNDS_OF_STORE
    ours, chance, figures = WorkspaceFiles.init(tmp_path / "ours"), random.Random(7), Counter[str]()
    node = Node(home)
    running = [node]
    mine, others = token(node, "mine"), token(node, "noise")
    noise = chain_of(["seed noise", "schema", *(f"d{n}" for n in range(20))])
    done = threading.Event()

    def load() -> None:
        """Others upload all the time, and never commit."""
        while not done.is_set():
            site = site_of(running[-1], ours)
            with gone(), site.socket(others, "noise", beside=True) as socket:
                asked_for_objects(socket, noise)
                for key in noise.files:
                    site.put(str(key), noise.objects[key], others, "noise")
                    figures["uploads of others"] += 1

    try:
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(load)
            for number in range(rounds):
                name = f"cities.{number}"
                chain, key = large(name)
                body = chain.objects[key]
                install(ours, name, chain)
                held: list[HeldPut] = []
                for n in range(ATTACKERS):
                    other = mine if chance.random() < 0.3 else token(node, f"other.{number}.{n}")
                    bent = body if chance.random() < 0.2 else spoilt(body)
                    put = stale_put(site_of(node, ours), name, other, chain, key, bent)
                    if put is not None:
                        figures["PUTs that outlived their push"] += 1
                        held.append(put)
                    if other != mine and chance.random() < 0.3:
                        node.token.revoke(f"other.{number}.{n}")
                        figures["tokens revoked"] += 1
                # after the file has its name, before the commit, or while that runs
                if chance.random() < 0.3:
                    site = site_of(node, ours)
                    with gone(), site.socket(mine, name, beside=True) as socket:
                        asked_for_objects(socket, chain)
                        for each in chain.files:
                            site.put(str(each), chain.objects[each], mine, name)
                        if chance.random() < 0.5:
                            ask_to_commit(socket)
                        node.kill()
                        figures["kills"] += 1
                    if node.process.poll() is not None:
                        node = Node(home)
                        running.append(node)
                with ThreadPoolExecutor(1 + len(held)) as racing:
                    pushed = racing.submit(until_done, ours, name, node, mine)
                    ends = [racing.submit(go_on, put, chance.randrange(MOMENTS), pushed) for put in held]
                    figures["attempts"] += pushed.result()
                    figures.update(f"answered {end.result()}" for end in ends)
            done.set()
            loading.result()
    finally:
        done.set()
        node.kill()
    figures["files checked"], figures["wrong files"] = wrong(home, store)
    print(json.dumps(figures, indent=1))
    assert figures["wrong files"] == 0
    assert figures["files checked"] >= rounds * 3
    assert figures["PUTs that outlived their push"] >= rounds
    assert figures["answered 201"] == 0
    assert figures["kills"] > 0


def until_done(ours: WorkspaceFiles, name: str, node: Node, shown: str) -> int:
    """How often a client had to try."""
    for attempt in range(1, 200):
        with contextlib.suppress(OdfchainError):
            push(ours, name, node, shown)
            return attempt
    raise AssertionError(name)


def go_on(put: HeldPut, moment: int, pushed: Any) -> int:
    """Go on writing: at once, in pieces, once the push is done, or never."""
    match moment:
        case 0:
            return put.finish()
        case 1:
            for _ in range(8):
                put.send(PIECE // 2)
            return put.finish()
        case 2:
            pushed.exception()
            return put.finish()
    pushed.exception()
    put.cut()
    return 0


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor time is read from /proc")
def test_one_token_against_all_others(tmp_path: Path) -> None:
    """It holds connections and pushes, and names what is there again and again; others push meanwhile."""
    home = tmp_path / "node"
    WorkspaceFiles.init(home)
    ours, figures = WorkspaceFiles.init(tmp_path / "ours"), Counter[str]()
    chain = chain_of(["seed big", "schema"])
    chain.add_data("d1", size=64 << 20)
    node = Node(home)
    evil, good = token(node, "evil"), token(node, "good")
    site = site_of(node, ours)
    with site.socket(evil, "big", beside=True) as socket:
        asked_for_objects(socket, chain)
        for key in chain.files:
            assert site.put(str(key), chain.objects[key], evil, "big") == 201
    node.kill()
    node = Node(home)  # which has hashed nothing yet
    try:
        site = site_of(node, ours)
        before = node.processor_seconds()
        spent = []
        for _ in range(40):
            with site.socket(evil, "big", beside=True) as socket:
                begun(socket, chain)
                assert "Ok" in say(socket, objects(chain, more=True))
                socket.send(COMPLETE)
                socket.send(
                    json.dumps({"object_files": objects(chain)["object_files"] * 300, "is_truncated": False})
                )
                assert closed(socket)[0] == 1011
            spent.append(node.processor_seconds() - before)
        figures["pushes that name 64 MiB"] = len(spent)
        ratio = spent[-1] / max(spent[0], 0.01)
        with silent(site, evil, 16), holding(site, evil) as held:
            figures["pushes that one token holds"] = held
            for n in range(20):
                name = f"cities.{n}"
                install(ours, name, chain_of([f"seed {n}", "schema", "d1"]))
                try:
                    push(ours, name, node, good)
                    figures["pushes of others that went through"] += 1
                except TransferError:
                    figures["pushes of others that were refused"] += 1
    finally:
        node.kill()
    print(json.dumps(figures, indent=1), f"processor time of all to the first: {ratio:.1f}")
    assert figures["pushes of others that went through"] == 20
    assert 0 < held <= 4
    assert ratio < len(spent) / 3, "what was hashed once is not hashed again"


@contextlib.contextmanager
def silent(site: Site, shown: str, count: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for n in range(count):
            stack.enter_context(site.socket(shown, f"silent.{n}", beside=True))
        yield


@contextlib.contextmanager
def holding(site: Site, shown: str) -> Iterator[int]:
    """As many pushes as a token gets."""
    with contextlib.ExitStack() as stack:
        held = 0
        for n in range(12):
            try:
                socket = stack.enter_context(site.socket(shown, f"held.{n}", beside=True))
                held += say(socket, started(chain_of([f"seed {n}"]))) == OK
            except WebSocketException:
                continue
        yield held
