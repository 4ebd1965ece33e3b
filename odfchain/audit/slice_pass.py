"""Reading slices for a verification: several side by side, each decoded once for all checks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack

from odfchain.audit.checks import LOGICAL, OF_ROWS
from odfchain.audit.report import Report
from odfchain.audit.slice_checks import SliceJob, SliceOutcome, check_slice
from odfchain.progress import Progress
from odfchain.repo.dataset_files import DatasetFiles


def read_slices(
    dataset: DatasetFiles, jobs: Sequence[SliceJob], threads: int, report: Report, progress: Progress
) -> dict[int, SliceOutcome]:
    """What each slice brought, by the number of its block; all of it is in the report."""
    if not jobs:
        return {}
    progress.phase(f"Hashing slices of {dataset.alias}", sum(job.slice.size for job in jobs))
    threads = max(1, threads)
    with ExitStack() as pools:
        leaves: Executor | None = None
        if threads > 1 and len(jobs) < threads:
            leaves = pools.enter_context(ThreadPoolExecutor(threads - len(jobs)))  # each job has one already

        def check(index: int) -> SliceOutcome:
            return check_slice(dataset.data, jobs[index], progress, leaves)

        # the largest first, so that none of the threads is left with one when the others are done
        order = sorted(range(len(jobs)), key=lambda index: -jobs[index].slice.size)
        results: Iterable[SliceOutcome]
        if threads == 1 or len(jobs) == 1:
            results = map(check, order)
        else:
            results = pools.enter_context(ThreadPoolExecutor(min(threads, len(jobs)))).map(check, order)
        outcomes = dict(zip(order, results, strict=True))
    for index, job in enumerate(jobs):
        _report_slice(job, outcomes[index], report)
    return {job.number: outcomes[index] for index, job in enumerate(jobs)}


def _report_slice(job: SliceJob, outcome: SliceOutcome, report: Report) -> None:
    report.slices += 1
    report.records += job.slice.offset_interval.count
    report.data_bytes += job.slice.size
    report.faults += outcome.faults
    report.notes += (note for note in outcome.notes if note not in report.notes)
    for check in outcome.done:
        report.count(check)
    if outcome.unchecked is not None:
        report.leave_out(outcome.unchecked, job.number, check=LOGICAL, also=OF_ROWS)
    elif LOGICAL not in outcome.done:
        report.skip(OF_ROWS, "a slice is damaged, so its rows were not looked at")
