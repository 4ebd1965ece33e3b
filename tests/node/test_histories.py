"""Eight writers of a node that need Spark, and deaths: rows that are sent, commands, and scheduled pulls.

The chains are read back as histories, as in `tests/dataset/test_histories.py`, which has the other writers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.workspace import Workspace
from tests.kit.day import MIDNIGHT, Day, Source
from tests.kit.linearizability import APPEND, NEVER, READ, Operation, anomalies
from tests.kit.processes import ODFCHAIN, one_session, parents, wait_until
from tests.kit.run_length import scaled
from tests.kit.sending_clients import post
from tests.kit.servers import Server

SENT = "sent"
SCENE = {"sources": 2, "clients": {"push": 0}}
SENDERS, COMMANDS = 3, 3


class Scene:
    """A node with schedules whose clock is turned, and the history of its clients."""

    def __init__(self, day: Day, source: Source) -> None:
        self.day, self.source, self.over = day, source, threading.Event()
        self.history: dict[str, list[Operation]] = {}
        self.commands: dict[int, subprocess.Popen[bytes]] = {}
        self.errors: list[str] = []
        self.faults: Counter[str] = Counter()

    def acknowledged(self) -> int:
        every = [each for part in self.history.values() for each in part]
        return sum(each.asked[0] == APPEND and each.returned != NEVER for each in every)

    def note(self, dataset: str, value: str, called: float, *, ended: bool) -> None:
        returned = time.monotonic() if ended else NEVER
        client = value.partition(".")[0]
        self.history.setdefault(dataset, []).append(
            Operation(client, (APPEND, value), None, called, returned)
        )

    def sends(self, number: int) -> None:
        for count in range(1_000_000):
            if self.over.is_set():
                return
            value, called, reply = f"rest-{number}.{count}", time.monotonic(), None
            body = b'{"city": "%s", "population": 1}\n' % value.encode()
            with contextlib.suppress(OSError, http.client.HTTPException):
                reply = post(self.day.url, SENT, self.day._token, body)
            if reply is None or reply.status == 503:
                self.note(SENT, value, called, ended=False)
                self.day.up.wait(60)
                self.over.wait(0.2)
            elif reply.status == 200:
                self.note(SENT, value, called, ended=True)
            elif reply.status != 429:
                self.errors.append(f"{value}: {reply.status} {reply.text}")

    def ingests(self, number: int) -> None:
        path = self.day.folder / f"rows-{number}.json"
        for count in range(1_000_000):
            if self.over.is_set():
                return
            value = f"command-{number}.{count}"
            path.write_text(f'{{"city": "{value}", "population": 1}}\n')
            called = time.monotonic()
            words = [ODFCHAIN, "-q", "ingest", SENT, path.name, "--input-format", "ndjson"]
            with subprocess.Popen(
                words,
                cwd=self.day.folder,
                env=self.day.env,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            ) as process:
                self.commands[number] = process
                said = process.communicate()[1].decode()
            if process.returncode not in (0, 5, 7, -signal.SIGKILL):
                self.errors.append(f"{value}: {process.returncode} {said}")
            self.note(SENT, value, called, ended=process.returncode == 0)

    def reads(self) -> None:
        while not self.over.wait(0.1):
            called = time.monotonic()
            head = str(Workspace.open(self.day.folder)[SENT].head)
            found = Operation("reader", (READ, None), head, called, time.monotonic())
            self.history.setdefault(SENT, []).append(found)

    def hour(self, hour: int) -> None:
        """An hour goes by: each schedule has a run, whatever dies."""
        self.source.hour, called = hour, time.monotonic()
        self.day.turn(hour)
        wanted = MIDNIGHT.shifted(hour * 3_600_000)

        def is_over() -> bool:
            found = self.day.outcomes()
            return bool(found) and all(
                any(run.begun == wanted and run.outcome != "failed" for run in runs)
                for runs in found.values()
            )

        wait_until(lambda: is_over() or self.over.is_set() or self.errors)
        for number in range(SCENE["sources"]):  # type: ignore[call-overload]
            self.note(f"hourly-{number}", f"hourly-{number} {hour}", called, ended=is_over())

    def fault(self, draw: random.Random) -> None:
        """The node, what records for it, or a command dies, or is stopped for a while."""
        children = [pid for pid, parent in parents().items() if parent == self.day.node.process.pid]
        targets = {"node": [self.day.node.process.pid], "child of the node": children}
        targets["command"] = [each.pid for each in self.commands.values() if each.poll() is None]
        what = draw.choice([name for name, pids in targets.items() if pids])
        pid = draw.choice(targets[what])
        with contextlib.suppress(ProcessLookupError):
            if draw.random() < 0.3:
                os.kill(pid, signal.SIGSTOP)
                self.over.wait(draw.uniform(0.1, 1))
                os.kill(pid, signal.SIGCONT)
                self.faults[f"stop of {what}"] += 1
            elif what == "node":
                self.day.kill()
                self.day.start()
                self.faults["kill of node"] += 1
            else:
                os.kill(pid, signal.SIGKILL)
                self.faults[f"kill of {what}"] += 1


def chain_of(dataset: Any) -> tuple[list[str], dict[str, int]]:
    """The rows of a dataset, and how many each block's hash has."""
    lengths, count = {}, 0
    for found in reversed(list(dataset.log())):
        new = getattr(found.block.event, "new_data", None)
        count = count if new is None else new.offset_interval.end + 1
        lengths[str(found.hash)] = count
    rows = dataset.scan(["offset", "city"]).to_arrow().sort_by("offset")
    return rows["city"].to_pylist(), lengths


