"""SQL of others, asked of a node: who may ask what, how many at a time, and what ends with its client."""

from __future__ import annotations

import contextlib
import functools
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import odfchain as odf
from odfchain.errors import EngineError
from odfchain.limits import ASKED
from odfchain.node import queries
from odfchain.query import slots
from odfchain.query.walled import Worker
from odfchain.transform import sandbox
from tests.kit.processes import wait_until
from tests.kit.queried_workspace import add_numbers
from tests.kit.served_node import ServedNode, served
from tests.kit.support import fixture

SLOW = "select count(*) from x a, x b, x c, x d, x e, x f, x g, x h, x i, x j, x k, x l"
"""More pairs than ten seconds are enough for."""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[odf.Workspace]:
    with odf.init(tmp_path_factory.mktemp("asked")) as workspace:
        add_numbers(workspace, "x", [1_000])
        add_numbers(workspace, "secret", [3])
        yield workspace


@pytest.fixture(scope="module")
def node(workspace: odf.Workspace) -> Iterator[ServedNode]:
    with served(workspace, sql=True) as node:
        yield node


def leave(node: ServedNode, path: str) -> None:
    """Ask, and go away when the query runs."""
    parts, running = urlsplit(node.url), node.parts.queries.slots
    wait_until(lambda: running._free == slots.RUNNING)
    with socket.create_connection((parts.hostname, parts.port)) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        wait_until(lambda: running._free < slots.RUNNING)


def test_a_client_that_leaves_frees_its_place(node: ServedNode) -> None:
    path = f"/query?query={SLOW.replace(' ', '%20')}"
    began = time.monotonic()
    for _ in range(3):
        leave(node, path)
    wait_until(lambda: node.parts.queries.slots._free == slots.RUNNING)
    assert node.post("/query", {"query": "select 1 a"})[0] == 200
    assert time.monotonic() - began < 9, "a query ran to the end of its time"


def test_two_run_sixteen_wait_and_others_are_told_to_come_again(node: ServedNode) -> None:
    path, running = f"/query?query={SLOW.replace(' ', '%20')}", node.parts.queries.slots
    parts = urlsplit(node.url)
    with contextlib.ExitStack() as clients:
        for count in range(slots.RUNNING + slots.WAITING):
            client = clients.enter_context(socket.create_connection((parts.hostname, parts.port)))
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
            wait_until(lambda n=count: slots.RUNNING - running._free + len(running._queue) > n)
        reply = node.ask("/query?query=select%201")
        assert (reply.status, reply.headers["retry-after"]) == (503, "5")
        assert "too many queries" in json.loads(reply.body)["message"]
    wait_until(lambda: running._free == slots.RUNNING and not running._queue)
    assert node.get("/query?query=select%201%20a")[0] == 200


def test_a_query_that_takes_too_long_is_told_its_limit(
    workspace: odf.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "Worker", functools.partial(Worker, replace(ASKED, seconds=1.0)))
    with served(workspace, sql=True) as node:  # case 28 waits for ten seconds
        status, found = node.post("/query", {"query": SLOW})
    assert (status, found["message"]) == (400, "the query took longer than 1 s")


@pytest.mark.parametrize("case", fixture("node/hostile_queries.yaml"), ids=lambda case: case["title"])
def test_hostile_queries_are_refused_and_nothing_of_this_machine_is_said(
    case: dict[str, Any], node: ServedNode, workspace: odf.Workspace
) -> None:
    status, found = node.post("/query", {"query": case["sql"] * case.get("times", 1)})
    assert status == 400, found
    said = json.dumps(found)
    for text in case["says"]:
        assert text in said
    for secret in (str(workspace.path), str(Path.home()), "Traceback", ".odfchain"):
        assert secret not in said
    assert node.post("/query", {"query": "select 1 a"})[0] == 200


# --- rights -----------------------------------------------------------------------------------------------


def test_each_reader_asks_what_its_token_is_for(workspace: odf.Workspace) -> None:
    tokens = {
        name: {"Authorization": f"Bearer {workspace.tokens.create(name, allow).text}"}
        for name, allow in (
            ("both", ["query:%"]), ("one", ["query:x", "read:secret"]), ("none", ["read:%"]),
        )
    }  # fmt: skip
    with served(workspace, sql=True, restrict_reading=True) as node:

        def asked(sql: str, who: str, **more: Any) -> tuple[int, str]:
            status, found = node.post("/query", {"query": sql, **more}, **tokens.get(who, {}))
            return status, json.dumps(found)

        count = "select count(*) n from secret"
        assert asked(count, "both") == (200, '{"output": {"data": [{"n": 3}], "dataFormat": "JsonAoS"}}')
        assert "no dataset is called 'secret'" in asked(count, "one")[1]
        assert "no dataset is called 'secret'" in asked("select * from state(secret)", "one")[1]
        assert asked("select count(*) n from x", "one")[0] == 200
        assert asked(count, "none")[0] == 403
        assert asked(count, "nobody")[0] == 401
        given = {"id": str(workspace["secret"].id), "alias": "secret"}
        assert asked(count, "one", datasets=[given])[0] == 404
        assert asked(count, "both", datasets=[given])[0] == 200
        status, proof = node.post("/query", {"query": count, "include": ["proof"]}, **tokens["both"])
        assert status == 200
        del proof["output"]
        assert node.post("/verify", proof, **tokens["both"]) == (200, {"ok": True})
        status, verdict = node.post("/verify", proof, **tokens["one"])
        assert (status, verdict["error"]["kind"]) == (400, "VerificationFailed::DatasetNotFound")
        assert node.get("/secret/tail", **tokens["one"])[0] == 200
        assert node.get("/secret/tail", Authorization="Bearer ka_no")[0] == 401


def test_walls_that_cannot_be_had(workspace: odf.Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from odfchain.query import walled

    def none(otherwise: str = "") -> None:
        raise EngineError("no walls here", hint="mend it" + otherwise)

    monkeypatch.setattr(sandbox, "require_sandbox", none)
    monkeypatch.setattr(walled, "_SAID", set())
    with pytest.raises(EngineError, match="no walls here"), served(workspace, sql=True, walled=True):
        pass
    problems: list[str] = []
    with served(workspace, sql=True, on_problem=problems.append) as node:
        assert node.get("/query?query=select%201%20a")[0] == 200
        assert node.get("/query?query=select%201%20a")[0] == 200
    assert [text for text in problems if "no walls" in text] == problems
    assert len(problems) == 1


def test_a_process_is_loaded_ahead(workspace: odf.Workspace) -> None:
    with served(workspace, sql=True) as node:
        slots = node.parts.queries.slots

        def spare() -> Any:
            return next((each.spare for each in slots._loaders.values()), None)

        wait_until(spare)
        before = spare()
        assert node.get("/query?query=select%201%20a")[0] == 200
        wait_until(lambda: spare() not in (None, before))
        assert spare().loader is before.loader
    assert not spare().loader.fits
