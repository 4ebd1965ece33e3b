"""From a snapshot to the events that an existing dataset lacks of it.

What a snapshot says and the chain does not is appended; what it does not mention stays in force. Source:
specification "Dataset Evolution", "Query Evolution".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from odfchain.chain.earlier_blocks import DataEvent
from odfchain.chain.schema_rules import canonical
from odfchain.codec.raw_arrow import schema_of_event
from odfchain.errors import ManifestError
from odfchain.model import events as ev
from odfchain.model.data_schema import DataSchema
from odfchain.model.own_engine import with_own_name
from odfchain.model.query_options import lateness_option, split_version
from odfchain.model.rebuild import unmarked
from odfchain.repo.carried import Source, carried_source
from odfchain.repo.dataset_state import DatasetState


def changes(events: Sequence[ev.MetadataEvent], state: DatasetState) -> list[ev.MetadataEvent]:
    """Those of the events that differ from what is in force, in their order.

    A transform without a version keeps the one in force when nothing else of it changes; the former name of
    this project's engine is no other one. A schema to
    which runs have added columns is still the one that was declared. A declared schema that lacks a column
    which was declared before is a change: the append rules refuse it.
    """
    return [event for event in events if not _in_force(event, state)]


def _in_force(event: ev.MetadataEvent, state: DatasetState) -> bool:
    match event:
        case ev.AddPushSource():
            return _same_source(event, state.push_sources.get(event.source_name))
        case ev.SetPollingSource():
            return _same_source(event, state.polling_source)
        case ev.SetVocab():
            return state.vocabulary == ev.DatasetVocabulary.from_event(event)
        case ev.SetDataSchema():
            declared = schema_of_event(event.raw_arrow_schema, event.schema)
            return any(_same_columns(declared, old) for old in (state.schema, _declared_schema(state)))
        case ev.SetTransform():
            return state.transform is not None and _same_transform(event, state.transform)
    latest = state.chain.nearest(event.KIND, head=state.head)
    return latest is not None and latest.block.event == event


def _declared_schema(state: DatasetState) -> DataSchema | None:
    """The newest schema that was declared: what runs have added to one is written with their rows.

    The first schema of a chain counts as declared, whoever wrote it.
    """
    schemas = list(state.chain.nearest_all("SetDataSchema", head=state.head))
    if not schemas:
        return None
    names = state.chain.hashes(state.head)
    for block in (item.block for item in schemas):
        number = block.sequence_number + 1
        following = state.chain.get(names[number]) if number < len(names) else None
        by_a_run = (
            following is not None
            and isinstance(following.event, DataEvent)
            and following.system_time == block.system_time
        )
        if not by_a_run or block is schemas[-1].block:
            event = block.event
            assert isinstance(event, ev.SetDataSchema)  # noqa: S101 - asked for this kind
            return schema_of_event(event.raw_arrow_schema, event.schema)
    return None


def _same_transform(new: ev.SetTransform, old: ev.SetTransform) -> bool:
    old = dataclasses.replace(old, transform=unmarked(old.transform))
    base, lateness = split_version(new.transform.version or "")
    version = new.transform.version
    if not base and old.transform.version is not None:
        # the options of a query are said, or they are not in force
        version = split_version(old.transform.version)[0] + lateness_option(lateness)
    versioned = dataclasses.replace(new, transform=dataclasses.replace(new.transform, version=version))
    return versioned in (old, dataclasses.replace(old, transform=with_own_name(old.transform)))


def _same_columns(new: DataSchema, old: DataSchema | None) -> bool:
    """Whether a schema says the same as one that may have been recorded in a newer form."""
    if old is None:
        return False
    return [(f.name, canonical(f.type)) for f in new.fields] == [
        (f.name, canonical(f.type)) for f in old.fields
    ]


def _same_source(new: Source, old: Source | None) -> bool:
    """Whether a source says the same as one that may have been recorded in a newer form."""
    if old is None or new == old:
        return old is not None
    try:
        return carried_source(old, "") == new
    except ManifestError:
        return False
