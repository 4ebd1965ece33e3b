"""A transaction of many snapshots on an Iceberg table, each of which is applied once.

PyIceberg's own applies all updates so far whenever it looks at the metadata, which it does a dozen times for
each snapshot: a hundred snapshots took ten seconds. This module is loaded on use: the
library need not be there.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.table import Transaction
from pyiceberg.table.update import update_table_metadata


class IcebergCommit(Transaction):  # type: ignore[misc]
    """The updates of one commit."""

    def __init__(self, table: Any) -> None:
        super().__init__(table)
        self._known, self._applied = table.metadata, 0

    @property
    def table_metadata(self) -> Any:
        """The metadata with all updates so far."""
        new, self._applied = self._updates[self._applied :], len(self._updates)
        if new:
            self._known = update_table_metadata(self._known, new)
        return self._known
