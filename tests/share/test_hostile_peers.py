"""Peers that lie, flood and dawdle, against a client program (RFC-022): nothing that they say is published.

Each scenario meets an empty workspace and one with an older copy. Afterwards both are as they were, what is visible
is clean, the message names the peer and the object, and the dataset can be pulled from an honest peer.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from odfchain.chain import compare
from odfchain.errors import CorruptedPeerError, TransferError
from odfchain.limits import LIMITS, SHARING
from odfchain.odf import events as ev
from odfchain.odf.enums import DatasetKind
from odfchain.odf.names import DatasetAlias
from odfchain.storage import http_connection as http_dial
from odfchain.storage import routes as fetch_address
from odfchain.storage.public_layout import HEAD_KEY, HINT_KEY, ObjectKey, ObjectKind, SignedFile
from odfchain.transfer import sync
from odfchain.transfer.pulling import SyncOptions, pull_dataset
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import conformance_client as conformance
from tests.kit import pull_client as clients
from tests.kit.hostile_server import (
    ENDLESS,
    ENDLESS_CHUNKS,
    HEADER_FLOOD,
    End,
    HostilePeer,
    Lookup,
    RealChain,
    Trick,
    answer,
    body,
    cut,
    length,
    lookup,
    raw,
)
from tests.kit.pull_client import OURS, Client, Ended, published
from tests.kit.run_length import scaled
from tests.kit.scenario import time_of
from tests.kit.support import ROOT, hash_of, seeded_id, tree_of
from tests.kit.web_peers import http_peer, refused_by

RSS = 300 << 20
SECONDS = 15.0
TAKEN = 16 << 20
"""What a client may read before it gives up: what is on its way when it does is not in its hands [bytes]."""

OLD = 4
"""Blocks of the copy that is there before."""


@dataclass(frozen=True)
class World:
    """The honest dataset, the client under test, and workspaces to copy."""

    client: Client
    folder: Path
    chain: RealChain
    older: RealChain
    other: RealChain


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    older = RealChain.begin(folder / "draft")
    older.rows("A", "B")
    older.note("older")
    chain = older.fork()
    chain.rows("C", "D", "E")
    chain.note("newer")
    other = RealChain.begin(folder / "draft other", "another")
    other.rows("Z")
    other.note("of another dataset")
    with clients.started(folder) as client:
        world = World(client, folder, chain, older, other)
        for name in ("empty", "behind"):
            (folder / name).mkdir()
            done(client.run("init", folder / name))
        with HostilePeer(lookup(older)) as peer:
            done(client.run("pull", folder / "behind", peer.url))
        yield world


@pytest.fixture
def empty(world: World, tmp_path: Path) -> Path:
    """A workspace without datasets."""
    return shutil.copytree(world.folder / "empty", tmp_path / "empty")


@pytest.fixture
def behind(world: World, tmp_path: Path) -> Path:
    """A workspace with an older copy."""
    return shutil.copytree(world.folder / "behind", tmp_path / "behind")


def done(ended: Ended) -> None:
    assert ended.code == 0, ended.err


def refused(ended: Ended, *says: str) -> None:
    """It ended in one clear line, with little time and memory."""
    assert ended.code == 1, ended.err
    assert ended.rss < RSS
    assert ended.seconds < SECONDS
    if not OURS:
        return
    first, *hints = ended.err.splitlines()
    assert len(hints) <= 1, ended.err
    assert first.isprintable()
    assert len(first) < 1_000
    for text in says:
        assert text in first


def state(workspace: Path) -> dict[str, dict[str, bytes]]:
    """Everything that is visible."""
    return {folder.name: tree_of(folder) for folder in published(workspace)}


def withstands(
    world: World, workspace: Path, found: Lookup, tricks: dict[str, Trick] | None = None, *says: str
) -> HostilePeer:
    """A pull from this peer is refused and changes nothing, and an honest one works afterwards."""
    before = state(workspace)
    with HostilePeer(found, tricks) as peer:
        refused(world.client.run("pull", workspace, peer.url), peer.url, *says)
    assert state(workspace) == before
    assert peer.sent < TAKEN
    with HostilePeer(lookup(world.chain)) as honest:
        done(world.client.run("pull", workspace, honest.url))
    (dataset,) = published(workspace)
    assert tree_of(dataset) == copy_of(world.chain)
    return peer


def copy_of(chain: RealChain) -> dict[str, bytes]:
    """All files of a copy."""
    return {str(key): data for key, data in chain.objects.items()} | {HEAD_KEY: str(chain.head).encode()}


@dataclass(frozen=True)
class Readers:
    """A reader with an empty workspace, and one with an older copy."""

    world: World
    empty: Path
    behind: Path

    def withstand(
        self, found: Lookup, tricks: dict[str, Trick] | None = None, *says: str
    ) -> list[HostilePeer]:
        return [withstands(self.world, each, found, tricks, *says) for each in (self.empty, self.behind)]

    def withstand_trick(self, key: str, trick: Trick, *says: str) -> None:
        """One object of an honest peer is not what it should be, and named."""
        self.withstand(lookup(self.world.chain), {key: trick}, key, *says)


@pytest.fixture
def readers(world: World, empty: Path, behind: Path) -> Readers:
    return Readers(world, empty, behind)


def new_objects(chain: RealChain) -> dict[str, str]:
    """Keys that are new to the older copy, by kind."""
    files = {key.kind: str(key) for key in chain.files}
    return {
        "head": HEAD_KEY,
        "newest block": str(chain.key(-1)),
        "block": str(chain.key(-2)),
        "data": files[ObjectKind.DATA],
        "checkpoint": files[ObjectKind.CHECKPOINT],
    }


OBJECTS = ("newest block", "block", "data", "checkpoint")

# --- one object is not what it should be ---------------------------------------------------------------


ALL = ("head", *OBJECTS)
FILES = ("data", "checkpoint")


def redirect(*locations: str) -> Trick:
    lines = "".join(f"Location: {to}\r\n" for to in locations)
    return raw(f"HTTP/1.1 302 Found\r\n{lines}Content-Length: 0\r\n\r\n".encode())


def changed(change: Callable[[bytes], bytes]) -> tuple[tuple[str, ...], Trick, str]:
    return ("head",), body(change), ""


TRICKS: dict[str, tuple[tuple[str, ...], Trick, str]] = {
    "a wrong body": (OBJECTS, body(lambda honest: honest[:-1] + bytes([honest[-1] ^ 1])), "hashes to"),
    "endless until-close": (ALL, ENDLESS, ""),
    "endless chunks": (ALL, ENDLESS_CHUNKS, ""),
    "headers without end": (ALL, HEADER_FLOOD, "headers are larger"),
    "empty": (ALL, body(lambda _: b""), ""),
    "html": (ALL, body(lambda _: b"<html><h1>It works!</h1></html>\n"), ""),
    "too short": (ALL, length(lambda size: size - 1), ""),
    "longer than its block says": (FILES, length(lambda size: size + 1_000), "bytes, not the"),
    "encoded": (ALL, Trick(lambda honest: [answer(honest, more="Content-Encoding: gzip\r\n")]), ""),
    "bad chunks": (
        ALL,
        raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\x1b[2Jjunk\r\n"),
        "",
    ),
    "no http": (ALL, raw(b"\x16\x03\x01\x02\x00\r\n\r\n" * 100), ""),
    "announced as huge": (ALL, raw(answer(b"", length=10**15), end=End.HANG), ""),
    "unknown multibase": changed(lambda head: b"b" + head[1:]),
    "sha2": changed(lambda head: b"f1220" + head[5:]),
    "short": changed(lambda head: head[:-2]),
    "two": changed(lambda head: head + b"\n" + head),
    "path": changed(lambda head: b"../" + head),
    "control characters": changed(lambda head: b"\x1b]0;owned\x07\xff\x00" + head),
    "wide": changed(lambda head: "\N{FULLWIDTH LATIN SMALL LETTER F}".encode() + head[1:]),
    **{
        f"redirect to {location}": (("head",), redirect(location), "redirect")
        for location in ("file:///etc/passwd", "/ds/refs/head", "ftp://127.0.0.1/", "http://[::")
    },
}
"""For which objects, what is answered, and what the message has besides their keys."""


@pytest.mark.parametrize(
    ("kind", "place", "trick", "says"),
    [
        pytest.param(
            kind, place, trick, says, id=f"{name}-{kind}-{place}",
            # every trick in the short run, with one object and one workspace; all of them in `make soak`
            marks=pytest.mark.hypothesis if at == number % (2 * len(kinds)) else pytest.mark.soak,
        )
        for number, (name, (kinds, trick, says)) in enumerate(TRICKS.items())
        for at, (kind, place) in enumerate((kind, place) for kind in kinds for place in ("empty", "behind"))
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_the_object(
    kind: str, place: str, trick: Trick, says: str, world: World, request: pytest.FixtureRequest
) -> None:
    key = new_objects(world.chain)[kind]
    withstands(world, request.getfixturevalue(place), lookup(world.chain), {key: trick}, key, says)


@pytest.mark.parametrize("kind", ["newest block", "block"])
def test_another_datasets_block_under_the_name(kind: str, readers: Readers) -> None:
    foreign = body(lambda _: readers.world.other.blocks[-1])
    readers.withstand_trick(new_objects(readers.world.chain)[kind], foreign, "hashes to")


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_that_is_not_there(kind: str, readers: Readers) -> None:
    key, found = new_objects(readers.world.chain)[kind], lookup(readers.world.chain)
    readers.withstand(lambda asked: None if asked == key else found(asked), None, key, "not there")


def test_a_huge_block(readers: Readers) -> None:
    chain = readers.world.chain.fork()
    chain.note("x" * LIMITS.block_bytes)
    readers.withstand(lookup(chain), None, str(chain.key(-1)), "larger than the allowed 1,048,576 bytes")


# --- the head ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_a_newline_after_the_head_is_accepted(end: bytes, world: World, empty: Path) -> None:
    with HostilePeer(lookup(world.chain, head=str(world.chain.head).encode() + end)) as peer:
        done(world.client.run("pull", empty, peer.url))
    (dataset,) = published(empty)
    assert tree_of(dataset)["refs/head"] == str(world.chain.head).encode()


def test_a_place_without_a_dataset(readers: Readers) -> None:
    readers.withstand(lambda _: None, None, "there is no dataset")


# --- signed statements ---------------------------------------------------------------------------------

SIGNED = [file.value for file in SignedFile]


@pytest.mark.parametrize("key", SIGNED)
@pytest.mark.parametrize(
    "trick",
    [
        pytest.param(ENDLESS, id="endless"),
        pytest.param(ENDLESS_CHUNKS, id="endless chunks"),
        pytest.param(HEADER_FLOOD, id="headers without end"),
        pytest.param(raw(answer(b"", length=100_000_000), end=End.HANG), id="announced as 100 MB"),
        pytest.param(body(lambda _: b"junk\n" * 10_000), id="10,000 lines"),
        pytest.param(body(lambda _: b"a.b." + b"c" * 86 + b"\n"), id="a line that looks signed"),
        pytest.param(body(lambda _: b"<html>\x1b[2J</html>"), id="html"),
    ],
)
def test_statements_that_cannot_be_any_are_not_kept_and_do_no_harm(
    key: str, trick: Trick, world: World, behind: Path
) -> None:
    before = next(iter(state(behind).values())).keys()
    with HostilePeer(lookup(world.chain), {key: trick}) as peer:
        ended = world.client.run("pull", behind, peer.url)
    done(ended)
    assert ended.rss < RSS
    assert ended.seconds < SECONDS
    assert peer.sent < TAKEN
    assert len(peer.asked(key)) <= 2
    (dataset,) = published(behind)
    assert tree_of(dataset) == copy_of(world.chain)
    assert before < tree_of(dataset).keys()
    if OURS:
        assert not (dataset / "attestations/audits.jws").exists()


# --- redirects -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ALL)
def test_a_redirect_inward_is_not_followed(kind: str, readers: Readers) -> None:
    key = new_objects(readers.world.chain)[kind]
    with HostilePeer(lookup(readers.world.chain)) as inner:
        readers.withstand_trick(key, redirect(inner.url + key), "redirect")
        assert inner.requests == []


def test_redirects_without_end(world: World, empty: Path) -> None:
    tricks = {f"{n}/*": redirect(f"/ds/{n + 1}/x") for n in range(100)} | {HEAD_KEY: redirect("/ds/0/x")}
    peer = withstands(world, empty, lookup(world.chain), tricks, HEAD_KEY, "redirects")
    assert len(peer.requests) <= 1 + SHARING.redirects


def test_a_redirect_from_a_public_address_inward(
    world: World, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is at a public address cannot be had on loopback: names and connections lead to it here."""
    names = {
        "public.example": ["93.184.216.34"],
        "inner.example": ["10.0.0.7"],
        "local.example": ["127.0.0.1"],
    }
    dialled: list[str] = []
    connect = socket.create_connection
    monkeypatch.setattr(http_dial, "resolve", lambda host, port, *, name: names[host])
    monkeypatch.setattr(fetch_address, "getproxies", dict)
    for target in ("inner.example", "local.example"):
        inward = redirect(f"http://{target}/ds/refs/head")
        with HostilePeer(lookup(world.chain), {HEAD_KEY: inward}) as server:

            def connected(address: Any, timeout: Any, port: int = server.port) -> socket.socket:
                dialled.append(address[0])
                return connect(("127.0.0.1", port), timeout)

            monkeypatch.setattr(socket, "create_connection", connected)
            with (
                http_peer("http://public.example/ds/") as peer,
                pytest.raises(TransferError, match="private network address is refused"),
            ):
                pull_dataset(WorkspaceFiles.find(empty), peer, ALIAS)
    assert dialled == ["93.184.216.34", "93.184.216.34"]


