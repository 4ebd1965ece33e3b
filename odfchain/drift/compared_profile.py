"""What is compared of a profile: its fields with their types.

Numbers beyond what doubles hold exactly are texts in profiles, and doubles here. Source: RFC-040, RFC-041.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from odfchain.profile.row_likeness import published_hashes
from odfchain.text import TEXT_CHARACTERS, cut

_LENGTHS = tuple(f"{what}_{of}" for of in ("char_length", "token_count") for what in ("avg", "min", "max"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedColumn:
    """The statistics of a column; what its kind has none of is empty, or None."""

    name: str
    dtype: str
    nullable: bool
    kind: str
    """`numeric`, `string`, `datetime`, `boolean` or `other`."""
    hidden: bool = False
    null_count: int = 0
    null_fraction: float = 0.0
    num_unique: int = 0
    estimated: frozenset[str] = frozenset()
    quantiles: tuple[float, ...] = ()
    """Of 0, 1, … 100 %, or none."""
    mean: float | None = None
    std: float | None = None
    low: float | str | None = None
    high: float | str | None = None
    """Text is a time."""
    edges: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    """The bins of a histogram, and how many values each has."""
    top_values: Mapping[str, int] = field(default_factory=dict)
    coverage: float | None = None
    """The share of all values that the common ones are; None where there are no such."""
    lengths: Mapping[str, float] = field(default_factory=dict)
    languages: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedProfile:
    """A profile: what it is of, and its columns in their order."""

    dataset_id: str
    name: str
    snapshot_id: str
    sequence_number: int
    created_at: str
    rows: int
    duplicate_row_fraction: float
    row_hashes: tuple[int, ...]
    columns: Mapping[str, ComparedColumn]


def compared_profile(document: Mapping[str, Any]) -> ComparedProfile:
    """What is compared of a profile that was computed here, or that `read_profile` has found to be one."""
    odf, statistics = document["odf"], document["column_stats"]
    hidden = {*odf["hidden"]}
    return ComparedProfile(
        dataset_id=cut(odf["dataset_id"], TEXT_CHARACTERS),
        name=cut(document["dataset_name"], TEXT_CHARACTERS),
        snapshot_id=cut(document["snapshot_id"], TEXT_CHARACTERS),
        sequence_number=odf["sequence_number"],
        created_at=cut(document["created_at"], TEXT_CHARACTERS),
        rows=document["num_rows"],
        duplicate_row_fraction=document["duplicate_row_fraction"],
        row_hashes=published_hashes(base64.b64decode(document["row_minhash"])),
        columns={
            column["name"]: _column(column, statistics[column["name"]], hidden=column["name"] in hidden)
            for column in document["columns"]
        },
    )


def _column(declared: Mapping[str, Any], found: Mapping[str, Any], *, hidden: bool) -> ComparedColumn:
    histogram = found.get("histogram") or {"bin_edges": (), "counts": ()}
    numeric = found["kind"] == "numeric"
    low, high = found.get("min"), found.get("max")
    return ComparedColumn(
        name=declared["name"],
        dtype=declared["dtype"],
        nullable=declared["nullable"],
        kind=found["kind"],
        hidden=hidden,
        null_count=found["null_count"],
        null_fraction=found["null_fraction"],
        num_unique=found["num_unique"],
        estimated=frozenset(found.get("estimated", ())),
        quantiles=tuple(map(float, found.get("quantiles", ()))),
        mean=_number(found.get("mean")),
        std=_number(found.get("std")),
        low=_number(low) if numeric else low,
        high=_number(high) if numeric else high,
        edges=tuple(map(float, histogram["bin_edges"])),
        counts=tuple(histogram["counts"]),
        top_values=found.get("top_values", {}),
        coverage=found.get("top_values_coverage"),
        lengths={name: found[name] for name in _LENGTHS if found.get(name) is not None},
        languages=found.get("detected_languages", {}),
    )


def _number(value: float | str | None) -> float | None:
    return None if value is None else float(value)
