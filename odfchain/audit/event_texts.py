"""The events of a chain in words."""

from __future__ import annotations

from typing import Any

from odfchain.audit.lineage import describe_merged
from odfchain.errors import OdfchainError
from odfchain.odf import events as ev
from odfchain.odf.arrow_schema import schema_of_event
from odfchain.odf.events import MetadataEvent
from odfchain.odf.schema import format_ddl
from odfchain.text import human_size
from odfchain.workspace.merge_record import understood_record


def describe_event(event: MetadataEvent) -> list[str]:
    """An event in a few lines for people."""
    match event:
        case ev.Seed():
            return [f"{event.dataset_kind.value} dataset {event.dataset_id}"]
        case ev.AddData() | ev.ExecuteTransform():
            return _describe_data(event)
        case ev.SetDataSchema():
            try:
                return format_ddl(schema_of_event(event.raw_arrow_schema, event.schema))
            except OdfchainError as error:
                return [f"(unreadable: {error})"]
        case ev.AddPushSource():
            return [f"source {event.source_name!r}: read {event.read.KIND}, merge {_merge(event.merge)}"]
        case ev.SetPollingSource():
            return [f"fetch {event.fetch.KIND}, read {event.read.KIND}, merge {_merge(event.merge)}"]
        case ev.SetInfo():
            return [x for x in (event.description, ", ".join(event.keywords or ())) if x]
        case ev.SetLicense():
            return [f"{event.name} ({event.spdx_id or event.short_name}) {event.website_url}"]
        case ev.SetAttachments():
            items = event.attachments.items
            return [f"{item.path} ({human_size(len(item.content.encode()))})" for item in items]
        case ev.SetTransform():
            inputs = [f"input {i.alias} = {i.dataset_ref}" for i in event.inputs]
            return [*inputs, f"engine {event.transform.engine}"]
        case ev.SetVocab():
            names = ev.DatasetVocabulary.from_event(event).columns
            return ["columns " + ", ".join(names)]
        case ev.DisablePushSource():
            return [f"source {event.source_name!r}"]
    return []


def _merge(merge: Any) -> str:
    key = getattr(merge, "primary_key", None)
    return f"{merge.KIND} by {', '.join(key)}" if key else str(merge.KIND)


def _describe_data(event: Any) -> list[str]:
    lines, data = list[str](), event.new_data
    if data is not None:
        rows, size = data.offset_interval, human_size(data.size)
        lines.append(f"records {rows.start:,} to {rows.end:,} ({rows.count:,}), {size}")
        lines += [f"logical  {data.logical_hash}", f"physical {data.physical_hash}"]
    if event.new_checkpoint is not None:
        lines.append(f"checkpoint {event.new_checkpoint.physical_hash}")
    if event.new_watermark is not None:
        lines.append(f"watermark {event.new_watermark}")
    state = getattr(event, "new_source_state", None)
    if (merged := understood_record(event)) is not None:
        lines.append(describe_merged(merged))
    elif state is not None:
        lines.append(f"source {state.source_name!r}: {state.kind} {state.value}")
    inputs = getattr(event, "query_inputs", ())
    return lines + [f"input {item.dataset_id}: {item.record_count:,} records" for item in inputs]