# --- chains that are none, or another's ------------------------------------------------------------------


def test_another_datasets_block_in_the_chain(readers: Readers) -> None:
    chain, other = readers.world.chain.fork(), readers.world.other
    chain.objects |= other.objects
    chain.append(ev.SetInfo(description="x"), prev_block_hash=other.hashes[1])
    readers.withstand(lookup(chain), None, "the chain of", "sequence number")


def test_another_dataset_under_a_known_url(world: World, behind: Path) -> None:
    other = world.other.fork()
    for n in range(20):
        other.note(f"longer {n}")
    withstands(world, behind, lookup(other), None, "holds the dataset")


def test_a_cycle_ends_at_its_first_block(readers: Readers) -> None:
    """The hash of a block that names its own successor is not known before the successor: one of them lies."""
    chain = readers.world.chain.fork()
    back = hash_of("a block that cannot be")
    chain.append(ev.SetInfo(description="x"), prev_block_hash=back)
    key = str(ObjectKey(ObjectKind.BLOCK, back))
    tricks = {key: body(lambda _: chain.blocks[-1])}
    for peer in readers.withstand(lookup(chain), tricks, key, "hashes to"):
        assert peer.asked("blocks/") == [str(chain.key(-1)), key]


@pytest.mark.parametrize("number", [LIMITS.chain_blocks, 2**63, 2**64 - 1])
def test_a_head_that_claims_an_endless_chain_costs_one_block(number: int, readers: Readers) -> None:
    chain = readers.world.chain.fork()
    chain.append(ev.SetInfo(description="x"), sequence_number=number)
    for peer in readers.withstand(lookup(chain), None, "at most 10,000,000 blocks"):
        assert peer.asked("blocks/") == [str(chain.key(-1))]


