"""Four clients share a session that stays, whose processes are killed or stopped at random times (RFC-030)."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from odfchain.api import Workspace
from tests.kit.processes import ODFCHAIN, TIMEOUT, one_session
from tests.kit.support import manifest

CLIENTS = 4
INGESTS = 50 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 10
"""Of each client; the first hundred in a session would take a minute."""

SETTLED = 7
"""The exit code of a command whose engine ended under it."""


@dataclass
class Client:
    """Ingests a row at a time, and remembers which of them were acknowledged."""

    name: str
    folder: Path
    env: dict[str, str]
    acknowledged: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def ingest(self, number: int) -> bool:
        """JSON documents are read by Python workers, CSV is not."""
        rows = {
            "csv": f"city,population\n{self.name},{number}\n",
            "json": f'[{{"city":"x","population":{number}}}]',
        }
        kind = "json" if number % 2 else "csv"
        path = self.folder / f"{self.name}-{number}.{kind}"
        path.write_text(rows[kind])
        done = subprocess.run(
            [ODFCHAIN, "ingest", self.name, path.name, "--input-format", kind], cwd=self.folder, env=self.env,
            capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        if done.returncode == 0:
            self.acknowledged.append(number)
            return True
        assert done.returncode == SETTLED, done.stderr
        assert "Traceback" not in done.stderr
        self.refused.append(done.stderr)
        return False

    def work(self) -> None:
        for number in range(INGESTS):
            self.ingest(number)


def processes(env: dict[str, str]) -> list[int]:
    """Keeper, Java and Java's Python workers, as far as they live."""
    done = subprocess.run(
        [ODFCHAIN, "engine", "status", "-o", "json"], env=env, capture_output=True, text=True, check=False
    )
    try:
        found = json.loads(done.stdout)
        keeper, jvm = int(found["pid"]), int(found["jvm"])
    except (ValueError, KeyError, TypeError):
        return []
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(pid): int(parent) for pid, parent in map(str.split, listed.splitlines())}
    workers = [pid for pid, parent in parents.items() if jvm in (parent, parents.get(parent))]
    return [keeper, jvm, *workers]


@contextlib.contextmanager
def trouble(env: dict[str, str]) -> Iterator[list[str]]:
    """Every few seconds something happens to one of the processes; gives what did."""
    draw, end, done = random.Random(5), threading.Event(), list[str]()

    def go() -> None:
        while not end.wait(draw.uniform(0.5, 6)):
            if not (alive := processes(env)):
                continue
            pid = draw.choice(alive)
            with contextlib.suppress(ProcessLookupError):
                if draw.random() < 0.25:
                    os.kill(pid, signal.SIGSTOP)
                    end.wait(draw.uniform(0.5, 3))
                    os.kill(pid, signal.SIGCONT)
                    done.append(f"stopped {alive.index(pid)}")
                else:
                    os.kill(pid, signal.SIGKILL)
                    done.append(f"killed {alive.index(pid)}")

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield done
    finally:
        end.set()
        thread.join()


@pytest.mark.soak
def test_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    """And what was not is not; no fault of the engine needs advice, or leaves anything behind."""
    with one_session() as env:
        workspace = Workspace.init(tmp_path)
        for number in range(CLIENTS):
            workspace.add(manifest(name=f"d{number}"))
        clients = [Client(f"d{number}", tmp_path, env) for number in range(CLIENTS)]
        with trouble(env) as done, ThreadPoolExecutor(CLIENTS) as pool:
            for result in [pool.submit(client.work) for client in clients]:
                result.result()
        assert len(done) >= CLIENTS, "nothing happened"
        for client in clients:
            assert client.ingest(INGESTS), client.refused[-1]
        for client in clients:
            dataset = workspace[client.name]
            rows = dataset.scan(["population"]).to_arrow()["population"].to_pylist()
            assert rows == client.acknowledged
            assert dataset.verify().ok
            assert [path.name for path in (dataset.path / "staging").iterdir()] == [".lock"]
        print(f"{sum(len(c.acknowledged) for c in clients)} acknowledged,", *done)
        print(*{text for c in clients for text in c.refused})
