"""The node's pages, answers and uploads, beside datasette over the same rows on the same machine.

Servers are processes of their own. Both sides of a comparison are asked in turns over kept connections, and
every answer is looked into before its time counts. `DATASETTE` names its program, if not beside Python.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import os
import re
import shutil
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

import pyarrow.parquet as pq
from figures import Figure, tell
from long_chain import long_chain
from recorded_rows import history, paths_of, record

from odfchain import Dataset, Workspace
from odfchain.transfer.access_tokens import TokenFile

ODFCHAIN = Path(sys.executable).parent / "odfchain"
ROWS, DATASETS, MANY, ROUNDS = 100_000, 100, 10_000, 40
CLIENTS, UPLOADS = 1_000, 20
PAUSE = 1.5
"""Between questions of one person [s]."""
COLUMNS = ("offset", "op", "system_time", "event_time", "key", "amount", "name")
ASKED = "select \"offset\", key, amount, name from rows where name = 'name 7' limit 100"
PUSHED = """kind: DatasetSnapshot
version: 1
content:
  name: {}
  kind: Root
  metadata:
    - kind: AddPushSource
      sourceName: default
      read: {{kind: NdJson, schema: ["k BIGINT", "v STRING"]}}
      merge: {{kind: Append}}
"""


@dataclass
class Site:
    """A server in a process of its own, and one connection to it."""

    url: str
    pid: int
    cookie: str | None = None

    def __post_init__(self) -> None:
        """Connect once for all requests."""
        parts = urlsplit(self.url)
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)

    def ask(self, path: str, body: bytes | None = None, **fields: str) -> bytes:
        """The body of an answer, which is to be a good one."""
        headers = {name.replace("_", "-"): value for name, value in fields.items()}
        self.connection.request("GET" if body is None else "POST", path, body, headers)
        answer = self.connection.getresponse()
        found = answer.read()
        assert answer.status in (200, 201), f"{path}: {answer.status} {found[:400]!r}"
        return found

    def asked(
        self, path: str, holds: bytes, body: bytes | None = None, **fields: str
    ) -> Callable[[], object]:
        """A call that asks once, and looks for a text in the answer."""
        found = self.ask(path, body, **fields)
        assert holds in found, f"{path}: {found[:2_000]!r}"
        return functools.partial(self.ask, path, body, **fields)


@contextlib.contextmanager
def running(command: list[str], pattern: str) -> Iterator[Site]:
    """The server that a command starts, once it has said its address (a group of the pattern)."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(pattern, line):
                break
        else:
            raise RuntimeError(f"{command[0]} did not start")
        # what it says later must not fill the pipe
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield Site(found[1], process.pid)
    finally:
        process.terminate()
        process.wait(20)


def node(folder: Path, *words: str) -> contextlib.AbstractContextManager[Site]:
    """`odfchain serve` of a workspace."""
    command = [str(ODFCHAIN), "-w", str(folder), "serve", "--port", "0", "--print-address", *words]
    return running(command, r"^(http://\S+)")


def datasette(folder: Path) -> contextlib.AbstractContextManager[Site]:
    """The same rows there."""
    program = os.environ.get("DATASETTE") or shutil.which("datasette", path=str(ODFCHAIN.parent))
    if not program:
        raise RuntimeError(
            "datasette is compared with: pip install 'datasette>=0.65,<1', or name it in DATASETTE"
        )
    command = [program, "serve", str(folder / "list.db"), str(folder / "rows.db"), "--port", "0"]
    return running(command, r"running on (http://127\.0\.0\.1:\d+)")


