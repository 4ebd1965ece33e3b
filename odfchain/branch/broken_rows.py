"""The rows in force whose key is one of some wanted ones: found last, and only where there are any."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from odfchain.branch.violations import MOST_LISTED, SCHEMA, rows_table, texts_of
from odfchain.branch.wanted_keys import KeyRows, WantedKeys, key_rows
from odfchain.digest.row_hash import Numbers
from odfchain.model.enums import OperationType
from odfchain.repo.constraint_rules import Columns
from odfchain.slices.rows_in_force import SliceFile, in_force

_OLD, _NEW = OperationType.CORRECT_FROM.code, OperationType.CORRECT_TO.code


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """Whose rows are looked for, and by which columns."""

    owner: Columns
    """The dataset whose rows they are."""
    columns: tuple[str, ...]
    wanted: WantedKeys
    bad: Numbers
    """Which of the wanted keys count."""
    missing_in: str
    origin: Callable[[SliceFile], str] = lambda _: ""
    changed_only: bool = False
    """Leave out corrections that leave these columns as they were."""

    def run(self, slices: Sequence[SliceFile]) -> tuple[int, pa.Table]:
        """(how many rows in force after `slices` there are, the first of them as violations)."""
        count, tables, kept = 0, [SCHEMA.empty_table()], None
        for item in slices:
            for rows, chosen in self._candidates(item):
                if kept is None:
                    kept = in_force(slices, self.owner.key)
                offsets = rows.offsets
                hit = chosen & np.isin(offsets, kept)
                left = MOST_LISTED - count
                count += int(hit.sum())
                if left > 0 and hit.any():
                    tables.append(self._table(rows, np.flatnonzero(hit)[:left], offsets, self.origin(item)))
        return count, pa.concat_tables(tables)

    def _candidates(self, item: SliceFile) -> Iterator[tuple[KeyRows, Numbers]]:
        others = [*self.owner.key, item.vocabulary.offset_column]
        before, said = -1, -1
        for rows in key_rows(item, self.columns, self.wanted.schema, others):
            numbers = self.wanted.numbers(rows.keys)
            chosen = (numbers >= 0) & self.bad[numbers] & ~rows.back
            if self.changed_only:
                # the old half of a correction stands right before the new one
                old = np.concatenate(([before], numbers[:-1]))
                operations = np.concatenate(([said], rows.operations[:-1].astype(np.int64)))
                chosen &= ~((rows.operations == _NEW) & (operations == _OLD) & (old == numbers))
                before, said = int(numbers[-1]), int(rows.operations[-1])
            if chosen.any():
                yield rows, chosen

    def _table(self, rows: KeyRows, at: Numbers, offsets: Numbers, origin: str) -> pa.Table:
        batch, keys = rows.batch.take(pa.array(at)), rows.keys.take(pa.array(at))
        key: list[tuple[str, Sequence[str | None]]] = [
            (name, texts_of(batch.column(name)) if name in batch.schema.names else [None] * len(at))
            for name in self.owner.key
        ]
        if not key:
            key = [(self.owner.vocabulary.offset_column, [str(offset) for offset in offsets[at]])]
        values = [texts_of(column) for column in keys.columns]
        return rows_table(self.owner.name, key, self.columns, values, self.missing_in, [origin] * len(at))
