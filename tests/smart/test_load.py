"""64 pullers and 16 pushers have a day's requests in minutes: nothing grows in the node, and nothing is lost."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import odfchain as odf
from tests.kit import shared_store
from tests.kit.node_load import sampled, sizes
from tests.kit.node_process import Node
from tests.kit.processes import wait_until
from tests.kit.run_length import scaled
from tests.kit.smart_site import push
from tests.kit.support import ROOT

PULLERS, PUSHERS, PROCESSES = 64, 16, 4
A_DAY = 96
"""Pulls of each puller, and pushes of each pusher: one each quarter of an hour."""
MOST_SECONDS = 600
MOST_THREADS = 48
"""A pool of asyncio begins as many as it is allowed, one by one, and keeps them."""
GROWN = 1.2
"""By how much memory may differ between the second quarter and the last one."""


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="what a process has is read from /proc")
def test_a_day_of_pulls_and_pushes(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    each = scaled(1, 6, A_DAY)
    here, ours = odf.init(tmp_path / "here"), odf.init(tmp_path / "ours")
    names = [f"pushed-{number}" for number in range(PUSHERS)]
    token = here.tokens.create("all", ["push:%"]).text
    node, running = Node(tmp_path / "here"), list[subprocess.Popen[bytes]]()
    try:
        assert node.url
        for name in names:  # there is something to be pulled
            push(shared_store.add(ours, name), f"{node.url}{name}", token=token)
        idle = sizes(node.process.pid)
        began = time.monotonic()
        with sampled(lambda: sizes(node.process.pid), 0.5) as seen:
            for number in range(PROCESSES):
                odf.init(tmp_path / f"copies-{number}")
                share = PUSHERS // PROCESSES
                plan = {
                    "url": node.url, "token": token, "ours": str(tmp_path / "ours"), "sources": names,
                    "copies": str(tmp_path / f"copies-{number}"), "pulls": each, "pushes": each,
                    "pullers": PULLERS // PROCESSES, "pushers": names[number * share : (number + 1) * share],
                }  # fmt: skip
                words = [sys.executable, "-m", "tests.kit.node_load", json.dumps(plan)]
                running.append(subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE))
            done = [json.loads(process.communicate(timeout=MOST_SECONDS)[0]) for process in running]
        seconds = time.monotonic() - began
        wait_until(lambda: sizes(node.process.pid)["sockets"] <= idle["sockets"], node.process)
        after = sizes(node.process.pid)
    finally:
        for process in running:
            process.kill()
            process.communicate()
        node.process.terminate()
        code = node.process.wait(60)
        node.process.stdout.close()
    for kind in ("pull", "push"):
        times = sorted(one for part in done for one in part[kind])
        middle, slow = times[len(times) // 2], times[int(len(times) * 0.99)]
        record_property(f"{kind}: count, p50, p99 [s]", [len(times), round(middle, 3), round(slow, 3)])
        assert len(times) == each * (PULLERS if kind == "pull" else PUSHERS)
    quarter = len(seen) // 4
    flat = {
        key: [
            statistics.median(one[key] for one in part) for part in (seen[quarter:-quarter], seen[-quarter:])
        ]
        for key in idle
    }
    record_property("seconds", round(seconds))
    record_property("told that the node is busy", sum(part["busy"] for part in done))
    record_property("second quarter on, last quarter", flat)
    record_property("idle before and after", [idle, after])
    assert code == 0
    assert "Traceback" not in (tmp_path / "here" / "log").read_text(encoding="utf-8")
    assert flat["memory"][1] <= flat["memory"][0] * GROWN
    assert after["descriptors"] <= idle["descriptors"] + 8
    assert max(one["sockets"] for one in seen) <= idle["sockets"] + 12 * (PULLERS + PUSHERS)
    assert max(one["threads"] for one in seen) <= MOST_THREADS
    for part in done:
        for name, heads in part["heads"].items():
            chain = [str(block) for block in here[name]._files.chain.hashes(here[name].head)]
            assert [head for head in heads if head not in set(chain)] == []
            assert chain[-1] == heads[-1]
    assert {report.verdict for report in here.verify()} == {"clean"}
