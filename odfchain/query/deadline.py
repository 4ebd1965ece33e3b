"""An end to a query that computes in native code and looks up from it only now and then."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from odfchain.errors import EngineError


@contextlib.contextmanager
def deadline(seconds: float, out: threading.Event) -> Iterator[None]:
    """Inside, `out` is set when the time is used up; in the main thread native code is interrupted as well.

    Raises:
        EngineError: the time was used up.
    """

    def ring(*_: Any) -> None:
        out.set()
        raise TimeoutError

    main = threading.current_thread() is threading.main_thread()
    if not main:
        timer = threading.Timer(seconds, out.set)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        return
    before = signal.signal(signal.SIGALRM, ring)
    # again and again: one that rings while an object is put away is lost
    signal.setitimer(signal.ITIMER_REAL, seconds, 0.5)
    try:
        yield
    except BaseException as error:
        if out.is_set() and not isinstance(error, EngineError):
            raise used_up(seconds) from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def used_up(seconds: float) -> EngineError:
    """What is said of a query that took longer than it may [s]."""
    return EngineError(
        f"the query took longer than {seconds:g} s",
        hint="give it more with --timeout, or use --engine spark",
    )