def back_in_time(chain: RealChain) -> None:
    chain.append(ev.SetInfo(description="x"), system_time=time_of(0))


def nothing_new(chain: RealChain) -> None:
    assert chain.checkpoint is not None
    chain.append(ev.AddData(prev_offset=chain.offset, prev_checkpoint=chain.checkpoint))


def a_gap_in_the_offsets(chain: RealChain) -> None:
    assert chain.offset is not None
    chain.offset += 1
    chain.rows("F")


def another_checkpoint(chain: RealChain) -> None:
    chain.checkpoint = hash_of("another")
    chain.rows("F")


def a_second_seed(chain: RealChain) -> None:
    chain.append(ev.Seed(dataset_id=seeded_id("test"), dataset_kind=DatasetKind.ROOT))


@pytest.mark.parametrize(
    "spoil", [back_in_time, nothing_new, a_gap_in_the_offsets, another_checkpoint, a_second_seed]
)
def test_a_block_against_the_rules(spoil: Callable[[RealChain], None], readers: Readers) -> None:
    chain = readers.world.chain.fork()
    spoil(chain)
    says = f"block {chain.sequence - 1} ({str(chain.head)[:17]}"
    for peer in readers.withstand(lookup(chain), None, says, "breaks the rule"):
        assert peer.asked("data/") == []