@pytest.mark.soak
def test_what_writers_with_spark_did_can_have_happened(
    tmp_path: Path, class_archive: Path | None, record_property: Callable[[str, object], None]
) -> None:
    source, draw, count = Source(), random.Random(3), scaled(10, 20, 80)
    with one_session() as env, Server(source) as server:
        (none := tmp_path / "none").touch()
        env["ODFCHAIN_CLASS_ARCHIVE"] = str(class_archive or none)
        day = Day(tmp_path, SCENE, env, server)
        scene = Scene(day, source)
        clients = [threading.Thread(target=scene.sends, args=(number,)) for number in range(SENDERS)]
        clients += [threading.Thread(target=scene.ingests, args=(number,)) for number in range(COMMANDS)]
        clients += [threading.Thread(target=scene.reads)]

        def hours() -> None:
            for hour in range(1_000):
                if scene.over.is_set():
                    return
                scene.hour(hour)

        clients.append(threading.Thread(target=hours))
        day.start()
        try:
            for each in clients:
                each.start()
            ends = time.monotonic() + scaled(120, 180, 300)
            while scene.acknowledged() < count and time.monotonic() < ends and not scene.errors:
                before, until = scene.acknowledged(), time.monotonic() + 15
                while scene.acknowledged() < before + 2 and time.monotonic() < until:
                    scene.over.wait(0.1)  # something is done between two faults, also on a slow machine
                scene.over.wait(draw.uniform(0, 2))
                scene.fault(draw)
        finally:
            scene.over.set()
            for each in clients:
                each.join()
            day.node.process.kill()
            day.node.process.wait()
            day.node.process.stdout.close()
        assert scene.errors == []
        record_property("acknowledged", scene.acknowledged())
        record_property("faults", dict(scene.faults))
        with Workspace.open(day.folder) as workspace:
            for name, history in scene.history.items():
                values, lengths = chain_of(workspace[name])
                seen = [
                    dataclasses.replace(each, answer=lengths.get(each.answer))
                    if each.asked[0] == READ
                    else each
                    for each in history
                ]
                assert anomalies(seen, values) == [], name
            assert {report.verdict for report in workspace.verify()} == {"clean"}
        assert scene.acknowledged() >= count
        assert {name.split()[0] for name in scene.faults} == {"kill", "stop"}
