"""Several sources are fetched side by side; what is new is recorded one after the other, in a fixed order."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from odfchain.api.pulling import Pulls
from odfchain.api.workspace import Workspace
from odfchain.errors import SourceNotFoundError
from odfchain.ingest.fetch_url import fetch_http
from odfchain.ingest.fetching import etag_state
from odfchain.progress import SILENT, DeferredProgress
from odfchain.workspace.options import PullOptions
from tests.kit.polled_sources import polled, rows
from tests.kit.servers import Reply, Request, Server, context
from tests.kit.support import Run

DATASETS = 7


class Source:
    """Answers when some requests are there at the same time, and counts them."""

    def __init__(self) -> None:
        self.version = 1
        self.now = self.most = 0
        self._together = threading.Condition()

    def __call__(self, request: Request) -> Reply:
        with self._together:
            self.now += 1
            self.most = max(self.most, self.now)
            self._together.notify_all()
            self._together.wait_for(lambda: self.most >= 2, timeout=10)
        time.sleep(0.05)
        with self._together:
            self.now -= 1
        tag = f'"{self.version}"'
        if request.target == "/3":
            return Reply(404)
        if request.headers.get("if-none-match") == tag:
            return Reply(304)
        body = f"city,population\n{request.target},{self.version}\n".encode()
        return Reply(headers={"ETag": tag}, body=body)


def sources(workspace: Workspace, server: Server, count: int = DATASETS) -> None:
    for number in range(count):
        polled(workspace, f"kind: Url, url: '{server.url(f'/{number}')}'", check=False)
        workspace.rename("cities", f"d{number}")


def test_sources_are_fetched_side_by_side_and_recorded_in_order(workspace: Workspace, run_cli: Run) -> None:
    source = Source()
    with Server(source) as server:
        sources(workspace, server)
        first = run_cli("-w", workspace.path, "pull", "--all", "-o", "json")
        assert 2 <= source.most <= 4
        again = run_cli("-w", workspace.path, "pull", "--all", "-o", "json")
        source.version = 2
        named = run_cli("-w", workspace.path, "pull", "d5", "d1", "-o", "json")
    names = [f"d{number}" for number in range(DATASETS) if number != 3]
    for result, status in ((first, "updated"), (again, "up to date")):
        assert result.code == 8
        assert [(row["dataset"], row["status"]) for row in result.rows] == [(name, status) for name in names]
        assert result.err.count("error: d3: ") == 1
    assert [row["dataset"] for row in named.rows] == ["d5", "d1"]
    for name in names:
        number = name[1:]
        new = [[0, f"/{number}", 2]] if number in "15" else []
        assert rows(workspace[name]) == [[0, f"/{number}", 1], *new]
        assert [path.name for path in (workspace[name].path / "staging").iterdir()] == [".lock"]


def test_a_head_that_moved_meanwhile_is_fetched_for_anew(workspace: Workspace) -> None:
    """Another command was faster: its bytes are not recorded twice."""
    source = Source()
    with Server(source) as server:
        sources(workspace, server, 2)
        targets = workspace.pull_targets()
        with contextlib.closing(Pulls(workspace, targets, PullOptions())) as pulls:
            assert pulls.pull(targets[0], SILENT).status == "updated"
            assert workspace["d1"].pull().status == "updated"
            assert pulls.pull(targets[1], SILENT).status == "up to date"
    assert rows(workspace["d1"]) == [[0, "/1", 1]]


def test_what_nobody_takes_is_given_up(workspace: Workspace) -> None:
    """As by Ctrl-C: nothing of it stays, and a server that says nothing is not waited for."""
    server = Server(lambda request: Reply(stall=True) if request.target == "/2" else Source()(request))
    source = Source()
    source.most = 2
    with server, Server(source) as quick:
        sources(workspace, quick, 2)
        polled(workspace, f"kind: Url, url: '{server.url('/2')}'", check=False)
        targets = workspace.pull_targets()
        assert [str(target) for target in targets] == ["cities", "d0", "d1"]
        begun, head = time.monotonic(), workspace["d1"].head
        with contextlib.closing(Pulls(workspace, [*targets[1:], targets[0]], PullOptions())) as pulls:
            assert pulls.pull(targets[1], SILENT).status == "updated"
        assert time.monotonic() - begun < 50, "a byte is waited for a minute"
        assert [path.name for path in (workspace["d1"].path / "staging").iterdir()] == [".lock"]
        assert workspace["d1"].head == head


class Heard:
    """What was said, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def phase(self, name: str, total: int | None = None) -> None:
        self.said.append(f"{name} of {total}")

    def advance(self, steps: int = 1) -> None:
        self.said.append(f"+{steps}")

    def note(self, text: str) -> None:
        self.said.append(text)


def test_what_is_said_ahead_of_its_turn_is_kept() -> None:
    progress, heard = DeferredProgress(), Heard()
    progress.phase("first", 5)
    progress.note("a note")
    progress.phase("second")
    progress.advance(2)
    progress.advance(3)
    progress.show_on(heard)
    progress.advance(4)
    progress.note("another")
    assert heard.said == ["second of None", "+5", "a note", "+4", "another"]
    progress.stop()
    with pytest.raises(KeyboardInterrupt):
        progress.advance(1)


def test_spark_is_begun_for_new_bytes_and_never_without(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[int] = []
    source = Source()
    source.most = 2
    with Server(source) as server:
        monkeypatch.setattr(workspace._engines, "begin", lambda: begun.append(len(server.requests)))
        sources(workspace, server, 2)
        workspace["d0"].pull()
        assert begun[0] == 1
        begun.clear()
        assert workspace["d0"].pull().status == "up to date"
        assert begun == []


@pytest.mark.parametrize(
    ("status", "headers", "previous", "calls"),
    [
        (200, {"ETag": '"2"'}, '"1"', 1),
        (200, {"ETag": '"1"'}, '"1"', 0),
        (304, {}, '"1"', 0),
        (200, {}, None, 1),
        (200, {}, '"1"', 0),  # only the bytes will tell
        (404, {}, None, 0),
    ],
)  # fmt: skip
def test_new_bytes_are_announced_before_they_come(
    tmp_path: Path, status: int, headers: dict[str, str], previous: str | None, calls: int
) -> None:
    announced, sent, go_on = list[bool](), threading.Event(), threading.Event()

    class Late:
        def __iter__(self) -> Iterator[bytes]:
            if calls:
                go_on.wait(10)
            sent.set()
            yield b"a,b\n"

    def expect() -> None:
        announced.append(sent.is_set())
        go_on.set()

    reply = Reply(status, headers, pieces=Late()) if status == 200 else Reply(status)
    state = None if previous is None else etag_state(previous)
    refused = pytest.raises(SourceNotFoundError) if status == 404 else contextlib.nullcontext()
    with Server(reply) as server, refused:
        fetch_http(server.url(), [], context(tmp_path, state, expect_rows=expect, name="x"))
    assert announced == [False] * calls
