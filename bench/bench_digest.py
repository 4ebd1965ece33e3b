"""Both hashes beside the rate at which this machine computes SHA3-256."""

from __future__ import annotations

import hashlib
import os
import statistics
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from figures import Figure, best_rate, seconds

from odfchain.odf.logical_hash import LogicalDigest
from odfchain.odf.physical_hash import hash_file

SIZE = 128 << 20
ROWS = 1_000_000
ROUNDS = 5
AT_LEAST = {
    "8 columns of int64": 0.82,
    "8 columns of int64, half of them null": 0.85,
    "mixed columns with text": 0.61,
    "lists of int64": 0.33,
}
"""The share that the reference's arrow-digest (Rust, 60.0, on one thread) has of OpenSSL's SHA3-256."""
FASTER_ON_TWO = 0.6
TEXT_AT_LEAST = 0.7


def tables() -> dict[str, pa.Table]:
    """Columns of one kind each, and a mixed table."""
    rng = np.random.default_rng(7)
    words = np.array([f"word{n:06}" for n in range(10_000)])

    def ints(nulls: float = 0.0) -> pa.Array:
        return pa.array(rng.integers(0, 1 << 40, ROWS), mask=rng.random(ROWS) < nulls if nulls else None)

    def word() -> pa.Array:
        return pa.array(words[rng.integers(0, 10_000, ROWS)])

    mixed = {
        "id": ints(),
        "count": ints(nulls=0.5),
        "price": rng.random(ROWS),
        "at": ints().cast(pa.timestamp("ms", "UTC")),
        "code": word(),
        "name": texts(rng, 24),
        "note": texts(rng, 40, nulls=0.1),
    }
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, 16, ROWS)))).astype(np.int32)
    items = pa.array(rng.integers(0, 1 << 40, int(offsets[-1])))
    return {
        "8 columns of int64": pa.table({f"i{n}": ints() for n in range(8)}),
        "8 columns of int64, half of them null": pa.table({f"n{n}": ints(nulls=0.5) for n in range(8)}),
        "mixed columns with text": pa.table(mixed),
        "lists of int64": pa.table({"list": pa.ListArray.from_arrays(pa.array(offsets), items)}),
        "4 columns of text": pa.table({f"t{n}": word() for n in range(4)}),
        "1 column of text": pa.table({"t": word()}),
        "4 columns of text of 0 to 20 bytes": pa.table({f"t{n}": texts(rng, 20) for n in range(4)}),
    }


def texts(rng: np.random.Generator, longest: int, nulls: float = 0.0) -> pa.Array:
    """Text of random length."""
    offsets = np.concatenate(([0], np.cumsum(rng.integers(0, longest + 1, ROWS)))).astype(np.int32)
    letters = rng.integers(97, 123, int(offsets[-1]), dtype=np.uint8)
    valid = np.packbits(rng.random(ROWS) >= nulls, bitorder="little")
    buffers: list[Any] = [
        pa.py_buffer(valid) if nulls else None,
        pa.py_buffer(offsets),
        pa.py_buffer(letters),
    ]
    return pa.Array.from_buffers(pa.string(), ROWS, buffers)


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
    yield Figure("SHA3-256 of this machine, one core (hashlib, OpenSSL)", limit, "MB/s", remark="the limit")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        rate = best_rate(lambda: hash_file(path), SIZE)
    yield Figure("physical hash of a file", rate, "MB/s", remark=f"{rate / limit:.2f} × the limit")
    with ThreadPoolExecutor(1) as pool:  # the thread that calls is the other one
        for name, table in tables().items():
            yield from beside_sha3(name, table, data[: table.nbytes], pool)


def beside_sha3(name: str, table: pa.Table, data: bytes, pool: ThreadPoolExecutor) -> Iterator[Figure]:
    """Median rates as shares of SHA3-256's over as many bytes, which takes turns with them."""
    sha3: list[float] = []
    pools = {"one thread": None, "two threads": pool}
    ours: dict[str, list[float]] = {label: [] for label in pools}
    for _ in range(ROUNDS):
        sha3.append(seconds(lambda: hashlib.sha3_256(data).digest()))
        for label, threads in pools.items():
            ours[label].append(seconds(partial(hash_batches, table, threads)))
    for label, times in ours.items():
        share = statistics.median(sha3) / statistics.median(times)
        target = AT_LEAST.get(name)
        if label == "two threads":
            target = None if target is None else round(target / FASTER_ON_TWO, 2)
        elif name == "4 columns of text":
            target = TEXT_AT_LEAST
        remark = f"{spread(times)} s; SHA3-256 {spread(sha3)} s"
        title = f"logical hash, {name}, {label}"
        yield Figure(title, share, "× SHA3", target, at_least=True, remark=remark, samples=tuple(times))


def spread(times: list[float]) -> str:
    """Minimum, median and maximum."""
    return " / ".join(f"{found:.3f}" for found in (min(times), statistics.median(times), max(times)))
