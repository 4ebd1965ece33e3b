"""What a query reads of a dataset: its records, or its state, from slices that were checked.

A plain name is the records; `state(name[, event_time[, key]])` what is in force, by the one definition of it
(`odfchain.slices.rows_in_force`), whichever engine asks. So engines are given rows that are decided already.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.branch.state_cache import read_cached_state
from odfchain.errors import QueryError, SchemaError
from odfchain.model.timestamp import Timestamp
from odfchain.query.checked_slices import CheckedSlices
from odfchain.query.pins import Pin
from odfchain.repo.dataset_state import SliceRef
from odfchain.repo.read_slices import columns_of, read_state

if TYPE_CHECKING:
    import pyarrow as pa

    from odfchain.slices.skipping import Condition


@dataclass(frozen=True, slots=True)
class StateOf:
    """The rows in force: at an event time or now, by a key or the recorded one."""

    event_time: Timestamp | None = None
    key: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """A table of a query."""

    pin: Pin
    projection: StateOf | None = None
    """None is every record."""
    condition: Condition | None = None
    """What is true of all rows that are asked for, if anything: slices that have none are not read."""
    signed_nan: bool = False
    """As in `odfchain.slices.skipping.may_match`."""

    @property
    def pins(self) -> tuple[Pin, ...]:
        """What is read."""
        return (self.pin,)

    @property
    def schema(self) -> pa.Schema:
        """The columns as declared at the block; none before the first data."""
        return columns_of(self.pin.state, None)

    @property
    def has_floats(self) -> bool:
        """Whether a floating-point number is anywhere in it, so that statistics of files leave NaN out."""
        return any(_has_floats(column.type) for column in self.schema)

    @property
    def key(self) -> tuple[str, ...]:
        """What tells the rows of a state apart; () is all values.

        Raises:
            QueryError: sources have different keys, or there is no such column.
        """
        given = self.projection.key if self.projection else None
        if given is None:
            try:
                return self.pin.state.primary_key
            except SchemaError as error:
                raise QueryError(
                    f"state of {self.pin.alias}: {error.message}",
                    hint=f"name it as the third argument: state('{self.pin.alias}', NULL, 'column, column')",
                ) from None
        try:
            columns_of(self.pin.state, given)
        except SchemaError as error:
            raise QueryError(f"state of {self.pin.alias}: {error.message}") from None
        return given

    def slices(self, checked: CheckedSlices) -> list[SliceRef]:
        """The slices that have to be read, oldest first; errors as `paths`.

        Of a state only what a condition says of the key counts: another slice may have a newer row of it.
        """
        refs, condition = checked.slices(self.pin.state), self.condition
        if condition is None:
            return refs
        from odfchain.repo.needed_slices import needed_slices
        from odfchain.slices.footers import quoted
        from odfchain.slices.skipping import about

        dataset = self.pin.dataset
        if self.projection is not None:
            condition = about(condition, [quoted(name) for name in self.key])
        located = checked.located(dataset)
        return needed_slices(dataset, refs, condition, locate=located, signed_nan=self.signed_nan)

    def paths(self, checked: CheckedSlices) -> list[Path]:
        """The files of `slices`; each one hashes to its name and may be decoded by whichever reader."""
        return [checked.path(self.pin.dataset, ref.slice.physical_hash) for ref in self.slices(checked)]

    def state(self, checked: CheckedSlices, columns: Sequence[str] | None = None) -> pa.Table:
        """The rows of a state as recorded, in order of offset, or some columns of them; held in memory."""
        time = self.projection.event_time if self.projection else None
        dataset, state = self.pin.dataset, self.pin.state
        if time is None and checked.remembers:
            located = checked.located(dataset)
            return read_cached_state(
                dataset, state, self.key, columns, cache=checked.states(dataset), locate=located
            )
        slices = [
            (checked.path(dataset, ref.slice.physical_hash), ref.slice.offset_interval)
            for ref in self.slices(checked)
        ]
        return read_state(dataset, state, self.key, columns, event_time=time, slices=slices)

    def rows(self, checked: CheckedSlices, wanted: Collection[str] | None = None) -> pa.Table:
        """As `state`, with the columns that queries see; those that are not `wanted` are null."""
        import pyarrow as pa

        schema = self.schema
        names = [name for name in schema.names if wanted is None or name in wanted]
        # of no column at all nobody could say how many rows there are
        read: Sequence[str] = names or schema.names[:1]
        found = self.state(checked, read)
        columns = [
            found.column(field.name) if field.name in read else pa.nulls(len(found), field.type)
            for field in schema
        ]
        nullable = pa.schema([field.with_nullable(True) for field in schema])
        return pa.table(columns, schema=nullable)


def _has_floats(kind: pa.DataType) -> bool:
    from pyarrow import types as t

    return t.is_floating(kind) or any(_has_floats(kind.field(i).type) for i in range(kind.num_fields))
