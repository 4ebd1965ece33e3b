"""A profile as a document: what its columns are like, and what chain and publisher say of the rows.

The fields are flat and have the names of ADR-0001. Those in `DESCRIPTIVE` are the publisher's words: hashed
and signed, never computed again. Source: RFC-040.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import rfc8785
from pyarrow import types as t

from odfchain.odf.identity import Multihash
from odfchain.odf.physical_hash import hash_bytes, sha3_256
from odfchain.profiles.reader import FORMAT_VERSION
from odfchain.profiles.statistics import column_statistics
from odfchain.profiles.totals import ColumnKind, Totals
from odfchain.profiles.value_counts import LONGEST_SAMPLED

if TYPE_CHECKING:
    from py3langid.langid import LanguageIdentifier


# Languages of a column: the one part of a profile that depends on a library's floats.
# Of the sample, the first 1,000 texts with at least 20 letters are used, each cut to 1,000 characters; fewer
# than ten give no result. To reproduce it takes the same version of the library, within 0.005 (RFC-040).

LIBRARY = "py3langid"
MOST_ROWS, LEAST_ROWS = 1_000, 10
LEAST_LETTERS = 20
_LISTED_LANGUAGES = 10


@lru_cache(maxsize=1)
def library() -> str | None:
    """Name and version of the library as a profile names it; None where it is not installed."""
    try:
        return f"{LIBRARY} {metadata.version(LIBRARY)}"
    except metadata.PackageNotFoundError:
        return None


def detected_languages(texts: pa.ChunkedArray) -> dict[str, float]:
    """The share of each language, the commonest first; `texts` are the rows of the sample, nearest first."""
    counts, rows = Counter[str](), 0
    known: dict[str, str] = {}
    for start in _long_enough(texts):
        if start not in known:
            known[start] = _identifier().classify(start)[0]
        counts[known[start]] += 1
        rows += 1
    if rows < LEAST_ROWS:
        return {}
    common = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return {name: count / rows for name, count in common[:_LISTED_LANGUAGES]}


def _long_enough(texts: pa.ChunkedArray) -> list[str]:
    # none where too few rows have enough letters
    candidates = texts.filter(pc.greater_equal(pc.utf8_length(texts), LEAST_LETTERS))
    found: list[str] = []
    for chunk in candidates.chunks:
        for value in chunk:
            start: str = value.as_py()[:LONGEST_SAMPLED]
            if sum(map(str.isalpha, start)) >= LEAST_LETTERS:
                found.append(start)
                if len(found) == MOST_ROWS:
                    return found
    return found if len(found) >= LEAST_ROWS else []


@lru_cache(maxsize=1)
def _identifier() -> LanguageIdentifier:
    # an instance of our own: a shared one may have been restricted to some languages
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)


DESCRIPTIVE = (
    "created_by", "dataset_name", "dataset_path", "source_type", "description", "tags", "pipeline_stage",
    "transform_description",
)  # fmt: skip
_MOSTLY_NULL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFacts:
    """Facts of a profile other than its statistics."""

    dataset_id: str
    snapshot: Multihash
    parent: Multihash | None
    created_at: str
    """The block's system time."""
    sequence_number: int
    records: int
    slices: Sequence[Multihash]
    """Physical hashes, oldest first."""
    descriptive: Mapping[str, Any]
    hidden: tuple[str, ...] = ()
    languages: str | None = None
    """The library that tells languages, and its version; None tells none."""
    declared: Mapping[str, bool] = field(default_factory=dict)
    """By column, whether it may be null."""


