"""The blocks that merges took changes from, verified as the dataset's own are (checks 2 to 11).

They lie on other chains of the same dataset: of branches, or of branches that are gone. A fault in them is a
fault of the merge, because what it was computed from cannot be relied on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

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
from odfchain.audit.walk import StoredChain, check_rules, read_chain
from odfchain.ids.multihash import Multihash
from odfchain.progress import SILENT, Progress
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.points import opened_at


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
        places = {stored.name: stored.number for stored in chain.blocks}
        parting = max((number for name, number in places.items() if name in self.own), default=-1)
        return _SideChain(opened, chain, places, report, parting)

    def _checked(self, side: _SideChain, after: int, upto: int) -> Report:
        report = self._report()
        check_rules(side.dataset, side.chain, after, upto, report)
        jobs = check_objects(side.dataset, side.chain, after, upto, report)
        outcomes = read_slices(side.dataset, jobs, self.jobs, report, self.progress)
        report.faults += check_system_times(side.dataset.data, jobs, outcomes)
        readable = readable_slices(side.dataset, jobs, outcomes)
        if any(item.takes_back for item in readable):
            slices = [*self._earlier(side, after), *readable]
            expected = sum(
                stored.block.new_data is not None for stored in side.chain.blocks if stored.number <= upto
            )
            complete = side.chain.follows and len(slices) == expected
            in_force = not has_several_keys(side.chain)
            check_corrections(slices, report, complete=complete, in_force=in_force)
        return report

    def _earlier(self, side: _SideChain, upto: int) -> list[ReadableSlice]:
        """The slices that may have what is taken back; they are looked into, and are not what is judged."""
        jobs = check_objects(side.dataset, side.chain, -1, upto, self._report())
        store = side.dataset.data
        return [
            ReadableSlice(job, job.expected, Path(store.locate(job.slice.physical_hash)), (0, 0, 0, 0))
            for job in jobs
            if job.expected is not None
        ]
