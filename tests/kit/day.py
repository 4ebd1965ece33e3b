"""All that a node is asked for in a day: clients of each kind, which keep what they were told, and its deaths."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import itertools
import json
import random
import re
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from odfchain.api.settings import DatasetConfiguration
from odfchain.api.workspace import Workspace
from odfchain.errors import OdfchainError
from odfchain.node.schedule import Outcome, Schedule
from odfchain.odf.block_codec import decode_block
from odfchain.odf.events import AddData
from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes
from odfchain.odf.times import Timestamp
from odfchain.storage import fsio
from odfchain.transfer.access_tokens import TokenFile
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.node_process import Node
from tests.kit.polled_sources import APPEND, CSV, MANIFEST
from tests.kit.root_rows import START, add_root, append, append_all, records, schema_with
from tests.kit.running_node import Reply
from tests.kit.servers import Reply as Answer
from tests.kit.servers import Request, Server
from tests.kit.smart_site import push
from tests.kit.support import configure, manifest

PATIENCE = 120
ROWS = 20
SENT, BIG = "sent", "big"
MIDNIGHT = Timestamp.parse("2026-03-02T00:00:00Z")
NEWEST = Timestamp.parse("2024-01-01T00:00:00Z")
_BIG_BYTES, _SLOW_BYTES = 16 << 20, 16 << 10
SCHEMA = schema_with(pa.field("v", pa.int64()))
BYTES = schema_with(pa.field("v", pa.binary()))


@dataclasses.dataclass(frozen=True)
class Answered:
    """A request, in which life of the node, and how long it took [s]."""

    life: int
    kind: str
    status: int
    seconds: float


class Source:
    """Files on the web that are other ones in each hour."""

    def __init__(self) -> None:
        self.hour = 0
        self.asked: set[tuple[str, int]] = set()

    def __call__(self, request: Request) -> Answer:
        tag, name = f'"{self.hour}"', request.target.removeprefix("/")
        self.asked.add((name, self.hour))
        if request.headers.get("if-none-match") == tag:
            return Answer(304, {"ETag": tag})
        return Answer(headers={"ETag": tag}, body=f"city,population\n{name} {self.hour},1\n".encode())


class Day:
    """A node in a folder, its workspace, and what its clients know."""

    def __init__(self, folder: Path, scene: dict[str, Any], env: dict[str, str], server: Server) -> None:
        self.scene, self.env, self.folder = scene, env, folder / "node"
        self.clock = folder / "clock"
        self.turn(0)
        self.workspace = Workspace.init(self.folder)
        configure(self.workspace.path, engine={"idle": "5m"})  # pulls share the session of uploads
        self.workspace.add(manifest(kind="NdJson", name=SENT))
        self._big = add_root(self.workspace, BIG, BYTES)
        append(self._big, records(BYTES, 0, [0], [START], [random.Random(1).randbytes(_BIG_BYTES)]), NEWEST)
        for number in range(scene["sources"]):
            fetch = f"{{kind: Url, url: '{server.url(f'/hourly-{number}')}'}}"
            text = MANIFEST.format(fetch=fetch, prepare="[]", read=f"{{{CSV}}}", preprocess="", merge=APPEND)
            (dataset,) = self.workspace.add(
                text.replace("name: cities", f"name: hourly-{number}"), check=False
            )
            DatasetConfiguration.of(dataset).set("pull.every", ["1h"])
        ours = Workspace.init(folder / "ours")
        names = [f"pushed-{n}" for n in range(scene["clients"]["push"])]
        self.pushed: dict[str, DatasetFiles] = {name: add_root(ours, name, SCHEMA) for name in names}
        self.tokens = TokenFile(self.workspace.path)
        self._token = self.tokens.create("day", ["ingest:%"]).text
        self._pushing = {name: self.tokens.create(name, [f"push:{name}"]).text for name in names}
        self._leaver = self.tokens.create("leaver", ["ingest:%"]).text
        self.acknowledged: dict[str, list[Multihash]] = {name: [] for name in names}
        self.rows: dict[str, int] = {}
        """Rows of each dataset that are there for sure."""
        self.sent: list[str] = []
        self.answered: list[Answered] = []
        self.faults: list[str] = []
        self.resumed: Counter[int] = Counter()
        """Pushes of each life that had begun in another one."""
        self.life, self.up, self.over = 0, threading.Event(), threading.Event()
        self._left, self.gone, self._begun = threading.Event(), threading.Event(), threading.Event()
        self.url = ""

    # --- the node and its clock ----------------------------------------------------------------------

    def turn(self, hour: int) -> None:
        fsio.replace_file(self.clock, str(MIDNIGHT.shifted(hour * 3_600_000)).encode())

    def start(self) -> None:
        """Start the node, at the port that it had."""
        port = str(urlsplit(self.url).port or 0)
        command = (sys.executable, "-m", "tests.kit.turned_node", str(self.clock))
        self.life += 1
        self.node = Node(self.folder, "--sql", "--pull", "--port", port, env=self.env, command=command)
        assert self.node.url, (self.folder / "log").read_text(encoding="utf-8")
        assert self.url in ("", self.node.url)
        self.url = self.node.url
        self.up.set()

    def kill(self) -> None:
        self.up.clear()
        self.node.kill()

    def end(self) -> int:
        """The exit code of the node after SIGTERM."""
        self.node.process.terminate()
        code = self.node.process.wait(PATIENCE)
        self.node.process.stdout.close()
        return code

    def resident(self) -> int:
        """What the server has in memory [KiB]."""
        status = Path(f"/proc/{self.node.process.pid}/status").read_text(encoding="utf-8")
        return int(re.search(r"VmRSS:\s*([0-9]+)", status)[1])

    def outcomes(self) -> dict[str, list[Outcome]]:
        """The runs of each schedule, newest first."""
        known = Schedule(self.folder)
        return {each.dataset: known.outcomes(each.id) for each in known.state()}

    # --- one request ---------------------------------------------------------------------------------

    def note(self, life: int, kind: str, status: int, began: float) -> None:
        self.answered.append(Answered(life, kind, status, time.monotonic() - began))

    def fault(self, text: str) -> None:
        self.faults.append(text)

    def after(self, life: int, what: str, error: Exception) -> None:
        """Wait for the life after this one; that a request failed in the middle of one is a fault."""
        if self.up.is_set() and self.life == life:
            self.fault(f"{what}: {type(error).__name__}: {error}")
            self.over.wait(1)
            return
        assert self.up.wait(PATIENCE)

    def ask(
        self, kind: str, target: str, method: str = "GET", body: bytes | None = None, **headers: str
    ) -> Reply:
        """The answer to a request, which is made anew after each death."""
        where, fields = urlsplit(self.url), {name.replace("_", "-"): text for name, text in headers.items()}
        while True:
            self.up.wait(PATIENCE)
            before, began = self.life, time.monotonic()
            to = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
            try:
                with contextlib.closing(to):
                    to.connect()
                    life = self.life  # a node is killed, counted, and another one started
                    to.request(method, target, body, fields)
                    reply = to.getresponse()
                    found = Reply(reply.status, {n.lower(): v for n, v in reply.getheaders()}, reply.read())
            except (OSError, http.client.HTTPException) as error:
                self.after(before, f"{method} {target}", error)
                continue
            self.note(life, kind, found.status, began)
            return found

    # --- clients -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def crowd(self) -> Iterator[None]:
        """All clients are busy inside; each ends its last request."""
        readers = itertools.cycle((self.reads_files, self.reads_pages, self.reads_tails, self.follows))
        numbers, pauses = self.scene["clients"], self.scene["pauses"]
        made: list[tuple[str, Callable[[int], Callable[[], None]]]] = [("send", self.leaves)]
        made += [("push", self.pushes)] * numbers["push"] + [("query", self.queries)] * numbers["query"]
        made += [("send", self.sends)] * numbers["send"] + [("read", self.reads_slowly)]
        made += [("read", next(readers)) for _ in range(numbers["read"] - 1)]

        def busy(kind: str, client: Callable[[], None]) -> None:
            if kind in ("read", "query"):
                self._begun.wait(PATIENCE)  # there is something to be read
            self.over.wait(pauses[kind] * random.random())
            while not self.over.is_set():
                client()
                self.over.wait(pauses[kind])

        with ThreadPoolExecutor(len(made)) as pool:
            running = [pool.submit(busy, kind, client(number)) for number, (kind, client) in enumerate(made)]
            try:
                yield
            finally:
                self.over.set()
        for each in running:
            each.result()

    def pushes(self, number: int) -> Callable[[], None]:
        name = f"pushed-{number % len(self.pushed)}"
        mine, count = self.pushed[name], itertools.count()

        def once() -> None:
            start = next(count) * ROWS
            values = range(start, start + ROWS)
            resumed, head = (
                False,
                append_all(mine, [records(SCHEMA, start, [0] * ROWS, [START] * ROWS, values)]),
            )
            while True:
                self.up.wait(PATIENCE)
                life, began = self.life, time.monotonic()
                try:
                    done = push(mine, f"{self.url}{name}", token=self._pushing[name], retries=0)
                except (OSError, OdfchainError) as error:
                    if str(error).endswith("said: Busy."):  # eight push already
                        self.note(life, "busy", 101, began)
                        self.over.wait(1)
                    else:
                        resumed = True
                        self.after(life, f"push of {name}", error)
                    continue
                if not done.up_to_date:
                    self.note(life, "push", 101, began)
                self.resumed[life] += resumed
                break
            self.acknowledged[name].append(head)
            self.rows[name] = start + ROWS
            self._begun.set()

        return once

    def known(self) -> tuple[str, int]:
        """A dataset that was pushed, and how many rows it has at least."""
        return random.choice(list(self.rows.items()))

    def queries(self, number: int) -> Callable[[], None]:
        def once() -> None:
            name, least = self.known()
            body = json.dumps({"query": f'select count(*) as n from "{name}"'}).encode()
            reply = self.ask("query", "/query", "POST", body, content_type="application/json")
            found = reply.json["output"]["data"][0]["n"] if reply.status == 200 else None
            if found is None or found < least:
                self.fault(f"query of {name}: {reply.status} {reply.text[:200]}; {least} rows are there")

        return once

    def sends(self, number: int) -> Callable[[], None]:
        count = itertools.count()

        def once() -> None:
            city = f"{number}-{next(count)}"
            for _ in range(random.choice((1, 1, 2))):  # and again, as if the answer had not come
                reply = self.sent_row(city, self._token, idempotency_key=city)
                while reply.status in (429, 503):
                    self.over.wait(float(reply.headers["retry-after"]))
                    reply = self.sent_row(city, self._token, idempotency_key=city)
            if reply.status == 200:
                self.sent.append(city)

        return once

    def sent_row(self, city: str, token: str, kind: str = "ingest", **headers: str) -> Reply:
        body = json.dumps({"city": city, "population": 1}).encode() + b"\n"
        fields = {"content_type": "application/x-ndjson", "authorization": f"Bearer {token}", **headers}
        return self.ask(kind, f"/{SENT}/ingest", "POST", body, **fields)

    def revoke(self) -> None:
        """One client's token is not one any more."""
        self._left.set()
        self.tokens.revoke("leaver")
        self.gone.set()

    def leaves(self, number: int) -> Callable[[], None]:
        send, count = self.sent_row, itertools.count()

        def once() -> None:
            gone, city = self.gone.is_set(), f"leaver-{next(count)}"
            reply = send(city, self._leaver, "leaver", idempotency_key=city)
            if reply.status == 200 and not gone:
                self.sent.append(city)
            elif not (reply.status == 401 and self._left.is_set()):
                self.fault(f"row of the leaver: {reply.status} {reply.text[:200]}")

        return once

    def reads_files(self, number: int) -> Callable[[], None]:
        def once() -> None:
            name, _ = self.known()
            head = self.ask("file", f"/{name}/refs/head").text.strip()
            event = decode_block(self.hashed(f"/{name}/blocks/{head}")).event
            if isinstance(event, AddData) and event.new_data is not None:
                self.hashed(f"/{name}/data/{event.new_data.physical_hash}")

        return once

    def hashed(self, path: str) -> bytes:
        body = self.ask("file", path).body
        if str(hash_bytes(body)) != path.rpartition("/")[2]:
            self.fault(f"{path} has other bytes")
        return body

    def reads_pages(self, number: int) -> Callable[[], None]:
        paths = itertools.cycle(("/", "/{}/", "/-/health", "/{}/-/lineage", "/-/about"))

        def once() -> None:
            self.ask("page", next(paths).format(self.known()[0]))

        return once

    def reads_tails(self, number: int) -> Callable[[], None]:
        def once() -> None:
            name, least = self.known()
            reply = self.ask("tail", f"/{name}/tail?limit=5")
            if reply.status != 200 or reply.json["data"][-1]["offset"] < least - 1:
                self.fault(f"tail of {name}: {reply.status} {reply.text[:200]}; {least} rows are there")

        return once

    def follows(self, number: int) -> Callable[[], None]:
        name, last = f"pushed-{number % len(self.pushed)}", -1

        def once() -> None:
            nonlocal last
            if name not in self.rows:
                return
            after = f"after={last}&" if last >= 0 else ""
            reply = self.ask("changes", f"/{name}/changes?{after}wait=2&limit=100")
            found = [json.loads(line)["offset"] for line in reply.body.splitlines()]
            if reply.status != 200 or found != list(range(last + 1, last + 1 + len(found))):
                self.fault(f"changes of {name} after {last}: {reply.status} {found}")
            last += len(found)

        return once

    def reads_slowly(self, number: int) -> Callable[[], None]:
        (path,) = (self._big.folder / "data").iterdir()
        content = path.read_bytes()

        def once() -> None:
            self.up.wait(PATIENCE)
            before, began, heard = self.life, time.monotonic(), 0
            to = socket.socket()
            to.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SLOW_BYTES)
            to.settimeout(PATIENCE)
            where = urlsplit(self.url)
            try:
                with to:
                    to.connect((where.hostname, where.port))
                    life = self.life
                    line = f"GET /{BIG}/data/{path.name} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n"
                    to.sendall(line.encode())
                    reply = http.client.HTTPResponse(to)
                    reply.begin()
                    while heard < len(content) and not self.over.is_set():
                        data = reply.read(_SLOW_BYTES)
                        if not data or content[heard : heard + len(data)] != data:
                            raise http.client.IncompleteRead(data)
                        heard += len(data)
                        self.over.wait(0.5)
            except (OSError, http.client.HTTPException) as error:
                self.after(before, f"slow reader after {heard} bytes", error)
                return
            self.note(life, "slow", reply.status, began)

        return once

    # --- the end -------------------------------------------------------------------------------------

    def expected_counts(self) -> Counter[tuple[str, str]]:
        """What the node of the last life has to have counted, by kind and status."""
        mine = [each for each in self.answered if each.life == self.life]
        found: Counter[tuple[str, str]] = Counter()
        for each in mine:
            kind = {"slow": "file", "leaver": "ingest", "busy": "push"}.get(each.kind, each.kind)
            found[kind, str(each.status)] += 1
            if (
                each.kind == "push"
            ):  # it looks at the head, brings a slice, looks again, signs, and has a checkpoint
                found["file", "200"] += 3
                found["file", "201"] += 3
            found["file", "200"] += 2 * (each.kind == "busy")  # it looks at the head before and afterwards
        return found