def profile_document(totals: Totals, facts: ProfileFacts) -> dict[str, Any]:
    """The profile of some rows."""
    statistics = {}
    for column in totals.columns:
        sample = totals.sampled_values(column)
        found = column_statistics(column, sample)
        if column.kind is ColumnKind.STRING:
            found["detected_languages"] = detected_languages(sample) if facts.languages else {}
        statistics[column.name] = _hidden(found) if column.name in facts.hidden else found
    columns = [
        {"name": f.name, "dtype": dtype(f.type), "nullable": facts.declared.get(f.name, f.nullable)}
        for f in totals.schema
    ]
    document = {
        "format_version": FORMAT_VERSION,
        "snapshot_id": str(facts.snapshot),
        "created_at": facts.created_at,
        **{name: facts.descriptive[name] for name in DESCRIPTIVE},
        "source_hash": str(merkle_root(facts.slices)),
        "num_columns": len(columns),
        "columns": columns,
        "schema_hash": str(schema_hash(totals.schema)),
        "num_rows": totals.rows,
        "duplicate_row_fraction": totals.kmv.duplicate_fraction,
        "near_duplicate_estimate": totals.near_duplicates,
        "constant_columns": [c.name for c in totals.columns if c.rows and c.distinct + bool(c.nulls) <= 1],
        "high_null_columns": [c.name for c in totals.columns if c.rows and c.nulls / c.rows > _MOSTLY_NULL],
        "row_minhash": base64.b64encode(totals.kmv.to_bytes()).decode(),
        "row_hyperloglog": base64.b64encode(totals.hll.to_bytes()).decode(),
        "column_stats": statistics,
        "odf": {
            "dataset_id": facts.dataset_id,
            "sequence_number": facts.sequence_number,
            "num_records": facts.records,
            "rows": "state",
            "languages": facts.languages,
            "hidden": list(facts.hidden),
        },
    }
    if facts.parent is not None:
        document["parent_snapshot_id"] = str(facts.parent)
    return document


def _hidden(statistics: Mapping[str, Any]) -> dict[str, Any]:
    # counts and fractions only
    kept = ("kind", "null_count", "null_fraction", "num_unique", "non_finite_count", "estimated")
    return {name: statistics[name] for name in kept if name in statistics}


def merkle_root(slices: Sequence[Multihash]) -> Multihash:
    """The RFC 6962 tree hash over the digests of slices, by SHA3-256: leaves after 00, nodes after 01."""

    def root(digests: Sequence[bytes]) -> bytes:
        if len(digests) <= 1:
            return sha3_256(b"\x00" + digests[0] if digests else b"").digest()
        half = 1 << (len(digests) - 1).bit_length() - 1
        return sha3_256(b"\x01" + root(digests[:half]) + root(digests[half:])).digest()

    return Multihash.sha3_256(root([name.digest for name in slices]))


def schema_hash(schema: pa.Schema) -> Multihash:
    """The hash of names and types, in order; whether columns may be null is not in it."""
    return hash_bytes(bytes(rfc8785.dumps([[field.name, dtype(field.type)] for field in schema])))


def dtype(kind: pa.DataType) -> str:
    """The name of a type."""
    if t.is_dictionary(kind):
        return dtype(kind.value_type)
    if t.is_boolean(kind):
        return "bool"
    if t.is_float16(kind):
        return "float16"
    if t.is_floating(kind):
        return "float32" if t.is_float32(kind) else "float64"
    if t.is_string(kind) or t.is_large_string(kind):
        return "string"
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
        return "bytes"
    if t.is_decimal(kind):
        return f"decimal{kind.bit_width}({kind.precision},{kind.scale})"
    if t.is_timestamp(kind):
        return f"datetime64[{kind.unit}]"
    if t.is_date(kind):
        return "datetime64[D]"
    if t.is_time(kind):
        return f"time64[{kind.unit}]"
    if t.is_map(kind):
        return f"map<{dtype(kind.key_type)},{dtype(kind.item_type)}>"
    if t.is_nested(kind) and not t.is_struct(kind):
        return f"list<{dtype(kind.value_type)}>"
    if t.is_struct(kind):
        return "struct<" + ",".join(f"{f.name}:{dtype(f.type)}" for f in kind) + ">"
    return str(kind)