def test_a_chain_that_does_not_begin_with_a_seed(world: World, empty: Path, behind: Path) -> None:
    chain = RealChain()
    chain.append(ev.SetInfo(description="no seed"))
    chain.note("x")
    withstands(world, empty, lookup(chain), None, "block 0", "seed-first")
    withstands(world, behind, lookup(chain), None, "not Seed")


@pytest.mark.parametrize(
    ("size", "declared"), [(1, True), (1, False), (100_000, True), (2**62, True), (2**62, False)]
)
def test_a_size_that_is_not_the_objects(size: int, declared: bool, readers: Readers) -> None:
    """The largest does not fit anywhere, so nothing of it is asked for."""
    chain = readers.world.older.fork()
    chain.rows("C", size=size)
    key = new_objects(chain)["data"]
    found = lookup(chain)
    tricks = {} if declared else {key: Trick(lambda honest: [b"HTTP/1.1 200 OK\r\n\r\n", honest])}
    for peer in readers.withstand(found, tricks, key):
        assert (key in peer.requests) == (size < 2**62)


# --- forks and rollbacks ---------------------------------------------------------------------------------


@pytest.fixture
def newest(world: World, behind: Path) -> Path:
    """A workspace with the newest copy."""
    with HostilePeer(lookup(world.chain)) as peer:
        done(world.client.run("pull", behind, peer.url))
    return behind


