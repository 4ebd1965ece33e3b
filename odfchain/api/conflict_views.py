"""The conflicts of a merge as records, and as a file that is filled in and handed back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def conflict_records(conflicts: pa.Table) -> list[dict[str, Any]]:
    """What is open of the conflicts that a `MergeConflictError` has.

    Key, conflict, column, base, ours, theirs. A whole row is an object, and `column` is None then; where a
    side has no row it is None.
    """
    from odfchain.branch.conflict_file import values_of
    from odfchain.branch.resolving import DECISION_COLUMNS, open_lines

    lines = open_lines(conflicts)
    return [values_of(line) for line in lines.drop_columns([*DECISION_COLUMNS, "problem"]).to_pylist()]


def check_conflict_file(path: Path) -> None:
    """Nothing where conflicts can be written to a file of this name.

    Raises:
        UsageError: its name does not say in which form.
    """
    from odfchain.branch.conflict_file import check_conflict_file as check

    check(path)


def write_conflicts(conflicts: pa.Table, path: Path) -> None:
    """All conflicts in a .csv or .ndjson file; what is decided of them already is filled in.

    Raises:
        UsageError: the name of the file does not say in which form.
        StoreError: it cannot be written.
    """
    from odfchain.branch.conflict_file import write_conflicts as write

    write(conflicts, path)
