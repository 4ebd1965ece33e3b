"""Rows that are sent to a node: recorded once, whatever dies; refused with a reason, and nothing of them stays."""

from __future__ import annotations

import dataclasses
import http.client
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from odfchain.api.workspace import Workspace
from odfchain.limits import UPLOADS
from odfchain.transfer.access_tokens import TokenFile
from tests.kit.node_cases import case
from tests.kit.node_process import Node
from tests.kit.processes import begun_with, one_session
from tests.kit.running_node import RunningNode, running_node
from tests.kit.sending_clients import Crowd, crowd, post
from tests.kit.support import manifest

ROW = b'{"city": "Chur", "population": 1}\n'


def make(folder: Path) -> str:
    """A workspace with two datasets; the text of a token for both."""
    with Workspace.init(folder) as workspace:
        workspace.add(manifest(kind="NdJson"))
        two = manifest(kind="NdJson", name="two")
        workspace.add(two + two[two.index("    - kind: AddPushSource") :].replace("default", "second"))
    return TokenFile(folder / ".odfchain").create("sender", ["ingest:%"]).text


@pytest.fixture(scope="module")
def sending(
    tmp_path_factory: pytest.TempPathFactory, class_archive: Path | None
) -> Iterator[tuple[Path, Crowd, str]]:
    folder = tmp_path_factory.mktemp("sending")
    token = make(folder)
    with one_session() as env:
        (none := folder / "none").touch()  # Java does without; making one takes longer than all of this
        env["ODFCHAIN_CLASS_ARCHIVE"] = str(class_archive or none)
        with crowd(folder, env, token, "cities") as clients:
            yield folder, clients, token
    log = (folder / "log").read_text(encoding="utf-8")
    assert "Traceback" not in log


def blocks(folder: Path, name: str) -> int:
    return Workspace.open(folder)[name].summary.head_block.sequence_number


@pytest.mark.parametrize("number", range(len(case(41)["posts"])))
def test_sources_and_equal_bodies(sending: tuple[Path, Crowd, str], number: int) -> None:
    folder, clients, token = sending
    given = case(41)["posts"][number]
    before = blocks(folder, given["dataset"])
    query = f"?sourceName={given['source']}" if "source" in given else ""
    reply = post(clients.node.url, given["dataset"], token, ROW, query)
    assert (reply.status, blocks(folder, given["dataset"]) - before) == (given["status"], given["blocks"])
    assert (reply.status == 200) == (reply.body == b"")


def sent_once(sending: tuple[Path, Crowd, str], clients: int, posts: int, kills: int, what: str) -> None:
    folder, sender, _ = sending
    given = [
        (f"{what}-{n}", b'{"city": "%s%d", "population": %d}\n' % (what.encode(), n, n)) for n in range(posts)
    ]
    sender.send(given, clients, kills)
    heads, head = dict(sender.acknowledged), Workspace.open(folder)["cities"].head
    sender.send(given[::-1], clients)
    dataset = Workspace.open(folder)["cities"]
    assert dataset.head == head, "all of it is recorded"
    found = Counter(dataset.scan(["city"]).to_arrow()["city"].to_pylist())
    times = {found[f"{what}{n}"] for n in range(posts)}
    missing = sum(f"{what}{n}" not in found for n in range(posts))
    assert (times, missing) == ({case(44)["times"]}, case(44)["missing"])
    assert len(heads) >= posts
    assert dataset.verify().ok


def test_each_body_is_recorded_once(
    sending: tuple[Path, Crowd, str], record_property: Callable[[str, object], None]
) -> None:
    sent_once(sending, **case(44)["small"], what="a")
    record_property("bodies", case(44)["small"]["posts"])
    record_property("kills", case(44)["small"]["kills"])


@pytest.mark.soak
def test_each_of_a_thousand_bodies_is_recorded_once(
    sending: tuple[Path, Crowd, str], record_property: Callable[[str, object], None]
) -> None:
    sent_once(sending, **case(44)["whole"], what="b")
    record_property("bodies", case(44)["whole"]["posts"])
    record_property("kills", case(44)["whole"]["kills"])


