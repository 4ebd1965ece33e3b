"""A node of several processes: what is read is read by all, what is written goes to one, and none outlives it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from odfchain.odf.times import Timestamp
from odfchain.transfer.open_peer import PeerOptions
from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit import smart_site
from tests.kit.node_process import Node
from tests.kit.processes import wait_until
from tests.kit.queried_workspace import add_numbers, new_workspace
from tests.kit.served_workspace import ask, make_dataset

SIZES = (700, 3_000_000)


@contextlib.contextmanager
def running(folder: Path, *options: str) -> Iterator[Node]:
    node = Node(folder, *options)
    try:
        yield node
    finally:
        node.process.kill()
        node.process.wait()
        node.process.stdout.close()


def readers(node: Node) -> list[int]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - names alone
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == node.process.pid and fields[0] != "Z":
                found.append(int(pid))
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node")
    add_numbers(new_workspace(folder), "numbers", [5, 5])
    return folder


@pytest.fixture(scope="module")
def node(home: Path) -> Iterator[Node]:
    """One of three processes, which ends when it is told to."""
    with running(home, "--sql-walled", "--flight", "0", "--workers", "3") as node:
        yield node
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(20) == 0


def test_pushes_and_pulls_by_whatever_process(node: Node, tmp_path: Path) -> None:
    token = node.token.create("me", ["push:%"], Timestamp.now()).text
    for number in range(6):  # connections end up with any of the processes
        ours = make_dataset(WorkspaceFiles.init(tmp_path / f"ours{number}"), f"cities{number}", *SIZES)
        url = f"{node.url}cities{number}"
        assert not smart_site.push(ours, url, token=token, retries=0).up_to_date
        reader = WorkspaceFiles.init(tmp_path / f"reader{number}")
        smart_site.pull(reader, f"odf+{url}", chosen=PeerOptions(retries=0))
        assert reader.dataset("cities").chain.head() == ours.chain.head()
    with urlopen(f"{node.url}-/metrics") as reply:  # noqa: S310 - on loopback
        text = reply.read().decode()
    counts = Counter()
    for kind, count in re.findall(r'odfchain_requests_total\{kind="(\w+)",status="\d+"\} (\S+)', text):
        counts[kind] += float(count)
    assert (counts["push"], counts["pull"]) == (6, 6)


def test_a_reader_that_dies_is_started_again_and_none_is_left(tmp_path: Path) -> None:
    make_dataset(WorkspaceFiles.init(tmp_path), "cities", 700)
    with running(tmp_path, "--workers", "2") as node:
        (one,) = wait_until(lambda: readers(node))
        os.kill(one, signal.SIGKILL)
        wait_until(lambda: (found := readers(node)) and found != [one])
        with urlopen(f"{node.url}cities/refs/head") as reply:  # noqa: S310 - on loopback
            assert reply.status == 200
        (other,) = wait_until(lambda: readers(node))
        node.kill()
        wait_until(lambda: not Path(f"/proc/{other}").exists())
    assert "another one is started" in (tmp_path / "log").read_text()


def test_whichever_process_is_asked_answers_what_the_first_one_offers(node: Node, home: Path) -> None:
    say = wait_until(lambda: re.search(r"Flight SQL is at (\S+)", (home / "log").read_text()))
    question = {"query": "select v from numbers order by v", "include": ["proof"], "limit": 3}
    for _ in range(3):  # connections end up with any of the processes

        def got(path: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
            reply = ask(node.url, path, "POST" if body else "GET", body, Content_Type=kind)
            assert reply.status == 200, (path, reply.body)
            return reply.body

        assert len(json.loads(got("/-/sql.json?q=select+v+from+numbers"))["answer"]["rows"]) == 10
        answer = got("/query", json.dumps(question).encode())
        assert [each["v"] for each in json.loads(answer)["output"]["data"]] == [0, 1, 2]
        sent = {name: part for name, part in json.loads(answer).items() if name != "output"}
        assert json.loads(got("/verify", json.dumps(sent).encode())) == {"ok": True}
        form = b"compute=1&text=" + quote(answer).encode()
        assert b"Valid" in got("/-/proof", form, "application/x-www-form-urlencoded")
        assert b"<h1" in got("/numbers/-/compare?a=2&b=3")
        assert b"odfchain state numbers" in got("/numbers/-/data.json?view=state")
        facts = json.loads(got("/-/node.json"))
        assert facts["flight"] == say[1]
        assert {each["name"] for each in facts["offers"] if each["there"]} == {"SQL", "Pushes"}
        assert say[1] in got("/-/about").decode()
        assert "/{ds}/ingest" in json.loads(got("/-/openapi.json"))["paths"]
        assert ask(node.url, "/numbers/ingest", "POST", b"{}").status == 401


@pytest.mark.parametrize("count", ["0", "65"])
def test_a_number_of_processes_has_bounds(tmp_path: Path, count: str) -> None:
    WorkspaceFiles.init(tmp_path)
    with running(tmp_path, "--workers", count) as node:
        assert node.process.wait(20) == 2
