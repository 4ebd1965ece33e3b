"""Clocks that go wrong: back an hour, a year ahead and right again, two machines apart. Chains stay in order, nothing ends.

The clock of this process is turned, as two machines have it in turns, while what they do is drawn at random.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from odfchain import Workspace
from odfchain.api.dataset import Dataset
from odfchain.api.settings import DatasetConfiguration
from odfchain.chain.statements import create_key_file
from odfchain.errors import OdfchainError, SignatureError
from odfchain.node.schedule import FAILED, Finished, Schedule
from odfchain.odf import events as ev
from odfchain.odf.times import Timestamp
from odfchain.transfer.access_tokens import TokenFile
from odfchain.workspace.commit import commit
from odfchain.workspace.dataset_state import DatasetState
from tests.kit.run_length import scaled

HOUR, YEAR = 3_600, 365 * 86_400
TURNS = (0, -HOUR, HOUR, YEAR, -YEAR, 1, -1)
MANIFEST = "kind: DatasetSnapshot\nversion: 1\ncontent: {name: %s, kind: Root, metadata: []}\n"
Record = Callable[[str, object], None]


class Clock:
    """The time of this process, so many seconds apart from that of the machine."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.offset, self.passed, self._time_ns = 0, 0, time.time_ns
        patch.setattr(time, "time_ns", lambda: self._time_ns() + self.offset * 10**9)
        patch.setattr(time, "time", lambda: time.time_ns() / 1e9)

    def __call__(self) -> Timestamp:
        return Timestamp.now()

    def stand_still(self) -> None:
        """Go on only with `passed` [s]."""
        began, self.passed = self._time_ns(), 0
        self._time_ns = lambda: began + self.passed * 10**9


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    return Clock(monkeypatch)


def describe(dataset: Dataset, text: str) -> None:
    """A block that says when it was made, by the rule of every command."""
    state = DatasetState.read(dataset._files.chain)
    commit(dataset._files, state, [ev.SetInfo(description=text)], [], system_time=state.next_system_time())


def times_of(dataset: Dataset) -> list[Timestamp]:
    return [each.block.system_time for each in dataset.log()][::-1]


def test_a_year_ahead_and_right_again(tmp_path: Path, clock: Clock) -> None:
    """Blocks of the wrong year hold the times of later blocks, and nothing else; all goes on at once."""
    here, there = (Workspace.init(tmp_path / name) for name in ("here", "there"))
    (dataset,) = here.add(MANIFEST % "d")
    url, key = f"file://{tmp_path}/peer/d", str(tmp_path / "auditor.pem")
    create_key_file(Path(key))
    clock.offset = YEAR
    describe(dataset, "a year ahead")
    dataset.sign()
    wrong = dataset.attest(key_file=key).attestation
    dataset.push(url)
    clock.offset = 0
    describe(dataset, "right again")
    times = times_of(dataset)
    assert times == sorted(times)
    assert times[-1] == times[-2] > clock()
    assert dataset.verify().ok
    assert dataset.sign().time < clock().shifted(1_000)
    again = dataset.attest(key_file=key).attestation
    assert again.head != wrong.head
    dataset.push(url)
    copy = there.pull(url, name="copy", require_signature=True)
    assert copy.head == dataset.summary.head
    clock.offset = YEAR + HOUR
    describe(dataset, "that year")
    assert times_of(dataset)[-1] > times[-1]


def test_a_word_of_the_wrong_year_is_said_to_stand_in_the_way(tmp_path: Path, clock: Clock) -> None:
    """A newer statement of the same block is refused aloud until that year; about the next block there is one."""
    (dataset,) = Workspace.init(tmp_path / "here").add(MANIFEST % "d")
    key = str(tmp_path / "auditor.pem")
    create_key_file(Path(key))
    clock.offset = YEAR
    wrong = dataset.attest(key_file=key).attestation
    clock.offset = 0
    with pytest.raises(OdfchainError, match="already signed a newer statement"):
        dataset.attest(key_file=key)
    assert [each.line.statement for each in dataset.attestations()] == [wrong]
    describe(dataset, "one more")
    again = dataset.attest(key_file=key).attestation
    assert again.time < wrong.time
    assert again in [each.line.statement for each in dataset.attestations()]


