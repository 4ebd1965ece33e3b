"""The numbered checks of a verification, each with the section of the specification that it holds to.

Numbers are for ever: reports, attestations and the documentation name a check by its number.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Check:
    """One kind of question that is asked of a dataset."""

    number: int
    name: str
    section: str


HEAD, BLOCKS, LINKS, RULES, PRESENT, PHYSICAL, LOGICAL, OFFSETS = range(1, 9)
SYSTEM, CORRECTIONS, SCHEMA, WATERMARKS, CHECKPOINTS, INPUTS, REPLAY, SIGNATURE = range(9, 17)
MERGES, FOREIGN_KEYS, STATISTICS, MANIFESTS, PROFILES = range(17, 22)

CHECKS = {
    number: Check(number, name, section)
    for number, name, section in (
        (HEAD, "head reference", "Metadata Chain"),
        (BLOCKS, "block bytes", "Metadata Block Hashing"),
        (LINKS, "chain links", "MetadataBlock"),
        (RULES, "append rules", "Metadata Reference"),
        (PRESENT, "files present, sizes", "DataSlice"),
        (PHYSICAL, "physical hashes", "Physical and Logical Hashes"),
        (LOGICAL, "logical hashes", "Physical and Logical Hashes"),
        (OFFSETS, "offsets, row counts", "Offset"),
        (SYSTEM, "system columns", "Common Data Schema"),
        (CORRECTIONS, "corrections, retractions", "Representation of Retractions and Corrections"),
        (SCHEMA, "declared schema", "SetDataSchema"),
        (WATERMARKS, "watermarks", "Watermark"),
        (CHECKPOINTS, "checkpoints", "Checkpoint"),
        (INPUTS, "recorded inputs", "ExecuteTransformInput"),
        (REPLAY, "replayed transformations", "Dataset Validation"),
        (SIGNATURE, "signature of the head", "Metadata Chain"),
        (MERGES, "merges", "AddData"),
        (FOREIGN_KEYS, "foreign keys", "SetAttachments"),
        (STATISTICS, "slice statistics", "DataSlice"),
        (MANIFESTS, "signed manifests", "Metadata Chain"),
        (PROFILES, "signed profiles", "Metadata Chain"),
    )
}
"""By number, in the order in which they are reported."""

OF_ENGINES = "checkpoints of engines are compared by a replay only"
"""Why the content of such checkpoints was not checked."""

OF_ROWS = (LOGICAL, OFFSETS, SYSTEM, CORRECTIONS, SCHEMA, STATISTICS)
"""The checks that need the rows of a slice."""
