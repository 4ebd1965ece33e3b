"""Profiles of made-up rows, as cases of drift say them: whole documents, computed as those of datasets are."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from odfchain.odf.canonical_json import canonical_bytes
from tests.kit.made_profiles import DATASET, profile_of_table
from tests.kit.snapshot_columns import type_of

Document = dict[str, Any]


def profile_of(
    columns: Document, *, name: str = "measured", number: int = 5, dataset: str = DATASET,
    hidden: tuple[str, ...] = (), version: str = "1",
) -> Document:  # fmt: skip
    """The profile of these columns, each `{"type": …, "values": …}`, as a reader of its bytes has it."""
    arrays = {
        column: pa.array(values_of(spec["values"]), type_of(spec["type"])) for column, spec in columns.items()
    }
    made = profile_of_table(pa.table(arrays), block=number, hidden=hidden, dataset_name=name)
    found: Document = json.loads(canonical_bytes(made))
    found["odf"]["dataset_id"] = dataset
    return found | {"format_version": version}


def values_of(given: Any) -> list[Any]:
    """A list; evenly spaced numbers (`from`, `to`, `number`); how often each value is there (`counts`)."""
    match given:
        case {"from": low, "to": high, "number": number}:
            return [low + (high - low) * place / (number - 1) for place in range(number)]
        case {"counts": counts, **rest}:
            values = [value for value, number in counts.items() for _ in range(number)]
            return [*values, *[None] * rest.get("nulls", 0)]
        case {"constant": value, "number": number}:
            return [value] * number
        case {"keys": number, **rest}:
            same = rest.get("first", 0)
            return [f"key-{0 if place < same else place:05}" for place in range(number)]
    return list(given)
