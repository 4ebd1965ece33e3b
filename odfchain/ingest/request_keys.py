"""Requests that bring rows once however often they are sent: their keys are source state, beside the rows.

The answer to a request may be lost after its rows were recorded; its client then sends it again with the same
key. A block's state names the requests whose rows it has, and those of the last day are looked up in the
chain, so it does not matter what others recorded in between. Source: RFC-061.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from odfchain.errors import KeyReusedError
from odfchain.ingest.polling import BATCH, streams_of
from odfchain.odf import events as ev
from odfchain.odf.identity import Multihash
from odfchain.odf.times import Timestamp
from odfchain.text import json_object, one_line
from odfchain.workspace.dataset_state import DatasetState

# The member of a source state that has the keys, beside the streams.
_MEMBER = "Idempotency-Key"
# How long a key is remembered [s], and how many blocks are looked through for it [count].
_SECONDS, _MOST = 86_400, 4_000
# Sources whose keys are in memory [count].
_SOURCES = 64

_Known = dict[str, tuple[str, Multihash]]
# The newest block with data that was looked at, and what its history says.
_known: dict[tuple[str, str], tuple[Multihash, _Known]] = {}


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The key that a client has chosen for a request."""

    text: str
    sha256: str
    """Of what was sent with it."""

    def after(self, state: DatasetState, source: str) -> ev.SourceState:
        """The source state that is recorded with its rows."""
        value = {**streams_of(state, source), _MEMBER: {self.text: self.sha256}}
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return ev.SourceState(source_name=source, kind=BATCH, value=text)


def sent_before(
    state: DatasetState, source: str, keys: Mapping[int, RequestKey]
) -> dict[int, Multihash | int]:
    """The requests that are recorded, by their places: their block, or the place of an equal one before."""
    known, first = _recorded(state, source) if keys else {}, dict[str, tuple[str, int]]()
    found = dict[int, Multihash | int]()
    for index, key in keys.items():
        before = known.get(key.text) or first.setdefault(key.text, (key.sha256, index))
        if before[0] != key.sha256:
            raise KeyReusedError(
                f"the key {one_line(key.text)!r} was used for something else",
                hint="choose a new key for each request; the same one is for sending the same again",
            )
        if before[1] != index:
            found[index] = before[1]
    return found


def _recorded(state: DatasetState, source: str) -> _Known:
    where, since = (str(state.seed.dataset_id), source), Timestamp.now().epoch_ns - _SECONDS * 10**9
    at, before = _known.get(where, (None, _Known()))
    newest, found = None, _Known()
    for number, block in enumerate(state.chain.nearest_all("AddData", head=state.head)):
        newest = newest or block.hash
        if block.hash == at or number >= _MOST or block.block.system_time.epoch_ns < since:
            before = before if block.hash == at else {}
            break
        event = block.block.event
        given = event.new_source_state if isinstance(event, ev.AddData) else None
        if given is not None and (given.source_name, given.kind) == (source, BATCH):
            keys = json_object(given.value).get(_MEMBER)
            for text, sha256 in keys.items() if isinstance(keys, dict) else ():
                found[text] = (str(sha256), block.hash)
    else:
        before = {}
    # the newest are at the end
    found = dict([*before.items(), *reversed(found.items())][-_MOST:])
    if newest is not None:
        _known[where] = newest, found
        while len(_known) > _SOURCES:
            del _known[next(iter(_known))]
    return found
