"""What a step takes back was there, before it is recorded: the rule of check 10, at the commit.

The engine of this process knows what it emitted. What other processes bring, and what a query chooses itself
(`SELECT op, …`), is held against the slices so far. Source: specification "Retractions and Corrections";
RFC-020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from odfchain.errors import BadInputError, EngineError, ObjectNotFoundError, OdfchainError, QueryError
from odfchain.limits import AUDIT
from odfchain.model.enums import TAKES_BACK
from odfchain.text import first_line

if TYPE_CHECKING:
    from odfchain.model.events import DataSlice
    from odfchain.progress import Progress
    from odfchain.repo.dataset_files import DatasetFiles
    from odfchain.repo.dataset_state import DatasetState


@dataclass(frozen=True, slots=True)
class NewSlice:
    """A slice that is about to be committed."""

    slice: DataSlice
    path: Path
    operations: Mapping[str, int]
    """The rows of each operation, by its code."""


def check_taken_back(
    dataset: DatasetFiles, state: DatasetState, new: Sequence[NewSlice], *, ours: bool, progress: Progress
) -> None:
    """Every row of the new slices that takes another back finds it in `dataset`, or before it in them.

    `ours` says that the engine of this process made them.

    Raises:
        EngineError, QueryError: one does not; names the first.
        ObjectNotFoundError, ObjectCorruptedError: an earlier slice is missing or damaged.
    """
    count = sum(each.operations.get(str(code), 0) for each in new for code in TAKES_BACK)
    if not count:
        return
    if count > AUDIT.retractions:  # as in a verification
        progress.note(f"{count:,} rows are taken back; whether they were there is not checked")
        return
    import pyarrow as pa

    from odfchain.repo.corrections import taken_back_in_vain
    from odfchain.slices.rows_in_force import SliceFile

    progress.phase("Comparing with what was recorded")
    names = state.vocabulary
    slices = []
    for ref in state.slices():
        try:
            recorded = dataset.data.verified_path(ref.slice.physical_hash)
        except ObjectNotFoundError as error:
            error.hint = f"what the step takes back must have been there: `odfchain fetch {dataset.alias}`"
            raise
        slices.append(SliceFile(recorded, names, ref.slice.offset_interval))
    asked = [SliceFile(each.path, names, each.slice.offset_interval) for each in new]
    try:
        wrong = taken_back_in_vain([*slices, *asked], asked)
    except (pa.ArrowException, OSError, ValueError, KeyError, BadInputError) as error:
        line = first_line(error)
        raise EngineError(f"what the step takes back cannot be compared with the slices: {line}") from error
    if len(wrong):
        raise _refusal(int(wrong[0]), len(wrong), ours=ours)


def _refusal(offset: int, count: int, *, ours: bool) -> OdfchainError:
    more = f" ({count:,} such rows)" if count > 1 else ""
    if ours:
        return QueryError(
            f"the result takes back at offset {offset:,} values that no row in force has{more}",
            hint="a row and what takes it back must come out equal: let the query keep both, and "
            "select nothing that differs between them (offset, system time); or leave `op` out",
        )
    return EngineError(
        f"the engine broke its contract: the row at offset {offset:,} takes back values that no row in force "
        f"has{more}; nothing was recorded",
        hint="an engine that reads its input in another order does that: end the query with ORDER BY offset, "
        "or let this engine execute it (engine: odfchain-spark)",
    )
