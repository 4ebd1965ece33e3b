"""Reading over HTTP against servers that fail, lie, dawdle and point elsewhere."""

from __future__ import annotations

import contextlib
import itertools
import logging
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import odfchain
from odfchain.errors import AccessError, CorruptedPeerError, TransferError
from odfchain.limits import LIMITS
from odfchain.odf.physical_hash import hash_bytes
from odfchain.progress import SILENT
from odfchain.storage.http_store import HttpTransport
from odfchain.storage.locations import PeerUrl
from odfchain.storage.public_layout import ObjectKey, ObjectKind
from odfchain.storage.store import Store
from tests.kit.servers import Clock, Meter, Reply, Request, Server, closed_port
from tests.kit.stand_ins import write_certificate
from tests.kit.support import cases
from tests.kit.web_peers import Published, by_threads, http_peer, refused_by

BODY = bytes(range(256)) * 2_000
BLOCK = b"a block"
NAME = hash_bytes(BLOCK)
HEAD = Reply(body=str(NAME).encode())
KEY = ObjectKey(ObjectKind.DATA, hash_bytes(BODY))


@contextlib.contextmanager
def serving(*script: Reply | Callable[[Request], Reply], **options: Any) -> Iterator[tuple[Server, Store]]:
    with Server(*script) as server, http_peer(server.url("/ds"), **options) as peer:
        yield server, peer


def ranged(request: Request, body: bytes) -> Reply:
    """As a server answers that continues bodies."""
    found = re.fullmatch(r"bytes=(\d+)-", request.headers.get("range", ""))
    if found is None:
        return Reply(body=body)
    first = int(found[1])
    return Reply(206, {"Content-Range": f"bytes {first}-{len(body) - 1}/{len(body)}"}, body[first:])


# --- what statuses mean ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases("protocol_cases", "http_status_mapping"))
def test_statuses_of_the_shared_cases(case: dict[str, Any], tmp_path: Path) -> None:
    kind = case["request"].removeprefix("GET ").split("/")[0]
    later = HEAD if kind == "refs" else Reply(body=BLOCK)
    with serving(Reply(status=case["status"], body=HEAD.body), later) as (server, peer):

        def ask() -> object:
            if kind == "refs":
                return peer.head()
            if kind == "blocks":
                return peer.block(NAME)
            key = ObjectKey(ObjectKind(kind), NAME)
            return peer.fetch(key, len(BLOCK), tmp_path / "target", SILENT)

        advice = case["advice"] if case["advice"] != "same" else case["kamu_result"]
        if advice == "ok":
            assert ask() == NAME
        elif advice == "RefNotFound":
            assert ask() is None
        elif advice == "retry with back-off":
            assert ask() == BLOCK
            assert len(server.requests) == 2
        else:
            kinds = {401: AccessError, 403: AccessError, 404: CorruptedPeerError}
            with refused_by(peer, "", str(case["status"]), kinds[case["status"]]) as caught:
                ask()
            assert len(server.requests) == 1
            if kind == "refs":
                assert "static hosts answer 403 for what is absent" in (caught.value.hint or "")
    assert not (tmp_path / "target").exists()


def test_a_gateway_answers_500_for_what_is_absent() -> None:
    with serving(Reply(500), ipfs_gateway=True) as (server, peer):
        assert peer.head() is None
        assert len(server.requests) == 1
    with serving(lambda _: Reply(500), ipfs_gateway=True) as (server, peer):
        with pytest.raises(TransferError, match="500"):
            peer.block(NAME)
        assert len(server.requests) == 4


@pytest.mark.parametrize("status", [204, 206, 300, 302, 304, 400, 405, 418, 451])
def test_other_statuses_are_final(status: int) -> None:
    with serving(Reply(status, body=BLOCK)) as (server, peer):
        with refused_by(peer, f"blocks/{NAME}", f"HTTP status {status}"):
            peer.block(NAME)
        assert len(server.requests) == 1


# --- what passes -------------------------------------------------------------------------------------


def test_failures_that_pass_are_tried_again() -> None:
    for passing in (*(Reply(s) for s in (408, 425, 429, 500, 502, 503)), Reply(reset=True, raw=[b"HT"]),
                    Reply(raw=[]), Reply(body=BLOCK, cut=3), Reply(raw=[b"HTTP/1.1 200 OK\r\n"])):  # fmt: skip
        clock = Clock()
        with serving(passing, Reply(body=BLOCK), clock=clock) as (server, peer):
            assert peer.block(NAME) == BLOCK
            assert len(server.requests) == 2
            assert clock.waits == [0.5]


