"""GeoJSON features to records: their properties, and the geometry as JSON text. Runs on a worker.

The text has sorted keys, no blanks, and numbers as they were written, so that equal geometries are equal
texts. A feature without geometry (null) or properties is legal and gives nulls. Source: RFC 7946.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from odfchain.spark.json_records import Events, JsonSource, events_of, faults_of, objects_of, skip, value_of
from odfchain.spark.json_values import Record, RecordError, Value, json_text, parse_object

GEOMETRY = "geometry"
"""The column of the geometry; a property of this name gives way to it."""


@dataclass(frozen=True, slots=True)
class FeatureCollection:
    """A GeoJSON document: one `FeatureCollection`, in UTF-8."""

    path: str

    def moved(self, path: str) -> FeatureCollection:
        """The same of a copy of the file elsewhere."""
        return dataclasses.replace(self, path=path)

    def records(self) -> Iterator[Record]:
        """The features in order, each as its properties and its geometry."""
        with open(self.path, "rb") as stream:  # noqa: PTH123 - a path as it came from the driver
            yield from self.records_of(stream)

    def records_of(self, stream: BinaryIO) -> Iterator[Record]:
        """The same of a stream."""
        source = JsonSource(stream)
        with faults_of(source):
            events = events_of(source)
            event, _ = next(events)
            if event != "start_map":
                _check_type("FeatureCollection", None)
            yield from _collection(events, source)
            for _ in events:
                raise RecordError("more than one JSON value")

    def record(self, members: Record) -> Record:
        """What an object of the features is as a record."""
        return feature_record(members)

    @property
    def encoding(self) -> str:
        """Of the text."""
        return "utf-8"

    @property
    def keys(self) -> tuple[str, ...]:
        """The way to the features."""
        return ("features",)


@dataclass(frozen=True, slots=True)
class FeatureLine:
    """A line of newline-delimited GeoJSON: one feature."""

    def record(self, line: str) -> Record:
        """The feature's properties and its geometry."""
        return feature_record(parse_object(line))


def _check_type(expected: str, found: Value) -> None:
    if found == expected:
        return
    if found is None:
        raise RecordError(f"Expected {expected} type but got none")
    text = json_text(found)
    shown = text if len(text) <= 60 else text[:57] + "…"
    raise RecordError(f"Expected {expected} type but got {shown} instead")


def _collection(events: Events, source: JsonSource) -> Iterator[Record]:
    kind: Value = None
    seen: set[str] = set()
    for event, name in events:
        if event == "end_map":
            break
        first, value = next(events)
        if name in seen:
            raise RecordError(f"{name!r} occurs twice")
        if name == "type":
            seen.add(name)
            kind = value_of(first, value, events)
            _check_type("FeatureCollection", kind)
        elif name == "features":
            seen.add(name)
            if first != "start_array":
                raise RecordError("'features' is not an array")
            yield from map(feature_record, objects_of(events, source))
        else:
            skip(first, events, source)
    # the type may follow the features: then they were given out already, and the whole input is refused
    _check_type("FeatureCollection", kind)
    if "features" not in seen:
        raise RecordError("the FeatureCollection has no 'features'")


def feature_record(feature: Record) -> Record:
    """A feature as its properties and its geometry.

    Raises:
        RecordError: it is not a feature.
    """
    for name in ("properties", GEOMETRY):
        if not isinstance(feature.get(name), dict | None):
            raise RecordError(f"Invalid geojson: {name!r} is neither an object nor null")
    _check_type("Feature", feature.get("type"))
    geometry = feature.get(GEOMETRY)
    text = None if geometry is None else json_text(geometry, sort_keys=True)
    return (feature.get("properties") or {}) | {GEOMETRY: text}
