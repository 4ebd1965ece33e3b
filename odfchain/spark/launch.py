"""What is begun on a thread before it is known for certain that it is needed: taken, or undone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import wait
from typing import Generic, TypeVar

from odfchain.spark.job import on_a_thread

T = TypeVar("T")


class Launch(Generic[T]):
    """One value in the making; nothing of it is left once it was dropped."""

    def __init__(self, make: Callable[[Callable[[], bool]], T], undo: Callable[[T], None]) -> None:
        """`make` is given a question that it asks on its way: whether nobody wants the value any more."""
        self._make = make
        self._undo = undo
        self._dropped = threading.Event()
        self._settling = threading.Lock()
        self._made = on_a_thread(self._run, "odfchain-launch")

    def _run(self) -> T:
        made = self._make(self._dropped.is_set)
        with self._settling:
            if self._dropped.is_set():
                self._undo(made)
                raise RuntimeError("it was dropped")
        return made

    def take(self) -> T:
        """The value, once it is made; from now on it is the caller's to undo."""
        return self._made.result()

    def drop(self, patience: float) -> None:
        """Undo it; what is not made yet ends by itself, and is waited for as long as `patience` [s]."""
        with self._settling:
            self._dropped.set()
        wait((self._made,), timeout=patience)
        if self._made.done():
            with contextlib.suppress(Exception):
                self._undo(self._made.result())