def test_what_a_peer_signed_in_the_future_is_refused_until_it_is_signed_anew(
    tmp_path: Path, clock: Clock
) -> None:
    here, there = (Workspace.init(tmp_path / name) for name in ("here", "there"))
    (dataset,) = here.add(MANIFEST % "d")
    url = f"file://{tmp_path}/peer/d"
    clock.offset = YEAR
    describe(dataset, "a year ahead")
    dataset.push(url)
    clock.offset = 0
    with pytest.raises(SignatureError, match="in the future") as caught:
        there.pull(url, name="copy", require_signature=True)
    assert "odfchain sign" in str(caught.value.hint)
    dataset.sign()
    dataset.push(url)
    assert there.pull(url, name="copy", require_signature=True).head == dataset.summary.head


def test_no_leap_second_stops_anybody(clock: Clock, tmp_path: Path) -> None:
    """The clock says one second twice, or stands still in it: blocks of it have one time."""
    (dataset,) = Workspace.init(tmp_path).add(MANIFEST % "d")
    second = Timestamp.parse("2016-12-31T23:59:59.900Z").epoch_ns
    end = Timestamp.parse("2030-12-31T23:59:59.900Z").epoch_ns
    assert end > second
    for step in (0, 99, 100, 0, 50, 100, 1_100):  # [ms]: 59.900, 59.999, 60.000, and 59.900 once more
        clock._time_ns = lambda step=step: end + step * 10**6
        describe(dataset, f"{step}")
    times = times_of(dataset)
    assert times == sorted(times)
    assert len(set(times[1:])) == 4
    assert dataset.verify().ok
    with pytest.raises(OdfchainError):
        Timestamp.parse("2016-12-31T23:59:61Z")


class Machines:
    """Two machines with a clock each, and a peer between them; what they do at random must not be refused."""

    def __init__(self, folder: Path, clock: Clock, seed: int) -> None:
        self._clock, self._draw, self.done = clock, random.Random(seed), Counter[str]()
        self._url = f"file://{folder}/peer/d"
        self.places = [Workspace.init(folder / name) for name in ("one", "other")]
        self.offsets = [0, 0]
        (self.owner,) = self.places[0].add(MANIFEST % "d")
        self.owner.push(self._url)
        self.places[1].pull(self._url, name="copy")
        (self.own,) = self.places[1].add(MANIFEST % "own")
        self.seen = [times_of(self.owner)[-1]]

    def step(self) -> None:
        """One machine does something, or its clock is turned."""
        at = self._draw.randrange(2)
        if self._draw.random() < 0.4:
            self.offsets[at] = self._draw.choice(TURNS)
            self.done["turn"] += 1
        self._clock.offset = self.offsets[at]
        work = self._draw.choice(
            (self._write, self._write, self._sign, self._share, self._branch, self._token, self._collect)
        )
        work(at)
        self.done[work.__name__] += 1

    def _mine(self, at: int) -> Dataset:
        return (self.owner, self.own)[at]

    def _write(self, at: int) -> None:
        describe(self._mine(at), f"{self._draw.random()}")

    def _sign(self, at: int) -> None:
        self._mine(at).sign()

    def _share(self, at: int) -> None:
        if at == 0:
            self.owner.push(self._url)
        else:
            self.places[1].pull(self._url, name="copy")

    def _branch(self, at: int) -> None:
        mine, name = self._mine(at), f"b{len(self._mine(at).branch_names)}"
        describe(mine.create_branch(name), name)

    def _token(self, at: int) -> None:
        tokens = TokenFile(self.places[at]._files.root)
        name = f"t{len(tokens.list())}"
        tokens.create(name, ["read:%"])
        assert name in [each.name for each in tokens.list()]

    def _collect(self, at: int) -> None:
        self._mine(at).gc()

    def check(self) -> None:
        """Both chains are in order and whole, the copy as far as it came."""
        self._clock.offset = 0
        for dataset in (self.owner, self.own, self.places[1]["copy"]):
            times = times_of(dataset)
            assert times == sorted(times)
            assert dataset.verify().ok
        self.owner.sign()
        self.owner.push(self._url)
        self.places[1].pull(self._url, name="copy", require_signature=True)
        assert self.places[1]["copy"].summary.head == self.owner.summary.head


