"""The pages of SQL and of signed answers, as a browser without script asks for them."""

from __future__ import annotations

import html
import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa
import pytest

import odfchain as odf
from odfchain.query import slots
from odfchain.query.sql_text import pinned_text
from tests.kit.processes import wait_until
from tests.kit.queried_workspace import add_numbers
from tests.kit.root_rows import MADE, START, append, records, schema_with
from tests.kit.served_node import ServedNode, served
from tests.kit.support import fixture

SQL = "select v, v + 1 w\n-- in two lines: ä \u202e\nfrom x order by v"
OWN = {"Sec_Fetch_Site": "same-origin", "Origin": "null", "Content_Type": "application/x-www-form-urlencoded"}


def case(number: int) -> Any:
    return fixture(f"node/cases/{number}.yaml")


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[odf.Workspace]:
    with odf.init(tmp_path_factory.mktemp("pages")) as workspace:
        add_numbers(workspace, "x", [3])
        add_numbers(workspace, "org.large", [100_000])
        yield workspace


@pytest.fixture(scope="module")
def node(workspace: odf.Workspace) -> Iterator[ServedNode]:
    with served(workspace, sql=True) as node:
        yield node


def page(node: ServedNode, path: str, form: dict[str, str] | None = None, **headers: str) -> tuple[int, str]:
    """The status and the text of a page; a form is sent by POST."""
    if form is None:
        reply = node.ask(path, **headers)
    else:
        reply = node.ask(path, "POST", urlencode(form).encode(), **OWN | headers)
    assert reply.headers["content-security-policy"].startswith("default-src 'none'")
    return reply.status, reply.body.decode()


