"""Airports with a branch that corrects one and retracts another: rows that tests of diffs begin with."""

from __future__ import annotations

import pyarrow as pa

from odfchain.api.workspace import Workspace
from odfchain.workspace.dataset_files import DatasetFiles
from tests.kit.branch_rows import Row, branch, keyed, record

AIRPORTS = (pa.field("iata", pa.string()), pa.field("name", pa.string()), pa.field("elevation", pa.int64()))
RECORDED: tuple[Row, ...] = (
    ("+A", 1, "ZRH", "Zurich", 1416),
    ("+A", 1, "XXA", "Ghost", 0),
    ("+A", 1, "GVA", "Geneva", 1411),
)
FIXES: tuple[Row, ...] = (
    ("-C", 1, "ZRH", "Zurich", 1416),
    ("+C", 1, "ZRH", "Zürich", 1416),
    ("-R", 1, "XXA", "Ghost", 0),
)
GENEVA: tuple[Row, ...] = (("-C", 1, "GVA", "Geneva", 1411), ("+C", 1, "GVA", "Genève", 1411))
"""What the head corrects meanwhile."""


def airports(workspace: Workspace, *more: Row) -> tuple[DatasetFiles, DatasetFiles]:
    """The dataset `airports`, and its branch `fix-names` with the fixes; `more` are in blocks before it."""
    head = keyed(workspace, ("iata",), AIRPORTS, name="airports")
    for rows in (RECORDED, *([row] for row in more)):
        record(head, rows, AIRPORTS)
    fix = branch(head, "fix-names")
    record(fix, FIXES, AIRPORTS)
    return head, fix