def test_an_older_head_is_refused(world: World, newest: Path) -> None:
    withstands(world, newest, lookup(world.older), None, "an older chain", str(world.older.head)[:17])


@pytest.mark.parametrize("more", [0, 1, 5])
def test_a_fork_is_refused(more: int, world: World, newest: Path) -> None:
    fork = world.older.fork()
    fork.rows("forged")
    for n in range(more):
        fork.note(f"forged {n}")
    withstands(world, newest, lookup(fork), None, "chain than was seen before", str(fork.head)[:17])


# --- many blocks -----------------------------------------------------------------------------------------

MANY = scaled(1_500, 10_000, 10_000)


@pytest.mark.hypothesis  # no property, but `make soak` tries all of it
def test_many_tiny_blocks_take_little_memory(world: World, empty: Path) -> None:
    """They count down from a million, and end before the seed."""
    chain = RealChain(sequence=1_000_000 - MANY)
    below = hash_of("below")
    chain.append(ev.SetInfo(description="0"), prev_block_hash=below)
    for _ in range(MANY - 1):
        chain.append(ev.SetInfo(description="0"))
    with HostilePeer(lookup(world.older)) as peer:
        usual = world.client.run("pull", shutil.copytree(empty, empty.parent / "usual"), peer.url)
    before = state(empty)
    with HostilePeer(lookup(chain)) as peer:
        ended = world.client.run("pull", empty, peer.url)
        assert len(peer.asked("blocks/")) == MANY + 1
    assert ended.code == 1
    assert ended.rss < usual.rss + (64 << 20)
    assert state(empty) == before
    if OURS:
        assert f"{peer.url}blocks/{below}: not there" in ended.err
        assert list((empty / ".odfchain" / "incoming").glob("[!.]*")) == []


def test_a_hint_of_a_million_lines_takes_little_memory(world: World, empty: Path) -> None:
    chain = RealChain(sequence=LIMITS.chain_blocks - 1)
    chain.append(ev.SetInfo(description="0"), prev_block_hash=hash_of("below"))
    line = b"%s\n" % str(chain.head).encode()
    hint = raw(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(line) * 900_000), line * 900_000)
    with HostilePeer(lookup(chain), {HINT_KEY: hint}) as peer:
        refused(world.client.run("pull", empty, peer.url), peer.url, "not there")
        assert peer.asked(HINT_KEY) == [HINT_KEY]
    assert state(empty) == {}


# --- with limits and clocks of the test's own: the library ------------------------------------------------

ALIAS = DatasetAlias.parse(conformance.DATASET)


