"""Slices as one `pyarrow.dataset.Dataset`: what polars, DuckDB and pandas read without a copy in memory.

It is an explicit list of files, with the declared schema: a column that an older slice lacks is null, and one
that it has in another width is cast (pyarrow does both). Never a folder: that may hold slices that no block
names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_dataset(paths: Sequence[Path], schema: pa.Schema) -> Any:
    """The rows of these slices, in their order; they are read when the dataset is."""
    import pyarrow.dataset as ds

    if not paths:
        return ds.dataset(schema.empty_table())
    return ds.dataset([str(path) for path in paths], schema=schema, format="parquet")
