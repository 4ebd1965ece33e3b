"""Writes what a run has counted into the table of promises (`rfcs/063-promises.md`).

    python -m tests.kit.promise_figures build/soak-report.json …
    python -m tests.kit.promise_figures --tests

The second form lists the tests of the table, which are what a long run runs. A report of `make soak PROFILE=long` fills the column of the long run, one of `make test` that of the short run. Cases of
one test are added up. Rows whose tests are in no report stay as they are.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.kit.support import ROOT

PAGE = ROOT / "rfcs" / "063-promises.md"
COLUMNS = "| # | promise | test | short run | long run | date |"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
SHORT, LONG, DATE = 4, 5, 6
PLACES = {"ci": SHORT, "deep": LONG}


def figures_of(tests: list[dict[str, Any]]) -> str:
    """What the cases of one test counted, in a cell."""
    counts: dict[str, float] = defaultdict(int)
    for test in tests:
        for name, value in test["figures"].items():
            if isinstance(value, int | float):
                counts[name] += value
    ended = {outcome: sum(test["outcome"] == outcome for test in tests) for outcome in ("failed", "skipped")}
    said = [f"{count} {outcome}" for outcome, count in ended.items() if count]
    said += [f"{round(value, 1):,} {name.replace('|', '/')}" for name, value in counts.items()]
    cases = f"{len(tests)} case{'s' if len(tests) > 1 else ''}"
    return f"{': '.join([cases, ', '.join(said)] if said else [cases])}; {sum(t['seconds'] for t in tests):,.1f} s"


def filled(page: str, report: dict[str, Any], today: str) -> str:
    """The page with the figures of a report."""
    cases = defaultdict(list)
    for test in report["tests"]:
        cases[test["name"].partition("[")[0]].append(test)
    head, columns, table = page.partition(COLUMNS)
    lines = table.split("\n")
    for index, line in enumerate(lines):
        cells, named = line.split("|"), NAMED.search(line)
        found = cases.get(f"{named[1]}::{named[2]}") if named else None
        if found and any(test["outcome"] != "skipped" for test in found):
            cells[PLACES[report["profile"]]] = f" {figures_of(found)} "
            cells[DATE] = f" {today} "
            lines[index] = "|".join(cells)
    return head + columns + "\n".join(lines)


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    if sys.argv[1:] == ["--tests"]:
        print(*dict.fromkeys(f"{file}::{test}" for file, test in NAMED.findall(page)), sep="\n")
        return
    for path in sys.argv[1:]:
        page = filled(
            page, json.loads(Path(path).read_text(encoding="utf-8")), f"{dt.datetime.now(dt.UTC):%Y-%m-%d}"
        )
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
