"""Sources whose rows say themselves what they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from odfchain.model.enums import OperationType
from odfchain.model.sources import MergeStrategy, MergeStrategyChangelogStream

OPERATIONS = ", ".join(f"{op.code} for {op.value}" for op in OperationType)
"""The codes of operations, for messages."""


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """What a source needs and does not have, and what helps."""

    message: str
    hint: str


def operations_problem(
    merge: MergeStrategy, names: Sequence[str], operation: str, where: str
) -> SourceProblem | None:
    """What is wrong where rows have to say what they do and no column does; None when nothing is."""
    if not isinstance(merge, MergeStrategyChangelogStream) or operation in names:
        return None
    return SourceProblem(
        f"merge ChangelogStream takes what each row does from the column {operation!r}, which {where} does "
        f"not have (it has {', '.join(names)})",
        f"give every row an integer {operation!r}: {OPERATIONS}; or use a strategy that finds out by itself: "
        "UpsertStream, Snapshot, Ledger, Append",
    )