def shown(text: str) -> str:
    """What a person reads of it."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text.partition("<main")[2])).split())


def cells(text: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", text.partition("<tbody>")[2], re.DOTALL)
    return [re.findall(r"<bdi>(.*?)</bdi>", row) for row in rows]


@pytest.mark.parametrize("asked", case(14)["asked"])
def test_case_14_other_sites_have_nothing_asked_and_the_query_stays(
    asked: dict[str, Any], node: ServedNode
) -> None:
    status, text = page(node, asked["path"], asked.get("form"), **asked["headers"])
    assert status == asked["status"]
    for each in asked["says"]:
        assert each in html.unescape(text)


def kill_what_runs(node: ServedNode) -> None:
    """Kill the processes of queries once one of them has a query, as its text may do."""
    running = node.parts.queries.slots
    wait_until(lambda: any(each.loader.users for each in running._loaders.values()))
    for found in Path("/proc/self/task").glob("*/children"):
        for pid in found.read_text().split():
            if b"odfchain.query.walled" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("asked", case(28)["asked"], ids=lambda asked: asked["title"])
def test_case_28_answers_and_refusals(asked: dict[str, Any], node: ServedNode) -> None:
    if "killed" in asked:
        loaders = node.parts.queries.slots._loaders
        wait_until(lambda: [each for each in loaders.values() if each.spare and not each.loader.users])
        next(each.spare for each in loaders.values() if each.spare).ready()
        killing = threading.Thread(target=kill_what_runs, args=(node,))
        killing.start()
    target = urlencode({"q": asked["sql"]})
    with ThreadPoolExecutor(1) as beside:  # both may take ten seconds
        of_programs = None if "killed" in asked else beside.submit(node.get, f"/-/sql.json?{target}")
        status, text = page(node, f"/-/sql?{target}")
    assert status == asked["status"]
    for each in asked["says"]:
        assert each in shown(text)
    assert html.escape(asked["sql"], quote=False) in html.unescape(text) or asked["sql"] in html.unescape(
        text
    )
    if "rows" in asked:
        assert cells(text) == asked["rows"]
    if of_programs is None:
        killing.join()
        return
    status, document = of_programs.result()
    assert (status, document["query"]) == (asked["status"], asked["sql"])


def test_case_29_a_permalink_shows_the_same_rows_when_there_are_others(tmp_path: Any) -> None:
    wanted = case(29)
    with odf.init(tmp_path / "w") as workspace:
        root = add_numbers(workspace, "x", [2])
        with served(workspace, sql=True) as node:
            _, text = page(node, f"/-/sql?{urlencode({'q': wanted['sql']})}")
            link = html.unescape(re.findall(r'<a href="([^"]*)">Permalink', text)[0])
            assert str(workspace["x"].head) in link
            before = cells(text)
            append(root, records(schema_with(pa.field("v", pa.int64())), 2, [0], [START], [7]), MADE)
            assert cells(page(node, f"/-/sql?{urlencode({'q': wanted['sql']})}")[1]) == wanted["later"]
            assert cells(page(node, link)[1]) == before == wanted["rows"]


@pytest.mark.parametrize("pinned", case(29)["pinned"])
def test_case_29_the_query_of_a_permalink(pinned: dict[str, Any]) -> None:
    blocks = {name: f"b{number}" for number, name in enumerate(pinned["reads"])}
    assert pinned_text(pinned["sql"], blocks) == pinned["wanted"]


def test_case_30_an_answer_is_signed_checked_and_falsified(
    node: ServedNode, workspace: odf.Workspace
) -> None:
    wanted = case(30)
    _, text = page(node, f"/-/sql?{urlencode({'q': SQL})}")
    form = dict(re.findall(r'name="(asked|rows)" value="([^"]*)"', text))
    reply = node.ask("/-/sql/sign", "POST", urlencode(form).encode(), **OWN)
    assert reply.headers["content-disposition"] == 'attachment; filename="answer.json"'
    answer = reply.body.decode()
    assert json.loads(answer)["input"]["query"] == SQL
    for asked in wanted["checks"]:
        changed = answer.replace(*asked["replaced"]) if "replaced" in asked else answer
        status, text = page(node, "/-/proof", {"text": changed})
        if asked.get("compute"):
            form = dict(re.findall(r'name="(compute|text)" value="([^"]*)"', text))
            status, text = page(node, "/-/proof", {name: html.unescape(form[name]) for name in form})
        assert status == 200
        for each in asked["says"]:
            assert each in shown(text).lower(), each
    boundary = '--b\r\nContent-Disposition: form-data; name="file"; filename="a.json"\r\n\r\n'
    upload = f"{boundary}{answer}\r\n--b--\r\n".encode()
    reply = node.ask("/-/proof", "POST", upload, **OWN | {"Content_Type": "multipart/form-data; boundary=b"})
    assert "Valid" in reply.body.decode()
    assert page(node, "/-/proof", {"text": "{}"})[0] == 400
    assert page(node, "/-/sql/sign", {"asked": "f1620", "rows": "f1620"})[0] == 410


def test_case_31_a_long_query_is_posted_and_kept_in_the_field(node: ServedNode) -> None:
    wanted = case(31)
    for extra, status in ((1, 200), (0, 303)):
        text = "select 1 a -- ".ljust(wanted["characters"] - 1 + extra, "x")
        found, answer = page(node, "/-/sql", {"q": text})
        assert found == status
        assert (text in answer) == (status == 200)


@pytest.mark.parametrize("form", ["csv", "ndjson", "arrow", "parquet"])
def test_an_answer_is_downloaded_whole(form: str, node: ServedNode) -> None:
    sql = 'select v from "org.large" order by v'
    reply = node.ask(f"/-/sql.{form}?q={quote(sql)}")
    assert (reply.status, reply.headers["content-disposition"]) == (
        200,
        f'attachment; filename="answer.{form}"',
    )
    if form in ("csv", "ndjson"):
        assert reply.body.count(b"\n") == 100_000 + (form == "csv")
    elif form == "arrow":
        assert pa.ipc.open_stream(reply.body).read_all().num_rows == 100_000
    assert node.ask(f"/-/sql.{form}?q=select+nope").status == 400


def test_case_32_a_download_ends_with_its_client(node: ServedNode) -> None:
    sql = case(32)["sql"]
    parts, running = urlsplit(node.url), node.parts.queries.slots
    wait_until(lambda: running._free == slots.RUNNING)
    began = time.monotonic()
    with socket.create_connection((parts.hostname, parts.port)) as client:
        client.sendall(f"GET /-/sql.csv?q={quote(sql)} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
        received = 0
        while received < 100_000:
            received += len(client.recv(65_536))
        assert running._free < slots.RUNNING
    wait_until(lambda: running._free == slots.RUNNING)
    assert time.monotonic() - began < 20


def test_a_form_that_is_cut_off_is_refused(node: ServedNode) -> None:
    headers = OWN | {"Content_Type": "multipart/form-data"}  # it names no boundary
    assert node.ask("/-/proof", "POST", b"--x", **headers).status == 400


def test_case_33_there_is_no_box_without_sql(workspace: odf.Workspace) -> None:
    wanted = case(33)
    with served(workspace) as node:
        for path in wanted["missing"]:
            assert node.ask(path).status == 404
        assert "-/sql" not in node.ask("/").body.decode()
        assert node.ask("/-/proof").status == 200


def test_what_is_shown_is_escaped(node: ServedNode) -> None:
    for sql in ("select '<script>alert(1)</script>' a", 'select * from "<img src=x>"', "</textarea><b>"):
        text = page(node, f"/-/sql?{urlencode({'q': sql})}")[1]
        for acting in ("<script>", "<img src=x", "</textarea><b>"):
            assert acting not in text


def test_a_volatile_answer_is_shown_and_cannot_be_signed(node: ServedNode) -> None:
    status, text = page(node, f"/-/sql?{urlencode({'q': 'select now() is null a'})}")
    assert (status, cells(text)) == (200, [["false"]])
    assert "cannot be signed" in text


def test_a_name_beside_the_field_fills_it_and_runs_nothing(node: ServedNode) -> None:
    _, text = page(node, "/-/sql")
    link = html.unescape(re.findall(r'href="(/-/sql\?fill=[^"]*large[^"]*)"', text)[0])
    _, text = page(node, link)
    assert 'select * from "org.large"</textarea>' in html.unescape(text)
    assert "<tbody>" not in text