def test_what_was_accepted_is_recorded_or_answered_when_the_node_ends(
    sending: tuple[Path, Crowd, str],
) -> None:
    folder, clients, token = sending
    body = b'{"city": "Brig", "population": 1}\n'
    with opened(clients.node, token, "Expect: 100-continue", length=len(body)) as to:
        assert to.recv(100).startswith(b"HTTP/1.1 100")
        clients.node.process.terminate()
        to.sendall(body)
        status = status_of(to)
    assert status in (200, 503)
    clients.node.process.wait()
    assert not [path for path in left(folder) if path.suffix != ".log"]
    clients.restart()
    found = Workspace.open(folder)["cities"].scan(["city"]).to_arrow()["city"].to_pylist()
    assert found.count("Brig") == (status == 200)


def test_a_key_is_for_one_body_and_equal_bodies_are_for_two_keys(sending: tuple[Path, Crowd, str]) -> None:
    folder, clients, token = sending
    before, body = blocks(folder, "cities"), b'{"city": "Sion", "population": 7}\n'

    def send(key: str, body: bytes) -> int:
        return post(clients.node.url, "cities", token, body, idempotency_key=key).status

    assert [send("k", body), send("k", body), send("k", ROW), send("l", body)] == [200, 200, 422, 200]
    assert blocks(folder, "cities") - before == 2


def test_rows_that_are_wrong_are_named_and_no_path_is(sending: tuple[Path, Crowd, str]) -> None:
    folder, clients, token = sending
    before = blocks(folder, "cities")
    reply = post(clients.node.url, "cities", token, ROW + b'{"city": "Sion", "population": "many"}\n')
    assert (reply.status, blocks(folder, "cities")) == (400, before)
    assert "row 2" in reply.text
    assert "population" in reply.text
    assert str(folder.parent) not in reply.text
    assert "/run/" not in reply.text


# --- what is refused before it is recorded ----------------------------------------------------------


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, RunningNode, str]]:
    folder = tmp_path_factory.mktemp("refusing")
    token = make(folder)
    with running_node(folder, write=True) as node:
        yield folder, node, token
    assert not node.problems


def left(folder: Path) -> list[Path]:
    return [path for path in (folder / ".odfchain" / "run").glob("*/*") if path.is_file()]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"token": None}, 401),
        ({"token": "ka_other"}, 401),
        ({"token": "reader"}, 403),
        ({"dataset": "nothing"}, 404),
        ({"dataset": "two"}, 400),
        ({"query": "?source=default"}, 400),
        ({"content_type": "text/plain"}, 415),
        ({"content_type": "text/csv; charset=latin-1"}, 415),
        ({"content_encoding": "gzip"}, 415),
        ({"odf_event_time": "yesterday"}, 400),
        ({"idempotency_key": "k" * 256}, 400),
        ({"content_length": str(UPLOADS.body_bytes + 1)}, 413),
        ({"origin": "https://evil.example"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
    ],
)
def test_what_is_refused(
    refusing: tuple[Path, RunningNode, str], changes: dict[str, Any], status: int
) -> None:
    folder, node, token = refusing
    if changes.get("token") == "reader":
        file = TokenFile(folder / ".odfchain")
        changes = {"token": file.create("reader", ["read:%", "push:%", "query:%"]).text}
    reply = post(node.url, **{"dataset": "cities", "token": token, "body": b"", **changes})
    assert reply.status == status
    assert set(reply.text) >= set('{"message":}')
    assert not left(folder)


