"""Rows that can be had as Arrow, handed over to the libraries that people work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa


class ArrowRows:
    """What has its rows as an Arrow table has them as frames, too."""

    __slots__ = ()

    def to_arrow(self) -> pa.Table:
        """All rows; held in memory."""
        raise NotImplementedError

    def to_pandas(self) -> pd.DataFrame:
        """As `to_arrow`, with columns of Arrow types: nulls, NaN, unsigned and times stay what they are."""
        import pandas as pd

        return self.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)

    def to_polars(self) -> pl.DataFrame:
        """As `to_arrow`, for polars.

        Raises:
            UsageError: polars is not installed.
        """
        try:
            import polars as pl
        except ImportError:
            raise UsageError("polars is not installed", hint="pip install polars") from None
        return pl.from_arrow(self.to_arrow())
