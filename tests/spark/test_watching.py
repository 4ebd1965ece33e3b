"""How far Spark is: what is made of the facts of stages, who asks for them, and what is seen of a real job."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from odfchain.api.workspace import Workspace
from odfchain.progress import SILENT, SideBySide, WorkDone, shows_work
from odfchain.spark import jobs
from odfchain.spark.jobs import (
    JavaStatus,
    Looking,
    Stage,
    Steps,
    Tally,
    Watch,
    _following,
    time_left,
    watched,
)
from odfchain.spark.session import SparkEngine
from odfchain.spark.stage import write_ordered
from tests.kit.support import Notes, manifest

STEPS = Steps(reading="Reading f", merging="Merging f", writing="Writing f", rows=1_000, size=5_000)


class Looked(Notes):
    def __init__(self, *, shows_work: bool = True) -> None:
        super().__init__()
        self.shows_work = shows_work
        self.told: list[WorkDone] = []

    def work(self, done: WorkDone) -> None:
        self.told.append(done)


def added(tally: Tally, *stages: Stage, **facts: Any) -> WorkDone:
    done = tally.add(stages, **facts)
    assert done is not None
    return done


@given(st.floats(0, 1), st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_time_left_is_none_or_what_the_rest_takes(fraction: float, took: float, ago: float) -> None:
    left = time_left(fraction, took, ago)
    if left is not None:
        assert 0 <= left <= took * (1 - fraction) / fraction
        later = time_left(fraction, took, ago + 1)
        assert later is None or later < left or later == pytest.approx(left - 1), "it runs down"


@pytest.mark.parametrize(
    ("fraction", "took", "ago", "left"),
    [
        (None, 60, 0, None), (0.0, 60, 0, None), (0.04, 60, 0, None), (1.01, 60, 0, None),
        (0.5, 2.9, 0, None), (0.5, 10, 0, 10), (0.5, 10, 4, 6), (0.5, 10, 11, None), (1.0, 10, 0, 0),
    ],
)  # fmt: skip
def test_there_is_a_time_once_there_is_a_basis(
    fraction: float | None, took: float, ago: float, left: float | None
) -> None:
    assert time_left(fraction, took, ago) == left


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2_000), st.integers(0, 3), st.floats(0.1, 60))))
def test_what_grows_is_never_told_to_shrink_nor_to_end_before_now(
    moves: list[tuple[int, int, int, float]],
) -> None:
    """Rows and bytes beyond what was said take the total away, and the estimate with it."""
    tally, now, stage = Tally(STEPS), 100.0, Stage(number=0, reads=True, tasks=4)
    said = []
    for rows, size, tasks, seconds in moves:
        now += seconds
        stage = replace(
            stage, read_rows=stage.read_rows + rows, read_bytes=stage.read_bytes + size,
            ended_tasks=min(4, stage.ended_tasks + tasks),
        )  # fmt: skip
        done = added(tally, stage, now=now)
        said.append(done)
        assert done.fraction is None or 0 <= done.fraction <= 1
        assert done.seconds_left is None or done.seconds_left >= 0
        assert done.total_rows is None or done.rows <= done.total_rows
        assert done.total_bytes is None or done.read_bytes <= done.total_bytes
    for before, after in pairwise(said):
        assert all(getattr(before, n) <= getattr(after, n) for n in ("rows", "read_bytes", "tasks"))
        assert (before.fraction or 0) <= (after.fraction or 1)


def test_a_steady_step_counts_down() -> None:
    tally = Tally(STEPS)
    stage = Stage(number=0, reads=True, tasks=5)
    told = [added(tally, replace(stage, read_bytes=500 * n), now=float(n)) for n in range(11)]
    left = [done.seconds_left for done in told if done.seconds_left is not None]
    assert left == pytest.approx([7, 6, 5, 4, 3, 2, 1, 0])


def test_reading_merging_writing() -> None:
    tally = Tally(STEPS)
    assert tally.add([], now=0) is None
    reading = Stage(number=0, reads=True, tasks=4, ended_tasks=1, read_rows=300, read_bytes=1_500)
    done = tally.add([reading], now=1)
    assert done == WorkDone(
        step="Reading f", rows=300, total_rows=1_000, read_bytes=1_500, total_bytes=5_000, tasks=1,
        total_tasks=4, fraction=0.3,
    )  # fmt: skip
    whole = replace(reading, ended=True, ended_tasks=4, read_rows=1_000, read_bytes=5_000, handed_rows=900)
    assert tally.add([whole], now=2) == WorkDone(
        step="Reading f", rows=1_000, total_rows=1_000, read_bytes=5_000, total_bytes=5_000, tasks=4,
        total_tasks=4, fraction=1,
    )  # fmt: skip
    last = Stage(number=2, reads=False, tasks=1)
    assert tally.add([last], now=3) == WorkDone(step="Merging f", total_rows=900, total_tasks=1)
    assert tally.add([last], now=4, written=450) == WorkDone(
        step="Writing f", rows=450, total_rows=900, fraction=0.5
    )
    done = tally.add([replace(last, ended=True, ended_tasks=1)], now=8, written=900)
    assert done == WorkDone(step="Writing f", rows=900, total_rows=900, fraction=1, seconds_left=0)


def test_rows_that_are_merged_in_two_stages_are_as_many_as_were_read() -> None:
    """What is known of tasks says nothing of the stage after them: there is no time once that runs."""
    tally = Tally(STEPS)
    read = Stage(number=0, reads=True, ended=True, tasks=2, ended_tasks=2, handed_rows=900)
    beside = replace(read, number=1, handed_rows=300)
    merging = Stage(number=2, reads=False, tasks=2, ended_tasks=1, taken_rows=700, handed_rows=600)
    tally.add([read, beside, replace(merging, ended_tasks=0)], now=0)
    done = tally.add([merging], now=6)
    assert done == WorkDone(
        step="Merging f", rows=700, total_rows=1_200, tasks=1, total_tasks=2, fraction=0.5, seconds_left=6
    )
    merged = replace(merging, ended=True, ended_tasks=2, taken_rows=1_200, handed_rows=1_000)
    ordering = Stage(number=3, reads=False, tasks=1, taken_rows=1_000)
    done = tally.add([merged, ordering], now=12)
    assert done == WorkDone(step="Merging f", rows=1_200, total_rows=1_200, tasks=2, total_tasks=3)
    assert added(tally, ordering, now=13, written=500).total_rows == 1_000


def test_tasks_read_a_little_more_than_there_is() -> None:
    tally, stage = Tally(STEPS), Stage(number=0, reads=True, tasks=1, read_bytes=5_100)
    over = added(tally, stage, now=1)
    assert (over.read_bytes, over.total_bytes) == (5_000, 5_000)
    far = added(tally, replace(stage, read_bytes=6_000), now=2)
    assert (far.read_bytes, far.total_bytes, far.fraction) == (6_000, None, None)


def test_a_stage_that_is_tried_again_takes_nothing_back() -> None:
    tally, stage = Tally(STEPS), Stage(number=0, reads=True, tasks=4, ended_tasks=3, read_rows=700)
    tally.add([stage], now=1, written=5)
    assert added(tally, Stage(number=0, reads=True, tasks=4), now=2, written=2).rows == 5


def test_bytes_that_others_counted_stand_in_until_spark_knows_more() -> None:
    tally, stage = Tally(STEPS), Stage(number=0, reads=True, tasks=2)
    first = added(tally, stage, now=1, read=2_000)
    then = added(tally, replace(stage, read_bytes=2_500), now=2, read=0)
    assert (first.read_bytes, then.read_bytes) == (2_000, 2_500)


def test_several_at_once_are_told_as_one() -> None:
    screen = Looked()
    together = SideBySide(screen, "Replaying f")
    one, other = together.part(), together.part()
    assert shows_work(one)
    assert shows_work(other)
    one.work(WorkDone(step="a", rows=5, tasks=1, total_tasks=2))
    other.work(WorkDone(step="b", rows=7, read_bytes=9))
    one.work(WorkDone(step="c"))
    assert (
        screen.told[1:] == [WorkDone(step="Replaying f", rows=12, read_bytes=9, tasks=1, total_tasks=2)] * 2
    )
    assert SideBySide(SILENT, "Replaying f").part() is SILENT


@dataclass
class Simulated:
    """A status store that is so far at each look."""

    looks: Sequence[Sequence[Stage]]
    seen: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    error: Exception | None = None

    def stages(self) -> Sequence[Stage]:
        self.seen.release()
        if self.error is not None:
            raise self.error
        first, *rest = self.looks
        self.looks = rest or [first]
        return first

    def bytes_read(self) -> int:
        return 0


def test_it_looks_until_it_is_left_and_once_more_at_the_end() -> None:
    stage = Stage(number=0, reads=True, tasks=2)
    store, screen = Simulated([[stage], [replace(stage, ended_tasks=1)]]), Looked()
    with Looking(lambda: store, Watch(screen.work, (STEPS,), ExitStack()), 0.001):
        for _ in range(3):
            assert store.seen.acquire(timeout=60)
        store.looks = [[replace(stage, ended_tasks=2, ended=True)]]
    assert [done.tasks for done in screen.told][:1] == [0]
    assert screen.told[-1].tasks == 2
    told = len(screen.told)
    assert not any(thread.name == "odfchain-progress" for thread in threading.enumerate())
    assert len(screen.told) == told, "nothing is told once it is left"


@pytest.mark.parametrize("where", ["made", "asked", "told"])
def test_its_errors_end_it_and_nothing_else(where: str) -> None:
    store = Simulated([[Stage(number=0, reads=True, tasks=2)]])
    begun = threading.Event()

    def make() -> Simulated:
        begun.set()
        if where == "made":
            raise ConnectionRefusedError
        return store

    def tell(_: WorkDone) -> None:
        if where == "told":
            raise ValueError("a screen that is gone")

    if where == "asked":
        store.error = ConnectionResetError()
    with Looking(make, Watch(tell, (STEPS,), ExitStack()), 0.001) as looking:
        assert begun.wait(60)
        looking._thread.join(60)
        assert not looking._thread.is_alive()


def test_after_ctrl_c_nobody_is_asked_or_told() -> None:
    store, screen = Simulated([[Stage(number=0, reads=True, tasks=2)]]), Looked()
    looking = Looking(lambda: store, Watch(screen.work, (STEPS,), ExitStack()), 0.001)

    def interrupted() -> None:
        with looking:
            assert store.seen.acquire(timeout=60)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    told = len(screen.told)
    looking._thread.join(60)
    assert not looking._thread.is_alive()
    assert len(screen.told) == told


def test_nobody_is_asked_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "Looking", None)
    session: Any = SimpleNamespace(_jsparkSession=None)
    for progress in (SILENT, Looked(shows_work=False)):
        with watched(progress, STEPS), _following(session, "tag"):
            assert jobs._watch.get() is None
            assert jobs.RowCounter.of(session).file is None


def test_spark_connect_tells_by_itself() -> None:
    handlers: list[Any] = []
    named = {"registerProgressHandler": handlers.append, "removeProgressHandler": handlers.remove}
    session: Any = SimpleNamespace(**named)
    screen = Looked()
    with watched(screen, STEPS), _following(session, "tag"):
        (handler,) = handlers
        for ended in range(3):
            stage = SimpleNamespace(
                stage_id=1, num_tasks=2, num_completed_tasks=ended, num_bytes_read=ended * 2_500,
                done=ended == 2,
            )  # fmt: skip
            handler(stages=[stage], inflight_tasks=1, operation_id="x", done=False)
        handler(stages=None, inflight_tasks=0, operation_id="x", done=True)
        handler(stages=[object()], inflight_tasks=0, operation_id="x", done=True)
    assert handlers == []
    assert [done.tasks for done in screen.told] == [0, 1, 2, 2]
    assert screen.told[-1].read_bytes == 5_000


def test_rows_are_counted_where_they_pass(tmp_path: Path) -> None:
    batches: Any = [SimpleNamespace(num_rows=3), SimpleNamespace(num_rows=4)]
    counter = tmp_path / "rows"
    counter.touch()
    assert list(jobs.RowCounter(str(counter)).counted(iter(batches))) == batches
    assert int.from_bytes(counter.read_bytes(), "little") == 7
    for missing in (None, str(tmp_path / "on" / "another" / "machine")):
        assert list(jobs.RowCounter(missing).counted(iter(batches))) == batches


@pytest.mark.soak
def test_rows_and_tasks_of_a_job_rise_to_the_end(
    engine: SparkEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task waits until it was seen that the one before has ended; another action is not seen."""
    session = engine.session
    monkeypatch.setattr(jobs, "_PERIOD", 0.05)
    monkeypatch.setattr(jobs, "_END_SECONDS", 60)
    gates = [tmp_path / f"gate-{number}" for number in range(5)]
    gates[0].touch()
    paths = [str(gate) for gate in gates]

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time
        from pathlib import Path

        for batch in batches:
            gate = Path(paths[batch.column(0)[0].as_py() // 100])
            deadline = time.monotonic() + 60
            while not gate.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            yield batch

    class Opening(Looked):
        def work(self, done: WorkDone) -> None:
            super().work(done)
            for gate in gates[: done.tasks + 1]:
                gate.touch()

    screen = Opening()
    frame = session.range(0, 400, 1, 4).mapInArrow(hold, "id bigint")
    with watched(screen, replace(STEPS, rows=400, size=None)):
        facts = write_ordered(frame, [frame.id], ["id"], _count)
    assert facts == {"rows": 400}
    reading = [done for done in screen.told if done.step == "Reading f"]
    assert {done.tasks for done in reading} >= {1, 2, 3}
    assert {done.total_tasks for done in reading} == {4}
    assert [done.rows for done in reading] == sorted(done.rows for done in reading)
    assert max(done.rows for done in reading) >= 300
    assert screen.told[-1].step == "Writing f"
    assert screen.told[-1].rows == 400
    status = JavaStatus(session, "odfchain-another-action")
    assert status.stages() == []


def test_an_ingest_is_told_from_the_first_row_to_the_last(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_PERIOD", 0.02)
    monkeypatch.setattr(jobs, "_END_SECONDS", 60)
    rows, file = 60_000, tmp_path / "flights.csv"
    file.write_text("event_time,id\n" + "".join(f"2024-01-01T00:00:00Z,{n}\n" for n in range(rows)))
    (dataset,) = workspace.add(manifest(schema="[event_time TIMESTAMP, id BIGINT]"))
    screen = Looked()
    dataset.ingest(file, progress=screen)
    assert {done.step for done in screen.told} >= {"Reading flights.csv", "Writing flights.csv"}
    assert {done.total_rows for done in screen.told if done.step == "Reading flights.csv"} == {rows}
    assert screen.told[-1].rows == rows


@dataclass(frozen=True)
class _Rows:
    rows: int


def _count(batches: Iterator[pa.RecordBatch]) -> _Rows:
    return _Rows(sum(batch.num_rows for batch in batches))
