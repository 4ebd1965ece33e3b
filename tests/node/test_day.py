"""A day of a node: all kinds of clients at once, hourly schedules, deaths; nothing acknowledged is lost.

The clock of the schedules is turned by the test, everything else is as ever. The figures of the whole day,
and of a small one, are printed, and kept in `build/day.json`.
"""

from __future__ import annotations

import json
import re
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from odfchain.api.workspace import Workspace
from tests.kit.day import SENT, Day, Source
from tests.kit.processes import one_session, wait_until
from tests.kit.servers import Server
from tests.kit.support import ROOT, fixture

FORMS = fixture("node/day.yaml")
EXPECTED = FORMS["expected"]
pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


@pytest.mark.soak  # the small one takes a minute, most of it the start of Java
@pytest.mark.parametrize("name", ["small", "full"])
def test_a_day_of_a_node(
    tmp_path: Path, class_archive: Path | None, name: str, record_property: Callable[[str, object], None]
) -> None:
    scene, source, began = FORMS["scenes"][name], Source(), time.monotonic()
    with one_session() as env, Server(source) as server:
        (none := tmp_path / "none").touch()
        env["ODFCHAIN_CLASS_ARCHIVE"] = str(class_archive or none)
        day = Day(tmp_path, scene, env, server)
        try:
            hours, resident = spent(day, source)
            differences = compared(day)
            assert day.end() == 0
        finally:
            day.node.process.kill()
    found = {
        "faults": day.faults,
        "statuses": {kind: statuses(day, kind) for kind in EXPECTED["statuses"]},
        "traceback": "Traceback" in (day.folder / "log").read_text(encoding="utf-8"),
        "differences": differences,
        **state(day, hours),
    }
    figures = {"seconds": round(time.monotonic() - began), "resident_kib": resident, **latencies(day)}
    keep(name, figures | found)
    for key in ("deaths", "lost", "twice"):
        record_property(key, (figures | found)[key])
    assert found["faults"] == EXPECTED["faults"]
    assert {kind: list(found) for kind, found in found["statuses"].items()} == EXPECTED["statuses"]
    for key in ("traceback", "differences", "lost", "twice", "verdicts", "findings"):
        assert found[key] == EXPECTED[key], key
    assert found["runs"] == {each: [EXPECTED["runs_of_an_hour"]] * len(hours) for each in found["runs"]}
    first, last = (resident[key] for key in ("quarter", "end"))
    assert abs(last - first) < EXPECTED["growth"]["share"] * first + EXPECTED["growth"]["mib"] * 1_024


def spent(day: Day, source: Source) -> tuple[list[int], dict[str, int]]:
    """The day goes by: the hours in which the node was there at their end, and what it had resident [KiB]."""
    scene, hours, resident = day.scene, list[int](), dict[str, int]()
    kills, away = dict(scene["kills"]), 0
    started = 0
    day.start()
    with day.crowd():
        for hour in range(scene["hours"]):
            source.hour = hour
            day.turn(hour)
            if away:
                away -= 1
                continue
            if not day.up.is_set():
                day.start()
                started = hour
            day.over.wait(scene["hour_seconds"])
            hours.append(hour)
            if kills.get(hour) == 0:  # in the middle of a pull
                wait_until(lambda hour=hour: any(at == hour for _, at in source.asked), day.node.process)
                day.kill()
                day.start()
                started = hour
            ended(day, len(hours))
            if hour == scene["revoked"]:
                day.revoke()
            if hour == scene["hours"] // 4:
                resident["quarter"] = day.resident()
            if hour == started + (scene["hours"] - started) // 4:
                resident["quarter of the last life"] = day.resident()
            if kills.get(hour):
                away = kills[hour]
                day.kill()
        wait_until(lambda: statuses(day, "leaver").get(401), day.node.process)
    resident["end"] = day.resident()
    return hours, resident


def ended(day: Day, count: int) -> None:
    """Every schedule has had so many runs."""
    wait_until(
        lambda: all(len(runs) >= count for runs in day.outcomes().values()) and day.outcomes(),
        day.node.process,
    )


