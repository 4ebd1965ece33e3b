"""Both hashes beside the rate at which this machine computes SHA3-256."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from figures import Figure, best_rate

from odfchain.digest.logical import LogicalDigest
from odfchain.digest.physical import hash_file

SIZE = 128 << 20
ROWS = 1_000_000


def tables() -> dict[str, pa.Table]:
    """Columns of one kind each, and a mixed table."""
    rng = np.random.default_rng(7)
    ints = {f"i{n}": rng.integers(0, 1 << 40, ROWS) for n in range(8)}
    nulls = rng.random(ROWS) < 0.1
    words = np.array([f"word{n:06}" for n in range(10_000)])
    text = {f"t{n}": pa.array(words[rng.integers(0, 10_000, ROWS)]) for n in range(4)}
    holes = {f"n{n}": pa.array(rng.integers(0, 1 << 40, ROWS), mask=nulls) for n in range(4)}
    return {
        "8 columns of int64": pa.table(ints),
        "4 columns of int64 with 10 % nulls": pa.table(holes),
        "4 columns of text": pa.table(text),
        "all of them": pa.table(ints | holes | text),
    }


def hash_batches(table: pa.Table, pool: ThreadPoolExecutor | None) -> None:
    """As the slice writer does: batches of 65,536 rows."""
    digest = LogicalDigest(table.schema, executor=pool)
    for batch in table.to_batches(max_chunksize=65_536):
        digest.update(batch)
    digest.finish()


def bench_digest() -> Iterator[Figure]:
    """MB/s, and the share of the machine's limit."""
    data = os.urandom(SIZE)
    limit = best_rate(lambda: hashlib.sha3_256(data).digest(), SIZE)
    cores = min(2, os.cpu_count() or 1)
    yield Figure("SHA3-256 of this machine, one core (hashlib, OpenSSL)", limit, "MB/s", remark="the limit")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        rate = best_rate(lambda: hash_file(path), SIZE)
    yield Figure("physical hash of a file", rate, "MB/s", remark=f"{rate / limit:.2f} × the limit")
    with ThreadPoolExecutor(cores) as pool:
        for name, table in tables().items():
            for threads, label in ((None, "one thread"), (pool, f"{cores} threads")):
                rate = best_rate(partial(hash_batches, table, threads), table.nbytes, rounds=3)
                remark = f"{rate / limit:.2f} × the limit of one core"
                yield Figure(f"logical hash, {name}, {label}", rate, "MB/s", remark=remark)
