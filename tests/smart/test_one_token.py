"""What one token can do to those who push with others: take its share of the node, and no more."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from odfchain.errors import StoreError
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_file
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.storage.public_layout import ObjectKey
from odfchain.transfer import access_tokens, node_pushes
from odfchain.transfer.access_tokens import made_token
from odfchain.transfer.block_batch import packed
from odfchain.transfer.node_pushes import remove_left
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.held_puts import HeldPut, path_of
from tests.kit.scenario import Chain, chain_of, install
from tests.kit.served_workspace import ask
from tests.kit.smart_site import (
    CITIES,
    COMPLETE,
    OK,
    Site,
    asked_for_objects,
    begun,
    blocks,
    closed,
    committed,
    failed,
    objects,
    raw,
    say,
    started,
)

LABELS = ["seed", "schema", "d1", "x", "d2"]
CHAIN = chain_of(LABELS)
LATE = (1011, "This push took too long.")
BUSY = (1011, "Busy.")


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files that the node hashes because they are named."""
    found = list[str]()
    monkeypatch.setattr(node_pushes, "hash_file", lambda path: found.append(path.name) or hash_file(path))
    return found


@contextlib.contextmanager
def sockets(site: Site, token: str, count: int, *, speak: bool) -> Iterator[list[ClientConnection]]:
    with contextlib.ExitStack() as stack:
        found = []
        for n in range(count):
            found.append(stack.enter_context(site.socket(token, f"held.{n}", beside=True)))
            if speak:
                assert say(found[-1], started(chain_of([f"seed {n}"]))) == OK
        yield found


# --- a share of the pushes ----------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["the same", "another"])
def test_who_says_nothing_is_in_nobodys_way(who: str, site: Site) -> None:
    install(site.ours, "cities", CHAIN)
    silent = site.token(name="silent")
    with sockets(site, silent, 20, speak=False):
        site.push("cities", silent if who == "the same" else site.token())
    assert site.head() == CHAIN.head


