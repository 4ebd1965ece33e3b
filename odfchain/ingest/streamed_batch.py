"""Batches of a stream, each ingested once: which ones are recorded, as the state of their source.

A stream that was killed between a commit and its acknowledgement brings its last batch again. The commit has
recorded which one it was (kind `odfchain/batch`), so it is known by its number. Of each stream the last
number is kept: numbers only grow, and a stream has one batch at a time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from odfchain.errors import UsageError
from odfchain.model.events import SourceState
from odfchain.repo.dataset_state import DatasetState

KIND = "odfchain/batch"
_STREAMS = 16
"""Streams into one source whose last batch is kept [count]: those that wrote last."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of a stream, as whoever runs it numbers them."""

    query: str
    """What tells the stream from others, and stays the same when it is started again."""
    number: int

    def __post_init__(self) -> None:
        if not isinstance(self.query, str) or not isinstance(self.number, int) or self.number < 0:
            raise UsageError("a batch is the name of its stream and a number, as in batch=('orders', 17)")

    def is_recorded(self, state: DatasetState, source: str) -> bool:
        """Whether it, or a later one of its stream, was ingested."""
        return _recorded(state, source).get(self.query, -1) >= self.number

    def after(self, state: DatasetState, source: str) -> SourceState:
        """What is recorded with it."""
        others = {query: n for query, n in _recorded(state, source).items() if query != self.query}
        kept = dict([*others.items(), (self.query, self.number)][-_STREAMS:])
        value = json.dumps(kept, ensure_ascii=False, separators=(",", ":"))
        return SourceState(source_name=source, kind=KIND, value=value)


def _recorded(state: DatasetState, source: str) -> dict[str, int]:
    """The last batch of each stream, the one that wrote last at the end."""
    found = state.state_of_source(source)
    if found is None or found[0].kind != KIND:
        return {}
    try:
        value = json.loads(found[0].value)
    except ValueError:
        return {}
    return value if isinstance(value, dict) and all(type(n) is int for n in value.values()) else {}
