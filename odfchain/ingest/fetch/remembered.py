"""Reading the state of a source that the chain remembers; what it cannot mean counts as not remembered."""

from __future__ import annotations

from odfchain.errors import InvalidIdError
from odfchain.ingest.fetch.fetcher import ETAG, LAST_MODIFIED, FetchContext
from odfchain.model.events import SourceState
from odfchain.model.timestamp import Timestamp


def _time(state: SourceState) -> Timestamp | None:
    if state.kind != LAST_MODIFIED:
        return None
    try:
        return Timestamp.parse(state.value)
    except InvalidIdError:
        return None


def previous_tag(context: FetchContext) -> str | None:
    """The remembered opaque text, if that is what is remembered."""
    previous = context.previous
    return previous.value if previous is not None and previous.kind == ETAG and previous.value else None


def previous_modified(context: FetchContext) -> Timestamp | None:
    """The remembered time, if that is what is remembered."""
    return None if context.previous is None else _time(context.previous)


def tell_if_new(state: SourceState | None, context: FetchContext) -> None:
    """For bytes that are about to come, unless only they themselves can tell whether they are new."""
    if context.previous is None or (state is not None and not is_known(state, context)):
        context.expect_rows()


def is_known(state: SourceState | None, context: FetchContext) -> bool:
    """Whether the state is the remembered one; times are compared as times, however they are spelled."""
    previous = context.previous
    if state is None or previous is None or state.kind != previous.kind:
        return False
    if state.kind == LAST_MODIFIED:
        time = _time(state)
        return time is not None and time == _time(previous)
    return state.value == previous.value
