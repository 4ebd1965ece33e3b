"""GeoJSON features to records: their properties, and the geometry as JSON text. Runs on a worker.

The text has sorted keys, no blanks, and numbers as they were written, so that equal geometries are equal
texts. A feature without geometry (null) or properties is legal and gives nulls. Source: RFC 7946.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from odfchain.spark.json_records import (
    MAX_DEPTH,
    MAX_RECORD_BYTES,
    Events,
    JsonSource,
    Record,
    RecordError,
    events_of,
    faults_of,
    object_fields,
    object_text,
    quoted,
    scalar_text,
    skip,
    value_text,
)

GEOMETRY = "geometry"
"""The column of the geometry; a property of this name gives way to it."""


@dataclass(frozen=True, slots=True)
class FeatureCollection:
    """A GeoJSON document: one `FeatureCollection`, in UTF-8."""

    path: str

    def records(self) -> Iterator[Record]:
        """The features in order, each as its properties and its geometry.

        Raises:
            RecordError: the document is not JSON, or not a collection of features.
            OSError: the file cannot be read.
        """
        with open(self.path, "rb") as stream:  # noqa: PTH123 - a path as it came from the driver
            source = JsonSource(stream)
            with faults_of(source):
                events = events_of(source)
                event, _ = next(events)
                if event != "start_map":
                    raise _wrong_type("FeatureCollection", None)
                yield from _collection(events, source)
                for _ in events:
                    raise RecordError("more than one JSON value")


@dataclass(frozen=True, slots=True)
class FeatureLines:
    """GeoJSON features, one on each line, in UTF-8."""

    path: str

    def records(self) -> Iterator[Record]:
        """The features in order, each as its properties and its geometry.

        Raises:
            RecordError: a line is not JSON, or not a feature.
            OSError: the file cannot be read.
        """
        row = 0
        with open(self.path, "rb") as stream:  # noqa: PTH123
            number = 0
            while line := stream.readline(MAX_RECORD_BYTES + 1):
                number += 1
                if not line.removeprefix(b"\xef\xbb\xbf").strip():
                    continue
                row += 1
                source = JsonSource(io.BytesIO(line), row=row, line=number)
                with faults_of(source):
                    events = events_of(source)
                    event, _ = next(events)
                    if event != "start_map":
                        raise _wrong_type("Feature", None)
                    record = _feature(events, source)
                    for _ in events:
                        raise RecordError("more than one JSON value on a line")
                yield record


def _wrong_type(expected: str, found: str | None) -> RecordError:
    if found is None:
        return RecordError(f"Expected {expected} type but got none")
    shown = found if len(found) <= 60 else found[:57] + "…"
    return RecordError(f"Expected {expected} type but got {shown} instead")


def _check_type(expected: str, found: str | None) -> None:
    if found != quoted(expected):
        raise _wrong_type(expected, found)


def _collection(events: Events, source: JsonSource) -> Iterator[Record]:
    kind: str | None = None
    seen = False
    for event, name in events:
        if event == "end_map":
            break
        first, value = next(events)
        if name == "type":
            kind = value_text(first, value, events)
            _check_type("FeatureCollection", kind)
        elif name == "features":
            if seen:
                raise RecordError("'features' occurs twice")
            if first != "start_array":
                raise RecordError("'features' is not an array")
            seen = True
            for part, _ in events:
                if part == "end_array":
                    break
                source.next_record()
                if part != "start_map":
                    raise RecordError("not a JSON object")
                yield _feature(events, source)
            source.row = None
        else:
            skip(first, events, source)
    # the type may follow the features: then they were given out already, and the whole input is refused
    _check_type("FeatureCollection", kind)
    if not seen:
        raise RecordError("the FeatureCollection has no 'features'")


def _feature(events: Events, source: JsonSource) -> Record:
    """A feature, of which the start was taken, as a record."""
    kind: str | None = None
    fields: Record = {}
    geometry = "null"
    for event, name in events:
        if event == "end_map":
            break
        first, value = next(events)
        if name == "type":
            kind = value_text(first, value, events)
        elif name == "properties":
            if first not in ("start_map", "null"):
                raise RecordError("Invalid geojson: 'properties' is neither an object nor null")
            fields = object_fields(events) if first == "start_map" else {}
        elif name == GEOMETRY:
            if first not in ("start_map", "null"):
                raise RecordError("Invalid geojson: 'geometry' is neither an object nor null")
            geometry = quoted(sorted_text(first, value, events)) if first == "start_map" else "null"
        else:
            skip(first, events, source)
    _check_type("Feature", kind)
    fields[GEOMETRY] = geometry
    return fields


def sorted_text(event: str, value: Any, events: Events, depth: int = 1) -> str:
    """A value as JSON without blanks, the keys of all objects sorted.

    Raises:
        RecordError: it is nested too deeply.
    """
    if depth > MAX_DEPTH:
        raise RecordError(f"nested more than {MAX_DEPTH} levels deep")
    if event == "start_array":
        items = []
        for part, item in events:
            if part == "end_array":
                break
            items.append(sorted_text(part, item, events, depth + 1))
        return f"[{','.join(items)}]"
    if event == "start_map":
        fields: dict[str, str] = {}
        for part, key in events:
            if part == "end_map":
                break
            first, item = next(events)
            fields[key] = sorted_text(first, item, events, depth + 1)
        return object_text(dict(sorted(fields.items())))
    return scalar_text(event, value)
