"""Ingests before, while and after a disk is full: `python -m tests.kit.full_disk FOLDER DISK`, in a mount namespace of its own.

The dataset is on the disk where that is called `workspace`. Answers with one line of JSON.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from odfchain.api.workspace import Workspace
from tests.kit.processes import ODFCHAIN, TIMEOUT
from tests.kit.support import manifest


def fill(path: Path) -> None:
    """Until there is no room for another byte."""
    with path.open("wb", buffering=0) as stream:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while stream.write(bytes(size)):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC, error


def main() -> None:
    folder, disk = Path(sys.argv[1]), Path(sys.argv[2])
    home = disk if disk.name == "workspace" else folder
    workspace = Workspace.init(home)
    workspace.add(manifest(name="d"))
    found: dict[str, Any] = {"codes": [], "acknowledged": [], "said": ""}
    for number in range(4):
        rows = folder / f"{number}.json"
        rows.write_text(f'[{{"city":"x","population":{number}}}]')
        if number == 1:
            fill(disk / "filling")
        if number == 3:
            (disk / "filling").unlink()
        done = subprocess.run(
            [ODFCHAIN, "ingest", "d", rows, "--input-format", "json"], cwd=home, capture_output=True, text=True,
            timeout=TIMEOUT, check=False,
        )  # fmt: skip
        found["codes"].append(done.returncode)
        found["said"] += done.stderr
        if done.returncode == 0:
            found["acknowledged"].append(number)
    dataset = workspace["d"]
    found["rows"] = dataset.scan(["population"]).to_arrow()["population"].to_pylist()
    found["verified"] = dataset.verify().ok
    found["left"] = [path.name for path in (dataset.path / "staging").iterdir()]
    subprocess.run([ODFCHAIN, "engine", "stop"], capture_output=True, check=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
