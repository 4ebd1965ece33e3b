"""A pull that is killed at any moment changes nothing that can be seen, and the next one ends as if nothing had been.

The moments are drawn from a seeded random: when the n-th byte has been served (the peer strikes, in the middle of an
answer), when the n-th file has got its name, and somewhere between the last byte and the end. Nobody sleeps.
"""

from __future__ import annotations

import os
import queue
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage.public_layout import HEAD_KEY
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit import pull_client as clients
from tests.kit.hostile_server import HostilePeer, lookup
from tests.kit.pull_client import OURS, Client, Running, published
from tests.kit.run_length import scaled
from tests.kit.scenario import Chain, chain_of
from tests.kit.support import tree_of

KILLS = scaled(30, 200, 400)
KINDS = ("byte", "file", "end")
KILLED = -9


def grown(count: int) -> Chain:
    """A chain of slices that take some bytes each, and notes; longer ones continue shorter ones."""
    chain = chain_of(["seed", "schema"])
    for n in range(count):
        chain.add_data(f"d{n}", size=20_000)
        chain.append(ev.SetInfo(description=f"note {n}"))
    return chain


OLDER, NEWEST = grown(2), grown(9)
HEADS = {chain.head: chain for chain in (OLDER, NEWEST)}


@dataclass(frozen=True)
class Start:
    """Where pulls begin, and what a whole one takes from there: bytes served, files named, seconds after all bytes."""

    workspace: Path
    bytes: int
    files: int
    rest: float


class Killer:
    """Pulls that are killed."""

    def __init__(self, client: Client, dice: random.Random) -> None:
        self.client = client
        self.dice = dice
        self.kills: Counter[str] = Counter()

    def pull(self, workspace: Path, start: Start, kind: str, *, most: float) -> None:
        """One pull, killed at a moment before `most` of the whole; some end before, and do not count."""
        with HostilePeer(lookup(NEWEST, hint=True)) as peer:
            begun: queue.SimpleQueue[Running] = queue.SimpleQueue()
            served = threading.Event()
            if kind == "byte":
                at = self.dice.randint(1, int(start.bytes * most))
                peer.strike = (at, lambda: begun.get(timeout=20).kill())
            else:
                peer.strike = (start.bytes, served.set)
            before = named_files(workspace)
            run = self.client.start("pull", workspace, peer.url)
            begun.put(run)
            if kind == "file":
                count = before + self.dice.randint(1, max(1, int(start.files * most)))
                while not run.over(0.0001) and named_files(workspace) < count:
                    pass
                run.kill()
            elif kind == "end":
                while not run.over(0.0001) and not served.is_set():
                    pass
                until = time.perf_counter() + self.dice.random() * start.rest
                while not run.over(0.0001) and time.perf_counter() < until:
                    pass
                run.kill()
            ended = run.wait()
        assert ended.code in (0, KILLED), ended.err
        self.kills[kind] += ended.code == KILLED


def named_files(workspace: Path) -> int:
    """Files that have got the name of an object or of a head, wherever they are."""
    names = (name for _, _, files in os.walk(workspace) for name in files)
    return sum(name.startswith("f1620") or name == "head" for name in names)


def tree_without_drafts(folder: Path) -> dict[str, bytes]:
    """What a reader sees: files that begin with a dot never got a name."""
    return {key: data for key, data in tree_of(folder).items() if "/." not in key}


def visible_head(workspace: Path, *, absent: bool) -> Multihash | None:
    """The head of what is visible, after a look at all of it: every file is whole, and all that it needs is there."""
    found = published(workspace)
    if absent and not found:
        return None
    (folder,) = found
    tree = tree_without_drafts(folder)
    head = Multihash.parse(tree.pop(HEAD_KEY).decode())
    for key, data in tree.items():
        assert key.endswith(f"/{hash_bytes(data)}"), f"half a file: {key}"
    assert {str(key) for key in HEADS[head].objects} <= tree.keys()
    if OURS:
        blocks = [block.hash for block in DatasetFiles.open(folder).chain.walk(head)]
        assert blocks == HEADS[head].hashes[::-1]
    return head


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with clients.started(tmp_path_factory.mktemp("client")) as client:
        yield client


def measured(client: Client, folder: Path, *, older: bool) -> Start:
    """Where pulls begin: with nothing, or with the older chain."""
    folder.mkdir()
    assert client.run("init", folder).code == 0
    if older:
        with HostilePeer(lookup(OLDER)) as peer:
            assert client.run("pull", folder, peer.url).code == 0
    rests, sizes = [], set()
    for n in range(3):
        copy = shutil.copytree(folder, folder.with_name(f"{folder.name}-{n}"))
        with HostilePeer(lookup(NEWEST, hint=True)) as peer:
            run = client.start("pull", copy, peer.url)
            sent = last = 0.0
            while not run.over(0.0001):
                if peer.sent != sent:
                    sent, last = peer.sent, time.perf_counter()
            rests.append(time.perf_counter() - last)
            assert run.wait().code == 0
        sizes.add(peer.sent)
    (size,) = sizes
    return Start(folder, size, named_files(copy) - named_files(folder), min(rests))


@pytest.mark.parametrize(
    "older",
    [
        # no property, but `make soak` kills more of them
        pytest.param(False, id="new", marks=pytest.mark.hypothesis),
        pytest.param(True, id="update", marks=pytest.mark.soak),
    ],
)
def test_a_pull_that_is_killed_and_run_again_ends_in_the_same_head(
    older: bool, client: Client, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    start = measured(client, tmp_path / "start", older=older)
    killer = Killer(client, random.Random(older))
    allowed = {NEWEST.head, OLDER.head if older else None}
    after: Counter[Multihash | None] = Counter()
    attempts = 0
    # on a busy machine fewer are still there to be killed at the end: it goes on until enough were
    while killer.kills.total() < KILLS // 2 or min(killer.kills[kind] for kind in KINDS) < KILLS // 20:
        attempts += 1
        assert attempts <= 2 * KILLS, killer.kills
        workspace = shutil.copytree(start.workspace, tmp_path / "workspace")
        killer.pull(workspace, start, KINDS[attempts % len(KINDS)], most=1.0)
        for _ in range(killer.dice.randint(1, 3)):
            # what arrived is not asked for again, so later kills are early ones
            killer.pull(workspace, start, killer.dice.choice(KINDS[:2]), most=0.3)
        head = visible_head(workspace, absent=not older)
        assert head in allowed
        after[head] += 1

        with HostilePeer(lookup(NEWEST, hint=True)) as peer:
            ended = client.run("pull", workspace, peer.url)
        assert ended.code == 0, ended.err
        (folder,) = published(workspace)
        expected = {str(key): data for key, data in NEWEST.objects.items()}
        assert tree_without_drafts(folder) == expected | {HEAD_KEY: str(NEWEST.head).encode()}
        if OURS:
            assert older or tree_of(folder) == tree_without_drafts(folder), "the hidden folder was tidied up"
            assert not (folder / "info" / "incoming").exists()
            assert list((workspace / ".odfchain" / "incoming").glob("[!.]*")) == []
        shutil.rmtree(workspace)
    few = 1 if attempts < 25 else attempts // 4
    assert after[OLDER.head if older else None] >= few, "many of them came before the end"
    record_property("kills", killer.kills.total())
