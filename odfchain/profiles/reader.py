"""Reading a profile from the bytes that it was published as; they may be anybody's.

What reads profiles only (`diff --profile`) loads neither Arrow nor numpy for it. Source: RFC-040.
"""

from __future__ import annotations

import base64
import bisect
import json
import math
import re
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from odfchain.errors import CodecError, ManifestError, UnsupportedVersionError, child_path
from odfchain.odf.canonical_json import unique_members
from odfchain.odf.tree import Form, Rule, from_tree, sized
from odfchain.text import TEXT_CHARACTERS, cut, one_line

# The fields of a profile. Documents are untrusted: a field that is missing, unknown or of another type is
# refused by its path, and so are contradictions (edges without bins, quantiles that descend) (RFC-040).

N = TypeVar("N", int, float)
_HASH = re.compile("f1620[0-9a-f]{64}")
_INTEGER = re.compile("-?[0-9]{16,80}")
_QUANTILES = 101
BINS, TOP_VALUES, LISTED_LANGUAGES = 50, 50, 10
_SKETCH_BYTES = 8_192
LIBRARY = "py3langid"
KMV_SIZE = 4_096
"""The smallest distinct row hashes that a profile has."""
PERCENTILES = (5, 25, 50, 75, 95, 99)
DESCRIPTIVE = (
    "created_by", "dataset_name", "dataset_path", "source_type", "description", "tags", "pipeline_stage",
    "transform_description",
)  # fmt: skip
"""The publisher's words: hashed and signed, never computed again."""


_LARGEST, _LARGEST_REAL = 1 << 96, sys.float_info.max


def by_share(counts: Mapping[str, N]) -> list[tuple[str, N]]:
    """Values and their numbers, the commonest first, then in order of the values."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


@lru_cache(maxsize=1)
def library() -> str | None:
    """Name and version of the library that tells languages, as a profile names it; None: not installed."""
    try:
        return f"{LIBRARY} {metadata.version(LIBRARY)}"
    except metadata.PackageNotFoundError:
        return None


def published_hashes(data: bytes) -> tuple[int, ...]:
    """The row hashes of a profile, from little-endian numbers of 8 bytes."""
    # plain Python: comparing profiles must not load numpy
    if len(data) % 8 or len(data) > 8 * KMV_SIZE:
        raise ValueError("not the smallest hashes of rows")
    found = struct.unpack(f"<{len(data) // 8}Q", data)
    if any(after <= before for before, after in pairwise(found)):
        raise ValueError("hashes of rows are not in order")
    return found


# --- values ----------------------------------------------------------------------------------------


def _is_real(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST_REAL


def _is_large(value: object) -> bool:
    # integers beyond the exact range of doubles are text
    return isinstance(value, str) and _INTEGER.fullmatch(value) is not None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST


def _is_count(value: Any) -> bool:
    return not value.startswith("-") if _is_large(value) else _is_whole(value) and value >= 0


def _are_hashes(data: bytes) -> bool:
    try:
        published_hashes(data)
    except ValueError:
        return False
    return True


_Hash = Annotated[str, Rule("a hash", _HASH.fullmatch)]
_Real = Annotated[Any, Rule("a number", _is_real)]
_Number = Annotated[Any, Rule("a number", lambda value: _is_large(value) or _is_real(value))]
_Share = Annotated[_Real, Rule("a number between 0 and 1", lambda value: 0 <= value <= 1)]
_Small = Annotated[Any, Rule("a whole number that is not negative", lambda v: _is_whole(v) and v >= 0)]
_Count = Annotated[Any, Rule("a whole number that is not negative", _is_count)]
_Ascending = Annotated[
    tuple[_Real, ...], Rule("numbers that ascend", lambda found: all(a <= b for a, b in pairwise(found)))
]
_Quantiles = Annotated[
    _Ascending, Rule(f"{_QUANTILES} numbers, or none", lambda found: len(found) in (0, _QUANTILES))
]
_Percentiles = Annotated[
    Mapping[str, _Number],
    Rule("all percentiles, or none", lambda found: not found or found.keys() == _PERCENTILE_NAMES),
]
_PERCENTILE_NAMES = {f"p{percent}" for percent in PERCENTILES}


# --- fields ----------------------------------------------------------------------------------------

_FORM = Form(snake_case=True, nulls=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What is published of every column, also of one whose values are not to be seen."""

    FORM: ClassVar = _FORM
    kind: str
    null_count: _Count
    null_fraction: _Share
    num_unique: _Count
    estimated: Annotated[tuple[str, ...], sized(0, 8, "a list")] = ()
    non_finite_count: _Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Values(Counts):
    top_values: Annotated[Mapping[str, _Small], sized(0, TOP_VALUES, "an object")]
    top_values_coverage: _Share


