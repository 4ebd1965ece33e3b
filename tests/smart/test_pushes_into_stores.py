"""A node whose datasets are in a store takes pushes: judged by the head that the store has, committed once there."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from odfchain.chain.signed_heads import SignatureStatus
from odfchain.errors import NameCollisionError, OdfchainError, RefConflictError, SetBackError, TransferError
from tests.kit.scenario import chain_of, extend, install
from tests.kit.served_workspace import ask
from tests.kit.shared_store import objects as stored
from tests.kit.signed_heads import head_of, line, owned
from tests.kit.small_s3 import SmallS3
from tests.kit.smart_site import CITIES, ask_to_commit, begun, closed, objects, say, started
from tests.kit.store_node import LABELS, Hub, longer, node_of

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
        "GET names", "GET refs/head", "PUT data", "HEAD checkpoints", "PUT checkpoints", "PUT blocks", "PUT refs/head",
    ]  # fmt: skip
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
    assert {key.rpartition("/")[2] for key in stored(hub.store, "/data/")} == {
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
        assert list(stored(hub.store, "head.jws").values()) == [signature]


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
        begun(socket, mine, old)
        files = [key for key in mine.files if key not in old.files]
        assert "Ok" in say(socket, objects(mine, files))
        hub.site.upload(mine, token, *files)
        fired = hub.once("PUT", "refs/head", lambda: hub.commit(theirs))
        ask_to_commit(socket)
        code, reason = closed(socket)
    assert fired
    assert (code, json.loads(reason)) == (1011, {"Err": {"InvalidHead": {"expected_head": str(theirs.head)}}})
    assert hub.seen() == theirs.head
    assert hub.shown() == str(theirs.head)


def test_our_client_is_told_that_it_lost(hub: Hub) -> None:
    install(hub.site.node, "cities", chain_of(LABELS))
    install(hub.site.ours, "cities", longer("d4"))
    fired = hub.once("PUT", "refs/head", lambda: hub.commit(longer("d3")))
    with pytest.raises(RefConflictError, match=str(longer("d3").head)):
        hub.site.push("cities", hub.site.token())
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
    assert len(stored(hub.store, "refs/head")) == 1, "nothing is left of what nobody can name"
    hub.site.push("cities", hub.site.token(name="again"), to="mine")
    assert hub.seen("mine") == mine.head


def test_an_id_that_is_there_under_another_name(hub: Hub) -> None:
    """Case 27, of a dataset that only the store has."""
    hub.shown()
    install(hub.other(), "towns", chain_of(LABELS))
    install(hub.site.ours, "cities", chain_of(LABELS))
    with pytest.raises(NameCollisionError, match="under another name"):
        hub.site.push("cities", hub.site.token())
    assert list(stored(hub.store, "names/")) == ["names/towns"]


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
    names, token = [f"cities.{n}" for n in range(2)], hub.site.token()
    chains = [chain_of([f"seed {n}", *LABELS[1:]]) for n in range(2)]
    for name, chain in zip(names, chains, strict=True):
        install(hub.site.ours, name, chain)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: hub.site.push(name, token, to=name), names))
    assert [hub.seen(name) for name in names] == [chain.head for chain in chains]
    assert [hub.shown(name) for name in names] == [str(chain.head) for chain in chains]


def test_another_history_comes_by_force(hub: Hub) -> None:
    """Machines that had seen more do not follow by themselves; the node that took it does, as it moved the head."""
    old, mine = longer("d3"), longer("d4")
    install(hub.site.node, "cities", old)
    install(hub.site.ours, "cities", mine)
    token = hub.site.token("push:%", "force:%")
    assert hub.seen() == old.head
    before = stored(hub.store)
    with pytest.raises(TransferError):
        hub.site.push("cities", token)
    assert stored(hub.store) == before
    hub.site.push("cities", token, force=True)
    assert hub.shown() == str(mine.head)
    assert hub.other("fresh").dataset(CITIES).chain.head() == mine.head
    with pytest.raises(SetBackError, match="does not continue"):
        hub.seen()


def test_a_node_that_has_seen_more_takes_no_push(
    hub: Hub, store: SmallS3, tmp_path: Path, idle: threading.Event
) -> None:
    """Who runs it has to say that the other history is to be followed; the log says how."""
    install(hub.site.node, "cities", longer("d3"))
    install(hub.site.ours, "cities", longer("d4"))
    with node_of(store, tmp_path, "second", idle) as (second, problems):
        assert ask(second.url, "/cities/refs/head").body.decode() == str(longer("d3").head)
        hub.site.push("cities", hub.site.token("push:%", "force:%"), force=True)
        install(second.ours, "cities", longer("d3", "d5"))
        with pytest.raises(TransferError, match="The history in this node's store was rewound"):
            second.push("cities", second.token())
    assert any("odfchain reset" in problem for problem in problems)
    assert hub.shown() == str(longer("d4").head)
