"""`make bench`: speed, as figures of one run beside what this machine can do.

python bench/bench.py [kernels] [commands] [ledgers] [flights] [documents] [held] [codec] [digest] [chain]
    [slices] [merges] [snapshots] [memory] [transform] [preprocess] [share] [verify] [warm] [query]
    [skipping] [branches] [profiles] [scale] [states] [assets] [smart] [node] [--json]

`kernels` (`make bench kernels`) is the first five after it: what README says, with its goals, in about ten
minutes; its figures come once more as rows of a table at the end. `KAMU` names a program of the reference
node, `OURAIRPORTS` a folder with real lists, `KERNELS_ROWS=100000000` asks for the large merge.

Without names all parts run; most from merges on take minutes each and up to 10 GB where temporary files go
(`TMPDIR`). The last lines are one JSON document on standard output; the tables go to standard error, unless
`--json` says that nobody reads them.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path

from bench_assets import bench_assets
from bench_branches import bench_branches
from bench_chain import bench_chain
from bench_codec import bench_codec
from bench_commands import bench_commands
from bench_digest import bench_digest
from bench_documents import bench_documents
from bench_engine import bench_engine
from bench_flights import bench_flights
from bench_held import bench_held
from bench_ledgers import bench_ledgers
from bench_memory import bench_memory
from bench_merges import bench_merges
from bench_node import bench_node
from bench_preprocess import bench_preprocess
from bench_profiles import bench_profiles
from bench_query import bench_query
from bench_scale import bench_scale
from bench_share import bench_share
from bench_skipping import bench_skipping
from bench_slices import bench_slices
from bench_smart import bench_smart
from bench_snapshots import bench_snapshots
from bench_states import bench_states
from bench_transform import bench_transform
from bench_trust import bench_trust
from bench_verify import bench_verify
from bench_warm import bench_warm
from figures import Figure, show, show_rows

from odfchain.odf.physical_hash import openssl_sha3

KERNELS = {
    "commands": bench_commands,
    "ledgers": bench_ledgers,
    "flights": bench_flights,
    "documents": bench_documents,
    "held": bench_held,
}
PARTS = KERNELS | {
    "codec": bench_codec,
    "digest": bench_digest,
    "chain": bench_chain,
    "slices": bench_slices,
    "merges": bench_merges,
    "snapshots": bench_snapshots,
    "memory": bench_memory,
    "transform": bench_transform,
    "engine": bench_engine,
    "preprocess": bench_preprocess,
    "share": bench_share,
    "verify": bench_verify,
    "warm": bench_warm,
    "query": bench_query,
    "skipping": bench_skipping,
    "branches": bench_branches,
    "profiles": bench_profiles,
    "scale": bench_scale,
    "states": bench_states,
    "assets": bench_assets,
    "smart": bench_smart,
    "node": bench_node,
    "trust": bench_trust,
}


def main(names: list[str]) -> int:
    """Run the parts that are named, or all."""
    sys.path.append(str(Path(__file__).parents[1]))  # servers of `tests/kit`
    tables = "--json" not in names
    kernels = "kernels" in names
    names = [*(KERNELS if kernels else ()), *(n for n in names if n not in ("--json", "kernels"))]
    unknown = set(names) - set(PARTS)
    if unknown:
        print(
            f"error: no such benchmark: {', '.join(sorted(unknown))} (known: kernels, {', '.join(PARTS)})",
            file=sys.stderr,
        )
        return 2
    if not openssl_sha3():
        print(
            "error: hashlib.sha3_256 is not OpenSSL's here; figures would be three times too slow",
            file=sys.stderr,
        )
        return 7
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}", file=sys.stderr
    )
    figures: dict[str, list[Figure]] = {}
    for name in names or PARTS:
        figures[name] = list(PARTS[name]())
        if tables:
            show(name, figures[name])
    if kernels and tables:
        show_rows(figure for name in KERNELS for figure in figures[name])
    print(json.dumps({name: [f.tree() for f in found] for name, found in figures.items()}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