def test_waits_grow_and_end() -> None:
    clock = Clock()
    with serving(lambda _: Reply(503), clock=clock) as (server, peer):
        with refused_by(peer, "refs/head", r"503 \(Service Unavailable\) \(4 attempts\)$"):
            peer.head()
        assert len(server.requests) == 4
        assert clock.waits == [0.5, 1.0, 2.0]


def test_a_server_may_ask_for_a_pause_that_is_too_long() -> None:
    with serving(Reply(503, {"Retry-After": "86400"}), HEAD) as (_, peer):
        with pytest.raises(TransferError, match="pause of 86400 s, which is too long") as caught:
            peer.head()
        assert "fetch." not in (caught.value.hint or ""), "that is about sources"


def test_nobody_is_there() -> None:
    refused = r"cannot connect to port \d+: connection refused \(2 attempts\)$"
    with (
        closed_port() as port,
        http_peer(f"http://127.0.0.1:{port}/x", retries=1) as peer,
        refused_by(peer, "refs/head", refused),
    ):
        peer.head()
    with http_peer("http://no-such-host.invalid/x", retries=0) as peer, pytest.raises(TransferError):
        peer.head()


# --- requests and connections ------------------------------------------------------------------------


def test_what_is_asked() -> None:
    with serving(HEAD) as (server, peer):
        peer.head()
        (request,) = server.requests
    assert (request.method, request.target) == ("GET", "/ds/refs/head")
    assert request.headers == {
        "host": f"127.0.0.1:{server.port}",
        "user-agent": f"odfchain/{odfchain.__version__}",
        "accept": "*/*",
        "accept-encoding": "identity",
    }


def test_connections_are_kept_and_counted(tmp_path: Path) -> None:
    dataset = Published(tmp_path / "ds")
    names = [dataset.put(ObjectKind.BLOCK, f"{i}".encode()).name for i in range(50)]
    with by_threads(tmp_path) as place:
        url = place.publish(tmp_path / "ds").text
        with http_peer(url) as peer:
            assert [peer.block(name) for name in names] == [f"{i}".encode() for i in range(50)]
            assert len(place.connections) == 1
        place.connections.clear()
        with http_peer(url, parallel=3) as peer, ThreadPoolExecutor(12) as threads:
            list(threads.map(peer.block, names))
        assert 1 <= len(place.connections) <= 3


