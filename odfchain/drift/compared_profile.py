"""What is compared of a profile, which may come from anybody: typed, and what is wrong is named by its path.

Numbers beyond what doubles hold exactly are texts in profiles, and doubles here. Source: RFC-040, RFC-041.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from odfchain.errors import ManifestError
from odfchain.pages.document_node import DocumentNode
from odfchain.profile.row_likeness import published_hashes

QUANTILES = 101
_HINT = "`odfchain profile DATASET -o json` prints a profile"
T = TypeVar("T")


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
    near_duplicates: float | None
    row_hashes: tuple[int, ...]
    columns: Mapping[str, ComparedColumn]


def compared_profile(document: Mapping[str, Any]) -> ComparedProfile:
    """What is compared of a profile's document.

    Raises:
        ManifestError: naming the path of what is not as it should be.
    """
    top = DocumentNode(document, hint=_HINT)
    odf, hashes = top["odf"], top["row_minhash"]
    hidden = {_raw(node) for node in odf["hidden"].items()}
    try:
        row_hashes = published_hashes(base64.b64decode(_raw(hashes), validate=True))
    except (ValueError, binascii.Error):
        hashes.refuse("the smallest hashes of rows, in order")
    statistics, columns = top["column_stats"], {}
    for node in top["columns"].items():
        name = _raw(node["name"])
        columns[name] = _column(node, statistics[name], hidden=name in hidden)
    return ComparedProfile(
        dataset_id=odf["dataset_id"].text(),
        name=top["dataset_name"].text(),
        snapshot_id=top["snapshot_id"].text(),
        sequence_number=_count(odf["sequence_number"]),
        created_at=top["created_at"].text(40),
        rows=_count(top["num_rows"]),
        duplicate_row_fraction=_share(top["duplicate_row_fraction"]),
        near_duplicates=_known(top["near_duplicate_estimate"], _share),
        row_hashes=row_hashes,
        columns=columns,
    )


def _column(declared: DocumentNode, found: DocumentNode, *, hidden: bool) -> ComparedColumn:
    estimated = found.optional("estimated")
    top_values, languages = found.optional("top_values"), found.optional("detected_languages")
    lengths = {
        f"{what}_{of}": node.real()
        for of in ("char_length", "token_count")
        for what in ("avg", "min", "max")
        if (node := found.optional(f"{what}_{of}")) is not None and node.known
    }
    quantiles = _ascending(found.optional("quantiles"))
    if quantiles and len(quantiles) != QUANTILES:
        found["quantiles"].refuse(f"{QUANTILES} numbers")
    edges, counts = _histogram(found.optional("histogram"))
    return ComparedColumn(
        name=_raw(declared["name"]),
        dtype=declared["dtype"].text(),
        nullable=declared["nullable"].flag(),
        kind=found["kind"].word("numeric", "string", "datetime", "boolean", "other"),
        hidden=hidden,
        null_count=_count(found["null_count"]),
        null_fraction=_share(found["null_fraction"]),
        num_unique=_count(found["num_unique"]),
        estimated=frozenset(_raw(node) for node in estimated.items()) if estimated else frozenset(),
        quantiles=quantiles,
        mean=_optional(found, "mean", _number),
        std=_optional(found, "std", _number),
        low=_optional(found, "min", _bound),
        high=_optional(found, "max", _bound),
        edges=edges,
        counts=counts,
        top_values=_by_name(top_values, _count),
        coverage=_optional(found, "top_values_coverage", _share),
        lengths=lengths,
        languages=_by_name(languages, _share),
    )


def _histogram(node: DocumentNode | None) -> tuple[tuple[float, ...], tuple[int, ...]]:
    if node is None:
        return (), ()
    edges = _ascending(node["bin_edges"])
    counts = tuple(_count(item) for item in node["counts"].items())
    if len(edges) != (len(counts) + 1 if counts else 0):
        node.refuse("one edge more than bins")
    return edges, counts


def _ascending(node: DocumentNode | None) -> tuple[float, ...]:
    found = tuple(_number(item) for item in node.items()) if node is not None else ()
    if node is not None and any(after < before for before, after in pairwise(found)):
        node.refuse("numbers that ascend")
    return found


def _by_name(node: DocumentNode | None, read: Callable[[DocumentNode], T]) -> dict[str, T]:
    if node is None:
        return {}
    if not isinstance(node.value, Mapping):
        node.refuse("an object")
    return {str(name): read(node[str(name)]) for name in node.value}


def _optional(node: DocumentNode, name: str, read: Callable[[DocumentNode], T]) -> T | None:
    found = node.optional(name)
    return None if found is None else _known(found, read)


def _known(node: DocumentNode, read: Callable[[DocumentNode], T]) -> T | None:
    return read(node) if node.known else None


def _raw(node: DocumentNode) -> str:
    """A text as it is: names are compared."""
    if not isinstance(node.value, str):
        node.refuse("text")
    return node.value


def _count(node: DocumentNode) -> int:
    if node.number() < 0:
        node.refuse("a number that is not negative")
    return node.number()


def _share(node: DocumentNode) -> float:
    if not 0 <= node.real() <= 1:
        node.refuse("a number between 0 and 1")
    return node.real()


def _number(node: DocumentNode) -> float:
    """A number, also one that is text because doubles do not hold it."""
    if isinstance(node.value, str):
        try:
            found = float(node.value)
        except ValueError:
            node.refuse("a number")
        if not math.isfinite(found):
            node.refuse("a number")
        return found
    return node.real()


def _bound(node: DocumentNode) -> float | str:
    """The least or largest value: a number, or the text of a time."""
    if isinstance(node.value, str):
        try:
            return _number(node)
        except ManifestError:
            return node.text(60)
    return node.real()