def test_a_token_has_a_share_of_the_pushes(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (site.token(name=name) for name in ("a", "b", "c"))
    with sockets(site, first, 4, speak=True):
        with site.socket(first, beside=True) as socket:
            assert closed(socket) == BUSY
        with site.socket(second, beside=True) as socket:
            assert say(socket, started(CHAIN)) == OK
        monkeypatch.setattr(access_tokens, "_MOST_PUSHES", 4)
        with site.socket(third, beside=True) as socket:
            assert closed(socket) == BUSY, "as many as there may be in all"


def test_who_waited_for_too_long_is_told_when_he_speaks(site: Site) -> None:
    token = site.token()
    with site.socket(token) as late, sockets(site, token, 4, speak=True):
        late.send(json.dumps(started(CHAIN)))
        assert closed(late) == BUSY


def test_a_token_has_a_share_of_the_connections(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_tokens, "_CONNECTIONS", 3)
    token = site.token()
    with sockets(site, token, 3, speak=False) as held:
        with site.socket(token, beside=True) as socket:
            assert closed(socket) == BUSY
        with site.socket(site.token(name="other"), beside=True) as socket:
            assert say(socket, started(CHAIN)) == OK
        held[0].send("not JSON")
        assert closed(held[0])[0] == 1011
        with site.socket(token, beside=True) as socket:
            assert say(socket, started(CHAIN)) == OK


def test_who_was_refused_is_in_nobodys_way(site: Site) -> None:
    token = site.token()
    install(site.node, "cities", CHAIN)
    with site.socket(token) as refused:
        assert "Err" in say(refused, started(CHAIN))
        with site.socket(token, beside=True) as socket:
            assert say(socket, started(chain_of([*LABELS, "y"]), CHAIN.head, 5)) == OK


# --- a share of the time ------------------------------------------------------------------------------


def test_a_push_does_not_last_for_ever(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often its client says that it goes on."""
    monkeypatch.setattr(access_tokens, "_LONGEST_SECONDS", 0.3)
    monkeypatch.setattr(node_pushes, "_PING_SECONDS", 0.01)
    token = site.token()
    with site.socket(token) as socket:
        asked_for_objects(socket, CHAIN)
        with contextlib.suppress(ConnectionClosed):
            for _ in range(1_000):
                assert socket.recv(20) == "{}"
                socket.send(json.dumps({"details": {"Running": {"uploaded_objects_count": 0}}}))
        assert (socket.close_code, socket.close_reason) == LATE


def test_what_comes_gives_a_push_time() -> None:
    """As much as the slowest client needs for it, and no more."""
    now = [0.0]
    sessions = access_tokens.PushSessions(now=lambda: now[0])
    session = sessions.begin(CITIES, made_token("x", ["push:%"], Timestamp.now()).token)
    assert session.until == access_tokens._LONGEST_SECONDS
    now[0] = 5.0
    sessions.received(session, 64 << 10)
    assert (session.until, session.touched) == (access_tokens._LONGEST_SECONDS + 1, 5.0)


# --- a share of the work ------------------------------------------------------------------------------


def uploaded(site: Site, token: str, chain: Chain) -> None:
    with site.socket(token) as socket:
        asked_for_objects(socket, chain)
        site.upload(chain, token)
    assert site.idle.wait(20)


def strategies(socket: ClientConnection, message: Any) -> list[str]:
    """What is to be done with each file that is named."""
    found = say(socket, message)["Ok"]["object_transfer_strategies"]
    return [each["push_strategy"] for each in found]


def named(files: list[Any], *, more: bool = False) -> Any:
    return {"object_files": files, "is_truncated": more}


@pytest.mark.parametrize("rounds", [False, True], ids=["in one message", "in rounds"])
def test_an_object_is_named_as_often_as_blocks_do(rounds: bool, site: Site, hashed: list[str]) -> None:
    token, files = site.token(), objects(CHAIN)["object_files"]
    uploaded(site, token, CHAIN)
    hashed.clear()
    with restarted(site) as again, again.socket(token) as socket:
        begun(socket, CHAIN)
        if rounds:
            for file in files:
                assert strategies(socket, named([file], more=True)) == ["SkipUpload"]
                socket.send(COMPLETE)
            socket.send(json.dumps(named(files[:1], more=True)))
        else:
            socket.send(json.dumps(named([files[0]] * 1000)))
        assert failed(socket) == (1011, {"Push": "ObjectsRequest"})
    assert len(hashed) == (len(files) if rounds else 1)


@contextlib.contextmanager
def restarted(site: Site) -> Iterator[Site]:
    """The same node as another process sees it, which has hashed nothing so far."""
    with RepositoryServer(site.node, write=True) as server:
        yield Site(site.node, site.ours, server.url, site.tokens, site.idle)


def test_what_two_blocks_name_may_be_named_twice(site: Site, hashed: list[str]) -> None:
    """Other clients do so."""
    chain = chain_of(LABELS[:3])
    chain.add_data("d1", size=1)  # another slice, and the checkpoint that is there
    token = site.token()
    uploaded(site, token, chain)
    files = objects(chain)["object_files"]
    twice = next(each for each in files if each["object_type"] == "Checkpoint")
    with restarted(site) as again:
        hashed.clear()
        with again.socket(token) as socket:
            begun(socket, chain)
            assert set(strategies(socket, named([*files, twice]))) == {"SkipUpload"}
            assert len(hashed) == len(files), "each is hashed once"
            committed(socket)
    assert site.head() == chain.head


def test_what_was_hashed_is_not_hashed_for_each_push(site: Site, hashed: list[str]) -> None:
    token = site.token()
    uploaded(site, token, CHAIN)
    for name in ("me", "other", "third"):
        with site.socket(token if name == "me" else site.token(name=name)) as socket:
            asked = asked_for_objects(socket, CHAIN)
        assert {each["push_strategy"] for each in asked} == {"SkipUpload"}
    assert hashed == [], "it was hashed as it came"
    with restarted(site) as again:
        for _ in range(3):
            with again.socket(token) as socket:
                asked_for_objects(socket, CHAIN)
    assert len(hashed) == len(CHAIN.files)


def test_what_changed_is_hashed_again(site: Site, hashed: list[str]) -> None:
    token = site.token()
    uploaded(site, token, CHAIN)
    key = CHAIN.files[0]
    (path,) = (site.node.root / "incoming").rglob(f"*{key.name}")
    path.write_bytes(CHAIN.objects[key][::-1])
    with site.socket(token) as socket:
        asked = {e["object_file"]["physical_hash"]: e for e in asked_for_objects(socket, CHAIN)}
    assert asked[str(key.name)]["push_strategy"] == "HttpUpload"
    assert hashed == [path.name]


def test_rounds_name_something(site: Site) -> None:
    with site.socket(site.token()) as socket:
        begun(socket, CHAIN)
        socket.send(json.dumps(named([], more=True)))
        assert failed(socket) == (1011, {"Push": "ObjectsRequest"})


# --- a share of the disk ------------------------------------------------------------------------------


def test_a_token_has_a_share_of_the_disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = chain_of(["seed", "schema"])
    for n in range(3):
        chain.add_data(f"d{n}", size=1 << 20)
    slices = [key for key in chain.files if key.kind.value == "data"]
    size, block_bytes = len(chain.objects[slices[0]]), sum(map(len, chain.blocks))
    usage = shutil.disk_usage(site.node.root)
    free = [block_bytes + 4 * size]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free[0]))
    mine, other = site.token(), site.token(name="other")

    done: set[ObjectKey] = set()

    def put(key: ObjectKey, token: str) -> int:
        status = site.put(str(key), chain.objects[key], token)
        free[0] -= size * (status == 201 and key not in done)
        done.add(key)
        return status

    with site.socket(mine) as socket:
        asked_for_objects(socket, chain)
        assert put(slices[0], mine) == 201
        assert put(slices[0], mine) == 201, "what comes again takes no more"
        assert site.put(str(slices[1]), b"?" * size, mine) == 400
        assert put(slices[2], mine) == 201, "what was refused takes nothing"
        assert put(slices[1], mine) == 507
    assert site.idle.wait(20)
    with site.socket(other) as socket:
        asked_for_objects(socket, chain)
        assert put(slices[1], other) == 201, "others have theirs"
        site.upload(chain, other, *(key for key in chain.files if key not in slices))
        committed(socket)
    assert site.idle.wait(20)
    chain.add_data("d9", size=1 << 20)
    free[0] = block_bytes + 3 * size
    with site.socket(mine) as socket:
        assert say(socket, started(chain, chain.hashes[-2], len(chain.hashes) - 1)) == OK
        assert say(socket, blocks(packed(raw(chain)[-1:]))) == OK
        assert len(strategies(socket, objects(chain, chain.files[-2:]))) == 2
        site.upload(chain, mine, chain.files[-2])  # all was committed


def test_what_counts_is_what_waits_for_a_commit() -> None:
    """Of one token, for whatever dataset; until it is committed, refused, or removed after a day."""
    now = [0.0]
    sessions = access_tokens.PushSessions(now=lambda: now[0])
    made = [made_token(name, ["push:%"], Timestamp.now()).token for name in ("a", "b")]
    one, two, theirs = (
        session
        for name, token in (("one", made[0]), ("two", made[0]), ("theirs", made[1]))
        if (session := sessions.begin(DatasetAlias.parse(name), token)) is not None
    )
    fits = lambda session, what, size: sessions.reserve(session, what, size, 100)  # noqa: E731 - said often
    assert fits(one, "x", 50)
    assert not fits(two, "x", 26)
    assert fits(theirs, "x", 50)
    sessions.release(one, "x")
    assert fits(two, "x", 50)
    sessions.committed(two, CHAIN.head)
    assert fits(one, "x", 50)
    assert not fits(two, "x", 50)
    now[0] = access_tokens.LEFT_SECONDS + 1
    assert fits(two, "x", 50)


def test_blocks_take_of_the_share_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(site.node.root)
    size = sum(map(len, CHAIN.blocks))
    token, sent = site.token(), [0]
    # twice: what is sent again takes no more
    for free, fits in ((2 * size, True), (2 * size, True), (2 * size - 1, False), (size, False)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage._replace(free=free - sent[0]))
        with site.socket(token) as socket:
            assert say(socket, started(CHAIN)) == OK
            socket.send(json.dumps(blocks(packed(raw(CHAIN)))))
            if fits:
                assert json.loads(socket.recv(20)) == OK
                sent[0] = size
            else:
                assert "Insufficient storage" in closed(socket)[1]
        assert site.idle.wait(20)


def left(site: Site) -> list[Path]:
    found = [*(site.node.root / "incoming").glob("*/objects/*")]
    return [*found, *(site.node.root / "datasets").glob("*/info/incoming/objects/*")]


@pytest.mark.parametrize("present", [False, True], ids=["a new dataset", "one that is here"])
def test_what_was_never_committed_is_removed_after_a_day(present: bool, site: Site) -> None:
    token = site.token()
    old = chain_of(LABELS[:3])
    if present:
        install(site.node, "cities", old)
    with site.socket(token) as socket:
        if present:
            begun(socket, CHAIN, old)
            assert "Ok" in say(socket, objects(CHAIN, CHAIN.files[2:]))
        else:
            asked_for_objects(socket, CHAIN)
        key = CHAIN.files[2]
        site.upload(CHAIN, token, key)
        (path,) = left(site)
        made = path.stat().st_ctime_ns
        remove_left(site.node, made - 1)
        assert left(site) == [path], "it is younger"
    assert site.idle.wait(20)
    remove_left(site.node, made - 1)
    assert left(site) == [path]
    later = made + 3600 * 10**9
    lock = path.parent.parent.with_suffix(".lock") if present else path.parents[2] / ".lock-cities"
    with fsio.locked(lock):
        remove_left(site.node, later)
        assert left(site) == [path], "somebody is at work with it"
    remove_left(site.node, later)
    assert left(site) == []
    install(site.ours, "mine", CHAIN)
    site.push("mine", token)
    assert site.head() == CHAIN.head


def test_what_a_pull_left_is_no_business_of_pushes(site: Site) -> None:
    folder = site.node.root / "incoming" / "cities" / "objects"
    folder.mkdir(parents=True)
    (folder / "data-x").write_bytes(b"x")
    remove_left(site.node, 1 << 62)
    assert left(site) == [folder / "data-x"]


def test_a_node_looks_for_what_was_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first request, and no more than once an hour; who asks does not wait for it."""
    looked, days = threading.Semaphore(0), list[float]()

    def look(workspace: WorkspaceFiles, before_ns: int) -> None:
        days.append(round((time.time_ns() - before_ns) / 864e11, 2))
        looked.release()
        raise StoreError("the disk is gone")

    monkeypatch.setattr(node_pushes, "remove_left", look)
    told = threading.Event()
    with RepositoryServer(site.node, write=True, on_problem=lambda text: told.set()) as server:
        for _ in range(3):
            assert ask(server.url, "/info").status == 200
        assert looked.acquire(timeout=20)
        assert told.wait(20)
        monkeypatch.setattr(node_pushes, "_LOOK_SECONDS", 0.0)
    assert days == [1.0]
    with RepositoryServer(site.node, write=True) as server:
        for _ in range(2):
            assert ask(server.url, "/info").status == 200
            assert looked.acquire(timeout=20)
    assert days == [1.0] * 3


def test_parts_of_a_node_that_died_are_removed_with_the_rest(site: Site) -> None:
    """Nothing uses them; the next commit of the dataset, or a day, ends them."""
    token = site.token()
    uploaded(site, token, CHAIN)
    part = site.node.root / "incoming" / "cities" / "uploads" / "dead" / "data-x"
    part.parent.mkdir()
    part.write_bytes(b"x")
    install(site.ours, "cities", CHAIN)
    site.push("cities", token)
    assert not part.exists()
    assert site.head() == CHAIN.head


def test_a_put_of_another_dataset_is_not_taken(site: Site) -> None:
    """A push names what it wants for itself."""
    token = site.token()
    key = CHAIN.files[0]
    with site.socket(token) as socket:
        asked_for_objects(socket, CHAIN)
        assert HeldPut(site.url, path_of(key, "towns"), token, CHAIN.objects[key]).finish() == 404
