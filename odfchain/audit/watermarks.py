"""Check 12: watermarks never go back, and are not ahead of what justifies them.

A root's watermark is justified by the largest event time so far, or by a block that sets it by hand (one
without data), which is a note. A derivative's is justified by the recorded watermarks of its inputs; ahead of
all of them it can still be right, where the query moves event times, and only a replay can tell: a note.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from odfchain.audit.checks import WATERMARKS
from odfchain.audit.report import Report
from odfchain.audit.slice_checks import SliceOutcome
from odfchain.audit.stored_blocks import StoredBlock
from odfchain.audit.walk import StoredChain
from odfchain.chain.earlier_blocks import DATA_EVENTS
from odfchain.errors import OdfchainError
from odfchain.model.events import AddData, ExecuteTransform
from odfchain.model.timestamp import Timestamp
from odfchain.repo.dataset_files import DatasetFiles

Outcomes = Mapping[int, SliceOutcome]
"""What is known of the slices, by the number of their block."""

InputMarks = Callable[[ExecuteTransform], Sequence[Timestamp | None] | None]
"""The watermarks of the inputs at the blocks that an execution names; None when they are not at hand."""


def check_watermarks(
    dataset: DatasetFiles,
    chain: StoredChain,
    after: int,
    upto: int,
    outcomes: Outcomes,
    input_marks: InputMarks,
    report: Report,
) -> None:
    """The watermarks of the blocks `(after, upto]`; what came before the range is taken as it is recorded."""
    last: Timestamp | None = None
    latest_ms: int | None = None
    known = chain.complete and chain.newest is None
    for stored in chain.blocks.of(*DATA_EVENTS):
        if stored.number > upto:
            break
        if not stored.sound:
            known, last = False, None
            continue
        event = stored.block.event
        if not isinstance(event, AddData | ExecuteTransform):
            continue
        if event.new_data is not None:
            outcome = outcomes.get(stored.number)
            known = known and outcome is not None and outcome.operations is not None
            times = (latest_ms, outcome.latest_ms if outcome is not None else None)
            latest_ms = max((ms for ms in times if ms is not None), default=None)
        mark = event.new_watermark
        if stored.number > after:
            report.count(WATERMARKS, int(mark is not None or last is not None))
            if last is not None and (mark is None or mark < last):
                message = f"the watermark goes back from {last} to {mark or 'none'}"
                report.fault(WATERMARKS, _path(dataset, stored), message, stored.number)
            elif mark is None or mark == last:
                pass
            elif isinstance(event, ExecuteTransform):
                _check_derived(stored.number, mark, input_marks(event), report)
            elif event.new_data is None:
                report.notes.append(f"block {stored.number} sets the watermark {mark} by hand")
            elif latest_ms is None or mark.epoch_ms > latest_ms:
                if known:
                    message = f"the watermark {mark} is ahead of the data, whose latest event time is "
                    report.fault(
                        WATERMARKS, _path(dataset, stored), message + _shown(latest_ms), stored.number
                    )
                else:
                    report.skip([WATERMARKS], "the event times of earlier slices are not known")
        last = mark


def _path(dataset: DatasetFiles, stored: StoredBlock) -> Path:
    return dataset.folder / "blocks" / str(stored.name)


def _shown(epoch_ms: int | None) -> str:
    if epoch_ms is None:
        return "none"
    try:
        return str(Timestamp.from_epoch_ms(epoch_ms))
    except OdfchainError:
        return f"{epoch_ms} ms"


def _check_derived(
    number: int, mark: Timestamp, marks: Sequence[Timestamp | None] | None, report: Report
) -> None:
    if marks is None:
        report.skip([WATERMARKS], "the watermarks of its inputs are not at hand")
        return
    given = [item for item in marks if item is not None]
    least = min(given) if given and len(given) == len(marks) else None
    if least is None or mark > least:
        report.notes.append(
            f"block {number}: the watermark {mark} is ahead of its inputs' {least or 'none'}; only a replay "
            "can tell whether the query moves event times"
        )