def compared(day: Day) -> dict[str, Any]:
    """Where the node's figures differ from what clients of its last life counted."""
    wanted = day.expected_counts()
    # a push that was begun before asks for less, or four times whether all is there
    spare = 4 * day.resumed[day.life]

    def differences(asked: list[int] = [0]) -> dict[str, Any]:  # noqa: B006
        with urlopen(f"{day.url}-/metrics") as reply:  # noqa: S310 - on loopback
            text = reply.read().decode()
        lines = re.findall(r'odfchain_requests_total\{kind="(\w+)",status="(\d+)"\} (\S+)', text)
        found = Counter({(kind, status): round(float(count)) for kind, status, count in lines})
        found["page", "200"] -= asked[0]  # those for these figures
        asked[0] += 1
        return {
            f"{kind} {status}": [found[kind, status], wanted[kind, status]]
            for kind, status in sorted(found | wanted)
            if abs(found[kind, status] - wanted[kind, status]) > (spare if kind in ("file", "push") else 0)
        }

    until = time.monotonic() + 10
    while (found := differences()) and time.monotonic() < until:
        threading.Event().wait(0.1)  # the last ones are counted after they were answered
    return found


def statuses(day: Day, kind: str) -> dict[int, int]:
    return dict(sorted(Counter(each.status for each in day.answered if each.kind == kind).items()))


def state(day: Day, hours: list[int]) -> dict[str, Any]:
    """What is in the chains, compared with what clients were told."""
    workspace, lost, twice = Workspace.open(day.folder), 0, 0
    for name, heads in day.acknowledged.items():
        chain = workspace[name]._files.chain
        there = Counter(chain.hashes(chain.head()))
        lost += sum(head not in there for head in heads)
        twice += sum(count > 1 for count in there.values())
        values = Counter(workspace[name].scan(["v"]).to_arrow()["v"].to_pylist())
        lost += sum(value not in values for value in range(day.rows[name]))
        twice += sum(count > 1 for count in values.values())
    told = {SENT: set(day.sent)}
    told |= {each: {f"{each} {hour}" for hour in hours} for each in day.outcomes()}
    for name, cities in told.items():
        found = Counter(workspace[name].scan(["city"]).to_arrow()["city"].to_pylist())
        lost += len(cities - set(found))
        twice += sum(count > 1 for count in found.values()) + len(set(found) - cities)
    runs = {}
    for name, kept in day.outcomes().items():
        at = Counter(str(each.begun)[11:13] for each in kept)
        runs[name] = [at[f"{hour:02d}"] for hour in hours]
    return {
        "lost": lost,
        "twice": twice,
        "runs": runs,
        "verdicts": sorted({dataset.verify().verdict for dataset in workspace}),
        "findings": sum(len(report.findings) for report in workspace.fsck(dry_run=True)),
    }


def latencies(day: Day) -> dict[str, Any]:
    found = {}
    for kind in sorted({each.kind for each in day.answered} - {"slow"}):
        times = [each.seconds * 1_000 for each in day.answered if each.kind == kind]
        parts = statistics.quantiles(times, n=20, method="inclusive") if len(times) > 1 else times * 20
        found[kind] = {"count": len(times), "p50_ms": round(parts[9], 1), "p95_ms": round(parts[18], 1)}
    return {"kinds": found, "deaths": day.life - 1}


def keep(name: str, figures: dict[str, Any]) -> None:
    """Print the figures, and put them into `build/day.json` beside those of the other day."""
    (path := ROOT / "build" / "day.json").parent.mkdir(exist_ok=True)
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(before | {name: figures}, indent=2) + "\n", encoding="utf-8")
    for kind, each in figures["kinds"].items():
        print(f"{kind:10} {each['count']:7,} {each['p50_ms']:9,.1f} ms {each['p95_ms']:9,.1f} ms")
    for key in figures.keys() - {"kinds"}:
        print(f"{key:10} {figures[key]}")
