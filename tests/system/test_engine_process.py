"""Coordinator and engine as two processes: what one asks for the other executes, also after a crash."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from odfchain.api.dataset import Dataset
from odfchain.api.workspace import Workspace
from odfchain.errors import EngineError, QueryError
from odfchain.odf.times import Timestamp
from tests.kit.processes import ODFCHAIN, environment, wait_until
from tests.kit.support import configure, derivative, snapshot

INPUTS = "[{datasetRef: readings}]"
DAILY = (
    "SELECT window(event_time, '1 day').start AS event_time, sensor, sum(level) AS total "
    "FROM readings GROUP BY window(event_time, '1 day'), sensor"
)
LATER = Timestamp.parse("2100-01-01T00:00:00Z")
ROWS = "event_time,sensor,level\n" + "".join(
    f"2024-03-{day:02}T{hour:02}:00:00Z,{sensor},{day * hour}\n"
    for day in range(1, 5)
    for hour in (1, 9)
    for sensor in ("north", "south")
)


@contextmanager
def engine_process(socket: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """`odfchain engine serve`, once it listens."""
    process = subprocess.Popen(
        [ODFCHAIN, "engine", "serve", "--socket", socket, "--print-address"], cwd=folder, env=environment(),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline().strip() == f"unix:{socket}"
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def make(workspace: Workspace, socket: Path, query: str = DAILY, name: str = "derived") -> Dataset:
    """A root with rows, and a dataset made of it by the engine behind a socket."""
    configure(workspace.path, transform={"engines": {"spark": f"unix:{socket}"}})
    source = workspace.path.parent / "readings.csv"
    source.write_text(ROWS)
    workspace.add(snapshot("readings"))[0].ingest([source])
    (derived,) = workspace.add(derivative(query, name=name, inputs=INPUTS))
    return derived


@pytest.mark.soak
def test_engine_killed_in_the_middle_and_asked_again(workspace: Workspace, tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"
    derived = make(workspace, socket)
    before = derived.head
    failed: list[BaseException] = []

    def pull() -> None:
        try:
            derived.pull()
        except EngineError as error:
            failed.append(error)

    with engine_process(socket, tmp_path) as process:
        puller = threading.Thread(target=pull)
        puller.start()
        wait_until(lambda: list((derived.path / "staging").glob("*/step-*")), process)
        os.killpg(process.pid, signal.SIGKILL)
        puller.join()
    assert len(failed) == 1
    assert "engine.sock" in str(failed[0])
    assert derived.head == before
    assert not [p for p in (derived.path / "staging").iterdir() if p.is_dir()]

    with engine_process(socket, tmp_path):
        outcome = derived.pull()
        again = derived.pull()
    assert (outcome.blocks, again.blocks) == (3, 0), "version, schema and data, once"
    rows = derived.scan().to_arrow().to_pylist()
    assert [(r["event_time"].day, r["sensor"], r["total"]) for r in rows] == [
        (day, sensor, 10 * day) for day in (1, 2, 3) for sensor in ("north", "south")
    ]
    assert derived.verify().ok


def test_both_engines_record_the_same(workspace: Workspace, tmp_path: Path) -> None:
    socket = tmp_path / "engine.sock"
    remote = make(workspace, socket)
    with engine_process(socket, tmp_path):
        remote.pull(system_time=LATER)
        (wrong,) = workspace.add(
            derivative("SELECT event_time, level / 0 FROM readings", name="wrong", inputs=INPUTS)
        )
        with pytest.raises(QueryError, match=r"(?i)division by zero"):
            wrong.pull()
    configure(workspace.path)
    (own,) = workspace.add(derivative(DAILY, name="own", inputs=INPUTS))
    own.pull(system_time=LATER)
    there, here = remote.summary.last_data, own.summary.last_data
    assert there.new_data.logical_hash == here.new_data.logical_hash
    assert there.new_watermark == here.new_watermark
    assert remote.schema == own.schema
