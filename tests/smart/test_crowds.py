"""What clients without a token can have a node hold, and what its other readers notice of them."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from odfchain.workspace.workspace_files import WorkspaceFiles
from tests.kit.crowd import WORDS
from tests.kit.measured_node import peak_mib, served
from tests.kit.served_workspace import ask, make_dataset
from tests.kit.support import ROOT

MOST_MIB = 200
MOST_CLIENTS = 400

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


def growth(place: Path, words: str, clients: int, readings: int) -> tuple[int, list[float]]:
    """What a node takes more for a crowd [MiB], and how long each honest reading took meanwhile [s]."""
    make_dataset(WorkspaceFiles.init(place), "cities", 700)
    with served(place) as (url, pid):
        assert ask(url, "/cities/refs/head").status == 200
        before = peak_mib(pid)
        command = [sys.executable, "-m", "tests.kit.crowd", url, words, str(clients)]
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as crowd:
            times: list[float] = []

            def read() -> None:
                began = time.monotonic()
                assert ask(url, "/cities/refs/head").status == 200
                times.append(time.monotonic() - began)

            for _ in range(readings):
                read()
            assert crowd.stdout.readline().strip() == f"{{101: {clients}}}"
            read()
            found = peak_mib(pid) - before
            crowd.stdin.close()
        return found, times


@pytest.mark.parametrize("words", ["unfinished, large", "lists"])
def test_forty_clients(words: str, tmp_path: Path) -> None:
    grown, _ = growth(tmp_path, words, 40, 5)
    assert grown <= 64, grown


@pytest.mark.soak
@pytest.mark.parametrize("words", WORDS)
def test_as_many_clients_as_there_can_be(words: str, tmp_path: Path) -> None:
    handles = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert handles[0] > MOST_CLIENTS + 100, "this needs more open files: ulimit -n 1024"
    grown, times = growth(tmp_path, words, MOST_CLIENTS, 200)
    times.sort()
    print(
        f"{MOST_CLIENTS} clients, {words}: {grown} MiB more; of {len(times)} readings the median took "
        f"{times[len(times) // 2]:.3f} s, the longest {times[-1]:.3f} s"
    )
    assert grown <= MOST_MIB, grown
