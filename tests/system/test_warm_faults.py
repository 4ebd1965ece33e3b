"""Four clients share a session that stays, whose processes are killed or stopped at random times (RFC-030)."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

import odfchain as package_of
from odfchain.api.workspace import Workspace
from tests.kit.processes import TIMEOUT, odfchain, one_session, parents
from tests.kit.support import ROOT, manifest
from tests.kit.turned_clock import TurnedClock

CLIENTS = 4
INGESTS = 50 if os.environ.get("HYPOTHESIS_PROFILE") == "deep" else 10
"""Of each client; the first hundred in a session would take a minute."""

STOPPED = 20 if INGESTS > 10 else 8
"""How long a keeper is stopped at most [s]."""

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
        kind, text = "csv", f"city,population\n{self.name},{number}\n"
        if number % 2:
            kind, text = "json", f'[{{"city":"x","population":{number}}}]'
        path = self.folder / f"{self.name}-{number}.{kind}"
        path.write_text(text)
        done = odfchain(self.folder, "ingest", self.name, path.name, "--input-format", kind, env=self.env)
        if done.code == 0:
            self.acknowledged.append(number)
            return True
        assert done.code == SETTLED, done.err
        assert "Traceback" not in done.err
        self.refused.append(done.err)
        return False

    def work(self) -> None:
        for number in range(INGESTS):
            self.ingest(number)


def copied_package(folder: Path) -> Path:
    """odfchain as it could be installed, to be replaced while it is used."""
    copy = folder / "installed" / "odfchain"
    shutil.copytree(Path(package_of.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy.parent / "schemas").symlink_to(ROOT / "schemas")
    return copy


def upgrade(package: Path) -> None:
    """Another version: a file of it is newer."""
    now = time.time_ns()
    os.utime(package / "versions.py", ns=(now, now))


def processes(env: dict[str, str]) -> list[int]:
    """Keeper, Java and Java's Python workers, as far as they live."""
    try:
        found = json.loads(engine_says(env, "status", "-o", "json"))
        keeper, jvm = int(found["pid"]), int(found["jvm"])
    except (ValueError, KeyError, TypeError):
        return []
    above = parents()
    return [keeper, jvm, *(pid for pid, parent in above.items() if jvm in (parent, above.get(parent)))]


def engine_says(env: dict[str, str], *args: str) -> str:
    return odfchain(Path.cwd(), "engine", *args, env=env).out


@contextlib.contextmanager
def trouble(env: dict[str, str], package: Path) -> Iterator[list[str]]:
    """Every few seconds something happens to one of the processes, or to odfchain itself; gives what did.

    A keeper may be stopped for longer than a command waits for its answer.
    """
    draw, end, done = random.Random(5), threading.Event(), list[str]()

    def go() -> None:
        while not end.wait(draw.uniform(0.5, 6)):
            if not (alive := processes(env)):
                continue
            if draw.random() < 0.1:
                upgrade(package)
                done.append("upgraded")
                continue
            pid = draw.choice(alive)
            with contextlib.suppress(ProcessLookupError):
                if draw.random() < 0.25:
                    os.kill(pid, signal.SIGSTOP)
                    end.wait(draw.uniform(0.5, STOPPED if pid == alive[0] else 3))
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
def test_what_was_acknowledged_is_there(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """And what was not is not; no fault of the engine needs advice, or leaves anything behind."""
    with one_session() as env:
        package = copied_package(tmp_path)
        env["PYTHONPATH"] = str(package.parent)
        workspace = Workspace.init(tmp_path)
        for number in range(CLIENTS):
            workspace.add(manifest(name=f"d{number}"))
        clients = [Client(f"d{number}", tmp_path, env) for number in range(CLIENTS)]
        with trouble(env, package) as done, ThreadPoolExecutor(CLIENTS) as pool:
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
        record_property("acknowledged", sum(len(c.acknowledged) for c in clients))
        record_property("faults", len(done))
        print(f"{sum(len(c.acknowledged) for c in clients)} acknowledged,", *done)
        print(*{text for c in clients for text in c.refused})
        if "upgraded" in done:
            assert "replaced, because a command differs in version" in engine_says(env, "log")


@pytest.mark.soak
def test_an_upgrade_replaces_the_session(tmp_path: Path) -> None:
    """With one line in its log, at the next command; who is in it is not disturbed."""
    with one_session() as env:
        package = copied_package(tmp_path)
        env["PYTHONPATH"] = str(package.parent)
        Workspace.init(tmp_path).add(manifest(name="d"))
        client = Client("d", tmp_path, env)
        assert client.ingest(0)
        keeper = processes(env)[0]
        upgrade(package)
        assert client.ingest(1)
        assert client.ingest(2)
        assert processes(env)[0] != keeper
        log = engine_says(env, "log")
        assert log.count("replaced, because a command differs in version") == 1
        assert "Traceback" not in log


@pytest.mark.soak
@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None,
    reason="a clock is turned on Linux, with a C compiler",
)
def test_the_clock_may_be_turned_under_a_session(tmp_path: Path) -> None:
    """Forward and back, for commands, keeper and Java alike: the session stays, and blocks keep their order."""
    clock, day = TurnedClock(tmp_path), 86_400
    with one_session() as env:
        env.update(clock.variables)
        workspace = Workspace.init(tmp_path)
        workspace.add(manifest(name="d"))
        client = Client("d", tmp_path, env)
        keepers = set()
        for number, turned in enumerate((0, 40 * day, -3 * day, 3_600, 0)):
            clock.turn(turned)
            assert client.ingest(number), client.refused
            keepers.add(processes(env)[0])
        assert len(keepers) == 1
        dataset = workspace["d"]
        assert dataset.scan(["population"]).to_arrow()["population"].to_pylist() == client.acknowledged
        times = [found.block.system_time for found in dataset.log()]
        assert times == sorted(times, reverse=True)
        assert times[0].to_datetime() - times[-1].to_datetime() > timedelta(days=39), "the clock was turned"
        assert dataset.verify().ok


@pytest.mark.soak
@pytest.mark.parametrize("full", ["workspace", "cache"])
def test_a_disk_that_is_full_for_a_while(tmp_path: Path, full: str) -> None:
    """The disk of the workspace, or that of the cache, where the session writes: what fails says so, and nothing stays of it."""
    mounted = ["unshare", "--user", "--map-root-user", "--mount"]
    place = tmp_path / full
    place.mkdir()
    script = 'mount -t tmpfs -o size=40m none "$0" && exec "$@"'
    probe = subprocess.run(
        [*mounted, "sh", "-c", script, place, "true"], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"no small disk can be had here: {probe.stderr.strip()}")
    with one_session() as env:
        env["PYTHONPATH"] = str(ROOT)
        if full == "cache":
            env["XDG_CACHE_HOME"] = str(place)
        done = subprocess.run(
            [*mounted, "sh", "-c", script, place, sys.executable, "-m", "tests.kit.full_disk", tmp_path, place],
            env=env, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    found = json.loads(done.stdout)
    assert "Traceback" not in found["said"]
    assert found["rows"] == found["acknowledged"]
    assert found["verified"] is True
    assert found["left"] == [".lock"]
    assert {0, 3} <= set(found["acknowledged"]), "before and after"
    if full == "workspace":
        assert found["codes"] == [0, SETTLED, SETTLED, 0]
