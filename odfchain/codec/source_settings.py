"""What a manifest says of a source beyond its event: how its watermark moves.

The tables of a block have no place for it (specification "Metadata Reference"), and nobody but who ingests
needs it: the watermarks that come of it are recorded. So it is taken out of the manifest before the event is
read, and kept beside the dataset (RFC-014).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from odfchain.codec.tree import describe, from_tree, spellings
from odfchain.errors import ManifestError
from odfchain.model.events import AddPushSource, MetadataEvent, SetPollingSource
from odfchain.model.sources import WatermarkRule

POLLING_SOURCE = "default"
"""Name under which what belongs to the polling source is kept."""

PROPERTY = "watermark"
FROM_SYSTEM_TIME = "FromSystemTime"
_SOURCES = {text: cls for cls in (SetPollingSource, AddPushSource) for text in spellings(cls.KIND)}


def split_settings(tree: Any) -> tuple[Any, dict[str, WatermarkRule]]:
    """(the manifest without what is not for blocks, the rules by the name of their source).

    Whatever is malformed otherwise is left for the reader of the rest.
    """
    content = tree.get("content") if isinstance(tree, dict) else None
    events = content.get("metadata") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not isinstance(events, list):
        return tree, {}
    rules: dict[str, WatermarkRule] = {}
    rest = []
    for index, event in enumerate(events):
        kind = event.get("kind") if isinstance(event, dict) else None
        cls = _SOURCES.get(kind) if isinstance(kind, str) else None
        if cls is None or PROPERTY not in event:
            rest.append(event)
            continue
        name = POLLING_SOURCE if cls is SetPollingSource else event.get("sourceName", POLLING_SOURCE)
        rule = _rule(event[PROPERTY], f"metadata[{index}].{PROPERTY}")
        if rule is not None and isinstance(name, str):
            rules[name] = rule
        rest.append({key: value for key, value in event.items() if key != PROPERTY})
    return tree | {"content": content | {"metadata": rest}}, rules


def _rule(value: Any, path: str) -> WatermarkRule | None:
    if value is None:
        return None
    if value in spellings(FROM_SYSTEM_TIME):
        return WatermarkRule(from_system_time=True)
    if not isinstance(value, dict):
        raise ManifestError(
            f"must be an object or {FROM_SYSTEM_TIME}, not {describe(value)}",
            path=path,
            hint="write `watermark: {maxDelay: 1 day}` or `watermark: fromSystemTime`",
        )
    return from_tree(WatermarkRule, value, path)


def names_of_sources(events: Iterable[MetadataEvent]) -> set[str]:
    """Under which names the sources among some events are kept."""
    return {
        event.source_name if isinstance(event, AddPushSource) else POLLING_SOURCE
        for event in events
        if isinstance(event, SetPollingSource | AddPushSource)
    }


def settled(
    present: Mapping[str, WatermarkRule], events: Iterable[MetadataEvent], rules: Mapping[str, WatermarkRule]
) -> dict[str, WatermarkRule]:
    """The rules after a definition: those of the sources that it defines are its own."""
    defined = names_of_sources(events)
    return {name: rule for name, rule in present.items() if name not in defined} | dict(rules)
