"""Imports that a command puts off until something needs them.

pyarrow looks for pandas when it makes its first array, to recognise its objects, and PySpark when it is
loaded: a quarter of a second and 20 MB for commands that have no use for it. Where pyarrow was refused, it
looks again when a table is to become a frame.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator


class _PandasLater:
    """A finder that says pandas is not installed."""

    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is put off", name=name)


_LATER = _PandasLater()


def put_off_pandas() -> None:
    """Pandas cannot be imported in this process until it is allowed; without effect once it was."""
    if "pandas" not in sys.modules and _LATER not in sys.meta_path:
        sys.meta_path.insert(0, _LATER)


def allow_pandas() -> None:
    """Let pandas be imported; libraries that looked for it meanwhile go on without it."""
    if _LATER in sys.meta_path:
        import pyarrow as pa  # noqa: PLC0415 - only where it is needed anyway

        pa.array([0])  # looks for it, once
        sys.meta_path.remove(_LATER)


def start_lean() -> None:
    """This process begins commands quickly: without pandas, threads for algebra, and many searches."""
    put_off_pandas()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(10_000)  # new objects [count]; a search after each 700 takes a tenth of a command


# Python's cyclic garbage collection, and when it is not worth it.


@contextlib.contextmanager
def no_search_for_circles() -> Iterator[None]:
    """Nothing is searched within the block."""
    was = gc.isenabled()
    # with many new objects and no cycles the collector finds nothing, and takes a third of the time
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
