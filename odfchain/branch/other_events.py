"""What a branch says beside its data: descriptions, licences, attachments, sources, names of columns.

A merge is about data. Other events are listed, and taken over only when asked for, and only where the target
has not changed the same thing since: a stranger's branch could carry a command that runs. Source: RFC-036.
"""

from __future__ import annotations

from collections.abc import Sequence

from odfchain.errors import IngestError
from odfchain.ids.multihash import Multihash
from odfchain.model.events import (
    AddPushSource,
    DisablePollingSource,
    DisablePushSource,
    MetadataEvent,
    SetAttachments,
    SetInfo,
    SetLicense,
    SetPollingSource,
    SetTransform,
    SetVocab,
)
from odfchain.repo.dataset_state import DatasetState
from odfchain.text import one_line

_SINGLE = (SetInfo, SetLicense, SetAttachments, SetVocab, SetTransform)
_POLLING = (SetPollingSource, DisablePollingSource)
_PUSH = (AddPushSource, DisablePushSource)
_KINDS = tuple(kind.KIND for kind in (*_SINGLE, *_POLLING, *_PUSH))

_Subject = tuple[str, str]
"""What an event is about: of two events about one thing, the later one counts."""


def other_events(
    target: DatasetState, source: DatasetState, after: Multihash, bases: Sequence[DatasetState]
) -> list[MetadataEvent]:
    """What the source said after a block of its chain that neither a base nor the target says, oldest first.

    Of several events about one thing that is the last one.
    """
    found: dict[_Subject, MetadataEvent] = {}
    oldest = source.chain.get(after).sequence_number
    for block in source.chain.nearest_all(*_KINDS, head=source.head):
        if block.block.sequence_number <= oldest:
            break
        found.setdefault(_subject(block.block.event), block.block.event)
    return [
        event
        for subject, event in reversed(found.items())
        if _in_force(source, subject) not in [_in_force(state, subject) for state in (target, *bases)]
    ]


def refuse_changed(
    events: Sequence[MetadataEvent], target: DatasetState, bases: Sequence[DatasetState]
) -> None:
    """Nothing where the target has not changed what these events are about.

    Raises:
        IngestError: it has; names all of it.
    """
    changed = [
        event
        for event in events
        for subject in [_subject(event)]
        if _in_force(target, subject) not in [_in_force(state, subject) for state in bases]
    ]
    if changed:
        raise IngestError(
            f"both sides changed what these events say: {listed(changed)}",
            hint="record on the target what is to be in force, then merge without --with-metadata",
        )


def listed(events: Sequence[MetadataEvent]) -> str:
    """Events for people, each by its kind and what it is about."""
    return ", ".join(
        f"{event.KIND} {one_line(event.source_name)!r}"
        if isinstance(event, AddPushSource | DisablePushSource)
        else event.KIND
        for event in events
    )


def _subject(event: MetadataEvent) -> _Subject:
    match event:
        case AddPushSource() | DisablePushSource():
            return "push source", event.source_name
        case SetPollingSource() | DisablePollingSource():
            return "polling source", ""
    return event.KIND, ""


def _in_force(state: DatasetState, subject: _Subject) -> MetadataEvent | None:
    kind, name = subject
    if kind == "push source":
        return state.push_sources.get(name)
    if kind == "polling source":
        return state.polling_source
    latest = state.chain.nearest(kind, head=state.head)
    return latest.block.event if latest is not None else None
