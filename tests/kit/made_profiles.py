"""Profiles of tables that belong to no dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from odfchain.odf.physical_hash import hash_bytes
from odfchain.profiles.document import ProfileFacts, profile_document
from odfchain.profiles.reader import library
from odfchain.profiles.totals import Totals

DATASET = "did:odf:fed01" + "0" * 64
DESCRIPTIVE: dict[str, Any] = {
    "created_by": DATASET, "dataset_name": "cities", "dataset_path": f"odf:{DATASET}", "source_type": "push",
    "description": "", "tags": {}, "pipeline_stage": "raw", "transform_description": "",
}  # fmt: skip


def profile_of_table(
    table: pa.Table, *, block: int = 4, hidden: tuple[str, ...] = (), languages: bool = False, **said: Any
) -> dict[str, Any]:
    """The profile of a dataset that has these rows in force; `said` are the publisher's words."""
    totals = Totals(table.schema)
    for batch in table.to_batches():
        totals.update(batch, np.arange(totals.rows, totals.rows + batch.num_rows, dtype=np.uint64))
    facts = ProfileFacts(
        dataset_id=DATASET,
        snapshot=hash_bytes(b"%d" % block),
        parent=hash_bytes(b"%d" % (block - 1)) if block else None,
        created_at="2026-03-01T09:00:00Z",
        sequence_number=block,
        records=table.num_rows,
        slices=[hash_bytes(b"slice")],
        descriptive={**DESCRIPTIVE, **said},
        hidden=hidden,
        languages=library() if languages else None,
    )
    return profile_document(totals, facts)