@contextlib.contextmanager
def answering(*connections: list[bytes]) -> Iterator[Store]:
    """A peer that answers by a list for each connection, whatever is asked, and each once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for parts in connections:
                connection, _ = listener.accept()
                with connection:
                    for part in parts:
                        connection.recv(65_536)
                        connection.sendall(part)

        thread = threading.Thread(target=serve)
        thread.start()
        with http_peer(f"http://127.0.0.1:{listener.getsockname()[1]}/", retries=0) as peer:
            yield peer
        thread.join()


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n" + BLOCK
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n7\r\na block\r\n0\r\n\r\n"
ABSENT = b"HTTP/1.1 404 No\r\nContent-Length: 300\r\n\r\n" + b"n" * 300


def test_a_connection_is_kept_after_answers_that_nobody_reads() -> None:
    old = ABSENT.replace(b"HTTP/1.1", b"HTTP/1.0")
    with answering([ABSENT, CHUNKED, old, WHOLE[:5]], [WHOLE]) as peer:
        assert peer.head() is None
        assert peer.block(NAME) == BLOCK
        assert peer.head() is None
        assert peer.block(NAME) == BLOCK, "HTTP/1.0 without keep-alive needs a new one"


def test_a_kept_connection_that_was_closed_is_replaced_at_no_cost() -> None:
    with answering([WHOLE], [WHOLE], [WHOLE]) as peer:
        for _ in range(3):
            assert peer.block(NAME) == BLOCK


def test_what_comes_after_a_body_is_not_taken_for_the_next_answer() -> None:
    with answering([WHOLE + ABSENT], [WHOLE]) as peer:
        for _ in range(2):
            assert peer.block(NAME) == BLOCK


def test_closing_ends_what_others_wait_for() -> None:
    began = threading.Event()

    def stall(_: Request) -> Reply:
        began.set()
        return Reply(body=BLOCK, cut=2, stall=True)

    with Server(stall) as server, ThreadPoolExecutor(1) as threads:
        peer = Store(HttpTransport(PeerUrl.parse(server.url("/ds"))))
        waiting = threads.submit(peer.block, NAME)
        assert began.wait(10)
        peer.close()
        with pytest.raises(TransferError):
            waiting.result(timeout=5)
        with pytest.raises(TransferError, match="closed"):
            peer.head()


# --- bounds ------------------------------------------------------------------------------------------


def dripping(clock: Clock, body: bytes, *, step: float) -> Iterator[bytes]:
    """One byte at a time, for each of which some time passes."""
    for i in itertools.count():
        clock.now += step
        yield body[i % len(body) :][:1]


@pytest.mark.parametrize("form", ["head", "headers", "body", "chunks"])
def test_a_byte_now_and_then_ends_at_the_deadline(form: str, tmp_path: Path) -> None:
    clock = Clock()
    start = b"HTTP/1.1 200 OK\r\n"
    sized = start + b"Content-Length: %d\r\n\r\n" % len(BODY)
    raw = {
        "head": dripping(clock, start, step=1),
        "headers": itertools.chain([start], dripping(clock, b"A: b\r\n", step=1)),
        "body": itertools.chain([sized], dripping(clock, BODY, step=1)),
        "chunks": itertools.chain(
            [start + b"Transfer-Encoding: chunked\r\n\r\n"], dripping(clock, b"1\r\nx\r\n", step=1)
        ),
    }[form]
    began = clock.now
    with serving(Reply(raw=raw), clock=clock) as (_, peer):
        with refused_by(peer, KEY, "not complete after 38 s") as caught:
            peer.fetch(KEY, len(BODY), tmp_path / "target", SILENT)
        assert caught.value.hint == "run the command again: what has arrived is kept"
    assert clock.now - began >= 38


def test_a_silent_server_is_given_up() -> None:
    for raw in ([b""], [b"HTTP/1.1 200 OK\r\n"], [b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nab"]):
        with (
            serving(Reply(raw=raw, stall=True), idle_timeout=0.05, retries=0) as (_, peer),
            refused_by(peer, f"blocks/{NAME}", r"no byte within 0.05 s \(1 attempt\)$"),
        ):
            peer.block(NAME)


@pytest.mark.parametrize("length", [0, len(BODY) - 1, len(BODY) + 1, 10**17])
def test_another_length_than_expected_is_refused_before_the_body(length: int, tmp_path: Path) -> None:
    reply = Reply(raw=[b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length], stall=True)
    refused = pytest.raises(CorruptedPeerError, match=f"{length:,} bytes, not the {len(BODY):,}")
    with serving(reply) as (_, peer), refused:
        peer.fetch(KEY, len(BODY), tmp_path / "target", SILENT)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("length", [LIMITS.block_bytes + 1, 10**17])
def test_a_block_that_is_announced_as_too_large_is_not_read(length: int) -> None:
    reply = Reply(raw=[b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length], stall=True)
    refused = pytest.raises(TransferError, match="larger than the allowed 1,048,576 bytes")
    with serving(reply) as (_, peer), refused:
        peer.block(NAME)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], "does not speak HTTP/1.1"),
        ([b"HTTP/2 200\r\n\r\n"], "does not speak HTTP/1.1"),
        ([b"HTTP/1.1 OK\r\n\r\n"], "does not speak HTTP/1.1"),
        ([b"HTTP/1.1 101 Other\r\n\r\n"], "another protocol"),
        ([b"HTTP/1.1 200 OK\r\nA b\r\n\r\n"], "a malformed header"),
        ([b"HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n"], "a malformed header"),
        ([b"HTTP/1.1 200 OK\r\nA: \0\r\n\r\n"], "a malformed header"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nContent-Length: 8\r\n\r\n"], "in several ways"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nTransfer-Encoding: chunked\r\n\r\n"], "several ways"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: -7\r\n\r\n"], "not a number"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 7, 7\r\n\r\n"], "not a number"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n"], "not a number"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding:\r\n\r\n"], "transfer coding is ''"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"], "transfer coding"),
        ([b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 7\r\n\r\n"], "encoded as 'gzip'"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"], "chunks of the body are malformed"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"], "chunks of the body are malformed"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n"], "chunks of the body"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"e" * 5_000], "chunks of the body"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", *[b"T: t\r\n"] * 9_000], "trailers"),
        ([b"HTTP/1.1 200 OK\r\nA: " + b"b" * 40_000 + b"\r\n\r\n"], "headers are larger than 32,768 bytes"),
        ([b"HTTP/1.1 200 OK\r\nA: ", *[b"b" * 1_000] * 1_000], "headers are larger than 32,768 bytes"),
        (itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"), "headers are larger than 32,768 bytes"),
        ([b"HTTP/1.1 200 OK\r\n", *[b"A: b\r\n"] * 101, b"\r\n"], "headers are larger than 32,768 bytes or 100"),
    ],
)  # fmt: skip
def test_answers_that_break_the_protocol_are_refused_at_once(raw: Any, expected: str) -> None:
    with serving(Reply(raw=raw)) as (server, peer):
        with refused_by(peer, f"blocks/{NAME}", re.escape(expected)):
            peer.block(NAME)
        assert len(server.requests) == 1


def test_no_url_is_logged(trusted: ssl.SSLContext, caplog: pytest.LogCaptureFixture) -> None:
    """The library would warn of a response that it does not understand, and say of which URL."""
    caplog.set_level(logging.DEBUG)
    for reply in (HEAD, Reply(raw=[b"HTTP/1.1 200 OK\r\nA b\r\n\r\n"]), Reply(302, {"Location": "/x"})):
        for tls in (None, trusted):
            with Server(lambda _, reply=reply: reply, tls=tls) as server:
                with http_peer(server.url("/s3cret")) as peer, contextlib.suppress(TransferError):
                    peer.head()
                assert len(server.requests) >= 1
    assert caplog.records == []


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200\r\nContent-Length: 7\r\n\r\na block",
        b"HTTP/1.0 200 OK\n\na block",
        b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length:7 \r\n\r\na block",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n4;x=y\r\na bl\r\n03\r\nock\r\n0\r\nT: t\r\n\r\n",
    ],
)
def test_answers_in_all_framings(raw: bytes) -> None:
    for pieces in ([raw], [raw[i : i + 1] for i in range(len(raw))]):
        with serving(Reply(raw=pieces)) as (_, peer):
            assert peer.block(NAME) == BLOCK


# --- continuing --------------------------------------------------------------------------------------


def test_a_broken_body_is_continued(tmp_path: Path) -> None:
    meter = Meter()
    with serving(Reply(body=BODY, cut=300_000), lambda r: ranged(r, BODY)) as (server, peer):
        peer.fetch(KEY, len(BODY), tmp_path / "target", meter)
        assert [r.headers.get("range") for r in server.requests] == [None, "bytes=300000-"]
    assert (tmp_path / "target").read_bytes() == BODY
    assert meter.steps == len(BODY)


@pytest.mark.parametrize(
    "second",
    [
        Reply(body=BODY),
        Reply(416),
        Reply(206, {"Content-Range": "bytes 0-9/512000"}, BODY[:10]),
        Reply(206, {"Content-Range": "bytes 300000-511999/9999999"}, BODY[300_000:]),
        Reply(206, {}, BODY[300_000:]),
        Reply(206, {"Content-Range": "bytes 300000-511999/512000"}, b"x" * 212_000),
    ],
)  # fmt: skip
def test_a_server_that_cannot_continue_is_asked_for_all(tmp_path: Path, second: Reply) -> None:
    """Also where the file was begun by an earlier run: what it holds may be what is wrong."""
    (tmp_path / "target").write_bytes(BODY[:300_000])
    meter = Meter()
    with serving(second, Reply(body=BODY)) as (_, peer):
        peer.fetch(KEY, len(BODY), tmp_path / "target", meter)
    assert (tmp_path / "target").read_bytes() == BODY
    assert meter.steps == len(BODY)


def test_what_has_arrived_stays_for_the_next_run(tmp_path: Path) -> None:
    with (
        serving(lambda _: Reply(body=BODY, cut=100_000), retries=0) as (_, peer),
        pytest.raises(TransferError, match="cut short"),
    ):
        peer.fetch(KEY, len(BODY), tmp_path / "target", SILENT)
    assert (tmp_path / "target").read_bytes() == BODY[:100_000]
    with serving(lambda r: ranged(r, BODY)) as (server, peer):
        peer.fetch(KEY, len(BODY), tmp_path / "target", SILENT)
        assert [r.headers["range"] for r in server.requests] == ["bytes=100000-"]


def test_another_rest_leaves_nothing(tmp_path: Path) -> None:
    with (
        serving(Reply(body=BODY, cut=100_000), lambda r: ranged(r, b"x" * len(BODY))) as (_, peer),
        pytest.raises(CorruptedPeerError, match="hashes to"),
    ):
        peer.fetch(KEY, len(BODY), tmp_path / "target", SILENT)
    assert not (tmp_path / "target").exists()


def test_a_hint_is_asked_for_once() -> None:
    endless = (
        Reply(pieces=itertools.repeat(b"x" * 0x1000)),
        Reply(headers={"Transfer-Encoding": "chunked"}, pieces=itertools.repeat(b"1\r\nx\r\n")),
    )
    refusals = (Reply(503), Reply(403), Reply(reset=True, raw=[]), Reply(headers={"Content-Encoding": "br"}))
    for reply in endless + refusals:
        with serving(reply, HEAD) as (server, peer):
            assert peer.hint(10) is None
            assert len(server.requests) == 1


# --- redirects and credentials -----------------------------------------------------------------------


def to(location: str, status: int = 302) -> Reply:
    return Reply(status, {"Location": location})


def test_three_redirects_and_no_more() -> None:
    with serving(to("/1"), to("/2"), to("/3"), HEAD) as (_, peer):
        assert peer.head() == NAME
    with serving(to("/1"), to("/2"), to("/3"), to("/4"), HEAD) as (server, peer):
        with pytest.raises(TransferError, match="more than 3 redirects"):
            peer.head()
        assert len(server.requests) == 4


def test_credentials_stay_with_their_origin() -> None:
    for user, options, sent in (
        ("", {"token": "s3cret"}, "Bearer s3cret"),
        ("me:s3cret@", {}, "Basic bWU6czNjcmV0"),
        ("me:pw@", {"token": "s3cret"}, "Bearer s3cret"),
    ):
        with Server(HEAD, Reply(400)) as other, Server(to("/b"), to(other.url("/c")), Reply(400)) as server:
            url = server.url("/ds").replace("//", f"//{user}")
            with http_peer(url, allow_private=True, **options) as peer:
                assert peer.head() == NAME
                assert "s3cret" not in peer.where
                with refused_by(peer, "refs/head") as caught:
                    peer.head()
                assert "s3cret" not in str(caught.value)
            assert [r.headers.get("authorization") for r in server.requests] == [sent] * 3
            assert "authorization" not in other.requests[0].headers


def test_secrets_are_not_shown_in_redirects() -> None:
    with serving(to("ftp://x/s3cret"), token="s3cret") as (_, peer):  # noqa: S106
        with pytest.raises(TransferError) as caught:
            peer.head()
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("token", ["", "two words", "line\r\nX: y", "\u20ac"])
def test_tokens_that_cannot_be_sent(token: str) -> None:
    with pytest.raises(AccessError, match="cannot be sent"):
        HttpTransport(PeerUrl.parse("http://h/"), token=token)


@pytest.mark.parametrize("url", ["http://h:0/", "http://h:99999/", "http://a\x01b/", "http://h/\udc00"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(TransferError) as caught:
        HttpTransport(PeerUrl.parse(url))
    assert str(caught.value).isprintable()


# --- TLS and proxies ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 and data.invalid that nobody trusts unless told to, with its key."""
    return write_certificate(tmp_path_factory.mktemp("tls") / "server.pem", "data.invalid")


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def trusted(tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Of a server that this process trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    return tls


def test_https(tmp_path: Path, trusted: ssl.SSLContext) -> None:
    with (
        Server(Reply(body=BODY, cut=100_000), lambda r: ranged(r, BODY), tls=trusted) as server,
        http_peer(server.url("/ds")) as peer,
    ):
        peer.fetch(KEY, len(BODY), tmp_path / "target", SILENT)
    assert (tmp_path / "target").read_bytes() == BODY
    with (
        Server(to("http://127.0.0.1/x"), tls=trusted) as server,
        http_peer(server.url("/ds"), allow_private=True) as peer,
        pytest.raises(TransferError, match="from https to http"),
    ):
        peer.head()


def test_a_certificate_that_is_not_trusted(tls: ssl.SSLContext) -> None:
    with Server(HEAD, tls=tls) as server, http_peer(server.url("/ds")) as peer:
        with refused_by(peer, "refs/head", "certificate is not trusted"):
            peer.head()
        assert server.requests == []


def test_certificates_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for name in ("empty", "missing"):
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / name))
        with (
            Server() as server,
            http_peer(server.url("/ds").replace("http:", "https:")) as peer,
            pytest.raises(TransferError, match="certificates of trusted authorities") as caught,
        ):
            peer.head()
        assert "SSL_CERT_FILE" in (caught.value.hint or "")


