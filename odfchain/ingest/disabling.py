"""Ending a source: what is recorded stays, nothing more comes from it (RFC-013)."""

from __future__ import annotations

from odfchain.codec.source_settings import POLLING_SOURCE
from odfchain.errors import UsageError
from odfchain.ids.multihash import Multihash
from odfchain.model.enums import DatasetKind
from odfchain.model.events import DisablePollingSource, DisablePushSource
from odfchain.model.timestamp import Timestamp
from odfchain.repo.commit import commit
from odfchain.repo.dataset_files import DatasetFiles
from odfchain.repo.dataset_state import DatasetState

_HINT = "`odfchain log` shows the events that define and disable sources"


def disable_source(
    dataset: DatasetFiles, name: str | None = None, *, system_time: Timestamp | None = None
) -> tuple[DisablePollingSource | DisablePushSource, Multihash]:
    """End the source of this name, or the only one; returns the event and the hash of its block.

    Raises:
        UsageError: the dataset is derivative, no source of this name is in force, or there are several.
    """
    state = DatasetState.read(dataset.chain)
    if state.seed.dataset_kind is not DatasetKind.ROOT:
        raise UsageError(f"{dataset.alias} is a derivative dataset: it has inputs, and no sources")
    event = _event(dataset, state, name)
    (block,) = commit(dataset, state, [event], [], system_time=state.next_system_time(system_time))
    return event, block


def _event(
    dataset: DatasetFiles, state: DatasetState, name: str | None
) -> DisablePollingSource | DisablePushSource:
    pushed = list(state.push_sources)
    polled = state.polling_source is not None
    known = [*([POLLING_SOURCE] if polled else []), *pushed]
    if not known:
        raise UsageError(f"{dataset.alias} has no source in force", hint=_HINT)
    if name is None and len(known) > 1:
        raise UsageError(
            f"{dataset.alias} has several sources: {', '.join(pushed)}", hint="choose one with --source"
        )
    if name is not None and name not in known:
        raise UsageError(
            f"{dataset.alias} has no source called {name!r} in force (it has {', '.join(known)})", hint=_HINT
        )
    return DisablePollingSource() if polled else DisablePushSource(source_name=name or pushed[0])
