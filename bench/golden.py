"""The blocks of the demo with fixed keys and times, beside those of an older commit, byte for byte.

python bench/golden.py            hashes of this checkout's blocks
python bench/golden.py b714276    compared with the blocks that the older tree writes
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOW = 1_793_491_200_000_000_000
"""2026-11-01T00:00:00Z [ns since the epoch]: the time of every block, and of every file of the demo."""

Chains = dict[str, dict[str, str]]
"""By the dataset's id: hash of the bytes by the name of each block's file."""


def fix_keys_and_times() -> None:
    """Keys follow from their number, the clock stands still, and copied files are as old as it says."""
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - this process only

    numbers = itertools.count()
    key_of = ed25519.Ed25519PrivateKey.from_private_bytes
    copy, touch = shutil.copyfile, Path.touch

    def dated_copy(source: Path, target: Path) -> Path:
        copy(source, target)
        os.utime(target, ns=(NOW, NOW))
        return target

    def dated_touch(path: Path) -> None:
        touch(path)
        os.utime(path, ns=(NOW, NOW + 1_000_000_000))

    seeds = (hashlib.sha256(str(number).encode()).digest() for number in numbers)
    ed25519.Ed25519PrivateKey.generate = staticmethod(lambda: key_of(next(seeds)))  # type: ignore[method-assign]
    time.time_ns = lambda: NOW
    shutil.copyfile = dated_copy  # type: ignore[assignment]
    Path.touch = dated_touch  # type: ignore[method-assign,assignment]


def write(tree: Path, folder: Path) -> None:
    """Run the demo of a tree in `folder`, with its own modules; for a process of its own."""
    sys.path[:0] = [str(tree), str(tree / "demo")]
    fix_keys_and_times()
    import run  # noqa: PLC0415 - the demo of that tree

    run.run(folder)


def blocks_of(folder: Path) -> Chains:
    """The hashes of all files of blocks in the workspace."""
    chains: Chains = {}
    for path in sorted((folder / ".odfchain" / "datasets").glob("*/blocks/*")):
        digest = hashlib.sha3_256(path.read_bytes()).hexdigest()
        chains.setdefault(path.parts[-3], {})[path.name] = digest
    return chains


def chains_of(tree: Path) -> Chains:
    """What the demo of a tree records."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "demo"
        subprocess.run(
            [sys.executable, __file__, "--tree", str(tree), "--folder", str(folder)],
            env=os.environ | {"PYTHONPATH": str(tree)}, cwd=tree, stdout=sys.stderr, check=True,
        )  # fmt: skip
        return blocks_of(folder)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("before", nargs="?", metavar="COMMIT")
    parser.add_argument("--tree", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tree is not None:
        write(given.tree, given.folder)
        return 0
    after = chains_of(ROOT)
    if given.before is None:
        print(json.dumps(after, indent=2))
        return 0
    with tempfile.TemporaryDirectory() as place:
        archive = subprocess.run(["git", "archive", given.before], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", place], input=archive.stdout, check=True)
        before = chains_of(Path(place))
    for dataset in sorted(before.keys() | after.keys()):
        old, new = before.get(dataset, {}), after.get(dataset, {})
        print(f"{dataset}: {len(old)} blocks, {len(old.items() & new.items())} of them byte-identical")
    return 0 if before == after else 1


if __name__ == "__main__":
    sys.exit(main())