def test_https_to_a_server_that_speaks_http() -> None:
    with Server(lambda _: HEAD) as server:
        url = server.url("/ds").replace("http:", "https:")
        with (
            http_peer(url, retries=0, connect_timeout=0.2) as peer,
            pytest.raises(TransferError, match="TLS"),
        ):
            peer.head()


def test_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(HEAD) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url("").replace("//", "//me:p%77@"))
        with http_peer("http://data.invalid/ds", token="t") as peer:  # noqa: S106
            assert peer.head() == NAME
    (request,) = proxy.requests
    assert request.target == "http://data.invalid/ds/refs/head"
    assert request.headers["host"] == "data.invalid"
    assert request.headers["proxy-authorization"] == "Basic bWU6cHc="
    assert request.headers["authorization"] == "Bearer t"


@contextlib.contextmanager
def tunnel(port: int, tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """A proxy for one connection, which leads to a port whatever it is asked for."""
    asked: list[bytes] = []

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        client, _ = listener.accept()
        if tls is not None:
            client = tls.wrap_socket(client, server_side=True)
        with client, socket.create_connection(("127.0.0.1", port)) as goal:
            asked.append(client.recv(65_536))
            client.sendall(b"HTTP/1.1 200 Yes\r\n\r\n")
            other = threading.Thread(target=pump, args=(goal, client))
            other.start()
            pump(client, goal)
            other.join()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], asked
        thread.join()


