"""`diff('d@A', 'd@B')` and `history('d@P')` in queries: changes of rows, as tables with one row for each.

    columns of the key, change, from, to, columns                                   diff
    columns of the key, change, from, to, columns, block, offset, system_time       history

They are computed when the query runs, by `odfchain.branches`, whichever engine asks.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from odfchain.branches.branches import BlockGraph
from odfchain.branches.diff import read_changes, schema_of_changes
from odfchain.branches.row_history import all_changes, history_schema, primary_key_of
from odfchain.errors import QueryError, SchemaError, UsageError
from odfchain.odf.identity import Multihash
from odfchain.query.resolved_tables import CheckedSlices, Pin
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.merge_record import is_known_here

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Changes:
    """A table of changes: up to a point, or from one to another."""

    projection: ClassVar[bool] = True
    pin: Pin
    to: Pin | None = None
    """None is every change up to `pin`."""
    owner: bool = False
    """True if the blocks of the head were made here."""

    @property
    def pins(self) -> tuple[Pin, ...]:
        """The datasets that are read, each at its block."""
        return (self.pin,) if self.to is None else (self.pin, self.to)

    @property
    def has_floats(self) -> bool:
        """Files are not pruned for it."""
        return False

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the primary key.

        Raises:
            QueryError: the two points have different keys or columns, or a history has none; or two datasets.
        """
        if self.to is not None and self.pin.id != self.to.id:
            raise QueryError(
                f"diff: {self.pin.alias} and {self.to.alias} are two datasets",
                hint=f"write diff('{self.pin.alias}@A', '{self.pin.alias}@B')",
            )
        try:
            if self.to is None:
                return primary_key_of(self.pin.dataset, self.pin.state)
            return schema_of_changes(self.pin.state, self.to.state)[0]
        except (SchemaError, UsageError) as error:
            raise QueryError(error.message, hint=error.hint) from None

    @property
    def schema(self) -> pa.Schema:
        """The columns; errors as `key`."""
        key = self.key
        if self.to is None:
            return history_schema(self.pin.state, key)
        return schema_of_changes(self.pin.state, self.to.state)[1]

    def rows(self, checked: CheckedSlices, wanted: Collection[str] | None = None) -> pa.Table:
        """The changes, all columns of them; held in memory."""
        del wanted
        if not self.schema.names:
            return self.schema.empty_table()
        if self.to is None:
            dataset = self.pin.dataset
            found = all_changes(dataset, self.pin.state, locate=checked.located(dataset))
            return found.cast(self.schema)

        def trusted(dataset: DatasetFiles, after: Multihash, upto: Multihash) -> bool:
            # a proof is the same wherever it is made: there nothing is believed
            return checked.remembers and is_known_here(dataset, after, upto, owner=self.owner)

        sides = [(pin.dataset, pin.state) for pin in self.pins]
        graph = BlockGraph(self.pin.dataset, tuple(pin.dataset.ref for pin in self.pins))
        return read_changes(*sides, graph=graph, trusted=trusted).cast(self.schema)
