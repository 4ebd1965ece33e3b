"""The logical hash of a Parquet file, a bounded number of bytes at a time."""

from __future__ import annotations

import contextlib
from concurrent.futures import Executor
from pathlib import Path

import pyarrow as pa

from odfchain.codec.arrow import slice_schema, to_arrow
from odfchain.digest.leaf_bytes import NullRule
from odfchain.digest.logical import LogicalDigest
from odfchain.errors import SchemaError
from odfchain.ids.multihash import Multihash
from odfchain.model.data_schema import DataSchema
from odfchain.slices.reader import open_parquet


def hash_parquet(
    path: Path,
    *,
    null_rule: NullRule = "correct",
    executor: Executor | None = None,
    schema: pa.Schema | None = None,
) -> tuple[Multihash, int]:
    """(logical hash, number of records) of a Parquet file of anybody; in a `schema`, if one is given."""
    with open_parquet(path) as file:
        digest = LogicalDigest(schema or file.schema_arrow, null_rule=null_rule, executor=executor)
        rows = 0
        for batch in file.batches():
            digest.update(batch if schema is None else batch.cast(schema))
            rows += batch.num_rows
    return digest.finish(), rows


def other_rule(path: Path, recorded: Multihash, declared: DataSchema | None) -> str | None:
    """By which other rule a file has the recorded logical hash, as words; None where by none.

    A null struct counted otherwise (RFC-006), or types as the schema declares them where Parquet gives
    others back: that is how this project once hashed times of day in seconds (RFC-012).
    """
    if hash_parquet(path, null_rule="reference")[0] == recorded:
        return "follows the reference implementation's rule for null structs"
    if declared is None:
        return None
    with contextlib.suppress(pa.ArrowException, ValueError, SchemaError):  # other columns, or finer times
        schema = to_arrow(declared)
        if schema != slice_schema(declared) and hash_parquet(path, schema=schema)[0] == recorded:
            return "is that of the declared types, where Parquet keeps others"
    return None
