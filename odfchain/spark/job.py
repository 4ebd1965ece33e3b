"""Spark actions that Ctrl-C can end at once.

A command to the JVM that is interrupted while its answer is awaited leaves that answer in the connection for
the next command, PySpark's own clean-up first. So an action runs on a thread, which has a connection of its
own, and only the waiting for it is interrupted.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

_CANCEL_SECONDS = 10
"""How long a cancelled action may take to stop writing."""


def run_job(session: SparkSession, action: Callable[[], T]) -> T:
    """What `action` returns or raises; Ctrl-C cancels the session's jobs and is raised at once.

    Only the main thread is ever interrupted, so on any other one the action simply runs.
    """
    if threading.current_thread() is not threading.main_thread():
        return action()
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(action())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the result is taken
            result.set_exception(error)

    threading.Thread(target=run, name="odfchain-job", daemon=True).start()
    try:
        return result.result()
    except KeyboardInterrupt:
        with contextlib.suppress(Exception):
            session.interruptAll()
            result.exception(timeout=_CANCEL_SECONDS)
        raise
