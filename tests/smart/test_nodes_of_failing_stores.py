"""Clients that die, and stores that fail or lose answers, while a node takes a push: one commit, or a clear message."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from collections.abc import Callable
from socket import SHUT_RDWR
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from odfchain.errors import ChainsDifferError, RefConflictError, TransferError
from odfchain.odf.names import DatasetAlias
from odfchain.transfer import node_pushes, server_app
from odfchain.transfer.block_batch import packed
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.scenario import Chain, chain_of, extend, install
from tests.kit.shared_store import objects
from tests.kit.small_s3 import RESET
from tests.kit.smart_site import asked_for_objects, blocks, closed, raw, say, started
from tests.kit.store_node import LABELS, Hub, longer

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


def test_a_store_that_is_silent_when_a_push_begins(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is told before it gives up by itself, and may push again at once."""
    chain, token = chain_of(LABELS), hub.site.token()
    install(hub.site.node, "cities", chain)
    hub.shown()
    held = threading.Event()
    hub.store.before = lambda *_: None if held.wait(20) else 500
    with monkeypatch.context() as impatient:
        impatient.setattr(node_pushes, "_FIRST_SECONDS", 0.05)
        try:
            with hub.site.socket(token) as socket:
                socket.send(json.dumps(started(longer("x"), chain.head, len(LABELS))))
                code, reason = closed(socket)
        finally:
            held.set()
    assert (code, "does not answer" in reason) == (1011, True)
    hub.calm()
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
    monkeypatch.setattr(server_app, "_PATIENCE", 0.05)
    held = threading.Event()

    def wait(_method: str, _path: str) -> None:
        assert held.wait(20)

    hub.store.before = wait
    try:
        assert hub.shown() == str(chain.head)
    finally:
        held.set()


# --- at every request --------------------------------------------------------------------------------------


def at(hub: Hub, number: int, do: Callable[[], int | None], *, after: bool) -> list[str]:
    """`do` something at the request of this number; it is in the list when that came."""
    count, fired = iter(range(1_000)), list[str]()

    def hook(method: str, path: str) -> int | None:
        if fired or next(count) != number:
            return None
        fired.append(f"{method} {path}")
        return do()

    setattr(hub.store, "after" if after else "before", hook)
    return fired


@pytest.mark.soak
@pytest.mark.parametrize("after", [False, True])
def test_of_two_writers_at_whatever_moment_one_wins(hub: Hub, after: bool) -> None:
    token, moments, outcomes = hub.site.token(), list[str](), set[str]()
    for number in itertools.count():
        seed = f"seed {number}"
        old, mine, theirs = (chain_of([seed, "schema", *labels]) for labels in ([], ["d1"], ["d2"]))
        name = f"cities.{number}"
        install(hub.site.node, name, old)
        install(hub.site.ours, name, mine)
        other = hub.other().dataset(DatasetAlias.parse(name))
        won: list[str] = []

        def commit(other: DatasetFiles = other, chain: Chain = theirs, won: list[str] = won) -> None:
            with contextlib.suppress(RefConflictError):
                extend(other, chain)
                won.append("theirs")

        fired = at(hub, number, commit, after=after)
        try:
            hub.site.push(name, token, to=name)
        except (RefConflictError, ChainsDifferError):  # the latter where the node has seen it first
            pass
        else:
            won.append("mine")
        hub.calm()
        if not fired:
            break
        moments += fired
        (winner,) = won
        outcomes.add(winner)
        assert hub.seen(name) == (mine if winner == "mine" else theirs).head
        assert hub.shown(name) == str(hub.seen(name))
    assert outcomes == ({"mine", "theirs"} if after else {"theirs"}), "the head is the last request"
    assert any(moment.startswith("PUT") and moment.endswith("refs/head") for moment in moments)


@pytest.mark.soak
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fault", [503, RESET])
def test_a_store_that_fails_at_whatever_moment_has_each_push_once(hub: Hub, fault: int, after: bool) -> None:
    token, moments = hub.site.token(), list[str]()
    for number in itertools.count():
        seed, name = f"seed {number}", f"cities.{number}"
        old, new = (chain_of([seed, "schema", *labels]) for labels in ([], ["d1"]))
        dataset, fired, before = install(hub.site.ours, name, old), list[str](), None
        for chain in (old, new):
            extend(dataset, chain)
            at_it = at(hub, number, lambda: fault, after=after)
            with contextlib.suppress(TransferError):
                hub.site.push(name, token, to=name)
            hub.calm()
            assert hub.seen(name) in (before, chain.head)
            hub.site.push(name, token, to=name)
            assert hub.seen(name) == chain.head
            assert hub.shown(name) == str(chain.head)
            before, fired = chain.head, fired + at_it
        folder = hub.other().dataset(DatasetAlias.parse(name)).folder.name
        assert len(objects(hub.store, f"{folder}/blocks/")) == len(new.hashes)
        moments += fired
        if not fired:
            break
    assert any(moment.endswith("refs/head") and moment.startswith("PUT") for moment in moments)


@pytest.mark.soak
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fault", [503, RESET])
def test_a_store_that_fails_at_whatever_moment_of_a_push_by_force(hub: Hub, fault: int, after: bool) -> None:
    """As above; who looks has seen neither history before."""
    token, moments = hub.site.token("push:%", "force:%"), list[str]()
    for number in itertools.count():
        seed, name = f"seed {number}", f"cities.{number}"
        old, new = (chain_of([seed, "schema", *labels]) for labels in (["d1"], ["d2"]))
        install(hub.site.node, name, old)
        install(hub.site.ours, name, new)
        fired = at(hub, number, lambda: fault, after=after)
        with contextlib.suppress(TransferError):
            hub.site.push(name, token, to=name, force=True)
        hub.calm()
        for moment in ("then", "after another push"):
            seen = hub.other(f"{moment} {number}").dataset(DatasetAlias.parse(name)).chain.head()
            assert seen in ((old.head, new.head) if moment == "then" else (new.head,))
            hub.site.push(name, token, to=name, force=True)
            assert hub.shown(name) == str(new.head)
        moments += fired
        if not fired:
            break
    assert any(moment.endswith("refs/head") and moment.startswith("PUT") for moment in moments)
