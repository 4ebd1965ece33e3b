"""Case 51: when datasets are pulled by themselves; scenes by a clock of their own, and pulls in child processes."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from odfchain.api.settings import DatasetConfiguration
from odfchain.api.workspace import Workspace
from odfchain.node import schedule as module
from odfchain.node.schedule import FAILED, Finished, Planned, Schedule
from odfchain.odf.times import Recurrence, Timestamp
from tests.kit.polled_sources import polled
from tests.kit.processes import QUICK_START, wait_until
from tests.kit.servers import CSV37, Reply, Server
from tests.kit.support import ROOT, Run, fixture

CASE = fixture("node/cases/51.yaml")
MINUTE = 60_000


def of_day(text: str) -> Timestamp:
    return Timestamp.parse(f"2026-03-02T{text}:00Z")


class Clock(threading.Event):
    """A time that goes on when somebody waits for this event, which is set when the time is over."""

    def __init__(self, now: Timestamp) -> None:
        super().__init__()
        self.now, self.end = now, now
        self.turned: tuple[Timestamp, int] | None = None

    def __call__(self) -> Timestamp:
        return self.now

    def go_on(self, milliseconds: int) -> None:
        self.now = self.now.shifted(milliseconds)
        if self.turned is not None and self.now >= self.turned[0]:
            self.now, self.turned = self.now.shifted(self.turned[1] * MINUTE), None
        if self.turned is None and self.now >= self.end:
            self.set()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is None:
            return super().wait()
        self.go_on(max(1, round(timeout * 1_000)))
        return self.is_set()


class Runs:
    """Runs that take a time of the clock, and fail so often as the scene says."""

    def __init__(self, clock: Clock, names: dict[str, str], scene: dict[str, Any]) -> None:
        self.clock, self.names = clock, names
        self.takes, self.fails = scene.get("takes", {}), dict(scene.get("fails", {}))
        self.begun: list[str] = []

    def __call__(self, dataset_id: str, lock: int) -> Finished:
        name = self.names[dataset_id]
        self.begun.append(f"{str(self.clock())[11:16]} {name}")
        self.clock.go_on(self.takes.get(name, 0) * MINUTE)
        self.fails[name] = self.fails.get(name, 0) - 1
        return Finished(FAILED, "no answer") if self.fails[name] >= 0 else Finished("updated")

    def end(self) -> None:
        pass


def scheduled(folder: Path, every: dict[str, str]) -> dict[str, str]:
    """A workspace with these schedules; the names by ids."""
    workspace = Workspace.init(folder)
    for name, text in every.items():
        made = f"kind: DatasetSnapshot\nversion: 1\ncontent: {{name: {name}, kind: Root, metadata: []}}\n"
        (dataset,) = workspace.add(made, check=False)
        DatasetConfiguration.of(dataset).set("pull.every", [text])
    return {str(dataset.id): str(dataset.alias) for dataset in workspace}


@pytest.mark.parametrize("scene", CASE["scenes"], ids=lambda scene: scene["title"])
def test_51_scenes(tmp_path: Path, scene: dict[str, Any]) -> None:
    names = scheduled(tmp_path, scene["every"])
    shown, begun = list[str](), list[str]()
    for up, until in scene["up"]:
        clock = Clock(of_day(up))
        clock.end = of_day(until)
        if "turned" in scene:
            clock.turned = of_day(scene["turned"][0]), scene["turned"][1]
        runs = Runs(clock, names, scene)

        def say(planned: Planned, clock: Clock = clock) -> None:
            shown.append(planned.when(clock()))

        Schedule(tmp_path, now=clock, run=runs, parallel=1, ended=say).run_until(clock)
        begun += runs.begun
    assert begun == scene["runs"]
    assert shown == scene.get("next", shown)


def test_two_run_at_the_same_time_and_no_third(tmp_path: Path) -> None:
    scheduled(tmp_path, dict.fromkeys("abc", "1h"))
    both, stop, begun = threading.Barrier(2, timeout=60), threading.Event(), list[str]()

    class Pairs(Runs):
        def __init__(self) -> None:
            pass

        def __call__(self, dataset_id: str, lock: int) -> Finished:
            begun.append(dataset_id)
            if len(begun) < 3:
                both.wait()
            else:
                stop.set()
            return Finished("updated")

    Schedule(tmp_path, run=Pairs()).run_until(stop)
    assert len(begun) == len(set(begun)) == 3


def test_two_processes_never_pull_one_dataset_twice(tmp_path: Path) -> None:
    """The second finds it locked; when the first has ended, it is not due any more."""
    names = scheduled(tmp_path, {"sales": "1h"})
    clock, second = Clock(of_day("10:00")), Clock(of_day("10:00"))
    clock.end = second.end = of_day("10:01")
    waiting = Runs(second, names, {})

    class First(Runs):
        def __call__(self, dataset_id: str, lock: int) -> Finished:
            Schedule(tmp_path, now=second, run=waiting, parallel=1).run_until(second)
            return super().__call__(dataset_id, lock)

    first = First(clock, names, {})
    Schedule(tmp_path, now=clock, run=first, parallel=1).run_until(clock)
    assert (first.begun, waiting.begun) == (["10:00 sales"], [])
    (planned,) = Schedule(tmp_path, now=clock).state()
    assert planned.last is not None
    assert planned.next > clock.now


def test_hourly_datasets_do_not_begin_together() -> None:
    every, begin = Recurrence.parse("1h"), of_day("10:00")
    minutes = {str(every.after(begin, f"did:odf:{number}"))[14:16] for number in range(500)}
    assert len(minutes) == 60
    first = every.after(begin, "a")
    assert every.after(first, "a") == first.shifted(60 * MINUTE)
    assert every.after(first.shifted(-1), "a") == first


@pytest.mark.parametrize(
    "text",
    ["soon", "0 s", "0.5h", "* * * *", "0 6 * * * *", "99 * * * *", "0 0 31 2 *", "@daily", "² * * * *"],
)
def test_another_text_is_refused_and_both_forms_are_said(tmp_path: Path, run: Run, text: str) -> None:
    scheduled(tmp_path, {"sales": "1h"})
    done = run("-w", tmp_path, "config", "set", "pull.every", text, "--dataset", "sales")
    assert (done.code, "neither a length of time nor a cron text" in done.err) == (2, True)
    assert "1h" in done.err
    assert "30 6 * * *" in done.err
    assert run("-w", tmp_path, "config", "get", "pull.every", "--dataset", "sales").out == "1h\n"


@pytest.mark.parametrize(
    "damage",
    [b"{", b"[]", b"[" * 100_000, b'{"version": 9, "datasets": {}}', b'{"version": 1, "datasets": {"ID": {}}}',
     b'{"version": 1, "datasets": {"ID": {"standing": {"done": 1}, "outcomes": 7}}}'],
)  # fmt: skip
def test_a_damaged_state_is_said_and_begun_anew(tmp_path: Path, damage: bytes) -> None:
    names = scheduled(tmp_path, {"sales": "1h"})
    (key,) = names
    file, clock, said = tmp_path / ".odfchain" / "schedule.json", Clock(of_day("10:00")), list[str]()
    file.write_bytes(damage.replace(b"ID", key.encode()))
    schedule = Schedule(tmp_path, now=clock, run=Runs(clock, names, {}), parallel=1, said=said.append)
    schedule.run_until(clock)
    assert len(said) == 1
    assert str(file) in said[0]
    assert [each.outcome for each in Schedule(tmp_path).outcomes(key)] == ["updated"]
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_damaged_dataset_does_not_stop_the_others(tmp_path: Path) -> None:
    names = scheduled(tmp_path, dict.fromkeys(("sales", "cities"), "1h"))
    damaged = Workspace.open(tmp_path)["cities"].path
    for block in (damaged / "blocks").iterdir():
        block.write_bytes(b"no block")
    (damaged / "info" / "chain-index").unlink(missing_ok=True)
    clock, said = Clock(of_day("10:00")), list[str]()
    runs = Runs(clock, names, {})
    Schedule(tmp_path, now=clock, run=runs, parallel=1, said=said.append).run_until(clock)
    assert runs.begun == ["10:00 sales"]
    assert [each.partition(":")[0] for each in said] == ["cities"]


def test_the_last_fifty_outcomes_are_kept(tmp_path: Path) -> None:
    names = scheduled(tmp_path, {"sales": "1m"})
    clock = Clock(of_day("10:00"))
    clock.end = of_day("11:00")
    schedule = Schedule(tmp_path, now=clock, run=Runs(clock, names, {"takes": {"sales": 1}}), parallel=1)
    schedule.run_until(clock)
    (key,) = names
    kept = schedule.outcomes(key)
    assert len(kept) == 50
    assert kept == sorted(kept, key=lambda each: each.begun, reverse=True)


PULLED = 'import sys; print(\'{"status": "up to date"}\')'


@pytest.mark.parametrize(
    ("program", "outcome", "message"),
    [
        (PULLED, "up to date", None),
        (f"{PULLED}; sys.exit(3)", "failed", '{"status": "up to date"}'),
        ("print('note: x'); print('error: no answer'); print('hint: wait'); exit(3)", "failed", "no answer"),
        ("print('x' * 10_000_000); exit(1)", "failed", "x" * 299 + "…"),
        ("import os; os.kill(os.getpid(), 9)", "failed", "ended with -9"),
    ],
)
def test_what_a_run_says_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, outcome: str, message: str | None
) -> None:
    (key,) = scheduled(tmp_path, {"sales": "1h"})
    monkeypatch.setattr(module, "_COMMAND", program)
    stop = threading.Event()
    schedule = Schedule(tmp_path, parallel=1, ended=lambda _: stop.set())
    schedule.run_until(stop)
    (found,) = schedule.outcomes(key)
    assert (found.outcome, found.message) == (outcome, message)


def test_what_outlasts_the_grace_is_ended_and_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduled(tmp_path, {"sales": "1h"})
    monkeypatch.setattr(
        module, "_COMMAND", f"open({str(tmp_path / 'begun')!r}, 'w'); import signal; signal.pause()"
    )
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.05)
    stop, schedule = threading.Event(), Schedule(tmp_path, parallel=1)
    thread = threading.Thread(target=schedule.run_until, args=(stop,))
    thread.start()
    wait_until((tmp_path / "begun").exists)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()
    (planned,) = Schedule(tmp_path).due()
    assert planned.last is None


def test_51_a_source_on_the_web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """A real pull fails, is retried after a minute, and finds nothing new after an hour."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", QUICK_START)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    clock = Clock(Timestamp.now())
    clock.end = clock.now.shifted(300 * MINUTE)
    fresh = {"ETag": '"1"'}
    with Server(Reply(404), Reply(headers=fresh, body=CSV37), Reply(304, headers=fresh)) as server:
        with Workspace.init(tmp_path) as workspace:
            dataset = polled(workspace, f"kind: Url, url: '{server.url()}'", check=False)
        done = run("-w", tmp_path, "config", "set", "pull.every", "1h", "--dataset", "cities")
        assert done.code == 0
        assert "next" in run("-w", tmp_path, "list", "-o", "json").rows[0]

        shown = []

        def ended(planned: Planned) -> None:
            assert planned.last is not None
            shown.append((planned.last.outcome, planned.when(clock())))
            if len(shown) == 1:
                listed = run("-w", tmp_path, "list")
                assert "after 1 failure" in listed.out
            if len(shown) == 3:
                clock.set()

        Schedule(tmp_path, now=clock, parallel=1, ended=ended).run_until(clock)
        assert [outcome for outcome, _ in shown] == ["failed", "updated", "up to date"]
        assert shown[0][1] == "retry in 60 seconds after 1 failure"
        assert [request.headers.get("if-none-match") for request in server.requests] == [None, None, '"1"']
    kept = Schedule(tmp_path).outcomes(str(dataset.id))
    assert [each.head for each in kept[:2]] == [str(Workspace.open(tmp_path)["cities"].summary.head)] * 2
    assert "404" in str(kept[2].message)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no dataset has a schedule"),
        (("cities",), "cities has no schedule"),
        (("-o", "json"), "outcomes come one by one, not as json"),
        (("-e", "A=1"), "schedules pull without other options"),
    ],
)
def test_what_cannot_be_watched_is_said(
    tmp_path: Path, run: Run, words: tuple[str, ...], message: str
) -> None:
    Workspace.init(tmp_path)
    done = run("-w", tmp_path, "pull", "--watch", *words)
    assert (done.code, message in done.err) == (2, True), done.err
