"""Printing the conflicts of a merge."""

from __future__ import annotations

from typing import TYPE_CHECKING

from odfchain.api.conflict_views import conflict_records
from odfchain.cli.support.output import print_records

if TYPE_CHECKING:
    import pyarrow as pa


def print_conflicts(conflicts: pa.Table, output: str) -> None:
    """Print what is open of the conflicts that an error has, as records."""
    columns = conflicts.column_names[: conflicts.column_names.index("theirs") + 1]
    print_records(conflict_records(conflicts), columns, output)
