"""Clients that send rows to a node, each request until it is answered, while the node is killed now and then."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.kit.node_process import Node
from tests.kit.running_node import Reply

PATIENCE = 120


def post(url: str, dataset: str, token: str | None, body: Any, query: str = "", **headers: str) -> Reply:
    """The reply to rows; `_` in names of headers stands for `-`."""
    where = urlsplit(url)
    fields = {"content-type": "application/x-ndjson"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        fields["authorization"] = f"Bearer {token}"
    with contextlib.closing(http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)) as to:
        to.request("POST", f"/{dataset}/ingest{query}", body, fields)
        reply = to.getresponse()
        return Reply(reply.status, {n.lower(): v for n, v in reply.getheaders()}, reply.read())


class Crowd:
    """Clients of a node that is another process after each kill."""

    def __init__(self, start: Callable[[], Node], token: str, dataset: str) -> None:
        self._start, self._token, self._dataset = start, token, dataset
        self.node = start()
        self.acknowledged: dict[str, str] = {}
        self._changed = threading.Condition()

    def send(self, posts: list[tuple[str, bytes]], clients: int, kills: int = 0) -> None:
        """Every client sends its share of (key, body) in order; the node is killed at equal intervals."""
        with ThreadPoolExecutor(clients) as pool:
            running = [pool.submit(self._client, posts[number::clients]) for number in range(clients)]
            before = len(self.acknowledged)
            for kill in range(1, kills + 1):
                enough = before + kill * len(posts) // (kills + 1)
                with self._changed:
                    assert self._changed.wait_for(lambda: len(self.acknowledged) >= enough, PATIENCE)  # noqa: B023
                self.restart()
            for each in running:
                each.result()

    def restart(self) -> None:
        """The node is killed, if it runs, and another one answers."""
        self.node.kill()
        with self._changed:
            self.node = self._start()
            self._changed.notify_all()

    def _client(self, posts: list[tuple[str, bytes]]) -> None:
        for key, body in posts:
            while True:
                node = self.node
                try:
                    reply = post(node.url, self._dataset, self._token, body, idempotency_key=key)
                except (OSError, http.client.HTTPException):
                    with self._changed:
                        assert self._changed.wait_for(lambda: self.node is not node, PATIENCE)  # noqa: B023
                    continue
                if reply.status == 200:
                    break
                assert reply.status in (429, 503), reply.body
            with self._changed:
                self.acknowledged[key] = reply.headers["odf-head"]
                self._changed.notify_all()


@contextlib.contextmanager
def crowd(folder: Path, env: dict[str, str], token: str, dataset: str) -> Iterator[Crowd]:
    """A crowd before a node over a folder, which ends here."""
    made = Crowd(lambda: Node(folder, env=env), token, dataset)
    try:
        yield made
    finally:
        made.node.process.terminate()
        made.node.process.wait(PATIENCE)
        made.node.process.stdout.close()