def test_a_body_of_unknown_length_is_bounded(
    refusing: tuple[Path, RunningNode, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("odfchain.node.uploads.UPLOADS", dataclasses.replace(UPLOADS, body_bytes=1 << 20))
    folder, node, token = refusing
    pieces = (b" " * 4_096 for _ in range(300))
    assert post(node.url, "cities", token, pieces).status == 413
    assert not left(folder)


def test_the_answer_to_a_body_that_is_not_read_arrives(refusing: tuple[Path, RunningNode, str]) -> None:
    folder, node, token = refusing
    assert post(node.url, "cities", token, b" " * (UPLOADS.body_bytes + 1)).status == 413
    assert post(node.url, "cities", "ka_other", b" " * (UPLOADS.body_bytes + 1)).status == 401
    assert not left(folder)


def opened(node: RunningNode | Node, token: str, *more: str, length: int = 100_000) -> socket.socket:
    where = urlsplit(node.url)
    to = socket.create_connection((where.hostname, where.port), timeout=60)
    fields = ["POST /cities/ingest HTTP/1.1", f"Host: {where.netloc}", f"Authorization: Bearer {token}"]
    fields += ["Content-Type: application/x-ndjson", f"Content-Length: {length}", *more]
    to.sendall("\r\n".join([*fields, "", ""]).encode())
    return to


def status_of(to: socket.socket) -> int:
    reply = http.client.HTTPResponse(to)
    reply.begin()
    return reply.status


def test_a_body_that_stops(refusing: tuple[Path, RunningNode, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("odfchain.node.uploads.UPLOADS", dataclasses.replace(UPLOADS, silent_seconds=0.2))
    folder, node, token = refusing
    with opened(node, token) as to:
        to.sendall(ROW)
        assert status_of(to) == 408
        assert to.recv(1) == b"", "the connection is closed"
    assert not left(folder)


def test_an_interim_answer_comes_before_the_body(refusing: tuple[Path, RunningNode, str]) -> None:
    _, node, token = refusing
    with opened(node, token, "Expect: 100-continue") as to:
        assert to.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    with opened(node, "ka_other", "Expect: 100-continue") as to:
        assert status_of(to) == 401


def test_a_token_that_is_revoked_in_the_middle_of_a_body(refusing: tuple[Path, RunningNode, str]) -> None:
    folder, node, _ = refusing
    file = TokenFile(folder / ".odfchain")
    with opened(node, file.create("short", ["ingest:%"]).text, "Expect: 100-continue") as to:
        assert to.recv(100).startswith(b"HTTP/1.1 100")
        file.revoke("short")
        to.sendall(ROW)
        assert status_of(to) == 401
    assert not left(folder)


def test_a_refused_body_does_not_end_the_connection(refusing: tuple[Path, RunningNode, str]) -> None:
    where = urlsplit(refusing[1].url)
    head = f"POST /cities/ingest HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: text/csv\r\n"
    with socket.create_connection((where.hostname, where.port), timeout=60) as to:
        for _ in range(2):
            to.sendall(f"{head}Content-Length: {len(ROW)}\r\n\r\n".encode() + ROW)  # at once, or it may end
            reply = http.client.HTTPResponse(to)
            reply.begin()
            assert (reply.status, bool(reply.read())) == (401, True)
            assert reply.headers["connection"] != "close"
            reply.close()


def test_too_many_are_sent_away(
    refusing: tuple[Path, RunningNode, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, node, token = refusing
    for few in ({"waiting": 0}, {"waiting_in_all": 0}):
        monkeypatch.setattr("odfchain.node.uploads.UPLOADS", dataclasses.replace(UPLOADS, **few))
        reply = post(node.url, "cities", token, ROW)
        assert (reply.status, reply.headers["retry-after"].isdigit()) == (429, True)


def test_a_node_that_stops_or_does_not_write_takes_nothing(refusing: tuple[Path, RunningNode, str]) -> None:
    folder, node, token = refusing
    node.node.parts.stopping = lambda: True
    assert post(node.url, "cities", token, ROW).status == 503
    node.node.parts.stopping = lambda: False
    with running_node(folder) as reading:
        assert post(reading.url, "cities", token, ROW).status == 403


def test_a_dataset_whose_key_is_elsewhere(tmp_path: Path) -> None:
    token = make(tmp_path)
    with Workspace.open(tmp_path) as workspace:
        workspace._files._key_path(workspace["cities"].id).unlink()
    with running_node(tmp_path, write=True) as node:
        reply = post(node.url, "cities", token, ROW)
    assert (reply.status, "its key is where it was made" in reply.text) == (403, True)


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    token = make(tmp_path)
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
    run = [sys.executable, "-c", "from odfchain.cli.main import run; run()"]
    node = Node(tmp_path, command=begun_with(limited, *run))
    try:
        assert post(node.url, "cities", token, ROW * 50_000).status == 507
        assert not left(tmp_path)
    finally:
        node.kill()
