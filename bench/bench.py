"""`make bench`: speed, as figures of one run beside what this machine can do.

python bench/bench.py [codec] [digest] [chain] [ingest] [slices] [documents] [flights] [merges] [snapshots]
    [memory] [transform] [share] [verify] [warm] [ledgers] [query] [skipping] [branches]
    [profiles] [scale] [states] [assets] [smart] [--json]

Without names all of them run; those from flights on take minutes each and up to 10 GB where temporary
files go (`TMPDIR`). The last lines are one JSON document on standard output; the tables go to standard
error, unless `--json` says that nobody reads them.
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
from bench_digest import bench_digest
from bench_documents import bench_documents
from bench_flights import bench_flights
from bench_ingest import bench_ingest
from bench_ledgers import bench_ledgers
from bench_memory import bench_memory
from bench_merges import bench_merges
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
from bench_verify import bench_verify
from bench_warm import bench_warm
from figures import Figure, show

from odfchain.odf.physical_hash import openssl_sha3

PARTS = {
    "codec": bench_codec,
    "digest": bench_digest,
    "chain": bench_chain,
    "ingest": bench_ingest,
    "slices": bench_slices,
    "documents": bench_documents,
    "flights": bench_flights,
    "merges": bench_merges,
    "snapshots": bench_snapshots,
    "memory": bench_memory,
    "transform": bench_transform,
    "share": bench_share,
    "verify": bench_verify,
    "warm": bench_warm,
    "ledgers": bench_ledgers,
    "query": bench_query,
    "skipping": bench_skipping,
    "branches": bench_branches,
    "profiles": bench_profiles,
    "scale": bench_scale,
    "states": bench_states,
    "assets": bench_assets,
    "smart": bench_smart,
}


def main(names: list[str]) -> int:
    """Run the parts that are named, or all."""
    sys.path.append(str(Path(__file__).parents[1]))  # servers of `tests/kit`
    tables = "--json" not in names
    names = [name for name in names if name != "--json"]
    unknown = set(names) - set(PARTS)
    if unknown:
        print(
            f"error: no such benchmark: {', '.join(sorted(unknown))} (known: {', '.join(PARTS)})",
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
    print(json.dumps({name: [f.tree() for f in found] for name, found in figures.items()}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