def test_two_machines_with_clocks_that_are_turned(
    tmp_path: Path, clock: Clock, record_property: Record
) -> None:
    done = Counter[str]()
    for number in range(scaled(3, 30, 150)):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        machines = Machines(folder, clock, number)
        for _ in range(20):
            machines.step()
        machines.check()
        done += machines.done
    assert done["turn"] > 5
    for name, count in done.items():
        record_property(name.strip("_"), count)


class Runs:
    """Runs of a schedule, within each of which another process looks, too."""

    def __init__(self, clock: Clock, draw: random.Random) -> None:
        self.clock, self.draw, self.times = clock, draw, list[int]()
        self.done, self.other = Counter[str](), lambda: 1.0

    def __call__(self, dataset_id: str, lock: int) -> Finished | None:
        self.times.append(self.clock.passed)
        self.done["looks of another process within a run"] += 1
        assert self.other() > 0  # it took nothing: the dataset is locked
        outcome = self.draw.choice(("updated", "updated", FAILED, None))
        self.done[f"runs that {'were ended' if outcome is None else outcome}"] += 1
        return None if outcome is None else Finished(outcome)

    def end(self) -> None:
        pass


def test_schedules_beside_clocks_that_are_turned(
    tmp_path: Path, clock: Clock, record_property: Record
) -> None:
    """Two processes that end and begin anew: no moment has two runs, and no turn of a clock stops them for long."""
    done = Counter[str]()
    for seed in range(scaled(3, 40, 200)):
        _turned_schedules(tmp_path / f"{seed}", clock, random.Random(seed), done)
    assert min(done[each] for each in ("turns", "restarts", "runs that updated", "runs that failed")) > 0
    for name, count in done.items():
        record_property(name, count)


def _turned_schedules(folder: Path, clock: Clock, draw: random.Random, done: Counter[str]) -> None:
    (dataset,) = Workspace.init(folder).add(MANIFEST % "d", check=False)
    DatasetConfiguration.of(dataset).set("pull.every", ["1h"])
    runs, clock.offset = Runs(clock, draw), 0
    clock.stand_still()

    def begun() -> Schedule:
        return Schedule(folder, now=clock, run=runs, parallel=1)

    one, other = begun(), begun()
    runs.other = other._step
    turns = 0
    for _ in range(40):
        what = draw.random()
        if what < 0.2:
            clock.offset = draw.choice(TURNS)
            turns, done["turns"] = turns + 1, done["turns"] + 1
        elif what < 0.3:
            one, done["restarts"] = begun(), done["restarts"] + 1
        before, clock.passed = len(runs.times), clock.passed + draw.randrange(1, HOUR)
        seconds = one._step()
        if seconds == 0 and runs.done["runs that were ended"] == done["ended"]:
            assert one._step() > 0, "the same moment has had its run"
        done["ended"] = runs.done["runs that were ended"]
        assert len(runs.times) <= before + 1
        (planned,) = one.state()
        assert planned.next <= clock().shifted(2 * HOUR * 1_000), "no turn holds a schedule up for longer"
    # the moments that there were, one more for each turn, and what failed or was ended again
    again = runs.done["runs that failed"] + runs.done["runs that were ended"]
    assert len(runs.times) <= clock.passed // HOUR + 1 + turns + again
    clock.offset, before = 0, len(runs.times)
    for _ in range(6 * 5):
        clock.passed += HOUR // 5
        one._step()
    assert len(runs.times) >= before + 2, "clocks are right again, and so are schedules"
    del done["ended"]
    done += runs.done
