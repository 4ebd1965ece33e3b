"""The logical hash of a Parquet file, row group by row group."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from odfchain.digest.logical import LogicalDigest, NullRule
from odfchain.errors import BadInputError
from odfchain.ids.multihash import Multihash

_BATCH_ROWS = 65_536


def hash_parquet(
    path: Path, *, null_rule: NullRule = "correct", executor: Executor | None = None
) -> tuple[Multihash, int]:
    """(logical hash, number of records) of a Parquet file; memory stays at one row group.

    Raises:
        BadInputError: the file is not readable Parquet.
        SchemaError: a column type without a defined hash.
    """
    try:
        with pq.ParquetFile(path) as file:
            digest = LogicalDigest(file.schema_arrow, null_rule=null_rule, executor=executor)
            rows = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                digest.update(batch)
                rows += batch.num_rows
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise BadInputError(
            f"not a readable Parquet file: {str(error).splitlines()[0]}", file=str(path)
        ) from None
    return digest.finish(), rows
