"""How much memory a reader takes more for a large file than for a small one, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_MEASURE = """
import resource, sys
{imports}
def peak(path):
    rows = 0
    for batch in {batches}:
        rows += len(batch)
    return rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
_, before = peak(sys.argv[1])
rows, after = peak(sys.argv[2])
print(rows, (after - before) >> 10)
"""


def rows_and_growth(imports: str, batches: str, small: Path, large: Path) -> tuple[int, int]:
    """(rows of the large file, memory that it took beyond the small one [MiB]).

    `batches` is the Python expression that reads a file (`path`), with these imports.
    """
    code = _MEASURE.format(imports=imports, batches=batches)
    command = [sys.executable, "-c", code, str(small), str(large)]
    rows, grown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(rows), int(grown)
