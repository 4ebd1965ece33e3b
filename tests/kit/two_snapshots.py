"""Two snapshots of cities, ingested by the installed command, and what must be recorded then."""

from __future__ import annotations

from pathlib import Path

from tests.kit.processes import odfchain
from tests.kit.support import manifest

CITIES = manifest("{kind: Snapshot, primaryKey: [city]}")
ONE = "city,population\nA,1\nB,2\nC,3\n"
TWO = "city,population\nA,1\nB,5\nD,4\n"


def ingest_two(folder: Path) -> None:
    """Two snapshots, and a look at what was recorded."""
    (folder / "one.csv").write_text(ONE)
    (folder / "two.csv").write_text(TWO)
    result = odfchain(folder, "ingest", "cities", "one.csv", "two.csv", "-o", "csv")
    assert result.code == 0, result.err
    counts = [line.split(",", 1)[1] for line in result.out.splitlines()[1:]]
    assert counts == ["3,3,0,0,0,0-2", "3,1,1,1,1,3-6"]
    assert len(result.err.splitlines()) == 1, f"nothing but the outcome: {result.err}"
    rows = odfchain(folder, "tail", "cities", "-n", "4", "-o", "json").rows
    found = [(r["op"], r["city"], r["population"]) for r in rows]
    assert found == [(2, "B", 2), (3, "B", 5), (1, "C", 3), (0, "D", 4)]
    assert odfchain(folder, "verify", "cities").out.startswith("ok ")
