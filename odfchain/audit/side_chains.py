"""The blocks that merges took changes from, verified as the dataset's own are (checks 2 to 11).

They lie on other chains of the same dataset: of branches, or of branches that are gone. A fault in them is a
fault of the merge, because what it was computed from cannot be relied on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from odfchain.audit.checks import CORRECTIONS
from odfchain.audit.correction_check import (
    ReadableSlice,
    check_corrections,
    has_several_keys,
    readable_slices,
)
from odfchain.audit.object_files import check_objects
from odfchain.audit.report import Report
from odfchain.audit.slice_checks import check_system_times
from odfchain.audit.slice_pass import read_slices
from odfchain.audit.walk import StoredChain, check_rules, count_slices, read_chain
from odfchain.branch.intervals import Interval, MergedColumns, read_rows
from odfchain.branch.row_diff import key_columns, same_rows
from odfchain.digest.row_hash import Numbers
from odfchain.ids.multihash import Multihash
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState
from odfchain.repo.points import opened_at
from odfchain.slices.rows_in_force import takes_back


@dataclass(frozen=True, slots=True)
class _SideChain:
    dataset: DatasetFiles
    chain: StoredChain
    places: dict[Multihash, int]
    report: Report
    """What reading it found."""
    parting: int
    """Its newest block that is on the dataset's own chain."""
    checked: dict[tuple[int, int], Report] = field(default_factory=dict)


@dataclass(slots=True)
class MergedSources:
    """The side chains of a dataset, each read once, and what was found of their blocks."""

    dataset: DatasetFiles
    own: frozenset[Multihash]
    """The blocks of the chain that is verified itself."""
    jobs: int
    progress: Progress = SILENT
    _chains: list[_SideChain] = field(default_factory=list)

    def verify(self, after: Multihash, upto: Multihash) -> Report:
        """What is found of the blocks after one, up to another, but for the dataset's own."""
        if upto in self.own:
            return self._report()
        side = next((item for item in self._chains if upto in item.places), None)
        if side is None:
            side = self._read(upto)
            self._chains.append(side)
        if side.report.faults:
            return side.report
        ends = max(side.places.get(after, -1), side.parting), side.places[upto]
        if ends not in side.checked:
            side.checked[ends] = self._checked(side, *ends)
        return side.checked[ends]

    def _report(self) -> Report:
        return Report("unknown", str(self.dataset.alias), None)

    def _read(self, head: Multihash) -> _SideChain:
        report = self._report()
        opened = opened_at(self.dataset, head)
        chain = read_chain(opened, report, SILENT)
        places = {row.name: row.number for row in chain.blocks.rows()}
        parting = max((number for name, number in places.items() if name in self.own), default=-1)
        return _SideChain(opened, chain, places, report, parting)

    def _checked(self, side: _SideChain, after: int, upto: int) -> Report:
        report = self._report()
        check_rules(side.dataset, side.chain, after, upto, report)
        jobs = check_objects(side.dataset, side.chain, after, upto, report)
        outcomes = read_slices(side.dataset, jobs, self.jobs, report, self.progress)
        report.faults += check_system_times(side.dataset.data, jobs, outcomes)
        readable = readable_slices(side.dataset, jobs, outcomes)
        if report.faults or not any(item.takes_back for item in readable):
            return report
        if not self._keyed(side, after, readable, report):
            slices = [*self._earlier(side, after), *readable]
            expected = count_slices(side.chain, upto)
            complete = side.chain.follows and len(slices) == expected
            in_force = not has_several_keys(side.chain)
            check_corrections(slices, report, complete=complete, in_force=in_force)
        return report

    def _keyed(self, side: _SideChain, after: int, slices: Sequence[ReadableSlice], report: Report) -> bool:
        """Check 10 by the primary key, of which only the touched values are looked up; False without one."""
        names = {number: name for name, number in side.places.items()}
        state = DatasetState.read(side.dataset.chain, names[slices[-1].job.number])
        if after < 0 or has_several_keys(side.chain) or not side.chain.follows or not state.primary_key:
            return False
        interval = Interval(side.dataset, names[after], state.head, believed=False)
        rows = read_rows(interval, MergedColumns.of(state), state.primary_key)
        report.count(CORRECTIONS)
        wrong = taken_back_in_vain_by_key(rows, state.primary_key)
        for item in slices:
            span = item.job.slice.offset_interval
            mine = wrong[(wrong >= span.start) & (wrong <= span.end)]
            if len(mine):
                message = f"row at offset {int(mine[0]):,} takes back values that no row in force has"
                report.fault(CORRECTIONS, item.path, message, item.job.number)
        return True

    def _earlier(self, side: _SideChain, upto: int) -> list[ReadableSlice]:
        """The slices that may have what is taken back; they are looked into, and are not what is judged."""
        jobs = check_objects(side.dataset, side.chain, -1, upto, self._report())
        store = side.dataset.data
        return [
            ReadableSlice(job, job.expected, Path(store.locate(job.slice.physical_hash)), (0, 0, 0, 0))
            for job in jobs
            if job.expected is not None
        ]


def taken_back_in_vain_by_key(rows: pa.Table, key: Sequence[str]) -> Numbers:
    """The offsets of rows that take back what their key does not have.

    `rows` (`odfchain.branch.intervals.read_rows`) have a row in front for each key, which says what it had.
    """
    keys = key_columns(rows, key)
    place = pa.array(np.arange(rows.num_rows))
    by = [(name, "ascending") for name in [*keys.column_names, "place"]]
    order = pc.sort_indices(keys.append_column("place", place), by)
    rows, keys = rows.take(order), keys.take(order)
    operations = rows.column(1).to_numpy()
    follows = same_rows(keys.slice(1), keys.slice(0, len(operations) - 1), keys.column_names)
    first = np.concatenate([[True], ~follows])[: len(operations)]
    # the row in front takes back what is there, so that whoever reads on finds it; else it adds nothing
    present = np.where(first, takes_back(operations), ~takes_back(operations))
    data = rows.column_names[2:]
    same = same_rows(rows.slice(1), rows.slice(0, len(operations) - 1), data)
    sound = np.concatenate([[True], present[:-1] & same])[: len(operations)]
    wrong: Numbers = rows.column(0).to_numpy()[takes_back(operations) & ~first & ~sound]
    return np.sort(wrong)