@pytest.mark.skipif(not OURS, reason="needs clocks from outside")
@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("place", ["empty", "behind"])
@pytest.mark.parametrize(
    ("trick", "says"),
    [
        pytest.param(cut(End.CLOSE), "cut short", id="truncated"),
        pytest.param(cut(End.RESET), "connection was lost|cut short", id="reset within"),
        pytest.param(raw(end=End.RESET), "connection was lost", id="reset"),
        pytest.param(raw(), "closed without a response", id="closed"),
        pytest.param(raw(b"HTTP/1.1 200 OK\r\nContent-"), "cut short", id="half a head"),
        pytest.param(raw(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n"), "503", id="busy"),
    ],
)
def test_a_body_that_breaks_off(
    kind: str, place: str, trick: Trick, says: str, world: World, request: pytest.FixtureRequest
) -> None:
    """It is asked for again, so the waits are not real here."""
    workspace: Path = request.getfixturevalue(place)
    key = new_objects(world.chain)[kind]
    before = state(workspace)
    with HostilePeer(lookup(world.chain), {key: trick}) as peer, http_peer(peer.url) as link:
        # one at a time: the clock that one request turns is that of all
        with refused_by(link, key, says):
            pull_dataset(WorkspaceFiles.find(workspace), link, ALIAS, SyncOptions(parallel=1))
        assert state(workspace) == before
        # kept connections that turn out to be closed do not count as attempts
        extra = len(peer.asked(key)) - 1 - SHARING.retries
        assert 0 <= extra <= SHARING.parallel


def pull_by_library(world: World, empty: Path, refused: str | None = None) -> HostilePeer:
    """A pull of the honest chain succeeds, or is refused in these words."""
    expected = pytest.raises(CorruptedPeerError, match=refused) if refused else contextlib.nullcontext()
    with HostilePeer(lookup(world.chain)) as peer, http_peer(peer.url) as link, expected:
        pull_dataset(WorkspaceFiles.find(empty), link, ALIAS)
    assert len(published(empty)) == (0 if refused else 1)
    return peer


@pytest.mark.skipif(not OURS, reason="needs limits from outside")
def test_the_limit_of_blocks_is_inclusive(world: World, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def limit(blocks: int) -> None:
        for module in (compare, sync):
            monkeypatch.setattr(module, "LIMITS", replace(LIMITS, chain_blocks=blocks))

    limit(5)
    peer = pull_by_library(world, empty, "at most 5 blocks are read")
    assert peer.requests[:2] == [HEAD_KEY, SignedFile.HEAD.value]
    assert len(peer.requests) == 3
    limit(6)
    pull_by_library(world, empty)


@pytest.mark.skipif(not OURS, reason="needs limits from outside")
def test_the_bytes_of_a_chain_are_bounded(world: World, empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(map(len, world.chain.blocks))
    for most, refused in ((size - 1, f"more than {size - 1:,} bytes of blocks"), (size, None)):
        monkeypatch.setattr(sync, "SHARING", replace(SHARING, chain_bytes=most))
        pull_by_library(world, empty, refused)


# --- the program itself ----------------------------------------------------------------------------------


@pytest.mark.skipif(not OURS, reason="is about this program")
def test_the_contract_as_a_program(world: World, tmp_path: Path) -> None:
    def run(*args: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tests.kit.conformance_client", *map(str, args)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    done(world.client.run("init", tmp_path))
    with HostilePeer(lookup(world.chain)) as peer:
        assert run("pull", tmp_path, peer.url).returncode == 0
        refused(world.client.run("pull", tmp_path, f"{peer.url}x/"))
    done(world.client.run("verify", tmp_path))
    (dataset,) = published(tmp_path)
    (dataset / str(world.chain.files[0])).write_bytes(b"damaged")
    found = run("verify", tmp_path)
    assert found.returncode == 1
    assert str(world.chain.files[0]) in found.stderr


@pytest.mark.parametrize(
    "args", [(), ("init",), ("pull", "x"), ("verify", "x", "y"), ("other", "x"), ("verify", "/nowhere")]
)
def test_what_is_not_understood_is_refused(args: tuple[str, ...], world: World) -> None:
    refused(world.client.run(*args))


def test_a_workspace_without_datasets_is_clean_and_a_folder_that_is_none_is_not(
    world: World, empty: Path
) -> None:
    done(world.client.run("verify", empty))
    assert world.client.run("init", empty).code == 1, "there is one already"
    if OURS:
        (empty / ".odfchain" / "datasets" / "x").mkdir()
        refused(world.client.run("verify", empty), "not a dataset folder")
