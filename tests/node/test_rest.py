"""What programs ask a node over HTTP: recorded answers of the reference node, forms, refusals, changes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.node.rest import OPERATIONS
from odfchain.query.answers import read_answer
from tests.kit.node_types import RECORDED, SIGNED, workspace_with_types
from tests.kit.queried_workspace import add_numbers
from tests.kit.root_rows import MADE, START, add_root, append, records, schema_with
from tests.kit.served_node import ServedNode, served, sign_as_reference
from tests.kit.support import IMPORTABLE, ROOT, code_of, fixture

FORMS = fixture("node/rest.yaml")
_OTHER_WORDS = {"bad_sql", "unknown_table", "unknown_field", "me", "volatile"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[odf.Workspace]:
    with workspace_with_types(tmp_path_factory.mktemp("rest")) as workspace:
        sign_as_reference(workspace)
        yield workspace


@pytest.fixture(scope="module")
def node(workspace: odf.Workspace) -> Iterator[ServedNode]:
    with served(workspace, sql=True) as node:
        yield node


# --- case 47: what the reference node answered ----------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in RECORDED if name not in _OTHER_WORDS])
def test_case_47_recorded_answers_are_given_byte_for_byte(name: str, node: ServedNode) -> None:
    case = RECORDED[name]
    reply = node.ask(case["path"], case["method"], case["body"])
    assert reply.status == case["status"]
    if name in SIGNED:
        answer = read_answer(reply.body, name)
        assert reply.headers["odf-engine"] == answer.engine == "datafusion 55.0.0"
        assert answer.to_json(engine=False) == case["response_text"]
    elif name.startswith(("verify_bad", "verify_unknown")):
        wanted, found = json.loads(case["response_text"]), json.loads(reply.body)
        assert (found["ok"], found["error"]["kind"]) == (False, wanted["error"]["kind"])
    elif name in ("tail_schema", "info"):  # members in another order, blanks
        assert json.loads(reply.body) == json.loads(case["response_text"])
    else:
        assert reply.body.decode() == case["response_text"]


@pytest.mark.parametrize("name", sorted(_OTHER_WORDS))
def test_case_47_refusals_are_refused_in_words_of_ours(name: str, node: ServedNode) -> None:
    case, wanted = RECORDED[name], FORMS["other_words"][name]
    reply = node.ask(case["path"], case["method"], case["body"])
    assert reply.status == wanted["status"]
    assert wanted["message"] in json.loads(reply.body)["message"]


# --- forms ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", FORMS["asked"], ids=lambda case: case["title"])
def test_forms(case: dict[str, Any], node: ServedNode) -> None:
    body = case.get("body")
    raw = case["raw"].encode() if "raw" in case else body
    reply = node.ask(case["path"], case.get("method", "GET"), raw, **case.get("headers", {}))
    assert reply.status == case["status"], reply.body
    found = json.loads(reply.body)
    if "answer" in case:
        assert found == case["answer"]
    for text in case.get("says", ()):
        assert text in reply.body.decode()


def test_case_38_tail_skips_the_newest(tmp_path: Path) -> None:
    with odf.init(tmp_path / "w") as workspace:
        add_numbers(workspace, "x", [2])
        with served(workspace) as node:
            status, found = node.get("/x/tail?skip=1&limit=1")
            assert (status, [row["offset"] for row in found["data"]]) == (200, [0])
            assert node.ask("/query?query=select%201").status == 404


def test_case_30_text_that_hurts_is_refused_and_the_server_lives(node: ServedNode) -> None:
    status, found = node.post("/query", {"query": "select 1" + "+1" * 20_000})
    assert status == 400
    assert "20,000 operators; at most 2,000" in found["message"]
    assert node.post("/query", {"query": "select 1 x"}) == (
        200,
        {"output": {"data": [{"x": 1}], "dataFormat": "JsonAoS"}},
    )


def test_bodies_are_not_read_beyond_their_bound(node: ServedNode) -> None:
    for path, most in (("/query", 256 << 10), ("/verify", 16 << 20)):
        reply = node.ask(path, "POST", None, Content_Type="application/json", Content_Length=str(most + 1))
        assert reply.status == 413


def test_operations_are_declared_for_each_route(node: ServedNode) -> None:
    assert {(each.method, each.path) for each in OPERATIONS} == {tuple(each) for each in FORMS["operations"]}
    assert all(each.summary and each.responses for each in OPERATIONS)


# --- changes ----------------------------------------------------------------------------------------------


def test_changes_come_from_an_offset_and_when_they_are_committed(tmp_path: Path) -> None:
    with odf.init(tmp_path / "w") as workspace:
        root = add_numbers(workspace, "x", [2, 1])
        schema = schema_with(pa.field("v", pa.int64()))
        with served(workspace) as node:
            first = node.ask("/x/changes?after=0")
            assert [json.loads(line)["offset"] for line in first.body.splitlines()] == [1, 2]
            assert (first.headers["odf-last-offset"], first.headers["content-type"]) == (
                "2",
                "application/x-ndjson",
            )
            assert [json.loads(line)["v"] for line in node.ask("/x/changes?limit=2").body.splitlines()] == [
                0,
                1,
            ]
            nothing = node.ask("/x/changes?after=2&wait=0")
            assert (nothing.status, nothing.body, nothing.headers["odf-last-offset"]) == (200, b"", "2")
            arrow = node.ask("/x/changes?after=1&dataFormat=arrow").body
            assert pa.ipc.open_stream(arrow).read_all().column("offset").to_pylist() == [2]

            waiting: list[Any] = []
            client = threading.Thread(target=lambda: waiting.append(node.ask("/x/changes?after=2&wait=20")))
            client.start()
            while not node.parts.heads.clients:
                time.sleep(0.01)
            append(root, records(schema, 3, [0], [START], [7]), MADE)
            client.join()
            assert [json.loads(line)["v"] for line in waiting[0].body.splitlines()] == [7]
            assert node.parts.heads.clients == 0


def test_the_manual_is_typed(tmp_path: Path) -> None:
    folder = tmp_path / "typed"
    with odf.init(folder) as workspace:
        schema = schema_with(pa.field("id", pa.int64()), pa.field("city", pa.string()))
        root = add_root(workspace, "stations", schema)
        append(root, records(schema, 0, [0, 0], [START] * 2, [1, 2], ["Basel", "Chur"]), MADE)
    (asked,) = (code for code in code_of("docs/rest.md") if "curl" in code)
    program = f"'{sys.executable}' -c 'import sys; from odfchain.cli.main import main; sys.exit(main())'"
    script = f"odfchain() {{ exec {program} \"$@\"; }}; trap 'kill $(jobs -p)' EXIT\n{asked}"
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=IMPORTABLE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs" / "rest.md").read_text(encoding="utf-8")
    printed = re.findall(r'^\{".*\}$', page, re.MULTILINE)
    assert len(printed) == 2
    assert all(line in done.stdout for line in printed)
    assert '"offset":1' in done.stdout
    assert '"refs":[{"name":"head","blockHash":"f1620' in done.stdout
