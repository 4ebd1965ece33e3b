"""Where a watermark may be, and which rows are dated too far in the future to be believed.

- The watermark of a transaction with rows is the largest event time so far, less the delay that the source
  allows; never ahead of the data, and never further in the future than rows may be.
- A source that says `fromSystemTime` moves it to the system time, in a block of its own without data: that is
  how the specification lets it be set without rows, and what `verify` takes for set by hand.
- It never goes back: a later block must keep it or raise it. So one row dated 2999 would set it for ever, and
  rows that lie further in the future than a bound are refused.

The bound counts from the system time of the commit. Source: specification "Watermark", "AddData"; RFC-014.
"""

from __future__ import annotations

from odfchain.chain.index import DATA_EVENTS
from odfchain.errors import AppendError, GuardError, InvalidIdError
from odfchain.limits import INGEST_LIMITS
from odfchain.odf.events import AddData, ExecuteTransform
from odfchain.odf.sources import WatermarkRule
from odfchain.odf.times import Duration, Timestamp
from odfchain.odf.tree import POLLING_SOURCE
from odfchain.workspace.config import read_config
from odfchain.workspace.dataset_files import DatasetFiles
from odfchain.workspace.dataset_state import DatasetState

DEFAULT_RULE = WatermarkRule()
ALLOW_FUTURE = "--allow-future"


def rule_of(dataset: DatasetFiles, source_name: str) -> WatermarkRule:
    """How the watermark of a source moves, as its manifest says."""
    return read_config(dataset).watermarks.get(source_name, DEFAULT_RULE)


def rule_in_force(dataset: DatasetFiles, state: DatasetState) -> WatermarkRule:
    """The rule of the source in force, for rows from none; of several the one that waits longest."""
    names = [POLLING_SOURCE] if state.polling_source is not None else list(state.push_sources)
    rules = [rule_of(dataset, name) for name in names]
    return max(rules, key=_delay_ms, default=DEFAULT_RULE)


def _delay_ms(rule: WatermarkRule) -> int:
    return rule.max_delay.milliseconds if rule.max_delay else 0


def latest_believed(system_time: Timestamp, max_future: Duration) -> Timestamp:
    """The latest event time that is taken without asking."""
    return _shifted(system_time, max_future.milliseconds)


def _shifted(time: Timestamp, milliseconds: int) -> Timestamp:
    try:
        return Timestamp.from_epoch_ms(time.epoch_ms + milliseconds)
    except InvalidIdError:  # before the year 1, or after 9999
        edge = "9999-12-31T23:59:59.999Z" if milliseconds > 0 else "0001-01-01T00:00:00Z"
        return Timestamp.parse(edge)


def of_data(
    previous: Timestamp | None,
    latest_ms: int | None,
    rule: WatermarkRule,
    system_time: Timestamp,
    bound: Timestamp | None,
) -> Timestamp | None:
    """The watermark after rows whose largest event time is `latest_ms` [ms since the epoch]."""
    if latest_ms is None:
        return previous
    candidates = [_shifted(Timestamp(0), latest_ms)]
    if bound is not None:
        candidates.append(bound)
    if rule.from_system_time:
        candidates.append(system_time)
    mark = _shifted(min(candidates), -_delay_ms(rule))
    return mark if previous is None else max(mark, previous)


def of_system_time(
    previous: Timestamp | None, rule: WatermarkRule, system_time: Timestamp, *, idle: bool
) -> Timestamp | None:
    """Where the system time moves the watermark; None where it stays.

    An `idle` run, one that brings nothing else, moves it only by a step that is worth a block.
    """
    if not rule.from_system_time:
        return None
    mark = _shifted(system_time, -_delay_ms(rule))
    if previous is None:
        return mark
    least = INGEST_LIMITS.watermark_step_ms if idle else 1
    return mark if mark.epoch_ms >= previous.epoch_ms + least else None


def check_manual(
    dataset: DatasetFiles, state: DatasetState, mark: Timestamp, bound: Timestamp | None
) -> None:
    """A watermark may be set by hand.

    Raises:
        AppendError: it would go back; the message says which block set the present one, and what helps.
        GuardError: it lies further in the future than `bound`.
    """
    present = state.watermark
    if present is not None and mark < present:
        raise AppendError(
            "WatermarkIsNotMonotonic",
            "watermark-monotonic",
            f"{dataset.alias}: the watermark is {present} and can only be raised, not lowered to {mark}",
            hint=_way_back(dataset, state, present),
        )
    if bound is not None and mark > bound:
        raise GuardError(
            f"{dataset.alias}: the watermark {mark} would be later than {bound}, the latest that is taken "
            "without asking; it can never be lowered again",
            flag=ALLOW_FUTURE,
        )


def _way_back(dataset: DatasetFiles, state: DatasetState, present: Timestamp) -> str:
    """Which block made the watermark what it is, and the command that undoes it."""
    first = None
    for block in state.chain.nearest_all(*DATA_EVENTS, head=state.head):
        event = block.block.event
        if not isinstance(event, AddData | ExecuteTransform) or event.new_watermark != present:
            break
        first = block
    number = first.block.sequence_number if first is not None else state.head_block.sequence_number
    return (
        f"block {number} set it; to come back, drop that block and what follows with `odfchain reset "
        f"{dataset.alias} {number - 1}` and ingest again what came later (copies of the dropped blocks will "
        "differ)"
    )
