"""Check 10: a retraction, or the old half of a correction, equals a row that is in force.

The rule is that of commits (`odfchain/repo/corrections.py`). Where there is a primary key, the row in
force is that of the key. Where sources have several keys, what one of them took back another may take back
again, so the row must only have been there. Only datasets with retractions pay for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from odfchain.audit.checks import CORRECTIONS
from odfchain.audit.expected_schema import ExpectedSchema
from odfchain.audit.report import Report
from odfchain.audit.slice_checks import UNREADABLE, SliceJob, SliceOutcome
from odfchain.audit.walk import StoredChain
from odfchain.limits import AUDIT
from odfchain.model.enums import TAKES_BACK
from odfchain.repo.corrections import SOURCES, are_of_several_keys, taken_back_in_vain
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.slices.rows_in_force import SliceFile


@dataclass(frozen=True, slots=True)
class ReadableSlice:
    """A slice whose rows were found to be as its block says, and the operations in it."""

    job: SliceJob
    expected: ExpectedSchema
    path: Path
    operations: tuple[int, ...]

    @property
    def file(self) -> SliceFile:
        """The file for the rule."""
        return SliceFile(self.path, self.expected.vocabulary, self.job.slice.offset_interval)

    @property
    def takes_back(self) -> int:
        """How many rows of it take others back."""
        return sum(self.operations[code] for code in TAKES_BACK)


def readable_slices(
    dataset: DatasetFiles, jobs: Sequence[SliceJob], outcomes: Mapping[int, SliceOutcome]
) -> list[ReadableSlice]:
    """The slices whose rows can be relied on, oldest first."""
    readable = []
    for job in jobs:
        outcome = outcomes.get(job.number)
        if outcome is None or outcome.operations is None or outcome.faults or job.expected is None:
            continue
        path = dataset.data.path(job.slice.physical_hash)
        readable.append(ReadableSlice(job, job.expected, path, outcome.operations))
    return readable


def has_several_keys(chain: StoredChain) -> bool:
    """Whether the sources of a dataset tell its records apart by different keys."""
    return are_of_several_keys(s.block.event for s in chain.blocks.of(*SOURCES) if s.sound)


def check_corrections(
    slices: Sequence[ReadableSlice], report: Report, *, complete: bool, in_force: bool = True
) -> None:
    """Every row that takes another back finds it; `complete` when the slices are all that there are.

    Without `in_force` the row may have been taken back before.
    """
    asked = [item for item in slices if item.takes_back]
    if not asked:
        return
    if not complete:
        report.skip([CORRECTIONS], "not all slices could be read that may have the rows which are taken back")
        return
    count = sum(item.takes_back for item in asked)
    if count > AUDIT.retractions:
        report.skip(
            [CORRECTIONS], f"{count:,} rows are taken back; no more than {AUDIT.retractions:,} are compared"
        )
        return
    try:
        files, those = [item.file for item in slices], [item.file for item in asked]
        wrong = taken_back_in_vain(files, those, in_force=in_force)
    except MemoryError:
        report.skip([CORRECTIONS], "there is not enough memory to compare the rows that are taken back")
        return
    except UNREADABLE as error:
        report.skip([CORRECTIONS], f"a slice changed while it was read: {str(error).partition(chr(10))[0]}")
        return
    for item in asked:
        interval = item.job.slice.offset_interval
        mine = wrong[(wrong >= interval.start) & (wrong <= interval.end)]
        if len(mine):
            where = "in force" if in_force else "before"
            message = (
                f"row at offset {int(mine[0]):,} takes back values that no row {where} has"
                f"{f' ({len(mine):,} such rows)' if len(mine) > 1 else ''}"
            )
            report.fault(CORRECTIONS, item.path, message, item.job.number)