def milliseconds(
    runs: Mapping[str, Callable[[], object]], rounds: int = ROUNDS, *, pause: float = 0
) -> dict[str, list[float]]:
    """Times of each [ms], in turns, with a pause [s] before each round."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        time.sleep(pause)
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            found[name].append((time.perf_counter() - start) * 1e3)
    return found


def ratio(
    name: str,
    runs: Mapping[str, Callable[[], object]],
    target: float,
    rounds: int = ROUNDS,
    *,
    pause: float = 0,
) -> Figure:
    """The first by the second, of medians."""
    times = milliseconds(runs, rounds, pause=pause)
    ours, theirs = times
    mine, other = (statistics.median(times[each]) for each in (ours, theirs))
    said = f"{mine:.1f} ms; {theirs} {other:.1f} ms"
    return Figure(
        name, mine / other, "×", target, remark=said, samples=tuple(times[ours]), beside=tuple(times[theirs])
    )


def alone(name: str, run: Callable[[], object], target: float, rounds: int = ROUNDS) -> Figure:
    """The median of one."""
    times = milliseconds({"it": run}, rounds)["it"]
    return Figure(
        name, statistics.median(times), "ms", target, remark=f"{min(times):.1f} to {max(times):.1f}"
    )


def prepared(folder: Path) -> Dataset:
    """A workspace of 100 datasets, one of them with 100,000 rows, and the same as tables of SQLite."""
    with Workspace.init(folder) as workspace:
        rows = record(workspace, "rows", history(ROWS, 4, 50_000))
        for number in range(1, DATASETS):
            record(workspace, f"d{number:03}", history(20, 1, 10))
        tables = [pq.read_table(path).cast(pq.read_schema(path)) for path in paths_of(rows)]
        with contextlib.closing(sqlite3.connect(folder / "rows.db")) as base, base:
            base.execute(f"create table rows ({', '.join(COLUMNS)})")
            for table in tables:
                values = [[str(v) if "time" in n else v for v in table[n].to_pylist()] for n in COLUMNS]
                base.executemany(f"insert into rows values ({'?, ' * 6}?)", zip(*values, strict=True))
        with contextlib.closing(sqlite3.connect(folder / "list.db")) as base, base:
            for number in range(DATASETS):
                base.execute(f"create table d{number:03} ({', '.join(COLUMNS)})")
                base.executemany(
                    f"insert into d{number:03} values ({'?, ' * 6}?)", [(n,) * 7 for n in range(20)]
                )
        return rows


def pages(folder: Path) -> Iterator[Figure]:
    """What people open, beside datasette's pages."""
    with node(folder, "--sql") as ours, datasette(folder) as theirs:
        mine, index = ours.asked("/", b"d040"), theirs.asked("/", b"100 tables")
        yield ratio("list of 100 datasets ÷ index of 100 tables", {"ours": mine, "datasette": index}, 1)
        index = theirs.asked("/list", b"d099")
        yield ratio("the same ÷ page of the 100 tables", {"ours": mine, "datasette": index}, 0.5)
        mine = ours.asked("/rows/-/data", b"name ")
        table = theirs.asked("/rows/rows?_size=50", b"name ")
        yield ratio("50 of 100,000 rows ÷ table page", {"ours": mine, "datasette": table}, 0.2)
        yield alone("overview", ours.asked("/rows/", b"100,000"), 30)
        yield alone("schema", ours.asked("/rows/-/schema", b"amount"), 30)
        yield alone("history", ours.asked("/rows/-/history", b"AddData"), 30)


def answers(folder: Path) -> Iterator[Figure]:
    """What programs ask, in SQL and without."""
    question, kind = json.dumps({"query": ASKED, "limit": 100}).encode(), {"content_type": "application/json"}
    with Workspace.open(folder) as workspace, datasette(folder) as theirs, node(folder, "--sql") as ours:
        yield alone("tail of 100 rows", ours.asked("/rows/tail?limit=100", b"name "), 15)
        query = ours.asked("/query", b"name 7", question, **kind)
        runs = {"/query": query, "sql in Python": lambda: workspace.sql(ASKED).to_arrow()}
        yield ratio("/query of 100 rows ÷ sql in Python, now and then", runs, 1.3, 15, pause=PAUSE)
        other = theirs.asked(f"/rows.json?sql={quote(ASKED)}&_shape=array", b"name 7")
        runs = {"/query": query, "datasette": other}
        yield ratio("/query of 100 rows ÷ datasette, now and then", runs, 1, 15, pause=PAUSE)
        # each answer ends its process, and the next one is loaded meanwhile
        yield ratio("the same, one after the other", runs, 1, 15)


def sql(folder: Path) -> Iterator[Figure]:
    """The page for people who ask in SQL."""
    page = f"/-/sql?q={quote(ASKED)}"
    with node(folder, "--sql") as ours:
        first = milliseconds({"it": lambda: ours.ask(page)}, 1)["it"][0]
        asked = ours.asked(page, b"name 7")
        warm = statistics.median(milliseconds({"it": asked}, 10, pause=PAUSE)["it"])
        said = f"{first:.0f} ms; warm {warm:.0f} ms"
        yield Figure("first SQL page after the start ÷ warm", first / warm, "×", 1.5, remark=said)