@dataclass(frozen=True, slots=True, kw_only=True)
class _Texts(_Values):
    avg_char_length: _Number | None
    min_char_length: _Number | None
    max_char_length: _Number | None
    avg_token_count: _Number | None
    min_token_count: _Number | None
    max_token_count: _Number | None
    detected_languages: Annotated[Mapping[str, _Share], sized(0, LISTED_LANGUAGES, "an object")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Histogram:
    FORM: ClassVar = _FORM
    bin_edges: _Ascending
    counts: Annotated[tuple[_Small, ...], sized(0, BINS, "a list")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Numbers(Counts):
    mean: _Number | None
    std: _Number | None
    min: _Number | None
    max: _Number | None
    percentiles: _Percentiles
    quantiles: _Quantiles
    histogram: Annotated[
        _Histogram,
        Rule("one edge more than bins", lambda h: len(h.bin_edges) == len(h.counts) + bool(h.counts)),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times(Counts):
    min: str | None
    max: str | None
    range_days: _Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    FORM: ClassVar = _FORM
    name: str
    dtype: str
    nullable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Odf:
    FORM: ClassVar = _FORM
    dataset_id: str
    sequence_number: _Count
    num_records: _Count
    rows: Literal["state"]
    languages: str | None
    hidden: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Profile:
    FORM: ClassVar = _FORM
    format_version: str
    snapshot_id: _Hash
    parent_snapshot_id: _Hash = ""
    source_hash: _Hash
    schema_hash: _Hash
    num_columns: _Count
    columns: tuple[_Declared, ...]
    num_rows: _Small
    duplicate_row_fraction: _Share
    near_duplicate_estimate: _Share | None
    constant_columns: tuple[str, ...]
    high_null_columns: tuple[str, ...]
    created_at: str
    created_by: str
    dataset_name: str
    dataset_path: str
    source_type: str
    description: str
    tags: Mapping[str, str]
    pipeline_stage: str
    transform_description: str
    row_minhash: Annotated[bytes, Rule("the smallest hashes of rows, in order", _are_hashes)]
    row_hyperloglog: Annotated[bytes, sized(0, _SKETCH_BYTES, "bytes")]
    column_stats: Mapping[str, Any]
    odf: _Odf


_KINDS: dict[Any, type[Counts]] = {
    "numeric": _Numbers, "string": _Texts, "datetime": _Times, "boolean": _Values, "other": Counts,
}  # fmt: skip
FIGURES = {"mean": "mean", "std": "standard deviation", "range_days": "days"}
"""Figures that pages show one by one, and their labels."""
LENGTHS = [f"{of}_{what}" for of in ("avg", "min", "max") for what in ("char_length", "token_count")]


def _check_profile(tree: object) -> None:
    top = from_tree(_Profile, tree)
    names = {column.name for column in top.columns}
    if len(names) != len(top.columns) or top.num_columns != len(names):
        raise ManifestError("must be as many different columns as `num_columns` says", path="columns")
    for name in sorted(names ^ top.column_stats.keys()):
        what = "missing" if name in names else "unknown"
        raise ManifestError(f"the property {name!r} is {what}", path="column_stats")
    if not names.issuperset(top.odf.hidden):
        raise ManifestError("must be names of columns", path="odf.hidden")
    for name, found in top.column_stats.items():
        path = child_path("column_stats", name)
        kind = found.get("kind") if isinstance(found, dict) else None
        if not isinstance(kind, str) or kind not in _KINDS:
            raise ManifestError(f"must be one of {', '.join(_KINDS)}", path=f"{path}.kind")
        from_tree(Counts if name in top.odf.hidden else _KINDS[kind], found, path)


FORMAT_VERSION = "1"
MOST_BYTES = 64 * 1024 * 1024
_LARGEST_INTEGER = 2**53 - 1


def read_profile(data: bytes) -> dict[str, Any]:
    """The document of a profile's bytes; its canonical text is that of the profile again.

    Raises:
        CodecError: it is none, and where it is not.
        UnsupportedVersionError: it has another format version.
    """
    if len(data) > MOST_BYTES:
        raise CodecError(f"a profile of {len(data):,} bytes, at most {MOST_BYTES:,} are read")
    try:
        tree = json.loads(
            data,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=_finite,
            object_pairs_hook=unique_members,
        )
        json.dumps(tree, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a profile: {one_line(str(error))}") from None
    if not isinstance(tree, dict) or "format_version" not in tree:
        raise CodecError("not a profile: it has no format_version")
    if tree["format_version"] != FORMAT_VERSION:
        raise UnsupportedVersionError(
            f"a profile of format {one_line(str(tree['format_version']))}, {FORMAT_VERSION} is read",
            hint="make it again with this program",
        )
    try:
        _check_profile(tree)
    except ManifestError as error:
        raise CodecError(f"not a profile: {one_line(error.path or '')}: {error.message}") from None
    return tree


def _integer(text: str) -> int | float:
    # larger integers are text; digits alone are then a double that is whole
    return int(text) if len(text) < 16 or abs(int(text)) <= _LARGEST_INTEGER else _finite(text)


def _finite(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"{text[:40]} is not a number that a profile has")
    return found


# The fields of a profile that are compared. Numbers beyond the exact range of doubles are strings in profiles
# and doubles here (RFC-040, RFC-041).


class ComparedColumn:
    """The statistics of a column; what its kind has none of is empty, or None."""

    def __init__(self, declared: Mapping[str, Any], found: Mapping[str, Any], *, hidden: bool) -> None:
        self.name, self.dtype, self.nullable = declared["name"], declared["dtype"], declared["nullable"]
        self.kind, self.hidden = found["kind"], hidden
        self.null_count: int = found["null_count"]
        self.null_fraction: float = found["null_fraction"]
        self.num_unique, self.estimated = found["num_unique"], found.get("estimated", ())
        # of 0, 1, … 100 %, or none
        self.quantiles: tuple[float, ...] = tuple(map(float, found.get("quantiles", ())))
        # times have none that are compared
        known = (*FIGURES, *LENGTHS) if self.kind != "datetime" else ()
        self.figures = {name: float(found[name]) for name in known if found.get(name) is not None}
        # the bounds of times are texts
        self.low, self.high = (
            _double(found.get(name)) if self.kind == "numeric" else found.get(name) for name in ("min", "max")
        )
        histogram = found.get("histogram") or {"bin_edges": (), "counts": ()}
        self.edges: tuple[float, ...] = tuple(map(float, histogram["bin_edges"]))
        self.counts: tuple[int, ...] = tuple(histogram["counts"])
        self.top_values: Mapping[str, int] = found.get("top_values", {})
        # the share of all values that the common ones are; None where there are no such
        self.coverage: float | None = found.get("top_values_coverage")
        self.languages: Mapping[str, float] = found.get("detected_languages", {})


def _double(value: float | str | None) -> float | None:
    return None if value is None else float(value)


class ComparedProfile:
    """What is compared of a profile that was computed here or checked by `read_profile`."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        odf, statistics = document["odf"], document["column_stats"]
        self.dataset_id = cut(odf["dataset_id"], TEXT_CHARACTERS)
        self.name = cut(document["dataset_name"], TEXT_CHARACTERS)
        self.snapshot_id = cut(document["snapshot_id"], TEXT_CHARACTERS)
        self.sequence_number: int = odf["sequence_number"]
        self.library: str | None = odf["languages"]
        self.created_at = cut(document["created_at"], TEXT_CHARACTERS)
        self.rows: int = document["num_rows"]
        self.duplicate_row_fraction: float = document["duplicate_row_fraction"]
        self.row_hashes = published_hashes(base64.b64decode(document["row_minhash"]))
        self.columns = {
            name: ComparedColumn(column, statistics[name], hidden=name in odf["hidden"])
            for column in document["columns"]
            for name in (column["name"],)
        }


def share(quantiles: Sequence[float], x: float, *, below: bool) -> float:
    """The share of values that are below x, or not above it: linear between two quantiles."""
    steps = len(quantiles) - 1
    first, after = bisect.bisect_left(quantiles, x), bisect.bisect_right(quantiles, x)
    if first == after:  # between two quantiles
        if first == 0:
            return 0.0
        if first > steps:
            return 1.0
        low, high = quantiles[first - 1], quantiles[first]
        return (first - 1 + (x - low) / (high - low)) / steps
    if below:
        return 0.0 if first == 0 else first / steps
    return (after - 1) / steps
