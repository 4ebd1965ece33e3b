"""The numbered cases of the smart protocol: each has its tests, and those that are mostly data are here."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import re
import selectors
import socket as sockets
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus

from odfchain.errors import ChainsDifferError, NameCollisionError, OdfchainError
from odfchain.limits import SMART
from odfchain.odf.names import DatasetAlias
from odfchain.transfer import node_pushes, server_app
from odfchain.transfer.access_tokens import PushSessions
from odfchain.transfer.block_batch import packed
from odfchain.transfer.smart_messages import BlocksBatch, PulledBlocks, document_of
from odfchain.workspace.options import ServeOptions
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.node_stand_in import files_of, node, planned
from tests.kit.scenario import chain_of, extend, install
from tests.kit.served_workspace import ask, make_dataset
from tests.kit.smart_cases import CASES, row, rows
from tests.kit.smart_site import (
    COMPLETE,
    OK,
    PULL,
    Site,
    asked_for_objects,
    blocks,
    closed,
    conversation,
    objects,
    pull,
    raw,
    say,
    started,
)

LABELS = ["seed", "schema", "d1", "x", "d2"]


def test_each_case_has_tests_that_there_are() -> None:
    assert list(CASES) == list(range(1, 36))
    without = {number for number, case in CASES.items() if not case.get("tests")}
    assert without == {number for number, case in CASES.items() if case.get("not_here")} == {33, 34}
    for case in CASES.values():
        for test in case.get("tests", ()):
            path, name = test.split("::")
            module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
            assert callable(getattr(module, name)), test


# --- before the upgrade -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [*rows(7), *rows(8), *rows(9)],
    ids=lambda case: f"{case['socket']} {case['version']} {case['token']} {case.get('path', '')}",
)
def test_who_may_not_is_refused_before_the_upgrade(case: dict[str, Any], site: Site) -> None:
    make_dataset(site.node, "cities")
    shown = {
        "good": site.token,
        "unknown": lambda: "ka_other",
        "revoked": lambda: site.token(name="gone"),
        "for others": lambda: site.token("push:towns", "push:alice/%", "force:%", name="other"),
    }
    token = None if case["token"] is None else shown[case["token"]]()
    if case["token"] == "revoked":  # noqa: S105 - none
        site.tokens.revoke("gone")
    path = f"{case.get('path', 'cities')}/{case['socket']}"
    with (
        pytest.raises(InvalidStatus) as refused,
        conversation(site.url, path, token, version=case["version"]),
    ):
        pass
    response = refused.value.response
    assert response.status_code == case["status"]
    assert json.loads(response.body or b"") == {"message": case["message"]}
    assert response.headers["content-type"] == "application/json"


# --- blocks -------------------------------------------------------------------------------------------

CHAIN = chain_of(LABELS)


def pulled(answer: Any, tmp_path: Path) -> OdfchainError:
    """What is said of a pull whose blocks come as this."""
    ours = WorkspaceFiles.init(tmp_path / "pulled")
    with (
        node(files_of(CHAIN), lambda _: planned(CHAIN), lambda _: answer) as n,
        pytest.raises(OdfchainError) as refused,
    ):
        pull(ours, f"odf+{n.url}cities")
    assert n.done.wait(20)
    assert n.ended, "the client closes the connection"
    assert list(ours.datasets()) == []
    return refused.value


def pushed(document: Any, site: Site) -> tuple[int, str]:
    """How a node ends a push whose blocks come as this."""
    with site.socket(site.token()) as socket:
        assert say(socket, started(CHAIN)) == OK
        socket.send(json.dumps(document))
        found = closed(socket)
    assert not list((site.node.root / "datasets").iterdir())
    return found


@pytest.mark.parametrize("case", rows(12), ids=lambda case: str(case["payload"]))
def test_a_payload_that_is_no_bytes(case: dict[str, Any], site: Site, tmp_path: Path) -> None:
    batch = document_of(PulledBlocks(blocks=packed(raw(CHAIN))))["blocks"] | {"payload": case["payload"]}
    refused = pulled({"blocks": batch}, tmp_path)
    assert (refused.exit_code, case["says"] in str(refused)) == (case["exit"], True)
    assert pushed({"new_blocks": batch}, site)[0] == case["code"]


@pytest.mark.parametrize("case", rows(13), ids=lambda case: f"{case['field']} {case['value']}")
def test_blocks_in_another_form_are_named(case: dict[str, Any], site: Site, tmp_path: Path) -> None:
    document = document_of(PulledBlocks(blocks=packed(raw(CHAIN))))
    document["blocks"][case["field"]] = case["value"]
    refused = pulled(document, tmp_path)
    assert (refused.exit_code, repr(case["value"]) in str(refused)) == (case["exit"], True)
    assert pushed({"new_blocks": document["blocks"]}, site)[0] == case["code"]


def test_a_head_that_moves_while_it_is_pulled(site: Site) -> None:
    (case,) = rows(14)
    chain = chain_of(case["labels"])
    dataset = install(site.node, "cities", chain)
    with conversation(site.url, "cities/pull") as socket:
        assert say(socket, PULL)["Ok"]["transfer_plan"]["num_blocks"] == case["num_blocks"]
        extend(dataset, chain_of(case["labels"] + case["more"]))
        batch = say(socket, {})["blocks"]
    assert batch["num_blocks"] == case["num_blocks"]
    assert bytes(batch["payload"]) == packed(raw(chain)).payload


def test_a_push_without_objects(site: Site) -> None:
    (case,) = rows(21)
    chain = chain_of(case["labels"])
    assert chain.files == []
    with site.socket(site.token()) as socket:
        batch, done = blocks(packed(raw(chain))), {"details": case["details"]}
        messages = [started(chain), batch, objects(chain), done, {}]
        assert [next(iter(message), "") for message in messages] == case["said"]
        assert say(socket, messages[0]) == say(socket, messages[1]) == OK
        assert say(socket, messages[2]) == {"Ok": {"object_transfer_strategies": []}}
        socket.send(json.dumps(messages[3]))
        assert say(socket, messages[4]) == {}
    assert site.head() == chain.head


def test_nothing_is_there_before_the_commit(site: Site) -> None:
    """Case 26."""
    chain, token = chain_of(LABELS), site.token()
    names = {"id": install(site.ours, "cities", chain).id, "head": chain.head, "object": chain.files[0]}
    said: list[list[int]] = []

    def look() -> None:
        said.append([ask(site.url, case["path"].format(**names)).status for case in rows(26)])
        assert json.loads(ask(site.url, "/datasets.json").body)["datasets"] == []

    with site.socket(token) as socket:
        asked_for_objects(socket, chain)
        look()
        site.upload(chain, token)
        socket.send(COMPLETE)
        look()
        assert say(socket, {}) == {}
    assert said == [[case["status"] for case in rows(26)]] * 2
    assert [ask(site.url, case["path"].format(**names)).status for case in rows(26)] == [200] * len(rows(26))


# --- names and ids that are taken ---------------------------------------------------------------------

STEPS = ["begin", "blocks", "objects", "commit"]


@pytest.mark.parametrize("case", rows(27), ids=lambda case: f"{case['taken']} before {case['before']}")
def test_names_and_ids_that_are_taken(case: dict[str, Any], site: Site) -> None:
    chain, other = chain_of(["seed", "schema", "x"]), chain_of(["seed 2", "schema"])
    name, taken_by = ("cities", other) if case["taken"] == "name" else ("towns", chain)
    messages = zip(STEPS, (started(chain), blocks(packed(raw(chain))), objects(chain), {}), strict=True)
    with site.socket(site.token()) as socket:
        answer: Any = None
        for step, message in messages:
            if step == case["before"]:
                taken = install(site.node, name, taken_by)
            if step == "commit":
                socket.send(COMPLETE)
            socket.send(json.dumps(message))
            try:
                answer = json.loads(socket.recv(20))
            except Exception:
                answer = json.loads(closed(socket)[1])
            if "Err" in answer:
                break
    expected = json.dumps(case["answer"]).replace("{id}", str(taken.id)).replace("{other}", str(other.head))
    reason = json.loads(expected)
    if "RefCollision" not in reason:
        assert answer == {"Err": reason}
    else:  # a close frame holds no whole id and its braces
        assert list(answer["Err"]) == ["RefCollision"]
        assert reason["RefCollision"]["dataset_id"].startswith(answer["Err"]["RefCollision"]["dataset_id"])
    assert site.node.dataset(DatasetAlias.parse(name)).chain.head() == taken_by.head


def test_our_client_names_what_is_taken(site: Site) -> None:
    token = site.token("push:%", "force:%")
    dataset = install(site.ours, "cities", chain_of(LABELS))
    install(site.node, "towns", chain_of(LABELS))
    with pytest.raises(NameCollisionError, match="under another name") as refused:
        site.push("cities", token)
    assert (refused.value.exit_code, str(dataset.id) in str(refused.value)) == (CASES[27]["exit"], True)
    other = chain_of(["seed 2", "schema"])
    install(site.node, "cities", other)
    with pytest.raises(ChainsDifferError) as differ:
        site.push("cities", token)
    assert (differ.value.exit_code, differ.value.destination_head) == (CASES[27]["exit"], str(other.head))
    assert site.head() == other.head


# --- long chains --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.soak if case["soak"] else ()) for case in rows(30)],
    ids=lambda case: str(case["blocks"]),
)
def test_a_chain_that_is_longer_than_a_batch(
    case: dict[str, Any], site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if case["most"] != SMART.blocks:
        limits = replace(SMART, blocks=case["most"])
        for module in ("block_batch", "node_pushes", "node_pulls", "node_store"):
            monkeypatch.setattr(f"odfchain.transfer.{module}.SMART", limits)
    chain = chain_of(["seed", "schema", *(f"note {n}" for n in range(case["blocks"] - 2))])
    install(site.ours, "cities", chain)
    sent: list[int] = []
    take = node_pushes.PushServing.take_blocks

    def taken(target: node_pushes.PushServing, batch: BlocksBatch) -> Any:
        sent.append(batch.num_blocks)
        return take(target, batch)

    monkeypatch.setattr(node_pushes.PushServing, "take_blocks", taken)
    site.push("cities", site.token())
    assert sent == case["pushes"]
    assert site.head() == chain.head
    pulls: list[str] = []
    answer = server_app.Repository._converse

    async def conversed(self: Any, scope: Any, *more: Any) -> None:
        pulls.append(scope["path"])
        await answer(self, scope, *more)

    monkeypatch.setattr(server_app.Repository, "_converse", conversed)
    assert pull(WorkspaceFiles.init(tmp_path / "third"), f"odf+{site.url}cities").new == chain.head
    assert pulls == [], "it is walked"
    with conversation(site.url, "cities/pull") as socket:
        said = say(socket, PULL)
    assert said["Err"]["Internal"]["error_message"] == "Too many blocks."


# --- what is too large, and what does not come ----------------------------------------------------------


def test_a_frame_that_is_too_large_takes_no_memory(site: Site) -> None:
    """Its head says how long it is: the connection ends there, however much is sent."""
    case = row(32, frame_bytes=25 << 20)
    parts = urlsplit(site.url)
    shown = f"Authorization: Bearer {site.token()}\r\n"
    key = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    for what in ("push", "pull"):
        install(site.node, f"cities.{what}", chain_of([f"seed {what}", "schema"]))
        with sockets.create_connection((parts.hostname or "", parts.port or 0), timeout=20) as link:
            link.sendall(
                f"GET /cities.{what}/{what} HTTP/1.1\r\nHost: localhost\r\n"
                f"Connection: Upgrade\r\nUpgrade: websocket\r\n{key}{shown}x-odf-smtp-version: 1\r\n\r\n".encode()
            )
            assert link.recv(12) == b"HTTP/1.1 101"
            before = peak_memory(anew=True)
            link.sendall(struct.pack(">BBQ4s", 0x81, 0xFF, case["frame_bytes"], b"\0" * 4))
            with contextlib.suppress(OSError):
                for _ in range(case["frame_bytes"] >> 16):
                    link.sendall(bytes(1 << 16))
            said = b""
            with contextlib.suppress(OSError):
                while piece := link.recv(1 << 16):
                    said += piece
        assert struct.pack(">H", case["code"]) in said
        assert peak_memory() - before < case["growth_bytes"]


def peak_memory(*, anew: bool = False) -> int:
    """The most that this process has had in memory [bytes], since it was asked anew."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) << 10