def files(folder: Path, rows: Dataset) -> Iterator[Figure]:
    """Slices and blocks, with pages on and off."""
    block, slices = f"/rows/blocks/{rows.head}", [f"/rows/data/{Path(p).name}" for p in paths_of(rows)]
    with node(folder, "--sql") as shown, node(folder, "--no-pages") as bare:
        for name, paths in (("block", [block] * 200), ("slices", slices * 10)):

            def brought(site: Site, paths: list[str] = paths) -> None:
                for path in paths:
                    site.ask(path)

            runs = {"without": lambda: brought(bare), "with": lambda: brought(shown)}
            found = ratio(f"rate of a {name} with pages ÷ without", runs, 0.95)
            yield Figure(found.name, found.value, "×", 0.95, at_least=True, remark=found.remark)


def starts(folder: Path) -> Iterator[Figure]:
    """From typing `odfchain ui` to a page."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        command = [str(ODFCHAIN), "-w", str(folder), "ui", "--no-open"]
        with running(command, r"(http://\S+)") as site:
            parts = urlsplit(site.url)
            site.connection.request("GET", f"/?{parts.query}")
            assert site.connection.getresponse().read(1) or True
            found.append(time.perf_counter() - start)
    yield Figure("start of `ui` to the first byte", statistics.median(found), "s", 1, samples=tuple(found))


def many(folder: Path) -> Iterator[Figure]:
    """Ten thousand datasets (case 55)."""
    tell(f"node: {MANY:,} datasets")
    for number in range(MANY):
        long_chain(folder, f"d{number:05}", 4, identity=number)
    with node(folder) as site:
        yield alone("list of 10,000 datasets", site.asked("/", b"d00049"), 100, 10)
        yield alone("the last page of it", site.asked("/?page=200", b"d09999"), 100, 10)
        yield alone("search among them", site.asked("/?q=d0777", b"d07771"), 100, 10)
        yield alone("overview of one", site.asked("/d07771/", b"d07771"), 100, 10)


def idle(folder: Path) -> Iterator[Figure]:
    """Clients that hold a connection and say nothing more."""
    with node(folder, "--sql") as site, contextlib.ExitStack() as held:
        site.ask("/")
        before, parts = resident(site.pid), urlsplit(site.url)
        for _ in range(CLIENTS):
            client = held.enter_context(socket.create_connection((parts.hostname, parts.port), timeout=20))
            client.sendall(f"GET / HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
            client.recv(1 << 20)
        yield Figure(
            "1,000 idle clients", resident(site.pid) - before, "MB", 100, remark=f"of {before:.0f} MB"
        )


def resident(pid: int) -> float:
    """What a process has resident now [MB]."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(text.partition("VmRSS:")[2].split()[0]) / 1e3


def uploads(folder: Path) -> Iterator[Figure]:
    """Rows that programs send."""
    with Workspace.init(folder) as workspace:
        for number in range(UPLOADS):
            workspace.add(PUSHED.format(f"u{number:02}"))
    token = TokenFile(folder / ".odfchain").create("bench", ["ingest:%"]).text
    fields = {"content_type": "application/x-ndjson", "authorization": f"Bearer {token}"}
    numbers = iter(range(1 << 30))

    def send(site: Site, name: str) -> None:
        rows = "".join(f'{{"k": {k}, "v": "value {next(numbers)}"}}\n' for k in range(100))
        site.ask(f"/{name}/ingest", rows.encode(), **fields)

    with node(folder, "--write") as site:
        for number in range(UPLOADS):
            send(site, f"u{number:02}")
        yield alone("ingest of 100 rows, warm", lambda: send(site, "u00"), 500, 10)

        def at_once() -> None:
            with ThreadPoolExecutor(UPLOADS) as threads:
                list(threads.map(lambda n: send(Site(site.url, site.pid), f"u{n:02}"), range(UPLOADS)))

        spent = statistics.median(milliseconds({"it": at_once}, 5)["it"])
        rate = UPLOADS / spent * 1e3
        yield Figure("20 datasets at once", rate, "/s", 10, at_least=True, remark=f"{spent:,.0f} ms for 20")


def bench_node() -> Iterator[Figure]:
    """All of it; `NODE=pages,many` names what is measured."""
    chosen = os.environ.get("NODE", "pages,answers,sql,files,starts,idle,many,uploads").split(",")
    with tempfile.TemporaryDirectory(prefix="odf-") as root:
        folder = Path(root) / "usual"
        folder.mkdir()
        rows = prepared(folder)
        for part in (pages, answers, sql, starts, idle):
            if part.__name__ in chosen:
                yield from part(folder)
        if "files" in chosen:
            yield from files(folder, rows)
        for part in (many, uploads):
            if part.__name__ in chosen:
                (other := Path(root) / part.__name__).mkdir()
                yield from part(other)
