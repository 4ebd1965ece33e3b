"""Python's search for objects that refer to each other in a circle, and when it is not worth it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def no_search_for_circles() -> Iterator[None]:
    """Nothing is searched within the block.

    Where many objects are made and none of them refers back to another, the search finds nothing and takes a
    third of the time. Objects go as always when nothing refers to them.
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
