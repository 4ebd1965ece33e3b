"""Pulling from nodes: from our own server, and from ones that say what they should not."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from odfchain.errors import (
    AccessError,
    ChainsDifferError,
    CorruptedPeerError,
    OdfchainError,
    TransferError,
    UnsupportedPeerError,
)
from odfchain.limits import SMART
from odfchain.odf.names import DatasetAlias
from odfchain.storage.store import RawBlock
from odfchain.transfer.block_batch import packed
from odfchain.transfer.open_peer import PeerOptions
from odfchain.transfer.pulling import SyncStatus
from odfchain.transfer.server import RepositoryServer
from odfchain.transfer.signed_statements import Seen, SeenHeads
from odfchain.transfer.smart_messages import PulledBlocks, document_of
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.node_stand_in import Answer, Node, files_of, node, planned
from tests.kit.scenario import Chain, chain_of, install
from tests.kit.served_workspace import add_slice, make_dataset
from tests.kit.smart_cases import CASES, rows
from tests.kit.smart_site import pull, raw
from tests.kit.support import tree_of

NAME = DatasetAlias.parse("cities")


@pytest.fixture
def theirs(tmp_path: Path) -> WorkspaceFiles:
    return WorkspaceFiles.init(tmp_path / "theirs")


@pytest.fixture
def ours(tmp_path: Path) -> WorkspaceFiles:
    return WorkspaceFiles.init(tmp_path / "ours")


# --- our own server ----------------------------------------------------------------------------------


def test_blocks_come_in_one_piece(theirs: WorkspaceFiles, ours: WorkspaceFiles) -> None:
    dataset, log = make_dataset(theirs, "cities", 100, 200_000, 300), list[str]()

    def paths() -> list[str]:
        found = [line.split()[2].removeprefix("/cities/") for line in log]
        log.clear()
        return found

    with RepositoryServer(theirs, on_request=log.append) as server:
        url = f"odf+{server.url}cities"
        assert pull(ours, url).status is SyncStatus.CREATED
        asked = paths()
        assert [path for path in asked if path.startswith("blocks/")] == [f"blocks/{dataset.chain.head()}"]
        assert sorted(path for path in asked if path.startswith(("data/", "checkpoints/"))) == sorted(
            f"{folder}/{name}"
            for folder, store in (("data", dataset.data), ("checkpoints", dataset.checkpoints))
            for name in store.names()
        )
        assert tree_of(ours.dataset(NAME).folder) == tree_of(dataset.folder)

        assert pull(ours, url).status is SyncStatus.UP_TO_DATE
        assert not any(path.endswith("pull") for path in paths()), "nothing new needs no connection"

        for size in (1, 2):
            add_slice(dataset, size)
        found = pull(ours, url)
        assert (found.status, found.blocks) == (SyncStatus.UPDATED, 2)
        assert tree_of(ours.dataset(NAME).folder) == tree_of(dataset.folder)


@pytest.mark.parametrize("case", rows(15), ids=lambda case: case["says"])
def test_chains_that_are_not_one_line_are_told_as_by_the_simple_protocol(
    case: dict[str, Any], theirs: WorkspaceFiles, ours: WorkspaceFiles
) -> None:
    install(theirs, "cities", chain_of(case["there"]))
    dataset = install(ours, "cities", chain_of(case["here"]))
    if "seen" in case:
        seen = Seen(len(case["seen"]) - 1, chain_of(case["seen"]).head)
        SeenHeads(ours.root / "seen").remember(dataset.id, seen)
    said = []
    with RepositoryServer(theirs) as server:
        for scheme in ("", "odf+"):
            with pytest.raises(ChainsDifferError, match=case["says"]) as refused:
                pull(ours, f"{scheme}{server.url}cities")
            assert refused.value.exit_code == case["exit"]
            said.append((type(refused.value), str(refused.value).replace("odf+", ""), refused.value.hint))
    assert said[0] == said[1]


def test_a_chain_that_is_overwritten_comes_in_one_piece_as_well(
    theirs: WorkspaceFiles, ours: WorkspaceFiles
) -> None:
    install(theirs, "cities", chain_of(["seed", "schema", "d1", "d2", "d3"]))
    install(ours, "cities", chain_of(["seed", "schema", "x"]))
    with RepositoryServer(theirs) as server:
        assert pull(ours, f"odf+{server.url}cities", force=True).status is SyncStatus.OVERWRITTEN


@pytest.mark.parametrize(
    ("where", "bound"), [("_BLOCK_BYTES", 1_000), ("SMART", replace(SMART, message_bytes=2_000))]
)
def test_blocks_that_do_not_fit_into_a_message_are_walked(
    where: str, bound: object, theirs: WorkspaceFiles, ours: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"odfchain.transfer.node_pulls.{where}", bound)
    chain = chain_of(["seed", "schema", "d1", "d2", "d3"])
    install(theirs, "cities", chain)
    asked: list[str] = []
    with RepositoryServer(theirs, on_request=asked.append) as server:
        assert pull(ours, f"odf+{server.url}cities").new == chain.head
    assert sum("/blocks/" in line for line in asked) == len(chain.hashes)


# --- nodes that lie ----------------------------------------------------------------------------------

CHAIN = chain_of(["seed", "schema", "d1", "x", "d2", "y"])


def plan(_: Any) -> Any:
    return planned(CHAIN)


def batch(blocks: list[RawBlock], **changed: Any) -> Answer:
    document = document_of(PulledBlocks(blocks=packed(blocks)))
    document["blocks"] |= changed
    return lambda _: document


def addresses(place: str = "http://NODE/PATH", **more: Any) -> Answer:
    def answer(asked: Any) -> Any:
        found = []
        for file in asked["object_files"]:
            part = "data" if file["object_type"] == "DataSlice" else "checkpoints"
            url = place.replace("PATH", f"cities/{part}/{file['physical_hash']}")
            given = {"url": url, "headers": [], "expires_at": None} | more
            found.append({"object_file": file, "pull_strategy": "HttpDownload", "download_from": given})
        return {"object_transfer_strategies": found}

    return answer


def talk(ours: WorkspaceFiles, *answers: Answer, chain: Chain = CHAIN, **options: Any) -> Node:
    """What a node is asked by a pull from it."""
    with node(files_of(chain), *answers, **options) as found:
        pull(ours, f"odf+{found.url}cities", chosen=PeerOptions(token="OURS"))  # noqa: S106
        assert not found.said or found.done.wait(20)
    return found


@pytest.mark.parametrize("case", rows(10), ids=lambda case: case["sent"])
def test_a_batch_that_is_not_what_it_should_be_is_only_slower(
    case: dict[str, Any], ours: WorkspaceFiles
) -> None:
    """Case 10."""
    others = raw(chain_of(["seed2", "a", "b"])) if case["sent"] == "padded" else []
    blocks = [raw(CHAIN)[number] for number in case["blocks"]] + others
    found = talk(ours, plan, batch(blocks), addresses())
    assert tree_of(ours.dataset(NAME).folder)["refs/head"] == str(CHAIN.head).encode()
    assert found.ended == [(1000, "Client pull flow succeeded")]
    assert found.said[0] == {"begin_after": None, "stop_at": None, "force_update_if_diverged": False}
    alone = [path for path, _ in found.asked if path.startswith("/cities/blocks/")]
    assert len(alone) - 1 == case["asked_alone"], "the newest is asked for before"


def test_a_block_that_hashes_otherwise_is_asked_for_alone(ours: WorkspaceFiles) -> None:
    bent = [
        block if n != 3 else RawBlock(block.hash, block.data + b"x") for n, block in enumerate(raw(CHAIN))
    ]
    found = talk(ours, plan, batch(bent), addresses())
    assert f"/cities/blocks/{CHAIN.hashes[3]}" in [path for path, _ in found.asked]


REFUSAL = {"Err": {"Internal": {"phase": {"Pull": "InitialRequest"}, "error_message": "\x1b[2Jno"}}}


@pytest.mark.parametrize(
    ("answer", "error", "said"),
    [
        (lambda _: "no JSON", CorruptedPeerError, "not JSON"),
        (lambda _: b"\0\1", CorruptedPeerError, "not text"),
        (lambda _: {"Ok": {}}, CorruptedPeerError, "transfer_plan"),
        (lambda _: REFUSAL, TransferError, "refuses"),
    ],
)
def test_a_node_that_says_something_else_is_named(
    answer: Answer, error: type[OdfchainError], said: str, ours: WorkspaceFiles
) -> None:
    with pytest.raises(error, match=said) as refused:
        talk(ours, answer)
    assert "\x1b" not in str(refused.value)
    assert list((ours.root / "datasets").iterdir()) == []


@pytest.mark.parametrize(
    ("status", "error", "hint"),
    [(401, AccessError, "login"), (403, AccessError, "what a token allows"), (404, UnsupportedPeerError, "odf\\+"),
     (400, UnsupportedPeerError, "headers Upgrade and Connection"),
     (426, UnsupportedPeerError, "headers Upgrade and Connection"),
     *((status, TransferError, "does not answer now") for status in (502, 503, 504))],
)  # fmt: skip
def test_a_node_that_takes_no_connection_says_why(
    status: int, error: type[OdfchainError], hint: str, ours: WorkspaceFiles
) -> None:
    with pytest.raises(error, match=f"HTTP status {status}") as refused:
        talk(ours, status=status)
    assert re.search(hint, refused.value.hint or "")


def test_another_version_of_the_protocol_is_told_from_a_proxy(ours: WorkspaceFiles) -> None:
    with pytest.raises(UnsupportedPeerError, match="400: Incompatible client version") as refused:
        talk(ours, status=400, message="Incompatible client version")
    assert refused.value.hint == "the node speaks another version of the smart protocol"


@pytest.mark.parametrize("case", rows(16), ids=lambda case: case["url"])
def test_an_address_that_a_stranger_names_is_judged_like_a_redirect(
    case: dict[str, Any], ours: WorkspaceFiles
) -> None:
    """Case 16."""
    with pytest.raises(TransferError, match=case["says"]):
        talk(ours, plan, batch(raw(CHAIN)), addresses(case["url"]))


def test_only_the_given_headers_are_sent_and_none_that_steer_the_connection(ours: WorkspaceFiles) -> None:
    kept, dropped = CASES[16]["kept"], CASES[16]["dropped"]
    given = [{"name": name, "value": value} for name, value in (kept | dict.fromkeys(dropped, "7")).items()]
    signed = addresses("http://NODE/PATH?sig=1", headers=given)
    n = talk(ours, plan, batch(raw(CHAIN)), signed)
    objects = [fields for path, fields in n.asked if path.endswith("?sig=1")]
    assert len(objects) == 4
    for fields in objects:
        assert {name: fields[name.lower()] for name in kept} == kept
        assert fields["host"] == n.url.split("/")[2]
        assert "authorization" not in fields
        assert [name for name in dropped if fields.get(name.lower()) == "7"] == []


def test_an_address_that_is_refused_or_has_expired_is_asked_for_again(ours: WorkspaceFiles) -> None:
    old = addresses("http://NODE/gone/PATH", expires_at="2020-01-01T00:00:00Z")
    chain = chain_of(["seed", "schema", "d1"])

    def once(asked: Any) -> Any:
        return {"object_transfer_strategies": old(asked)["object_transfer_strategies"][:1]}

    n = talk(ours, plan, batch(raw(chain)), once, addresses(), chain=chain)
    assert not any(path.startswith("/gone") for path, _ in n.asked)
    assert len(n.said) == 4


@pytest.mark.parametrize("case", rows(17), ids=lambda case: case["clock"])
def test_addresses_that_are_valid_for_a_time(
    case: dict[str, Any], ours: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 17: by the node's clock and by ours; each object is asked for again once at most."""
    monkeypatch.setattr("odfchain.transfer.node_store.NodeTransport._pause", lambda *_: None)
    good = addresses(expires_at=case["expires_at"])
    bad = addresses("http://NODE/forbidden/PATH", expires_at=case["expires_at"])
    first = bad if case["refused_first"] else good
    n = talk(ours, plan, batch(raw(CHAIN)), first, *[good] * 8)
    assert ours.dataset(NAME).chain.head() == CHAIN.head
    assert any(path.startswith("/forbidden/") for path, _ in n.asked) is case["refused_first"]
    assert len(n.said) - 2 == case["asked"]


