"""Datasets in object stores: reading what is verified, writing what is atomic, and swapping the head."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from odfchain.errors import AccessError, RefConflictError, TransferError, UnsupportedPeerError
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.storage.bucket_store import BucketTransport
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKey, ObjectKind, SignedFile
from odfchain.storage.store import Store
from tests.kit.servers import Meter, Reply, Request, Server, closed_port
from tests.kit.shared_store import QUICK, environment
from tests.kit.small_s3 import SmallS3
from tests.kit.stand_ins import simulated_s3
from tests.kit.web_peers import refused_by

ONE, TWO, THREE = b"block one", b"block two", b"block three"
HASHES = [hash_bytes(data) for data in (ONE, TWO, THREE)]
ACCOUNT = """{"gcs_base_url": "{}", "disable_oauth": true, "client_email": "", "private_key": "",
"private_key_id": ""}"""
"""With an account of its own the library asks nobody for a token."""

LOCK_KEY = "refs/.head.lock"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment(monkeypatch, tmp_path / "home")


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    """Address of a simulated S3 with an empty bucket."""
    with simulated_s3() as address:
        yield address


def peer_at(url: str, limits: object = QUICK) -> Store:
    return Store(BucketTransport(PeerUrl.parse(url), limits))  # type: ignore[arg-type]


def with_blocks(store: SmallS3, head: Multihash | None = None) -> Store:
    """A dataset with three blocks in the store."""
    for name, data in zip(HASHES, (ONE, TWO, THREE), strict=True):
        store.objects[f"bucket/x/blocks/{name}"] = data
    if head is not None:
        store.objects["bucket/x/refs/head"] = str(head).encode()
    return peer_at(store.url("bucket/x"))


def move_head_when_written(store: SmallS3, key: str) -> None:
    """Another writer moves the head just before this object is written."""

    def interfere(method: str, path: str) -> None:
        if method == "PUT" and path.endswith(key):
            store.objects["bucket/x/refs/head"] = str(HASHES[2]).encode()

    store.before = interfere


def put(peer: Store, folder: Path, part: ObjectKind, data: bytes) -> ObjectKey:
    path = folder / "source"
    path.write_bytes(data)
    key, meter = ObjectKey(part, hash_bytes(data)), Meter()
    peer.put(key, path, meter)
    assert meter.steps == len(data)
    assert path.read_bytes() == data
    return key


# --- signed statements -------------------------------------------------------------------------------------


def test_a_store_that_refuses_to_say_that_a_statement_is_absent_has_none(store: SmallS3) -> None:
    store.before = lambda method, path: 403
    assert peer_at(store.url("bucket/x")).signed(SignedFile.HEAD) is None


# --- a simulated S3 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["s3+{}/bucket1/a%20b/c", "s3://bucket1/d/"])
def test_a_dataset_goes_there_and_comes_back(
    form: str, moto: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if form.startswith("s3:"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", moto)
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    peer = peer_at(form.format(moto))
    assert (peer.head(), peer.hint(10)) == (None, None)
    block = put(peer, tmp_path, ObjectKind.BLOCK, ONE)
    large = bytes(range(256)) * 36_000  # more than one part
    for data in (b"", b"small", large):
        key = put(peer, tmp_path, ObjectKind.DATA, data)
        assert peer.contains(key)
        put(peer, tmp_path, ObjectKind.DATA, data)
        meter = Meter()
        peer.fetch(key, len(data), tmp_path / "target", meter)
        assert (tmp_path / "target").read_bytes() == data
        assert meter.steps == len(data)
        (tmp_path / "target").unlink()
    assert not peer.contains(ObjectKey(ObjectKind.CHECKPOINT, HASHES[0]))
    assert peer.block(block.name) == ONE
    put(peer, tmp_path, ObjectKind.BLOCK, TWO)
    peer.put_hint(HASHES)
    assert peer.hint(3) == HASHES
    assert peer.hint(2) is None
    peer.swap_head(None, HASHES[0])
    peer.swap_head(HASHES[0], HASHES[1])
    assert peer.head() == HASHES[1]
    for wrong in (None, HASHES[0]):
        with pytest.raises(RefConflictError):
            peer.swap_head(wrong, HASHES[0])
    assert (peer.head(), peer.transport.caveat) == (HASHES[1], None)
    peer.close()


def test_without_a_bucket(moto: str, tmp_path: Path) -> None:
    peer = peer_at(f"s3+{moto}/no-such-bucket/x")
    assert peer.head() is None
    with pytest.raises(TransferError, match="no such bucket"):
        put(peer, tmp_path, ObjectKind.DATA, b"x")


# --- swapping the head -------------------------------------------------------------------------------------


def test_of_two_writers_one_wins_every_time(store: SmallS3) -> None:
    start = threading.Barrier(2)

    def swap(peer: Store, before: Multihash | None, name: Multihash) -> bytes | None:
        start.wait()
        try:
            peer.swap_head(before, name)
        except RefConflictError:
            return None
        return str(name).encode()

    with ThreadPoolExecutor(2) as threads:
        for before in [None, HASHES[2]] * 10:
            store.objects.pop("bucket/x/refs/head", None)
            peers = [with_blocks(store, before), with_blocks(store, before)]
            winners = [name for name in threads.map(swap, peers, [before] * 2, HASHES) if name]
            assert winners == [store.objects["bucket/x/refs/head"]]


@pytest.mark.parametrize("before", [None, HASHES[0]], ids=["creating", "replacing"])
def test_a_head_that_moves_between_reading_and_writing_stays_where_it_went(
    before: Multihash | None, store: SmallS3
) -> None:
    peer = with_blocks(store, before)

    move_head_when_written(store, "refs/head")
    with pytest.raises(RefConflictError) as caught:
        peer.swap_head(before, HASHES[1])
    assert caught.value.actual == str(HASHES[2])
    assert peer.head() == HASHES[2]


def test_a_swap_whose_answer_is_lost_is_known_as_our_own(store: SmallS3) -> None:
    with_blocks(store, HASHES[0])
    failures = [500]
    store.after = lambda method, path: (
        failures.pop() if failures and method == "PUT" and path.endswith("refs/head") else None
    )
    peer = peer_at(store.url("bucket/x"), replace(QUICK, retries=2))
    peer.swap_head(HASHES[0], HASHES[1])
    assert peer.head() == HASHES[1]
    assert store.sent("PUT").count("bucket/x/refs/head") == 2


def test_a_store_that_ignores_one_condition_is_found_out_and_locked(store: SmallS3) -> None:
    store.keeps = {"if-none-match"}
    peer = with_blocks(store, HASHES[0])
    peer.swap_head(HASHES[0], HASHES[1])
    assert peer.head() == HASHES[1]
    assert "lock" in str(peer.transport.caveat)
    lock = f"bucket/x/{LOCK_KEY}"
    assert lock in store.sent("PUT")
    assert lock not in store.objects
    store.objects[lock] = b"somebody else"
    with refused_by(peer, LOCK_KEY, "another writer"):
        peer.swap_head(HASHES[1], HASHES[2])
    assert store.objects[lock] == b"somebody else"
    assert peer.head() == HASHES[1]


def test_the_lock_is_released_when_the_head_moved_meanwhile(store: SmallS3) -> None:
    store.keeps = {"if-none-match"}
    peer = with_blocks(store, HASHES[0])

    move_head_when_written(store, LOCK_KEY)
    with pytest.raises(RefConflictError):
        peer.swap_head(HASHES[0], HASHES[1])
    assert peer.head() == HASHES[2]
    assert f"bucket/x/{LOCK_KEY}" not in store.objects


def test_a_store_without_conditions_is_found_out_and_the_user_is_told(store: SmallS3) -> None:
    store.keeps = set()
    peer = with_blocks(store)
    assert peer.transport.caveat is None
    peer.swap_head(None, HASHES[0])
    peer.swap_head(HASHES[0], HASHES[1])
    assert peer.head() == HASHES[1]
    assert "no conditional writes" in str(peer.transport.caveat)
    with pytest.raises(RefConflictError):
        peer.swap_head(HASHES[0], HASHES[2])
    assert [store.objects[f"bucket/x/blocks/{name}"] for name in HASHES] == [ONE, TWO, THREE]


def test_conditions_that_the_environment_switches_off(
    store: SmallS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    peer = with_blocks(store)
    peer.swap_head(None, HASHES[0])
    assert peer.head() == HASHES[0]
    assert "no conditional writes" in str(peer.transport.caveat)


GOOGLE = {"GOOGLE_SERVICE_ACCOUNT_KEY": ACCOUNT, "GOOGLE_ALLOW_HTTP": "true"}
AZURE = {
    "AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_ENDPOINT": "{}", "AZURE_SKIP_SIGNATURE": "true",
    "AZURE_ALLOW_HTTP": "true",
}  # fmt: skip


@pytest.mark.parametrize(
    ("url", "environment", "condition", "version"),
    [
        ("gs://bucket/x", GOOGLE, "x-goog-if-generation-match", "17"),
        ("az://box/x", AZURE, "if-match", '"tag"'),
    ],
    ids=["google", "azure"],
)
def test_the_other_stores_swap_on_the_version_that_was_read(
    url: str, environment: dict[str, str], condition: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {
        "ETag": '"tag"',
        "x-goog-generation": "17",
        "x-ms-version-id": "v",
        "Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT",
    }

    def answer(request: Request) -> Reply:
        if request.method == "PUT":
            return Reply(status=412)
        return Reply(headers=headers, body=str(HASHES[0]).encode())

    with Server(answer) as server:
        for name, value in environment.items():
            monkeypatch.setenv(name, value.replace("{}", server.url("")))
        with pytest.raises(RefConflictError):
            peer_at(url).swap_head(HASHES[0], HASHES[1])
    (sent,) = [request for request in server.requests if request.method == "PUT"]
    assert sent.headers[condition] == version


# --- reading -----------------------------------------------------------------------------------------------


def test_an_object_is_continued_by_range(store: SmallS3, tmp_path: Path) -> None:
    data, target = bytes(range(256)) * 40, tmp_path / "target"
    key = ObjectKey(ObjectKind.DATA, hash_bytes(data))
    store.objects[f"bucket/x/{key}"] = data
    target.write_bytes(data[:5_000])
    meter = Meter()
    with_blocks(store).fetch(key, len(data), target, meter)
    assert (target.read_bytes(), meter.steps) == (data, len(data))
    assert [headers.get("range") for method, _, headers in store.requests] == [None, "bytes=5000-"]


def test_a_hint_that_is_too_large_or_refused_is_none(store: SmallS3) -> None:
    peer = with_blocks(store)
    store.objects["bucket/x/hints/chain"] = b"x" * 100_000
    assert peer.hint(10) is None
    store.before = lambda method, path: 403
    assert peer.hint(10) is None


# --- failures ----------------------------------------------------------------------------------------------


def test_a_refusal_is_an_access_error(store: SmallS3, tmp_path: Path) -> None:
    peer = with_blocks(store)
    store.before = lambda method, path: 403
    key = ObjectKey(ObjectKind.DATA, HASHES[0])
    for ask in (peer.head, lambda: peer.block(HASHES[0]), lambda: peer.contains(key)):
        with refused_by(peer, "", kind=AccessError) as caught:
            ask()
        assert "s3cret" not in str(caught.value)
    with pytest.raises(AccessError):
        put(peer, tmp_path, ObjectKind.DATA, b"x")


def test_nobody_there_and_somebody_silent() -> None:
    with closed_port() as port, pytest.raises(TransferError, match="HTTP error"):
        peer_at(f"s3+http://127.0.0.1:{port}/bucket/x").head()
    with Server(Reply(raw=[b"HTTP/1.1 "], stall=True)) as server, pytest.raises(TransferError):
        peer_at(f"s3+http://127.0.0.1:{server.port}/bucket/x", replace(QUICK, idle_timeout=0.05)).head()


def test_a_block_that_trickles_ends_at_the_deadline() -> None:
    def slowly() -> Iterator[bytes]:
        yield b'HTTP/1.1 200 OK\r\nETag: "v"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n'
        yield b"Content-Length: 1000000\r\n\r\n"
        waiting = threading.Event()
        for _ in range(1_000):
            waiting.wait(0.02)
            yield b"x"

    with Server(Reply(raw=slowly())) as server:
        peer = peer_at(f"s3+http://127.0.0.1:{server.port}/bucket/x", replace(QUICK, deadline=0.3))
        with pytest.raises(TransferError):
            peer.block(HASHES[0])


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("s3+http://127.0.0.1:9000/", "names no bucket"),
        ("s3+http://me:secret@127.0.0.1:9000/bucket/", "carries no credentials"),
        ("s3://me:secret@bucket/x", "carries no credentials"),
        ("https://example.com/x", "not the URL of an object store"),
        ("odf+https://example.com/x", "not the URL of an object store"),
    ],
)
def test_what_is_no_object_store(url: str, text: str) -> None:
    with pytest.raises(UnsupportedPeerError, match=text) as caught:
        peer_at(url)
    assert "secret" not in str(caught.value)


def test_a_store_that_is_not_configured() -> None:
    with pytest.raises(TransferError, match="Account must be specified"):
        peer_at("az://box/x")