class _Jumping(selectors.SelectSelector):
    """Nobody waits: the clock of the loop is where the next timer is."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout:
            self.now += timeout
        return ready


def timed(what: str, heard: list[Any], site: Site) -> list[tuple[float, Any]]:
    """What an application says, and when by its own clock, to a client that says this and then nothing."""
    selector = _Jumping()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now
    published = server_app.Repository(site.node, ServeOptions(write=True))
    writing = published._writing
    writing.sessions = PushSessions(now=loop.time)
    said: list[tuple[float, Any]] = []
    messages = [{"type": "websocket.receive", "text": json.dumps(each)} for each in heard]

    async def receive() -> Any:
        if not messages:
            await asyncio.Event().wait()
        return messages.pop(0)

    async def send(message: Any) -> None:
        said.append((loop.time(), message))

    headers = {"host": "h", "x-odf-smtp-version": "1", "authorization": f"Bearer {site.token()}"}
    scope = {
        "type": "websocket",
        "scheme": "ws",
        "path": f"/cities/{what}",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    try:
        loop.run_until_complete(published(scope, receive, send))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
    assert said[0][1]["type"] == "websocket.accept"
    return said[1:]


def test_silence_ends_a_conversation(site: Site) -> None:
    case = row(32, silent_seconds=60.0)
    chain = chain_of(LABELS)
    end = {"type": "websocket.close", "code": case["code"], "reason": case["reason"]}
    assert timed("push", [], site) == [(case["silent_seconds"], end)]
    site.tokens.revoke("me")
    heard = [started(chain), blocks(packed(raw(chain))), objects(chain)]
    *said, last = timed("push", heard, site)
    begun = said[2][0]
    pings = [round(at - begun, 6) for at, message in said[3:] if message["text"] == "{}"]
    assert (pings, last) == (case["pings_at"], (begun + case["silent_seconds"], end))
    site.tokens.revoke("me")
    install(site.node, "cities", chain)
    assert timed("pull", [], site) == [(case["silent_seconds"], end)]
