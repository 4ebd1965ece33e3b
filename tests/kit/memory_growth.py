"""How much memory a reader takes more for a large file than for a small one, in a process of its own."""

from __future__ import annotations

import json
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


_COMMANDS = """
import json, re, sys
from pathlib import Path
from odfchain.cli.main import main
def peak():
    return int(re.search("VmHWM: *\\t* *([0-9]+)", Path("/proc/self/status").read_text())[1]) >> 10
first, second = map(json.loads, sys.argv[1:])
print(main(first), before := peak(), main(second), peak() - before, file=sys.stderr)
"""


def growth_of_commands(first: list[str], second: list[str]) -> tuple[int, int, int]:
    """(exit codes of two commands of one process, memory that the second took beyond the first [MiB]).

    `ru_maxrss` would begin with the size of the process that started this one.
    """
    command = [sys.executable, "-c", _COMMANDS, json.dumps(first), json.dumps(second)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    one, _, other, grown = map(int, done.stderr.strip().splitlines()[-1].split())
    return one, other, grown
