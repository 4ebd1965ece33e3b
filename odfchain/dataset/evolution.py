"""From a snapshot to the events that an existing dataset lacks of it.

What a snapshot says and the chain does not is appended; what it does not mention stays in force. Source:
specification "Dataset Evolution", "Query Evolution".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from odfchain.dataset.state import DatasetState
from odfchain.metadata import events as ev
from odfchain.metadata.raw_arrow import schema_of_event


def changes(events: Sequence[ev.MetadataEvent], state: DatasetState) -> list[ev.MetadataEvent]:
    """Those of the events that differ from what is in force, in their order.

    A transform without a version keeps the one in force when nothing else of it changes, and a schema to
    which runs have added columns is still the one that was declared.

    Raises:
        StoreError, CodecError, BrokenChainError: the chain cannot be read.
    """
    return [event for event in events if not _in_force(event, state)]


def _in_force(event: ev.MetadataEvent, state: DatasetState) -> bool:
    match event:
        case ev.AddPushSource():
            return state.push_sources.get(event.source_name) == event
        case ev.SetPollingSource():
            return state.polling_source == event
        case ev.SetVocab():
            return state.vocabulary == ev.DatasetVocabulary.from_event(event)
        case ev.SetDataSchema():
            declared, now = schema_of_event(event.raw_arrow_schema, event.schema), state.schema
            return now is not None and now.fields[: len(declared.fields)] == declared.fields
        case ev.SetTransform():
            return state.transform is not None and _same_transform(event, state.transform)
    found = state.chain.nearest(event.KIND, head=state.head)
    return found is not None and found.block.event == event


def _same_transform(new: ev.SetTransform, old: ev.SetTransform) -> bool:
    version = new.transform.version or old.transform.version
    return dataclasses.replace(new, transform=dataclasses.replace(new.transform, version=version)) == old
