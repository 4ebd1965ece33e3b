"""What turns the output so far into what a query says of everything (`odfchain.model.rebuild`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from odfchain.model.enums import OperationType

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from odfchain.model.data_schema import DataSchema
    from odfchain.slices.rows_in_force import SliceFile
    from odfchain.slices.writer import SliceFacts, SliceSpec

    Numbers = np.ndarray[Any, Any]


def write_difference(
    earlier: Sequence[SliceFile], made: SliceFile | None, schema: DataSchema, spec: SliceSpec
) -> SliceFacts | None:
    """A slice that turns the rows of `earlier` into those of `made`; None where nothing has to change.

    Rows in force are counted (`odfchain.slices.rows_in_force`). What is in both stays as it is. What has to
    go comes first, as retractions in the order in which it was recorded, then what is new in the order of
    `made`.

    Raises:
        EngineError: the rows of two slices cannot be compared.
    """
    import numpy as np
    import pyarrow as pa

    from odfchain.codec.arrow import slice_schema
    from odfchain.errors import EngineError
    from odfchain.slices.writer import write_slice

    arrow = slice_schema(schema)
    try:
        old, new = _SliceRows.of(earlier), _SliceRows.of([] if made is None else [made])
        _, keys = np.unique(np.concatenate([old.hashes, new.hashes]), return_inverse=True)
        count = int(keys.max()) + 1 if len(keys) else 0
        of_old, of_new = keys[: len(old.hashes)], keys[len(old.hashes) :]
        excess = np.bincount(of_old[old.kept], minlength=count)
        excess -= np.bincount(of_new[new.kept], minlength=count)
        gone = old.last(of_old, np.maximum(excess, 0))
        added = new.last(of_new, np.maximum(-excess, 0))

        def rows() -> Iterator[pa.RecordBatch]:
            yield from _chosen(earlier, gone, arrow, OperationType.RETRACT)
            yield from _chosen([] if made is None else [made], added, arrow, OperationType.APPEND)

        return write_slice(rows(), spec)
    except (pa.ArrowException, ValueError, KeyError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise EngineError(f"the output so far cannot be compared with the new one: {line}") from error


@dataclasses.dataclass(frozen=True, slots=True)
class _SliceRows:
    """All rows of some slices, in their order."""

    hashes: Numbers
    kept: Numbers
    """Whether each is in force."""

    @classmethod
    def of(cls, slices: Sequence[SliceFile]) -> _SliceRows:
        import numpy as np

        from odfchain.digest.row_hash import PAIR
        from odfchain.slices.rows_in_force import Walk, hashed_rows, takes_back

        nothing = (np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, PAIR))

        def read(*, exact: bool) -> tuple[Numbers, Walk]:
            rows = [nothing, *(found for item in slices for found in hashed_rows(item, exact=exact))]
            offsets, operations, hashes = (np.concatenate(parts) for parts in zip(*rows, strict=True))
            return hashes, Walk.of(offsets, takes_back(operations), hashes)

        # what this engine takes back is as it was recorded, and so is what it makes of the output
        hashes, walk = read(exact=True)
        return cls(hashes, walk.kept if not walk.in_vain.any() else read(exact=False)[1].kept)

    def last(self, keys: Numbers, wanted: Numbers) -> Numbers:
        """Which rows are the last so many of their kind in force."""
        import numpy as np

        chosen: Numbers = np.zeros(len(keys), dtype=bool)
        places = np.flatnonzero(self.kept)[::-1]
        order = np.argsort(keys[places], kind="stable")
        places = places[order]
        groups = keys[places]
        starts = (
            np.flatnonzero(np.concatenate(([True], groups[1:] != groups[:-1]))) if len(groups) else groups
        )
        rank = np.arange(len(groups)) - np.repeat(starts, np.diff(np.append(starts, len(groups))))
        chosen[places[rank < wanted[groups]]] = True
        return chosen


def _chosen(
    slices: Sequence[SliceFile], chosen: Numbers, schema: pa.Schema, op: OperationType
) -> Iterator[pa.RecordBatch]:
    """The chosen rows in the declared columns, with another operation."""
    import numpy as np
    import pyarrow as pa

    from odfchain.slices.reader import data_batches

    at = 0
    for item in slices:
        for batch in data_batches(item.path):
            mask = chosen[at : at + batch.num_rows]
            at += batch.num_rows
            if not mask.any():
                continue
            rows = batch.filter(pa.array(mask))
            columns = []
            for field in schema:
                if field.name == item.vocabulary.operation_type_column:
                    columns.append(pa.array(np.full(rows.num_rows, op.code), field.type))
                elif field.name in rows.schema.names:
                    columns.append(rows.column(field.name))
                else:
                    columns.append(pa.nulls(rows.num_rows, field.type))
            yield pa.RecordBatch.from_arrays(columns, names=schema.names)
