"""One command of `bench/golden.py` with fixed keys, names and times: golden_step.py NUMBER FACTS ARGUMENT …

golden_step.py --demo TREE FOLDER runs the demo of a tree so. The process is the command's own, so that what
it loads can be told; FACTS is a file for that. It takes odfchain from where PYTHONPATH says.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import secrets
import shutil
import sys
import time
import uuid
from pathlib import Path

START = 1_793_491_200_000_000_000
"""2026-11-01T00:00:00Z [ns since the epoch]; each step is a minute later."""
MINUTE = 60_000_000_000


def fix(number: int) -> None:
    """Keys, random names and tokens follow from the step's number, and its clock stands still."""
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    # each kind counts by itself: which libraries a command loads, and what they draw, changes no key
    counters = {kind: itertools.count() for kind in ("key", "token", "uuid")}
    key_of = ed25519.Ed25519PrivateKey.from_private_bytes

    def seed(kind: str, size: int = 32) -> bytes:
        return hashlib.shake_256(f"{number} {kind} {next(counters[kind])}".encode()).digest(size)

    ed25519.Ed25519PrivateKey.generate = staticmethod(lambda: key_of(seed("key")))  # type: ignore[method-assign]
    now = START + number * MINUTE
    time.time_ns = lambda: now
    secrets.token_bytes = lambda nbytes=32: seed("token", nbytes or 32)
    uuid.uuid4 = lambda: uuid.UUID(bytes=seed("uuid", 16))
    random.seed(number)


def run_demo(tree: str, folder: str) -> None:
    """The demo, whose files are all as old as its blocks."""
    sys.path.insert(0, f"{tree}/demo")
    fix(0)
    copy, touch = shutil.copyfile, Path.touch

    def dated_copy(source: Path, target: Path) -> Path:
        copy(source, target)
        os.utime(target, ns=(START, START))
        return target

    def dated_touch(path: Path) -> None:
        touch(path)
        os.utime(path, ns=(START, START + 1_000_000_000))

    shutil.copyfile = dated_copy  # type: ignore[assignment]
    Path.touch = dated_touch  # type: ignore[method-assign,assignment]
    import run  # noqa: PLC0415 - the demo of that tree

    run.run(Path(folder))


def main() -> int:
    """Entry point."""
    if sys.argv[1] == "--demo":
        run_demo(*sys.argv[2:])
        return 0
    number, facts, *arguments = sys.argv[1:]
    before = set(sys.modules)
    from odfchain.cli.main import main as run  # noqa: PLC0415

    fix(int(number))
    try:
        code = run(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names
    own = sum(name.split(".")[0] == "odfchain" for name in sys.modules)
    found = {"libraries": sorted(loaded - {"odfchain"}), "modules": own}
    Path(facts).write_text(json.dumps(found), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # nothing that ends with the process counts


if __name__ == "__main__":
    sys.exit(main())
