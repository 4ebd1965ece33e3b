"""Ctrl-C while a Spark action runs."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from odfchain.errors import EngineError, was_interrupted
from odfchain.spark.jobs import Cancellation, explain, run_job

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

    from odfchain.spark.session import SparkEngine

PATIENCE = 60.0


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_an_interrupted_action_is_cancelled_and_the_session_stays_usable(
    engine: SparkEngine, tmp_path: Path
) -> None:
    session = engine.session
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    begun, never = tmp_path / "begun", tmp_path / "never"

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun.touch()
        wait_for(never)
        yield from batches

    def interrupt() -> None:
        wait_for(begun)
        os.kill(os.getpid(), signal.SIGINT)

    endless = session.range(0, 1, 1, 1).mapInArrow(stage, "id bigint")
    started = time.monotonic()
    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(KeyboardInterrupt):
        run_job(session, endless.collect)
    other.join()
    assert time.monotonic() - started < PATIENCE, "nobody waited for the action"
    for _ in range(3):  # every answer belongs to its question
        assert run_job(session, session.range(7).count) == 7
        assert session.range(5).count() == 5


def test_what_an_action_raises(engine: SparkEngine) -> None:
    def fails() -> None:
        raise LookupError("from the action")

    with pytest.raises(LookupError, match="from the action"):
        run_job(engine.session, fails)


def test_an_action_on_another_thread_stays_on_it(engine: SparkEngine) -> None:
    seen = []
    thread = threading.Thread(target=lambda: seen.append(run_job(engine.session, threading.get_ident)))
    thread.start()
    thread.join()
    assert seen == [thread.ident]


def test_an_error_while_unwinding_does_not_hide_the_interrupt() -> None:
    try:
        try:
            raise KeyboardInterrupt
        finally:
            raise OSError("Answer from Java side is empty")
    except OSError as error:
        assert was_interrupted(error)
        with pytest.raises(KeyboardInterrupt):
            explain(error)
    assert isinstance(explain(OSError("Answer from Java side is empty")), EngineError)


def test_only_the_jobs_of_the_run_are_cancelled(engine: SparkEngine, tmp_path: Path) -> None:
    """Two runs in one session: one is given up, the other one does not notice."""
    session = engine.session
    go_on = tmp_path / "go-on"

    def waiting(begun: Path) -> Callable[[], list[Row]]:
        def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            begun.touch()
            wait_for(go_on)
            yield from batches

        return session.range(0, 1, 1, 1).mapInArrow(stage, "id bigint").collect

    cancellation = Cancellation()
    with ThreadPoolExecutor(2) as pool:
        kept = pool.submit(run_job, session, waiting(tmp_path / "a"), cancellation=Cancellation())
        given_up = pool.submit(run_job, session, waiting(tmp_path / "b"), cancellation=cancellation)
        wait_for(tmp_path / "a")
        wait_for(tmp_path / "b")
        cancellation.cancel()
        with pytest.raises(EngineError, match="cancelled"):
            given_up.result(PATIENCE)
        go_on.touch()
        assert [row.id for row in kept.result(PATIENCE)] == [0]


def test_an_action_that_takes_too_long(engine: SparkEngine, tmp_path: Path) -> None:
    never = tmp_path / "never"

    def stage(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        wait_for(never)
        yield from batches

    endless = engine.session.range(0, 1, 1, 1).mapInArrow(stage, "id bigint")
    with pytest.raises(EngineError, match=r"^took longer than 500 ms$") as caught:
        run_job(engine.session, endless.collect, deadline=0.5)
    assert "--timeout" in str(caught.value.hint)
    assert run_job(engine.session, engine.session.range(7).count, deadline=PATIENCE) == 7


def test_what_was_given_up_before_it_began_ends_at_once(engine: SparkEngine, tmp_path: Path) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    cancellation.cancel()
    over = threading.Event()

    def action() -> None:
        over.wait(PATIENCE)

    thread = threading.Timer(0.1, over.set)
    thread.start()
    with pytest.raises(EngineError, match="the run was cancelled"):
        run_job(engine.session, action, cancellation=cancellation)
    thread.join()