def test_https_goes_through_a_proxy_unseen(trusted: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(HEAD, tls=trusted) as server, tunnel(server.port) as (port, asked):
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{port}")
        with http_peer("https://data.invalid/ds", token="s3cret") as peer:  # noqa: S106
            assert peer.head() == NAME
    # Python before 3.12 says HTTP/1.0
    assert re.sub(rb"1\.0", b"1.1", asked[0]) == (
        b"CONNECT data.invalid:443 HTTP/1.1\r\nHost: data.invalid:443\r\n\r\n"
    )
    assert server.requests[0].headers["authorization"] == "Bearer s3cret"


def test_https_goes_through_a_proxy_that_speaks_tls_itself(
    tmp_path: Path, trusted: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Server(Reply(body=BODY), tls=trusted) as server, tunnel(server.port, trusted) as (port, asked):
        monkeypatch.setenv("https_proxy", f"https://me:pw@127.0.0.1:{port}")
        with http_peer("https://data.invalid/ds") as peer:
            peer.fetch(KEY, len(BODY), tmp_path / "target", SILENT)
    assert (tmp_path / "target").read_bytes() == BODY
    assert b"\r\nProxy-Authorization: Basic bWU6cHc=\r\n" in asked[0]
    with Server(HEAD, tls=trusted) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url(""))
        with http_peer("http://data.invalid/ds") as peer:
            assert peer.head() == NAME
    assert proxy.requests[0].target == "http://data.invalid/ds/refs/head"


def test_a_proxy_that_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(Reply(407)) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url(""))
        with http_peer("https://data.invalid/ds") as peer, pytest.raises(AccessError, match="407"):
            peer.head()


def test_a_redirect_inward_is_not_sent_to_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(to("http://10.0.0.1/x"), HEAD) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url(""))
        with (
            http_peer("http://data.invalid/ds") as peer,
            pytest.raises(TransferError, match="private network"),
        ):
            peer.head()
    assert len(proxy.requests) == 1


def test_a_proxy_is_not_asked_for_this_machine_and_must_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "socks5://me:s3cret@127.0.0.1:1")
    with serving(HEAD) as (_, peer):
        assert peer.head() == NAME
    with http_peer("http://data.invalid/ds") as peer, pytest.raises(TransferError, match="proxy") as caught:
        peer.head()
    assert "s3cret" not in str(caught.value)
