"""Profiles of made-up rows, as cases of drift say them: whole documents, computed as those of datasets are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa

from odfchain.codec.document_bytes import canonical_bytes
from odfchain.digest.physical import hash_bytes
from odfchain.profile.profile_document import DESCRIPTIVE, ProfileFacts, profile_document
from odfchain.profile.totals import Totals
from tests.kit.snapshot_columns import type_of

Document = dict[str, Any]
DATASET = "did:odf:fed01" + "a" * 64


def profile_of(
    columns: Document, *, name: str = "measured", number: int = 5, dataset: str = DATASET,
    hidden: tuple[str, ...] = (), version: str | None = None,
) -> Document:  # fmt: skip
    """The profile of these columns, each `{"type": …, "values": …}`, as a reader of its bytes has it."""
    arrays = {
        column: pa.array(values_of(spec["values"]), type_of(spec["type"])) for column, spec in columns.items()
    }
    table = pa.table(arrays)
    totals = Totals(table.schema)
    for batch in table.to_batches():
        totals.update(batch, np.arange(len(batch)))
    facts = ProfileFacts(
        dataset_id=dataset, snapshot=hash_bytes(f"{name}{number}".encode()), parent=None,
        created_at=f"2026-01-{number:02}T00:00:00Z", sequence_number=number, records=table.num_rows, slices=[],
        descriptive={**dict.fromkeys(DESCRIPTIVE, ""), "dataset_name": name, "tags": {}}, hidden=hidden,
    )  # fmt: skip
    found: Document = json.loads(canonical_bytes(profile_document(totals, facts)))
    return found if version is None else found | {"format_version": version}


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
