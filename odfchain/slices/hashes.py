"""The logical hash of a Parquet file, a bounded number of bytes at a time."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

from odfchain.digest.leaf_bytes import NullRule
from odfchain.digest.logical import LogicalDigest
from odfchain.ids.multihash import Multihash
from odfchain.slices.reader import open_parquet


def hash_parquet(
    path: Path, *, null_rule: NullRule = "correct", executor: Executor | None = None
) -> tuple[Multihash, int]:
    """(logical hash, number of records) of a Parquet file of anybody."""
    with open_parquet(path) as file:
        digest = LogicalDigest(file.schema_arrow, null_rule=null_rule, executor=executor)
        rows = 0
        for batch in file.batches():
            digest.update(batch)
            rows += batch.num_rows
    return digest.finish(), rows
