"""What every fetcher takes and gives.

A fetcher is a function of a fetch step and a `FetchContext`. It compares the source with the state that the
chain remembers and answers `UP_TO_DATE`, or brings new bytes together with the state that is to be remembered
once they are committed. State and data travel together, so that neither is committed without the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal, TypeAlias

from odfchain.codec.source_settings import POLLING_SOURCE
from odfchain.limits import FetchLimits
from odfchain.model.events import SourceState
from odfchain.model.timestamp import Timestamp
from odfchain.progress import SILENT, Progress

ETAG = "odf/etag"
"""Kind of a source state that is an opaque text."""

LAST_MODIFIED = "odf/last-modified"
"""Kind of a source state that is a time in RFC 3339."""


class _UpToDate(Enum):
    UP_TO_DATE = "up to date"


UP_TO_DATE = _UpToDate.UP_TO_DATE
"""The source has nothing that was not fetched before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """New bytes of a source."""

    path: Path
    """A file with the bytes: below the context's folder, or the user's own file (never to be changed)."""
    name: str
    """What messages call the input: a URL without secrets, or a path."""
    state: SourceState | None
    """What is to be remembered with the data; None when the source tells nothing of its state."""
    event_time: Timestamp | None = None
    """Event time of rows that carry none; None means the system time of the run."""
    has_more: bool = False
    """Whether fetching again with `state` will bring more."""
    advances: bool = False
    """Whether the watermark follows the event time, whether or not a row that is new has it."""


FetchResult: TypeAlias = Fetched | Literal[_UpToDate.UP_TO_DATE]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchContext:
    """What a fetcher works with."""

    folder: Path
    """A private folder for the bytes; removed at the end of the run."""
    previous: SourceState | None
    """The state of this source that the chain remembers."""
    previous_time: Timestamp | None = None
    """When that state was recorded."""
    recorded: Callable[[], Iterable[SourceState]] = tuple
    """Every state of this source that the chain remembers, in any order; found when asked for."""
    system_time: Timestamp
    variables: Mapping[str, str] = field(default_factory=dict)
    """Values for `${{ env.NAME }}`; nothing of the process's environment but what the user named."""
    bindings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The hosts that a variable may be sent to, for those that are bound (see `bindings`)."""
    limits: FetchLimits = field(default_factory=FetchLimits)
    progress: Progress = SILENT
    expect_rows: Callable[[], None] = lambda: None
    """Called when it is certain that there are new bytes, before they arrive; perhaps more than once."""


def etag_state(value: str) -> SourceState:
    """The state of a polling source that is an opaque text."""
    return SourceState(source_name=POLLING_SOURCE, kind=ETAG, value=value)


def last_modified_state(time: Timestamp) -> SourceState:
    """The state of a polling source that is a time."""
    return SourceState(source_name=POLLING_SOURCE, kind=LAST_MODIFIED, value=str(time))