@pytest.mark.parametrize(
    ("date", "expires", "again"),
    [
        ("Wed, 21 Oct 2015 07:28:00 GMT", "2015-10-21T08:28:00Z", False),  # the node is years behind
        ("Wed, 21 Oct 2015 07:28:00 GMT", "2015-10-21T07:27:00Z", True),
        ("Tue, 21 Oct 2064 07:28:00 GMT", "2064-10-21T08:28:00Z", False),  # and years ahead
        ("Tue, 21 Oct 2064 07:28:00 GMT", "2064-10-21T07:27:00Z", True),
        ("nonsense", "2015-10-21T08:28:00Z", True),  # the clock of this machine
        ("nonsense", "2064-10-21T08:28:00Z", False),
    ],
)
def test_addresses_expire_by_the_clock_of_the_node(
    date: str, expires: str, again: bool, ours: WorkspaceFiles
) -> None:
    n = talk(ours, plan, batch(raw(CHAIN)), addresses(expires_at=expires), *[addresses()] * 4, date=date)
    assert sum("object_files" in said for said in n.said) == (5 if again else 1)


@pytest.mark.parametrize(
    ("storage", "hint"),
    [
        ("Wed, 21 Oct 2015 08:28:30 GMT", "the clocks of the node and of the storage are 60 minutes apart"),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "check the token"),
    ],
)
def test_an_address_that_is_refused_twice_says_whether_it_is_for_a_clock(
    storage: str, hint: str, ours: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odfchain.transfer.node_store.NodeTransport._pause", lambda *_: None)
    bad = addresses("http://NODE/forbidden/PATH", expires_at="2015-10-21T08:28:00Z")
    dates = {"date": "Wed, 21 Oct 2015 07:28:00 GMT", "storage_date": storage}
    with pytest.raises(AccessError, match="HTTP status 403") as refused:
        talk(ours, plan, batch(raw(CHAIN)), *[bad] * 9, **dates)
    assert (refused.value.hint or "").startswith(hint)


def test_a_long_chain_is_walked(ours: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfchain.transfer.node_store.SMART", replace(SMART, blocks=3))
    n = talk(ours)
    assert not any(path.endswith("/pull") for path, _ in n.asked)
