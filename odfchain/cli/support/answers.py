"""The answer to a query: its rows where they are wanted, and on standard error what they were read from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.cli.support.context import say
from odfchain.cli.support.output import count_of
from odfchain.cli.support.result_output import Counted, print_result, save_result

if TYPE_CHECKING:
    from odfchain import QueryResult


def show_answer(
    result: QueryResult, output: str, file: Path | None, *, began: float, most: int, timed: bool = True
) -> None:
    """Print or write the rows, then say which blocks were read, how many rows came, and how long it took.

    `began` is when the question was asked, by `time.perf_counter`; `most` are the rows that a table shows.
    """
    rows = Counted(result)
    left = 0
    if file is not None:
        save_result(rows, output, file)
    else:
        left = print_result(rows, output, most=most)
    count = count_of(rows.rows, "row") + (f" ({left:,} of them not shown)" if left else "")
    say_read(result, count, began if timed else None)


def say_read(result: QueryResult, rows: str, began: float | None) -> None:
    """Say what was read, and since when; `airports @ 9 (f16201b9…c037), 1 of 4 slices, 205 rows, 0.4 s`."""
    took = [] if began is None else [f"{time.perf_counter() - began:.1f} s"]
    found = result.slices
    slices = [f"{found.read:,} of {count_of(found.there, 'slice')}"] if found.skipped else []
    say(", ".join([*map(str, result.inputs), *slices, rows, *took]))
