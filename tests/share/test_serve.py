"""What `odfchain serve` shows of a workspace, and what it never shows."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from odfchain.errors import CorruptedPeerError, TransferError
from odfchain.limits import SHARING
from odfchain.odf import events as ev
from odfchain.odf.identity import FINAL_PREFIXES, Multihash, encode
from odfchain.odf.names import DatasetAlias
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage.public_layout import SignedFile, parse_hint
from odfchain.transfer import server
from odfchain.transfer.repositories import RepositoryIndex, parse_index
from odfchain.transfer.server import RepositoryServer
from odfchain.transfer.server_app import HintCache, Repository, render_index
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.options import ServeOptions
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.served_workspace import add_slice, ask, connect, heard, make_dataset, raw
from tests.kit.support import RAW_SCHEMA, ChainBuilder, hash_of, memory_chain, unchanged
from tests.kit.upkeep_scenes import head_of

BIG = 3_000_000


@pytest.fixture
def dataset(workspace: WorkspaceFiles) -> DatasetFiles:
    return make_dataset(workspace, "Org/Cities", 100, BIG)


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def url(workspace: WorkspaceFiles, dataset: DatasetFiles, problems: list[str]) -> Iterator[str]:
    with RepositoryServer(workspace, on_problem=problems.append) as server:
        yield server.url


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> DatasetFiles:
    """A dataset that no test changes; in its folder is what no reader may have, too."""
    dataset = make_dataset(WorkspaceFiles.init(tmp_path_factory.mktemp("kept")), "Org/Cities", 100, BIG)
    (dataset.folder / "refs" / "other").write_text(str(head_of(dataset)))
    (dataset.folder / "data" / ".pending-1").write_text("half")
    return dataset


@pytest.fixture(scope="module")
def kept_url(kept: DatasetFiles) -> Iterator[str]:
    with RepositoryServer(WorkspaceFiles.find(kept.folder)) as server:
        yield server.url


def slice_of(dataset: DatasetFiles, size: int) -> Multihash:
    return next(name for name in dataset.data.names() if dataset.data.size(name) == size)


# --- what is there ---------------------------------------------------------------------------------


def test_the_head_is_its_hash_and_nothing_more(url: str, dataset: DatasetFiles) -> None:
    reply = ask(url, "/Org/Cities/refs/head")
    head = str(head_of(dataset))
    assert (reply.status, reply.body.decode()) == (200, head)
    assert ask(url, "/oRG/cITIES/refs/head").body == reply.body, "letters of an alias have any case"
    assert reply.headers["etag"] == f'"{head}"'
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["content-type"].startswith("text/plain")
    assert ask(url, "/Org/Cities/refs/head", If_None_Match=f'"{head}"').status == 304


def test_a_head_with_a_newline_is_served_without(url: str, dataset: DatasetFiles) -> None:
    file = dataset.folder / "refs" / "head"
    file.write_text(f"  {file.read_text()}\n")
    assert ask(url, "/Org/Cities/refs/head").body.decode() == str(head_of(dataset))


@pytest.mark.parametrize("file", SignedFile)
def test_signed_statements_are_served_and_asked_for_again(
    url: str, dataset: DatasetFiles, file: SignedFile
) -> None:
    where, path = f"/Org/Cities/{file.value}", dataset.folder / file.value
    path.parent.mkdir(exist_ok=True)
    for data in (b"one\n", b"two\n"):
        path.write_bytes(data)
        reply = ask(url, where)
        assert (reply.status, reply.body) == (200, data)
        assert reply.headers["cache-control"] == "no-cache"
        assert ask(url, where, If_None_Match=reply.headers["etag"]).status == 304
    path.write_bytes(b"x" * (file.limit + 1))
    assert ask(url, where).status == 404
    path.unlink()
    assert ask(url, where).status == 404
    path.symlink_to(dataset.folder / "info" / "alias")
    assert ask(url, where).status == 404


@pytest.mark.parametrize("size", [100, BIG])
def test_objects_are_the_bytes_on_the_disk_and_may_be_kept_for_ever(
    kept_url: str, kept: DatasetFiles, size: int
) -> None:
    name = slice_of(kept, size)
    reply = ask(kept_url, f"/Org/Cities/data/{name}")
    assert (reply.status, hash_bytes(reply.body)) == (200, name)
    assert reply.headers["etag"] == f'"{name}"'
    assert reply.headers["content-length"] == str(size)
    assert reply.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert reply.headers["accept-ranges"] == "bytes"
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_head_requests_say_the_size_and_send_nothing(kept_url: str, kept: DatasetFiles) -> None:
    path = f"/Org/Cities/data/{slice_of(kept, BIG)}"
    fields = "Host: localhost\r\nRange: bytes=0-1\r\nConnection: close\r\n\r\n"
    answer = raw(kept_url, f"HEAD {path} HTTP/1.1\r\n{fields}".encode())
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"content-length: %d\r\n" % BIG in answer
    assert answer.endswith(b"\r\n\r\n")


def test_requests_that_are_sent_together_are_answered_together(kept_url: str, kept: DatasetFiles) -> None:
    names = [str(found.hash) for found in kept.chain.walk()]
    paths = [f"/Org/Cities/blocks/{name}" for name in names] * 5
    request = "".join(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n" for path in paths).encode()
    with connect(kept_url) as client:
        client.sendall(request)
        found = client.recv(1 << 20)  # one packet, for the loopback's are larger than all of this
    bodies = [kept.chain.get_bytes(Multihash.parse(name)) for name in names] * 5
    assert found.count(b"HTTP/1.1 200 OK\r\n") == len(bodies)
    for body in bodies:
        before, _, found = found.partition(b"\r\n\r\n" + body)
        assert b"content-length: %d" % len(body) in before
    assert found == b""


def test_responses_of_all_kinds_keep_their_order_when_asked_for_together(
    kept_url: str,
    kept: DatasetFiles,
) -> None:
    big, small = slice_of(kept, BIG), slice_of(kept, 100)
    files = {name: kept.data.verified_path(name).read_bytes() for name in (small, big)}
    asked = [
        ("GET", f"data/{small}", b"200", files[small]),
        ("GET", f"data/{big}", b"200", files[big]),
        ("HEAD", f"data/{small}", b"200", b""),
        ("GET", "no/such", b"404", b"not found\n"),
        ("GET", "refs/head", b"200", str(head_of(kept)).encode()),
        ("GET", f"data/{big}", b"200", files[big]),
        ("GET", "hints/chain", b"200", chain_hint(kept)),
        ("POST", f"data/{small}", b"405", b"datasets here can only be read\n"),
        ("HEAD", f"data/{big}", b"200", b""),
    ]
    heads = [f"{method} /Org/Cities/{key} HTTP/1.1\r\nHost: localhost\r\n" for method, key, _, _ in asked]
    heads[-1] += "Connection: close\r\n"
    found = raw(kept_url, "".join(f"{head}\r\n" for head in heads).encode())
    for _, _, status, body in asked:
        head, _, found = found.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status)
        assert found.startswith(body)
        found = found[len(body) :]
    assert found == b""


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [("bytes=0-0", 0, 1), ("bytes=10-", 10, BIG), ("bytes=-7", BIG - 7, BIG), (f"bytes=-{BIG + 5}", 0, BIG),
     (f"BYTES=5-{BIG * 9}", 5, BIG), ("bytes=1000-200999", 1000, 201_000)],
)  # fmt: skip
def test_a_range_is_that_part(kept_url: str, kept: DatasetFiles, asked: str, start: int, stop: int) -> None:
    name = slice_of(kept, BIG)
    reply = ask(kept_url, f"/Org/Cities/data/{name}", Range=asked, If_Range=f'"{name}"')
    assert (reply.status, reply.headers["content-range"]) == (206, f"bytes {start}-{stop - 1}/{BIG}")
    assert reply.body == (kept.folder / "data" / str(name)).read_bytes()[start:stop]


@pytest.mark.parametrize("asked", [f"bytes={BIG}-", "bytes=-0", f"bytes={BIG + 1}-{BIG + 2}"])
def test_a_range_with_nothing_in_it_is_refused(kept_url: str, kept: DatasetFiles, asked: str) -> None:
    reply = ask(kept_url, f"/Org/Cities/data/{slice_of(kept, BIG)}", Range=asked)
    assert (reply.status, reply.headers["content-range"]) == (416, f"bytes */{BIG}")


@pytest.mark.parametrize(
    ("asked", "condition"),
    [("bytes=0-1,5-6", None), ("bytes=5-2", None), ("lines=1-2", None), ("bytes=-", None), ("bytes=a-b", None),
     ("bytes=0-1", '"another"'), ("bytes=0-1", "Sat, 21 Nov 2026 10:00:00 GMT")],
)  # fmt: skip
def test_any_other_range_is_the_whole(
    kept_url: str, kept: DatasetFiles, asked: str, condition: str | None
) -> None:
    name = slice_of(kept, 100)
    more = {"If_Range": condition} if condition else {}
    assert len(ask(kept_url, f"/Org/Cities/data/{name}", Range=asked, **more).body) == 100


@pytest.mark.parametrize("known", ['"{}"', 'W/"{}"', '"x", "{}"', "*"])
def test_what_the_client_has_is_not_sent_again(kept_url: str, kept: DatasetFiles, known: str) -> None:
    name = slice_of(kept, 100)
    reply = ask(kept_url, f"/Org/Cities/data/{name}", If_None_Match=known.format(name), Range="bytes=0-1")
    assert (reply.status, reply.body, reply.headers["etag"]) == (304, b"", f'"{name}"')


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(kept_url: str, kept: DatasetFiles, method: str) -> None:
    with unchanged(kept.folder):
        reply = ask(kept_url, "/Org/Cities/refs/head", method, b"f1620" + b"0" * 64)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


# --- what is not -----------------------------------------------------------------------------------

OBJECT = str(hash_of("nothing"))
HIDDEN = [
    "/Org/Cities/", "/Org/Cities", "/Cities/refs/head", "/Org/Cities/refs/", "/Org/Cities/refs/other",
    "/Org/Cities/refs/head/", "//Org/Cities/refs/head", "/Org//Cities/refs/head", "/./Org/Cities/refs/head",
    "/Org/Cities/info/alias", "/Org/Cities/info/chain-index", "/Org/Cities/staging/.lock",
    "/Org/Cities/refs/../info/alias", "/Org/Cities/blocks/../../info/alias", "/Org/Cities/../Cities/refs/head",
    "/Org/Cities/refs/%68ead", "/Org/Cities/refs%2fhead", "/Org/Cities/blocks/..%2finfo%2falias",
    "/Org/Cities/blocks/%2e%2e/info/alias", "/%4frg/Cities/refs/head", "/Org/Cities/refs/head%00",
    "/Org/Cities/refs\\head", "/Org/Cities/blocks/..\\info\\alias", "/Org/Cities/data/.pending-1", "/etc/passwd",
    "//etc/passwd", f"/Org/Cities/blocks/{OBJECT}", f"/Org/Cities/data/{OBJECT.upper()}", "/Org/Cities/data/f1620",
    "/keys/", "/.odfchain/config.yaml", "/config.yaml", "/datasets.json/", "/Org/Cities/hints/other", "/*",
]  # fmt: skip


@pytest.mark.parametrize("path", HIDDEN)
def test_nothing_else_is_there(kept_url: str, path: str) -> None:
    assert ask(kept_url, path).status == 404


@pytest.mark.parametrize("encoding", FINAL_PREFIXES.values())
def test_an_object_is_found_in_every_final_multibase(
    kept_url: str, kept: DatasetFiles, encoding: str
) -> None:
    for part, names in (("blocks", kept.chain.hashes(head_of(kept))), ("data", kept.data.names())):
        for name in names:
            expected = ask(kept_url, f"/Org/Cities/{part}/{name}")
            text = encode(name.to_bytes(), encoding)
            for spelled in (text, quote(text, safe="")):
                reply = ask(kept_url, f"/Org/Cities/{part}/{spelled}")
                assert (reply.status, reply.body) == (200, expected.body), spelled
                assert reply.headers["etag"] == f'"{name}"'
    name = str(head_of(kept))
    for other in (name.upper(), f"F{name[1:]}", f"f{name[1:].upper()}"):
        assert ask(kept_url, f"/Org/Cities/blocks/{other}").status == 200, "base16 has letters of any case"


@pytest.mark.parametrize(
    "spell",
    [lambda n: f"{n}.", lambda n: f"{n}/", lambda n: f"blocks/{n}", lambda n: f"{n[1:]}", lambda n: f"{n}=",
     lambda n: f"%66{n[1:]}", lambda n: f"v{n[1:]}", lambda n: n[:-2], lambda n: f"{n}00", lambda n: f"{n}%2F"],
)  # fmt: skip
def test_no_other_spelling_is_an_object(
    kept_url: str, kept: DatasetFiles, spell: Callable[[str], str]
) -> None:
    assert ask(kept_url, f"/Org/Cities/blocks/{spell(str(head_of(kept)))}").status == 404


def test_a_dataset_is_found_by_its_id(url: str, dataset: DatasetFiles, tmp_path: Path) -> None:
    for text in (str(dataset.id), "did:odf:" + encode(dataset.id.to_bytes(), "base58btc")):
        for key in ("refs/head", f"blocks/{head_of(dataset)}", "hints/chain"):
            assert ask(url, f"/{text}/{key}").body == ask(url, f"/Org/Cities/{key}").body
    unknown = "did:odf:fed01" + "0" * 64
    assert ask(url, f"/{unknown}/refs/head").status == 404
    (dataset.folder.parent / f"fed01{'0' * 64}").symlink_to(dataset.folder)
    assert ask(url, f"/{unknown}/refs/head").status == 404, "a link is followed"


def test_links_pipes_and_folders_are_not_objects(url: str, dataset: DatasetFiles, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    data = dataset.folder / "data"
    names = [str(hash_of(text)) for text in "abcd"]
    (data / names[0]).symlink_to(secret)
    os.mkfifo(data / names[1])
    (data / names[2]).mkdir()
    for name in names:
        assert ask(url, f"/Org/Cities/data/{name}").status == 404


def test_a_linked_folder_is_not_followed(url: str, dataset: DatasetFiles, tmp_path: Path) -> None:
    name = slice_of(dataset, 100)
    (dataset.folder / "data").rename(tmp_path / "elsewhere")
    (dataset.folder / "data").symlink_to(tmp_path / "elsewhere")
    assert ask(url, f"/Org/Cities/data/{name}").status == 404


def test_a_linked_dataset_is_not_published(workspace: WorkspaceFiles, tmp_path: Path, url: str) -> None:
    other = make_dataset(WorkspaceFiles.init(tmp_path / "other", exists_ok=False), "private")
    (workspace.root / "datasets" / other.folder.name).symlink_to(other.folder)
    assert ask(url, "/private/refs/head").status == 404


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /a\0b HTTP/1.1\r\nHost: localhost\r\n\r\n", b"nonsense\r\n\r\n",
     b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /Org/Cities/refs/head\x01 HTTP/1.1\r\nHost: localhost\r\n\r\n"],
)  # fmt: skip
def test_bytes_that_are_no_request_get_an_answer_or_none(
    url: str, request_bytes: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = raw(url, request_bytes.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert answer == b"" or answer[9:12] in (b"400", b"404")
    assert ask(url, "/Org/Cities/refs/head").status == 200
    assert capfd.readouterr() == ("", "")


def test_a_head_that_is_no_hash_is_the_owners_problem(
    url: str, dataset: DatasetFiles, problems: list[str]
) -> None:
    (dataset.folder / "refs" / "head").write_text("broken")
    reply = ask(url, "/Org/Cities/refs/head")
    assert (reply.status, reply.body) == (500, b"this cannot be read now\n")
    (problem,) = problems
    assert "refs/head" in problem
    assert "not a reference to a block" in problem


# --- the workspace changes -------------------------------------------------------------------------


def test_what_is_made_renamed_and_deleted_is_seen_by_the_next_request(
    url: str, workspace: WorkspaceFiles, dataset: DatasetFiles
) -> None:
    def aliases() -> list[str]:
        return [entry["alias"] for entry in json.loads(ask(url, "/datasets.json").body)["datasets"]]

    assert ask(url, "/new/refs/head").status == 404
    new = make_dataset(workspace, "new")
    assert ask(url, "/new/refs/head").body.decode() == str(head_of(new))
    workspace.rename(dataset, DatasetAlias.parse("towns"))
    assert ask(url, "/Org/Cities/refs/head").status == 404
    assert ask(url, "/towns/refs/head").body.decode() == str(head_of(dataset))
    workspace.rename(new, DatasetAlias.parse("Org/Cities"))
    assert ask(url, "/Org/Cities/refs/head").body.decode() == str(head_of(new))
    assert aliases() == ["Org/Cities", "towns"]
    workspace.delete(new)
    assert ask(url, "/Org/Cities/refs/head").status == 404
    assert aliases() == ["towns"]


def test_a_new_head_is_seen_by_the_next_request(url: str, dataset: DatasetFiles) -> None:
    before = str(head_of(dataset))
    ask(url, "/datasets.json")
    add_slice(dataset, 50)
    head = str(head_of(dataset))
    assert ask(url, "/Org/Cities/refs/head", If_None_Match=f'"{before}"').body.decode() == head
    assert json.loads(ask(url, "/datasets.json").body)["datasets"][0]["head"] == head
    assert ask(url, "/Org/Cities/hints/chain").body.decode().split()[-1] == head


# --- index and hints -------------------------------------------------------------------------------


def test_the_index_says_what_there_is_in_order(
    url: str, workspace: WorkspaceFiles, dataset: DatasetFiles
) -> None:
    make_dataset(workspace, "zoo")
    make_dataset(workspace, "Alps")
    reply = ask(url, "/datasets.json")
    assert reply.headers["content-type"] == "application/json"
    tree = json.loads(reply.body)
    assert [entry["alias"] for entry in tree["datasets"]] == ["Alps", "Org/Cities", "zoo"]
    assert tree["datasets"][1] == {
        "alias": "Org/Cities",
        "id": str(dataset.id),
        "kind": "Root",
        "head": str(head_of(dataset)),
        "blocks": 4,
        "records": 20,
        "size": BIG + 100,
    }
    assert ask(url, "/datasets.json", If_None_Match=reply.headers["etag"]).status == 304


def test_a_damaged_dataset_does_not_hide_the_others(
    url: str, workspace: WorkspaceFiles, dataset: DatasetFiles
) -> None:
    make_dataset(workspace, "zoo")
    (dataset.folder / "blocks" / str(head_of(dataset))).write_text("damaged")
    for folder, alias in (("headless", b"x"), ("nameless", b"\xff")):
        info = workspace.root / "datasets" / folder / "info"
        info.mkdir(parents=True)
        (info / "alias").write_bytes(alias)
    assert [e["alias"] for e in json.loads(ask(url, "/datasets.json").body)["datasets"]] == ["zoo"]


def test_the_index_reads_no_chain_that_it_has_read_before(
    workspace: WorkspaceFiles, dataset: DatasetFiles
) -> None:
    index = RepositoryIndex()
    first = index.entries([dataset])
    for file in (dataset.folder / "blocks").iterdir():
        file.unlink()
    assert index.entries([DatasetFiles.open(dataset.folder)]) == first
    assert RepositoryIndex().entries([DatasetFiles.open(dataset.folder)]) == []


def test_an_index_can_be_read_back(workspace: WorkspaceFiles, dataset: DatasetFiles) -> None:
    entries = RepositoryIndex().entries([make_dataset(workspace, "zoo"), dataset])
    assert parse_index(render_index(entries), "http://x/") == sorted(entries, key=lambda e: e.alias)
    assert parse_index(render_index([]), "http://x/") == []


def test_an_index_of_many_values_is_not_read() -> None:
    lists = b'{"version": 1, "datasets": [' + b"[]," * (SHARING.index_values // 2) + b"[]]}"
    with pytest.raises(CorruptedPeerError, match="more than 1,000,000 values"):
        parse_index(lists, "http://x/")


def test_the_page_for_people_lists_the_datasets(kept_url: str) -> None:
    reply = ask(kept_url, "/")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert reply.headers["content-security-policy"] == "default-src 'none'; style-src 'unsafe-inline'"
    page = reply.body.decode()
    assert "default-src 'none'; style-src 'sha256-" in page, "both policies hold: one sheet, and no other"
    assert '<a href="/Org/Cities/refs/head"><bdi>Org/Cities</bdi></a>' in page


def test_the_hint_lists_all_blocks_seed_first(kept_url: str, kept: DatasetFiles) -> None:
    reply = ask(kept_url, "/Org/Cities/hints/chain")
    assert parse_hint(reply.body, 100) == [found.hash for found in kept.chain.walk()][::-1]
    assert ask(kept_url, "/Org/Cities/hints/chain", If_None_Match=reply.headers["etag"]).status == 304


def chain_hint(dataset: DatasetFiles) -> bytes:
    return HintCache().get(dataset.chain, head_of(dataset))


def test_the_hint_reads_no_block_but_the_newest(dataset: DatasetFiles) -> None:
    hint = chain_hint(dataset)
    for found in list(dataset.chain.walk())[1:]:
        (dataset.folder / "blocks" / str(found.hash)).unlink()
    assert chain_hint(DatasetFiles.open(dataset.folder)) == hint


def test_the_hint_is_right_where_the_index_is_damaged(dataset: DatasetFiles) -> None:
    hint = chain_hint(dataset)
    index = dataset.folder / "info" / "chain-index"
    data = bytearray(index.read_bytes())
    data[40] ^= 1
    index.write_bytes(data)
    assert chain_hint(DatasetFiles.open(dataset.folder)) == hint


def test_a_chain_without_an_index_knows_its_hashes_too() -> None:
    builder = ChainBuilder(memory_chain())
    made = [builder.seed(), builder.append(RAW_SCHEMA), builder.append(ev.SetInfo(description="x"))]
    assert builder.chain.hashes(made[2]) == made
    assert builder.chain.hashes(made[1]) == made[:2]


def test_hints_that_are_kept_fit_into_their_memory(dataset: DatasetFiles) -> None:
    blocks = [found.hash for found in dataset.chain.walk()]
    cache = HintCache(capacity=500)  # four lines and three, not both and two more
    for head in (*blocks, *blocks):
        assert cache.get(dataset.chain, head).decode().split()[-1] == str(head)
        assert sum(len(hint) for hint in cache._hints.values()) == cache._size <= 500
    assert len(HintCache(capacity=10).get(dataset.chain, blocks[0])) == 280


# --- the server ------------------------------------------------------------------------------------


def test_many_clients_at_once_get_what_they_ask_for(kept_url: str, kept: DatasetFiles) -> None:
    names = [slice_of(kept, BIG), slice_of(kept, 100)] * 12
    with ThreadPoolExecutor(24) as pool:
        replies = list(pool.map(lambda name: ask(kept_url, f"/Org/Cities/data/{name}").body, names))
    assert [hash_bytes(reply) for reply in replies] == names


def test_without_the_extension_files_go_out_in_pieces(
    workspace: WorkspaceFiles, dataset: DatasetFiles
) -> None:
    sent: list[dict[str, object]] = []

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    path = f"/Org/Cities/data/{slice_of(dataset, BIG)}"
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "headers": []}
    asyncio.run(Repository(workspace, ServeOptions())(scope, None, send))  # type: ignore[arg-type]
    pieces = [message["body"] for message in sent[1:]]
    assert len(pieces) == 12
    assert hash_bytes(b"".join(pieces)) == slice_of(dataset, BIG)  # type: ignore[arg-type]
    assert [message["more_body"] for message in sent[1:]] == [True] * 11 + [False]


def test_a_client_that_goes_away_in_the_middle_does_no_harm(
    workspace: WorkspaceFiles, problems: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    name = slice_of(make_dataset(workspace, "big", 30_000_000), 30_000_000)
    with RepositoryServer(workspace, on_problem=problems.append) as server:
        for _ in range(5):
            with connect(server.url) as client:
                client.sendall(f"GET /big/data/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                assert client.recv(1000)
        assert ask(server.url, "/big/refs/head").status == 200
    assert problems == []
    assert capfd.readouterr() == ("", "")


def test_stopping_cuts_a_response_that_does_not_end(
    workspace: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch, problems: list[str]
) -> None:
    monkeypatch.setattr("odfchain.transfer.server.GRACE_SECONDS", 0.2)
    name = slice_of(make_dataset(workspace, "big", 30_000_000), 30_000_000)
    with RepositoryServer(workspace, on_problem=problems.append) as server, connect(server.url) as client:
        client.sendall(f"GET /big/data/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert client.recv(1000)
        server.stop()
        assert problems == []


def test_a_client_that_takes_too_long_is_dropped(
    url: str, workspace: WorkspaceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a piece of which more than the buffers hold is to be sent is too slow
    short = replace(SHARING, request_head_seconds=0.1, piece_seconds=0)
    monkeypatch.setattr(server, "SHARING", short)
    name = slice_of(make_dataset(workspace, "big", 30_000_000), 30_000_000)
    for said in (b"", b"GET / HTTP/1.1\r\nX: 1\r\n"):
        with connect(url) as client:
            client.sendall(said)
            assert heard(client) == b""
    with connect(url) as client:
        client.sendall(f"GET /big/data/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert 0 < len(heard(client)) < 30_000_000
    assert ask(url, "/big/refs/head").status == 200


def test_endless_headers_are_cut(url: str) -> None:
    with connect(url) as client:
        client.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(OSError):  # noqa: PT012 - one of many is refused
            for _ in range(10_000):
                client.sendall(b"X-Field: 1\r\n" * 1000)


def test_requests_are_told_in_one_printable_line(workspace: WorkspaceFiles, dataset: DatasetFiles) -> None:
    told: list[str] = []
    with RepositoryServer(workspace, on_request=told.append) as server:
        ask(server.url, "/Org/Cities/refs/head")
        ask(server.url, "/%1b%5b2J%0aforged")
        ask(server.url, f"/Org/Cities/data/{slice_of(dataset, BIG)}")
    assert told[0] == "127.0.0.1 GET /Org/Cities/refs/head 200"
    assert told[2].endswith(" 200")
    assert all(line.isprintable() for line in told)


def test_an_address_that_is_taken_or_is_none_is_one_clear_line(workspace: WorkspaceFiles) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TransferError, match=f"cannot listen on '127.0.0.1', port {port}: .*in use"):
            RepositoryServer(workspace, port=port)
    with pytest.raises(TransferError, match=r"cannot listen on 'no\.such\.host\.invalid'"):
        RepositoryServer(workspace, host="no.such.host.invalid")
    with pytest.raises(TransferError, match="cannot listen on"):
        RepositoryServer(workspace, port=70_000)


def test_it_listens_on_this_machine_only_unless_told_otherwise(workspace: WorkspaceFiles) -> None:
    with RepositoryServer(workspace) as server:
        assert server.url.startswith("http://127.0.0.1:")
    with RepositoryServer(workspace, host="0.0.0.0") as server:  # noqa: S104
        assert server.url.startswith("http://0.0.0.0:")


PROGRAM = """\
import sys
from pathlib import Path
from odfchain.transfer.server import RepositoryServer
from odfchain.workspace.workspace_files import WorkspaceFiles
RepositoryServer(WorkspaceFiles.find(Path(sys.argv[1]))).run(lambda url: print(url, flush=True))
print("ended")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(
    workspace: WorkspaceFiles, dataset: DatasetFiles, number: signal.Signals
) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM, str(workspace.root.parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        with connect(url) as idle:
            idle.sendall(b"GET /Org/Cities/refs/head HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert idle.recv(15) == b"HTTP/1.1 200 OK"
            process.send_signal(number)
            out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "ended\n", "")


def test_no_thread_is_left_behind(workspace: WorkspaceFiles) -> None:
    before = set(threading.enumerate())
    with RepositoryServer(workspace) as server:
        ask(server.url, "/datasets.json")
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not [name for name in left if name.startswith(("odfchain-serve", "asyncio"))]
