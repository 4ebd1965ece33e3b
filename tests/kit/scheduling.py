"""Which process runs which files of tests: of the processes two have a session of Spark, the others need none.

Files that use the session come first in the list, and the first processes take from its start. The others take
from its end. So a third JVM is not warmed up, and no process waits.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

WITH_SPARK = {"gw0", "gw1"}
LONG_WITH_SPARK = ("tests/engine/", "tests/system/", "tests/transform/", "tests/store/", "tests/ingest/")
"""Their files are the first of those with Spark."""
LONG_WITHOUT = (
    "tests/upkeep/",
    "tests/dataset/test_histories",
    "tests/node/",
    "tests/query/",
    "tests/share/",
)
"""Their files are the last of those without."""


class TwoEnds(LoadFileScheduling):
    """Processes with Spark take files from the start of the list, the others from its end."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node.gateway.id not in WITH_SPARK:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def ordered(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Files with Spark, then those without; the long ones at both ends, the order within a file stays."""
    items = list(items)
    with_spark = {file_of(item) for item in items if "engine" in getattr(item, "fixturenames", ())}

    def place(item: pytest.Item) -> tuple[bool, int]:
        file = file_of(item)
        if file in with_spark:
            return False, not file.startswith(LONG_WITH_SPARK)
        return True, file.startswith(LONG_WITHOUT)

    return sorted(items, key=place)


def file_of(item: pytest.Item) -> str:
    """The file of a test, as its name begins."""
    return item.nodeid.split("::", 1)[0]
